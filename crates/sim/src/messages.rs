//! `POST /v1/messages` and `POST /v1/messages/count_tokens`: the path of one call through the simulator.
//!
//! Order matters and follows the real API: key, version, body, shape, model, the model's rules, size, then the
//! limits, and only then whatever was ordered for the call.

use std::{sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::{ConnectInfo, Request as HttpRequest, State},
    http::{HeaderMap, header},
};
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use crate::{
    answer,
    bucket::Wait,
    cache::CacheUse,
    call::{Call, api_key},
    conn::Conn,
    directive::Trouble,
    failure::{Failure, Order},
    fault::Strike,
    limits::{LimitKind, Need, Refusal, whole_seconds},
    log::{Ending, Endpoint},
    matrix::{self, ApiVersion},
    message::Message,
    pace::Pace,
    playback::{self, Finale, Playback},
    request::{self, Request},
    respond::{self, Reply, break_off},
    state::{Shared, locked},
    validate::{self, Purpose},
};

/// How often a plain call charges what it has generated.
const CHARGE_EVERY: Duration = Duration::from_millis(100);
/// How much of a body over the limit is read and thrown away, as a multiple of the limit, so that the client gets
/// to read its 413.
const DRAIN_FACTOR: usize = 4;

pub(crate) async fn create(
    State(shared): State<Arc<Shared>>,
    ConnectInfo(conn): ConnectInfo<Conn>,
    http: HttpRequest,
) -> Reply {
    let started = Instant::now();
    let (parts, body) = http.into_parts();
    let mut call = Call::begin(shared, Endpoint::Messages, &parts);
    let request = match receive(&mut call, &parts.headers, body, Purpose::Message).await {
        Ok(request) => request,
        Err(early) => return early.reply(call),
    };
    let (input, need) = split_input(&call.shared, &request);
    if let Err(refusal) = call.admit(request.model, need) {
        let failure = throttled(&call.shared, &request, &refusal);
        return respond::failed(call, &failure);
    }
    let job = Job {
        conn,
        request,
        input,
        started,
    };
    match job.trouble(&call.shared) {
        None => job.answer(call, None).await,
        Some(strike) => job.suffer(call, strike).await,
    }
}

pub(crate) async fn count_tokens(State(shared): State<Arc<Shared>>, http: HttpRequest) -> Reply {
    let (parts, body) = http.into_parts();
    let mut call = Call::begin(shared, Endpoint::CountTokens, &parts);
    let request = match receive(&mut call, &parts.headers, body, Purpose::Count).await {
        Ok(request) => request,
        Err(early) => return early.reply(call),
    };
    let now = call.shared.now();
    let refused = {
        let mut bucket = locked(&call.shared.counting);
        match bucket.wait_for(now, 1) {
            Wait::Fits => {
                bucket.take(now, 1);
                None
            }
            Wait::Seconds(seconds) | Wait::Never(seconds) => Some(Refusal {
                limit: LimitKind::Requests,
                value: bucket.limit(),
                retry_after_s: whole_seconds(seconds),
            }),
        }
    };
    if let Some(refusal) = refused {
        let mut failure = throttled(&call.shared, &request, &refusal);
        // The headers would show the limits of messages, which are not what refused this call.
        failure.strip_headers = true;
        return respond::failed(call, &failure);
    }
    let body = json!({ "input_tokens": request.input_tokens }).to_string();
    let reply = respond::json(&call, body);
    call.answering(200);
    call.completed(None);
    reply
}

/// Why a call ends before it reaches the limits.
pub(crate) enum Early {
    Failed(Failure),
    TooLarge,
    /// The client stopped sending; nobody will read an answer.
    BodyBroken,
}

impl Early {
    fn reply(self, mut call: Call) -> Reply {
        match self {
            Self::Failed(failure) => respond::failed(call, &failure),
            Self::TooLarge => respond::too_large(call),
            Self::BodyBroken => {
                call.abandoned();
                respond::failed(call, &Failure::invalid("the request body broke off"))
            }
        }
    }
}

impl From<Failure> for Early {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// Checks key and version, which every endpoint needs.
pub(crate) fn check_headers(shared: &Shared, headers: &HeaderMap) -> Result<ApiVersion, Failure> {
    let Some(key) = api_key(headers) else {
        return Err(Failure::new(401, "x-api-key header is required"));
    };
    let accepted = &shared.config.api_keys;
    if !accepted.is_empty() && !accepted.iter().any(|one| one == key) {
        return Err(Failure::new(401, "invalid x-api-key"));
    }
    let Some(version) = headers.get("anthropic-version") else {
        return Err(Failure::invalid("anthropic-version: header is required"));
    };
    let name = version.to_str().unwrap_or_default();
    ApiVersion::parse(name).ok_or_else(|| {
        Failure::invalid(format!(
            "anthropic-version: {name:?} is not a valid version; use 2023-06-01 or 2026-10-21"
        ))
    })
}

async fn receive(
    call: &mut Call,
    headers: &HeaderMap,
    body: Body,
    purpose: Purpose,
) -> Result<Request, Early> {
    let checked = check_headers(&call.shared, headers);
    // The body is read even when the headers are wrong, so that the client can read the answer.
    let bytes = read_body(&call.shared, headers, body).await?;
    let version = checked?;
    if headers.contains_key(header::CONTENT_ENCODING) {
        return Err(
            Failure::invalid("content-encoding: compressed bodies are not supported").into(),
        );
    }
    let body: Map<String, Value> = serde_json::from_slice(&bytes).map_err(|error| {
        Failure::invalid(format!("The request body is not valid JSON: {error}"))
    })?;
    let betas = headers
        .get("anthropic-beta")
        .and_then(|value| value.to_str().ok());
    validate::shape(&body, purpose, betas.unwrap_or_default())?;
    let name = body["model"].as_str().unwrap_or_default();
    let model = matrix::callable_model(name, &call.shared.config.retired_models)
        .inspect_err(|_| call.asks_for_unknown_model(name))?;
    call.asks_for_model(model);
    matrix::check(&body, model, version)?;
    let request = request::understand(&body, model)?;
    call.understood(&request);
    matrix::context(request.input_tokens, model)?;
    Ok(request)
}

async fn read_body(shared: &Shared, headers: &HeaderMap, body: Body) -> Result<Bytes, Early> {
    let limit = shared.config.body_limit_bytes;
    let announced = headers
        .get(header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse().ok())
        .unwrap_or(0);
    let mut stream = body.into_data_stream();
    let mut kept = BytesMut::with_capacity(if announced <= limit { announced } else { 0 });
    let mut seen = 0_usize;
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.map_err(|_| Early::BodyBroken)?;
        seen = seen.saturating_add(chunk.len());
        if seen > limit.saturating_mul(DRAIN_FACTOR) {
            break;
        }
        if seen <= limit {
            kept.extend_from_slice(&chunk);
        }
    }
    if seen > limit {
        return Err(Early::TooLarge);
    }
    Ok(kept.freeze())
}

/// How the input splits between cache and limit, and what the limiter charges up front.
fn split_input(shared: &Shared, request: &Request) -> (CacheUse, Need) {
    let caches = request
        .blocks
        .iter()
        .any(|block| block.breakpoint.is_some());
    let input = if caches {
        let least = request.model.cache_min;
        let mut cache = locked(&shared.cache);
        cache.look_up(shared.now(), &request.blocks, least, request.input_tokens)
    } else {
        CacheUse {
            uncached: request.input_tokens,
            ..CacheUse::default()
        }
    };
    let need = Need {
        input: request.input_estimate.saturating_sub(input.read),
        output_max: request.max_tokens,
    };
    (input, need)
}

fn throttled(shared: &Shared, request: &Request, refusal: &Refusal) -> Failure {
    let order = Order {
        message: Some(refusal.message(&shared.config.organization, request.model.id)),
        retry_after: Some(refusal.retry_after_s.to_string()),
        ..Order::default()
    };
    Failure::ordered(429, &order)
}

/// An admitted call.
struct Job {
    conn: Conn,
    request: Request,
    input: CacheUse,
    started: Instant,
}

impl Job {
    /// What happens to this call instead of an answer: a fault first, else what its prompt says.
    fn trouble(&self, shared: &Shared) -> Option<Strike> {
        if let Some(strike) = shared.strike(self.request.model) {
            return Some(strike);
        }
        let directives = &self.request.directives;
        let once = directives.once.filter(|_| {
            let times = directives.times.unwrap_or(1);
            locked(&shared.once).take(self.request.prompt_hash, times)
        });
        Some(Strike {
            trouble: once.or(directives.always)?,
            order: directives.order.clone(),
            ms: directives.ms,
        })
    }

    async fn suffer(self, mut call: Call, strike: Strike) -> Reply {
        let stream = self.request.stream;
        match strike.trouble {
            Trouble::Status(status) => self.fail(call, status, &strike).await,
            Trouble::ErrorEvent if !stream => self.fail(call, 529, &strike).await,
            Trouble::Reset => {
                call.withdraw();
                call.end(Ending::Reset);
                break_off(&self.conn).await
            }
            Trouble::Hang => self.hang(call).await,
            Trouble::HangPings | Trouble::HangSilent if !stream => self.hang(call).await,
            Trouble::Cut => self.answer(call, Some(Trouble::Cut)).await,
            Trouble::ErrorEvent => self.answer(call, Some(Trouble::ErrorEvent)).await,
            Trouble::HangPings => self.answer(call, Some(Trouble::HangPings)).await,
            Trouble::HangSilent => self.answer(call, Some(Trouble::HangSilent)).await,
            Trouble::LostAnswer => self.answer(call, Some(Trouble::LostAnswer)).await,
        }
    }

    /// An ordered status. What the service refuses at the door costs nothing; what fails inside has used a request.
    async fn fail(self, mut call: Call, status: u16, strike: &Strike) -> Reply {
        if let Some(ms) = strike.ms {
            let pace = Pace::of(&call.shared.config, 0, 0, Some(ms), 0);
            self.wait_until(pace.due(0)).await;
        }
        if status < 500 {
            call.withdraw();
        }
        respond::failed(call, &Failure::ordered(status, &strike.order))
    }

    /// Never answers. Ends with the client, or when the simulator is told to stop.
    async fn hang(self, call: Call) -> Reply {
        call.shared.stop.cancelled().await;
        break_off(&self.conn).await
    }

    async fn answer(self, mut call: Call, trouble: Option<Trouble>) -> Reply {
        let request = &self.request;
        let answer = answer::plan(request);
        let (output, stop) = (answer.output_tokens, answer.stop);
        let config = &call.shared.config;
        let pace = Pace::of(
            config,
            self.input.total(),
            output,
            request.directives.ms,
            call.number(),
        );
        self.wait_until(pace.first_byte).await;
        call.reached_model(self.input.clone(), &answer);
        self.warm_cache(&call.shared);
        let message = Message {
            id: call.message_id(),
            model: request.model.id,
            answer,
            input: self.input.clone(),
            fast: request.fast,
        };
        if request.stream && trouble != Some(Trouble::LostAnswer) {
            let finale = match trouble {
                Some(Trouble::Cut) => Finale::Cut,
                Some(Trouble::ErrorEvent) => Finale::ErrorEvent,
                Some(Trouble::HangPings) => Finale::Pings,
                Some(Trouble::HangSilent) => Finale::Silence,
                _ => Finale::Complete(stop),
            };
            call.answering(200);
            let head = respond::events(&call);
            let playback = Playback::new(call, message.frames(), pace, finale, self.started);
            return Reply::from_parts(head, Body::from_stream(playback.into_stream()));
        }
        let cut = trouble == Some(Trouble::Cut);
        let until = if cut { output / 2 } else { output };
        self.generate(&mut call, pace, until).await;
        match trouble {
            Some(Trouble::LostAnswer) => {
                call.end(Ending::LostAnswer);
                break_off(&self.conn).await
            }
            Some(Trouble::Cut) => {
                call.answering(200);
                let head = respond::json(&call, Body::empty()).into_parts().0;
                Reply::from_parts(
                    head,
                    Body::from_stream(playback::half(call, &message.json())),
                )
            }
            _ => {
                let reply = respond::json(&call, message.json());
                call.answering(200);
                call.completed(Some(stop));
                reply
            }
        }
    }

    /// A prefix can be read by others once the first response with it has begun.
    fn warm_cache(&self, shared: &Shared) {
        if self.input.write_5m + self.input.write_1h > 0 {
            let least = self.request.model.cache_min;
            locked(&shared.cache).store(shared.now(), &self.request.blocks, least);
        }
    }

    /// Generates `total` tokens without sending any, charging them as they come.
    async fn generate(&self, call: &mut Call, pace: Pace, total: u64) {
        let end = pace.due(total);
        loop {
            let elapsed = self.started.elapsed();
            if pace.is_instant() || elapsed >= end {
                return call.generated(total);
            }
            call.generated(pace.generated(elapsed, total));
            self.wait_until(end.min(elapsed.saturating_add(CHARGE_EVERY)))
                .await;
        }
    }

    /// Waits until that long after the start of the call. If the connection ends first, the server drops the call.
    async fn wait_until(&self, after: Duration) {
        if let Some(left) = after.checked_sub(self.started.elapsed())
            && !left.is_zero()
        {
            tokio::time::sleep(left).await;
        }
    }
}
