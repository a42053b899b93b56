"""Every alert once when it has to fire and once when it must not, for promtool.

A case is (series, minute): what is scraped each minute, in promtool's notation, and when to look."""

import json

# Nothing that another alert's series would change; `x` repeats.
LATE = 'fairlane_queue_wait_seconds_%s{priority="%s"%s,instance="w"}'


def waits(priority, goal, late_of_100):
    """A hundred first calls a minute, so many of them late."""
    return {
        LATE % ("count", priority, ""): "0+100x3000",
        LATE % ("bucket", priority, f',le="{goal}"'): f"0+{100 - late_of_100}x3000",
    }


def gauge(series, value, minutes=120):
    return {series: f"{value}x{minutes}"}


CRITICAL, STANDARD = ("critical", "2"), ("standard", "6")
FILL = 'fairlane_stream_fill_ratio{stream="FL_JOBS"}'
BUDGET = 'fairlane_budget_used_ratio{tenant_id="acme"}'
LIMIT = 'fairlane_limit_used_ratio{pool="haiku-4.5",bucket="input_tokens"}'
DEPTH = 'claude_queue_depth{priority="batch"}'
REFUSED = 'claude_calls_total{model="m",reason="rate_limit"}'
ANSWERED = 'claude_calls_total{model="m",reason="done"}'

CASES = {
    "FairlaneNoLeader": [
        # One stands by and nobody leads; the other scheduler is gone for good.
        ({'fairlane_leader{instance="a"}': "1x3 0x20", 'fairlane_leader{instance="b"}': "0x3 _x20"}, 8),
        ({'fairlane_leader{instance="a"}': "1x3 0x20", 'fairlane_leader{instance="b"}': "0x3 1x20"}, 8),
    ],
    "FairlaneCriticalWait": [(waits(*CRITICAL, 20), 70), (waits(*CRITICAL, 1), 400)],
    "FairlaneCriticalWaitSlow": [(waits(*CRITICAL, 4), 1500), (waits(*CRITICAL, 2), 1500)],
    "FairlaneStandardWait": [(waits(*STANDARD, 20), 70), (waits(*STANDARD, 1), 400)],
    "FairlaneCriticalStuck": [
        (gauge('fairlane_queue_oldest_seconds{priority="critical"}', 61), 6),
        (gauge('fairlane_queue_oldest_seconds{priority="critical"}', 59)
         | gauge('fairlane_queue_oldest_seconds{priority="batch"}', 9000), 60),
    ],
    "FairlaneQueueDwell": [
        (gauge('claude_queue_dwell_p95_seconds{priority="standard"}', 26), 6),
        (gauge('claude_queue_dwell_p95_seconds{priority="standard"}', 25)
         | gauge('claude_queue_dwell_p95_seconds{priority="batch"}', 9000), 60),
    ],
    "FairlaneUserExposure": [(gauge("claude_user_exposure_rate", 0.006), 6), (gauge("claude_user_exposure_rate", 0.005), 60)],
    "FairlaneFallbackShare": [(gauge("claude_fallback_rate", 0.36), 11), (gauge("claude_fallback_rate", 0.35), 60)],
    "FairlaneUpstreamSaturated": [
        (gauge(LIMIT, 0.99) | {DEPTH: "0+10x60"}, 40),
        (gauge(LIMIT, 0.99) | gauge(DEPTH, 500), 60),
    ],
    "FairlaneWorkersSaturated": [
        (gauge("fairlane_credits_live", 128) | gauge("fairlane_worker_slots", 128) | gauge(LIMIT, 0.5) | gauge(DEPTH, 9), 11),
        (gauge("fairlane_credits_live", 128) | gauge("fairlane_worker_slots", 128) | gauge(LIMIT, 0.95) | gauge(DEPTH, 9), 60),
    ],
    "FairlaneNoWorkers": [
        (gauge("fairlane_workers", 0) | gauge(DEPTH, 9), 3),
        (gauge("fairlane_workers", 0) | gauge(DEPTH, 0), 60),
    ],
    "FairlaneBreakerOpen": [
        # Half-open for the minute of a probe, and open again.
        ({'fairlane_breaker_state{pool="p"}': "2x2 1 2x3 1 2x9"}, 8),
        ({'fairlane_breaker_state{pool="p"}': "2x3 0x30"}, 8),
    ],
    "Fairlane429Storm": [
        ({REFUSED: "0+3x60", ANSWERED: "0+97x60"}, 15),
        ({REFUSED: "0+1x60", ANSWERED: "0+99x60"}, 60),
    ],
    "FairlaneAuthFailing": [
        ({"fairlane_auth_failures_total": "0x5 1x5"}, 6),
        ({"fairlane_auth_failures_total": "7x60"}, 30),
    ],
    "FairlaneAccountRefused": [
        (gauge('fairlane_pauses{scope="account"}', 1), 2),
        (gauge('fairlane_pauses{scope="account"}', 0) | gauge('fairlane_pauses{scope="pool"}', 3), 60),
    ],
    "FairlaneDlqGrowing": [
        ({'fairlane_dead_letters{reason="schema"}': "0+2x60"}, 40),
        ({'fairlane_dead_letters{reason="schema"}': "900x60"}, 59),
    ],
    "FairlaneDeadLettersExpiring": [(gauge("fairlane_dead_letters_expiring", 1), 61), (gauge("fairlane_dead_letters_expiring", 0), 90)],
    "FairlaneTenantStarved": [
        (gauge('fairlane_starved_tenants{priority="batch"}', 1), 2),
        (gauge('fairlane_starved_tenants{priority="batch"}', 0), 60),
    ],
    "FairlaneUnfair": [
        (gauge('fairlane_fairness_gap_ratio{priority="batch"}', 1.1), 6),
        (gauge('fairlane_fairness_gap_ratio{priority="batch"}', 0.99), 60),
    ],
    "FairlaneRedeliveries": [
        ({"fairlane_redeliveries_total": "0+6x60", "fairlane_credits_granted_total": "0+100x60"}, 40),
        ({"fairlane_redeliveries_total": "0+4x60", "fairlane_credits_granted_total": "0+100x60"}, 60),
    ],
    "FairlaneStreamNearFull": [
        # A tenth of a per cent a minute: full in two and a half hours.
        ({FILL: "0.75+0.001x120"}, 110),
        (gauge(FILL, 0.85), 110),
    ],
    "FairlaneAutoscaleStale": [
        ({'fairlane_wanted_slots{pool="default"}': "8x3 _x30"}, 15),
        ({'fairlane_wanted_slots{pool="default"}': "8x30"}, 25),
    ],
    "FairlaneBudgetBurn": [
        # At eight in the morning a third of the day has passed.
        (gauge(BUDGET, 0.5, 600), 480),
        (gauge(BUDGET, 0.39, 600), 480),
    ],
}


def unit_tests(rule_files, alerts):
    """The file for `promtool test rules`. JSON is YAML, too."""
    missing = set(alerts) - set(CASES)
    assert not missing, f"alerts without a case: {sorted(missing)}"
    unknown = set(CASES) - set(alerts)
    assert not unknown, f"cases without an alert: {sorted(unknown)}"
    tests = []
    for alert, (fires, rests) in CASES.items():
        for (series, minute), count in ((fires, 1), (rests, 0)):
            firing = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})'
            tests.append({
                "interval": "1m",
                "name": f"{alert} {'fires' if count else 'rests'}",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "promql_expr_test": [{
                    "expr": firing,
                    "eval_time": f"{minute}m",
                    "exp_samples": [{"labels": "{}", "value": 1}] if count else [],
                }],
            })
    return json.dumps({"rule_files": rule_files, "evaluation_interval": "1m", "tests": tests}, indent=1)
