//! Long doubles as the C library on x86 reads, adds and writes them: 80 bits, `strtold` and `%.17Lf`. `INCRBYFLOAT` and
//! `HINCRBYFLOAT` of Redis compute with long doubles.

use std::cmp::Ordering;

use super::big::Big;
use super::float::{Format, Rounded, Text, round, round_text, scan};

/// Longest text that Redis reads as a long double, in bytes.
const TEXT_BYTES_MAX: usize = 5 * 1024 - 1;
/// Number of digits after the point that Redis writes.
const PLACES: usize = 17;

const LONG_DOUBLE: Format = Format {
    bits: 64,
    low_min: -16445,
    low_max: 16320,
};

/// A finite number of the 80-bit format, or an infinity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Long {
    negative: bool,
    /// Mantissa and exponent of the number; `None`: infinity.
    value: Option<(u64, i64)>,
}

impl Long {
    /// The number zero.
    pub const ZERO: Long = Long {
        negative: false,
        value: Some((0, 0)),
    };

    /// Reads a text. The whole text must be a number within the range of the format, without leading white space; "nan"
    /// is refused.
    pub fn parse(text: &[u8]) -> Option<Long> {
        if text.len() > TEXT_BYTES_MAX {
            return None;
        }
        let (negative, number, length) = scan(text)?;
        if length != text.len() {
            return None;
        }
        let value = match number {
            Text::NotANumber => return None,
            Text::Infinite => None,
            Text::Finite {
                digits,
                hexadecimal,
                exponent,
            } => match round_text(&digits, hexadecimal, exponent, &LONG_DOUBLE) {
                Rounded::Over => return None,
                Rounded::Finite { mantissa: 0, .. } if digits.iter().any(|d| *d != 0) => {
                    return None;
                }
                Rounded::Finite { mantissa, low } => Some((mantissa, low)),
            },
        };
        Some(Long { negative, value })
    }

    /// Returns whether the number is finite.
    pub fn is_finite(self) -> bool {
        self.value.is_some()
    }

    /// Returns the rounded sum; `None` if the sum is infinite or not a number.
    pub fn plus(self, other: Long) -> Option<Long> {
        let ((a, a_low), (b, b_low)) = (self.value?, other.value?);
        let low = a_low.min(b_low);
        let shift = |from: i64| usize::try_from(from - low).unwrap_or(0);
        let mut first = Big::new(a).shifted_left(shift(a_low));
        let mut second = Big::new(b).shifted_left(shift(b_low));
        let mut negative = self.negative;
        if self.negative == other.negative {
            first.add(&second);
        } else {
            if first.compare(&second) == Ordering::Less {
                std::mem::swap(&mut first, &mut second);
                negative = other.negative;
            }
            first.subtract(&second);
            negative &= !first.is_zero();
        }
        match round(&first, &Big::new(1), low, &LONG_DOUBLE) {
            Rounded::Over => None,
            Rounded::Finite { mantissa, low } => Some(Long {
                negative,
                value: Some((mantissa, low)),
            }),
        }
    }

    /// Returns the number in the form `%.17Lf` without trailing zeros, as Redis shows results.
    pub fn text(self) -> String {
        let sign = if self.negative { "-" } else { "" };
        let Some((mantissa, low)) = self.value else {
            return format!("{sign}inf");
        };
        let mut scaled = Big::new(mantissa);
        scaled.scale(PLACES);
        let amount = usize::try_from(low.unsigned_abs()).unwrap_or(0);
        let scaled = if low >= 0 {
            scaled.shifted_left(amount)
        } else {
            let (mut down, lost) = scaled.shifted_right(amount);
            let odd = down.shifted_right(1).1 == Ordering::Equal;
            if lost == Ordering::Greater || (lost == Ordering::Equal && odd) {
                down.add(&Big::new(1));
            }
            down
        };
        let digits = format!("{:0>width$}", scaled.decimal(), width = PLACES + 1);
        let (whole, fraction) = digits.split_at(digits.len() - PLACES);
        let fraction = fraction.trim_end_matches('0');
        match (whole, fraction) {
            ("0", "") => "0".into(),
            (_, "") => format!("{sign}{whole}"),
            _ => format!("{sign}{whole}.{fraction}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_doubles_are_added_as_on_x86() {
        let sum = |a: &str, b: &str| {
            let (a, b) = (Long::parse(a.as_bytes()), Long::parse(b.as_bytes()));
            a.unwrap().plus(b.unwrap()).map(Long::text)
        };
        for (a, b, wanted) in [
            ("0.1", "0.2", "0.3"),
            ("10.50", "0.1", "10.6"),
            ("5.0e3", "200", "5200"),
            ("3", "-3", "0"),
            ("-1", "0.5", "-0.5"),
            ("1e-30", "0", "0"),
            ("-1e-30", "0", "0"),
            ("17179869184", "1.5", "17179869185.5"),
            ("18446744073709551616", "1", "18446744073709551616"),
            ("18446744073709551615", "0", "18446744073709551615"),
            ("1.23456789012345678", "0", "1.23456789012345678"),
            ("0.99999999999999999999", "0", "1"),
        ] {
            assert_eq!(sum(a, b).as_deref(), Some(wanted), "{a} + {b}");
        }
        assert_eq!(sum("1e4932", "1e4932"), None);
        assert_eq!(sum("inf", "1"), None);
        assert_eq!(Long::parse(b"1e5000"), None);
        assert_eq!(Long::parse(b"1e-5000"), None);
        assert_eq!(Long::parse(b"nan"), None);
        assert_eq!(Long::parse(b" 1"), None);
        assert!(Long::parse(b"1e-4940").is_some());
        assert_eq!(Long::ZERO.text(), "0");
    }
}
