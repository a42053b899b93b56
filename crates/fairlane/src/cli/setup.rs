//! What is needed before there is work: contexts, configuration, permissions, and fleets on this machine.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::values::{context_name, tenant};
use super::{Consent, Output};

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
    #[command(after_help = "Example:\n  fairlane context rm prod --yes")]
    Rm(ContextRmArgs),
}

impl ContextCommand {
    /// Whether it only looks.
    pub(crate) fn only_looks(&self) -> bool {
        match self {
            Self::Ls(_) => true,
            Self::Add(_) | Self::Use(_) | Self::Rm(_) => false,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct ContextRmArgs {
    #[command(flatten)]
    pub(crate) context: ContextArgs,
    #[command(flatten)]
    pub(crate) consent: Consent,
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

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print every key with its value and where the value comes from; secrets are masked
    #[command(after_help = "Example:\n  FAIRLANE__WORKER__SLOTS=128 fairlane config show")]
    Show(Output),
}

#[derive(Debug, Args)]
pub(crate) struct AuthArgs {
    /// Directory for the files; made if it is not there
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// A tenant that publishes jobs itself, beside those that have a key in the directory; give it once for each
    #[arg(long, value_name = "TENANT", value_parser = tenant)]
    pub(crate) tenant: Vec<fairlane_core::TenantId>,
}

#[derive(Debug, Args)]
pub(crate) struct SimArgs {
    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    pub(crate) listen: SocketAddr,
    #[command(flatten)]
    pub(crate) sim: fairlane_sim::SimConfig,
}

pub(super) const DEV_HELP: &str = "\
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
