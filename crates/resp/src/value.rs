//! A reply as a tree of values, for tools. Replies are those of a RESP2 connection.

use crate::element::element;
use crate::limits::ReplyLimits;
use crate::number::parse_integer;
use crate::scan::Malformed;

/// Deepest nesting of arrays that is read.
pub const DEPTH_MAX: usize = 8;

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// `+…`
    Status(Vec<u8>),
    /// `-…`
    Error(String),
    /// `:…`
    Integer(i64),
    /// `$…`
    Bulk(Vec<u8>),
    /// `$-1` or `*-1`
    Nil,
    /// `*…`
    Array(Vec<Reply>),
}

/// Why bytes are no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    /// No reply at all.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// A type of RESP3.
    #[error("type {:?} is not of RESP2", char::from(*.0))]
    Resp3(u8),
    /// Arrays in arrays, more than [`DEPTH_MAX`] of them.
    #[error("arrays nested too deeply")]
    Depth,
    /// An integer that is not a number.
    #[error("not a number")]
    Integer,
}

impl Reply {
    /// Reads the reply at the start of `bytes`: the reply and its length in bytes, `None` if it is not
    /// there as a whole yet.
    ///
    /// # Errors
    /// [`ValueError`].
    pub fn parse(bytes: &[u8], limits: &ReplyLimits) -> Result<Option<(Reply, usize)>, ValueError> {
        let mut at = 0;
        Ok(parse(bytes, &mut at, 0, limits)?.map(|reply| (reply, at)))
    }

    /// The bytes of a status or bulk reply.
    #[must_use]
    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            Reply::Status(bytes) | Reply::Bulk(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// The text of a status or bulk reply, or the digits of an integer.
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

/// Reads the value at `at`, which moves after it.
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
            // Grows as elements arrive: the announced count cannot be trusted.
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
