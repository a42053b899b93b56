//! Rate limits, budgets and demotion.

use super::*;
use crate::demotion::{Cause, DAY, phase};

const PAUSED: Option<Pause> = Some(Pause {
    scope: Scope::Pool,
    until: 1,
    probe: false,
});

fn with_budget(tokens: u64) -> Config {
    Config {
        default_policy: Policy {
            daily_input_tokens: Some(tokens),
            ..Policy::default()
        },
        ..config()
    }
}

/// Runs jobs of `tenant` that are all turned away by a rate limit.
fn throttle(world: &mut World, tenant: &str, first: u64, times: u64) {
    for seq in first..first + times {
        world.job(seq, Priority::Standard, tenant);
        let credits = world.grants();
        let until = world.now + 10 * HOUR;
        world.turned_away(&credits[0], Some(Refused::RateLimit), PAUSED, until);
        world.now += 1_000;
        world.worker("w", 1);
    }
}

const HOUR: Millis = 3_600_000;

#[test]
fn standard_work_of_a_tenant_that_causes_rate_limits_is_served_as_batch_for_five_minutes() {
    let mut world = World::new(config());
    world.worker("w", 1);
    throttle(&mut world, "noisy", 1, 5);
    world.job(6, Priority::Standard, "noisy");
    world.job(7, Priority::Standard, "quiet");
    world.job(8, Priority::Critical, "noisy");
    let mut order = Vec::new();
    for _ in 0..3 {
        let credits = world.grants();
        order.push((credits[0].seq.0, credits[0].priority));
        world.done(&credits[0]);
    }
    assert_eq!(
        order,
        [
            (8, Priority::Critical),
            (7, Priority::Standard),
            (6, Priority::Batch)
        ]
    );
    let until = 4_000 + 300_000 + phase("noisy");
    let tenant = TenantId::parse("noisy").unwrap();
    assert!(world.notices.iter().any(|notice| matches!(
        notice,
        Notice::Demoted { tenant: who, demotion }
            if *who == tenant && demotion.cause == Cause::Throttles && demotion.until == until
    )));
    // What waits when it ends is standard work again, and no message moved.
    world.worker("w", 0);
    world.job(9, Priority::Standard, "noisy");
    world.now = until;
    assert_eq!(world.grants(), []);
    world.worker("w", 1);
    assert_eq!(world.grants()[0].priority, Priority::Standard);
    assert!(world.notices.contains(&Notice::Restored { tenant }));
}

#[test]
fn a_settlement_corrects_the_account_its_credit_was_charged_to() {
    let mut world = World::new(config());
    world.worker("w", 1);
    throttle(&mut world, "noisy", 1, 5);
    world.job(6, Priority::Standard, "noisy");
    let credits = world.grants();
    assert_eq!(credits[0].priority, Priority::Batch);
    let used = Tokens {
        input: 500,
        output: 40_000,
    };
    world.settle(&credits[0], Outcome::Finished, Some(used));
    let snapshot = world.scheduler.snapshot(world.now);
    let debts: Vec<_> = snapshot
        .accounts
        .iter()
        .map(|account| (account.priority, account.balance < Cost(0)))
        .collect();
    assert_eq!(debts, [(Priority::Batch, true)]);
}

#[test]
fn whoever_crowds_the_wire_caused_the_rate_limit_that_another_met() {
    let mut world = World::new(config());
    world.worker("w", 11);
    for seq in 1..=10 {
        world.job(seq, Priority::Standard, "noisy");
    }
    world.job(11, Priority::Standard, "quiet");
    let credits = world.grants();
    let quiet = credits.iter().find(|credit| credit.seq.0 == 11).unwrap();
    world.turned_away(quiet, Some(Refused::RateLimit), PAUSED, HOUR);
    world.grants();
    let blamed = |world: &World| match world.notices.last() {
        Some(Notice::Throttled { tenant, .. }) => tenant.as_ref().map(ToString::to_string),
        other => panic!("{other:?}"),
    };
    world
        .notices
        .retain(|notice| matches!(notice, Notice::Throttled { .. }));
    assert_eq!(blamed(&world).as_deref(), Some("noisy"));
}

#[test]
fn nobody_of_ours_is_blamed_while_somebody_else_uses_the_key() {
    let mut world = World::new(config());
    world.worker("w", 2);
    world.job(1, Priority::Standard, "acme");
    world.job(2, Priority::Standard, "acme");
    let credits = world.grants();
    world.now = 1_000;
    world.revision += 1;
    let settlement = Settlement {
        credit: credits[0].clone(),
        outcome: Outcome::Finished,
        used: Some(credits[0].tokens),
        observed: Observation {
            at: 1_000,
            requests: Some(Observed {
                limit: 600_000,
                remaining: 7,
            }),
            ..Observation::default()
        },
        refused: None,
        pause: None,
        sample: Some(Sample::Good),
    };
    world.event(Event::Settled {
        settlement,
        revision: world.revision,
    });
    world.turned_away(&credits[1], Some(Refused::RateLimit), PAUSED, HOUR);
    world.grants();
    let pool = PoolId::parse("haiku").unwrap();
    assert!(
        world
            .notices
            .contains(&Notice::Throttled { pool, tenant: None })
    );
}

#[test]
fn a_budget_is_reserved_when_granted_so_that_calls_under_way_count() {
    // 500 input tokens a job; more than 1 500 demote.
    let mut world = World::new(with_budget(1_000));
    world.worker("w", 10);
    for seq in 1..=6 {
        world.job(seq, Priority::Standard, "acme");
    }
    let served: Vec<_> = world
        .grants()
        .iter()
        .map(|credit| credit.priority)
        .collect();
    let mut expected = vec![Priority::Standard; 4];
    expected.extend([Priority::Batch; 2]);
    assert_eq!(served, expected);
}

#[test]
fn what_the_ledger_shows_counts_until_the_day_is_over() {
    let mut world = World::new(with_budget(1_000));
    world.now = DAY / 2;
    let tenant = TenantId::parse("acme").unwrap();
    for input_tokens in [1_000, 501] {
        world.event(Event::Spent {
            tenant: tenant.clone(),
            day: 0,
            input_tokens,
        });
    }
    world.job(1, Priority::Standard, "acme");
    world.worker("w", 1);
    let outlook = world.scheduler.why_tenant(&tenant, world.now).unwrap();
    assert_eq!(
        (outlook.input_tokens_today, outlook.daily_input_tokens),
        (1_501, Some(1_000))
    );
    assert_eq!(outlook.demotion.unwrap().cause, Cause::Budget);
    assert_eq!(outlook.flows[0].priority, Priority::Batch);
    let credits = world.grants();
    assert_eq!(credits[0].priority, Priority::Batch);
    world.done(&credits[0]);
    world.job(2, Priority::Standard, "acme");
    while let Some(at) = world.scheduler.next_deadline() {
        if at > DAY + 1_000 {
            break;
        }
        world.now = at;
        world.grants();
    }
    assert!((DAY..DAY + 1_000).contains(&world.now), "{}", world.now);
    world.worker("w", 1);
    assert_eq!(world.grants()[0].priority, Priority::Standard);
}

#[test]
fn a_changed_policy_acts_on_what_is_queued() {
    let mut world = World::new(config());
    let tenant = TenantId::parse("b").unwrap();
    for seq in 1..=400 {
        let name = if seq % 2 == 0 { "a" } else { "b" };
        world.job(seq, Priority::Standard, name);
    }
    world.worker("w", 1);
    let served = |world: &mut World, jobs: usize| {
        let mut of_b = 0;
        for _ in 0..jobs {
            let credits = world.grants();
            of_b += usize::from(credits[0].tenant == tenant);
            world.done(&credits[0]);
        }
        of_b
    };
    let before = served(&mut world, 100);
    assert!((45..=55).contains(&before), "{before}");
    let tenant = TenantId::parse("b").unwrap();
    world.event(Event::Policy {
        tenant: tenant.clone(),
        policy: Policy {
            weight: Weight(3_000),
            ..Policy::default()
        },
    });
    let after = served(&mut world, 100);
    assert!((70..=80).contains(&after), "{after}");
    let demoted_until = Some(world.now + 1_000);
    world.event(Event::Policy {
        tenant,
        policy: Policy {
            demoted_until,
            ..Policy::default()
        },
    });
    assert!(
        served(&mut world, 20) <= 4,
        "a fifth of the work is batch now"
    );
}

#[test]
fn a_demotion_outlives_its_leader() {
    let mut old = World::new(config());
    old.worker("w", 1);
    throttle(&mut old, "noisy", 1, 5);
    old.grants();
    let mut next = World::new(config());
    next.scheduler.restore(old.scheduler.snapshot(old.now));
    next.now = old.now;
    next.worker("w", 1);
    next.job(9, Priority::Standard, "noisy");
    assert_eq!(next.grants()[0].priority, Priority::Batch);
}
