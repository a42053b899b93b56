//! The `fairlane` program: all roles, and the commands for the people around them, in one binary.
//!
//! | module | what it does |
//! |---|---|
//! | `cli`, `exit`, `out`, `consent` | the command line, exit codes, what is printed where, asking first |
//! | `context` | named fleets |
//! | `target` | which NATS, with what configuration |
//! | `roles` | producer, scheduler, worker |
//! | `auth` | who may do what on NATS |
//! | `dev`, `tether` | a whole fleet of child processes on one machine |
//! | `submit`, `summary` | send a file of jobs, follow them, report |
//! | `lookup`, `status`, `watch`, `why`, `result` | one job |
//! | `tenant` | what holds for tenants |
//! | `ledger` | what was paid, by tenant |
//! | `top` | what goes on, live |
//! | `doctor` | what is wrong, and what to do |
//! | `bench` | a bounded load, and what came of it |
//! | `tune` | better settings, proved by replaying the ledger |
//! | `ask` | what the owner of a job can have done to it |
//! | `dlq` | dead letters: list, show, repair, send again, export |
//! | `demo` | `dev` and `submit` over a bundled file, with the outcome checked |
//!
//! Data goes to standard output, everything else to standard error, so `-o json` can be piped.

mod ask;
mod auth;
mod bench;
mod cli;
mod config_show;
mod consent;
mod context;
mod demo;
mod dev;
mod dlq;
mod doctor;
#[cfg(test)]
mod errors_page;
mod exit;
mod init;
mod ledger;
mod lines;
mod lookup;
mod out;
mod result;
mod roles;
mod simulate;
mod status;
mod submit;
mod summary;
mod target;
mod tenant;
mod tether;
mod text;
mod top;
mod traces;
mod tune;
mod watch;
mod why;

use std::process::ExitCode;

use clap::{ArgMatches, CommandFactory, FromArgMatches};
use fairlane_wire::Ask;

use cli::{AnswerArgs, Cli, Command, ConfigCommand, Globals};
use exit::{Exit, Outcome, Stop};

/// Messages are allocated by the thread that reads them and freed by the one that is done with them, which the system's
/// allocator is slow at.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
use out::{Ink, Paint, say};
use roles::Role;
use target::Target;

/// Runs the program with the arguments of this process, to its end.
pub fn run_from_args() -> ExitCode {
    let matches = Cli::command().get_matches();
    let cli = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(error) => error.exit(),
    };
    if wants_lines(&matches) {
        out::write_lines();
    }
    let talk = Paint::for_talk(cli.globals.color);
    if cli.globals.die_with_parent {
        tether::end_with_parent();
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            say(format_args!("error: cannot start a runtime: {error}"));
            return Exit::Failed.into();
        }
    };
    let outcome = runtime.block_on(run_or_watch(cli, &matches));
    // A read of standard input may never return; nothing else is left to wait for.
    runtime.shutdown_background();
    match outcome {
        Ok(exit) => exit.into(),
        Err(Stop { exit, error }) => {
            if let Some(error) = error {
                say(format_args!(
                    "{} {}",
                    talk.paint(Ink::Bad, "error:"),
                    exit::told(&error)
                ));
                say(format_args!(
                    "{} {}",
                    talk.paint(Ink::Aside, "hint:"),
                    exit.hint()
                ));
            }
            exit.into()
        }
    }
}

/// Whether the command that was named writes one document a line.
fn wants_lines(matches: &ArgMatches) -> bool {
    let mut leaf = matches;
    while let Some((_, inner)) = leaf.subcommand() {
        leaf = inner;
    }
    matches!(leaf.try_get_one("format"), Ok(Some(cli::Format::Jsonl)))
}

/// Runs the command, or runs it again and again if it is watched.
async fn run_or_watch(cli: Cli, matches: &ArgMatches) -> Outcome {
    let Some(seconds) = cli.globals.watch else {
        return run(cli).await;
    };
    if !cli.command.only_looks() {
        return Err(Stop::saying(
            Exit::Usage,
            "--watch is for commands that only look: status, why, ledger, doctor, tenant ls and show, dlq ls and show",
        ));
    }
    let mut next = cli;
    loop {
        out::begin_picture();
        let exit = run(next).await?;
        tokio::select! {
            () = tokio::time::sleep(std::time::Duration::from_secs(seconds)) => {}
            interrupted = tokio::signal::ctrl_c() => {
                interrupted.map_err(anyhow::Error::new)?;
                return Ok(exit);
            }
        }
        next = Cli::from_arg_matches(matches).map_err(|error| Stop::new(Exit::Usage, error))?;
    }
}

async fn run(cli: Cli) -> Outcome {
    let Cli { globals, command } = cli;
    match command {
        Command::Producer => role(Role::Producer, &globals).await,
        Command::Scheduler => role(Role::Scheduler, &globals).await,
        Command::Worker => role(Role::Worker, &globals).await,
        Command::Sim(args) => Box::pin(simulate::run(args)).await,
        Command::Context(command) => context::run(&globals, command),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "fairlane", &mut script);
            out::print(String::from_utf8_lossy(&script))?;
            Ok(Exit::Ok)
        }
        Command::Init(output) => init::run(&globals, output).await,
        Command::Auth(args) => auth::run(&globals, &args),
        Command::Config(ConfigCommand::Show(output)) => config_show::run(&globals, output),
        Command::Dev(args) => Box::pin(dev::run(&globals, args)).await,
        Command::Submit(args) => Box::pin(submit::run(&globals, args)).await,
        Command::Status(args) => status::run(&globals, args).await,
        Command::Cancel(args) => Box::pin(ask::cancel(&globals, args)).await,
        Command::Answer(AnswerArgs { job, answer }) => {
            Box::pin(ask::run(&globals, job, Ask::Answer, Some(answer.into()))).await
        }
        Command::Regenerate(args) => {
            Box::pin(ask::run(&globals, args, Ask::Regenerate, None)).await
        }
        Command::Ledger(args) => Box::pin(ledger::run(&globals, args)).await,
        Command::Top(args) => Box::pin(top::run(&globals, args)).await,
        Command::Doctor(args) => Box::pin(doctor::run(&globals, args)).await,
        Command::Bench(args) => Box::pin(bench::run(&globals, args)).await,
        Command::Tune(args) => Box::pin(tune::run(&globals, args)).await,
        Command::Watch(args) => Box::pin(watch::run(&globals, args)).await,
        Command::Why(args) => why::run(&globals, args).await,
        Command::Tenant(command) => tenant::run(&globals, command).await,
        Command::Result(args) => result::run(&globals, args).await,
        Command::Dlq(command) => Box::pin(dlq::run(&globals, command)).await,
        Command::Demo(args) => Box::pin(demo::run(&globals, args)).await,
    }
}

async fn role(role: Role, globals: &Globals) -> Outcome {
    Box::pin(roles::run(role, Target::load_for_role(globals)?)).await
}
