//! How long to wait before trying again. Jitter is an argument from 0 to 1.

use super::retry_after::RetryAfter;

const DELAY_MAX_MS: u64 = 60_000;
/// A wait of nothing, asked for by a server that has just refused, is an invitation to a storm.
const PAUSE_MIN_MS: u64 = 1_000;

/// Delay before the retry after failed attempt number `attempt` (counted from 1), in milliseconds:
/// `min(2^attempt, 60)` seconds plus up to 30 %.
#[must_use]
pub fn retry_delay_ms(attempt: u32, jitter: f64) -> u64 {
    let base = 1_000_u64
        .checked_shl(attempt.min(16))
        .unwrap_or(DELAY_MAX_MS)
        .min(DELAY_MAX_MS);
    base + permille(base, unit(jitter) * 300.0)
}

/// How long to leave a server alone that asked for `wait`, in milliseconds: 1.2 times that, give or
/// take 20 %, but never less than the server said, and at least a second.
#[must_use]
pub fn pause_ms(wait: RetryAfter, jitter: f64) -> u64 {
    let asked = wait.ms().max(PAUSE_MIN_MS);
    // 1.2 * (0.8 + 0.4 * jitter)
    let spread = permille(asked, 960.0 + unit(jitter) * 480.0);
    spread.max(asked)
}

/// Jitter is drawn by others: whatever it is, it becomes a fraction.
fn unit(jitter: f64) -> f64 {
    if jitter.is_nan() {
        0.0
    } else {
        jitter.clamp(0.0, 1.0)
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "callers pass 0 to 1 440 thousandths"
)]
fn permille(ms: u64, thousandths: f64) -> u64 {
    ms.saturating_mul(thousandths as u64) / 1_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_delay_doubles_to_a_minute_and_adds_up_to_thirty_percent() {
        for (attempt, base) in [
            (0, 1_000),
            (1, 2_000),
            (3, 8_000),
            (5, 32_000),
            (6, 60_000),
            (64, 60_000),
            (u32::MAX, 60_000),
        ] {
            assert_eq!(retry_delay_ms(attempt, 0.0), base, "attempt {attempt}");
            assert_eq!(
                retry_delay_ms(attempt, 1.0),
                base * 13 / 10,
                "attempt {attempt}"
            );
        }
        assert_eq!(retry_delay_ms(1, 0.5), 2_300);
    }

    #[test]
    fn a_pause_is_a_fifth_longer_than_asked_and_never_shorter() {
        let wait = RetryAfter::from_secs(16);
        assert_eq!(pause_ms(wait, 0.0), 16_000, "0.96 of it would be too early");
        assert_eq!(pause_ms(wait, 0.5), 19_200);
        assert_eq!(pause_ms(wait, 1.0), 23_040);
        for step in 0..=100 {
            let jitter = f64::from(step) / 100.0;
            for ms in [0, 1, 999, 16_000, 13_262_000, RetryAfter::MAX.ms()] {
                let wait = RetryAfter::from_ms(ms).unwrap();
                let pause = pause_ms(wait, jitter);
                assert!(
                    pause >= ms.max(1_000) && pause <= ms.max(1_000) * 144 / 100,
                    "{ms} {jitter}"
                );
            }
        }
    }

    #[test]
    fn jitter_outside_its_range_is_harmless() {
        for jitter in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -3.0, 7.0] {
            let delay = retry_delay_ms(2, jitter);
            assert!((4_000..=5_200).contains(&delay), "{jitter}");
            assert!(
                pause_ms(RetryAfter::from_secs(10), jitter) >= 10_000,
                "{jitter}"
            );
        }
    }
}
