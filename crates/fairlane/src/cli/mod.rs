//! The command line: what can be asked for, with an example for each command.

mod fleet;
mod jobs;
mod setup;
mod tenants;
#[cfg(test)]
mod tests;
mod values;

use std::path::PathBuf;

use clap::{Args, ColorChoice, Parser, Subcommand, ValueEnum};

use crate::dlq::args::DlqCommand;
use crate::exit;

pub(crate) use fleet::{BenchArgs, DoctorArgs, LedgerArgs, TopArgs, TopSort, TuneArgs};
pub(crate) use jobs::{AnswerArgs, CancelArgs, JobArgs, StatusArgs, SubmitArgs, WhyArgs};
pub(crate) use setup::{
    AuthArgs, ConfigCommand, ContextAddArgs, ContextCommand, DemoArgs, DevArgs, SimArgs,
};
pub(crate) use tenants::{TenantCommand, TenantKeyCommand, TenantSetArgs};

/// Runs Claude jobs for many tenants, fairly and within the organisation's limits, on NATS JetStream.
#[derive(Debug, Parser)]
#[command(
    name = "fairlane",
    version,
    arg_required_else_help = true,
    after_help = exit::help(),
    after_long_help = long_help()
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) globals: Globals,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What stands below the list of commands in `fairlane --help`.
fn long_help() -> String {
    format!(
        "\
Try it on this machine, with a simulated Claude API:
  fairlane demo
Keep it running and send jobs from another terminal:
  fairlane dev
  fairlane submit jobs.jsonl --wait

NATS is found in this order: --nats-url or --context, FAIRLANE_NATS_URL, FAIRLANE__NATS__URL, the configuration file, the \
current context (`fairlane context`), a running `fairlane dev`, nats://127.0.0.1:4222.

{}",
        exit::help()
    )
}

/// Options of every command.
#[derive(Debug, Clone, Args)]
pub(crate) struct Globals {
    /// Configuration file [default: fairlane.toml in the working directory, if there is one]
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        help_heading = "Global options"
    )]
    pub(crate) config: Option<PathBuf>,
    /// NATS server, such as nats://127.0.0.1:4222 [env: FAIRLANE_NATS_URL]
    #[arg(
        long,
        global = true,
        value_name = "URL",
        help_heading = "Global options"
    )]
    pub(crate) nats_url: Option<String>,
    /// Fleet to talk to, by the name it was given with `fairlane context add`
    #[arg(
        long,
        global = true,
        value_name = "NAME",
        conflicts_with = "nats_url",
        help_heading = "Global options"
    )]
    pub(crate) context: Option<String>,
    /// Do it again after so many seconds, until it is ended: for commands that only look
    #[arg(
        long,
        global = true,
        value_name = "SECONDS",
        num_args = 0..=1,
        default_missing_value = "2",
        require_equals = true,
        value_parser = clap::value_parser!(u64).range(1..=3_600),
        help_heading = "Global options"
    )]
    pub(crate) watch: Option<u64>,
    /// Prefix of all names on NATS [default: fl]
    #[arg(
        long,
        global = true,
        value_name = "NS",
        help_heading = "Global options"
    )]
    pub(crate) namespace: Option<String>,
    /// Any key of the configuration, such as worker.slots=128 (repeatable)
    #[arg(long, global = true, value_name = "KEY=VALUE", value_parser = values::key_value, help_heading = "Global options")]
    pub(crate) set: Vec<(String, String)>,
    /// Colours: also off when NO_COLOR is set or the output is not a terminal
    #[arg(
        long,
        global = true,
        value_name = "WHEN",
        default_value = "auto",
        help_heading = "Global options"
    )]
    pub(crate) color: ColorChoice,
    /// End as soon as standard input does. For processes that belong to `fairlane dev`.
    #[arg(long, global = true, hide = true)]
    pub(crate) die_with_parent: bool,
}

/// How data is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    #[default]
    #[value(alias = "text")]
    Table,
    /// One JSON document.
    Json,
    /// One JSON document a line: for a list, one for each of its items.
    Jsonl,
}

/// The output option of commands that print data.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Output {
    /// How to write the result
    #[arg(short = 'o', long = "output", value_enum, default_value_t)]
    pub(crate) format: Format,
}

/// What is said before something is done that cannot be taken back.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct Consent {
    /// Show what would be done, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Do not ask. Without a terminal nobody can be asked, and this is needed
    #[arg(short = 'y', long)]
    pub(crate) yes: bool,
}

impl Command {
    /// Whether it only looks, so that it may be done again and again.
    pub(crate) fn only_looks(&self) -> bool {
        match self {
            Self::Status(_) | Self::Ledger(_) | Self::Why(_) | Self::Doctor(_) => true,
            Self::Config(ConfigCommand::Show(_)) => true,
            Self::Context(command) => command.only_looks(),
            Self::Tenant(command) => command.only_looks(),
            Self::Dlq(command) => command.only_looks(),
            // They are live by themselves.
            Self::Watch(_) | Self::Top(_) => false,
            Self::Result(_) | Self::Tune(_) | Self::Completions { .. } => false,
            Self::Producer | Self::Scheduler | Self::Worker | Self::Sim(_) => false,
            Self::Init(_) | Self::Auth(_) | Self::Dev(_) | Self::Demo(_) => false,
            Self::Submit(_) | Self::Bench(_) => false,
            Self::Cancel(_) | Self::Answer(_) | Self::Regenerate(_) => false,
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Take in submissions: check, measure, classify and queue them
    ///
    /// Stateless; run as many as you like.
    #[command(after_help = "Example:\n  fairlane producer --set producer.http_addr=0.0.0.0:8080")]
    Producer,
    /// Decide what runs next
    ///
    /// Run two or more: one leads, the others take over when it dies.
    #[command(after_help = "Example:\n  fairlane scheduler --set limits.preset=build")]
    Scheduler,
    /// Run jobs against the Claude API
    ///
    /// Stateless; add workers to run more jobs at once.
    #[command(
        after_help = "Example:\n  fairlane worker --set claude.api_key_file=/run/secrets/key --set worker.slots=128"
    )]
    Worker,
    /// Simulate the Claude API: limits, latency, faults
    #[command(
        after_help = "Example:\n  fairlane sim --listen 127.0.0.1:9000 --preset scale --time-scale 10"
    )]
    Sim(SimArgs),
    /// Create everything Fairlane keeps on NATS, and report what differs
    ///
    /// Nothing that exists is changed. The exit code is 1 if anything differs from what is wanted.
    #[command(after_help = "Example:\n  fairlane init --nats-url nats://nats:4222")]
    Init(Output),
    /// Name fleets, and choose the one to talk to
    #[command(
        subcommand,
        after_help = "Examples:\n  fairlane context add prod --nats-url tls://nats.example.com:4222 --creds ~/prod.creds\n  fairlane context use prod\n  fairlane context ls"
    )]
    Context(ContextCommand),
    /// Print what makes a shell complete the commands and flags of this program
    #[command(
        after_help = "Examples:\n  fairlane completions bash > /etc/bash_completion.d/fairlane\n  source <(fairlane completions zsh)\n  fairlane completions fish > ~/.config/fish/completions/fairlane.fish"
    )]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write keys for the roles and for tenants, and the permissions of a NATS server that lets in those alone
    ///
    /// Writes a file NAME.nk with a secret seed for each user (kept if it is there) and auth.conf, for the server to include.
    /// Tenants that have a file there stay; to shut one out, delete its file and run this again.
    #[command(
        after_help = "Example:\n  fairlane auth --out /etc/nats/fairlane --tenant acme --tenant wayne"
    )]
    Auth(AuthArgs),
    /// Look at the configuration
    #[command(subcommand, after_help = "Example:\n  fairlane config show")]
    Config(ConfigCommand),
    /// Run everything on this machine: NATS, a simulated Claude API, and all roles
    #[command(after_help = setup::DEV_HELP)]
    Dev(DevArgs),
    /// Send a file of jobs, one JSON object a line
    #[command(after_help = jobs::SUBMIT_HELP)]
    Submit(SubmitArgs),
    /// Show where a job is; without one, how the fleet stands and how many workers it is worth having
    #[command(
        after_help = "Examples:\n  fairlane status\n  fairlane status acme/wp-1\n  fairlane status wp-1 --tenant acme -o json"
    )]
    Status(StatusArgs),
    /// Follow a job to its end: a line for each change of its record
    ///
    /// With -o json each line is the whole record. The exit code is 1 if the job failed or was called off.
    #[command(
        after_help = "Examples:\n  fairlane watch acme/wp-1\n  fairlane watch acme/wp-1 -o json | jq .phase"
    )]
    Watch(JobArgs),
    /// Show what each tenant's calls used and cost
    ///
    /// Calls that may have been paid without an answer, and second answers to one job, are told apart.
    #[command(
        after_help = "Examples:\n  fairlane ledger\n  fairlane ledger --tenant acme --since 7d -o json"
    )]
    Ledger(LedgerArgs),
    /// Watch the fleet: lanes, limits, workers, and every tenant's share against what is due to it
    ///
    /// Keys: / filters tenants, s sorts, r reverses, p holds still, pgup and pgdn page, ? helps, q quits. Without a
    /// terminal, and with --once, it prints one picture and ends.
    #[command(
        after_help = "Examples:\n  fairlane top\n  fairlane top --filter acme --sort behind\n  fairlane top -o json | jq .pools"
    )]
    Top(TopArgs),
    /// Find out what is wrong, and say what to do
    ///
    /// Looks at NATS (reachable, version, streams and buckets, room for consumers), the clock, the leader, the
    /// workers, the limits and the API key (which costs nothing). Changes nothing. The exit code is 0 if nothing is
    /// wrong, 1 if something is, and 5 if NATS cannot be reached.
    #[command(
        after_help = "Examples:\n  fairlane doctor\n  fairlane doctor -o json | jq '.checks[] | select(.state == \"bad\")'"
    )]
    Doctor(DoctorArgs),
    /// Put a bounded load on the fleet and report throughput, waits and fairness
    ///
    /// Jobs of tenants of its own (bench-0 and so on) are submitted at a steady rate and followed to their end. The exit
    /// code is 1 if any failed or had not ended in time.
    #[command(
        after_help = "Examples:\n  fairlane bench --yes\n  fairlane bench --jobs 2000 --rate 100 --tenants 8 --yes -o json"
    )]
    Bench(BenchArgs),
    /// Recommend settings from what the ledger recorded, proved by a replay
    ///
    /// The recorded calls are replayed through the scheduler itself, with today's settings and with others. A setting
    /// is recommended if its replay is better by a fifth or more and worse in nothing; otherwise all stays as it is.
    /// Nothing is changed. At most 200 000 calls are replayed, those of the busiest hours.
    #[command(
        after_help = "Examples:\n  fairlane tune\n  fairlane tune --since 7d -o json | jq .settings"
    )]
    Tune(TuneArgs),
    /// Call a job off
    ///
    /// One that waits is never called; one that runs is stopped, and what it used by then is paid and
    /// booked. A job that has ended stays as it is. Of several jobs each is answered for itself. Without this program: a
    /// NATS request on fl.ask.cancel.TENANT.JOB.
    #[command(
        after_help = "Examples:\n  fairlane cancel acme/wp-1\n  fairlane cancel acme/wp-1 acme/wp-2 --dry-run\n  fairlane cancel wp-1 wp-2 --tenant acme --yes -o jsonl"
    )]
    Cancel(CancelArgs),
    /// Answer a job that asks whether it may wait until tomorrow
    ///
    /// Without this program: a NATS request on fl.ask.answer.TENANT.JOB with the body yes or no.
    #[command(after_help = "Example:\n  fairlane answer acme/wp-1 yes")]
    Answer(AnswerArgs),
    /// Run a job that the lighter model answered again, on the model it was meant for
    ///
    /// Gives a new job. Without this program: a NATS request on fl.ask.regenerate.TENANT.JOB.
    #[command(after_help = "Example:\n  fairlane regenerate acme/wp-1")]
    Regenerate(JobArgs),
    /// Say what a job or a tenant waits for, and until when
    #[command(after_help = "Examples:\n  fairlane why acme/hello-1\n  fairlane why --tenant acme")]
    Why(WhyArgs),
    /// Look at what holds for tenants, and change it
    #[command(
        subcommand,
        after_help = "Examples:\n  fairlane tenant ls --all\n  fairlane tenant set acme --weight 2\n  fairlane tenant key create acme --note laptop"
    )]
    Tenant(TenantCommand),
    /// Print the answer of a job
    ///
    /// The text of the answer, or with -o json the whole message of the Claude API.
    #[command(after_help = "Example:\n  fairlane result acme/wp-1")]
    Result(JobArgs),
    /// Work with dead letters: list, repair, send again
    #[command(
        subcommand,
        after_help = "Examples:\n  fairlane dlq ls\n  fairlane dlq show acme/wp-1\n  fairlane dlq redrive --reason exhausted --since 2h --dry-run"
    )]
    Dlq(DlqCommand),
    /// Run 800 jobs of four tenants, some of them broken, on this machine, and check the outcome
    ///
    /// Needs nothing but this program. Always uses the simulator, unless --live is given.
    #[command(after_help = "Example:\n  fairlane demo")]
    Demo(DemoArgs),
}
