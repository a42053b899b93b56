//! Things that happened which people want to know: into the log, and to the webhook.

use fairlane_core::Millis;
use fairlane_core::breaker::Sample;
use fairlane_core::scheduler::{Event, Notice};

use super::Leader;

/// Pauses shorter than this are the upstream's daily business.
const PAUSE_WORTH_A_LINE: Millis = 60_000;

/// Writes down what happened.
pub(super) fn tell(notice: &Notice, now: Millis) {
    match notice {
        Notice::Throttled { pool, tenant } => match tenant {
            Some(tenant) => tracing::debug!(%pool, %tenant, "a rate limit was met"),
            None => tracing::debug!(%pool, "a rate limit was met that others caused"),
        },
        Notice::Demoted { tenant, demotion } => tracing::warn!(
            %tenant,
            cause = ?demotion.cause,
            until_ms = demotion.until,
            "a tenant's standard work is served as batch"
        ),
        Notice::Restored { tenant } => {
            tracing::info!(%tenant, "a tenant is served like others again");
        }
        Notice::BreakerOpened { pool, until } => {
            tracing::warn!(%pool, until_ms = until, "most calls to a pool fail; it is closed");
        }
        Notice::BreakerClosed { pool } => tracing::info!(%pool, "a pool is well again"),
        Notice::Paused { pool, pause } => {
            if pause.until.saturating_sub(now) >= PAUSE_WORTH_A_LINE {
                tracing::warn!(
                    %pool,
                    scope = ?pause.scope,
                    until_ms = pause.until,
                    "the upstream asked for a long pause"
                );
            }
        }
        Notice::CallsLimited { max } => {
            tracing::warn!(max, "the upstream allows fewer calls at once");
        }
    }
}

impl Leader {
    /// Remembers how a call failed, for when that closes a pool.
    pub(super) fn note_failure(&mut self, event: &Event) {
        let Event::Settled { settlement, .. } = event else {
            return;
        };
        let now = self.shell.clock.now();
        let pool = &settlement.credit.pool;
        match settlement.sample {
            Some(Sample::Bad) => self.teller.failed(pool, false, now),
            Some(Sample::Unreachable) => self.teller.failed(pool, true, now),
            Some(Sample::Good) | None => {}
        }
    }

    /// Tells people what they may want to act on.
    pub(super) fn tell_people(&mut self, notice: &Notice, now: Millis) {
        let message = match notice {
            Notice::BreakerOpened { pool, until } => self.teller.breaker_opened(pool, *until, now),
            Notice::BreakerClosed { pool } => Some(self.teller.breaker_closed(pool, now)),
            Notice::Paused { pool, pause } => self.teller.paused(pool, *pause, now),
            Notice::Throttled { .. }
            | Notice::Demoted { .. }
            | Notice::Restored { .. }
            | Notice::CallsLimited { .. } => None,
        };
        if let Some(message) = message {
            self.shell.outbox.tell(message);
        }
    }
}
