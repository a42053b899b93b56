//! One call from its first byte to its line in the log.
//!
//! A [`Call`] is a guard: however a call ends (answered, broken, client gone, simulator stopped), it leaves exactly
//! one record, corrects what it was charged, and is counted out. Dropping it unfinished means the client went away.

use std::sync::Arc;

use axum::http::{HeaderMap, HeaderValue, Method, header::HeaderName, request::Parts};

use crate::{
    answer::{Answer, RefusalCategory, StopReason},
    cache::CacheUse,
    limits::{Need, Refusal, Snapshot},
    log::{CallRecord, Ending, Endpoint, KeySuffix},
    models::{Model, PoolId},
    request::Request,
    state::Shared,
};

/// Longest job, tenant and model name kept in the log.
const NAME_MAX: usize = 256;

#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) shared: Arc<Shared>,
    record: CallRecord,
    admitted: Option<(PoolId, Need)>,
    refusal: Option<RefusalCategory>,
    ended: bool,
}

impl Call {
    pub(crate) fn begin(shared: Arc<Shared>, endpoint: Endpoint, parts: &Parts) -> Self {
        let now = shared.now();
        let header = |name: &str| {
            parts
                .headers
                .get(name)
                .and_then(|value| value.to_str().ok())
        };
        let record = CallRecord {
            seq: 0,
            at: now,
            end: now,
            request_id: shared.next_request_id(),
            key: KeySuffix::of(api_key(&parts.headers).unwrap_or_default()),
            method: method_name(&parts.method),
            endpoint,
            model: None,
            unknown_model: None,
            job: header("x-fairlane-job").map(bounded),
            tenant: header("x-fairlane-tenant").map(bounded),
            prompt_hash: None,
            stream: false,
            status: None,
            ending: Ending::ClientGone,
            stop_reason: None,
            input: CacheUse::default(),
            output_tokens: 0,
            billed: false,
            concurrency: shared.enter(),
        };
        Self {
            shared,
            record,
            admitted: None,
            refusal: None,
            ended: false,
        }
    }

    pub(crate) fn request_id(&self) -> String {
        self.record.request_id.to_string()
    }

    pub(crate) fn message_id(&self) -> String {
        let id = self.record.request_id;
        format!("msg_{:012x}{:012x}", id.boot >> 16, id.number)
    }

    pub(crate) fn number(&self) -> u64 {
        self.record.request_id.number
    }

    pub(crate) fn asks_for_unknown_model(&mut self, name: &str) {
        self.record.unknown_model = Some(bounded(name));
    }

    pub(crate) fn asks_for_model(&mut self, model: &'static Model) {
        self.record.model = Some(model);
    }

    pub(crate) fn understood(&mut self, request: &Request) {
        self.record.prompt_hash = Some(request.prompt_hash);
        self.record.stream = request.stream;
        if self.record.job.is_none() {
            self.record.job = request.user.as_deref().map(bounded);
        }
    }

    /// Charges the pool, or says why not.
    pub(crate) fn admit(&mut self, model: &Model, need: Need) -> Result<(), Refusal> {
        let now = self.shared.now();
        self.shared.pool(model.pool).admit(now, need)?;
        self.admitted = Some((model.pool, need));
        Ok(())
    }

    /// Takes the charge back: the call is refused for a reason that costs nothing.
    pub(crate) fn withdraw(&mut self) {
        if let Some((pool, need)) = self.admitted.take() {
            let now = self.shared.now();
            self.shared.pool(pool).withdraw(now, need);
        }
    }

    /// The model starts to work on this input.
    pub(crate) fn reached_model(&mut self, input: CacheUse, answer: &Answer) {
        self.record.input = input;
        self.refusal = answer
            .refusal
            .filter(|_| answer.stop == StopReason::Refusal);
    }

    /// `total` output tokens exist by now.
    pub(crate) fn generated(&mut self, total: u64) {
        let more = total.saturating_sub(self.record.output_tokens);
        if more == 0 {
            return;
        }
        self.record.output_tokens = total;
        if let Some((pool, _)) = self.admitted {
            let now = self.shared.now();
            self.shared.pool(pool).generated(now, more);
        }
    }

    /// The response's head has been sent with this status.
    pub(crate) fn answering(&mut self, status: u16) {
        self.record.status = Some(status);
    }

    pub(crate) fn completed(&mut self, stop: Option<StopReason>) {
        self.record.stop_reason = stop;
        self.end(Ending::Completed);
    }

    /// Books the call; later endings change nothing.
    pub(crate) fn end(&mut self, ending: Ending) {
        if self.ended {
            return;
        }
        self.ended = true;
        let now = self.shared.now();
        self.record.end = now;
        self.record.ending = ending;
        self.record.billed = is_billed(&self.record, self.refusal);
        if let Some((pool, need)) = self.admitted.take() {
            let (input, output) = (self.record.input.counted(), self.record.output_tokens);
            self.shared.pool(pool).finish(now, need, input, output);
        }
        self.shared.leave(self.record.clone());
    }

    /// The client went away, or the simulator is being stopped.
    pub(crate) fn abandoned(&mut self) {
        let ending = if self.shared.stop.is_cancelled() {
            Ending::Stopped
        } else {
            Ending::ClientGone
        };
        self.end(ending);
    }

    /// The limits of the model's pool as they are now.
    pub(crate) fn limits(&self) -> Option<Snapshot> {
        let pool = self.record.pool()?;
        let now = self.shared.now();
        Some(self.shared.pool(pool).snapshot(now))
    }

    /// The headers that every response has.
    pub(crate) fn headers(&self, with_limits: bool) -> HeaderMap {
        let mut headers = HeaderMap::with_capacity(20);
        let id = HeaderValue::from_str(&self.request_id());
        headers.insert("request-id", id.expect("a request id is ASCII"));
        let organization = HeaderValue::from_str(&self.shared.config.organization);
        headers.insert(
            "anthropic-organization-id",
            organization.expect("checked when the configuration was loaded"),
        );
        if let Some(limits) = self.limits().filter(|_| with_limits) {
            limit_headers(&limits, &mut headers);
        }
        headers
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.abandoned();
    }
}

/// What the real API bills: whole answers, and broken ones as far as they were generated. A refusal before any
/// output depends on its category.
fn is_billed(record: &CallRecord, refusal: Option<RefusalCategory>) -> bool {
    if record.endpoint != Endpoint::Messages {
        return false;
    }
    match record.ending {
        Ending::Completed | Ending::LostAnswer => {
            record.output_tokens > 0
                || refusal.is_none_or(RefusalCategory::is_billed_without_output)
        }
        Ending::Cut | Ending::ErrorEvent | Ending::ClientGone | Ending::Stopped => {
            record.output_tokens > 0
        }
        Ending::Error | Ending::Reset => false,
    }
}

/// The key from `x-api-key`, else from a bearer token.
pub(crate) fn api_key(headers: &HeaderMap) -> Option<&str> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    text("x-api-key")
        .or_else(|| text("authorization").and_then(|value| value.strip_prefix("Bearer ")))
        .map(str::trim)
        .filter(|key| !key.is_empty())
}

fn method_name(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::DELETE => "DELETE",
        Method::HEAD => "HEAD",
        Method::OPTIONS => "OPTIONS",
        Method::PATCH => "PATCH",
        _ => "OTHER",
    }
}

fn bounded(name: &str) -> Box<str> {
    name[..name.floor_char_boundary(NAME_MAX)].into()
}

macro_rules! limit_names {
    ($group:literal) => {
        [
            HeaderName::from_static(concat!("anthropic-ratelimit-", $group, "-limit")),
            HeaderName::from_static(concat!("anthropic-ratelimit-", $group, "-remaining")),
            HeaderName::from_static(concat!("anthropic-ratelimit-", $group, "-reset")),
        ]
    };
}

fn limit_headers(limits: &Snapshot, headers: &mut HeaderMap) {
    let groups = [
        (limit_names!("requests"), &limits.requests),
        (limit_names!("input-tokens"), &limits.input),
        (limit_names!("output-tokens"), &limits.output),
        (limit_names!("tokens"), &limits.tokens),
    ];
    for ([limit, remaining, reset], view) in groups {
        headers.insert(limit, HeaderValue::from(view.limit));
        headers.insert(remaining, HeaderValue::from(view.remaining));
        let at = HeaderValue::from_str(&view.reset_text());
        headers.insert(reset, at.expect("a timestamp is ASCII"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::tests::record;

    fn billed(ending: Ending, output_tokens: u64, refusal: Option<RefusalCategory>) -> bool {
        let record = CallRecord {
            ending,
            output_tokens,
            ..record()
        };
        is_billed(&record, refusal)
    }

    #[test]
    fn whole_answers_are_billed_and_broken_ones_once_generation_began() {
        assert!(billed(Ending::Completed, 0, None));
        assert!(billed(Ending::LostAnswer, 5, None));
        for ending in [
            Ending::Cut,
            Ending::ClientGone,
            Ending::ErrorEvent,
            Ending::Stopped,
        ] {
            assert!(billed(ending, 1, None), "{ending:?}");
            assert!(!billed(ending, 0, None), "{ending:?}");
        }
        assert!(!billed(Ending::Error, 0, None));
        assert!(!billed(Ending::Reset, 0, None));
    }

    #[test]
    fn refusals_without_output_are_billed_by_category() {
        use RefusalCategory::{Bio, Cyber, GeneralHarms};
        assert!(billed(Ending::Completed, 0, Some(Bio)));
        assert!(!billed(Ending::Completed, 0, Some(Cyber)));
        assert!(!billed(Ending::Completed, 0, Some(GeneralHarms)));
        assert!(billed(Ending::Completed, 3, Some(GeneralHarms)));
    }

    #[test]
    fn keys_come_from_either_header_and_blank_ones_do_not_count() {
        let headers = |name: &'static str, value: &'static str| {
            HeaderMap::from_iter([(
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )])
        };
        assert_eq!(api_key(&headers("x-api-key", "sk-1")), Some("sk-1"));
        assert_eq!(
            api_key(&headers("authorization", "Bearer sk-2")),
            Some("sk-2")
        );
        assert_eq!(api_key(&headers("x-api-key", "  ")), None);
        assert_eq!(api_key(&headers("authorization", "Basic x")), None);
    }
}
