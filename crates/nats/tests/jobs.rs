//! Messages by sequence: store once, read, delete.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use fairlane_nats::objects::ObjectOptions;
use fairlane_nats::{HeaderMap, WriteError};
use fairlane_support::TestNats;

const LANE: &str = "fl.jobs.batch.acme";

#[tokio::test]
async fn a_deduplication_id_stores_once_whatever_the_subject() {
    let test = TestNats::start().await;
    let jobs = test.nats.jobs();
    let first = jobs
        .publish(LANE, Some("acme:k1"), HeaderMap::new(), "a".into())
        .await
        .unwrap();
    assert!(!first.duplicate);
    let again = jobs
        .publish(LANE, Some("acme:k1"), HeaderMap::new(), "b".into())
        .await
        .unwrap();
    assert_eq!((again.seq, again.duplicate), (first.seq, true));
    // Ids belong to the stream: this is why they must name their tenant.
    let other = jobs
        .publish(
            "fl.jobs.batch.other",
            Some("acme:k1"),
            HeaderMap::new(),
            "c".into(),
        )
        .await
        .unwrap();
    assert!(other.duplicate);
}

#[tokio::test]
async fn a_message_is_read_back_with_its_headers_and_nothing_added() {
    let test = TestNats::start().await;
    let jobs = test.nats.jobs();
    let mut headers = HeaderMap::new();
    headers.insert("Fl-Kind", "tagging");
    let stored = jobs
        .publish(LANE, Some("acme:k1"), headers, "body".into())
        .await
        .unwrap();

    let message = jobs.get("FL_JOBS", stored.seq).await.unwrap().unwrap();

    assert_eq!((message.seq, message.subject.as_str()), (stored.seq, LANE));
    assert_eq!(message.payload, "body");
    let names: std::collections::BTreeSet<_> = message
        .headers
        .iter()
        .map(|(name, _)| name.to_string())
        .collect();
    assert_eq!(names, ["Fl-Kind", "Nats-Msg-Id"].map(str::to_owned).into());
    assert!(message.stored_ms > 1_700_000_000_000);
}

#[tokio::test]
async fn a_message_that_is_not_there_is_none_and_a_stream_that_is_not_there_is_an_error() {
    let test = TestNats::start().await;
    assert_eq!(test.nats.jobs().get("FL_JOBS", 99).await.unwrap(), None);
    assert!(test.nats.jobs().get("FL_NOTHING", 1).await.is_err());
}

#[tokio::test]
async fn deleting_twice_or_what_never_was_is_success() {
    let test = TestNats::start().await;
    let jobs = test.nats.jobs();
    let stored = jobs
        .publish(LANE, None, HeaderMap::new(), "a".into())
        .await
        .unwrap();
    jobs.delete("FL_JOBS", stored.seq).await.unwrap();
    assert_eq!(jobs.get("FL_JOBS", stored.seq).await.unwrap(), None);
    jobs.delete("FL_JOBS", stored.seq).await.unwrap();
    jobs.delete("FL_JOBS", 12_345).await.unwrap();
    jobs.delete("FL_NOTHING", 1).await.unwrap_err();
}

#[tokio::test]
async fn submissions_that_nobody_takes_fill_only_their_own_tenant_s_room() {
    let options = ObjectOptions {
        submissions_per_tenant_max: 2,
        ..Default::default()
    };
    let test = TestNats::with(Default::default(), &options).await;
    let jobs = test.nats.jobs();
    let submit = |tenant: &str| {
        let subject = format!("fl.submit.{tenant}");
        let jobs = jobs.clone();
        async move {
            jobs.publish(&subject, None, HeaderMap::new(), "{}".into())
                .await
        }
    };
    submit("noisy").await.unwrap();
    submit("noisy").await.unwrap();
    let full = submit("noisy").await;
    assert!(
        matches!(full, Err(WriteError::SubjectFull { .. })),
        "{full:?}"
    );
    submit("quiet").await.unwrap();
}

#[tokio::test]
async fn a_full_backlog_is_told_apart_and_room_comes_back_with_a_delete() {
    let options = ObjectOptions {
        backlog_per_tenant_max: 2,
        ..Default::default()
    };
    let test = TestNats::with(Default::default(), &options).await;
    let jobs = test.nats.jobs();
    let first = jobs
        .publish(LANE, None, HeaderMap::new(), "1".into())
        .await
        .unwrap();
    jobs.publish(LANE, None, HeaderMap::new(), "2".into())
        .await
        .unwrap();
    let full = jobs.publish(LANE, None, HeaderMap::new(), "3".into()).await;
    assert!(
        matches!(full, Err(WriteError::SubjectFull { .. })),
        "{full:?}"
    );
    jobs.publish("fl.jobs.batch.other", None, HeaderMap::new(), "1".into())
        .await
        .unwrap();
    jobs.delete("FL_JOBS", first.seq).await.unwrap();
    jobs.publish(LANE, None, HeaderMap::new(), "3".into())
        .await
        .unwrap();
}

#[tokio::test]
async fn a_message_that_is_too_large_is_told_apart() {
    let test = TestNats::start().await;
    let body = vec![b'x'; 2 << 20];
    let result = test
        .nats
        .jobs()
        .publish(LANE, None, HeaderMap::new(), body.into())
        .await;
    assert!(
        matches!(result, Err(WriteError::TooLarge { .. })),
        "{result:?}"
    );
}

#[tokio::test]
async fn a_subject_without_a_stream_is_told_apart() {
    let test = TestNats::start().await;
    let result = test
        .nats
        .jobs()
        .publish("nowhere", None, HeaderMap::new(), "x".into())
        .await;
    assert!(
        matches!(result, Err(WriteError::Unavailable { .. })),
        "{result:?}"
    );
}

#[tokio::test]
async fn messages_are_counted_by_subject_across_pages() {
    const TENANTS: u64 = 100_500;
    let test = TestNats::start().await;
    let jobs = test.nats.jobs();
    assert_eq!(jobs.counts("FL_JOBS", ">").await.unwrap(), [].into());
    let mut pending = std::collections::VecDeque::new();
    for number in 0..=TENANTS {
        let subject = format!("fl.jobs.batch.t{}", number.min(TENANTS - 1));
        let sent = jobs.send(&subject, None, HeaderMap::new(), "".into()).await;
        pending.push_back(sent.unwrap());
        if pending.len() == 2_000 {
            pending.pop_front().unwrap().wait().await.unwrap();
        }
    }
    for write in pending {
        write.wait().await.unwrap();
    }
    assert_eq!(jobs.count("FL_JOBS").await.unwrap(), TENANTS + 1);
    let counts = jobs.counts("FL_JOBS", "fl.jobs.batch.*").await.unwrap();
    assert_eq!(counts.len() as u64, TENANTS);
    let last = format!("fl.jobs.batch.t{}", TENANTS - 1);
    assert_eq!((counts["fl.jobs.batch.t0"], counts[&last]), (1, 2));
    let none = jobs.counts("FL_JOBS", "fl.jobs.critical.*").await.unwrap();
    assert_eq!(none, [].into());
}
