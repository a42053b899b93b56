//! SIGTERM and SIGINT as messages.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

/// A request from outside to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM: Kubernetes, systemd.
    Terminate,
    /// SIGINT: Ctrl-C.
    Interrupt,
}

/// Starts listening. From here on neither signal ends the process by itself; that stays so after the task ended.
///
/// # Errors
/// If the operating system refuses the handlers.
pub fn listen() -> io::Result<(mpsc::Receiver<Signal>, AbortOnDropHandle<()>)> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    // Two signals decide everything; more need not be remembered.
    let (send, receive) = mpsc::channel(2);
    let task = tokio::spawn(async move {
        loop {
            let received = tokio::select! {
                some = terminate.recv() => some.map(|()| Signal::Terminate),
                some = interrupt.recv() => some.map(|()| Signal::Interrupt),
            };
            let Some(signal) = received else {
                return;
            };
            match send.try_send(signal) {
                Ok(()) | Err(mpsc::error::TrySendError::Full(_)) => {}
                Err(mpsc::error::TrySendError::Closed(_)) => return,
            }
        }
    });
    Ok((receive, AbortOnDropHandle::new(task)))
}
