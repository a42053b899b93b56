//! Telling people: messages in Slack's format to one address, from the scheduler that leads.
//!
//! What to tell is decided in `fairlane_core::tell`. Here a message waits in a short line, is tried a few times, and is
//! dropped: people who cannot be reached must not hold up jobs, nor fill memory.

use std::path::PathBuf;
use std::time::Duration;

use fairlane_core::tell::Message;
use fairlane_runtime::config::Settings;
use fairlane_runtime::metrics::WebhookOutcome;
use fairlane_runtime::{Metrics, Shutdown};
use serde_json::json;
use tokio::sync::{mpsc, watch};

/// Messages that wait; further ones are dropped.
const WAITING_MAX: usize = 100;
const POST_TIMEOUT: Duration = Duration::from_secs(10);
/// Pauses between the tries of one message, seconds.
const PAUSES: [u64; 4] = [1, 4, 15, 60];

/// Where messages are given.
#[derive(Debug, Clone)]
pub(crate) struct Outbox {
    line: mpsc::Sender<Message>,
    leads: watch::Sender<bool>,
    metrics: Metrics,
}

impl Outbox {
    /// Without an address messages go nowhere, which is no loss.
    pub(crate) fn channel(metrics: Metrics) -> (Self, mpsc::Receiver<Message>) {
        let (line, messages) = mpsc::channel(WAITING_MAX);
        let leads = watch::Sender::new(false);
        let outbox = Self {
            line,
            leads,
            metrics,
        };
        (outbox, messages)
    }

    /// Whether this scheduler leads: only then is anything told.
    pub(crate) fn leads(&self, leads: bool) {
        self.leads.send_replace(leads);
    }

    pub(crate) fn tell(&self, message: Message) {
        if !*self.leads.borrow() {
            return;
        }
        tracing::info!(title = message.title, text = message.text, "telling people");
        if self.line.try_send(message).is_err() {
            self.metrics.webhook(WebhookOutcome::Dropped);
        }
    }
}

/// The address, which may change in its file.
enum Address {
    None,
    Fixed(String),
    File(PathBuf),
}

impl Address {
    fn of(settings: &Settings) -> Self {
        match (&settings.webhook.url, &settings.webhook.url_file) {
            (_, Some(path)) => Self::File(path.clone()),
            (Some(url), None) => Self::Fixed(url.expose().to_owned()),
            (None, None) => Self::None,
        }
    }

    async fn read(&self) -> Result<Option<String>, String> {
        match self {
            Self::None => Ok(None),
            Self::Fixed(url) => Ok(Some(url.clone())),
            Self::File(path) => {
                let text = tokio::fs::read_to_string(path).await;
                let text =
                    text.map_err(|error| format!("webhook.url_file {}: {error}", path.display()))?;
                Ok(Some(text.trim().to_owned()))
            }
        }
    }
}

/// Sends messages until the process drains; what waits then is lost.
pub(crate) async fn serve(
    settings: Settings,
    mut messages: mpsc::Receiver<Message>,
    metrics: Metrics,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let address = Address::of(&settings);
    let mut http = reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .timeout(POST_TIMEOUT);
    if let Address::Fixed(url) = &address
        && url.starts_with("http://")
    {
        // Spares reading the system's certificates, which small images do not have.
        http = http.tls_certs_only([]);
    }
    let http = match address {
        Address::None => None,
        Address::Fixed(_) | Address::File(_) => Some(http.build()?),
    };
    loop {
        let message = tokio::select! {
            () = shutdown.draining().cancelled() => return Ok(()),
            Some(message) = messages.recv() => message,
        };
        let Some(http) = &http else { continue };
        tokio::select! {
            () = shutdown.draining().cancelled() => return Ok(()),
            () = send(http, &address, &message, &metrics) => {}
        }
    }
}

async fn send(http: &reqwest::Client, address: &Address, message: &Message, metrics: &Metrics) {
    let text = format!("*{}*\n{}", escaped(&message.title), escaped(&message.text));
    let body = json!({ "text": text }).to_string();
    for pause in PAUSES.map(Some).into_iter().chain([None]) {
        let error = match post(http, address, &body).await {
            Ok(()) => return metrics.webhook(WebhookOutcome::Sent),
            Err(error) => error,
        };
        let Some(pause) = pause else {
            tracing::warn!(title = message.title, error, "nobody could be told");
            return metrics.webhook(WebhookOutcome::Dropped);
        };
        metrics.webhook(WebhookOutcome::Failed);
        tokio::time::sleep(Duration::from_secs(pause)).await;
    }
}

async fn post(http: &reqwest::Client, address: &Address, body: &str) -> Result<(), String> {
    let Some(url) = address.read().await? else {
        return Ok(());
    };
    let sent = http
        .post(url)
        .header("content-type", "application/json")
        .body(body.to_owned())
        .send();
    // The address is a secret.
    let answer = sent
        .await
        .map_err(|error| error.without_url().to_string())?;
    match answer.status() {
        status if status.is_success() => Ok(()),
        status => Err(format!("it answered {status}")),
    }
}

/// As Slack wants the three characters that mean something to it.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(title: &str) -> Message {
        Message {
            title: title.to_owned(),
            text: "a <b> & c".to_owned(),
        }
    }

    #[tokio::test]
    async fn only_a_leader_tells_and_never_waits() {
        let metrics = Metrics::new("scheduler");
        let (outbox, mut messages) = Outbox::channel(metrics.clone());
        outbox.tell(message("standby"));
        outbox.leads(true);
        for number in 0..WAITING_MAX + 7 {
            outbox.tell(message(&number.to_string()));
        }
        assert_eq!(messages.recv().await.unwrap().title, "0");
        let text = metrics.render();
        let dropped = r#"fairlane_webhook_messages_total{outcome="dropped"} 7"#;
        assert!(text.contains(dropped), "{text}");
    }

    #[test]
    fn what_means_something_to_slack_is_escaped() {
        assert_eq!(escaped(&message("").text), "a &lt;b&gt; &amp; c");
    }
}
