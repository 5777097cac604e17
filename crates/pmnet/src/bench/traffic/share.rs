//! How much is left: one variant's figures compared with another's, round by round.

use serde::Serialize;

/// What is left of a baseline: 1 is all of it, below 1 is slower. Of the rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Share {
    /// Median.
    pub median: f64,
    /// Least.
    pub least: f64,
    /// Most.
    pub most: f64,
}

impl Share {
    /// Compares figures of the same rounds; nothing if there are none, or the baseline was zero.
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
        Some(Share {
            median: median(&shares)?,
            least: *shares.first()?,
            most: *shares.last()?,
        })
    }
}

/// Of an even number the mean of the two in the middle.
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
        // The machine was twice as fast in the second round; that is nobody's merit.
        let share = Share::of(&[0.9, 2.0, 1.1], &[1.0, 2.0, 1.0], false).unwrap();
        assert!(near(share.median, 1.0) && near(share.least, 0.9) && near(share.most, 1.1));
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
        assert!(near(share.median, 0.5) && near(share.most, 0.5));
    }
}
