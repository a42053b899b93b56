//! Every metric there is: name, unit, labels, who exports it, and what it says.
//!
//! Nothing is exported that does not stand here, and the page `deploy/metrics.md`, the dashboards and the alerts are
//! checked against it. Names of two conventions come from elsewhere and are kept as they are there: `gen_ai_*` and
//! `messaging_*` are OpenTelemetry's, as they look in Prometheus.

use std::fmt::Write as _;

/// What kind of number a metric is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts by size.
    Histogram,
}

impl MetricKind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// Who exports a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exporter {
    /// Every role.
    All,
    /// Producers.
    Producer,
    /// Every scheduler; all say the same.
    Scheduler,
    /// The scheduler that leads. Its gauges are gone when it stands by.
    Leader,
    /// Workers.
    Worker,
}

impl Exporter {
    fn as_str(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Producer => "producer",
            Self::Scheduler => "scheduler",
            Self::Leader => "leader",
            Self::Worker => "worker",
        }
    }
}

/// One entry of the catalogue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetricDef {
    /// Name as exported.
    pub name: &'static str,
    /// What it says.
    pub help: &'static str,
    /// Its kind.
    pub kind: MetricKind,
    /// What it is counted in: a base unit, `1` for ratios, or the thing in braces.
    pub unit: &'static str,
    /// Names of its labels.
    pub labels: &'static [&'static str],
    /// Who exports it.
    pub roles: &'static [Exporter],
}

/// Declares the catalogue: one constant per metric and the list of all.
macro_rules! catalogue {
    ($($constant:ident = $kind:ident $name:literal $unit:literal $labels:expr, [$($role:ident),*], $help:literal;)*) => {
        $(pub(super) const $constant: MetricDef = MetricDef {
            name: $name,
            help: $help,
            kind: MetricKind::$kind,
            unit: $unit,
            labels: &$labels,
            roles: &[$(Exporter::$role),*],
        };)*

        /// Every metric Fairlane exports, for checks of dashboards, alerts and documents.
        pub const CATALOGUE: &[MetricDef] = &[$($constant),*];
    };
}

catalogue! {
    QUEUE_DEPTH = Gauge "claude_queue_depth" "{job}" ["priority"], [Leader], "Jobs waiting.";
    REQUEST_LATENCY = Histogram "claude_request_latency_seconds" "s" ["priority"], [Worker],
        "Time from sending a request to the Claude API to the end of its answer, of calls that were or may have been answered.";
    THROTTLES = Counter "claude_throttle_count" "{answer}" ["tenant_id"], [Leader],
        "Answers 429 of the Claude API, by the tenant that caused them.";
    DEMOTED_TENANTS = Gauge "claude_demoted_tenants" "{tenant}" [], [Leader],
        "Tenants whose standard work is served as batch now.";
    FAIRNESS_INDEX = Gauge "claude_drr_fairness_index" "1" ["priority"], [Leader],
        "Jain's index over the weighted service of the tenants that competed for all of the last minute: 1 is perfectly fair.";
    INPUT_TOKENS = Counter "claude_input_tokens_total" "{token}" ["tenant_id"], [Worker],
        "Input tokens used, those that the cache had included.";
    OVERLOAD_RATE = Gauge "claude_529_rate" "1" [], [Leader],
        "Part of the calls that ended within the last 60 minutes and found the upstream overloaded.";
    EXPOSURE_RATE = Gauge "claude_user_exposure_rate" "1" [], [Leader],
        "Part of the jobs that ended within the last 60 minutes and whose owners saw a failure that was not the job's own: tries used up, deadline passed, workers died.";
    FALLBACK_RATE = Gauge "claude_fallback_rate" "1" [], [Leader],
        "Part of the answers of the last 60 minutes that came from a smaller model because the job's own was overloaded.";
    DWELL = Gauge "claude_queue_dwell_p95_seconds" "s" ["priority"], [Leader],
        "95th percentile of the time from when a job could run to its first call, of the jobs whose first call ended within the last 60 minutes; at most a tenth too high.";

    OUTPUT_TOKENS = Counter "claude_output_tokens_total" "{token}" ["tenant_id"], [Worker], "Output tokens used.";
    CALLS = Counter "claude_calls_total" "{call}" ["model", "reason"], [Worker],
        "Calls of the Claude API that have ended, by the model that was called and what they ended as.";
    TOKENS = Counter "fairlane_tokens_total" "{token}" ["model", "type"], [Worker],
        "Tokens used, by the model that was called; of the input, those from and into the cache apart.";
    COST = Counter "fairlane_cost_usd_total" "USD" ["tenant_id"], [Worker],
        "What calls cost, as it is booked in the ledger; calls of models without a price are not in it.";
    MODEL_COST = Counter "fairlane_model_cost_usd_total" "USD" ["model"], [Worker],
        "What calls cost, by the model that was called.";
    AUTH_FAILURES = Counter "fairlane_auth_failures_total" "{call}" [], [Worker],
        "Calls that were refused with 401 or 403: the key is wrong, or is not allowed what was asked.";
    FALLBACKS = Counter "fairlane_fallbacks_total" "{call}" ["kind"], [Worker],
        "Calls of a smaller model because the job's own was overloaded, by kind of job.";
    PROMPT_REVIEWS = Counter "fairlane_prompt_reviews_total" "{answer}" ["kind"], [Worker],
        "Answers that broke their job's schema, by kind of job: its prompt wants a review.";
    QUEUE_WAIT = Histogram "fairlane_queue_wait_seconds" "s" ["priority"], [Worker],
        "Time from when a job could run, accepted and not before its time, to its first call.";
    JOB_DURATION = Histogram "fairlane_job_duration_seconds" "s" ["priority"], [Worker],
        "Time from when a job was accepted to its stored result.";
    JOBS = Counter "fairlane_jobs_total" "{job}" ["outcome"], [Producer, Leader, Worker],
        "Jobs that have ended: done, dead (a dead letter), cancelled, or expired (its deadline passed).";
    CALLBACKS = Counter "fairlane_callbacks_total" "{try}" ["outcome"], [Producer],
        "Tries to tell a submitter that a job has ended: delivered, retried, or dropped for good.";

    DEAD_LETTERS = Gauge "fairlane_dead_letters" "{letter}" ["reason"], [Scheduler],
        "Dead letters that nobody has sent again, by reason.";
    DEAD_LETTERS_EXPIRING = Gauge "fairlane_dead_letters_expiring" "{letter}" [], [Scheduler],
        "Dead letters that nobody has sent again and that have less than a tenth of their life left: three days of thirty.";
    STREAM_MESSAGES = Gauge "fairlane_stream_messages" "{message}" ["stream"], [Scheduler],
        "Messages in a stream of JetStream.";
    STREAM_BYTES = Gauge "fairlane_stream_bytes" "By" ["stream"], [Scheduler], "Bytes in a stream of JetStream.";
    STREAM_FILL = Gauge "fairlane_stream_fill_ratio" "1" ["stream"], [Scheduler],
        "Part of a stream's own limit of bytes that is used, of streams that have one; `storage` is all of JetStream's.";
    WEBHOOK = Counter "fairlane_webhook_messages_total" "{message}" ["outcome"], [Scheduler],
        "Messages to the webhook that tells people: sent, failed (tried again), dropped (given up, or there were too many).";
    LEADER = Gauge "fairlane_leader" "1" [], [Scheduler], "1 on the scheduler that leads, 0 on the others.";

    FAIRNESS_MIN_SHARE = Gauge "fairlane_fairness_min_share" "1" ["priority"], [Leader],
        "Least part of its entitlement that a tenant got which competed for all of the last minute.";
    FAIRNESS_GAP_RATIO = Gauge "fairlane_fairness_gap_ratio" "1" ["priority"], [Leader],
        "Largest gap in weighted service between two tenants in the last minute, as a part of what deficit round robin allows; above 1 is a fault.";
    STARVED = Gauge "fairlane_starved_tenants" "{tenant}" ["priority"], [Leader],
        "Tenants that could have run something for ten minutes, were owed more than their next job and got nothing, while others were served.";
    TENANT_COST_UNITS = Counter "fairlane_tenant_cost_units_total" "{cost_unit}" ["tenant_id"], [Leader],
        "Cost units (1 000 weighted tokens) of the credits handed out, by tenant.";
    PRIORITY_COST_UNITS = Counter "fairlane_granted_cost_units_total" "{cost_unit}" ["priority"], [Leader],
        "Cost units of the credits handed out, by the priority as which they were served.";
    BUDGET_USED = Gauge "fairlane_budget_used_ratio" "1" ["tenant_id"], [Leader],
        "Part of a tenant's budget of input tokens of this day (UTC) that is used, calls under way included.";
    CREDITS_GRANTED = Counter "fairlane_credits_granted_total" "{credit}" [], [Leader], "Credits handed out.";
    CREDITS_LIVE = Gauge "fairlane_credits_live" "{credit}" [], [Leader], "Credits that are out now: jobs in flight.";
    CREDITS_EXPIRED = Counter "fairlane_credits_expired_total" "{credit}" [], [Leader],
        "Credits whose worker died, or never began.";
    REDELIVERIES = Counter "fairlane_redeliveries_total" "{credit}" [], [Leader],
        "Credits handed out for jobs that had one before: after a retry, or because a worker was lost.";
    FALLBACK_GRANTS = Counter "fairlane_fallback_grants_total" "{credit}" [], [Leader],
        "Credits handed out for a smaller model than the job's own.";
    QUEUE_OLDEST = Gauge "fairlane_queue_oldest_seconds" "s" ["priority"], [Leader],
        "Time since the oldest job in line was stored; to the second.";
    LIMIT = Gauge "fairlane_limit_per_minute" "{unit}" ["pool", "bucket"], [Leader],
        "A pool's limit per minute, as configured or as the upstream said last.";
    LIMIT_USED = Gauge "fairlane_limit_used_ratio" "1" ["pool", "bucket"], [Leader],
        "Part of a pool's limit per minute that is used up; above 1 it is overdrawn.";
    PAUSES = Gauge "fairlane_pauses" "{pause}" ["scope"], [Leader],
        "Pauses and refusals of the upstream in force, by whom they concern.";
    BREAKER_STATE = Gauge "fairlane_breaker_state" "1" ["pool"], [Leader],
        "Breaker of a pool: 0 closed (calls pass), 1 half-open, 2 open.";
    WANTED_SLOTS = Gauge "fairlane_wanted_slots" "{slot}" ["pool"], [Leader],
        "Worker slots that are worth having, by pool of workers: what autoscaling goes by.";
    WANTED_SLOTS_TERM = Gauge "fairlane_wanted_slots_term" "{slot}" ["pool", "term"], [Leader],
        "What the wanted slots are made of: slots that all work would keep busy (demand), that the upstream allows (capacity), and that are taken (in_flight).";
    AUTOSCALE_REASON = Gauge "fairlane_autoscale_reason" "1" ["reason"], [Leader],
        "1 for what decides the wanted slots now, 0 for the rest: demand, rpm, itpm, otpm, breaker, retry_after, floor, ceiling.";
    WORKERS = Gauge "fairlane_workers" "{worker}" [], [Leader], "Workers that were heard of lately and do not drain.";
    WORKER_SLOTS = Gauge "fairlane_worker_slots" "{slot}" [], [Leader], "Their slots, free or not.";
    TERM = Gauge "fairlane_term" "1" [], [Leader], "Term of the leading scheduler; each is larger than the one before.";
    FIRST_GRANT = Gauge "fairlane_first_grant_seconds" "s" [], [Leader],
        "Time from the beginning of the term to its first grant.";
    PICTURE_REPAIRS = Counter "fairlane_picture_repairs_total" "{job}" ["what"], [Leader],
        "Jobs of which the leader's picture was wrong and was put right: missed, or gone.";

    GEN_AI_DURATION = Histogram "gen_ai_client_operation_duration_seconds" "s"
        ["gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model", "error_type"], [Worker],
        "gen_ai.client.operation.duration: time of a call; `error_type` is empty when it was answered.";
    GEN_AI_TOKENS = Histogram "gen_ai_client_token_usage" "{token}"
        ["gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model", "gen_ai_token_type"], [Worker],
        "gen_ai.client.token.usage: tokens of a call, `input` with those that the cache had, and `output`.";
    MESSAGING_SENT = Counter "messaging_client_sent_messages_total" "{message}"
        ["messaging_system", "messaging_operation_name", "messaging_destination_template"], [Producer, Leader],
        "messaging.client.sent.messages: jobs put in line, and credits sent to workers.";
    MESSAGING_CONSUMED = Counter "messaging_client_consumed_messages_total" "{message}"
        ["messaging_system", "messaging_operation_name", "messaging_destination_template"], [Producer, Worker],
        "messaging.client.consumed.messages: submissions taken, and jobs read.";
    MESSAGING_PROCESS = Histogram "messaging_process_duration_seconds" "s"
        ["messaging_system", "messaging_operation_name", "messaging_destination_template"], [Producer, Worker],
        "messaging.process.duration: time from taking a submission, or beginning a job, to being done with it.";

    SPANS_DROPPED = Counter "fairlane_spans_dropped_total" "{span}" ["reason"], [All],
        "Spans of traces that were dropped: no_room (the collector is too slow) or not_taken (it refused them, or did not answer).";
    PUSHES_FAILED = Counter "fairlane_metric_pushes_failed_total" "{push}" [], [All],
        "Pushes of these metrics over OTLP that the collector did not take; the next one says all that they would have.";
    BUILD_INFO = Gauge "fairlane_build_info" "1" ["version", "role"], [All], "Always 1; says what runs.";
}

/// The catalogue as a page: Markdown, one line per metric.
#[must_use]
pub fn page() -> String {
    let mut page = PAGE_HEAD.to_owned();
    for def in CATALOGUE {
        let roles: Vec<&str> = def.roles.iter().map(|role| role.as_str()).collect();
        let labels: Vec<String> = def.labels.iter().map(|name| format!("`{name}`")).collect();
        writeln!(
            page,
            "| `{}` | {} | {} | {} | {} | {} |",
            def.name,
            def.kind.as_str(),
            def.unit,
            labels.join(", "),
            roles.join(", "),
            def.help,
        )
        .expect("writing into a string does not fail");
    }
    page
}

const PAGE_HEAD: &str = "\
# Metrics

Every role serves them at `/metrics` on its `http_addr`, in Prometheus' text format. This page is made from the catalogue in
`crates/runtime/src/metrics/catalogue.rs`; a test keeps it that way (`UPDATE=1 cargo test -p fairlane-runtime catalogue`).

With `telemetry.otlp_metrics_endpoint` every role sends the same, under the same names and labels and with cumulative values, to a
collector over OTLP too; with `telemetry.otlp_protocol` and `otlp_headers` as for traces. What it does not take is counted in
`fairlane_metric_pushes_failed_total`, and is in the next push.

`tenant_id` has at most 1 000 values, the first ones seen by a process; later tenants share `other`. Models and kinds have at
most 50, pools 100. What the leader says is said by one scheduler at a time; after a change of leaders its counters begin at
zero, as `rate()` expects. What every scheduler says is the same number many times: take `max`, not `sum`.

| name | type | unit | labels | told by | what it says |
|---|---|---|---|---|---|
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_made_from_the_catalogue() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/metrics.md");
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(path, page()).unwrap();
        }
        let stored = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            stored == page(),
            "deploy/metrics.md is not what the catalogue says; make it anew with: UPDATE=1 cargo test -p fairlane-runtime catalogue"
        );
    }

    #[test]
    fn names_are_unique_and_say_their_unit() {
        let mut names: Vec<&str> = CATALOGUE.iter().map(|def| def.name).collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
        for def in CATALOGUE {
            let is_seconds = def.name.ends_with("_seconds");
            assert_eq!(is_seconds, def.unit == "s", "{}", def.name);
            // One name was given from outside.
            let is_total = def.name.ends_with("_total") || def.name == "claude_throttle_count";
            assert_eq!(is_total, def.kind == MetricKind::Counter, "{}", def.name);
            assert!(
                !def.roles.is_empty() && def.help.ends_with('.'),
                "{}",
                def.name
            );
        }
    }
}
