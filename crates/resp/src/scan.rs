//! Finds the end of a reply of any type of RESP2 and RESP3 that a Redis server sends, without building
//! values.

use crate::element::element;
use crate::limits::ReplyLimits;

/// Why bytes are not an acceptable reply. The rest of the stream cannot be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// No type of reply begins with this byte.
    #[error("unknown type {:?}", char::from(*.0))]
    Type(u8),
    /// A line is longer than [`ReplyLimits::line_bytes`].
    #[error("line too long")]
    Line,
    /// A length is not a number, or a string is larger than [`ReplyLimits::bulk_bytes`].
    #[error("length out of range")]
    Length,
    /// A bulk string is not followed by CR LF.
    #[error("bulk string not terminated by CR LF")]
    BulkEnd,
    /// The reply is larger than [`ReplyLimits::reply_bytes`].
    #[error("reply too large")]
    TooLarge,
}

/// Finds the end of the reply at the head of a buffer. The scanner allocates no memory.
#[derive(Clone, Debug)]
pub struct Scanner {
    limits: ReplyLimits,
    /// Offset of the next element, from the head of the reply.
    position: usize,
    /// Offset up to which the end of the next element's line was searched.
    searched: usize,
    /// Number of elements that have not come yet. The reply itself counts as an element.
    missing: u64,
}

impl Scanner {
    /// Makes a scanner that is at the first byte of a reply.
    #[must_use]
    pub const fn new(limits: ReplyLimits) -> Scanner {
        Scanner {
            limits,
            position: 0,
            searched: 0,
            missing: 1,
        }
    }

    /// Returns the length of the reply at the head of `buffer`, in bytes, once the reply is complete. The scanner is
    /// then ready for the next reply. Since the last call that returned `None`, bytes may only have been added to
    /// `buffer`.
    ///
    /// # Errors
    /// [`Malformed`] if the bytes are not an acceptable reply.
    #[inline]
    pub fn poll(&mut self, buffer: &[u8]) -> Result<Option<usize>, Malformed> {
        while self.missing > 0 {
            let Some(element) = element(buffer, self.position, &mut self.searched, &self.limits)?
            else {
                return Ok(None);
            };
            self.position = element.end;
            self.missing = (self.missing - 1).saturating_add(element.inside);
        }
        let length = self.position;
        *self = Scanner::new(self.limits);
        Ok(Some(length))
    }
}

/// Returns the number of complete replies in `bytes`; `None` if `bytes` has anything else.
#[must_use]
pub fn count(mut bytes: &[u8]) -> Option<u32> {
    let mut count = 0;
    while !bytes.is_empty() {
        let length = whole(bytes)?;
        bytes = &bytes[length..];
        count += 1;
    }
    Some(count)
}

/// Returns the length of the reply at the head of `bytes`, if it is complete.
pub(crate) fn whole(bytes: &[u8]) -> Option<usize> {
    Scanner::new(ReplyLimits::HELD).poll(bytes).ok().flatten()
}
