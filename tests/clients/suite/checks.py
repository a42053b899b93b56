"""What must hold for a job, whichever client published it."""

import json
import re
import uuid

from .clients import FINAL, HERE
from .fleet import wait_for

# How long something may take that takes the fleet about a second.
JOB_SECONDS = 60
MODEL = "claude-haiku-4-5-20251001"
PROMPT = "Name three colours of a winter evening. [[sim:out=40 ms=400]]"
# Phases as a job that meets no trouble goes through them.
ROAD = ["queued", "generating", "done"]
# Bytes that are neither JSON nor text, with what a careless client would expand, translate or trim.
NOT_JSON = b'\x00\xff {"not": json, {{Count}} \xc3\x28\r\n\t '
# What differs between two records of the same work.
OWN = ("tenant", "job", "sequence", "accepted_ms", "started_ms", "finished_ms", "tries", "trace_id", "span_id")


def equal(found, wanted, what):
    if isinstance(found, dict) and isinstance(wanted, dict):
        # Only what differs; a record is long.
        for field in sorted(found.keys() | wanted.keys()):
            equal(found.get(field), wanted.get(field), f"{what}: {field}")
    assert found == wanted, f"{what} is {found!r}, not {wanted!r}"


def new_id(word):
    return f"{word}-{uuid.uuid4().hex[:12]}"


def job_of(identifier, **more):
    return {"id": identifier, "origin": "user_action", "kind": "tagging", "model": MODEL, "prompt": PROMPT, **more}


def encode(body):
    return json.dumps(body, ensure_ascii=False).encode()


def text_of(record):
    return "".join(block["text"] for block in record["result"]["content"] if block["type"] == "text")


class World:
    """The fleet and what our own CLI makes of the job that the clients publish too."""

    def __init__(self, fleet):
        self.fleet = fleet
        self.tenant, self.job = "own-cli", new_id("job")
        line = encode({**job_of(self.job), "tenant": self.tenant})
        fleet.run("submit", "-", "--wait", "--timeout", str(JOB_SECONDS), stdin=line + b"\n")
        self.text = fleet.run("result", f"{self.tenant}/{self.job}").rstrip("\n")
        assert self.text, "our own CLI prints an empty answer"


class Checks:
    """One client's checks. Each is a method, publishes jobs of its own, and raises AssertionError."""

    def __init__(self, world, client, wiretap):
        self.world, self.fleet, self.client, self.wiretap = world, world.fleet, client, wiretap
        self.tenant = f"with-{client.name}"

    def all(self):
        """Title and check, in order."""
        return [
            ("the README shows the program as it is", self.readme_shows_the_example),
            ("the program of the README gets its answer with one call", self.example_gets_its_answer),
            ("an acknowledged job goes forward to done with one call", self.job_is_done),
            ("its record and answer equal those of our own CLI's job", self.record_is_like_our_own),
            ("the answer of a job of our own CLI can be read", self.reads_our_own),
            ("a body that is no JSON becomes a dead letter, byte for byte", self.not_json),
            ("a broken body that begins with its id fails under that id", self.broken_under_its_id),
            ("a broken body with an Fl-Job header fails under that id", self.broken_under_the_header),
            ("a priority is refused with an explanation", self.priority_is_refused),
            ("the same id published again does not call again", self.same_id_is_called_once),
            ("the publisher's trace reaches the upstream", self.trace_reaches_the_upstream),
            ("the publisher's trace is on the dead letter", self.trace_is_on_the_letter),
        ]

    # What a client does.

    def publish(self, body, headers=None, tenant=None):
        ack = self.client.publish(f"fl.submit.{tenant or self.tenant}", body, headers)
        equal(ack["stream"], "FL_SUBMIT", "the stream of the acknowledgement")
        assert ack["seq"] > 0 and not ack["duplicate"], f"the acknowledgement is {ack}"
        return ack["seq"]

    def record(self, job, bucket="fl_status"):
        return self.client.record(bucket, f"{self.tenant}.{job}")

    def outcome(self, job, bucket="fl_status"):
        def ended():
            record = self.record(job, bucket)
            return record if record and record["phase"] in FINAL else None

        return wait_for(f"job {job} has ended", ended, JOB_SECONDS)

    def letter(self, reason, seq):
        """The dead letter of the submission with this sequence, which must be the newest of its subject."""
        subject = f"fl.dlq.{reason}.{self.tenant}"
        self.settled(seq)
        found = self.client.last("FL_DLQ", subject)
        assert found, f"there is no message on {subject}"
        equal(found.headers.get("Fl-Reason"), reason, "Fl-Reason")
        return found, json.loads(found.headers["Fl-Letter"])

    def settled(self, seq):
        """Waits until a producer has decided about a submission: it then leaves the stream."""
        wait_for(f"submission {seq} was dealt with", lambda: self.client.at("FL_SUBMIT", seq) is None, JOB_SECONDS)

    def called_once(self, job, tenant=None):
        calls = self.fleet.calls(tenant or self.tenant, job)
        equal([call["status"] for call in calls], [200], f"statuses of the upstream's calls for {job}")

    def done(self, job, bucket="fl_status"):
        record = self.outcome(job, bucket)
        assert record["phase"] == "done", f"job {job} is {record['phase']}: {record.get('failure')}"
        return record

    # The checks.

    def readme_shows_the_example(self):
        example = (HERE / "examples" / self.client.example.name).read_text()
        readme = (HERE / "README.md").read_text()
        assert f"\n{example}```\n" in readme, f"README.md shows something else than {self.client.example.name}"

    def example_gets_its_answer(self):
        said = self.client.run_example()
        found = re.fullmatch(r"acme/(\S+): (.+)\n", said, re.DOTALL)
        assert found, f"the program printed {said!r}"
        job, text = found.groups()
        equal(text, self.fleet.run("result", f"acme/{job}").rstrip("\n"), "the printed answer")
        self.called_once(job, "acme")

    def job_is_done(self):
        job = new_id("job")
        with self.client.follow("fl_status", f"{self.tenant}.{job}") as following:
            self.publish(encode(job_of(job)))
            seen = following.until_final(JOB_SECONDS)
        phases = [record["phase"] for record in seen]
        assert set(phases) <= set(ROAD), f"phases of a job without trouble are {phases}"
        equal(phases, sorted(phases, key=ROAD.index), "the order of phases")
        equal(phases[-1], "done", "the last phase")
        for field in ("attempts", "deliveries"):
            numbers = [record[field] for record in seen]
            equal(numbers, sorted(numbers), f"the course of {field}")
        tokens = [record.get("tokens_so_far", 0) for record in seen if record["phase"] == "generating"]
        equal(tokens, sorted(tokens), "the course of tokens_so_far")
        final = seen[-1]
        times = [final[field] for field in ("accepted_ms", "started_ms", "finished_ms")]
        equal(times, sorted(times), "the order of accepted, started and finished")
        equal(final, self.record(job), "the last record of the watch")
        self.called_once(job)

    def record_is_like_our_own(self):
        job = new_id("job")
        self.publish(encode(job_of(job)))
        record = self.done(job)
        own = self.client.record("fl_status", f"{self.world.tenant}.{self.world.job}")
        equal(text_of(record), self.world.text, "the answer")
        equal(self.fleet.run("result", f"{self.tenant}/{job}").rstrip("\n"), self.world.text, "what fairlane result prints")
        equal(self.comparable(record), self.comparable(own), "the record")

    @staticmethod
    def comparable(record):
        kept = {field: value for field, value in record.items() if field not in OWN}
        return {**kept, "result": {**record["result"], "id": None}}

    def reads_our_own(self):
        record = self.client.record("fl_status", f"{self.world.tenant}.{self.world.job}")
        equal(record["phase"], "done", "the phase")
        equal(text_of(record), self.world.text, "the answer")

    def not_json(self):
        seq = self.publish(NOT_JSON)
        found, facts = self.letter("undecodable", seq)
        equal(found.body, NOT_JSON, "the body of the dead letter")
        equal(facts["subject"], f"fl.submit.{self.tenant}", "the subject it was read from")
        equal(facts["offset"], NOT_JSON.index(b"\xff"), "the place of the error")
        job = found.headers["Fl-Job"]
        equal(facts["job"], job, "the id on the letter")
        self.failed(job, "undecodable")

    def broken_under_its_id(self):
        job = new_id("cut")
        whole = encode(job_of(job))
        body = whole[: len(whole) // 2]
        seq = self.publish(body)
        record = self.failed(job, "undecodable")
        offset = record["failure"]["offset"]
        assert len(body) - 1 <= offset <= len(body), f"the place of the error is {offset}, not the end, {len(body)}"
        found, _ = self.letter("undecodable", seq)
        equal((found.headers["Fl-Job"], found.body), (job, body), "id and body of the dead letter")

    def broken_under_the_header(self):
        job = new_id("headed")
        seq = self.publish(NOT_JSON, {"Fl-Job": job})
        self.failed(job, "undecodable")
        found, _ = self.letter("undecodable", seq)
        equal((found.headers["Fl-Job"], found.body), (job, NOT_JSON), "id and body of the dead letter")

    def priority_is_refused(self):
        job = new_id("pushy")
        body = encode(job_of(job, priority="critical"))
        seq = self.publish(body)
        failure = self.failed(job, "invalid_job")["failure"]
        equal(failure["field"], "priority", "the field")
        assert "origin" in failure["fix"], f"the fix is {failure['fix']!r}"
        found, facts = self.letter("invalid_job", seq)
        equal(found.body, body, "the body of the dead letter")
        equal(facts["job"], job, "the id on the letter")

    def failed(self, job, reason):
        record = self.outcome(job)
        equal(record["phase"], "failed", "the phase")
        equal(record["failure"]["reason"], reason, "the reason")
        assert record["failure"]["message"], "the failure says nothing"
        equal(record["attempts"], 0, "attempts")
        equal(self.fleet.calls(self.tenant, job), [], "calls")
        return record

    def same_id_is_called_once(self):
        job = new_id("twice")
        body = encode(job_of(job))
        seqs = [self.publish(body), self.publish(body)]
        first = self.done(job)
        seqs.append(self.publish(body))
        for seq in seqs:
            self.settled(seq)
        # Nothing of it is left that could still run.
        left = lambda: self.client.subjects("FL_JOBS", f"fl.jobs.*.{self.tenant}")
        wait_for("no job of the tenant waits", lambda: not left(), JOB_SECONDS)
        self.called_once(job)
        equal(self.record(job), first, "the record after the repetition")

    def trace_reaches_the_upstream(self):
        job, trace = new_id("traced"), uuid.uuid4().hex
        headers = {"traceparent": f"00-{trace}-00f067aa0ba902b7-01"}
        ack = self.client.publish(f"tap.submit.{self.tenant}", encode(job_of(job)), headers)
        equal(ack["stream"], "TAP_SUBMIT", "the stream of the acknowledgement")
        self.done(job, "tap_status")
        seen = [headers.get("traceparent", "") for headers in self.wiretap.headers_of(job)]
        equal([value.split("-")[1:2] for value in seen], [[trace]], "trace ids of the calls")

    def trace_is_on_the_letter(self):
        trace = uuid.uuid4().hex
        seq = self.publish(NOT_JSON, {"traceparent": f"00-{trace}-00f067aa0ba902b7-01", "X-Own": "kept"})
        found, _ = self.letter("undecodable", seq)
        equal(found.headers["traceparent"].split("-")[1], trace, "the trace id")
        equal(found.headers.get("X-Own"), "kept", "a header of the publisher's own")
