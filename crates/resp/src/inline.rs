//! Inline commands: one line of words, as a person types them in a terminal.

use crate::request::ProtocolError;

/// Splits an inline command into words, with the quoting rules of Redis. `"…"` allows the escapes `\n \r \t \b \a
/// \xHH`, `'…'` allows only `\'`. A closing quote must end its word. `line` must have no zero byte.
pub(crate) fn split(line: &[u8]) -> Result<Vec<Vec<u8>>, ProtocolError> {
    let space = |byte: u8| byte.is_ascii_whitespace() || byte == 0x0b;
    let mut words = Vec::new();
    let mut rest = line;
    loop {
        while let Some((&byte, after)) = rest.split_first()
            && space(byte)
        {
            rest = after;
        }
        if rest.is_empty() {
            return Ok(words);
        }
        let mut word = Vec::new();
        while let Some((&byte, after)) = rest.split_first() {
            rest = after;
            match byte {
                b'"' | b'\'' => {
                    rest = quoted(rest, byte, &mut word)?;
                    if rest.first().is_some_and(|&next| !space(next)) {
                        return Err(ProtocolError::Quotes);
                    }
                    break;
                }
                byte if space(byte) => break,
                byte => word.push(byte),
            }
        }
        words.push(word);
    }
}

/// Reads up to the closing `quote`, and returns what follows the quote.
fn quoted<'a>(
    mut rest: &'a [u8],
    quote: u8,
    word: &mut Vec<u8>,
) -> Result<&'a [u8], ProtocolError> {
    let hex = |byte: u8| {
        char::from(byte)
            .to_digit(16)
            .and_then(|digit| u8::try_from(digit).ok())
    };
    loop {
        let (&byte, after) = rest.split_first().ok_or(ProtocolError::Quotes)?;
        rest = after;
        if byte == quote {
            return Ok(rest);
        }
        if byte != b'\\' {
            word.push(byte);
            continue;
        }
        match (quote, rest) {
            (b'"', [b'x', high, low, after @ ..])
                if hex(*high).is_some() && hex(*low).is_some() =>
            {
                word.push(hex(*high).unwrap_or(0) * 16 + hex(*low).unwrap_or(0));
                rest = after;
            }
            (b'"', [escaped, after @ ..]) => {
                word.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 0x08,
                    b'a' => 0x07,
                    other => *other,
                });
                rest = after;
            }
            (b'\'', [b'\'', after @ ..]) => {
                word.push(b'\'');
                rest = after;
            }
            _ => word.push(b'\\'),
        }
    }
}
