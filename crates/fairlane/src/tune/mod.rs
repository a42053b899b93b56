//! `fairlane tune`: better settings for the scheduler, proved by replaying the ledger.
//!
//! The replay itself is `fairlane_tune`, which knows nothing of NATS; here the ledger is read and the outcome told.

mod record;
mod show;

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use fairlane_core::limiter::Limits;
use fairlane_core::scheduler::Config;
use fairlane_core::{PoolId, TenantId};
use fairlane_nats::Nats;
use fairlane_scheduler::{Options, policy_with};
use fairlane_tune::{Advice, RoomAdvice};
use fairlane_wire::{FleetRecord, WhyRequest};

use crate::cli::{Format, Globals, TuneArgs};
use crate::exit::{Exit, Outcome, Stop};
use crate::out::{print, print_json, say};
use crate::target::Target;
use crate::tenant;
use crate::why::ask;

use record::Recorded;

/// Everything there is to tell.
struct Findings {
    since_ms: u64,
    recorded: Recorded,
    advice: Advice,
    room: Vec<RoomAdvice>,
    /// Tenants whose weight is set at run time, which stands over the configuration.
    weighed: Vec<TenantId>,
    /// Pools whose limits the upstream has told, which stand over the configuration.
    told: Vec<PoolId>,
}

pub(crate) async fn run(globals: &Globals, args: TuneArgs) -> Outcome {
    let target = Target::load(globals)?;
    let _logs = target.quiet_logs("tune")?;
    let options = Options::from_settings(target.settings());
    let mut config = options
        .map_err(|error| Stop::new(Exit::Usage, error))?
        .config()
        .clone();
    let nats = target.connect("tune").await?;
    let weighed = settle(&nats, &mut config).await?;
    let told = discover(&nats, &mut config).await;
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let since = now.unwrap_or_default().saturating_sub(args.since);
    let since_ms = u64::try_from(since.as_millis()).unwrap_or(0);
    let calls_max = args.calls_max as usize;
    let slots = args.slots.unwrap_or(0);
    let slots_min = if slots == 0 {
        target.settings().worker.slots
    } else {
        slots
    };
    let mut recorded = record::read(&nats, since_ms, calls_max).await?;
    if recorded.jobs.is_empty() {
        return Err(Stop::saying(
            Exit::NotFound,
            "the ledger has no answered call in this time; look further back with --since, or run some jobs first",
        ));
    }
    if args.slots.is_none() {
        recorded.slots = recorded.slots.max(slots_min);
    } else {
        recorded.slots = slots;
    }
    let month = recorded.month();
    let replayed = move || {
        fairlane_tune::advise(&month, &config, |replays| {
            say(format_args!(
                "replay {replays} of at most {}",
                fairlane_tune::REPLAYS_MAX
            ));
        })
    };
    let advice = tokio::task::spawn_blocking(replayed).await;
    let findings = Findings {
        since_ms,
        room: fairlane_tune::room(&recorded.answers),
        recorded,
        advice: advice.context("the replay broke off")?,
        weighed,
        told,
    };
    match args.output.format {
        Format::Table => print(show::text(&findings))?,
        Format::Json | Format::Jsonl => print_json(&show::document(&findings))?,
    }
    Ok(Exit::Ok)
}

/// Puts what holds for tenants at run time into the configuration. Returns whose weight that sets.
async fn settle(nats: &Nats, config: &mut Config) -> Result<Vec<TenantId>, Stop> {
    let mut weighed = Vec::new();
    for (tenant, record) in tenant::records(nats).await? {
        let mut policy = policy_with(config, &tenant, &record);
        // Of today, not of the month.
        policy.demoted_until = None;
        if record.weight.is_some() || record.plan.is_some() {
            weighed.push(tenant.clone());
        }
        config.tenants.insert(tenant, policy);
    }
    Ok(weighed)
}

/// Puts the limits that the upstream has told the leader into the configuration. Returns of which pools; of none if no
/// scheduler leads.
async fn discover(nats: &Nats, config: &mut Config) -> Vec<PoolId> {
    let question = WhyRequest::Fleet { tenants_max: 0 };
    let Ok(fleet) = ask::<FleetRecord>(nats, &question).await else {
        say("no scheduler answers: the replay keeps to the limits of the configuration");
        return Vec::new();
    };
    let heard = fleet.pools.into_iter().filter(|pool| pool.heard);
    let mut told = Vec::new();
    for pool in heard {
        let [requests, input_tokens, output_tokens] = pool.per_minute;
        let limits = Limits {
            requests,
            input_tokens,
            output_tokens,
        };
        config.limits.insert(pool.pool.clone(), limits);
        told.push(pool.pool);
    }
    told
}
