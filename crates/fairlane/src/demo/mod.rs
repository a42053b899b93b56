//! `fairlane demo`: a fleet, a file of 800 jobs, and the proof that each line came to what it had to.

mod expect;

use std::time::Duration;

use anyhow::Context as _;
use fairlane_runtime::drain::{self, Signal};
use fairlane_sim::config::Preset;
use tokio::sync::mpsc;

use crate::cli::{DemoArgs, Format, Globals};
use crate::dev::{self, Claude, Config, Fleet, KEY_VARIABLE, Options, check_set};
use crate::exit::{Exit, Outcome, Stop};
use crate::out::{Ink, Paint, print, print_json, say};
use crate::submit::progress::Progress;
use crate::submit::{Ended, Plan, submit};
use crate::summary::Summary;
use crate::target::{Target, UrlFrom};

/// The jobs: wallpapers to be tagged, for four tenants.
const WALLPAPERS: &[u8] = include_bytes!("../../../../tests/data/wallpapers-800.jsonl");

/// The simulated Claude API is this much faster than life, so that the demo takes seconds.
const TIME_SCALE: f64 = 10.0;
const TIMEOUT: Duration = Duration::from_secs(180);
/// The real one takes its time.
const TIMEOUT_LIVE: Duration = Duration::from_secs(3_600);

pub(crate) async fn run(globals: &Globals, args: DemoArgs) -> Outcome {
    let paint = Paint::for_talk(globals.color);
    let options = options(globals, &args)?;
    let target = Target::load_for_role(globals)?;
    if target.url_from == UrlFrom::Flag {
        return Err(Stop::saying(
            Exit::Usage,
            "the demo runs on a NATS server of its own; for another one use `fairlane dev --nats-url` and `fairlane submit`",
        ));
    }
    let _logs = target.quiet_logs("demo")?;
    let (mut signals, _listening) = drain::listen().context("cannot listen for signals")?;
    say(
        "starting NATS, a simulator of the Claude API, a producer, two schedulers and two workers ...",
    );
    let mut fleet = Fleet::start(options, &mut signals).await?;
    let sent = Box::pin(send(&target, globals, &args, &mut fleet, &mut signals)).await;
    let wrong = match &sent {
        Ok((summary, Ended::Complete)) if !args.live => expect::check(summary),
        Ok(_) | Err(_) => Vec::new(),
    };
    if !matches!(sent, Ok((_, Ended::Complete))) || !wrong.is_empty() {
        say(format_args!("logs are in {}", fleet.keep_logs().display()));
    }
    fleet.stop(&mut signals).await;
    let (summary, ended) = sent?;
    match args.output.format {
        Format::Table => print(summary.text(Paint::for_data(globals.color)))?,
        Format::Json | Format::Jsonl => print_json(&summary)?,
    }
    Ok(verdict(&args, ended, &wrong, paint))
}

fn options(globals: &Globals, args: &DemoArgs) -> Result<Options, Stop> {
    check_set(globals).map_err(|text| Stop::saying(Exit::Usage, text))?;
    let claude = if args.live {
        Claude::Real {
            key: dev::key()
                .ok_or_else(|| Stop::saying(Exit::Usage, format!("--live needs {KEY_VARIABLE}")))?,
            url: "https://api.anthropic.com".to_owned(),
        }
    } else {
        Claude::Simulated {
            time_scale: TIME_SCALE,
        }
    };
    Ok(Options {
        nats_url: None,
        data: None,
        preset: if args.live {
            Preset::Start
        } else {
            Preset::Scale
        },
        claude,
        producers: 1,
        schedulers: 2,
        workers: 2,
        echo_logs: args.logs,
        config: Config {
            file: globals.config.clone(),
            namespace: "fl".to_owned(),
            set: globals.set.clone(),
            is_hermetic: true,
        },
    })
}

/// Submits the file and tells meanwhile what happens to the fleet.
async fn send(
    target: &Target,
    globals: &Globals,
    args: &DemoArgs,
    fleet: &mut Fleet,
    signals: &mut mpsc::Receiver<Signal>,
) -> Result<(Summary, Ended), Stop> {
    let running = fleet.running();
    let nats = target
        .connect_to(&running.nats_url, &running.namespace)
        .await?;
    let note = dev::leave_note(&running)?;
    say("sending 800 lines ...");
    let plan = Plan {
        wait: true,
        timeout: Some(if args.live { TIMEOUT_LIVE } else { TIMEOUT }),
        ..Plan::default()
    };
    let paint = Paint::for_talk(globals.color);
    let progress = Progress::start();
    let submitting = submit(&nats, WALLPAPERS, plan, signals, progress);
    let mut submitting = std::pin::pin!(submitting);
    loop {
        tokio::select! {
            sent = &mut submitting => return sent,
            news = fleet.news() => say(dev::told(&news, paint)),
        }
        if let Some(note) = &note {
            note.update(&fleet.running())
                .context("cannot update the note for other commands")?;
        }
    }
}

fn verdict(args: &DemoArgs, ended: Ended, wrong: &[String], paint: Paint) -> Exit {
    match ended {
        Ended::Complete => {}
        Ended::Interrupted => return Exit::Interrupted,
        Ended::TimedOut | Ended::CutOff => {
            say(paint.paint(Ink::Bad, "the demo did not come to its end"));
            return Exit::Failed;
        }
    }
    if args.live {
        say("every job came to an end; what the real model makes of the odd lines is not checked");
        return Exit::Ok;
    }
    if wrong.is_empty() {
        say(format_args!(
            "\n{}",
            paint.paint(Ink::Good, expect::EXPLANATION)
        ));
        return Exit::Ok;
    }
    for text in wrong {
        say(paint.paint(Ink::Bad, format_args!("unexpected: {text}")));
    }
    Exit::Failed
}
