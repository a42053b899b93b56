//! What the rate-limit headers of an answer say. Every answer has them, not only a 429.

use reqwest::header::HeaderMap;

/// The limits seen by one answer; a bucket is absent when none of its headers was there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// Requests per minute.
    pub requests: Option<Bucket>,
    /// Input tokens per minute, cache reads not counted.
    pub input: Option<Bucket>,
    /// Output tokens per minute.
    pub output: Option<Bucket>,
    /// The tightest token limit in force, or input and output together.
    pub tokens: Option<Bucket>,
}

/// One bucket of the upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bucket {
    pub limit: Option<u64>,
    /// Rounded by the upstream, and spent by others too: an upper bound.
    pub remaining: Option<u64>,
    /// When it is full again, in Unix milliseconds. Not when the next request fits.
    pub reset_ms: Option<u64>,
}

impl Limits {
    /// Reads the `anthropic-ratelimit-*` headers. What cannot be read is left out.
    #[must_use]
    pub fn parse(headers: &HeaderMap) -> Self {
        Self {
            requests: bucket(headers, "requests"),
            input: bucket(headers, "input-tokens"),
            output: bucket(headers, "output-tokens"),
            tokens: bucket(headers, "tokens"),
        }
    }
}

fn bucket(headers: &HeaderMap, what: &str) -> Option<Bucket> {
    let text = |part: &str| -> Option<&str> {
        headers
            .get(format!("anthropic-ratelimit-{what}-{part}"))?
            .to_str()
            .ok()
            .map(str::trim)
    };
    let bucket = Bucket {
        limit: text("limit").and_then(|text| text.parse().ok()),
        remaining: text("remaining").and_then(|text| text.parse().ok()),
        reset_ms: text("reset").and_then(time_ms),
    };
    (bucket != Bucket::default()).then_some(bucket)
}

fn time_ms(text: &str) -> Option<u64> {
    let time: jiff::Timestamp = text.parse().ok()?;
    u64::try_from(time.as_millisecond()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(list: &[(&'static str, &'static str)]) -> HeaderMap {
        list.iter()
            .map(|&(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
            .collect()
    }

    #[test]
    fn the_header_set_of_a_real_429_is_read() {
        let limits = Limits::parse(&headers(&[
            ("anthropic-ratelimit-requests-limit", "4000"),
            ("anthropic-ratelimit-requests-remaining", "4000"),
            ("anthropic-ratelimit-requests-reset", "2026-11-30T16:00:00Z"),
            ("anthropic-ratelimit-input-tokens-limit", "200000"),
            ("anthropic-ratelimit-input-tokens-remaining", "0"),
            ("anthropic-ratelimit-output-tokens-limit", "80000"),
            ("anthropic-ratelimit-tokens-limit", "280000"),
            ("anthropic-ratelimit-tokens-remaining", "80000"),
        ]));
        let bucket = |limit, remaining, reset_ms| {
            Some(Bucket {
                limit,
                remaining,
                reset_ms,
            })
        };
        assert_eq!(
            limits.requests,
            bucket(Some(4_000), Some(4_000), Some(1_796_054_400_000))
        );
        assert_eq!(limits.input, bucket(Some(200_000), Some(0), None));
        assert_eq!(limits.output, bucket(Some(80_000), None, None));
        assert_eq!(limits.tokens, bucket(Some(280_000), Some(80_000), None));
    }

    #[test]
    fn nonsense_is_left_out() {
        assert_eq!(Limits::parse(&HeaderMap::new()), Limits::default());
        let limits = Limits::parse(&headers(&[
            ("anthropic-ratelimit-requests-limit", "many"),
            ("anthropic-ratelimit-requests-reset", "soon"),
            ("anthropic-ratelimit-tokens-remaining", "-1"),
            ("anthropic-ratelimit-tokens-limit", " 5 "),
        ]));
        let tokens = Some(Bucket {
            limit: Some(5),
            ..Bucket::default()
        });
        assert_eq!(
            limits,
            Limits {
                tokens,
                ..Limits::default()
            }
        );
    }
}
