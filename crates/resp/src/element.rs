//! One element of a reply. Only this module knows the syntax of RESP's types.

use std::ops::Range;

use crate::limits::{ELEMENT_BYTES_MIN, ReplyLimits};
use crate::number::parse_integer;
use crate::scan::Malformed;

/// Length of the format before the text of a verbatim string (`txt:`), in bytes.
pub(crate) const FORMAT_BYTES: usize = 4;

/// An element without its inner elements.
#[derive(Debug)]
pub(crate) struct Element {
    /// The marker of its type.
    pub marker: u8,
    /// Range of the element's text: the bytes of the string, or the rest of the line. `None`: the element is null.
    pub text: Option<Range<usize>>,
    /// Offset of the end of this element. The inner elements follow there.
    pub end: usize,
    /// Number of inner elements that follow.
    pub inside: u64,
}

/// Parses the element at `at` of a reply that starts at the start of `buffer`. `None`: the element is incomplete.
/// `searched`: the offset up to which the end of the element's line was searched in earlier calls. The bytes up to
/// there must not have changed.
#[inline]
pub(crate) fn element(
    buffer: &[u8],
    at: usize,
    searched: &mut usize,
    limits: &ReplyLimits,
) -> Result<Option<Element>, Malformed> {
    let Some(&marker) = buffer.get(at) else {
        return Ok(None);
    };
    if !b"+-:_,#($!=*~>%|".contains(&marker) {
        return Err(Malformed::Type(marker));
    }
    let Some(line) = line(buffer, at, searched, limits.line_bytes)? else {
        return Ok(None);
    };
    let body = line.end + 2;
    let text = &buffer[line.clone()];
    let element = match marker {
        b'$' | b'!' | b'=' => match length(text)? {
            None => Element {
                marker,
                text: None,
                end: body,
                inside: 0,
            },
            Some(length) => {
                if length > limits.bulk_bytes || (marker == b'=' && length < FORMAT_BYTES) {
                    return Err(Malformed::Length);
                }
                let bulk = body..body.saturating_add(length);
                let end = bulk.end.saturating_add(2);
                if end > limits.reply_bytes {
                    return Err(Malformed::TooLarge);
                }
                match buffer.get(bulk.end..end) {
                    None => return Ok(None),
                    Some(b"\r\n") => Element {
                        marker,
                        text: Some(bulk),
                        end,
                        inside: 0,
                    },
                    Some(_) => return Err(Malformed::BulkEnd),
                }
            }
        },
        b'*' | b'~' | b'>' | b'%' | b'|' => {
            let count = length(text)?;
            let known = count.unwrap_or(0);
            let inside = match marker {
                b'%' => known.saturating_mul(2),
                // An attribute precedes the element that it describes.
                b'|' => known.saturating_mul(2).saturating_add(1),
                _ => known,
            };
            if body.saturating_add(inside.saturating_mul(ELEMENT_BYTES_MIN)) > limits.reply_bytes {
                return Err(Malformed::TooLarge);
            }
            let inside = u64::try_from(inside).unwrap_or(u64::MAX);
            Element {
                marker,
                text: count.map(|_| line),
                end: body,
                inside,
            }
        }
        _ => Element {
            marker,
            text: (marker != b'_').then_some(line),
            end: body,
            inside: 0,
        },
    };
    if element.end > limits.reply_bytes {
        return Err(Malformed::TooLarge);
    }
    Ok(Some(element))
}

/// Returns the text of the line at `at`, without its marker and its end.
#[inline]
fn line(
    buffer: &[u8],
    at: usize,
    searched: &mut usize,
    line_bytes: usize,
) -> Result<Option<Range<usize>>, Malformed> {
    let limit = buffer.len().min(at.saturating_add(line_bytes));
    // The search may begin at the marker, because the marker is neither CR nor LF.
    let mut from = (*searched).max(at);
    while let Some(newline) = buffer
        .get(from..limit)
        .and_then(|rest| rest.iter().position(|&byte| byte == b'\n'))
    {
        let newline = from + newline;
        if buffer[newline - 1] == b'\r' {
            *searched = newline;
            return Ok(Some(at + 1..newline - 1));
        }
        from = newline + 1;
    }
    *searched = limit;
    if limit - at >= line_bytes {
        return Err(Malformed::Line);
    }
    Ok(None)
}

/// Parses the length of a string, or the number of elements; `None`: null.
#[inline]
fn length(text: &[u8]) -> Result<Option<usize>, Malformed> {
    match parse_integer(text) {
        Some(-1) => Ok(None),
        Some(number) => usize::try_from(number)
            .map(Some)
            .map_err(|_| Malformed::Length),
        None => Err(Malformed::Length),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_of_every_kind_has_no_text() {
        for null in [&b"_\r\n"[..], b"$-1\r\n", b"*-1\r\n"] {
            let found = element(null, 0, &mut 0, &ReplyLimits::HELD).unwrap();
            assert_eq!(found.unwrap().text, None);
        }
    }

    /// Each byte of a reply that arrives byte by byte is read once. The search does not begin again for each new byte.
    #[test]
    fn what_was_searched_is_not_searched_again() {
        for (there, upto) in [
            (&b"+abc"[..], 4),
            (b"$3\r", 3),
            (b"$3\r\n", 3),
            (b"$3\r\nab", 3),
        ] {
            let mut searched = 0;
            let found = element(there, 0, &mut searched, &ReplyLimits::HELD).unwrap();
            assert!(found.is_none());
            assert_eq!(searched, upto);
        }
    }
}
