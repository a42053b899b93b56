//! What the upstream refuses, and whom that concerns.

use super::*;

const HOUR: Millis = 3_600_000;

fn pause(scope: Scope, until: Millis, probe: bool) -> Option<Pause> {
    Some(Pause {
        scope,
        until,
        probe,
    })
}

fn of_kind(seq: u64, tenant: &str, kind: &str) -> JobSeen {
    JobSeen {
        kind: Kind::parse(kind).unwrap(),
        ..seen(seq, Priority::Standard, tenant)
    }
}

fn of_model(seq: u64, model: &str) -> JobSeen {
    JobSeen {
        model: ModelId::parse(model).unwrap(),
        ..seen(seq, Priority::Standard, "acme")
    }
}

fn in_pool(seq: u64, pool: &str) -> JobSeen {
    JobSeen {
        pool: PoolId::parse(pool).unwrap(),
        ..seen(seq, Priority::Standard, "acme")
    }
}

#[test]
fn a_spent_budget_stops_every_pool_and_one_call_an_hour_looks_again() {
    let mut world = World::new(config());
    world.worker("w", 2);
    world.event(Event::Job(in_pool(1, "haiku")));
    world.event(Event::Job(in_pool(2, "sonnet")));
    world.event(Event::Job(in_pool(3, "haiku")));
    let first = world.grants();
    assert_eq!(seqs(&first), [1, 2]);
    for credit in &first {
        world.turned_away(credit, None, pause(Scope::Account, HOUR, true), HOUR);
    }
    assert_eq!(world.grants(), []);
    assert_eq!(
        world.scheduler.why(JobSeq(3), 0).why,
        Why::Refused {
            scope: Scope::Account,
            until: HOUR
        }
    );
    assert_eq!(world.scheduler.next_deadline(), Some(HOUR));
    world.now = HOUR;
    world.worker("w", 2);
    let probe = world.grants();
    assert_eq!(probe.len(), 1, "one goes to see");
    world.turned_away(
        &probe[0],
        None,
        pause(Scope::Account, 2 * HOUR, true),
        2 * HOUR,
    );
    assert_eq!(world.grants(), [], "still refused");
    world.now = 2 * HOUR;
    world.worker("w", 3);
    let probe = world.grants();
    assert_eq!(probe.len(), 1);
    world.done(&probe[0]);
    assert_eq!(world.grants().len(), 2, "all the others");
}

#[test]
fn a_probe_that_is_lost_is_followed_by_another_after_a_while() {
    let mut world = World::new(config());
    world.worker("w", 1);
    world.job(1, Priority::Standard, "acme");
    let first = world.grants();
    world.turned_away(&first[0], None, pause(Scope::Account, 1_000, true), 1_000);
    world.now = 1_000;
    let probe = world.grants();
    world.start(&probe[0]);
    world.lease_ends(1);
    assert_eq!(world.grants(), []);
    world.now = 6_000;
    world.worker("w", 1);
    assert_eq!(seqs(&world.grants()), [1]);
}

#[test]
fn a_kind_that_is_not_allowed_waits_and_its_tenants_other_kinds_go_on() {
    let mut world = World::new(config());
    world.worker("w", 1);
    world.event(Event::Job(of_kind(1, "acme", "tags")));
    let first = world.grants();
    world.turned_away(&first[0], None, pause(Scope::Kind, 60_000, true), 60_000);
    world.event(Event::Job(of_kind(2, "acme", "tags")));
    world.event(Event::Job(of_kind(3, "acme", "tags")));
    world.event(Event::Job(of_kind(4, "acme", "essays")));
    world.event(Event::Job(of_kind(5, "zebra", "tags")));
    let credits = world.grants();
    assert_eq!(seqs(&credits), [4]);
    world.done(&credits[0]);
    let credits = world.grants();
    assert_eq!(
        seqs(&credits),
        [5],
        "another tenant's kind is not concerned"
    );
    world.done(&credits[0]);
    assert_eq!(world.grants(), []);
    assert_eq!(
        world.scheduler.why(JobSeq(2), 0).why,
        Why::Refused {
            scope: Scope::Kind,
            until: 60_000
        }
    );
    world.now = 60_000;
    world.worker("w", 10);
    let probe = world.grants();
    assert_eq!(probe.len(), 1, "one goes to see");
    world.done(&probe[0]);
    assert_eq!(world.grants().len(), 2);
    assert_eq!(world.scheduler.gates.all().count(), 0);
}

#[test]
fn a_model_that_is_gone_stops_nothing_else_in_its_pool() {
    let mut world = World::new(config());
    world.worker("w", 10);
    world.event(Event::Job(of_model(1, "claude-haiku-9")));
    let first = world.grants();
    world.turned_away(&first[0], None, pause(Scope::Model, 60_000, true), 60_000);
    world.event(Event::Job(of_model(2, "claude-haiku-9")));
    world.event(Event::Job(of_model(3, "claude-haiku-4-5")));
    assert_eq!(seqs(&world.grants()), [3]);
    assert_eq!(
        world.scheduler.why(JobSeq(2), 0).why,
        Why::Refused {
            scope: Scope::Model,
            until: 60_000
        }
    );
}

#[test]
fn a_limit_that_names_no_time_lets_one_call_through_to_see() {
    let mut world = World::new(config());
    world.worker("w", 10);
    world.event(Event::Job(in_pool(1, "haiku")));
    let first = world.grants();
    world.turned_away(&first[0], None, pause(Scope::Pool, 60_000, true), 60_000);
    world.event(Event::Job(in_pool(2, "haiku")));
    world.event(Event::Job(in_pool(3, "sonnet")));
    assert_eq!(seqs(&world.grants()), [3], "other pools run on");
    world.now = 60_000;
    world.worker("w", 10);
    assert_eq!(world.grants().len(), 1);
    assert_eq!(world.grants(), [], "it is out");
}

#[test]
fn too_many_calls_at_once_are_fewer_for_a_while() {
    let mut world = World::new(config());
    world.worker("w", 8);
    for seq in 1..=20 {
        world.job(seq, Priority::Standard, "acme");
    }
    let credits = world.grants();
    assert_eq!(credits.len(), 8);
    world.now = 100;
    for credit in &credits[..2] {
        world.turned_away(
            credit,
            None,
            pause(Scope::Concurrency, 15_000, false),
            9_000,
        );
    }
    assert_eq!(world.grants(), [], "six run, and six may");
    assert_eq!(
        world.scheduler.why(JobSeq(9), 100).why,
        Why::CallsLimited { max: 6 }
    );
    world.done(&credits[2]);
    assert_eq!(world.grants().len(), 1);
    world.now = 5_100;
    world.worker("w", 8);
    assert_eq!(world.grants().len(), 1, "one more in five seconds");
}

#[test]
fn what_is_refused_is_known_to_the_next_leader() {
    let mut old = World::new(config());
    old.worker("w", 10);
    old.event(Event::Job(of_kind(1, "acme", "tags")));
    let first = old.grants();
    old.turned_away(&first[0], None, pause(Scope::Kind, 60_000, true), 60_000);
    let mut next = World::new(config());
    next.scheduler.restore(old.scheduler.snapshot(0));
    next.event(Event::Job(of_kind(2, "acme", "tags")));
    next.event(Event::Job(of_kind(3, "acme", "essays")));
    next.worker("w", 10);
    assert_eq!(seqs(&next.grants()), [3]);
}

#[test]
fn thousands_that_step_aside_do_not_hold_up_what_stands_behind_them() {
    let mut world = World::new(config());
    world.worker("w", 1);
    world.event(Event::Job(of_kind(1, "acme", "tags")));
    let first = world.grants();
    world.turned_away(&first[0], None, pause(Scope::Kind, 60_000, true), 60_000);
    for seq in 2..3_500 {
        world.event(Event::Job(of_kind(seq, "acme", "tags")));
    }
    world.event(Event::Job(of_kind(3_500, "acme", "essays")));
    let mut passes = 0;
    let granted = loop {
        passes += 1;
        let granted = world.grants();
        if !granted.is_empty() {
            break granted;
        }
        assert_eq!(
            world.scheduler.next_deadline(),
            Some(world.now),
            "go on at once"
        );
    };
    assert_eq!((seqs(&granted), passes), (vec![3_500], 4));
}

#[test]
fn a_tenant_that_may_not_send_the_probe_keeps_nobody_behind_the_gate() {
    let mut world = World::new(config());
    world.event(Event::Policy {
        tenant: TenantId::parse("busy").unwrap(),
        policy: Policy {
            in_flight_max: 1,
            ..Policy::default()
        },
    });
    world.worker("w", 10);
    world.event(Event::Job(in_pool(1, "other")));
    let credits = world.grants();
    let gone = pause(Scope::Model, 60_000, true);
    world.turned_away(&credits[0], None, gone, 1_000_000);
    for (seq, tenant) in [(2, "busy"), (3, "idle")] {
        world.event(Event::Job(seen(seq, Priority::Batch, tenant)));
    }
    assert_eq!(world.grants(), [], "both step aside");
    world.event(Event::Job(JobSeen {
        tenant: TenantId::parse("busy").unwrap(),
        ..of_model(4, "claude-opus-4-8")
    }));
    assert_eq!(seqs(&world.grants()), [4], "it runs for very long");
    world.now = 60_000;
    world.worker("w", 10);
    let probe = world.grants();
    assert_eq!(seqs(&probe), [3]);
    assert_eq!(world.scheduler.why(JobSeq(2), world.now).why, Why::Probing);
    world.done(&probe[0]);
    assert_eq!(world.grants(), []);
}

#[test]
fn a_probe_that_was_answered_opens_its_gate_whatever_was_used() {
    let mut world = World::new(config());
    world.worker("w", 10);
    world.event(Event::Job(in_pool(1, "haiku")));
    let credits = world.grants();
    let spent = pause(Scope::Account, 60_000, true);
    world.turned_away(&credits[0], None, spent, 60_000);
    world.event(Event::Job(in_pool(2, "haiku")));
    world.now = 60_000;
    world.worker("w", 10);
    let probe = world.grants();
    world.revision += 1;
    let settlement = Settlement {
        credit: probe[0].clone(),
        outcome: Outcome::Finished,
        used: None,
        observed: Observation::default(),
        refused: None,
        pause: None,
        sample: Some(Sample::Good),
    };
    world.event(Event::Settled {
        settlement,
        revision: world.revision,
    });
    assert_eq!(world.grants().len(), 1);
}
