//! The page of names and words, `deploy/names.md`, is made from the code; this test keeps it that way.

#![allow(clippy::unwrap_used, reason = "names in a test are names")]

use std::fmt::Write as _;

use fairlane_core::{JobId, JobSeq, Priority, TenantId, WorkerId};
use fairlane_wire::{Ask, Namespace, Phase};

/// Name of the function, what it gives, and what that is.
type Row = (&'static str, String, &'static str);

macro_rules! rows {
    ($names:ident; $($function:ident($($argument:expr),*) => $text:expr;)*) => {
        vec![$((stringify!($function), $names.$function($($argument),*).to_string(), $text),)*]
    };
}

fn streams(names: &Namespace) -> Vec<Row> {
    rows![names;
        submit_stream() => "Stream of submissions, until a producer has taken them in.";
        jobs_stream() => "Stream of accepted jobs: the truth about what is still to be done. A job leaves when its outcome is stored.";
        dlq_stream() => "Stream of dead letters, and of notes that they are sent again.";
        ledger_stream() => "Stream of bookings: one for each call that reached the upstream. 35 days.";
        callbacks_stream() => "Stream of word to submitters that their jobs ended, until it is delivered.";
        control_bucket() => "KV bucket of the leader's lease, its books, and the autoscaling signal.";
        credits_bucket() => "KV bucket of leases: one key for each job that is granted, running or parked.";
        tenants_bucket() => "KV bucket of what holds for tenants, changed while the fleet runs.";
        status_bucket() => "KV bucket of job records.";
        idem_bucket() => "KV bucket from idempotency key to job.";
        redrives_bucket() => "KV bucket of runs that send dead letters again.";
        batches_bucket() => "KV bucket of batches of the HTTP API.";
        payload_store() => "Object store of bodies and results too large for a message.";
        producer_consumer() => "Durable consumer of submissions, shared by all producers.";
        callbacks_consumer() => "Durable consumer of callbacks, shared by all producers.";
    ]
}

fn subjects(names: &Namespace) -> Vec<Row> {
    let tenant = TenantId::parse("TENANT").unwrap();
    let job = JobId::parse("JOB").unwrap();
    let worker = WorkerId::parse("WORKER").unwrap();
    rows![names;
        submit_subject(&tenant) => "A job is published here, by any NATS client.";
        ask_subject(Ask::Cancel, &tenant, &job) => "A request: call the job off.";
        ask_subject(Ask::Answer, &tenant, &job) => "A request with the body `yes` or `no`: whether the job may wait until tomorrow.";
        ask_subject(Ask::Regenerate, &tenant, &job) => "A request: run the job again on the model it was meant for.";
        own_callback_prefix(&tenant) => "Beginning of subjects on which the tenant may always be told that its jobs ended.";
        stream_subject(&tenant, &job) => "Parts of an answer while they are written, to whoever listens.";
        job_subject(Priority::Critical, &tenant) => "A job in line; `standard` and `batch` likewise.";
        dlq_subject("REASON", &tenant) => "A dead letter.";
        redriven_subject(17) => "A note that the letter at sequence 17 is sent again; only the first counts.";
        ledger_subject(&tenant) => "A booking.";
        callbacks_subject(&tenant) => "Word to the submitter, until a producer has delivered it.";
        ready_subject() => "Workers announce themselves and their slots, every second.";
        call_subject() => "A new leader asks all workers to announce themselves at once.";
        credit_subject(&worker) => "The leader sends a stored credit to its worker.";
        cancel_subject() => "Workers and the leader hear that a job was called off.";
        why_subject() => "A request: what a job or a tenant waits for, or all that goes on in the fleet.";
        trace_subject() => "Processes hear of traces that are to be sent although they were not chosen.";
        count_subject() => "A request to workers: how many tokens a request has.";
        submit_filter() => "All submissions.";
        jobs_filter() => "All jobs.";
        priority_filter(Priority::Critical) => "All jobs of one priority.";
        dlq_filter() => "All dead letters.";
        redriven_filter() => "All notes that letters are sent again.";
        ledger_filter() => "All bookings.";
        callbacks_filter() => "All word to submitters.";
        ask_filter() => "All that owners ask for.";
    ]
}

fn keys(names: &Namespace) -> Vec<Row> {
    let tenant = TenantId::parse("TENANT").unwrap();
    let job = JobId::parse("JOB").unwrap();
    let mut rows = rows![names;
        leader_key() => "In the control bucket: who leads.";
        books_key() => "In the control bucket: the leader's books.";
        autoscale_key() => "In the control bucket: how many worker slots are worth having.";
    ];
    rows.push((
        "lease_key",
        Namespace::lease_key(JobSeq(17)),
        "In the credits bucket: the lease on the job at sequence 17.",
    ));
    rows.push((
        "status_key",
        Namespace::status_key(&tenant, &job),
        "In the status bucket: the record of a job.",
    ));
    rows.push((
        "kv_subject",
        Namespace::kv_subject("BUCKET", "KEY"),
        "The subject under which a key is stored.",
    ));
    rows
}

const HEAD: &str = "\
# Names and words

This page is made from `crates/wire`; a test keeps it that way (`UPDATE=1 cargo test -p fairlane-wire --test names_page`). Names
begin with the namespace, `fl` unless `nats.namespace` says otherwise: several fleets can share one NATS. Words for how calls and
jobs end are in [errors.md](errors.md).
";

fn table(page: &mut String, title: &str, rows: &[Row]) {
    writeln!(page, "\n## {title}\n\n| name | |\n|---|---|").unwrap();
    for (_, name, text) in rows {
        writeln!(page, "| `{name}` | {text} |").unwrap();
    }
}

fn page() -> String {
    let names = Namespace::default();
    let mut page = HEAD.to_owned();
    table(
        &mut page,
        "Streams, buckets and consumers",
        &streams(&names),
    );
    table(&mut page, "Subjects", &subjects(&names));
    table(&mut page, "Keys", &keys(&names));
    let words = |all: Vec<String>| all.join(", ");
    let phases = Phase::ALL
        .iter()
        .map(|phase| format!("`{}`", phase.as_str()));
    writeln!(page, "\n## Phases of a job\n\n{}", words(phases.collect())).unwrap();
    page
}

#[test]
fn the_page_is_made_from_the_code() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/names.md");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, page()).unwrap();
    }
    let stored = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        stored == page(),
        "deploy/names.md is not what the code says; make it anew with: UPDATE=1 cargo test -p fairlane-wire --test names_page"
    );
}

#[test]
fn no_name_is_left_out() {
    let names = Namespace::default();
    let told: Vec<&str> = [streams(&names), subjects(&names), keys(&names)]
        .iter()
        .flatten()
        .map(|(function, ..)| *function)
        .collect();
    let source = include_str!("../src/names.rs");
    let functions = source.lines().filter_map(|line| {
        let name = line.trim().strip_prefix("pub fn ")?.split('(').next()?;
        let kinds = [
            "_subject",
            "_filter",
            "_stream",
            "_bucket",
            "_store",
            "_key",
            "_consumer",
            "_prefix",
        ];
        let is_name = kinds.iter().any(|kind| name.ends_with(kind)) && !name.starts_with("parse_");
        is_name.then_some(name)
    });
    let missing: Vec<&str> = functions.filter(|name| !told.contains(name)).collect();
    assert!(missing.is_empty(), "not on the page: {missing:?}");
}
