//! The running log: append, persist, reclaim (`docs/spec/ordered-log.md` §7–§9).
//!
//! Cursors: `released ≤ stated ≤ applied ≤ durable ≤ last`. `stated` is the highest `applied` that is
//! itself durable, in an entry or in a superblock; `released` is what two such witnesses state. Only
//! slots and frames up to `released` are used again. By this rule recovery can tell what was reclaimed
//! from what was lost, even if one of the witnesses is damaged later.

use std::ops::Range;
use std::os::fd::RawFd;

use crate::buffers::Buffers;
use crate::entry::{
    ChecksumKey, Entry, FRAME_LEN_MAX, HEADER_LEN_MAX, NewEntry, aligned, line_of, lines,
};
use crate::error::{Full, LogError};
use crate::frames::{FrameRing, Frames};
use crate::layout::{ENTRY_BYTES, FrameSpace, Identity, Parameters, take, to_u64, to_usize};
use crate::media::{Media, MediaError};
use crate::scan::{self, Expected};
use crate::superblock::{self, Superblock};

/// A superblock is written for reclaimed space once it is 1/4 of a ring and no entry has stated it
/// meanwhile.
const RELEASE_FRACTION: u64 = 4;

/// What can be appended now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// How many more entries the log can take. Of packet buffers: in whatever way they come, so a copied one may have to wait
    /// although there are entries; then `frame_bytes` is 0.
    pub entries: u64,
    /// Longest frame that is guaranteed to fit, in bytes.
    pub frame_bytes: u64,
}

impl Room {
    /// Without an entry there is no frame either.
    fn of(entries: u64, frame_bytes: usize) -> Room {
        Room {
            entries,
            frame_bytes: if entries == 0 { 0 } else { to_u64(frame_bytes) },
        }
    }
}

/// The end of a log, for the fast path that appends to the same image beside the owner: the pipeline
/// in the kernel (`docs/spec/ordered-log.md` §10).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tail {
    /// Highest order.
    pub last: u64,
    /// Offset in the frame ring behind the newest frame, in bytes.
    pub head: u64,
    /// Orders up to here are reclaimed.
    pub applied: u64,
    /// Highest `applied` that a witness states.
    pub stated: u64,
    /// Highest `applied` that two witnesses state: space up to there is free.
    pub released: u64,
    /// First order of this lap of the frame ring, and of the one before ([`Log::kept_frame`]).
    pub laps: [u64; 2],
}

/// The persist in flight.
#[derive(Clone, Copy, Debug)]
struct Flight {
    /// Orders up to here are durable when it completes.
    upto: u64,
    /// `applied` as its last two entries and its superblock state it, where it has them.
    witnesses: [Option<u64>; 3],
}

/// An open log. One owner, one thread at a time.
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
    /// The durable order that `persist_poll` last told its caller.
    reported: u64,
    /// First order of this lap of the frame ring, and of the one before.
    laps: [u64; 2],
    flight: Option<Flight>,
    release_wanted: bool,
    failed: bool,
    ranges: Vec<Range<usize>>,
}

impl<M: Media> Log<M> {
    /// A log whose superblock and entries were just made durable by repair.
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

    /// Which log this is.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.superblock.identity
    }

    /// Its size.
    #[must_use]
    pub fn parameters(&self) -> &Parameters {
        &self.superblock.parameters
    }

    /// Durable epoch; goes into every entry.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.superblock.epoch
    }

    /// Durable incarnation of the device; one more at every repair.
    #[must_use]
    pub fn incarnation(&self) -> u32 {
        self.superblock.incarnation
    }

    /// Highest appended order, durable or not; `applied()` when the log is empty.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Highest order whose whole prefix is durable.
    #[must_use]
    pub fn durable(&self) -> u64 {
        self.durable
    }

    /// Orders up to here are reclaimed.
    #[must_use]
    pub fn applied(&self) -> u64 {
        self.applied
    }

    /// True while a persist is under way.
    #[must_use]
    pub fn persist_in_flight(&self) -> bool {
        self.flight.is_some()
    }

    /// What can be appended now. Reclaimed space counts from the next completed persist on.
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

    /// What can be appended now with [`Log::append_in_place`]; nothing in a ring.
    #[must_use]
    pub fn room_in_place(&self) -> Room {
        let entries = self.parameters().entries - (self.last - self.released);
        match &self.frames {
            Frames::Ring(_) => Room::of(0, 0),
            Frames::Buffers(buffers) => Room::of(entries.min(buffers.room()), FRAME_LEN_MAX),
        }
    }

    /// Entries of the log if nothing is in it.
    #[must_use]
    pub fn entries_max(&self) -> u64 {
        match &self.frames {
            Frames::Ring(_) => self.parameters().entries,
            Frames::Buffers(buffers) => buffers.live_max(),
        }
    }

    /// How full the fuller of the two rings is with orders that are not reclaimed, in percent.
    #[must_use]
    pub fn occupancy(&self) -> u8 {
        let parameters = self.parameters();
        let entries = (self.last - self.applied) * 100 / self.entries_max().max(1);
        let bytes = match &self.frames {
            Frames::Ring(ring) => self.oldest_frame_seen(self.applied).map_or(0, |oldest| {
                // Bounded by the ring of 2^38 bytes, so the product fits.
                to_u64(ring.distance(oldest, ring.head())) * 100 / parameters.frame_bytes
            }),
            Frames::Buffers(_) => 0,
        };
        u8::try_from(entries.max(bytes)).unwrap_or(100)
    }

    /// Appends one frame, `header` followed by `payload`, and returns its order, `last() + 1`. The
    /// caller guarantees that `payload_crc` is the CRC32C of `payload`; the log does not compute it
    /// again. Nothing is durable yet.
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

    /// Appends the packet that lies in a lent buffer ([`Log::lend_buffer`]): `frame` is where, in the frame space. Its
    /// header is overwritten with `header`, which is as long as the one that came; its payload stays where it is.
    /// `payload_crc` as for [`Log::append`]. The buffer is the log's from then on.
    ///
    /// # Errors
    /// [`Full`]: the log is unchanged, and the buffer is still lent.
    ///
    /// # Panics
    /// The frame is not in one lent buffer, or the log is a ring.
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

    /// Offset behind the newest frame of a ring.
    const fn head(&self) -> usize {
        match &self.frames {
            Frames::Ring(ring) => ring.head(),
            Frames::Buffers(_) => 0,
        }
    }

    /// The next order's frame goes to `offset`; the newest one ended at `before`.
    fn note_lap(&mut self, before: usize, offset: usize) {
        if offset < before {
            self.laps = [self.last + 1, self.laps[0]];
        }
    }

    /// What was reclaimed is wanted back.
    fn full(&mut self, full: Full) -> Full {
        self.release_wanted |= self.applied > self.released;
        full
    }

    /// The entry of a frame whose payload is at its place.
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

    /// So many packet buffers are never live from now on: whoever moves packets needs them to receive into and to send from.
    ///
    /// # Panics
    /// The log is a ring.
    pub fn leave_buffers(&mut self, count: u64) {
        self.buffers_mut().leave_to_port(count);
    }

    /// Lends a packet buffer: its number, counted from the start of the frame space. From the first one on,
    /// [`Log::poll_released`] has to be called. `None`: the log keeps what is left.
    ///
    /// # Panics
    /// The log is a ring.
    pub fn lend_buffer(&mut self) -> Option<u32> {
        self.buffers_mut().lend()
    }

    /// What is in a lent buffer, at `frame` of the frame space.
    ///
    /// # Panics
    /// It is not inside the frame space.
    #[must_use]
    pub fn lent(&self, frame: &Range<usize>) -> &[u8] {
        let base = self.parameters().frames_offset();
        self.media.part(base + frame.start..base + frame.end)
    }

    /// Where the frame of a live entry is in the frame space.
    #[must_use]
    pub fn frame_place(&self, entry: &Entry) -> Range<usize> {
        let start = entry.frame_offset();
        start..start + entry.frame_bytes()
    }

    /// Whether fewer buffers are there for copies than should be. Who has lent ones to spare gives some back.
    #[must_use]
    pub fn wants_buffers(&self) -> bool {
        match &self.frames {
            Frames::Ring(_) => false,
            Frames::Buffers(buffers) => buffers.wants(),
        }
    }

    /// Stores a packet into a lent buffer, as a network interface does: for networks in user space.
    ///
    /// # Panics
    /// `at .. at + packet.len()` of the frame space is not inside one lent buffer, or the log is a ring.
    pub fn deposit(&mut self, at: usize, packet: &[u8]) {
        let lent = self.buffers_mut().is_lent(&(at..at + packet.len()));
        assert!(lent, "a packet is stored into a lent buffer");
        let start = self.parameters().frames_offset() + at;
        self.media.store(start, packet);
    }

    /// Takes back a buffer that was lent or released.
    ///
    /// # Panics
    /// It is not lent, or the log is a ring.
    pub fn give_back_buffer(&mut self, number: u32) {
        self.buffers_mut().give_back(number);
    }

    /// The next buffer of which the log no longer needs the frame. It counts as lent: who is done sending from it gives it
    /// back, or receives into it.
    pub fn poll_released(&mut self) -> Option<u32> {
        match &mut self.frames {
            Frames::Ring(_) => None,
            Frames::Buffers(buffers) => buffers.poll_released(),
        }
    }

    fn buffers_mut(&mut self) -> &mut Buffers {
        match &mut self.frames {
            Frames::Buffers(buffers) => buffers,
            Frames::Ring(_) => panic!("the frame space of this log is packet buffers"),
        }
    }

    /// The entry of an order in `applied() < order ≤ last()`.
    #[must_use]
    pub fn entry(&self, order: u64) -> Option<Entry> {
        (order > self.applied && order <= self.last).then(|| self.entry_at(order))
    }

    /// The frame of an order in `applied() < order ≤ last()`: the bytes given to `append`.
    #[must_use]
    pub fn frame(&self, order: u64) -> Option<&[u8]> {
        Some(self.media.part(self.frame_range(order)?))
    }

    /// Where that frame is in the image.
    #[must_use]
    pub fn frame_range(&self, order: u64) -> Option<Range<usize>> {
        Some(self.range_of(&self.entry(order)?))
    }

    /// The same of an order at or below `applied()`, as long as nothing was written over it: only in a ring, only what was
    /// appended since this log was opened, and not while a fast path appends, which this log sees later.
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

    /// Takes over the entries up to `upto`, which the fast path appended to the image by the rules of
    /// this log, in memory that needs no flush, without their checksums. The checksums are filled in
    /// here (`docs/spec/ordered-log.md` §10). The entries are durable when it returns.
    ///
    /// # Errors
    /// [`LogError::Followed`]: the entry is not one that this log could have appended.
    /// [`LogError::Media`].
    pub fn follow(&mut self, upto: u64) -> Result<(), LogError> {
        self.complete(true)?;
        while self.last < upto {
            let order = self.last + 1;
            let Frames::Ring(frames) = &mut self.frames else {
                self.failed = true;
                return Err(LogError::Followed { order });
            };
            let parameters = self.superblock.parameters;
            let slot = parameters.slot(order);
            let raw = raw_slot(&self.media, &parameters, slot);
            let entry = Entry::decode(&raw);
            let frame = entry.frame_offset()..entry.frame_offset() + entry.frame_bytes();
            let header_len = usize::from(entry.header_len);
            let possible = entry.order == order
                && entry.skew == 0
                && frame.end <= to_usize(parameters.frame_bytes)
                && header_len <= frame.len().min(HEADER_LEN_MAX)
                && entry.applied >= self.stated
                && entry.applied <= self.applied
                && order - self.released <= parameters.entries;
            if !possible {
                self.failed = true;
                return Err(LogError::Followed { order });
            }
            let at = parameters.frames_offset() + frame.start;
            let sealed = Entry::seal(&raw, &self.key, self.media.part(at..at + header_len));
            self.media.store(parameters.slot_offset(slot), &sealed);
            let before = frames.head();
            frames.follow(frame.start, aligned(frame.len()));
            self.note_lap(before, frame.start);
            self.last = order;
            self.durable = order;
            self.reported = order;
            self.witnessed(entry.applied);
        }
        Ok(())
    }

    /// Where the next append continues, for the fast path that appends beside this log.
    #[must_use]
    pub fn tail(&self) -> Tail {
        Tail {
            last: self.last,
            head: to_u64(self.head()),
            applied: self.applied,
            stated: self.stated,
            released: self.released,
            laps: self.laps,
        }
    }

    /// Opens the log in an image that was neither closed nor torn: its owner died, but the memory that
    /// holds it stayed. Nothing is repaired, and the incarnation stays. `tail` is what the fast path
    /// kept. A superblock may free more space than the fast path had been told when the owner died: the
    /// superblock counts, and what it freed may be overwritten.
    ///
    /// # Errors
    /// [`LogError`]: the superblocks cannot be read, it is another log than expected, or tail and image
    /// do not fit each other.
    pub fn adopt(media: M, expected: Option<Expected>, tail: &Tail) -> Result<Log<M>, LogError> {
        let (superblock, _states) = superblock::read(media.bytes())?;
        scan::check_expected(&superblock, expected)?;
        let ring = to_usize(superblock.parameters.frame_bytes);
        let head = usize::try_from(tail.head).unwrap_or(usize::MAX);
        let ordered = tail.released <= tail.stated
            && tail.stated <= tail.applied
            && tail.applied <= tail.last
            && tail.last - tail.released <= superblock.parameters.entries
            && superblock.applied <= tail.last
            && head <= ring
            && superblock.parameters.space == FrameSpace::Ring;
        if !ordered {
            return Err(LogError::Followed { order: tail.last });
        }
        let frames = Frames::Ring(FrameRing::new(ring, head));
        let mut log = Log::recovered(media, superblock, frames);
        let given_back = log.superblock.applied;
        log.applied = tail.applied.max(given_back);
        let (stated, released) = (tail.stated.max(given_back), tail.released.max(given_back));
        // Each entry is checked again, from the oldest one that is kept.
        (log.last, log.durable, log.reported) = (released, released, released);
        log.released = released;
        log.stated = 0;
        log.follow(tail.last)?;
        (log.stated, log.released) = (stated, released);
        log.laps = tail.laps;
        Ok(log)
    }

    /// Reclaims the orders up to `upto`. Cumulative: a lower value than before has no effect, one
    /// beyond `durable()` counts as `durable()`. Durable with a later persist.
    pub fn reclaim(&mut self, upto: u64) {
        self.applied = self.applied.max(upto.min(self.durable));
        if self.applied == self.released || self.release_wanted {
            return;
        }
        let parameters = *self.parameters();
        let bytes = match &self.frames {
            Frames::Ring(ring) => self.oldest_frame_seen(self.released).map_or(0, |oldest| {
                let end = self.oldest_frame_seen(self.applied).unwrap_or(ring.head());
                to_u64(ring.distance(oldest, end))
            }),
            Frames::Buffers(_) => 0,
        };
        self.release_wanted = self.applied - self.released >= self.entries_max() / RELEASE_FRACTION
            || bytes >= parameters.frame_bytes / RELEASE_FRACTION;
    }

    /// Whether the next persist writes a superblock that frees space. From before that persist until it
    /// has been told of it, the fast path must not append.
    #[must_use]
    pub fn gives_back(&self) -> bool {
        self.release_wanted && self.applied > self.released
    }

    /// Starts to make everything appended so far durable, as one persist. False when one is in
    /// flight, or when there is nothing to do. Call it once per turn, even if nothing could be
    /// appended: in a full log this call makes reclaimed space usable again.
    ///
    /// # Errors
    /// [`LogError::Media`]. The log is then of no more use: scan it again.
    pub fn persist_start(&mut self) -> Result<bool, LogError> {
        self.refuse_failed()?;
        if self.flight.is_some() {
            return Ok(false);
        }
        let release = self.gives_back();
        self.release_wanted = false;
        if self.last == self.durable && !release {
            return Ok(false);
        }
        let mut ranges = std::mem::take(&mut self.ranges);
        ranges.clear();
        let mut flight = Flight {
            upto: self.last,
            witnesses: [None; 3],
        };
        if self.last > self.durable {
            let parameters = self.parameters();
            let unpersisted = self.durable + 1..=self.last;
            ranges.extend(parameters.metadata_ranges(*unpersisted.start(), self.last));
            match &self.frames {
                Frames::Ring(ring) => {
                    let first = self.entry_at(*unpersisted.start()).frame_offset();
                    ranges.extend(ring.image_ranges(parameters.frames_offset(), first));
                }
                Frames::Buffers(_) => ranges
                    .extend(unpersisted.map(|order| lines(&self.range_of(&self.entry_at(order))))),
            }
            let before = self.last - 1;
            flight.witnesses[0] = (before > self.durable).then(|| self.entry_at(before).applied);
            flight.witnesses[1] = Some(self.entry_at(self.last).applied);
        }
        if release {
            self.superblock.applied = self.applied;
            self.superblock.durable = self.durable;
            ranges.push(self.superblock.store_next(&mut self.media));
            flight.witnesses[2] = Some(self.applied);
        }
        let started = self.media.persist_start(&ranges);
        self.ranges = ranges;
        self.checked(started)?;
        self.flight = Some(flight);
        Ok(true)
    }

    /// Takes note of a completed persist; with `wait` it blocks until the one in flight is complete
    /// (bounded by the medium's deadline). True when `durable()` has moved since the last call
    /// that said so.
    ///
    /// # Errors
    /// [`LogError::Media`]. The log is then of no more use: scan it again.
    pub fn persist_poll(&mut self, wait: bool) -> Result<bool, LogError> {
        self.refuse_failed()?;
        self.complete(wait)?;
        let moved = self.durable > self.reported;
        self.reported = self.durable;
        Ok(moved)
    }

    /// Raises the epoch; durable in both superblocks when it returns. The same epoch again has no
    /// effect.
    ///
    /// # Errors
    /// [`LogError::EpochWentBack`], [`LogError::Media`].
    pub fn set_epoch(&mut self, epoch: u32) -> Result<(), LogError> {
        let have = self.superblock.epoch;
        if epoch < have {
            return Err(LogError::EpochWentBack { have, asked: epoch });
        }
        if epoch == have {
            return self.refuse_failed();
        }
        self.commit_superblock(|superblock| superblock.epoch = epoch)
    }

    /// The last incarnation that was about to serve ([`Log::mark_served`]); 0: none was.
    #[must_use]
    pub fn served(&self) -> u32 {
        self.superblock.served
    }

    /// The device is about to serve in its present incarnation; durable in both superblocks when
    /// it returns. An older image keeps a lower mark, however often it is started.
    ///
    /// # Errors
    /// [`LogError::Media`].
    pub fn mark_served(&mut self) -> Result<(), LogError> {
        if self.superblock.served == self.superblock.incarnation {
            return self.refuse_failed();
        }
        self.commit_superblock(|superblock| superblock.served = superblock.incarnation)
    }

    /// Discards every entry, durable or not, and continues after `order`: `last()`, `durable()` and
    /// `applied()` are `order`. For a log whose server is ahead of it, and for a device that joins
    /// a chain. One atomic step, durable when it returns: the era in every checksum changes, so
    /// nothing from before can be taken for an entry again.
    ///
    /// # Errors
    /// [`LogError::Exhausted`], [`LogError::Media`].
    pub fn reset_to(&mut self, order: u64) -> Result<(), LogError> {
        let era = self
            .superblock
            .era
            .checked_add(1)
            .ok_or(LogError::Exhausted { what: "reset" })?;
        if order >= u64::MAX - self.parameters().entries {
            return Err(LogError::Exhausted { what: "order" });
        }
        self.complete(true)?;
        self.release(self.last);
        (self.last, self.durable, self.applied, self.reported) = (order, order, order, order);
        self.released = order;
        self.laps = [order + 1; 2];
        self.commit_superblock(|superblock| superblock.era = era)?;
        self.key = ChecksumKey::new(&self.superblock.identity, era, &self.superblock.parameters);
        Ok(())
    }

    /// Clean shutdown: everything appended becomes durable, and the superblocks say so exactly.
    ///
    /// # Errors
    /// [`LogError::Media`]; the log is then as after a crash.
    pub fn close(mut self) -> Result<(), LogError> {
        self.refuse_failed()?;
        self.complete(true)?;
        if self.persist_start()? {
            self.complete(true)?;
        }
        self.commit_superblock(|_| ())
    }

    /// File descriptor that becomes readable when `persist_poll` has something to do, if the medium
    /// works in the background.
    #[must_use]
    pub fn wakeup_fd(&self) -> Option<RawFd> {
        self.media.wakeup_fd()
    }

    /// What an acknowledgement that rests on this medium alone survives.
    #[must_use]
    pub fn survives(&self) -> &'static str {
        self.media.survives()
    }

    /// Short name of the medium.
    #[must_use]
    pub fn media_name(&self) -> &'static str {
        self.media.name()
    }

    /// The medium, for status and tests.
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

    /// Where the oldest frame above `floor` begins.
    fn oldest_frame(&self, floor: u64) -> Option<usize> {
        (floor < self.last).then(|| self.entry_at(floor + 1).frame_offset())
    }

    /// The same for an estimate, at any moment. `None` if the fast path, which may be ahead of this log, has used
    /// that slot again.
    fn oldest_frame_seen(&self, floor: u64) -> Option<usize> {
        let parameters = self.parameters();
        let slot = parameters.slot(floor + 1);
        let entry = Entry::decode(&raw_slot(&self.media, parameters, slot));
        (floor < self.last && entry.order == floor + 1).then(|| entry.frame_offset())
    }

    fn commit_superblock(&mut self, change: impl FnOnce(&mut Superblock)) -> Result<(), LogError> {
        self.refuse_failed()?;
        self.complete(true)?;
        change(&mut self.superblock);
        self.superblock.applied = self.applied;
        self.superblock.durable = self.durable;
        let done = self.superblock.commit(&mut self.media);
        self.failed |= done.is_err();
        done?;
        self.stated = self.applied;
        self.release(self.applied);
        self.release_wanted = false;
        Ok(())
    }

    fn complete(&mut self, wait: bool) -> Result<(), LogError> {
        let Some(flight) = self.flight else {
            return Ok(());
        };
        let done = self.media.persist_poll(wait);
        if self.checked(done)? {
            self.flight = None;
            self.durable = flight.upto;
            for applied in flight.witnesses.into_iter().flatten() {
                self.witnessed(applied);
            }
            // A superblock was written to release space, and is the only witness: the other copy follows.
            self.release_wanted |= flight.witnesses[2].is_some() && self.released < self.stated;
            assert!(
                self.released <= self.stated
                    && self.stated <= self.applied
                    && self.applied <= self.durable
                    && self.durable <= self.last,
                "the cursors of the log are in order"
            );
        }
        Ok(())
    }

    /// One more witness is durable: an entry, or the superblock copy that was not the last witness.
    /// Space is released that two of them state (`docs/spec/ordered-log.md` §8).
    fn witnessed(&mut self, applied: u64) {
        let second = applied.min(self.stated);
        self.release(second);
        self.stated = self.stated.max(applied);
    }

    /// The space of the orders up to `upto` may be used again.
    fn release(&mut self, upto: u64) {
        let first = self.released + 1;
        if upto < first {
            return;
        }
        if let Frames::Buffers(buffers) = &mut self.frames {
            for order in first..=upto {
                let parameters = &self.superblock.parameters;
                let slot = parameters.slot(order);
                // The slot is not used again before its order is released.
                let entry = Entry::decode(&raw_slot(&self.media, parameters, slot));
                buffers.release(entry.frame_offset());
            }
        }
        self.released = upto;
    }

    fn checked<T>(&mut self, result: Result<T, MediaError>) -> Result<T, LogError> {
        self.failed |= result.is_err();
        Ok(result?)
    }

    fn refuse_failed(&self) -> Result<(), LogError> {
        if self.failed {
            Err(LogError::Media(MediaError::Failed))
        } else {
            Ok(())
        }
    }
}

/// The raw slot of a log that runs.
fn raw_slot<M: Media>(media: &M, parameters: &Parameters, slot: u64) -> [u8; ENTRY_BYTES] {
    let start = parameters.slot_offset(slot);
    take(media.part(start..start + ENTRY_BYTES), 0)
}
