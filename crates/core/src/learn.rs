//! How long answers get: learned from settlements, per tenant, kind and model.
//!
//! The upstream counts the output that is generated, not `max_tokens`, and nobody knows it before.
//! So what is set aside for a job is the mean of what such jobs took: an arithmetic mean of the
//! first few, then an exponential one that follows changes. A profile without samples goes by those
//! of other tenants with the same kind and model.

use std::collections::BTreeMap;

use crate::ids::{Kind, ModelId};

/// Sort of job whose answers are of one length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Profile(u32);

/// Samples after which a mean only follows: each further one counts for this part of it.
const MEMORY: u64 = 8;

/// Profiles that are told apart. Tenants choose their kinds, so they are bounded; jobs of further
/// ones go by their kind and model alone.
const PROFILES_MAX: usize = 20_000;

/// Mean output of one sort of job, in thousandths of a token.
#[derive(Debug, Clone, Copy, Default)]
struct Mean {
    samples: u64,
    milli_tokens: u64,
}

impl Mean {
    fn add(&mut self, tokens: u64) {
        let sample = tokens.saturating_mul(1_000);
        self.samples = (self.samples + 1).min(MEMORY);
        if sample >= self.milli_tokens {
            self.milli_tokens += (sample - self.milli_tokens) / self.samples;
        } else {
            self.milli_tokens -= (self.milli_tokens - sample) / self.samples;
        }
    }

    fn tokens(self) -> Option<u64> {
        (self.samples > 0).then(|| self.milli_tokens.div_ceil(1_000))
    }
}

/// What was learned.
#[derive(Debug, Default)]
pub struct OutputLengths {
    numbers: BTreeMap<(Option<u32>, Kind, ModelId), u32>,
    means: Vec<Mean>,
    /// Of each profile, the one that all tenants share.
    shared: Vec<u32>,
}

impl OutputLengths {
    /// The profile of a tenant's jobs of this kind for this model.
    pub fn profile(&mut self, tenant: u32, kind: &Kind, model: &ModelId) -> Profile {
        let shared = self.number(None, kind, model, None).unwrap_or(0);
        Profile(
            self.number(Some(tenant), kind, model, Some(shared))
                .unwrap_or(shared),
        )
    }

    /// The number of a key; None if it is new and there is no room for it.
    fn number(
        &mut self,
        tenant: Option<u32>,
        kind: &Kind,
        model: &ModelId,
        shared: Option<u32>,
    ) -> Option<u32> {
        let key = (tenant, kind.clone(), model.clone());
        if let Some(&number) = self.numbers.get(&key) {
            return Some(number);
        }
        if self.means.len() >= PROFILES_MAX {
            return None;
        }
        let number = u32::try_from(self.means.len()).expect("far fewer than 2^32");
        self.means.push(Mean::default());
        self.shared.push(shared.unwrap_or(number));
        self.numbers.insert(key, number);
        Some(number)
    }

    /// Output tokens to expect of such a job; None if none was seen yet.
    #[must_use]
    pub fn expect(&self, profile: Profile) -> Option<u64> {
        let own = profile.0 as usize;
        let shared = self.shared[own] as usize;
        self.means[own]
            .tokens()
            .or_else(|| self.means[shared].tokens())
    }

    /// Such a job took this many.
    pub fn learn(&mut self, profile: Profile, tokens: u64) {
        let own = profile.0 as usize;
        let shared = self.shared[own] as usize;
        self.means[own].add(tokens);
        if shared != own {
            self.means[shared].add(tokens);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(lengths: &mut OutputLengths, tenant: u32, kind: &str) -> Profile {
        let model = ModelId::parse("claude-haiku-4-5").unwrap();
        lengths.profile(tenant, &Kind::parse(kind).unwrap(), &model)
    }

    #[test]
    fn the_mean_is_exact_at_first_and_then_follows() {
        let mut lengths = OutputLengths::default();
        let tags = profile(&mut lengths, 0, "tags");
        assert_eq!(lengths.expect(tags), None);
        for tokens in [100, 200, 300] {
            lengths.learn(tags, tokens);
        }
        assert_eq!(lengths.expect(tags), Some(200));
        for _ in 0..100 {
            lengths.learn(tags, 2_000);
        }
        assert!((1_990..=2_000).contains(&lengths.expect(tags).unwrap()));
    }

    #[test]
    fn tenants_are_told_apart_and_strangers_go_by_the_others() {
        let mut lengths = OutputLengths::default();
        let terse = profile(&mut lengths, 0, "tags");
        let wordy = profile(&mut lengths, 1, "tags");
        lengths.learn(terse, 10);
        lengths.learn(wordy, 1_000);
        assert_eq!(
            (lengths.expect(terse), lengths.expect(wordy)),
            (Some(10), Some(1_000))
        );
        let stranger = profile(&mut lengths, 2, "tags");
        assert_eq!(lengths.expect(stranger), Some(505));
        let other_kind = profile(&mut lengths, 0, "essay");
        assert_eq!(lengths.expect(other_kind), None);
    }

    #[test]
    fn kinds_without_end_take_no_memory_without_end() {
        let mut lengths = OutputLengths::default();
        for number in 0..PROFILES_MAX * 2 {
            let profile = profile(&mut lengths, 0, &format!("k{number}"));
            lengths.learn(profile, 7);
        }
        assert_eq!(lengths.means.len(), PROFILES_MAX);
    }
}
