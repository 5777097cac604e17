//! A reply as a tree of values, for tools that use RESP2 connections.

use crate::element::element;
use crate::limits::ReplyLimits;
use crate::number::parse_integer;
use crate::scan::Malformed;

/// Maximum depth of nested arrays that are parsed.
pub const DEPTH_MAX: usize = 8;

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A status: `+…`.
    Status(Vec<u8>),
    /// An error: `-…`.
    Error(String),
    /// An integer: `:…`.
    Integer(i64),
    /// A bulk string: `$…`.
    Bulk(Vec<u8>),
    /// A null: `$-1` or `*-1`.
    Nil,
    /// An array: `*…`.
    Array(Vec<Reply>),
}

/// Why bytes cannot be parsed as a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    /// The bytes are not a reply.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// The reply has a type of RESP3.
    #[error("type {:?} is not of RESP2", char::from(*.0))]
    Resp3(u8),
    /// Arrays are nested deeper than [`DEPTH_MAX`].
    #[error("arrays nested too deeply")]
    Depth,
    /// The text of an integer is not a number.
    #[error("not a number")]
    Integer,
}

impl Reply {
    /// Parses the reply at the start of `bytes`. Returns the reply and its length in bytes; `None` if the reply is
    /// incomplete.
    ///
    /// # Errors
    /// [`ValueError`] if the bytes cannot be parsed as a value.
    pub fn parse(bytes: &[u8], limits: &ReplyLimits) -> Result<Option<(Reply, usize)>, ValueError> {
        let mut at = 0;
        Ok(parse(bytes, &mut at, 0, limits)?.map(|reply| (reply, at)))
    }

    /// Returns the bytes of a status or bulk reply.
    #[must_use]
    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            Reply::Status(bytes) | Reply::Bulk(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// Returns the text of a status or bulk reply, or the digits of an integer.
    #[must_use]
    pub fn text(&self) -> Option<String> {
        match self {
            Reply::Integer(number) => Some(number.to_string()),
            other => other
                .bytes()
                .map(|bytes| String::from_utf8_lossy(bytes).into_owned()),
        }
    }
}

/// Parses the value at `at`, and moves `at` to its end.
fn parse(
    bytes: &[u8],
    at: &mut usize,
    depth: usize,
    limits: &ReplyLimits,
) -> Result<Option<Reply>, ValueError> {
    let Some(element) = element(bytes, *at, &mut 0, limits)? else {
        return Ok(None);
    };
    *at = element.end;
    let text = element.text.map(|range| &bytes[range]);
    Ok(Some(match (element.marker, text) {
        (b'$' | b'*', None) => Reply::Nil,
        (b'+', Some(text)) => Reply::Status(text.to_vec()),
        (b'-', Some(text)) => Reply::Error(String::from_utf8_lossy(text).into_owned()),
        (b':', Some(text)) => Reply::Integer(parse_integer(text).ok_or(ValueError::Integer)?),
        (b'$', Some(text)) => Reply::Bulk(text.to_vec()),
        (b'*', Some(_)) => {
            if depth >= DEPTH_MAX {
                return Err(ValueError::Depth);
            }
            // The vector grows as elements arrive, because the reader cannot trust the announced count.
            let mut items = Vec::new();
            for _ in 0..element.inside {
                let Some(item) = parse(bytes, at, depth + 1, limits)? else {
                    return Ok(None);
                };
                items.push(item);
            }
            Reply::Array(items)
        }
        (marker, _) => return Err(ValueError::Resp3(marker)),
    }))
}
