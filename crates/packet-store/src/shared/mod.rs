//! A log and a store in one region, which share the frames: the frame of a log entry becomes the stored record
//! (`docs/spec/packet-store.md` §11).
//!
//! Invariants: no code writes into a frame that the log or the store needs. Before the log reclaims an order, a commit
//! of the store has made the order's update durable. The log always has [`Shared::log_frames`] frames besides those
//! with records of the store. This module does not move packets, and does not interpret log entries.

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

/// A log and a store in one region, as the text of this module describes. A region has one owner, and is used by one
/// thread at a time.
pub struct Shared<M: Media> {
    log: Held<Log<Seat<M>>>,
    store: PacketStore<Seat<M>>,
    log_frames: u32,
    /// Number of frames that the log should have besides frames with records.
    own: u32,
}

/// Access to the store for reading. While this value exists, the store has the medium.
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

    /// Gives the log to a device. Until [`Shared::take_back`], no other method may be called.
    ///
    /// # Panics
    /// If the log was already given away.
    pub fn hand_over(&mut self) -> Log<Seat<M>> {
        self.log.hand_over()
    }

    /// Takes the log back. While the log was away, it may only have been appended to and persisted, and only orders
    /// that this store has applied may have been reclaimed.
    ///
    /// # Panics
    /// If the log was not given away.
    pub fn take_back(&mut self, log: Log<Seat<M>>) {
        self.log.take_back(log);
    }

    /// Reserves space for the updates that the log may hold. For each of the log's frames, it reserves one or two
    /// frames, and two lines. In addition, acknowledged updates may take a quarter of the reserve
    /// ([`Room::Acknowledged`](crate::Room)). If the region has less than about six times the log's size, half of the
    /// space that the log leaves is reserved.
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

    /// Returns the number of frames that the log has besides frames with records.
    #[must_use]
    pub fn log_frames(&self) -> u32 {
        self.log_frames
    }

    /// Returns the store as of its last commit. Waits for the log's persist under way, because log and store share one
    /// medium.
    ///
    /// # Errors
    /// [`LogError::Media`]. The region must not be used until it is opened again.
    pub fn store(&mut self) -> Result<Reading<'_, M>, LogError> {
        self.log.persist_poll(true)?;
        self.swap();
        Ok(Reading { shared: self })
    }

    /// Reserves space like [`PacketStore::keep_for_records`]. Returns whether the store is short afterwards, and
    /// whether it is crowded. Waits for the log's persist under way.
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

    /// Appends an entry to the log like [`Log::append`].
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

    /// Appends a frame in place like [`Log::append_in_place`].
    ///
    /// # Errors
    /// The errors of [`Log::append_in_place`].
    ///
    /// # Panics
    /// In the cases in which [`Log::append_in_place`] panics.
    pub fn append_in_place(
        &mut self,
        new: &NewEntry,
        header: &[u8],
        frame: &Range<usize>,
        payload_crc: u32,
    ) -> Result<u64, Full> {
        self.log.append_in_place(new, header, frame, payload_crc)
    }

    /// Starts a persist of the log like [`Log::persist_start`].
    ///
    /// # Errors
    /// The errors of [`Log::persist_start`].
    pub fn persist_start(&mut self) -> Result<bool, LogError> {
        self.log.persist_start()
    }

    /// Polls the persist of the log like [`Log::persist_poll`].
    ///
    /// # Errors
    /// The errors of [`Log::persist_poll`].
    pub fn persist_poll(&mut self, wait: bool) -> Result<bool, LogError> {
        self.log.persist_poll(wait)
    }

    /// Begins a transaction that takes the store up to this order. If `upto` is the order that the log has as applied,
    /// the store stays at its order. Waits for the log's persist under way.
    ///
    /// # Errors
    /// [`LogError::Media`]. The region must not be used until it is opened again.
    ///
    /// # Panics
    /// If the order is not durable in the log, or is below the applied order.
    pub fn change(&mut self, upto: u64) -> Result<Change<'_, M>, LogError> {
        self.log.persist_poll(true)?;
        assert!(
            (self.log.applied()..=self.log.durable()).contains(&upto),
            "an order that is durable and not behind what is applied"
        );
        Ok(Change::begin(self, upto))
    }

    /// Packs like [`PacketStore::pack_step`]. While half of the store's frames are free, this call does nothing, so
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

    /// Lends frames to the log until it has enough frames. The store must hold the medium at this time.
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

    /// Sets how many of the log's own frames ([`Shared::log_frames`]) stay free for the packet loop, like
    /// [`Log::leave_buffers`].
    pub fn leave_buffers(&mut self, count: u64) {
        self.log.leave_buffers(count);
    }

    /// Lends a buffer like [`Log::lend_buffer`].
    pub fn lend_buffer(&mut self) -> Option<u32> {
        self.log.lend_buffer()
    }

    /// Takes a buffer back like [`Log::give_back_buffer`].
    ///
    /// # Panics
    /// In the cases in which [`Log::give_back_buffer`] panics.
    pub fn give_back_buffer(&mut self, number: u32) {
        self.log.give_back_buffer(number);
    }

    /// Stores a packet into a lent buffer like [`Log::deposit`].
    ///
    /// # Panics
    /// In the cases in which [`Log::deposit`] panics.
    pub fn deposit(&mut self, at: usize, packet: &[u8]) {
        self.log.deposit(at, packet);
    }

    /// Returns whether too few buffers are free for copies, like [`Log::wants_buffers`].
    #[must_use]
    pub fn wants_buffers(&self) -> bool {
        self.log.wants_buffers()
    }

    /// Returns the next buffer that the log has released and the store does not need, like [`Log::poll_released`]. A
    /// buffer with a record stays with the store.
    pub fn poll_released(&mut self) -> Option<u32> {
        loop {
            let number = self.log.poll_released()?;
            if self.store.frames.let_go(number) {
                self.log.withhold_buffer(number);
                self.own -= 1;
            } else if self.own > self.log_frames + self.store.frames.logged() {
                // The log has already got another buffer in place of this buffer. The records in this frame were
                // removed before the log released it.
                self.log.withhold_buffer(number);
                self.store.give_back_frame(number);
                self.own -= 1;
            } else {
                return Some(number);
            }
        }
    }

    /// Returns the first frame about which log and store contradict each other. Tests use this function.
    #[must_use]
    pub fn contradiction(&self) -> Option<u32> {
        let frames = &self.store.frames;
        let number_is_wrong = self.own < self.log_frames;
        (0..self.store.geometry.frames).find(|&number| {
            let (away, live) = (self.log.is_away(number), self.log.is_live(number));
            let agree = match (frames.is_lent(number), frames.is_logged(number)) {
                (true, false) => !away,
                // The log has released this buffer, but the buffer was not polled yet.
                (false, true) => !away,
                (false, false) => away && !live,
                (true, true) => false,
            };
            !agree || number_is_wrong
        })
    }

    /// Closes the log like [`Log::close`].
    ///
    /// # Errors
    /// The errors of [`Log::close`].
    pub fn close(self) -> Result<(), LogError> {
        self.log.into_inner().close()
    }

    /// Returns the medium in the state in which a crash would leave it.
    #[must_use]
    pub fn into_media(self) -> M {
        *self.log.into_inner().into_media().take()
    }

    /// Returns where the payload of an order is: the number of its frame, its range in the frame, and its checksum.
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

/// Converts an error of the log into an error of the medium.
fn medium(error: LogError) -> Error {
    match error {
        LogError::Media(error) => Error::Media(error),
        _ => Error::Media(pmnet_log::MediaError::Failed),
    }
}
