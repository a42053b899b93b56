//! Runs: driving one with a bar, and pausing, resuming, cancelling it from any terminal.

use fairlane_letters::run::{Run, RunError, Runs, State, drive as drive_run};
use fairlane_nats::Nats;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::args::RunArgs;
use super::judge::Producers;
use super::{cut, now_ms, print_all, table};
use crate::cli::{Format, Output};
use crate::exit::{Exit, Outcome, Stop};
use crate::out::{print, print_json, say};
use crate::target::Target;
use crate::text;

pub(super) async fn ls(nats: &Nats, output: Output) -> Outcome {
    let runs = Runs::new(nats).list().await;
    match output.format {
        Format::Table if runs.is_empty() => print("no runs")?,
        Format::Table => print(rows(&runs))?,
        format => print_all(format, &runs)?,
    }
    Ok(Exit::Ok)
}

fn rows(runs: &[Run]) -> String {
    let heads = [
        "RUN", "STATE", "LETTERS", "SENT", "ALREADY", "STAY", "GONE", "BEGUN", "WHAT",
    ];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    rows.extend(runs.iter().map(|run| {
        let tally = &run.tally;
        vec![
            run.id.clone(),
            run.state.as_str().to_owned(),
            run.letters.to_string(),
            tally.sent.to_string(),
            tally.already.to_string(),
            tally.left.to_string(),
            tally.gone.to_string(),
            text::instant(run.created_ms),
            cut(&run.what, 60),
        ]
    }));
    table(&rows)
}

pub(super) async fn pause(nats: &Nats, args: &RunArgs) -> Outcome {
    let run = set(nats, args, State::Paused).await?;
    report(
        &run,
        args.output.format,
        &format!(
            "run {} is paused; go on with `fairlane dlq resume {}`",
            run.id, run.id
        ),
    )
}

pub(super) async fn cancel(nats: &Nats, args: &RunArgs) -> Outcome {
    let run = set(nats, args, State::Cancelled).await?;
    report(
        &run,
        args.output.format,
        &format!("run {} is cancelled; {}", run.id, told(&run)),
    )
}

async fn set(nats: &Nats, args: &RunArgs, state: State) -> Result<Run, Stop> {
    Runs::new(nats)
        .set_state(&args.run, state)
        .await
        .map_err(stop)
}

pub(super) async fn resume(nats: &Nats, target: &Target, args: &RunArgs) -> Outcome {
    let judge = Producers::new(target, &nats.names)?;
    drive(nats, &judge, &args.run, args.output.format, None).await
}

/// Drives a run to its end, or until Ctrl-C. `letters` is what was changed in them, for the report.
pub(super) async fn drive(
    nats: &Nats,
    judge: &Producers,
    id: &str,
    format: Format,
    letters: Option<Vec<Value>>,
) -> Outcome {
    let runs = Runs::new(nats);
    let token = CancellationToken::new();
    let bar = bar();
    let driver = uuid::Uuid::now_v7().simple().to_string();
    let show = bar.clone();
    let tell = move |run: &Run| {
        show.set_length(run.letters);
        show.set_position(run.tally.total());
        show.set_message(format!("{} ({})", told(run), run.state.as_str()));
    };
    say(format_args!(
        "run {id}; from another terminal: `fairlane dlq pause|resume|cancel {id}`"
    ));
    let driven = drive_run(&runs, id, &driver, judge, &token, tell, now_ms);
    tokio::pin!(driven);
    let ended = tokio::select! {
        ended = &mut driven => ended,
        signal = tokio::signal::ctrl_c() => {
            signal.map_err(|error| anyhow::Error::new(error).context("cannot listen for Ctrl-C"))?;
            token.cancel();
            driven.await
        }
    };
    bar.finish_and_clear();
    let run = ended.map_err(|error| match error {
        RunError::Stopped => Stop::saying(
            Exit::Interrupted,
            format!("stopped; go on with `fairlane dlq resume {id}`"),
        ),
        error => stop(error),
    })?;
    match (format, letters) {
        (Format::Json, Some(letters)) => print_json(&json!({"letters": letters, "run": run}))?,
        (Format::Jsonl, Some(letters)) => {
            print_all(format, &letters)?;
            report(&run, format, "")?;
        }
        (format, _) => {
            report(&run, format, &format!("run {}: {}", run.id, told(&run)))?;
        }
    }
    let tally = &run.tally;
    if run.letters == 1 && tally.already == 1 {
        let why = tally
            .some_left
            .first()
            .map_or("already redriven", |left| left.why.as_str());
        return Err(Stop::saying(Exit::Failed, why));
    }
    Ok(if tally.left > 0 {
        Exit::Failed
    } else {
        Exit::Ok
    })
}

fn told(run: &Run) -> String {
    let tally = &run.tally;
    let mut text = format!("{} of {} letters sent again", tally.sent, run.letters);
    for (count, what) in [
        (tally.already, "already redriven"),
        (tally.left, "stay"),
        (tally.gone, "gone"),
    ] {
        if count > 0 {
            text += &format!(", {count} {what}");
        }
    }
    text
}

fn report(run: &Run, format: Format, line: &str) -> Outcome {
    match format {
        Format::Table => {
            print(line)?;
            for left in &run.tally.some_left {
                print(format!("#{}: {}", left.letter, left.why))?;
            }
        }
        format => print_all(format, &[run])?,
    }
    Ok(Exit::Ok)
}

fn stop(error: RunError) -> Stop {
    match error {
        error @ RunError::Unknown(_) => Stop::new(Exit::NotFound, error),
        error => Stop::new(Exit::Failed, error),
    }
}

/// A bar on a terminal; elsewhere nothing.
fn bar() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len}  {msg}  {elapsed}");
    bar.set_style(style.expect("the template is a constant"));
    bar
}
