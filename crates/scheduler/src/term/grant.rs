//! Storing one credit over what was last seen of its lease, and sending it to its worker.

use std::time::Duration;

use fairlane_core::scheduler::{self as core, Event};
use fairlane_nats::{Bucket, Confirmed, Content, Nats, Revision, WriteError};
use fairlane_runtime::spans::JobSpan;
use fairlane_wire::lease::{Credit, Grant, Lease};
use fairlane_wire::{Namespace, header};

use crate::convert;

/// Storing one credit and sending it to its worker.
pub(super) struct Granting {
    pub(super) nats: Nats,
    pub(super) credits: Bucket,
    /// Life of the credit until its worker begins.
    pub(super) ttl: Duration,
    /// Where its worker hears of it.
    pub(super) subject: String,
    /// The grant in the job's trace, if that is known.
    pub(super) span: Option<JobSpan>,
}

/// Why a credit is not stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NotStored {
    /// Its lease is at another revision.
    Refused,
    /// The bucket takes no writes now.
    Failed,
}

impl Granting {
    /// What became of it, as an event for the core.
    pub(super) async fn run(mut self, credit: core::Credit, expected: Revision) -> Event {
        let seq = credit.seq;
        let credit = convert::credit_to_wire(credit);
        match self.store(&credit, expected).await {
            Ok(revision) => {
                self.send(credit, revision).await;
                Event::GrantStored {
                    seq,
                    revision: revision.0,
                }
            }
            Err(NotStored::Refused) => {
                self.failed("refused");
                Event::GrantRefused { seq }
            }
            Err(NotStored::Failed) => {
                self.failed("not_stored");
                Event::GrantFailed { seq }
            }
        }
    }

    fn failed(&mut self, why: &str) {
        if let Some(span) = &mut self.span {
            span.fail(why);
        }
    }

    /// The revision under which the credit is stored.
    async fn store(&self, credit: &Credit, expected: Revision) -> Result<Revision, NotStored> {
        let key = Namespace::lease_key(credit.seq);
        let lease = Lease::Granted(credit.clone());
        let value = bytes::Bytes::from(serde_json::to_vec(&lease).expect("a lease is plain data"));
        let stored = if expected == Revision::ABSENT {
            self.credits
                .create(&key, value.clone(), Some(self.ttl))
                .await
        } else {
            self.credits
                .put_if(&key, value.clone(), expected, Some(self.ttl))
                .await
        };
        match stored {
            Ok(revision) => Ok(revision),
            // Also if the trace that we wanted to replace went away, which happens without a word:
            // the core asks again a moment later, then over no lease.
            Err(WriteError::Conflict { .. }) => Err(NotStored::Refused),
            Err(error) => {
                tracing::warn!(seq = credit.seq.0, %error, "cannot store a credit");
                match self
                    .credits
                    .confirm(&key, &Content::Live(value), expected)
                    .await
                {
                    Ok(Confirmed::Landed(revision)) => Ok(revision),
                    Ok(Confirmed::Overtaken(_)) => Err(NotStored::Refused),
                    Ok(Confirmed::Pending) | Err(_) => Err(NotStored::Failed),
                }
            }
        }
    }

    async fn send(&self, credit: Credit, revision: Revision) {
        let ttl_ms = u64::try_from(self.ttl.as_millis()).unwrap_or(u64::MAX);
        let grant = Grant {
            credit,
            revision: revision.0,
            ttl_ms,
        };
        let body = serde_json::to_vec(&grant).expect("a grant is plain data");
        // If it is lost, the credit ends unstarted and is granted again.
        let (client, subject) = (&self.nats.client, self.subject.clone());
        let trace = self.span.as_ref().and_then(JobSpan::context);
        let sent = match trace {
            Some(trace) => {
                let mut headers = async_nats::HeaderMap::new();
                headers.insert(header::TRACEPARENT, trace.traceparent());
                let sent = client.publish_with_headers(subject, headers, body.into());
                sent.await
            }
            None => client.publish(subject, body.into()).await,
        };
        if let Err(error) = sent {
            tracing::warn!(%error, "cannot send a credit to its worker");
        }
    }
}

#[cfg(test)]
mod tests {
    use fairlane_core::{
        Cost, JobId, JobSeq, Millis, ModelId, PoolId, Priority, TenantId, Term, Tokens, WorkerId,
    };
    use fairlane_support::TestNats;

    use super::*;

    const GRANTED_AT: Millis = 7;

    fn credit() -> Credit {
        convert::credit_to_wire(core::Credit {
            seq: JobSeq(17),
            priority: Priority::Batch,
            tenant: TenantId::parse("acme").unwrap(),
            job: JobId::parse("a").unwrap(),
            model: ModelId::parse("claude-haiku-4-5").unwrap(),
            pool: PoolId::parse("haiku").unwrap(),
            worker: WorkerId::parse("w").unwrap(),
            delivery: 2,
            tokens: Tokens::default(),
            cost: Cost(1_000),
            term: Term(3),
            granted_at: GRANTED_AT,
            probe: false,
        })
    }

    #[tokio::test]
    async fn a_credit_replaces_only_what_we_last_saw_of_the_lease() {
        let server = TestNats::start().await;
        let credits = server.nats.bucket(&server.nats.names.credits_bucket());
        let ttl = Duration::from_secs(60);
        let granting = Granting {
            nats: server.nats.clone(),
            credits: credits.clone(),
            ttl,
            subject: "fl.ctl.credit.w".to_owned(),
            span: None,
        };
        let gone = Revision(5);
        assert_eq!(
            granting.store(&credit(), gone).await,
            Err(NotStored::Refused),
            "what we saw is not there any more"
        );
        let stored = granting.store(&credit(), Revision::ABSENT).await;
        let stored = stored.expect("nobody holds the lease");
        assert_eq!(
            granting.store(&credit(), Revision::ABSENT).await,
            Err(NotStored::Refused),
            "held by now"
        );
        let tombstone = credits
            .tombstone_if("17", stored, bytes::Bytes::new(), ttl)
            .await
            .unwrap();
        assert_eq!(
            granting.store(&credit(), gone).await,
            Err(NotStored::Refused),
            "a settlement that we have not seen yet is not overwritten"
        );
        assert!(granting.store(&credit(), tombstone).await.is_ok());
    }
}
