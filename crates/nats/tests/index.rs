//! The index of a stream: headers only, in order, across interruptions.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use fairlane_nats::{HeaderMap, Index, IndexEvent, IndexItem};
use fairlane_support::{LIMIT, TestNats, within};

const FILTER: &str = "fl.jobs.*.*";

async fn next(index: &mut Index) -> IndexEvent {
    within(LIMIT, "the next event of an index", index.next())
        .await
        .expect("the index is running")
}

async fn item(index: &mut Index) -> IndexItem {
    match next(index).await {
        IndexEvent::Item(item) => item,
        other => panic!("expected an item, got {other:?}"),
    }
}

async fn publish(test: &TestNats, tenant: &str, body: &str) -> u64 {
    let mut headers = HeaderMap::new();
    headers.insert("Fl-Kind", "tagging");
    let subject = format!("fl.jobs.batch.{tenant}");
    let stored = test
        .nats
        .jobs()
        .publish(&subject, None, headers, body.to_owned().into())
        .await;
    stored.unwrap().seq
}

#[tokio::test]
async fn headers_and_sizes_come_in_sequence_order_without_bodies() {
    let test = TestNats::start().await;
    publish(&test, "acme", "four").await;
    let second = publish(&test, "other", "seven!!").await;
    let mut index = test.nats.index("FL_JOBS", FILTER);

    let first = item(&mut index).await;
    assert_eq!(
        (first.seq, first.subject.as_str(), first.size),
        (1, "fl.jobs.batch.acme", 4)
    );
    assert_eq!(first.headers.get("Fl-Kind").unwrap().as_str(), "tagging");
    assert!(first.stored_ms > 1_700_000_000_000);
    let other = item(&mut index).await;
    assert_eq!((other.seq, other.size), (second, 7));
    assert_eq!(next(&mut index).await, IndexEvent::Current);
    let third = publish(&test, "acme", "").await;
    assert_eq!(item(&mut index).await.seq, third);
}

#[tokio::test]
async fn an_empty_stream_is_current_at_once() {
    let test = TestNats::start().await;
    let mut index = test.nats.index("FL_JOBS", FILTER);
    assert_eq!(next(&mut index).await, IndexEvent::Current);
}

#[tokio::test]
async fn a_restart_of_the_server_neither_repeats_nor_loses() {
    let mut test = TestNats::start().await;
    for _ in 0..10 {
        publish(&test, "acme", "x").await;
    }
    let mut index = test.nats.index("FL_JOBS", FILTER);
    for seq in 1..=10 {
        assert_eq!(item(&mut index).await.seq, seq);
    }
    assert_eq!(next(&mut index).await, IndexEvent::Current);

    test.server.kill9().await;
    test.server.restart().await.unwrap();
    let other = test.connect().await.jobs();
    for _ in 11..=20 {
        other
            .publish("fl.jobs.batch.acme", None, HeaderMap::new(), "x".into())
            .await
            .unwrap();
    }

    let mut expected = 11;
    while expected <= 20 {
        match next(&mut index).await {
            IndexEvent::Item(item) => {
                assert_eq!(item.seq, expected);
                expected += 1;
            }
            IndexEvent::Current | IndexEvent::Stale => {}
            IndexEvent::Reset => panic!("it is the same stream"),
        }
    }
}

#[tokio::test]
async fn a_stream_made_anew_is_announced() {
    let test = TestNats::start().await;
    for _ in 0..5 {
        publish(&test, "acme", "x").await;
    }
    let mut index = test.nats.index("FL_JOBS", FILTER);
    while next(&mut index).await != IndexEvent::Current {}

    test.nats.jetstream.delete_stream("FL_JOBS").await.unwrap();
    fairlane_nats::objects::ensure(&test.nats, &Default::default())
        .await
        .unwrap();
    // More than before, so that the sequences alone do not give it away.
    for _ in 0..9 {
        publish(&test, "acme", "new").await;
    }

    while next(&mut index).await != IndexEvent::Reset {}
    let mut seqs = Vec::new();
    while seqs.len() < 9 {
        match next(&mut index).await {
            IndexEvent::Item(item) => seqs.push(item.seq),
            // The new reading may have begun before the messages were there.
            IndexEvent::Current => {}
            other => panic!("unexpected {other:?}"),
        }
    }
    assert_eq!(seqs, [1, 2, 3, 4, 5, 6, 7, 8, 9]);
}

#[tokio::test]
async fn many_events_can_be_taken_at_once() {
    let test = TestNats::start().await;
    for _ in 0..100 {
        publish(&test, "acme", "x").await;
    }
    let mut index = test.nats.index("FL_JOBS", FILTER);
    let mut events = Vec::new();
    while events.last() != Some(&IndexEvent::Current) {
        let taken = within(LIMIT, "events", index.next_many(&mut events, 64)).await;
        assert!((1..=64).contains(&taken));
    }
    assert_eq!(events.len(), 101);
}

#[tokio::test]
async fn reading_can_begin_at_a_time() {
    let test = TestNats::start().await;
    publish(&test, "acme", "early").await;
    let early = item(&mut test.nats.index("FL_JOBS", FILTER)).await;
    let later = async || publish(&test, "acme", "late").await;
    // The next one is stored in another millisecond.
    let since = early.stored_ms + 1;
    let late = loop {
        let seq = later().await;
        let mut index = test.nats.index_since("FL_JOBS", FILTER, since);
        match next(&mut index).await {
            IndexEvent::Item(item) => break (seq, item, index),
            other => assert_eq!(other, IndexEvent::Current),
        }
    };
    let (seq, first, mut index) = late;
    assert_eq!(first.seq, seq);
    assert_eq!(next(&mut index).await, IndexEvent::Current);
    let last = later().await;
    assert_eq!(item(&mut index).await.seq, last);
}
