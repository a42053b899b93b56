//! Leases: compare-and-set with lifetimes, against a real server.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use async_nats::jetstream::stream::Stream;
use fairlane_nats::{Bucket, Confirmed, Content, Revision, WriteError};
use fairlane_support::{LIMIT, TestNats, eventually};

const TTL: Option<Duration> = Some(Duration::from_secs(30));
const SHORT: Option<Duration> = Some(Duration::from_secs(1));

async fn credits() -> (TestNats, Bucket) {
    let test = TestNats::start().await;
    let bucket = test.nats.bucket("fl_credits");
    (test, bucket)
}

/// The TTL header of the last message under a key.
async fn ttl(test: &TestNats, key: &str) -> Option<String> {
    let stream: Stream = test
        .nats
        .jetstream
        .get_stream("KV_fl_credits")
        .await
        .unwrap();
    let message = stream
        .get_last_raw_message_by_subject(&format!("$KV.fl_credits.{key}"))
        .await
        .unwrap();
    message
        .headers
        .get("Nats-TTL")
        .map(|value| value.as_str().to_owned())
}

async fn expiry(bucket: &Bucket, key: &str) -> Revision {
    eventually(LIMIT, "the key to expire", || async {
        match bucket.get(key).await.unwrap() {
            Some(entry) if entry.content == Content::Expired => Ok(entry.revision),
            other => Err(format!("{other:?}")),
        }
    })
    .await
}

fn conflict(result: Result<Revision, WriteError>) -> Option<u64> {
    match result {
        Err(WriteError::Conflict { current, .. }) => current,
        other => panic!("expected a conflict, got {other:?}"),
    }
}

#[tokio::test]
async fn a_renewal_carries_the_ttl_again() {
    let (test, bucket) = credits().await;
    let first = bucket
        .put_if("7", "me".into(), Revision::ABSENT, TTL)
        .await
        .unwrap();
    let second = bucket.put_if("7", "me".into(), first, TTL).await.unwrap();
    assert!(second > first);
    assert_eq!(ttl(&test, "7").await.as_deref(), Some("30"));
}

#[tokio::test]
async fn a_stale_revision_is_refused_and_told_the_current_one() {
    let (_test, bucket) = credits().await;
    let first = bucket
        .put_if("7", "a".into(), Revision::ABSENT, TTL)
        .await
        .unwrap();
    let second = bucket.put_if("7", "b".into(), first, TTL).await.unwrap();
    assert_eq!(
        conflict(bucket.put_if("7", "c".into(), first, TTL).await),
        Some(second.0)
    );
    assert_eq!(
        conflict(bucket.put_if("7", "c".into(), Revision::ABSENT, TTL).await),
        Some(second.0)
    );
    let late = bucket
        .tombstone_if("7", first, "late".into(), Duration::from_secs(60))
        .await;
    assert_eq!(conflict(late), Some(second.0));
    assert_eq!(
        bucket.get("7").await.unwrap().unwrap().value().unwrap(),
        "b"
    );
}

#[tokio::test]
async fn of_many_writers_with_one_expectation_exactly_one_wins() {
    let (_test, bucket) = credits().await;
    let writes = (0..20).map(|n| bucket.put_if("7", format!("{n}").into(), Revision::ABSENT, TTL));
    let results = futures::future::join_all(writes).await;
    assert_eq!(
        results.iter().filter(|result| result.is_ok()).count(),
        1,
        "{results:?}"
    );
}

#[tokio::test]
async fn a_lease_that_is_not_renewed_expires_and_can_be_taken_over_its_marker() {
    let (test, bucket) = credits().await;
    bucket
        .put_if("7", "me".into(), Revision::ABSENT, SHORT)
        .await
        .unwrap();
    let marker = expiry(&bucket, "7").await;
    assert_eq!(
        conflict(
            bucket
                .put_if("7", "you".into(), Revision::ABSENT, TTL)
                .await
        ),
        Some(marker.0)
    );
    bucket.put_if("7", "you".into(), marker, TTL).await.unwrap();
    assert_eq!(ttl(&test, "7").await.as_deref(), Some("30"));
}

#[tokio::test]
async fn create_over_a_tombstone_keeps_the_ttl() {
    let (test, bucket) = credits().await;
    let first = bucket.create("7", "me".into(), TTL).await.unwrap();
    bucket
        .tombstone_if("7", first, "done".into(), Duration::from_secs(60))
        .await
        .unwrap();
    bucket.create("7", "you".into(), SHORT).await.unwrap();
    assert_eq!(ttl(&test, "7").await.as_deref(), Some("1"));
    expiry(&bucket, "7").await;
    // And over the marker that is there now.
    bucket.create("7", "they".into(), TTL).await.unwrap();
    assert_eq!(ttl(&test, "7").await.as_deref(), Some("30"));
}

/// The reason for writing leases by hand. When this fails, the library has been fixed.
#[tokio::test]
async fn the_librarys_own_create_loses_the_ttl_over_a_tombstone() {
    let (test, bucket) = credits().await;
    let first = bucket.create("7", "me".into(), TTL).await.unwrap();
    bucket
        .tombstone_if("7", first, "done".into(), Duration::from_secs(60))
        .await
        .unwrap();
    let kv = test
        .nats
        .jetstream
        .get_key_value("fl_credits")
        .await
        .unwrap();
    kv.create_with_ttl("7", "you".into(), Duration::from_secs(5))
        .await
        .unwrap();
    assert_eq!(ttl(&test, "7").await, None);
}

#[tokio::test]
async fn create_is_refused_while_the_key_is_held() {
    let (_test, bucket) = credits().await;
    let held = bucket.create("7", "me".into(), TTL).await.unwrap();
    assert_eq!(
        conflict(bucket.create("7", "you".into(), TTL).await),
        Some(held.0)
    );
}

#[tokio::test]
async fn a_tombstone_keeps_its_body_for_a_while() {
    let (test, bucket) = credits().await;
    let first = bucket.create("7", "me".into(), TTL).await.unwrap();
    let body = r#"{"outcome":"done"}"#;
    let gone = bucket
        .tombstone_if("7", first, body.into(), Duration::from_secs(60))
        .await
        .unwrap();
    let entry = bucket.get("7").await.unwrap().unwrap();
    assert_eq!(
        (entry.revision, entry.content),
        (gone, Content::Deleted(body.into()))
    );
    assert_eq!(ttl(&test, "7").await.as_deref(), Some("60"));
    // Ordinary KV clients see a delete.
    let kv = test
        .nats
        .jetstream
        .get_key_value("fl_credits")
        .await
        .unwrap();
    assert_eq!(kv.get("7").await.unwrap(), None);
}

#[tokio::test]
async fn a_tombstone_goes_without_a_trace() {
    let (_test, bucket) = credits().await;
    let first = bucket.create("7", "me".into(), TTL).await.unwrap();
    bucket
        .tombstone_if("7", first, "".into(), Duration::from_secs(1))
        .await
        .unwrap();
    eventually(LIMIT, "the tombstone to go", || async {
        match bucket.get("7").await.unwrap() {
            Some(entry) if entry.content == Content::Deleted("".into()) => Err("it is there"),
            None => Ok(()),
            other => panic!("it left something behind: {other:?}"),
        }
    })
    .await;
    bucket
        .put_if("7", "you".into(), Revision::ABSENT, TTL)
        .await
        .unwrap();
}

#[tokio::test]
async fn half_a_second_is_rounded_up_to_what_the_server_can_count() {
    let (test, bucket) = credits().await;
    bucket
        .create("7", "me".into(), Some(Duration::from_millis(1_500)))
        .await
        .unwrap();
    assert_eq!(ttl(&test, "7").await.as_deref(), Some("2"));
    bucket
        .create("8", "me".into(), Some(Duration::from_millis(10)))
        .await
        .unwrap();
    assert_eq!(ttl(&test, "8").await.as_deref(), Some("1"));
}

#[tokio::test]
async fn writes_sent_together_are_each_answered() {
    let (_test, bucket) = credits().await;
    let mut pending = Vec::new();
    for key in 0..500 {
        pending.push(
            bucket
                .send_put_if(&key.to_string(), "x".into(), Revision::ABSENT, TTL)
                .await
                .unwrap(),
        );
    }
    // The second write of a key fails, although it is sent before the first is answered.
    let second = bucket
        .send_put_if("3", "y".into(), Revision::ABSENT, TTL)
        .await
        .unwrap();
    let mut last = 0;
    for write in pending {
        let stored = write.wait().await.unwrap();
        assert!(stored.seq > last);
        last = stored.seq;
    }
    assert!(matches!(
        second.wait().await,
        Err(WriteError::Conflict { .. })
    ));
}

#[tokio::test]
async fn both_reads_agree_on_what_there_is_and_what_there_is_not() {
    let (_test, bucket) = credits().await;
    assert_eq!(bucket.get("7").await.unwrap(), None);
    assert_eq!(bucket.get_direct("7").await.unwrap(), None);
    let first = bucket.create("7", "me".into(), TTL).await.unwrap();
    let entry = bucket.get("7").await.unwrap().unwrap();
    assert_eq!((entry.key.as_str(), entry.revision), ("7", first));
    assert!(entry.stored_ms > 1_700_000_000_000, "{entry:?}");
    assert_eq!(bucket.get_direct("7").await.unwrap().unwrap(), entry);
    bucket
        .tombstone_if("7", first, "b".into(), Duration::from_secs(60))
        .await
        .unwrap();
    assert_eq!(
        bucket.get("7").await.unwrap(),
        bucket.get_direct("7").await.unwrap()
    );
}

#[tokio::test]
async fn a_lost_ack_is_cleared_up_by_asking_the_leader() {
    let (_test, bucket) = credits().await;
    let mine = Content::Live("worker-1".into());
    assert_eq!(
        bucket.confirm("7", &mine, Revision::ABSENT).await.unwrap(),
        Confirmed::Pending
    );
    let first = bucket.create("7", "worker-1".into(), TTL).await.unwrap();
    assert_eq!(
        bucket.confirm("7", &mine, Revision::ABSENT).await.unwrap(),
        Confirmed::Landed(first)
    );
    assert_eq!(
        bucket.confirm("7", &mine, first).await.unwrap(),
        Confirmed::Pending
    );
    bucket
        .put_if("7", "worker-2".into(), first, TTL)
        .await
        .unwrap();
    let overtaken = bucket.confirm("7", &mine, first).await.unwrap();
    assert!(
        matches!(&overtaken, Confirmed::Overtaken(Some(e)) if e.value().unwrap() == "worker-2")
    );
}

#[tokio::test]
async fn without_an_answer_nobody_claims_to_know() {
    let (mut test, bucket) = credits().await;
    let mut options = fairlane_nats::NatsOptions::new(test.url());
    options.request_timeout = Duration::from_millis(300);
    let hasty = fairlane_nats::connect(&options)
        .await
        .unwrap()
        .bucket("fl_credits");
    let pid = i32::try_from(test.server.pid().unwrap()).unwrap();
    let pid = nix::unistd::Pid::from_raw(pid);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGSTOP).unwrap();
    eventually(LIMIT, "the server to stand still", || async {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        if status.contains("State:\tT") {
            Ok(())
        } else {
            Err(status)
        }
    })
    .await;

    let result = hasty.put_if("7", "me".into(), Revision::ABSENT, TTL).await;
    assert!(
        matches!(result, Err(WriteError::Unknown { .. })),
        "{result:?}"
    );
    assert!(!result.unwrap_err().is_certain());

    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGCONT).unwrap();
    let confirmed = eventually(LIMIT, "the write to land", || async {
        match bucket
            .confirm("7", &Content::Live("me".into()), Revision::ABSENT)
            .await
            .unwrap()
        {
            Confirmed::Landed(revision) => Ok(revision),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    assert_eq!(bucket.get("7").await.unwrap().unwrap().revision, confirmed);
    test.server.stop().await;
}

#[tokio::test]
async fn a_bucket_that_does_not_exist_takes_nothing() {
    let test = TestNats::start().await;
    let bucket = test.nats.bucket("nowhere");
    let result = bucket.put_if("7", "me".into(), Revision::ABSENT, TTL).await;
    assert!(
        matches!(result, Err(WriteError::Unavailable { .. })),
        "{result:?}"
    );
    assert!(bucket.get("7").await.is_err());
}

#[tokio::test]
async fn sending_without_ever_waiting_is_refused_instead_of_hanging() {
    let test = TestNats::start().await;
    let mut options = fairlane_nats::NatsOptions::new(test.url());
    options.request_timeout = Duration::from_millis(500);
    let bucket = fairlane_nats::connect(&options)
        .await
        .unwrap()
        .bucket("fl_credits");
    let mut pending = Vec::new();
    let refused = loop {
        match bucket
            .send_put_if("7", "x".into(), Revision::ABSENT, TTL)
            .await
        {
            Ok(write) => pending.push(write),
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, WriteError::Busy { .. }), "{refused:?}");
    assert_eq!(pending.len(), 4_096);
    pending.clear();
    bucket
        .put_if("8", "x".into(), Revision::ABSENT, TTL)
        .await
        .unwrap();
}
