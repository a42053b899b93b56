//! A collector inside the test: takes traces and metrics by OTLP over HTTP and gRPC and keeps what came, decoded.

mod metrics;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{
    MetricsService, MetricsServiceServer,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

pub use metrics::{Series, page};

/// A span as it came.
#[derive(Debug, Clone, PartialEq)]
pub struct Seen {
    /// `service.name` of the process that sent it.
    pub service: String,
    pub name: String,
    /// `internal`, `server`, `client`, `producer` or `consumer`.
    pub kind: &'static str,
    pub trace: String,
    pub id: String,
    /// Empty for a root.
    pub parent: String,
    /// Traces and spans it points to.
    pub links: Vec<(String, String)>,
    /// Unix nanoseconds.
    pub start: u64,
    pub end: u64,
    pub failed: bool,
    pub attributes: BTreeMap<String, String>,
}

impl Seen {
    /// An attribute as text; empty if it has none.
    #[must_use]
    pub fn get(&self, name: &str) -> &str {
        self.attributes.get(name).map_or("", String::as_str)
    }
}

#[derive(Debug, Default)]
struct Shared {
    spans: Mutex<Vec<Seen>>,
    /// Bodies as they came, to look for what must not be there.
    raw: Mutex<Vec<u8>>,
    keys: Mutex<Vec<String>>,
    /// The latest series of each process, by its service.
    series: Mutex<BTreeMap<String, Series>>,
}

/// A running collector.
#[derive(Debug)]
pub struct Collector {
    shared: Arc<Shared>,
    http: SocketAddr,
    grpc: SocketAddr,
    _servers: [AbortOnDropHandle<()>; 2],
}

impl Collector {
    /// Starts both servers.
    ///
    /// # Panics
    /// If they cannot listen.
    pub async fn start() -> Self {
        let shared = Arc::new(Shared::default());
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let http = listener.local_addr().expect("its address");
        let app = Router::new()
            .route("/v1/traces", post(take_http))
            .route("/v1/metrics", post(take_metrics_http))
            .with_state(shared.clone());
        let serving = tokio::spawn(async move {
            axum::serve(listener, app).await.expect("it serves");
        });
        let incoming = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let grpc = incoming.local_addr().expect("its address");
        let service = TraceServiceServer::new(Grpc(shared.clone()));
        let metrics = MetricsServiceServer::new(Grpc(shared.clone()));
        let incoming = tonic::transport::server::TcpIncoming::from(incoming);
        let serving_grpc = tokio::spawn(async move {
            let server = tonic::transport::Server::builder()
                .add_service(service)
                .add_service(metrics);
            let served = server.serve_with_incoming(incoming).await;
            served.expect("it serves");
        });
        Self {
            shared,
            http,
            grpc,
            _servers: [
                AbortOnDropHandle::new(serving),
                AbortOnDropHandle::new(serving_grpc),
            ],
        }
    }

    /// What a fleet is told to send here, by protocol.
    #[must_use]
    pub fn settings(&self, protocol: &str) -> Vec<(&'static str, String)> {
        let at = match protocol {
            "grpc" => self.grpc,
            _ => self.http,
        };
        vec![
            ("telemetry.otlp_endpoint", format!("http://{at}")),
            ("telemetry.otlp_protocol", protocol.to_owned()),
            ("telemetry.otlp_headers", "x-key=open%20sesame".to_owned()),
        ]
    }

    /// What a fleet is told to send its metrics here, ten times a second.
    #[must_use]
    pub fn metrics_settings(&self, protocol: &str) -> Vec<(&'static str, String)> {
        let mut settings = self.settings(protocol);
        settings[0].0 = "telemetry.otlp_metrics_endpoint";
        settings.push(("telemetry.otlp_metrics_every_ms", "100".to_owned()));
        settings
    }

    /// The latest series of a service; empty if none came.
    ///
    /// # Panics
    /// If taking something in panicked.
    #[must_use]
    pub fn series(&self, service: &str) -> Series {
        let series = self.shared.series.lock().expect("no panic");
        series.get(service).cloned().unwrap_or_default()
    }

    /// All spans that came so far.
    ///
    /// # Panics
    /// If taking one in panicked.
    #[must_use]
    pub fn spans(&self) -> Vec<Seen> {
        self.shared.spans.lock().expect("no panic").clone()
    }

    /// The spans of one trace.
    #[must_use]
    pub fn trace(&self, id: &str) -> Vec<Seen> {
        let mut spans = self.spans();
        spans.retain(|span| span.trace == id);
        spans.sort_by_key(|span| span.start);
        spans
    }

    /// Whether a text stands anywhere in what came.
    ///
    /// # Panics
    /// If taking something in panicked.
    #[must_use]
    pub fn has_seen(&self, text: &str) -> bool {
        let raw = self.shared.raw.lock().expect("no panic");
        raw.windows(text.len()).any(|part| part == text.as_bytes())
    }

    /// Values of the header `x-key`, as they came.
    ///
    /// # Panics
    /// If taking something in panicked.
    #[must_use]
    pub fn keys(&self) -> Vec<String> {
        self.shared.keys.lock().expect("no panic").clone()
    }
}

async fn take_http(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Vec<u8>, StatusCode> {
    let request = ExportTraceServiceRequest::decode(body.clone());
    let request = request.map_err(|_| StatusCode::BAD_REQUEST)?;
    let key = headers.get("x-key").and_then(|value| value.to_str().ok());
    shared.take(request, key);
    Ok(ExportTraceServiceResponse::default().encode_to_vec())
}

async fn take_metrics_http(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Vec<u8>, StatusCode> {
    let request = ExportMetricsServiceRequest::decode(body);
    let request = request.map_err(|_| StatusCode::BAD_REQUEST)?;
    let key = headers.get("x-key").and_then(|value| value.to_str().ok());
    shared.take_metrics(request, key);
    Ok(ExportMetricsServiceResponse::default().encode_to_vec())
}

#[derive(Debug)]
struct Grpc(Arc<Shared>);

#[tonic::async_trait]
impl MetricsService for Grpc {
    async fn export(
        &self,
        request: tonic::Request<ExportMetricsServiceRequest>,
    ) -> Result<tonic::Response<ExportMetricsServiceResponse>, tonic::Status> {
        let key = request.metadata().get("x-key").cloned();
        let key = key.as_ref().and_then(|value| value.to_str().ok());
        self.0.take_metrics(request.into_inner(), key);
        Ok(tonic::Response::new(ExportMetricsServiceResponse::default()))
    }
}

#[tonic::async_trait]
impl TraceService for Grpc {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
        let key = request.metadata().get("x-key").cloned();
        let key = key.as_ref().and_then(|value| value.to_str().ok());
        self.0.take(request.into_inner(), key);
        Ok(tonic::Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Shared {
    fn take_metrics(&self, request: ExportMetricsServiceRequest, key: Option<&str>) {
        let mut keys = self.keys.lock().expect("no panic");
        keys.extend(key.map(str::to_owned));
        let mut all = self.series.lock().expect("no panic");
        for resource in request.resource_metrics {
            let attributes = resource.resource.map(|resource| resource.attributes);
            let attributes = texts(attributes.unwrap_or_default());
            let service = attributes.get("service.name").cloned().unwrap_or_default();
            let metrics = resource.scope_metrics.into_iter();
            let series = metrics::series(metrics.flat_map(|scope| scope.metrics));
            all.insert(service, series);
        }
    }

    fn take(&self, request: ExportTraceServiceRequest, key: Option<&str>) {
        let mut raw = self.raw.lock().expect("no panic");
        raw.extend(request.encode_to_vec());
        let mut keys = self.keys.lock().expect("no panic");
        keys.extend(key.map(str::to_owned));
        let mut spans = self.spans.lock().expect("no panic");
        for resource in request.resource_spans {
            let attributes = resource.resource.map(|resource| resource.attributes);
            let attributes = texts(attributes.unwrap_or_default());
            let service = attributes.get("service.name").cloned().unwrap_or_default();
            for scope in resource.scope_spans {
                spans.extend(scope.spans.into_iter().map(|span| seen(span, &service)));
            }
        }
    }
}

fn seen(span: Span, service: &str) -> Seen {
    let kind = match span.kind {
        2 => "server",
        3 => "client",
        4 => "producer",
        5 => "consumer",
        _ => "internal",
    };
    let links = span.links.iter();
    Seen {
        service: service.to_owned(),
        kind,
        trace: hex(&span.trace_id),
        id: hex(&span.span_id),
        parent: hex(&span.parent_span_id),
        links: links
            .map(|link| (hex(&link.trace_id), hex(&link.span_id)))
            .collect(),
        start: span.start_time_unix_nano,
        end: span.end_time_unix_nano,
        failed: span.status.is_some_and(|status| status.code == 2),
        attributes: texts(span.attributes),
        name: span.name,
    }
}

fn texts(attributes: Vec<KeyValue>) -> BTreeMap<String, String> {
    let text = |pair: KeyValue| (pair.key, pair.value.map_or_else(String::new, text));
    attributes.into_iter().map(text).collect()
}

fn text(value: AnyValue) -> String {
    match value.value {
        Some(any_value::Value::StringValue(text)) => text,
        Some(any_value::Value::IntValue(number)) => number.to_string(),
        Some(any_value::Value::BoolValue(truth)) => truth.to_string(),
        Some(any_value::Value::ArrayValue(list)) => {
            let items: Vec<String> = list.values.into_iter().map(text).collect();
            items.join(",")
        }
        other => format!("{other:?}"),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
