//! `trait Rows`: the interface that the data types of Redis need from a store. The interface knows only rows in the
//! order of their keys.
//!
//! A row is a key, a kind, an expiry and a value. The store does not interpret the rows. The module `types` interprets
//! them, as `docs/spec/embedded-store.md` describes. All calls on one [`Rows`] are one transaction. The calls see the
//! earlier writes of the transaction. The writes take effect together and durably, or not at all.

use std::ops::{Bound, ControlFlow};

use bytes::Bytes;
use pmnet_server::Origin;

/// A row's content, lent by the store to its reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row<'a> {
    /// Kind of the value. The store keeps the kind without using it.
    pub kind: u8,
    /// Time of expiry, in milliseconds since 1970; 0: never. The store keeps this time without using it: it neither
    /// hides nor removes an expired row.
    pub expires_at_ms: u64,
    /// The value.
    pub value: &'a [u8],
}

/// An update that is being applied, and whose payload lies unchanged in the log. A store that also holds the log can
/// keep a value where it lies in the payload, without a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Update {
    /// The log entry of the update.
    pub origin: Origin,
    /// Payload of the update.
    pub payload: Bytes,
    /// Range, in the payload, of the key of the update's only command.
    pub key: std::ops::Range<usize>,
}

impl Update {
    /// Returns the range of `part` in the payload; `None`: `part` is a copy, not a slice of the payload.
    pub fn place_of(&self, part: &[u8]) -> Option<std::ops::Range<usize>> {
        place_in(&self.payload, part)
    }
}

/// Returns the range of `part` in `whole`; `None`: `part` is not a slice of `whole`, but a copy.
pub fn place_in(whole: &[u8], part: &[u8]) -> Option<std::ops::Range<usize>> {
    let start = part.as_ptr().addr().checked_sub(whole.as_ptr().addr())?;
    let end = start.checked_add(part.len())?;
    (end <= whole.len()).then_some(start..end)
}

/// Facts about a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// Size of the store, in bytes.
    pub bytes: u64,
    /// Bytes in use.
    pub used_bytes: u64,
    /// Number of clients' sessions, if it is known.
    pub sessions: Option<u64>,
    /// Number of requests that were refused since the start.
    pub refused: u64,
}

/// Direction of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Smallest key first.
    Ascending,
    /// Largest key first.
    Descending,
}

/// The keys that a scan visits, from one bound to the other.
pub type Range<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

/// Reason why the rows could not be used.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// Input or output failed. The transaction has changed nothing.
    #[error("{0}")]
    Storage(String),
    /// The reply is longer than allowed. The transaction has changed nothing.
    #[error("the reply is larger than 16 MiB")]
    ReplyTooLong,
    /// The store has no space for the write. The transaction has changed nothing.
    #[error(
        "PM2403 full: acknowledged writes that find no room wait, and so does everything after them, deletes too; nothing is lost. Stop this \
         process, make the store larger (pmnet store grow FILE --size BYTES), and start it again"
    )]
    Full,
    /// The content differs from what was written.
    #[error("PM2404 the file is damaged: {0}")]
    Corrupted(String),
}

const READING: &str = "a read tried to write";

/// One transaction over rows that are in the order of their keys.
///
/// Keys are bytes in the order of `memcmp`; a prefix of a key comes before the key. Key and value may each be 64 bytes
/// longer than the largest message (`pmnet_wire::MESSAGE_BYTES_MAX`), because an acknowledged `SET` with such a key or
/// value must not fail.
pub trait Rows {
    /// If a row with this `key` exists, calls `look` with it. Returns whether the row exists.
    ///
    /// # Errors
    /// [`Fault`].
    fn get(&self, key: &[u8], look: &mut dyn FnMut(Row<'_>)) -> Result<bool, Fault>;

    /// Writes the row of `key`. An earlier row of this key is replaced.
    ///
    /// # Errors
    /// [`Fault`]. A transaction that only reads always returns a fault, and need not implement this method.
    fn put(
        &mut self,
        _key: &[u8],
        _kind: u8,
        _expires_at_ms: u64,
        _value: &[u8],
    ) -> Result<(), Fault> {
        Err(Fault::Storage(READING.into()))
    }

    /// Names the update to which all later writes belong, until this function is called again; `None`: the writes
    /// belong to no update, or the store need not know their update.
    fn begin_update(&mut self, _update: Option<Update>) {}

    /// States whether the command that runs next frees space. Short rows of a command that frees space may use the
    /// space that is reserved for this purpose, until the next call of this function.
    fn set_frees(&mut self, _frees: bool) {}

    /// Facts about the store.
    fn about(&self) -> About {
        About::default()
    }

    /// Returns the number of rows in a range, without visiting the rows.
    fn count(&self, range: Range<'_>) -> u64;

    /// Removes the row of `key` if it exists.
    ///
    /// # Errors
    /// [`Fault`]. A transaction that only reads always returns a fault, and need not implement this method.
    fn remove(&mut self, _key: &[u8]) -> Result<(), Fault> {
        Err(Fault::Storage(READING.into()))
    }

    /// Calls `visit` with the rows of a range, in the given order, until `visit` returns a break. An empty or reversed
    /// range has no rows.
    ///
    /// # Errors
    /// [`Fault`].
    fn scan(
        &self,
        range: Range<'_>,
        order: Order,
        visit: &mut dyn FnMut(&[u8], Row<'_>) -> ControlFlow<()>,
    ) -> Result<(), Fault> {
        self.scan_from(range, order, 0, visit)
    }

    /// Does the same as [`Rows::scan`], but skips the first `skip` rows in this order without visiting them.
    ///
    /// # Errors
    /// [`Fault`].
    fn scan_from(
        &self,
        range: Range<'_>,
        order: Order,
        skip: u64,
        visit: &mut dyn FnMut(&[u8], Row<'_>) -> ControlFlow<()>,
    ) -> Result<(), Fault>;
}
