//! Rows as records of the packet store.

use std::cell::RefCell;
use std::ops::ControlFlow;

use pmnet_media::AnyMedia;
use pmnet_packet_store::{Error, Meta, PacketStore, Record, Room, Transaction, VALUE_BYTES_MAX};

use crate::rows::{Fault, Order, Range, Row, Rows};

/// Inside a transaction that only reads. Its writing methods fail: the caller refuses such commands before.
pub struct ReadRows<'m> {
    /// The store.
    pub map: &'m PacketStore<AnyMedia>,
}

/// Inside a transaction that writes.
pub struct WriteRows<'t, 'm> {
    transaction: &'t mut Transaction<'m, AnyMedia>,
}

impl<'t, 'm> WriteRows<'t, 'm> {
    /// The rows that this transaction sees.
    pub fn new(transaction: &'t mut Transaction<'m, AnyMedia>) -> WriteRows<'t, 'm> {
        WriteRows { transaction }
    }

    /// Writes one of the protocol's records, or removes it.
    ///
    /// # Errors
    /// [`Fault`].
    pub fn put_record(
        &mut self,
        key: &[u8],
        value: Option<&[u8]>,
        room: Room,
    ) -> Result<(), Fault> {
        super::put_record(self.transaction, key, value, room).map_err(fault)
    }
}

/// What the types are told.
pub fn fault(error: Error) -> Fault {
    match error {
        Error::Full { .. } => Fault::Full,
        Error::Damaged(damage) => Fault::Corrupted(damage.to_string()),
        // Keys and values have bounds before they come here.
        Error::TooLong | Error::Media(_) => Fault::Storage(error.to_string()),
    }
}

thread_local! {
    /// Where records that lie in several frames are put together: one is enough, and it is not allocated for each.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Hands key and row of a record to `look`.
fn show<T>(record: &Record<'_, AnyMedia>, look: impl FnOnce(&[u8], Row<'_>) -> T) -> T {
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

fn get(
    map: &PacketStore<AnyMedia>,
    key: &[u8],
    look: &mut dyn FnMut(Row<'_>),
) -> Result<bool, Fault> {
    let Some(record) = map.get(key).map_err(fault)? else {
        return Ok(false);
    };
    show(&record, |_, row| look(row));
    Ok(true)
}

fn scan(
    map: &PacketStore<AnyMedia>,
    range: Range<'_>,
    order: Order,
    visit: &mut dyn FnMut(&[u8], Row<'_>) -> ControlFlow<()>,
) -> Result<(), Fault> {
    let mut records = map.range(range.0, range.1);
    let mut next = || match order {
        Order::Ascending => records.next(),
        Order::Descending => records.next_back(),
    };
    while let Some(record) = next() {
        let record = record.map_err(fault)?;
        let flow = show(&record, |key, row| {
            if key.first() == Some(&super::RECORDS) {
                // The protocol's records are no rows.
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

impl Rows for WriteRows<'_, '_> {
    fn value_bytes_max(&self) -> usize {
        VALUE_BYTES_MAX
    }

    fn get(&self, key: &[u8], look: &mut dyn FnMut(Row<'_>)) -> Result<bool, Fault> {
        get(self.transaction.store(), key, look)
    }

    fn put(&mut self, key: &[u8], kind: u8, expires_at_ms: u64, value: &[u8]) -> Result<(), Fault> {
        let meta = Meta {
            kind,
            expires_at_ms,
            ..Meta::default()
        };
        match self.transaction.put(key, value, meta, Room::Ordinary) {
            // What replaces something that is not shorter gives its room back: counters of what gets fewer.
            Err(Error::Full { .. }) if self.replaces_longer(key, value)? => {
                let again = self.transaction.put(key, value, meta, Room::InPlace);
                again.map_err(fault)
            }
            other => other.map_err(fault),
        }
    }

    fn remove(&mut self, key: &[u8]) -> Result<(), Fault> {
        self.transaction.remove(key).map(drop).map_err(fault)
    }

    fn scan(
        &self,
        range: Range<'_>,
        order: Order,
        visit: &mut dyn FnMut(&[u8], Row<'_>) -> ControlFlow<()>,
    ) -> Result<(), Fault> {
        scan(self.transaction.store(), range, order, visit)
    }
}

impl WriteRows<'_, '_> {
    fn replaces_longer(&self, key: &[u8], value: &[u8]) -> Result<bool, Fault> {
        let found = self.transaction.get(key).map_err(fault)?;
        Ok(found.is_some_and(|record| record.value_len() >= value.len()))
    }
}

impl Rows for ReadRows<'_> {
    fn value_bytes_max(&self) -> usize {
        VALUE_BYTES_MAX
    }

    fn get(&self, key: &[u8], look: &mut dyn FnMut(Row<'_>)) -> Result<bool, Fault> {
        get(self.map, key, look)
    }

    fn scan(
        &self,
        range: Range<'_>,
        order: Order,
        visit: &mut dyn FnMut(&[u8], Row<'_>) -> ControlFlow<()>,
    ) -> Result<(), Fault> {
        scan(self.map, range, order, visit)
    }
}
