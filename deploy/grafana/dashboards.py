#!/usr/bin/env python3
"""The dashboards, in short; writes them as Grafana wants them. `dashboards.py` writes, `dashboards.py --check` compares.

A panel is (title, what it tells, unit, width of 24, queries); a query is (expression, legend). Of numbers that every scheduler
tells, `max` is taken. Gauges of the leader exist once, but for seconds while the lead changes."""

import json
import pathlib
import sys

FILES = pathlib.Path(__file__).resolve().parents[2] / "helm/fairlane/files/dashboards"
RATE = "[$__rate_interval]"


def late(priority):
    return f'fairlane:late_part:5m{{priority="{priority}"}}'


BOARDS = {
    "fleet": ("Fairlane: fleet", "Is it healthy, what limits it, who waits, what does it cost.", [
        ("Leaders", "One scheduler leads. Zero for a minute is an alert.", "short", 4, [("sum(fairlane_leader)", "leaders")]),
        ("Oldest critical job", "Age of the oldest job in line.", "s", 5, [('max(fairlane_queue_oldest_seconds{priority="critical"})', "critical")]),
        ("Late critical jobs", "Part of the first calls later than two seconds; 1 % is promised.", "percentunit", 5, [(late("critical"), "critical")]),
        ("Exposure, an hour", "Part of the jobs that failed through no fault of their own; 0.5 % is promised.", "percentunit", 5, [("max(claude_user_exposure_rate)", "exposure")]),
        ("Cost, a day", "Dollars of the last 24 hours.", "currencyUSD", 5, [("sum(increase(fairlane_cost_usd_total[1d]))", "cost")]),
        ("Jobs waiting", "Depth; the age beside it tells more.", "short", 12, [("max by (priority) (claude_queue_depth)", "{{priority}}")]),
        ("Oldest in line", "Age of the oldest job in line, by priority.", "s", 12, [("max by (priority) (fairlane_queue_oldest_seconds)", "{{priority}}")]),
        ("Wait for the first call, p95", "From when a job could run to its first call.", "s", 12, [(f"histogram_quantile(0.95, sum by (le, priority) (rate(fairlane_queue_wait_seconds_bucket{RATE})))", "{{priority}}")]),
        ("Submitted to answered, p95", "From when a job was accepted to its stored result.", "s", 12, [(f"histogram_quantile(0.95, sum by (le, priority) (rate(fairlane_job_duration_seconds_bucket{RATE})))", "{{priority}}")]),
        ("Jobs that ended", "A second, by how they ended.", "ops", 12, [(f"sum by (outcome) (rate(fairlane_jobs_total{RATE}))", "{{outcome}}")]),
        ("Slots", "Of all workers, those taken, and those worth having.", "short", 12, [
            ("max(fairlane_worker_slots)", "there"), ("max(fairlane_credits_live)", "taken"), ("max(fairlane_wanted_slots)", "wanted")]),
        ("What decides the wanted slots", "1 for what decides.", "short", 12, [("max by (reason) (fairlane_autoscale_reason)", "{{reason}}")]),
        ("Credits", "A second: handed out, handed out again, and lost with their worker.", "ops", 12, [
            (f"sum(rate(fairlane_credits_granted_total{RATE}))", "granted"), (f"sum(rate(fairlane_redeliveries_total{RATE}))", "again"),
            (f"sum(rate(fairlane_credits_expired_total{RATE}))", "expired")]),
        ("Cost by model", "Dollars an hour.", "currencyUSD", 12, [("sum by (model) (rate(fairlane_model_cost_usd_total[5m])) * 3600", "{{model}}")]),
        ("Bytes in streams", "What NATS keeps.", "bytes", 12, [("max by (stream) (fairlane_stream_bytes)", "{{stream}}")]),
    ]),
    "tenants": ("Fairlane: tenants and fairness", "Who gets what, and whether that is fair.", [
        ("Fairness index", "Jain's index over weighted service of the last minute: 1 is perfectly fair.", "none", 8, [("min by (priority) (claude_drr_fairness_index)", "{{priority}}")]),
        ("Least share", "Least part of its entitlement that a competing tenant got.", "percentunit", 8, [("min by (priority) (fairlane_fairness_min_share)", "{{priority}}")]),
        ("Gap, as a part of what is allowed", "Above 1 is a fault of the scheduler.", "none", 8, [("max by (priority) (fairlane_fairness_gap_ratio)", "{{priority}}")]),
        ("Starved tenants", "Owed more than a job for ten minutes and got nothing.", "short", 8, [("max by (priority) (fairlane_starved_tenants)", "{{priority}}")]),
        ("Demoted tenants", "Their standard work is served as batch.", "short", 8, [("max(claude_demoted_tenants)", "demoted")]),
        ("Service by priority", "Cost units a second; saturated, 90 : 5 : 5.", "none", 8, [(f"sum by (priority) (rate(fairlane_granted_cost_units_total{RATE}))", "{{priority}}")]),
        ("Service, the ten largest tenants", "Cost units a second.", "none", 12, [(f"topk(10, sum by (tenant_id) (rate(fairlane_tenant_cost_units_total{RATE})))", "{{tenant_id}}")]),
        ("Input tokens, the ten largest tenants", "A second, those that the cache had included.", "none", 12, [(f"topk(10, sum by (tenant_id) (rate(claude_input_tokens_total{RATE})))", "{{tenant_id}}")]),
        ("Cost, the ten dearest tenants", "Dollars of the last hour.", "currencyUSD", 12, [("topk(10, sum by (tenant_id) (increase(fairlane_cost_usd_total[1h])))", "{{tenant_id}}")]),
        ("Rate limits caused", "429s of the last hour, by the tenant that caused them.", "short", 12, [("topk(10, sum by (tenant_id) (increase(claude_throttle_count[1h])))", "{{tenant_id}}")]),
        ("Budgets", "Part of today's budget that is used; above 150 % a tenant is demoted.", "percentunit", 12, [("topk(10, max by (tenant_id) (fairlane_budget_used_ratio))", "{{tenant_id}}")]),
        ("Output tokens, the ten largest tenants", "A second.", "none", 12, [(f"topk(10, sum by (tenant_id) (rate(claude_output_tokens_total{RATE})))", "{{tenant_id}}")]),
    ]),
    "upstream": ("Fairlane: upstream", "What the Claude API allows, takes and refuses.", [
        ("Limits used", "Part of each limit per minute that is used up.", "percentunit", 12, [("max by (pool, bucket) (fairlane_limit_used_ratio)", "{{pool}} {{bucket}}")]),
        ("Limits", "Per minute, as the upstream said last.", "short", 12, [("max by (pool, bucket) (fairlane_limit_per_minute)", "{{pool}} {{bucket}}")]),
        ("Breakers", "0 closed (calls pass), 1 half-open, 2 open.", "short", 8, [("max by (pool) (fairlane_breaker_state)", "{{pool}}")]),
        ("Pauses in force", "By whom they concern.", "short", 8, [("max by (scope) (fairlane_pauses)", "{{scope}}")]),
        ("Overloaded, an hour", "Part of the calls that found the upstream overloaded, and of the answers that a smaller model gave (35 % is promised).", "percentunit", 8, [
            ("max(claude_529_rate)", "overloaded"), ("max(claude_fallback_rate)", "fallback")]),
        ("Calls", "A second, by what they ended as.", "ops", 12, [(f"sum by (reason) (rate(claude_calls_total{RATE}))", "{{reason}}")]),
        ("Calls by model", "A second.", "ops", 12, [(f"sum by (model) (rate(claude_calls_total{RATE}))", "{{model}}")]),
        ("Latency of calls, p99", "Two, six and 120 seconds are promised.", "s", 12, [(f"histogram_quantile(0.99, sum by (le, priority) (rate(claude_request_latency_seconds_bucket{RATE})))", "{{priority}}")]),
        ("Duration of calls by model, p95", "gen_ai.client.operation.duration.", "s", 12, [(f"histogram_quantile(0.95, sum by (le, gen_ai_request_model) (rate(gen_ai_client_operation_duration_seconds_bucket{RATE})))", "{{gen_ai_request_model}}")]),
        ("Tokens", "A second, by type.", "none", 12, [(f"sum by (type) (rate(fairlane_tokens_total{RATE}))", "{{type}}")]),
        ("Tokens of a call, median", "gen_ai.client.token.usage.", "short", 12, [(f"histogram_quantile(0.5, sum by (le, gen_ai_token_type) (rate(gen_ai_client_token_usage_bucket{RATE})))", "{{gen_ai_token_type}}")]),
        ("Fallbacks by kind", "Calls of a smaller model, a second.", "ops", 12, [(f"sum by (kind) (rate(fairlane_fallbacks_total{RATE}))", "{{kind}}")]),
        ("Refused keys", "Calls answered 401 or 403 within five minutes.", "short", 12, [("sum(increase(fairlane_auth_failures_total[5m]))", "refused")]),
    ]),
    "dead-letters": ("Fairlane: dead letters", "Jobs that ended without a result, and what leads there.", [
        ("Open letters", "Those that nobody has sent again.", "short", 8, [("sum(max by (reason) (fairlane_dead_letters))", "open")]),
        ("Expiring", "With less than a tenth of their life left.", "short", 8, [("max(fairlane_dead_letters_expiring)", "expiring")]),
        ("Exposure, an hour", "Part of the jobs that failed through no fault of their own.", "percentunit", 8, [("max(claude_user_exposure_rate)", "exposure")]),
        ("Open letters by reason", "What helps with each stands in deploy/README.md.", "short", 12, [("max by (reason) (fairlane_dead_letters) > 0", "{{reason}}")]),
        ("Growth, a quarter of an hour", "New letters less those that were sent again.", "short", 12, [("max by (reason) (delta(fairlane_dead_letters[15m]))", "{{reason}}")]),
        ("Jobs that ended without a result", "A second.", "ops", 12, [(f'sum by (outcome) (rate(fairlane_jobs_total{{outcome!="done"}}{RATE}))', "{{outcome}}")]),
        ("Prompts that want a review", "Answers that broke their job's schema, by kind, of the last hour.", "short", 12, [("sum by (kind) (increase(fairlane_prompt_reviews_total[1h]))", "{{kind}}")]),
        ("Callbacks", "A second, by how they ended.", "ops", 12, [(f"sum by (outcome) (rate(fairlane_callbacks_total{RATE}))", "{{outcome}}")]),
        ("Messages", "Taken, a second: submissions by producers, jobs by workers.", "ops", 12, [(f"sum by (messaging_destination_template) (rate(messaging_client_consumed_messages_total{RATE}))", "{{messaging_destination_template}}")]),
    ]),
}


def board(key, title, description, panels):
    x = y = row = 0
    made = []
    for number, (name, tells, unit, width, queries) in enumerate(panels, 1):
        if x + width > 24:
            x, y = 0, y + row
        row = 8
        source = {"type": "prometheus", "uid": "${datasource}"}
        made.append({
            "id": number, "type": "timeseries", "title": name, "description": tells, "datasource": source,
            "gridPos": {"h": 8, "w": width, "x": x, "y": y},
            "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
            "targets": [
                {"refId": chr(ord("A") + at), "datasource": source, "expr": expr, "legendFormat": legend}
                for at, (expr, legend) in enumerate(queries)
            ],
        })
        x += width
    return {
        "uid": f"fairlane-{key}", "title": title, "description": description, "tags": ["fairlane"], "schemaVersion": 39,
        "version": 1, "editable": False, "refresh": "30s", "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [{"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"}]},
        "links": [{"type": "dashboards", "tags": ["fairlane"], "title": "Fairlane", "asDropdown": True, "includeVars": True}],
        "panels": made,
    }


def main():
    stale = []
    for key, (title, description, panels) in BOARDS.items():
        path = FILES / f"{key}.json"
        text = json.dumps(board(key, title, description, panels), indent=1) + "\n"
        if "--check" not in sys.argv:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            stale.append(path.name)
    if stale:
        sys.exit(f"{', '.join(stale)} not as deploy/grafana/dashboards.py says; run it")


if __name__ == "__main__":
    main()
