//! Every way a call can end, crossed with every place where a worker can die: the real steps against a
//! real server and the simulator, whose log says how often was called. What has to come out is
//! worked out beside it, from the rules as a person would state them and not from the code under
//! test.

use std::collections::BTreeMap;

use fairlane_core::{Cost, JobId, JobSeq, ModelId, PoolId, Priority, TenantId, Term, Tokens};
use fairlane_nats::lease::Content;
use fairlane_nats::{HeaderMap, IndexEvent};
use fairlane_runtime::config::{Secret, Settings};
use fairlane_sim::{Sim, SimConfig, SimHandle};
use fairlane_support::{TestNats, eventually};
use fairlane_wire::lease::{Lease, Settlement};
use fairlane_wire::{LedgerEntry, Namespace};
use futures::{StreamExt, stream};

use super::*;

const MODEL: &str = "claude-haiku-4-5";
const ATTEMPTS_MAX: u32 = 4;
const PATIENCE: Duration = Duration::from_secs(60);
const TTL: Duration = Duration::from_secs(60);

/// What the rules say about a call that ended in some way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// The answer is the result.
    Result,
    /// Another try, as long as there are any.
    Again,
    /// Another try that costs none.
    Free,
    /// One more try in the job's life.
    OnceMore,
    /// One more try, with more room.
    MoreRoom,
    Dead,
    /// Another call that goes on from this one.
    GoesOn,
}

use Rule::{Again, Dead, Free, GoesOn, MoreRoom, OnceMore, Result as Good};

/// What a call ends as, as the simulator is told, and the rule for it.
const ENDINGS: &[(&str, Rule)] = &[
    ("", Good),
    ("stop_sequence", Good),
    ("status=400", Dead),
    (r#"status=400 message="prompt is too long: 9 > 8""#, Dead),
    (
        r#"status=400 message="You have reached your specified API usage limits""#,
        Free,
    ),
    (
        r#"status=400 message="Your credit balance is too low""#,
        Free,
    ),
    ("status=400 code=organization_on_hold", Free),
    ("status=401", Free),
    ("status=402", Free),
    ("status=403", Free),
    ("status=404", Dead),
    (r#"status=404 message="model: claude-x""#, Free),
    ("status=408", Again),
    ("status=409", Again),
    ("status=413", Dead),
    ("status=418", Dead),
    ("status=418 type=api_error", Again),
    ("status=422", Dead),
    ("status=429 retry_after=16", Free),
    ("status=429 no_retry_after", Free),
    ("status=429 code=ramp_limit_exceeded", Free),
    (
        "status=429 no_retry_after code=enforced_spend_limit_reached",
        Free,
    ),
    (
        "status=429 no_retry_after code=contract_spend_limit_reached",
        Free,
    ),
    (
        r#"status=429 message="Number of concurrent connections has exceeded your rate limit""#,
        Free,
    ),
    (
        "status=429 type=billing_error should_retry=false retry_after=2000000",
        Free,
    ),
    ("status=499", OnceMore),
    ("status=500", Again),
    ("status=502", Again),
    ("status=503", Again),
    ("status=504", Again),
    ("status=529", Again),
    ("status=529 retry_after=3", Again),
    ("error_event", Again),
    ("cut", OnceMore),
    ("reset", OnceMore),
    ("lost_answer", OnceMore),
    ("hang", OnceMore),
    ("hang=stream", OnceMore),
    ("hang=silent", OnceMore),
    ("refusal", Dead),
    ("refusal=bio out=5", Dead),
    ("context_exceeded", Dead),
    ("max_tokens", MoreRoom),
    ("pause_turn", GoesOn),
];

/// Where a worker dies, in the first delivery that gets there.
const CRASHES: [Option<Point>; 6] = [
    None,
    Some(Point::BeforeCall),
    Some(Point::Answered),
    Some(Point::Recorded),
    Some(Point::Buried),
    Some(Point::Deleted),
];

#[derive(Debug, Clone)]
struct Case {
    id: String,
    directive: String,
    rule: Rule,
    /// Only the first call ends so; the others are answered.
    once: bool,
    crash: Option<Point>,
    model: &'static str,
    /// Characters of text before the directive.
    filler: usize,
}

/// What has to come out.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    phase: Phase,
    /// Calls in the upstream's log.
    calls: u32,
    attempts: u32,
    letters: u32,
    /// Calls in the ledger: those that somebody lived to tell of.
    booked: u32,
}

impl Case {
    /// Every way to end, at the first call only and at every call, where that comes to an end at all.
    fn all() -> Vec<Self> {
        let mut cases = Vec::new();
        for (directive, rule) in ENDINGS {
            for crash in CRASHES {
                let first_only = once(directive);
                let always = (*rule != Free).then(|| (*directive).to_owned());
                for (directive, once) in [(first_only, true), (always, false)] {
                    let Some(directive) = directive else { continue };
                    cases.push(Self {
                        id: format!("c{}", cases.len()),
                        directive,
                        rule: *rule,
                        once,
                        crash,
                        model: MODEL,
                        filler: 0,
                    });
                }
            }
        }
        cases
    }

    fn outcome(&self) -> Outcome {
        let mut world = Outcome {
            phase: Phase::Queued,
            calls: 0,
            attempts: 0,
            letters: 0,
            booked: 0,
        };
        let (mut unknown, mut roomier, mut crash) = (0, false, self.crash);
        loop {
            if crash.take_if(|point| *point == Point::BeforeCall).is_some() {
                continue;
            }
            world.calls += 1;
            let rule = if self.once && world.calls > 1 {
                Good
            } else {
                self.rule
            };
            if crash.take_if(|point| *point == Point::Answered).is_some() {
                continue;
            }
            if rule == GoesOn {
                world.calls += 1;
            }
            // A crash at any later point changes nothing that counts.
            world.booked += 1;
            world.attempts += u32::from(rule != Free);
            unknown += u32::from(rule == OnceMore);
            let phase = match rule {
                Good | GoesOn => Some(Phase::Done),
                Dead => Some(Phase::Failed),
                Again => (world.attempts >= ATTEMPTS_MAX).then_some(Phase::Failed),
                Free => None,
                OnceMore => (unknown > 1).then_some(Phase::Failed),
                MoreRoom => std::mem::replace(&mut roomier, true).then_some(Phase::Failed),
            };
            if let Some(phase) = phase {
                world.phase = phase;
                world.letters = u32::from(phase == Phase::Failed);
                return world;
            }
        }
    }
}

/// The directive for the first call only, if there is one.
fn once(directive: &str) -> Option<String> {
    let (first, rest) = directive.split_once(' ').unwrap_or((directive, ""));
    let trouble = match first {
        "cut" | "reset" | "lost_answer" | "error_event" | "hang" => first,
        "hang=stream" => "hang_stream",
        "hang=silent" => "hang_silent",
        other => other.strip_prefix("status=")?,
    };
    Some(format!("once={trouble} {rest}"))
}

struct Matrix {
    server: TestNats,
    sim: SimHandle,
    options: Options,
    claude: Client,
}

impl Matrix {
    async fn start() -> Self {
        let server = TestNats::start().await;
        let sim = Sim::start(SimConfig::instant()).await.unwrap();
        let mut settings = Settings::default();
        settings.claude.api_key = Some(Secret::new("sk-test"));
        settings.claude.base_url = sim.url();
        settings.claude.progress_timeout_ms = 3_000;
        settings.claude.first_byte_timeout_ms = 3_000;
        settings.worker.max_attempts = ATTEMPTS_MAX;
        let options = Options::from_settings(&settings).unwrap();
        let claude = Client::new(options.claude.clone()).unwrap();
        Self {
            server,
            sim,
            options,
            claude,
        }
    }

    fn context(&self, crash: Option<Point>) -> Arc<Context> {
        let mut context = Context::new(
            self.server.nats.clone(),
            self.options.clone(),
            self.claude.clone(),
            Metrics::new("worker"),
        );
        context.crash = crash;
        Arc::new(context)
    }

    async fn publish(&self, case: &Case) -> JobSeq {
        let filler = "x".repeat(case.filler);
        let prompt = format!("{filler} {} [[sim:{}]]", case.id, case.directive);
        let body = serde_json::json!({"id": case.id, "origin": "batch_job", "kind": "tagging",
            "on_overload": {"defer": "no"}, "request": {
            "model": case.model, "max_tokens": 64, "stop_sequences": ["X"],
            "messages": [{"role": "user", "content": prompt}]}});
        let mut headers = HeaderMap::new();
        for (name, value) in [
            (fairlane_wire::header::JOB, case.id.as_str()),
            (fairlane_wire::header::KEY, case.id.as_str()),
            (fairlane_wire::header::KIND, "tagging"),
            (fairlane_wire::header::MODEL, case.model),
            (fairlane_wire::header::POOL, "haiku-4.5"),
            (fairlane_wire::header::INPUT_TOKENS, "10"),
            (fairlane_wire::header::OUTPUT_TOKENS, "10"),
            (fairlane_wire::header::ACCEPTED, "1"),
        ] {
            headers.insert(name, value);
        }
        let nats = &self.server.nats;
        let subject = nats.names.job_subject(Priority::Batch, &tenant());
        let body = body.to_string().into();
        let stored = nats.jobs().publish(&subject, None, headers, body).await;
        let seq = stored.unwrap().seq;
        let job = JobId::parse(&case.id).unwrap();
        let record = JobRecord {
            sequence: Some(seq),
            ..JobRecord::new(tenant(), job, Phase::Queued, 1)
        };
        let records = Records::new(nats, Duration::from_secs(600));
        records.save(&record, Revision::ABSENT).await.unwrap();
        JobSeq(seq)
    }

    /// As the leader does: after a delivery that ended, or one whose lease has run out.
    async fn grant(&self, context: &Context, case: &Case, seq: JobSeq, delivery: u32) -> Grant {
        let credit = Credit {
            seq,
            tenant: tenant(),
            job: JobId::parse(&case.id).unwrap(),
            priority: Priority::Batch,
            model: ModelId::parse(case.model).unwrap(),
            pool: PoolId::parse("haiku-4.5").unwrap(),
            worker: context.worker.clone(),
            delivery,
            tokens: Tokens::default(),
            cost: Cost(1_000),
            term: Term(1),
            granted_ms: 1,
            probe: false,
        };
        let nats = &self.server.nats;
        let lease = serde_json::to_vec(&Lease::Granted(credit.clone())).unwrap();
        let bucket = nats.bucket(&nats.names.credits_bucket());
        let key = Namespace::lease_key(seq);
        let revision = bucket.put(&key, lease.into(), Some(TTL)).await.unwrap();
        Grant {
            credit,
            revision: revision.0,
            ttl_ms: 60_000,
        }
    }

    /// Runs a job to its end, however many deliveries that takes.
    async fn run(&self, case: &Case) -> JobRecord {
        let seq = self.publish(case).await;
        let mut crash = case.crash;
        for delivery in 1..=2 * ATTEMPTS_MAX + 2 {
            let context = self.context(crash);
            let grant = self.grant(&context, case, seq, delivery).await;
            let run = Box::pin(super::run(
                context.clone(),
                grant,
                None,
                CancellationToken::new(),
            ));
            tokio::select! {
                () = run => {}
                () = context.crashed.notified() => {
                    crash = None;
                    continue;
                }
            }
            let settlement = self.settlement(seq).await;
            assert_eq!(
                settlement.credit.delivery, delivery,
                "settled once: {case:?}"
            );
            match settlement.outcome {
                DeliveryOutcome::Retry => {}
                DeliveryOutcome::Done | DeliveryOutcome::Dead | DeliveryOutcome::Gone => {
                    return self.record_of(case, seq).await;
                }
                DeliveryOutcome::Returned => panic!("{case:?}"),
            }
        }
        panic!("it does not end: {case:?}");
    }

    async fn settlement(&self, seq: JobSeq) -> Settlement {
        let nats = &self.server.nats;
        let bucket = nats.bucket(&nats.names.credits_bucket());
        let entry = bucket.get(&Namespace::lease_key(seq)).await.unwrap();
        match entry.unwrap().content {
            Content::Deleted(body) => serde_json::from_slice(&body).unwrap(),
            Content::Live(body) => match serde_json::from_slice(&body).unwrap() {
                Lease::Parked(parked) => parked.settlement,
                other => panic!("not settled: {other:?}"),
            },
            Content::Expired => panic!("nobody settled it"),
        }
    }

    async fn record_of(&self, case: &Case, seq: JobSeq) -> JobRecord {
        let nats = &self.server.nats;
        let stream = nats.names.jobs_stream();
        let job = nats.jobs().get(&stream, seq.0).await.unwrap();
        assert!(job.is_none(), "the job is gone: {case:?}");
        let records = Records::new(nats, Duration::from_secs(600));
        let job = JobId::parse(&case.id).unwrap();
        let slot = records.get(&tenant(), &job).await.unwrap();
        slot.record.unwrap()
    }

    /// How often each job comes up in a stream.
    async fn count(&self, stream: &str, job: impl Fn(&[u8]) -> String) -> BTreeMap<String, u32> {
        let nats = &self.server.nats;
        let mut index = nats.index(stream, ">");
        let mut counts = BTreeMap::new();
        while let Some(event) = index.next().await {
            match event {
                IndexEvent::Item(item) => {
                    let message = nats.jobs().get(stream, item.seq).await.unwrap().unwrap();
                    *counts.entry(job(&message.payload)).or_default() += 1;
                }
                IndexEvent::Current => break,
                IndexEvent::Stale | IndexEvent::Reset => {}
            }
        }
        counts
    }

    async fn letters(&self) -> BTreeMap<String, u32> {
        let stream = self.server.nats.names.dlq_stream();
        // A letter's body is the job's own.
        let id = |body: &[u8]| {
            let body: serde_json::Value = serde_json::from_slice(body).unwrap();
            body["id"].as_str().unwrap().to_owned()
        };
        self.count(&stream, id).await
    }

    async fn bookings(&self) -> BTreeMap<String, u32> {
        let stream = self.server.nats.names.ledger_stream();
        let id = |body: &[u8]| {
            let entry: LedgerEntry = serde_json::from_slice(body).unwrap();
            entry.job.to_string()
        };
        self.count(&stream, id).await
    }

    /// What the upstream bills for a job, in nano-dollars.
    fn billed(&self, id: &str) -> u64 {
        let log = self.sim.log();
        let of_job = log.iter().filter(|call| call.job.as_deref() == Some(id));
        of_job.map(fairlane_sim::CallRecord::cost_nano_usd).sum()
    }

    fn calls(&self) -> BTreeMap<String, u32> {
        let mut counts = BTreeMap::new();
        for call in self.sim.log() {
            let job = call.job.as_deref().unwrap_or_default().to_owned();
            *counts.entry(job).or_default() += 1;
        }
        counts
    }
}

fn tenant() -> TenantId {
    TenantId::parse("acme").unwrap()
}

#[tokio::test]
async fn whatever_a_call_ends_as_and_wherever_a_worker_dies_there_is_one_outcome() {
    let matrix = Matrix::start().await;
    let cases = Case::all();
    assert!(cases.len() > 300, "{}", cases.len());
    let records: BTreeMap<String, JobRecord> = stream::iter(&cases)
        .map(|case| async { (case.id.clone(), matrix.run(case).await) })
        .buffer_unordered(32)
        .collect()
        .await;
    let (letters, bookings, calls) = (
        matrix.letters().await,
        matrix.bookings().await,
        matrix.calls(),
    );
    let mut wrong = Vec::new();
    for case in &cases {
        let record = &records[&case.id];
        let of = |counts: &BTreeMap<String, u32>| counts.get(&case.id).copied().unwrap_or(0);
        let found = Outcome {
            phase: record.phase,
            calls: of(&calls),
            attempts: record.attempts,
            letters: of(&letters),
            booked: of(&bookings),
        };
        let wanted = case.outcome();
        if found != wanted {
            wrong.push(format!("{case:?}\n  found  {found:?}\n  wanted {wanted:?}"));
        }
        let is_certain = matches!(case.rule, Good | GoesOn | MoreRoom);
        if case.crash.is_none() && is_certain {
            assert_eq!(nano_usd(record), matrix.billed(&case.id), "{case:?}");
        }
        assert_eq!(record.result.is_some(), record.phase == Phase::Done);
        assert_eq!(record.failure.is_some(), record.phase == Phase::Failed);
    }
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a few dollars"
)]
fn nano_usd(record: &JobRecord) -> u64 {
    (record.cost_usd.unwrap() * 1e9).round() as u64
}

#[tokio::test]
async fn each_turn_of_a_paused_answer_costs_what_its_own_prompt_does() {
    let matrix = Matrix::start().await;
    // Two turns of 60 000 tokens: only together they are above the size that costs more.
    let case = Case {
        id: "turns".to_owned(),
        directive: "pause_turn".to_owned(),
        rule: GoesOn,
        once: false,
        crash: None,
        model: "claude-haiku-5-5",
        filler: 150_000,
    };
    let record = matrix.run(&case).await;
    assert_eq!(matrix.calls()["turns"], 2);
    assert!(record.usage.unwrap().input_tokens > 110_000);
    assert_eq!(nano_usd(&record), matrix.billed("turns"));
}

#[tokio::test]
async fn a_worker_that_dies_during_the_call_is_followed_by_one_more_call() {
    let matrix = Matrix::start().await;
    for (id, trouble) in [("h0", "hang"), ("h1", "hang_stream"), ("h2", "hang_silent")] {
        let case = Case {
            id: id.to_owned(),
            directive: format!("once={trouble}"),
            rule: Good,
            once: true,
            crash: None,
            model: MODEL,
            filler: 0,
        };
        let seq = matrix.publish(&case).await;
        let context = matrix.context(None);
        let grant = matrix.grant(&context, &case, seq, 1).await;
        let run = Box::pin(super::run(context, grant, None, CancellationToken::new()));
        let under_way = eventually(PATIENCE, "a call", || async {
            (matrix.sim.stats().in_flight == 1)
                .then_some(())
                .ok_or("none")
        });
        tokio::select! {
            () = run => panic!("it hangs"),
            () = under_way => {}
        }
        eventually(PATIENCE, "the upstream to notice", || async {
            (matrix.sim.stats().in_flight == 0)
                .then_some(())
                .ok_or("not yet")
        })
        .await;
        let context = matrix.context(None);
        let grant = matrix.grant(&context, &case, seq, 2).await;
        Box::pin(super::run(context, grant, None, CancellationToken::new())).await;
        let record = matrix.record_of(&case, seq).await;
        assert_eq!((record.phase, record.attempts), (Phase::Done, 1));
        assert_eq!(matrix.calls()[id], 2, "{trouble}");
    }
}
