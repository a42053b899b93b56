//! The typed tree every role reads, one struct per section.
//!
//! Times are whole milliseconds and say so in their name; sizes are bytes; rates are per minute, like the limits of
//! the Claude API. Defaults suit one node on a laptop and a small tier, so an empty file is a working configuration.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::schema::{Kind, Rule, described};

const HOUR_MS: u64 = 3_600_000;
const DAY_MS: u64 = 24 * HOUR_MS;

/// Text that must not be shown: `Debug` and serialisation give `***`.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Wraps a text that must not be shown.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself, for the one place that sends it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(MASK)
    }
}

impl Serialize for Secret {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(MASK)
    }
}

/// What stands in place of a secret.
pub const MASK: &str = "***";

/// How log lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Text on a terminal, JSON otherwise.
    Auto,
    /// One line per event, for people.
    Text,
    /// One JSON object per event, for collectors.
    Json,
}

/// How an OTLP collector is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum OtlpProtocol {
    /// Protobuf over HTTP.
    #[serde(rename = "http/protobuf")]
    Http,
    /// gRPC.
    #[serde(rename = "grpc")]
    Grpc,
}

/// Which traces are chosen where they begin, in the standard's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Sampler {
    /// All.
    #[serde(rename = "always_on")]
    AlwaysOn,
    /// None.
    #[serde(rename = "always_off")]
    AlwaysOff,
    /// A part, by their ids.
    #[serde(rename = "traceidratio")]
    Ratio,
    /// As the publisher says; all of the others.
    #[serde(rename = "parentbased_always_on")]
    ParentBasedAlwaysOn,
    /// As the publisher says; none of the others.
    #[serde(rename = "parentbased_always_off")]
    ParentBasedAlwaysOff,
    /// As the publisher says; a part of the others.
    #[serde(rename = "parentbased_traceidratio")]
    ParentBasedRatio,
}

impl Sampler {
    const WORDS: &[&str] = &[
        "always_on",
        "always_off",
        "traceidratio",
        "parentbased_always_on",
        "parentbased_always_off",
        "parentbased_traceidratio",
    ];

    /// Whether a publisher's choice counts.
    pub fn heeds_parent(self) -> bool {
        match self {
            Self::AlwaysOn | Self::AlwaysOff | Self::Ratio => false,
            Self::ParentBasedAlwaysOn | Self::ParentBasedAlwaysOff | Self::ParentBasedRatio => true,
        }
    }
}

const fn whole(min: u64, max: u64) -> Kind {
    Kind::Leaf(Rule::Whole { min, max })
}

const fn whole_or_unset(min: u64, max: u64) -> Kind {
    Kind::Optional(Rule::Whole { min, max })
}

described! {
    /// Everything that can be configured.
    pub struct Settings {
        /// How to reach NATS.
        nats: Nats = Nats::default(), Kind::Table(Nats::NODES);
        /// How to call the Claude API.
        claude: Claude = Claude::default(), Kind::Table(Claude::NODES);
        /// Taking jobs in.
        producer: Producer = Producer::default(), Kind::Table(Producer::NODES);
        /// Deciding what runs next.
        scheduler: Scheduler = Scheduler::default(), Kind::Table(Scheduler::NODES);
        /// Running jobs.
        worker: Worker = Worker::default(), Kind::Table(Worker::NODES);
        /// What the organisation may send upstream.
        limits: Limits = Limits::default(), Kind::Table(Limits::NODES);
        /// Additions to and changes of the built-in model table, by model id.
        models: BTreeMap<String, Model> = BTreeMap::new(), Kind::Map(Model::NODES);
        /// Additions to and changes of the built-in prices.
        prices: BTreeMap<String, Price> = BTreeMap::new(), Kind::Map(Price::NODES);
        /// Which work a smaller model may do while its own is overloaded.
        fallback: Fallback = Fallback::default(), Kind::Table(Fallback::NODES);
        /// What becomes of work that is too long for its model, by kind of job.
        kinds: BTreeMap<String, JobKind> = BTreeMap::new(), Kind::Map(JobKind::NODES);
        /// Tenants known before anybody edits them at run time, by tenant id.
        tenants: BTreeMap<String, Tenant> = BTreeMap::new(), Kind::Map(Tenant::NODES);
        /// Logs and traces.
        telemetry: Telemetry = Telemetry::default(), Kind::Table(Telemetry::NODES);
        /// Who is told what happens to the fleet.
        webhook: Webhook = Webhook::default(), Kind::Table(Webhook::NODES);
        /// How long outcomes are kept.
        results: Results = Results::default(), Kind::Table(Results::NODES);
    }
}

described! {
    /// `[nats]`: how to reach NATS.
    pub struct Nats {
        /// Server addresses, comma separated; `nats://`, `tls://`, `ws://` or `wss://`, without user and password.
        url: String = "nats://127.0.0.1:4222".to_owned(), Kind::Leaf(Rule::Url(&["nats", "tls", "ws", "wss"]));
        /// Prefix of every subject, stream and bucket; several fleets can share one NATS under different ones.
        namespace: String = "fl".to_owned(), Kind::Leaf(Rule::Token);
        /// Credentials file (JWT and seed). Not together with `nkey_file` or `user`.
        creds_file: Option<PathBuf> = None, Kind::Optional(Rule::Path);
        /// File with the seed of an nkey, as `fairlane auth` writes it. Not together with `user`.
        nkey_file: Option<PathBuf> = None, Kind::Optional(Rule::Path);
        /// User name; needs `password`.
        user: Option<String> = None, Kind::Optional(Rule::Text);
        /// Password of `user`. Secret; best given as FAIRLANE__NATS__PASSWORD.
        password: Option<Secret> = None, Kind::Optional(Rule::Secret);
        /// Copies of each stream and bucket: 1 on one server, 3 in a cluster.
        replicas: u32 = 1, whole(1, 5);
        /// Jobs one tenant may have waiting in one priority; more become dead letters.
        backlog_per_tenant_max: u64 = 100_000, whole(1, 10_000_000);
        /// Submissions of one tenant that no producer has taken yet; the server refuses more. They are taken in order, so this
        /// bounds what a flood of one tenant costs the others: about a second.
        submissions_per_tenant_max: u64 = 4_000, whole(1, 10_000_000);
        /// Bytes of submissions that no producer has taken yet, of all tenants. The server keeps room for as much. Unset: as much as
        /// the server has.
        submit_bytes_max: Option<u64> = None, whole_or_unset(1_048_576, 1 << 50);
        /// Bytes of jobs that wait or run, likewise.
        jobs_bytes_max: Option<u64> = None, whole_or_unset(1_048_576, 1 << 50);
        /// Bytes of bodies too large for a message, likewise.
        payloads_bytes_max: Option<u64> = None, whole_or_unset(1_048_576, 1 << 50);
        /// Longest wait for an answer from the server, milliseconds.
        request_timeout_ms: u64 = 5_000, whole(100, 120_000);
        /// Certificate authorities that vouch for the server, PEM; beside those of the system. Encryption itself is asked for
        /// by `tls://` in `url`.
        tls_ca_file: Option<PathBuf> = None, Kind::Optional(Rule::Path);
        /// Certificate of ours, PEM, for servers that ask for one; needs `tls_key_file`.
        tls_cert_file: Option<PathBuf> = None, Kind::Optional(Rule::Path);
        /// Its private key, PEM.
        tls_key_file: Option<PathBuf> = None, Kind::Optional(Rule::Path);
        /// Prefix of reply subjects, for users that may subscribe only under their own. Unset: `_INBOX_`, the namespace and the
        /// role, as `fairlane auth` grants it; `operator` for commands.
        inbox_prefix: Option<String> = None, Kind::Optional(Rule::Text);
    }
}

described! {
    /// `[claude]`: how to call the Claude API.
    pub struct Claude {
        /// Base address, `http://` or `https://`.
        base_url: String = "https://api.anthropic.com".to_owned(), Kind::Leaf(Rule::Url(&["http", "https"]));
        /// API key. Secret; a mounted file (`api_key_file`) is better, because it can change without a restart.
        api_key: Option<Secret> = None, Kind::Optional(Rule::Secret);
        /// File that holds the API key; read again when it changes. Not together with `api_key`.
        api_key_file: Option<PathBuf> = None, Kind::Optional(Rule::Path);
        /// Value of the anthropic-version header.
        version: String = "2023-06-01".to_owned(), Kind::Leaf(Rule::Text);
        /// Longest wait for a connection, milliseconds.
        connect_timeout_ms: u64 = 5_000, whole(100, 120_000);
        /// Longest wait for the first byte of an answer, milliseconds.
        first_byte_timeout_ms: u64 = 60_000, whole(100, 3_600_000);
        /// Longest silence (no event that moves the answer on; pings do not) in a running answer, milliseconds.
        progress_timeout_ms: u64 = 30_000, whole(100, 3_600_000);
        /// Time between two looks at the list of models upstream, milliseconds; 0 = never.
        models_every_ms: u64 = 6 * HOUR_MS, whole(0, 30 * DAY_MS);
    }
}

described! {
    /// `[producer]`: taking jobs in.
    pub struct Producer {
        /// Submissions worked on at the same time.
        max_in_flight: u32 = 256, whole(1, 65_536);
        /// Address of health checks and metrics. Unset: no HTTP at all.
        http_addr: Option<SocketAddr> = None, Kind::Optional(Rule::Address);
        /// Address of the HTTP API for programs: the Messages API and the job API. Unset: none.
        api_addr: Option<SocketAddr> = None, Kind::Optional(Rule::Address);
        /// Certificate chain of that address, PEM; with `api_tls_key_file`. Unset: plain HTTP.
        api_tls_cert_file: Option<PathBuf> = None, Kind::Optional(Rule::Path);
        /// Private key of the certificate, PEM.
        api_tls_key_file: Option<PathBuf> = None, Kind::Optional(Rule::Path);
        /// File of bearer tokens for the fleet as a whole, one a line after its role: `operator` or `viewer`. It is
        /// read again when it changes. Unset: tenants' keys alone are let in.
        api_tokens_file: Option<PathBuf> = None, Kind::Optional(Rule::Path);
        /// File with the seed of the operator's nkey: with it the HTTP API changes tenants and keys and sends dead letters
        /// again or deletes them, which a producer itself may not. Unset, and `nats.nkey_file` or `nats.creds_file` set: it
        /// refuses to.
        operator_nkey_file: Option<PathBuf> = None, Kind::Optional(Rule::Path);
        /// The same as a credentials file (JWT and seed). Not together with `operator_nkey_file`.
        operator_creds_file: Option<PathBuf> = None, Kind::Optional(Rule::Path);
        /// Calls of the HTTP API that may be open at the same time in one process.
        api_calls_max: u32 = 10_000, whole(1, 1_000_000);
        /// Of those, calls of one tenant.
        api_calls_per_tenant_max: u32 = 1_000, whole(1, 1_000_000);
        /// How long a call waits for its answer, milliseconds.
        api_wait_max_ms: u64 = 600_000, whole(1_000, DAY_MS);
        /// Time open calls of the HTTP API get to end after the first SIGTERM, milliseconds.
        drain_ms: u64 = 120_000, whole(0, 7_200_000);
        /// Origins whose pages may call the HTTP API from a browser, comma separated. Unset: none.
        api_origins: Option<String> = None, Kind::Optional(Rule::Url(&["http", "https"]));
        /// Largest job accepted, bytes.
        body_bytes_max: u64 = 32 * 1024 * 1024, whole(1_024, 256 * 1024 * 1024);
        /// Deepest nesting of a job's JSON; the parser itself stops at 128.
        nesting_max: u32 = 100, whole(1, 127);
        /// Time after which an unacknowledged submission is delivered again, milliseconds.
        ack_wait_ms: u64 = 30_000, whole(1_000, 3_600_000);
        /// Deliveries of one submission before it becomes a dead letter.
        max_deliver: u32 = 10, whole(1, 100);
        /// Time between two looks for large bodies that nothing names any more, milliseconds; 0 = never. Two looks that
        /// find the same one delete it.
        orphans_every_ms: u64 = 6 * HOUR_MS, whole(0, 30 * DAY_MS);
        /// Large bodies younger than this are let alone, milliseconds: whoever stores one names it within this time.
        orphans_after_ms: u64 = 2 * DAY_MS, whole(0, 40 * DAY_MS);
        /// NATS subjects on which submitters may have their jobs' ends told, comma separated; `*` is a token, `>` the rest.
        /// `<namespace>.callback.<tenant>.>` is always allowed to that tenant. Unset: no others.
        callback_subjects: Option<String> = None, Kind::Optional(Rule::Text);
        /// Beginnings of addresses to which such word may be posted, comma separated. Unset: nothing is posted.
        callback_urls: Option<String> = None, Kind::Optional(Rule::Url(&["http", "https"]));
        /// What such posts are signed with; needed with `callback_urls`. Secret.
        callback_secret: Option<Secret> = None, Kind::Optional(Rule::Secret);
        /// File that holds that secret. Not together with `callback_secret`.
        callback_secret_file: Option<PathBuf> = None, Kind::Optional(Rule::Path);
    }
}

described! {
    /// `[scheduler]`: deciding what runs next.
    pub struct Scheduler {
        /// Address of health checks, metrics and the autoscaling answer. Unset: no HTTP at all.
        http_addr: Option<SocketAddr> = None, Kind::Optional(Rule::Address);
        /// File of bearer tokens of those who may use the console at `http_addr`: one a line after its role, `operator` or
        /// `viewer`. It is read again when it changes. Unset: no console.
        console_tokens_file: Option<PathBuf> = None, Kind::Optional(Rule::Path);
        /// Where the console's links to traces lead, with `{trace}` in the place of a trace's id. Unset: no links.
        console_trace_url: Option<String> = None, Kind::Optional(Rule::Url(&["http", "https"]));
        /// File with the seed of the operator's nkey: with it the console changes tenants and sends dead letters again, which
        /// a scheduler itself may not. Unset, and `nats.nkey_file` or `nats.creds_file` set: it refuses to.
        operator_nkey_file: Option<PathBuf> = None, Kind::Optional(Rule::Path);
        /// The same as a credentials file (JWT and seed). Not together with `operator_nkey_file`.
        operator_creds_file: Option<PathBuf> = None, Kind::Optional(Rule::Path);
        /// Life of the leader's lease without renewal, milliseconds.
        lease_ttl_ms: u64 = 15_000, whole(1_000, 600_000);
        /// Time between two signs of life of the leader, milliseconds.
        heartbeat_ms: u64 = 500, whole(10, 60_000);
        /// Silence after which a standby takes over, milliseconds; at least twice `heartbeat_ms`.
        takeover_after_ms: u64 = 2_000, whole(20, 600_000);
        /// Life of a credit whose job has not been started, milliseconds.
        unstarted_ttl_ms: u64 = 5_000, whole(1_000, 600_000);
        /// Life of a credit between two renewals, milliseconds: a dead worker's jobs run elsewhere after this.
        credit_ttl_ms: u64 = 15_000, whole(1_000, 600_000);
        /// Cost units a tenant of weight 1 may spend per round of deficit round robin.
        quantum: f64 = 5.0, Kind::Leaf(Rule::Number { min: 0.1, max: 10_000.0 });
        /// Part of what is dispatched that critical work may take before the weights apply; 0 = plain weights.
        preference: f64 = 0.9, Kind::Leaf(Rule::Number { min: 0.0, max: 0.9 });
        /// Shares between priorities, over those that have work.
        weights: Weights = Weights::default(), Kind::Table(Weights::NODES);
        /// What tokens cost in the fair sharing between tenants.
        cost: Costs = Costs::default(), Kind::Table(Costs::NODES);
        /// When a tenant's standard work is served as batch.
        demotion: Demotion = Demotion::default(), Kind::Table(Demotion::NODES);
        /// When a pool whose calls fail is closed.
        breaker: Breaker = Breaker::default(), Kind::Table(Breaker::NODES);
        /// How many worker slots are asked for.
        autoscale: Autoscale = Autoscale::default(), Kind::Table(Autoscale::NODES);
        /// Jobs of one tenant that may run at the same time.
        tenant_in_flight_max: u32 = 1_000, whole(1, 1_000_000);
        /// Budget of input tokens per day (UTC) of tenants that have none of their own. Beyond half as much again, standard
        /// work is served as batch. Unset: no budget.
        daily_input_tokens: Option<u64> = Some(100_000), whole_or_unset(0, 1_000_000_000_000);
    }
}

described! {
    /// `[scheduler.autoscale]`: how many worker slots are asked for at `/v1/autoscale`.
    pub struct Autoscale {
        /// Time in which waiting critical jobs are to be run, milliseconds.
        drain_critical_ms: u64 = 30_000, whole(1_000, DAY_MS);
        /// The same for standard jobs.
        drain_standard_ms: u64 = 300_000, whole(1_000, DAY_MS);
        /// The same for batch jobs.
        drain_batch_ms: u64 = HOUR_MS, whole(1_000, 30 * DAY_MS);
        /// How long slots are kept for a pool that may not be called, milliseconds.
        hold_ms: u64 = 300_000, whole(0, DAY_MS);
        /// Slots that are always asked for.
        slots_min: u32 = 0, whole(0, 1_000_000);
        /// Slots beyond which no more are asked for.
        slots_max: Option<u64> = None, whole_or_unset(1, 1_000_000);
    }
}

described! {
    /// `[scheduler.weights]`: shares between priorities by cost; only their ratio matters.
    pub struct Weights {
        /// Weight of critical work.
        critical: u32 = 70, whole(1, 1_000);
        /// Weight of standard work.
        standard: u32 = 25, whole(1, 1_000);
        /// Weight of batch work.
        batch: u32 = 5, whole(1, 1_000);
    }
}

described! {
    /// `[scheduler.cost]`: what a token costs; a cost unit is 1 000 weighted tokens.
    pub struct Costs {
        /// Weight of an input token that does not come from the cache.
        input: u64 = 1, whole(0, 1_000);
        /// Weight of an output token.
        output: u64 = 5, whole(0, 1_000);
    }
}

described! {
    /// `[scheduler.demotion]`: when a tenant's standard work is served as batch.
    pub struct Demotion {
        /// Rate limits that a tenant causes within `window_ms` and that demote it.
        throttles: u32 = 5, whole(1, 1_000);
        /// Time that is looked back on, milliseconds.
        window_ms: u64 = 60_000, whole(1_000, 3_600_000);
        /// Part of the daily budget of input tokens that demotes when it is passed, percent.
        budget_percent: u64 = 150, whole(1, 10_000);
        /// How long a demotion lasts, milliseconds.
        length_ms: u64 = 300_000, whole(1_000, 86_400_000);
    }
}

described! {
    /// `[scheduler.breaker]`: when a pool whose calls fail is closed, and for how long.
    pub struct Breaker {
        /// Time that is looked back on, milliseconds.
        window_ms: u64 = 60_000, whole(1_000, 3_600_000);
        /// Calls without which nothing is decided.
        samples_min: u32 = 10, whole(1, 100_000);
        /// Failures among them that close the pool, percent.
        failures_percent: u32 = 50, whole(1, 100);
        /// How long it stays closed before one call tries it, milliseconds.
        open_ms: u64 = 90_000, whole(1_000, 3_600_000);
    }
}

described! {
    /// `[worker]`: running jobs.
    pub struct Worker {
        /// Jobs run at the same time by one worker.
        slots: u32 = 64, whole(1, 10_000);
        /// Address of health checks and metrics. Unset: no HTTP at all.
        http_addr: Option<SocketAddr> = None, Kind::Optional(Rule::Address);
        /// Time running jobs get to finish after the first SIGTERM, milliseconds.
        drain_ms: u64 = 120_000, whole(0, 7_200_000);
        /// Real tries at Claude per job, the first one included.
        max_attempts: u32 = 4, whole(1, 20);
        /// Hour of the next day, UTC, at which jobs run that were put off because everything was overloaded.
        defer_hour: u32 = 3, whole(0, 23);
        /// Time an owner has to say whether a job may be put off, milliseconds; no answer is no.
        defer_answer_ms: u64 = HOUR_MS, whole(1_000, DAY_MS);
        /// Time between two renewals of a running job's credit, milliseconds.
        renew_ms: u64 = 5_000, whole(100, 300_000);
    }
}

described! {
    /// `[limits]`: what the organisation may send upstream.
    pub struct Limits {
        /// Named set of limits that `pools` starts from, such as the tier of the organisation.
        preset: String = "start".to_owned(), Kind::Leaf(Rule::Text);
        /// Limits per pool (models that share one upstream limit); what is not set comes from `preset`.
        pools: BTreeMap<String, PoolLimits> = BTreeMap::new(), Kind::Map(PoolLimits::NODES);
    }
}

described! {
    /// `[limits.pools.<pool>]`: limits of one pool.
    pub struct PoolLimits {
        /// Requests per minute.
        requests_per_minute: Option<u64> = None, whole_or_unset(1, 1_000_000_000);
        /// Input tokens per minute.
        input_tokens_per_minute: Option<u64> = None, whole_or_unset(1, 1_000_000_000_000);
        /// Output tokens per minute.
        output_tokens_per_minute: Option<u64> = None, whole_or_unset(1, 1_000_000_000_000);
    }
}

described! {
    /// `[models.<model id>]`: a model; what is not set comes from the built-in table.
    pub struct Model {
        /// Pool whose limits this model uses.
        pool: Option<String> = None, Kind::Optional(Rule::Text);
        /// Largest context, tokens.
        context_tokens: Option<u64> = None, whole_or_unset(1, 100_000_000);
        /// Longest answer, tokens.
        output_tokens_max: Option<u64> = None, whole_or_unset(1, 100_000_000);
        /// Characters per token, for estimates before the call.
        chars_per_token: Option<f64> = None, Kind::Optional(Rule::Number { min: 0.5, max: 20.0 });
        /// Tokens of an image of the largest size that is not scaled down.
        image_tokens: Option<u64> = None, whole_or_unset(1, 1_000_000);
        /// Smaller model that may answer while this one is overloaded; `none` for no such model.
        fallback: Option<String> = None, Kind::Optional(Rule::Text);
        /// Values of `thinking.type` it takes, comma separated.
        thinking: Option<String> = None, Kind::Optional(Rule::Text);
        /// What a request without `thinking` means.
        thinking_default: Option<String> = None, Kind::Optional(Rule::Choice(&["on", "off"]));
        /// Whether it takes `output_config.effort`.
        effort: Option<String> = None, Kind::Optional(Rule::Choice(YES_NO));
        /// Whether it takes `tool_choice` `any` and `tool`.
        forced_tools: Option<String> = None, Kind::Optional(Rule::Choice(YES_NO));
        /// Which of `temperature`, `top_p` and `top_k` it takes.
        sampling: Option<String> = None, Kind::Optional(Rule::Choice(&["any", "defaults_only", "one_default_only"]));
        /// Whether the last message may be the beginning of the answer.
        prefill: Option<String> = None, Kind::Optional(Rule::Choice(&["no", "without_thinking"]));
        /// Whether it takes `output_config.format`.
        structured_output: Option<String> = None, Kind::Optional(Rule::Choice(YES_NO));
        /// Where it is in its life; the upstream's own word counts for more, once it was heard.
        lifecycle: Option<String> = None, Kind::Optional(Rule::Choice(&["active", "deprecated", "retired"]));
    }
}

described! {
    /// `[prices.<any name>]`: a price, in US dollars per million tokens. Entries of the same model, speed and date are the
    /// tiers of one price.
    pub struct Price {
        /// Model id.
        model: Option<String> = None, Kind::Optional(Rule::Text);
        /// First day on which it holds (UTC), such as 2026-12-01; from the beginning if not set.
        valid_from: Option<String> = None, Kind::Optional(Rule::Text);
        /// Holds for prompts of more tokens than this.
        prompt_tokens_above: u64 = 0, whole(0, 100_000_000);
        /// Price of input.
        input: Option<f64> = None, Kind::Optional(PRICE);
        /// Price of output.
        output: Option<f64> = None, Kind::Optional(PRICE);
        /// Price of input written to the cache for five minutes; 1.25 times that of input if not set.
        cache_write_5m: Option<f64> = None, Kind::Optional(PRICE);
        /// Price of input written to the cache for an hour; twice that of input if not set.
        cache_write_1h: Option<f64> = None, Kind::Optional(PRICE);
        /// Price of input read from the cache; a tenth of that of input if not set.
        cache_read: Option<f64> = None, Kind::Optional(PRICE);
        /// Surcharge for inference in the United States alone, percent.
        us_surcharge_percent: u64 = 10, whole(0, 1_000);
    }
}

const PRICE: Rule = Rule::Number {
    min: 0.0,
    max: 10_000.0,
};

const YES_NO: &[&str] = &["yes", "no"];

described! {
    /// `[fallback]`: which work a smaller model may do while its own is overloaded.
    pub struct Fallback {
        /// Kinds of jobs, comma separated.
        kinds: String = fairlane_core::fallback::KINDS.join(","), Kind::Leaf(Rule::Text);
    }
}

described! {
    /// `[kinds.<kind>]`: a kind of job.
    pub struct JobKind {
        /// What becomes of a job that does not fit into its model's context: `reject` makes a dead letter of it,
        /// `truncate` cuts its text until it fits, `summarise` has its text summarised first, in parts.
        oversize: String = "reject".to_owned(), Kind::Leaf(Rule::Choice(&["reject", "truncate", "summarise"]));
        /// Which text may be cut or summarised, in this order, comma separated: `last_user_message`, `messages`, `system`.
        oversize_fields: String = "last_user_message".to_owned(), Kind::Leaf(Rule::Text);
    }
}

described! {
    /// `[tenants.<tenant id>]`: a tenant.
    pub struct Tenant {
        /// Plan, which decides the weight unless `weight` is set.
        plan: Option<String> = None, Kind::Optional(Rule::Text);
        /// Share relative to other tenants of the same priority.
        weight: Option<f64> = None, Kind::Optional(Rule::Number { min: 0.01, max: 1_000.0 });
        /// Budget of input tokens per day (UTC).
        daily_input_tokens: Option<u64> = None, whole_or_unset(0, 1_000_000_000_000);
    }
}

described! {
    /// `[telemetry]`: logs and traces.
    pub struct Telemetry {
        /// Log filter in tracing's syntax: a level, or a list such as `info,fairlane_worker=debug`.
        log: String = "info".to_owned(), Kind::Leaf(Rule::Text);
        /// `auto` is text on a terminal and JSON otherwise.
        log_format: LogFormat = LogFormat::Auto, Kind::Leaf(Rule::Choice(&["auto", "text", "json"]));
        /// OTLP collector for traces, such as http://jaeger:4318. Unset: no traces are sent. The standard variables
        /// OTEL_EXPORTER_OTLP_ENDPOINT, _PROTOCOL and _HEADERS, OTEL_TRACES_SAMPLER and OTEL_TRACES_SAMPLER_ARG are
        /// read too; FAIRLANE__TELEMETRY__OTLP_ENDPOINT and so on win over them.
        otlp_endpoint: Option<String> = None, Kind::Optional(Rule::Url(&["http", "https"]));
        /// How the collector is spoken to: protobuf over HTTP (as a rule at port 4318), or gRPC (4317).
        otlp_protocol: OtlpProtocol = OtlpProtocol::Http, Kind::Leaf(Rule::Choice(&["http/protobuf", "grpc"]));
        /// Headers for the collector, `name=value` comma separated, values percent-encoded. Secret.
        otlp_headers: Option<Secret> = None, Kind::Optional(Rule::Secret);
        /// OTLP collector for metrics, such as http://collector:4318; spoken to like the one for traces. Unset: none are
        /// sent, they are there to be scraped.
        otlp_metrics_endpoint: Option<String> = None, Kind::Optional(Rule::Url(&["http", "https"]));
        /// Time between two pushes of the metrics, milliseconds.
        otlp_metrics_every_ms: u64 = 60_000, whole(100, HOUR_MS);
        /// Which traces are sent, in the words of OTEL_TRACES_SAMPLER. `parentbased_...` heeds the publisher's choice.
        sampler: Sampler = Sampler::ParentBasedRatio, Kind::Leaf(Rule::Choice(Sampler::WORDS));
        /// Part of the traces that is sent, for the samplers with a ratio.
        sampler_arg: f64 = 1.0, Kind::Leaf(Rule::Number { min: 0.0, max: 1.0 });
        /// Whether traces of jobs that fail, or fail in passing, are sent although they were not chosen: `yes` or `no`.
        keep_failed: String = "yes".to_owned(), Kind::Leaf(Rule::Choice(YES_NO));
        /// Traces of critical jobs that take longer, from acceptance to outcome, are sent although they were not chosen,
        /// milliseconds; 0 for none.
        keep_slow_critical_ms: u64 = 2_000, whole(0, 365 * DAY_MS);
        /// The same for standard jobs.
        keep_slow_standard_ms: u64 = 6_000, whole(0, 365 * DAY_MS);
        /// The same for batch jobs.
        keep_slow_batch_ms: u64 = 120_000, whole(0, 365 * DAY_MS);
        /// Whether prompts and answers stand in the spans of calls: `yes` or `no`. Whoever sees traces sees them then.
        content: String = "no".to_owned(), Kind::Leaf(Rule::Choice(YES_NO));
        /// Of each prompt and answer, this many characters at most.
        content_chars_max: u64 = 4_000, whole(1, 1_000_000);
    }
}

described! {
    /// `[webhook]`: where the leader tells people of breakers, long pauses, leaders that change, and new sorts of dead letters.
    pub struct Webhook {
        /// Address that takes messages in Slack's format. Secret, because whoever has it can write there.
        url: Option<Secret> = None, Kind::Optional(Rule::Secret);
        /// File that holds the address; read again for each message. Not together with `url`.
        url_file: Option<PathBuf> = None, Kind::Optional(Rule::Path);
    }
}

described! {
    /// `[results]`: how long outcomes are kept.
    pub struct Results {
        /// Job records after their end, milliseconds.
        keep_ms: u64 = DAY_MS, whole(60_000, 365 * DAY_MS);
        /// Idempotency keys after their last use, milliseconds.
        idempotency_ms: u64 = DAY_MS, whole(60_000, 365 * DAY_MS);
        /// Dead letters, milliseconds.
        dead_letters_keep_ms: u64 = 30 * DAY_MS, whole(60_000, 3_650 * DAY_MS);
    }
}
