//! Which prompts have already had their trouble: the memory behind `once=`.

use std::collections::{HashMap, VecDeque};

/// The most prompts remembered; the one seen first goes first.
pub const PROMPTS_MAX: usize = 100_000;

/// How often each prompt has been hit, by prompt hash.
#[derive(Debug, Default)]
pub struct OnceMemory {
    hits: HashMap<u64, u32>,
    order: VecDeque<u64>,
}

impl OnceMemory {
    /// Whether this call is among the first `times` with its prompt. Counts it if so.
    pub fn take(&mut self, prompt: u64, times: u32) -> bool {
        let hits = match self.hits.get_mut(&prompt) {
            Some(hits) => hits,
            None => {
                if self.order.len() >= PROMPTS_MAX
                    && let Some(oldest) = self.order.pop_front()
                {
                    self.hits.remove(&oldest);
                }
                self.order.push_back(prompt);
                self.hits.entry(prompt).or_default()
            }
        };
        let hit = *hits < times;
        *hits += u32::from(hit);
        hit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_calls_with_a_prompt_are_hit_and_the_rest_are_not() {
        let mut memory = OnceMemory::default();
        assert!(memory.take(1, 1));
        assert!(!memory.take(1, 1));
        assert!(memory.take(2, 3) && memory.take(2, 3) && memory.take(2, 3));
        assert!(!memory.take(2, 3));
    }

    #[test]
    fn memory_is_bounded_and_forgets_the_oldest() {
        let mut memory = OnceMemory::default();
        for prompt in 0..=PROMPTS_MAX as u64 {
            assert!(memory.take(prompt, 1));
        }
        assert_eq!(memory.hits.len(), PROMPTS_MAX);
        assert!(memory.take(0, 1));
        assert!(!memory.take(PROMPTS_MAX as u64, 1));
    }
}
