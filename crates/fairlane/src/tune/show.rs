//! What `fairlane tune` found, for people and for programs.

use fairlane_core::Priority;
use fairlane_tune::{Change, Figures, GAIN_PERCENT, Job, RoomAdvice, SAVING_PERCENT, Wait};
use serde_json::{Value, json};

use super::Findings;
use crate::text::{columns, instant, span};

/// What was recorded, measured like a replay as far as it can be.
struct Seen {
    wait: [Wait; 3],
    quiet: Wait,
    noisy: Wait,
}

impl Seen {
    fn of(findings: &Findings) -> Self {
        let month = findings.recorded.month();
        let of = |keep: &dyn Fn(&Job) -> bool| {
            let kept = month.jobs().iter().filter(|job| keep(job));
            Wait::of(&mut kept.map(|job| job.waited).collect::<Vec<_>>())
        };
        let is_noisy = |job: &Job| month.noisy().contains(&job.tenant);
        Self {
            wait: Priority::ALL.map(|priority| of(&|job| job.priority == priority)),
            quiet: of(&|job| !is_noisy(job)),
            noisy: of(&|job| is_noisy(job)),
        }
    }
}

pub(super) fn text(findings: &Findings) -> String {
    let recorded = &findings.recorded;
    let mut lines = vec![format!(
        "since {}: {} calls in {} hours; {} jobs replayed, {} calls at once, {} turned away by rate limits",
        instant(findings.since_ms),
        recorded.calls,
        recorded.hours,
        recorded.jobs.len(),
        recorded.slots,
        recorded.refused,
    )];
    if recorded.read < recorded.calls {
        lines.push(format!(
            "too many to replay all: these are the {} busiest hours, with {} calls",
            recorded.hours_read, recorded.read
        ));
    }
    let month = recorded.month();
    if !month.noisy().is_empty() {
        let names: Vec<_> = month
            .noisy()
            .iter()
            .take(8)
            .map(ToString::to_string)
            .collect();
        lines.push(format!(
            "noisy (more than twice an even share): {}{}",
            names.join(", "),
            if month.noisy().len() > 8 { ", ..." } else { "" }
        ));
    }
    lines.push(match findings.told.as_slice() {
        [] => "limits: as configured".to_owned(),
        told => {
            let told: Vec<_> = told.iter().map(|pool| pool.as_str()).collect();
            format!(
                "limits: of {} as the upstream told them, of others as configured",
                told.join(", ")
            )
        }
    });
    lines.push(String::new());
    lines.push(table(findings));
    lines.push(String::new());
    lines.extend(advice(findings));
    lines.join("\n")
}

fn table(findings: &Findings) -> String {
    let seen = Seen::of(findings);
    let (today, advised) = (&findings.advice.today, findings.advice.advised());
    let with = |name: &str, cells: [String; 3]| {
        let [recorded, today, advised] = cells;
        [name.to_owned(), recorded, today, advised]
    };
    let head = ["", "recorded", "replayed", "recommended"].map(str::to_owned);
    let mut rows = vec![head];
    let mut waits = |name: &str, recorded: Wait, today: Wait, advised: Wait| {
        if today.jobs == 0 {
            return;
        }
        let all = [recorded, today, advised];
        rows.push(with(
            &format!("{name}, wait p50"),
            all.map(|wait| span(wait.p50)),
        ));
        rows.push(with(
            &format!("{name}, wait p99"),
            all.map(|wait| span(wait.p99)),
        ));
    };
    for priority in Priority::ALL {
        let at = priority.index();
        waits(
            priority.as_str(),
            seen.wait[at],
            today.wait[at],
            advised.wait[at],
        );
    }
    waits("quiet tenants", seen.quiet, today.quiet, advised.quiet);
    waits("noisy tenants", seen.noisy, today.noisy, advised.noisy);
    let dash = || "-".to_owned();
    let jain = |figures: &Figures| {
        figures
            .jain
            .map_or_else(dash, |index| format!("{index:.3}"))
    };
    rows.push(with("Jain's index", [dash(), jain(today), jain(advised)]));
    let refused = findings.recorded.refused.to_string();
    let both = |count: fn(&Figures) -> u64| [count(today).to_string(), count(advised).to_string()];
    for (name, recorded, [today, advised]) in [
        (
            "rate limits met",
            refused,
            both(|figures| figures.throttled),
        ),
        ("demotions", dash(), both(|figures| figures.demotions)),
        (
            "demotions of quiet tenants",
            dash(),
            both(|figures| figures.quiet_demotions),
        ),
    ] {
        rows.push(with(name, [recorded, today, advised]));
    }
    columns(&rows, true)
}

fn advice(findings: &Findings) -> Vec<String> {
    let steps = &findings.advice.steps;
    let mut lines = Vec::new();
    if steps.is_empty() && findings.room.is_empty() {
        lines.push(format!(
            "Well tuned: nothing to change. None of {} other settings was better by {GAIN_PERCENT} % in one aim and worse \
             in none.",
            findings.advice.replays - 1
        ));
        return lines;
    }
    for step in steps {
        let ((key, now), (_, better)) = (step.instead_of.setting(), step.change.setting());
        lines.push(format!(
            "{key}: {better} instead of {now} gains {} %",
            step.gain
        ));
    }
    lines.extend(findings.room.iter().map(room_line));
    let settings = settings(findings);
    if !settings.is_empty() {
        lines.push(String::new());
        lines.push("At the top of fairlane.toml:".to_owned());
        lines.extend(settings.iter().map(|line| format!("  {line}")));
    }
    let commands = commands(findings);
    if !commands.is_empty() {
        lines.push(String::new());
        lines.push("At run time, where these weights are set:".to_owned());
        lines.extend(commands.iter().map(|line| format!("  {line}")));
    }
    if !findings.room.is_empty() {
        lines.push(String::new());
        lines.push(
            "In the requests of these kinds (\"request\": {\"max_tokens\": ...}):".to_owned(),
        );
        let each = findings.room.iter();
        lines.extend(each.map(|room| format!("  {}: {}", room.kind, room.better)));
    }
    lines
}

fn room_line(room: &RoomAdvice) -> String {
    format!(
        "max_tokens of {}: {} instead of {} saves {} % of its cost ({} of {} answers cut off, {} would have been)",
        room.kind,
        room.better,
        room.asked,
        percent(room.wasted - room.wasted_with_better, room.paid),
        room.cut_off,
        room.jobs,
        room.cut_off_with_better,
    )
}

fn percent(part: u64, whole: u64) -> u64 {
    let percent = u128::from(part) * 100 / u128::from(whole.max(1));
    u64::try_from(percent).unwrap_or(100)
}

/// Lines of the configuration file.
fn settings(findings: &Findings) -> Vec<String> {
    let steps = findings.advice.steps.iter();
    let steps = steps.filter(|step| !is_at_run_time(findings, &step.change));
    let line = |(key, value)| format!("{key} = {value}");
    steps.map(|step| line(step.change.setting())).collect()
}

/// Commands for what the configuration cannot change.
fn commands(findings: &Findings) -> Vec<String> {
    let steps = findings.advice.steps.iter();
    let commands = steps.filter_map(|step| match &step.change {
        Change::Weight(tenant, _) if is_at_run_time(findings, &step.change) => {
            let (_, weight) = step.change.setting();
            Some(format!("fairlane tenant set {tenant} --weight {weight}"))
        }
        Change::Weight(..)
        | Change::Quantum(_)
        | Change::Throttles(_)
        | Change::BudgetPercent(_) => None,
    });
    commands.collect()
}

fn is_at_run_time(findings: &Findings, change: &Change) -> bool {
    matches!(change, Change::Weight(tenant, _) if findings.weighed.contains(tenant))
}

pub(super) fn document(findings: &Findings) -> Value {
    let recorded = &findings.recorded;
    let seen = Seen::of(findings);
    let steps = findings.advice.steps.iter().map(|step| {
        let ((key, now), (_, better)) = (step.instead_of.setting(), step.change.setting());
        json!({
            "setting": key, "today": now, "recommended": better, "gain_percent": step.gain,
            "figures": figures(&step.figures),
        })
    });
    let room = findings.room.iter().map(|room| {
        json!({
            "kind": room.kind.as_str(), "jobs": room.jobs, "today": room.asked, "recommended": room.better,
            "cut_off": room.cut_off, "cut_off_with_recommended": room.cut_off_with_better,
            "saved_percent": percent(room.wasted - room.wasted_with_better, room.paid),
        })
    });
    let month = recorded.month();
    json!({
        "since": instant(findings.since_ms),
        "recorded": {
            "calls": recorded.calls, "calls_read": recorded.read,
            "hours": recorded.hours, "hours_read": recorded.hours_read,
            "jobs": recorded.jobs.len(), "rate_limits": recorded.refused, "slots": recorded.slots,
            "noisy": month.noisy().iter().map(ToString::to_string).collect::<Vec<_>>(),
            "wait_ms": by_priority(&seen.wait), "quiet_wait_ms": wait(seen.quiet), "noisy_wait_ms": wait(seen.noisy),
        },
        "limits_told": findings.told.iter().map(|pool| pool.as_str()).collect::<Vec<_>>(),
        "margins": {"gain_percent": GAIN_PERCENT, "saving_percent": SAVING_PERCENT},
        "replays": findings.advice.replays,
        "today": figures(&findings.advice.today),
        "recommended": figures(findings.advice.advised()),
        "steps": steps.collect::<Vec<_>>(),
        "max_tokens": room.collect::<Vec<_>>(),
        "settings": settings(findings),
        "commands": commands(findings),
        "well_tuned": findings.advice.steps.is_empty() && findings.room.is_empty(),
    })
}

fn figures(figures: &Figures) -> Value {
    json!({
        "wait_ms": by_priority(&figures.wait), "quiet_wait_ms": wait(figures.quiet), "noisy_wait_ms": wait(figures.noisy),
        "jain": figures.jain, "rate_limits": figures.throttled, "demotions": figures.demotions,
        "quiet_demotions": figures.quiet_demotions, "left": figures.left,
    })
}

fn by_priority(waits: &[Wait; 3]) -> Value {
    let waits =
        Priority::ALL.map(|priority| (priority.as_str().to_owned(), wait(waits[priority.index()])));
    Value::Object(waits.into_iter().collect())
}

fn wait(wait: Wait) -> Value {
    json!({"jobs": wait.jobs, "mean": wait.mean, "p50": wait.p50, "p99": wait.p99})
}
