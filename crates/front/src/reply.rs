//! Replies: finding their end in a byte stream, and the few that the front writes itself.
//!
//! The scanner understands every RESP2 and RESP3 type that a Redis server sends. It looks at each
//! byte once, however the stream is cut, and allocates nothing.

use bytes::Bytes;

/// Largest single reply taken from a pass-through connection, in bytes. Bounds the memory that a
/// store can make the front use for one client.
pub const REPLY_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Longest line of a reply (simple string, error, number), in bytes: more than the longest reply that the
/// server hands on.
const LINE_BYTES_MAX: usize = 17 * 1024 * 1024;

/// The store sent something that is not RESP, or a reply larger than [`REPLY_BYTES_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the store sent something that is not an acceptable RESP reply")]
pub struct ReplyError;

/// Finds where the reply at the head of a buffer ends.
#[derive(Debug, Default)]
pub struct Scanner {
    /// Offset of the next element to look at, from the head of the reply.
    position: usize,
    /// How far the search for the current line's end has come.
    searched: usize,
    /// Elements still to come (the reply itself counts as one); 0 before the first byte.
    missing: u64,
}

impl Scanner {
    /// Length of the reply at the head of `buffer` once it is complete; the scanner is then ready
    /// for the next reply. `buffer` has only grown since the last call that returned `None`.
    ///
    /// # Errors
    /// [`ReplyError`].
    pub fn poll(&mut self, buffer: &[u8]) -> Result<Option<usize>, ReplyError> {
        if self.missing == 0 {
            self.missing = 1;
        }
        while self.missing > 0 {
            let from = self.searched.max(self.position);
            let tail = buffer.get(from..).unwrap_or_default();
            let Some(newline) = tail.iter().position(|&b| b == b'\n') else {
                self.searched = buffer.len();
                if buffer.len().saturating_sub(self.position) > LINE_BYTES_MAX {
                    return Err(ReplyError);
                }
                return Ok(None);
            };
            let end = from + newline + 1;
            let line = buffer
                .get(self.position..end.saturating_sub(2))
                .ok_or(ReplyError)?;
            let (&marker, text) = line.split_first().ok_or(ReplyError)?;
            let mut next = end;
            let mut inside = 0u64;
            match marker {
                b'+' | b'-' | b':' | b'_' | b',' | b'#' | b'(' => {}
                b'$' | b'!' | b'=' => {
                    if let Some(len) = length(text)? {
                        next = end.saturating_add(len).saturating_add(2);
                    }
                }
                b'*' | b'~' | b'>' => inside = elements(text)?,
                b'%' => inside = elements(text)?.saturating_mul(2),
                // Attributes come before the value they describe.
                b'|' => inside = elements(text)?.saturating_mul(2).saturating_add(1),
                _ => return Err(ReplyError),
            }
            if next > REPLY_BYTES_MAX {
                return Err(ReplyError);
            }
            if next > buffer.len() {
                return Ok(None);
            }
            self.position = next;
            self.searched = next;
            self.missing = (self.missing - 1).saturating_add(inside);
        }
        let len = self.position;
        *self = Scanner::default();
        Ok(Some(len))
    }
}

/// How many whole replies `bytes` is; `None` if it is anything else.
#[must_use]
pub fn count(mut bytes: &[u8]) -> Option<u32> {
    let mut count = 0;
    while !bytes.is_empty() {
        let len = Scanner::default().poll(bytes).ok()??;
        bytes = bytes.get(len..)?;
        count += 1;
    }
    Some(count)
}

fn length(text: &[u8]) -> Result<Option<usize>, ReplyError> {
    if text == b"-1" {
        return Ok(None);
    }
    let number = crate::parser::parse_integer(text).ok_or(ReplyError)?;
    usize::try_from(number).map(Some).map_err(|_| ReplyError)
}

fn elements(text: &[u8]) -> Result<u64, ReplyError> {
    Ok(length(text)?.map_or(0, |count| u64::try_from(count).unwrap_or(u64::MAX)))
}

/// `+OK`.
pub const OK: Bytes = Bytes::from_static(b"+OK\r\n");

/// An error reply; line ends in the text become spaces, as an error is one line.
#[must_use]
pub fn error(text: &str) -> Bytes {
    let mut out = Vec::with_capacity(text.len() + 3);
    out.push(b'-');
    out.extend(text.bytes().map(|byte| {
        if byte == b'\r' || byte == b'\n' {
            b' '
        } else {
            byte
        }
    }));
    out.extend_from_slice(b"\r\n");
    Bytes::from(out)
}

/// Appends a bulk string.
pub fn write_bulk(text: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(format!("${}\r\n", text.len()).as_bytes());
    out.extend_from_slice(text);
    out.extend_from_slice(b"\r\n");
}

/// A bulk string.
#[must_use]
pub fn bulk(text: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(text.len() + 16);
    write_bulk(text, &mut out);
    Bytes::from(out)
}

/// The text of the bulk string at the head of `reply`, if that is what it is.
#[must_use]
pub fn bulk_text(reply: &[u8]) -> Option<&[u8]> {
    take_bulk(reply).map(|(text, _)| text)
}

/// Splits the bulk string off the head of `bytes`.
fn take_bulk(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let rest = bytes.strip_prefix(b"$")?;
    let end = rest.iter().take(24).position(|&b| b == b'\r')?;
    let len = usize::try_from(crate::parser::parse_integer(&rest[..end])?).ok()?;
    let body = rest.get(end + 2..)?;
    Some((body.get(..len)?, body.get(len.checked_add(2)?..)?))
}

/// What a confirmation of (un)subscription says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subscription {
    /// About shard channels, which are counted apart.
    pub sharded: bool,
    /// Subscriptions that remain after it.
    pub remaining: u64,
}

/// Reads a confirmation: `subscribe`, `psubscribe`, `ssubscribe` and their opposites, as an array
/// (RESP2) or a push (RESP3).
#[must_use]
pub fn subscription(value: &[u8]) -> Option<Subscription> {
    let rest = value
        .strip_prefix(b"*3\r\n")
        .or_else(|| value.strip_prefix(b">3\r\n"))?;
    let (kind, rest) = take_bulk(rest)?;
    let sharded = match kind {
        b"subscribe" | b"unsubscribe" | b"psubscribe" | b"punsubscribe" => false,
        b"ssubscribe" | b"sunsubscribe" => true,
        _ => return None,
    };
    let rest = match rest
        .strip_prefix(b"$-1\r\n")
        .or_else(|| rest.strip_prefix(b"_\r\n"))
    {
        Some(rest) => rest,
        None => take_bulk(rest)?.1,
    };
    let number = rest.strip_prefix(b":")?.strip_suffix(b"\r\n")?;
    Some(Subscription {
        sharded,
        remaining: u64::try_from(crate::parser::parse_integer(number)?).ok()?,
    })
}
