//! The call while its lease is renewed.

use fairlane_claude::{CallReport, Progress};
use fairlane_runtime::TraceContext;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::delivery::Context;
use crate::lease::{Held, LeaseError};
use crate::request::Request;

/// How the call ended for its worker.
pub(crate) enum Called {
    /// The upstream's side of it.
    Reported(Box<CallReport>),
    /// The lease was lost meanwhile, and the call was given up.
    LeaseLost(Box<CallReport>),
    /// Its job is over by another's word, and the call was given up.
    NotWanted(Box<CallReport>),
    /// The lease was lost before anything was sent.
    NotSent(LeaseError),
    /// The request could not even be formed.
    Unsendable(fairlane_claude::RequestError),
}

/// Makes the call, at a place of the job's trace. Renews the lease on time; gives the call up when the lease is lost, when `stop` asks
/// for it, or when `off`, which runs beside it, comes to its end.
pub(crate) async fn run(
    context: &Context,
    lease: &mut Held,
    request: &Request,
    trace: Option<&TraceContext>,
    stop: &CancellationToken,
    off: impl Future<Output = ()>,
    on_progress: impl FnMut(Progress<'_>),
) -> Called {
    let prepared = match request.prepare(&lease.credit, trace) {
        Ok(prepared) => prepared,
        Err(error) => return Called::Unsendable(error),
    };
    // Reading the job may have taken long, or this process may have stood still: a call on a lease
    // that is over would be paid for twice.
    if lease.renewed_at().elapsed() >= context.options.renew_every
        && let Err(error) = lease.renew().await
    {
        return Called::NotSent(error);
    }
    let cancel = stop.child_token();
    let key = context.options.keys.current(std::time::Instant::now());
    let call = context
        .claude
        .call(&key, prepared, on_progress, cancel.cancelled());
    let mut call = std::pin::pin!(call);
    let mut off = std::pin::pin!(off);
    let finished = CancellationToken::new();
    let mut keeping = std::pin::pin!(keep(context, lease, &finished));
    let (mut called_off, mut lost) = (false, false);
    let report = loop {
        tokio::select! {
            report = &mut call => break Box::new(report),
            () = &mut off, if !called_off => {
                called_off = true;
                cancel.cancel();
            }
            () = &mut keeping, if !lost => {
                lost = true;
                cancel.cancel();
            }
        }
    };
    // A renewal under way must come to its end, or nobody knows the lease's revision.
    finished.cancel();
    if !lost {
        keeping.await;
    }
    if lost {
        Called::LeaseLost(report)
    } else if called_off {
        Called::NotWanted(report)
    } else {
        Called::Reported(report)
    }
}

/// Renews the lease on time. Ends when the lease is lost, or soon after `finished`.
async fn keep(context: &Context, lease: &mut Held, finished: &CancellationToken) {
    let every = context.options.renew_every;
    let mut next = lease.renewed_at() + every;
    loop {
        tokio::select! {
            () = finished.cancelled() => return,
            () = tokio::time::sleep_until(next) => {}
        }
        let sent = Instant::now();
        match lease.renew().await {
            Ok(()) => next = sent + every,
            Err(LeaseError::Write(error)) if sent < lease.ends_at() => {
                tracing::warn!(job = %lease.credit.job, %error, "cannot renew a credit yet");
                next = sent + every / 4;
            }
            Err(error) => {
                tracing::warn!(job = %lease.credit.job, %error, "giving up a call");
                return;
            }
        }
    }
}
