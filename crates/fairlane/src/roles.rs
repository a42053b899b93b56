//! The roles: start the frame, connect, make sure of the objects, run.

use std::sync::Arc;

use anyhow::Context as _;
use axum::Router;
use fairlane_api::Desk;
use fairlane_nats::{Nats, objects};
use fairlane_producer::Judgement;
use fairlane_runtime::config::Settings;
use fairlane_runtime::{Frame, FrameOptions, Rule};

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
            Self::Scheduler => {
                let mut frame = frame;
                let console = console(&settings, &nats, operators, &mut frame)?;
                Box::pin(fairlane_scheduler::run(settings, nats, frame, console)).await
            }
            Self::Worker => Box::pin(fairlane_worker::run(settings, nats, frame)).await,
        }
    }
}

/// The console and the calls that it makes, if anybody may use it.
fn console(
    settings: &Settings,
    nats: &Nats,
    operators: Option<Nats>,
    frame: &mut Frame,
) -> anyhow::Result<Router> {
    let Some(tokens) = settings.scheduler.console_tokens_file.clone() else {
        return Ok(Router::new());
    };
    let judge = Judgement::of(settings, nats.names.clone())
        .context("the model table of the configuration cannot be used")?;
    let shutdown = frame.shutdown.clone();
    let desk = Desk::new(settings, nats, operators, Arc::new(judge), tokens, shutdown)?;
    let routes = fairlane_console::routes().merge(desk.routes());
    frame.spawn("console", Rule::Essential, async move {
        desk.run().await;
        Ok(())
    });
    Ok(routes)
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
    let operators = operators(role, &target, &nats).await?;
    let Target { loaded, .. } = target;
    let _exchange = traces::exchange(&nats);
    role.serve(loaded.settings, nats, operators, frame).await?;
    Ok(Exit::Ok)
}

/// The connection on which HTTP API and console do what operators ask. Our own, where nobody who connects is told apart from
/// others by a file.
async fn operators(role: Role, target: &Target, nats: &Nats) -> Result<Option<Nats>, Stop> {
    let settings = target.settings();
    let (is_asked, nkey, creds) = match role {
        Role::Producer => {
            let own = &settings.producer;
            let is_asked = own.api_addr.is_some();
            (is_asked, &own.operator_nkey_file, &own.operator_creds_file)
        }
        Role::Scheduler => {
            let own = &settings.scheduler;
            let is_asked = own.console_tokens_file.is_some();
            (is_asked, &own.operator_nkey_file, &own.operator_creds_file)
        }
        Role::Worker => return Ok(None),
    };
    if !is_asked {
        return Ok(None);
    }
    if nkey.is_none() && creds.is_none() {
        let is_told_apart = settings.nats.nkey_file.is_some() || settings.nats.creds_file.is_some();
        return Ok((!is_told_apart).then(|| nats.clone()));
    }
    let options = target.operator_options(nkey.clone(), creds.clone());
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
