//! The running log: append, persist, reclaim (`docs/spec/ordered-log.md` §7–§9).
//!
//! Cursors: `released ≤ stated ≤ applied ≤ durable ≤ last`. An entry or a superblock states the `applied` of the time
//! when it was written, and is a *witness* once it is durable. `stated` is the highest `applied` that a witness states;
//! `released` is the highest `applied` that two witnesses state. Only slots and frames of orders up to `released` are
//! used again. So recovery can distinguish reclaimed orders from lost orders, even if one witness is damaged later.

mod beside;
mod commit;
mod lent;

use std::ops::Range;
use std::os::fd::RawFd;

pub use beside::Tail;

use crate::entry::{ChecksumKey, Entry, FRAME_LEN_MAX, HEADER_LEN_MAX, NewEntry, aligned, line_of};
use crate::error::Full;
use crate::frames::Frames;
use crate::layout::{ENTRY_BYTES, Identity, Parameters, take, to_u64, to_usize};
use crate::media::Media;
use crate::superblock::Superblock;

/// The free space of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Number of further entries that the log can take. With packet buffers, `frame_bytes` may be 0 because no buffer
    /// is free for copies. Then only packets in lent buffers can be appended.
    pub entries: u64,
    /// Longest frame that is guaranteed to fit, in bytes.
    pub frame_bytes: u64,
}

impl Room {
    /// Returns this room. If there is no room for an entry, there is none for a frame either.
    fn of(entries: u64, frame_bytes: usize) -> Room {
        Room {
            entries,
            frame_bytes: if entries == 0 { 0 } else { to_u64(frame_bytes) },
        }
    }
}

/// The persist in flight.
#[derive(Clone, Copy, Debug)]
struct Flight {
    /// All orders up to this order are durable when the persist completes.
    upto: u64,
    /// The `applied` that is stated in the entry before the last, in the last entry, and in the superblock of this
    /// persist, if the persist has them.
    witnesses: [Option<u64>; 3],
}

/// An open log. A log has one owner, and is used by one thread at a time.
#[derive(Debug)]
pub struct Log<M> {
    media: M,
    superblock: Superblock,
    key: ChecksumKey,
    frames: Frames,
    last: u64,
    durable: u64,
    applied: u64,
    /// The highest `applied` that a durable witness states.
    stated: u64,
    released: u64,
    /// The durable order that `persist_poll` last reported to its caller.
    reported: u64,
    /// First order of this lap of the frame ring, and of the previous lap.
    laps: [u64; 2],
    flight: Option<Flight>,
    release_wanted: bool,
    failed: bool,
    ranges: Vec<Range<usize>>,
}

impl<M: Media> Log<M> {
    /// Returns an open log. Its superblock and its entries are already durable.
    pub(crate) fn recovered(media: M, superblock: Superblock, frames: Frames) -> Log<M> {
        let Superblock {
            applied, durable, ..
        } = superblock;
        Log {
            media,
            key: ChecksumKey::new(&superblock.identity, superblock.era, &superblock.parameters),
            superblock,
            frames,
            last: durable,
            durable,
            applied,
            stated: applied,
            released: applied,
            reported: durable,
            laps: [durable + 1; 2],
            flight: None,
            release_wanted: false,
            failed: false,
            ranges: Vec::with_capacity(5),
        }
    }

    /// Returns the identity of the log.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.superblock.identity
    }

    /// Returns the size of the log.
    #[must_use]
    pub fn parameters(&self) -> &Parameters {
        &self.superblock.parameters
    }

    /// Returns the durable epoch, which every entry states.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.superblock.epoch
    }

    /// Returns the durable incarnation of the device, which every repair raises by one.
    #[must_use]
    pub fn incarnation(&self) -> u32 {
        self.superblock.incarnation
    }

    /// Returns the highest appended order, durable or not; `applied()` if the log is empty.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Returns the highest order up to which all orders are durable.
    #[must_use]
    pub fn durable(&self) -> u64 {
        self.durable
    }

    /// Returns the highest reclaimed order.
    #[must_use]
    pub fn applied(&self) -> u64 {
        self.applied
    }

    /// Returns whether a persist is in flight.
    #[must_use]
    pub fn persist_in_flight(&self) -> bool {
        self.flight.is_some()
    }

    /// Returns the space for new entries. Reclaimed space counts from the next completed persist on.
    #[must_use]
    pub fn room(&self) -> Room {
        let entries = self.parameters().entries - (self.last - self.released);
        match &self.frames {
            Frames::Ring(ring) => Room {
                entries,
                frame_bytes: to_u64(
                    ring.largest(self.oldest_frame_seen(self.released))
                        .min(FRAME_LEN_MAX),
                ),
            },
            Frames::Buffers(buffers) => {
                Room::of(entries.min(buffers.room()), buffers.room_for_a_copy())
            }
        }
    }

    /// Returns the space for entries of [`Log::append_in_place`]; none if the frame space is a ring.
    #[must_use]
    pub fn room_in_place(&self) -> Room {
        let entries = self.parameters().entries - (self.last - self.released);
        match &self.frames {
            Frames::Ring(_) => Room::of(0, 0),
            Frames::Buffers(buffers) => Room::of(entries.min(buffers.room()), FRAME_LEN_MAX),
        }
    }

    /// Returns the number of entries that an empty log can take.
    #[must_use]
    pub fn entries_max(&self) -> u64 {
        match &self.frames {
            Frames::Ring(_) => self.parameters().entries,
            Frames::Buffers(buffers) => buffers.live_max(),
        }
    }

    /// Returns the number of bytes of frames that the log can hold. With packet buffers the result is the largest
    /// number, because only the entries are bounded.
    #[must_use]
    pub fn frame_bytes_max(&self) -> u64 {
        match &self.frames {
            Frames::Ring(_) => self.parameters().frame_bytes,
            Frames::Buffers(_) => u64::MAX,
        }
    }

    /// Returns the percentage of the log that is in use by orders that are not reclaimed: the higher value of metadata
    /// ring and frame space.
    #[must_use]
    pub fn occupancy(&self) -> u8 {
        let parameters = self.parameters();
        let entries = (self.last - self.applied) * 100 / self.entries_max().max(1);
        let bytes = match &self.frames {
            Frames::Ring(ring) => self.oldest_frame_seen(self.applied).map_or(0, |oldest| {
                // The ring has at most 2^38 bytes, so the product fits.
                to_u64(ring.distance(oldest, ring.head())) * 100 / parameters.frame_bytes
            }),
            Frames::Buffers(_) => 0,
        };
        u8::try_from(entries.max(bytes)).unwrap_or(100)
    }

    /// Appends one frame, `header` followed by `payload`, and returns its order, `last() + 1`. The
    /// caller guarantees that `payload_crc` is the CRC32C of `payload`; the log does not compute it
    /// again. After the call the frame is not durable yet.
    ///
    /// # Errors
    /// [`Full`]: the log is unchanged.
    pub fn append(
        &mut self,
        new: &NewEntry,
        header: &[u8],
        payload: &[u8],
        payload_crc: u32,
    ) -> Result<u64, Full> {
        let len = header.len().saturating_add(payload.len());
        let taken = aligned(len.min(FRAME_LEN_MAX));
        let longest = match &self.frames {
            Frames::Ring(_) => to_usize(self.parameters().frame_bytes),
            Frames::Buffers(buffers) => buffers.copy_bytes_max(),
        };
        if header.is_empty()
            || header.len() > HEADER_LEN_MAX
            || len > FRAME_LEN_MAX
            || taken > longest
        {
            return Err(Full::TooLarge);
        }
        self.entry_is_free()?;
        let oldest = self.oldest_frame(self.released);
        let before = self.head();
        let offset = match &mut self.frames {
            Frames::Ring(ring) => ring.allocate(oldest, taken),
            Frames::Buffers(buffers) => buffers.copy(len),
        };
        let Some(offset) = offset else {
            return Err(self.full(Full::Frames));
        };
        self.note_lap(before, offset);
        let at = self.parameters().frames_offset() + offset;
        self.media.store(at + header.len(), payload);
        Ok(self.add(new, header, offset, len, payload_crc))
    }

    /// Appends a packet that is in a lent buffer ([`Log::lend_buffer`]). `frame` is its range in the frame space. The
    /// packet's header is overwritten with `header`, which must have the same length; the payload is not moved.
    /// `payload_crc` is as for [`Log::append`]. From then on the buffer belongs to the log.
    ///
    /// # Errors
    /// [`Full`]: the log is unchanged, and the buffer is still lent.
    ///
    /// # Panics
    /// If the frame is not in one lent buffer, or the log is a ring.
    pub fn append_in_place(
        &mut self,
        new: &NewEntry,
        header: &[u8],
        frame: &Range<usize>,
        payload_crc: u32,
    ) -> Result<u64, Full> {
        if header.is_empty() || header.len() > HEADER_LEN_MAX.min(frame.len()) {
            return Err(Full::TooLarge);
        }
        self.entry_is_free()?;
        if !self.buffers_mut().keep_lent(frame) {
            return Err(self.full(Full::Frames));
        }
        Ok(self.add(new, header, frame.start, frame.len(), payload_crc))
    }

    fn entry_is_free(&mut self) -> Result<(), Full> {
        if self.last - self.released >= self.parameters().entries {
            return Err(self.full(Full::Entries));
        }
        Ok(())
    }

    /// Returns the offset of the end of the newest frame of a ring.
    const fn head(&self) -> usize {
        match &self.frames {
            Frames::Ring(ring) => ring.head(),
            Frames::Buffers(_) => 0,
        }
    }

    /// Notes the place of the next order's frame: it begins at `offset`, and the frame before it ended at `before`.
    fn note_lap(&mut self, before: usize, offset: usize) {
        if offset < before {
            self.laps = [self.last + 1, self.laps[0]];
        }
    }

    /// Notes that an append needs space that is reclaimed but not released, and returns the error.
    fn full(&mut self, full: Full) -> Full {
        self.release_wanted |= self.applied > self.released;
        full
    }

    /// Adds the entry of a frame whose payload already lies in the frame space.
    fn add(
        &mut self,
        new: &NewEntry,
        header: &[u8],
        offset: usize,
        len: usize,
        payload_crc: u32,
    ) -> u64 {
        let order = self.last + 1;
        let (frame_line, skew) = line_of(offset);
        let entry = Entry {
            order,
            session: new.session,
            seq: new.seq,
            durable: self.durable,
            applied: self.applied,
            epoch: self.superblock.epoch,
            incarnation: self.superblock.incarnation,
            kind: new.kind,
            fragment_index: new.fragment_index,
            fragment_count: new.fragment_count,
            frame_len: u32::try_from(len).expect("at most FRAME_LEN_MAX"),
            header_len: u16::try_from(header.len()).expect("at most HEADER_LEN_MAX"),
            payload_crc,
            frame_line,
            skew,
        };
        let at = self.parameters().frames_offset() + offset;
        self.media.store(at, header);
        let slot = self.parameters().slot_offset(self.parameters().slot(order));
        self.media.store(slot, &entry.encode(&self.key, header));
        self.last = order;
        order
    }

    /// Returns the entry of an order in `applied() < order ≤ last()`.
    #[must_use]
    pub fn entry(&self, order: u64) -> Option<Entry> {
        (order > self.applied && order <= self.last).then(|| self.entry_at(order))
    }

    /// Returns the frame of an order in `applied() < order ≤ last()`: the bytes given to `append`.
    #[must_use]
    pub fn frame(&self, order: u64) -> Option<&[u8]> {
        Some(self.media.part(self.frame_range(order)?))
    }

    /// Returns the range of [`Log::frame`] in the image.
    #[must_use]
    pub fn frame_range(&self, order: u64) -> Option<Range<usize>> {
        Some(self.range_of(&self.entry(order)?))
    }

    /// Returns the frame of an order at or below `applied()` if it was not overwritten. Three conditions must hold. The
    /// frame space is a ring. The entry was appended since this log was opened. No fast path appends, because this log
    /// would learn of its appends too late.
    #[must_use]
    pub fn kept_frame(&self, order: u64) -> Option<&[u8]> {
        let Frames::Ring(ring) = &self.frames else {
            return None;
        };
        let parameters = self.parameters();
        let slot = parameters.slot(order);
        let entry = Entry::decode(&raw_slot(&self.media, parameters, slot));
        let [this, previous] = self.laps;
        let is_whole = entry.order == order
            && order <= self.last
            && (order >= this || order >= previous && entry.frame_offset() >= ring.head());
        is_whole.then(|| self.media.part(self.range_of(&entry)))
    }

    fn range_of(&self, entry: &Entry) -> Range<usize> {
        let start = self.parameters().frames_offset() + entry.frame_offset();
        start..start + entry.frame_bytes()
    }

    /// Returns a file descriptor that becomes readable when `persist_poll` has work, if the medium works in the
    /// background.
    #[must_use]
    pub fn wakeup_fd(&self) -> Option<RawFd> {
        self.media.wakeup_fd()
    }

    /// Returns the failures that an acknowledgement on this medium alone survives.
    #[must_use]
    pub fn survives(&self) -> &'static str {
        self.media.survives()
    }

    /// Returns the short name of the medium.
    #[must_use]
    pub fn media_name(&self) -> &'static str {
        self.media.name()
    }

    /// Returns the medium, for status and tests.
    #[must_use]
    pub fn medium(&self) -> &M {
        &self.media
    }

    /// Stops using the medium and returns it, as a crash would leave it.
    #[must_use]
    pub fn into_media(self) -> M {
        self.media
    }

    fn entry_at(&self, order: u64) -> Entry {
        let parameters = self.parameters();
        let slot = parameters.slot(order);
        let entry = Entry::decode(&raw_slot(&self.media, parameters, slot));
        assert_eq!(entry.order, order, "the slot of a live order holds it");
        entry
    }

    /// Returns the offset of the frame of order `floor + 1`.
    fn oldest_frame(&self, floor: u64) -> Option<usize> {
        (floor < self.last).then(|| self.entry_at(floor + 1).frame_offset())
    }

    /// Returns the offset of the frame of order `floor + 1`, even while a fast path appends. `None`: there is no such
    /// order, or the fast path has already used its slot again.
    fn oldest_frame_seen(&self, floor: u64) -> Option<usize> {
        let parameters = self.parameters();
        let slot = parameters.slot(floor + 1);
        let entry = Entry::decode(&raw_slot(&self.media, parameters, slot));
        (floor < self.last && entry.order == floor + 1).then(|| entry.frame_offset())
    }
}

/// Returns the bytes of a slot of a running log.
fn raw_slot<M: Media>(media: &M, parameters: &Parameters, slot: u64) -> [u8; ENTRY_BYTES] {
    let start = parameters.slot_offset(slot);
    take(media.part(start..start + ENTRY_BYTES), 0)
}
