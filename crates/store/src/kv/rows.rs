//! Rows in a table of redb.

use std::ops::{Bound, ControlFlow};

use redb::{ReadableTable, StorageError, Table};

use crate::rows::{Fault, Order, Range, Row, Rows};

/// Bytes in front of a row's value: its kind, and its expiry as big-endian milliseconds.
const FRONT_BYTES: usize = 9;

impl<E: Into<redb::Error>> From<E> for Fault {
    fn from(error: E) -> Fault {
        match error.into() {
            redb::Error::Corrupted(text) => Fault::Corrupted(text),
            other => Fault::Storage(other.to_string()),
        }
    }
}

/// Inside a write transaction.
pub struct WriteRows<'t> {
    /// The table.
    pub table: Table<'t, &'static [u8], &'static [u8]>,
}

/// Inside a read transaction. Its writing methods fail: the caller refuses such commands before.
pub struct ReadRows {
    /// The table.
    pub table: redb::ReadOnlyTable<&'static [u8], &'static [u8]>,
}

fn decode(bytes: &[u8]) -> Result<Row<'_>, Fault> {
    let damaged = || Fault::Corrupted("a row is shorter than what is in front of its value".into());
    let (front, value) = bytes
        .split_first_chunk::<FRONT_BYTES>()
        .ok_or_else(damaged)?;
    let [kind, expiry @ ..] = *front;
    Ok(Row {
        kind,
        expires_at_ms: u64::from_be_bytes(expiry),
        value,
    })
}

fn get(
    table: &impl ReadableTable<&'static [u8], &'static [u8]>,
    key: &[u8],
    look: &mut dyn FnMut(Row<'_>),
) -> Result<bool, Fault> {
    let Some(found) = table.get(key)? else {
        return Ok(false);
    };
    look(decode(found.value())?);
    Ok(true)
}

/// Whether no key can be in a range; redb does not take all of them.
fn is_empty(range: &Range<'_>) -> bool {
    match range {
        (Bound::Included(from), Bound::Included(to)) => from > to,
        (
            Bound::Included(from) | Bound::Excluded(from),
            Bound::Included(to) | Bound::Excluded(to),
        ) => from >= to,
        _ => false,
    }
}

fn scan(
    table: &impl ReadableTable<&'static [u8], &'static [u8]>,
    range: Range<'_>,
    order: Order,
    visit: &mut dyn FnMut(&[u8], Row<'_>) -> ControlFlow<()>,
) -> Result<(), Fault> {
    if is_empty(&range) {
        return Ok(());
    }
    let mut entries = table.range::<&[u8]>(range)?;
    let mut next = || match order {
        Order::Ascending => entries.next(),
        Order::Descending => entries.next_back(),
    };
    while let Some(entry) = next() {
        let (key, value) = entry?;
        if visit(key.value(), decode(value.value())?).is_break() {
            break;
        }
    }
    Ok(())
}

impl Rows for WriteRows<'_> {
    fn get(&self, key: &[u8], look: &mut dyn FnMut(Row<'_>)) -> Result<bool, Fault> {
        get(&self.table, key, look)
    }

    fn put(&mut self, key: &[u8], kind: u8, expires_at_ms: u64, value: &[u8]) -> Result<(), Fault> {
        let length = FRONT_BYTES + value.len();
        let length = u32::try_from(length).map_err(|_| StorageError::ValueTooLarge(length))?;
        let mut place = self.table.insert_reserve(key, length)?;
        let bytes = place.as_mut();
        bytes[0] = kind;
        bytes[1..FRONT_BYTES].copy_from_slice(&expires_at_ms.to_be_bytes());
        bytes[FRONT_BYTES..].copy_from_slice(value);
        Ok(())
    }

    fn remove(&mut self, key: &[u8]) -> Result<(), Fault> {
        self.table.remove(key)?;
        Ok(())
    }

    fn scan(
        &self,
        range: Range<'_>,
        order: Order,
        visit: &mut dyn FnMut(&[u8], Row<'_>) -> ControlFlow<()>,
    ) -> Result<(), Fault> {
        scan(&self.table, range, order, visit)
    }
}

impl Rows for ReadRows {
    fn get(&self, key: &[u8], look: &mut dyn FnMut(Row<'_>)) -> Result<bool, Fault> {
        get(&self.table, key, look)
    }

    fn scan(
        &self,
        range: Range<'_>,
        order: Order,
        visit: &mut dyn FnMut(&[u8], Row<'_>) -> ControlFlow<()>,
    ) -> Result<(), Fault> {
        scan(&self.table, range, order, visit)
    }
}
