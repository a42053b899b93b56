//! Rare orders of events, and numbers at their ends.

use super::*;

#[test]
fn a_job_that_is_being_put_aside_is_asked_for_once_at_a_time() {
    let mut world = World::new(Config {
        max_deliver: 1,
        ..config()
    });
    world.event(Event::Job(JobSeen {
        deadline: Some(500),
        ..seen(1, Priority::Batch, "acme")
    }));
    world.worker("w", 1);
    let credits = world.grants();
    world.start(&credits[0]);
    world.lease_ends(1);
    assert_eq!(world.scheduler.dispatch(0).len(), 1, "undeliverable");
    world.now = 500;
    assert_eq!(
        world.scheduler.dispatch(500),
        [],
        "its deadline passes meanwhile"
    );
    world.event(Event::PutAsideFailed { seq: JobSeq(1) });
    assert_eq!(world.scheduler.dispatch(500 + RETRY_AFTER).len(), 1);
}

#[test]
fn a_deadline_is_not_remembered_longer_than_its_job() {
    let mut world = World::new(config());
    world.worker("w", 1);
    for (seq, not_before) in [(1, None), (2, Some(800))] {
        world.event(Event::Job(JobSeen {
            not_before,
            deadline: Some(1_000_000_000),
            ..seen(seq, Priority::Batch, "acme")
        }));
    }
    let credits = world.grants();
    world.done(&credits[0]);
    world.event(Event::PutAside { seq: JobSeq(2) });
    assert_eq!(world.scheduler.timers.len(), 0);
}

/// A grant that failed, landed after all, and was tried again with what was learned meanwhile.
fn failed_and_landed(world: &mut World) -> (Credit, Credit) {
    world.worker("w", 1);
    world.job(1, Priority::Batch, "acme");
    let Some(Effect::Grant { credit: first, .. }) = world.scheduler.dispatch(0).pop() else {
        panic!("no grant")
    };
    world.event(Event::GrantFailed { seq: JobSeq(1) });
    let kind = seen(1, Priority::Batch, "acme").kind;
    let tenant = world.scheduler.tenant(&first.tenant);
    let learned = &mut world.scheduler.learned;
    let profile = learned.profile(tenant.0, &kind, &first.model);
    let used = Tokens {
        input: 5_000,
        output: 7,
    };
    learned.learn(profile, first.tokens, used);
    world.now = HOLD;
    world.worker("w", 1);
    let Some(Effect::Grant { credit: again, .. }) = world.scheduler.dispatch(HOLD).pop() else {
        panic!("no second grant")
    };
    assert_ne!(first.tokens, again.tokens);
    (first, again)
}

#[test]
fn a_grant_that_landed_after_all_is_not_taken_for_the_one_that_repeats_it() {
    let mut world = World::new(config());
    let (first, again) = failed_and_landed(&mut world);
    world.revision += 1;
    world.event(Event::Held {
        credit: first.clone(),
        started: false,
        revision: world.revision,
    });
    world.event(Event::GrantRefused { seq: again.seq });
    world.settle(&first, Outcome::Finished, Some(first.tokens));
    let tenant = world.scheduler.tenant(&first.tenant);
    let reserved = world.scheduler.tenants.standing(tenant).used_today(0);
    assert_eq!((world.scheduler.live(), reserved), (0, 0));
    let left = world.scheduler.pools(world.now)[0].left;
    assert_eq!(
        left[1],
        100_000_000 + 10_000_000 - 500,
        "of a minute and a second"
    );
}

#[test]
fn what_a_grant_took_that_was_seen_only_when_it_was_over_is_charged() {
    let mut world = World::new(config());
    let (first, _) = failed_and_landed(&mut world);
    world.event(Event::GrantRefused { seq: first.seq });
    world.settle(&first, Outcome::Finished, Some(first.tokens));
    let left = world.scheduler.pools(world.now)[0].left;
    assert_eq!(
        left[1],
        100_000_000 + 10_000_000 - 500,
        "of a minute and a second"
    );
}

#[test]
fn asking_what_a_tenant_waits_for_changes_no_account() {
    let account = |asks: bool| {
        let mut world = World::new(config());
        for seq in 1..=9 {
            world.job(seq, Priority::Batch, "acme");
        }
        world.worker("w", 1);
        let credits = world.grants();
        let used = Tokens {
            input: 50_000,
            output: 9_000,
        };
        // The next one is the head already, as costly as it was thought to be.
        world.settle(&credits[0], Outcome::Finished, Some(used));
        let acme = TenantId::parse("acme").unwrap();
        if asks {
            world.scheduler.why_tenant(&acme, world.now);
        }
        let credits = world.grants();
        world.settle(&credits[0], Outcome::Finished, Some(used));
        balance(&mut world.scheduler, world.now, "acme")
    };
    assert_eq!(account(true), account(false));
}

#[test]
fn a_deadline_that_passed_on_a_worker_that_died_is_missed_though_no_other_is_there() {
    let mut world = World::new(config());
    world.event(Event::Job(JobSeen {
        deadline: Some(100),
        ..seen(1, Priority::Batch, "acme")
    }));
    world.worker("w", 1);
    let credits = world.grants();
    world.start(&credits[0]);
    world.now = 10_000;
    assert_eq!(world.scheduler.dispatch(world.now), []);
    world.lease_ends(1);
    let why = PutAside::DeadlinePassed;
    assert_eq!(
        world.scheduler.dispatch(world.now),
        [Effect::PutAside {
            seq: JobSeq(1),
            why
        }]
    );
}

#[test]
fn workers_that_claim_endless_slots_are_believed_and_do_no_harm() {
    let mut world = World::new(config());
    world.worker("v", u32::MAX);
    world.worker("w", u32::MAX);
    world.job(1, Priority::Batch, "acme");
    assert_eq!(world.grants().len(), 1);
}

#[test]
fn what_is_granted_in_the_millisecond_of_the_snapshot_is_not_taken_to_be_in_it() {
    let mut world = World::new(config());
    world.worker("w", 2);
    world.job(1, Priority::Batch, "acme");
    world.grants();
    let snapshot = world.scheduler.snapshot(world.now);
    world.job(2, Priority::Batch, "acme");
    let late = world.grants();
    let mut next = successor(&world, snapshot.clone());
    let before = next.scheduler.pools(next.now)[0].left;
    next.event(Event::Held {
        credit: late[0].clone(),
        started: false,
        revision: world.revision,
    });
    let after = next.scheduler.pools(next.now)[0].left;
    assert_eq!(before[1] - after[1], 500);
}
