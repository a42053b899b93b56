//! Named scenarios: what the upstream does to a fleet, and tenants to each other. With the numbers that
//! must come out.

mod play;

use fairlane_core::demotion::Cause;
use fairlane_core::scheduler::{Notice, Policy};
use fairlane_core::{Millis, Priority, Tokens};
use fairlane_sim_tests::plan::{pool, tenant};
use fairlane_sim_tests::{Answer, Call, Fault, JobPlan, Plan, Storm, World};
use play::{assert_near, backlog, input, of, play, share};

const MINUTE: Millis = 60_000;
const HOUR: Millis = 60 * MINUTE;

fn calls(world: &World, of: impl Fn(&JobPlan) -> bool) -> Vec<&Call> {
    let calls = world.upstream.calls.iter();
    calls
        .filter(|call| of(&world.plan.jobs[call.job]))
        .collect()
}

fn refused(calls: &[&Call]) -> Vec<Millis> {
    let refused = calls.iter().filter(|call| call.answer != Answer::Taken);
    refused.map(|call| call.at).collect()
}

fn storm(pool_name: Option<&str>, kind: Option<&'static str>, to: Millis, answer: Answer) -> Storm {
    Storm {
        pool: pool_name.map(pool),
        kind,
        from: 0,
        to,
        answer,
    }
}

fn run(plan: Plan) -> World {
    let mut world = World::new(plan);
    world.run().unwrap_or_else(|broken| panic!("{broken}"));
    assert!(world.jobs.iter().all(|job| job.done), "a job was buried");
    world
}

fn no_attempt_was_burnt(world: &World) {
    let burnt = world.jobs.iter().filter(|job| job.history.attempts > 0);
    assert_eq!(burnt.count(), 0, "attempts were burnt");
}

#[test]
fn b4_a_tenant_far_over_its_budget_is_served_as_batch_until_it_is_given_more() {
    let mut plan = Plan::calm(40);
    plan.workers = vec![100];
    plan.limit("haiku", 600, 10_000_000, 10_000_000);
    let budget = |tokens| Policy {
        daily_input_tokens: Some(tokens),
        ..Policy::default()
    };
    plan.config.tenants.insert(tenant("a"), budget(100_000));
    backlog(&mut plan, 0, "a", Priority::Standard, input(1_000), 8_000);
    backlog(&mut plan, 0, "b", Priority::Standard, input(1_000), 8_000);
    let raise = Fault::Policy {
        tenant: tenant("a"),
        policy: budget(100_000_000),
    };
    let raised = 8 * MINUTE;
    plan.faults.push((raised, raise));
    plan.until = 20 * MINUTE;
    let world = play(plan);
    let notices = world.notices.clone();
    let (demoted, until) = match &notices[0] {
        (at, Notice::Demoted { tenant, demotion }) => {
            assert_eq!((tenant.as_str(), demotion.cause), ("a", Cause::Budget));
            (*at, demotion.until)
        }
        other => panic!("{other:?}"),
    };
    let before = calls(&world, of("a"))
        .iter()
        .filter(|call| call.at <= demoted)
        .count();
    assert!(
        (149..=152).contains(&before),
        "demoted after {before} thousands"
    );
    assert!((300_000..=301_000).contains(&(until - demoted)), "{until}");
    // Batch beside standard: 5 of 30.
    let part = |from, to| {
        let (a, b) = (world.cost(from, to, of("a")), world.cost(from, to, of("b")));
        share(a, a + b)
    };
    assert_near(part(MINUTE, raised), 5.0 / 30.0, 0.03, "while demoted");
    // What is demoted stays so for its five minutes, and no longer.
    let restored = notices.iter().find_map(|(at, notice)| match notice {
        Notice::Restored { .. } => Some(*at),
        _ => None,
    });
    let restored = restored.expect("it comes back");
    assert!(
        (raised..=raised + 302_000).contains(&restored),
        "{restored}"
    );
    assert_near(part(restored + 5_000, 20 * MINUTE), 0.5, 0.03, "afterwards");
}

#[test]
fn b4_a_new_leader_knows_what_was_spent_and_who_is_demoted() {
    let mut plan = Plan::calm(41);
    plan.workers = vec![100];
    plan.leaders = 2;
    plan.limit("haiku", 600, 10_000_000, 10_000_000);
    let budget = Policy {
        daily_input_tokens: Some(100_000),
        ..Policy::default()
    };
    plan.config.tenants.insert(tenant("a"), budget);
    backlog(&mut plan, 0, "a", Priority::Standard, input(1_000), 4_000);
    backlog(&mut plan, 0, "b", Priority::Standard, input(1_000), 4_000);
    for minute in 1..5 {
        let kill = Fault::KillLeader { restart: 1_000 };
        plan.faults.push((minute * MINUTE, kill));
    }
    plan.until = 6 * MINUTE;
    let world = play(plan);
    assert_eq!(world.tally.terms, 5);
    let (a, b) = (
        world.cost(MINUTE, 6 * MINUTE, of("a")),
        world.cost(MINUTE, 6 * MINUTE, of("b")),
    );
    assert_near(share(a, a + b), 5.0 / 30.0, 0.05, "through four changes");
}

#[test]
fn l3_a_spent_month_closes_everything_and_one_call_an_hour_looks() {
    let mut plan = Plan::calm(43);
    plan.workers = vec![10; 4];
    plan.until = 4 * HOUR;
    let ends = 150 * MINUTE;
    plan.storms
        .push(storm(None, None, ends, Answer::SpendLimit));
    for number in 0..200 {
        let name = ["haiku", "sonnet"][usize::try_from(number % 2).unwrap()];
        plan.job(number * 100, "a", Priority::Critical, name, input(1_000));
    }
    let world = run(plan);
    let refused = refused(&calls(&world, |_| true));
    let first = refused[0];
    // What was on its way when the first answer came; then one each hour.
    let (at_once, later): (Vec<Millis>, Vec<Millis>) =
        refused.iter().partition(|&&at| at < first + 1_000);
    assert!(at_once.len() <= 2, "{at_once:?}");
    assert_eq!(later.len(), 2, "{later:?}");
    no_attempt_was_burnt(&world);
    let last = world
        .jobs
        .iter()
        .filter_map(|job| job.ended_at)
        .max()
        .unwrap();
    assert!(
        last < 3 * HOUR + MINUTE,
        "the third look finds it open: {last}"
    );
}

#[test]
fn a_kind_or_a_model_that_is_refused_holds_up_nothing_else() {
    let mut plan = Plan::calm(44);
    plan.workers = vec![10; 4];
    let ends = 10 * MINUTE;
    plan.storms
        .push(storm(None, Some("secret"), ends, Answer::Forbidden));
    plan.storms
        .push(storm(Some("gone"), None, ends, Answer::NoModel));
    plan.until = HOUR;
    for number in 0..300 {
        let at = number * 500;
        plan.job(at, "a", Priority::Standard, "haiku", input(1_000))
            .kind = "secret";
        plan.job(at, "a", Priority::Standard, "haiku", input(1_000));
        plan.job(at, "a", Priority::Standard, "gone", input(1_000));
    }
    let world = run(plan);
    let open = calls(&world, |job| {
        job.kind == "sim" && job.pool.as_str() == "haiku"
    });
    let late = open
        .iter()
        .map(|call| call.at - world.plan.jobs[call.job].at);
    assert!(
        late.max() < Some(200),
        "other work of the same tenant waited"
    );
    for (what, calls) in [
        ("kind", calls(&world, |job| job.kind == "secret")),
        ("model", calls(&world, |job| job.pool.as_str() == "gone")),
    ] {
        let refused = refused(&calls);
        // A look a minute, for ten minutes, and what was on its way at first.
        assert!((10..=12).contains(&refused.len()), "{what}: {refused:?}");
        for pair in refused.windows(2).skip(2) {
            assert!(pair[1] - pair[0] >= MINUTE, "{what}: {refused:?}");
        }
    }
    no_attempt_was_burnt(&world);
}

#[test]
fn too_many_calls_at_once_become_fewer_and_no_job_pays_for_it() {
    let mut plan = Plan::calm(45);
    plan.workers = vec![25; 4];
    plan.concurrent = Some(40);
    plan.until = HOUR;
    let jobs = 6_000;
    for _ in 0..jobs {
        plan.job(0, "a", Priority::Batch, "haiku", input(1_000))
            .service = 2_000;
    }
    let world = run(plan);
    let all = calls(&world, |_| true);
    let refused = refused(&all).len();
    // The 60 that were too many at first, what was sent until the window was small enough, and one or
    // two whenever it has grown too far.
    assert!(refused <= 150, "{refused} of {} refused", all.len());
    no_attempt_was_burnt(&world);
    let last = world
        .jobs
        .iter()
        .filter_map(|job| job.ended_at)
        .max()
        .unwrap();
    // With 40 at a time it takes 300 s; the window is three quarters of that at worst.
    assert!(last <= 400_000, "{last}");
}

#[test]
fn l5_while_a_model_is_overloaded_what_may_runs_on_the_other_one() {
    let mut plan = Plan::calm(46);
    plan.workers = vec![20; 4];
    plan.limit("haiku", 600, 10_000_000, 10_000_000);
    let ends = 10 * MINUTE;
    plan.storms
        .push(Storm::overload(Some(pool("sonnet")), 0, ends));
    plan.until = HOUR;
    for number in 0..1_200 {
        let at = number * 500;
        let tags = plan.job(at, "a", Priority::Standard, "sonnet", input(1_000));
        tags.kind = "tagging";
        tags.fallback = Some((pool("haiku"), input(1_200)));
        if number % 10 == 0 {
            plan.job(at, "a", Priority::Standard, "sonnet", input(1_000))
                .kind = "essay";
        }
    }
    let world = run(plan);
    let into = refused(&calls(&world, |job| job.pool.as_str() == "sonnet"));
    // Ten samples open the breaker, a few were on their way; then one look every 90 s.
    assert!(into.len() <= 30, "{} calls into the storm", into.len());
    let moved: Vec<_> = calls(&world, |job| job.kind == "tagging")
        .into_iter()
        .filter(|call| call.pool == pool("haiku"))
        .collect();
    assert!(
        moved.len() >= 1_150,
        "{} ran on the other model",
        moved.len()
    );
    let slow = moved
        .iter()
        .map(|call| call.at - world.plan.jobs[call.job].at);
    let slow = slow.filter(|&wait| wait > 3_000).count();
    assert!(slow <= 30, "{slow} waited");
    // The others wait until their own model is well, and then all run.
    let essays = calls(&world, |job| job.kind == "essay");
    assert!(essays.iter().all(|call| call.pool == pool("sonnet")));
    let first = essays
        .iter()
        .find(|call| call.answer == Answer::Taken)
        .unwrap();
    assert!((ends..=ends + 91_000).contains(&first.at), "{}", first.at);
    assert_eq!(
        world.upstream.turned_away(),
        0,
        "the other model's limit holds"
    );
}

#[test]
fn critical_work_never_waits_for_a_bucket_or_slots_that_other_work_has_emptied() {
    let mut plan = Plan::calm(47);
    plan.workers = vec![10; 5];
    // Whatever binds: the first pool's requests, the second one's tokens, or the slots.
    plan.limit("haiku", 60, 10_000_000, 10_000_000);
    plan.limit("sonnet", 10_000, 60_000, 10_000_000);
    for number in 0..1_500 {
        for name in ["haiku", "sonnet", "opus"] {
            let job = plan.job(0, "bulk", Priority::Batch, name, input(1_000));
            job.service = 2_000 + number % 500;
        }
    }
    for number in 0..60 {
        for (turn, name) in ["haiku", "sonnet", "opus"].into_iter().enumerate() {
            let at = number * 20_000 + 1_000 + turn as u64 * 5_000;
            plan.job(at, "user", Priority::Critical, name, input(1_000))
                .service = 500;
        }
    }
    plan.until = 20 * MINUTE;
    let world = play(plan);
    let users = calls(&world, of("user"));
    assert_eq!(users.len(), 180);
    // The first ones show that there is such work at all.
    let waits = |call: &&&Call| call.at - world.plan.jobs[call.job].at;
    let late: Vec<_> = users
        .iter()
        .skip(6)
        .filter(|call| waits(call) > 50)
        .collect();
    // Batch work has its twentieth of the slots, too; for a bucket nobody waits.
    assert!(late.len() <= 9, "{} waited: {late:?}", late.len());
    let longest = users.iter().skip(6).map(|call| waits(&call)).max();
    assert!(longest < Some(600), "{longest:?}");
    assert_eq!(world.upstream.turned_away(), 0);
}

#[test]
fn somebody_else_with_the_same_key_is_left_their_part() {
    let mut plan = Plan::calm(48);
    plan.workers = vec![50];
    plan.limit("haiku", 60, 10_000_000, 10_000_000);
    backlog(&mut plan, 0, "a", Priority::Standard, input(1_000), 1_000);
    let minutes = 20;
    for number in 0..minutes * 20 {
        let foreign = Fault::Foreign {
            pool: pool("haiku"),
            tokens: Tokens::default(),
        };
        plan.faults.push((number * 3_000, foreign));
    }
    plan.until = minutes * MINUTE;
    let world = play(plan);
    let refused = world.upstream.turned_away();
    // Who does not notice is refused once for each of the other's 400 calls.
    assert!(refused <= 4, "{refused} refused");
    let taken = world
        .taken(&pool("haiku"), 2 * MINUTE, minutes * MINUTE)
        .len();
    let left = 40 * (minutes - 2);
    let part = taken as f64 / left as f64;
    assert!(part >= 0.95, "{taken} of the {left} that the other left");
}
