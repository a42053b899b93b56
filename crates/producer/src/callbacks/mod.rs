//! Delivering word that jobs have ended, from one shared consumer: over NATS, or as an HTTP POST.
//!
//! What is delivered is the message's body, byte for byte. An address that does not take it is tried
//! again for about an hour; then the word is dropped, because the record says the same. A receiver may
//! hear it twice, and tells by job and sequence.

mod allowed;

use std::time::Duration;

use bytes::Bytes;
use fairlane_core::TenantId;
use fairlane_nats::{Delivery, Nats, PullOptions, Puller};
use fairlane_runtime::config::Settings;
use fairlane_runtime::metrics::CallbackOutcome;
use fairlane_runtime::{Metrics, Shutdown};
use fairlane_wire::names::header;
use fairlane_wire::{Callback, Ended};
use hmac::{Hmac, Mac};
use reqwest::redirect::Policy;
use sha2::Sha256;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub use allowed::{Allowed, AllowedError};

use crate::producer::{Producer, now_ms};
use crate::trouble::with_causes;

/// Longest wait for the answer to a POST.
const POST_TIMEOUT: Duration = Duration::from_secs(10);
/// Callbacks under way at once by one producer.
const IN_FLIGHT_MAX: usize = 256;
/// Pauses after each try that did not succeed, seconds; after the last of them there is one more try.
const PAUSES: [u64; 7] = [1, 4, 20, 120, 600, 1_200, 1_500];

/// Why callbacks cannot be delivered by this configuration.
#[derive(Debug, thiserror::Error)]
pub enum CallbackError {
    #[error(transparent)]
    Allowed(#[from] AllowedError),
    #[error("producer.callback_secret_file {path:?} cannot be read")]
    SecretFile {
        path: String,
        #[source]
        source: std::io::Error,
    },
    #[error(
        "producer.callback_urls is set and there is no secret to sign with; give producer.callback_secret or a callback_secret_file that is not empty"
    )]
    NoSecret,
    #[error("the HTTP client for callbacks cannot be made")]
    Client(#[source] reqwest::Error),
}

/// Delivers callbacks. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Callbacks {
    nats: Nats,
    producer: Producer,
    allowed: Allowed,
    secret: Secret,
    http: reqwest::Client,
    metrics: Metrics,
}

/// What POSTs are signed with.
#[derive(Clone)]
struct Secret(String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

/// How a try ended that did not succeed.
enum Trouble {
    /// It may succeed later.
    Later(String),
    /// It never will.
    Never(String),
}

impl Callbacks {
    /// # Errors
    /// [`CallbackError`].
    pub fn new(
        settings: &Settings,
        producer: &Producer,
        metrics: Metrics,
    ) -> Result<Self, CallbackError> {
        fairlane_runtime::install_crypto();
        let secret = secret(settings)?;
        if settings.producer.callback_urls.is_some() && secret.is_empty() {
            return Err(CallbackError::NoSecret);
        }
        let allowed = Allowed::read(settings)?;
        let mut http = reqwest::Client::builder()
            .redirect(Policy::none())
            .timeout(POST_TIMEOUT)
            .no_proxy();
        if !allowed.has_tls() {
            // Spares reading the system's certificates, which small images do not have.
            http = http.tls_certs_only([]);
        }
        Ok(Self {
            nats: producer.nats().clone(),
            producer: producer.clone(),
            allowed,
            secret: Secret(secret),
            http: http.build().map_err(CallbackError::Client)?,
            metrics,
        })
    }

    /// Delivers until `shutdown` says to drain, then finishes what is in hand.
    ///
    /// # Errors
    /// None: what cannot be delivered never ends a producer.
    pub async fn serve(self, shutdown: Shutdown) -> anyhow::Result<()> {
        let names = &self.nats.names;
        let options = PullOptions {
            in_flight_max: IN_FLIGHT_MAX,
        };
        let (stream, consumer) = (names.callbacks_stream(), names.callbacks_consumer());
        let mut puller = Puller::start(&self.nats, &stream, consumer, options);
        let mut tasks = JoinSet::new();
        loop {
            tokio::select! {
                () = shutdown.draining().cancelled() => break,
                // Only forgets tasks that have ended; what they did is settled inside.
                Some(_) = tasks.join_next() => {}
                delivery = puller.next() => match delivery {
                    Some(delivery) => {
                        let work = self.clone().settle(delivery, shutdown.stop_now().clone());
                        tasks.spawn(work);
                    }
                    None => break,
                },
            }
        }
        let finish = async { while tasks.join_next().await.is_some() {} };
        tokio::join!(puller.drain(), finish);
        // A connection that has ended for good ends the process by another way.
        shutdown.draining().cancelled().await;
        Ok(())
    }

    async fn settle(self, delivery: Delivery, stop_now: CancellationToken) {
        let tried = tokio::select! {
            tried = self.deliver(&delivery) => tried,
            // Delivered again after the ack wait, by another producer.
            () = stop_now.cancelled() => return,
        };
        let (seq, count) = (delivery.seq, delivery.count);
        let answered = match (tried, pause(count)) {
            (Ok(()), _) => {
                self.metrics.callback(CallbackOutcome::Delivered);
                delivery.ack().await
            }
            (Err(Trouble::Later(error)), Some(pause)) => {
                self.metrics.callback(CallbackOutcome::Retried);
                tracing::debug!(seq, count, error, "a callback is tried again");
                delivery.nak(pause).await
            }
            (Err(Trouble::Later(error) | Trouble::Never(error)), _) => {
                self.metrics.callback(CallbackOutcome::Dropped);
                let subject = &delivery.subject;
                tracing::warn!(seq, count, subject, error, "a callback is dropped");
                delivery.ack().await
            }
        };
        if let Err(error) = answered {
            tracing::debug!(seq, %error, "a callback may be delivered again");
        }
    }

    async fn deliver(&self, delivery: &Delivery) -> Result<(), Trouble> {
        let to = delivery.headers.get(header::CALLBACK);
        let to = to.and_then(|value| Callback::parse(value.as_str()));
        let to = to.ok_or_else(|| Trouble::Never("it has no address".to_owned()))?;
        let ended: Ended = serde_json::from_slice(&delivery.payload)
            .map_err(|error| Trouble::Never(error.to_string()))?;
        self.check(&ended.tenant, &to)?;
        match to {
            Callback::Subject(subject) => self.publish(subject, delivery.payload.clone()).await,
            Callback::Url(url) => self.post(&url, delivery.payload.clone()).await,
            Callback::Parent(job) => {
                let gathered = Box::pin(self.producer.gather(&ended.tenant, &job)).await;
                gathered.map_err(|error| Trouble::Later(with_causes(&error)))
            }
        }
    }

    /// The configuration may have changed since the job was accepted.
    fn check(&self, tenant: &TenantId, to: &Callback) -> Result<(), Trouble> {
        let allowed = self.allowed.check(tenant, to);
        allowed.map_err(|failure| Trouble::Never(failure.message))
    }

    async fn publish(&self, subject: String, body: Bytes) -> Result<(), Trouble> {
        let client = &self.nats.client;
        let sent = async {
            client
                .publish(subject, body)
                .await
                .map_err(|error| error.to_string())?;
            // On its way before it counts as delivered.
            client.flush().await.map_err(|error| error.to_string())
        };
        match tokio::time::timeout(POST_TIMEOUT, sent).await {
            Ok(sent) => sent.map_err(Trouble::Later),
            Err(_) => Err(Trouble::Later("NATS did not take it in time".to_owned())),
        }
    }

    async fn post(&self, url: &str, body: Bytes) -> Result<(), Trouble> {
        let timestamp = (now_ms() / 1_000).to_string();
        let signature = sign(&self.secret.0, &timestamp, &body);
        let answer = self
            .http
            .post(url)
            .header("content-type", "application/json")
            .header("fairlane-timestamp", timestamp)
            .header("fairlane-signature", format!("v1={signature}"))
            .body(body)
            .send()
            .await
            .map_err(|error| Trouble::Later(error.without_url().to_string()))?;
        match answer.status() {
            status if status.is_success() => Ok(()),
            status => Err(Trouble::Later(format!("it answered {status}"))),
        }
    }
}

/// HMAC-SHA256 of `<timestamp>.<body>`, hexadecimal.
fn sign(secret: &str, timestamp: &str, body: &[u8]) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("keys of any length do");
    mac.update(timestamp.as_bytes());
    mac.update(b".");
    mac.update(body);
    let code = mac.finalize().into_bytes();
    code.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Time until the next try after try number `count`; None if there is none.
fn pause(count: u64) -> Option<Duration> {
    let at = usize::try_from(count.saturating_sub(1)).ok()?;
    PAUSES.get(at).map(|seconds| Duration::from_secs(*seconds))
}

fn secret(settings: &Settings) -> Result<String, CallbackError> {
    let producer = &settings.producer;
    if let Some(path) = &producer.callback_secret_file {
        let text = std::fs::read_to_string(path);
        let text = text.map_err(|source| CallbackError::SecretFile {
            path: path.display().to_string(),
            source,
        })?;
        return Ok(text.trim().to_owned());
    }
    let secret = producer.callback_secret.as_ref();
    Ok(secret.map_or_else(String::new, |secret| secret.expose().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_what_any_other_program_makes_of_it() {
        // printf '1796000000.{"a":1}' | openssl dgst -sha256 -hmac key
        let expected = "b1194e4cade88dbd9a4a2406d21baa24fcc01fb31b5a88730c6a1ada8dc89fa4";
        assert_eq!(sign("key", "1796000000", br#"{"a":1}"#), expected);
    }

    #[test]
    fn tries_end_within_about_an_hour() {
        let pauses: Vec<Duration> = (1..).map_while(pause).collect();
        assert_eq!(pauses.len(), PAUSES.len());
        let total = pauses.iter().sum::<Duration>().as_secs();
        assert!((3_000..=3_600).contains(&total), "{total}");
    }
}
