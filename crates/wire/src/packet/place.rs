//! The places of the header that views name, each with its position and type.

use crate::Header;
use core::fmt;

/// The part of a message that a packet carries (`docs/spec/wire.md` §2 "Fragments").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Index of the part, from 0.
    pub index: u16,
    /// Number of parts, at least 1.
    pub count: u16,
}

impl Fragment {
    /// The packet carries the whole message.
    pub const WHOLE: Fragment = Fragment { index: 0, count: 1 };
}

impl fmt::Display for Fragment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

/// Defines a place: its type, its offset, and how it is read from a header and written into a header.
macro_rules! place {
    ($name:ident: $value:ty = $offset:literal, $bytes:literal, |$header:ident| $get:expr, |$into:ident, $new:ident| $set:expr) => {
        pub(crate) mod $name {
            #[allow(unused_imports)]
            use super::*;
            pub(crate) type Value = $value;
            pub(crate) const OFFSET: usize = $offset;
            pub(crate) const BYTES: usize = $bytes;
            #[inline]
            pub(crate) const fn get($header: &Header) -> Value {
                $get
            }
            #[inline]
            pub(crate) const fn set($into: &mut Header, $new: Value) {
                $set
            }
        }
    };
}

place!(copies: u8 = 5, 1, |header| header.copies.0, |header, new| header.copies.0 = new);
place!(entry: crate::packet::EntryKind = 5, 1,
    |header| Value::from_number(header.copies.0), |header, new| header.copies.0 = new.number());
place!(left: crate::packet::TimeLeft = 5, 1,
    |header| Value::from_byte(header.copies.0), |header, new| header.copies.0 = new.byte());
place!(session: u64 = 24, 8, |header| header.session, |header, new| header.session = new);
place!(seq: u64 = 32, 8, |header| header.seq, |header, new| header.seq = new);
place!(order: u64 = 40, 8, |header| header.order, |header, new| header.order = new);
place!(request: u64 = 48, 8, |header| header.request.0, |header, new| header.request.0 = new);
place!(key_hash: u64 = 56, 8, |header| header.key_hash.0, |header, new| header.key_hash.0 = new);
place!(fragment: Fragment = 64, 4,
|header| Fragment { index: header.fragment_index, count: header.fragment_count },
|header, new| {
    header.fragment_index = new.index;
    header.fragment_count = new.count;
});
