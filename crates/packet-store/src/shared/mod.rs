//! A log and a store in one region, with the same frames: the frame of a log entry becomes the stored record
//! (`docs/spec/packet-store.md` §11).
//!
//! Invariants: no code stores into a frame that the log or the store needs; before the log reclaims an order, a commit
//! of the store has made it durable; the log always has [`Shared::log_frames`] frames besides those with records of the
//! store. This module does not move packets, and does not interpret entries.

mod change;
mod open;
mod seat;

use std::ops::{Deref, Range};

use pmnet_log::{Full, Held, Log, LogError, Media, NewEntry};

use crate::error::Error;
use crate::geometry::index;
use crate::store::PacketStore;

pub use change::{COPIED_BYTES_MAX, Change};
pub(crate) use open::largest;
pub use open::{SharedError, format_shared};
pub use seat::Seat;

/// A log and a store in one region, as the module's text describes. A region has one owner, and is used by one thread
/// at a time.
pub struct Shared<M: Media> {
    log: Held<Log<Seat<M>>>,
    store: PacketStore<Seat<M>>,
    log_frames: u32,
    /// Number of frames that the log should have besides those with records.
    own: u32,
}

/// The store for reading. While this value exists, the store has the medium.
pub struct Reading<'r, M: Media> {
    shared: &'r mut Shared<M>,
}

impl<M: Media> Deref for Reading<'_, M> {
    type Target = PacketStore<Seat<M>>;
    fn deref(&self) -> &PacketStore<Seat<M>> {
        &self.shared.store
    }
}

impl<M: Media> Drop for Reading<'_, M> {
    fn drop(&mut self) {
        self.shared.swap();
    }
}

impl<M: Media> Shared<M> {
    fn swap(&mut self) {
        self.log.medium_mut().swap(self.store.media_mut());
    }

    /// Returns the log.
    #[must_use]
    pub fn log(&self) -> &Log<Seat<M>> {
        &self.log
    }

    /// Hands the log over to a device. Until the log [comes back](Shared::take_back), no other method may be used.
    ///
    /// # Panics
    /// If the log is already handed over.
    pub fn hand_over(&mut self) -> Log<Seat<M>> {
        self.log.hand_over()
    }

    /// Takes the log back. The log's holder may only have appended, persisted, and reclaimed orders that this store has
    /// applied.
    ///
    /// # Panics
    /// If the log was not handed over.
    pub fn take_back(&mut self, log: Log<Seat<M>>) {
        self.log.take_back(log);
    }

    /// Reserves space for the updates that the log may hold: one or two frames, and two lines, for each of the log's
    /// frames. Acknowledged updates may take a quarter of the reserve besides ([`Room::Acknowledged`](crate::Room)). In
    /// a region of less than about six times the log, half of the space that the log leaves is reserved.
    pub fn keep_ahead(&mut self) {
        let log = index(self.log_frames);
        let frames = &self.store.frames;
        let left = index(self.store.geometry.frames).saturating_sub(log + frames.reserve()) / 2;
        let wanted = (2 * log).saturating_sub(frames.reserve() / 4);
        self.store.keep_ahead(wanted.min(left), 2 * log);
    }

    /// Returns the offset of the log's image in the region, in bytes.
    #[must_use]
    pub fn image_start(&self) -> usize {
        self.store.geometry.table().end
    }

    /// Returns the number of frames that the log has besides those with records.
    #[must_use]
    pub fn log_frames(&self) -> u32 {
        self.log_frames
    }

    /// Returns the store as of its last commit. Waits for the log's persist in flight, because both share one medium.
    ///
    /// # Errors
    /// [`LogError::Media`]. The region must not be used until it is opened again.
    pub fn store(&mut self) -> Result<Reading<'_, M>, LogError> {
        self.log.persist_poll(true)?;
        self.swap();
        Ok(Reading { shared: self })
    }

    /// Reserves space as [`PacketStore::keep_for_records`] does. Returns whether the store is short afterwards, and
    /// whether it is crowded. Waits for the log's persist in flight.
    ///
    /// # Errors
    /// [`LogError::Media`]. The region must not be used until it is opened again.
    pub fn keep_for_records(
        &mut self,
        from: &[u8],
        bytes: usize,
    ) -> Result<(bool, bool), LogError> {
        self.log.persist_poll(true)?;
        self.swap();
        self.store.keep_for_records(from, bytes);
        self.swap();
        Ok((self.store.is_short(), self.store.is_crowded()))
    }

    /// Appends an entry; see [`Log::append`].
    ///
    /// # Errors
    /// The errors of [`Log::append`].
    pub fn append(
        &mut self,
        new: &NewEntry,
        header: &[u8],
        payload: &[u8],
        payload_crc: u32,
    ) -> Result<u64, Full> {
        self.log.append(new, header, payload, payload_crc)
    }

    /// Appends a frame in place; see [`Log::append_in_place`].
    ///
    /// # Errors
    /// The errors of [`Log::append_in_place`].
    ///
    /// # Panics
    /// If [`Log::append_in_place`] would panic.
    pub fn append_in_place(
        &mut self,
        new: &NewEntry,
        header: &[u8],
        frame: &Range<usize>,
        payload_crc: u32,
    ) -> Result<u64, Full> {
        self.log.append_in_place(new, header, frame, payload_crc)
    }

    /// Starts a persist of the log; see [`Log::persist_start`].
    ///
    /// # Errors
    /// The errors of [`Log::persist_start`].
    pub fn persist_start(&mut self) -> Result<bool, LogError> {
        self.log.persist_start()
    }

    /// Polls the persist of the log; see [`Log::persist_poll`].
    ///
    /// # Errors
    /// The errors of [`Log::persist_poll`].
    pub fn persist_poll(&mut self, wait: bool) -> Result<bool, LogError> {
        self.log.persist_poll(wait)
    }

    /// Begins a transaction that takes the store up to this order. If `upto` is the log's applied order, the store
    /// stays at its order. Waits for the log's persist in flight.
    ///
    /// # Errors
    /// [`LogError::Media`]. The region must not be used until it is opened again.
    ///
    /// # Panics
    /// If the order is not durable, or is below the applied one.
    pub fn change(&mut self, upto: u64) -> Result<Change<'_, M>, LogError> {
        self.log.persist_poll(true)?;
        assert!(
            (self.log.applied()..=self.log.durable()).contains(&upto),
            "an order that is durable and not behind what is applied"
        );
        Ok(Change::begin(self, upto))
    }

    /// Packs as [`PacketStore::pack_step`] does. While half of the store's frames are free, the call does nothing, so
    /// that records stay where they were received.
    ///
    /// # Errors
    /// [`Error::Media`].
    pub fn pack_step(&mut self, budget: usize) -> Result<usize, Error> {
        let [free, _, used] = self.store.frames.counts();
        if free > used {
            return Ok(0);
        }
        self.log.persist_poll(true).map_err(medium)?;
        self.swap();
        let moved = self
            .store
            .pack_step(budget)
            .and_then(|moved| self.balance().map(|()| moved));
        self.swap();
        moved
    }

    /// Lends the log the frames that it lacks. The store must have the medium.
    fn balance(&mut self) -> Result<(), Error> {
        let wanted = self.log_frames + self.store.frames.logged();
        let missing = wanted.saturating_sub(self.own);
        if index(missing) > self.store.frames.cold() {
            self.store.erase_dead()?;
        }
        for _ in 0..missing {
            let Some(number) = self.store.frames.lend_cold() else {
                break;
            };
            self.log.take_in_buffer(number);
            self.own += 1;
        }
        Ok(())
    }

    /// Sets the number of buffers that stay free for the packet loop, out of [`Shared::log_frames`]; see
    /// [`Log::leave_buffers`].
    pub fn leave_buffers(&mut self, count: u64) {
        self.log.leave_buffers(count);
    }

    /// Lends a buffer; see [`Log::lend_buffer`].
    pub fn lend_buffer(&mut self) -> Option<u32> {
        self.log.lend_buffer()
    }

    /// Takes a buffer back; see [`Log::give_back_buffer`].
    ///
    /// # Panics
    /// If [`Log::give_back_buffer`] would panic.
    pub fn give_back_buffer(&mut self, number: u32) {
        self.log.give_back_buffer(number);
    }

    /// Stores a packet into a lent buffer; see [`Log::deposit`].
    ///
    /// # Panics
    /// If [`Log::deposit`] would panic.
    pub fn deposit(&mut self, at: usize, packet: &[u8]) {
        self.log.deposit(at, packet);
    }

    /// Returns whether too few buffers are free for copies; see [`Log::wants_buffers`].
    #[must_use]
    pub fn wants_buffers(&self) -> bool {
        self.log.wants_buffers()
    }

    /// Returns the next released buffer that the store does not need either; see [`Log::poll_released`]. A buffer with
    /// a record stays with the store.
    pub fn poll_released(&mut self) -> Option<u32> {
        loop {
            let number = self.log.poll_released()?;
            if self.store.frames.let_go(number) {
                self.log.withhold_buffer(number);
                self.own -= 1;
            } else if self.own > self.log_frames + self.store.frames.logged() {
                // The log got another buffer in place of this buffer. The records in the frame were removed before the
                // log released it.
                self.log.withhold_buffer(number);
                self.store.give_back_frame(number);
                self.own -= 1;
            } else {
                return Some(number);
            }
        }
    }

    /// Returns the first frame about which log and store disagree. Tests use this function.
    #[must_use]
    pub fn contradiction(&self) -> Option<u32> {
        let frames = &self.store.frames;
        let number_is_wrong = self.own < self.log_frames;
        (0..self.store.geometry.frames).find(|&number| {
            let (away, live) = (self.log.is_away(number), self.log.is_live(number));
            let agree = match (frames.is_lent(number), frames.is_logged(number)) {
                (true, false) => !away,
                // The buffer is released, but was not polled yet.
                (false, true) => !away,
                (false, false) => away && !live,
                (true, true) => false,
            };
            !agree || number_is_wrong
        })
    }

    /// Closes the log; see [`Log::close`].
    ///
    /// # Errors
    /// The errors of [`Log::close`].
    pub fn close(self) -> Result<(), LogError> {
        self.log.into_inner().close()
    }

    /// Returns the medium as a crash would leave it.
    #[must_use]
    pub fn into_media(self) -> M {
        *self.log.into_inner().into_media().take()
    }

    /// Returns the frame of an order: its number, the range of the payload in it, and the payload's checksum.
    fn payload_of(&self, order: u64) -> Option<(u32, Range<usize>, u32)> {
        let entry = self.log.entry(order)?;
        let place = self.log.frame_place(&entry);
        let number = place.start / self.store.geometry.frame_len();
        let start = number * self.store.geometry.frame_len();
        let payload = place.start - start + usize::from(entry.header_len)..place.end - start;
        let number = u32::try_from(number).expect("frames are counted in 32 bits");
        Some((number, payload, entry.payload_crc))
    }
}

/// Converts an error of the log to an error of the medium.
fn medium(error: LogError) -> Error {
    match error {
        LogError::Media(error) => Error::Media(error),
        _ => Error::Media(pmnet_log::MediaError::Failed),
    }
}
