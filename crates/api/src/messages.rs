//! `POST /v1/messages`: a call as an ordinary job, and its answer as the model gave it.

use std::sync::Arc;
use std::time::Duration;

use async_nats::Subscriber;
use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use fairlane_core::{JobId, TenantId};
use fairlane_wire::{JobRecord, Phase, header};
use futures::StreamExt;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::Shared;
use crate::error::{ApiError, Kind, Result};
use crate::follow::{CallOff, Follower};
use crate::frame::{RequestId, Speaker, read_body};
use crate::gate::Permit;
use crate::relay::{Label, Relay, Step};
use crate::replay;
use crate::translate::{self, Wishes};

/// Bodies from this size on are read on a thread of their own.
const LARGE_BYTES: usize = 256 * 1024;
/// A stream whose answer has not begun by then begins with a ping, so that nothing on the way takes the
/// connection for dead; until then a failure is still told by its status.
const HEAD_AFTER: Duration = Duration::from_secs(10);
const PING_EVERY: Duration = Duration::from_secs(10);
/// Parts that may wait for a slow caller, and for how long.
const PARTS_MAX: usize = 64;
const SLOW_MAX: Duration = Duration::from_secs(30);
/// How long parts may come later than the record of the end.
const LATE_MAX: Duration = Duration::from_secs(2);

/// A call that has become a job.
struct Call {
    shared: Arc<Shared>,
    id: RequestId,
    follower: Follower,
    call_off: CallOff,
    _permit: Permit,
}

pub(crate) async fn create(
    State(shared): State<Arc<Shared>>,
    Speaker(tenant): Speaker,
    id: RequestId,
    headers: HeaderMap,
    body: Body,
) -> Result<Response> {
    let permit = shared.gate.enter(&tenant)?;
    let wishes = Wishes::read(&headers)?;
    let body = read_body(&headers, body, shared.body_bytes_max).await?;
    let job_id = id.job();
    let detach = wishes.detach;
    let job = translated(body, wishes, &tenant, &job_id).await?;
    let follower = Follower::start(&shared, &tenant, &job_id).await?;
    let parts = match job.stream {
        true => Some(listen(&shared, &tenant, &job_id).await?),
        false => None,
    };
    let call_off = CallOff::new(&shared, &tenant, &job_id, !detach);
    shared
        .submit(&tenant, &job_id, job.body, Duration::ZERO)
        .await?;
    let call = Call {
        shared,
        id,
        follower,
        call_off,
        _permit: permit,
    };
    match parts {
        None => call.whole().await,
        Some(parts) => call.in_parts(parts).await,
    }
}

async fn translated(
    body: Bytes,
    wishes: Wishes,
    tenant: &TenantId,
    job: &JobId,
) -> Result<translate::Job> {
    if body.len() < LARGE_BYTES {
        return translate::job(&body, &wishes, tenant, job);
    }
    let (tenant, job) = (tenant.clone(), job.clone());
    let reading = move || translate::job(&body, &wishes, &tenant, &job);
    match tokio::task::spawn_blocking(reading).await {
        Ok(job) => job,
        Err(error) => Err(ApiError::unavailable("read the request", &error)),
    }
}

async fn listen(shared: &Shared, tenant: &TenantId, job: &JobId) -> Result<Subscriber> {
    let subject = shared.nats.names.stream_subject(tenant, job);
    let subscribed = shared.nats.client.subscribe(subject).await;
    subscribed.map_err(|error| ApiError::unavailable("listen for the answer", &error))
}

impl Call {
    async fn whole(mut self) -> Result<Response> {
        let stop = self.shared.shutdown.stop_now().clone();
        let record = tokio::select! {
            ended = self.follower.end() => ended?,
            () = stop.cancelled() => return Err(stopping()),
        };
        self.call_off.disarm();
        let message = self.answer(&record).await?;
        Ok((told(&record), Json(message)).into_response())
    }

    /// The message of a job that ended with one.
    async fn answer(&self, record: &JobRecord) -> Result<Value> {
        if record.phase != Phase::Done {
            return Err(ApiError::of_record(record));
        }
        self.shared.result(record).await
    }

    async fn in_parts(self, parts: Subscriber) -> Result<Response> {
        let (head, begun) = oneshot::channel();
        let (sender, receiver) = mpsc::channel(PARTS_MAX);
        let out = Out {
            head: Some(head),
            sender,
        };
        let tasks = self.shared.tasks.clone();
        let stop = self.shared.shutdown.stop_now().clone();
        // Ends when the caller goes, which closes the channel, when the job does, or with the process.
        tasks.spawn(self.pass_on(parts, out, stop));
        match begun.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(error),
            Err(_) => return Err(ApiError::new(Kind::Api, "the stream ended before it began")),
        }
        let receiver = tokio_stream(receiver);
        let headers = [
            (CONTENT_TYPE, "text/event-stream; charset=utf-8"),
            (CACHE_CONTROL, "no-cache"),
        ];
        Ok((headers, Body::from_stream(receiver)).into_response())
    }

    async fn pass_on(mut self, mut parts: Subscriber, mut out: Out, stop: CancellationToken) {
        let mut relay = Relay::default();
        let ended = {
            let mut end = std::pin::pin!(self.follower.end());
            let mut pings =
                tokio::time::interval_at(tokio::time::Instant::now() + HEAD_AFTER, PING_EVERY);
            loop {
                let sent = tokio::select! {
                    () = out.closed() => return,
                    () = stop.cancelled() => break Err(stopping()),
                    ended = &mut end => break ended,
                    Some(part) = parts.next() => match take(&mut relay, &part) {
                        Step::Wait => true,
                        Step::Send(text) => out.send(text).await,
                        Step::Broken => break Err(broken()),
                    },
                    _ = pings.tick() => out.send(replay::event("ping", &json!({"type": "ping"}))).await,
                };
                if !sent {
                    return;
                }
            }
        };
        let finished = match ended {
            Ok(record) => {
                self.call_off.disarm();
                self.finish(&record, &mut relay, &mut parts, &mut out).await
            }
            Err(error) => Err(error),
        };
        if let Err(error) = finished {
            out.fail(error, &self.id).await;
        }
    }

    /// Brings a stream to its end, once the job's record is final.
    async fn finish(
        &self,
        record: &JobRecord,
        relay: &mut Relay,
        parts: &mut Subscriber,
        out: &mut Out,
    ) -> Result<()> {
        let message = self.answer(record).await?;
        // Parts take another way than the record, and the last ones may still be on it.
        let late = async {
            while relay.has_begun() && !relay.has_stopped() {
                let Some(part) = parts.next().await else {
                    return Err(broken());
                };
                match take(relay, &part) {
                    Step::Wait => {}
                    Step::Send(text) => {
                        out.send(text).await;
                    }
                    Step::Broken => return Err(broken()),
                }
            }
            Ok(())
        };
        match tokio::time::timeout(LATE_MAX, late).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(error),
            Err(_) => return Err(broken()),
        }
        let rest = if relay.has_begun() {
            replay::stop()
        } else {
            replay::events(&message)
        };
        out.send(rest).await;
        Ok(())
    }
}

fn take(relay: &mut Relay, part: &async_nats::Message) -> Step {
    let label = part
        .headers
        .as_ref()
        .and_then(|headers| headers.get(header::PART));
    let label = label.and_then(|label| Label::parse(label.as_str()));
    match (label, std::str::from_utf8(&part.payload)) {
        (Some(label), Ok(text)) => relay.take(&label, text),
        (_, _) => Step::Wait,
    }
}

fn broken() -> ApiError {
    ApiError::new(Kind::Api, "the stream was interrupted; make the call again")
}

/// What a call is told that is open when its server ends.
pub(crate) fn stopping() -> ApiError {
    ApiError::new(
        Kind::Overloaded,
        "this server is being restarted; make the call again",
    )
    .retry_after(1)
}

fn tokio_stream(
    mut parts: mpsc::Receiver<Bytes>,
) -> impl futures::Stream<Item = std::result::Result<Bytes, std::convert::Infallible>> {
    futures::stream::poll_fn(move |context| parts.poll_recv(context).map(|part| part.map(Ok)))
}

/// What the record adds to an answer.
fn told(record: &JobRecord) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let mut add = |name: &'static str, value: &str| {
        if let Ok(value) = value.parse() {
            headers.insert(name, value);
        }
    };
    add("fairlane-job", record.job.as_str());
    if let Some(fallback) = &record.fallback {
        add("fairlane-fallback", &fallback.model);
    }
    headers
}

/// The way to a caller: a head that says whether there is a stream, then its parts.
struct Out {
    head: Option<oneshot::Sender<Result<()>>>,
    sender: mpsc::Sender<Bytes>,
}

impl Out {
    /// Completes when the caller has gone.
    async fn closed(&mut self) {
        match &mut self.head {
            Some(head) => head.closed().await,
            None => self.sender.closed().await,
        }
    }

    /// False if the caller has gone, or is too slow to be waited for.
    async fn send(&mut self, text: String) -> bool {
        if let Some(head) = self.head.take()
            && head.send(Ok(())).is_err()
        {
            return false;
        }
        self.sender
            .send_timeout(text.into(), SLOW_MAX)
            .await
            .is_ok()
    }

    /// Tells a failure: by a status, if nothing was sent yet, and otherwise by the stream's last event.
    async fn fail(mut self, error: ApiError, id: &RequestId) {
        match self.head.take() {
            // Whoever asked may have gone.
            Some(head) => drop(head.send(Err(error))),
            None => {
                self.send(replay::event("error", &error.body(id.as_str())))
                    .await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn out(parts: usize) -> (Out, oneshot::Receiver<Result<()>>, mpsc::Receiver<Bytes>) {
        let (head, begun) = oneshot::channel();
        let (sender, receiver) = mpsc::channel(parts);
        let head = Some(head);
        (Out { head, sender }, begun, receiver)
    }

    // The clock is paused: it runs on by itself as soon as everybody waits.
    #[tokio::test(start_paused = true)]
    async fn a_caller_who_does_not_read_is_waited_for_for_a_while() {
        let (mut out, mut begun, _receiver) = out(1);
        let began = tokio::time::Instant::now();
        assert!(out.send("a".to_owned()).await);
        assert_eq!(begun.try_recv().unwrap(), Ok(()));
        assert!(!out.send("b".to_owned()).await);
        assert!(began.elapsed() >= SLOW_MAX);
    }

    #[tokio::test]
    async fn a_failure_is_a_status_before_the_first_part_and_an_event_after_it() {
        let (unsent, begun, _receiver) = out(2);
        unsent.fail(broken(), &RequestId::new()).await;
        assert_eq!(begun.await.unwrap(), Err(broken()));
        let (mut begun_out, _begun, mut receiver) = out(2);
        begun_out.send("a".to_owned()).await;
        begun_out.fail(broken(), &RequestId::new()).await;
        assert_eq!(receiver.recv().await.unwrap(), "a");
        let last = receiver.recv().await.unwrap();
        assert!(last.starts_with(b"event: error\ndata: {"), "{last:?}");
        assert_eq!(receiver.recv().await, None);
    }
}
