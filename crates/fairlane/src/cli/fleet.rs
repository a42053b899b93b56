//! Commands about the fleet as a whole.

use clap::{Args, ValueEnum};

use super::Output;
use super::values::{look_back, tenant};

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
