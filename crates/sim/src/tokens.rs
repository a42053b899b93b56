//! How many tokens a text has. Not a tokenizer, but lengths that behave like one.
//!
//! Two numbers differ on purpose: `estimate` is what the limiter guesses from the byte length before it knows better,
//! `Counter` is the "true" count that is billed and corrected to. The newer tokenizer needs about a third more.

use crate::models::Tokenizer;

/// Thousandths of a token per character of an alphabetic script.
fn milli_per_char(tokenizer: Tokenizer) -> u64 {
    match tokenizer {
        Tokenizer::Older => 294,
        Tokenizer::Newer => 400,
    }
}

/// Thousandths of a token per ideograph, kana, hangul or emoji.
fn milli_per_wide_char(tokenizer: Tokenizer) -> u64 {
    match tokenizer {
        Tokenizer::Older => 1_000,
        Tokenizer::Newer => 1_300,
    }
}

/// A guess from the byte length alone.
#[must_use]
pub fn estimate(bytes: u64, tokenizer: Tokenizer) -> u64 {
    (bytes.saturating_mul(milli_per_char(tokenizer))).div_ceil(1_000)
}

/// Adds texts up to a token count.
#[derive(Clone, Copy, Debug)]
pub struct Counter {
    tokenizer: Tokenizer,
    milli: u64,
}

impl Counter {
    /// An empty count.
    #[must_use]
    pub fn new(tokenizer: Tokenizer) -> Self {
        Self {
            tokenizer,
            milli: 0,
        }
    }

    /// Adds a text.
    pub fn text(&mut self, text: &str) {
        let (mut narrow, mut wide) = (text.len() as u64, 0);
        if !text.is_ascii() {
            let chars = text.chars();
            let (all, wides) = chars.fold((0, 0), |(all, wides), c| {
                (all + 1, wides + u64::from(c >= '\u{2e80}'))
            });
            (narrow, wide) = (all - wides, wides);
        }
        self.milli +=
            narrow * milli_per_char(self.tokenizer) + wide * milli_per_wide_char(self.tokenizer);
    }

    /// Adds whole tokens: message frames, images.
    pub fn whole(&mut self, tokens: u64) {
        self.milli += tokens * 1_000;
    }

    /// The count so far, rounded up.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.milli.div_ceil(1_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(text: &str, tokenizer: Tokenizer) -> u64 {
        let mut counter = Counter::new(tokenizer);
        counter.text(text);
        counter.total()
    }

    #[test]
    fn the_newer_tokenizer_needs_about_a_third_more() {
        let text = "a quiet wide picture of a lighthouse in the mist ".repeat(100);
        let (older, newer) = (
            count(&text, Tokenizer::Older),
            count(&text, Tokenizer::Newer),
        );
        assert_eq!(older, 1_441);
        assert_eq!(newer, 1_960);
    }

    #[test]
    fn ideographs_cost_a_token_each() {
        assert_eq!(count("静かな", Tokenizer::Older), 3);
        assert_eq!(count("été", Tokenizer::Older), 1);
    }

    #[test]
    fn the_estimate_comes_from_bytes_and_may_be_off() {
        assert_eq!(estimate(1_000, Tokenizer::Older), 294);
        let kana = "静かな".repeat(100);
        assert!(estimate(kana.len() as u64, Tokenizer::Older) < count(&kana, Tokenizer::Older));
    }
}
