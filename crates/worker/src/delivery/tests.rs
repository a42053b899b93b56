//! What must hold whatever happens around a delivery, against a real server.

use fairlane_claude::{Timings, UsageBasis};
use fairlane_core::attempt::Retry;
use fairlane_core::failure::{Cancelled, StopReason};
use fairlane_core::price::Terms;
use fairlane_core::{Cost, JobId, JobSeq, PoolId, Priority, TenantId, Term, Tokens};
use fairlane_nats::{Bucket, HeaderMap};
use fairlane_runtime::config::{Secret, Settings};
use fairlane_support::TestNats;
use fairlane_wire::Namespace;
use fairlane_wire::lease::Lease;

use super::*;

const TTL: Duration = Duration::from_secs(60);

/// A job in the stream, and a credit for it that was started.
struct World {
    server: TestNats,
    credits: Bucket,
    delivery: Delivery,
    message: StoredMessage,
}

impl World {
    async fn new() -> Self {
        let server = TestNats::start().await;
        let nats = server.nats.clone();
        let mut settings = Settings::default();
        settings.claude.api_key = Some(Secret::new("sk-test"));
        let options = Options::from_settings(&settings).unwrap();
        let claude = Client::new(options.claude.clone()).unwrap();
        let metrics = Metrics::new("worker");
        let context = Arc::new(Context::new(nats.clone(), options, claude, metrics));

        let (tenant, job) = (tenant(), JobId::parse("a").unwrap());
        let body = r#"{"id":"a","origin":"batch_job","kind":"tagging","model":"claude-haiku-4-5","prompt":"hi"}"#;
        let mut headers = HeaderMap::new();
        for (name, value) in [
            (fairlane_wire::header::JOB, "a"),
            (fairlane_wire::header::KEY, "a"),
            (fairlane_wire::header::KIND, "tagging"),
            (fairlane_wire::header::MODEL, "claude-haiku-4-5"),
            (fairlane_wire::header::POOL, "haiku-4.5"),
            (fairlane_wire::header::INPUT_TOKENS, "10"),
            (fairlane_wire::header::OUTPUT_TOKENS, "10"),
            (fairlane_wire::header::ACCEPTED, "1"),
        ] {
            headers.insert(name, value);
        }
        let subject = nats.names.job_subject(Priority::Batch, &tenant);
        let jobs = nats.jobs();
        let stored = jobs.publish(&subject, None, headers, body.into()).await;
        let seq = stored.unwrap().seq;
        let stream = nats.names.jobs_stream();
        let message = jobs.get(&stream, seq).await.unwrap().unwrap();

        let credit = Credit {
            seq: JobSeq(seq),
            tenant,
            job,
            priority: Priority::Batch,
            model: fairlane_core::ModelId::parse("claude-haiku-4-5").unwrap(),
            pool: PoolId::parse("haiku-4.5").unwrap(),
            worker: context.worker.clone(),
            delivery: 1,
            tokens: Tokens::default(),
            cost: Cost(1_000),
            term: Term(1),
            granted_ms: 1,
            probe: false,
        };
        let credits = nats.bucket(&nats.names.credits_bucket());
        let lease = serde_json::to_vec(&Lease::Granted(credit.clone())).unwrap();
        let key = Namespace::lease_key(credit.seq);
        let granted = credits.put(&key, lease.into(), Some(TTL)).await.unwrap();
        let lease = Held::start(credits.clone(), credit, granted, TTL).await;
        let delivery = Delivery {
            context,
            lease: lease.unwrap(),
            stop: CancellationToken::new(),
            off: CancellationToken::new(),
            traced: Traced::default(),
        };
        Self {
            server,
            credits,
            delivery,
            message,
        }
    }

    fn slot(record: Option<JobRecord>) -> Slot {
        Slot {
            record,
            ..Slot::EMPTY
        }
    }

    async fn prepare(&mut self, record: Option<JobRecord>) -> Option<Task> {
        let message = self.message.clone();
        self.delivery.prepare(message, Self::slot(record)).await
    }

    async fn job_is_there(&self) -> bool {
        let stream = self.server.nats.names.jobs_stream();
        let jobs = self.server.nats.jobs();
        let job = jobs.get(&stream, self.message.seq).await;
        job.unwrap().is_some()
    }

    async fn letters(&self) -> u64 {
        let stream = self.server.nats.names.dlq_stream();
        let mut stream = self.server.nats.jetstream.get_stream(stream).await.unwrap();
        stream.info().await.unwrap().state.messages
    }

    async fn callbacks(&self) -> u64 {
        let stream = self.server.nats.names.callbacks_stream();
        let mut stream = self.server.nats.jetstream.get_stream(stream).await.unwrap();
        stream.info().await.unwrap().state.messages
    }

    /// Records cannot be stored any more, and the process is told to stop.
    async fn cannot_save_and_must_stop(&self) {
        let stream = format!("KV_{}", self.server.nats.names.status_bucket());
        let jetstream = &self.server.nats.jetstream;
        jetstream.delete_stream(stream).await.unwrap();
        self.delivery.stop.cancel();
    }
}

fn tenant() -> TenantId {
    TenantId::parse("acme").unwrap()
}

fn call(ending: Ending) -> Call {
    let report = CallReport {
        message: Some(serde_json::json!({"content": []})),
        usage: Usage::default(),
        usage_basis: UsageBasis::Final,
        terms: Terms::default(),
        model: None,
        request_id: None,
        status: Some(200),
        limits: fairlane_claude::Limits::default(),
        timings: Timings::default(),
        error_message: None,
        ending,
    };
    Call {
        model: fairlane_core::ModelId::parse("claude-haiku-4-5").unwrap(),
        by_fallback: false,
        waited_ms: None,
        verdict: classify(&report.ending),
        report,
        asked: books::Asked {
            priority: fairlane_core::Priority::Batch,
            max_tokens: 64,
        },
        cost: None,
    }
}

#[tokio::test]
async fn a_job_whose_result_cannot_be_stored_stays_when_the_process_must_stop() {
    let mut world = World::new().await;
    let task = world.prepare(None).await.unwrap();
    world.cannot_save_and_must_stop().await;
    let call = call(Ending::Message(StopReason::EndTurn));
    Box::pin(world.delivery.keep(task, call)).await;
    assert!(world.job_is_there().await);
}

#[tokio::test]
async fn a_job_whose_retry_cannot_be_recorded_stays_when_the_process_must_stop() {
    let mut world = World::new().await;
    let task = world.prepare(None).await.unwrap();
    world.cannot_save_and_must_stop().await;
    let retry = Retry {
        after_ms: 0,
        history: books::history(&task.job.record),
        max_tokens: None,
        hold: None,
    };
    let call = call(Ending::Cancelled(Cancelled::AfterSending));
    Box::pin(world.delivery.retry(task, call, retry)).await;
    assert!(world.job_is_there().await);
}

#[tokio::test]
async fn a_worker_that_lost_its_lease_writes_no_letter() {
    let mut world = World::new().await;
    let task = world.prepare(None).await.unwrap();
    let key = Namespace::lease_key(JobSeq(world.message.seq));
    let others = world.credits.put(&key, "{}".into(), Some(TTL)).await;
    others.unwrap();
    let failure = Failure::new(DeadReason::Refusal, "refused");
    let call = call(Ending::SchemaViolated);
    world.delivery.bury(task.job, failure, Some(call)).await;
    assert_eq!(world.letters().await, 0);
    assert!(world.job_is_there().await, "somebody else has it");
}

#[tokio::test]
async fn a_letter_is_written_while_the_lease_is_held() {
    let mut world = World::new().await;
    let task = world.prepare(None).await.unwrap();
    let failure = Failure::new(DeadReason::Refusal, "refused");
    world.delivery.bury(task.job, failure, None).await;
    assert_eq!(world.letters().await, 1);
    assert!(!world.job_is_there().await);
}

#[tokio::test]
async fn the_refusal_of_an_earlier_submission_under_the_same_id_is_no_outcome_of_the_job() {
    let mut world = World::new().await;
    let job = JobId::parse("a").unwrap();
    let refused = JobRecord::new(tenant(), job, Phase::Failed, 1);
    let task = world.prepare(Some(refused.clone())).await;
    assert_eq!(task.unwrap().job.record.failure, None);
    assert!(world.job_is_there().await);

    let failed = JobRecord {
        sequence: Some(world.message.seq),
        ..refused
    };
    assert!(world.prepare(Some(failed)).await.is_none());
    assert!(!world.job_is_there().await, "that one is");
}

#[tokio::test]
async fn a_worker_that_dies_after_it_left_word_leaves_it_once_all_the_same() {
    let mut world = World::new().await;
    let to = "subject fl.callback.acme.ended";
    world
        .message
        .headers
        .insert(fairlane_wire::header::CALLBACK, to);
    let context = Arc::get_mut(&mut world.delivery.context).expect("nobody else has it");
    context.crash = Some(Point::CalledBack);
    let task = world.prepare(None).await.unwrap();
    let context = world.delivery.context.clone();
    let answer = call(Ending::Message(StopReason::EndTurn));
    tokio::select! {
        () = world.delivery.keep(task, answer) => panic!("it died"),
        () = context.crashed.notified() => {}
    }
    assert!(world.job_is_there().await);
    assert_eq!(world.callbacks().await, 1);

    drop(context);
    let context = Arc::get_mut(&mut world.delivery.context).expect("nobody else has it");
    context.crash = None;
    let (records, job) = (&world.delivery.context.records, JobId::parse("a").unwrap());
    let record = records.get(&tenant(), &job).await.unwrap().record;
    assert!(world.prepare(record).await.is_none(), "it is over");
    assert!(!world.job_is_there().await);
    assert_eq!(world.callbacks().await, 1);
}

#[tokio::test]
async fn word_is_left_for_a_job_that_names_somebody_and_was_called_off() {
    let mut world = World::new().await;
    let job = JobId::parse("a").unwrap();
    let record = JobRecord {
        sequence: Some(world.message.seq),
        ..JobRecord::new(tenant(), job, Phase::Cancelled, 1)
    };
    let to = "subject fl.callback.acme.ended";
    world
        .message
        .headers
        .insert(fairlane_wire::header::CALLBACK, to);
    assert!(world.prepare(Some(record)).await.is_none());
    assert!(!world.job_is_there().await);
    assert_eq!(world.callbacks().await, 1);
}

#[tokio::test]
async fn no_word_is_left_for_a_job_that_names_nobody_and_none_holds_a_job_up() {
    let mut world = World::new().await;
    let task = world.prepare(None).await.unwrap();
    let failure = Failure::new(DeadReason::Refusal, "refused");
    world.delivery.bury(task.job, failure, None).await;
    assert!(!world.job_is_there().await);
    assert_eq!(world.callbacks().await, 0);

    let mut world = World::new().await;
    let to = "subject fl.callback.acme.ended";
    world
        .message
        .headers
        .insert(fairlane_wire::header::CALLBACK, to);
    let stream = world.server.nats.names.callbacks_stream();
    let jetstream = &world.server.nats.jetstream;
    jetstream.delete_stream(stream).await.unwrap();
    let task = world.prepare(None).await.unwrap();
    let failure = Failure::new(DeadReason::Refusal, "refused");
    world.delivery.bury(task.job, failure, None).await;
    assert!(
        !world.job_is_there().await,
        "it ended although nobody will be told"
    );
}
