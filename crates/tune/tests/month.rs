//! Synthetic months, made from a seed: badly tuned ones find better settings, a well-tuned one finds nothing.

#![allow(clippy::unwrap_used, reason = "names in a test are names")]

use std::collections::BTreeMap;

use fairlane_core::drr::Weight;
use fairlane_core::limiter::Limits;
use fairlane_core::scheduler::{Config, Policy};
use fairlane_core::share::ShareRules;
use fairlane_core::{
    Cost, CostWeights, Kind, Millis, ModelId, PoolId, Priority, TenantId, Tokens, breaker, demotion,
};
use fairlane_tune::{Advice, Change, Job, Month, REPLAYS_MAX, Squall, advise, replay};

const DAY: Millis = 86_400_000;
const HOUR: Millis = 3_600_000;
/// 2026-11-01, midnight.
const START: Millis = 20_758 * DAY;

/// Numbers from a seed (xorshift64*).
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % most
    }
}

fn tenant(name: &str) -> TenantId {
    TenantId::parse(name).unwrap()
}

fn pool() -> PoolId {
    PoolId::parse("haiku-4.5").unwrap()
}

fn job(dice: &mut Dice, ready: Millis, name: &str, priority: Priority) -> Job {
    let output = 100 + dice.below(200);
    let input = 500 + dice.below(1_000);
    Job {
        ready,
        tenant: tenant(name),
        priority,
        kind: Kind::parse("tagging").unwrap(),
        model: ModelId::parse("claude-haiku-4-5").unwrap(),
        pool: pool(),
        estimate: Tokens { input, output: 256 },
        used: Tokens { input, output },
        prompt: input,
        service: 500 + dice.below(1_500),
        waited: 0,
    }
}

/// Thirty days. On six of them, one hour in which `noisy` tenants send much more than the limit takes, while
/// five small ones send a job every half minute; a little critical work.
fn jobs(seed: u64, noisy: usize) -> Vec<Job> {
    let mut dice = Dice(seed);
    let mut jobs = Vec::new();
    for day in (0..30).step_by(5) {
        let hour = START + day * DAY + 9 * HOUR;
        for number in 0..500 {
            let ready = hour + dice.below(HOUR / 20);
            let name = ["noisy-0", "noisy-1"][number % noisy];
            jobs.push(job(&mut dice, ready, name, Priority::Standard));
        }
        for half_minute in 0..20 {
            for small in 0..5 {
                let ready = hour + half_minute * 30_000 + dice.below(30_000);
                let name = format!("small-{small}");
                jobs.push(job(&mut dice, ready, &name, Priority::Standard));
            }
            let ready = hour + half_minute * 30_000 + dice.below(30_000);
            jobs.push(job(&mut dice, ready, "small-0", Priority::Critical));
        }
    }
    jobs
}

fn config() -> Config {
    let limits = Limits {
        requests: 60,
        input_tokens: 1_000_000,
        output_tokens: 1_000_000,
    };
    Config {
        quantum: Cost(5_000),
        cost_weights: CostWeights::default(),
        shares: ShareRules::default(),
        limits: BTreeMap::from([(pool(), limits)]),
        default_limits: limits,
        tenants: BTreeMap::new(),
        default_policy: Policy::default(),
        max_deliver: 8,
        worker_silence_max: 3_500,
        breaker: breaker::Rules::default(),
        demotion: demotion::Rules::default(),
    }
}

fn calm(seed: u64, noisy: usize) -> Month {
    Month::new(jobs(seed, noisy), Vec::new(), Vec::new(), 64)
}

/// In each busy hour the upstream turns calls away for two seconds, every ten seconds.
fn stormy(seed: u64, noisy: usize) -> Month {
    let squalls = (0..30).step_by(5).flat_map(|day| {
        (0..30).map(move |number| {
            let from = START + day * DAY + 9 * HOUR + 30_000 + number * 10_000;
            Squall {
                pool: pool(),
                from,
                to: from + 2_000,
            }
        })
    });
    Month::new(jobs(seed, noisy), squalls.collect(), Vec::new(), 64)
}

fn settings(advice: &Advice) -> Vec<(String, String)> {
    advice
        .steps
        .iter()
        .map(|step| step.change.setting())
        .collect()
}

#[test]
fn a_quantum_that_lets_one_tenant_go_first_for_minutes_is_found() {
    let month = calm(7, 2);
    let today = Config {
        quantum: Cost(2_000_000),
        ..config()
    };
    let advice = advise(&month, &today, |_| ());
    let settings = settings(&advice);
    assert_eq!(settings.len(), 1, "{settings:?}");
    assert_eq!(settings[0].0, "scheduler.quantum");
    let quantum: f64 = settings[0].1.parse().unwrap();
    assert!(quantum <= 20.0, "{quantum}");
    let (before, after) = (advice.today.quiet.p99, advice.advised().quiet.p99);
    assert!(after * 2 < before, "{before} ms became {after} ms");
    assert_eq!(advice.steps[0].instead_of.setting().1, "2000.0");
    assert!(advice.replays <= REPLAYS_MAX);
    assert_eq!(advice.advised().left, 0);
}

#[test]
fn a_well_tuned_month_is_left_alone() {
    let advice = advise(&calm(7, 2), &config(), |_| ());
    assert_eq!(settings(&advice), [], "{advice:#?}");
    assert_eq!(advice.advised(), &advice.today);
}

#[test]
fn what_was_recommended_is_well_tuned() {
    let (month, mut today) = (stormy(8, 2), config());
    let advice = advise(&month, &today, |_| ());
    for step in &advice.steps {
        step.change.apply(&mut today);
    }
    let again = advise(&month, &today, |_| ());
    assert_eq!(&again.today, advice.advised());
    assert_eq!(settings(&again), [], "after {:?}", settings(&advice));
}

#[test]
fn a_threshold_that_demotes_whoever_meets_one_rate_limit_is_found() {
    let month = stormy(9, 1);
    let mut today = config();
    today.demotion.throttles = 1;
    let advice = advise(&month, &today, |_| ());
    let settings = settings(&advice);
    assert!(
        settings
            .iter()
            .any(|(key, _)| key == "scheduler.demotion.throttles"),
        "{settings:?} {:#?}",
        advice.today
    );
    assert!(advice.advised().quiet_demotions < advice.today.quiet_demotions);
}

#[test]
fn a_weight_that_was_given_to_whoever_sends_most_is_found() {
    let month = calm(10, 2);
    let mut today = config();
    let heavy = Policy {
        weight: Weight(200_000),
        ..Policy::default()
    };
    today.tenants.insert(tenant("noisy-0"), heavy);
    let advice = advise(&month, &today, |_| ());
    let change = Change::Weight(tenant("noisy-0"), Weight::ONE);
    assert!(
        advice.steps.iter().any(|step| step.change == change),
        "{:?}",
        settings(&advice)
    );
    assert!(advice.advised().quiet.p99 < advice.today.quiet.p99);
}

#[test]
fn a_replay_is_the_same_every_time_and_holds_the_limit() {
    let month = stormy(11, 2);
    let figures = replay(&month, &config());
    assert_eq!(figures, replay(&month, &config()));
    assert_eq!(figures.all.jobs, month.jobs().len() as u64);
    assert!(figures.throttled > 0, "the storms were met");
    let noisy: Vec<_> = month.noisy().iter().map(TenantId::as_str).collect();
    assert_eq!(noisy, ["noisy-0", "noisy-1"]);
    assert!(
        figures.jain.is_some_and(|index| index > 0.95),
        "{figures:?}"
    );
    // 620 jobs at 60 a minute: whoever is last has waited for about ten minutes.
    assert!((300_000..900_000).contains(&figures.all.p99), "{figures:?}");
}
