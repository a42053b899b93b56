//! Deficit round robin between tenants that wait for the same thing.
//!
//! In every round each waiting flow may spend `quantum * weight`; what it cannot spend yet is
//! saved up until it covers the job at the head of its queue (Shreedhar and Varghese, 1995).
//! Three choices make it exact here:
//!
//! - Deficits are signed. A job that cost more than estimated leaves a debt, which is worked off,
//!   never forgiven.
//! - Empty rounds are skipped by arithmetic: the round in which a flow can be served follows from
//!   its deficit, so flows are kept sorted by it and serving the next one is `O(log n)`.
//! - A flow that does not wait earns nothing. It keeps its debt but no savings, and comes back at the
//!   current round.
//!
//! Flows that may be served in the same round take turns, least recently served first: whoever comes
//! with one job behind somebody's hundred does not wait until all of that quantum is spent.

use std::collections::{BTreeMap, BTreeSet};

use crate::job::Cost;

/// Flows in one ring, by a small key of the caller's.
#[derive(Debug, Clone)]
pub struct Drr {
    quantum: Cost,
    round: i64,
    flows: BTreeMap<FlowKey, Flow>,
    /// How often a flow was served.
    turns: u64,
    order: BTreeSet<Place>,
}

/// Waiting flows stand by the round that serves them, then by the turn in which they were served
/// last, then by the age of their head.
type Place = (i64, u64, u64, FlowKey);

/// The caller's name for a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowKey(pub u32);

/// How much more than others a flow may spend, in thousandths. 0 counts as the least there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Weight(pub u32);

impl Weight {
    /// What everybody has who was given no other.
    pub const ONE: Self = Self(1_000);
}

/// The job a flow would run next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    pub cost: Cost,
    /// Orders flows that come into the same round without having been served; smaller goes first.
    pub since: u64,
}

#[derive(Debug, Clone, Copy)]
struct Flow {
    weight: Weight,
    /// What the flow may spend as of round `base`.
    deficit: Cost,
    base: i64,
    /// The turn in which it was served last; 0 if it was not while it was known.
    turn: u64,
    head: Option<Head>,
}

impl Flow {
    fn quantum(&self, quantum: Cost) -> i64 {
        (quantum.0.saturating_mul(i64::from(self.weight.0)) / i64::from(Weight::ONE.0)).max(1)
    }

    /// Rounds after `base` until the deficit covers the head.
    fn rounds_short(&self, head: Head, quantum: Cost) -> i64 {
        let short = (head.cost - self.deficit).0;
        if short <= 0 {
            0
        } else {
            short.saturating_add(self.quantum(quantum) - 1) / self.quantum(quantum)
        }
    }

    fn place(&self, key: FlowKey, quantum: Cost) -> Option<Place> {
        let head = self.head?;
        let round = self.base.saturating_add(self.rounds_short(head, quantum));
        Some((round, self.turn, head.since, key))
    }
}

impl Drr {
    /// A ring with `quantum` per round and unit of weight.
    ///
    /// # Panics
    /// If the quantum is not positive: no flow could ever be served.
    #[must_use]
    pub fn new(quantum: Cost) -> Self {
        assert!(quantum.0 > 0, "the quantum must be positive");
        Self {
            quantum,
            round: 0,
            turns: 0,
            flows: BTreeMap::new(),
            order: BTreeSet::new(),
        }
    }

    /// Says what `key` would run next.
    pub fn wait(&mut self, key: FlowKey, weight: Weight, head: Head) {
        let round = self.round;
        self.change(key, |flow| {
            if flow.head.is_none() {
                flow.base = round;
            }
            flow.weight = weight;
            flow.head = Some(head);
        });
    }

    /// `key` has nothing to run, or must not: it earns nothing until it waits again.
    pub fn rest(&mut self, key: FlowKey) {
        if !self.flows.contains_key(&key) {
            return;
        }
        self.change(key, |flow| {
            flow.head = None;
            flow.deficit = flow.deficit.min(Cost(0));
        });
        self.forget_if_even(key);
    }

    /// The flow whose turn it is.
    #[must_use]
    pub fn next(&self) -> Option<FlowKey> {
        self.order.first().map(|&(.., key)| key)
    }

    /// What `key` was said to run next.
    #[cfg(test)]
    pub(crate) fn head(&self, key: FlowKey) -> Option<Head> {
        self.flows.get(&key)?.head
    }

    /// Weights of all flows that wait, but for `key`.
    #[must_use]
    pub fn weight_waiting(&self, key: FlowKey) -> u128 {
        let waiting = self.order.iter().filter(|&&(.., other)| other != key);
        waiting
            .filter_map(|(.., other)| self.flows.get(other))
            .map(|flow| u128::from(flow.weight.0))
            .sum()
    }

    /// Whether any flow waits.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.order.is_empty()
    }

    /// Serves the head of `key` and spends its cost. The caller then says what comes next with
    /// [`Drr::wait`] or [`Drr::rest`].
    pub fn serve(&mut self, key: FlowKey) {
        let quantum = self.quantum;
        let mut served_in = self.round;
        self.turns += 1;
        let turn = self.turns;
        self.change(key, |flow| {
            let Some(head) = flow.head else { return };
            let rounds = flow.rounds_short(head, quantum);
            flow.base = flow.base.saturating_add(rounds);
            flow.deficit = Cost(
                flow.deficit
                    .0
                    .saturating_add(rounds.saturating_mul(flow.quantum(quantum))),
            ) - head.cost;
            flow.turn = turn;
            served_in = flow.base;
        });
        self.round = self.round.max(served_in);
    }

    /// Corrects what `key` was charged: positive when it cost more than charged.
    pub fn correct(&mut self, key: FlowKey, weight: Weight, more: Cost) {
        if more == Cost(0) {
            return;
        }
        let round = self.round;
        self.change(key, |flow| {
            if flow.head.is_none() {
                flow.base = round;
                flow.weight = weight;
            }
            flow.deficit -= more;
            if flow.head.is_none() {
                flow.deficit = flow.deficit.min(Cost(0));
            }
        });
        self.forget_if_even(key);
    }

    /// What `key` may spend as of its last turn; negative is debt.
    #[must_use]
    pub fn deficit(&self, key: FlowKey) -> Cost {
        self.flows.get(&key).map_or(Cost(0), |flow| flow.deficit)
    }

    /// What every flow may spend as of this round, debts and savings; flows that are even are left
    /// out.
    pub fn accounts(&self) -> impl Iterator<Item = (FlowKey, Cost)> {
        self.flows.iter().filter_map(|(&key, flow)| {
            let rounds = if flow.head.is_some() {
                self.round.saturating_sub(flow.base).max(0)
            } else {
                0
            };
            let earned = rounds.saturating_mul(flow.quantum(self.quantum));
            let account = Cost(flow.deficit.0.saturating_add(earned));
            (account != Cost(0)).then_some((key, account))
        })
    }

    /// Takes over the account of a flow that does not wait yet.
    pub fn restore(&mut self, key: FlowKey, weight: Weight, account: Cost) {
        self.change(key, |flow| {
            flow.weight = weight;
            flow.deficit = account;
        });
    }

    /// Flows that do not wait lose what they saved.
    pub fn forfeit_savings(&mut self) {
        for flow in self.flows.values_mut().filter(|flow| flow.head.is_none()) {
            flow.deficit = flow.deficit.min(Cost(0));
        }
        self.flows
            .retain(|_, flow| flow.head.is_some() || flow.deficit != Cost(0));
    }

    fn change(&mut self, key: FlowKey, change: impl FnOnce(&mut Flow)) {
        let quantum = self.quantum;
        let flow = self.flows.entry(key).or_insert(Flow {
            weight: Weight::ONE,
            deficit: Cost(0),
            base: self.round,
            turn: 0,
            head: None,
        });
        if let Some(place) = flow.place(key, quantum) {
            self.order.remove(&place);
        }
        change(flow);
        if let Some(place) = flow.place(key, quantum) {
            self.order.insert(place);
        }
    }

    /// Idle flows without debt cost nothing.
    fn forget_if_even(&mut self, key: FlowKey) {
        if self
            .flows
            .get(&key)
            .is_some_and(|flow| flow.head.is_none() && flow.deficit == Cost(0))
        {
            self.flows.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUANTUM: Cost = Cost(5_000);

    /// Serves `jobs` times with every flow backlogged and returns the service of each.
    fn serve_backlogged(flows: &[(u32, i64)], jobs: usize) -> Vec<i64> {
        let mut ring = Drr::new(QUANTUM);
        let mut service = vec![0; flows.len()];
        for (index, &(weight, cost)) in flows.iter().enumerate() {
            ring.wait(
                FlowKey(index as u32),
                Weight(weight * 1_000),
                Head {
                    cost: Cost(cost),
                    since: index as u64,
                },
            );
        }
        for turn in 0..jobs {
            let key = ring.next().unwrap();
            let (weight, cost) = flows[key.0 as usize];
            ring.serve(key);
            service[key.0 as usize] += cost;
            ring.wait(
                key,
                Weight(weight * 1_000),
                Head {
                    cost: Cost(cost),
                    since: (flows.len() + turn) as u64,
                },
            );
        }
        service
    }

    #[test]
    fn equal_weights_get_equal_cost_whatever_the_size_of_their_jobs() {
        let service = serve_backlogged(
            &[(1, 34_000), (1, 2_500), (1, 2_500), (1, 8_000), (2, 5_000)],
            60_000,
        );
        let per_weight: Vec<f64> = service
            .iter()
            .zip([1, 1, 1, 1, 2])
            .map(|(s, w)| *s as f64 / f64::from(w))
            .collect();
        let mean = per_weight.iter().sum::<f64>() / 5.0;
        for share in per_weight {
            assert!((share / mean - 1.0).abs() < 0.01, "{service:?}");
        }
    }

    #[test]
    fn the_gap_between_two_flows_stays_within_the_bound_at_every_step() {
        let flows = [(1_u32, 12_000_i64), (3, 1_000), (1, 1_000)];
        let mut ring = Drr::new(QUANTUM);
        let mut service = [0_i64; 3];
        for (index, &(weight, cost)) in flows.iter().enumerate() {
            ring.wait(
                FlowKey(index as u32),
                Weight(weight * 1_000),
                Head {
                    cost: Cost(cost),
                    since: index as u64,
                },
            );
        }
        for turn in 0..10_000 {
            let key = ring.next().unwrap();
            let (weight, cost) = flows[key.0 as usize];
            ring.serve(key);
            service[key.0 as usize] += cost;
            ring.wait(
                key,
                Weight(weight * 1_000),
                Head {
                    cost: Cost(cost),
                    since: 3 + turn,
                },
            );
            for i in 0..3 {
                for j in 0..3 {
                    let normal = |k: usize| service[k] / i64::from(flows[k].0);
                    let bound = QUANTUM.0
                        + flows[i].1 / i64::from(flows[i].0)
                        + flows[j].1 / i64::from(flows[j].0);
                    assert!(
                        (normal(i) - normal(j)).abs() <= bound,
                        "{service:?} at {turn}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_huge_job_is_reached_without_spinning_through_empty_rounds() {
        let mut ring = Drr::new(Cost(1));
        ring.wait(
            FlowKey(0),
            Weight::ONE,
            Head {
                cost: Cost(i64::MAX / 8),
                since: 0,
            },
        );
        assert_eq!(ring.next(), Some(FlowKey(0)));
        ring.serve(FlowKey(0));
        assert_eq!(ring.deficit(FlowKey(0)), Cost(0));
    }

    #[test]
    fn debt_is_kept_while_idle_and_savings_are_not() {
        let mut ring = Drr::new(QUANTUM);
        let head = Head {
            cost: Cost(1_000),
            since: 0,
        };
        ring.wait(FlowKey(0), Weight::ONE, head);
        ring.serve(FlowKey(0));
        ring.rest(FlowKey(0));
        assert_eq!(ring.deficit(FlowKey(0)), Cost(0), "savings are gone");
        ring.correct(FlowKey(0), Weight::ONE, Cost(40_000));
        ring.rest(FlowKey(0));
        assert_eq!(ring.deficit(FlowKey(0)), Cost(-40_000), "debt stays");
    }

    #[test]
    fn a_flow_that_is_held_back_works_off_no_debt_meanwhile() {
        let mut ring = Drr::new(QUANTUM);
        let head = |since| Head {
            cost: Cost(5_000),
            since,
        };
        ring.correct(FlowKey(0), Weight::ONE, Cost(40_000));
        ring.wait(FlowKey(1), Weight::ONE, head(1));
        let serve_other = |ring: &mut Drr, since| {
            ring.serve(FlowKey(1));
            ring.wait(FlowKey(1), Weight::ONE, head(since));
        };
        for turn in 0..100 {
            serve_other(&mut ring, 2 + turn);
        }
        ring.wait(FlowKey(0), Weight::ONE, head(0));
        let mut first = 0;
        while ring.next() == Some(FlowKey(1)) {
            serve_other(&mut ring, 200 + first);
            first += 1;
        }
        assert_eq!(first, 8, "a round for each 5 000 of the debt");
    }

    #[test]
    fn a_flow_whose_jobs_cost_four_times_the_estimate_gets_no_more_than_its_share() {
        let mut ring = Drr::new(QUANTUM);
        let mut service = [0_i64; 2];
        let head = |since| Head {
            cost: Cost(2_000),
            since,
        };
        ring.wait(FlowKey(0), Weight::ONE, head(0));
        ring.wait(FlowKey(1), Weight::ONE, head(1));
        for turn in 0..20_000 {
            let key = ring.next().unwrap();
            ring.serve(key);
            let actual = if key.0 == 0 { 8_000 } else { 2_000 };
            service[key.0 as usize] += actual;
            ring.wait(key, Weight::ONE, head(2 + turn));
            ring.correct(key, Weight::ONE, Cost(actual - 2_000));
        }
        let ratio = service[0] as f64 / service[1] as f64;
        assert!((ratio - 1.0).abs() < 0.01, "{service:?}");
    }

    #[test]
    fn one_job_behind_a_hundred_waits_for_one_round_only() {
        let mut ring = Drr::new(QUANTUM);
        ring.wait(
            FlowKey(0),
            Weight::ONE,
            Head {
                cost: Cost(1_000),
                since: 0,
            },
        );
        for turn in 1..50 {
            ring.serve(FlowKey(0));
            ring.wait(
                FlowKey(0),
                Weight::ONE,
                Head {
                    cost: Cost(1_000),
                    since: turn,
                },
            );
        }
        ring.wait(
            FlowKey(1),
            Weight::ONE,
            Head {
                cost: Cost(1_000),
                since: 100,
            },
        );
        let mut before = 0;
        while ring.next() == Some(FlowKey(0)) {
            ring.serve(FlowKey(0));
            ring.wait(
                FlowKey(0),
                Weight::ONE,
                Head {
                    cost: Cost(1_000),
                    since: 101 + before,
                },
            );
            before += 1;
        }
        assert!(before <= 5, "{before} jobs went first");
    }

    #[test]
    fn idle_flows_without_debt_leave_nothing_behind() {
        let mut ring = Drr::new(QUANTUM);
        for key in 0..10_000 {
            ring.wait(
                FlowKey(key),
                Weight::ONE,
                Head {
                    cost: Cost(1_000),
                    since: 0,
                },
            );
            ring.rest(FlowKey(key));
        }
        assert!(ring.flows.is_empty() && ring.is_idle());
    }
}
