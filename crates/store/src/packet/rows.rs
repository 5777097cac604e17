//! Rows as records of the packet store.

use std::cell::RefCell;
use std::ops::{Bound, ControlFlow};

use pmnet_log::Media;
use pmnet_packet_store::{Error, InPlace, Meta, PacketStore, Prefix, Record, Room};

use super::holder::Writing;
use crate::rows::{About, Fault, Order, Range, Row, Rows, Update};

/// Rows inside a transaction that only reads. The methods that write return an error, because the caller has already
/// refused commands that write.
pub struct ReadRows<'m, M> {
    /// The store.
    pub map: &'m PacketStore<M>,
    /// Number of requests that were refused so far, for INFO.
    pub refused: u64,
}

/// Rows inside a transaction that writes.
pub struct WriteRows<'t, W> {
    writing: &'t mut W,
    /// Space that new rows may use.
    room: Room,
    /// Whether the rows belong to a command that frees space.
    frees: bool,
    /// Bytes of the rows that the command has removed so far.
    freed: usize,
    /// Number of requests that were refused so far, for INFO.
    pub refused: u64,
    /// The update that is being applied, while its payload can still be kept in the log.
    update: Option<Update>,
    /// Two numbers of strings of updates: those that stayed in their log entries, and those that were copied.
    pub kept: [u64; 2],
}

impl<'t, W: Writing> WriteRows<'t, W> {
    /// Makes the rows that this transaction sees.
    pub fn new(writing: &'t mut W, room: Room) -> WriteRows<'t, W> {
        WriteRows {
            writing,
            room,
            frees: false,
            freed: 0,
            refused: 0,
            update: None,
            kept: [0; 2],
        }
    }

    /// If key and value are parts of the current update, keeps them in the log entry of this update. Returns whether
    /// key and value were kept there.
    fn link(&mut self, key: &[u8], meta: Meta, value: &[u8]) -> Result<bool, Fault> {
        let Some(update) = &self.update else {
            return Ok(false);
        };
        let name = &update.payload[update.key.clone()];
        let prefix = key.strip_suffix(name).and_then(Prefix::of);
        let place = update
            .place_of(value)
            .filter(|at| at.start >= update.key.end);
        let (Some(prefix), Some(place)) = (prefix, place) else {
            return Ok(false);
        };
        let record = InPlace {
            key: update.key.clone(),
            value: place,
            meta,
        };
        match self.writing.link(update, prefix, &record, self.room) {
            Ok(Some(stays)) => {
                self.kept[usize::from(!stays)] += 1;
                // An entry of the log can be kept only once.
                self.update = None;
                Ok(true)
            }
            // A copy may find space even if the whole packet finds none.
            Ok(None) | Err(Error::Full { .. }) => Ok(false),
            Err(error) => Err(fault(error)),
        }
    }
}

/// Writes the protocol's records.
pub trait Keep {
    /// Writes one record of the protocol, or removes the record if `value` is `None`.
    ///
    /// # Errors
    /// [`Fault`].
    fn put_record(&mut self, key: &[u8], value: Option<&[u8]>, room: Room) -> Result<(), Fault>;

    /// Returns the number of bytes of the rows that a space-freeing command has removed.
    fn freed(&self) -> usize;
}

impl<W: Writing> Keep for WriteRows<'_, W> {
    fn put_record(&mut self, key: &[u8], value: Option<&[u8]>, room: Room) -> Result<(), Fault> {
        let key = [&[super::RECORDS], key].concat();
        let done = match value {
            Some(value) => self.writing.put(&key, value, Meta::default(), room),
            None => self.writing.remove(&key).map(drop),
        };
        done.map_err(fault)
    }

    fn freed(&self) -> usize {
        self.freed
    }
}

/// Converts an error of the store into a fault of the rows.
pub fn fault(error: Error) -> Fault {
    match error {
        Error::Full { .. } => Fault::Full,
        Error::Damaged(damage) => Fault::Corrupted(format!(
            "{}, order {}: {}",
            crate::types::Names::default().of(&damage.key),
            damage.order,
            damage.why
        )),
        // The caller has already checked the bounds of keys and values.
        Error::TooLong | Error::Media(_) => Fault::Storage(error.to_string()),
    }
}

thread_local! {
    /// Buffer in which a record that lies in several frames is put together. The buffer is reused, so that reads do not
    /// allocate.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Calls `look` with key and row of a record.
fn show<T, M: Media>(record: &Record<'_, M>, look: impl FnOnce(&[u8], Row<'_>) -> T) -> T {
    let mut scratch = SCRATCH.take();
    let Meta {
        kind,
        expires_at_ms,
        ..
    } = record.meta();
    let (key, value) = record.key_and_value(&mut scratch);
    let row = Row {
        kind,
        expires_at_ms,
        value,
    };
    let shown = look(key, row);
    SCRATCH.set(scratch);
    shown
}

fn get<M: Media>(
    map: &PacketStore<M>,
    key: &[u8],
    look: &mut dyn FnMut(Row<'_>),
) -> Result<bool, Fault> {
    let Some(record) = map.get(key).map_err(fault)? else {
        return Ok(false);
    };
    show(&record, |_, row| look(row));
    Ok(true)
}

fn scan<M: Media>(
    map: &PacketStore<M>,
    range: Range<'_>,
    order: Order,
    skip: u64,
    visit: &mut dyn FnMut(&[u8], Row<'_>) -> ControlFlow<()>,
) -> Result<(), Fault> {
    let mut records = match (skip, order) {
        (0, _) => map.range(range.0, range.1),
        (_, Order::Ascending) => map.range_without(range.0, range.1, skip, 0),
        (_, Order::Descending) => map.range_without(range.0, range.1, 0, skip),
    };
    let mut next = || match order {
        Order::Ascending => records.next(),
        Order::Descending => records.next_back(),
    };
    while let Some(record) = next() {
        let record = record.map_err(fault)?;
        let flow = show(&record, |key, row| {
            if key.first() == Some(&super::RECORDS) {
                // A record of the protocol is not a row.
                return ControlFlow::Continue(());
            }
            visit(key, row)
        });
        if flow.is_break() {
            break;
        }
    }
    Ok(())
}

/// Returns the facts about a packet store for INFO.
fn about<M: Media>(map: &PacketStore<M>, refused: u64) -> About {
    let stat = map.stat();
    let frame = u64::from(stat.frame_bytes);
    let record = |name: &[u8]| [&[super::RECORDS], name].concat();
    // Prefixes of the records in which the server keeps its sessions.
    let sessions = (record(b"session/"), record(b"session0"));
    let sessions = map.count_between(Bound::Included(&sessions.0), Bound::Excluded(&sessions.1));
    About {
        bytes: u64::from(stat.frames) * frame,
        used_bytes: u64::from(stat.frames_used) * frame,
        sessions: Some(sessions),
        refused,
    }
}

impl<W: Writing> Rows for WriteRows<'_, W> {
    fn about(&self) -> About {
        about(self.writing.map(), self.refused)
    }

    fn get(&self, key: &[u8], look: &mut dyn FnMut(Row<'_>)) -> Result<bool, Fault> {
        get(self.writing.map(), key, look)
    }

    fn put(&mut self, key: &[u8], kind: u8, expires_at_ms: u64, value: &[u8]) -> Result<(), Fault> {
        let meta = Meta {
            kind,
            expires_at_ms,
            ..Meta::default()
        };
        if self.link(key, meta, value)? {
            return Ok(());
        }
        let of_update = self.update.is_some();
        match self.writing.put(key, value, meta, self.room) {
            Err(Error::Full { .. }) if self.frees && value.len() <= super::SHORT_BYTES => {
                self.writing.put(key, value, meta, Room::Reserved)
            }
            // A value needs no space if it replaces a value of at least the same length. So counters can be decremented
            // even in a full store.
            Err(Error::Full { .. }) if self.replaces_longer(key, value)? => {
                self.writing.put(key, value, meta, Room::InPlace)
            }
            other => other,
        }
        .map_err(fault)?;
        self.kept[1] += u64::from(of_update);
        Ok(())
    }

    fn begin_update(&mut self, update: Option<Update>) {
        self.update = update;
    }

    fn set_frees(&mut self, frees: bool) {
        self.frees = frees;
    }

    fn count(&self, range: Range<'_>) -> u64 {
        self.writing.map().count_between(range.0, range.1)
    }

    fn scan_from(
        &self,
        range: Range<'_>,
        order: Order,
        skip: u64,
        visit: &mut dyn FnMut(&[u8], Row<'_>) -> ControlFlow<()>,
    ) -> Result<(), Fault> {
        scan(self.writing.map(), range, order, skip, visit)
    }

    fn remove(&mut self, key: &[u8]) -> Result<(), Fault> {
        if self.frees {
            self.freed += self.writing.map().bytes_of(key).unwrap_or(0);
        }
        self.writing.remove(key).map(drop).map_err(fault)
    }
}

impl<W: Writing> WriteRows<'_, W> {
    fn replaces_longer(&self, key: &[u8], value: &[u8]) -> Result<bool, Fault> {
        let found = self.writing.map().get(key).map_err(fault)?;
        Ok(found.is_some_and(|record| record.value_len() >= value.len()))
    }
}

impl<M: Media> Rows for ReadRows<'_, M> {
    fn about(&self) -> About {
        about(self.map, self.refused)
    }

    fn get(&self, key: &[u8], look: &mut dyn FnMut(Row<'_>)) -> Result<bool, Fault> {
        get(self.map, key, look)
    }

    fn count(&self, range: Range<'_>) -> u64 {
        self.map.count_between(range.0, range.1)
    }

    fn scan_from(
        &self,
        range: Range<'_>,
        order: Order,
        skip: u64,
        visit: &mut dyn FnMut(&[u8], Row<'_>) -> ControlFlow<()>,
    ) -> Result<(), Fault> {
        scan(self.map, range, order, skip, visit)
    }
}
