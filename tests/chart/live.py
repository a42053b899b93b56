"""A fleet of processes on loopback, started with what the chart renders: the same arguments, configuration and NATS
configuration as in a cluster. Only addresses, and the place of files, are other ones."""

import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

ROLES = ("producer", "scheduler", "worker")
START_SECONDS_MAX = 30
STOP_SECONDS_MAX = 30
JOBS = 20


def free_port():
    """Below the ports of outgoing connections: one of those could be taken before the server starts."""
    while True:
        port = random.randrange(15_000, 32_000)
        with contextlib.suppress(OSError), socket.socket() as taken:
            taken.bind(("127.0.0.1", port))
            return port


def answers_jobs(found, nats_config):
    """Starts everything, sends jobs, stops everything; every process has to end well."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        run_fleet(found, nats_config, folder, stack)


def run_fleet(found, nats_config, folder, stack):
    program = os.environ["FAIRLANE"]
    started = {}

    def start(name, *command):
        log = stack.enter_context((folder / f"{name}.log").open("w"))
        process = subprocess.Popen(list(map(str, command)), stdout=log, stderr=log)
        stack.callback(process.kill)
        started[name] = process

    def log(name):
        return (folder / f"{name}.log").read_text()

    def until(what, condition, name):
        end = time.monotonic() + START_SECONDS_MAX
        while not condition():
            assert started[name].poll() is None, f"{name} ended: {log(name)}"
            assert time.monotonic() < end, f"{what} in {START_SECONDS_MAX} s: {log(name)}"
            time.sleep(0.05)

    nats_port = free_port()
    (folder / "nats.conf").write_text(moved(nats_config, nats_port, folder))
    start("nats", os.environ["NATS_SERVER"], "--config", folder / "nats.conf")
    until("NATS is ready", lambda: "Server is ready" in log("nats"), "nats")

    # The simulator's arguments are those of its pod where there is one.
    simulators = [one for one in found if one["kind"] == "Deployment" and one["metadata"]["name"].endswith("-simulator")]
    arguments = container(simulators[0])["args"] if simulators else ["sim", "--listen=0.0.0.0:9000"]
    start("simulator", program, *[word.replace("0.0.0.0:9000", "127.0.0.1:0") for word in arguments], "--zero-latency")
    until("the simulator is ready", lambda: "http://" in log("simulator"), "simulator")

    (folder / "key").write_text("a-key\n")
    [config] = [one["data"]["fairlane.toml"] for one in found if one["kind"] == "ConfigMap" and "fairlane.toml" in one["data"]]
    (folder / "fairlane.toml").write_text(config)
    elsewhere = {
        "nats.url": f"nats://127.0.0.1:{nats_port}",
        "claude.base_url": re.search(r"http://\S+", log("simulator"))[0],
    }
    if "api_key_file" in config:
        elsewhere["claude.api_key_file"] = folder / "key"
    for role in ROLES:
        [one] = [one for one in found if one["kind"] == "Deployment" and one["metadata"]["name"].endswith(f"-{role}")]
        pod = container(one)
        port = free_port()
        moves = [f"--set={key}={value}" for key, value in {**elsewhere, f"{role}.http_addr": f"127.0.0.1:{port}"}.items()]
        arguments = [word.replace("/etc/fairlane/", f"{folder}/") for word in pod["args"]]
        start(role, program, *arguments, *moves)
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            url = f"http://127.0.0.1:{port}{pod[probe]['httpGet']['path']}"
            until(f"{role}: {probe} succeeds", lambda url=url: succeeds(url), role)
        assert succeeds(f"http://127.0.0.1:{port}/metrics")

    (folder / "jobs.jsonl").write_text("".join(json.dumps(job(number)) + "\n" for number in range(JOBS)))
    submit = [program, "submit", folder / "jobs.jsonl", "--wait", "--timeout", "60", "-o", "json", "--nats-url", elsewhere["nats.url"]]
    ended = subprocess.run(submit, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, f"{ended.stdout}{ended.stderr}{log('worker')}"
    assert json.loads(ended.stdout)["done"] == JOBS, ended.stdout

    for role in ROLES:
        started[role].send_signal(signal.SIGTERM)
        code = started[role].wait(STOP_SECONDS_MAX)
        assert code == 0, f"{role} ended with {code}: {log(role)}"


def moved(nats_config, port, folder):
    """The same configuration on loopback, in a folder of its own, with a monitoring port that disturbs nobody."""
    text, listens = re.subn(r'^listen: ".*"$', f'listen: "127.0.0.1:{port}"', nats_config, flags=re.M)
    text, monitors = re.subn(r'^http: ".*"$', f'http: "127.0.0.1:{free_port()}"', text, flags=re.M)
    text, stores = re.subn(r'store_dir: "/data"', f'store_dir: "{folder}/data"', text)
    assert (listens, monitors, stores) == (1, 1, 1), nats_config
    return text


def container(one):
    [only] = one["spec"]["template"]["spec"]["containers"]
    return only


def succeeds(url):
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return answer.status == 200
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def job(number):
    message = {"role": "user", "content": f"Name a colour, {number}."}
    request = {"model": "claude-sonnet-4-6", "max_tokens": 50, "messages": [message]}
    return {"id": f"chart-{number}", "tenant": "acme", "origin": "user_action", "kind": "tagging", "request": request}
