//! The connection: how to open it, how it comes back, and what it reports.
//!
//! The first connection is tried until a deadline, so a process may start before its NATS
//! server. Wrong credentials end that at once. Afterwards the client reconnects for ever with
//! jittered pauses; readers of streams learn about it through a counter and resume at once
//! instead of waiting for missed heartbeats.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_nats::{ConnectErrorKind, ConnectOptions, Event, ServerError};
use fairlane_wire::names::Namespace;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::jobs::Jobs;
use crate::lease::Bucket;
use crate::payloads::Payloads;

/// Messages sent to be stored and not yet answered, per connection.
pub(crate) const IN_FLIGHT_MAX: usize = 4_096;

/// Pause before reconnect attempt `n` is `100 ms * 2^n` up to this, then jittered.
const RECONNECT_DELAY_MAX: Duration = Duration::from_secs(4);

/// How to reach NATS.
#[derive(Clone)]
pub struct NatsOptions {
    /// One or more server URLs, separated by commas.
    pub url: String,
    /// JWT and nkey file of a user.
    pub creds_file: Option<PathBuf>,
    /// File with the seed of an nkey.
    pub nkey_file: Option<PathBuf>,
    /// User name; needs `password`.
    pub user: Option<String>,
    /// Password of `user`.
    pub password: Option<String>,
    /// Where replies arrive. Each role has its own, so nobody can read another's replies.
    pub inbox_prefix: Option<String>,
    /// Certificate authorities to trust besides the system's.
    pub tls_ca: Option<PathBuf>,
    /// Client certificate and key.
    pub tls_identity: Option<(PathBuf, PathBuf)>,
    /// Refuse to talk without TLS.
    pub tls_required: bool,
    /// Name shown in the server's connection list.
    pub name: String,
    /// How long a reply or publish ack may take.
    pub request_timeout: Duration,
    /// How long the first connection may take in all.
    pub connect_timeout: Duration,
    /// Prefix of all names.
    pub namespace: Namespace,
}

impl NatsOptions {
    /// Options for `url`: no credentials, 5 s per request, 30 s for the first connection.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            creds_file: None,
            nkey_file: None,
            user: None,
            password: None,
            inbox_prefix: None,
            tls_ca: None,
            tls_identity: None,
            tls_required: false,
            name: "fairlane".to_owned(),
            request_timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(30),
            namespace: Namespace::default(),
        }
    }
}

/// Leaves out everything secret: the password, and the URL, which may hold one.
impl fmt::Debug for NatsOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsOptions")
            .field("name", &self.name)
            .field("namespace", &self.namespace.as_str())
            .field("user", &self.user)
            .field("creds_file", &self.creds_file)
            .field("tls_required", &self.tls_required)
            .finish_non_exhaustive()
    }
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("user and password belong together; only {given} is set")]
    HalfCredentials { given: &'static str },
    #[error("cannot read the credentials file {path}")]
    Credentials {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("the NATS URL or the credentials are not accepted")]
    Refused(#[source] async_nats::ConnectError),
    #[error("no NATS server answered within {waited:?}; is one running at the configured URL?")]
    Unreachable {
        waited: Duration,
        source: async_nats::ConnectError,
    },
}

/// A connection to NATS. Cheap to clone; all clones share it.
#[derive(Debug, Clone)]
pub struct Nats {
    /// The plain client, for subjects that are not stored.
    pub client: async_nats::Client,
    /// The JetStream context of the same connection.
    pub jetstream: async_nats::jetstream::Context,
    /// Names of everything Fairlane keeps on this server.
    pub names: Namespace,
    request_timeout: Duration,
    connections: watch::Receiver<u64>,
}

impl Nats {
    /// A handle on a KV bucket. No round trip: a missing bucket shows on first use.
    #[must_use]
    pub fn bucket(&self, name: &str) -> Bucket {
        Bucket::new(self.clone(), name)
    }

    /// A handle for publishing to, reading from and deleting from streams.
    #[must_use]
    pub fn jobs(&self) -> Jobs {
        Jobs::new(self.clone())
    }

    /// A handle on the store of large bodies.
    #[must_use]
    pub fn payloads(&self) -> Payloads {
        Payloads::new(self.clone())
    }

    /// How long a reply may take.
    #[must_use]
    pub fn request_timeout(&self) -> Duration {
        self.request_timeout
    }

    /// True while the connection is up.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.client.connection_state() == async_nats::connection::State::Connected
    }

    /// Counts connections made so far; changes at every reconnect.
    #[must_use]
    pub fn connections(&self) -> watch::Receiver<u64> {
        self.connections.clone()
    }
}

/// Connects to NATS.
///
/// # Errors
/// [`ConnectError`]: at once for options, credentials and permissions that cannot work, after
/// `connect_timeout` when no server answers.
pub async fn connect(options: &NatsOptions) -> Result<Nats, ConnectError> {
    let (connected, connections) = watch::channel(0);
    let client = first_connection(options, Arc::new(connected)).await?;
    let jetstream = async_nats::jetstream::context::ContextBuilder::new()
        .timeout(options.request_timeout)
        .max_ack_inflight(IN_FLIGHT_MAX)
        .backpressure_on_inflight(true)
        .build(client.clone());
    Ok(Nats {
        client,
        jetstream,
        names: options.namespace.clone(),
        request_timeout: options.request_timeout,
        connections,
    })
}

async fn first_connection(
    options: &NatsOptions,
    connected: Arc<watch::Sender<u64>>,
) -> Result<async_nats::Client, ConnectError> {
    let begun = Instant::now();
    for attempt in 0.. {
        let settings = settings(options, connected.clone()).await?;
        let error = match settings.connect(&urls(&options.url)[..]).await {
            Ok(client) => return Ok(client),
            Err(error) => error,
        };
        if is_final(error.kind()) {
            return Err(ConnectError::Refused(error));
        }
        let pause = reconnect_delay(attempt, rand::random_range(0.5..1.0));
        let waited = begun.elapsed();
        if waited + pause > options.connect_timeout {
            return Err(ConnectError::Unreachable {
                waited,
                source: error,
            });
        }
        tracing::debug!(attempt, error = %error, "no NATS server yet");
        tokio::time::sleep(pause).await;
    }
    unreachable!("the loop has no end of its own")
}

fn urls(list: &str) -> Vec<String> {
    list.split(',')
        .map(|url| url.trim().to_owned())
        .filter(|url| !url.is_empty())
        .collect()
}

/// Failures that waiting does not cure.
fn is_final(kind: ConnectErrorKind) -> bool {
    match kind {
        ConnectErrorKind::ServerParse
        | ConnectErrorKind::Authentication
        | ConnectErrorKind::AuthorizationViolation
        | ConnectErrorKind::Tls => true,
        ConnectErrorKind::Dns
        | ConnectErrorKind::TimedOut
        | ConnectErrorKind::Io
        | ConnectErrorKind::MaxReconnects => false,
    }
}

/// Doubles from 100 ms up to the limit, then scaled by `jitter` (0.5 to 1.0) so that a fleet
/// does not come back in step.
fn reconnect_delay(attempt: usize, jitter: f64) -> Duration {
    let exponent = u32::try_from(attempt).unwrap_or(u32::MAX).min(10);
    let delay = Duration::from_millis(100) * 2_u32.pow(exponent);
    delay.min(RECONNECT_DELAY_MAX).mul_f64(jitter)
}

async fn settings(
    options: &NatsOptions,
    connected: Arc<watch::Sender<u64>>,
) -> Result<ConnectOptions, ConnectError> {
    let mut settings = ConnectOptions::new()
        .name(&options.name)
        .request_timeout(Some(options.request_timeout))
        .max_reconnects(None)
        .reconnect_delay_callback(|attempt| reconnect_delay(attempt, rand::random_range(0.5..1.0)))
        .ping_interval(Duration::from_secs(20))
        .event_callback(move |event| {
            let connected = connected.clone();
            async move { on_event(&event, &connected) }
        });
    settings = match (&options.user, &options.password) {
        (Some(user), Some(password)) => settings.user_and_password(user.clone(), password.clone()),
        (None, None) => settings,
        (Some(_), None) => return Err(ConnectError::HalfCredentials { given: "user" }),
        (None, Some(_)) => return Err(ConnectError::HalfCredentials { given: "password" }),
    };
    if let Some(path) = &options.creds_file {
        let failed = |source| ConnectError::Credentials {
            path: path.clone(),
            source,
        };
        settings = settings.credentials_file(path).await.map_err(failed)?;
    }
    if let Some(path) = &options.nkey_file {
        let seed = tokio::fs::read_to_string(path).await;
        let seed = seed.map_err(|source| ConnectError::Credentials {
            path: path.clone(),
            source,
        })?;
        settings = settings.nkey(seed.trim().to_owned());
    }
    if let Some(prefix) = &options.inbox_prefix {
        settings = settings.custom_inbox_prefix(prefix);
    }
    if let Some(ca) = &options.tls_ca {
        settings = settings.add_root_certificates(ca.clone());
    }
    if let Some((certificate, key)) = &options.tls_identity {
        settings = settings.add_client_certificate(certificate.clone(), key.clone());
    }
    if options.tls_required {
        settings = settings.require_tls(true);
    }
    Ok(settings)
}

fn on_event(event: &Event, connected: &watch::Sender<u64>) {
    match event {
        Event::Connected => {
            connected.send_modify(|count| *count += 1);
            tracing::info!("connected to NATS");
        }
        Event::Disconnected => tracing::warn!("disconnected from NATS; reconnecting"),
        Event::LameDuckMode => tracing::info!("this NATS server is about to stop; moving on"),
        Event::Draining | Event::Closed => tracing::debug!(%event, "connection ending"),
        Event::SlowConsumer(subscription) => {
            tracing::warn!(
                subscription,
                "messages dropped: a subscription is not read fast enough"
            );
        }
        // The call that was denied only sees a timeout, so this line is the one that explains it.
        Event::ServerError(ServerError::AuthorizationViolation) => {
            tracing::warn!("NATS refused the credentials");
        }
        Event::ServerError(ServerError::Other(text)) => {
            tracing::warn!(error = %text, "NATS refused something; check the permissions of this user");
        }
        Event::ServerError(error) => tracing::warn!(%error, "NATS reported an error"),
        Event::ClientError(error) => tracing::warn!(%error, "NATS client error"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reconnect_delays_grow_and_stay_within_the_limit() {
        let delays: Vec<_> = (0..8).map(|n| reconnect_delay(n, 1.0)).collect();
        assert!(
            delays.windows(2).all(|pair| pair[0] <= pair[1]),
            "{delays:?}"
        );
        assert_eq!(delays[0], Duration::from_millis(100));
        assert_eq!(reconnect_delay(usize::MAX, 1.0), RECONNECT_DELAY_MAX);
        assert_eq!(reconnect_delay(usize::MAX, 0.5), RECONNECT_DELAY_MAX / 2);
    }

    #[test]
    fn debug_output_shows_no_secret() {
        let mut options = NatsOptions::new("nats://me:hunter2@localhost");
        options.password = Some("hunter2".to_owned());
        assert!(!format!("{options:?}").contains("hunter2"));
    }

    #[tokio::test]
    async fn half_credentials_are_refused_without_trying() {
        let mut options = NatsOptions::new("nats://127.0.0.1:1");
        options.user = Some("me".to_owned());
        assert!(matches!(
            connect(&options).await,
            Err(ConnectError::HalfCredentials { given: "user" })
        ));
    }

    #[test]
    fn a_url_list_is_split_and_trimmed() {
        assert_eq!(
            urls("nats://a:1, nats://b:2,"),
            ["nats://a:1", "nats://b:2"]
        );
    }
}
