"""Proves that jobs published by ordinary NATS clients run exactly like those of our own CLI.

    tests/clients/install-tools
    tests/clients/run [PATH OF fairlane]

Starts `fairlane dev` with the simulator, with directories and ports of its own, and stops all of it. One line per
check; the last line counts them.
"""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from .checks import Checks, World
from .clients import HERE, JavaScript, NatsCli, Python
from .drill import a_backup_brings_everything_back
from .fleet import Fleet
from .keys import the_keys_of_the_readme_let_in_those_they_are_for
from .pages import PAGES, Pages
from .wiretap import Wiretap

CLIENTS = (Python, JavaScript, NatsCli)


def main():
    # An end from outside must not skip the clean-up.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("run: terminated"))
    program, tools = find_program(sys.argv[1:]), find_tools()
    tally = Tally()
    try:
        check_all(program, tools, tally)
    except (AssertionError, OSError, subprocess.SubprocessError) as error:
        # Not one check's fault: the fleet does not start, does not run our own CLI's job, or does not end.
        tally.failed += 1
        print(f"FAILED  the fleet\n        {error}", flush=True)
    print(f"{tally.passed} passed, {tally.failed} failed")
    return 1 if tally.failed else 0


def check_all(program, tools, tally):
    with Fleet(program) as fleet, Wiretap(fleet.sim_url) as wiretap:
        start_tapped_roles(fleet, wiretap)
        world = World(fleet)
        for make in CLIENTS:
            client = make(tools, fleet.nats_url, fleet.scratch)
            for title, check in Checks(world, client, wiretap).all():
                tally.run(f"{client.name}: {title}", check)
        server = os.readlink(f"/proc/{fleet.nats_pid}/exe")
    # The limits of the smallest tier, so that there is something to wait for.
    with Fleet(program, preset="tier1") as fleet:
        pages = Pages(fleet, tools)
        for page in PAGES:
            tally.run(f"{page}: its commands do what it says", lambda page=page: pages.check(page))
    tally.run("nats-cli: a backup brings everything back", lambda: a_backup_brings_everything_back(program, tools))
    keys = lambda: the_keys_of_the_readme_let_in_those_they_are_for(program, tools, server)
    tally.run("nats-cli: the keys of the README let in those they are for", keys)


class Tally:
    def __init__(self):
        self.passed = self.failed = 0

    def run(self, title, check):
        try:
            check()
        except (AssertionError, KeyError, TypeError, ValueError, OSError, subprocess.SubprocessError) as error:
            self.failed += 1
            print(f"FAILED  {title}\n        {type(error).__name__}: {error}", flush=True)
        else:
            self.passed += 1
            print(f"ok      {title}", flush=True)


def start_tapped_roles(fleet, wiretap):
    """A second, small fleet under a namespace of its own, whose upstream is the wiretap."""
    settings = {
        "FAIRLANE__NATS__URL": fleet.nats_url,
        "FAIRLANE__NATS__NAMESPACE": "tap",
        "FAIRLANE__CLAUDE__BASE_URL": wiretap.url,
        "FAIRLANE__CLAUDE__API_KEY": "simulated",
        "FAIRLANE__LIMITS__PRESET": "unlimited",
    }
    fleet.run("init", "--nats-url", fleet.nats_url, "--namespace", "tap")
    for role in ("scheduler", "worker", "producer"):
        listening = {f"FAIRLANE__{role.upper()}__HTTP_ADDR": "127.0.0.1:0"}
        fleet.spawn(f"tapped-{role}", [role, "--die-with-parent"], {**settings, **listening})


def find_program(arguments):
    if len(arguments) > 1 or arguments[:1] in (["-h"], ["--help"]):
        sys.exit(__doc__)
    built = [HERE.parents[1] / "target" / profile / "fairlane" for profile in ("release", "debug")]
    candidates = [Path(path) for path in arguments] or sorted(
        filter(Path.exists, built), key=lambda path: path.stat().st_mtime, reverse=True
    )
    if not candidates or not os.access(candidates[0], os.X_OK):
        sys.exit(f"run: there is no program {' or '.join(map(str, candidates or built))}; build it: cargo build --release")
    return candidates[0].resolve()


def find_tools():
    installer = HERE / "install-tools"
    where = subprocess.run([installer, "--where"], capture_output=True, text=True, check=True).stdout
    tools = dict(line.split("=", 1) for line in where.splitlines())
    missing = [name for name, path in tools.items() if not Path(path).exists()]
    missing += [name for name in ("node", "jq") if not shutil.which(name)]
    if missing:
        sys.exit(f"run: {', '.join(missing)} missing; run tests/clients/install-tools")
    return tools


if __name__ == "__main__":
    sys.exit(main())
