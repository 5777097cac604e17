//! A log and a store in one region, with the same frames: the frame of a log entry becomes the stored record
//! (`docs/spec/packet-store.md` §11).
//!
//! Invariants: no code stores into a frame that the log or the store needs; what the log reclaims, a commit of the store has
//! made durable before; besides what the store has too, the log always has [`Shared::log_frames`] frames. May not: move
//! packets, know what an entry means.

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

/// See the module's text. One owner, one thread at a time.
pub struct Shared<M: Media> {
    log: Held<Log<Seat<M>>>,
    store: PacketStore<Seat<M>>,
    log_frames: u32,
    /// Frames that the log has, alone or with the store.
    own: u32,
}

/// The store, to be read. As long as this is there, the medium is with the store.
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

    /// The log.
    #[must_use]
    pub fn log(&self) -> &Log<Seat<M>> {
        &self.log
    }

    /// Hands the log over, to a device. Until it [comes back](Shared::take_back), nothing else can be done here.
    ///
    /// # Panics
    /// It is not here.
    pub fn hand_over(&mut self) -> Log<Seat<M>> {
        self.log.hand_over()
    }

    /// The log comes back. Its holder has only appended, persisted, and reclaimed what was applied here.
    ///
    /// # Panics
    /// It is here.
    pub fn take_back(&mut self, log: Log<Seat<M>>) {
        self.log.take_back(log);
    }

    /// From now on the store wants room free for what the log may hold: a frame or two, and two lines, for each of its frames. Acknowledged
    /// updates may take a quarter of the reserve besides ([`Room::Acknowledged`](crate::Room)). In a region of less than about six times
    /// the log it is half of what the log leaves.
    pub fn keep_ahead(&mut self) {
        let log = index(self.log_frames);
        let frames = &self.store.frames;
        let left = index(self.store.geometry.frames).saturating_sub(log + frames.reserve()) / 2;
        let wanted = (2 * log).saturating_sub(frames.reserve() / 4);
        self.store.keep_ahead(wanted.min(left), 2 * log);
    }

    /// Where the log's image begins in the region, in bytes.
    #[must_use]
    pub fn image_start(&self) -> usize {
        self.store.geometry.table().end
    }

    /// Frames that the log has besides those with records.
    #[must_use]
    pub fn log_frames(&self) -> u32 {
        self.log_frames
    }

    /// The store, as of its last commit. Waits for the log's persist in flight: there is one medium.
    ///
    /// # Errors
    /// [`LogError::Media`]. The region is of no more use then: open it again.
    pub fn store(&mut self) -> Result<Reading<'_, M>, LogError> {
        self.log.persist_poll(true)?;
        self.swap();
        Ok(Reading { shared: self })
    }

    /// As [`PacketStore::keep_for_records`]; whether the store is short then, and whether it is crowded. Waits for the log's persist in
    /// flight.
    ///
    /// # Errors
    /// [`LogError::Media`]. The region is of no more use then: open it again.
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

    /// As [`Log::append`].
    ///
    /// # Errors
    /// As there.
    pub fn append(
        &mut self,
        new: &NewEntry,
        header: &[u8],
        payload: &[u8],
        payload_crc: u32,
    ) -> Result<u64, Full> {
        self.log.append(new, header, payload, payload_crc)
    }

    /// As [`Log::append_in_place`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// As there.
    pub fn append_in_place(
        &mut self,
        new: &NewEntry,
        header: &[u8],
        frame: &Range<usize>,
        payload_crc: u32,
    ) -> Result<u64, Full> {
        self.log.append_in_place(new, header, frame, payload_crc)
    }

    /// As [`Log::persist_start`].
    ///
    /// # Errors
    /// As there.
    pub fn persist_start(&mut self) -> Result<bool, LogError> {
        self.log.persist_start()
    }

    /// As [`Log::persist_poll`].
    ///
    /// # Errors
    /// As there.
    pub fn persist_poll(&mut self, wait: bool) -> Result<bool, LogError> {
        self.log.persist_poll(wait)
    }

    /// A transaction that takes the store up to this order, or leaves it where it is (`upto` is what the log has applied).
    /// Waits for the log's persist in flight.
    ///
    /// # Errors
    /// [`LogError::Media`]. The region is of no more use then: open it again.
    ///
    /// # Panics
    /// The order is not durable, or below what is applied.
    pub fn change(&mut self, upto: u64) -> Result<Change<'_, M>, LogError> {
        self.log.persist_poll(true)?;
        assert!(
            (self.log.applied()..=self.log.durable()).contains(&upto),
            "an order that is durable and not behind what is applied"
        );
        Ok(Change::begin(self, upto))
    }

    /// As [`PacketStore::pack_step`]. As long as half of the store's frames are free, nothing is done: what lies where it was
    /// received stays there.
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

    /// The store lends the log as many frames as it lacks. The medium is with the store.
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

    /// As [`Log::leave_buffers`]; the count is of [`Shared::log_frames`].
    pub fn leave_buffers(&mut self, count: u64) {
        self.log.leave_buffers(count);
    }

    /// As [`Log::lend_buffer`].
    pub fn lend_buffer(&mut self) -> Option<u32> {
        self.log.lend_buffer()
    }

    /// As [`Log::give_back_buffer`].
    ///
    /// # Panics
    /// As there.
    pub fn give_back_buffer(&mut self, number: u32) {
        self.log.give_back_buffer(number);
    }

    /// As [`Log::deposit`].
    ///
    /// # Panics
    /// As there.
    pub fn deposit(&mut self, at: usize, packet: &[u8]) {
        self.log.deposit(at, packet);
    }

    /// As [`Log::wants_buffers`].
    #[must_use]
    pub fn wants_buffers(&self) -> bool {
        self.log.wants_buffers()
    }

    /// The next buffer that neither the log nor the store needs, as [`Log::poll_released`]. A buffer in which the store has a record
    /// stays with it.
    pub fn poll_released(&mut self) -> Option<u32> {
        loop {
            let number = self.log.poll_released()?;
            if self.store.frames.let_go(number) {
                self.log.withhold_buffer(number);
                self.own -= 1;
            } else if self.own > self.log_frames + self.store.frames.logged() {
                // The log has got another one for it, and then its records were gone before it was released.
                self.log.withhold_buffer(number);
                self.store.give_back_frame(number);
                self.own -= 1;
            } else {
                return Some(number);
            }
        }
    }

    /// The first frame about which log and store do not agree; for tests.
    #[must_use]
    pub fn contradiction(&self) -> Option<u32> {
        let frames = &self.store.frames;
        let number_is_wrong = self.own < self.log_frames;
        (0..self.store.geometry.frames).find(|&number| {
            let (away, live) = (self.log.is_away(number), self.log.is_live(number));
            let agree = match (frames.is_lent(number), frames.is_logged(number)) {
                (true, false) => !away,
                // Released, and nobody has asked yet.
                (false, true) => !away,
                (false, false) => away && !live,
                (true, true) => false,
            };
            !agree || number_is_wrong
        })
    }

    /// As [`Log::close`].
    ///
    /// # Errors
    /// As there.
    pub fn close(self) -> Result<(), LogError> {
        self.log.into_inner().close()
    }

    /// The medium, as a crash would leave it.
    #[must_use]
    pub fn into_media(self) -> M {
        *self.log.into_inner().into_media().take()
    }

    /// Where the frame of an order lies: its number, and the payload in it.
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

/// A failure of the log is one of the medium.
fn medium(error: LogError) -> Error {
    match error {
        LogError::Media(error) => Error::Media(error),
        _ => Error::Media(pmnet_log::MediaError::Failed),
    }
}
