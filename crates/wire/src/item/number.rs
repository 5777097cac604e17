//! Reads numbers as memcached does, with C's `strtoll` and `strtoull`.

/// Returns sign and magnitude of the number at the beginning, after leading blanks. The number must end at a blank, at
/// a NUL, or with the text.
fn magnitude(text: &[u8]) -> Option<(bool, u64)> {
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t'..=b'\r');
    let begin = text.iter().position(|byte| !is_blank(byte))?;
    let text = &text[begin..];
    let (negative, digits) = match text.first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let count = digits
        .iter()
        .position(|byte| !byte.is_ascii_digit())
        .unwrap_or(digits.len());
    let ends = digits
        .get(count)
        .is_none_or(|byte| is_blank(byte) || *byte == 0);
    let digits = std::str::from_utf8(&digits[..count]).ok()?;
    Some((negative, digits.parse().ok().filter(|_| ends)?))
}

/// Returns an unsigned number of 64 bits. Like memcached, the function also accepts some numbers below -2^63, modulo
/// 2^64.
#[must_use]
pub fn c_unsigned(text: &[u8]) -> Option<u64> {
    let (negative, value) = magnitude(text)?;
    (!negative || value == 0).then_some(value)
}

/// Returns a signed number of 64 bits.
#[must_use]
pub fn c_integer(text: &[u8]) -> Option<i64> {
    match magnitude(text)? {
        (true, value) => 0i64.checked_sub_unsigned(value),
        (false, value) => i64::try_from(value).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_c_reads_them() {
        for (text, unsigned, signed) in [
            ("0", Some(0), Some(0)),
            ("007", Some(7), Some(7)),
            (" \t\r\n7", Some(7), Some(7)),
            ("7 x", Some(7), Some(7)),
            ("7\0x", Some(7), Some(7)),
            ("+7", Some(7), Some(7)),
            ("-7", None, Some(-7)),
            ("-0", Some(0), Some(0)),
            ("18446744073709551615", Some(u64::MAX), None),
            ("18446744073709551616", None, None),
            ("9223372036854775808", Some(1 << 63), None),
            ("-9223372036854775808", None, Some(i64::MIN)),
            ("-9223372036854775809", None, None),
            ("", None, None),
            (" ", None, None),
            ("x", None, None),
            ("7x", None, None),
            ("- 7", None, None),
            ("+-7", None, None),
        ] {
            assert_eq!(c_unsigned(text.as_bytes()), unsigned, "{text:?}");
            assert_eq!(c_integer(text.as_bytes()), signed, "{text:?}");
        }
    }
}
