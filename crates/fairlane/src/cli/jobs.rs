//! Commands about jobs: send them, look at them, and what their owners may ask for.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::values::tenant;
use super::{Consent, Output};

pub(super) const SUBMIT_HELP: &str = "\
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
pub(crate) struct CancelArgs {
    /// The jobs: each its id, or TENANT/ID
    #[arg(value_name = "JOB", required = true)]
    pub(crate) jobs: Vec<String>,
    /// The tenant, if several have a job of this id
    #[arg(long, value_name = "TENANT", value_parser = tenant)]
    pub(crate) tenant: Option<fairlane_core::TenantId>,
    #[command(flatten)]
    pub(crate) consent: Consent,
    #[command(flatten)]
    pub(crate) output: Output,
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
