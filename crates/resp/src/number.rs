//! Decimal numbers.

/// Maximum number of digits of a `u64`.
const U64_DIGITS_MAX: usize = 20;

/// Parses a decimal integer exactly as Redis does (`string2ll`). It may begin with a minus, has no leading zeros, no
/// plus and no spaces, and is in the range of `i64`.
#[must_use]
pub fn parse_integer(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text.strip_prefix(b"-") {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    if digits.is_empty() || (digits[0] == b'0' && text.len() > 1) {
        return None;
    }
    let mut value = 0i64;
    for &digit in digits {
        let digit = i64::from(digit.checked_sub(b'0').filter(|d| *d <= 9)?);
        let shifted = value.checked_mul(10)?;
        value = if negative {
            shifted.checked_sub(digit)?
        } else {
            shifted.checked_add(digit)?
        };
    }
    Some(value)
}

/// Appends the decimal digits of `number`.
pub(crate) fn write_number(out: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0u8; U64_DIGITS_MAX];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + u8::try_from(number % 10).expect("one digit");
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_those_of_redis() {
        for number in [0, 1, -1, 10, i64::MAX, i64::MIN] {
            assert_eq!(parse_integer(number.to_string().as_bytes()), Some(number));
        }
        for bad in [
            "",
            "-",
            "-0",
            "+1",
            "01",
            "00",
            " 1",
            "1 ",
            "1a",
            "9223372036854775808",
            "-9223372036854775809",
            "18446744073709551616",
        ] {
            assert_eq!(parse_integer(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn numbers_are_written_in_full() {
        for number in [0, 9, 10, 12_345, u64::MAX] {
            let mut out = b"x".to_vec();
            write_number(&mut out, number);
            assert_eq!(out, format!("x{number}").into_bytes());
        }
    }
}
