//! The client: one connection pool for a process, and its options.
//!
//! It never tries a call again. (The HTTP layer may take another connection for a request of which not a
//! byte was sent, or that the server declared unseen; both are invisible to the upstream and cost nothing.)
//! There is no limit on a call's total time, because long answers are legitimate; what is limited
//! is waiting: for the connection, for the headers, for any byte, and for progress.

use std::net::IpAddr;
use std::sync::Once;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fairlane_core::failure::{Cut, Ending, NotConnected};
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, Request, Response, Url};

use crate::key::ApiKey;
use crate::request::CallRequest;

const VERSION: HeaderName = HeaderName::from_static("anthropic-version");

/// Which versions of HTTP to speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Http {
    /// HTTP/2 where TLS negotiates it, otherwise HTTP/1.1.
    #[default]
    Auto,
    /// HTTP/1.1 only: a connection for each call that runs.
    One,
}

/// How to reach the API, and how long to wait for what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// For example `https://api.anthropic.com`; a path in it is kept.
    pub base_url: String,
    /// `anthropic-version`.
    pub version: String,
    pub user_agent: String,
    pub http: Http,
    pub connect_timeout: Duration,
    /// From sending to status and headers.
    pub first_byte_timeout: Duration,
    /// Between two bytes of an answer, pings included.
    pub silence_timeout: Duration,
    /// Between two parts of a message; pings do not count. Generous, because a model whose thinking is
    /// not shown sends nothing else for a long time.
    pub progress_timeout: Duration,
    /// Connections kept open without a call: as many as calls at a time.
    pub idle_connections_max: usize,
    /// Shorter than servers and middleboxes keep theirs.
    pub idle_connection_timeout: Duration,
    /// The largest message that is read, in bytes on the wire.
    pub message_bytes_max: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            base_url: "https://api.anthropic.com".to_owned(),
            version: "2023-06-01".to_owned(),
            user_agent: concat!("fairlane/", env!("CARGO_PKG_VERSION")).to_owned(),
            http: Http::Auto,
            connect_timeout: Duration::from_secs(5),
            first_byte_timeout: Duration::from_secs(60),
            silence_timeout: Duration::from_secs(60),
            progress_timeout: Duration::from_secs(180),
            idle_connections_max: 256,
            idle_connection_timeout: Duration::from_secs(60),
            message_bytes_max: 64 << 20,
        }
    }
}

/// Why a client could not be made: all of it is configuration.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("base_url {value:?} is not usable: {why}; an example is https://api.anthropic.com")]
    BaseUrl { value: String, why: String },
    #[error("{name} {value:?} cannot be sent as a header; use visible ASCII characters")]
    Header { name: &'static str, value: String },
    #[error("setting up the HTTP client")]
    Build(#[source] reqwest::Error),
}

/// A client of the Messages API. Cloning shares the connections.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    base: Url,
    version: HeaderValue,
    pub(crate) options: Options,
}

impl Client {
    /// Makes a client. Connects to nothing yet.
    ///
    /// # Errors
    /// [`ClientError`] names the option that is wrong.
    pub fn new(options: Options) -> Result<Self, ClientError> {
        install_crypto();
        let base = base_url(&options.base_url)?;
        let version = header("version", &options.version)?;
        let user_agent = header("user_agent", &options.user_agent)?;
        let mut builder = reqwest::Client::builder()
            .user_agent(user_agent)
            // A redirect would carry key and prompt to another place.
            .redirect(reqwest::redirect::Policy::none())
            .referer(false)
            .connect_timeout(options.connect_timeout)
            .tcp_nodelay(true)
            .tcp_keepalive(Duration::from_secs(60))
            .tcp_keepalive_interval(Duration::from_secs(60))
            .tcp_keepalive_retries(5)
            .pool_max_idle_per_host(options.idle_connections_max)
            .pool_idle_timeout(options.idle_connection_timeout)
            .http2_adaptive_window(true)
            .http2_keep_alive_interval(Duration::from_secs(20))
            .http2_keep_alive_timeout(Duration::from_secs(20));
        if options.http == Http::One {
            builder = builder.http1_only();
        }
        if is_loopback(&base) {
            builder = builder.no_proxy();
        }
        if base.scheme() == "http" {
            // Spares reading the system's certificates, which small images do not have.
            builder = builder.tls_certs_only([]);
        }
        let http = builder.build().map_err(ClientError::Build)?;
        Ok(Self {
            http,
            base,
            version,
            options,
        })
    }

    pub(crate) fn request(
        &self,
        key: &ApiKey,
        method: Method,
        path: &str,
        request: CallRequest,
    ) -> Request {
        let CallRequest { body, mut headers } = request;
        headers
            .entry(VERSION)
            .or_insert_with(|| self.version.clone());
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(
            ACCEPT,
            HeaderValue::from_static("text/event-stream, application/json"),
        );
        let (name, value) = key.header();
        headers.insert(name, value);
        let mut request = Request::new(method, self.url(path));
        *request.headers_mut() = headers;
        if !body.is_empty() {
            *request.body_mut() = Some(body.into());
        }
        request
    }

    fn url(&self, path: &str) -> Url {
        let mut url = self.base.clone();
        let (path, query) = path
            .split_once('?')
            .map_or((path, None), |(path, query)| (path, Some(query)));
        url.set_path(&format!("{}{path}", self.base.path().trim_end_matches('/')));
        url.set_query(query);
        url
    }

    pub(crate) async fn execute(&self, request: Request) -> Result<Response, (Ending, String)> {
        self.http.execute(request).await.map_err(|error| {
            let ending = if error.is_connect() && error.is_timeout() {
                Ending::NotConnected(NotConnected::Timeout)
            } else if error.is_connect() {
                Ending::NotConnected(NotConnected::Failed)
            } else {
                Ending::Cut(Cut::BeforeHeaders)
            };
            (ending, chain(&error.without_url()))
        })
    }
}

/// An error with its causes, on one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += ": ";
        text += &error.to_string();
        cause = error.source();
    }
    text
}

/// The local clock, for dates in headers of answers that bring no date of their own.
pub(crate) fn now_unix_ms() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Request ids are short; a longer header is not one.
pub(crate) fn request_id(headers: &HeaderMap) -> Option<String> {
    let id = headers.get("request-id")?.to_str().ok()?;
    (id.len() <= 128).then(|| id.to_owned())
}

/// The TLS code is chosen once for the process; another part of it may have done so before.
fn install_crypto() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let installed = rustls::crypto::ring::default_provider().install_default();
        drop(installed);
    });
}

fn header(name: &'static str, value: &str) -> Result<HeaderValue, ClientError> {
    HeaderValue::from_str(value).map_err(|_| ClientError::Header {
        name,
        value: value.to_owned(),
    })
}

fn base_url(value: &str) -> Result<Url, ClientError> {
    let refused = |why: &str| {
        // What stands before the '@' may be a password.
        let value = value.rsplit_once('@').map_or(value, |(_, host)| host);
        ClientError::BaseUrl {
            value: value.to_owned(),
            why: why.to_owned(),
        }
    };
    let url: Url = value
        .trim()
        .parse()
        .map_err(|_| refused("it is not a URL"))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(refused("it does not begin with http:// or https://"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(refused("it contains a user or password"));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(refused("it contains '?' or '#'"));
    }
    Ok(url)
}

/// A proxy from the environment has no business between two processes of one machine.
fn is_loopback(url: &Url) -> bool {
    url.host_str().is_some_and(|host| {
        let address = host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .parse::<IpAddr>();
        host == "localhost" || address.is_ok_and(|address| address.is_loopback())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(base_url: &str) -> Result<Client, ClientError> {
        Client::new(Options {
            base_url: base_url.to_owned(),
            ..Options::default()
        })
    }

    #[test]
    fn a_path_in_the_base_is_kept() {
        let url = |base, path| client(base).unwrap().url(path).to_string();
        assert_eq!(
            url("http://127.0.0.1:9", "/v1/messages"),
            "http://127.0.0.1:9/v1/messages"
        );
        assert_eq!(
            url("http://127.0.0.1:9/a/", "/v1/models?limit=9"),
            "http://127.0.0.1:9/a/v1/models?limit=9"
        );
    }

    #[test]
    fn a_wrong_base_is_refused_without_showing_a_password() {
        for bad in [
            "",
            "api.anthropic.com",
            "ftp://a",
            "http://",
            "http://a?x=1",
            "http://me:secret@a",
        ] {
            let text = client(bad).unwrap_err().to_string();
            assert!(
                text.contains("base_url") && !text.contains("secret"),
                "{text}"
            );
        }
        let options = Options {
            version: "a\nb".into(),
            ..Options::default()
        };
        assert!(
            Client::new(options)
                .unwrap_err()
                .to_string()
                .contains("version")
        );
    }

    #[test]
    fn loopback_is_recognised_in_all_its_spellings() {
        let loopback = |text: &str| is_loopback(&text.parse().unwrap());
        for yes in [
            "http://127.0.0.1:1",
            "http://127.9.9.9",
            "http://[::1]:1",
            "http://localhost/x",
        ] {
            assert!(loopback(yes), "{yes}");
        }
        for no in [
            "http://10.0.0.1",
            "http://localhost.example.com",
            "http://[fe80::1]",
        ] {
            assert!(!loopback(no), "{no}");
        }
    }
}
