//! The roles: start the frame, connect, make sure of the objects, run.

use fairlane_nats::{Nats, objects};
use fairlane_runtime::config::Settings;
use fairlane_runtime::{Frame, FrameOptions};

use crate::exit::{Exit, Outcome, Stop};
use crate::target::Target;
use crate::traces;

/// What a process does for the fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Producer,
    Scheduler,
    Worker,
}

impl Role {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Producer => "producer",
            Self::Scheduler => "scheduler",
            Self::Worker => "worker",
        }
    }

    fn frame(self, settings: &Settings) -> FrameOptions {
        match self {
            Self::Producer => FrameOptions::producer(settings),
            Self::Scheduler => FrameOptions::scheduler(settings),
            Self::Worker => FrameOptions::worker(settings),
        }
    }

    async fn serve(
        self,
        settings: Settings,
        nats: Nats,
        operators: Option<Nats>,
        frame: Frame,
    ) -> anyhow::Result<()> {
        match self {
            Self::Producer => {
                Box::pin(fairlane_producer::run(settings, nats, operators, frame)).await
            }
            Self::Scheduler => Box::pin(fairlane_scheduler::run(settings, nats, frame)).await,
            Self::Worker => Box::pin(fairlane_worker::run(settings, nats, frame)).await,
        }
    }
}

/// Runs a role until it is told to stop.
pub(crate) async fn run(role: Role, target: Target) -> Outcome {
    let frame = Frame::start(role.frame(target.settings()))
        .await
        .map_err(|error| Stop::new(Exit::Failed, error))?;
    // The role sets it once it works; until then we are not ready, although nothing else says so yet.
    let _pending = frame.health.check("nats");
    for warning in &target.loaded.warnings {
        tracing::warn!("{warning}");
    }
    let draining = frame.shutdown.draining().clone();
    let nats = tokio::select! {
        nats = prepare(role, &target) => nats?,
        () = draining.cancelled() => return Ok(Exit::Ok),
    };
    let operators = match role {
        Role::Producer => operators(&target, &nats).await?,
        Role::Scheduler | Role::Worker => None,
    };
    let Target { loaded, .. } = target;
    let _exchange = traces::exchange(&nats);
    role.serve(loaded.settings, nats, operators, frame).await?;
    Ok(Exit::Ok)
}

/// The connection on which the HTTP API does what operators ask. Our own, where nobody who connects is told
/// apart from others by a file.
async fn operators(target: &Target, nats: &Nats) -> Result<Option<Nats>, Stop> {
    let Some(options) = target.operator_options() else {
        let own = &target.settings().nats;
        let is_told_apart = own.nkey_file.is_some() || own.creds_file.is_some();
        return Ok((!is_told_apart).then(|| nats.clone()));
    };
    if target.settings().producer.api_addr.is_none() {
        return Ok(None);
    }
    let connected = fairlane_nats::connect(&options).await;
    connected
        .map(Some)
        .map_err(|error| target.unreachable(error))
}

/// A connection to a NATS that has everything Fairlane needs.
async fn prepare(role: Role, target: &Target) -> Result<Nats, Stop> {
    let nats = fairlane_nats::connect(&target.nats_options(role.name()))
        .await
        .map_err(|error| target.unreachable(error))?;
    let report = objects::ensure(&nats, &target.object_options())
        .await
        .map_err(|error| Stop::new(Exit::Failed, error))?;
    for name in &report.created {
        tracing::info!(object = %name, "created");
    }
    for difference in &report.differences {
        tracing::warn!(%difference, "an object on NATS is not as wanted");
    }
    if report.is_broken() {
        return Err(Stop::saying(
            Exit::Failed,
            format!(
                "objects on NATS are not as Fairlane needs them; change or remove them, see `fairlane init`:\n{report}"
            ),
        ));
    }
    Ok(nats)
}
