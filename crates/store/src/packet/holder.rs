//! The owner of the records: a store alone, or a store that shares its frames with a log (`docs/spec/packet-store.md`
//! §11, §12).

use std::fmt;

use pmnet_log::Media;
use pmnet_media::AnyMedia;
use pmnet_packet_store::{
    Change, Error, InPlace, Meta, PacketStore as Map, Prefix, Room, Seat, Shared, Transaction,
};

use super::place::Place;
use super::rows::fault;
use crate::rows::{Fault, Update};

/// Changes that take effect together or not at all.
pub trait Writing {
    /// Medium of the records.
    type Medium: Media;
    /// Returns the store with these changes.
    fn map(&self) -> &Map<Self::Medium>;
    /// Writes a record, like [`Transaction::put`].
    fn put(&mut self, key: &[u8], value: &[u8], meta: Meta, room: Room) -> Result<(), Error>;
    /// Removes a record, like [`Transaction::remove`].
    fn remove(&mut self, key: &[u8]) -> Result<bool, Error>;
    /// Keeps a record in the log entry in which the record arrived, if that is possible. Returns whether the record
    /// stays in this log entry. `None`: nothing has changed, and the caller must copy the record.
    ///
    /// # Errors
    /// [`Error`]: nothing has changed.
    fn link(
        &mut self,
        _update: &Update,
        _prefix: Prefix,
        _record: &InPlace,
        _room: Room,
    ) -> Result<Option<bool>, Error> {
        Ok(None)
    }
    /// Makes the changes durable, like [`Transaction::commit`].
    fn commit(self) -> Result<(), Error>;
}

impl<M: Media> Writing for Transaction<'_, M> {
    type Medium = M;
    fn map(&self) -> &Map<M> {
        self.store()
    }
    fn put(&mut self, key: &[u8], value: &[u8], meta: Meta, room: Room) -> Result<(), Error> {
        Transaction::put(self, key, value, meta, room)
    }
    fn remove(&mut self, key: &[u8]) -> Result<bool, Error> {
        Transaction::remove(self, key)
    }
    fn commit(self) -> Result<(), Error> {
        Transaction::commit(self)
    }
}

impl<M: Media> Writing for Change<'_, M> {
    type Medium = Seat<M>;
    fn map(&self) -> &Map<Seat<M>> {
        self.store()
    }
    fn put(&mut self, key: &[u8], value: &[u8], meta: Meta, room: Room) -> Result<(), Error> {
        Change::put(self, key, value, meta, room)
    }
    fn remove(&mut self, key: &[u8]) -> Result<bool, Error> {
        Change::remove(self, key)
    }
    fn link(
        &mut self,
        update: &Update,
        prefix: Prefix,
        record: &InPlace,
        room: Room,
    ) -> Result<Option<bool>, Error> {
        let origin = update.origin;
        if !self.holds(origin.order, update.payload.len(), origin.payload_crc) {
            return Ok(None);
        }
        let record = std::slice::from_ref(record);
        self.link_with(origin.order, prefix, record, room).map(Some)
    }
    fn commit(self) -> Result<(), Error> {
        Change::commit(self)
    }
}

/// An object that holds the records of a store.
pub trait Holder: Send {
    /// Medium of the records.
    type Medium: Media;
    /// Changes of these records.
    type Writing<'h>: Writing<Medium = Self::Medium>
    where
        Self: 'h;
    /// Begins changes. With `upto`, the changes take the store up to this order; with `None`, the store stays at its
    /// order.
    fn begin(&mut self, upto: Option<u64>) -> Result<Self::Writing<'_>, Fault>;
    /// Moves up to `budget` bytes of records together, like [`Map::pack_step`].
    fn pack_step(&mut self, budget: usize) -> Result<usize, Fault>;
    /// Calls `look` with the records as of the last commit.
    fn look<T>(&mut self, look: impl FnOnce(&Map<Self::Medium>) -> T) -> Result<T, Fault>;
    /// Reserves space for further records of `bytes` bytes: one for each existing key from `prefix` on. Returns whether
    /// the store is short of space afterwards, and whether it is crowded.
    fn settle(&mut self, prefix: u8, bytes: usize) -> Result<(bool, bool), Fault>;
    /// Drops the state in memory, which is of no use after a failure of the medium.
    fn close(&mut self);
    /// Opens the store again after [`Holder::close`].
    fn open(&mut self) -> Result<(), Reopen>;
    /// Returns a text that names the failures which a committed change survives.
    fn survives(&self) -> &'static str;
    /// Returns the name of the store.
    fn name(&self) -> &dyn fmt::Display;
    /// Counts records that stayed where they had arrived (`_linked`), and records that were copied (`_copied`).
    fn kept(&mut self, _linked: u64, _copied: u64) {}
}

/// The reason why a store could not be opened again.
pub enum Reopen {
    /// Another attempt may succeed.
    Later(String),
    /// This process cannot open the store.
    Never(String),
}

fn closed() -> Fault {
    Fault::Storage("closed after an error: load first".into())
}

/// A store without a log, which is alone on its medium.
pub struct Alone {
    /// The records; `None` after a failure of the medium, until `load` opens the store again.
    pub(super) map: Option<Map<AnyMedia>>,
    pub(super) place: Place,
}

impl Holder for Alone {
    type Medium = AnyMedia;
    type Writing<'h> = Transaction<'h, AnyMedia>;
    fn begin(&mut self, _upto: Option<u64>) -> Result<Transaction<'_, AnyMedia>, Fault> {
        Ok(self.map.as_mut().ok_or_else(closed)?.transaction())
    }
    fn pack_step(&mut self, budget: usize) -> Result<usize, Fault> {
        let map = self.map.as_mut().ok_or_else(closed)?;
        map.pack_step(budget).map_err(fault)
    }
    fn look<T>(&mut self, look: impl FnOnce(&Map<AnyMedia>) -> T) -> Result<T, Fault> {
        Ok(look(self.map.as_ref().ok_or_else(closed)?))
    }
    fn settle(&mut self, prefix: u8, bytes: usize) -> Result<(bool, bool), Fault> {
        let map = self.map.as_mut().ok_or_else(closed)?;
        map.keep_for_records(&[prefix], bytes);
        Ok((map.is_short(), map.is_crowded()))
    }
    fn close(&mut self) {
        self.map = None;
    }
    fn open(&mut self) -> Result<(), Reopen> {
        if self.map.is_none() {
            let opened = self.place.open();
            self.map = Some(opened.map_err(|error| Reopen::Later(error.to_string()))?);
        }
        Ok(())
    }
    fn survives(&self) -> &'static str {
        let map = self.map.as_ref();
        map.map_or("nothing: it is closed", |map| map.media().survives())
    }
    fn name(&self) -> &dyn fmt::Display {
        &self.place
    }
}

/// A store beside the log of a device, in the same frames. The device holds the log, except while the server calls the
/// store.
pub struct Beside<M: Media> {
    shared: Shared<M>,
    name: String,
    failed: bool,
    linked: u64,
    copied: u64,
}

impl<M: Media> Beside<M> {
    pub(super) fn new(shared: Shared<M>, name: String) -> Beside<M> {
        Beside {
            shared,
            name,
            failed: false,
            linked: 0,
            copied: 0,
        }
    }

    /// Returns the log and the store.
    pub fn shared(&mut self) -> &mut Shared<M> {
        &mut self.shared
    }

    /// Returns the log and the store, and consumes this value.
    pub fn into_shared(self) -> Shared<M> {
        self.shared
    }

    /// Returns two numbers since the start: strings that stayed where they had arrived, and strings that were copied.
    #[must_use]
    pub const fn counts(&self) -> [u64; 2] {
        [self.linked, self.copied]
    }
}

fn log_fault(error: &pmnet_log::LogError) -> Fault {
    Fault::Storage(error.to_string())
}

impl<M: Media + Send> Holder for Beside<M> {
    type Medium = Seat<M>;
    type Writing<'h>
        = Change<'h, M>
    where
        Self: 'h;
    fn begin(&mut self, upto: Option<u64>) -> Result<Change<'_, M>, Fault> {
        let upto = upto.unwrap_or_else(|| self.shared.log().applied());
        self.shared.change(upto).map_err(|error| log_fault(&error))
    }
    fn pack_step(&mut self, budget: usize) -> Result<usize, Fault> {
        self.shared.pack_step(budget).map_err(fault)
    }
    fn look<T>(&mut self, look: impl FnOnce(&Map<Seat<M>>) -> T) -> Result<T, Fault> {
        let reading = self.shared.store().map_err(|error| log_fault(&error))?;
        Ok(look(&reading))
    }
    fn settle(&mut self, prefix: u8, bytes: usize) -> Result<(bool, bool), Fault> {
        let kept = self.shared.keep_for_records(&[prefix], bytes);
        kept.map_err(|error| log_fault(&error))
    }
    fn close(&mut self) {
        self.failed = true;
    }
    fn open(&mut self) -> Result<(), Reopen> {
        match self.failed {
            false => Ok(()),
            true => Err(Reopen::Never(format!(
                "PM2418 {}: its medium failed. Nothing that was acknowledged is lost if the medium is whole: start the device again",
                self.name
            ))),
        }
    }
    fn survives(&self) -> &'static str {
        self.shared.log().survives()
    }
    fn name(&self) -> &dyn fmt::Display {
        &self.name
    }
    fn kept(&mut self, linked: u64, copied: u64) {
        self.linked += linked;
        self.copied += copied;
    }
}
