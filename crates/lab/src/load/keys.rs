//! The choice of keys: either all keys are equally frequent, or a few keys are much more frequent (Zipf).

use super::summary::float;

/// Maximum number of keys with a Zipf distribution. The table of probabilities needs 8 bytes of memory for each key.
pub const ZIPF_KEYS_MAX: u64 = 1_000_000;
/// Largest exponent of a Zipf distribution. With this exponent, 83 of 100 operations use the first key.
pub const ZIPF_MAX: f64 = 3.0;

/// A random choice among keys, which are numbered from 0.
#[derive(Debug)]
pub struct Keys {
    count: u64,
    /// For each key, the probability that an operation uses this key or a key with a smaller number; empty if all keys
    /// are equally frequent.
    at_most: Vec<f64>,
}

impl Keys {
    /// Returns a choice among `count` keys. With a Zipf exponent `s`, the probability of key `n` is proportional to 1 /
    /// (n + 1)^s.
    pub fn new(count: u64, zipf: Option<f64>) -> Keys {
        let mut at_most = Vec::new();
        if let Some(exponent) = zipf {
            let mut sum = 0.0;
            for rank in 1..=count.min(ZIPF_KEYS_MAX) {
                sum += float(rank).powf(-exponent);
                at_most.push(sum);
            }
            for chance in &mut at_most {
                *chance /= sum;
            }
        }
        Keys { count, at_most }
    }

    /// Returns a random key.
    pub fn draw(&self, random: &mut fastrand::Rng) -> u64 {
        if self.at_most.is_empty() {
            return random.u64(0..self.count);
        }
        let point = random.f64();
        let index = self.at_most.partition_point(|chance| *chance <= point);
        u64::try_from(index.min(self.at_most.len() - 1)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: usize = 100;
    const DRAWS: u32 = 100_000;

    fn counts(zipf: Option<f64>) -> Vec<f64> {
        let keys = Keys::new(100, zipf);
        let mut random = fastrand::Rng::with_seed(1);
        let mut counts = vec![0.0; KEYS];
        for _ in 0..DRAWS {
            counts[usize::try_from(keys.draw(&mut random)).unwrap()] += 1.0 / f64::from(DRAWS);
        }
        counts
    }

    #[test]
    fn every_key_is_as_likely_as_it_should_be() {
        for part in counts(None) {
            assert!((part - 0.01).abs() < 0.003, "{part}");
        }
        let exponent = 0.99;
        let sum: f64 = (1_u32..=100).map(|n| f64::from(n).powf(-exponent)).sum();
        for (rank, part) in (1_u32..).zip(counts(Some(exponent))) {
            let chance = f64::from(rank).powf(-exponent) / sum;
            assert!((part - chance).abs() < 0.01, "{rank}: {part} {chance}");
        }
    }
}
