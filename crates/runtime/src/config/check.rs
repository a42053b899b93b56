//! Rules between values: each one alone may be right and the pair still wrong.

use super::Origins;
use super::error::Problem;
use super::settings::{MASK, Settings};

/// All pairs that do not fit each other.
pub(crate) fn check(settings: &Settings, origins: &Origins) -> Vec<Problem> {
    let mut found = Vec::new();
    let scheduler = &settings.scheduler;
    let mut at_most = |small: Value<'_>, divisor: u64, large: Value<'_>, why: &str| {
        if small.ms > large.ms / divisor {
            let part = if divisor == 1 { "" } else { "half of " };
            let from = origins.get(large.key);
            found.push(Problem::Conflict {
                key: small.key.to_owned(),
                value: small.ms.to_string(),
                origin: origins.get(small.key),
                conflict: format!(
                    "must be at most {part}{}, {} (from {from}): {why}",
                    large.key, large.ms
                ),
            });
        }
    };
    let heartbeat = Value::of("scheduler.heartbeat_ms", scheduler.heartbeat_ms);
    let takeover = Value::of("scheduler.takeover_after_ms", scheduler.takeover_after_ms);
    let lease = Value::of("scheduler.lease_ttl_ms", scheduler.lease_ttl_ms);
    let unstarted = Value::of("scheduler.unstarted_ttl_ms", scheduler.unstarted_ttl_ms);
    let credit = Value::of("scheduler.credit_ttl_ms", scheduler.credit_ttl_ms);
    let renew = Value::of("worker.renew_ms", settings.worker.renew_ms);
    at_most(
        heartbeat,
        2,
        takeover,
        "one late heartbeat must not depose a healthy leader",
    );
    at_most(takeover, 1, lease, "a lease ends by itself after that time");
    at_most(
        unstarted,
        1,
        credit,
        "a credit not yet started lives no longer than a running one",
    );
    at_most(
        renew,
        2,
        credit,
        "one late renewal must not lose a running job",
    );

    found.extend(exclusive(settings, origins));
    found
}

#[derive(Clone, Copy)]
struct Value<'a> {
    key: &'a str,
    ms: u64,
}

impl<'a> Value<'a> {
    fn of(key: &'a str, ms: u64) -> Self {
        Self { key, ms }
    }
}

/// Ways to authenticate that exclude or need each other.
fn exclusive(settings: &Settings, origins: &Origins) -> Vec<Problem> {
    let nats = &settings.nats;
    let claude = &settings.claude;
    let conflict = |key: &str, value: String, conflict: String| Problem::Conflict {
        key: key.to_owned(),
        value,
        origin: origins.get(key),
        conflict,
    };
    let mut found = Vec::new();
    if let (Some(file), Some(_)) = (&claude.api_key_file, &claude.api_key) {
        let from = origins.get("claude.api_key");
        found.push(conflict(
            "claude.api_key_file",
            format!("{:?}", file.display().to_string()),
            format!("excludes claude.api_key (from {from}): give the key in one way only"),
        ));
    }
    let producer = &settings.producer;
    let tls = [
        ("producer.api_tls_cert_file", &producer.api_tls_cert_file),
        ("producer.api_tls_key_file", &producer.api_tls_key_file),
    ];
    for ((key, file), (other, missing)) in [(tls[0], tls[1]), (tls[1], tls[0])] {
        if let (Some(file), None) = (file, missing) {
            let value = format!("{:?}", file.display().to_string());
            found.push(conflict(key, value, format!("needs {other}")));
        }
    }
    match (&producer.callback_secret_file, &producer.callback_secret) {
        (Some(file), Some(_)) => {
            let from = origins.get("producer.callback_secret");
            found.push(conflict(
                "producer.callback_secret_file",
                format!("{:?}", file.display().to_string()),
                format!(
                    "excludes producer.callback_secret (from {from}): give the secret in one way only"
                ),
            ));
        }
        (None, None) => {
            if let Some(urls) = &producer.callback_urls {
                found.push(conflict(
                    "producer.callback_urls",
                    format!("{urls:?}"),
                    "needs producer.callback_secret or producer.callback_secret_file: posts are signed"
                        .to_owned(),
                ));
            }
        }
        (Some(_), None) | (None, Some(_)) => {}
    }
    if let (Some(file), Some(_)) = (&nats.creds_file, &nats.user) {
        let from = origins.get("nats.user");
        found.push(conflict(
            "nats.creds_file",
            format!("{:?}", file.display().to_string()),
            format!("excludes nats.user (from {from}): log in in one way only"),
        ));
    }
    if let (Some(file), Some(_)) = (
        &nats.nkey_file,
        nats.user
            .as_ref()
            .map(|_| ())
            .or(nats.creds_file.as_ref().map(|_| ())),
    ) {
        found.push(conflict(
            "nats.nkey_file",
            format!("{:?}", file.display().to_string()),
            "excludes nats.creds_file and nats.user: log in in one way only".to_owned(),
        ));
    }
    let scheduler = &settings.scheduler;
    for (key, other, creds, nkey) in [
        (
            "producer.operator_creds_file",
            "producer.operator_nkey_file",
            &producer.operator_creds_file,
            &producer.operator_nkey_file,
        ),
        (
            "scheduler.operator_creds_file",
            "scheduler.operator_nkey_file",
            &scheduler.operator_creds_file,
            &scheduler.operator_nkey_file,
        ),
    ] {
        if let (Some(file), Some(_)) = (creds, nkey) {
            let value = format!("{:?}", file.display().to_string());
            let why = format!("excludes {other}: log in in one way only");
            found.push(conflict(key, value, why));
        }
    }
    for (key, given, needs, other) in [
        (
            "nats.tls_cert_file",
            &nats.tls_cert_file,
            "nats.tls_key_file",
            &nats.tls_key_file,
        ),
        (
            "nats.tls_key_file",
            &nats.tls_key_file,
            "nats.tls_cert_file",
            &nats.tls_cert_file,
        ),
    ] {
        if let (Some(file), None) = (given, other) {
            let value = format!("{:?}", file.display().to_string());
            found.push(conflict(key, value, format!("needs {needs}")));
        }
    }
    match (&nats.user, &nats.password) {
        (Some(user), None) => found.push(conflict(
            "nats.user",
            format!("{user:?}"),
            "needs nats.password".to_owned(),
        )),
        (None, Some(_)) => found.push(conflict(
            "nats.password",
            MASK.to_owned(),
            "needs nats.user".to_owned(),
        )),
        (Some(_), Some(_)) | (None, None) => {}
    }
    found
}
