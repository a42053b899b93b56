//! How fast the road is, beside a bare loop over the same stores.
//!
//! ```text
//! cargo bench -p fairlane-fleet-tests --bench road [-- JOBS]
//! ```
//!
//! Two figures, from one run on one machine, real processes, loopback, a simulator without latency:
//!
//! - idle latency: one job at a time, from the moment its submission is acknowledged to the moment
//!   its request arrives upstream;
//! - throughput: jobs of 100 tenants, from the first submission to the last result, in jobs per
//!   second. Beside it the bare loop: one process that does the same stores, reads and deletes for
//!   each job, 256 at a time, and the same call, with no producer, scheduler or credit decisions.

#![allow(clippy::print_stdout, reason = "a bench prints its figures")]

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use fairlane_claude::{ApiKey, CallRequest, Client, Options};
use fairlane_core::{JobId, JobSeq, Priority, TenantId};
use fairlane_fleet_tests::load::{TENANTS, processor, throughput};
use fairlane_fleet_tests::{Fleet, Setup, job};
use fairlane_nats::{HeaderMap, Nats, Records, Revision};
use fairlane_wire::{JobRecord, Namespace, Phase, key_hash};
use futures::{StreamExt, stream};

const PROGRAM: &str = env!("CARGO_BIN_EXE_fairlane-under-test");
const LATENCY_JOBS: usize = 500;
const PARALLEL: usize = 256;

#[tokio::main]
async fn main() {
    // cargo passes `--bench`; a number is the number of jobs.
    let jobs = std::env::args()
        .find_map(|argument| argument.parse().ok())
        .unwrap_or(10_000);
    let setup = || Setup {
        workers: 2,
        schedulers: 2,
        settings: vec![
            ("worker.slots", "128".to_owned()),
            ("telemetry.log", "warn".to_owned()),
        ],
        ..Setup::default()
    };

    let fleet = Fleet::start(PROGRAM, setup()).await;
    latency(&fleet).await;
    let before = processor(&fleet);
    let fairlane = throughput(&fleet, "job", jobs).await;
    print_processor("fairlane", &before, &processor(&fleet), jobs);
    println!(
        "fairlane     {fairlane:>8.0} jobs/s  ({jobs} jobs, {TENANTS} tenants, 2 workers x 128 slots)"
    );
    drop(fleet);

    let bare = Fleet::start(
        PROGRAM,
        Setup {
            producers: 0,
            schedulers: 0,
            workers: 0,
            ..setup()
        },
    )
    .await;
    let before = processor(&bare);
    let loop_rate = bare_loop(&bare, jobs).await;
    print_processor("bare loop", &before, &processor(&bare), jobs);
    println!("bare loop    {loop_rate:>8.0} jobs/s  ({PARALLEL} at a time)");
    println!("ratio        {:>8.2}", fairlane / loop_rate);
}

#[expect(clippy::cast_precision_loss, reason = "a few thousand jobs")]
fn print_processor(what: &str, before: &[(&str, f64)], after: &[(&str, f64)], jobs: usize) {
    let parts: Vec<String> = before
        .iter()
        .zip(after)
        .map(|((name, before), (_, after))| {
            format!("{name} {:.0}", (after - before) * 1e6 / jobs as f64)
        })
        .collect();
    println!(
        "{what}: processor microseconds per job: {}",
        parts.join(", ")
    );
}

async fn latency(fleet: &Fleet) {
    let mut micros = Vec::new();
    for number in 0..LATENCY_JOBS {
        let id = format!("lat-{number}");
        fleet
            .publish("bench", job(&id, &format!("tags {number}")))
            .await;
        let acknowledged = now_micros();
        let call = loop {
            let log = fleet.sim.log_since(number as u64);
            if let Some(call) = log
                .into_iter()
                .find(|call| call.job.as_deref() == Some(&id))
            {
                break call;
            }
            tokio::time::sleep(Duration::from_micros(200)).await;
        };
        micros.push(i64::try_from(call.at.0).unwrap_or(i64::MAX) - acknowledged);
        fleet.phase("bench", &id, Phase::Done).await;
    }
    micros.sort_unstable();
    let at = |part: usize| micros[(micros.len() * part / 100).min(micros.len() - 1)];
    let ms = |micros: i64| std::time::Duration::from_micros(micros.max(0).unsigned_abs());
    println!(
        "idle latency, submit acknowledged -> request upstream: p50 {:?}  p90 {:?}  p99 {:?}  ({LATENCY_JOBS} jobs)",
        ms(at(50)),
        ms(at(90)),
        ms(at(99)),
    );
}

fn now_micros() -> i64 {
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since_epoch.as_micros()).unwrap_or(i64::MAX)
}

/// The same work without a fleet.
async fn bare_loop(fleet: &Fleet, jobs: usize) -> f64 {
    let claude = Client::new(Options {
        base_url: fleet.sim.url(),
        idle_connections_max: PARALLEL,
        ..Options::default()
    });
    let claude = claude.expect("a client");
    let puller = fleet
        .client()
        .jetstream
        .get_consumer_from_stream::<async_nats::jetstream::consumer::pull::Config, _, _>(
            fleet.client().names.producer_consumer(),
            fleet.client().names.submit_stream(),
        );
    let consumer = puller.await.expect("the producer's consumer");
    let submissions = consumer.messages().await.expect("messages");
    let began = Instant::now();
    let submitting = stream::iter(0..jobs).for_each_concurrent(PARALLEL, |number| async move {
        let tenant = format!("tenant-{}", number % TENANTS);
        fleet
            .publish(&tenant, job(&format!("job-{number}"), "tags"))
            .await;
    });
    let running = submissions
        .take(jobs)
        .for_each_concurrent(PARALLEL, |message| {
            let claude = claude.clone();
            let nats = fleet.client().clone();
            async move { bare_job(&nats, &claude, message.expect("a submission")).await }
        });
    tokio::join!(submitting, running);
    jobs as f64 / began.elapsed().as_secs_f64()
}

async fn bare_job(nats: &Nats, claude: &Client, submission: async_nats::jetstream::Message) {
    let names = &nats.names;
    let tenant = names
        .submit_tenant(&submission.subject)
        .expect("a submit subject");
    let tenant = TenantId::parse(tenant).expect("a tenant");
    let body: serde_json::Value = serde_json::from_slice(&submission.payload).expect("JSON");
    let job = JobId::parse(body["id"].as_str().expect("an id")).expect("a job id");
    let ttl = Some(Duration::from_secs(15));
    let none = HeaderMap::new;

    // The producer's part.
    let key = format!("{tenant}.{}", key_hash(job.as_str()));
    let idem = nats.bucket(&names.idem_bucket());
    idem.put_if(&key, Bytes::from_static(b"{}"), Revision::ABSENT, None)
        .await
        .expect("key");
    let subject = names.job_subject(Priority::Critical, &tenant);
    let id = format!("{tenant}:{job}");
    let stored = nats
        .jobs()
        .publish(&subject, Some(&id), none(), submission.payload.clone())
        .await;
    let seq = stored.expect("job").seq;
    let records = Records::new(nats, Duration::from_secs(60));
    let mut record = JobRecord::new(tenant.clone(), job.clone(), Phase::Queued, 0);
    let revision = records
        .save(&record, Revision::ABSENT)
        .await
        .expect("record");
    submission.ack().await.expect("ack");

    // The leader's part.
    let credits = nats.bucket(&names.credits_bucket());
    let lease = Namespace::lease_key(JobSeq(seq));
    let value = Bytes::from(vec![b'x'; 300]);
    let granted = credits
        .put_if(&lease, value.clone(), Revision::ABSENT, ttl)
        .await
        .expect("credit");

    // The worker's part.
    let (started, message, slot) = tokio::join!(
        credits.put_if(&lease, value.clone(), granted, ttl),
        async { nats.jobs().get(&names.jobs_stream(), seq).await },
        records.get(&tenant, &job),
    );
    let body: serde_json::Value =
        serde_json::from_slice(&message.expect("read").expect("there").payload).expect("JSON");
    slot.expect("record");
    let request = CallRequest::from_json(&body["request"]).expect("a request");
    let key = ApiKey::parse("sk-bench").expect("a key");
    let report = claude
        .call(&key, request, |_| (), std::future::pending())
        .await;
    record.phase = Phase::Done;
    record.result = report.message;
    let ledger = names.ledger_subject(&tenant);
    let booking = Bytes::from(vec![b'x'; 400]);
    let id = format!("ledger-{tenant}:{seq}:1");
    let (saved, booked) = tokio::join!(records.save(&record, revision), async {
        nats.jobs()
            .publish(&ledger, Some(&id), none(), booking)
            .await
    },);
    saved.expect("saved");
    booked.expect("booked");
    nats.jobs()
        .delete(&names.jobs_stream(), seq)
        .await
        .expect("deleted");
    let released = credits
        .tombstone_if(
            &lease,
            started.expect("lease"),
            Bytes::from(vec![b'x'; 500]),
            Duration::from_secs(60),
        )
        .await;
    released.expect("released");
}
