//! Named scenarios: things that went wrong for users of comparable systems, with the numbers that
//! must come out here.

mod play;

use fairlane_core::{Priority, Tokens};
use fairlane_sim_tests::plan::{pool, tenant};
use fairlane_sim_tests::{Answer, Call, Fault, Plan, Storm, World};
use play::{assert_near, backlog, input, of, play, share};

#[test]
fn f1_few_long_jobs_get_no_more_than_many_short_ones() {
    let mut plan = Plan::calm(1);
    plan.workers = vec![500];
    plan.limit("haiku", 100_000, 4_000_000, 10_000_000);
    plan.weigh("e", 2_000);
    for (name, size, jobs) in [
        ("a", 34_000, 220),
        ("b", 2_500, 2_900),
        ("c", 2_500, 2_900),
        ("d", 8_000, 900),
        ("e", 5_000, 3_000),
    ] {
        backlog(&mut plan, 0, name, Priority::Standard, input(size), jobs);
    }
    plan.until = 600_000;
    let world = play(plan);
    let whole = world.cost(0, 600_000, |_| true);
    for (name, part) in [("a", 1.0), ("b", 1.0), ("c", 1.0), ("d", 1.0), ("e", 2.0)] {
        let got = share(world.cost(0, 600_000, of(name)), whole);
        assert_near(got, part / 6.0, 0.01, name);
    }
    assert_eq!(world.upstream.turned_away(), 0);
}

#[test]
fn f2_whoever_estimates_too_low_gets_its_weight_all_the_same() {
    let mut plan = Plan::calm(2);
    plan.workers = vec![200];
    plan.limit("haiku", 100_000, 10_000_000, 100_000);
    let tokens = Tokens {
        input: 100,
        output: 100,
    };
    for _ in 0..2_000 {
        plan.job(0, "a", Priority::Standard, "haiku", tokens)
            .actual
            .output = 400;
        plan.job(0, "b", Priority::Standard, "haiku", tokens);
        plan.job(0, "b", Priority::Standard, "haiku", tokens);
        plan.job(0, "b", Priority::Standard, "haiku", tokens);
        plan.job(0, "b", Priority::Standard, "haiku", tokens);
    }
    plan.until = 360_000;
    let world = play(plan);
    let done = world
        .taken(&pool("haiku"), 0, 360_000)
        .into_iter()
        .filter(|call| world.plan.jobs[call.job].tenant.as_str() == "a")
        .count();
    assert!(done > 200, "{done}");
    let (a, b) = (
        world.cost(0, 360_000, of("a")),
        world.cost(0, 360_000, of("b")),
    );
    assert_near(share(a, a + b), 0.5, 0.01, "a's share");
}

#[test]
fn f3_a_burst_before_any_accounting_causes_no_429() {
    for idle in [0, 600_000] {
        let mut plan = Plan::calm(3);
        plan.workers = vec![10; 20];
        plan.limit("haiku", 4_000, 2_000_000, 400_000);
        for number in 0..500 {
            let at = idle + number / 5;
            plan.job(at, "a", Priority::Critical, "haiku", input(100_000))
                .service = 5_000;
        }
        plan.until = idle + 600_000;
        let world = play(plan);
        assert_eq!(world.upstream.turned_away(), 0, "after {idle} ms");
        // And yet the limit is used: 2 000 000 a minute.
        let used = world.taken(&pool("haiku"), idle, idle + 600_000).len() as u64 * 100_000;
        assert!(used >= 2_000_000 * 10 * 97 / 100, "{used}");
    }
}

#[test]
fn f4_batch_gets_its_floor_while_critical_work_overloads_the_pool() {
    let mut plan = Plan::calm(4);
    plan.workers = vec![100];
    plan.limit("haiku", 300, 10_000_000, 10_000_000);
    let hour = 3_600_000;
    let tokens = input(1_000);
    for number in 0..(300 * 60 * 105 / 100) {
        let at = number * hour / (300 * 60 * 105 / 100);
        plan.job(at, "user", Priority::Critical, "haiku", tokens);
    }
    backlog(&mut plan, 0, "nightly", Priority::Standard, tokens, 2_000);
    backlog(&mut plan, 0, "bulk", Priority::Batch, tokens, 2_000);
    plan.until = hour;
    let world = play(plan);
    // Until critical work has queued up, others get what it leaves.
    let from = 600_000;
    let whole = world.cost(from, hour, |_| true);
    let batch = share(world.cost(from, hour, of("bulk")), whole);
    assert!((0.045..=0.055).contains(&batch), "{batch:.4}");
    let critical = share(world.cost(from, hour, of("user")), whole);
    assert!((0.895..=0.905).contains(&critical), "{critical:.4}");
}

#[test]
fn f5_a_tenant_at_its_cap_with_a_huge_backlog_slows_nobody() {
    let run = |noisy: u64| {
        let mut plan = Plan::calm(5);
        plan.workers = vec![50];
        plan.config.default_policy.in_flight_max = 10;
        backlog(&mut plan, 0, "a", Priority::Standard, input(1_000), noisy);
        for number in 0..600 {
            let job = plan.job(
                1_000 + number * 100,
                "b",
                Priority::Standard,
                "haiku",
                input(1_000),
            );
            job.service = 300;
        }
        plan.until = 62_000;
        let world = play(plan);
        let delays: Vec<_> = world
            .taken(&pool("haiku"), 0, 62_000)
            .into_iter()
            .map(|call| (call, &world.plan.jobs[call.job]))
            .filter(|(_, job)| job.tenant.as_str() == "b")
            .map(|(call, job)| call.at - job.at)
            .collect();
        (delays.len(), delays.into_iter().max())
    };
    let (alone, beside) = (run(0), run(50_000));
    assert_eq!(alone.0, 600);
    assert_eq!(beside.0, 600);
    assert!(
        beside.1 <= alone.1.map(|most| most + 10),
        "{alone:?} {beside:?}"
    );
}

#[test]
fn f6_a_closed_pool_does_not_hold_up_the_same_tenants_work_in_another() {
    let mut plan = Plan::calm(6);
    plan.workers = vec![20];
    plan.storms
        .push(Storm::overload(Some(pool("haiku")), 10_000, 70_000));
    for number in 0..1_200 {
        let at = number * 100;
        plan.job(at, "a", Priority::Standard, "haiku", input(1_000));
        plan.job(at + 1, "a", Priority::Standard, "sonnet", input(1_000));
    }
    plan.until = 120_000;
    let world = play(plan);
    // While it is closed: afterwards its backlog, which is older, takes the slots.
    let calls = world.taken(&pool("sonnet"), 10_000, 70_000);
    let slowest = calls
        .iter()
        .map(|call| call.at - world.plan.jobs[call.job].at)
        .max();
    assert!(calls.len() >= 598, "{}", calls.len());
    assert!(slowest < Some(200), "{slowest:?}");
    let refused = world
        .upstream
        .calls
        .iter()
        .filter(|call| call.answer == Answer::Overloaded)
        .count();
    // Half of the samples of a minute: as many bad ones as there were good ones before.
    assert!(
        (10..=110).contains(&refused),
        "{refused} calls into the storm"
    );
}

#[test]
fn f7_idle_hours_are_not_banked_and_debts_survive_a_short_rest() {
    let mut plan = Plan::calm(7);
    plan.workers = vec![100];
    plan.limit("haiku", 600, 10_000_000, 10_000_000);
    let hour = 3_600_000;
    backlog(&mut plan, 0, "a", Priority::Standard, input(1_000), 10);
    backlog(&mut plan, 0, "b", Priority::Standard, input(1_000), 38_000);
    backlog(
        &mut plan,
        hour,
        "a",
        Priority::Standard,
        input(1_000),
        1_000,
    );
    plan.until = hour + 60_000;
    let world = play(plan);
    let (a, b) = (
        world.cost(hour, hour + 60_000, of("a")),
        world.cost(hour, hour + 60_000, of("b")),
    );
    assert_near(
        share(a, a + b),
        0.5,
        0.03,
        "the share of the one that came back",
    );

    let mut plan = Plan::calm(7);
    plan.workers = vec![100];
    plan.limit("haiku", 600, 10_000_000, 10_000_000);
    // 20 jobs that cost ten times what was estimated, then five seconds of nothing.
    for _ in 0..20 {
        let job = plan.job(0, "a", Priority::Standard, "haiku", input(1_000));
        job.actual.input = 10_000;
    }
    backlog(&mut plan, 0, "b", Priority::Standard, input(1_000), 2_000);
    plan.until = 120_000;
    let mut first = plan.clone();
    first.until = 30_000;
    let idle_from = play(first)
        .taken(&pool("haiku"), 0, 30_000)
        .iter()
        .filter(|call| call.job < 20)
        .map(|call| call.end)
        .max()
        .unwrap();
    let back = idle_from + 5_000;
    backlog(&mut plan, back, "a", Priority::Standard, input(1_000), 200);
    let world = play(plan);
    let returned = world
        .taken(&pool("haiku"), back, 120_000)
        .iter()
        .find(|call| world.plan.jobs[call.job].tenant.as_str() == "a")
        .map(|call| call.at);
    let until = returned.unwrap_or(120_000);
    // What it had used beyond its turns while it was there is what the other gets first.
    let debt = world.cost(0, back, of("a")) - world.cost(0, idle_from, of("b")) - 30_000;
    let served = world.cost(idle_from, until, of("b"));
    assert!(
        served >= debt,
        "b was served {served} before a came back, a's debt was {debt}"
    );
    assert!(
        returned.is_some() && returned >= Some(back + 1_000),
        "{returned:?} {back}"
    );
}

#[test]
fn f8_a_new_weight_holds_for_the_jobs_that_are_queued_already() {
    let mut plan = Plan::calm(8);
    plan.workers = vec![100];
    plan.leaders = 2;
    plan.limit("haiku", 600, 10_000_000, 10_000_000);
    backlog(&mut plan, 0, "a", Priority::Standard, input(1_000), 2_000);
    backlog(&mut plan, 0, "b", Priority::Standard, input(1_000), 2_000);
    let change = Fault::Reweigh {
        tenant: tenant("a"),
        weight: 3_000,
    };
    plan.faults.push((60_000, change));
    plan.until = 121_000;
    let world = play(plan);
    let part = |from, to| {
        let (a, b) = (world.cost(from, to, of("a")), world.cost(from, to, of("b")));
        share(a, a + b)
    };
    assert_near(part(1_000, 60_000), 0.5, 0.02, "before");
    assert_near(part(61_000, 121_000), 0.75, 0.02, "after");
}

fn calls_of<'a>(world: &'a World, name: &str) -> Vec<&'a Call> {
    let wanted = pool(name);
    let calls = world.upstream.calls.iter();
    calls.filter(|call| call.pool == wanted).collect()
}

#[test]
fn l1_one_429_stops_the_pool_for_all_workers_and_no_other_pool() {
    let mut plan = Plan::calm(11);
    plan.workers = vec![1; 40];
    plan.limit("haiku", 50, 30_000, 8_000);
    // Somebody else has used it all: 16 seconds until a job of 2 000 tokens fits.
    let foreign = Fault::Foreign {
        pool: pool("haiku"),
        tokens: Tokens {
            input: 36_000,
            output: 0,
        },
    };
    plan.faults.push((0, foreign));
    for _ in 0..500 {
        plan.job(10, "a", Priority::Standard, "haiku", input(2_000));
    }
    for number in 0..300 {
        plan.job(
            number * 100,
            "a",
            Priority::Standard,
            "sonnet",
            input(2_000),
        );
    }
    plan.until = 660_000;
    let world = play(plan);
    let calls = calls_of(&world, "haiku");
    let first = calls[0].at;
    let Answer::TooMany { retry_after } = calls[0].answer else {
        panic!("{:?}", calls[0]);
    };
    assert_eq!(retry_after, 16_000);
    let opens = first + retry_after;
    let early = calls
        .iter()
        .filter(|call| (first + 250..opens).contains(&call.at))
        .count();
    assert_eq!(early, 0, "calls while the pool is paused");
    let restart: Vec<_> = calls.iter().filter(|call| call.at >= opens).collect();
    let (begin, fifth) = (restart[0].at, restart[4].at);
    assert!(
        fifth - begin >= 2_000,
        "the first calls came within {} ms",
        fifth - begin
    );
    let later = |call: &&&Call| matches!(call.answer, Answer::TooMany { .. }) && call.at >= opens;
    assert!(calls.iter().filter(later).count() <= 2);
    let used: u64 = world
        .taken(&pool("haiku"), begin, begin + 600_000)
        .iter()
        .map(|call| world.plan.jobs[call.job].actual.input)
        .sum();
    assert!(used >= 300_000 * 95 / 100, "{used} of 300 000");
    assert!(
        world.jobs.iter().all(|job| job.history.attempts == 0),
        "an attempt was burnt"
    );
    let others = world.taken(&pool("sonnet"), 0, 40_000);
    assert_eq!(others.len(), 300);
    assert!(
        others
            .iter()
            .all(|call| call.at - world.plan.jobs[call.job].at < 200)
    );
}

#[test]
fn l4_the_first_second_after_a_pause_sees_no_rush() {
    let mut plan = Plan::calm(14);
    plan.workers = vec![50; 20];
    plan.limit("haiku", 6_000, 100_000_000, 10_000_000);
    let foreign = Fault::Foreign {
        pool: pool("haiku"),
        tokens: Tokens {
            input: 115_000_000,
            output: 0,
        },
    };
    plan.faults.push((0, foreign));
    for _ in 0..500 {
        plan.job(10, "a", Priority::Standard, "haiku", input(2_000));
    }
    plan.until = 120_000;
    let world = play(plan);
    let calls = calls_of(&world, "haiku");
    let begin = calls
        .iter()
        .find(|call| call.answer == Answer::Taken)
        .unwrap()
        .at;
    assert!(begin > 5_000, "there was no pause");
    let rush = world.taken(&pool("haiku"), begin, begin + 1_000).len();
    assert!(
        rush <= 120,
        "{rush} calls in the first second, the limit is 100"
    );
    assert_eq!(world.taken(&pool("haiku"), 0, 120_000).len(), 500);
}

#[test]
fn l6_an_overloaded_pool_is_probed_once_an_interval_and_opens_again() {
    let mut plan = Plan::calm(16);
    plan.workers = vec![10; 4];
    plan.storms.push(Storm::overload(None, 0, 180_000));
    for number in 0..200 {
        plan.job(number * 100, "a", Priority::Standard, "haiku", input(1_000));
    }
    plan.until = 400_000;
    let mut world = World::new(plan);
    world.run().unwrap_or_else(|broken| panic!("{broken}"));
    let calls = calls_of(&world, "haiku");
    let refused: Vec<_> = calls
        .iter()
        .filter(|call| call.answer == Answer::Overloaded)
        .collect();
    let opened = refused[9].at + 100;
    let probes: Vec<_> = refused
        .iter()
        .map(|call| call.at)
        .filter(|&at| at > opened + 1_000)
        .collect();
    for pair in probes.windows(2) {
        assert!(pair[1] - pair[0] >= 90_000, "probes at {probes:?}");
    }
    assert!(
        refused.len() <= 60,
        "{} calls into the storm",
        refused.len()
    );
    let closed = calls
        .iter()
        .find(|call| call.answer == Answer::Taken)
        .unwrap()
        .at;
    assert!(closed <= 180_000 + 91_000, "closed at {closed}");
    assert!(
        world.jobs.iter().all(|job| job.done),
        "a job was buried for an overload"
    );
}

#[test]
fn d1_workers_killed_for_minutes_leave_nothing_behind() {
    for seed in 0..20 {
        let mut plan = Plan::calm(seed);
        plan.workers = vec![5; 4];
        plan.leaders = 2;
        plan.network.writes_unknown = 10;
        plan.network.grants_lost = 10;
        for number in 0..300 {
            let job = plan.job(number * 600, "a", Priority::Standard, "haiku", input(1_000));
            job.service = 4_000;
        }
        for round in 0..18 {
            let kill = Fault::KillWorker {
                worker: usize::try_from(round * 7 + seed).unwrap(),
                restart: 1_000,
            };
            plan.faults.push((10_000 * (round + 1), kill));
        }
        plan.until = 1_200_000;
        let mut world = World::new(plan);
        world
            .run()
            .unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
        assert_eq!(world.outstanding(), (Some(0), 0));
        assert!(world.jobs.iter().all(|job| job.done));
        let last = world
            .jobs
            .iter()
            .filter_map(|job| job.ended_at)
            .max()
            .unwrap();
        assert!(
            last <= 180_000 + 15_000 + 15_000,
            "the last job ended at {last}"
        );
        assert!(world.tally.expired > 0, "nothing was cut off");
    }
}

#[test]
fn d3_a_worker_that_was_stopped_past_its_lease_makes_no_call_with_it() {
    for pause in [1_000, 14_000, 16_000, 40_000] {
        for at in 0..60 {
            let mut plan = Plan::calm(at);
            plan.workers = vec![2, 2];
            plan.network.delay = (5, 15);
            for number in 0..20 {
                plan.job(number * 10, "a", Priority::Standard, "haiku", input(1_000));
            }
            let stop = Fault::PauseWorker {
                worker: 0,
                length: pause,
            };
            plan.faults.push((100 + at * 3, stop));
            let mut world = World::new(plan);
            // The world itself looks at every call whether its credit is alive.
            world
                .run()
                .unwrap_or_else(|broken| panic!("{pause} at {at}: {broken}"));
            assert!(
                world
                    .jobs
                    .iter()
                    .all(|job| job.done && job.successes <= 1 + job.excused)
            );
        }
    }
}

#[test]
fn d9_parked_jobs_go_on_when_the_limit_opens_whoever_leads_by_then() {
    let mut plan = Plan::calm(19);
    plan.workers = vec![10; 4];
    plan.leaders = 2;
    plan.limit("haiku", 600, 600_000, 600_000);
    let foreign = Fault::Foreign {
        pool: pool("haiku"),
        tokens: Tokens {
            input: 900_000,
            output: 0,
        },
    };
    plan.faults.push((0, foreign));
    plan.faults
        .push((10_000, Fault::KillSchedulers { restart: 1_000 }));
    for _ in 0..100 {
        plan.job(10, "a", Priority::Standard, "haiku", input(1_000));
    }
    let mut world = World::new(plan);
    world.run().unwrap_or_else(|broken| panic!("{broken}"));
    assert_eq!(world.tally.terms, 2);
    let calls = calls_of(&world, "haiku");
    let opens = calls
        .iter()
        .filter_map(|call| {
            let Answer::TooMany { retry_after } = call.answer else {
                return None;
            };
            Some(call.at + retry_after * 144 / 100)
        })
        .max()
        .unwrap();
    assert!(
        opens > 15_000,
        "the limit opened before the new leader came"
    );
    let resumed = calls
        .iter()
        .find(|call| call.answer == Answer::Taken)
        .unwrap()
        .at;
    assert!(
        resumed <= opens + 2_000,
        "resumed at {resumed}, open at {opens}"
    );
    assert!(world.jobs.iter().all(|job| job.done));
}

#[test]
fn what_waits_for_a_time_runs_at_that_time_without_any_other_event() {
    let mut plan = Plan::calm(20);
    plan.limit("haiku", 70, 10_000_000, 10_000_000);
    backlog(&mut plan, 0, "a", Priority::Standard, input(1_000), 40);
    plan.job(0, "a", Priority::Standard, "sonnet", input(1_000))
        .not_before = Some(3_456);
    plan.until = 30_000;
    let world = play(plan);
    let parked = world.taken(&pool("sonnet"), 0, 30_000)[0].at;
    assert!((3_456..3_456 + 20).contains(&parked), "{parked}");
    // What a cold start allows at once is gone; from then on one call every 857 ms.
    let calls = world.taken(&pool("haiku"), 2_000, 30_000);
    for pair in calls.windows(2) {
        let gap = pair[1].at - pair[0].at;
        assert!((850..=870).contains(&gap), "{gap} ms between two calls");
    }
    assert!(calls.len() > 25, "{}", calls.len());
}
