//! Priorities and where they come from; the cost of a job.

use std::fmt;

/// The three priorities. A caller never names one; [`classify`] decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    Critical,
    Standard,
    Batch,
}

impl Priority {
    /// All priorities, most urgent first.
    pub const ALL: [Self; 3] = [Self::Critical, Self::Standard, Self::Batch];

    /// The stable word used in subjects, values and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Critical => "critical",
            Self::Standard => "standard",
            Self::Batch => "batch",
        }
    }

    /// The priority of a stable word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|priority| priority.as_str() == word)
    }

    /// Position in [`Priority::ALL`], for tables with one entry per priority.
    #[must_use]
    pub fn index(self) -> usize {
        match self {
            Self::Critical => 0,
            Self::Standard => 1,
            Self::Batch => 2,
        }
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// What made a job: the caller's word, from which the priority follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Origin {
    UserAction,
    Scheduled,
    BatchJob,
}

impl Origin {
    /// All origins.
    pub const ALL: [Self; 3] = [Self::UserAction, Self::Scheduled, Self::BatchJob];

    /// The stable word used in submissions.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::UserAction => "user_action",
            Self::Scheduled => "scheduled",
            Self::BatchJob => "batch_job",
        }
    }

    /// The origin of a stable word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|origin| origin.as_str() == word)
    }
}

/// A service level of a day or more is as good as none.
pub const BATCH_SLA_SECONDS: u64 = 86_400;

/// The one rule from origin and service level to priority: a user who waits is critical;
/// no service level, or one of a day or more, is batch; the rest is standard.
#[must_use]
pub fn classify(origin: Origin, sla_seconds: Option<u64>) -> Priority {
    match (origin, sla_seconds) {
        (Origin::UserAction, _) => Priority::Critical,
        (Origin::Scheduled | Origin::BatchJob, None) => Priority::Batch,
        (Origin::Scheduled | Origin::BatchJob, Some(sla)) if sla >= BATCH_SLA_SECONDS => {
            Priority::Batch
        }
        (Origin::Scheduled | Origin::BatchJob, Some(_)) => Priority::Standard,
    }
}

/// Tokens a job is expected to take from, or has taken from, a pool's limits.
///
/// `input` counts what the upstream's input limit counts: uncached and cache-written tokens,
/// not cache reads. `output` counts generated tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tokens {
    pub input: u64,
    pub output: u64,
}

/// Weights of the two sorts of tokens in the cost of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CostWeights {
    pub input: u64,
    pub output: u64,
}

impl Default for CostWeights {
    fn default() -> Self {
        Self {
            input: 1,
            output: 5,
        }
    }
}

/// Cost in thousandths of a cost unit; one cost unit is 1 000 weighted tokens.
///
/// Signed, because corrections and debts are. Milli-units keep all accounting exact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub struct Cost(pub i64);

impl Cost {
    /// One cost unit.
    pub const UNIT: Self = Self(1_000);

    /// `weight_in * input + weight_out * output` weighted tokens, at least one cost unit.
    #[must_use]
    pub fn of(tokens: Tokens, weights: CostWeights) -> Self {
        let weighted = weights
            .input
            .saturating_mul(tokens.input)
            .saturating_add(weights.output.saturating_mul(tokens.output));
        Self(
            i64::try_from(weighted)
                .unwrap_or(i64::MAX / 4)
                .clamp(Self::UNIT.0, i64::MAX / 4),
        )
    }
}

impl std::ops::Add for Cost {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl std::ops::Sub for Cost {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl std::ops::AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl std::ops::SubAssign for Cost {
    fn sub_assign(&mut self, other: Self) {
        *self = *self - other;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priority_follows_from_origin_and_service_level() {
        use Origin::{BatchJob, Scheduled, UserAction};
        use Priority::{Batch, Critical, Standard};
        let cases = [
            (UserAction, None, Critical),
            (UserAction, Some(1_000_000), Critical),
            (Scheduled, None, Batch),
            (Scheduled, Some(600), Standard),
            (Scheduled, Some(86_399), Standard),
            (Scheduled, Some(86_400), Batch),
            (BatchJob, None, Batch),
            (BatchJob, Some(60), Standard),
            (BatchJob, Some(90_000), Batch),
        ];
        for (origin, sla, want) in cases {
            assert_eq!(classify(origin, sla), want, "{origin:?} {sla:?}");
        }
    }

    #[test]
    fn cost_is_weighted_tokens_with_a_floor_of_one_unit() {
        let weights = CostWeights::default();
        assert_eq!(
            Cost::of(
                Tokens {
                    input: 10,
                    output: 10
                },
                weights
            ),
            Cost::UNIT
        );
        assert_eq!(
            Cost::of(
                Tokens {
                    input: 34_000,
                    output: 200
                },
                weights
            ),
            Cost(35_000)
        );
        assert!(
            Cost::of(
                Tokens {
                    input: u64::MAX,
                    output: u64::MAX
                },
                weights
            )
            .0 > 0
        );
    }
}
