"""200 calls while workers, the leader and the producer are killed."""

import collections
import json
import os
import re
import signal
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import anthropic
import httpx2
from suite.fleet import get
from world import MODEL, ask

CALLS = 200
AT_ONCE = 16
WORDS = 40
# Who is killed once so many calls have ended. Whoever leads then is killed as the leader.
# Workers come last: streams that they write are told when their leases end, and need a producer that lives until then.
PLAN = [(20, "producer-1"), (45, "leader"), (70, "producer-1"), (95, "leader"), (120, "worker-1"), (150, "worker-2")]
# What a caller may take for a reason to ask again.
RETRYABLE = {"api_error", "overloaded_error", "rate_limit_error", "timeout_error"}


class Calls:
    """What is under way, for those who kill."""

    def __init__(self):
        self.changed = threading.Condition()
        self.ended = self.streaming = 0
        self.is_over = False

    def add(self, ended=0, streaming=0):
        with self.changed:
            self.ended += ended
            self.streaming += streaming
            self.changed.notify_all()

    def over(self):
        with self.changed:
            self.is_over = True
            self.changed.notify_all()

    def until(self, ended):
        """Waits until so many have ended and some streams have begun. False if all is over before."""
        with self.changed:
            self.changed.wait_for(lambda: self.is_over or (self.ended >= ended and self.streaming >= 3), 300)
            return not self.is_over


def leader(fleet):
    running = json.loads((fleet.scratch / "dev.json").read_text())
    for member in running["members"]:
        if not member["name"].startswith("scheduler"):
            continue
        try:
            told = get(f"{member['url']}/metrics")
        except OSError:
            continue
        if re.search(r"^fairlane_leader(\{.*\})? 1(\.0)?$", told, re.MULTILINE):
            return member["name"]
    return None


def kill(fleet, who):
    """Kills a member without warning; says when, unix milliseconds."""
    deadline = time.monotonic() + 60
    while True:
        name = leader(fleet) if who == "leader" else who
        pid = fleet.pid(name) if name else None
        if pid:
            try:
                os.kill(pid, signal.SIGKILL)
                return name, time.time() * 1_000
            except ProcessLookupError:
                pass
        assert time.monotonic() < deadline, f"there is no {who} to kill"
        time.sleep(0.02)


def stream(world, calls, text, headers):
    """How a streamed call ended. One that ends without an error has to be whole."""
    client = world.client(max_retries=8, timeout=120)
    begun, names = False, []
    try:
        with client.messages.stream(
            model=MODEL, max_tokens=64, messages=[{"role": "user", "content": text}], extra_headers=headers
        ) as events:
            for event in events:
                names.append(event.type)
                if event.type == "content_block_delta" and not begun:
                    begun = True
                    calls.add(streaming=1)
            final = events.get_final_message()
    except anthropic.APIStatusError as error:
        told = error.body["error"]["type"]
        assert error.body["type"] == "error" and told in RETRYABLE, (error.status_code, error.body)
        return "error event" if error.status_code == 200 else "error"
    except (anthropic.APIConnectionError, httpx2.TransportError):
        return "broken stream" if begun else "connection"
    finally:
        if begun:
            calls.add(streaming=-1)
    assert names[-1] == "message_stop" and final.stop_reason == "end_turn", f"a stream was cut silently: {names[-3:]}"
    assert final.usage.output_tokens == WORDS, final.usage
    return "answer"


def plain(world, text, headers):
    client = world.client(max_retries=8, timeout=120)
    try:
        assert ask(client, text, extra_headers=headers).stop_reason == "end_turn"
    except anthropic.APIStatusError as error:
        told = error.body["error"]["type"]
        assert error.body["type"] == "error" and told in RETRYABLE, (error.status_code, error.body)
        return "error"
    except anthropic.APIConnectionError:
        return "connection"
    return "answer"


def kills(world):
    """Workers, leader and producer killed during 200 calls: answers or clean errors, and nothing paid again"""
    prefix, calls, killed = uuid.uuid4(), Calls(), []

    def call(n):
        headers = {"idempotency-key": f"{prefix}-{n}"}
        try:
            if n % 2:
                return plain(world, f"{prefix} {n} [[sim:ms=300]]", headers)
            return stream(world, calls, f"{prefix} {n} [[sim:ms=1500 out={WORDS}]]", headers)
        finally:
            calls.add(ended=1)

    def round_of_calls():
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return list(pool.map(call, range(CALLS)))

    def killing():
        for ended, who in PLAN:
            if calls.until(ended):
                killed.append(kill(world.fleet, who))

    seen = len(world.records())
    with ThreadPoolExecutor(1) as killer:
        done = killer.submit(killing)
        ends = round_of_calls()
        calls.over()
        done.result()
    first = world.records()[seen:]
    again = round_of_calls()
    second = world.records()[seen + len(first) :]
    counts = {kind: dict(sorted(collections.Counter(ends[kind::2]).items())) for kind in (0, 1)}
    print(f"        streamed {counts[0]}, plain {counts[1]}; killed {[name for name, _ in killed]}", flush=True)
    assert len(killed) == len(PLAN), f"only these were killed in time: {killed}"
    assert set(again) == {"answer"}, collections.Counter(again)
    assert counts[1] == {"answer": CALLS // 2}, f"a plain call was not answered in the end: {counts[1]}"
    # A killed producer breaks the streams that it serves; a killed worker ends those that it writes.
    assert counts[0].get("broken stream") and counts[0].get("error event"), counts[0]
    check_paid(first, second, killed, ends.count("answer"))


def check_paid(first, second, killed, answered):
    """By the upstream's own log: whoever was answered pays nothing more, and what was paid before an answer was
    stored was in a worker's hands when that was killed."""
    deaths = [at for name, at in killed if name.startswith("worker")]
    by_prompt = collections.defaultdict(list)
    for record in first + second:
        if record["billed"] and record["path"] == "/v1/messages":
            by_prompt[record["prompt_hash"]].append(record)
    assert len(by_prompt) == CALLS, f"{len(by_prompt)} of {CALLS} prompts were paid"
    twice = 0
    for calls in by_prompt.values():
        for cut in sorted(calls, key=lambda record: record["end_ms"])[:-1]:
            # Between the answer and its record there are some milliseconds, in which a worker may die.
            assert any(cut["at_ms"] <= at + 50 and at <= cut["end_ms"] + 1_000 for at in deaths), (cut, killed)
            twice += 1
    again = sum(1 for record in second if record["billed"])
    print(f"        {twice} calls were in the hands of a killed worker and made once more; the second round paid {again}", flush=True)
    assert again <= CALLS - answered, f"{again} calls were paid for again"
