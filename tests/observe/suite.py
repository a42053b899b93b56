"""Checks of what people watch: files first, then a fleet that has seen 429s, 529s, fallbacks, demotions and dead letters,
scraped by a real Prometheus."""

import json
import pathlib
import re
import subprocess
import sys
import tempfile

import alerts
from fleet import Fleet

TOP = pathlib.Path(__file__).resolve().parents[2]
RULES = sorted((TOP / "helm/fairlane/files/rules").glob("*.yaml"))
BOARDS = sorted((TOP / "helm/fairlane/files/dashboards").glob("*.json"))
PAGES = [TOP / "deploy/README.md", TOP / "deploy/runbooks.md", TOP / "README.md", TOP / "crates/README.md"]
NAME = re.compile(r"\b(?:fairlane|claude|gen_ai|messaging)_[a-z0-9_]+\b")
# What Prometheus makes of a histogram.
SUFFIX = re.compile(r"_(?:bucket|sum|count)$")


def run(*command, **more):
    done = subprocess.run(command, capture_output=True, text=True, **more)
    assert done.returncode == 0, f"{' '.join(map(str, command[:3]))}: {done.stdout}{done.stderr}"
    return done.stdout


def catalogue():
    """Names by who tells them, from the page that is made from the code."""
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|.*?\|.*?\| ([\w, ]+) \|", (TOP / "deploy/metrics.md").read_text(), re.M)
    assert len(rows) > 50, rows
    return {name: (kind, roles.split(", ")) for name, kind, roles in rows}


def alert_names():
    names = [name for path in RULES for name in re.findall(r"- alert: (\w+)", path.read_text())]
    assert len(names) == len(set(names)), "two alerts have one name"
    return names


def queries():
    """(dashboard, panel, query) of every dashboard, with Grafana's variables filled in."""
    found = []
    for path in BOARDS:
        board = json.loads(path.read_text())
        assert board["uid"] and board["templating"]["list"][0]["type"] == "datasource", path.name
        for panel in board["panels"]:
            assert panel["description"] and panel["fieldConfig"]["defaults"]["unit"], (path.name, panel["title"])
            for target in panel.get("targets", []):
                expr = target["expr"].replace("$__rate_interval", "2m").replace("$__interval", "30s")
                assert "$" not in expr, expr
                found.append((path.stem, panel["title"], expr))
    assert len(found) > 50
    return found


def rules_are_rules():
    run("promtool", "check", "rules", "--lint=all", "--lint-fatal", *RULES)


def every_alert_fires_and_rests():
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(alerts.unit_tests([str(path) for path in RULES], alert_names()))
        file.flush()
        run("promtool", "test", "rules", file.name)


def dashboards_are_made_from_their_source():
    run(sys.executable, TOP / "deploy/grafana/dashboards.py", "--check")


def every_alert_has_a_runbook_and_every_runbook_an_alert():
    page = (TOP / "deploy/runbooks.md").read_text()
    sections = set(re.findall(r"^## (\w+)$", page, re.M))
    assert sections == set(alert_names()), sections ^ set(alert_names())
    for path in RULES:
        text = path.read_text()
        links = re.findall(r"runbook: deploy/runbooks.md#(\w+)", text)
        names = re.findall(r"- alert: (\w+)", text)
        assert links == [name.lower() for name in names], path.name


def commands_of_runbooks_exist(program):
    page = (TOP / "deploy/runbooks.md").read_text()
    commands = set(re.findall(r"^ {4}(fairlane .*)$", page, re.M)) | set(re.findall(r"`(fairlane [^`]*)`", page))
    assert len(commands) > 15, commands
    for command in sorted(commands):
        words = command.split()[1:]
        verbs = []
        while words and re.fullmatch(r"[a-z]+", words[0]):
            verbs.append(words.pop(0))
        assert verbs, command
        told = run(program, *verbs, "--help")
        for flag in re.findall(r"--[a-z-]+", command):
            assert re.search(rf"{flag}\b", told), f"{command}: no {flag}"


def names_in_files_exist(names):
    """No dashboard, alert or page names a metric that is not in the catalogue."""
    found = 0
    for path in [*RULES, *BOARDS, *PAGES]:
        for name in set(NAME.findall(path.read_text())):
            # Words that are in pages for another reason.
            if path in PAGES and name not in names and not name.startswith(("claude_", "fairlane_")):
                continue
            plain = SUFFIX.sub("", name) if names.get(SUFFIX.sub("", name), ("",))[0] == "histogram" else name
            labels = {"gen_ai_request_model", "gen_ai_token_type", "messaging_destination_template"}
            assert plain in names or name in labels or name in NOT_METRICS, f"{path.name} names {name}"
            found += 1
    assert found > 60, found


# Names that look like metrics: buckets of NATS, crates.
NOT_METRICS = {"fairlane_worker", "fairlane_core"}


def main():
    program = sys.argv[1]
    names = catalogue()
    steps = [
        rules_are_rules,
        every_alert_fires_and_rests,
        dashboards_are_made_from_their_source,
        every_alert_has_a_runbook_and_every_runbook_an_alert,
        lambda: commands_of_runbooks_exist(program),
        lambda: names_in_files_exist(names),
    ]
    failed = 0

    def step(name, check):
        nonlocal failed
        try:
            check()
            print(f"ok    {name}", flush=True)
        except Exception as error:  # each check says what is wrong; the others go on
            failed += 1
            print(f"FAIL  {name}: {type(error).__name__} {error}", flush=True)

    for check, name in zip(steps, (
        "rules are rules", "every alert fires and rests", "dashboards are made from their source",
        "every alert has a runbook", "commands of runbooks exist", "names in files exist",
    )):
        step(name, check)
    with Fleet(program, RULES) as fleet:
        step("a demo with trouble runs", fleet.play)
        step("binaries export the catalogue, and nothing else", lambda: fleet.exports(names))
        step("every page of metrics is small and well formed", fleet.pages)
        step("metrics agree with the upstream's log and the books", fleet.agrees)
        step("every dashboard query returns data", lambda: fleet.answers(queries()))
        step("every alert can be evaluated", lambda: fleet.evaluates(alert_names()))
    print(f"{failed} failed")
    sys.exit(failed > 0)


main()
