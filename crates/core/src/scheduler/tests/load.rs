//! What counts as work when slots are asked for.

use super::*;
use crate::autoscale::{Autoscaler, Health, PoolLoad, Rules};

fn haiku(world: &mut World) -> PoolLoad {
    let now = world.now;
    let load = world.scheduler.load(now).unwrap();
    let mut pools = load.pools.into_iter();
    pools.find(|pool| pool.pool.as_str() == "haiku").unwrap()
}

#[test]
fn nothing_is_said_before_all_jobs_are_known() {
    let mut scheduler = Scheduler::new(config(), Term(1), 0);
    for priority in Priority::ALL {
        assert_eq!(scheduler.load(0), None);
        scheduler.handle(0, Event::Complete { priority });
    }
    assert!(scheduler.load(0).is_some());
}

#[test]
fn jobs_in_line_count_and_those_that_wait_for_a_time_do_not() {
    let mut world = World::new(config());
    for seq in 1..=3 {
        world.job(seq, Priority::Standard, "acme");
    }
    world.job(4, Priority::Critical, "acme");
    let mut later = seen(5, Priority::Critical, "acme");
    later.not_before = Some(60_000);
    world.event(Event::Job(later));
    let load = haiku(&mut world);
    assert_eq!((load.backlog, load.arrivals), ([1, 3, 0], 4));
    world.now = 60_000;
    world.grants();
    assert_eq!(haiku(&mut world).backlog, [2, 3, 0]);
}

#[test]
fn more_than_a_tenant_may_have_in_flight_does_not_count() {
    let mut config = config();
    config.default_policy.in_flight_max = 10;
    let mut world = World::new(config);
    for seq in 1..=100 {
        world.job(seq, Priority::Batch, "acme");
    }
    assert_eq!(haiku(&mut world).backlog, [0, 0, 10]);
}

#[test]
fn a_demoted_tenants_standard_work_counts_as_batch_at_once_and_wants_fewer_slots() {
    let mut world = World::new(config());
    for seq in 1..=500 {
        world.job(seq, Priority::Standard, "acme");
    }
    let wanted = |world: &mut World| {
        let now = world.now;
        let load = world.scheduler.load(now).unwrap();
        Autoscaler::new(Rules::default()).signal(&load, now).wanted
    };
    // Beyond the minute in which what comes in counts.
    world.now = 120_000;
    let before = wanted(&mut world);
    let policy = Policy {
        demoted_until: Some(600_000),
        ..Policy::default()
    };
    let tenant = TenantId::parse("acme").unwrap();
    world.event(Event::Policy { tenant, policy });
    assert_eq!(haiku(&mut world).backlog, [0, 0, 500]);
    let after = wanted(&mut world);
    assert!(after < before && after > 0, "{after} after {before}");
}

#[test]
fn what_jobs_took_and_how_long_they_kept_their_slots_is_learned() {
    let mut world = World::new(config());
    world.worker("w", 2);
    world.job(1, Priority::Batch, "acme");
    assert_eq!(
        (haiku(&mut world).slot_time, haiku(&mut world).tokens),
        (None, None)
    );
    let credit = world.grants().remove(0);
    assert_eq!(haiku(&mut world).tokens, Some(credit.tokens));
    world.start(&credit);
    world.now += 7_000;
    world.done(&credit);
    assert_eq!(haiku(&mut world).slot_time, Some(7_000));
}

#[test]
fn a_pool_that_was_asked_to_wait_is_not_well() {
    for (scope, probe, health) in [
        (Scope::Pool, false, Health::Paused),
        (Scope::Account, true, Health::Breaker),
    ] {
        let mut world = World::new(config());
        world.worker("w", 1);
        world.job(1, Priority::Batch, "acme");
        let credit = world.grants().remove(0);
        world.start(&credit);
        assert_eq!(haiku(&mut world).health, Health::Well);
        let pause = Pause {
            scope,
            until: 30_000,
            probe,
        };
        world.turned_away(&credit, None, Some(pause), 30_000);
        assert_eq!(haiku(&mut world).health, health, "{scope:?}");
    }
}
