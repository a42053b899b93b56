"""One image for all roles, run as the chart runs it: read-only, without rights, as a user that is nobody.

The engine is our own: a dockerd on a socket in a temporary folder, without a network of its own, so that containers use
that of the host. nats-server runs beside it with deploy/nats/secure.conf and what `fairlane auth` writes.
"""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
IMAGE = "fairlane:under-test"
IMAGE_BYTES_MAX = 60_000_000
WAIT_SECONDS_MAX = 60
JOBS = 300
SLOTS = 8
HARDENED = ["--network=host", "--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges"]


def main():
    program = Path(sys.argv[1]).resolve()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fairlane-image-")))
        engine = Engine(folder, stack)
        build(engine, program, folder)
        print("ok      an image of", inspect(engine, "{{.Size}}"), "bytes is built around a program from outside")
        with contextlib.closing(Fleet(engine, program, folder, stack)) as fleet:
            fleet.start()
            print("ok      every role is ready in a container, under the shipped permissions, over TLS")
            scales(fleet)
            print(f"ok      {JOBS} jobs are each done once while workers go from one to four and back")
    print("3 passed, 0 failed")


class Engine:
    """A dockerd of our own, gone with the stack."""

    def __init__(self, folder, stack):
        self.at = f"unix://{folder}/docker.sock"
        log = stack.enter_context((folder / "dockerd.log").open("w"))
        places = [f"--data-root={folder}/images", f"--exec-root={folder}/run", f"--pidfile={folder}/docker.pid"]
        # vfs needs nothing of the host's file system; one image is all that it copies.
        alone = ["--iptables=false", "--bridge=none", "--storage-driver=vfs", "-H", self.at]
        daemon = subprocess.Popen(["/usr/sbin/dockerd", *places, *alone], stdout=log, stderr=log)
        # It leaves the mark of its network namespace mounted.
        stack.callback(subprocess.run, ["umount", "--quiet", folder / "run" / "netns" / "default"], check=False, stderr=subprocess.DEVNULL)
        stack.callback(stop, daemon)
        text = lambda: (folder / "dockerd.log").read_text()[-2_000:]
        until(lambda: (folder / "docker.sock").exists() and self.call("info").returncode == 0, "the engine runs", text, daemon)

    def call(self, *arguments):
        command = ["/usr/bin/docker", "-H", self.at, *map(str, arguments)]
        # The plain builder: the other one is a plugin that is not installed with the engine.
        return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "DOCKER_BUILDKIT": "0"})

    def do(self, *arguments):
        ended = self.call(*arguments)
        assert ended.returncode == 0, f"docker {' '.join(map(str, arguments))}: {ended.stdout}{ended.stderr}"
        return ended.stdout.strip()


def build(engine, program, folder):
    root = folder / "root"
    subprocess.run([TOP / "deploy" / "image-root", program, root], check=True)
    words = ["--build-arg=VERSION=1.2.3", "--build-arg=REVISION=abc", "--target=outside"]
    engine.do("build", "-q", "-f", TOP / "deploy" / "Dockerfile", "-t", IMAGE, *words, root)
    size = int(inspect(engine, "{{.Size}}"))
    assert size < IMAGE_BYTES_MAX, f"the image has {size} bytes; it may have {IMAGE_BYTES_MAX}"
    labels = json.loads(inspect(engine, "{{json .Config.Labels}}"))
    said = {name.removeprefix("org.opencontainers.image."): value for name, value in labels.items()}
    assert said == {"title": "fairlane", "version": "1.2.3", "revision": "abc"}, labels
    assert inspect(engine, "{{.Config.User}}") == "65532:65532"
    version = engine.do("run", "--rm", *HARDENED, IMAGE, "--version")
    assert version.startswith("fairlane "), version


def inspect(engine, what):
    return engine.do("image", "inspect", "-f", what, IMAGE)


class Fleet:
    """NATS and the simulator as processes, the roles in containers."""

    def __init__(self, engine, program, folder, stack):
        self.engine, self.program, self.folder, self.stack = engine, program, folder, stack
        self.keys = folder / "keys"
        self.containers = {}
        self.nats_url = f"tls://localhost:{free_port()}"
        self.simulator = None

    def start(self):
        self.start_nats()
        self.start_simulator()
        self.fairlane("init")
        for role in ("producer", "scheduler"):
            self.start_role(role, role)
        self.start_role("worker", "worker-1")

    def start_nats(self):
        run = lambda *words: subprocess.run(list(map(str, words)), check=True, capture_output=True)
        run(self.program, "auth", "--out", self.keys)
        cert, key = self.keys / "tls.crt", self.keys / "tls.key"
        subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-addext", "basicConstraints=critical,CA:FALSE"]
        run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject, "-out", cert, "-keyout", key)
        # Readable for the user of the containers; a Secret would be mounted for its group.
        for file in self.keys.iterdir():
            file.chmod(0o644)
        self.keys.chmod(0o755)
        self.folder.chmod(0o755)
        config = (TOP / "deploy" / "nats" / "secure.conf").read_text()
        port = self.nats_url.rsplit(":", 1)[1]
        for before, after in (('"0.0.0.0:4222"', f'"127.0.0.1:{port}"'), ('"127.0.0.1:8222"', f'"127.0.0.1:{free_port()}"')):
            assert before in config
            config = config.replace(before, after)
        (self.keys / "secure.conf").write_text(config)
        places = {"NATS_TLS_CERT": str(cert), "NATS_TLS_KEY": str(key), "NATS_STORE": str(self.folder / "store")}
        self.process("nats", os.environ["NATS_SERVER"], "--config", self.keys / "secure.conf", env={**os.environ, **places})
        until(lambda: "Server is ready" in self.log("nats"), "NATS is ready", lambda: self.log("nats"))

    def start_simulator(self):
        self.process("simulator", self.program, "sim", "--listen=127.0.0.1:0", "--log-capacity=10000")
        until(lambda: "http://" in self.log("simulator"), "the simulator is ready", lambda: self.log("simulator"))
        self.simulator = next(word for word in self.log("simulator").split() if word.startswith("http://"))

    def start_role(self, role, name):
        port = free_port()
        words = self.settings(role, Path("/keys")) | {
            f"{role}.http_addr": f"127.0.0.1:{port}",
            "claude.base_url": self.simulator,
            "claude.api_key": "simulator",
            "worker.slots": SLOTS,
        }
        given = [f"--env=FAIRLANE__{key.upper().replace('.', '__')}={value}" for key, value in words.items()]
        mounted = f"--volume={self.keys}:/keys:ro"
        self.engine.do("run", "--detach", "--name", name, *HARDENED, mounted, *given, IMAGE, role)
        self.containers[name] = port
        until(lambda: succeeds(f"http://127.0.0.1:{port}/readyz"), f"{name} is ready", lambda: self.container_log(name))

    def stop_role(self, name):
        """As a kubelet does it: asked, waited for; it has to end well."""
        self.engine.do("stop", "--time", WAIT_SECONDS_MAX, name)
        code = self.engine.do("wait", name)
        assert code == "0", f"{name} ended with {code}: {self.container_log(name)}"
        del self.containers[name]

    def settings(self, who, keys):
        return {"nats.url": self.nats_url, "nats.nkey_file": keys / f"{who}.nk", "nats.tls_ca_file": keys / "tls.crt"}

    def command(self, *words):
        given = [f"--set={key}={value}" for key, value in self.settings("operator", self.keys).items()]
        return [str(self.program), *map(str, words), *given]

    def fairlane(self, *words):
        ended = subprocess.run(self.command(*words), capture_output=True, text=True, check=False)
        assert ended.returncode == 0, f"fairlane {' '.join(map(str, words))}: {ended.stdout}{ended.stderr}"
        return ended.stdout

    def process(self, name, *command, **options):
        log = self.stack.enter_context((self.folder / f"{name}.log").open("w"))
        process = subprocess.Popen(list(map(str, command)), stdout=log, stderr=log, **options)
        self.stack.callback(stop, process)

    def log(self, name):
        return (self.folder / f"{name}.log").read_text()

    def container_log(self, name):
        ended = self.engine.call("logs", "--tail", 20, name)
        return ended.stdout + ended.stderr

    def calls(self):
        with urllib.request.urlopen(f"{self.simulator}/sim/log?limit=10000", timeout=10) as answer:
            return [json.loads(line) for line in answer.read().splitlines()]

    def close(self):
        for name in list(self.containers):
            self.engine.call("rm", "--force", name)


def scales(fleet):
    jobs = fleet.folder / "jobs.jsonl"
    jobs.write_text("".join(json.dumps(job(number)) + "\n" for number in range(JOBS)))
    submit = fleet.command("submit", jobs, "--wait", "--timeout", 240, "-o", "json")
    waiting = subprocess.Popen(submit, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    fleet.stack.callback(stop, waiting)
    answered = lambda: sum(call["billed"] for call in fleet.calls())
    tell = lambda: f"{answered()} answered; {fleet.container_log('worker-1')}"
    until(lambda: answered() > 0, "the first call ends", tell)
    for number in (2, 3, 4):
        fleet.start_role("worker", f"worker-{number}")
    before = answered()
    assert before < JOBS * 3 // 4, f"{before} of {JOBS} were answered before there were four workers"
    until(lambda: answered() > before + 20, "four workers go on", tell)
    for number in (1, 2, 3):
        fleet.stop_role(f"worker-{number}")
    left = JOBS - answered()
    out, err = waiting.communicate(timeout=300)
    assert waiting.returncode == 0, f"{out}{err}{fleet.container_log('worker-4')}"
    assert json.loads(out)["done"] == JOBS, out
    assert left > 0, "all was done before the workers had gone: this proves nothing"
    paid = Counter(call["job"] for call in fleet.calls() if call["billed"])
    assert len(paid) == JOBS and set(paid.values()) == {1}, {name: count for name, count in paid.items() if count != 1}


def job(number):
    request = {"model": "claude-haiku-4-5", "max_tokens": 40, "messages": [{"role": "user", "content": f"Name a colour, {number}."}]}
    return {"id": f"image-{number}", "tenant": "acme", "origin": "user_action", "kind": "tagging", "request": request}


def until(condition, what, tell, process=None):
    end = time.monotonic() + WAIT_SECONDS_MAX
    while not condition():
        assert process is None or process.poll() is None, f"ended before {what}: {tell()}"
        assert time.monotonic() < end, f"{what}: not within {WAIT_SECONDS_MAX} s: {tell()}"
        time.sleep(0.05)


def succeeds(url):
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return answer.status == 200
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def free_port():
    """Below the ports of outgoing connections: one of those could be taken before the server starts."""
    while True:
        port = random.randrange(15_000, 32_000)
        with contextlib.suppress(OSError), socket.socket() as taken:
            taken.bind(("127.0.0.1", port))
            return port


def stop(process):
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()
