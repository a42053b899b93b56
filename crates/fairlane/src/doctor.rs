//! `fairlane doctor`: what is wrong with a fleet, and what to do about it.
//!
//! One check after the other, each with a stable word. What cannot be looked at because of an earlier finding is
//! said to be skipped, so that one fault is one finding. Nothing is changed, and nothing costs money.

mod fault;

use std::collections::BTreeMap;
use std::time::Duration;

use fairlane_nats::objects::{self, EnsureError, Inspection};
use fairlane_nats::{ConnectError, Nats};
use fairlane_wire::lease::Ready;
use fairlane_wire::{FleetRecord, WhyRequest};
use fairlane_worker::KeyTrouble;
use futures::StreamExt;
use serde_json::{Value, json};

use crate::cli::{DoctorArgs, Format, Globals};
use crate::exit::{Exit, Outcome, told};
use crate::out::{Ink, Paint, print, print_json};
use crate::target::Target;
use crate::why::ask;

pub(crate) use fault::Fault;

/// Clocks may differ by this much before deadlines, budgets and waits are visibly wrong.
const SKEW_MAX_MS: u64 = 2_000;
/// More consumers than this part of what is allowed are soon too many, percent.
const CONSUMERS_PERCENT: i64 = 80;
/// A worker that answers no key check within this is not asked again.
const KEY_PATIENCE: Duration = Duration::from_secs(10);

/// What a check found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Ok,
    Warn,
    Bad,
    Skipped,
}

impl State {
    fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Bad => "bad",
            Self::Skipped => "skipped",
        }
    }

    fn ink(self) -> Ink {
        match self {
            Self::Ok => Ink::Good,
            Self::Warn | Self::Bad => Ink::Bad,
            Self::Skipped => Ink::Aside,
        }
    }
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Check {
    /// What was looked at.
    name: &'static str,
    state: State,
    /// The stable word of a fault.
    fault: Option<Fault>,
    found: String,
    remedy: Option<String>,
}

fn ok(name: &'static str, found: impl Into<String>) -> Check {
    Check {
        name,
        state: State::Ok,
        fault: None,
        found: found.into(),
        remedy: None,
    }
}

fn skipped(name: &'static str, why: &str) -> Check {
    Check {
        state: State::Skipped,
        ..ok(name, why)
    }
}

fn fault(
    name: &'static str,
    state: State,
    fault: Fault,
    found: impl Into<String>,
    remedy: impl Into<String>,
) -> Check {
    Check {
        state,
        fault: Some(fault),
        remedy: Some(remedy.into()),
        ..ok(name, found)
    }
}

pub(crate) async fn run(globals: &Globals, args: DoctorArgs) -> Outcome {
    let target = Target::load(globals)?;
    let _logs = target.quiet_logs("doctor")?;
    let (mut checks, is_reached) = match nats(&target).await {
        Ok((nats, check)) => {
            let mut checks = vec![check];
            checks.extend(fleet(&target, &nats, &args).await);
            (checks, true)
        }
        Err(check) => {
            let others = [
                "server",
                "objects",
                "consumers",
                "clock",
                "leader",
                "workers",
                "limits",
            ];
            let skipped = others.map(|name| skipped(name, "NATS cannot be reached"));
            (std::iter::once(check).chain(skipped).collect(), false)
        }
    };
    checks.push(key(&target).await);
    match args.output.format {
        Format::Table => print(shown(&checks, Paint::for_data(globals.color)))?,
        Format::Json | Format::Jsonl => print_json(&document(&checks))?,
    }
    let is_bad = checks.iter().any(|check| check.state == State::Bad);
    Ok(match (is_reached, is_bad) {
        (false, _) => Exit::Unreachable,
        (true, true) => Exit::Failed,
        (true, false) => Exit::Ok,
    })
}

async fn nats(target: &Target) -> Result<(Nats, Check), Check> {
    let url = &target.settings().nats.url;
    let mut options = target.nats_options("doctor");
    options.connect_timeout = crate::target::PATIENCE;
    let error = match fairlane_nats::connect(&options).await {
        Ok(nats) => {
            let found = format!("connected to {url} (from {})", target.url_from);
            return Ok((nats, ok("nats", found)));
        }
        Err(error) => error,
    };
    let (word, remedy) = match &error {
        ConnectError::Unreachable { .. } => (
            Fault::NatsDown,
            format!("start nats-server, or point at the right one: {url} comes from {}", target.url_from),
        ),
        ConnectError::Refused(_)
        | ConnectError::HalfCredentials { .. }
        | ConnectError::Credentials { .. } => (
            Fault::NatsCredentials,
            "set nats.nkey_file, nats.creds_file, or nats.user and FAIRLANE__NATS__PASSWORD, to what this server knows; \
             `fairlane config show` says what is used"
                .to_owned(),
        ),
    };
    let found = told(&anyhow::Error::new(error));
    Err(fault("nats", State::Bad, word, found, remedy))
}

async fn fleet(target: &Target, nats: &Nats, args: &DoctorArgs) -> Vec<Check> {
    let version = nats.client.server_info().version;
    let asked_at = unix_ms(args);
    let inspected = objects::inspect(nats, &target.object_options()).await;
    let now = unix_ms(args);
    let inspection = match inspected {
        Ok(inspection) => inspection,
        Err(error) => {
            let mut checks = vec![server_fault(error)];
            let others = [
                "objects",
                "consumers",
                "clock",
                "leader",
                "workers",
                "limits",
            ];
            checks.extend(others.map(|name| skipped(name, "the server cannot be used")));
            return checks;
        }
    };
    let mut checks = vec![ok(
        "server",
        format!("nats-server {version} with JetStream"),
    )];
    checks.push(drift(&inspection));
    checks.push(consumers(&inspection));
    checks.push(clock(&inspection, asked_at.midpoint(now)));
    let question = WhyRequest::Fleet { tenants_max: 0 };
    let asked = ask::<FleetRecord>(nats, &question);
    let (leader, heard) = tokio::join!(asked, listen(nats, Duration::from_secs(args.listen)));
    let leader = leader.ok();
    checks.push(leads(leader.as_ref()));
    checks.push(workers(&heard, args.listen));
    checks.push(limits(leader.as_ref()));
    checks
}

fn server_fault(error: EnsureError) -> Check {
    let (word, remedy) = match &error {
        EnsureError::OldServer { .. } | EnsureError::OldLeader { .. } => (
            Fault::ServerTooOld,
            "upgrade nats-server on every node; streams and buckets are kept",
        ),
        EnsureError::NoJetStream(_) => (
            Fault::NoJetStream,
            "turn JetStream on (a jetstream block in the server's configuration), for this account too, and let this \
             user publish to $JS.API.>",
        ),
        EnsureError::Read { .. } | EnsureError::Create { .. } => (
            Fault::ObjectsUnreadable,
            "let this user publish to $JS.API.> and subscribe to its inbox",
        ),
    };
    let found = told(&anyhow::Error::new(error));
    fault("server", State::Bad, word, found, remedy)
}

fn drift(inspection: &Inspection) -> Check {
    let report = &inspection.report;
    if !inspection.missing.is_empty() {
        return fault(
            "objects",
            State::Bad,
            Fault::ObjectsMissing,
            format!("not there: {}", inspection.missing.join(", ")),
            "fairlane init (every role does the same when it starts)",
        );
    }
    if report.differences.is_empty() {
        return ok(
            "objects",
            format!("all {} are as wanted", report.unchanged.len()),
        );
    }
    let differences = report.differences.iter().map(|difference| {
        let difference = difference.to_string();
        difference.split_whitespace().collect::<Vec<_>>().join(" ")
    });
    let state = if report.is_broken() {
        State::Bad
    } else {
        State::Warn
    };
    fault(
        "objects",
        state,
        Fault::Drift,
        differences.collect::<Vec<_>>().join("; "),
        "put back what is marked BROKEN (nats stream edit, or remove the object while it is empty and run `fairlane \
         init`); what is only different may stay if you chose it",
    )
}

fn consumers(inspection: &Inspection) -> Check {
    let (used, max) = inspection.account_consumers;
    let streams = inspection.streams.iter();
    let streams = streams.map(|stream| {
        (
            stream.stream.as_str(),
            stream.consumers,
            stream.consumers_max,
        )
    });
    let account = std::iter::once(("the account", used, max)).filter(|(_, _, max)| *max > 0);
    let fullest = streams
        .chain(account)
        .max_by_key(|(_, used, max)| used * 1_000 / (*max).max(1));
    let Some((whose, used, max)) = fullest else {
        return skipped("consumers", "there is no stream yet");
    };
    let found = format!("{whose} has {used} of {max} consumers");
    let remedy = "end watchers that are not needed (each `fairlane watch`, `submit --wait` and `top` uses one or two), \
                  or raise max_consumers of the stream or account; without room no scheduler can take over";
    if used >= max {
        return fault("consumers", State::Bad, Fault::ConsumerCap, found, remedy);
    }
    if used * 100 >= max * CONSUMERS_PERCENT {
        return fault("consumers", State::Warn, Fault::ConsumerCap, found, remedy);
    }
    ok("consumers", format!("{found}, and that is the fullest"))
}

fn clock(inspection: &Inspection, now: u64) -> Check {
    let server = inspection.server_time.as_deref();
    let server = server.and_then(|time| time.parse::<jiff::Timestamp>().ok());
    let Some(server) = server.and_then(|time| u64::try_from(time.as_millisecond()).ok()) else {
        return skipped("clock", "the server did not tell its time");
    };
    let skew = now.abs_diff(server);
    #[expect(clippy::cast_precision_loss, reason = "for showing")]
    let seconds = skew as f64 / 1_000.0;
    let word = if now >= server { "ahead of" } else { "behind" };
    let found = format!("this machine's clock is {seconds:.1} s {word} the server's");
    if skew > SKEW_MAX_MS {
        let remedy = "let both machines keep time (chrony, systemd-timesyncd): deadlines, daily budgets and retry \
                      times are compared across machines";
        return fault("clock", State::Bad, Fault::ClockSkew, found, remedy);
    }
    ok("clock", found)
}

fn leads(leader: Option<&FleetRecord>) -> Check {
    match leader {
        Some(fleet) => ok(
            "leader",
            format!(
                "term {}, version {}, {} credits held",
                fleet.term, fleet.version, fleet.in_flight
            ),
        ),
        None => fault(
            "leader",
            State::Bad,
            Fault::NoLeader,
            "no scheduler answers: nothing is granted",
            "start `fairlane scheduler` (two of them); if one runs, its log says why it does not lead",
        ),
    }
}

/// Workers that announce themselves while we listen.
async fn listen(nats: &Nats, patience: Duration) -> BTreeMap<String, Ready> {
    let mut heard = BTreeMap::new();
    let Ok(mut announced) = nats.client.subscribe(nats.names.ready_subject()).await else {
        return heard;
    };
    let until = tokio::time::sleep(patience);
    tokio::pin!(until);
    loop {
        tokio::select! {
            message = announced.next() => {
                let Some(message) = message else { return heard };
                if let Ok(ready) = serde_json::from_slice::<Ready>(&message.payload) {
                    heard.insert(ready.worker.to_string(), ready);
                }
            }
            () = &mut until => return heard,
        }
    }
}

fn workers(heard: &BTreeMap<String, Ready>, seconds: u64) -> Check {
    let at_work = heard.values().filter(|ready| !ready.draining);
    let (count, slots) = at_work.fold((0, 0_u64), |(count, slots), ready| {
        (count + 1, slots + u64::from(ready.slots))
    });
    if count == 0 {
        let draining = heard.len();
        let found = match draining {
            0 => format!("no worker was heard of within {seconds} s"),
            _ => format!("all {draining} workers are draining"),
        };
        let remedy = "start `fairlane worker` with the same NATS and namespace; one that runs says in its log what it \
                      waits for";
        return fault("workers", State::Bad, Fault::NoWorker, found, remedy);
    }
    ok("workers", format!("{count} with {slots} slots"))
}

fn limits(leader: Option<&FleetRecord>) -> Check {
    let Some(fleet) = leader else {
        return skipped("limits", "no scheduler leads");
    };
    let refused = fleet
        .gates
        .iter()
        .filter(|gate| gate.until_ms > fleet.at_ms);
    if let Some(gate) = refused.max_by_key(|gate| gate.until_ms) {
        let found = format!("the upstream refuses: {}", json!(gate.concerns));
        let remedy = "an account is refused for its key, its billing or its spend limit; a model because it is gone; \
                      a kind because of a missing permission: the workers' log has the upstream's words";
        return fault("limits", State::Bad, Fault::Refused, found, remedy);
    }
    let unheard: Vec<_> = fleet.pools.iter().filter(|pool| !pool.heard).collect();
    if fleet.pools.is_empty() || !unheard.is_empty() {
        let names: Vec<_> = unheard.iter().map(|pool| pool.pool.as_str()).collect();
        let found = match names.as_slice() {
            [] => "no pool was used in this term: limits are those of the configuration".to_owned(),
            names => format!(
                "the upstream has not told the limits of {}",
                names.join(", ")
            ),
        };
        let remedy = "they become known with the first answered call; until then limits.preset and limits.pools must be \
                      those of your organisation (Claude Console, Limits)";
        return fault("limits", State::Warn, Fault::LimitsUnknown, found, remedy);
    }
    ok(
        "limits",
        format!("told by the upstream for all {} pools", fleet.pools.len()),
    )
}

async fn key(target: &Target) -> Check {
    let tried = fairlane_worker::try_key(target.settings());
    let trouble = match tokio::time::timeout(KEY_PATIENCE, tried).await {
        Ok(Ok(models)) => {
            return ok(
                "key",
                format!("the upstream takes it and offers {models} models"),
            );
        }
        Ok(Err(trouble)) => trouble,
        Err(_) => KeyTrouble::Unanswered {
            url: target.settings().claude.base_url.clone(),
            text: format!("no answer within {KEY_PATIENCE:?}"),
        },
    };
    match &trouble {
        KeyTrouble::Settings(fairlane_worker::OptionsError::NoKey) => skipped(
            "key",
            "none is configured here; run this where a worker runs to have it tried",
        ),
        KeyTrouble::Settings(_) => fault(
            "key",
            State::Bad,
            Fault::KeyUnusable,
            told(&anyhow::Error::new(trouble)),
            "put the settings right; `fairlane config show` says what is used",
        ),
        KeyTrouble::Refused(_) => fault(
            "key",
            State::Bad,
            Fault::KeyRefused,
            trouble.to_string(),
            "make a new key in the Claude Console and write it to claude.api_key_file: workers read it again within \
             seconds, and jobs wait meanwhile",
        ),
        KeyTrouble::Unanswered { .. } => fault(
            "key",
            State::Bad,
            Fault::UpstreamUnreachable,
            trouble.to_string(),
            "check claude.base_url, and that this machine may connect to it (proxy, firewall)",
        ),
    }
}

fn unix_ms(args: &DoctorArgs) -> u64 {
    let now = jiff::Timestamp::now().as_millisecond();
    u64::try_from(now.saturating_add(args.clock_ahead_ms)).unwrap_or(0)
}

fn shown(checks: &[Check], paint: Paint) -> String {
    let lines = checks.iter().flat_map(|check| {
        let state = paint.paint(check.state.ink(), format!("{:<7}", check.state.as_str()));
        let line = format!("{state}  {:<9}  {}", check.name, check.found);
        let remedy = check
            .remedy
            .as_ref()
            .map(|remedy| format!("{:20}do: {remedy}", ""));
        std::iter::once(line).chain(remedy)
    });
    let lines: Vec<_> = lines.collect();
    let count = |state| checks.iter().filter(|check| check.state == state).count();
    let sum = format!(
        "{} ok, {} wrong, {} to look at, {} skipped",
        count(State::Ok),
        count(State::Bad),
        count(State::Warn),
        count(State::Skipped)
    );
    format!("{}\n{sum}", lines.join("\n"))
}

fn document(checks: &[Check]) -> Value {
    let all = checks.iter().map(|check| {
        json!({
            "check": check.name, "state": check.state.as_str(), "fault": check.fault.map(Fault::as_str),
            "found": check.found, "remedy": check.remedy,
        })
    });
    json!({
        "healthy": checks.iter().all(|check| check.state != State::Bad),
        "checks": all.collect::<Vec<_>>(),
    })
}
