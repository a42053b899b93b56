//! Logs to standard error and, if collectors are named, traces and metrics over OTLP.
//!
//! Log lines and traces have separate filters: quieter logs must not punch holes into traces. The exporter's own
//! client is kept out of the traces it sends. Which traces are sent is decided in `telemetry::keep`, how they are sent
//! and lost in `telemetry::export`; metrics are sent in `telemetry::push`.

mod export;
mod keep;
mod push;

use std::io::IsTerminal;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::ExporterBuildError;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry};

use crate::config::{self, LogFormat};
use crate::crypto::install_crypto;
use crate::metrics::Metrics;
use crate::spans::{self, Traces};
use export::Counts;
pub(crate) use keep::Keeper;
use keep::{Chooser, Rules};
use push::{Pusher, Pushing};

/// Longest wait for the collector per batch, and for the last batch at the end.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// How often the metrics are told of dropped spans.
const COUNT_EVERY: Duration = Duration::from_secs(1);

/// Name of what makes the spans.
const SCOPE: &str = "fairlane";

/// Libraries whose spans say nothing about a job, or would trace the sending of traces.
const UNTRACED: &[&str] = &[
    "h2",
    "hyper",
    "hyper_util",
    "opentelemetry",
    "reqwest",
    "rustls",
    "tonic",
    "tower",
];

/// Why telemetry could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// `telemetry.log` is not a filter.
    #[error(
        "telemetry.log is {filter:?}; expected a level, or a list such as \"info,fairlane_worker=debug\""
    )]
    Filter {
        /// The text that was configured.
        filter: String,
        /// What is wrong with it.
        #[source]
        source: tracing_subscriber::filter::ParseError,
    },
    /// The trace exporter could not be built.
    #[error("cannot send traces to {endpoint}")]
    Exporter {
        /// The full address.
        endpoint: String,
        /// What is wrong.
        #[source]
        source: ExporterBuildError,
    },
    /// Metrics cannot be sent to the address.
    #[error(
        "telemetry.otlp_metrics_endpoint is {endpoint:?}, which metrics cannot be sent to: {text}; \
             expected an address such as http://collector:4318"
    )]
    MetricsEndpoint {
        /// The address that was configured.
        endpoint: String,
        /// What is wrong.
        text: String,
    },
    /// `telemetry.otlp_headers` cannot be headers. The text may be a secret.
    #[error(
        "telemetry.otlp_headers is not a list of headers; expected \"name=value,...\" with percent-encoded values"
    )]
    Headers,
    /// A subscriber exists already in this process.
    #[error("telemetry is already set up in this process")]
    Twice(#[source] tracing_subscriber::util::TryInitError),
}

/// What standard error is, as far as log lines care.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terminal {
    /// Somebody reads along.
    pub is_terminal: bool,
    /// `NO_COLOR` is set to something.
    pub no_color: bool,
}

impl Terminal {
    /// Looks at standard error and the environment.
    pub fn detect() -> Self {
        Self {
            is_terminal: std::io::stderr().is_terminal(),
            no_color: std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty()),
        }
    }

    fn is_colored(self) -> bool {
        self.is_terminal && !self.no_color
    }

    fn wants_json(self, format: LogFormat) -> bool {
        match format {
            LogFormat::Auto => !self.is_terminal,
            LogFormat::Text => false,
            LogFormat::Json => true,
        }
    }
}

/// Sends what is left when it is shut down. Traces that are still queued are lost if it is only dropped inside a
/// runtime that ends.
#[derive(Debug)]
#[must_use = "call shutdown() at the end, or the last traces are lost"]
pub struct Telemetry {
    provider: Option<SdkTracerProvider>,
    counts: Arc<Counts>,
    pusher: Option<Pusher>,
    pushing: Option<Pushing>,
}

impl Telemetry {
    /// Tells the metrics, forever, how many spans are dropped. Ends at once without a collector.
    pub fn count_drops(&self, metrics: Metrics) -> impl Future<Output = ()> + Send + use<> {
        let counts = self.provider.is_some().then(|| self.counts.clone());
        async move {
            let Some(counts) = counts else { return };
            let mut every = tokio::time::interval(COUNT_EVERY);
            let mut told = [0; 2];
            loop {
                every.tick().await;
                for ((reason, dropped), told) in counts.dropped().into_iter().zip(&mut told) {
                    metrics.spans_dropped(reason, dropped - *told);
                    *told = dropped;
                }
            }
        }
    }

    /// From now on these metrics are sent to the collector, if one is named. Once per process.
    pub fn push(&mut self, metrics: Metrics) {
        self.pushing = self.pusher.take().map(|pusher| pusher.start(metrics));
    }

    /// Sends the last traces and metrics; takes at most about five seconds.
    pub async fn shutdown(self) {
        let metrics = async {
            if let Some(pushing) = self.pushing {
                pushing.stop().await;
            }
        };
        tokio::join!(metrics, shut_down(self.provider));
    }
}

async fn shut_down(provider: Option<SdkTracerProvider>) {
    if let Some(provider) = provider {
        // The call blocks until the exporter, which needs this runtime, is done.
        let flushed =
            tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(EXPORT_TIMEOUT));
        match flushed.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "the last traces may be lost"),
            Err(error) => tracing::warn!(%error, "the last traces may be lost"),
        }
    }
}

/// What tells this process from others of its role, where all have the same number, such as in containers.
static INSTANCE: LazyLock<String> = LazyLock::new(|| uuid::Uuid::now_v7().to_string());

/// Who sends: the same for traces and metrics.
fn resource(role: &str) -> Resource {
    Resource::builder()
        .with_service_name(format!("fairlane-{role}"))
        .with_attributes([
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("service.instance.id", INSTANCE.as_str()),
            KeyValue::new("process.pid", i64::from(std::process::id())),
        ])
        .build()
}

/// Sets up logs and traces for this process. `role` names it: service `fairlane-<role>`.
///
/// Must be called inside a tokio runtime if a collector is named, and only once per process.
///
/// # Errors
/// If the log filter or the collector's address is wrong, or telemetry is set up already.
pub fn init(
    role: &str,
    settings: &config::Telemetry,
    terminal: Terminal,
) -> Result<Telemetry, TelemetryError> {
    let (subscriber, telemetry, traces) = build(role, settings, terminal, std::io::stderr)?;
    subscriber.try_init().map_err(TelemetryError::Twice)?;
    if let Some(traces) = traces {
        spans::set_up(traces);
    }
    Ok(telemetry)
}

fn build<W>(
    role: &str,
    settings: &config::Telemetry,
    terminal: Terminal,
    writer: W,
) -> Result<
    (
        impl Subscriber + Send + Sync + use<W>,
        Telemetry,
        Option<Traces>,
    ),
    TelemetryError,
>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let filter = EnvFilter::builder()
        .parse(&settings.log)
        .map_err(|source| TelemetryError::Filter {
            filter: settings.log.clone(),
            source,
        })?;
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(writer)
        .with_ansi(terminal.is_colored());
    let lines = if terminal.wants_json(settings.log_format) {
        lines
            .json()
            .flatten_event(true)
            .with_span_list(false)
            .boxed()
    } else {
        lines.boxed()
    };
    let mut layers = vec![lines.with_filter(filter).boxed()];

    let counts = Arc::new(Counts::default());
    let built = match &settings.otlp_endpoint {
        Some(endpoint) => Some(tracer_provider(role, settings, endpoint, &counts)?),
        None => None,
    };
    let (provider, keeper) = built.unzip();
    let traces = provider.as_ref().zip(keeper).map(|(provider, keeper)| {
        let layer = tracing_opentelemetry::layer()
            .with_tracer(provider.tracer(SCOPE))
            .with_location(false)
            .with_threads(false)
            .with_target(false)
            .with_level(false)
            .with_tracked_inactivity(false)
            // Nobody asks for OpenTelemetry's own current span, and it is entered at every poll.
            .with_context_activation(false);
        layers.push(layer.with_filter(traced()).boxed());
        Traces {
            tracer: provider.tracer(SCOPE),
            keeper,
            content_chars_max: (settings.content == "yes")
                .then(|| usize::try_from(settings.content_chars_max).unwrap_or(usize::MAX)),
        }
    });
    let telemetry = Telemetry {
        provider,
        counts,
        pusher: Pusher::of(role, settings)?,
        pushing: None,
    };
    Ok((Registry::default().with(layers), telemetry, traces))
}

fn traced() -> Targets {
    let all = Targets::new().with_default(LevelFilter::INFO);
    UNTRACED.iter().fold(all, |targets, name| {
        targets.with_target(*name, LevelFilter::OFF)
    })
}

fn tracer_provider(
    role: &str,
    settings: &config::Telemetry,
    endpoint: &str,
    counts: &Arc<Counts>,
) -> Result<(SdkTracerProvider, Keeper), TelemetryError> {
    install_crypto();
    let rules = Rules::of(settings);
    let batches = export::processor(settings, endpoint, counts.clone())?;
    let (sieved, keeper) = keep::sieve(batches, rules, counts.clone());
    let provider = SdkTracerProvider::builder()
        .with_sampler(Chooser::of(settings, rules))
        .with_span_processor(sieved)
        .with_resource(resource(role))
        .build();
    Ok((provider, keeper))
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Mutex;

    use axum::Router;
    use axum::body::Bytes;
    use axum::routing::post;
    use tokio::sync::mpsc;
    use tracing::Instrument;
    use tracing::instrument::WithSubscriber;

    use super::*;
    use crate::trace::TraceContext;

    /// Keeps what is logged.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Lines {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl MakeWriter<'_> for Lines {
        type Writer = Self;

        fn make_writer(&self) -> Self {
            self.clone()
        }
    }

    const PIPE: Terminal = Terminal {
        is_terminal: false,
        no_color: false,
    };
    const TERMINAL: Terminal = Terminal {
        is_terminal: true,
        no_color: false,
    };

    fn logged(log: &str, log_format: LogFormat, terminal: Terminal) -> String {
        let settings = config::Telemetry {
            log: log.to_owned(),
            log_format,
            ..config::Telemetry::default()
        };
        let lines = Lines::default();
        let (subscriber, _telemetry, _) =
            build("worker", &settings, terminal, lines.clone()).unwrap();
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(tenant = "acme", "job done");
            tracing::debug!("detail");
        });
        lines.text()
    }

    #[test]
    fn auto_is_json_in_a_pipe_and_coloured_text_on_a_terminal() {
        let json: serde_json::Value =
            serde_json::from_str(logged("info", LogFormat::Auto, PIPE).trim()).unwrap();
        assert_eq!(json["message"], "job done");
        assert_eq!(json["tenant"], "acme");
        assert_eq!(json["level"], "INFO");

        let text = logged("info", LogFormat::Auto, TERMINAL);
        assert!(
            text.contains("job done") && text.contains('\u{1b}'),
            "{text}"
        );
        let plain = Terminal {
            no_color: true,
            ..TERMINAL
        };
        let text = logged("info", LogFormat::Auto, plain);
        assert!(
            text.contains("tenant=\"acme\"") && !text.contains('\u{1b}'),
            "{text}"
        );
    }

    #[test]
    fn the_filter_decides_what_is_logged() {
        assert!(!logged("info", LogFormat::Text, PIPE).contains("detail"));
        assert!(logged("debug", LogFormat::Text, PIPE).contains("detail"));
        assert_eq!(logged("warn", LogFormat::Text, PIPE), "");
    }

    #[test]
    fn a_wrong_filter_is_refused_by_name() {
        let settings = config::Telemetry {
            log: "fairlane=loud".to_owned(),
            ..config::Telemetry::default()
        };
        let error = init("worker", &settings, PIPE).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("telemetry.log is \"fairlane=loud\"")
        );
    }

    /// A collector that hands over the body of each batch.
    async fn collector() -> (String, mpsc::Receiver<Bytes>) {
        let (bodies, received) = mpsc::channel(16);
        let app = Router::new().route(
            "/v1/traces",
            post(move |body: Bytes| async move {
                bodies.send(body).await.expect("the test is listening");
            }),
        );
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, app).await });
        (address, received)
    }

    fn contains(body: &[u8], part: &[u8]) -> bool {
        body.windows(part.len()).any(|window| window == part)
    }

    // One thread, because that is where a blocking flush would lock up.
    #[tokio::test]
    async fn spans_reach_the_collector_before_shutdown_returns() {
        let (address, mut received) = collector().await;
        let settings = config::Telemetry {
            log: "error".to_owned(),
            otlp_endpoint: Some(address),
            ..config::Telemetry::default()
        };
        let (subscriber, telemetry, _) =
            build("worker", &settings, PIPE, Lines::default()).unwrap();
        // Kept to the end of the test, like the subscriber of a process: dropping it must not be what sends.
        let dispatch = tracing::Dispatch::new(subscriber);
        let parent = TraceContext::parse(
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            None,
        )
        .unwrap();
        let inside = async {
            let span = tracing::info_span!("attempt", tenant = "acme");
            parent.set_as_parent_of(&span);
            tracing::debug_span!("small-step").in_scope(|| {});
            tracing::info_span!(target: "hyper::client", "connect").in_scope(|| {});
            async { TraceContext::current() }.instrument(span).await
        };
        let sent_on = inside.with_subscriber(dispatch.clone()).await.unwrap();
        assert_eq!(sent_on.trace_id(), parent.trace_id());
        assert_ne!(sent_on, parent);

        telemetry.shutdown().await;
        let body = received.try_recv().expect("sent before shutdown returned");
        assert!(contains(&body, b"fairlane-worker"));
        assert!(contains(&body, b"attempt"));
        assert!(contains(
            &body,
            &0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736_u128.to_be_bytes()
        ));
        assert!(!contains(&body, b"small-step"));
        assert!(!contains(&body, b"hyper"));
        drop(dispatch);
    }

    #[tokio::test]
    async fn a_missing_collector_does_not_hold_up_the_end() {
        let settings = config::Telemetry {
            log: "error".to_owned(),
            // Nothing listens on the discard port.
            otlp_endpoint: Some("http://127.0.0.1:9".to_owned()),
            ..config::Telemetry::default()
        };
        let (subscriber, telemetry, _) =
            build("worker", &settings, PIPE, Lines::default()).unwrap();
        tracing::subscriber::with_default(subscriber, || {
            tracing::info_span!("lost").in_scope(|| ());
        });
        tokio::time::timeout(EXPORT_TIMEOUT * 3, telemetry.shutdown())
            .await
            .expect("shutdown ends by itself");
    }
}
