//! Scaling by wanted slots beside scaling by the depth of the queue: the real formula, a model of a
//! horizontal pod autoscaler, and jobs and an upstream by seed, one second at a time.

#![allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "small numbers; a failed test shows them"
)]

use std::collections::{BTreeMap, VecDeque};

use fairlane_core::autoscale::{Autoscaler, Health, Load, Mean, PoolLoad, Rules};
use fairlane_core::recent::Recent;
use fairlane_core::{Millis, PoolId, Tokens};
use fairlane_sim_tests::Rng;

const SECONDS: u64 = 7_200;
const SLOTS_PER_POD: u64 = 8;
const PODS: std::ops::RangeInclusive<u64> = 2..=40;
/// Jobs per pod, where depth is what scaling goes by.
const DEPTH_PER_POD: u64 = 10;
/// Service takes 12 s in the mean.
const SERVICE: (u64, u64) = (4, 20);
/// Seconds that are looked back on before pods go.
const WINDOW: u64 = 600;
/// A simulated fleet starts at this time.
const EPOCH: u64 = 1_796_000_000;

#[derive(Debug, Clone, Copy, PartialEq)]
enum By {
    Depth,
    Wanted,
}

#[derive(Debug, Clone, Copy)]
struct Case {
    backlog: u64,
    /// Thousandths of a job per second.
    arrivals: u64,
    requests_per_minute: u64,
    /// Seconds from and to which the upstream takes nothing.
    stop: Option<(u64, u64)>,
}

#[derive(Debug)]
struct Outcome {
    finished: u64,
    calls: u64,
    pods_mean: f64,
    pods_most: u64,
    changes: u32,
}

/// The rules of a horizontal pod autoscaler: 10 % tolerance, twice as many or four more at once, and down
/// only to the most that was wanted within ten minutes, as the chart has it.
struct Pods {
    now: u64,
    wanted: VecDeque<(u64, u64)>,
    changes: u32,
}

impl Pods {
    fn sync(&mut self, second: u64, total: u64, per_pod: u64) {
        let ratio = total as f64 / (self.now * per_pod) as f64;
        let wanted = if (ratio - 1.0).abs() <= 0.1 {
            self.now
        } else {
            total.div_ceil(per_pod)
        };
        let wanted = wanted.clamp(*PODS.start(), *PODS.end());
        self.wanted.push_back((second, wanted));
        while self
            .wanted
            .front()
            .is_some_and(|(at, _)| at + WINDOW < second)
        {
            self.wanted.pop_front();
        }
        let most = self.wanted.iter().map(|&(_, wanted)| wanted).max().unwrap();
        let next = if wanted > self.now {
            wanted.min((self.now * 2).max(self.now + 4))
        } else {
            most.min(self.now)
        };
        self.changes += u32::from(next != self.now);
        self.now = next;
    }
}

/// One worker fleet with its queue, its upstream, and what the leader knows of them.
struct World {
    case: Case,
    rng: Rng,
    queue: u64,
    /// Jobs in flight by the second in which they end, and when they began.
    ends: BTreeMap<u64, Vec<u64>>,
    in_flight: u64,
    finished: u64,
    calls: u64,
    /// Thousandths of a call.
    room: u64,
    arrivals: Recent<60>,
    slot_time: Mean,
    scaler: Autoscaler,
    wanted: u64,
}

impl World {
    fn new(case: Case, seed: u64) -> Self {
        Self {
            queue: case.backlog,
            case,
            rng: Rng::new(seed),
            ends: BTreeMap::new(),
            in_flight: 0,
            finished: 0,
            calls: 0,
            room: 0,
            arrivals: Recent::new(1_000),
            slot_time: Mean::default(),
            scaler: Autoscaler::new(Rules::default()),
            wanted: 0,
        }
    }

    fn is_stopped(&self, second: u64) -> bool {
        self.case
            .stop
            .is_some_and(|(from, to)| (from..to).contains(&second))
    }

    fn step(&mut self, second: u64, pods: u64) {
        let now = ms(second);
        for began in self.ends.remove(&second).unwrap_or_default() {
            self.in_flight -= 1;
            self.finished += 1;
            self.slot_time.add(now - ms(began), now);
        }
        // Ten chances a second, so that arrivals come as they do: unevenly.
        for _ in 0..10 {
            if self.rng.chance(self.case.arrivals / 10) {
                self.queue += 1;
                self.arrivals.add(1, now);
            }
        }
        let per_second = self.case.requests_per_minute * 1_000 / 60;
        if self.is_stopped(second) {
            self.room = 0;
        } else {
            self.room = (self.room + per_second).min(3 * per_second);
        }
        let free = (pods * SLOTS_PER_POD).saturating_sub(self.in_flight);
        let begin = free.min(self.queue).min(self.room / 1_000);
        self.queue -= begin;
        self.room -= begin * 1_000;
        self.in_flight += begin;
        self.calls += begin;
        for _ in 0..begin {
            let end = second + self.rng.range(SERVICE.0, SERVICE.1);
            self.ends.entry(end).or_default().push(second);
        }
    }

    fn look(&mut self, second: u64) {
        let now = ms(second);
        let pool = PoolLoad {
            pool: PoolId::parse("haiku-4.5").unwrap(),
            arrivals: self.arrivals.total(now),
            backlog: [0, self.queue, 0],
            per_minute: [self.case.requests_per_minute, 10_000_000, 10_000_000],
            tokens: Some(Tokens {
                input: 500,
                output: 200,
            }),
            slot_time: self.slot_time.at(now),
            health: if self.is_stopped(second) {
                Health::Paused
            } else {
                Health::Well
            },
        };
        let load = Load {
            pools: vec![pool],
            in_flight: self.in_flight,
            critical: false,
        };
        self.wanted = self.scaler.signal(&load, now).wanted;
    }
}

fn ms(second: u64) -> Millis {
    (EPOCH + second) * 1_000
}

fn play(case: Case, by: By, seed: u64) -> Outcome {
    let mut world = World::new(case, seed);
    let mut pods = Pods {
        now: *PODS.start(),
        wanted: VecDeque::new(),
        changes: 0,
    };
    let (mut pod_seconds, mut most) = (0, 0);
    for second in 0..SECONDS {
        world.step(second, pods.now);
        if second % 5 == 0 {
            world.look(second);
        }
        if second % 15 == 0 {
            match by {
                By::Depth => pods.sync(second, world.queue + world.in_flight, DEPTH_PER_POD),
                By::Wanted => pods.sync(second, world.wanted, SLOTS_PER_POD),
            }
        }
        pod_seconds += pods.now;
        most = most.max(pods.now);
    }
    Outcome {
        finished: world.finished,
        calls: world.calls,
        pods_mean: pod_seconds as f64 / SECONDS as f64,
        pods_most: most,
        changes: pods.changes,
    }
}

/// Both ways over the same seed, printed for whoever runs this by hand.
fn both(name: &str, case: Case, check: impl Fn(&Outcome, &Outcome)) {
    for seed in 1..=8 {
        let [depth, wanted] = [By::Depth, By::Wanted].map(|by| {
            let outcome = play(case, by, seed);
            println!("{name:10} seed {seed} {by:?}: {outcome:?}");
            outcome
        });
        let part = wanted.finished as f64 / depth.finished as f64;
        assert!(part >= 0.99, "{name}: finished {part:.4} of what depth did");
        check(&depth, &wanted);
    }
}

#[test]
fn where_the_upstream_binds_half_the_pods_finish_the_same_jobs() {
    both(
        "bound",
        Case {
            backlog: 20_000,
            arrivals: 1_000,
            requests_per_minute: 300,
            stop: None,
        },
        |depth, wanted| {
            assert!(wanted.pods_mean <= depth.pods_mean / 2.0);
            assert!(wanted.pods_most <= depth.pods_most / 2);
            assert!(wanted.changes <= 6, "{}", wanted.changes);
            // Credits are global: more workers are not more calls.
            assert!(depth.calls.abs_diff(wanted.calls) <= wanted.calls / 100);
        },
    );
}

#[test]
fn under_a_steady_load_the_size_rests() {
    both(
        "steady",
        Case {
            backlog: 0,
            arrivals: 3_000,
            requests_per_minute: 1_000,
            stop: None,
        },
        |depth, wanted| {
            assert!(wanted.changes <= 6, "{}", wanted.changes);
            assert!(wanted.pods_mean <= depth.pods_mean * 1.2);
        },
    );
}

#[test]
fn a_short_stop_of_the_upstream_changes_little() {
    both(
        "stop",
        Case {
            backlog: 0,
            arrivals: 4_000,
            requests_per_minute: 300,
            stop: Some((3_600, 3_690)),
        },
        |depth, wanted| {
            assert!(wanted.changes <= 6, "{}", wanted.changes);
            assert!(wanted.pods_most < depth.pods_most);
        },
    );
}

#[test]
fn a_long_stop_does_not_send_for_workers_and_loses_nothing() {
    both(
        "long stop",
        Case {
            backlog: 0,
            arrivals: 4_000,
            requests_per_minute: 300,
            stop: Some((3_000, 4_200)),
        },
        |depth, wanted| {
            assert!(wanted.pods_mean <= depth.pods_mean / 2.0);
            assert!(wanted.changes <= 12, "{}", wanted.changes);
        },
    );
}
