//! Reads texts, numbers and elements of a complete reply, without copying them.

use std::ops::Range;

use crate::element::{Element, FORMAT_BYTES, element};
use crate::limits::{ELEMENT_BYTES_MIN, ReplyLimits};
use crate::number::parse_integer;
use crate::scan::whole;

fn head(reply: &[u8]) -> Option<Element> {
    element(reply, 0, &mut 0, &ReplyLimits::HELD).ok()?
}

/// Returns the range of the text of a string (`$`, `=`, `+`) or integer in `reply`, without its framing.
/// `None` for all other types, and for null.
#[must_use]
pub fn text_range(reply: &[u8]) -> Option<Range<usize>> {
    let Element { marker, text, .. } = head(reply)?;
    let text = text?;
    match marker {
        b'+' | b':' | b'$' => Some(text),
        b'=' => Some(text.start + FORMAT_BYTES..text.end),
        _ => None,
    }
}

/// Returns the bytes in the range that [`text_range`] returns.
#[must_use]
pub fn text(reply: &[u8]) -> Option<&[u8]> {
    text_range(reply).map(|range| &reply[range])
}

/// Returns the text of a bulk string, or of a verbatim string of RESP3. `None` for all other types, and for null.
#[must_use]
pub fn bulk(reply: &[u8]) -> Option<&[u8]> {
    matches!(reply.first(), Some(b'$' | b'=')).then(|| text(reply))?
}

/// Returns the text of the bulk string at the beginning of `bytes`. Other bytes may follow it.
#[must_use]
pub fn bulk_at_head(bytes: &[u8]) -> Option<&[u8]> {
    bulk(bytes.get(..whole(bytes)?)?)
}

/// Returns the text of an error reply, without `-` and the end of its line.
#[must_use]
pub fn error(reply: &[u8]) -> Option<&str> {
    let rest = reply.strip_prefix(b"-")?;
    Some(std::str::from_utf8(rest.strip_suffix(b"\r\n")?).unwrap_or("ERR (not UTF-8)"))
}

/// Returns the value of an integer reply.
#[must_use]
pub fn integer(reply: &[u8]) -> Option<i64> {
    (reply.first() == Some(&b':')).then(|| parse_integer(text(reply)?))?
}

/// Returns the consecutive replies at the beginning of `bytes`, each as its raw bytes. The first incomplete
/// or invalid reply, and everything after it, is left out.
#[must_use]
pub fn row(mut bytes: &[u8]) -> Vec<&[u8]> {
    std::iter::from_fn(|| {
        let (one, rest) = bytes.split_at(whole(bytes)?);
        bytes = rest;
        Some(one)
    })
    .collect()
}

/// Returns the elements of an aggregate reply, each as its raw bytes. The reply may be an array, a set, a push, or a
/// map (whose keys and values alternate). `None` if `reply` is not an aggregate, is null, or is incomplete.
#[must_use]
pub fn elements(reply: &[u8]) -> Option<Vec<&[u8]>> {
    if !matches!(reply.first(), Some(b'*' | b'~' | b'>' | b'%')) {
        return None;
    }
    let head = head(reply)?;
    head.text?;
    let count = usize::try_from(head.inside).ok()?;
    let mut found = Vec::with_capacity(count.min(reply.len() / ELEMENT_BYTES_MIN));
    let mut rest = &reply[head.end..];
    for _ in 0..count {
        let (element, after) = rest.split_at(whole(rest)?);
        found.push(element);
        rest = after;
    }
    Some(found)
}
