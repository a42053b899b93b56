//! How many worker slots are wanted: computed every five seconds, stored, and shown as gauges.

use fairlane_core::autoscale::{Autoscaler, Reason, Rules, Signal};
use fairlane_core::{Millis, Term};
use fairlane_nats::Nats;
use fairlane_wire::AutoscaleRecord;
use futures::future::BoxFuture;

use super::Leader;
use crate::autoscale::{Published, WORKER_POOL};

const EVERY: Millis = 5_000;

/// The signal of this term, and where it is stored.
pub(super) struct Publisher {
    scaler: Autoscaler,
    told_at: Option<Millis>,
    /// Unless it is being written.
    stored: Option<Published>,
    storing: Option<BoxFuture<'static, Published>>,
}

impl Publisher {
    pub(super) async fn open(nats: &Nats, rules: Rules, term: Term, now: Millis) -> Self {
        let (stored, last) = Published::open(nats, term).await;
        let mut scaler = Autoscaler::new(rules);
        if let Some(last) = last {
            scaler.restore(&last.signal(), now);
        }
        Self {
            scaler,
            told_at: None,
            stored: Some(stored),
            storing: None,
        }
    }

    /// Waits until a signal is stored; for ever if none is being. Dropping the future loses nothing.
    pub(super) async fn next(&mut self) -> Published {
        match &mut self.storing {
            Some(storing) => storing.await,
            None => std::future::pending().await,
        }
    }

    pub(super) fn published(&mut self, stored: Published) {
        self.stored = Some(stored);
        self.storing = None;
    }
}

impl Leader {
    /// Says how many slots are wanted, as soon as all jobs are known.
    pub(super) fn tell_autoscale(&mut self) {
        let now = self.shell.clock.now();
        let is_due = |at: Millis| now >= at + EVERY;
        if !self.autoscale.told_at.is_none_or(is_due) || now >= *self.shell.trust.borrow() {
            return;
        }
        let Some(load) = self.core.load(now) else {
            return;
        };
        let signal = self.autoscale.scaler.signal(&load, now);
        self.autoscale.told_at = Some(now);
        self.show(&signal);
        if let Some(stored) = self.autoscale.stored.take() {
            let record = AutoscaleRecord::new(self.core.term().0, &signal);
            self.autoscale.storing = Some(Box::pin(stored.save(record)));
        }
    }

    fn show(&self, signal: &Signal) {
        let leading = self.shell.metrics.leading();
        let terms = [signal.demand, signal.capacity, signal.in_flight];
        leading.wanted_slots(WORKER_POOL, signal.wanted, terms);
        for reason in Reason::ALL {
            leading.autoscale_reason(reason.as_str(), reason == signal.reason);
        }
    }
}
