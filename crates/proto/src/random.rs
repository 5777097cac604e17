//! Randomness as an argument: a small generator (SplitMix64) seeded by the caller.
//!
//! Without keys, tokens and nonces are no secrets for an attacker who sees the packets. If tokens and nonces are seeded
//! from the operating system, an attacker who does not see the packets cannot guess them.

/// A seeded random number generator.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Returns a generator whose whole sequence is determined by `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// Returns the next 64 bits.
    pub const fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns the next 64 bits that are not 0.
    pub const fn next_nonzero(&mut self) -> u64 {
        loop {
            let value = self.next_u64();
            if value != 0 {
                return value;
            }
        }
    }
}
