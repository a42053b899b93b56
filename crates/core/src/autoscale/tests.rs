use super::*;

const START: Millis = 1_000_000;

fn pool(arrivals: u64, backlog: [u64; 3]) -> PoolLoad {
    PoolLoad {
        pool: PoolId::parse("haiku-4.5").unwrap(),
        arrivals,
        backlog,
        per_minute: [300, 1_000_000, 1_000_000],
        tokens: Some(Tokens {
            input: 100,
            output: 50,
        }),
        slot_time: Some(12_000),
        health: Health::Well,
    }
}

fn load(pool: PoolLoad) -> Load {
    Load {
        pools: vec![pool],
        ..Load::default()
    }
}

fn asked(load: &Load) -> Signal {
    Autoscaler::new(Rules::default()).signal(load, START)
}

#[test]
fn what_comes_in_and_the_backlog_by_priority_are_demand() {
    // 60 per minute for 12 s each.
    assert_eq!(asked(&load(pool(60, [0, 0, 0]))).wanted, 12);
    // 30 critical ones in 30 s are 60 per minute more, 300 standard ones in five minutes as well.
    assert_eq!(asked(&load(pool(60, [30, 0, 0]))).wanted, 24);
    assert_eq!(asked(&load(pool(60, [0, 300, 0]))).wanted, 24);
    assert_eq!(asked(&load(pool(60, [0, 0, 3_600]))).wanted, 24);
    assert_eq!(asked(&load(pool(60, [0, 0, 0]))).reason, Reason::Demand);
}

#[test]
fn more_than_the_upstream_takes_is_never_wanted_and_the_limit_is_named() {
    // 300 per minute for 12 s each and 15 % more.
    for (limits, reason) in [
        ([300, 1_000_000, 1_000_000], Reason::Requests),
        ([1_000, 30_000, 1_000_000], Reason::InputTokens),
        ([1_000, 1_000_000, 15_000], Reason::OutputTokens),
    ] {
        let mut pool = pool(1, [100_000, 0, 0]);
        pool.per_minute = limits;
        let signal = asked(&load(pool));
        assert_eq!((signal.wanted, signal.reason), (69, reason));
        assert!(
            signal.words().contains("would sit idle"),
            "{}",
            signal.words()
        );
    }
}

#[test]
fn nothing_is_wanted_for_nothing_and_one_slot_for_the_least() {
    assert_eq!(asked(&Load::default()).wanted, 0);
    assert_eq!(
        asked(&load(pool(0, [0, 0, 0]))).words(),
        "0 slots: nothing waits"
    );
    assert_eq!(asked(&load(pool(0, [0, 0, 1]))).wanted, 1);
}

#[test]
fn what_is_in_flight_is_never_undercut() {
    let mut load = load(pool(0, [0, 0, 0]));
    load.in_flight = 40;
    assert_eq!(asked(&load).wanted, 40);
}

#[test]
fn critical_work_of_late_keeps_a_slot_of_fifty() {
    let mut load = load(pool(60, [0, 0, 0]));
    load.critical = true;
    assert_eq!(asked(&load).wanted, 13);
    load.pools[0] = PoolLoad {
        per_minute: [10_000, 100_000_000, 100_000_000],
        ..pool(5_000, [0, 0, 0])
    };
    assert_eq!(asked(&load).wanted, 1_020);
}

#[test]
fn a_pool_that_may_not_be_called_is_held_for_a_while_and_then_given_up() {
    let mut scaler = Autoscaler::new(Rules::default());
    let busy = load(pool(240, [0, 0, 0]));
    assert_eq!(scaler.signal(&busy, START).wanted, 48);
    for (health, reason) in [
        (Health::Paused, Reason::Paused),
        (Health::Breaker, Reason::Breaker),
    ] {
        let stopped = load(PoolLoad {
            health,
            ..pool(240, [0, 0, 0])
        });
        let held = scaler.signal(&stopped, START + 300_000);
        assert_eq!((held.wanted, held.reason), (48, reason));
        let given_up = scaler.signal(&stopped, START + 300_001);
        assert_eq!((given_up.wanted, given_up.reason), (1, reason));
    }
    assert_eq!(scaler.signal(&busy, START + 400_000).wanted, 48);
}

#[test]
fn a_new_leader_asks_for_no_less_for_a_minute_and_knows_what_was_learned() {
    let mut scaler = Autoscaler::new(Rules::default());
    let last = scaler.signal(&load(pool(240, [0, 0, 0])), START);
    let mut next = Autoscaler::new(Rules::default());
    next.restore(&last, START + 1_000);
    let strange = load(PoolLoad {
        slot_time: None,
        ..pool(30, [0, 0, 0])
    });
    assert_eq!(next.signal(&strange, START + 60_999).wanted, 48);
    assert_eq!(
        next.signal(&strange, START + 61_000).wanted,
        6,
        "12 s each, as learned"
    );
    assert_eq!(asked(&strange).wanted, 5, "10 s each without");
}

#[test]
fn a_hold_does_not_begin_again_with_a_new_leader() {
    let mut scaler = Autoscaler::new(Rules::default());
    scaler.signal(&load(pool(240, [0, 0, 0])), START);
    let stopped = load(PoolLoad {
        health: Health::Breaker,
        ..pool(240, [0, 0, 0])
    });
    let last = scaler.signal(&stopped, START + 200_000);
    let mut next = Autoscaler::new(Rules::default());
    next.restore(&last, START + 210_000);
    assert_eq!(next.signal(&stopped, START + 301_000).wanted, 1);
}

#[test]
fn floor_and_ceiling_hold_and_say_so() {
    let rules = Rules {
        slots_min: 16,
        slots_max: Some(20),
        ..Rules::default()
    };
    let asked = |arrivals| {
        let signal = Autoscaler::new(rules).signal(&load(pool(arrivals, [0, 0, 0])), START);
        (signal.wanted, signal.reason)
    };
    assert_eq!(asked(0), (16, Reason::Floor));
    assert_eq!(asked(85), (17, Reason::Demand));
    assert_eq!(asked(200), (20, Reason::Ceiling));
}

#[test]
fn no_number_makes_a_huge_one_or_none() {
    let mut odd = pool(u64::MAX, [u64::MAX; 3]);
    odd.per_minute = [u64::MAX; 3];
    odd.tokens = None;
    odd.slot_time = Some(u64::MAX);
    assert_eq!(asked(&load(odd.clone())).wanted, 1_000_000);
    odd.per_minute = [0; 3];
    odd.slot_time = Some(0);
    assert_eq!(asked(&load(odd)).wanted, 1);
}

#[test]
fn a_mean_follows_and_outlives_a_silence() {
    let mut mean = Mean::default();
    assert_eq!(mean.at(START), None);
    mean.add(10, START);
    mean.add(20, START + 1_000);
    assert_eq!(mean.at(START + 2_000), Some(15));
    mean.add(100, START + 400_000);
    assert_eq!(mean.at(START + 400_000), Some(100));
    assert_eq!(mean.at(START + 9_000_000), Some(100));
}

#[test]
fn words_of_reasons_come_back() {
    for reason in Reason::ALL {
        assert_eq!(Reason::parse(reason.as_str()), Some(reason));
    }
    assert_eq!(Reason::parse("mood"), None);
}
