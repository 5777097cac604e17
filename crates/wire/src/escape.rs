//! Percent escapes in addresses of stores.

/// Returns `text` with each `%` and its two hexadecimal digits replaced by the byte that they encode. Returns `None` if
/// a `%` has no such digits, or if the result is not UTF-8.
#[must_use]
pub fn percent_decode(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let high = char::from(bytes.next()?).to_digit(16)?;
            let low = char::from(bytes.next()?).to_digit(16)?;
            out.push(u8::try_from(high * 16 + low).ok()?);
        } else {
            out.push(byte);
        }
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_bytes() {
        assert_eq!(percent_decode("p%40%3a").as_deref(), Some("p@:"));
        assert_eq!(percent_decode("%c3%a4").as_deref(), Some("ä"));
        for bad in ["%", "%4", "%zz", "%ff"] {
            assert_eq!(percent_decode(bad), None, "{bad}");
        }
    }
}
