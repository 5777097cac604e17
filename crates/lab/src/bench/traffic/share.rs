//! Compares one variant's figures with those of a baseline, round by round.

use serde::Serialize;

/// The ratio of a variant to its baseline: 1 means equal, less than 1 means slower. The values are statistics over the
/// rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Share {
    /// The median of the ratios.
    pub median: f64,
    /// Lower end of an interval that contains the true median with a confidence of at least 95 %. With fewer than six
    /// rounds: the minimum.
    pub low: f64,
    /// Upper end of the interval of `low`. With fewer than six rounds: the maximum.
    pub high: f64,
}

impl Share {
    /// Compares the figures of each round with those of the baseline. Returns `None` if there are no rounds, or if a
    /// figure of the baseline is zero.
    #[must_use]
    pub fn of(own: &[f64], baseline: &[f64], less_is_better: bool) -> Option<Share> {
        let mut shares: Vec<f64> = own
            .iter()
            .zip(baseline)
            .map(|(own, baseline)| {
                if less_is_better {
                    baseline / own
                } else {
                    own / baseline
                }
            })
            .filter(|share| share.is_finite())
            .collect();
        shares.sort_by(f64::total_cmp);
        let beyond = beyond(shares.len());
        Some(Share {
            median: median(&shares)?,
            low: *shares.get(beyond)?,
            high: *shares.get(shares.len() - 1 - beyond)?,
        })
    }
}

/// Returns how many of `count` sorted figures lie below the 95 % interval of their median. Equally many figures lie
/// above the interval. Each figure lies below or above the true median with equal probability. So the result is the
/// largest number for which both tails of the binomial distribution together have at most 5 %.
fn beyond(count: usize) -> usize {
    let mut beyond = 0;
    let mut chance = (0..count).fold(1.0, |chance, _| chance / 2.0);
    let mut below = chance;
    while below <= 0.025 && beyond < count / 2 {
        beyond += 1;
        chance *= (count + 1 - beyond) as f64 / beyond as f64;
        below += chance;
    }
    beyond.saturating_sub(1)
}

/// Returns the median. For an even number of values, the median is the mean of the two middle values.
#[must_use]
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    if sorted.len() % 2 == 1 {
        return Some(upper);
    }
    sorted
        .get(sorted.len() / 2 - 1)
        .map(|lower| f64::midpoint(*lower, upper))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9
    }

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert!(near(median(&[3.0, 1.0, 2.0]).unwrap(), 2.0));
        assert!(near(median(&[4.0, 1.0, 2.0, 3.0]).unwrap(), 2.5));
    }

    #[test]
    fn shares_are_of_the_same_round() {
        // In the second round the machine was twice as fast, for both variants.
        let share = Share::of(&[0.9, 2.0, 1.1], &[1.0, 2.0, 1.0], false).unwrap();
        assert!(near(share.median, 1.0) && near(share.low, 0.9) && near(share.high, 1.1));
    }

    #[test]
    fn intervals_are_those_of_the_tables() {
        // Ranks for the 95 % interval of the median, from tables of order statistics: 1 and 6, 2 and 9, 6 and 15, 14
        // and 27, 40 and 61.
        for (count, rank) in [(1, 1), (5, 1), (6, 1), (9, 2), (20, 6), (40, 14), (100, 40)] {
            assert_eq!(beyond(count) + 1, rank, "of {count}");
        }
    }

    #[test]
    fn a_longer_time_is_less_too() {
        let share = Share::of(&[20.0], &[10.0], true).unwrap();
        assert!(near(share.median, 0.5));
    }

    #[test]
    fn nothing_to_compare() {
        assert_eq!(Share::of(&[], &[], false), None);
        assert_eq!(Share::of(&[1.0], &[], false), None);
        assert_eq!(Share::of(&[1.0], &[0.0], false), None);
        let share = Share::of(&[1.0, 1.0], &[0.0, 2.0], false).unwrap();
        assert!(near(share.median, 0.5) && near(share.high, 0.5));
    }
}
