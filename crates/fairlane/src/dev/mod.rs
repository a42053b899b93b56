//! `fairlane dev`: everything on one machine with one command, and the words around it.

mod fleet;
mod log;
mod member;
mod plan;
pub(crate) mod state;

use anyhow::Context as _;
use fairlane_runtime::config::{Origin, Secret};
use fairlane_runtime::drain;

use crate::cli::{DevArgs, Globals};
use crate::exit::{Exit, Outcome, Stop};
use crate::out::{Ink, Paint, print, say};
use crate::target::{Target, UrlFrom};
pub(crate) use fleet::{Claude, Config, Fleet, News, Options};
use member::Notice;
pub(crate) use plan::{check_set, preset_name};
use state::{Note, Running};

/// The variable with the key of the real Claude API.
pub(crate) const KEY_VARIABLE: &str = "ANTHROPIC_API_KEY";

pub(crate) async fn run(globals: &Globals, args: DevArgs) -> Outcome {
    let paint = Paint::for_talk(globals.color);
    let target = Target::load_for_role(globals)?;
    let _logs = target.quiet_logs("dev")?;
    let options = options(globals, &args, &target)?;
    let (mut signals, _listening) = drain::listen().context("cannot listen for signals")?;
    say("starting ...");
    let mut fleet = Fleet::start(options, &mut signals).await?;
    let note = leave_note(&fleet.running())?;
    // A standard output nobody reads is no reason to stop.
    let _unread = print(welcome(
        &fleet,
        &args,
        note.as_ref(),
        Paint::for_data(globals.color),
    ))
    .is_err();
    loop {
        tokio::select! {
            news = fleet.news() => say(told(&news, paint)),
            Some(_) = signals.recv() => break,
        }
        if let Some(note) = &note {
            note.update(&fleet.running())
                .context("cannot update the note for other commands")?;
        }
    }
    say("stopping: running jobs finish first (Ctrl-C again to kill)");
    drop(note);
    fleet.stop(&mut signals).await;
    Ok(Exit::Ok)
}

fn options(globals: &Globals, args: &DevArgs, target: &Target) -> Result<Options, Stop> {
    check_set(globals).map_err(|text| Stop::saying(Exit::Usage, text))?;
    let settings = target.settings();
    // A file says where production is; a whole fleet of one's own is not meant to join that.
    let nats_url = match &target.url_from {
        UrlFrom::Flag
        | UrlFrom::Context(_)
        | UrlFrom::Variable
        | UrlFrom::Config(Origin::Env(_) | Origin::Flag) => Some(settings.nats.url.clone()),
        UrlFrom::Config(Origin::File(_) | Origin::Default)
        | UrlFrom::RunningDev
        | UrlFrom::Default => None,
    };
    let claude = match key() {
        Some(key) if !args.sim => Claude::Real {
            key,
            url: settings.claude.base_url.clone(),
        },
        Some(_) | None => Claude::Simulated {
            time_scale: args.time_scale,
        },
    };
    Ok(Options {
        nats_url,
        data: args.data.clone(),
        claude,
        preset: args.preset,
        producers: args.producers,
        schedulers: args.schedulers,
        workers: args.workers,
        echo_logs: args.logs,
        config: Config {
            file: globals.config.clone(),
            namespace: settings.nats.namespace.clone(),
            set: globals.set.clone(),
            is_hermetic: false,
        },
    })
}

/// The key of the real Claude API, if this process was given one.
pub(crate) fn key() -> Option<Secret> {
    let key = std::env::var(KEY_VARIABLE).ok()?;
    let key = key.trim();
    (!key.is_empty()).then(|| Secret::new(key))
}

/// Lets other commands find us. None if they find another `fairlane dev`.
pub(crate) fn leave_note(running: &Running) -> anyhow::Result<Option<Note>> {
    let Some(path) = state::path() else {
        return Ok(None);
    };
    let shown = path.display().to_string();
    Note::write(path, running).with_context(|| format!("cannot write {shown}"))
}

/// One notice, for people.
pub(crate) fn told(news: &News, paint: Paint) -> String {
    let bad = |text: String| paint.paint(Ink::Bad, text);
    match news {
        News::Member(Notice::Started { name, pid }) => format!("{name} runs as pid {pid}"),
        News::Member(Notice::Died {
            name,
            pid,
            status,
            tail,
            pause,
        }) => {
            let head = bad(format!("{name} (pid {pid}) ended unexpectedly: {status}"));
            format!(
                "{head}; starting it again in {pause:?}. Its last words:\n{}",
                tail.trim_end()
            )
        }
        News::Member(Notice::CannotStart { name, error, pause }) => {
            format!(
                "{}; trying again in {pause:?}",
                bad(format!("cannot start {name}: {error}"))
            )
        }
        News::Nats(Ok(())) => bad("nats-server ended unexpectedly; it runs again".to_owned()),
        News::Nats(Err(error)) => bad(format!("nats-server ended and does not start: {error}")),
    }
}

fn welcome(fleet: &Fleet, args: &DevArgs, note: Option<&Note>, paint: Paint) -> String {
    let running = fleet.running();
    let heading = |text: &str| paint.paint(Ink::Heading, text);
    let preset = preset_name(args.preset);
    let nats = fleet.own_nats().unwrap_or_else(|| "not ours".to_owned());
    let claude = if running.is_simulated {
        format!("simulator, limits of preset {preset}, no money is spent")
    } else {
        format!(
            "the real one with your {KEY_VARIABLE}: calls cost money; limits of preset {preset}"
        )
    };
    let mut lines = vec![
        heading("fairlane dev is ready"),
        String::new(),
        format!("  {:12} {}  ({nats})", "NATS", running.nats_url),
        format!("  {:12} {}  ({claude})", "Claude API", running.claude_url),
    ];
    for member in &running.members {
        let pid = member
            .pid
            .map_or_else(|| "-".to_owned(), |pid| pid.to_string());
        lines.push(format!("  {:12} {}  pid {pid}", member.name, member.url));
    }
    for url in &running.api_urls {
        lines.push(format!(
            "  {:12} {url}  (also for Anthropic's SDKs, as base_url)",
            "HTTP API"
        ));
    }
    lines.extend(console(&running).map(|url| format!("  {:12} {url}", "console")));
    let tokens = running.api_tokens.display();
    lines.push(format!(
        "  {:12} {tokens}  (a token for console and HTTP API)",
        "operator"
    ));
    lines.push(format!("  {:12} {}", "logs", running.logs.display()));
    lines.push(String::new());
    let flags = match note {
        Some(note) => {
            lines.push(heading(
                "In another terminal (these commands find this fleet by themselves,",
            ));
            lines.push(heading(&format!("through {}):", note.path().display())));
            String::new()
        }
        None => {
            lines.push(heading(
                "In another terminal (another `fairlane dev` runs, so name this one):",
            ));
            format!(
                " --nats-url {} --namespace {}",
                running.nats_url, running.namespace
            )
        }
    };
    lines.extend(next_steps(&running, &flags));
    lines.push(String::new());
    lines.push("Ctrl-C stops everything.".to_owned());
    lines.join("\n")
}

/// Where the console is, with the token that opens it: what follows a `#` stays in the browser.
fn console(running: &Running) -> Option<String> {
    let url = running.console_urls.first()?;
    let tokens = std::fs::read_to_string(&running.api_tokens).ok()?;
    let token = tokens
        .lines()
        .find_map(|line| line.strip_prefix("operator "));
    Some(match token {
        Some(token) => format!("{url}#token={}", token.trim()),
        None => url.clone(),
    })
}

fn next_steps(running: &Running, flags: &str) -> [String; 5] {
    let Running {
        nats_url,
        namespace,
        ..
    } = running;
    let job = r#"{"id":"hello-1","origin":"user_action","kind":"tagging","model":"claude-haiku-4-5","prompt":"Say hello"}"#;
    [
        format!("  echo '{job}' | fairlane submit - --tenant acme --wait{flags}"),
        format!("  fairlane result acme/hello-1{flags}"),
        format!("  fairlane submit jobs.jsonl --wait{flags}"),
        format!("  fairlane tenant key create acme{flags}   (a key for the HTTP API)"),
        format!("  nats --server {nats_url} req {namespace}.submit.acme '{job}'"),
    ]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_death_is_told_with_its_last_words() {
        let status = std::process::Command::new("sh")
            .args(["-c", "exit 3"])
            .status()
            .unwrap();
        let news = News::Member(Notice::Died {
            name: "worker-1".to_owned(),
            pid: 7,
            status,
            tail: "    panicked\n".to_owned(),
            pause: Duration::from_millis(200),
        });
        assert_eq!(
            told(&news, Paint::plain()),
            "worker-1 (pid 7) ended unexpectedly: exit status: 3; starting it again in 200ms. Its last words:\n    panicked"
        );
    }

    #[test]
    fn what_is_shown_to_type_is_a_job_that_parses() {
        let running = Running {
            nats_url: "nats://127.0.0.1:1".to_owned(),
            namespace: "fl".to_owned(),
            ..Running::default()
        };
        let steps = next_steps(&running, "");
        let job = steps[0].split('\'').nth(1).unwrap();
        let tenant = fairlane_core::TenantId::parse("acme").unwrap();
        fairlane_wire::submission::parse(job.as_bytes(), &tenant).unwrap();
        assert!(steps[4].contains("req fl.submit.acme '"), "{}", steps[4]);
    }
}
