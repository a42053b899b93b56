//! Stopping as a designed path: signals, the two steps of a shutdown, and the tasks that obey them.
//!
//! The first SIGTERM or SIGINT asks everybody to take nothing new and finish what is in hand. A second signal, or the
//! end of the grace period, asks to stop at once. What is still running a moment later is cut off and named.

mod signals;
mod tasks;

use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

pub use signals::{Signal, listen};
pub use tasks::{Cause, Ended, LAST_WORDS, Rule, TaskError, Tasks};

/// The two steps of a shutdown, shared by everything in the process. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    draining: CancellationToken,
    stop_now: CancellationToken,
}

impl Shutdown {
    /// Nothing has been asked for yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Cancelled by the first step: take nothing new, finish what is in hand.
    pub fn draining(&self) -> &CancellationToken {
        &self.draining
    }

    /// Cancelled by the second step: hand back what is in hand and end. Implies [`Shutdown::draining`].
    pub fn stop_now(&self) -> &CancellationToken {
        &self.stop_now
    }

    /// Whether the first step was taken.
    pub fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }

    /// Takes the first step.
    pub fn begin(&self) {
        self.draining.cancel();
    }

    /// Takes both steps.
    pub fn stop(&self) {
        self.draining.cancel();
        self.stop_now.cancel();
    }

    /// Turns signals and time into steps; ends when both were taken. The first step may also be taken by somebody
    /// else ([`Shutdown::begin`]): the grace period then starts there.
    pub async fn drive(self, mut signals: mpsc::Receiver<Signal>, grace: Duration) {
        tokio::select! {
            signal = next(&mut signals) => tracing::info!(?signal, ?grace, "draining"),
            () = self.draining.cancelled() => tracing::info!(?grace, "draining"),
        }
        self.begin();
        tokio::select! {
            signal = next(&mut signals) => tracing::warn!(?signal, "second signal: stopping at once"),
            () = tokio::time::sleep(grace) => tracing::warn!(?grace, "grace period is over: stopping at once"),
            () = self.stop_now.cancelled() => {}
        }
        self.stop();
    }
}

/// The next signal; waits for ever if there can be none.
async fn next(signals: &mut mpsc::Receiver<Signal>) -> Signal {
    match signals.recv().await {
        Some(signal) => signal,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    const GRACE: Duration = Duration::from_secs(120);

    fn driven() -> (Shutdown, mpsc::Sender<Signal>, tokio::task::JoinHandle<()>) {
        let (send, receive) = mpsc::channel(4);
        let shutdown = Shutdown::new();
        let drive = tokio::spawn(shutdown.clone().drive(receive, GRACE));
        (shutdown, send, drive)
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_signal_drains_and_the_grace_period_ends_it() {
        let (shutdown, signals, drive) = driven();
        let start = Instant::now();
        signals.send(Signal::Terminate).await.unwrap();
        shutdown.draining().cancelled().await;
        assert!(!shutdown.stop_now().is_cancelled());
        assert_eq!(start.elapsed(), Duration::ZERO);

        shutdown.stop_now().cancelled().await;
        assert_eq!(start.elapsed(), GRACE);
        drive.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_signal_of_either_kind_stops_at_once() {
        for second in [Signal::Terminate, Signal::Interrupt] {
            let (shutdown, signals, drive) = driven();
            let start = Instant::now();
            signals.send(Signal::Interrupt).await.unwrap();
            shutdown.draining().cancelled().await;
            signals.send(second).await.unwrap();
            shutdown.stop_now().cancelled().await;
            assert_eq!(start.elapsed(), Duration::ZERO);
            drive.await.unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_drain_begun_from_inside_has_the_same_grace_period() {
        let (shutdown, _signals, drive) = driven();
        let start = Instant::now();
        shutdown.begin();
        shutdown.stop_now().cancelled().await;
        assert_eq!(start.elapsed(), GRACE);
        drive.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn no_signal_source_is_not_a_signal() {
        let (shutdown, signals, drive) = driven();
        drop(signals);
        let early = tokio::time::timeout(GRACE * 10, shutdown.draining().cancelled()).await;
        assert!(early.is_err());
        shutdown.stop();
        drive.await.unwrap();
    }
}
