//! Taking work: bounds, acks that are certain, restarts, drain.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use async_nats::jetstream::{self, consumer};
use fairlane_nats::objects::ObjectOptions;
use fairlane_nats::{AckError, Delivery, HeaderMap, PullOptions, Puller};
use fairlane_support::{LIMIT, TestNats, eventually, within};

async fn submit(test: &TestNats, count: usize) {
    let jobs = test.nats.jobs();
    for n in 0..count {
        let body = n.to_string();
        jobs.publish("fl.submit.acme", None, HeaderMap::new(), body.into())
            .await
            .unwrap();
    }
}

fn puller(test: &TestNats, in_flight_max: usize) -> Puller {
    Puller::start(
        &test.nats,
        "FL_SUBMIT",
        "producer",
        PullOptions { in_flight_max },
    )
}

async fn next(puller: &mut Puller) -> Delivery {
    within(LIMIT, "a delivery", puller.next())
        .await
        .expect("the puller is running")
}

async fn left(test: &TestNats) -> u64 {
    test.nats
        .jetstream
        .get_stream("FL_SUBMIT")
        .await
        .unwrap()
        .cached_info()
        .state
        .messages
}

async fn consumer_info(test: &TestNats) -> consumer::Info {
    let stream = test.nats.jetstream.get_stream("FL_SUBMIT").await.unwrap();
    stream.consumer_info("producer").await.unwrap()
}

#[tokio::test]
async fn acknowledged_work_leaves_the_queue() {
    let test = TestNats::start().await;
    submit(&test, 1_000).await;
    let mut puller = puller(&test, 64);
    let mut seen = BTreeSet::new();
    for _ in 0..1_000 {
        let delivery = next(&mut puller).await;
        assert_eq!(
            (delivery.subject.as_str(), delivery.count),
            ("fl.submit.acme", 1)
        );
        seen.insert(delivery.seq);
        delivery.ack().await.unwrap();
    }
    assert_eq!(seen.len(), 1_000);
    assert_eq!(left(&test).await, 0);
    assert_eq!(puller.drain().await, 0);
}

#[tokio::test]
async fn no_more_is_taken_than_there_are_slots_for() {
    let test = TestNats::start().await;
    submit(&test, 50).await;
    let mut puller = puller(&test, 8);
    let mut held = Vec::new();
    for _ in 0..8 {
        held.push(next(&mut puller).await);
    }
    // The server has handed out no more than the eight that are held.
    let info = consumer_info(&test).await;
    assert_eq!((info.num_ack_pending, info.num_pending), (8, 42));
    for delivery in held.drain(..) {
        delivery.ack().await.unwrap();
    }
    for _ in 8..50 {
        next(&mut puller).await.ack().await.unwrap();
    }
    assert_eq!(left(&test).await, 0);
}

#[tokio::test]
async fn an_ack_nobody_takes_is_an_error_and_the_librarys_is_not() {
    let test = TestNats::start().await;
    submit(&test, 1).await;
    let mut puller = puller(&test, 1);
    let delivery = next(&mut puller).await;
    let stream = test.nats.jetstream.get_stream("FL_SUBMIT").await.unwrap();
    stream.delete_consumer("producer").await.unwrap();
    let result = delivery.ack().await;
    assert!(
        matches!(result, Err(AckError::NotTaken { seq: 1 })),
        "{result:?}"
    );

    // The same with the library. When this fails, it has been fixed.
    let pull: consumer::PullConsumer = stream
        .create_consumer(consumer::pull::Config {
            durable_name: Some("other".to_owned()),
            ..Default::default()
        })
        .await
        .unwrap();
    let mut batch = pull.fetch().max_messages(1).messages().await.unwrap();
    let message: jetstream::Message = futures::StreamExt::next(&mut batch).await.unwrap().unwrap();
    stream.delete_consumer("other").await.unwrap();
    message.double_ack().await.unwrap();
    assert_eq!(left(&test).await, 1, "the library said it was acknowledged");
}

#[tokio::test]
async fn work_handed_back_comes_again_with_its_count() {
    let test = TestNats::start().await;
    submit(&test, 1).await;
    let mut puller = puller(&test, 1);
    let first = next(&mut puller).await;
    first.nak(Duration::ZERO).await.unwrap();
    drop(first);
    let second = next(&mut puller).await;
    assert_eq!(second.count, 2);
    second.term("hopeless").await.unwrap();
    drop(second);
    assert_eq!(left(&test).await, 0);
}

#[tokio::test]
async fn draining_hands_back_what_was_not_taken_and_keeps_what_was() {
    let test = TestNats::start().await;
    submit(&test, 20).await;
    let mut puller = puller(&test, 10);
    let taken = next(&mut puller).await;
    eventually(LIMIT, "all slots to be filled", || async {
        match consumer_info(&test).await.num_ack_pending {
            10 => Ok(()),
            pending => Err(format!("{pending} delivered")),
        }
    })
    .await;

    let handed_back = within(LIMIT, "the puller to drain", puller.drain()).await;

    assert_eq!(handed_back, 9);
    taken.ack().await.unwrap();
    let info = consumer_info(&test).await;
    assert_eq!(
        info.num_waiting, 0,
        "no request may be left to burn a delivery"
    );
    assert_eq!(left(&test).await, 19);
    // Handed back means at once, long before the ack wait of 30 s.
    let mut other = self::puller(&test, 32);
    let mut counts = Vec::new();
    for _ in 0..19 {
        let delivery = next(&mut other).await;
        counts.push(delivery.count);
        delivery.ack().await.unwrap();
    }
    assert_eq!(
        counts.iter().filter(|count| **count == 2).count(),
        9,
        "{counts:?}"
    );
}

/// Stopping while messages arrive must not leave any of them to the ack wait of 30 s.
#[tokio::test]
async fn what_arrives_while_draining_is_there_for_the_next_at_once() {
    let test = TestNats::start().await;
    for _ in 0..3 {
        let mut puller = puller(&test, 16);
        submit(&test, 1).await;
        let taken = next(&mut puller).await;
        tokio::join!(submit(&test, 12), puller.drain());
        taken.ack().await.unwrap();
    }
    let mut puller = puller(&test, 16);
    for _ in 0..36 {
        next(&mut puller).await.ack().await.unwrap();
    }
    assert_eq!(left(&test).await, 0);
}

#[tokio::test]
async fn work_is_taken_up_again_after_a_server_restart() {
    let mut test = TestNats::start().await;
    submit(&test, 1).await;
    let mut puller = puller(&test, 4);
    next(&mut puller).await.ack().await.unwrap();
    test.server.restart().await.unwrap();
    eventually(LIMIT, "publishing after the restart", || async {
        let jobs = test.nats.jobs();
        jobs.publish("fl.submit.acme", Some("a"), HeaderMap::new(), "x".into())
            .await
    })
    .await;
    next(&mut puller).await.ack().await.unwrap();
    assert_eq!(left(&test).await, 0);
}

/// Without the report of progress on receipt, a restarted server delivers at once again what had
/// waited for longer than the ack wait before it was first delivered.
#[tokio::test]
async fn a_restart_does_not_redeliver_early_what_had_waited_long() {
    let ack_wait = Duration::from_secs(3);
    let options = ObjectOptions {
        submit_ack_wait: ack_wait,
        ..Default::default()
    };
    let mut test = TestNats::with(Default::default(), &options).await;
    submit(&test, 1).await;
    let published = Instant::now();
    eventually(
        LIMIT,
        "the message to be older than the ack wait",
        || async {
            if published.elapsed() > ack_wait {
                Ok(())
            } else {
                Err("too young")
            }
        },
    )
    .await;
    let mut puller = puller(&test, 1);
    let first = next(&mut puller).await;
    let received = Instant::now();
    // The report travels before this request on the same connection.
    assert_eq!(consumer_info(&test).await.num_ack_pending, 1);
    drop(first);

    test.server.restart().await.unwrap();

    let second = next(&mut puller).await;
    assert_eq!(second.count, 2);
    let after = received.elapsed();
    // The server keeps the time of a delivery in whole seconds over a restart.
    assert!(
        after + Duration::from_millis(1_200) >= ack_wait,
        "delivered again after {after:?}"
    );
}

#[tokio::test]
async fn progress_keeps_a_delivery_from_being_given_to_another() {
    let options = ObjectOptions {
        submit_ack_wait: Duration::from_secs(1),
        ..Default::default()
    };
    let test = TestNats::with(Default::default(), &options).await;
    submit(&test, 1).await;
    let mut puller = puller(&test, 2);
    let delivery = next(&mut puller).await;
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(3) {
        delivery.progress().await.unwrap();
        let other = tokio::time::timeout(Duration::from_millis(300), puller.next()).await;
        assert!(other.is_err(), "delivered to another: {other:?}");
    }
    delivery.ack().await.unwrap();
}

#[tokio::test]
async fn a_puller_waits_for_a_consumer_that_is_not_there_yet() {
    let test = TestNats::start().await;
    let stream = test.nats.jetstream.get_stream("FL_SUBMIT").await.unwrap();
    stream.delete_consumer("producer").await.unwrap();
    let mut puller = puller(&test, 4);
    submit(&test, 1).await;
    fairlane_nats::objects::ensure(&test.nats, &Default::default())
        .await
        .unwrap();
    next(&mut puller).await.ack().await.unwrap();
}
