//! The first bytes of a key, if they are not in the packet that has the other bytes of the key
//! (`docs/spec/packet-store.md` §3).

use crate::geometry::{index, take};

/// Number of bits of the prefix in a line.
pub(crate) const PREFIX_BITS: u32 = 19;
/// First byte of every prefix.
const FIRST: u8 = 1;
/// Length of a prefix in bytes: the byte [`FIRST`], and a number of 8 bytes.
const BYTES: usize = 9;

/// The bytes of a key that precede those in the packet. Either there are no such bytes, or they are a byte 1 and a
/// big-endian number of 8 bytes below 2^19 − 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prefix {
    /// The number in the prefix plus 1; 0: there is no prefix.
    stored: u32,
    bytes: [u8; BYTES],
}

impl Prefix {
    /// No prefix, because the whole key is in the packet.
    pub const NONE: Prefix = Prefix {
        stored: 0,
        bytes: [0; BYTES],
    };

    /// Returns these bytes as a prefix, if they have the form of a prefix.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Option<Prefix> {
        if bytes.is_empty() {
            return Some(Prefix::NONE);
        }
        let bytes = <[u8; BYTES]>::try_from(bytes).ok()?;
        let number = u64::from_be_bytes(take(&bytes, 1));
        let stored = u32::try_from(number.checked_add(1)?).ok()?;
        (bytes[0] == FIRST && stored >> PREFIX_BITS == 0).then_some(Prefix { stored, bytes })
    }

    /// Makes the prefix from its field in a line.
    pub(crate) fn from_line(stored: u32) -> Prefix {
        let mut bytes = [0; BYTES];
        if stored != 0 {
            bytes[0] = FIRST;
            bytes[1..].copy_from_slice(&u64::from(stored - 1).to_be_bytes());
        }
        Prefix { stored, bytes }
    }

    pub(crate) fn in_line(self) -> u32 {
        self.stored
    }

    /// Returns the bytes of the prefix.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        let len = match self.stored {
            0 => 0,
            _ => BYTES,
        };
        &self.bytes[..len]
    }

    /// Returns the length of the prefix in bytes.
    pub(crate) fn len(self) -> u32 {
        match self.stored {
            0 => 0,
            _ => u32::try_from(BYTES).expect("9"),
        }
    }
}

/// Returns the prefix and the `rest` of a key as one slice.
pub(crate) fn joined<'s>(prefix: Prefix, rest: &'s [u8], scratch: &'s mut Vec<u8>) -> &'s [u8] {
    if prefix.stored == 0 {
        return rest;
    }
    scratch.clear();
    scratch.reserve(index(prefix.len()) + rest.len());
    scratch.extend_from_slice(prefix.bytes());
    scratch.extend_from_slice(rest);
    scratch
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_line_can_say_is_a_prefix() {
        let of = |first: u8, number: u64| {
            let mut bytes = vec![first];
            bytes.extend_from_slice(&number.to_be_bytes());
            (Prefix::of(&bytes), bytes)
        };
        for number in [0, 1, 1024, (1 << PREFIX_BITS) - 2] {
            let (prefix, bytes) = of(1, number);
            let prefix = prefix.unwrap();
            assert_eq!(prefix.bytes(), bytes);
            assert_eq!(Prefix::from_line(prefix.in_line()), prefix);
        }
        for (first, number) in [(1, (1 << PREFIX_BITS) - 1), (1, u64::MAX), (0, 3), (2, 3)] {
            assert_eq!(of(first, number).0, None, "{first} {number}");
        }
        assert_eq!(Prefix::of(b""), Some(Prefix::NONE));
        assert_eq!(Prefix::of(b"\x01\0\0"), None);
        assert!(Prefix::NONE.bytes().is_empty());
    }
}
