//! The search for better settings: one setting after the other, each proved by a replay.

use fairlane_core::drr::Weight;
use fairlane_core::scheduler::Config;
use fairlane_core::{Cost, TenantId};

use crate::figures::Figures;
use crate::month::Month;
use crate::replay::replay;

/// Replays of one search, at most: today's settings, and each candidate of each setting.
pub const REPLAYS_MAX: usize = 21;

const QUANTA: [i64; 5] = [1_000, 2_000, 5_000, 10_000, 20_000];
const THROTTLES: [usize; 4] = [3, 5, 8, 12];
const BUDGET_PERCENTS: [u64; 5] = [110, 130, 150, 200, 300];
/// Tenants whose weight is looked at: those that took most, and those that took least.
const TENANTS_MAX: usize = 3;

/// A setting with another value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    Quantum(Cost),
    /// Rate limits within the window that demote.
    Throttles(usize),
    /// Part of the daily budget that demotes, percent.
    BudgetPercent(u64),
    Weight(TenantId, Weight),
}

impl Change {
    /// Makes the change.
    pub fn apply(&self, config: &mut Config) {
        match self {
            Self::Quantum(quantum) => config.quantum = *quantum,
            Self::Throttles(throttles) => config.demotion.throttles = *throttles,
            Self::BudgetPercent(percent) => config.demotion.budget_percent = *percent,
            Self::Weight(tenant, weight) => {
                let default = config.default_policy;
                let policy = config.tenants.entry(tenant.clone()).or_insert(default);
                policy.weight = *weight;
            }
        }
    }

    /// The key of the configuration, and the value.
    #[must_use]
    pub fn setting(&self) -> (String, String) {
        match self {
            Self::Quantum(quantum) => ("scheduler.quantum".to_owned(), decimal(quantum.0)),
            Self::Throttles(throttles) => (
                "scheduler.demotion.throttles".to_owned(),
                throttles.to_string(),
            ),
            Self::BudgetPercent(percent) => (
                "scheduler.demotion.budget_percent".to_owned(),
                percent.to_string(),
            ),
            Self::Weight(tenant, weight) => (
                format!("tenants.{tenant}.weight"),
                decimal(i64::from(weight.0)),
            ),
        }
    }

    /// The same setting as it is.
    fn today(&self, config: &Config) -> Self {
        match self {
            Self::Quantum(_) => Self::Quantum(config.quantum),
            Self::Throttles(_) => Self::Throttles(config.demotion.throttles),
            Self::BudgetPercent(_) => Self::BudgetPercent(config.demotion.budget_percent),
            Self::Weight(tenant, _) => Self::Weight(tenant.clone(), weight(config, tenant)),
        }
    }
}

/// Thousandths as people write them.
fn decimal(thousandths: i64) -> String {
    let (whole, part) = (thousandths / 1_000, thousandths % 1_000);
    let text = format!("{whole}.{part:03}");
    let text = text.trim_end_matches('0');
    // A number of the configuration, not a whole number.
    if text.ends_with('.') {
        format!("{text}0")
    } else {
        text.to_owned()
    }
}

fn weight(config: &Config, tenant: &TenantId) -> Weight {
    let policy = config.tenants.get(tenant);
    policy.map_or(config.default_policy.weight, |policy| policy.weight)
}

/// A change that is recommended, after those before it.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    pub change: Change,
    /// The setting as it is today.
    pub instead_of: Change,
    /// Replay with this change and those before it.
    pub figures: Figures,
    /// What it gained over those before it, in percent of the aims' figures.
    pub gain: u64,
}

/// What came of the search.
#[derive(Debug, Clone, PartialEq)]
pub struct Advice {
    /// Replay of today's settings.
    pub today: Figures,
    /// What to change, in this order; empty if nothing is better.
    pub steps: Vec<Step>,
    pub replays: usize,
}

impl Advice {
    /// Replay with all that is recommended.
    #[must_use]
    pub fn advised(&self) -> &Figures {
        self.steps.last().map_or(&self.today, |step| &step.figures)
    }
}

/// Searches for better settings than today's. `told` hears of each replay.
pub fn advise(month: &Month, today: &Config, mut told: impl FnMut(usize)) -> Advice {
    let mut replays = 0;
    let mut run = |config: &Config| {
        let figures = replay(month, config);
        replays += 1;
        told(replays);
        figures
    };
    let mut config = today.clone();
    let figures = run(&config);
    let mut best = figures.clone();
    let mut steps = Vec::new();
    for candidates in candidates(month, today) {
        let mut found: Option<(u64, Change, Figures)> = None;
        for change in candidates {
            let mut with = config.clone();
            change.apply(&mut with);
            let figures = run(&with);
            // Of two that gain the same, the first.
            if let Some(gain) = figures.gain_over(&best)
                && found.as_ref().is_none_or(|(most, ..)| gain > *most)
            {
                found = Some((gain, change, figures));
            }
        }
        if let Some((gain, change, figures)) = found {
            change.apply(&mut config);
            best = figures.clone();
            steps.push(Step {
                instead_of: change.today(today),
                change,
                figures,
                gain,
            });
        }
    }
    Advice {
        today: figures,
        steps,
        replays,
    }
}

/// Values that are worth a replay, by setting.
fn candidates(month: &Month, today: &Config) -> Vec<Vec<Change>> {
    let quanta = QUANTA.map(Cost).into_iter();
    let quanta = quanta.filter(|quantum| *quantum != today.quantum);
    let mut all = vec![quanta.map(Change::Quantum).collect()];
    if !month.squalls.is_empty() {
        let throttles = THROTTLES.into_iter();
        let throttles = throttles.filter(|throttles| *throttles != today.demotion.throttles);
        all.push(throttles.map(Change::Throttles).collect());
    }
    let has_budgets = today.default_policy.daily_input_tokens.is_some()
        || today
            .tenants
            .values()
            .any(|policy| policy.daily_input_tokens.is_some());
    if has_budgets {
        let percents = BUDGET_PERCENTS.into_iter();
        let percents = percents.filter(|percent| *percent != today.demotion.budget_percent);
        all.push(percents.map(Change::BudgetPercent).collect());
    }
    all.extend(weights(month, today).into_iter().map(|change| vec![change]));
    all
}

/// Weights out of the common: of those that took most, if above it, and of those that took least, if below.
fn weights(month: &Month, today: &Config) -> Vec<Change> {
    let costs = month.costs();
    let mut all: Vec<Weight> = costs
        .iter()
        .map(|(tenant, _)| weight(today, tenant))
        .collect();
    all.sort_unstable();
    let Some(&common) = all.get(all.len() / 2) else {
        return Vec::new();
    };
    let noisy = costs.iter().map(|(tenant, _)| tenant);
    let noisy = noisy.filter(|tenant| !month.is_quiet(tenant) && weight(today, tenant) > common);
    let quiet = costs.iter().rev().map(|(tenant, _)| tenant);
    let quiet = quiet.filter(|tenant| month.is_quiet(tenant) && weight(today, tenant) < common);
    let odd = noisy.take(TENANTS_MAX).chain(quiet.take(TENANTS_MAX));
    odd.map(|tenant| Change::Weight(tenant.clone(), common))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_the_configuration_has_them() {
        assert_eq!([5_000, 500, 1_250].map(decimal), ["5.0", "0.5", "1.25"]);
    }
}
