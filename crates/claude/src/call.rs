//! One call: send, read, assemble, report.

use std::pin::Pin;
use std::time::Duration;

use fairlane_core::failure::{Cancelled, Cut, Ending, Place, StopReason, Timeout};
use fairlane_core::price::{Terms, Usage};
use reqwest::header::{CONTENT_TYPE, HeaderMap};
use reqwest::{Method, Response};
use serde_json::Value;
use tokio::time::{Instant, timeout, timeout_at};

use crate::assemble::{Assembler, Finished, Step, finished};
use crate::client::{Client, chain, now_unix_ms, request_id};
use crate::error_body::{ErrorBody, Waits};
use crate::key::ApiKey;
use crate::limits::Limits;
use crate::report::{CallReport, Progress, Stage, Timings, UsageBasis};
use crate::request::CallRequest;
use crate::sse::{Event, Parser};
use crate::usage;

/// More of an error's body says nothing new.
const ERROR_BYTES_MAX: usize = 64 << 10;
/// How long the end of a body may come after its last event, for the connection to be used again.
const TAIL_TIMEOUT: Duration = Duration::from_millis(100);

impl Client {
    /// Makes one call and tells how it ended; it is never repeated from here.
    ///
    /// `on_progress` is called often, with every part that arrives, and should be quick. When `cancel`
    /// completes, the call is given up and its connection closed. Dropping the future does the same,
    /// but leaves no report.
    pub async fn call(
        &self,
        key: &ApiKey,
        request: CallRequest,
        on_progress: impl FnMut(Progress<'_>),
        cancel: impl Future<Output = ()>,
    ) -> CallReport {
        let mut call = Call {
            client: self,
            started: Instant::now(),
            on_progress,
            cancel: std::pin::pin!(cancel),
            report: CallReport {
                ending: Ending::Cancelled(Cancelled::BeforeSending),
                message: None,
                usage: Usage::default(),
                usage_basis: UsageBasis::None,
                terms: Terms::default(),
                model: None,
                request_id: None,
                status: None,
                limits: Limits::default(),
                timings: Timings::default(),
                error_message: None,
            },
        };
        call.report.ending = call.run(key, request).await;
        call.report.timings.total_ms = call.elapsed_ms();
        call.report
    }
}

struct Call<'a, P, C> {
    client: &'a Client,
    started: Instant,
    on_progress: P,
    cancel: Pin<&'a mut C>,
    report: CallReport,
}

/// What came while waiting for the upstream.
enum Came<T> {
    It(T),
    Timeout,
    Cancel,
}

impl<P: FnMut(Progress<'_>), C: Future<Output = ()>> Call<'_, P, C> {
    async fn run(&mut self, key: &ApiKey, request: CallRequest) -> Ending {
        // Asked first, so that a call cancelled before it began is known not to have been sent.
        if is_ready(self.cancel.as_mut()).await {
            return Ending::Cancelled(Cancelled::BeforeSending);
        }
        let client = self.client;
        let request = client.request(key, Method::POST, "/v1/messages", request);
        let deadline = self.started + client.options.first_byte_timeout;
        let response = match self.wait(deadline, client.execute(request)).await {
            Came::It(Ok(response)) => response,
            Came::It(Err((ending, message))) => {
                self.report.error_message = Some(message);
                return ending;
            }
            Came::Timeout => return Ending::Timeout(Timeout::FirstByte),
            Came::Cancel => return Ending::Cancelled(Cancelled::AfterSending),
        };
        self.report.timings.headers_ms = Some(self.elapsed_ms());
        let headers = response.headers();
        self.report.status = Some(response.status().as_u16());
        self.report.limits = Limits::parse(headers);
        self.report.request_id = request_id(headers);
        let waits = Waits::parse(headers, now_unix_ms());
        if !response.status().is_success() {
            return self.read_error(response, waits).await;
        }
        match Media::of(headers) {
            Media::EventStream => {
                self.tell(Stage::Accepted, 0, None);
                self.read_stream(response, waits).await
            }
            Media::Json => {
                self.tell(Stage::Accepted, 0, None);
                self.read_whole(response, waits).await
            }
            Media::Other => {
                let body = self.read_some(response).await;
                self.report.error_message = Some(ErrorBody::parse(&body).message);
                Ending::Undecodable { progressed: false }
            }
        }
    }

    async fn read_error(&mut self, response: Response, waits: Waits) -> Ending {
        let status = response.status().as_u16();
        let body = self.read_some(response).await;
        self.error(ErrorBody::parse(&body), status, Place::BeforeStream, waits)
    }

    fn error(&mut self, body: ErrorBody, status: u16, place: Place, waits: Waits) -> Ending {
        self.report.error_message = Some(body.message.clone());
        if self.report.request_id.is_none() {
            self.report.request_id = body.request_id.clone();
        }
        Ending::Error(body.answer(status, place, waits))
    }

    /// The beginning of a body whose end does not matter.
    async fn read_some(&mut self, mut response: Response) -> Vec<u8> {
        let deadline = Instant::now() + self.client.options.silence_timeout;
        let mut body = Vec::new();
        while body.len() < ERROR_BYTES_MAX {
            match self.wait(deadline, response.chunk()).await {
                Came::It(Ok(Some(chunk))) => body.extend_from_slice(&chunk),
                Came::It(Ok(None) | Err(_)) | Came::Timeout | Came::Cancel => break,
            }
        }
        body.truncate(ERROR_BYTES_MAX);
        body
    }

    /// An answer without streaming: the upstream, or a gateway before it, sent it in one piece.
    async fn read_whole(&mut self, mut response: Response, waits: Waits) -> Ending {
        let status = response.status().as_u16();
        let deadline = Instant::now() + self.client.options.progress_timeout;
        let mut body = Vec::new();
        loop {
            match self.wait(deadline, response.chunk()).await {
                Came::It(Ok(Some(chunk))) => body.extend_from_slice(&chunk),
                Came::It(Ok(None)) => break,
                Came::It(Err(error)) => {
                    self.report.error_message = Some(chain(&error.without_url()));
                    return Ending::Cut(Cut::AfterHeaders);
                }
                Came::Timeout => return Ending::Timeout(Timeout::Progress { progressed: false }),
                Came::Cancel => return Ending::Cancelled(Cancelled::AfterSending),
            }
            if body.len() > self.client.options.message_bytes_max {
                let text = format!(
                    "answer of more than {} bytes",
                    self.client.options.message_bytes_max
                );
                return self.undecodable(text, false);
            }
        }
        let Ok(message @ Value::Object(_)) = serde_json::from_slice::<Value>(&body) else {
            return self.undecodable(ErrorBody::parse(&body).message, false);
        };
        if message.get("type").and_then(Value::as_str) == Some("error") {
            let place = Place::InStream { progressed: false };
            return self.error(ErrorBody::parse(&body), status, place, waits);
        }
        if let Some((usage, terms)) = message.get("usage").and_then(usage::read) {
            (self.report.usage, self.report.terms) = (usage, terms);
            self.report.usage_basis = UsageBasis::Estimated;
        }
        self.report.model = message
            .get("model")
            .and_then(Value::as_str)
            .map(str::to_owned);
        match finished(message, false) {
            Ok(finished) => self.finish(finished),
            Err(error) => self.undecodable(error.to_string(), false),
        }
    }

    fn undecodable(&mut self, message: String, progressed: bool) -> Ending {
        self.report.error_message = Some(message);
        Ending::Undecodable { progressed }
    }

    async fn read_stream(&mut self, response: Response, waits: Waits) -> Ending {
        let bytes_max = self.client.options.message_bytes_max;
        let mut assembler = Assembler::new(bytes_max);
        let ending = self.read_events(response, waits, &mut assembler).await;
        if let Some((usage, terms)) = assembler.usage_estimate() {
            (self.report.usage, self.report.terms) = (usage, terms);
            self.report.usage_basis = UsageBasis::Estimated;
        }
        self.report.model = assembler.field("model").map(str::to_owned);
        if let Some(ending) = ending {
            return ending;
        }
        match assembler.finish() {
            Ok(Some(finished)) => self.finish(finished),
            Ok(None) => Ending::Cut(Cut::WithoutMessageStop),
            Err(error) => self.undecodable(error.to_string(), true),
        }
    }

    /// Reads until the message is complete (`None`) or the call has failed.
    async fn read_events(
        &mut self,
        mut response: Response,
        waits: Waits,
        assembler: &mut Assembler,
    ) -> Option<Ending> {
        let client = self.client;
        let status = response.status().as_u16();
        let mut parser = Parser::new(client.options.message_bytes_max);
        let mut events = Vec::new();
        let mut progress_deadline = Instant::now() + client.options.progress_timeout;
        loop {
            let silence_deadline = Instant::now() + client.options.silence_timeout;
            let chunk = match self
                .wait(silence_deadline.min(progress_deadline), response.chunk())
                .await
            {
                Came::It(Ok(Some(chunk))) => chunk,
                Came::It(Ok(None)) if assembler.started() => {
                    return Some(Ending::Cut(Cut::WithoutMessageStop));
                }
                Came::It(Ok(None)) => return Some(Ending::Cut(Cut::AfterHeaders)),
                Came::It(Err(error)) => {
                    self.report.error_message = Some(chain(&error.without_url()));
                    let cut = if assembler.started() {
                        Cut::AfterProgress
                    } else {
                        Cut::AfterHeaders
                    };
                    return Some(Ending::Cut(cut));
                }
                Came::Timeout => {
                    let progressed = assembler.started();
                    return Some(Ending::Timeout(Timeout::Progress { progressed }));
                }
                Came::Cancel => {
                    let started = assembler.started();
                    return Some(Ending::Cancelled(if started {
                        Cancelled::AfterProgress
                    } else {
                        Cancelled::AfterSending
                    }));
                }
            };
            if let Err(error) = parser.feed(&chunk, &mut events) {
                return Some(self.undecodable(error.to_string(), assembler.started()));
            }
            for event in events.drain(..) {
                let stage = match assembler.apply(&event) {
                    Ok(Step::Ping | Step::Skipped) => continue,
                    Ok(Step::Started) => Stage::Started,
                    Ok(Step::Thinking) => Stage::Thinking,
                    Ok(Step::Writing) => Stage::Writing,
                    Ok(Step::Closing) => Stage::Closing,
                    Ok(Step::Stopped) => {
                        self.tell(Stage::Closing, assembler.output_tokens(), Some(&event));
                        read_tail(response).await;
                        return None;
                    }
                    Ok(Step::Failed(body)) => {
                        let place = Place::InStream {
                            progressed: assembler.started(),
                        };
                        return Some(self.error(body, status, place, waits));
                    }
                    Err(error) => {
                        return Some(self.undecodable(error.to_string(), assembler.started()));
                    }
                };
                progress_deadline = Instant::now() + client.options.progress_timeout;
                self.tell(stage, assembler.output_tokens(), Some(&event));
            }
        }
    }

    /// A complete message: a success only if what it brings is whole.
    fn finish(&mut self, finished: Finished) -> Ending {
        let Finished {
            message,
            stop,
            broken_tool_input,
        } = finished;
        self.report.message = Some(message);
        self.report.usage_basis = UsageBasis::Final;
        match stop {
            StopReason::EndTurn | StopReason::ToolUse | StopReason::StopSequence
                if broken_tool_input =>
            {
                self.report.error_message =
                    Some("the input of a tool call is not a JSON object".to_owned());
                Ending::SchemaViolated
            }
            stop => Ending::Message(stop),
        }
    }

    fn tell(&mut self, stage: Stage, output_tokens: u64, event: Option<&Event>) {
        if matches!(stage, Stage::Thinking | Stage::Writing)
            && self.report.timings.first_output_ms.is_none()
        {
            self.report.timings.first_output_ms = Some(self.elapsed_ms());
        }
        (self.on_progress)(Progress {
            stage,
            event,
            output_tokens,
        });
    }

    async fn wait<T>(&mut self, deadline: Instant, future: impl Future<Output = T>) -> Came<T> {
        tokio::select! {
            biased;
            () = self.cancel.as_mut() => Came::Cancel,
            came = timeout_at(deadline, future) => match came {
                Ok(it) => Came::It(it),
                Err(_) => Came::Timeout,
            },
        }
    }

    fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// Whether a future is ready now, asking it once.
async fn is_ready(future: Pin<&mut impl Future<Output = ()>>) -> bool {
    let mut future = future;
    std::future::poll_fn(|context| std::task::Poll::Ready(future.as_mut().poll(context).is_ready()))
        .await
}

/// Reads the end of a body, without which its connection cannot serve another call.
async fn read_tail(mut response: Response) {
    let tail = async { while let Ok(Some(_)) = response.chunk().await {} };
    // When it does not come in time, a new connection will be made; nothing else is lost.
    drop(timeout(TAIL_TIMEOUT, tail).await);
}

/// What sort of body a successful answer brings.
enum Media {
    EventStream,
    Json,
    Other,
}

impl Media {
    fn of(headers: &HeaderMap) -> Self {
        let text = headers
            .get(CONTENT_TYPE)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default();
        let media = text.split(';').next().unwrap_or_default().trim();
        if media.eq_ignore_ascii_case("text/event-stream") {
            Self::EventStream
        } else if media.eq_ignore_ascii_case("application/json") {
            Self::Json
        } else {
            Self::Other
        }
    }
}
