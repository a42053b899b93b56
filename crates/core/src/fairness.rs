//! How fair the scheduler is, measured while it runs.
//!
//! Fairness is only defined between those that compete: flows of one lane (a pool and a priority) that
//! had work in line for the whole of a window. Whoever came or went meanwhile got what it could use.
//! Of each window of a minute three numbers are kept per lane:
//!
//! - Jain's index over the service per weight, `(sum x)^2 / (n * sum x^2)`: 1 is perfectly even,
//!   `1/n` is one flow taking all;
//! - the least part of its entitlement that any flow got;
//! - the largest gap in service per weight between two flows, as a part of the gap that deficit
//!   round robin allows: a quantum, and per flow a job and what its estimates were wrong by. Above 1
//!   something is broken; the other two may be low in a minute that saw only a few jobs.
//!
//! Service is what was charged, with corrections booked when they are known, as the deficits see it. An
//! event costs one look-up, a window one pass over the flows that wait. Flows that neither wait nor
//! have work in flight are forgotten.

use std::collections::{BTreeMap, VecDeque};

use crate::Millis;
use crate::drr::Weight;
use crate::job::{Cost, Priority};

/// Length of a window.
pub const WINDOW: Millis = 60_000;

/// Windows that are kept.
pub const HISTORY: usize = 60;

/// A flow that waits for so many windows without being served, though it is long its turn, is starved.
const STARVED_AFTER: u32 = 10;

/// Where flows compete: a pool, by the caller's number, and a priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lane {
    pub pool: u32,
    pub priority: Priority,
}

/// How fair one lane was in one window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reading {
    /// Jain's index, above 0 up to 1.
    pub index: f64,
    /// The least part of its entitlement that a flow got; 1 if all got theirs.
    pub min_share: f64,
    /// The largest gap as a part of what is allowed, of the pair that comes nearest to it.
    pub gap_ratio: f64,
    /// Flows that were compared.
    pub flows: usize,
}

impl Reading {
    /// Nobody competed, so nobody was treated unfairly.
    pub const EVEN: Self = Self {
        index: 1.0,
        min_share: 1.0,
        gap_ratio: 0.0,
        flows: 0,
    };

    /// The worse of both in every number.
    #[must_use]
    pub fn worse(self, other: Self) -> Self {
        Self {
            index: self.index.min(other.index),
            min_share: self.min_share.min(other.min_share),
            gap_ratio: self.gap_ratio.max(other.gap_ratio),
            flows: self.flows + other.flows,
        }
    }
}

/// A minute that is over.
#[derive(Debug, Clone, PartialEq)]
pub struct Window {
    pub from: Millis,
    pub to: Millis,
    /// Lanes in which at least two flows competed.
    pub lanes: Vec<(Lane, Reading)>,
}

/// The meter of one scheduler.
#[derive(Debug)]
pub struct Meter {
    quantum: Cost,
    from: Millis,
    flows: BTreeMap<(Lane, u32), Flow>,
    history: VecDeque<Window>,
}

#[derive(Debug, Clone, Copy)]
struct Flow {
    weight: Weight,
    waits: bool,
    /// It has been waiting since the window began, with the same weight.
    competes: bool,
    served: i64,
    in_flight: u32,
    /// What was seen in this window, and in the one before: what was charged then is corrected now.
    seen: Extremes,
    seen_before: Extremes,
    unserved: Unserved,
}

/// Windows in a row in which a flow competed and got nothing, and what its share of them was.
#[derive(Debug, Clone, Copy, Default)]
struct Unserved {
    windows: u32,
    owed: f64,
    is_starved: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct Extremes {
    job_max: i64,
    /// The largest corrections, up and down.
    dearer: i64,
    cheaper: i64,
    in_flight_max: u32,
}

impl Extremes {
    fn both(self, other: Self) -> Self {
        Self {
            job_max: self.job_max.max(other.job_max),
            dearer: self.dearer.max(other.dearer),
            cheaper: self.cheaper.min(other.cheaper),
            in_flight_max: self.in_flight_max.max(other.in_flight_max),
        }
    }
}

impl Meter {
    /// A meter for deficit round robin with this quantum. The first window begins `now`.
    #[must_use]
    pub fn new(quantum: Cost, now: Millis) -> Self {
        Self {
            quantum,
            from: now,
            flows: BTreeMap::new(),
            history: VecDeque::new(),
        }
    }

    /// A flow has work in line that it may run. Saying so again changes nothing.
    pub fn waits(&mut self, now: Millis, lane: Lane, flow: u32, weight: Weight) {
        self.roll(now);
        let begins = now == self.from;
        let known = self.flow(lane, flow, weight);
        if !known.waits {
            known.waits = true;
            known.competes = begins;
        }
        if known.weight != weight {
            known.weight = weight;
            known.competes = false;
        }
    }

    /// A flow has nothing to run, or must not.
    pub fn rests(&mut self, now: Millis, lane: Lane, flow: u32) {
        self.roll(now);
        if let Some(known) = self.flows.get_mut(&(lane, flow)) {
            known.waits = false;
            known.competes = false;
            if known.in_flight == 0 {
                self.flows.remove(&(lane, flow));
            }
        }
    }

    /// A job of a flow was granted and charged with `cost`.
    pub fn served(&mut self, now: Millis, lane: Lane, flow: u32, weight: Weight, cost: Cost) {
        self.roll(now);
        let known = self.flow(lane, flow, weight);
        known.served = known.served.saturating_add(cost.0);
        known.in_flight += 1;
        known.seen.job_max = known.seen.job_max.max(cost.0);
        known.seen.in_flight_max = known.seen.in_flight_max.max(known.in_flight);
    }

    /// A job of a flow ended, and cost `more` than charged, or less.
    pub fn settled(&mut self, now: Millis, lane: Lane, flow: u32, more: Cost) {
        self.roll(now);
        let Some(known) = self.flows.get_mut(&(lane, flow)) else {
            // Granted by another leader.
            return;
        };
        known.served = known.served.saturating_add(more.0);
        known.in_flight = known.in_flight.saturating_sub(1);
        known.seen.dearer = known.seen.dearer.max(more.0);
        known.seen.cheaper = known.seen.cheaper.min(more.0);
        if !known.waits && known.in_flight == 0 {
            self.flows.remove(&(lane, flow));
        }
    }

    /// Ends the window if its time is over. A clock that steps back ends nothing.
    pub fn roll(&mut self, now: Millis) {
        let over = now.saturating_sub(self.from) / WINDOW;
        if over == 0 {
            return;
        }
        self.close();
        // In further windows that went by nothing happened, so there is nothing to compare.
        self.from += over * WINDOW;
    }

    /// The windows that are over, oldest first.
    pub fn history(&self) -> impl Iterator<Item = &Window> {
        self.history.iter()
    }

    /// How fair `priority` was in the last window that is over, in the pool where it was least.
    #[must_use]
    pub fn latest(&self, priority: Priority) -> Reading {
        let lanes = self.history.back().map_or(&[][..], |window| &window.lanes);
        lanes
            .iter()
            .filter(|(lane, _)| lane.priority == priority)
            .fold(Reading::EVEN, |worst, &(_, reading)| worst.worse(reading))
    }

    /// Flows of `priority` that could have run something for ten windows, were owed more than deficit round robin
    /// ever holds back, and got nothing.
    #[must_use]
    pub fn starved(&self, priority: Priority) -> usize {
        let flows = self.flows.iter();
        flows
            .filter(|((lane, _), flow)| lane.priority == priority && flow.unserved.is_starved)
            .count()
    }

    /// Flows that are remembered.
    #[must_use]
    pub fn remembered(&self) -> usize {
        self.flows.len()
    }

    fn flow(&mut self, lane: Lane, flow: u32, weight: Weight) -> &mut Flow {
        self.flows.entry((lane, flow)).or_insert(Flow {
            weight,
            waits: false,
            competes: false,
            served: 0,
            in_flight: 0,
            seen: Extremes::default(),
            seen_before: Extremes::default(),
            unserved: Unserved::default(),
        })
    }

    fn close(&mut self) {
        let mut lanes: Vec<(Lane, Vec<Flow>)> = Vec::new();
        for (&(lane, _), flow) in self.flows.iter().filter(|(_, flow)| flow.competes) {
            match lanes.last_mut() {
                Some((last, flows)) if *last == lane => flows.push(*flow),
                Some(_) | None => lanes.push((lane, vec![*flow])),
            }
        }
        if self.history.len() == HISTORY {
            self.history.pop_front();
        }
        self.history.push_back(Window {
            from: self.from,
            to: self.from + WINDOW,
            lanes: lanes
                .into_iter()
                .filter_map(|(lane, flows)| Some((lane, compare(&flows, self.quantum)?)))
                .collect(),
        });
        self.count_unserved();
        for flow in self.flows.values_mut() {
            flow.competes = flow.waits;
            flow.served = 0;
            flow.seen_before = flow.seen;
            flow.seen = Extremes {
                in_flight_max: flow.in_flight,
                ..Extremes::default()
            };
        }
    }
}

/// What a lane served in a window, to how much weight, and its largest job.
#[derive(Debug, Clone, Copy, Default)]
struct Total {
    served: f64,
    weight: f64,
    job_max: i64,
}

impl Meter {
    /// Notes who competed in the window that ends and got nothing.
    #[expect(clippy::cast_precision_loss, reason = "ratios, not sums")]
    fn count_unserved(&mut self) {
        let mut totals = BTreeMap::<Lane, Total>::new();
        for ((lane, _), flow) in self.flows.iter().filter(|(_, flow)| flow.competes) {
            let total = totals.entry(*lane).or_default();
            total.served += flow.served as f64;
            total.weight += f64::from(flow.weight.0);
            total.job_max = total.job_max.max(flow.seen.both(flow.seen_before).job_max);
        }
        for ((lane, _), flow) in &mut self.flows {
            let total = totals.get(lane).copied().unwrap_or_default();
            if !flow.competes || flow.served != 0 || flow.in_flight > 0 || total.weight <= 0.0 {
                flow.unserved = Unserved::default();
                continue;
            }
            let unserved = &mut flow.unserved;
            unserved.windows += 1;
            unserved.owed += total.served.max(0.0) * f64::from(flow.weight.0) / total.weight;
            // Twice what may lie between two flows: its next job may be as large as any.
            let bound = 2.0 * (self.quantum.0 + total.job_max) as f64;
            unserved.is_starved = unserved.windows >= STARVED_AFTER && unserved.owed > bound;
        }
    }
}

/// None if there is nobody to compare with, or nothing was served.
#[expect(clippy::cast_precision_loss, reason = "ratios, not sums")]
fn compare(flows: &[Flow], quantum: Cost) -> Option<Reading> {
    let total: f64 = flows.iter().map(|flow| flow.served as f64).sum();
    if flows.len() < 2 || total <= 0.0 {
        return None;
    }
    let weight = |flow: &Flow| f64::from(flow.weight.0.max(1)) / f64::from(Weight::ONE.0);
    let per_weight = |flow: &Flow| flow.served as f64 / weight(flow);
    let sum: f64 = flows.iter().map(per_weight).sum();
    let squares: f64 = flows.iter().map(|flow| per_weight(flow).powi(2)).sum();
    let least = flows.iter().map(per_weight).fold(f64::INFINITY, f64::min);
    let even = total / flows.iter().map(weight).sum::<f64>();
    let spreads: Vec<(f64, f64)> = flows
        .iter()
        .map(|flow| {
            let seen = flow.seen.both(flow.seen_before);
            let wrong = (seen.dearer - seen.cheaper) as f64 * f64::from(seen.in_flight_max);
            let allowed = (seen.job_max as f64 + wrong) / weight(flow);
            (per_weight(flow), allowed)
        })
        .collect();
    Some(Reading {
        index: sum * sum / (flows.len() as f64 * squares),
        min_share: least / even,
        gap_ratio: gap_ratio(&spreads, quantum.0 as f64),
        flows: flows.len(),
    })
}

/// The largest `(x - y) / (quantum + a + b)` of any two flows with service `x`, `y` and allowance
/// `a`, `b`. Whether a pair exceeds a ratio is seen in one pass, and the pair that exceeds it most
/// gives the next ratio to try; that ends after a few.
fn gap_ratio(flows: &[(f64, f64)], quantum: f64) -> f64 {
    let mut ratio = 0.0;
    for _ in 0..flows.len() {
        let ahead = flows
            .iter()
            .max_by(|one, other| (one.0 - ratio * one.1).total_cmp(&(other.0 - ratio * other.1)));
        let behind = flows
            .iter()
            .min_by(|one, other| (one.0 + ratio * one.1).total_cmp(&(other.0 + ratio * other.1)));
        let (Some(ahead), Some(behind)) = (ahead, behind) else {
            break;
        };
        let next = (ahead.0 - behind.0) / (quantum + ahead.1 + behind.1);
        if next <= ratio {
            break;
        }
        ratio = next;
    }
    ratio
}

#[cfg(test)]
mod tests {
    use super::*;

    const LANE: Lane = Lane {
        pool: 0,
        priority: Priority::Standard,
    };

    /// A meter that saw one window with these flows: weight, and the costs they were served.
    fn measured(flows: &[(u32, &[i64])]) -> Meter {
        let mut meter = Meter::new(Cost(5_000), 0);
        for (number, &(weight, costs)) in flows.iter().enumerate() {
            let (flow, weight) = (number as u32, Weight(weight * 1_000));
            meter.waits(0, LANE, flow, weight);
            for &cost in costs {
                meter.served(1_000, LANE, flow, weight, Cost(cost));
                meter.settled(2_000, LANE, flow, Cost(0));
            }
        }
        meter.roll(WINDOW);
        meter
    }

    fn near(got: f64, want: f64) {
        assert!((got - want).abs() < 1e-9, "{got} instead of {want}");
    }

    #[test]
    fn known_numbers_come_out() {
        let even = measured(&[(1, &[1_000; 10]), (1, &[10_000]), (2, &[5_000; 4])]);
        let reading = even.latest(Priority::Standard);
        near(reading.index, 1.0);
        near(reading.min_share, 1.0);
        near(reading.gap_ratio, 0.0);
        assert_eq!(reading.flows, 3);

        // 4 : 1 : 1 per weight: 36 / (3 * 18).
        let uneven = measured(&[(1, &[1_000; 40]), (1, &[1_000; 10]), (2, &[1_000; 20])]);
        let reading = uneven.latest(Priority::Standard);
        near(reading.index, 36.0 / 54.0);
        near(reading.min_share, 10.0 / (70.0 / 4.0));
        // 30 000 apart; the quantum and a job of the first two would be 7 000, the third's job is
        // half as much per weight.
        near(reading.gap_ratio, 30_000.0 / 6_500.0);

        let one_takes_all = measured(&[(1, &[1_000; 40]), (1, &[]), (1, &[]), (1, &[])]);
        let reading = one_takes_all.latest(Priority::Standard);
        near(reading.index, 0.25);
        near(reading.min_share, 0.0);
    }

    #[test]
    fn the_largest_ratio_need_not_be_that_of_the_largest_gap() {
        let flows = [(100.0, 100.0), (90.0, 1.0), (50.0, 1.0), (0.0, 200.0)];
        let quantum = 10.0;
        let mut largest: f64 = 0.0;
        for (x, a) in flows {
            for (y, b) in flows {
                largest = largest.max((x - y) / (quantum + a + b));
            }
        }
        near(gap_ratio(&flows, quantum), largest);
        near(largest, 40.0 / 12.0);
    }

    #[test]
    fn whoever_did_not_wait_for_the_whole_window_is_not_compared() {
        let mut meter = Meter::new(Cost(5_000), 0);
        for flow in 0..4 {
            meter.waits(0, LANE, flow, Weight::ONE);
        }
        meter.waits(1, LANE, 4, Weight::ONE);
        meter.rests(30_000, LANE, 2);
        meter.waits(30_000, LANE, 2, Weight::ONE);
        meter.waits(30_000, LANE, 3, Weight(2_000));
        meter.served(30_000, LANE, 0, Weight::ONE, Cost(1_000));
        meter.roll(WINDOW);
        assert_eq!(meter.latest(Priority::Standard).flows, 2);
        // In the next window all do.
        meter.served(WINDOW, LANE, 0, Weight::ONE, Cost(1_000));
        meter.roll(2 * WINDOW);
        assert_eq!(meter.latest(Priority::Standard).flows, 5);
    }

    #[test]
    fn corrections_count_when_they_are_known_and_widen_what_is_allowed() {
        let mut meter = Meter::new(Cost(5_000), 0);
        for flow in 0..2 {
            meter.waits(0, LANE, flow, Weight::ONE);
            for _ in 0..3 {
                meter.served(0, LANE, flow, Weight::ONE, Cost(1_000));
            }
        }
        for _ in 0..3 {
            meter.settled(1_000, LANE, 0, Cost(3_000));
            meter.settled(1_000, LANE, 1, Cost(0));
        }
        meter.roll(WINDOW);
        let reading = meter.latest(Priority::Standard);
        near(reading.index, 15.0 * 15.0 / (2.0 * (144.0 + 9.0)));
        // 9 000 apart; a quantum, a job each, and three jobs that were 3 000 dearer.
        near(reading.gap_ratio, 9_000.0 / (5_000.0 + 2_000.0 + 9_000.0));
    }

    #[test]
    fn lanes_are_not_compared_with_each_other_and_the_worst_pool_counts() {
        let mut meter = Meter::new(Cost(5_000), 0);
        let serve = |meter: &mut Meter, pool, priority, flow, cost| {
            let lane = Lane { pool, priority };
            meter.waits(0, lane, flow, Weight::ONE);
            meter.served(0, lane, flow, Weight::ONE, Cost(cost));
        };
        for (pool, flow, cost) in [(0, 0, 1_000), (0, 1, 1_000), (1, 0, 9_000), (1, 1, 3_000)] {
            serve(&mut meter, pool, Priority::Batch, flow, cost);
        }
        serve(&mut meter, 0, Priority::Critical, 0, 1_000_000);
        meter.roll(WINDOW);
        near(
            meter.latest(Priority::Batch).index,
            144.0 / (2.0 * (81.0 + 9.0)),
        );
        assert_eq!(meter.latest(Priority::Critical), Reading::EVEN);
        assert_eq!(meter.history().next().unwrap().lanes.len(), 2);
    }

    #[test]
    fn a_flow_that_gets_nothing_though_it_is_long_its_turn_is_starved() {
        let run = |windows: u64, cost: i64, serves_the_last_at: Option<u64>| {
            let mut meter = Meter::new(Cost(5_000), 0);
            for flow in 0..3 {
                meter.waits(0, LANE, flow, Weight::ONE);
            }
            for window in 0..windows {
                let now = window * WINDOW + 1;
                let last = serves_the_last_at == Some(window);
                for flow in 0..if last { 3 } else { 2 } {
                    meter.served(now, LANE, flow, Weight::ONE, Cost(cost));
                    meter.settled(now, LANE, flow, Cost(0));
                }
            }
            meter.roll(windows * WINDOW);
            meter.starved(LANE.priority)
        };
        assert_eq!(run(9, 5_000, None), 0, "not for long enough");
        assert_eq!(run(10, 5_000, None), 1);
        assert_eq!(run(11, 5_000, Some(10)), 0, "served at last");
        assert_eq!(run(15, 5_000, Some(9)), 0, "not for long enough since");
        assert_eq!(
            run(20, 1, None),
            0,
            "little was served, and it is owed less than a job"
        );
        assert_eq!(run(30, 0, None), 0, "nobody got anything");
    }

    #[test]
    fn an_hour_is_kept_and_idle_time_leaves_nothing() {
        let mut meter = Meter::new(Cost(5_000), 7);
        for minute in 0..100 {
            meter.waits(7 + minute * WINDOW, LANE, 0, Weight::ONE);
        }
        assert_eq!(meter.history().count(), HISTORY);
        let last = meter.history().last().unwrap();
        assert_eq!((last.from, last.to), (7 + 98 * WINDOW, 7 + 99 * WINDOW));
        meter.roll(7 + 5_000 * WINDOW);
        assert_eq!(
            meter.history().last().unwrap().to,
            7 + 100 * WINDOW,
            "what went by unseen is no window"
        );
        meter.roll(0);
        assert_eq!(meter.history().count(), HISTORY);
    }

    #[test]
    fn flows_that_neither_wait_nor_run_are_forgotten() {
        let mut meter = Meter::new(Cost(5_000), 0);
        for flow in 0..10_000 {
            meter.waits(5, LANE, flow, Weight::ONE);
            meter.served(5, LANE, flow, Weight::ONE, Cost(1_000));
            meter.rests(5, LANE, flow);
        }
        assert_eq!(meter.remembered(), 10_000, "all have a job in flight");
        for flow in 0..10_000 {
            meter.settled(6, LANE, flow, Cost(-500));
        }
        assert_eq!(meter.remembered(), 0);
    }
}
