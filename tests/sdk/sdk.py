"""Anthropic's Python and TypeScript SDKs, unmodified, pointed at a fleet by base_url alone.

One line per check; the last line counts them. What was paid is told by the simulator's own log.
"""

import collections
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anthropic
from generated import generated_client
from kills import kills
from suite.fleet import Fleet, wait_for
from world import HERE, MODEL, World, ask


def message(world):
    """A message is answered as by the Claude API"""
    answer = ask(world.client(), "hello [[sim:out=7]]")
    assert (answer.type, answer.role, answer.stop_reason) == ("message", "assistant", "end_turn"), answer
    assert answer.id.startswith("msg_") and answer.content[0].text and answer.usage.output_tokens == 7, answer
    assert answer._request_id.startswith("req_"), answer._request_id


def grey_answers(world):
    """What the model says is passed on, whatever its stop reason, and is paid once"""
    before = sum(world.paid().values())
    assert ask(world.client(), "cut [[sim:max_tokens]]").stop_reason == "max_tokens"
    assert ask(world.client(), "no [[sim:refusal]]").stop_reason == "refusal"
    assert sum(world.paid().values()) <= before + 2


def streaming(world):
    """A stream has the events of the Claude API, in their order"""
    names = []
    with world.client().messages.stream(
        model=MODEL, max_tokens=64, messages=[{"role": "user", "content": "tell me [[sim:out=60]]"}]
    ) as stream:
        for event in stream:
            names.append(event.type)
        final = stream.get_final_message()
    raw = [name for name in names if name.startswith(("message_", "content_block_"))]
    assert raw[0] == "message_start" and raw[1] == "content_block_start", raw
    assert raw[-2:] == ["message_delta", "message_stop"], raw
    assert raw.count("content_block_delta") > 3, raw
    assert final.stop_reason == "end_turn" and final.usage.output_tokens == 60 and final.content[0].text, final


def unseen_retry(world):
    """A failure before the first word is not seen, with and without a stream"""
    for stream in (False, True):
        text = f"{uuid.uuid4()} [[sim:once=529]]"
        if stream:
            with world.client(max_retries=0).messages.stream(
                model=MODEL, max_tokens=9, messages=[{"role": "user", "content": text}]
            ) as events:
                assert events.get_final_message().stop_reason == "end_turn"
        else:
            assert ask(world.client(max_retries=0), text).stop_reason == "end_turn"


def seen_failure(world):
    """A failure after the first word ends the stream with an error event"""
    text = f"{uuid.uuid4()} [[sim:once=cut out=40]]"
    try:
        with world.client(max_retries=0).messages.stream(
            model=MODEL, max_tokens=64, messages=[{"role": "user", "content": text}]
        ) as events:
            final = events.get_final_message()
    except anthropic.APIStatusError as error:
        assert error.body["type"] == "error" and error.body["error"]["type"] == "api_error", error.body
        return
    # Where the cut comes before any content it is not seen at all.
    assert final.stop_reason == "end_turn", final


def tools(world):
    """Tools are called, with and without a stream"""
    tool = {
        "name": "find",
        "description": "finds",
        "input_schema": {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]},
    }
    options = {"tools": [tool], "tool_choice": {"type": "tool", "name": "find"}, "max_tokens": 200}
    answer = ask(world.client(), "use it", **options)
    assert answer.stop_reason == "tool_use", answer
    call = next(block for block in answer.content if block.type == "tool_use")
    assert call.name == "find" and isinstance(call.input, dict), call
    with world.client().messages.stream(
        model=MODEL, messages=[{"role": "user", "content": "use it again"}], **options
    ) as stream:
        final = stream.get_final_message()
    assert final.stop_reason == "tool_use" and isinstance(final.content[-1].input, dict), final


def count_tokens(world):
    """Tokens are counted"""
    counted = world.client().messages.count_tokens(model=MODEL, messages=[{"role": "user", "content": "word " * 100}])
    assert 50 < counted.input_tokens < 500, counted


def models(world):
    """Models are listed"""
    ids = [model.id for model in world.client().models.list()]
    assert MODEL in ids, ids
    assert world.client().models.retrieve(MODEL).id == MODEL


def errors(world):
    """Errors are those of the Claude API"""
    client = world.client(max_retries=0)
    wrong = world.client()
    for kind, call in [
        (anthropic.AuthenticationError, lambda: ask(anthropic.Anthropic(base_url=world.fleet.api_url, api_key="flk_no"), "x")),
        (anthropic.NotFoundError, lambda: ask(client, "x", model="claude-nobody-9")),
        (anthropic.BadRequestError, lambda: ask(client, "x", max_tokens=-1)),
        (anthropic.BadRequestError, lambda: ask(client, "x [[sim:status=400]]")),
        (anthropic.BadRequestError, lambda: ask(client, "x", extra_headers={"fairlane-origin": "nowhere"})),
        (anthropic.NotFoundError, lambda: wrong.messages.batches.retrieve("msgbatch_none")),
    ]:
        try:
            call()
        except kind as error:
            assert error.body["type"] == "error" and error.body["error"]["message"], error.body
            assert error.body["request_id"] == error.request_id, error.body
        else:
            raise AssertionError(f"no {kind.__name__}")


def idempotency(world):
    """A call repeated under its key is paid once, and a stream is replayed"""
    key, text = str(uuid.uuid4()), f"once {uuid.uuid4()} [[sim:out=20]]"
    before = world.paid()
    named = {"extra_headers": {"idempotency-key": key}}
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: ask(world.client(), text, **named), range(8)))
    assert len({answer.id for answer in answers}) == 1, [answer.id for answer in answers]
    with world.client().messages.stream(
        model=MODEL, max_tokens=32, messages=[{"role": "user", "content": text}], **named
    ) as stream:
        final = stream.get_final_message()
    assert (final.id, final.content[0].text) == (answers[0].id, answers[0].content[0].text), final
    assert sum((world.paid() - before).values()) == 1, world.paid() - before


def borders(world):
    """A tenant sees nothing of another one's, and a revoked key is refused within a second"""
    answer = ask(world.client("acme"), "mine")
    url = f"{world.fleet.api_url}/v1/jobs/{answer._request_id}"

    def status(secret):
        try:
            with urllib.request.urlopen(urllib.request.Request(url, headers={"x-api-key": secret})) as got:
                return got.status
        except urllib.error.HTTPError as error:
            return error.code

    assert status(world.key("acme")) == 200
    assert status(world.key("other")) == 404
    batch = world.client("acme").messages.batches.create(requests=[item("a", "x")])
    try:
        world.client("other").messages.batches.retrieve(batch.id)
        raise AssertionError("a batch of another tenant is seen")
    except anthropic.NotFoundError:
        pass
    secret = world.fleet.run("tenant", "key", "create", "gone").strip()
    listed = json.loads(world.fleet.run("tenant", "key", "ls", "gone", "-o", "json"))
    wait_for("the new key is let in", lambda: status(secret) == 401 or status(secret) == 404, 5)
    world.fleet.run("tenant", "key", "revoke", "gone", listed[0]["id"], "--yes")
    wait_for("a revoked key is refused", lambda: status(secret) == 401, 1, every=0.02)


def item(name, text, **params):
    return {
        "custom_id": name,
        "params": {"model": MODEL, "max_tokens": 16, "messages": [{"role": "user", "content": text}], **params},
    }


def batches(world):
    """A batch is made, watched, read and called off"""
    client = world.client()
    requests = [item(f"n-{n}", f"item {n}") for n in range(40)]
    requests += [item("bad", "x", max_tokens=-1), item("refused", "y [[sim:status=400]]")]
    batch = client.messages.batches.create(requests=requests)
    assert batch.processing_status == "in_progress" and batch.request_counts.processing == 42, batch
    ended = wait_for(
        "the batch ends",
        lambda: (now := client.messages.batches.retrieve(batch.id)).processing_status == "ended" and now,
        120,
        every=0.5,
    )
    counts = ended.request_counts
    assert (counts.succeeded, counts.errored, counts.processing) == (40, 2, 0), counts
    results = {line.custom_id: line.result for line in client.messages.batches.results(batch.id)}
    assert len(results) == 42 and results["n-7"].message.content[0].text, results.keys()
    assert results["bad"].error.error.type == "invalid_request_error", results["bad"]
    assert batch.id in [one.id for one in client.messages.batches.list(limit=5)]
    slow = client.messages.batches.create(requests=[item(f"s{n}", "slow [[sim:ms=20000]]") for n in range(8)])
    assert client.messages.batches.cancel(slow.id).processing_status == "canceling"
    off = wait_for(
        "the batch is called off",
        lambda: (now := client.messages.batches.retrieve(slow.id)).processing_status == "ended" and now,
        60,
        every=0.5,
    )
    assert off.request_counts.canceled > 0, off.request_counts


def gone_caller(world):
    """A caller who goes away takes the job along, unless it said otherwise"""
    for detach, phase in (("false", "cancelled"), ("true", "done")):
        client, before = world.client(max_retries=0, timeout=1.0), len(world.records())
        try:
            ask(client, f"{uuid.uuid4()} [[sim:ms=4000]]", extra_headers={"fairlane-detach": detach})
            raise AssertionError("the call did not time out")
        except anthropic.APITimeoutError:
            pass
        # The simulator notes a call when it ends, also when its caller hangs up.
        (call,) = wait_for("the call ends", lambda: world.records()[before:], 20)
        wait_for(f"job {call['job']} is {phase}", lambda: record(world, call["job"])["phase"] == phase, 20)


def record(world, job):
    request = urllib.request.Request(
        f"{world.fleet.api_url}/v1/jobs/{job}", headers={"x-api-key": world.key("acme")}
    )
    with urllib.request.urlopen(request) as got:
        return json.loads(got.read())


def typescript(world):
    """The TypeScript SDK: messages, stream, tools, tokens, batch, errors"""
    environment = {**os.environ, "API_URL": world.fleet.api_url, "API_KEY": world.key("acme")}
    link = world.fleet.scratch / "js"
    link.mkdir(exist_ok=True)
    (link / "sdk.mjs").write_text((HERE / "sdk.mjs").read_text())
    if not (link / "node_modules").exists():
        (link / "node_modules").symlink_to(os.environ["FAIRLANE_SDK_NODE_MODULES"])
    ended = subprocess.run(["node", "sdk.mjs"], cwd=link, env=environment, capture_output=True, timeout=180)
    assert ended.returncode == 0, (ended.stdout + ended.stderr).decode(errors="replace")


def random_requests(world):
    """Random requests to every path of the OpenAPI document: no 5xx, no hang, answers as described"""
    tokens = (world.fleet.scratch / "data" / "api-tokens").read_text().split()
    command = [
        sys.executable, "-m", "schemathesis.cli", "run", f"{world.fleet.api_url}/v1/openapi.json",
        "--header", f"authorization: Bearer {tokens[1]}", "--header", "fairlane-tenant: random",
        "--checks", "not_a_server_error,content_type_conformance,response_schema_conformance",
        # A stream that ends only with its caller; tests/console watches it.
        "--exclude-path", "/v1/fleet/events",
        "--phases", "examples,coverage,fuzzing", "--max-examples", "15", "--request-timeout", "30",
        "--suppress-health-check", "all", "--seed", "7", "--no-color", "--max-failures", "5",
    ]
    ended = subprocess.run(command, cwd=world.fleet.scratch, capture_output=True, timeout=400)
    said = (ended.stdout + ended.stderr).decode(errors="replace")
    assert ended.returncode == 0, said[-6_000:]
    message(world)


def shares(program):
    """50 clients of two tenants share by weight, and the limit holds"""
    with Fleet(program, preset="start") as fleet:
        world = World(fleet)
        fleet.run("tenant", "set", "gold", "--weight", "3")
        fleet.run("tenant", "set", "iron", "--weight", "1")
        done, stop = collections.Counter(), threading.Event()

        def loop(tenant):
            client = world.client(tenant, max_retries=0, timeout=300)
            while not stop.is_set():
                ask(client, f"share {random.random()} [[sim:out=1]]", max_tokens=8)
                done[tenant] += 1

        for tenant in ("gold", "iron"):
            world.key(tenant)
        with ThreadPoolExecutor(50) as pool:
            running = [pool.submit(loop, tenant) for tenant in ("gold", "iron") for _ in range(25)]
            # The bucket of a minute's requests is full at first; what counts is what comes after.
            wait_for("the first thousand", lambda: sum(done.values()) >= 1_010, 240)
            before = done.copy()
            time.sleep(20)
            after = done - before
            stop.set()
            for one in running:
                one.result()
        statuses = collections.Counter(r["status"] for r in world.records() if r["path"] == "/v1/messages")
        share = after["gold"] / max(1, sum(after.values()))
        print(f"        {dict(after)}, share {share:.3f}; statuses {dict(statuses)}", flush=True)
        assert 0.70 <= share <= 0.80, share
        assert statuses[429] < 0.001 * sum(statuses.values()), statuses


CHECKS = [
    message, grey_answers, streaming, unseen_retry, seen_failure, tools, count_tokens, models, errors, idempotency,
    borders, batches, gone_caller, typescript,
    generated_client, random_requests, kills,
]


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("run: terminated"))
    program, wanted = Path(sys.argv[1]).resolve(), sys.argv[2:]
    failed = passed = 0

    def run(check, subject):
        nonlocal failed, passed
        if wanted and check.__name__ not in wanted:
            return
        try:
            check(subject)
        except Exception as error:  # noqa: BLE001: whatever is wrong is one check's failure
            failed += 1
            print(f"FAILED  {check.__doc__}\n        {type(error).__name__}: {error}", flush=True)
        else:
            passed += 1
            print(f"ok      {check.__doc__}", flush=True)

    with Fleet(program) as fleet:
        world = World(fleet)
        for check in CHECKS:
            run(check, world)
    run(shares, program)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
