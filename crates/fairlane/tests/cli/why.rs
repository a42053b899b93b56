//! `fairlane why`, answered by a scheduler that leads.

use fairlane_core::Priority;
use fairlane_support::{LIMIT, TestNats, eventually};
use fairlane_wire::Phase;

use crate::world::{Ran, World, record, save};

/// A queued job of acme with its record.
async fn queue(server: &TestNats, id: &str) {
    let seq = fairlane_support::queue(&server.nats, Priority::Batch, "acme", id).await;
    let mut queued = record("acme", id, Phase::Queued);
    queued.sequence = Some(seq);
    save(&server.nats, &queued).await;
}

/// Asks until the answer has `words`: the scheduler may be starting.
async fn says(world: &World, args: &[&str], words: &str) -> Ran {
    eventually(LIMIT, words, || async {
        let ran = world.run(args).await;
        if ran.out.contains(words) {
            Ok(ran)
        } else {
            Err(format!("{ran:?}"))
        }
    })
    .await
}

#[tokio::test]
async fn jobs_and_tenants_are_told_what_they_wait_for() {
    let server = TestNats::start().await;
    let world = World::on(&server);
    queue(&server, "a").await;
    queue(&server, "b").await;
    let ran = world.run(&["why", "a"]).await;
    assert_eq!(ran.code, Some(1), "{ran:#?}");
    assert!(ran.talk.contains("no scheduler leads"), "{ran:#?}");

    let _scheduler = world.start(&["scheduler"]);
    let ran = says(
        &world,
        &["why", "b"],
        "1 jobs of its own tenant stand before it",
    )
    .await;
    ran.has("  in line: batch of haiku-4.5, 1 of its tenant ahead; its turn: unknown, nothing was granted there lately");
    let ran = says(&world, &["why", "a", "-o", "json"], "no_worker").await;
    assert_eq!(ran.json()["place"]["ahead"], 0);

    let ran = says(&world, &["why", "--tenant", "acme"], "2 jobs in line").await;
    ran.has("acme: weight 1, 0 in flight of at most 1000");
    ran.has("  input tokens today: 0 of 100000");
    let ran = world.run(&["why", "--tenant", "acme", "-o", "json"]).await;
    assert_eq!(ran.json()["lines"][0]["why"]["reason"], "no_worker");
    let ran = world.run(&["why", "--tenant", "nobody"]).await;
    assert_eq!(ran.code, Some(3), "{ran:#?}");
}
