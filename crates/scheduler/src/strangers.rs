//! Messages in the job stream that are no jobs: somebody published past the producers. They become
//! dead letters, so that their sender finds them and the stream holds nothing that nobody takes.

use std::time::Duration;

use anyhow::Context as _;
use fairlane_core::{JobId, Millis, TenantId};
use fairlane_nats::{Nats, Original};
use fairlane_wire::letter::Letter;
use fairlane_wire::{DeadReason, Failure, header};

/// Pause before another try.
pub(crate) const AGAIN_AFTER: Duration = Duration::from_secs(5);

/// Buries the message at `seq`, then deletes it. Can be repeated.
///
/// # Errors
/// Whatever kept it from being done; the message is then still in the stream.
pub(crate) async fn bury(nats: &Nats, seq: u64, why: &str, now: Millis) -> anyhow::Result<()> {
    let stream = nats.names.jobs_stream();
    let message = nats.jobs().get(&stream, seq).await;
    let Some(message) = message.context("cannot read the message")? else {
        return Ok(());
    };
    let tenant = message.subject.rsplit('.').next();
    let tenant = tenant.and_then(|name| TenantId::parse(name).ok());
    let named = message.headers.get(header::JOB);
    let job = named.and_then(|id| JobId::parse(id.as_str()).ok());
    let job = job.unwrap_or_else(|| {
        JobId::parse(&format!("s{seq}")).expect("a letter and digits are an id")
    });
    let failure = Failure::new(
        DeadReason::InvalidJob,
        format!("published straight into the queue, and not a job: {why}"),
    )
    .detail("not_from_a_producer")
    .fix("publish to the tenant's submit subject; only producers write to the queue");
    let tenant = tenant.map(|tenant| tenant.to_string());
    let letter = Letter::new(tenant, job, failure, now).read_from(&message.subject, seq);
    let original = Original {
        headers: &message.headers,
        raw_headers: None,
        body: message.payload.clone(),
    };
    let buried = nats.bury(&letter, original).await;
    buried.context("cannot write the dead letter")?;
    nats.jobs()
        .delete(&stream, seq)
        .await
        .context("cannot delete the message")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use fairlane_nats::HeaderMap;
    use fairlane_support::TestNats;

    use super::*;

    #[tokio::test]
    async fn a_message_that_is_no_job_is_buried_byte_for_byte_and_leaves_the_queue() {
        let server = TestNats::start().await;
        let nats = &server.nats;
        let mut headers = HeaderMap::new();
        headers.insert("X-Own", "1");
        let publish = nats.jobs();
        let body = &b"\xff\0no job"[..];
        let seq = publish
            .publish("fl.jobs.urgent.acme", None, headers.clone(), body.into())
            .await
            .unwrap()
            .seq;
        for _ in 0..2 {
            bury(nats, seq, "a header is missing", 5).await.unwrap();
        }
        assert_eq!(nats.jobs().get("FL_JOBS", seq).await.unwrap(), None);
        let letter = nats.letter(1).await.unwrap().unwrap();
        assert_eq!((letter.body, letter.headers), (body.into(), headers));
        assert_eq!(letter.letter.tenant.as_deref(), Some("acme"));
        assert_eq!(letter.letter.job.as_str(), format!("s{seq}"));
        assert_eq!(nats.letter(2).await.unwrap(), None, "one letter");
    }
}
