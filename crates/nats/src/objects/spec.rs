//! What Fairlane wants to find on the server, in the server's own words.
//!
//! Buckets are streams with the settings the KV and object store conventions ask for, written out
//! here because the client library has no field for `max_consumers`, which servers from 2.15 limit
//! by default.

use std::time::Duration;

use fairlane_wire::names::Namespace;
use serde_json::{Map, Value, json};

/// Room for some hundred thousand callbacks.
const CALLBACKS_BYTES_MAX: u64 = 256 * 1024 * 1024;
const DAY: Duration = Duration::from_secs(86_400);

/// What an installation may choose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectOptions {
    /// Copies of every object: 1 on one server, 3 in a cluster.
    pub replicas: u64,
    /// Jobs one tenant may have waiting in one priority.
    pub backlog_per_tenant_max: u64,
    /// Submissions of one tenant that no producer has taken yet. They are taken in order, so this bounds what a flood costs others.
    pub submissions_per_tenant_max: u64,
    /// How long dead letters are kept.
    pub dlq_keep: Duration,
    /// How long settlements are kept.
    pub ledger_keep: Duration,
    /// How long large bodies are kept if nothing deletes them; longer than dead letters.
    pub payloads_keep: Duration,
    /// How long a producer may take over a submission before another one gets it.
    pub submit_ack_wait: Duration,
    /// How often a submission is delivered before it is given up.
    pub submit_max_deliver: u64,
    /// Bytes that may wait in the stream of submissions, None for no limit of its own. A limit is kept free on the server's disk.
    pub submit_bytes_max: Option<u64>,
    /// The same for the stream of jobs.
    pub jobs_bytes_max: Option<u64>,
    /// The same for bodies too large for a message.
    pub payloads_bytes_max: Option<u64>,
}

impl Default for ObjectOptions {
    fn default() -> Self {
        Self {
            replicas: 1,
            backlog_per_tenant_max: 100_000,
            submissions_per_tenant_max: 4_000,
            dlq_keep: 30 * DAY,
            ledger_keep: 35 * DAY,
            payloads_keep: 40 * DAY,
            submit_ack_wait: Duration::from_secs(30),
            submit_max_deliver: 10,
            submit_bytes_max: None,
            jobs_bytes_max: None,
            payloads_bytes_max: None,
        }
    }
}

/// One object as it should be.
#[derive(Debug, Clone, PartialEq)]
pub struct Spec {
    /// Name for people: `stream FL_JOBS`, `bucket fl_credits`.
    pub name: String,
    /// Name on the server.
    pub server_name: String,
    /// For a consumer: its stream.
    pub consumer_of: Option<String>,
    /// The configuration, complete: a field that is not here should have its zero value.
    pub config: Map<String, Value>,
}

/// Every object of a fleet, in the order in which they can be made.
#[must_use]
pub fn specs(names: &Namespace, options: &ObjectOptions) -> Vec<Spec> {
    vec![
        submit(names, options),
        producer(names, options),
        jobs(names, options),
        dlq(names, options),
        ledger(names, options),
        callbacks(names, options),
        callbacks_consumer(names),
        bucket(
            &names.control_bucket(),
            "leader lease and scheduler state",
            options,
        ),
        bucket(
            &names.credits_bucket(),
            "live credits and parked jobs",
            options,
        ),
        bucket(
            &names.tenants_bucket(),
            "plans, weights and limits",
            options,
        ),
        bucket(&names.status_bucket(), "job records", options),
        bucket(&names.idem_bucket(), "idempotency keys", options),
        bucket(
            &names.redrives_bucket(),
            "runs that send dead letters again",
            options,
        ),
        bucket(&names.batches_bucket(), "batches of the HTTP API", options),
        payloads(&names.payload_store(), options),
    ]
}

fn submit(names: &Namespace, options: &ObjectOptions) -> Spec {
    let config = json!({
        "description": "submissions as published by anyone",
        "subjects": [names.submit_filter()],
        "retention": "workqueue",
        // Whoever publishes faster than can be taken is told so; the others' submissions are taken.
        "discard": "new",
        "discard_new_per_subject": true,
        "max_msgs_per_subject": options.submissions_per_tenant_max,
        "max_bytes": bytes_max(options.submit_bytes_max),
        // Ids are compared across all tenants, so one's could swallow another's job; keys, which
        // name their tenant, do this work. The server allows no less.
        "duplicate_window": nanos(Duration::from_millis(100)),
        "max_consumers": 16,
        "allow_direct": true,
    });
    stream("stream", &names.submit_stream(), options, config)
}

fn producer(names: &Namespace, options: &ObjectOptions) -> Spec {
    let name = names.producer_consumer();
    let config = json!({
        "durable_name": name,
        "name": name,
        "description": "shared by all producers",
        "ack_policy": "explicit",
        "ack_wait": nanos(options.submit_ack_wait),
        "deliver_policy": "all",
        "filter_subject": names.submit_filter(),
        "max_ack_pending": 10_000,
        "max_deliver": options.submit_max_deliver,
        "max_waiting": 512,
        "num_replicas": 0,
        "replay_policy": "instant",
    });
    Spec {
        name: format!("consumer {name} of {}", names.submit_stream()),
        server_name: name.to_owned(),
        consumer_of: Some(names.submit_stream()),
        config: object(config),
    }
}

fn jobs(names: &Namespace, options: &ObjectOptions) -> Spec {
    let config = json!({
        "description": "accepted jobs: the truth about what is to be done",
        "subjects": [names.jobs_filter()],
        "retention": "limits",
        "discard": "new",
        "discard_new_per_subject": true,
        "max_msgs_per_subject": options.backlog_per_tenant_max,
        "max_bytes": bytes_max(options.jobs_bytes_max),
        "duplicate_window": nanos(Duration::from_secs(600)),
        "max_consumers": 100,
        "allow_direct": true,
    });
    stream("stream", &names.jobs_stream(), options, config)
}

fn dlq(names: &Namespace, options: &ObjectOptions) -> Spec {
    let config = json!({
        "description": "dead letters, and notes that they were sent again",
        "subjects": [names.dlq_filter(), names.redriven_filter()],
        "retention": "limits",
        "discard": "old",
        "max_age": nanos(options.dlq_keep),
        "duplicate_window": nanos(Duration::from_secs(600)),
        "max_consumers": 100,
        "allow_direct": true,
    });
    stream("stream", &names.dlq_stream(), options, config)
}

fn ledger(names: &Namespace, options: &ObjectOptions) -> Spec {
    let config = json!({
        "description": "one settlement per attempt",
        "subjects": [names.ledger_filter()],
        "retention": "limits",
        "discard": "old",
        "max_age": nanos(options.ledger_keep),
        "duplicate_window": nanos(Duration::from_secs(600)),
        "max_consumers": 100,
        "allow_direct": true,
    });
    stream("stream", &names.ledger_stream(), options, config)
}

/// Word that jobs ended. It is worth less than the jobs: when there is too much of it, the oldest goes.
fn callbacks(names: &Namespace, options: &ObjectOptions) -> Spec {
    let config = json!({
        "description": "word to submitters that their jobs ended",
        "subjects": [names.callbacks_filter()],
        "retention": "workqueue",
        "discard": "old",
        "max_age": nanos(DAY),
        "max_bytes": CALLBACKS_BYTES_MAX,
        "duplicate_window": nanos(Duration::from_secs(3_600)),
        "max_consumers": 16,
        "allow_direct": true,
    });
    stream("stream", &names.callbacks_stream(), options, config)
}

fn callbacks_consumer(names: &Namespace) -> Spec {
    let name = names.callbacks_consumer();
    let config = json!({
        "durable_name": name,
        "name": name,
        "description": "shared by all producers",
        "ack_policy": "explicit",
        "ack_wait": nanos(Duration::from_secs(30)),
        "deliver_policy": "all",
        "filter_subject": names.callbacks_filter(),
        // What waits to be tried again counts, and must not keep the rest waiting.
        "max_ack_pending": 50_000,
        // A producer drops what it could not deliver long before.
        "max_deliver": 20,
        "max_waiting": 512,
        "num_replicas": 0,
        "replay_policy": "instant",
    });
    Spec {
        name: format!("consumer {name} of {}", names.callbacks_stream()),
        server_name: name.to_owned(),
        consumer_of: Some(names.callbacks_stream()),
        config: object(config),
    }
}

/// A KV bucket with history 1 and lifetimes per key.
fn bucket(bucket: &str, description: &str, options: &ObjectOptions) -> Spec {
    let config = json!({
        "description": description,
        "subjects": [format!("$KV.{bucket}.>")],
        "retention": "limits",
        "discard": "new",
        "max_msgs_per_subject": 1,
        "duplicate_window": nanos(Duration::from_secs(120)),
        "max_consumers": 10_000,
        "allow_direct": true,
        "allow_rollup_hdrs": true,
        "deny_delete": true,
        "allow_msg_ttl": true,
        "subject_delete_marker_ttl": nanos(Duration::from_secs(60)),
    });
    let mut spec = stream("bucket", &format!("KV_{bucket}"), options, config);
    spec.name = format!("bucket {bucket}");
    spec
}

fn payloads(store: &str, options: &ObjectOptions) -> Spec {
    let config = json!({
        "description": "bodies too large for a message",
        "subjects": [format!("$O.{store}.C.>"), format!("$O.{store}.M.>")],
        "retention": "limits",
        "discard": "new",
        "max_age": nanos(options.payloads_keep),
        "max_bytes": bytes_max(options.payloads_bytes_max),
        "duplicate_window": nanos(Duration::from_secs(120)),
        "max_consumers": 1_000,
        "allow_direct": true,
        "allow_rollup_hdrs": true,
    });
    let mut spec = stream("store", &format!("OBJ_{store}"), options, config);
    spec.name = format!("object store {store}");
    spec
}

fn bytes_max(limit: Option<u64>) -> Value {
    limit.map_or(json!(-1), Value::from)
}

/// A stream: `config` on top of what all of ours have in common.
fn stream(what: &str, name: &str, options: &ObjectOptions, config: Value) -> Spec {
    let mut all = object(json!({
        "name": name,
        "storage": "file",
        "num_replicas": options.replicas,
        "max_age": 0,
        "max_bytes": -1,
        "max_msgs": -1,
        "max_msg_size": -1,
        "max_msgs_per_subject": -1,
    }));
    all.extend(object(config));
    Spec {
        name: format!("{what} {name}"),
        server_name: name.to_owned(),
        consumer_of: None,
        config: all,
    }
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        other => unreachable!("a configuration is an object, not {other}"),
    }
}

/// Durations are nanoseconds on the wire.
fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_namespaces_share_no_object_and_no_subject() {
        let of = |name: &str| specs(&Namespace::parse(name).unwrap(), &ObjectOptions::default());
        let (a, b) = (of("fl"), of("fl2"));
        for (left, right) in a.iter().zip(&b) {
            assert_ne!(left.name, right.name);
            assert_ne!(
                (&left.server_name, &left.consumer_of),
                (&right.server_name, &right.consumer_of)
            );
            assert!(
                left.config.get("subjects").is_none()
                    || left.config.get("subjects") != right.config.get("subjects")
            );
        }
    }

    #[test]
    fn every_stream_escapes_the_servers_default_limit_of_consumers() {
        for spec in specs(&Namespace::default(), &ObjectOptions::default()) {
            if spec.consumer_of.is_none() {
                assert!(
                    spec.config["max_consumers"].as_i64().unwrap() > 0,
                    "{}",
                    spec.name
                );
            }
        }
    }
}
