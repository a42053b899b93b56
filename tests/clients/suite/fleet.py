"""A fleet on this machine, as `fairlane dev` runs it, and what its simulator knows."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

START_SECONDS = 120
STOP_SECONDS = 60


def wait_for(what, ask, seconds, every=0.1):
    """The first answer of `ask` that is true. The limit is generous; it is reached only when something is wrong."""
    deadline = time.monotonic() + seconds
    while not (answer := ask()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(every)
    return answer


def get(url):
    # Environment variables for proxies do not concern loopback.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=10) as answer:
        return answer.read().decode()


def is_there(url):
    try:
        get(url)
        return True
    except OSError:
        return False


def is_alive(pid):
    try:
        # A process that has ended and was not yet reaped by its parent counts as gone.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Fleet:
    """Started by `with`, stopped with everything that belongs to it when that ends, however it ends."""

    def __init__(self, program, preset="unlimited", nats_url=None):
        self.program = str(program)
        self.preset = preset
        # A server that runs already; one of the fleet's own if there is none.
        self.nats_url = nats_url
        self.nats_pid = None
        # Called before anything of the fleet is started.
        self.before = lambda: None
        self.scratch = None
        self._processes = []
        self._pids = {}

    def __enter__(self):
        self.scratch = Path(tempfile.mkdtemp(prefix="fairlane-clients-"))
        try:
            self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _start(self):
        note = self.scratch / "dev.json"
        self.environment = {
            name: value
            for name, value in os.environ.items()
            # The suite must neither spend money nor reach another fleet.
            if not name.upper().startswith(("FAIRLANE_", "ANTHROPIC_")) or name == "FAIRLANE_CACHE"
        }
        self.environment["FAIRLANE_DEV_STATE"] = str(note)
        self.before()
        # Its end of our pipe closes even if we are killed, and then nothing of it stays.
        arguments = ["dev", "--die-with-parent", "--sim", "--preset", self.preset]
        elsewhere = ["--nats-url", self.nats_url] if self.nats_url else []
        dev = self.spawn("dev", [*arguments, *elsewhere, "--data", str(self.scratch / "data")])

        def ready():
            assert dev.poll() is None, f"fairlane dev ended with {dev.returncode}:\n{self.log('dev')}"
            try:
                running = json.loads(note.read_text())
            except (FileNotFoundError, json.JSONDecodeError):
                return None
            self._remember(running)
            paths = {"simulator": "/sim/health"}
            urls = [member["url"] + paths.get(member["name"], "/readyz") for member in running["members"]]
            # With at least one member of each role the fleet can run jobs.
            return running if len(urls) >= 4 and all(map(is_there, urls)) else None

        try:
            running = wait_for("fairlane dev is ready", ready, START_SECONDS)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log('dev')}") from None
        assert running["is_simulated"], "fairlane dev does not use the simulator"
        self.nats_url, self.sim_url = running["nats_url"], running["claude_url"]
        self.api_url = running["api_urls"][0]

    def _remember(self, running):
        pids = {member["name"]: member["pid"] for member in running["members"]}
        pids["nats-server"] = self.nats_pid = running["nats_pid"]
        self._pids.update({name: pid for name, pid in pids.items() if pid})

    def pid(self, name):
        """Of a member as it runs now. None while it is being started again."""
        running = json.loads((self.scratch / "dev.json").read_text())
        self._remember(running)
        return {member["name"]: member["pid"] for member in running["members"]}.get(name)

    def spawn(self, name, arguments, settings=None):
        """A process of the program that ends with the fleet. Its log is kept."""
        environment = {**self.environment, **(settings or {})}
        with open(self.scratch / f"{name}.log", "wb") as log:
            process = subprocess.Popen(
                [self.program, *arguments], env=environment, stdin=subprocess.PIPE, stdout=log, stderr=log
            )
        self._processes.append((name, process))
        return process

    def run(self, *arguments, stdin=b""):
        """A command of the program, to its end; what it printed."""
        ended = subprocess.run(
            [self.program, *arguments], env=self.environment, input=stdin, capture_output=True, timeout=START_SECONDS
        )
        said = (ended.stdout + ended.stderr).decode(errors="replace")
        assert ended.returncode == 0, f"fairlane {arguments[0]} failed with {ended.returncode}: {said}"
        return ended.stdout.decode()

    def log(self, name):
        return (self.scratch / f"{name}.log").read_text(errors="replace")[-4_000:]

    def calls(self, tenant, job):
        """Calls for a job that reached the upstream, by its own books."""
        lines = get(f"{self.sim_url}/sim/log").splitlines()
        records = [json.loads(line) for line in lines]
        mine = [record for record in records if (record["tenant"], record["job"]) == (tenant, job)]
        return [record for record in mine if record["path"] == "/v1/messages"]

    def __exit__(self, *_):
        # What was started last needs the others, so it goes first.
        for name, process in reversed(self._processes):
            self._stop(name, process)
        left = {name: pid for name, pid in self._pids.items() if is_alive(pid)}
        for pid in left.values():
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.scratch, ignore_errors=True)
        assert not left, f"fairlane dev left processes behind: {left}"

    @staticmethod
    def _stop(name, process):
        if process.poll() is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            print(f"note: {name} did not end within {STOP_SECONDS} s of SIGTERM and was killed", flush=True)
