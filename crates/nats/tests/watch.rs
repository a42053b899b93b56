//! Watches: state, changes, and what happens to them when the server goes away.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::time::Duration;

use fairlane_nats::embedded::ServerOptions;
use fairlane_nats::watch::{Event, Watch};
use fairlane_nats::{Bucket, Content, Entry, Revision};
use fairlane_support::{LIMIT, TestNats, within};

const MINUTE: Duration = Duration::from_secs(60);

async fn next(watch: &mut Watch) -> Event {
    within(LIMIT, "the next event of a watch", watch.next())
        .await
        .expect("the watch is running")
}

async fn change(watch: &mut Watch) -> Entry {
    match next(watch).await {
        Event::Change(entry) => entry,
        other => panic!("expected a change, got {other:?}"),
    }
}

type View = BTreeMap<String, String>;

fn apply(entry: &Entry, view: &mut View) {
    let key = entry.key.clone();
    match &entry.content {
        Content::Live(value) => view.insert(key, String::from_utf8(value.to_vec()).unwrap()),
        Content::Deleted(_) | Content::Expired => view.remove(&key),
    };
}

/// Applies events until the view is current.
async fn settle(watch: &mut Watch, view: &mut View) {
    loop {
        match next(watch).await {
            Event::Change(entry) => apply(&entry, view),
            Event::Current => return,
            Event::Stale => {}
        }
    }
}

/// Applies events until the view is as expected, whether by reading anew or by changes after that.
/// Gives the revisions of the changes.
async fn until(watch: &mut Watch, view: &mut View, expected: &View) -> Vec<Revision> {
    let mut revisions = Vec::new();
    while view != expected {
        if let Event::Change(entry) = next(watch).await {
            revisions.push(entry.revision);
            apply(&entry, view);
        }
    }
    revisions
}

fn view(pairs: &[(&str, &str)]) -> View {
    pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

async fn put(bucket: &Bucket, key: &str, value: &str) -> Revision {
    bucket
        .put(key, value.to_owned().into(), None)
        .await
        .unwrap()
}

#[tokio::test]
async fn the_state_comes_first_with_tombstones_then_current_then_changes_in_order() {
    let test = TestNats::start().await;
    let bucket = test.nats.bucket("fl_credits");
    put(&bucket, "1", "old").await;
    let live = put(&bucket, "1", "new").await;
    let held = put(&bucket, "2", "held").await;
    let gone = bucket
        .tombstone_if("2", held, "bill".into(), MINUTE)
        .await
        .unwrap();

    let mut watch = bucket.watch();
    let first = change(&mut watch).await;
    assert_eq!((first.key.as_str(), first.revision), ("1", live));
    assert_eq!(first.value().unwrap(), "new");
    let second = change(&mut watch).await;
    assert_eq!((second.key.as_str(), second.revision), ("2", gone));
    assert_eq!(second.content, Content::Deleted("bill".into()));
    assert_eq!(next(&mut watch).await, Event::Current);

    let third = bucket
        .tombstone_if("1", live, "".into(), MINUTE)
        .await
        .unwrap();
    let fourth = put(&bucket, "3", "x").await;
    assert_eq!(change(&mut watch).await.revision, third);
    assert_eq!(change(&mut watch).await.revision, fourth);
}

#[tokio::test]
async fn the_end_of_a_ttl_is_seen() {
    let test = TestNats::start().await;
    let bucket = test.nats.bucket("fl_credits");
    let mut watch = bucket.watch();
    assert_eq!(next(&mut watch).await, Event::Current);
    let ttl = Some(Duration::from_secs(1));
    let put = bucket
        .put_if("7", "me".into(), Revision::ABSENT, ttl)
        .await
        .unwrap();
    assert_eq!(change(&mut watch).await.revision, put);
    let expired = change(&mut watch).await;
    assert_eq!(
        (expired.key.as_str(), expired.content),
        ("7", Content::Expired)
    );
    assert!(expired.revision > put);
}

#[tokio::test]
async fn a_watch_of_some_keys_sees_no_others() {
    let test = TestNats::start().await;
    let bucket = test.nats.bucket("fl_status");
    put(&bucket, "acme.1", "a").await;
    put(&bucket, "other.1", "b").await;
    let mut watch = bucket.watch_keys("acme.*");
    let mut seen = View::new();
    settle(&mut watch, &mut seen).await;
    assert_eq!(seen, view(&[("acme.1", "a")]));
    put(&bucket, "other.2", "c").await;
    put(&bucket, "acme.2", "d").await;
    assert_eq!(change(&mut watch).await.key, "acme.2");
}

#[tokio::test]
async fn after_a_server_restart_the_watch_shows_what_is_there_now() {
    let mut test = TestNats::start().await;
    let bucket = test.nats.bucket("fl_credits");
    put(&bucket, "0", "unchanged").await;
    put(&bucket, "1", "a").await;
    let held = put(&bucket, "2", "b").await;
    let mut watch = bucket.watch();
    let mut seen = View::new();
    settle(&mut watch, &mut seen).await;

    test.server.restart().await.unwrap();
    // A connection of its own, so that the changes are made as early as possible.
    let other = test.connect().await.bucket("fl_credits");
    other
        .tombstone_if("2", held, "".into(), MINUTE)
        .await
        .unwrap();
    put(&other, "1", "c").await;
    put(&other, "3", "d").await;

    let expected = view(&[("0", "unchanged"), ("1", "c"), ("3", "d")]);
    let revisions = until(&mut watch, &mut seen, &expected).await;
    assert!(revisions.is_sorted(), "{revisions:?}");
    assert!(
        revisions.iter().all(|revision| *revision > held),
        "replayed: {revisions:?}"
    );
}

#[tokio::test]
async fn keys_that_vanished_without_a_trace_while_nobody_looked_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let options = || ServerOptions {
        dir: Some(dir.path().to_owned()),
        ..Default::default()
    };
    let mut test = TestNats::with(options(), &Default::default()).await;
    let bucket = test.nats.bucket("fl_credits");
    let held = put(&bucket, "1", "a").await;
    put(&bucket, "2", "b").await;
    let mut watch = bucket.watch();
    let mut seen = View::new();
    settle(&mut watch, &mut seen).await;

    // What a long outage does: the key goes, and its tombstone goes too. The same data under
    // another port, so that the watch cannot look.
    test.server.kill9().await;
    let mut hidden = TestNats::bare(options()).await;
    let stream = hidden
        .nats
        .jetstream
        .get_stream("KV_fl_credits")
        .await
        .unwrap();
    stream.purge().filter("$KV.fl_credits.1").await.unwrap();
    hidden.server.stop().await;
    test.server.restart().await.unwrap();

    loop {
        match next(&mut watch).await {
            Event::Change(entry) => {
                assert_eq!(entry.key, "1");
                assert!(entry.value().is_none(), "{entry:?}");
                assert!(entry.revision >= held);
                break;
            }
            Event::Current | Event::Stale => {}
        }
    }
}

#[tokio::test]
async fn a_bucket_made_anew_is_watched_from_its_beginning() {
    let test = TestNats::start().await;
    let bucket = test.nats.bucket("fl_credits");
    put(&bucket, "1", "a").await;
    put(&bucket, "2", "b").await;
    let mut watch = bucket.watch();
    let mut seen = View::new();
    settle(&mut watch, &mut seen).await;

    test.nats
        .jetstream
        .delete_stream("KV_fl_credits")
        .await
        .unwrap();
    fairlane_nats::objects::ensure(&test.nats, &Default::default())
        .await
        .unwrap();
    put(&bucket, "3", "c").await;

    until(&mut watch, &mut seen, &view(&[("3", "c")])).await;
}

#[tokio::test]
async fn a_slow_reader_makes_the_server_wait_and_loses_nothing() {
    let test = TestNats::start().await;
    let bucket = test.nats.bucket("fl_credits");
    let mut watch = bucket.watch();
    assert_eq!(next(&mut watch).await, Event::Current);
    for hundred in 0..60 {
        let mut pending = Vec::new();
        for key in hundred * 100..(hundred + 1) * 100 {
            let key = format!("{key}");
            let sent = bucket
                .send_put_if(&key, "x".into(), Revision::ABSENT, None)
                .await;
            pending.push(sent.unwrap());
        }
        for write in pending {
            write.wait().await.unwrap();
        }
    }
    for key in 0..6_000 {
        assert_eq!(change(&mut watch).await.key, key.to_string());
    }
}

#[tokio::test]
async fn a_dropped_watch_leaves_no_consumer_behind() {
    let test = TestNats::start().await;
    let bucket = test.nats.bucket("fl_credits");
    let mut watch = bucket.watch();
    assert_eq!(next(&mut watch).await, Event::Current);
    let consumers = || async {
        let stream = test
            .nats
            .jetstream
            .get_stream("KV_fl_credits")
            .await
            .unwrap();
        stream.cached_info().state.consumer_count
    };
    assert_eq!(consumers().await, 1);
    drop(watch);
    fairlane_support::eventually(LIMIT, "the consumer to go", || async {
        match consumers().await {
            0 => Ok(()),
            count => Err(format!("{count} consumers")),
        }
    })
    .await;
}

#[tokio::test]
async fn a_consumer_deleted_by_somebody_else_is_replaced() {
    let test = TestNats::start().await;
    let bucket = test.nats.bucket("fl_credits");
    let mut watch = bucket.watch();
    assert_eq!(next(&mut watch).await, Event::Current);
    let stream = test
        .nats
        .jetstream
        .get_stream("KV_fl_credits")
        .await
        .unwrap();
    let names: Vec<String> = futures::TryStreamExt::try_collect(stream.consumer_names())
        .await
        .unwrap();
    stream.delete_consumer(&names[0]).await.unwrap();
    put(&bucket, "1", "a").await;
    assert_eq!(next(&mut watch).await, Event::Stale);
    until(&mut watch, &mut View::new(), &view(&[("1", "a")])).await;
}

/// A server that stands still without closing its connections, as behind a broken network.
#[tokio::test]
async fn silence_is_noticed_and_overcome() {
    let test = TestNats::start().await;
    let bucket = test.nats.bucket("fl_credits");
    let mut watch = bucket.watch();
    assert_eq!(next(&mut watch).await, Event::Current);
    let pid = nix::unistd::Pid::from_raw(i32::try_from(test.server.pid().unwrap()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGSTOP).unwrap();
    assert_eq!(next(&mut watch).await, Event::Stale);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGCONT).unwrap();
    assert_eq!(next(&mut watch).await, Event::Current);
    put(&bucket, "1", "a").await;
    assert_eq!(change(&mut watch).await.key, "1");
}
