//! Faults ordered from outside: which calls they hit, for how long, how often, and with what.
//!
//! Directives let a prompt misbehave; faults let the upstream misbehave for everybody, so outages, throttling
//! storms and spend caps can be staged while a fleet runs.

use serde::{Deserialize, Deserializer, Serialize};

use crate::{
    clock::Micros,
    directive::Trouble,
    failure::{ErrorType, Order},
    hash,
    models::{Model, PoolId},
};

/// The most faults that may be active at once.
pub const FAULTS_MAX: usize = 256;

/// One fault as it is posted. Exactly one of `status` and `action` is needed.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultSpec {
    /// Only calls in this pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<PoolId>,
    /// Only calls naming this model (id or alias).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Answer with this HTTP status, 400 to 599.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Or do this: cut, `error_event`, hang, `hang_stream`, `hang_silent`, reset, `lost_answer`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
    /// Share of the matching calls that is hit, 0 to 1.
    #[serde(default = "always")]
    pub probability: f64,
    /// Starts this many milliseconds from now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_ms: Option<u64>,
    /// Lasts this many milliseconds from its start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_ms: Option<u64>,
    /// Ends at this unix time in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<u64>,
    /// Ends after this many hits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// Raw `retry-after` header; a number or a string.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "raw_header"
    )]
    pub retry_after: Option<String>,
    /// Send no `retry-after`, even with 429.
    #[serde(default)]
    pub no_retry_after: bool,
    /// `error.details.error_code`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_code: Option<String>,
    /// Another `error.type` than the status has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_type: Option<ErrorType>,
    /// `error.message`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// `x-should-retry` header.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub should_retry: Option<bool>,
    /// Leave out the rate-limit headers, as some gateways do.
    #[serde(default)]
    pub strip_headers: bool,
    /// Milliseconds before the failure is answered, before scaling.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ms: Option<u64>,
}

fn always() -> f64 {
    1.0
}

fn raw_header<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Raw {
        Number(serde_json::Number),
        Text(String),
    }
    Ok(Option::<Raw>::deserialize(from)?.map(|raw| match raw {
        Raw::Number(number) => number.to_string(),
        Raw::Text(text) => text,
    }))
}

/// Why a fault was not accepted.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FaultError {
    /// Neither or both of `status` and `action`.
    #[error("a fault needs exactly one of status and action")]
    Choice,
    /// The status is out of range.
    #[error("status {0} is not from 400 to 599")]
    Status(u16),
    /// Nobody knows the action.
    #[error(
        "unknown action `{0}`; use cut, error_event, hang, hang_stream, hang_silent, reset or lost_answer"
    )]
    Action(String),
    /// Nobody knows the model.
    #[error("unknown model `{0}`")]
    Model(String),
    /// The probability is out of range.
    #[error("probability {0} is not from 0 to 1")]
    Probability(f64),
    /// The end is before the start, most likely a duration by mistake.
    #[error(
        "until_ms {0} is not in the future: it is a unix time in milliseconds; give a duration as for_ms"
    )]
    Until(u64),
    /// Not a legal header.
    #[error("retry_after {0:?} is not a header value")]
    RetryAfter(String),
    /// Too many.
    #[error("there are {FAULTS_MAX} faults already; delete some first")]
    TooMany,
}

/// What hits a call.
#[derive(Clone, Debug, PartialEq)]
pub struct Strike {
    /// What happens.
    pub trouble: Trouble,
    /// Details of the answer.
    pub order: Order,
    /// Milliseconds before it.
    pub ms: Option<u64>,
}

/// A fault in force.
#[derive(Clone, Debug, Serialize)]
pub struct Fault {
    /// Number by which it can be deleted.
    pub id: u64,
    /// As it was posted.
    #[serde(flatten)]
    pub spec: FaultSpec,
    /// How many calls it has hit.
    pub hits: u64,
    #[serde(skip)]
    trouble: Trouble,
    #[serde(skip)]
    model: Option<&'static str>,
    #[serde(skip)]
    from: Micros,
    #[serde(skip)]
    until: Option<Micros>,
}

impl Fault {
    fn parse(spec: FaultSpec, now: Micros) -> Result<Self, FaultError> {
        let trouble = match (spec.status, &spec.action) {
            (Some(status @ 400..=599), None) => Trouble::Status(status),
            (Some(status), None) => return Err(FaultError::Status(status)),
            (None, Some(action)) => Trouble::parse(action)
                .filter(|trouble| !matches!(trouble, Trouble::Status(_)))
                .ok_or_else(|| FaultError::Action(action.clone()))?,
            _ => return Err(FaultError::Choice),
        };
        let model = match &spec.model {
            None => None,
            Some(name) => Some(
                Model::find(name)
                    .ok_or_else(|| FaultError::Model(name.clone()))?
                    .id,
            ),
        };
        if !(0.0..=1.0).contains(&spec.probability) {
            return Err(FaultError::Probability(spec.probability));
        }
        if let Some(raw) = &spec.retry_after {
            let header = axum::http::HeaderValue::from_str(raw);
            header.map_err(|_| FaultError::RetryAfter(raw.clone()))?;
        }
        let later = |at: Micros, ms: u64| Micros(at.0.saturating_add(ms.saturating_mul(1_000)));
        let from = later(now, spec.after_ms.unwrap_or(0));
        let lasts = spec.for_ms.map(|ms| later(from, ms));
        let ends = spec.until_ms.map(|ms| later(Micros(0), ms));
        if let Some(ms) = spec.until_ms
            && later(Micros(0), ms) <= from
        {
            return Err(FaultError::Until(ms));
        }
        Ok(Self {
            id: 0,
            hits: 0,
            trouble,
            model,
            from,
            until: match (lasts, ends) {
                (Some(one), Some(two)) => Some(one.min(two)),
                (one, two) => one.or(two),
            },
            spec,
        })
    }

    fn is_over(&self, now: Micros) -> bool {
        self.until.is_some_and(|until| now >= until)
            || self.spec.count.is_some_and(|count| self.hits >= count)
    }

    fn matches(&self, now: Micros, model: &Model) -> bool {
        now >= self.from
            && !self.is_over(now)
            && self.spec.pool.is_none_or(|pool| pool == model.pool)
            && self.model.is_none_or(|id| id == model.id)
    }

    fn strike(&self) -> Strike {
        let spec = &self.spec;
        Strike {
            trouble: self.trouble,
            order: Order {
                kind: spec.error_type,
                message: spec.message.clone(),
                code: spec.error_code.clone(),
                retry_after: spec.retry_after.clone(),
                no_retry_after: spec.no_retry_after,
                should_retry: spec.should_retry,
                strip_headers: spec.strip_headers,
            },
            ms: spec.ms,
        }
    }
}

/// All faults of one simulator.
#[derive(Debug)]
pub struct Faults {
    list: Vec<Fault>,
    next_id: u64,
    seed: u64,
    draws: u64,
}

impl Faults {
    /// None; probabilities are drawn from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            list: Vec::new(),
            next_id: 1,
            seed,
            draws: 0,
        }
    }

    /// Adds faults; all of them or none.
    ///
    /// # Errors
    /// Names the first value that cannot be used.
    pub fn add(&mut self, specs: Vec<FaultSpec>, now: Micros) -> Result<Vec<u64>, FaultError> {
        self.list.retain(|fault| !fault.is_over(now));
        if self.list.len() + specs.len() > FAULTS_MAX {
            return Err(FaultError::TooMany);
        }
        let parsed: Result<Vec<Fault>, FaultError> = specs
            .into_iter()
            .map(|spec| Fault::parse(spec, now))
            .collect();
        let mut ids = Vec::new();
        for mut fault in parsed? {
            fault.id = self.next_id;
            self.next_id += 1;
            ids.push(fault.id);
            self.list.push(fault);
        }
        Ok(ids)
    }

    /// Removes one fault, or all. Returns how many were removed.
    pub fn remove(&mut self, id: Option<u64>) -> usize {
        let before = self.list.len();
        self.list
            .retain(|fault| id.is_some_and(|id| fault.id != id));
        before - self.list.len()
    }

    /// The faults, ended ones included until the next `add`.
    #[must_use]
    pub fn list(&self) -> &[Fault] {
        &self.list
    }

    /// The first fault that hits this call, in the order they were added.
    pub fn strike(&mut self, now: Micros, model: &Model) -> Option<Strike> {
        for fault in &mut self.list {
            if !fault.matches(now, model) {
                continue;
            }
            self.draws += 1;
            if uniform(self.seed, self.draws) < fault.spec.probability {
                fault.hits += 1;
                return Some(fault.strike());
            }
        }
        None
    }
}

/// A number in [0, 1) from a seed and a counter.
#[expect(clippy::cast_precision_loss)]
pub(crate) fn uniform(seed: u64, n: u64) -> f64 {
    let bits = hash::mix(hash::mix(seed) ^ n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NOW: Micros = Micros(1_000_000_000);

    fn spec(value: serde_json::Value) -> FaultSpec {
        serde_json::from_value(value).unwrap()
    }

    fn faults(value: serde_json::Value) -> Faults {
        let mut faults = Faults::new(1);
        faults.add(vec![spec(value)], NOW).unwrap();
        faults
    }

    fn model(id: &str) -> &'static Model {
        Model::find(id).unwrap()
    }

    fn refused(value: serde_json::Value) -> String {
        Faults::new(1)
            .add(vec![spec(value)], NOW)
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn a_pool_fault_hits_its_pool_only() {
        let mut faults = faults(json!({"pool": "haiku-4.5", "status": 529}));
        assert!(faults.strike(NOW, model("claude-haiku-4-5")).is_some());
        assert!(faults.strike(NOW, model("claude-haiku-5-5")).is_none());
    }

    #[test]
    fn a_model_fault_goes_by_id_or_alias_and_leaves_the_pool_alone() {
        let mut faults = faults(json!({"model": "claude-opus-4-5", "status": 529}));
        assert!(
            faults
                .strike(NOW, model("claude-opus-4-5-20251101"))
                .is_some()
        );
        assert!(faults.strike(NOW, model("claude-opus-4-6")).is_none());
    }

    #[test]
    fn count_and_time_end_a_fault() {
        let haiku = model("claude-haiku-4-5");
        let mut counted = faults(json!({"status": 500, "count": 2}));
        let hits = (0..5)
            .filter(|_| counted.strike(NOW, haiku).is_some())
            .count();
        assert_eq!(hits, 2);

        let mut timed = faults(json!({"status": 500, "after_ms": 1000, "for_ms": 2000}));
        let at = |ms: u64| Micros(NOW.0 + ms * 1_000);
        assert!(timed.strike(at(999), haiku).is_none());
        assert!(timed.strike(at(1_000), haiku).is_some());
        assert!(timed.strike(at(2_999), haiku).is_some());
        assert!(timed.strike(at(3_000), haiku).is_none());
    }

    #[test]
    fn probability_is_met_on_average_and_by_seed() {
        let mut half = faults(json!({"status": 529, "probability": 0.5}));
        let mut again = faults(json!({"status": 529, "probability": 0.5}));
        let haiku = model("claude-haiku-4-5");
        let draws: Vec<bool> = (0..1_000)
            .map(|_| half.strike(NOW, haiku).is_some())
            .collect();
        let hits = draws.iter().filter(|hit| **hit).count();
        assert!((430..570).contains(&hits), "{hits}");
        assert!(
            draws
                .iter()
                .all(|hit| *hit == again.strike(NOW, haiku).is_some())
        );
    }

    #[test]
    fn retry_after_is_passed_on_raw() {
        for (given, raw) in [
            (json!(16), "16"),
            (json!(2.5), "2.5"),
            (json!(-3), "-3"),
            (
                json!("Mon, 30 Nov 2026 12:00:00 GMT"),
                "Mon, 30 Nov 2026 12:00:00 GMT",
            ),
        ] {
            let mut faults = faults(json!({"status": 429, "retry_after": given}));
            let strike = faults.strike(NOW, model("claude-haiku-4-5")).unwrap();
            assert_eq!(strike.order.retry_after.as_deref(), Some(raw));
        }
    }

    #[test]
    fn mistakes_are_refused_with_what_would_be_right() {
        assert!(refused(json!({})).contains("exactly one of status and action"));
        assert!(refused(json!({"status": 200})).contains("400 to 599"));
        assert!(refused(json!({"action": "explode"})).contains("unknown action"));
        assert!(refused(json!({"status": 429, "until_ms": 60000})).contains("for_ms"));
        assert!(refused(json!({"status": 429, "model": "gpt"})).contains("unknown model"));
        assert!(refused(json!({"status": 429, "probability": 2.0})).contains("probability"));
    }

    #[test]
    fn the_number_of_faults_is_bounded() {
        let mut faults = Faults::new(1);
        let many = vec![spec(json!({"status": 500})); FAULTS_MAX];
        faults.add(many, NOW).unwrap();
        let one_more = faults.add(vec![spec(json!({"status": 500}))], NOW);
        assert_eq!(one_more, Err(FaultError::TooMany));
        assert_eq!(faults.remove(Some(3)), 1);
        assert_eq!(faults.remove(None), FAULTS_MAX - 1);
    }
}
