//! What jobs take: learned from settlements, per tenant, kind and model.
//!
//! The upstream counts the output that is generated, not `max_tokens`, and nobody knows it before.
//! So what is set aside for a job is the mean of what such jobs took: an arithmetic mean of the
//! first few, then an exponential one that follows changes. Input is known better: the estimate is
//! multiplied by what it was wrong by for such jobs, which also tells how much of it comes from the
//! cache and does not count. A profile without samples goes by those of other tenants with the same kind
//! and model.

use std::collections::BTreeMap;

use crate::ids::{Kind, ModelId};
use crate::job::Tokens;

/// Sort of job whose answers are of one length. None: one too many to be told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Profile(Option<u32>);

/// Samples after which a mean only follows: each further one counts for this part of it.
const MEMORY: u64 = 8;

/// Profiles that are told apart. Tenants choose their kinds, so they are bounded, and one tenant's
/// leave room for the others'. Jobs of further ones go by their kind and model alone, and of a kind that
/// nobody has by what the producer estimated.
const PROFILES_MAX: usize = 20_000;
const TENANT_PROFILES_MAX: u32 = 500;

/// What one sort of job takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Means {
    /// Jobs it was learned from, up to those after which a mean only follows.
    pub samples: u64,
    /// Output, in thousandths of a token.
    pub output: u64,
    /// Input as a part of its estimate, in millionths.
    pub input: u64,
}

/// An estimate is never multiplied by more.
const INPUT_MAX: u64 = 20 * MILLION;

const MILLION: u64 = 1_000_000;

impl Means {
    fn add(&mut self, estimate: Tokens, used: Tokens) {
        self.samples = (self.samples + 1).min(MEMORY);
        let output = used.output.saturating_mul(1_000);
        let input = used.input.saturating_mul(MILLION) / estimate.input.max(1);
        follow(&mut self.output, output, self.samples);
        follow(&mut self.input, input.min(INPUT_MAX), self.samples);
    }

    fn of(self, estimate: Tokens) -> Option<Tokens> {
        (self.samples > 0).then(|| Tokens {
            input: estimate.input.saturating_mul(self.input).div_ceil(MILLION),
            output: self.output.div_ceil(1_000),
        })
    }
}

/// Moves a mean towards a sample, by one part in `samples` of the way.
fn follow(mean: &mut u64, sample: u64, samples: u64) {
    if sample >= *mean {
        *mean += (sample - *mean) / samples;
    } else {
        *mean -= (*mean - sample) / samples;
    }
}

/// What was learned.
#[derive(Debug, Default)]
pub struct Learned {
    numbers: BTreeMap<(Option<u32>, Kind, ModelId), u32>,
    /// Profiles of each tenant.
    counts: BTreeMap<u32, u32>,
    means: Vec<Means>,
    /// Of each profile, the one that all tenants share.
    shared: Vec<u32>,
}

impl Learned {
    /// The profile of a tenant's jobs of this kind for this model.
    pub fn profile(&mut self, tenant: u32, kind: &Kind, model: &ModelId) -> Profile {
        let key = |tenant| (tenant, kind.clone(), model.clone());
        if let Some(&own) = self.numbers.get(&key(Some(tenant))) {
            return Profile(Some(own));
        }
        if self.counts.get(&tenant) >= Some(&TENANT_PROFILES_MAX) {
            return Profile(self.numbers.get(&key(None)).copied());
        }
        let shared = self.number(None, kind, model, None);
        Profile(self.number(Some(tenant), kind, model, shared).or(shared))
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
        self.means.push(Means::default());
        self.shared.push(shared.unwrap_or(number));
        self.numbers.insert(key, number);
        if let Some(tenant) = tenant {
            *self.counts.entry(tenant).or_default() += 1;
        }
        Some(number)
    }

    /// Tokens to expect of such a job, of which so many were estimated; None if none was seen yet.
    #[must_use]
    pub fn expect(&self, profile: Profile, estimate: Tokens) -> Option<Tokens> {
        let own = profile.0? as usize;
        let shared = self.shared[own] as usize;
        self.means[own]
            .of(estimate)
            .or_else(|| self.means[shared].of(estimate))
    }

    /// All that was learned, of all tenants together first: tenant, kind, model.
    pub fn all(&self) -> impl Iterator<Item = (Option<u32>, &Kind, &ModelId, Means)> {
        self.numbers
            .iter()
            .map(|((tenant, kind, model), &number)| {
                (*tenant, kind, model, self.means[number as usize])
            })
            .filter(|(.., means)| means.samples > 0)
    }

    /// Takes over what an earlier leader learned.
    pub fn restore(&mut self, tenant: Option<u32>, kind: &Kind, model: &ModelId, means: Means) {
        let shared = self.number(None, kind, model, None);
        let number = match tenant {
            None => shared,
            Some(_) => self.number(tenant, kind, model, shared),
        };
        if let Some(number) = number {
            self.means[number as usize] = Means {
                samples: means.samples.min(MEMORY),
                input: means.input.min(INPUT_MAX),
                output: means.output,
            };
        }
    }

    /// Such a job, of which so many were estimated, took this many.
    pub fn learn(&mut self, profile: Profile, estimate: Tokens, used: Tokens) {
        let Some(own) = profile.0.map(|own| own as usize) else {
            return;
        };
        let shared = self.shared[own] as usize;
        self.means[own].add(estimate, used);
        if shared != own {
            self.means[shared].add(estimate, used);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(lengths: &mut Learned, tenant: u32, kind: &str) -> Profile {
        let model = ModelId::parse("claude-haiku-4-5").unwrap();
        lengths.profile(tenant, &Kind::parse(kind).unwrap(), &model)
    }

    const ESTIMATE: Tokens = Tokens {
        input: 100,
        output: 0,
    };

    fn learn(lengths: &mut Learned, profile: Profile, output: u64) {
        let used = Tokens { input: 100, output };
        lengths.learn(profile, ESTIMATE, used);
    }

    fn expect(lengths: &Learned, profile: Profile) -> Option<u64> {
        Some(lengths.expect(profile, ESTIMATE)?.output)
    }

    #[test]
    fn the_mean_is_exact_at_first_and_then_follows() {
        let mut lengths = Learned::default();
        let tags = profile(&mut lengths, 0, "tags");
        assert_eq!(expect(&lengths, tags), None);
        for tokens in [100, 200, 300] {
            learn(&mut lengths, tags, tokens);
        }
        assert_eq!(expect(&lengths, tags), Some(200));
        for _ in 0..100 {
            learn(&mut lengths, tags, 2_000);
        }
        assert!((1_990..=2_000).contains(&expect(&lengths, tags).unwrap()));
    }

    #[test]
    fn tenants_are_told_apart_and_strangers_go_by_the_others() {
        let mut lengths = Learned::default();
        let terse = profile(&mut lengths, 0, "tags");
        let wordy = profile(&mut lengths, 1, "tags");
        learn(&mut lengths, terse, 10);
        learn(&mut lengths, wordy, 1_000);
        assert_eq!(
            (expect(&lengths, terse), expect(&lengths, wordy)),
            (Some(10), Some(1_000))
        );
        let stranger = profile(&mut lengths, 2, "tags");
        assert_eq!(expect(&lengths, stranger), Some(505));
        let other_kind = profile(&mut lengths, 0, "essay");
        assert_eq!(expect(&lengths, other_kind), None);
    }

    #[test]
    fn kinds_without_end_take_no_memory_without_end() {
        let mut lengths = Learned::default();
        for number in 0..2 * u32::try_from(PROFILES_MAX).unwrap() {
            let tenant = number / TENANT_PROFILES_MAX;
            let profile = profile(&mut lengths, tenant, &format!("k{number}"));
            learn(&mut lengths, profile, 7);
        }
        assert_eq!(lengths.means.len(), PROFILES_MAX);
    }

    #[test]
    fn one_tenants_endless_kinds_leave_room_for_the_others_and_teach_nothing_of_theirs() {
        let mut lengths = Learned::default();
        let tags = profile(&mut lengths, 0, "tags");
        for number in 0..PROFILES_MAX * 2 {
            let profile = profile(&mut lengths, 1, &format!("k{number}"));
            learn(&mut lengths, profile, 9_000);
        }
        assert_eq!(expect(&lengths, tags), None);
        let essay = profile(&mut lengths, 2, "essay");
        learn(&mut lengths, essay, 7);
        assert_eq!(expect(&lengths, essay), Some(7));
        let known = profile(&mut lengths, 1, "essay");
        assert_eq!(expect(&lengths, known), Some(7), "by those of others");
    }

    #[test]
    fn input_is_corrected_by_what_estimates_were_wrong_by() {
        let mut lengths = Learned::default();
        let cached = profile(&mut lengths, 0, "tags");
        let tokens = |input| Tokens { input, output: 5 };
        lengths.learn(cached, tokens(1_000), tokens(100));
        assert_eq!(lengths.expect(cached, tokens(5_000)), Some(tokens(500)));
        lengths.learn(cached, tokens(0), tokens(u64::MAX));
        let most = lengths.expect(cached, tokens(1)).unwrap();
        assert!(most.input <= 20, "{most:?}");
    }
}
