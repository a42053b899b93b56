//! The command line of `fairlane tenant`.

use clap::{Args, Subcommand};

use super::values::{DurationMs, duration, tenant};
use super::{Consent, Output};

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
    #[command(
        after_help = "Examples:\n  fairlane tenant unset acme --dry-run\n  fairlane tenant unset acme --yes"
    )]
    Unset(TenantUnsetArgs),
    /// Work with the keys that a tenant's programs show to the HTTP API
    #[command(
        subcommand,
        after_help = "Examples:\n  fairlane tenant key create acme --note 'web shop'\n  fairlane tenant key ls acme"
    )]
    Key(TenantKeyCommand),
}

impl TenantCommand {
    /// Whether it only looks.
    pub(crate) fn only_looks(&self) -> bool {
        match self {
            Self::Ls(_) | Self::Show(_) => true,
            Self::Key(command) => command.only_looks(),
            Self::Set(_) | Self::Demote(_) | Self::Restore(_) | Self::Unset(_) => false,
        }
    }
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
    #[command(
        after_help = "Examples:\n  fairlane tenant key revoke acme 1a2b3c4d5e6f --dry-run\n  fairlane tenant key revoke acme 1a2b3c4d5e6f --yes"
    )]
    Revoke(KeyRevokeArgs),
}

impl TenantKeyCommand {
    /// Whether it only looks.
    pub(crate) fn only_looks(&self) -> bool {
        match self {
            Self::Ls(_) => true,
            Self::Create(_) | Self::Revoke(_) => false,
        }
    }
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
    pub(crate) consent: Consent,
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

#[derive(Debug, Args)]
pub(crate) struct TenantUnsetArgs {
    /// The tenant
    #[arg(value_name = "TENANT", value_parser = tenant)]
    pub(crate) tenant: fairlane_core::TenantId,
    #[command(flatten)]
    pub(crate) consent: Consent,
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
