//! Whole numbers of any size, for the exact conversion of floating-point text.

/// A natural number as a list of 32-bit digits, the lowest digit first, without zeros at the highest places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Big(Vec<u32>);

/// Bits of one digit.
const DIGIT_BITS: usize = 32;
/// Divisor with which a group of decimal digits is split off when a number is written, and the number of digits in the
/// group.
const DECIMAL: (u32, usize) = (1_000_000_000, 9);

impl Big {
    /// Returns the number `value`.
    pub fn new(value: u64) -> Big {
        let mut big = Big(vec![low(value), low(value >> DIGIT_BITS)]);
        big.trim();
        big
    }

    fn trim(&mut self) {
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
    }

    /// Returns whether the number is 0.
    pub fn is_zero(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of bits up to the highest set bit.
    pub fn bits(&self) -> usize {
        self.0.last().map_or(0, |top| {
            self.0.len() * DIGIT_BITS - usize::try_from(top.leading_zeros()).unwrap_or(0)
        })
    }

    /// Multiplies the number by `factor`, and then adds `more`.
    pub fn multiply_add(&mut self, factor: u32, more: u32) {
        let mut carry = u64::from(more);
        for digit in &mut self.0 {
            carry += u64::from(*digit) * u64::from(factor);
            *digit = low(carry);
            carry >>= DIGIT_BITS;
        }
        if carry > 0 {
            self.0.push(low(carry));
        }
        self.trim();
    }

    /// Multiplies by `10^power`.
    pub fn scale(&mut self, power: usize) {
        for _ in 0..power / DECIMAL.1 {
            self.multiply_add(DECIMAL.0, 0);
        }
        for _ in 0..power % DECIMAL.1 {
            self.multiply_add(10, 0);
        }
    }

    /// Returns `self * 2^count`.
    pub fn shifted_left(&self, count: usize) -> Big {
        let (digits, bits) = (count / DIGIT_BITS, count % DIGIT_BITS);
        let mut out = vec![0; digits];
        let mut carry = 0u64;
        for digit in &self.0 {
            carry |= u64::from(*digit) << bits;
            out.push(low(carry));
            carry >>= DIGIT_BITS;
        }
        out.push(low(carry));
        let mut out = Big(out);
        out.trim();
        out
    }

    /// Returns `self / 2^count` rounded down, and the comparison of the remainder with half of `2^count`.
    pub fn shifted_right(&self, count: usize) -> (Big, std::cmp::Ordering) {
        let mut out = Big(self.0.get(count / DIGIT_BITS..).unwrap_or(&[]).to_vec());
        let bits = count % DIGIT_BITS;
        let mut carry = 0u32;
        for digit in out.0.iter_mut().rev() {
            let whole = (u64::from(carry) << DIGIT_BITS) | u64::from(*digit);
            carry = *digit & ((1 << bits) - 1);
            *digit = low(whole >> bits);
        }
        out.trim();
        let half = match count {
            0 => return (out, std::cmp::Ordering::Less),
            _ => Big::new(1).shifted_left(count - 1),
        };
        let mut lost = self.clone();
        lost.subtract(&out.shifted_left(count));
        (out, lost.compare(&half))
    }

    /// Compares two numbers.
    pub fn compare(&self, other: &Big) -> std::cmp::Ordering {
        let lengths = self.0.len().cmp(&other.0.len());
        lengths.then_with(|| self.0.iter().rev().cmp(other.0.iter().rev()))
    }

    /// Adds `other` to the number.
    pub fn add(&mut self, other: &Big) {
        let mut carry = 0u64;
        let length = self.0.len().max(other.0.len()) + 1;
        self.0.resize(length, 0);
        for (at, digit) in self.0.iter_mut().enumerate() {
            carry += u64::from(*digit) + u64::from(other.0.get(at).copied().unwrap_or(0));
            *digit = low(carry);
            carry >>= DIGIT_BITS;
        }
        self.trim();
    }

    /// Subtracts `other` from the number, which must not be smaller than `other`.
    pub fn subtract(&mut self, other: &Big) {
        let mut borrow = 0i64;
        for (at, digit) in self.0.iter_mut().enumerate() {
            let less = i64::from(other.0.get(at).copied().unwrap_or(0));
            let value = i64::from(*digit) - less + borrow;
            borrow = value >> DIGIT_BITS;
            *digit = low(value.rem_euclid(1 << DIGIT_BITS).unsigned_abs());
        }
        self.trim();
    }

    /// Returns the decimal digits of the number; "0" for 0.
    pub fn decimal(mut self) -> String {
        let mut groups = Vec::new();
        while !self.is_zero() {
            let mut rest = 0u64;
            for digit in self.0.iter_mut().rev() {
                let whole = (rest << DIGIT_BITS) | u64::from(*digit);
                *digit = low(whole / u64::from(DECIMAL.0));
                rest = whole % u64::from(DECIMAL.0);
            }
            self.trim();
            groups.push(rest);
        }
        let mut out = groups.pop().unwrap_or(0).to_string();
        for group in groups.iter().rev() {
            out += &format!("{group:0width$}", width = DECIMAL.1);
        }
        out
    }
}

/// Returns the lowest 32 bits.
fn low(value: u64) -> u32 {
    u32::try_from(value & u64::from(u32::MAX)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn big(text: &str) -> Big {
        let mut out = Big::new(0);
        for digit in text.bytes() {
            out.multiply_add(10, u32::from(digit - b'0'));
        }
        out
    }

    #[test]
    fn numbers_of_many_digits_are_exact() {
        let text = "340282366920938463463374607431768211456";
        let two_to_128 = Big::new(1).shifted_left(128);
        assert_eq!(two_to_128.clone().decimal(), text);
        assert_eq!(big(text), two_to_128);
        assert_eq!(two_to_128.bits(), 129);
        let mut ten = Big::new(7);
        ten.scale(20);
        assert_eq!(ten.decimal(), "700000000000000000000");
        let mut sum = two_to_128.clone();
        sum.add(&Big::new(5));
        assert_eq!(
            sum.clone().decimal(),
            "340282366920938463463374607431768211461"
        );
        sum.subtract(&two_to_128);
        assert_eq!(sum, Big::new(5));
        let mut full = Big::new(u64::MAX);
        full.add(&Big::new(1));
        assert_eq!(full.decimal(), "18446744073709551616");
        assert_eq!(Big::new(0).decimal(), "0");
        assert_eq!(Big::new(0).bits(), 0);
    }

    #[test]
    fn a_shift_to_the_right_says_what_it_loses() {
        use std::cmp::Ordering::{Equal, Greater, Less};
        let number = Big::new(0b1_0110_1000).shifted_left(40);
        for (count, wanted, lost) in [
            (0, number.clone(), Less),
            (43, Big::new(0b10_1101), Less),
            (44, Big::new(0b1_0110), Equal),
            (45, Big::new(0b1011), Less),
            (46, Big::new(0b101), Greater),
            (60, Big::new(0), Less),
        ] {
            assert_eq!(number.shifted_right(count), (wanted, lost), "{count}");
        }
    }
}
