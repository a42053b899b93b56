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

#[test]
fn one_goes_to_see_whether_a_gate_is_open_if_nobody_else_does() {
    let mut world = World::new(few_lives());
    world.job(1, Priority::Batch, "acme");
    world.worker("a", 1);
    kill(&mut world, 1, 1);
    let credits = world.grants();
    world.start(&credits[0]);
    world.job(2, Priority::Batch, "acme");
    world.worker("b", 1);
    let other = world.grants();
    let gone = Pause {
        scope: Scope::Model,
        until: 60_000,
        probe: true,
    };
    world.turned_away(&other[0], None, Some(gone), 1_000_000);
    world.lease_ends(1);
    assert_eq!(world.grants(), []);
    world.now = 60_000;
    world.worker("b", 1);
    assert_eq!(seqs(&world.grants()), [1]);
}

#[test]
fn one_that_is_large_runs_though_small_jobs_take_all_there_is() {
    let mut world = World::new(Config {
        default_limits: Limits {
            requests: 600_000,
            input_tokens: 60_000,
            output_tokens: 600_000_000,
        },
        ..few_lives()
    });
    world.event(Event::Job(JobSeen {
        tokens: Tokens {
            input: 9_000,
            output: 1,
        },
        ..seen(1, Priority::Batch, "acme")
    }));
    for name in ["a", "b"] {
        world.worker(name, 4);
    }
    kill(&mut world, 1, 1);
    world.now = 60_000;
    world.worker("a", 4);
    kill(&mut world, 1, 1);
    let pool = world
        .scheduler
        .pools
        .find(&seen(1, Priority::Batch, "acme").pool);
    let left = world.scheduler.pools(world.now)[0].left[1];
    let all = Tokens {
        input: left.unsigned_abs(),
        output: 0,
    };
    world.scheduler.pools.limits(pool.unwrap()).charge(all);
    for seq in 2..=2_000 {
        world.job(seq, Priority::Batch, "acme");
    }
    let mut running: Vec<(Millis, Credit)> = Vec::new();
    for _ in 0..1_200 {
        for name in ["a", "b"] {
            world.worker(name, 4);
        }
        for credit in world.grants() {
            if credit.seq == JobSeq(1) {
                return;
            }
            running.push((world.now + 2_000, credit));
        }
        world.now += 250;
        let now = world.now;
        for (_, credit) in running.extract_if(.., |(until, _)| *until <= now) {
            world.done(&credit);
        }
    }
    panic!(
        "{} others ran in five minutes",
        2_000 - world.scheduler.known()
    );
}

#[test]
fn a_worker_that_is_empty_is_taken_before_the_one_that_is_being_emptied() {
    let mut world = World::new(few_lives());
    world.job(1, Priority::Batch, "acme");
    world.worker("a", 1);
    kill(&mut world, 1, 1);
    let credits = world.grants();
    world.start(&credits[0]);
    for seq in 2..=5 {
        world.job(seq, Priority::Batch, "acme");
    }
    for name in ["b", "c"] {
        world.worker(name, 2);
    }
    let others = world.grants();
    assert_eq!(others.len(), 4, "and all are busy");
    world.worker("a", 0);
    world.lease_ends(1);
    assert_eq!(world.grants(), [], "one is being emptied");
    for credit in others.iter().filter(|credit| credit.worker.as_str() == "c") {
        world.done(credit);
    }
    assert_eq!(worker_of(&world.grants(), 1), Some("c"));
}

#[test]
fn the_next_leader_knows_how_many_workers_died_with_a_job() {
    let mut old = World::new(few_lives());
    old.job(1, Priority::Batch, "acme");
    old.worker("a", 2);
    kill(&mut old, 1, 2);
    let books = old.scheduler.snapshot(old.now);
    assert_eq!(books.lost, [(JobSeq(1), 2)]);
    let mut next = World::new(few_lives());
    next.scheduler.restore(books);
    next.worker("b", 2);
    next.job(1, Priority::Batch, "acme");
    for seq in 2..=3 {
        next.job(seq, Priority::Batch, "acme");
    }
    let credits = next.grants();
    assert_eq!(seqs(&credits), [1], "alone, and for the last time");
    next.start(&credits[0]);
    next.lease_ends(1);
    let effects = next.scheduler.dispatch(0);
    assert!(effects.contains(&Effect::PutAside {
        seq: JobSeq(1),
        why: PutAside::Undeliverable { deliveries: 3 }
    }));
    // What has ended is forgotten.
    next.event(Event::PutAside { seq: JobSeq(1) });
    assert_eq!(next.scheduler.snapshot(1).lost, []);
}
