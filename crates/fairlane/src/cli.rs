//! The command line: what can be asked for, with an example for each command.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, ColorChoice, Parser, Subcommand, ValueEnum};

use crate::dlq::args::DlqCommand;
use crate::exit;

/// Runs Claude jobs for many tenants, fairly and within the organisation's limits, on NATS JetStream.
#[derive(Debug, Parser)]
#[command(
    name = "fairlane",
    version,
    arg_required_else_help = true,
    after_help = exit::HELP,
    after_long_help = LONG_HELP
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) globals: Globals,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const LONG_HELP: &str = "\
Try it on this machine, with a simulated Claude API:
  fairlane demo
Keep it running and send jobs from another terminal:
  fairlane dev
  fairlane submit jobs.jsonl --wait

NATS is found in this order: --nats-url or --context, FAIRLANE_NATS_URL, FAIRLANE__NATS__URL, the configuration file, the \
current context (`fairlane context`), a running `fairlane dev`, nats://127.0.0.1:4222.

Exit codes:
  0    success
  1    the command failed, or a job did
  2    wrong usage or configuration
  3    no such job or dead letter
  5    NATS cannot be reached
  130  interrupted";

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
    #[arg(long, global = true, value_name = "KEY=VALUE", value_parser = key_value, help_heading = "Global options")]
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

fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => {
            Ok((key.trim().to_owned(), value.to_owned()))
        }
        Some(_) | None => Err("give key=value, such as worker.slots=128".to_owned()),
    }
}

/// How data is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    #[default]
    #[value(alias = "table")]
    Text,
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

impl Command {
    /// Whether it only looks, so that it may be done again and again.
    pub(crate) fn only_looks(&self) -> bool {
        match self {
            Self::Status(_)
            | Self::Ledger(_)
            | Self::Why(_)
            | Self::Doctor(_)
            | Self::Config(_)
            | Self::Context(ContextCommand::Ls(_))
            | Self::Tenant(TenantCommand::Ls(_) | TenantCommand::Show(_)) => true,
            Self::Dlq(command) => command.only_looks(),
            _ => false,
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
    #[command(subcommand)]
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
    /// Say all tenants each time.
    #[command(
        after_help = "Example:\n  fairlane auth --out /etc/nats/fairlane --tenant acme --tenant wayne"
    )]
    Auth(AuthArgs),
    /// Look at the configuration
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Run everything on this machine: NATS, a simulated Claude API, and all roles
    #[command(after_help = DEV_HELP)]
    Dev(DevArgs),
    /// Send a file of jobs, one JSON object a line
    #[command(after_help = SUBMIT_HELP)]
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
    /// booked. A job that has ended stays as it is. Without this program: a NATS request on
    /// fl.ask.cancel.TENANT.JOB.
    #[command(after_help = "Example:\n  fairlane cancel acme/wp-1")]
    Cancel(JobArgs),
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
    #[command(subcommand)]
    Tenant(TenantCommand),
    /// Print the answer of a job
    ///
    /// The text of the answer, or with -o json the whole message of the Claude API.
    #[command(after_help = "Example:\n  fairlane result acme/wp-1")]
    Result(JobArgs),
    /// Work with dead letters: list, repair, send again
    #[command(subcommand)]
    Dlq(DlqCommand),
    /// Run 800 jobs of four tenants, some of them broken, on this machine, and check the outcome
    ///
    /// Needs nothing but this program. Always uses the simulator, unless --live is given.
    #[command(after_help = "Example:\n  fairlane demo")]
    Demo(DemoArgs),
}

/// Contexts are kept in fairlane/contexts.json under XDG_CONFIG_HOME (~/.config). They name a file with a key and hold no secret.
#[derive(Debug, Subcommand)]
pub(crate) enum ContextCommand {
    /// Store a context, over one of the same name; the first one is used at once
    #[command(
        after_help = "Example:\n  fairlane context add prod --nats-url tls://nats.example.com:4222 --nkey nats-auth/operator.nk --ca ca.crt"
    )]
    Add(ContextAddArgs),
    /// List the contexts
    #[command(after_help = "Example:\n  fairlane context ls")]
    Ls(Output),
    /// Use a context from now on
    #[command(after_help = "Example:\n  fairlane context use prod")]
    Use(ContextArgs),
    /// Remove a context
    #[command(after_help = "Example:\n  fairlane context rm prod")]
    Rm(ContextArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ContextArgs {
    /// The context
    #[arg(value_name = "NAME", value_parser = context_name)]
    pub(crate) name: String,
}

#[derive(Debug, Args)]
pub(crate) struct ContextAddArgs {
    /// The context
    #[arg(value_name = "NAME", value_parser = context_name)]
    pub(crate) name: String,
    /// File with the seed of an nkey, as `fairlane auth` writes it
    #[arg(long, value_name = "FILE", conflicts_with = "creds")]
    pub(crate) nkey: Option<PathBuf>,
    /// Credentials file (JWT and seed)
    #[arg(long, value_name = "FILE")]
    pub(crate) creds: Option<PathBuf>,
    /// Certificate of the authority that vouches for the server
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// Use it from now on
    #[arg(long)]
    pub(crate) r#use: bool,
}

fn context_name(text: &str) -> Result<String, String> {
    let fits = (1..=64).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    fits.then(|| text.to_owned())
        .ok_or_else(|| "use 1 to 64 letters, digits, -, _ and .".to_owned())
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print every key with its value and where the value comes from; secrets are masked
    #[command(after_help = "Example:\n  FAIRLANE__WORKER__SLOTS=128 fairlane config show")]
    Show(Output),
}

/// A change acts at once, on queued jobs too. What is not set here comes from the configuration.
#[derive(Debug, Subcommand)]
pub(crate) enum TenantCommand {
    /// List the tenants that have settings of their own, or all that the leader has seen
    #[command(after_help = "Examples:\n  fairlane tenant ls\n  fairlane tenant ls --all -o jsonl")]
    Ls(TenantLsArgs),
    /// Show the settings of a tenant
    #[command(after_help = "Example:\n  fairlane tenant show acme")]
    Show(TenantArgs),
    /// Change settings of a tenant; an empty value takes one away
    #[command(
        after_help = "Examples:\n  fairlane tenant set acme --plan pro --in-flight-max 200\n  fairlane tenant set acme --weight ''"
    )]
    Set(TenantSetArgs),
    /// Serve the standard work of a tenant as batch for a while
    #[command(after_help = "Example:\n  fairlane tenant demote acme --for 10m")]
    Demote(DemoteArgs),
    /// End a demotion by hand before its time (one by the scheduler ends by itself)
    #[command(after_help = "Example:\n  fairlane tenant restore acme")]
    Restore(TenantChangeArgs),
    /// Take away all settings of a tenant but its keys: the configuration decides again
    #[command(after_help = "Example:\n  fairlane tenant unset acme")]
    Unset(TenantChangeArgs),
    /// Work with the keys that a tenant's programs show to the HTTP API
    #[command(subcommand)]
    Key(TenantKeyCommand),
}

/// A key that is revoked is refused within a second.
#[derive(Debug, Subcommand)]
pub(crate) enum TenantKeyCommand {
    /// Make a key and print its secret, which is shown this once and stored nowhere
    #[command(after_help = "Example:\n  fairlane tenant key create acme --note 'web shop'")]
    Create(KeyCreateArgs),
    /// List the keys of a tenant, without their secrets
    #[command(after_help = "Example:\n  fairlane tenant key ls acme")]
    Ls(TenantArgs),
    /// Revoke a key of a tenant, named by its id
    #[command(after_help = "Example:\n  fairlane tenant key revoke acme 1a2b3c4d5e6f")]
    Revoke(KeyRevokeArgs),
}

#[derive(Debug, Args)]
pub(crate) struct KeyCreateArgs {
    /// The tenant
    #[arg(value_name = "TENANT", value_parser = tenant)]
    pub(crate) tenant: fairlane_core::TenantId,
    /// What the key is for, shown in lists
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct KeyRevokeArgs {
    /// The tenant
    #[arg(value_name = "TENANT", value_parser = tenant)]
    pub(crate) tenant: fairlane_core::TenantId,
    /// The key's id, as `fairlane tenant key ls` shows it
    #[arg(value_name = "KEY")]
    pub(crate) key: String,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct TenantArgs {
    /// The tenant
    #[arg(value_name = "TENANT", value_parser = tenant)]
    pub(crate) tenant: fairlane_core::TenantId,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct TenantLsArgs {
    /// All tenants that the leading scheduler has seen, the busiest first, with what holds for them now
    #[arg(long)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct TenantChangeArgs {
    /// The tenant
    #[arg(value_name = "TENANT", value_parser = tenant)]
    pub(crate) tenant: fairlane_core::TenantId,
    #[command(flatten)]
    pub(crate) dry: DryRun,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// Whether a change is only shown.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct DryRun {
    /// Show what would hold afterwards, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TenantSetArgs {
    /// The tenant
    #[arg(value_name = "TENANT", value_parser = tenant)]
    pub(crate) tenant: fairlane_core::TenantId,
    /// standard or pro: decides the weight, unless --weight is set
    #[arg(long, value_name = "PLAN")]
    pub(crate) plan: Option<String>,
    /// Share relative to other tenants of the same priority, 0.01 to 1000
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true)]
    pub(crate) weight: Option<String>,
    /// Budget of input tokens per day (UTC)
    #[arg(long, value_name = "TOKENS", allow_hyphen_values = true)]
    pub(crate) daily_input_tokens: Option<String>,
    /// Jobs that may run at the same time
    #[arg(long, value_name = "JOBS", allow_hyphen_values = true)]
    pub(crate) in_flight_max: Option<String>,
    #[command(flatten)]
    pub(crate) dry: DryRun,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct DemoteArgs {
    /// The tenant
    #[arg(value_name = "TENANT", value_parser = tenant)]
    pub(crate) tenant: fairlane_core::TenantId,
    /// How long, such as 90s, 10m or 2h; at most 30 days
    #[arg(long = "for", value_name = "DURATION", value_parser = duration)]
    pub(crate) duration: DurationMs,
    #[command(flatten)]
    pub(crate) dry: DryRun,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// A duration from the command line, milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DurationMs(pub(crate) u64);

fn duration(text: &str) -> Result<DurationMs, String> {
    const LONGEST: u64 = 30 * 24 * 3_600_000;
    let parsed = text.parse::<jiff::SignedDuration>().ok();
    let ms = parsed.and_then(|duration| u64::try_from(duration.as_millis()).ok());
    ms.filter(|ms| (1..=LONGEST).contains(ms))
        .map(DurationMs)
        .ok_or_else(|| "give a duration such as 90s, 10m or 2h, of at most 720h".to_owned())
}

#[derive(Debug, Args)]
pub(crate) struct SimArgs {
    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    pub(crate) listen: SocketAddr,
    #[command(flatten)]
    pub(crate) sim: fairlane_sim::SimConfig,
}

const DEV_HELP: &str = "\
Uses the NATS server named by --nats-url or FAIRLANE_NATS_URL, or else starts one of its own (from NATS_SERVER, PATH, or \
fetched once). Uses the Claude API if ANTHROPIC_API_KEY is set, and the simulator otherwise. While it runs, `fairlane \
submit`, `status` and `result` find it without any flags. A process that dies is started again; if this one is killed, \
all of them end.

Examples:
  fairlane dev
  fairlane dev --data ./fairlane-data --logs
  ANTHROPIC_API_KEY=... fairlane dev --workers 1";

#[derive(Debug, Clone, Args)]
pub(crate) struct DevArgs {
    /// Keep queues, results and logs in this directory [default: a temporary one]
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Use the simulator even if ANTHROPIC_API_KEY is set
    #[arg(long)]
    pub(crate) sim: bool,
    /// Limits of the simulator and of the schedulers
    #[arg(long, value_name = "NAME", value_enum, default_value_t)]
    pub(crate) preset: fairlane_sim::config::Preset,
    /// How many times faster than life the simulator answers (0 = at once)
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    pub(crate) time_scale: f64,
    /// Number of producers
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub(crate) producers: u8,
    /// Number of schedulers
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub(crate) schedulers: u8,
    /// Number of workers
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub(crate) workers: u8,
    /// Show all log lines here too
    #[arg(long)]
    pub(crate) logs: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Use the real Claude API (ANTHROPIC_API_KEY): about 800 calls, which cost money
    #[arg(long)]
    pub(crate) live: bool,
    /// Show all log lines here too
    #[arg(long)]
    pub(crate) logs: bool,
    #[command(flatten)]
    pub(crate) output: Output,
}

const SUBMIT_HELP: &str = "\
A line is a job: {\"id\": ..., \"tenant\": ..., \"origin\": \"user_action\" | \"scheduled\" | \"batch_job\", \"kind\": ..., \
\"request\": {a Messages API body}}. Lines are sent as they are; a line that cannot be sent, or is refused, never stops \
the others. The same file may be sent again: an id that has been answered is not answered twice.

Examples:
  fairlane submit jobs.jsonl --wait
  generate-jobs | fairlane submit - --tenant acme
  fairlane submit jobs.jsonl --wait --timeout 600 --failures failed.jsonl -o json";

#[derive(Debug, Args)]
pub(crate) struct SubmitArgs {
    /// File of jobs, or - for standard input
    #[arg(value_name = "FILE.jsonl")]
    pub(crate) file: PathBuf,
    /// Tenant of lines that name none
    #[arg(long, value_name = "TENANT", value_parser = tenant)]
    pub(crate) tenant: Option<fairlane_core::TenantId>,
    /// Stay until every job has ended, then report (keeps about 200 bytes a job in memory)
    #[arg(long)]
    pub(crate) wait: bool,
    /// Stop waiting after this many seconds
    #[arg(long, value_name = "SECONDS", requires = "wait")]
    pub(crate) timeout: Option<u64>,
    /// Write all failures to this file, one JSON object a line
    #[arg(long, value_name = "FILE")]
    pub(crate) failures: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct JobArgs {
    /// The job: its id, or TENANT/ID
    #[arg(value_name = "JOB")]
    pub(crate) job: String,
    /// The tenant, if several have a job of this id
    #[arg(long, value_name = "TENANT", value_parser = tenant)]
    pub(crate) tenant: Option<fairlane_core::TenantId>,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct AuthArgs {
    /// Directory for the files; made if it is not there
    #[arg(long, value_name = "DIR")]
    pub(crate) out: std::path::PathBuf,
    /// A tenant that publishes jobs itself, beside those that have a key in the directory; give it once for each
    #[arg(long, value_name = "TENANT", value_parser = tenant)]
    pub(crate) tenant: Vec<fairlane_core::TenantId>,
}

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// The job: its id, or TENANT/ID
    #[arg(value_name = "JOB")]
    pub(crate) job: Option<String>,
    /// The tenant, if several have a job of this id
    #[arg(long, value_name = "TENANT", value_parser = tenant, requires = "job")]
    pub(crate) tenant: Option<fairlane_core::TenantId>,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct LedgerArgs {
    /// Only this tenant
    #[arg(long, value_name = "TENANT", value_parser = tenant)]
    pub(crate) tenant: Option<fairlane_core::TenantId>,
    /// How far to look back, such as 90m, 24h or 7d
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = look_back)]
    pub(crate) since: std::time::Duration,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// Seconds between two pictures
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=60))]
    pub(crate) interval: u64,
    /// Print one picture and end
    #[arg(long)]
    pub(crate) once: bool,
    /// Only tenants whose name contains this
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) filter: String,
    /// What tenants are sorted by
    #[arg(long, value_enum, default_value_t)]
    pub(crate) sort: TopSort,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Clone, Copy, Default, ValueEnum)]
pub(crate) enum TopSort {
    /// Jobs in line and under way
    #[default]
    Work,
    /// Share of what was granted in the last minute
    Share,
    /// What is missing to what is due
    Behind,
    /// Part of the daily budget that is used
    Budget,
    Name,
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Seconds to listen for workers, which announce themselves every second
    #[arg(long, value_name = "SECONDS", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=60))]
    pub(crate) listen: u64,
    /// As if the clock of this machine went so many milliseconds ahead
    #[arg(
        long,
        value_name = "MS",
        default_value_t = 0,
        allow_hyphen_values = true,
        hide = true
    )]
    pub(crate) clock_ahead_ms: i64,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// Jobs in all
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) jobs: u32,
    /// Jobs submitted in a second
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=2_000))]
    pub(crate) rate: u32,
    /// Jobs that may be under way at once; no more are submitted meanwhile
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) concurrency: u32,
    /// Tenants they belong to, in turn
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub(crate) tenants: u8,
    /// Model they ask for
    #[arg(long, value_name = "MODEL", default_value = "claude-haiku-4-5")]
    pub(crate) model: String,
    /// Kind of job
    #[arg(long, value_name = "KIND", default_value = "tagging")]
    pub(crate) kind: String,
    /// The longest answer, in tokens
    #[arg(long, value_name = "TOKENS", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4_096))]
    pub(crate) max_tokens: u32,
    /// Stop waiting after this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) timeout: u64,
    /// The calls may cost money, and are meant
    #[arg(long)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct TuneArgs {
    /// How far to look back, such as 24h or 30d; the ledger keeps 35 days
    #[arg(long, value_name = "TIME", default_value = "30d", value_parser = look_back)]
    pub(crate) since: std::time::Duration,
    /// Calls that can run at once [default: as many as ever did, at least one worker's slots]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) slots: Option<u32>,
    /// The most calls to replay
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = clap::value_parser!(u32).range(1..=200_000))]
    pub(crate) calls_max: u32,
    #[command(flatten)]
    pub(crate) output: Output,
}

fn look_back(text: &str) -> Result<std::time::Duration, String> {
    let right = || "give a number and s, m, h or d, such as 24h".to_owned();
    let (number, unit) = text
        .split_at_checked(text.len().saturating_sub(1))
        .ok_or_else(right)?;
    let number: u64 = number.parse().map_err(|_| right())?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return Err(right()),
    };
    Ok(std::time::Duration::from_secs(
        number.saturating_mul(seconds),
    ))
}

#[derive(Debug, Args)]
pub(crate) struct AnswerArgs {
    #[command(flatten)]
    pub(crate) job: JobArgs,
    /// Whether it may wait
    #[arg(value_enum)]
    pub(crate) answer: YesNo,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum YesNo {
    Yes,
    No,
}

impl From<YesNo> for fairlane_wire::Answer {
    fn from(answer: YesNo) -> Self {
        match answer {
            YesNo::Yes => Self::Yes,
            YesNo::No => Self::No,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct WhyArgs {
    /// The job: its id, or TENANT/ID
    #[arg(value_name = "JOB", required_unless_present = "tenant")]
    pub(crate) job: Option<String>,
    /// Without a job: the tenant to tell of. With one: its tenant, if several have a job of this id
    #[arg(long, value_name = "TENANT", value_parser = tenant)]
    pub(crate) tenant: Option<fairlane_core::TenantId>,
    #[command(flatten)]
    pub(crate) output: Output,
}

fn tenant(text: &str) -> Result<fairlane_core::TenantId, String> {
    fairlane_core::TenantId::parse(text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn both_helps_tell_the_same_exit_codes() {
        assert!(LONG_HELP.ends_with(exit::HELP));
    }

    #[test]
    fn every_command_shows_an_example() {
        fn check(command: &clap::Command) {
            let mut inner = command.get_subcommands().peekable();
            if inner.peek().is_none() {
                let help = command.get_after_help().map(ToString::to_string);
                let name = command.get_name();
                assert!(help.is_some_and(|help| help.contains("Example")), "{name}");
            }
            inner.for_each(check);
        }
        check(&Cli::command());
    }

    #[test]
    fn global_options_may_stand_after_the_command() {
        let cli = Cli::try_parse_from([
            "fairlane",
            "init",
            "--nats-url",
            "nats://n:1",
            "--set",
            "worker.slots=3",
            "--set=claude.base_url=http://a/?b=c",
        ])
        .unwrap();
        assert_eq!(cli.globals.nats_url.as_deref(), Some("nats://n:1"));
        assert_eq!(
            cli.globals.set,
            [
                ("worker.slots".to_owned(), "3".to_owned()),
                ("claude.base_url".to_owned(), "http://a/?b=c".to_owned())
            ]
        );
    }

    #[test]
    fn wrong_usage_ends_with_code_2() {
        for line in [
            &["fairlane", "submit"][..],
            &["fairlane", "no-such-command"],
            &["fairlane", "init", "--set", "worker.slots"],
            &["fairlane", "submit", "-", "--tenant", "../x"],
            &["fairlane", "submit", "-", "--timeout", "5"],
            &["fairlane", "status", "j", "-o", "yaml"],
            &["fairlane", "dev", "--workers", "0"],
            &["fairlane", "why"],
            &["fairlane", "tenant", "demote", "acme"],
            &["fairlane", "tenant", "demote", "acme", "--for", "10"],
            &["fairlane", "tenant", "demote", "acme", "--for", "721h"],
            &["fairlane", "tenant", "show", "a.b"],
            &["fairlane", "context", "use", "a b"],
            &[
                "fairlane",
                "init",
                "--context",
                "a",
                "--nats-url",
                "nats://n:1",
            ],
            &["fairlane", "tenant", "ls", "--watch=0"],
            &["fairlane", "completions", "tcsh"],
        ] {
            let error = Cli::try_parse_from(line).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{line:?}");
        }
    }
}
