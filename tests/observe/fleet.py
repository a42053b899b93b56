"""A fleet of `fairlane dev`, a bad quarter of a minute in it, and a Prometheus that scrapes it."""

import collections
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request

HAIKU, SONNET, BIG = "claude-haiku-4-5", "claude-sonnet-4-6", "claude-sonnet-5-5"
STRICT = {"type": "object", "additionalProperties": False, "required": ["mood"], "properties": {"mood": {"enum": ["calm"]}}}
# Failures that are not the job's own.
EXPOSED = {"backlog_full", "exhausted", "ambiguous", "expired", "max_deliver", "crash_suspect"}
SERIES = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.M)


def get(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


def eventually(what, seconds, attempt):
    """Repeats until it does not raise; the last error says what is wrong."""
    end = time.monotonic() + seconds
    while True:
        try:
            return attempt()
        except Exception as error:
            if time.monotonic() > end:
                raise AssertionError(f"{what}: {error}") from error
            time.sleep(0.2)


def job(tenant, name, prompt="tags please", model=HAIKU, kind="tagging", **more):
    request = {"model": model, "max_tokens": 64, "messages": [{"role": "user", "content": f"{name} {prompt}"}]}
    return {"id": name, "tenant": tenant, "origin": "user_action", "kind": kind, "request": request} | more


def scene():
    """What happens first, who meets limits while nobody else has anything on the wire, and what breaks a pool then."""
    first = [job("acme", f"ok-{n}") for n in range(40)]
    first += [job("beta", f"batch-{n}", origin="batch_job") for n in range(10)]
    first += [job("acme", f"fallback-{n}", "[[sim:once=529]] tags", SONNET) for n in range(6)]
    noisy = [job("noisy", f"limit-{n}", "[[sim:once=429 retry_after=1]] tags", origin="scheduled", sla_seconds=600) for n in range(12)]
    first += [job("beta", f"refused-{n}", "[[sim:refusal]] tags") for n in range(3)]
    first += [job("beta", f"schema-{n}", "[[sim:bad_tool_json]] tags", output_schema=STRICT) for n in range(2)]
    once = {"max_attempts": 1, "on_overload": {"defer": "no"}, "kind": "long_form_writing"}
    storm = [job(f"writer-{n % 2}", f"essay-{n}", "[[sim:status=529]] words", BIG, **once) for n in range(14)]
    waiting = [job("acme", f"later-{n}", "words", BIG, kind="long_form_writing") for n in range(5)]
    return first, noisy, storm, waiting


class Fleet:
    def __init__(self, program, rules):
        self.program, self.rules = program, rules
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="fairlane-observe-"))
        self.jobs = {}
        self.processes = []

    def __enter__(self):
        self.env = os.environ | {"FAIRLANE_DEV_STATE": str(self.dir / "dev.json"), "NO_COLOR": "1"}
        self.env.pop("ANTHROPIC_API_KEY", None)
        log = (self.dir / "dev.log").open("w")
        command = [self.program, "dev", "--sim", "--time-scale", "20"]
        self.processes.append(subprocess.Popen(command, stdout=log, stderr=log, env=self.env, cwd=self.dir))
        return self

    def __exit__(self, kind, *_):
        for process in reversed(self.processes):
            process.terminate()
        for process in reversed(self.processes):
            try:
                process.wait(40)
            except subprocess.TimeoutExpired:
                process.kill()
        shutil.rmtree(self.dir)

    def note(self):
        note = json.loads((self.dir / "dev.json").read_text())
        assert note["members"] and all(member["pid"] for member in note["members"])
        return note

    def roles(self):
        return [member for member in self.note()["members"] if re.match(r"(producer|scheduler|worker)", member["name"])]

    def run(self, *command, accept=(0,)):
        done = subprocess.run([self.program, *command], capture_output=True, text=True, env=self.env, cwd=self.dir, timeout=180)
        assert done.returncode in accept, f"{command}: {done.returncode} {done.stdout} {done.stderr}"
        return done.stdout

    def submit(self, jobs, *flags):
        path = self.dir / "jobs.jsonl"
        path.write_text("".join(json.dumps(one) + "\n" for one in jobs))
        self.jobs |= {one["id"]: one for one in jobs}
        self.run("submit", str(path), *flags, accept=(0, 1))

    def play(self):
        eventually("a fleet that runs", 90, lambda: [get(f"{one['url']}/metrics") for one in self.roles()])
        self.scrape()
        self.run("tenant", "set", "acme", "--daily-input-tokens", "100000")
        first, noisy, storm, waiting = scene()
        self.submit(first, "--wait", "--timeout", "120")
        self.submit(noisy, "--wait", "--timeout", "120")
        # Those of them that are not called before the breaker opens wait behind it.
        self.submit(storm)
        breaker = lambda: max(value for labels, value in self.series("fairlane_breaker_state"))
        eventually("an open breaker", 30, lambda: self.is_same(breaker(), 2))
        self.submit(waiting)
        depth = lambda: sum(value for _, value in self.series("claude_queue_depth"))
        eventually("jobs that wait", 30, lambda: self.is_at_least(depth(), len(waiting)))

    @staticmethod
    def is_same(told, wanted):
        assert told == wanted, f"{told} instead of {wanted}"

    @staticmethod
    def is_at_least(told, wanted):
        assert told >= wanted, f"{told} and not {wanted}"

    def scrape(self):
        port = random.randrange(15_000, 32_000)
        self.prometheus = f"http://127.0.0.1:{port}"
        targets = [{"targets": [urllib.parse.urlparse(one["url"]).netloc], "labels": {"name": one["name"]}} for one in self.roles()]
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "2s"},
            "rule_files": [str(path) for path in self.rules],
            "scrape_configs": [{"job_name": "fairlane", "static_configs": targets}],
        }
        (self.dir / "prometheus.json").write_text(json.dumps(config))
        log = (self.dir / "prometheus.log").open("w")
        command = [
            "prometheus", f"--config.file={self.dir}/prometheus.json", f"--storage.tsdb.path={self.dir}/tsdb",
            f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn",
        ]
        self.processes.append(subprocess.Popen(command, stdout=log, stderr=log))
        eventually("Prometheus", 30, lambda: get(f"{self.prometheus}/-/ready"))
        # A rate needs to have seen the zero before.
        seen = lambda: len(self.query("count_over_time(up[1m]) >= 2 and up == 1"))
        eventually("all processes to be scraped", 30, lambda: self.is_same(seen(), len(targets)))

    def text(self):
        return "".join(get(f"{one['url']}/metrics") for one in self.roles())

    def series(self, name):
        """(labels, value) of every series of this name, from all processes."""
        found = []
        for series, labels, value in SERIES.findall(self.text()):
            if series == name:
                found.append((dict(re.findall(r'(\w+)="([^"]*)"', labels)), float(value)))
        return found

    def by(self, name, label):
        sums = collections.Counter()
        for labels, value in self.series(name):
            sums[labels.get(label, "")] += value
        return dict(sums)

    def query(self, expr):
        url = f"{self.prometheus}/api/v1/query?{urllib.parse.urlencode({'query': expr})}"
        answer = json.loads(get(url))
        assert answer["status"] == "success", answer
        return answer["data"]["result"]

    def exports(self, names):
        """Every role tells what the catalogue says of it, nothing else, and together they tell everything."""
        seen = set()
        for one in self.roles():
            role = one["name"].split("-")[0]
            families = re.findall(r"^# TYPE (\w+) (\w+)$", get(f"{one['url']}/metrics"), re.M)
            for name, kind in families:
                assert name in names, f"{name} is not in the catalogue"
                told_by = {"leader": "scheduler"}
                roles = {told_by.get(who, who) for who in names[name][1]}
                assert role in roles or "all" in roles, f"{role} tells {name}, which is for {roles}"
                assert names[name][0] == kind, name
                seen.add(name)
        # What needs a limit that this NATS does not have, and what is only told of a collector.
        sending = {"fairlane_spans_dropped_total", "fairlane_metric_pushes_failed_total"}
        missing = set(names) - seen - {"fairlane_stream_fill_ratio"} - sending
        assert not missing, f"nobody tells {sorted(missing)}"

    def pages(self):
        for one in self.roles():
            page = get(f"{one['url']}/metrics")
            assert len(page) < 2_000_000, len(page)
            lint = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, text=True)
            # Two of the given names are not as the linter likes them.
            known = re.compile(r"claude_throttle_count|claude_queue_depth|non-histogram and non-summary metrics should not have")
            wrong = [line for line in lint.stderr.splitlines() if line and not known.search(line)]
            assert not wrong, wrong

    def agrees(self):
        eventually("agreement", 15, self.compare)

    def compare(self):
        calls = [json.loads(line) for line in get(f"{self.note()['claude_url']}/sim/log?limit=100000").splitlines()]
        calls = [call for call in calls if call["path"] == "/v1/messages"]
        letters = json.loads(self.run("dlq", "ls", "--letters", "-o", "json"))
        letters = letters["letters"] if isinstance(letters, dict) else letters
        ledger = json.loads(self.run("ledger", "-o", "json"))
        same, near = self.is_same, lambda told, wanted, part, more: self.is_near(told, wanted, part, more)
        status = collections.Counter(call["status"] for call in calls)
        broken = {name for name in self.jobs if name.startswith(("refused", "schema"))}
        answers = [call for call in calls if call["status"] == 200 and call["job"] not in broken]
        assert status[429] >= 5 and status[529] >= 10 and letters, status

        same(sum(value for _, value in self.series("claude_calls_total")), len(calls))
        # 1: what waits is what was published and never called, and has not ended.
        called = {call["job"] for call in calls}
        waiting = collections.Counter("critical" for name in self.jobs if name not in called)
        same({k: v for k, v in self.by("claude_queue_depth", "priority").items() if v}, dict(waiting))
        # 2: latency.
        told = self.by("claude_request_latency_seconds_count", "priority")
        batch = [call for call in calls if call["status"] == 200 and self.is_batch(call["job"])]
        same(sum(told.values()), status[200])
        assert told["batch"] >= len(batch), told
        total = sum(self.by("claude_request_latency_seconds_sum", "priority").values())
        upstream = sum(call["end_ms"] - call["at_ms"] for call in calls if call["status"] == 200) / 1000
        # The worker sees a call as a little longer than the upstream does, and more so on a busy machine.
        assert upstream * 0.9 <= total <= upstream * 1.5 + 0.5 * status[200], f"latency: {total} instead of {upstream}"
        # 3, 4: rate limits, and whom they demoted.
        limited = collections.Counter(self.jobs[call["job"]]["tenant"] for call in calls if call["status"] == 429)
        same(sum(self.by("claude_throttle_count", "tenant_id").values()), status[429])
        same(self.by("claude_throttle_count", "tenant_id"), dict(limited))
        same(sum(value for _, value in self.series("claude_demoted_tenants")), sum(count >= 5 for count in limited.values()))
        # 5: nobody waited for a whole minute beside somebody else, so nobody was treated unfairly.
        same(set(self.by("claude_drr_fairness_index", "priority").values()), {1.0})
        # 6: tokens and money, by the upstream and by the books.
        tokens = collections.Counter()
        for call in calls:
            # Whatever an answer says it used; a refusal may not be billed.
            if call["status"] == 200:
                parts = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
                tokens[self.jobs[call["job"]]["tenant"]] += sum(call[part] or 0 for part in parts)
        told = {tenant: value for tenant, value in self.by("claude_input_tokens_total", "tenant_id").items() if value}
        same(told, dict(tokens))
        booked = {tenant: account["input_tokens"] for tenant, account in ledger["tenants"].items() if account["input_tokens"]}
        same(told, booked)
        told = sum(value for _, value in self.series("fairlane_cost_usd_total"))
        near(told, sum(account["usd"] for account in ledger["tenants"].values()), 0, 1e-9)
        # The books price what an answer says it used, a refusal's input too, which is not billed.
        near(told, sum(call["cost_usd"] or 0 for call in calls if call["billed"]), 0.01, 0)
        # 7: 529s.
        near(self.one("claude_529_rate"), status[529] / len(calls), 0, 1e-9)
        # 8: failures that are not the jobs' own.
        exposed = sum(letter["reason"] in EXPOSED for letter in letters)
        near(self.one("claude_user_exposure_rate"), exposed / (len(letters) + len(answers)), 0, 1e-9)
        # 9: answers of the smaller model.
        smaller = sum(not call["model"].startswith(self.jobs[call["job"]]["request"]["model"]) for call in answers)
        assert smaller > 0
        near(self.one("claude_fallback_rate"), smaller / len(answers), 0, 1e-9)
        # 10: the wait for the first call, of critical jobs.
        begun = {}
        for call in calls:
            begun.setdefault(call["job"], call["at_ms"])
        waits = []
        for name in begun:
            one = self.jobs[name]
            if one["origin"] == "user_action":
                record = json.loads(self.record(one))
                waits.append((begun[name] - record["accepted_ms"]) / 1000)
        waits.sort()
        # Told is from when it was granted, in steps of a tenth; the tail is steep, so one job more or less may matter.
        rank = -(-len(waits) * 95 // 100) - 1
        low, high = waits[rank - 1], waits[min(rank + 1, len(waits) - 1)]
        told = self.by("claude_queue_dwell_p95_seconds", "priority")["critical"]
        assert low * 0.9 - 0.3 <= told <= high * 1.11 + 0.1, f"{told} instead of {waits[rank]}: {waits[-8:]}"

    def is_batch(self, name):
        return self.jobs[name]["origin"] == "batch_job"

    def record(self, one):
        key = (one["tenant"], one["id"])
        self.records = getattr(self, "records", {})
        if key not in self.records:
            self.records[key] = self.run("status", f"{one['tenant']}/{one['id']}", "-o", "json")
        return self.records[key]

    def one(self, name):
        values = [value for _, value in self.series(name)]
        assert len(values) == 1, f"{name}: {values}"
        return values[0]

    @staticmethod
    def is_near(told, wanted, part, more):
        assert abs(told - wanted) <= abs(wanted) * part + more, f"{told} instead of {wanted}"

    def answers(self, queries):
        empty = []
        for board, panel, expr in queries:
            try:
                eventually(panel, 10, lambda: self.has_data(expr))
            except AssertionError as error:
                empty.append(f"{board}, {panel}: {error}")
        assert not empty, "\n".join(empty)

    def has_data(self, expr):
        values = [sample["value"][1] for sample in self.query(expr)]
        assert values, f"{expr} returns nothing"
        assert any(value != "NaN" for value in values), f"{expr} returns NaN alone"

    def evaluates(self, names):
        rules = [rule for group in json.loads(get(f"{self.prometheus}/api/v1/rules"))["data"]["groups"] for rule in group["rules"]]
        alerts = [rule for rule in rules if rule["type"] == "alerting"]
        assert sorted(rule["name"] for rule in alerts) == sorted(names)
        wrong = [(rule["name"], rule.get("lastError")) for rule in rules if rule["health"] != "ok"]
        assert not wrong, wrong
        # What is true now is at least noticed.
        pending = {rule["name"] for rule in alerts if rule["state"] != "inactive"}
        assert {"FairlaneBreakerOpen", "FairlaneUserExposure"} <= pending, pending
