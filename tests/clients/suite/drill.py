"""The drill of deploy/operations.md: a backup with the `nats` command, a new server, and the fleet goes on there."""

import json
import os
import random
import re
import subprocess
import tempfile
import time
from pathlib import Path

from .checks import JOB_SECONDS, encode, job_of, new_id
from .clients import HERE
from .fleet import Fleet, START_SECONDS, wait_for

DEPLOY = HERE.parents[1] / "deploy"
TENANT = "drill"
# Long enough for the backup to be taken before the job is due.
PARKED_SECONDS = 20


def commands(name, page="operations.md"):
    """The indented lines below a marker of a page of deploy/."""
    below = (DEPLOY / page).read_text().split(f"<!-- drill: {name} -->\n", 1)[1]
    return re.match(r"(?:    .*\n)+", below)[0]


def a_backup_brings_everything_back(program, tools):
    with tempfile.TemporaryDirectory(prefix="fairlane-drill-") as folder:
        folder = Path(folder)
        answered, parked = new_id("answered"), new_id("parked")
        with Fleet(program) as fleet:
            server = os.readlink(f"/proc/{fleet.nats_pid}/exe")
            fleet.run("submit", "-", "--wait", "--timeout", str(JOB_SECONDS), stdin=line(answered))
            later = int((time.time() + PARKED_SECONDS) * 1_000)
            fleet.run("submit", "-", stdin=line(parked, not_before_ms=later))
            wait_for("the job is queued", lambda: phase(fleet, parked) == "queued", JOB_SECONDS)
            shell(fleet, tools, folder, commands("backup"))
            result = fleet.run("result", f"{TENANT}/{answered}")
        with (folder / "nats.log").open("w") as log:
            nats = subprocess.Popen([server, "--config", config(folder)], stdout=log, stderr=log)
        try:
            wait_for("the new server is ready", lambda: "Server is ready" in (folder / "nats.log").read_text(), START_SECONDS)
            go_on(program, tools, folder, answered, parked, result)
        finally:
            nats.terminate()
            nats.wait(START_SECONDS)


def go_on(program, tools, folder, answered, parked, result):
    url = f"nats://127.0.0.1:{port_of(folder)}"
    restored = Fleet(program, nats_url=url)
    restored.before = lambda: shell(restored, tools, folder, commands("restore"))
    with restored as fleet:
        wait_for("the parked job runs", lambda: phase(fleet, parked) == "done", PARKED_SECONDS + JOB_SECONDS)
        # Published again, it is known and not called again.
        fleet.run("submit", "-", "--wait", "--timeout", str(JOB_SECONDS), stdin=line(answered))
        assert fleet.run("result", f"{TENANT}/{answered}") == result
        assert len(fleet.calls(TENANT, parked)) == 1
        assert fleet.calls(TENANT, answered) == []


def line(identifier, **more):
    return encode({**job_of(identifier, **more), "tenant": TENANT}) + b"\n"


def phase(fleet, identifier):
    return json.loads(fleet.run("status", f"{TENANT}/{identifier}", "-o", "json"))["phase"]


def shell(fleet, tools, folder, script):
    path = os.pathsep.join([str(Path(tools["nats"]).parent), str(Path(fleet.program).parent), os.environ["PATH"]])
    where = {"PATH": path, "HOME": str(folder), "NATS_URL": fleet.nats_url, "FAIRLANE_NATS_URL": fleet.nats_url}
    ended = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], cwd=folder, env={**fleet.environment, **where}, capture_output=True, text=True
    )
    assert ended.returncode == 0, f"{script}: {ended.stdout}{ended.stderr}"
    assert " 0 differences" in ended.stdout or "fairlane init" not in script, ended.stdout


def config(folder):
    """A bare server: what a restore has to bring back is all that is there."""
    # Below the ports of outgoing connections, which could be taken before the server starts.
    port = random.randrange(15_000, 32_000)
    file = folder / "nats.conf"
    file.write_text(
        f'listen: "127.0.0.1:{port}"\njetstream {{\n  store_dir: "{folder}/store"\n  limits {{ default_max_consumers: -1 }}\n}}\n'
    )
    return file


def port_of(folder):
    return re.search(r"127\.0\.0\.1:(\d+)", (folder / "nats.conf").read_text())[1]
