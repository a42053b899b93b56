//! Sending spans to a collector, and what happens if it does not take them: they are dropped and counted. Nobody waits
//! for a collector but the thread that speaks to it, and the end of the process for a bounded time.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry_otlp::tonic_types::metadata::MetadataMap;
use opentelemetry_otlp::tonic_types::transport::ClientTlsConfig;
use opentelemetry_otlp::{
    ExporterBuildError, Protocol, WithExportConfig, WithHttpConfig, WithTonicConfig,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, SpanData, SpanExporter};
use tokio::runtime::Handle;

use super::{EXPORT_TIMEOUT, TelemetryError};
use crate::config::{self, OtlpProtocol};

/// Spans on their way to the collector: some seconds' worth of a busy process. Of more, the newest are dropped.
const QUEUE_MAX: usize = 16_384;
/// Spans in one request, and how long the first of them waits for others.
const BATCH_MAX: usize = 512;
const BATCH_EVERY: Duration = Duration::from_secs(1);

/// What became of spans; shared by what sends them and whoever counts.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    under_way: AtomicUsize,
    /// For want of room: the collector is slower than we are.
    no_room: AtomicU64,
    /// The collector refused them, or did not answer in time.
    not_taken: AtomicU64,
}

impl Counts {
    /// Takes a place in the queue. False, and counted, if there is none.
    pub(crate) fn take_place(&self) -> bool {
        let taken =
            self.under_way
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |under_way| {
                    (under_way < QUEUE_MAX).then_some(under_way + 1)
                });
        if taken.is_err() {
            self.no_room.fetch_add(1, Ordering::Relaxed);
        }
        taken.is_ok()
    }

    fn sent(&self, spans: usize, were_taken: bool) {
        self.under_way.fetch_sub(spans, Ordering::Relaxed);
        if !were_taken {
            let spans = u64::try_from(spans).unwrap_or(u64::MAX);
            self.not_taken.fetch_add(spans, Ordering::Relaxed);
        }
    }

    /// Spans dropped so far: for want of room, and because the collector did not take them.
    pub(crate) fn dropped(&self) -> [(&'static str, u64); 2] {
        [
            ("no_room", self.no_room.load(Ordering::Relaxed)),
            ("not_taken", self.not_taken.load(Ordering::Relaxed)),
        ]
    }
}

/// What sends batches of spans as configured.
pub(super) fn processor(
    settings: &config::Telemetry,
    endpoint: &str,
    counts: Arc<Counts>,
) -> Result<BatchSpanProcessor, TelemetryError> {
    let exporter = exporter(settings, endpoint)?;
    let config = BatchConfigBuilder::default()
        .with_max_queue_size(QUEUE_MAX)
        .with_max_export_batch_size(BATCH_MAX)
        .with_scheduled_delay(BATCH_EVERY)
        .build();
    let exporter = Guarded {
        exporter: Arc::new(exporter),
        runtime: Handle::current(),
        counts,
        is_failing: AtomicBool::new(false),
    };
    Ok(BatchSpanProcessor::builder(exporter)
        .with_batch_config(config)
        .build())
}

fn exporter(
    settings: &config::Telemetry,
    endpoint: &str,
) -> Result<opentelemetry_otlp::SpanExporter, TelemetryError> {
    let headers = match &settings.otlp_headers {
        Some(headers) => parse_headers(headers.expose())?,
        None => Vec::new(),
    };
    let builder = opentelemetry_otlp::SpanExporter::builder();
    let (endpoint, built) = match settings.otlp_protocol {
        OtlpProtocol::Http => {
            let endpoint = traces_endpoint(endpoint);
            let built = builder
                .with_http()
                .with_protocol(Protocol::HttpBinary)
                .with_endpoint(&endpoint)
                .with_timeout(EXPORT_TIMEOUT)
                .with_headers(headers.into_iter().collect::<HashMap<_, _>>())
                .build();
            (endpoint, built)
        }
        OtlpProtocol::Grpc => {
            let endpoint = endpoint.trim().to_owned();
            let builder = builder
                .with_tonic()
                .with_endpoint(&endpoint)
                .with_timeout(EXPORT_TIMEOUT)
                .with_metadata(metadata(&headers)?);
            let builder = if endpoint.starts_with("https:") {
                builder.with_tls_config(ClientTlsConfig::new().with_native_roots())
            } else {
                builder
            };
            (endpoint, builder.build())
        }
    };
    built.map_err(|source: ExporterBuildError| TelemetryError::Exporter { endpoint, source })
}

/// The configured address is the collector's; the path of the traces is part of the protocol.
fn traces_endpoint(base: &str) -> String {
    let base = base.trim().trim_end_matches('/');
    if base.ends_with("/v1/traces") {
        base.to_owned()
    } else {
        format!("{base}/v1/traces")
    }
}

pub(super) fn parse_headers(text: &str) -> Result<Vec<(String, String)>, TelemetryError> {
    let parse = |pair: &str| {
        let (name, value) = pair.split_once('=')?;
        let value = percent_encoding::percent_decode_str(value.trim());
        let value = value.decode_utf8().ok()?.into_owned();
        let name = name.trim().to_ascii_lowercase();
        (!name.is_empty()).then_some((name, value))
    };
    text.split(',')
        .filter(|pair| !pair.trim().is_empty())
        .map(|pair| parse(pair).ok_or(TelemetryError::Headers))
        .collect()
}

pub(super) fn metadata(headers: &[(String, String)]) -> Result<MetadataMap, TelemetryError> {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        let name = HeaderName::try_from(name).map_err(|_| TelemetryError::Headers)?;
        let value = HeaderValue::try_from(value).map_err(|_| TelemetryError::Headers)?;
        map.append(name, value);
    }
    Ok(MetadataMap::from_headers(map))
}

/// An exporter that counts what is lost, and says once that it began.
///
/// Batches are sent from a plain thread of the SDK, but the client needs a tokio runtime: the sending is done there.
#[derive(Debug)]
struct Guarded<E> {
    exporter: Arc<E>,
    runtime: Handle,
    counts: Arc<Counts>,
    is_failing: AtomicBool,
}

impl<E> Guarded<E> {
    fn note(&self, spans: usize, result: &OTelSdkResult) {
        self.counts.sent(spans, result.is_ok());
        let was_failing = self.is_failing.swap(result.is_err(), Ordering::Relaxed);
        match result {
            Err(error) if !was_failing => {
                tracing::warn!(%error, "the collector does not take traces; they are dropped");
            }
            Ok(()) if was_failing => tracing::info!("the collector takes traces again"),
            Ok(()) | Err(_) => {}
        }
    }
}

impl<E: SpanExporter + 'static> SpanExporter for Guarded<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let (exporter, spans) = (Arc::clone(&self.exporter), batch.len());
        let sending = self.runtime.spawn(async move {
            let sent = tokio::time::timeout(EXPORT_TIMEOUT, exporter.export(batch)).await;
            sent.unwrap_or(Err(OTelSdkError::Timeout(EXPORT_TIMEOUT)))
        });
        let result = sending
            .await
            .unwrap_or_else(|error| Err(OTelSdkError::InternalFailure(error.to_string())));
        self.note(spans, &result);
        // It is counted and told; the SDK would tell it again for every batch.
        Ok(())
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        if let Some(exporter) = Arc::get_mut(&mut self.exporter) {
            exporter.set_resource(resource);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_of_traces_is_added_once() {
        for base in ["http://c:4318", "http://c:4318/", "http://c:4318/v1/traces"] {
            assert_eq!(traces_endpoint(base), "http://c:4318/v1/traces");
        }
    }

    #[test]
    fn headers_are_read_as_the_standard_variable_gives_them() {
        let headers = parse_headers("X-Key=open%20sesame, tenant=a,").unwrap();
        let expected = [("x-key", "open sesame"), ("tenant", "a")];
        let headers: Vec<_> = headers.iter().map(|(k, v)| (&**k, &**v)).collect();
        assert_eq!(headers, expected);
        for wrong in ["key", "=value", "a=b,c"] {
            let error = parse_headers(wrong).unwrap_err().to_string();
            assert!(
                error.contains("name=value") && !error.contains("c\""),
                "{error}"
            );
        }
        assert!(metadata(&[("not a name".to_owned(), "x".to_owned())]).is_err());
    }

    #[test]
    fn of_more_spans_than_there_is_room_for_the_newest_are_dropped_and_counted() {
        let counts = Counts::default();
        assert!((0..QUEUE_MAX).all(|_| counts.take_place()));
        assert!(!counts.take_place());
        counts.sent(BATCH_MAX, true);
        assert!((0..BATCH_MAX).all(|_| counts.take_place()));
        counts.sent(3, false);
        assert_eq!(counts.dropped(), [("no_room", 1), ("not_taken", 3)]);
    }
}
