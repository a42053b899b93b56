//! A scheduler that leads on a server of its own, jobs for it, and a hand that takes its credits.

#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each test binary uses its part; a test may panic"
)]

use std::time::Duration;

use fairlane_core::{TenantId, WorkerId};
use fairlane_nats::{Nats, Revision};
use fairlane_runtime::config::Settings;
use fairlane_runtime::health::Health;
use fairlane_runtime::{Metrics, Shutdown};
use fairlane_scheduler::Options;
use fairlane_support::{LIMIT, eventually, within};
use fairlane_wire::lease::{DeliveryOutcome, Grant, Ready, Settlement};
use fairlane_wire::{Namespace, WhyAnswer, WhyRequest};
use futures::StreamExt;
use tokio::task::JoinHandle;
use tokio_util::task::AbortOnDropHandle;

pub(crate) fn tenant(name: &str) -> TenantId {
    TenantId::parse(name).unwrap()
}

/// A scheduler at work; it ends with this.
pub(crate) struct Leader {
    pub(crate) metrics: Metrics,
    shutdown: Shutdown,
    task: JoinHandle<anyhow::Result<()>>,
}

impl Leader {
    /// Without limits but those of the fleet.
    pub(crate) fn start(nats: &Nats) -> Self {
        let mut settings = Settings::default();
        settings.limits.preset = "unlimited".to_owned();
        Self::with(nats, &settings)
    }

    pub(crate) fn with(nats: &Nats, settings: &Settings) -> Self {
        let (metrics, shutdown) = (Metrics::new("scheduler"), Shutdown::new());
        let connected = Health::new(shutdown.clone(), metrics.clone()).check("nats");
        let options = Options::from_settings(settings).unwrap();
        let lead = fairlane_scheduler::lead(
            options,
            nats.clone(),
            metrics.clone(),
            shutdown.clone(),
            connected,
        );
        Self {
            metrics,
            shutdown,
            task: tokio::spawn(lead),
        }
    }

    /// Ends it as a signal would.
    pub(crate) async fn stop(self) {
        self.shutdown.begin();
        let ended = within(LIMIT, "the scheduler to end", self.task).await;
        ended.unwrap().unwrap();
    }

    /// The value of a series as it is exported, such as `claude_queue_depth{priority="batch"}`.
    pub(crate) fn value(&self, series: &str) -> Option<f64> {
        let text = self.metrics.render();
        let line = text.lines().find_map(|line| line.strip_prefix(series))?;
        line.trim().parse().ok()
    }

    /// Waits until a series has a value.
    pub(crate) async fn shows(&self, series: &str, expected: impl Fn(f64) -> bool) {
        eventually(LIMIT, series, || async {
            match self.value(series) {
                Some(value) if expected(value) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    }
}

/// A worker that announces itself and takes credits, and leaves the rest to the test.
pub(crate) struct Hand {
    nats: Nats,
    credits: async_nats::Subscriber,
    _announcing: AbortOnDropHandle<()>,
}

impl Hand {
    pub(crate) async fn start(nats: &Nats, name: &str, slots: u32) -> Self {
        let worker = WorkerId::parse(name).unwrap();
        let subject = nats.names.credit_subject(&worker);
        let credits = nats.client.subscribe(subject).await.unwrap();
        let ready = Ready {
            worker,
            slots,
            draining: false,
            version: "test".to_owned(),
        };
        let ready = serde_json::to_vec(&ready).unwrap();
        let (client, subject) = (nats.client.clone(), nats.names.ready_subject());
        let announcing = tokio::spawn(async move {
            let mut times = tokio::time::interval(Duration::from_millis(100));
            loop {
                times.tick().await;
                let sent = client.publish(subject.clone(), ready.clone().into());
                sent.await.unwrap();
            }
        });
        Self {
            nats: nats.clone(),
            credits,
            _announcing: AbortOnDropHandle::new(announcing),
        }
    }

    /// The next credit.
    pub(crate) async fn take(&mut self) -> Grant {
        let message = within(LIMIT, "a credit", self.credits.next()).await;
        serde_json::from_slice(&message.unwrap().payload).unwrap()
    }

    /// Ends a delivery as done: the job goes, and its lease with the settlement.
    pub(crate) async fn finish(&self, grant: Grant) {
        let stream = self.nats.names.jobs_stream();
        let seq = grant.credit.seq;
        self.nats.jobs().delete(&stream, seq.0).await.unwrap();
        self.settle(grant, |_| {}).await;
    }

    /// Ends a delivery with a settlement that differs from the usual one by `change`.
    pub(crate) async fn settle(&self, grant: Grant, change: impl FnOnce(&mut Settlement)) {
        let seq = grant.credit.seq;
        let mut settlement = Settlement {
            used: Some(grant.credit.tokens),
            credit: grant.credit,
            outcome: DeliveryOutcome::Done,
            limits: None,
            refused: None,
            pause: None,
            health: None,
        };
        change(&mut settlement);
        let body = serde_json::to_vec(&settlement).unwrap();
        let credits = self.nats.bucket(&self.nats.names.credits_bucket());
        let (key, expected) = (Namespace::lease_key(seq), Revision(grant.revision));
        let keep = Duration::from_secs(60);
        let ended = credits.tombstone_if(&key, expected, body.into(), keep);
        ended.await.unwrap();
    }

    /// Takes and finishes one; tells whose it was.
    pub(crate) async fn work(&mut self) -> String {
        let grant = self.take().await;
        let tenant = grant.credit.tenant.to_string();
        self.finish(grant).await;
        tenant
    }
}

/// What the leader says a job waits for, as its stable word.
pub(crate) async fn why(nats: &Nats, seq: u64) -> Result<String, String> {
    let body = serde_json::to_vec(&WhyRequest::Job { seq }).unwrap();
    let asked = nats.client.request(nats.names.why_subject(), body.into());
    let reply = asked.await.map_err(|error| error.to_string())?;
    let answer: WhyAnswer =
        serde_json::from_slice(&reply.payload).map_err(|error| error.to_string())?;
    Ok(answer.reason)
}
