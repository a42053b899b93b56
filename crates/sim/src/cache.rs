//! The prompt cache: which part of a prompt is read, written or neither.
//!
//! A prompt is a list of blocks (tools, system, messages); each block ends a prefix with a hash. A breakpoint looks
//! for the longest known prefix among its last 20 blocks. An entry can be read only after the response that writes
//! it has begun, and each read starts its time to live anew.

use std::collections::{HashMap, VecDeque};

use crate::clock::Micros;

/// The most prefixes remembered; the oldest written goes first.
pub const ENTRIES_MAX: usize = 100_000;
/// How many blocks before a breakpoint are looked at.
const LOOK_BACK: usize = 20;

/// How long a prefix lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ttl {
    /// Five minutes.
    Minutes5,
    /// One hour.
    Hour1,
}

impl Ttl {
    fn seconds(self) -> f64 {
        match self {
            Self::Minutes5 => 300.0,
            Self::Hour1 => 3_600.0,
        }
    }
}

/// The end of one block of a prompt.
#[derive(Clone, Copy, Debug)]
pub struct Boundary {
    /// Hash of everything up to here.
    pub prefix: u64,
    /// Tokens up to here.
    pub tokens: u64,
    /// The breakpoint here, if there is one.
    pub breakpoint: Option<Ttl>,
}

/// How the input of one call splits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheUse {
    /// Tokens read.
    pub read: u64,
    /// Tokens written for five minutes.
    pub write_5m: u64,
    /// Tokens written for an hour.
    pub write_1h: u64,
    /// Tokens after the last breakpoint.
    pub uncached: u64,
}

impl CacheUse {
    /// Tokens that count against the input limit.
    #[must_use]
    pub fn counted(&self) -> u64 {
        self.uncached + self.write_5m + self.write_1h
    }

    /// All input tokens.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counted() + self.read
    }
}

#[derive(Debug)]
struct Entry {
    until: Micros,
    ttl: Ttl,
}

/// All cached prefixes of the organisation.
#[derive(Debug, Default)]
pub struct PromptCache {
    entries: HashMap<u64, Entry>,
    order: VecDeque<u64>,
}

impl PromptCache {
    /// Splits a prompt of `total` tokens. Prefixes shorter than `least` tokens are not cached. A hit is renewed.
    pub fn look_up(
        &mut self,
        now: Micros,
        blocks: &[Boundary],
        least: u64,
        total: u64,
    ) -> CacheUse {
        let points: Vec<(usize, Ttl)> = blocks
            .iter()
            .enumerate()
            .filter(|(_, block)| block.tokens >= least)
            .filter_map(|(at, block)| block.breakpoint.map(|ttl| (at, ttl)))
            .collect();
        let read = self.longest_known(now, blocks, &points);
        let (mut done, mut split) = (
            read,
            CacheUse {
                read,
                ..CacheUse::default()
            },
        );
        for (at, ttl) in points {
            let written = blocks[at].tokens.saturating_sub(done);
            match ttl {
                Ttl::Minutes5 => split.write_5m += written,
                Ttl::Hour1 => split.write_1h += written,
            }
            done += written;
        }
        split.uncached = total.saturating_sub(done);
        split
    }

    /// Makes the prefixes at this prompt's breakpoints readable.
    pub fn store(&mut self, now: Micros, blocks: &[Boundary], least: u64) {
        for block in blocks {
            let Some(ttl) = block.breakpoint.filter(|_| block.tokens >= least) else {
                continue;
            };
            let until = now.plus_seconds(ttl.seconds());
            if self
                .entries
                .insert(block.prefix, Entry { until, ttl })
                .is_none()
            {
                self.order.push_back(block.prefix);
            }
            if self.order.len() > ENTRIES_MAX
                && let Some(oldest) = self.order.pop_front()
            {
                self.entries.remove(&oldest);
            }
        }
    }

    fn longest_known(&mut self, now: Micros, blocks: &[Boundary], points: &[(usize, Ttl)]) -> u64 {
        for (point, _) in points.iter().rev() {
            for at in (point.saturating_sub(LOOK_BACK)..=*point).rev() {
                if let Some(entry) = self.entries.get_mut(&blocks[at].prefix)
                    && entry.until > now
                {
                    entry.until = now.plus_seconds(entry.ttl.seconds());
                    return blocks[at].tokens;
                }
            }
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Micros = Micros(1_000_000_000);

    fn block(prefix: u64, tokens: u64, breakpoint: Option<Ttl>) -> Boundary {
        Boundary {
            prefix,
            tokens,
            breakpoint,
        }
    }

    #[test]
    fn the_first_call_writes_and_the_second_reads() {
        let mut cache = PromptCache::default();
        let blocks = [block(1, 2_000, Some(Ttl::Minutes5)), block(2, 2_100, None)];
        let first = cache.look_up(NOW, &blocks, 1_024, 2_100);
        assert_eq!(
            (first.read, first.write_5m, first.uncached),
            (0, 2_000, 100)
        );
        // Not readable before the first response has begun.
        assert_eq!(cache.look_up(NOW, &blocks, 1_024, 2_100), first);
        cache.store(NOW, &blocks, 1_024);
        let second = cache.look_up(NOW, &blocks, 1_024, 2_100);
        assert_eq!((second.read, second.counted()), (2_000, 100));
    }

    #[test]
    fn entries_end_and_reads_renew_them() {
        let mut cache = PromptCache::default();
        let blocks = [block(1, 2_000, Some(Ttl::Minutes5))];
        cache.store(NOW, &blocks, 1_024);
        let later = NOW.plus_seconds(299.0);
        assert_eq!(cache.look_up(later, &blocks, 1_024, 2_000).read, 2_000);
        let renewed = NOW.plus_seconds(598.0);
        assert_eq!(cache.look_up(renewed, &blocks, 1_024, 2_000).read, 2_000);
        let over = NOW.plus_seconds(1_000.0);
        assert_eq!(cache.look_up(over, &blocks, 1_024, 2_000).read, 0);
    }

    #[test]
    fn short_prefixes_are_not_cached() {
        let mut cache = PromptCache::default();
        let blocks = [block(1, 1_000, Some(Ttl::Minutes5))];
        cache.store(NOW, &blocks, 1_024);
        let split = cache.look_up(NOW, &blocks, 1_024, 1_000);
        assert_eq!((split.read, split.write_5m, split.uncached), (0, 0, 1_000));
    }

    #[test]
    fn a_longer_prompt_reads_the_known_prefix_and_writes_the_rest() {
        let mut cache = PromptCache::default();
        cache.store(NOW, &[block(1, 2_000, Some(Ttl::Hour1))], 1_024);
        let longer = [block(1, 2_000, None), block(2, 5_000, Some(Ttl::Hour1))];
        let split = cache.look_up(NOW, &longer, 1_024, 5_500);
        assert_eq!(
            (split.read, split.write_1h, split.uncached),
            (2_000, 3_000, 500)
        );
        assert_eq!(split.total(), 5_500);
    }

    #[test]
    fn memory_is_bounded() {
        let mut cache = PromptCache::default();
        for prefix in 0..ENTRIES_MAX as u64 + 10 {
            cache.store(NOW, &[block(prefix, 2_000, Some(Ttl::Minutes5))], 1_024);
        }
        assert_eq!(cache.entries.len(), ENTRIES_MAX);
        assert_eq!(cache.order.len(), ENTRIES_MAX);
    }
}
