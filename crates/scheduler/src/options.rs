//! The scheduler's settings as checked values.

use std::collections::BTreeMap;
use std::time::Duration;

use fairlane_core::autoscale;
use fairlane_core::election::Times;
use fairlane_core::limiter::Limits;
use fairlane_core::scheduler::{Config, Policy};
use fairlane_core::share::ShareRules;
use fairlane_core::{Cost, CostWeights, PoolId, TenantId, breaker, demotion};
use fairlane_runtime::config::Settings;
use fairlane_wire::Plan;

use crate::tenants;

/// Everything a scheduler keeps to.
#[derive(Debug, Clone)]
pub struct Options {
    pub(crate) config: Config,
    pub(crate) times: Times,
    /// Life of a credit that its worker has not begun.
    pub(crate) unstarted_ttl: Duration,
    /// A lease of which nothing is heard for longer has ended.
    pub(crate) lease_ttl_max: Duration,
    /// Life of records of ended jobs.
    pub(crate) results_keep: Duration,
    pub(crate) autoscale: autoscale::Rules,
}

/// Settings that are each legal and do not fit together.
#[derive(Debug, thiserror::Error)]
pub enum OptionsError {
    #[error(
        "scheduler.heartbeat_ms ({heartbeat}), takeover_after_ms ({takeover}) and lease_ttl_ms ({ttl}) do not fit: \
         two heartbeats must fit in three quarters of takeover_after_ms, which must be below lease_ttl_ms"
    )]
    Times {
        heartbeat: u64,
        takeover: u64,
        ttl: u64,
    },
    #[error("limits.preset {0:?} is not known; use one of tier1, start, build, scale, unlimited")]
    Preset(String),
    #[error("{key} {name:?} is not usable: {text}")]
    Name {
        key: &'static str,
        name: String,
        text: String,
    },
    #[error("tenants.{tenant}.plan {plan:?} is not known; use standard or pro, or give a weight")]
    Plan { tenant: String, plan: String },
}

/// Credits a job gets beyond its attempts, before it counts as one that kills workers.
const DELIVERY_SLACK: u32 = 4;

/// Workers announce themselves every second; after this they are taken to be gone.
const WORKER_SILENCE_MAX_MS: u64 = 3_500;

impl Options {
    /// What the core keeps to, for whoever replays it.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// # Errors
    /// [`OptionsError`] with the key, the value and what would be right.
    pub fn from_settings(settings: &Settings) -> Result<Self, OptionsError> {
        let scheduler = &settings.scheduler;
        let times = Times {
            heartbeat: scheduler.heartbeat_ms,
            takeover_after: scheduler.takeover_after_ms,
            ttl: scheduler.lease_ttl_ms,
        };
        if !times.are_sound() {
            return Err(OptionsError::Times {
                heartbeat: times.heartbeat,
                takeover: times.takeover_after,
                ttl: times.ttl,
            });
        }
        let default_limits = preset(&settings.limits.preset)?;
        Ok(Self {
            config: Config {
                quantum: thousandths(scheduler.quantum).map_or(Cost::UNIT, Cost),
                cost_weights: CostWeights {
                    input: scheduler.cost.input,
                    output: scheduler.cost.output,
                },
                shares: ShareRules {
                    weights: [
                        scheduler.weights.critical,
                        scheduler.weights.standard,
                        scheduler.weights.batch,
                    ],
                    preference: thousandths(scheduler.preference)
                        .and_then(|part| u32::try_from(part).ok())
                        .unwrap_or(0),
                    ..ShareRules::default()
                },
                limits: limits(settings, default_limits)?,
                default_limits,
                tenants: policies(settings)?,
                default_policy: default_policy(settings),
                max_deliver: settings.worker.max_attempts + DELIVERY_SLACK,
                worker_silence_max: WORKER_SILENCE_MAX_MS,
                breaker: breaker::Rules {
                    window: scheduler.breaker.window_ms,
                    samples_min: scheduler.breaker.samples_min,
                    failures_percent: scheduler.breaker.failures_percent,
                    open_for: scheduler.breaker.open_ms,
                },
                demotion: demotion::Rules {
                    throttles: scheduler.demotion.throttles as usize,
                    window: scheduler.demotion.window_ms,
                    budget_percent: scheduler.demotion.budget_percent,
                    length: scheduler.demotion.length_ms,
                },
            },
            times,
            unstarted_ttl: Duration::from_millis(scheduler.unstarted_ttl_ms),
            lease_ttl_max: Duration::from_millis(
                scheduler.unstarted_ttl_ms.max(scheduler.credit_ttl_ms),
            ),
            results_keep: Duration::from_millis(settings.results.keep_ms),
            autoscale: autoscale::Rules {
                drain: [
                    scheduler.autoscale.drain_critical_ms,
                    scheduler.autoscale.drain_standard_ms,
                    scheduler.autoscale.drain_batch_ms,
                ],
                hold: scheduler.autoscale.hold_ms,
                slots_min: u64::from(scheduler.autoscale.slots_min),
                slots_max: scheduler.autoscale.slots_max,
            },
        })
    }
}

/// A checked, non-negative setting in thousandths.
#[expect(
    clippy::cast_possible_truncation,
    reason = "settings are bounded far below 2^53"
)]
fn thousandths(value: f64) -> Option<i64> {
    (value.is_finite() && value >= 0.0).then(|| (value * 1_000.0).round() as i64)
}

/// Limits of the named tiers: requests, input tokens, output tokens per minute and pool.
fn preset(name: &str) -> Result<Limits, OptionsError> {
    let (requests, input_tokens, output_tokens) = match name {
        "tier1" => (50, 30_000, 8_000),
        "start" => (1_000, 2_000_000, 400_000),
        "build" => (5_000, 5_000_000, 1_000_000),
        "scale" => (10_000, 10_000_000, 2_000_000),
        "unlimited" => (100_000_000, 1_000_000_000_000, 1_000_000_000_000),
        other => return Err(OptionsError::Preset(other.to_owned())),
    };
    Ok(Limits {
        requests,
        input_tokens,
        output_tokens,
    })
}

fn limits(settings: &Settings, preset: Limits) -> Result<BTreeMap<PoolId, Limits>, OptionsError> {
    let pools = settings.limits.pools.iter().map(|(name, pool)| {
        let id = PoolId::parse(name).map_err(|error| OptionsError::Name {
            key: "limits.pools",
            name: name.clone(),
            text: error.to_string(),
        })?;
        let limits = Limits {
            requests: pool.requests_per_minute.unwrap_or(preset.requests),
            input_tokens: pool.input_tokens_per_minute.unwrap_or(preset.input_tokens),
            output_tokens: pool
                .output_tokens_per_minute
                .unwrap_or(preset.output_tokens),
        };
        Ok((id, limits))
    });
    pools.collect()
}

fn default_policy(settings: &Settings) -> Policy {
    Policy {
        in_flight_max: settings.scheduler.tenant_in_flight_max,
        daily_input_tokens: settings.scheduler.daily_input_tokens,
        ..Policy::default()
    }
}

fn policies(settings: &Settings) -> Result<BTreeMap<TenantId, Policy>, OptionsError> {
    let mut policies = BTreeMap::new();
    for (name, tenant) in &settings.tenants {
        let id = TenantId::parse(name).map_err(|error| OptionsError::Name {
            key: "tenants",
            name: name.clone(),
            text: error.to_string(),
        })?;
        let plan = tenant.plan.as_deref();
        let plan = plan.map(|plan| {
            Plan::parse(plan).ok_or_else(|| OptionsError::Plan {
                tenant: name.clone(),
                plan: plan.to_owned(),
            })
        });
        let plan = plan.transpose()?.unwrap_or(Plan::Standard);
        let weight = tenant.weight.map(tenants::weight);
        let weight = weight.unwrap_or(tenants::weight_of(plan));
        let default = default_policy(settings);
        let policy = Policy {
            weight,
            daily_input_tokens: tenant.daily_input_tokens.or(default.daily_input_tokens),
            ..default
        };
        policies.insert(id, policy);
    }
    Ok(policies)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fairlane_core::drr::Weight;
    use fairlane_core::{breaker, demotion};
    use fairlane_runtime::config::{PoolLimits, Tenant};

    #[test]
    fn defaults_fit_together() {
        let options = Options::from_settings(&Settings::default()).unwrap();
        assert_eq!(options.config.quantum, Cost(5_000));
        assert_eq!(options.config.shares, ShareRules::default());
        assert_eq!(options.config.max_deliver, 8);
        assert_eq!(options.config.cost_weights, CostWeights::default());
        assert_eq!(options.config.breaker, breaker::Rules::default());
        assert_eq!(options.config.demotion, demotion::Rules::default());
    }

    #[test]
    fn times_that_would_let_two_lead_are_refused() {
        let mut settings = Settings::default();
        settings.scheduler.heartbeat_ms = 1_000;
        let error = Options::from_settings(&settings).unwrap_err().to_string();
        assert!(error.contains("heartbeat_ms (1000)"), "{error}");
    }

    #[test]
    fn a_pool_takes_what_it_does_not_name_from_the_preset() {
        let mut settings = Settings::default();
        settings.limits.preset = "tier1".into();
        let pool = PoolLimits {
            output_tokens_per_minute: Some(10_000),
            ..PoolLimits::default()
        };
        settings.limits.pools.insert("haiku-4.5".into(), pool);
        let config = Options::from_settings(&settings).unwrap().config;
        let haiku = config.limits[&PoolId::parse("haiku-4.5").unwrap()];
        assert_eq!((haiku.requests, haiku.output_tokens), (50, 10_000));
        settings.limits.preset = "gold".into();
        let error = Options::from_settings(&settings).unwrap_err().to_string();
        assert!(
            error.contains("\"gold\"") && error.contains("tier1"),
            "{error}"
        );
    }

    #[test]
    fn weights_follow_from_the_plan_unless_given() {
        let mut settings = Settings::default();
        let tenant = |plan: Option<&str>, weight| Tenant {
            plan: plan.map(str::to_owned),
            weight,
            ..Tenant::default()
        };
        settings
            .tenants
            .insert("a".into(), tenant(Some("pro"), None));
        settings
            .tenants
            .insert("b".into(), tenant(Some("pro"), Some(1.5)));
        let tenants = Options::from_settings(&settings).unwrap().config.tenants;
        let weight = |name| tenants[&TenantId::parse(name).unwrap()].weight;
        assert_eq!((weight("a"), weight("b")), (Weight(3_000), Weight(1_500)));
        settings
            .tenants
            .insert("c".into(), tenant(Some("gold"), None));
        assert!(matches!(
            Options::from_settings(&settings),
            Err(OptionsError::Plan { .. })
        ));
    }
}
