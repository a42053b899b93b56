//! Words without meaning: the text of answers. One word is one token.

use crate::hash;

const WORDS: [&str; 64] = [
    "amber", "autumn", "bright", "calm", "cedar", "city", "cloud", "coast", "cold", "copper",
    "dawn", "deep", "desert", "dream", "dusk", "early", "ember", "evening", "fern", "field", "fog",
    "forest", "frost", "garden", "glacier", "golden", "harbor", "haze", "hill", "island", "lake",
    "late", "light", "lunar", "meadow", "mist", "moss", "mountain", "neon", "night", "north",
    "ocean", "pale", "pine", "quiet", "rain", "reef", "river", "sand", "shadow", "shore", "silver",
    "sky", "snow", "soft", "spring", "stone", "storm", "summer", "sunrise", "tide", "valley",
    "wide", "winter",
];

/// The word of that number.
pub(crate) fn word(n: u64) -> &'static str {
    WORDS[usize::try_from(n % WORDS.len() as u64).unwrap_or(0)]
}

/// `count` words, one token each, with a full stop after every eighth and at the end.
pub(crate) fn words(seed: u64, count: u64) -> String {
    let mut text = String::new();
    let mut state = seed;
    for n in 0..count {
        state = hash::mix(state.wrapping_add(0x9e37_79b9_7f4a_7c15));
        if n > 0 {
            text.push(' ');
        }
        text.push_str(word(state));
        if n % 8 == 7 || n + 1 == count {
            text.push('.');
        }
    }
    text
}
