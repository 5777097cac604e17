//! A change that takes the store from one order of the log to a later order, in one durable step.

use pmnet_log::Media;

use super::{Seat, Shared};
use crate::error::Error;
use crate::frames::Room;
use crate::prefix::{Prefix, joined};
use crate::record::Meta;
use crate::store::PacketStore;
use crate::transaction::{InPlace, Packet};

/// A payload with fewer bytes is copied into a frame with other records, because a frame of its own would be mostly
/// empty.
pub const COPIED_BYTES_MAX: usize = 512;

/// Changes of records, and of the order up to which the store has applied updates. The changes become durable together
/// or not at all. Dropping this value undoes them.
pub struct Change<'r, M: Media> {
    shared: &'r mut Shared<M>,
    upto: u64,
    records: Vec<InPlace>,
}

impl<M: Media> Drop for Change<'_, M> {
    fn drop(&mut self) {
        self.shared.store.abort();
        self.shared.swap();
    }
}

impl<'r, M: Media> Change<'r, M> {
    pub(super) fn begin(shared: &'r mut Shared<M>, upto: u64) -> Change<'r, M> {
        shared.swap();
        Change {
            shared,
            upto,
            records: Vec::new(),
        }
    }

    /// Returns the store with this change.
    #[must_use]
    pub fn store(&self) -> &PacketStore<Seat<M>> {
        &self.shared.store
    }

    /// Returns whether the log has an unapplied entry of this order whose payload has this length and checksum.
    #[must_use]
    pub fn holds(&mut self, order: u64, len: usize, crc: u32) -> bool {
        if order > self.upto {
            return false;
        }
        self.shared.swap();
        let found = self.shared.payload_of(order);
        self.shared.swap();
        found.is_some_and(|(_, payload, found)| (payload.len(), found) == (len, crc))
    }

    /// Writes the records in the payload of a log entry. A payload of at least [`COPIED_BYTES_MAX`] bytes stays in its
    /// frame and is not copied. The order is stored in the lines of the records. Each order can be linked only once,
    /// with all its records in one call.
    ///
    /// # Errors
    /// [`Error::Full`]: there are too few lines, or the log cannot get another frame for this frame.
    /// [`Error::TooLong`]: for the reasons of [`put_in_place`](crate::Transaction::put_in_place). If a call for one
    /// record fails in this way, it has changed nothing. A call for several records may have written some of them, so
    /// the change must be dropped.
    ///
    /// # Panics
    /// If the log has no such order above the applied orders, if the order is above that of this change, or if it was
    /// linked before.
    pub fn link(&mut self, order: u64, records: &[InPlace], room: Room) -> Result<(), Error> {
        self.link_with(order, Prefix::NONE, records, room).map(drop)
    }

    /// Writes records like [`Change::link`], but their keys begin with `prefix`, which is not in the payload. Returns
    /// whether the payload stayed in its frame. In a region that an earlier version created, records with a prefix are
    /// copied.
    ///
    /// # Errors
    /// The errors of [`Change::link`].
    ///
    /// # Panics
    /// In the cases in which [`Change::link`] panics.
    pub fn link_with(
        &mut self,
        order: u64,
        prefix: Prefix,
        records: &[InPlace],
        room: Room,
    ) -> Result<bool, Error> {
        assert!(order <= self.upto, "an order of this change");
        self.shared.swap();
        let found = self.shared.payload_of(order);
        self.shared.swap();
        let (frame, payload, crc) =
            found.expect("an order that the log has, and that is not applied");
        self.records.clear();
        self.records
            .extend(records.iter().cloned().map(|mut record| {
                record.meta.order = order;
                record
            }));
        let packet = Packet {
            frame,
            payload,
            crc,
        };
        let store = &mut self.shared.store;
        let possible = prefix == Prefix::NONE || store.prefixes;
        if packet.payload.len() < COPIED_BYTES_MAX || !possible {
            return self.copy(&packet, prefix, room).map(|()| false);
        }
        store.put_in_place(&packet, prefix, &self.records, room, true)?;
        Ok(true)
    }

    fn copy(&mut self, packet: &Packet, prefix: Prefix, room: Room) -> Result<(), Error> {
        let store = &mut self.shared.store;
        let start = store.frame_offset(packet.frame) + packet.payload.start;
        let payload = store
            .media
            .part(start..start + packet.payload.len())
            .to_vec();
        if !packet.fits(&self.records, store.geometry.frame_len()) {
            return Err(Error::TooLong);
        }
        let mut scratch = Vec::new();
        for record in &self.records {
            let key = joined(prefix, &payload[record.key.clone()], &mut scratch);
            store.put(key, &payload[record.value.clone()], record.meta, room)?;
        }
        Ok(())
    }

    /// Writes a record by copying it, because its bytes are not in the log, or are in the log in another form.
    ///
    /// # Errors
    /// The errors of [`put`](crate::Transaction::put).
    pub fn put(&mut self, key: &[u8], value: &[u8], meta: Meta, room: Room) -> Result<(), Error> {
        self.shared.store.put(key, value, meta, room)
    }

    /// Removes a record. Returns whether the record existed.
    ///
    /// # Errors
    /// The errors of [`remove`](crate::Transaction::remove).
    pub fn remove(&mut self, key: &[u8]) -> Result<bool, Error> {
        self.shared.store.remove(key)
    }

    /// Makes all changes durable, in one atomic step. Afterwards the log reclaims the orders that the store has
    /// applied, and gets other frames for the frames that became records.
    ///
    /// # Errors
    /// [`Error::Media`]. It is then unknown whether the change is durable. The region must not be used until it is
    /// opened again.
    pub fn commit(self) -> Result<(), Error> {
        let upto = self.upto;
        let store = &mut self.shared.store;
        if store.undo.is_empty() && upto <= store.done.order {
            return Ok(());
        }
        store.next.order = upto.max(store.done.order);
        store.commit_always()?;
        let balanced = self.shared.balance();
        // The log reclaims last: before any record says that these orders are applied, the store has them durably.
        self.shared.log.reclaim(upto);
        balanced
    }
}
