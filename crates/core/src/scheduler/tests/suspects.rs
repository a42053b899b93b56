//! Jobs that were in hand when workers died.

use super::*;

fn few_lives() -> Config {
    Config {
        max_deliver: 3,
        ..config()
    }
}

/// Kills the worker of a job so many times.
fn kill(world: &mut World, seq: u64, times: u32) {
    for _ in 0..times {
        let credits = world.grants();
        let credit = credits.iter().find(|credit| credit.seq.0 == seq).unwrap();
        world.start(credit);
        world.lease_ends(seq);
    }
}

fn worker_of(credits: &[Credit], seq: u64) -> Option<&str> {
    let credit = credits.iter().find(|credit| credit.seq.0 == seq)?;
    Some(credit.worker.as_str())
}

#[test]
fn the_last_time_it_runs_alone_and_then_it_is_put_aside() {
    let mut world = World::new(few_lives());
    world.job(1, Priority::Batch, "acme");
    world.worker("a", 2);
    kill(&mut world, 1, 2);
    for seq in 2..=5 {
        world.job(seq, Priority::Batch, "acme");
    }
    let credits = world.grants();
    assert_eq!(seqs(&credits), [1], "the only worker is its own");
    assert_eq!(world.grants(), []);
    world.worker("b", 1);
    assert_eq!(worker_of(&world.grants(), 2), Some("b"));
    world.start(&credits[0]);
    world.lease_ends(1);
    let effects = world.scheduler.dispatch(0);
    assert!(effects.contains(&Effect::PutAside {
        seq: JobSeq(1),
        why: PutAside::Undeliverable { deliveries: 3 }
    }));
    let granted = effects
        .iter()
        .filter(|effect| matches!(effect, Effect::Grant { .. }));
    assert_eq!(granted.count(), 2, "the others have its slots");
}

#[test]
fn a_worker_is_emptied_for_it_and_the_others_go_on() {
    let mut world = World::new(few_lives());
    world.job(1, Priority::Batch, "acme");
    world.worker("a", 2);
    kill(&mut world, 1, 2);
    world.scheduler.suspects.clear();
    for seq in 2..=9 {
        world.job(seq, Priority::Batch, "acme");
    }
    world.worker("b", 4);
    let running = world.grants();
    assert_eq!(running.len(), 6);
    world.scheduler.suspects.insert(JobSeq(1));
    assert_eq!(
        world.scheduler.why(JobSeq(1), 0).why,
        Why::Suspect { workers: 2 }
    );
    for credit in &running {
        world.done(credit);
        let granted = world.grants();
        if let Some(alone) = worker_of(&granted, 1) {
            assert_eq!(alone, "a", "the one with the least");
        }
    }
    assert_eq!(
        world.scheduler.live(),
        3,
        "it, and what was left on the other"
    );
}

#[test]
fn one_that_comes_to_its_end_frees_its_worker_for_others() {
    let mut world = World::new(few_lives());
    world.job(1, Priority::Batch, "acme");
    world.worker("a", 2);
    kill(&mut world, 1, 2);
    let credits = world.grants();
    world.job(2, Priority::Batch, "acme");
    world.job(3, Priority::Batch, "acme");
    assert_eq!(world.grants(), []);
    world.done(&credits[0]);
    assert_eq!(seqs(&world.grants()), [2, 3]);
    assert_eq!(world.scheduler.suspects.len(), 0);
}

#[test]
fn one_that_its_owner_calls_off_or_that_is_late_does_not_wait_any_more() {
    let mut world = World::new(few_lives());
    world.event(Event::Job(JobSeen {
        deadline: Some(500),
        ..seen(1, Priority::Batch, "acme")
    }));
    world.worker("a", 2);
    kill(&mut world, 1, 2);
    let draining = WorkerId::parse("a").unwrap();
    world.event(Event::Worker {
        worker: draining,
        slots: 2,
        draining: true,
    });
    assert_eq!(world.grants(), []);
    world.now = 500;
    let effects = world.scheduler.dispatch(500);
    assert_eq!(
        effects,
        [Effect::PutAside {
            seq: JobSeq(1),
            why: PutAside::DeadlinePassed
        }]
    );
    assert_eq!(world.scheduler.suspects.len(), 0);
}
