"""A fleet whose traces go to a real Jaeger over gRPC and over HTTP, and what Jaeger then answers."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
PATIENCE = 60
JOBS = 12
TREE = [  # what a job has that is tried, tried again, and answered by the lighter model: name, kind, service, how often
    ("submit fl.submit", "producer", "fairlane-submit", 1),
    ("accept fl.submit", "consumer", "fairlane-producer", 1),
    ("queue wait", "internal", "fairlane-scheduler", 2),
    ("grant fl.credit", "producer", "fairlane-scheduler", 2),
    ("process fl.jobs", "consumer", "fairlane-worker", 2),
    ("chat claude-sonnet-4-6", "client", "fairlane-worker", 1),
    ("chat claude-haiku-4-5", "client", "fairlane-worker", 1),
    ("result", "internal", "fairlane-worker", 1),
    ("settle fl_credits", "client", "fairlane-worker", 2),
]


def ask(url, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


def eventually(what, look):
    """The first answer of `look` that is not None."""
    end, last = time.monotonic() + PATIENCE, None
    while time.monotonic() < end:
        try:
            found = look()
            if found is not None:
                return found
        except (OSError, ValueError, KeyError) as error:
            last = error
        time.sleep(0.1)
    raise SystemExit(f"FAIL  gave up waiting for {what}: {last}")


@contextlib.contextmanager
def running(command, log, **options):
    with open(log, "wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, **options)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()


def ports(count):
    """Ports that no outgoing connection takes; a few of them may be taken, which shows at once."""
    return random.sample(range(15000, 32000), count)


@contextlib.contextmanager
def jaeger(program, dir):
    names = [
        "collector.otlp.grpc.host-port", "collector.otlp.http.host-port", "query.http-server.host-port",
        "query.grpc-server.host-port", "collector.grpc-server.host-port", "collector.http-server.host-port",
        "admin.http.host-port",
    ]
    at = {name: f"127.0.0.1:{port}" for name, port in zip(names, ports(len(names)))}
    flags = [f"--{name}={address}" for name, address in at.items()]
    log = dir / "jaeger.log"
    with running([program, "--collector.otlp.enabled=true", *flags], log) as process:
        query = "http://" + at["query.http-server.host-port"]

        def is_there():
            if process.poll() is not None:
                raise SystemExit(f"FAIL  Jaeger ended: {log.read_text()[-2000:]}")
            return ask(f"{query}/api/services")

        eventually("Jaeger", is_there)
        yield query, "http://" + at["collector.otlp.grpc.host-port"], "http://" + at["collector.otlp.http.host-port"]


@contextlib.contextmanager
def fleet(program, dir, name, settings):
    """A fleet without latency; gives what it says of itself, and how to run a command against it."""
    note = dir / f"{name}.json"
    environment = {**os.environ, **settings, "FAIRLANE_DEV_STATE": str(note), "NO_COLOR": "1"}
    command = [program, "dev", "--sim", "--preset", "unlimited", "--time-scale", "0", "--data", str(dir / name)]
    with running(command, dir / f"{name}.log", env=environment):
        told = eventually("the fleet", lambda: json.loads(note.read_text()))

        def run(*arguments, check=True):
            return subprocess.run([program, *arguments], env=environment, check=check, capture_output=True, text=True)

        yield told, run


def jobs(dir):
    path = dir / "jobs.jsonl"
    with open(path, "w") as file:
        for number in range(JOBS):
            request = {"model": "claude-sonnet-4-6", "max_tokens": 1000,
                       "messages": [{"role": "user", "content": f"tags for picture {number}"}]}
            job = {"id": f"tags-{number}", "tenant": "acme", "origin": "user_action", "kind": "tagging",
                   "request": request}
            print(json.dumps(job), file=file)
    return path


def kind(span):
    tags = {tag["key"]: tag["value"] for tag in span["tags"]}
    return tags.get("span.kind", "internal")


def whole(query, trace):
    """The trace, once Jaeger has all of it."""
    data = ask(f"{query}/api/traces/{trace}")["data"]
    spans = data[0]["spans"] if data else []
    names = [span["operationName"] for span in spans]
    if all(names.count(name) >= times for name, _, _, times in TREE):
        return data[0]
    raise ValueError(f"has {sorted(names)}")


def check_tree(found):
    spans = {span["spanID"]: span for span in found["spans"]}
    roots = []
    for span in spans.values():
        parents = [ref["spanID"] for ref in span["references"] if ref["refType"] == "CHILD_OF"]
        if not parents:
            roots.append(span["operationName"])
        assert all(parent in spans for parent in parents), f"{span['operationName']} has a parent outside"
    assert roots == ["submit fl.submit"], f"roots: {roots}"
    services = {key: process["serviceName"] for key, process in found["processes"].items()}
    seen = [(span["operationName"], kind(span), services[span["processID"]]) for span in spans.values()]
    for name, wanted, service, times in TREE:
        assert seen.count((name, wanted, service)) == times, f"{name}: {sorted(seen)}"


def show(found):
    children = {}
    for span in sorted(found["spans"], key=lambda span: span["startTime"]):
        parents = [ref["spanID"] for ref in span["references"] if ref["refType"] == "CHILD_OF"]
        children.setdefault(parents[0] if parents else None, []).append(span)

    def rows(parent, depth):
        for span in children.get(parent, []):
            service = found["processes"][span["processID"]]["serviceName"]
            name = "  " * depth + span["operationName"]
            print(f"      {name:34} {service:20} {span['duration'] / 1000:9.1f} ms")
            rows(span["spanID"], depth + 1)

    rows(None, 0)


def commands(section):
    """The commands of a section of the page for people."""
    page = (TOP / "deploy" / "tracing.md").read_text()
    return page.split(f"## {section}", 1)[1].split("```sh\n", 1)[1].split("```", 1)[0]


def one_tree(query, endpoint, protocol, program, dir):
    settings = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}
    with fleet(program, dir, protocol.replace("/", "-"), settings) as (told, run):
        ask(f"{told['claude_url']}/sim/faults", [{"model": "claude-sonnet-4-6", "status": 529}])
        run("submit", str(jobs(dir)), "--wait", check=True)
        records = [json.loads(run("status", f"acme/tags-{number}", "-o", "json").stdout) for number in range(JOBS)]
        tried = [record for record in records if len(record["tries"]) == 2 and record.get("fallback")]
        assert tried, "no job was tried, tried again, and answered by the lighter model"
        trace = tried[0]["trace_id"]
        found = eventually(f"trace {trace}", lambda: whole(query, trace))
        check_tree(found)
        print(f"ok    one connected trace of a job with a retry and a fallback, over {protocol}")
        show(found)
        page(query, tried[0], dir, program, told)


def page(query, record, dir, program, told):
    """The commands of the page find the job."""
    script = commands("Find a slow job").replace("http://127.0.0.1:16686", query)
    script = script.replace("minDuration=2s", "minDuration=1us")
    bin = dir / "bin"
    bin.mkdir(exist_ok=True)
    with contextlib.suppress(FileExistsError):
        (bin / "fairlane").symlink_to(program)
    environment = {**os.environ, "PATH": f"{bin}:{os.environ['PATH']}", "JOB": f"acme/{record['job']}",
                   "FAIRLANE_NATS_URL": told["nats_url"]}
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", script], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    for wanted in [record["trace_id"], "process fl.jobs", "queue wait", "chat claude-haiku-4-5"]:
        assert wanted in done.stdout, f"{wanted} is not in:\n{done.stdout}"
    print("ok    the commands of deploy/tracing.md find the job and what took its time")


def main():
    program, fairlane = sys.argv[1], sys.argv[2]
    with tempfile.TemporaryDirectory(prefix="fairlane-traces-") as dir:
        dir = Path(dir)
        with jaeger(program, dir) as (query, grpc, http):
            one_tree(query, grpc, "grpc", fairlane, dir)
            one_tree(query, http, "http/protobuf", fairlane, dir)


if __name__ == "__main__":
    main()
