//! The tenants that are in sight: their figures, filtered and sorted.

use std::cmp::Ordering;

use fairlane_core::demotion::Cause;
use fairlane_wire::FleetRecord;
use fairlane_wire::fleet::FleetTenant;

use crate::bars::span;
use crate::view::{Sort, View};

/// One tenant, with what follows from its numbers.
#[derive(Debug)]
pub(crate) struct Row<'a> {
    pub(crate) tenant: &'a FleetTenant,
    /// Part of the cost that was granted in the last minute.
    pub(crate) share: f64,
    /// The part its weight gives it among the tenants that have work.
    pub(crate) entitled: f64,
    /// Part of the daily budget that is used, if there is one.
    pub(crate) budget: Option<f64>,
}

fn part(of: f64, whole: f64) -> f64 {
    if whole > 0.0 { of / whole } else { 0.0 }
}

impl<'a> Row<'a> {
    #[expect(clippy::cast_precision_loss, reason = "parts for showing")]
    fn new(tenant: &'a FleetTenant, fleet: &FleetRecord) -> Self {
        let has_work = tenant.in_flight > 0 || tenant.queued.iter().any(|jobs| *jobs > 0);
        let weight = if has_work {
            f64::from(tenant.weight)
        } else {
            0.0
        };
        let used = tenant.input_tokens_today as f64;
        Self {
            share: part(tenant.granted as f64, fleet.granted as f64),
            entitled: part(weight, fleet.active_weight as f64),
            budget: tenant
                .daily_input_tokens
                .map(|budget| part(used, budget as f64)),
            tenant,
        }
    }

    pub(crate) fn work(&self) -> u64 {
        self.tenant.queued.iter().sum::<u64>() + u64::from(self.tenant.in_flight)
    }

    /// In words, what is out of the common with it.
    pub(crate) fn state(&self, now: u64) -> String {
        let tenant = self.tenant;
        if let Some(demoted) = &tenant.demoted {
            let why = match demoted.cause {
                Cause::Throttles => "429s",
                Cause::Budget => "budget",
                Cause::Hand => "by hand",
            };
            let left = span(demoted.until_ms.saturating_sub(now));
            return format!("demoted {left} ({why})");
        }
        let is_waiting = tenant.queued.iter().any(|jobs| *jobs > 0);
        if is_waiting && tenant.in_flight >= tenant.in_flight_max {
            return format!("at its cap of {}", tenant.in_flight_max);
        }
        if self.budget.is_some_and(|part| part > 1.0) {
            return "over budget".to_owned();
        }
        if is_waiting && self.entitled > 0.0 && self.share < self.entitled / 2.0 {
            return "behind".to_owned();
        }
        String::new()
    }

    /// Which of two comes first.
    fn order(&self, other: &Self, sort: Sort) -> Ordering {
        let behind = |row: &Self| {
            let is_waiting = row.tenant.queued.iter().any(|jobs| *jobs > 0);
            if is_waiting {
                row.entitled - row.share
            } else {
                -1.0
            }
        };
        let names = self.tenant.tenant.cmp(&other.tenant.tenant);
        let order = match sort {
            Sort::Work => other.work().cmp(&self.work()),
            Sort::Share => other.share.total_cmp(&self.share),
            Sort::Behind => behind(other).total_cmp(&behind(self)),
            Sort::Budget => {
                let budget = |row: &Self| row.budget.unwrap_or(-1.0);
                budget(other).total_cmp(&budget(self))
            }
            Sort::Name => names,
        };
        order.then(names)
    }
}

/// The tenants that pass the filter, in order.
pub(crate) fn rows<'a>(fleet: &'a FleetRecord, view: &View) -> Vec<Row<'a>> {
    let wanted = fleet.tenants.iter();
    let wanted = wanted.filter(|tenant| tenant.tenant.as_str().contains(&view.filter));
    let mut rows: Vec<Row<'a>> = wanted.map(|tenant| Row::new(tenant, fleet)).collect();
    rows.sort_by(|one, other| one.order(other, view.sort));
    if view.is_reversed {
        rows.reverse();
    }
    rows
}
