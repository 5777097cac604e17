//! Where a reply ends: of every type of RESP2 and RESP3 that a Redis server sends, without building values.

use crate::element::element;
use crate::limits::ReplyLimits;

/// Why bytes are no acceptable reply. The stream has no meaning after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// No type begins with this byte.
    #[error("unknown type {:?}", char::from(*.0))]
    Type(u8),
    /// [`ReplyLimits::line_bytes`].
    #[error("line too long")]
    Line,
    /// A length is not a number, or the string is larger than [`ReplyLimits::bulk_bytes`].
    #[error("length out of range")]
    Length,
    /// A bulk string is not followed by CR LF.
    #[error("bulk string not terminated by CR LF")]
    BulkEnd,
    /// [`ReplyLimits::reply_bytes`].
    #[error("reply too large")]
    TooLarge,
}

/// Finds where the reply at the head of a buffer ends. Allocates nothing.
#[derive(Clone, Debug)]
pub struct Scanner {
    limits: ReplyLimits,
    /// Offset of the element to look at next, from the head of the reply.
    position: usize,
    /// How far the search for the end of its line has come.
    searched: usize,
    /// Elements still to come; the reply itself counts as one.
    missing: u64,
}

impl Scanner {
    /// A scanner at the first byte of a reply.
    #[must_use]
    pub const fn new(limits: ReplyLimits) -> Scanner {
        Scanner {
            limits,
            position: 0,
            searched: 0,
            missing: 1,
        }
    }

    /// Length of the reply at the head of `buffer`, in bytes, once it is complete; the scanner is then
    /// ready for the next reply. `buffer` has only grown since the last call that returned `None`.
    ///
    /// # Errors
    /// [`Malformed`].
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

/// How many whole replies `bytes` is; `None` if it is anything else.
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

/// Length of the reply at the head of `bytes`, if it is there as a whole.
pub(crate) fn whole(bytes: &[u8]) -> Option<usize> {
    Scanner::new(ReplyLimits::HELD).poll(bytes).ok().flatten()
}
