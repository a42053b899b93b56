//! Streams, buckets and the consumer: made once, compared for ever, never overwritten.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use async_nats::jetstream;
use fairlane_nats::embedded::ServerOptions;
use fairlane_nats::objects::{self, EnsureError, ObjectOptions, Weight};
use fairlane_support::{TestNats, old_server};

#[tokio::test]
async fn everything_is_made_once_and_then_found_as_wanted() {
    let test = TestNats::bare(ServerOptions::default()).await;
    let options = ObjectOptions::default();

    let first = objects::ensure(&test.nats, &options).await.unwrap();
    assert_eq!(first.created.len(), 15, "{first}");
    assert_eq!(
        (&first.unchanged[..], &first.differences[..]),
        (&[][..], &[][..]),
        "{first}"
    );

    let second = objects::ensure(&test.nats, &options).await.unwrap();
    assert_eq!(second.unchanged, first.created, "{second}");
    assert_eq!(
        (&second.created[..], &second.differences[..]),
        (&[][..], &[][..]),
        "{second}"
    );
}

#[tokio::test]
async fn many_processes_may_start_at_once() {
    let test = TestNats::bare(ServerOptions::default()).await;
    let options = ObjectOptions::default();
    let reports =
        futures::future::join_all((0..8).map(|_| objects::ensure(&test.nats, &options))).await;
    let reports: Vec<_> = reports.into_iter().map(Result::unwrap).collect();
    assert!(
        reports.iter().all(|report| report.differences.is_empty()),
        "{reports:?}"
    );
    let made: usize = reports.iter().map(|report| report.created.len()).sum();
    assert!(made >= 15, "{reports:?}");
}

#[tokio::test]
async fn differences_are_reported_and_left_alone() {
    let test = TestNats::start().await;
    let context = &test.nats.jetstream;
    let mut config = context
        .get_stream("FL_JOBS")
        .await
        .unwrap()
        .cached_info()
        .config
        .clone();
    config.max_messages_per_subject = 7;
    config.allow_direct = false;
    context.update_stream(&config).await.unwrap();

    let report = objects::ensure(&test.nats, &ObjectOptions::default())
        .await
        .unwrap();

    let told: Vec<_> = report
        .differences
        .iter()
        .map(|d| (d.object.as_str(), d.field.as_str(), d.weight))
        .collect();
    assert_eq!(
        told,
        [
            ("stream FL_JOBS", "allow_direct", Weight::Breaks),
            ("stream FL_JOBS", "max_msgs_per_subject", Weight::Differs),
        ]
    );
    assert_eq!(report.differences[1].wanted, "100000");
    assert_eq!(report.differences[1].found, "7");
    assert!(report.is_broken());
    let after = context
        .get_stream("FL_JOBS")
        .await
        .unwrap()
        .cached_info()
        .config
        .clone();
    assert_eq!(after.max_messages_per_subject, 7);
}

#[tokio::test]
async fn a_missing_object_is_made_again() {
    let test = TestNats::start().await;
    test.nats
        .jetstream
        .delete_stream("KV_fl_idem")
        .await
        .unwrap();
    let stream = test.nats.jetstream.get_stream("FL_SUBMIT").await.unwrap();
    stream.delete_consumer("producer").await.unwrap();

    let report = objects::ensure(&test.nats, &ObjectOptions::default())
        .await
        .unwrap();

    assert_eq!(
        report.created,
        ["consumer producer of FL_SUBMIT", "bucket fl_idem"]
    );
}

#[tokio::test]
async fn a_server_that_would_ignore_half_of_it_is_refused() {
    let options = ServerOptions {
        binary: Some(old_server().unwrap()),
        ..Default::default()
    };
    let test = TestNats::bare(options).await;

    let error = objects::ensure(&test.nats, &ObjectOptions::default())
        .await
        .unwrap_err();

    assert!(
        matches!(&error, EnsureError::OldServer { level: 0..4, .. }),
        "{error:?}"
    );
    let text = error.to_string();
    assert!(text.contains("2.12.8") && text.contains("2.14.1"), "{text}");
    assert!(
        test.nats.jetstream.get_stream("FL_SUBMIT").await.is_err(),
        "nothing may be made"
    );
}

#[tokio::test]
async fn ordinary_kv_clients_can_use_the_buckets() {
    let test = TestNats::start().await;
    let bucket = test.nats.bucket("fl_tenants");
    let revision = bucket
        .put("acme", "pro".into(), Some(Duration::from_secs(60)))
        .await
        .unwrap();

    let kv = test
        .nats
        .jetstream
        .get_key_value("fl_tenants")
        .await
        .unwrap();
    let entry = kv.entry("acme").await.unwrap().unwrap();
    assert_eq!(
        (entry.value.as_ref(), entry.revision),
        (&b"pro"[..], revision.0)
    );
    kv.put("acme", "free".into()).await.unwrap();
    assert_eq!(
        bucket.get("acme").await.unwrap().unwrap().value().unwrap(),
        "free"
    );
    kv.purge("acme").await.unwrap();
    assert!(bucket.get("acme").await.unwrap().unwrap().value().is_none());
}

#[tokio::test]
async fn the_default_limit_of_consumers_does_not_apply_to_buckets() {
    let test = TestNats::start().await;
    let info = test
        .nats
        .jetstream
        .get_stream("KV_fl_credits")
        .await
        .unwrap();
    let config: &jetstream::stream::Config = &info.cached_info().config;
    assert_eq!(config.max_consumers, 10_000);
}
