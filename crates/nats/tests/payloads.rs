//! Large bodies: whole or not at all.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use bytes::Bytes;
use fairlane_nats::payloads::PayloadError;
use fairlane_support::TestNats;
use tokio::io::AsyncReadExt;

const MAX: usize = 8 << 20;

fn body(size: usize) -> Bytes {
    (0..size).map(|n| u8::try_from(n % 251).unwrap()).collect()
}

#[tokio::test]
async fn a_body_of_many_chunks_comes_back_unchanged_for_us_and_for_ordinary_clients() {
    let test = TestNats::start().await;
    let payloads = test.nats.payloads();
    for size in [0, 1, 128 << 10, 3_000_001] {
        payloads.put("acme.j1", &body(size), MAX).await.unwrap();
        assert_eq!(
            payloads.get("acme.j1", MAX).await.unwrap(),
            body(size),
            "{size} bytes"
        );
    }
    let store = test
        .nats
        .jetstream
        .get_object_store("fl_payloads")
        .await
        .unwrap();
    let mut object = store.get("acme.j1").await.unwrap();
    let mut bytes = Vec::new();
    object.read_to_end(&mut bytes).await.unwrap();
    assert_eq!(bytes, body(3_000_001));
}

#[tokio::test]
async fn more_than_allowed_is_neither_stored_nor_read() {
    let test = TestNats::start().await;
    let payloads = test.nats.payloads();
    let refused = payloads.put("acme.j1", &body(101), 100).await;
    assert!(matches!(
        refused,
        Err(PayloadError::TooLarge {
            size: 101,
            size_max: 100,
            ..
        })
    ));
    assert!(matches!(
        payloads.get("acme.j1", MAX).await,
        Err(PayloadError::Missing { .. })
    ));
    payloads.put("acme.j1", &body(101), MAX).await.unwrap();
    assert!(matches!(
        payloads.get("acme.j1", 100).await,
        Err(PayloadError::TooLarge { .. })
    ));
}

#[tokio::test]
async fn a_missing_chunk_and_a_changed_chunk_are_both_noticed() {
    let test = TestNats::start().await;
    let payloads = test.nats.payloads();
    payloads.put("acme.j1", &body(300_000), MAX).await.unwrap();
    let store = test
        .nats
        .jetstream
        .get_object_store("fl_payloads")
        .await
        .unwrap();
    let nuid = store.info("acme.j1").await.unwrap().nuid;
    let subject = format!("$O.fl_payloads.C.{nuid}");
    let jobs = test.nats.jobs();
    let first = jobs.get("OBJ_fl_payloads", 1).await.unwrap().unwrap();
    assert_eq!(first.subject, subject);
    jobs.delete("OBJ_fl_payloads", 1).await.unwrap();
    let missing = payloads.get("acme.j1", MAX).await;
    assert!(
        matches!(missing, Err(PayloadError::Damaged { .. })),
        "{missing:?}"
    );

    // A chunk of the right size at the end, with the wrong bytes.
    let size = first.payload.len();
    jobs.publish(&subject, None, Default::default(), vec![0; size].into())
        .await
        .unwrap();
    let changed = payloads.get("acme.j1", MAX).await;
    assert!(
        matches!(&changed, Err(PayloadError::Damaged { what, .. }) if what.contains("digest")),
        "{changed:?}"
    );
}

#[tokio::test]
async fn deleting_is_final_and_may_be_repeated() {
    let test = TestNats::start().await;
    let payloads = test.nats.payloads();
    payloads.put("acme.j1", &body(300_000), MAX).await.unwrap();
    payloads.delete("acme.j1").await.unwrap();
    assert!(matches!(
        payloads.get("acme.j1", MAX).await,
        Err(PayloadError::Missing { .. })
    ));
    payloads.delete("acme.j1").await.unwrap();
    payloads.delete("acme.never").await.unwrap();
}
