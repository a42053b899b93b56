//! How long an answer takes: the time to the first byte, then a steady number of tokens a second.

use std::time::Duration;

use crate::{config::SimConfig, fault::uniform};

/// The pace of one call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Until the first byte.
    pub first_byte: Duration,
    /// Seconds per output token after it.
    seconds_per_token: f64,
}

impl Pace {
    /// Everything at once.
    pub const INSTANT: Self = Self {
        first_byte: Duration::ZERO,
        seconds_per_token: 0.0,
    };

    /// The pace of a call. `ordered_ms` fixes the total; `draw` picks the jitter.
    #[must_use]
    pub fn of(
        config: &SimConfig,
        input: u64,
        output: u64,
        ordered_ms: Option<u64>,
        draw: u64,
    ) -> Self {
        if config.zero_latency || config.time_scale == 0.0 {
            return Self::INSTANT;
        }
        let (first_s, per_token_s) = match ordered_ms {
            // A quarter of an ordered time passes before the first byte, all of it when there is no output.
            Some(ms) if output == 0 => (seconds(ms), 0.0),
            Some(ms) => (seconds(ms) / 4.0, seconds(ms) * 0.75 / count(output)),
            None => {
                let prompt_ms = config.prompt_ms_per_1k * count(input) / 1_000.0;
                let first_s = seconds(config.first_byte_ms) + prompt_ms / 1_000.0;
                let spread = 1.0 + config.jitter * (2.0 * uniform(config.seed, draw) - 1.0);
                (first_s * spread, spread / config.tokens_per_second)
            }
        };
        Self {
            first_byte: Duration::try_from_secs_f64(first_s / config.time_scale)
                .unwrap_or(Duration::MAX),
            seconds_per_token: per_token_s / config.time_scale,
        }
    }

    /// Whether there is nothing to wait for.
    #[must_use]
    pub fn is_instant(&self) -> bool {
        *self == Self::INSTANT
    }

    /// When that many tokens have been generated, from the start of the call.
    #[must_use]
    pub fn due(&self, tokens: u64) -> Duration {
        let generating = Duration::try_from_secs_f64(self.seconds_per_token * count(tokens));
        self.first_byte
            .saturating_add(generating.unwrap_or(Duration::MAX))
    }

    /// How many of `total` tokens have been generated after `elapsed`.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub fn generated(&self, elapsed: Duration, total: u64) -> u64 {
        match elapsed.checked_sub(self.first_byte) {
            None => 0,
            Some(_) if self.seconds_per_token <= 0.0 => total,
            Some(since) => ((since.as_secs_f64() / self.seconds_per_token) as u64).min(total),
        }
    }
}

#[expect(clippy::cast_precision_loss)]
fn count(n: u64) -> f64 {
    n as f64
}

fn seconds(ms: u64) -> f64 {
    count(ms) / 1_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(time_scale: f64) -> SimConfig {
        SimConfig {
            prompt_ms_per_1k: 10.0,
            time_scale,
            ..SimConfig::default()
        }
    }

    #[test]
    fn the_default_is_first_byte_then_a_steady_rate() {
        let pace = Pace::of(&config(1.0), 2_000, 40, None, 0);
        assert_eq!(pace.first_byte, Duration::from_millis(420));
        assert_eq!(pace.due(40), Duration::from_millis(920));
        assert_eq!(pace.generated(Duration::from_millis(400), 40), 0);
        assert_eq!(pace.generated(Duration::from_millis(671), 40), 20);
        assert_eq!(pace.generated(Duration::from_secs(9), 40), 40);
    }

    #[test]
    fn the_scale_divides_and_zero_is_instant() {
        let pace = Pace::of(&config(10.0), 2_000, 40, None, 0);
        assert_eq!(pace.due(40), Duration::from_millis(92));
        assert!(Pace::of(&config(0.0), 2_000, 40, None, 0).is_instant());
        assert_eq!(Pace::INSTANT.generated(Duration::ZERO, 40), 40);
    }

    #[test]
    fn an_ordered_time_is_the_total() {
        let pace = Pace::of(&config(2.0), 9_999, 30, Some(1_000), 0);
        assert_eq!(pace.due(30), Duration::from_millis(500));
        assert_eq!(
            Pace::of(&config(1.0), 1, 0, Some(700), 0).due(0),
            Duration::from_millis(700)
        );
    }

    #[test]
    fn jitter_stays_in_its_range_and_follows_the_seed() {
        let config = SimConfig {
            jitter: 0.2,
            ..config(1.0)
        };
        let mut seen = Vec::new();
        for draw in 0..100 {
            let total = Pace::of(&config, 0, 80, None, draw).due(80).as_secs_f64();
            assert!((1.12..=1.68).contains(&total), "{total}");
            seen.push(total);
        }
        assert!(seen.iter().any(|t| *t < 1.3) && seen.iter().any(|t| *t > 1.5));
    }
}
