//! What owners decide about their jobs.

use super::*;

/// What is put aside now.
fn asides(world: &mut World) -> Vec<(u64, PutAside)> {
    let effects = world.scheduler.dispatch(world.now);
    let aside = |effect| match effect {
        Effect::PutAside { seq, why } => Some((seq.0, why)),
        Effect::Grant { .. } | Effect::Notice(_) => None,
    };
    effects.into_iter().filter_map(aside).collect()
}

fn call_off(world: &mut World, seq: u64) {
    world.event(Event::CalledOff { seq: JobSeq(seq) });
}

#[test]
fn a_job_that_is_called_off_leaves_whatever_stands_before_it() {
    let mut world = World::new(config());
    world.job(1, Priority::Batch, "acme");
    world.job(2, Priority::Batch, "acme");
    call_off(&mut world, 2);
    assert_eq!(asides(&mut world), [(2, PutAside::CalledOff)]);
    world.event(Event::PutAside { seq: JobSeq(2) });
    world.worker("w", 2);
    let granted: Vec<u64> = world.grants().iter().map(|credit| credit.seq.0).collect();
    assert_eq!(granted, [1]);
}

#[test]
fn a_parked_job_that_is_called_off_leaves_before_its_time() {
    let mut world = World::new(config());
    world.job(1, Priority::Batch, "acme");
    world.worker("w", 1);
    let credits = world.grants();
    world.settle(&credits[0], Outcome::Parked { until: 5_000 }, None);
    call_off(&mut world, 1);
    assert_eq!(asides(&mut world), [(1, PutAside::CalledOff)]);
}

#[test]
fn a_running_job_that_is_called_off_is_its_workers_until_that_dies() {
    let mut world = World::new(config());
    world.job(1, Priority::Batch, "acme");
    world.worker("w", 1);
    let credits = world.grants();
    world.start(&credits[0]);
    call_off(&mut world, 1);
    assert_eq!(asides(&mut world), []);
    world.lease_ends(1);
    assert_eq!(asides(&mut world), [(1, PutAside::CalledOff)]);
    assert_eq!(world.scheduler.live(), 0);
}

#[test]
fn a_job_that_was_not_called_off_after_all_runs() {
    let mut world = World::new(config());
    world.job(1, Priority::Batch, "acme");
    world.worker("w", 1);
    call_off(&mut world, 1);
    assert_eq!(asides(&mut world).len(), 1);
    world.event(Event::Kept { seq: JobSeq(1) });
    assert_eq!(world.grants().len(), 1);
}

#[test]
fn a_job_that_asks_leaves_when_nobody_has_answered_in_time() {
    let mut world = World::new(config());
    world.job(1, Priority::Batch, "acme");
    world.worker("w", 1);
    let credits = world.grants();
    world.settle(&credits[0], Outcome::Asked { until: 5_000 }, None);
    assert_eq!(asides(&mut world), []);
    assert_eq!(world.scheduler.next_deadline(), Some(5_000));
    world.now = 5_000;
    assert_eq!(asides(&mut world), [(1, PutAside::CalledOff)]);
}

#[test]
fn a_job_whose_owner_lets_it_wait_runs_at_the_later_time_and_counts_on() {
    let mut world = World::new(config());
    world.job(1, Priority::Batch, "acme");
    world.worker("w", 1);
    let credits = world.grants();
    world.settle(&credits[0], Outcome::Asked { until: 5_000 }, None);
    let before = world.scheduler.snapshot(world.now);
    world.revision += 1;
    world.event(Event::Moved {
        seq: JobSeq(1),
        until: 90_000,
        revision: world.revision,
    });
    let after = world.scheduler.snapshot(world.now);
    assert_eq!(before.accounts, after.accounts, "nothing is booked twice");
    world.now = 5_000;
    assert_eq!((world.grants(), asides(&mut world)), (vec![], vec![]));
    world.now = 90_000;
    world.worker("w", 1);
    assert_eq!(world.grants()[0].delivery, 2);
}
