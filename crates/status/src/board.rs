//! Numbers that one loop writes and that other threads read.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// The numbers of one loop. The numbers begin at a cache line of their own. The alignment is two lines, because
/// processors fetch lines in pairs.
///
/// Only one thread may publish at a time, because it writes the words one by one. A reader may see some words of one
/// turn, and others of the next turn.
#[derive(Debug)]
#[repr(align(128))]
pub struct Board<const N: usize> {
    words: [AtomicU64; N],
}

impl<const N: usize> Default for Board<N> {
    fn default() -> Board<N> {
        Board {
            words: [const { AtomicU64::new(0) }; N],
        }
    }
}

impl<const N: usize> Board<N> {
    /// Publishes the numbers of a turn.
    #[inline]
    pub fn publish(&self, words: [u64; N]) {
        for (place, word) in self.words.iter().zip(words) {
            place.store(word, Relaxed);
        }
    }

    /// Returns the numbers that were published last.
    #[must_use]
    pub fn read(&self) -> [u64; N] {
        std::array::from_fn(|at| self.words[at].load(Relaxed))
    }
}

/// Number of slots of a [`Histogram`].
const SLOTS: usize = 40;

/// Counts of durations in nanoseconds, or of sizes. Slot `k` counts the values below 2^k that no earlier slot counts.
/// The last slot counts all larger values.
///
/// Only one thread may record at a time.
#[derive(Debug)]
#[repr(align(128))]
pub struct Histogram {
    slots: [AtomicU64; SLOTS],
    sum: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram {
            slots: [const { AtomicU64::new(0) }; SLOTS],
            sum: AtomicU64::new(0),
        }
    }
}

impl Histogram {
    /// Counts a value of this size `times` times.
    #[inline]
    pub fn record(&self, value: u64, times: u64) {
        let slot = usize::try_from(u64::BITS - value.leading_zeros())
            .map_or(SLOTS - 1, |slot| slot.min(SLOTS - 1));
        add(&self.slots[slot], times);
        add(&self.sum, value.saturating_mul(times));
    }

    /// Returns the counts so far. `unit`: the number of recorded units in one unit of the result (1e9 converts
    /// nanoseconds to seconds). `from` and `to`: exponents of the smallest and the largest bound in the result.
    #[must_use]
    pub fn read(&self, unit: f64, from: usize, to: usize) -> Shot {
        let counts: [u64; SLOTS] = std::array::from_fn(|at| self.slots[at].load(Relaxed));
        Shot::of(&counts, self.sum.load(Relaxed), unit, from, to)
    }
}

/// Adds to a word. Only the calling thread writes this word.
#[inline]
fn add(word: &AtomicU64, count: u64) {
    word.store(word.load(Relaxed).wrapping_add(count), Relaxed);
}

/// The state of a histogram at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Shot {
    /// The upper bound of each bucket, and the number of values in this bucket alone. The last bound is [`f64::MAX`],
    /// which stands for "no bound".
    pub buckets: Vec<(f64, u64)>,
    /// Sum of all values.
    pub sum: f64,
}

impl Shot {
    /// Makes a shot from slots whose bounds are powers of two: slot `k` counts the values below 2^k. The parameters are
    /// those of [`Histogram::read`].
    #[must_use]
    #[allow(clippy::cast_precision_loss)]
    pub fn of(counts: &[u64], sum: u64, unit: f64, from: usize, to: usize) -> Shot {
        let mut buckets: Vec<(f64, u64)> = (from..=to)
            .map(|k| ((1_u64 << k) as f64 / unit, 0))
            .collect();
        buckets.push((f64::MAX, 0));
        for (slot, count) in counts.iter().enumerate() {
            let last = slot + 1 == counts.len();
            let at = if last {
                buckets.len() - 1
            } else {
                slot.saturating_sub(from).min(buckets.len() - 1)
            };
            buckets[at].1 += count;
        }
        Shot {
            buckets,
            sum: sum as f64 / unit,
        }
    }

    /// Returns the number of values.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|(_, count)| count).sum()
    }

    /// Returns the upper bound of the bucket in which this quantile lies. `None`: there is no value, or the bucket has
    /// no bound.
    #[must_use]
    #[allow(clippy::cast_precision_loss)]
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let wanted = share * self.count() as f64;
        let mut seen = 0;
        for (bound, count) in &self.buckets {
            seen += count;
            if *count > 0 && seen as f64 >= wanted {
                return (*bound != f64::MAX).then_some(*bound);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_in_the_slots_whose_bounds_they_are_below() {
        let histogram = Histogram::default();
        for (value, times) in [(0, 1), (1023, 2), (1024, 3), (1 << 33, 4), (u64::MAX, 5)] {
            histogram.record(value, times);
        }
        let shot = histogram.read(1.0, 10, 34);
        assert_eq!(shot.buckets.first(), Some(&(1024.0, 3)));
        assert_eq!(shot.buckets[1], (2048.0, 3));
        assert_eq!(
            shot.buckets[shot.buckets.len() - 2],
            ((1_u64 << 34) as f64, 4)
        );
        assert_eq!(shot.buckets.last(), Some(&(f64::MAX, 5)));
        assert_eq!(shot.count(), 15);
    }

    #[test]
    fn a_quantile_is_the_bound_of_its_bucket() {
        let histogram = Histogram::default();
        assert_eq!(histogram.read(1e9, 10, 34).quantile(0.5), None);
        histogram.record(1500, 99);
        histogram.record(1 << 39, 1);
        let shot = histogram.read(1e9, 10, 34);
        assert_eq!(shot.quantile(0.5), Some(2048.0 / 1e9));
        assert_eq!(shot.quantile(0.99), Some(2048.0 / 1e9));
        assert_eq!(shot.quantile(1.0), None, "it has no bound");
    }

    /// A reader must never see a word that was not published.
    #[test]
    fn readers_see_published_words_only() {
        let board = Board::<9>::default();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| (1..200_000_u64).for_each(|turn| board.publish([turn; 9])));
            let mut before = [0; 9];
            while !writer.is_finished() {
                let now = board.read();
                assert!(
                    now.iter().zip(before).all(|(now, before)| *now >= before),
                    "{before:?} {now:?}"
                );
                before = now;
            }
        });
        assert_eq!(board.read(), [199_999; 9]);
        assert_eq!(std::mem::align_of::<Board<9>>(), 128);
    }
}
