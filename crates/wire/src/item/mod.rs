//! Items of memcached in a store of Redis's types: the format and the rules that the front of memcached and every store
//! share.
//!
//! An item is a string: [`HEADER_LEN`] bytes, and then its data. It expires together with its key. A change that
//! replaces a whole string uses Redis's own commands (`SET`, `SET … NX`, `GET`, `GETEX`, `DEL`). A change that depends
//! on the present item is a [`Change`]: one command, which a store executes atomically. The command has two forms, with
//! equal arguments after the key and equal replies:
//!
//! | store | command | rule |
//! |---|---|---|
//! | Redis | `EVAL` of [`SCRIPT`] | `item.lua` beside this file |
//! | packet store | [`COMMAND`] | [`Change::apply`] |
//!
//! ```text
//!  0       1          5           13
//!  +-------+----------+-----------+------
//!  | state | flags    | unique    | data…
//!  +-------+----------+-----------+------
//!  0001 00 token-sent stale
//! ```
//!
//! The reply is an array: a status, a text (a number or an item), the remaining milliseconds before the change (-1: the
//! item does not expire), and a number that depends on the change. Invariant: a change that fails has changed nothing.

mod change;
mod number;

pub use change::{Applied, Change, Mode, Old, Touch, Written};
pub use number::{c_integer, c_unsigned};

/// Name of the packet store's command. Its arguments are the key, the name of the change, and the arguments of the
/// change.
pub const COMMAND: &str = "PMNET.ITEM";
/// Script for Redis. It has one key, and its arguments are the name of the change and the arguments of the change.
pub const SCRIPT: &str = include_str!("item.lua");
/// Number of bytes before the data of an item.
pub const HEADER_LEN: usize = 13;
/// Error for a key whose string is not an item.
pub const NO_ITEM: &str = "ERR pmnet: the key holds something that memcached's front did not write";

const VERSION: u8 = 0x10;
const STALE: u8 = 1;
const TOKEN_SENT: u8 = 2;

/// An item whose data is borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item<'a> {
    /// The item was marked as stale (`md … I`).
    pub stale: bool,
    /// A client was told that it may replace the item.
    pub token_sent: bool,
    /// The 32 bits of flags that a client has stored with the item.
    pub flags: u32,
    /// Unique number, which changes with each change of the item. It is never 0.
    pub unique: u64,
    /// Value of the item.
    pub data: &'a [u8],
}

impl<'a> Item<'a> {
    /// Returns a new item to be stored: not stale, and not promised to a client.
    #[must_use]
    pub const fn new(flags: u32, unique: u64, data: &'a [u8]) -> Item<'a> {
        Item {
            stale: false,
            token_sent: false,
            flags,
            unique,
            data,
        }
    }

    /// Reads a stored string; `None`: the string is no item.
    #[must_use]
    pub fn parse(stored: &'a [u8]) -> Option<Item<'a>> {
        let (header, data) = stored.split_first_chunk::<HEADER_LEN>()?;
        let [state, f0, f1, f2, f3, unique @ ..] = *header;
        (state & !(STALE | TOKEN_SENT) == VERSION).then(|| Item {
            stale: state & STALE != 0,
            token_sent: state & TOKEN_SENT != 0,
            flags: u32::from_be_bytes([f0, f1, f2, f3]),
            unique: u64::from_be_bytes(unique),
            data,
        })
    }

    /// Returns the bytes before the data.
    #[must_use]
    pub fn header(&self) -> [u8; HEADER_LEN] {
        let state = VERSION
            | if self.stale { STALE } else { 0 }
            | if self.token_sent { TOKEN_SENT } else { 0 };
        let mut header = [0; HEADER_LEN];
        header[0] = state;
        header[1..5].copy_from_slice(&self.flags.to_be_bytes());
        header[5..].copy_from_slice(&self.unique.to_be_bytes());
        header
    }

    /// Returns the string to store.
    #[must_use]
    pub fn stored(&self) -> Vec<u8> {
        [&self.header(), self.data].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_is_read_as_it_was_written_and_nothing_else_is_one() {
        let item = Item {
            stale: true,
            token_sent: false,
            flags: u32::MAX,
            unique: 7,
            data: b"abc",
        };
        let stored = item.stored();
        assert_eq!(stored.len(), HEADER_LEN + 3);
        assert_eq!(Item::parse(&stored), Some(item));
        assert_eq!(Item::parse(&stored[..HEADER_LEN - 1]), None);
        for state in (0..=u8::MAX).filter(|state| !(0x10..=0x13).contains(state)) {
            let mut other = stored.clone();
            other[0] = state;
            assert_eq!(Item::parse(&other), None, "{state:#x}");
        }
    }
}
