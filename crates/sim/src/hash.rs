//! A small stable hash. Answers, prompt identities and cache keys must be the same in every build and process,
//! which the standard library's hasher does not promise.

/// FNV-1a over 64 bits with a mixing step at the end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hash(u64);

impl Hash {
    pub(crate) fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    pub(crate) fn add(&mut self, text: &str) {
        for byte in text.as_bytes() {
            self.step(*byte);
        }
        // A separator, so that ("ab", "c") and ("a", "bc") differ; 0xff is in no UTF-8 text.
        self.step(0xff);
    }

    pub(crate) fn finish(self) -> u64 {
        mix(self.0)
    }

    fn step(&mut self, byte: u8) {
        self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
}

/// The hash of one text.
pub(crate) fn of(text: &str) -> u64 {
    let mut hash = Hash::new();
    hash.add(text);
    hash.finish()
}

/// Spreads the bits of `x` (the finaliser of splitmix64).
pub(crate) fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_stable_and_keeps_parts_apart() {
        assert_eq!(of("wallpaper"), of("wallpaper"));
        assert_ne!(of("wallpaper"), of("wallpapes"));
        let (mut one, mut two) = (Hash::new(), Hash::new());
        one.add("ab");
        one.add("c");
        two.add("a");
        two.add("bc");
        assert_ne!(one.finish(), two.finish());
    }
}
