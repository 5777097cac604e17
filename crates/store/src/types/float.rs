//! Floating-point numbers as the C library reads and writes them: `strtod` and `%.17g`.
//!
//! Redis passes the text of its clients to the C library, so its replies depend on the rules of the C library.

use std::cmp::Ordering;

use super::big::Big;

/// Number of significant digits of `%.17g`.
const SIGNIFICANT: i32 = 17;
/// Number of digits after the point if there is one digit before the point.
const PLACES_BEHIND_ONE: usize = 16;
/// Exponent beyond which a number is infinite or zero in every format.
const EXPONENT_MAX: i64 = 100_000;

/// A binary floating-point format: the number of bits of the mantissa, and the lowest and highest exponents of the
/// mantissa's lowest bit.
pub struct Format {
    pub bits: usize,
    pub low_min: i64,
    pub low_max: i64,
}

const DOUBLE: Format = Format {
    bits: 53,
    low_min: -1074,
    low_max: 971,
};

/// The value of a text before rounding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Text {
    Infinite,
    NotANumber,
    /// The number `digits * base^exponent`; hexadecimal digits have a binary exponent.
    Finite {
        digits: Vec<u8>,
        hexadecimal: bool,
        exponent: i64,
    },
}

/// A rounded number without its sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounded {
    /// The number is too large for the format.
    Over,
    /// The number `mantissa * 2^low`. A mantissa of 0 may stand for a number that is too small for the format.
    Finite { mantissa: u64, low: i64 },
}

/// Reads a number at the start of a text like `strtod`, but without leading white space. Returns the sign, the number,
/// and the length of its text in bytes; `None` if there is no number.
pub fn scan(text: &[u8]) -> Option<(bool, Text, usize)> {
    let negative = text.first() == Some(&b'-');
    let start = usize::from(matches!(text.first(), Some(b'-' | b'+')));
    let rest = &text[start..];
    let begins = |word: &str| {
        rest.get(..word.len())
            .is_some_and(|begin| begin.eq_ignore_ascii_case(word.as_bytes()))
    };
    for word in ["infinity", "inf"] {
        if begins(word) {
            return Some((negative, Text::Infinite, start + word.len()));
        }
    }
    if begins("nan") {
        return Some((negative, Text::NotANumber, start + not_a_number(rest)));
    }
    let hexadecimal = begins("0x") && digits(&rest[2..], true).is_some();
    let from = if hexadecimal { 2 } else { 0 };
    let (found, mut exponent, length) = digits(&rest[from..], hexadecimal)?;
    let mut end = from + length;
    if hexadecimal {
        exponent *= 4;
    }
    if let Some((more, length)) = exponent_part(&rest[end..], hexadecimal) {
        exponent += more;
        end += length;
    }
    let text = Text::Finite {
        digits: found,
        hexadecimal,
        exponent,
    };
    Some((negative, text, start + end))
}

/// Returns the length of `nan` or `nan(letters)` at the start of `rest`.
fn not_a_number(rest: &[u8]) -> usize {
    let payload = rest.get(3..).and_then(|tail| {
        let inside = tail.strip_prefix(b"(")?;
        let end = inside
            .iter()
            .position(|b| !b.is_ascii_alphanumeric() && *b != b'_')?;
        (inside[end] == b')').then_some(end + 2)
    });
    3 + payload.unwrap_or(0)
}

/// Reads digits with at most one point. Returns the values of the digits, the negated number of digits after the point,
/// and the length of the text. `None`: there is no digit.
fn digits(text: &[u8], hexadecimal: bool) -> Option<(Vec<u8>, i64, usize)> {
    let radix = if hexadecimal { 16 } else { 10 };
    let (mut found, mut behind, mut point, mut length) = (Vec::new(), 0, false, 0);
    for &byte in text {
        if byte == b'.' && !point {
            point = true;
        } else if let Some(digit) = char::from(byte).to_digit(radix) {
            found.push(u8::try_from(digit).unwrap_or(0));
            behind += i64::from(point);
        } else {
            break;
        }
        length += 1;
    }
    (!found.is_empty()).then_some((found, -behind, length))
}

/// Returns an exponent, and the length of its text with the letter before it. Large exponents are limited to
/// [`EXPONENT_MAX`].
fn exponent_part(text: &[u8], hexadecimal: bool) -> Option<(i64, usize)> {
    let letter = if hexadecimal { b'p' } else { b'e' };
    if text.first()?.to_ascii_lowercase() != letter {
        return None;
    }
    let signed = matches!(text.get(1), Some(b'-' | b'+'));
    let from = 1 + usize::from(signed);
    let count = text[from..]
        .iter()
        .take_while(|b| b.is_ascii_digit())
        .count();
    if count == 0 {
        return None;
    }
    let value = text[from..from + count].iter().fold(0i64, |value, digit| {
        (value * 10 + i64::from(digit - b'0')).min(100 * EXPONENT_MAX)
    });
    let negative = text[1] == b'-';
    Some((if negative { -value } else { value }, from + count))
}

/// Rounds `numerator / denominator * 2^exponent` to the nearest number of the format, ties to even.
pub fn round(numerator: &Big, denominator: &Big, exponent: i64, format: &Format) -> Rounded {
    if numerator.is_zero() {
        return Rounded::Finite {
            mantissa: 0,
            low: format.low_min,
        };
    }
    let signed = |bits: usize| i64::try_from(bits).unwrap_or(i64::MAX);
    let bits = signed(format.bits);
    // Returns the exponent of the lowest bit for a quotient that has as many bits as the format, or one more.
    let excess = signed(numerator.bits()) - signed(denominator.bits()) - bits;
    let low = (exponent + excess).max(format.low_min);
    let shift = low - exponent;
    let amount = |shift: i64| usize::try_from(shift.max(0)).unwrap_or(usize::MAX);
    let top = numerator.shifted_left(amount(-shift));
    let under = denominator.shifted_left(amount(shift));
    let (mut mantissa, rest) = divide(top, &under);
    let half = rest.shifted_left(1).compare(&under);
    let mut low = low;
    let mut up = half == Ordering::Greater || (half == Ordering::Equal && mantissa & 1 == 1);
    if mantissa >> format.bits != 0 {
        // The quotient has one bit more than the format. This bit and the remainder decide how to round.
        let (odd, behind) = (mantissa & 1 == 1, !rest.is_zero());
        mantissa >>= 1;
        low += 1;
        up = odd && (behind || mantissa & 1 == 1);
    }
    mantissa += u128::from(up);
    if mantissa >> format.bits != 0 {
        mantissa >>= 1;
        low += 1;
    }
    if low > format.low_max {
        return Rounded::Over;
    }
    Rounded::Finite {
        mantissa: u64::try_from(mantissa).unwrap_or(u64::MAX),
        low,
    }
}

/// Returns the quotient, of at most 66 bits, and the remainder.
fn divide(mut top: Big, under: &Big) -> (u128, Big) {
    let mut quotient = 0u128;
    let steps = top.bits().saturating_sub(under.bits());
    for shift in (0..=steps).rev() {
        let part = under.shifted_left(shift);
        quotient <<= 1;
        if top.compare(&part) != Ordering::Less {
            top.subtract(&part);
            quotient |= 1;
        }
    }
    (quotient, top)
}

/// Rounds the number in a text to the format.
pub fn round_text(digits: &[u8], hexadecimal: bool, exponent: i64, format: &Format) -> Rounded {
    let significant = digits
        .iter()
        .position(|digit| *digit != 0)
        .map_or(&digits[..0], |first| &digits[first..]);
    let zero = Rounded::Finite {
        mantissa: 0,
        low: format.low_min,
    };
    let count = i64::try_from(significant.len()).unwrap_or(EXPONENT_MAX);
    let per_digit = if hexadecimal { 4 } else { 1 };
    let magnitude = exponent + count * per_digit;
    if significant.is_empty() || magnitude < -EXPONENT_MAX {
        return zero;
    }
    if magnitude > EXPONENT_MAX {
        return Rounded::Over;
    }
    let radix = if hexadecimal { 16 } else { 10 };
    let mut number = Big::new(0);
    for digit in significant {
        number.multiply_add(radix, u32::from(*digit));
    }
    if hexadecimal {
        return round(&number, &Big::new(1), exponent, format);
    }
    let power = usize::try_from(exponent.unsigned_abs()).unwrap_or(0);
    let mut under = Big::new(1);
    if exponent < 0 {
        under.scale(power);
    } else {
        number.scale(power);
    }
    round(&number, &under, 0, format)
}

/// Returns a double, and whether the number is beyond the range of doubles. Beyond the range of doubles, the double is
/// infinity or 0.
fn double_of(negative: bool, text: &Text) -> (f64, bool) {
    let (value, beyond) = match text {
        Text::Infinite => (f64::INFINITY, false),
        Text::NotANumber => (f64::NAN, false),
        Text::Finite {
            digits,
            hexadecimal,
            exponent,
        } => match round_text(digits, *hexadecimal, *exponent, &DOUBLE) {
            Rounded::Over => (f64::INFINITY, true),
            Rounded::Finite { mantissa: 0, .. } => (0.0, digits.iter().any(|d| *d != 0)),
            Rounded::Finite { mantissa, low } => (assemble(mantissa, low), false),
        },
    };
    (if negative { -value } else { value }, beyond)
}

/// Returns the double `mantissa * 2^low`, which is exactly representable.
fn assemble(mantissa: u64, low: i64) -> f64 {
    let explicit = DOUBLE.bits - 1;
    let hidden = 1u64 << explicit;
    // A mantissa with fewer bits than the format belongs to the lowest exponent.
    let exponent = if mantissa < hidden {
        0
    } else {
        u64::try_from(low - DOUBLE.low_min + 1).unwrap_or(0)
    };
    f64::from_bits((exponent << explicit) | (mantissa & (hidden - 1)))
}

/// Returns the bytes before the first NUL, where an argument ends for the C library.
pub fn c_string(text: &[u8]) -> &[u8] {
    let end = text.iter().position(|byte| *byte == 0);
    &text[..end.unwrap_or(text.len())]
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

/// Parses a score or a weight. The whole text must be a number within the range of doubles, without leading white
/// space, and not "nan".
pub fn double(text: &[u8]) -> Option<f64> {
    let (negative, number, length) = scan(text)?;
    let (value, beyond) = double_of(negative, &number);
    (length == text.len() && !beyond && !value.is_nan()).then_some(value)
}

/// Parses the limit of a range of scores like `strtod`. Leading white space, numbers beyond the range, and an empty
/// text are accepted; "nan" is not.
pub fn limit(text: &[u8]) -> Option<f64> {
    let text = c_string(text);
    if text.is_empty() {
        return Some(0.0);
    }
    let spaces = text.iter().take_while(|byte| is_space(**byte)).count();
    let text = &text[spaces..];
    let (negative, number, length) = scan(text)?;
    let (value, _) = double_of(negative, &number);
    (length == text.len() && !value.is_nan()).then_some(value)
}

/// Returns a double as text in the form `%.17g`; infinities are "inf" and "-inf".
pub fn double_text(value: f64) -> String {
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.into();
    }
    // This format has one digit, a point, and all other significant digits.
    let scientific = format!("{value:.*e}", PLACES_BEHIND_ONE);
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let trim = |text: &str| -> String {
        if text.contains('.') {
            text.trim_end_matches('0').trim_end_matches('.').into()
        } else {
            text.into()
        }
    };
    if (-4..SIGNIFICANT).contains(&exponent) {
        let places = usize::try_from(SIGNIFICANT - 1 - exponent).unwrap_or(0);
        return trim(&format!("{value:.places$}"));
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", trim(mantissa), exponent.abs())
}

/// Returns a score as Redis writes it inside a small sorted set, where whole numbers are written in full.
pub fn score_text(value: f64) -> String {
    /// Whole numbers up to this value are written in full.
    const WHOLE_MAX: f64 = 4_611_686_018_427_387_904.0;
    if value.abs() <= WHOLE_MAX && value.fract() == 0.0 {
        return format!("{:.0}", value + 0.0);
    }
    double_text(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_are_read_as_by_strtod() {
        for (text, value) in [
            ("1", 1.0),
            ("-1.5e3", -1500.0),
            (".5", 0.5),
            ("5.", 5.0),
            ("+7", 7.0),
            ("0x10", 16.0),
            ("0x1.8p1", 3.0),
            ("-0X.8", -0.5),
            ("inf", f64::INFINITY),
            ("-Infinity", f64::NEG_INFINITY),
            ("1e308", 1e308),
            ("4.9e-324", 4.9e-324),
            ("2.2250738585072011e-308", 2.225_073_858_507_201e-308),
            ("0.1", 0.1),
            ("17976931348623157e292", f64::MAX),
            ("9007199254740993", 9_007_199_254_740_992.0),
            ("9007199254740995", 9_007_199_254_740_996.0),
            ("0x20000000000001", 9_007_199_254_740_992.0),
            ("0x20000000000003", 9_007_199_254_740_996.0),
        ] {
            assert_eq!(double(text.as_bytes()), Some(value), "{text}");
        }
        for text in [
            "",
            " 1",
            "1 ",
            "e5",
            "nan",
            "nan(1)",
            "1e",
            "0x",
            "1e999",
            "-1e999",
            "1e-999",
            "--1",
            ".",
            "1\0",
            "infinit",
            "1e99999999999999999999",
        ] {
            assert_eq!(double(text.as_bytes()), None, "{text}");
        }
    }

    /// Texts that the standard library accepts must give the same double as in the standard library.
    #[test]
    fn random_doubles_are_read_as_by_the_standard_library() {
        let mut state = 1u64;
        for _ in 0..20_000 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let value = f64::from_bits(state ^ (state >> 29));
            if !value.is_finite() || value == 0.0 {
                continue;
            }
            for text in [format!("{value}"), format!("{value:e}"), double_text(value)] {
                assert_eq!(double(text.as_bytes()), Some(value), "{text}");
            }
            let short = format!("{value:.3e}");
            if let Some(read) = double(short.as_bytes()) {
                assert_eq!(Ok(read), short.parse::<f64>(), "{short}");
            }
        }
    }

    #[test]
    fn limits_are_more_tolerant() {
        for (text, value) in [
            ("", 0.0),
            (" 5", 5.0),
            ("1e999", f64::INFINITY),
            ("1e-999", 0.0),
            ("3\0x", 3.0),
            ("-inf", f64::NEG_INFINITY),
        ] {
            assert_eq!(limit(text.as_bytes()), Some(value), "{text}");
        }
        for text in [" ", "5 ", "nan", "x"] {
            assert_eq!(limit(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn doubles_are_written_as_by_printf() {
        for (value, text) in [
            (0.0, "0"),
            (-0.0, "-0"),
            (1.0, "1"),
            (0.1, "0.10000000000000001"),
            (3.3, "3.2999999999999998"),
            (1e16, "10000000000000000"),
            (1e17, "1e+17"),
            (1.5e300, "1.5000000000000001e+300"),
            (1e-5, "1.0000000000000001e-05"),
            (0.0001, "0.0001"),
            (123_456_789.125, "123456789.125"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(double_text(value), text);
        }
        assert_eq!(score_text(1e17), "100000000000000000");
        assert_eq!(score_text(-0.0), "0");
        assert_eq!(score_text(-3.0), "-3");
        assert_eq!(score_text(1e20), "1e+20");
        assert_eq!(score_text(0.5), "0.5");
    }
}
