//! Other models that may run a job, and room that is kept for critical work.

use super::*;

fn with_fallback(seq: u64) -> JobSeen {
    JobSeen {
        fallback: Some(Fallback {
            model: ModelId::parse("claude-haiku-4-5").unwrap(),
            pool: PoolId::parse("haiku").unwrap(),
            tokens: Tokens {
                input: 700,
                output: 50,
            },
        }),
        ..on_sonnet(seq)
    }
}

fn on_sonnet(seq: u64) -> JobSeen {
    JobSeen {
        model: ModelId::parse("claude-sonnet-4-6").unwrap(),
        pool: PoolId::parse("sonnet").unwrap(),
        ..seen(seq, Priority::Standard, "acme")
    }
}

fn trip(world: &mut World, pool: &str) {
    let pool = PoolId::parse(pool).unwrap();
    for seq in 900..910 {
        world.event(Event::Job(JobSeen {
            pool: pool.clone(),
            ..seen(seq, Priority::Critical, "trip")
        }));
    }
    world.worker("trip", 10);
    let credits = world.grants();
    for credit in &credits {
        world.turned_away(credit, Some(Refused::Overloaded), None, 10_000_000);
    }
    let trip = WorkerId::parse("trip").unwrap();
    world.event(Event::Worker {
        worker: trip,
        slots: 0,
        draining: true,
    });
    world.grants();
    assert!(
        world
            .notices
            .iter()
            .any(|notice| matches!(notice, Notice::BreakerOpened { .. }))
    );
}

#[test]
fn while_a_pool_is_closed_the_jobs_that_may_run_elsewhere_do() {
    let mut world = World::new(config());
    trip(&mut world, "sonnet");
    world.event(Event::Job(on_sonnet(1)));
    world.event(Event::Job(with_fallback(2)));
    world.worker("w", 10);
    let credits = world.grants();
    assert_eq!(seqs(&credits), [2]);
    assert_eq!(
        (
            credits[0].model.as_str(),
            credits[0].pool.as_str(),
            credits[0].tokens.input,
            credits[0].tokens.output
        ),
        ("claude-haiku-4-5", "haiku", 700, 50)
    );
    assert_eq!(
        world.scheduler.why(JobSeq(1), 0).why,
        Why::BreakerOpen { until: 90_000 }
    );
    world.done(&credits[0]);
    assert_eq!(world.scheduler.live(), 0);
}

#[test]
fn jobs_that_were_queued_before_a_pool_closed_run_elsewhere_too_and_come_home_when_it_is_well() {
    let mut world = World::new(config());
    for seq in 1..=4 {
        world.event(Event::Job(with_fallback(seq)));
    }
    trip(&mut world, "sonnet");
    world.worker("w", 1);
    let credits = world.grants();
    assert_eq!(credits[0].pool.as_str(), "haiku");
    world.done(&credits[0]);
    // Its own pool's probe is one of them, and ends the diversion.
    world.now = 90_000;
    world.worker("w", 2);
    let credits = world.grants();
    let pools: Vec<_> = credits.iter().map(|credit| credit.pool.as_str()).collect();
    assert!(
        pools.contains(&"sonnet") && pools.contains(&"haiku"),
        "{pools:?}"
    );
    for credit in &credits {
        world.done(credit);
    }
    let credits = world.grants();
    assert_eq!((credits.len(), credits[0].pool.as_str()), (1, "sonnet"));
    world.done(&credits[0]);
    assert_eq!((world.scheduler.live(), world.scheduler.known()), (0, 10));
}

#[test]
fn a_job_that_met_an_overloaded_model_goes_to_the_other_at_once() {
    let mut world = World::new(config());
    world.event(Event::Job(with_fallback(1)));
    world.event(Event::Job(on_sonnet(2)));
    world.worker("w", 2);
    let credits = world.grants();
    for credit in &credits {
        assert_eq!(credit.pool.as_str(), "sonnet");
        world.turned_away(credit, Some(Refused::Overloaded), None, 1_000);
    }
    world.now = 1_000;
    let credits = world.grants();
    let pools: Vec<_> = credits
        .iter()
        .map(|credit| (credit.seq.0, credit.pool.as_str()))
        .collect();
    assert_eq!(pools, [(1, "haiku"), (2, "sonnet")]);
}

#[test]
fn a_pause_is_no_reason_to_run_elsewhere() {
    let mut world = World::new(config());
    let sonnet = world.scheduler.pool(&PoolId::parse("sonnet").unwrap());
    world.scheduler.pools.limits(sonnet).pause(5_000);
    world.event(Event::Job(with_fallback(1)));
    world.worker("w", 1);
    assert_eq!(world.grants(), []);
}

#[test]
fn a_critical_job_finds_room_in_a_bucket_that_other_work_has_emptied() {
    let limits = Limits {
        requests: 1_000_000,
        input_tokens: 60 * 500,
        output_tokens: 1_000_000,
    };
    let mut world = World::new(Config {
        default_limits: limits,
        ..config()
    });
    world.worker("w", 1_000);
    world.job(1, Priority::Critical, "acme");
    let first = world.grants();
    world.done(&first[0]);
    for seq in 2..=50 {
        world.job(seq, Priority::Standard, "acme");
    }
    world.now = 1;
    let granted = world.grants();
    assert_eq!(
        granted.len(),
        8,
        "ten are there after a cold start, and one is kept"
    );
    world.job(51, Priority::Critical, "acme");
    assert_eq!(seqs(&world.grants()), [51]);
    // Nobody waits for it for longer than it may be expected.
    world.now = 700_000;
    world.worker("w", 1_000);
    assert_eq!(
        world.grants().len(),
        41,
        "the rest; nothing is kept any more"
    );
}

#[test]
fn a_critical_job_finds_a_free_slot() {
    let mut world = World::new(config());
    world.worker("w", 100);
    world.job(1, Priority::Critical, "acme");
    let first = world.grants();
    world.done(&first[0]);
    for seq in 2..=200 {
        world.job(seq, Priority::Batch, "acme");
    }
    assert_eq!(world.grants().len(), 98);
    world.job(201, Priority::Critical, "acme");
    assert_eq!(seqs(&world.grants()), [201]);
}

#[test]
fn a_place_in_line_comes_with_a_time() {
    let mut world = World::new(config());
    world.worker("w", 1);
    for seq in 1..=100 {
        world.job(seq, Priority::Standard, "acme");
    }
    let place = |world: &mut World, seq| world.scheduler.why(JobSeq(seq), world.now).place;
    assert_eq!(
        place(&mut world, 100).unwrap().eta,
        None,
        "nothing was granted yet"
    );
    for second in 0..60 {
        world.now = second * 1_000;
        world.worker("w", 1);
        let credits = world.grants();
        world.done(&credits[0]);
    }
    let place = place(&mut world, 100).unwrap();
    assert_eq!((place.ahead, place.priority), (39, Priority::Standard));
    let wait = place.eta.unwrap() - world.now;
    assert!((39_000..=41_000).contains(&wait), "{wait}");
}

#[test]
fn a_job_that_the_other_model_does_not_take_goes_back_to_its_own() {
    let mut world = World::new(config());
    world.event(Event::Job(with_fallback(1)));
    world.worker("w", 1);
    let credits = world.grants();
    world.turned_away(&credits[0], Some(Refused::Overloaded), None, 1_000);
    world.now = 1_000;
    let credits = world.grants();
    assert_eq!(credits[0].pool.as_str(), "haiku");
    assert!(world.scheduler.is_fallback(&credits[0]));
    // Its worker found that the request is nothing for that model.
    world.turned_away(&credits[0], None, None, 2_000);
    world.now = 2_000;
    let credits = world.grants();
    assert_eq!(credits[0].pool.as_str(), "sonnet");
    assert!(!world.scheduler.is_fallback(&credits[0]));
}

#[test]
fn a_refused_fallback_keeps_nobody_from_its_own_model() {
    let mut world = World::new(config());
    trip(&mut world, "sonnet");
    world.job(1, Priority::Standard, "acme");
    world.worker("w", 1);
    let credits = world.grants();
    let gone = Pause {
        scope: Scope::Model,
        until: 1_000_000,
        probe: true,
    };
    world.turned_away(&credits[0], None, Some(gone), 1_000_000);
    world.event(Event::Job(with_fallback(2)));
    assert_eq!(world.grants(), []);
    assert_eq!(
        world.scheduler.why(JobSeq(2), world.now).why,
        Why::BreakerOpen { until: 90_000 }
    );
    world.now = 90_000;
    world.worker("w", 1);
    let probe = world.grants();
    assert_eq!((seqs(&probe), probe[0].pool.as_str()), (vec![2], "sonnet"));
}
