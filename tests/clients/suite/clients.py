"""Three NATS clients that are not ours, with one face.

The Python and the JavaScript client are driven by small programs in drivers/, run once per verb; the nats CLI needs
none. A verb prints JSON, one value on a line:

    publish SUBJECT NAME=VALUE...  < body    {"stream", "seq", "duplicate"}, the server's acknowledgement
    record  BUCKET KEY                       the value of the key, or null
    follow  BUCKET KEY                       "ready", then every value of the key until its phase is final
    last    STREAM SUBJECT                   {"subject", "seq", "headers", "body" in base64}, or null
    at      STREAM SEQ                       the same
    subjects STREAM FILTER                   {subject: number of messages}
"""

import base64
import json
import os
import queue
import re
import shutil
import subprocess
import threading
import time
from email.parser import BytesParser
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
FINAL = ("done", "failed", "cancelled")
# How long one verb may take. A loaded machine is slow to start programs.
VERB_SECONDS = 60


class Message:
    """A message of a stream, without the headers that the server adds when it is read."""

    def __init__(self, subject, seq, headers, body):
        self.subject, self.seq, self.headers, self.body = subject, seq, headers, body

    def __repr__(self):
        return f"{self.subject} #{self.seq} {self.headers} {self.body!r}"


class Following:
    """A watch on one record, in a process of its own."""

    def __init__(self, command, environment, has_ready_line, parse):
        self._values = queue.Queue()
        self._errors = []
        self._process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self._threads = [
            threading.Thread(target=self._read, args=(parse,), daemon=True),
            threading.Thread(target=self._listen, daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        if has_ready_line:
            assert self._next(time.monotonic() + VERB_SECONDS) == "ready"

    def _read(self, parse):
        for line in self._process.stdout:
            value = parse(line.decode())
            if value is not None:
                self._values.put(value)
        self._values.put(None)

    def _listen(self):
        for line in self._process.stderr:
            self._errors.append(line.decode(errors="replace"))

    def _next(self, deadline):
        try:
            value = self._values.get(timeout=max(0, deadline - time.monotonic()))
        except queue.Empty:
            raise AssertionError("the watch did not see the end of the job in time") from None
        assert value is not None, f"the watch ended early: {''.join(self._errors)}"
        return value

    def until_final(self, seconds):
        """All values up to the first final one."""
        seen, deadline = [], time.monotonic() + seconds
        while not seen or seen[-1]["phase"] not in FINAL:
            try:
                seen.append(self._next(deadline))
            except AssertionError as error:
                raise AssertionError(f"{error}; seen: {[record['phase'] for record in seen]}") from None
        return seen

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()
        for thread in self._threads:
            thread.join()


class Client:
    """What is common: running commands against one server."""

    def __init__(self, name, tools, nats_url, scratch):
        self.name, self.tools, self.scratch = name, tools, scratch
        # No context or other setting of the user's may decide which server is asked.
        kept = {key: value for key, value in os.environ.items() if not key.startswith("NATS_")}
        quiet = {"NATS_URL": nats_url, "XDG_CONFIG_HOME": str(scratch / "config"), "NO_COLOR": "1"}
        self.environment = {**kept, **quiet}

    def run(self, command, stdin=b"", check=True):
        ended = subprocess.run(
            [str(part) for part in command], input=stdin, env=self.environment, capture_output=True, timeout=VERB_SECONDS
        )
        if check and ended.returncode != 0:
            said = (ended.stdout + ended.stderr).decode(errors="replace")
            raise AssertionError(f"{self.name} failed with {ended.returncode}: {said.strip()}")
        return ended


class Driven(Client):
    """A client library, by way of its driver."""

    def __init__(self, name, tools, nats_url, scratch, program, suffix):
        super().__init__(name, tools, nats_url, scratch)
        self.program = program
        self.driver = HERE / "drivers" / f"client.{suffix}"
        self.example = HERE / "examples" / f"job.{suffix}"

    def verb(self, *arguments, stdin=b""):
        return json.loads(self.run([self.program, self.driver, *arguments], stdin).stdout)

    def publish(self, subject, body, headers=None):
        given = [f"{name}={value}" for name, value in (headers or {}).items()]
        return self.verb("publish", subject, *given, stdin=body)

    def record(self, bucket, key):
        return self.verb("record", bucket, key)

    def follow(self, bucket, key):
        command = [str(self.program), str(self.driver), "follow", bucket, key]
        return Following(command, self.environment, True, json.loads)

    def last(self, stream, subject):
        return self._message(self.verb("last", stream, subject))

    def at(self, stream, seq):
        return self._message(self.verb("at", stream, str(seq)))

    def subjects(self, stream, subject_filter):
        return self.verb("subjects", stream, subject_filter)

    def run_example(self):
        return self.run([self.program, self.example]).stdout.decode()

    @staticmethod
    def _message(found):
        return found and Message(found["subject"], found["seq"], found["headers"], base64.b64decode(found["body"]))


class Python(Driven):
    def __init__(self, tools, nats_url, scratch):
        super().__init__("python", tools, nats_url, scratch, Path(tools["python"]), "py")


class JavaScript(Driven):
    """Modules are looked up beside the program, so it runs as a copy beside the installed ones."""

    def __init__(self, tools, nats_url, scratch):
        super().__init__("javascript", tools, nats_url, scratch, Path(shutil.which("node") or "node"), "mjs")
        directory = scratch / "javascript"
        directory.mkdir()
        (directory / "node_modules").symlink_to(tools["node_modules"])
        self.driver = Path(shutil.copy(self.driver, directory))
        self.example = Path(shutil.copy(self.example, directory))


class NatsCli(Client):
    ACK = re.compile(r"Stored in Stream: (\S+) Sequence: ([\d,]+)( Duplicate: true)?")
    PUT = re.compile(r"\[.*?\] PUT \S+ > \S+: (\{.*\})$")

    def __init__(self, tools, nats_url, scratch):
        super().__init__("nats-cli", tools, nats_url, scratch)
        # The example calls `nats`, as its reader would.
        directory = str(Path(tools["nats"]).parent)
        self.environment["PATH"] = directory + os.pathsep + self.environment.get("PATH", "")
        self.example = HERE / "examples" / "job.sh"

    def nats(self, *arguments, stdin=b"", check=True):
        return self.run([self.tools["nats"], *arguments], stdin, check)

    def publish(self, subject, body, headers=None):
        given = [part for name, value in (headers or {}).items() for part in ("--header", f"{name}:{value}")]
        flags = ["--jetstream", "--no-templates", "--force-stdin"]
        ended = self.nats("pub", *flags, *given, subject, stdin=body)
        said = (ended.stdout + ended.stderr).decode()
        found = self.ACK.search(said)
        assert found, f"nats pub reports no acknowledgement: {said}"
        return {"stream": found[1], "seq": int(found[2].replace(",", "")), "duplicate": bool(found[3])}

    def record(self, bucket, key):
        ended = self.nats("kv", "get", bucket, key, "--raw", check=False)
        if ended.returncode != 0:
            assert b"key not found" in ended.stderr, ended.stderr.decode()
            return None
        return json.loads(ended.stdout)

    def follow(self, bucket, key):
        def parse(line):
            found = self.PUT.match(line.rstrip("\n"))
            return found and json.loads(found[1])

        return Following([self.tools["nats"], "kv", "watch", bucket, key], self.environment, False, parse)

    def last(self, stream, subject):
        return self._get(stream, "--last-for", subject)

    def at(self, stream, seq):
        return self._get(stream, str(seq))

    def subjects(self, stream, subject_filter):
        ended = self.nats("stream", "subjects", stream, subject_filter, "--json")
        return json.loads(ended.stdout or b"{}")

    def run_example(self):
        return self.run([self.example]).stdout.decode()

    def _get(self, *arguments):
        ended = self.nats("stream", "get", *arguments, "--json", check=False)
        if ended.returncode != 0:
            assert b"no message found" in ended.stderr, ended.stderr.decode()
            return None
        found = json.loads(ended.stdout)
        lines = base64.b64decode(found.get("hdrs") or "").partition(b"\r\n")[2]
        headers = BytesParser().parsebytes(lines)
        own = {name: text for name, text in headers.items() if not name.startswith("Nats-")}
        return Message(found["subject"], found["seq"], own, base64.b64decode(found.get("data") or ""))
