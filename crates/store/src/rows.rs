//! `trait Rows`: what the data types of Redis need from a store of their own: ordered rows, and nothing else.
//!
//! A row is a key, a kind, an expiry and a value. The store gives no meaning to any of them: `types` does (how,
//! is in `docs/spec/embedded-store.md`). All calls on one [`Rows`] are one transaction: they see what it has written before,
//! and take effect together, durably, or not at all.

use std::ops::{Bound, ControlFlow};

use bytes::Bytes;
use pmnet_server::Origin;

/// A row's content, lent by the store to its reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row<'a> {
    /// Kind of the value; the store only keeps it.
    pub kind: u8,
    /// Time of expiry, in milliseconds since 1970; 0: never. Only kept, as the kind: a store neither hides nor
    /// removes a row whose time is over.
    pub expires_at_ms: u64,
    /// The value.
    pub value: &'a [u8],
}

/// An update that runs, and whose payload lies in the log as it is: a store that has the log, too, can keep a value where it lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Update {
    /// The entry of the log.
    pub origin: Origin,
    /// Its payload.
    pub payload: Bytes,
    /// Place of the key of its one command in it.
    pub key: std::ops::Range<usize>,
}

impl Update {
    /// Returns where these bytes are in the payload, if they are a part of it and not a copy.
    pub fn place_of(&self, part: &[u8]) -> Option<std::ops::Range<usize>> {
        place_in(&self.payload, part)
    }
}

/// Returns where `part` is in `whole`, if it is a part of it and not a copy.
pub fn place_in(whole: &[u8], part: &[u8]) -> Option<std::ops::Range<usize>> {
    let start = part.as_ptr().addr().checked_sub(whole.as_ptr().addr())?;
    let end = start.checked_add(part.len())?;
    (end <= whole.len()).then_some(start..end)
}

/// Facts about a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// Its size, in bytes.
    pub bytes: u64,
    /// How many of them are in use.
    pub used_bytes: u64,
    /// Sessions of clients, as far as that is known.
    pub sessions: Option<u64>,
    /// Requests that were refused since the start.
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

/// Keys of a scan: from one bound to the other.
pub type Range<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

/// Reason why the rows could not be used.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// Input or output failed; nothing of the transaction happened.
    #[error("{0}")]
    Storage(String),
    /// The reply is longer than a reply may be; nothing of the transaction happened.
    #[error("the reply is larger than 16 MiB")]
    ReplyTooLong,
    /// There is no room for what was to be written; nothing of the transaction happened.
    #[error(
        "PM2403 full: acknowledged writes that find no room wait, and so does everything after them, deletes too; nothing is lost. Stop this \
         process, make the store larger (pmnet store grow FILE --size BYTES), and start it again"
    )]
    Full,
    /// The content is not what was written.
    #[error("PM2404 the file is damaged: {0}")]
    Corrupted(String),
}

const READING: &str = "a read tried to write";

/// One transaction over ordered rows.
///
/// Keys are bytes, ordered as `memcmp` does, and a shorter key before a longer one that begins with it. A key is at
/// most as long as the largest message (`pmnet_wire::MESSAGE_BYTES_MAX`) and 64 bytes more, because an
/// acknowledged `SET` with such a key must not fail. The same holds for a value of that length.
pub trait Rows {
    /// Hands the row of `key` to `look`, if there is one; returns whether there is.
    ///
    /// # Errors
    /// [`Fault`].
    fn get(&self, key: &[u8], look: &mut dyn FnMut(Row<'_>)) -> Result<bool, Fault>;

    /// Writes the row of `key`, in place of an earlier one.
    ///
    /// # Errors
    /// [`Fault`]; always in a transaction that only reads, which need not have this method.
    fn put(
        &mut self,
        _key: &[u8],
        _kind: u8,
        _expires_at_ms: u64,
        _value: &[u8],
    ) -> Result<(), Fault> {
        Err(Fault::Storage(READING.into()))
    }

    /// Tells which update is the author of all writes until the next call; `None`: no update is, or the store need not know.
    fn begin_update(&mut self, _update: Option<Update>) {}

    /// Short rows that are written from now on, until this is said again, are of a command that gives room back: they may
    /// take the room that is kept for such.
    fn set_frees(&mut self, _frees: bool) {}

    /// Facts about the store.
    fn about(&self) -> About {
        About::default()
    }

    /// Returns how many rows are in a range, without visiting them.
    fn count(&self, range: Range<'_>) -> u64;

    /// Removes the row of `key`, if there is one.
    ///
    /// # Errors
    /// [`Fault`]; always in a transaction that only reads, which need not have this method.
    fn remove(&mut self, _key: &[u8]) -> Result<(), Fault> {
        Err(Fault::Storage(READING.into()))
    }

    /// Hands the rows of a range to `visit`, in this order, until it breaks. An empty or reversed range has none.
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

    /// As [`Rows::scan`], without the first `skip` rows in this order, which are not visited.
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
