//! Sending the metrics to a collector over OTLP, beside the page that Prometheus reads.
//!
//! One push after the other, each bounded in time, from a task of its own: a collector that refuses or hangs costs a
//! counter. Values are cumulative, so that the next push says all that a lost one would have.

mod message;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use opentelemetry_otlp::tonic_types::metadata::MetadataMap;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_client::MetricsServiceClient;
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use prost::Message;
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, ClientTlsConfig, Endpoint};

use super::export::{metadata, parse_headers};
use super::{EXPORT_TIMEOUT, TelemetryError, resource};
use crate::config::{self, OtlpProtocol};
use crate::crypto::install_crypto;
use crate::metrics::Metrics;
use message::{Messages, UnixNanos};

/// What sends metrics, not yet begun.
#[derive(Debug)]
pub(super) struct Pusher {
    transport: Transport,
    messages: Messages,
    every: Duration,
}

/// A task that sends metrics.
#[derive(Debug)]
pub(super) struct Pushing {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

#[derive(Debug)]
enum Transport {
    Http {
        client: reqwest::Client,
        url: String,
        headers: HeaderMap,
    },
    Grpc {
        client: MetricsServiceClient<Channel>,
        headers: MetadataMap,
    },
}

/// Why the collector did not take the metrics.
#[derive(Debug, thiserror::Error)]
enum PushError {
    #[error("cannot reach it")]
    Http(#[from] reqwest::Error),
    #[error("it answered {0}")]
    Status(StatusCode),
    #[error("it answered {}: {}", .0.code(), .0.message())]
    Grpc(#[from] Box<tonic::Status>),
    #[error("it did not answer within {EXPORT_TIMEOUT:?}")]
    Late,
    #[error("it left out {points} points: {text}")]
    Partly { points: i64, text: String },
}

impl Pusher {
    /// As configured; None if nobody is to be sent metrics.
    ///
    /// # Errors
    /// If the address or the headers are wrong.
    pub(super) fn of(
        role: &str,
        settings: &config::Telemetry,
    ) -> Result<Option<Self>, TelemetryError> {
        let Some(endpoint) = &settings.otlp_metrics_endpoint else {
            return Ok(None);
        };
        install_crypto();
        let attributes = resource(role);
        let attributes = attributes
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_string()));
        Ok(Some(Self {
            transport: Transport::of(settings, endpoint)?,
            messages: Messages::new(attributes.collect(), unix_nanos()),
            every: Duration::from_millis(settings.otlp_metrics_every_ms),
        }))
    }

    /// Begins to send `metrics` at each interval, and once more at the end.
    pub(super) fn start(mut self, metrics: Metrics) -> Pushing {
        let stop = CancellationToken::new();
        let stopping = stop.clone();
        let task = tokio::spawn(async move {
            metrics.pushes_failed(0);
            let mut every = tokio::time::interval(self.every);
            every.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut is_failing = false;
            loop {
                let is_last = tokio::select! {
                    // What is to end does not push twice.
                    biased;
                    () = stopping.cancelled() => true,
                    _ = every.tick() => false,
                };
                let message = self.messages.next(&metrics.gather(), unix_nanos());
                let sent = self.transport.send(message).await;
                note(&metrics, &sent, &mut is_failing);
                if is_last {
                    return;
                }
            }
        });
        Pushing { stop, task }
    }
}

impl Pushing {
    /// Sends what there is a last time, and ends. Takes [`EXPORT_TIMEOUT`] at most.
    pub(super) async fn stop(mut self) {
        self.stop.cancel();
        match tokio::time::timeout(EXPORT_TIMEOUT, &mut self.task).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "the last metrics were not sent"),
            Err(_) => {
                self.task.abort();
                tracing::warn!("the last metrics were not sent: the collector does not answer");
            }
        }
    }
}

/// Counts what failed, and says once that it began, and that it ended.
fn note(metrics: &Metrics, sent: &Result<(), PushError>, is_failing: &mut bool) {
    match sent {
        Err(error) => {
            metrics.pushes_failed(1);
            if !*is_failing {
                tracing::warn!(error = %with_cause(error), "the collector does not take metrics");
            }
        }
        Ok(()) if *is_failing => tracing::info!("the collector takes metrics again"),
        Ok(()) => {}
    }
    *is_failing = sent.is_err();
}

fn with_cause(error: &PushError) -> String {
    let cause = std::error::Error::source(error);
    cause.map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}

impl Transport {
    fn of(settings: &config::Telemetry, endpoint: &str) -> Result<Self, TelemetryError> {
        let headers = match &settings.otlp_headers {
            Some(headers) => parse_headers(headers.expose())?,
            None => Vec::new(),
        };
        let wrong = |text: String| TelemetryError::MetricsEndpoint {
            endpoint: endpoint.to_owned(),
            text,
        };
        match settings.otlp_protocol {
            OtlpProtocol::Http => {
                let client = reqwest::Client::builder().timeout(EXPORT_TIMEOUT).build();
                Ok(Self::Http {
                    client: client.map_err(|error| wrong(error.to_string()))?,
                    url: metrics_endpoint(endpoint),
                    headers: header_map(&headers)?,
                })
            }
            OtlpProtocol::Grpc => {
                let channel = Endpoint::from_shared(endpoint.trim().to_owned());
                let mut channel = channel.map_err(|error| wrong(error.to_string()))?;
                if endpoint.trim().starts_with("https:") {
                    let tls = ClientTlsConfig::new().with_native_roots();
                    let encrypted = channel.tls_config(tls);
                    channel = encrypted.map_err(|error| wrong(error.to_string()))?;
                }
                let channel = channel.timeout(EXPORT_TIMEOUT).connect_lazy();
                Ok(Self::Grpc {
                    client: MetricsServiceClient::new(channel),
                    headers: metadata(&headers)?,
                })
            }
        }
    }

    async fn send(&self, message: ExportMetricsServiceRequest) -> Result<(), PushError> {
        let sent = tokio::time::timeout(EXPORT_TIMEOUT, self.answered(message)).await;
        let answer = sent.unwrap_or(Err(PushError::Late))?;
        match answer.partial_success {
            Some(partly) if partly.rejected_data_points > 0 => Err(PushError::Partly {
                points: partly.rejected_data_points,
                text: partly.error_message,
            }),
            Some(_) | None => Ok(()),
        }
    }

    async fn answered(
        &self,
        message: ExportMetricsServiceRequest,
    ) -> Result<ExportMetricsServiceResponse, PushError> {
        match self {
            Self::Http {
                client,
                url,
                headers,
            } => {
                let request = client
                    .post(url)
                    .headers(headers.clone())
                    .header("content-type", "application/x-protobuf")
                    .body(message.encode_to_vec());
                let answer = request.send().await?;
                if !answer.status().is_success() {
                    return Err(PushError::Status(answer.status()));
                }
                // Some collectors answer with nothing, or with JSON; it was taken all the same.
                let body = answer.bytes().await?;
                Ok(ExportMetricsServiceResponse::decode(body).unwrap_or_default())
            }
            Self::Grpc { client, headers } => {
                let mut request = tonic::Request::new(message);
                *request.metadata_mut() = headers.clone();
                let answer = client.clone().export(request).await;
                Ok(answer.map_err(Box::new)?.into_inner())
            }
        }
    }
}

/// The configured address is the collector's; the path of the metrics is part of the protocol.
fn metrics_endpoint(base: &str) -> String {
    let base = base.trim().trim_end_matches('/');
    if base.ends_with("/v1/metrics") {
        base.to_owned()
    } else {
        format!("{base}/v1/metrics")
    }
}

fn header_map(headers: &[(String, String)]) -> Result<HeaderMap, TelemetryError> {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        let name = HeaderName::try_from(name).map_err(|_| TelemetryError::Headers)?;
        let value = HeaderValue::try_from(value).map_err(|_| TelemetryError::Headers)?;
        map.append(name, value);
    }
    Ok(map)
}

fn unix_nanos() -> UnixNanos {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use axum::Router;
    use axum::routing::post;

    use super::*;

    #[test]
    fn the_path_of_metrics_is_added_once() {
        for base in [
            "http://c:4318",
            "http://c:4318/",
            "http://c:4318/v1/metrics",
        ] {
            assert_eq!(metrics_endpoint(base), "http://c:4318/v1/metrics");
        }
    }

    fn settings(address: String, protocol: OtlpProtocol) -> config::Telemetry {
        config::Telemetry {
            otlp_metrics_endpoint: Some(address),
            otlp_metrics_every_ms: 100,
            otlp_protocol: protocol,
            ..config::Telemetry::default()
        }
    }

    /// The value of a counter without labels on the page.
    fn failed(metrics: &Metrics) -> u64 {
        let page = metrics.render();
        let line = page
            .lines()
            .find_map(|line| line.strip_prefix("fairlane_metric_pushes_failed_total "));
        line.map_or(0, |value| value.parse().unwrap())
    }

    async fn until(is_so: impl Fn() -> bool) {
        let looking = async {
            while !is_so() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(20), looking).await;
        waited.expect("it becomes so");
    }

    #[tokio::test]
    async fn a_collector_that_refuses_is_counted_and_pushed_to_again() {
        let calls = Arc::new(AtomicU64::new(0));
        let called = calls.clone();
        let refuse = post(move || {
            // The third one is taken.
            let nth = called.fetch_add(1, Ordering::Relaxed);
            async move {
                if nth < 2 {
                    StatusCode::SERVICE_UNAVAILABLE
                } else {
                    StatusCode::OK
                }
            }
        });
        let app = Router::new().route("/v1/metrics", refuse);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, app).await });
        let metrics = Metrics::new("worker");
        let pusher = Pusher::of("worker", &settings(address, OtlpProtocol::Http));
        let pushing = pusher.unwrap().unwrap().start(metrics.clone());
        until(|| calls.load(Ordering::Relaxed) >= 3).await;
        pushing.stop().await;
        assert_eq!(failed(&metrics), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_collector_that_hangs_holds_up_neither_the_metrics_nor_the_end() {
        for protocol in [OtlpProtocol::Http, OtlpProtocol::Grpc] {
            // Connections are taken and never answered.
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = format!("http://{}", listener.local_addr().unwrap());
            let metrics = Metrics::new("worker");
            let pusher = Pusher::of("worker", &settings(address, protocol));
            let pushing = pusher.unwrap().unwrap().start(metrics.clone());
            until(|| failed(&metrics) >= 2).await;
            tokio::time::timeout(EXPORT_TIMEOUT * 2, pushing.stop())
                .await
                .expect("the end is not held up");
            drop(listener);
        }
    }

    #[tokio::test]
    async fn nothing_is_sent_unless_somebody_says_where() {
        let nothing = Pusher::of("worker", &config::Telemetry::default());
        assert!(nothing.unwrap().is_none());
        let wrong = settings("http://a b".to_owned(), OtlpProtocol::Grpc);
        let error = Pusher::of("worker", &wrong).unwrap_err().to_string();
        assert!(error.contains("telemetry.otlp_metrics_endpoint"), "{error}");
    }
}
