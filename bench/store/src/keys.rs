//! Chooses the keys of operations, and makes their values.

use crate::plan::Choice;

/// Exponent of the Zipf distribution.
const ZIPF: f64 = 0.99;
/// Distances between the keys of consecutive ranks. The first distance that is coprime to the
/// number of keys is used. So keys that are loaded one after the other, or that are used similarly
/// often, are not adjacent in the order of keys.
const STRIDES: [u64; 2] = [7919, 7907];
/// Number of random bytes from which values are cut. The bytes are random, so that no store can
/// compress values.
const NOISE_BYTES: usize = 128 << 10;

/// Draws keys with the distribution of a [`Choice`].
pub struct Keys {
    count: u64,
    stride: u64,
    random: fastrand::Rng,
    /// For each rank, the probability of this rank or an earlier one; empty if all ranks are
    /// equally likely.
    at_most: Vec<f64>,
}

impl Keys {
    /// Returns a generator of `count` different keys.
    #[must_use]
    pub fn new(count: u64, choice: Choice, seed: u64) -> Keys {
        let mut at_most = Vec::new();
        if choice == Choice::Zipf {
            let mut sum = 0.0;
            let mut rank = 0.0;
            for _ in 0..count {
                rank += 1.0;
                sum += f64::powf(rank, -ZIPF);
                at_most.push(sum);
            }
            at_most.iter_mut().for_each(|chance| *chance /= sum);
        }
        let coprime = |stride: &&u64| !count.is_multiple_of(**stride);
        Keys {
            count,
            stride: STRIDES.iter().find(coprime).copied().unwrap_or(1),
            random: fastrand::Rng::with_seed(seed),
            at_most,
        }
    }

    /// Returns the key of this rank.
    #[must_use]
    pub fn at(&self, rank: u64) -> u64 {
        rank.wrapping_mul(self.stride) % self.count
    }

    /// Draws the number of a key.
    pub fn draw(&mut self) -> u64 {
        if self.at_most.is_empty() {
            return self.random.u64(0..self.count);
        }
        let point = self.random.f64();
        let rank = self.at_most.partition_point(|chance| *chance <= point);
        self.at(u64::try_from(rank.min(self.at_most.len() - 1)).unwrap_or(0))
    }

    /// Draws true or false with equal probability.
    pub fn coin(&mut self) -> bool {
        self.random.bool()
    }
}

/// Returns the 16-byte key of this number.
#[must_use]
pub fn name(number: u64) -> Vec<u8> {
    format!("key:{number:012}").into_bytes()
}

/// Makes values that contain their key and version.
pub struct Values {
    noise: Vec<u8>,
    bytes: usize,
    version: u64,
}

impl Values {
    /// Returns values of this size in bytes.
    #[must_use]
    pub fn new(bytes: usize) -> Values {
        let mut noise = vec![0; NOISE_BYTES];
        fastrand::Rng::with_seed(11).fill(&mut noise);
        Values {
            noise,
            bytes,
            version: 0,
        }
    }

    /// Returns the next value of this key.
    pub fn next(&mut self, key: u64) -> Vec<u8> {
        self.version += 1;
        let mut value = Vec::with_capacity(self.bytes);
        value.extend_from_slice(&key.to_le_bytes());
        value.extend_from_slice(&self.version.to_le_bytes());
        let rest = self.bytes - value.len();
        let places = u64::try_from(self.noise.len() - rest).unwrap_or(0);
        let start = usize::try_from(self.version.wrapping_mul(0x9e37_79b9) % places).unwrap_or(0);
        value.extend_from_slice(&self.noise[start..start + rest]);
        value
    }

    /// Returns whether the first bytes of the value have this key.
    #[must_use]
    pub fn is_of(&self, value: &[u8], key: u64) -> bool {
        value.len() == self.bytes && value[..8] == key.to_le_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rank_is_a_key_of_its_own() {
        for count in [1000, 7919] {
            let keys = Keys::new(count, Choice::Uniform, 1);
            let all: std::collections::BTreeSet<_> = (0..count).map(|rank| keys.at(rank)).collect();
            assert_eq!(u64::try_from(all.len()).unwrap(), count);
            assert!(all.iter().all(|key| *key < count));
        }
    }

    #[test]
    fn few_keys_are_drawn_often() {
        let mut keys = Keys::new(1000, Choice::Zipf, 1);
        let first = keys.at(0);
        let drawn = (0..10_000).filter(|_| keys.draw() == first).count();
        assert!((1000..1700).contains(&drawn), "{drawn} of 10,000");
    }

    #[test]
    fn a_value_knows_its_key() {
        let mut values = Values::new(50);
        let value = values.next(7);
        assert!(
            values.is_of(&value, 7) && !values.is_of(&value, 8) && !values.is_of(&value[1..], 7)
        );
        assert_ne!(values.next(7), value);
    }
}
