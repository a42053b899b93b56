"""The commands of deploy/README.md that make keys for NATS, start an encrypted server with them, and use them, as they stand
there. Only where the server is and where its files lie is put in place of what the page says.
"""

import os
import random
import subprocess
import tempfile
from pathlib import Path

from .drill import DEPLOY, commands
from .fleet import START_SECONDS, wait_for

PAGE = "README.md"
ADDRESS = "tls://nats.example.com:4222"


def the_keys_of_the_readme_let_in_those_they_are_for(program, tools, server):
    with tempfile.TemporaryDirectory(prefix="fairlane-keys-") as folder:
        place = Place(Path(folder), program, tools, server)
        place.run("keys")
        nats = place.start_server()
        try:
            wait_for("the server is ready", lambda: "Server is ready" in place.log(), START_SECONDS)
            refused = place.shell("fairlane init --nats-url ADDRESS".replace("ADDRESS", place.url))
            assert refused.returncode != 0, "without a key everybody comes in"
            assert " 0 differences" in place.run("objects")
            place.run("tenant")
            # What the operator may look at: the tenant's job has arrived.
            seen = place.shell(f"fairlane doctor -o json --nats-url {place.url} --set nats.nkey_file=nats-auth/operator.nk")
            assert "nats_down" not in seen.stdout and "objects_missing" not in seen.stdout, seen
            stored = place.run("tenant", tenant="wayne", fails=True)
            assert "permissions" in stored.lower() or "timeout" in stored.lower(), stored
        finally:
            nats.terminate()
            nats.wait(START_SECONDS)


class Place:
    """A folder that looks like the top of the repository, and a server that is about to be there."""

    def __init__(self, folder, program, tools, server):
        self.folder = folder
        # Below the ports of outgoing connections, which could be taken before the server starts.
        self.port = random.randrange(15_000, 32_000)
        self.url = f"tls://127.0.0.1:{self.port}"
        (folder / "deploy").symlink_to(DEPLOY)
        (folder / "bin").mkdir()
        (folder / "bin" / "nats-server").symlink_to(server)
        (folder / "bin" / "fairlane").symlink_to(program)
        path = [folder / "bin", Path(tools["nats"]).parent, os.environ["PATH"]]
        self.environment = {
            name: value for name, value in os.environ.items() if not name.upper().startswith(("FAIRLANE_", "NATS_"))
        }
        self.environment |= {
            "PATH": os.pathsep.join(map(str, path)),
            "HOME": str(folder),
            "FAIRLANE__NATS__TLS_CA_FILE": str(folder / "tls.crt"),
            "NATS_CA": str(folder / "tls.crt"),
        }
        self.shell(
            "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1 "
            "-addext basicConstraints=critical,CA:FALSE -out tls.crt -keyout tls.key"
        ).check_returncode()

    def text(self, name):
        text = commands(name, PAGE)
        for said, here in ((ADDRESS, self.url), ("/var/lib/nats", self.folder / "store"), ("/etc/nats/", f"{self.folder}/")):
            text = text.replace(said, str(here))
        return text

    def run(self, name, tenant=None, fails=False):
        """Runs what the page says under this name; what it printed."""
        text = self.text(name)
        if tenant:
            text = text.replace("fl.submit.acme", f"fl.submit.{tenant}")
        ended = self.shell(text)
        assert (ended.returncode != 0) == fails, f"{text}: {ended.stdout}{ended.stderr}"
        return ended.stdout + ended.stderr

    def shell(self, script):
        command = ["bash", "-euo", "pipefail", "-c", script]
        return subprocess.run(command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=START_SECONDS)

    def start_server(self):
        lines = self.text("server").strip().splitlines()
        # The shell becomes the server, which listens on loopback.
        lines[-1] = f"exec {lines[-1].strip()} --addr 127.0.0.1 --port {self.port} --http_port {self.port + 1}"
        with (self.folder / "nats.log").open("w") as log:
            script = ["bash", "-euo", "pipefail", "-c", "\n".join(lines)]
            return subprocess.Popen(script, cwd=self.folder, env=self.environment, stdout=log, stderr=log)

    def log(self):
        return (self.folder / "nats.log").read_text()
