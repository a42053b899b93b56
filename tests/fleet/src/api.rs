//! Callers of a fleet's HTTP API.

use std::path::Path;

use fairlane_runtime::install_crypto;
use reqwest::{Client, Method, RequestBuilder, Response};
use serde_json::{Value, json};

/// Tokens that the API of every fleet knows.
pub const OPERATOR: &str = "operator-of-the-test";
pub const VIEWER: &str = "viewer-of-the-test";

/// Somebody who calls one server over HTTP, with one secret or none.
#[derive(Debug, Clone)]
pub struct Caller {
    pub url: String,
    pub http: Client,
    secret: Option<String>,
}

impl Caller {
    /// A caller of `url`, without a secret.
    ///
    /// # Panics
    /// If there can be no client.
    #[must_use]
    pub fn new(url: &str) -> Self {
        install_crypto();
        let builder = Client::builder().tcp_nodelay(true).no_proxy();
        Self {
            url: url.to_owned(),
            http: builder.build().expect("a client"),
            secret: None,
        }
    }

    /// The same one with another secret, on the same connections.
    #[must_use]
    pub fn with(&self, secret: &str) -> Self {
        Self {
            secret: Some(secret.to_owned()),
            ..self.clone()
        }
    }

    /// The same one over HTTPS, for which it uses this client.
    #[must_use]
    pub fn secure(&self, http: Client) -> Self {
        Self {
            url: self.url.replacen("http://", "https://", 1),
            http,
            secret: self.secret.clone(),
        }
    }

    /// A call that is not sent yet.
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.url));
        // The upstream itself wants it; the HTTP API can do without.
        let request = request.header("anthropic-version", "2023-06-01");
        match &self.secret {
            Some(secret) => request.header("x-api-key", secret),
            None => request,
        }
    }

    /// Sends a call without a body.
    ///
    /// # Panics
    /// If there is no answer.
    pub async fn send(&self, method: Method, path: &str) -> Answer {
        let sent = self.request(method, path).send().await;
        Answer::read(sent.expect("an answer")).await
    }

    /// # Panics
    /// If there is no answer.
    pub async fn get(&self, path: &str) -> Answer {
        self.send(Method::GET, path).await
    }

    /// # Panics
    /// If there is no answer.
    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        let sent = self.request(Method::POST, path).json(body).send().await;
        Answer::read(sent.expect("an answer")).await
    }
}

/// An answer as it was read, whole.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: reqwest::header::HeaderMap,
    pub text: String,
}

impl Answer {
    /// # Panics
    /// If the answer breaks off.
    pub async fn read(response: Response) -> Self {
        Self {
            status: response.status().as_u16(),
            headers: response.headers().clone(),
            text: response.text().await.expect("a whole body"),
        }
    }

    /// The body.
    ///
    /// # Panics
    /// If it is not JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    /// A header, if it is there and text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The type of the error, which has the form of the Claude API's.
    ///
    /// # Panics
    /// If it has not.
    #[must_use]
    pub fn error(&self) -> String {
        let body = self.json();
        assert_eq!(body["type"], "error", "{body}");
        assert_eq!(body["request_id"].as_str(), self.header("request-id"));
        assert!(body["error"]["message"].is_string(), "{body}");
        body["error"]["type"].as_str().expect("a type").to_owned()
    }
}

/// A call of the Messages API.
#[must_use]
pub fn message(prompt: &str) -> Value {
    json!({
        "model": "claude-haiku-4-5", "max_tokens": 64,
        "messages": [{"role": "user", "content": prompt}],
    })
}

/// Writes the tokens of an operator and a viewer.
pub(crate) fn write_tokens(path: &Path) {
    let tokens = format!("operator {OPERATOR}\nviewer {VIEWER}\n");
    std::fs::write(path, tokens).expect("a file of tokens");
}
