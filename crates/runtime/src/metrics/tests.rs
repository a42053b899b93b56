use std::collections::BTreeMap;

use prometheus::proto::MetricType;

use super::*;

fn call(tenant: &str) -> CallEnded<'_> {
    CallEnded {
        tenant,
        kind: "tagging",
        priority: Priority::Batch,
        model: "claude-haiku-4-5",
        reason: "authentication",
        seconds: 0.3,
        answered: true,
        succeeded: false,
        unauthorized: true,
        by_fallback: true,
        tokens: TokensUsed {
            input: 4,
            cache_write: 3,
            cache_read: 2,
            output: 1,
        },
        cost_usd: Some(0.5),
    }
}

fn touch_everything(metrics: &Metrics) {
    metrics.call_ended(&call("acme"));
    metrics.prompt_review("tagging");
    metrics.queue_wait(Priority::Critical, 0.1);
    metrics.job_duration(Priority::Critical, 1.1);
    metrics.job_ended(Outcome::Done);
    metrics.callback(CallbackOutcome::Delivered);
    metrics.spans_dropped("no_room", 1);
    metrics.pushes_failed(1);
    metrics.webhook(WebhookOutcome::Sent);
    metrics.dead_letters("schema", 4);
    metrics.dead_letters_expiring(1);
    let size = StreamSize {
        messages: 3,
        bytes: 100,
        bytes_max: Some(400),
    };
    metrics.stream("FL_JOBS", size);
    metrics.message_sent(Destination::Credits);
    metrics.message_consumed(Destination::Jobs);
    metrics.message_processed(Destination::Submissions, 0.1);
    metrics.leads();
    let leading = metrics.leading();
    leading.queue(Priority::Batch, 3, 7);
    leading.demoted_tenants(1);
    let fairness = Fairness {
        index: 0.9,
        min_share: 0.8,
        gap_ratio: 0.5,
        starved: 1,
    };
    leading.fairness(Priority::Standard, fairness);
    leading.last_hour(LastHour {
        overloaded: 0.1,
        exposed: 0.2,
        by_fallback: 0.3,
        dwell_p95: [1.0, 2.0, 3.0],
    });
    leading.budgets([("acme", 0.5)].into_iter());
    leading.credits_live(1);
    leading.limit("haiku-4.5", Bucket::InputTokens, 100, 0.5);
    leading.pauses("pool", 1);
    leading.breaker("haiku-4.5", Breaker::Open);
    leading.wanted_slots("default", 8, [9, 8, 2]);
    leading.autoscale_reason("rpm", true);
    leading.workers(2, 128);
    leading.term(3);
    leading.first_grant(0.2);
    leading.throttled("acme");
    leading.credit_granted("acme", Priority::Batch, 1.5, 2);
    leading.credit_expired();
    leading.fallback_granted();
    leading.picture_repaired(1, 2);
}

#[test]
fn what_is_exported_is_exactly_the_catalogue() {
    let metrics = Metrics::new("worker");
    touch_everything(&metrics);
    let exported: BTreeMap<String, (String, MetricType, Vec<String>)> = metrics
        .registry
        .gather()
        .iter()
        .map(|family| {
            let labels = family.get_metric()[0].get_label();
            let mut labels: Vec<String> =
                labels.iter().map(|label| label.name().to_owned()).collect();
            labels.sort();
            let facts = (family.help().to_owned(), family.get_field_type(), labels);
            (family.name().to_owned(), facts)
        })
        .collect();
    let declared: BTreeMap<String, (String, MetricType, Vec<String>)> = CATALOGUE
        .iter()
        .map(|def| {
            let kind = match def.kind {
                MetricKind::Counter => MetricType::COUNTER,
                MetricKind::Gauge => MetricType::GAUGE,
                MetricKind::Histogram => MetricType::HISTOGRAM,
            };
            let mut labels: Vec<String> =
                def.labels.iter().map(|label| (*label).to_owned()).collect();
            labels.sort();
            (def.name.to_owned(), (def.help.to_owned(), kind, labels))
        })
        .collect();
    assert_eq!(exported, declared);
}

#[test]
fn a_role_exports_only_what_it_can_know_and_counts_from_zero() {
    let worker = Metrics::new("worker").render();
    assert!(worker.contains("role=\"worker\""), "{worker}");
    assert!(
        worker.contains("fairlane_auth_failures_total 0"),
        "{worker}"
    );
    let zero = r#"fairlane_queue_wait_seconds_count{priority="critical"} 0"#;
    assert!(worker.contains(zero), "{worker}");
    for gone in [
        "claude_queue_depth",
        "fairlane_leader",
        "fairlane_redeliveries",
    ] {
        assert!(!worker.contains(gone), "{worker}");
    }
    let standby = Metrics::new("scheduler");
    let text = standby.render();
    assert!(text.contains("fairlane_leader 0"), "{text}");
    assert!(!text.contains("fairlane_redeliveries"), "{text}");
    standby.leads();
    let text = standby.render();
    assert!(text.contains("fairlane_redeliveries_total 0"), "{text}");
    let producer = Metrics::new("producer").render();
    assert!(producer.contains(r#"fairlane_callbacks_total{outcome="dropped"} 0"#));
}

#[test]
fn a_standby_takes_back_what_only_a_leader_knows() {
    let metrics = Metrics::new("scheduler");
    touch_everything(&metrics);
    metrics.stands_by();
    let text = metrics.render();
    assert!(text.contains("fairlane_leader 0"), "{text}");
    for gone in [
        "claude_queue_depth",
        "claude_drr_fairness_index",
        "fairlane_fairness",
        "fairlane_credits_live",
        "fairlane_queue_oldest",
        "fairlane_limit_used",
        "fairlane_pauses",
        "fairlane_breaker_state",
        "fairlane_term",
        "fairlane_first_grant",
        "fairlane_limit_per",
        "fairlane_wanted_slots",
        "fairlane_autoscale_reason",
        "fairlane_starved",
        "fairlane_budget",
        "fairlane_workers",
        "fairlane_worker_slots",
        "claude_529",
        "claude_user",
        "claude_fallback",
        "claude_queue_dwell",
        "claude_demoted",
    ] {
        assert!(!text.contains(gone), "{text}");
    }
    assert!(text.contains("fairlane_credits_granted_total 1"), "{text}");
}

#[test]
fn tenants_beyond_the_cap_share_one_series() {
    let metrics = Metrics::with_tenant_cap("worker", 2);
    for tenant in ["a", "b", "c", "d", "a"] {
        metrics.call_ended(&call(tenant));
    }
    let text = metrics.render();
    for (tenant, tokens) in [("a", 18), ("b", 9), ("other", 18)] {
        let series = format!("claude_input_tokens_total{{tenant_id=\"{tenant}\"}} {tokens}");
        assert!(text.contains(&series), "{text}");
    }
    assert!(!text.contains("\"c\""), "{text}");
}

#[test]
fn a_process_of_any_role_with_ten_thousand_tenants_stays_below_two_megabytes() {
    let metrics = Metrics::new("all");
    touch_everything(&metrics);
    // Names as long as they may be.
    let tenant = |number: usize| format!("{number:0>64}");
    let tenants: Vec<String> = (0..10_000).map(tenant).collect();
    for (number, tenant) in tenants.iter().enumerate() {
        let model = format!("a-model-with-a-long-name-{number}");
        let call = CallEnded {
            model: &model,
            kind: tenant,
            ..call(tenant)
        };
        metrics.call_ended(&call);
        metrics.prompt_review(tenant);
        let leading = metrics.leading();
        leading.throttled(tenant);
        leading.credit_granted(tenant, Priority::Batch, 1.0, 1);
        leading.limit(tenant, Bucket::Requests, 1, 0.5);
        leading.breaker(tenant, Breaker::Open);
    }
    let budgets = tenants.iter().map(|tenant| (tenant.as_str(), 0.5));
    metrics.leading().budgets(budgets);
    let text = metrics.render();
    assert!(text.len() < 2_000_000, "{} bytes", text.len());
    let of_tenants = |name: &str| text.lines().filter(|line| line.starts_with(name)).count();
    for name in ["claude_throttle_count{", "claude_input_tokens_total{"] {
        assert_eq!(of_tenants(name), TENANT_LABELS_MAX + 1);
    }
    assert_eq!(of_tenants("fairlane_budget_used_ratio{"), TENANT_LABELS_MAX);
}

#[test]
fn the_goals_are_bucket_borders() {
    for goal in [2.0, 6.0, 120.0] {
        assert!(SECONDS_BUCKETS.contains(&goal));
    }
    assert!(SECONDS_BUCKETS.is_sorted());
}
