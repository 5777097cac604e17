//! How much time the caller of a bypass still has, in the one byte `copies` of its header
//! (`docs/spec/wire.md` §2 "Bypass").
//!
//! A floating-point number of milliseconds with three bits of mantissa: byte b > 0 stands for
//! `(8 + m) << e` eighths of a millisecond, where `e = (b - 1) / 8` and `m = (b - 1) % 8`. So 1 is one
//! millisecond, 255 about 46 days. 0 says nothing: no limit.

/// Nanoseconds in the unit, an eighth of a millisecond.
const UNIT_NANOS: u64 = 125_000;

/// The byte for this many nanoseconds, rounded up by less than an eighth. Never 0: what is below a
/// millisecond is 1, what is beyond 255 is 255.
#[must_use]
pub fn encode(nanos: u64) -> u8 {
    let units = nanos.div_ceil(UNIT_NANOS).max(8);
    // With `e` shifted out, four bits are left, the highest of them set.
    let exponent = 60 - units.leading_zeros();
    let rounded = units.div_ceil(1 << exponent);
    let number = u64::from(exponent) * 8 + (rounded - 8) + 1;
    u8::try_from(number).unwrap_or(u8::MAX)
}

/// Nanoseconds that the byte stands for; `None`: no limit.
#[must_use]
pub fn decode(byte: u8) -> Option<u64> {
    let number = u64::from(byte.checked_sub(1)?);
    Some((8 + number % 8) << (number / 8)).map(|units| units * UNIT_NANOS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_the_byte_of_its_own_time() {
        assert_eq!(decode(0), None);
        for byte in 1..=u8::MAX {
            let nanos = decode(byte).expect("a limit");
            assert_eq!(encode(nanos), byte);
            if byte < u8::MAX {
                assert_eq!(encode(nanos + 1), byte + 1, "never rounded down");
            }
        }
    }

    #[test]
    fn rounding_is_up_and_by_less_than_an_eighth() {
        let mut nanos: u64 = 1_000_000;
        while nanos < 40 * 86_400 * 1_000_000_000 {
            for near in [nanos - 1, nanos, nanos + 1] {
                let shown = decode(encode(near)).expect("a limit");
                assert!(
                    near <= shown && shown - near <= near / 8 + UNIT_NANOS,
                    "{near}"
                );
            }
            nanos += nanos / 5;
        }
        assert_eq!((encode(0), encode(1), encode(u64::MAX)), (1, 1, 255));
    }
}
