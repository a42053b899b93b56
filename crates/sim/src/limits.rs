//! The limits of one pool: admit or refuse a call, charge and correct it, and say what is left in headers.

use serde::Serialize;

use crate::{
    bucket::{Bucket, Wait},
    clock::{Micros, rfc3339_seconds},
    config::{Limits, OtpmMode},
};

/// What a call needs to be admitted.
#[derive(Clone, Copy, Debug)]
pub struct Need {
    /// Estimated input tokens that count: uncached and cache writes.
    pub input: u64,
    /// `max_tokens` of the request.
    pub output_max: u64,
}

/// Which limit refused a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitKind {
    /// Requests a minute.
    Requests,
    /// Input tokens a minute.
    InputTokens,
    /// Output tokens a minute.
    OutputTokens,
    /// Calls at once.
    Connections,
}

/// A refused call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The limit that takes longest to clear.
    pub limit: LimitKind,
    /// The limit's number.
    pub value: u64,
    /// Whole seconds until this call would fit, at least 1.
    pub retry_after_s: u64,
}

impl Refusal {
    /// The error message, naming the limit, the organisation and the model.
    #[must_use]
    pub fn message(&self, organization: &str, model: &str) -> String {
        let value = self.value;
        match self.limit {
            LimitKind::Connections => format!(
                "Number of concurrent connections has exceeded your rate limit ({value}). Please try again later."
            ),
            LimitKind::Requests | LimitKind::InputTokens | LimitKind::OutputTokens => format!(
                "This request would exceed your organization's rate limit of {value} {} per minute (org: {organization}, model: {model}).",
                self.limit.unit()
            ),
        }
    }
}

impl LimitKind {
    fn unit(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::InputTokens => "input tokens",
            Self::OutputTokens => "output tokens",
            Self::Connections => "connections",
        }
    }
}

/// The limits of one pool and what is left of them.
#[derive(Debug)]
pub struct Pool {
    requests: Bucket,
    input: Bucket,
    output: Bucket,
    concurrent_max: Option<u64>,
    in_flight: u64,
    mode: OtpmMode,
}

impl Pool {
    /// Full buckets.
    #[must_use]
    pub fn new(limits: Limits, burst_seconds: f64, mode: OtpmMode, now: Micros) -> Self {
        Self {
            requests: Bucket::with_burst(limits.rpm, burst_seconds, now),
            input: Bucket::new(limits.itpm, now),
            output: Bucket::new(limits.otpm, now),
            concurrent_max: limits.concurrent,
            in_flight: 0,
            mode,
        }
    }

    /// Charges one request and its estimated input, or says which limit is in the way and for how long.
    ///
    /// # Errors
    /// The refusal. A call that is larger than a whole bucket is refused for ever; it is told the time until that
    /// bucket is full.
    pub fn admit(&mut self, now: Micros, need: Need) -> Result<(), Refusal> {
        if let Some(value) = self.concurrent_max
            && self.in_flight >= value
        {
            return Err(Refusal {
                limit: LimitKind::Connections,
                value,
                retry_after_s: 1,
            });
        }
        let output = match self.mode {
            // A live bucket lets a call start as long as anything is left in it.
            OtpmMode::Live => 1,
            OtpmMode::Reserve => need.output_max,
        };
        let asked = [
            (LimitKind::Requests, &mut self.requests, 1),
            (LimitKind::InputTokens, &mut self.input, need.input),
            (LimitKind::OutputTokens, &mut self.output, output),
        ];
        let mut worst: Option<(f64, LimitKind, u64)> = None;
        for (limit, bucket, n) in asked {
            let seconds = match bucket.wait_for(now, n) {
                Wait::Fits => continue,
                Wait::Seconds(seconds) | Wait::Never(seconds) => seconds,
            };
            if worst.is_none_or(|(longest, _, _)| seconds > longest) {
                worst = Some((seconds, limit, bucket.limit()));
            }
        }
        if let Some((seconds, limit, value)) = worst {
            return Err(Refusal {
                limit,
                value,
                retry_after_s: whole_seconds(seconds),
            });
        }
        self.requests.take(now, 1);
        self.input.take(now, need.input);
        if self.mode == OtpmMode::Reserve {
            self.output.take(now, need.output_max);
        }
        self.in_flight += 1;
        Ok(())
    }

    /// Charges output tokens as they are generated.
    pub fn generated(&mut self, now: Micros, tokens: u64) {
        if self.mode == OtpmMode::Live {
            self.output.take(now, tokens);
        }
    }

    /// Ends a call: corrects the input estimate to what it really was, and gives back what was reserved for output.
    pub fn finish(&mut self, now: Micros, need: Need, input: u64, output: u64) {
        if input > need.input {
            self.input.take(now, input - need.input);
        } else {
            self.input.give(now, need.input - input);
        }
        if self.mode == OtpmMode::Reserve {
            self.output
                .give(now, need.output_max.saturating_sub(output));
        }
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    /// Takes an admission back as if it had never been.
    pub fn withdraw(&mut self, now: Micros, need: Need) {
        self.requests.give(now, 1);
        self.finish(now, need, 0, 0);
    }

    /// What the rate-limit headers say.
    pub fn snapshot(&mut self, now: Micros) -> Snapshot {
        let requests = View::of(&mut self.requests, now, 1);
        let input = View::of(&mut self.input, now, 1_000);
        let output = View::of(&mut self.output, now, 1_000);
        let left = self.input.level(now).max(0.0) + self.output.level(now).max(0.0);
        Snapshot {
            requests,
            input,
            output,
            tokens: View {
                limit: input.limit.saturating_add(output.limit),
                remaining: rounded(left, 1_000),
                reset: input.reset.max(output.reset),
            },
        }
    }

    /// Calls admitted and not finished.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Fills the buckets. Calls in flight stay counted.
    pub fn refill(&mut self, now: Micros) {
        for bucket in [&mut self.requests, &mut self.input, &mut self.output] {
            bucket.give(now, u64::MAX);
        }
    }
}

/// Whole seconds, rounded up, at least 1.
#[must_use]
pub fn whole_seconds(seconds: f64) -> u64 {
    std::time::Duration::try_from_secs_f64(seconds.ceil())
        .map_or(u64::MAX, |wait| wait.as_secs())
        .max(1)
}

/// One bucket as its three headers show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// Limit a minute.
    pub limit: u64,
    /// What is left; tokens to the nearest 1 000, never below 0.
    pub remaining: u64,
    /// When it is full again.
    pub reset: Micros,
}

impl View {
    /// The view of `bucket`, with `remaining` rounded to a multiple of `step`.
    pub fn of(bucket: &mut Bucket, now: Micros, step: u64) -> Self {
        Self {
            limit: bucket.limit(),
            remaining: rounded(bucket.level(now), step),
            reset: bucket.full_at(now),
        }
    }

    /// The reset time as the header shows it.
    #[must_use]
    pub fn reset_text(&self) -> String {
        rfc3339_seconds(self.reset)
    }
}

impl Serialize for View {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let mut view = to.serialize_struct("View", 3)?;
        view.serialize_field("limit", &self.limit)?;
        view.serialize_field("remaining", &self.remaining)?;
        view.serialize_field("reset", &self.reset_text())?;
        view.end()
    }
}

/// The four groups of rate-limit headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Snapshot {
    /// `anthropic-ratelimit-requests-*`
    pub requests: View,
    /// `anthropic-ratelimit-input-tokens-*`
    pub input: View,
    /// `anthropic-ratelimit-output-tokens-*`
    pub output: View,
    /// `anthropic-ratelimit-tokens-*`: input and output together.
    pub tokens: View,
}

/// Requests are whole (rounded down), tokens go to the nearest multiple.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss
)]
fn rounded(level: f64, step: u64) -> u64 {
    let level = level.max(0.0);
    if step <= 1 {
        level as u64
    } else {
        (level / step as f64).round() as u64 * step
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{config::Preset, models::PoolId};

    const NOW: Micros = Micros(1_796_000_000_000_000);

    fn tier1(mode: OtpmMode) -> Pool {
        Pool::new(Preset::Tier1.limits(PoolId::Sonnet4x), 60.0, mode, NOW)
    }

    fn need(input: u64, output_max: u64) -> Need {
        Need { input, output_max }
    }

    #[test]
    fn the_refusal_names_the_limit_that_takes_longest() {
        let mut pool = tier1(OtpmMode::Live);
        pool.admit(NOW, need(25_000, 100)).unwrap();
        let refusal = pool.admit(NOW, need(13_000, 100)).unwrap_err();
        assert_eq!(refusal.limit, LimitKind::InputTokens);
        // 8 000 tokens are missing at 500 a second.
        assert_eq!(refusal.retry_after_s, 16);
        let message = refusal.message("org-1", "claude-sonnet-4-6");
        assert!(
            message.contains("30000 input tokens per minute"),
            "{message}"
        );
        pool.admit(NOW.plus_seconds(16.0), need(13_000, 100))
            .unwrap();
    }

    #[test]
    fn requests_run_out_and_a_refused_call_costs_nothing() {
        let mut pool = tier1(OtpmMode::Live);
        for _ in 0..50 {
            pool.admit(NOW, need(1, 1)).unwrap();
        }
        for _ in 0..10 {
            let refusal = pool.admit(NOW, need(1, 1)).unwrap_err();
            assert_eq!(
                (refusal.limit, refusal.retry_after_s),
                (LimitKind::Requests, 2)
            );
        }
        pool.admit(NOW.plus_seconds(1.2), need(1, 1)).unwrap();
    }

    #[test]
    fn live_output_goes_into_debt_and_then_refuses() {
        let mut pool = tier1(OtpmMode::Live);
        pool.admit(NOW, need(1, 64_000)).unwrap();
        pool.generated(NOW, 8_800);
        let refusal = pool.admit(NOW, need(1, 1)).unwrap_err();
        assert_eq!(
            (refusal.limit, refusal.retry_after_s),
            (LimitKind::OutputTokens, 7)
        );
    }

    #[test]
    fn reserved_output_is_given_back_at_the_end() {
        let mut pool = tier1(OtpmMode::Reserve);
        pool.admit(NOW, need(1, 6_000)).unwrap();
        let refusal = pool.admit(NOW, need(1, 6_000)).unwrap_err();
        assert_eq!(refusal.limit, LimitKind::OutputTokens);
        pool.generated(NOW, 40);
        pool.finish(NOW, need(1, 6_000), 1, 40);
        pool.admit(NOW, need(1, 6_000)).unwrap();
        assert_eq!(pool.snapshot(NOW).output.remaining, 2_000);
    }

    #[test]
    fn the_input_estimate_is_corrected_both_ways() {
        let mut pool = tier1(OtpmMode::Live);
        pool.admit(NOW, need(10_000, 1)).unwrap();
        pool.finish(NOW, need(10_000, 1), 4_000, 0);
        assert_eq!(pool.snapshot(NOW).input.remaining, 26_000);
        pool.admit(NOW, need(1_000, 1)).unwrap();
        pool.finish(NOW, need(1_000, 1), 7_000, 0);
        assert_eq!(pool.snapshot(NOW).input.remaining, 19_000);
    }

    #[test]
    fn more_than_a_whole_bucket_is_always_refused() {
        let mut pool = tier1(OtpmMode::Live);
        let refusal = pool.admit(NOW, need(30_001, 1)).unwrap_err();
        assert_eq!(
            (refusal.limit, refusal.retry_after_s),
            (LimitKind::InputTokens, 1)
        );
        assert!(
            pool.admit(NOW.plus_seconds(3_600.0), need(30_001, 1))
                .is_err()
        );
    }

    #[test]
    fn too_many_calls_at_once_are_refused_although_the_buckets_have_room() {
        let limits = Limits {
            concurrent: Some(1),
            ..Preset::Start.limits(PoolId::Haiku45)
        };
        let mut pool = Pool::new(limits, 60.0, OtpmMode::Live, NOW);
        pool.admit(NOW, need(1, 1)).unwrap();
        let refusal = pool.admit(NOW, need(1, 1)).unwrap_err();
        assert_eq!(refusal.limit, LimitKind::Connections);
        assert!(refusal.message("o", "m").contains("concurrent connections"));
        pool.finish(NOW, need(1, 1), 1, 1);
        pool.admit(NOW, need(1, 1)).unwrap();
    }

    #[test]
    fn headers_round_tokens_and_show_the_time_to_full() {
        let mut pool = tier1(OtpmMode::Live);
        pool.admit(NOW, need(1_400, 1)).unwrap();
        pool.generated(NOW, 600);
        let shown = pool.snapshot(NOW);
        assert_eq!((shown.requests.limit, shown.requests.remaining), (50, 49));
        assert_eq!((shown.input.limit, shown.input.remaining), (30_000, 29_000));
        assert_eq!((shown.output.limit, shown.output.remaining), (8_000, 7_000));
        assert_eq!(
            (shown.tokens.limit, shown.tokens.remaining),
            (38_000, 36_000)
        );
        // 600 tokens at 8 000 a minute take 4.5 s; the stated second is never early.
        assert_eq!(shown.output.reset_text(), "2026-11-30T00:53:25Z");
        assert_eq!(shown.tokens.reset, shown.output.reset);
    }

    #[test]
    fn withdrawing_leaves_no_trace() {
        let mut pool = tier1(OtpmMode::Reserve);
        let before = pool.snapshot(NOW);
        pool.admit(NOW, need(9_000, 4_000)).unwrap();
        pool.withdraw(NOW, need(9_000, 4_000));
        assert_eq!(pool.snapshot(NOW), before);
        assert_eq!(pool.in_flight(), 0);
    }

    #[test]
    fn refill_fills_everything() {
        let mut pool = tier1(OtpmMode::Live);
        pool.admit(NOW, need(30_000, 1)).unwrap();
        pool.refill(NOW);
        assert_eq!(pool.snapshot(NOW).input.remaining, 30_000);
        assert_eq!(pool.in_flight(), 1);
    }
}
