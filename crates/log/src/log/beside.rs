//! A log whose image the log's owner shares with a fast path that also appends to it, such as the pipeline in the
//! kernel. The owner follows the fast path's entries. A new owner can take over the log after the death of its owner.

use super::{Log, raw_slot};
use crate::entry::{Entry, HEADER_LEN_MAX, aligned};
use crate::error::LogError;
use crate::frames::{FrameRing, Frames};
use crate::layout::{FrameSpace, to_u64, to_usize};
use crate::media::Media;
use crate::scan::{self, Expected};
use crate::superblock;

/// State at the end of a log, which the owner and a fast path such as the pipeline in the kernel exchange
/// (`docs/spec/ordered-log.md` §10).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tail {
    /// Highest order.
    pub last: u64,
    /// Offset in the frame ring of the end of the newest frame, in bytes.
    pub head: u64,
    /// Orders up to this order are reclaimed.
    pub applied: u64,
    /// Highest `applied` that a witness states.
    pub stated: u64,
    /// Highest `applied` that two witnesses state: the space of these orders is free.
    pub released: u64,
    /// First order of this lap of the frame ring, and of the previous lap ([`Log::kept_frame`]).
    pub laps: [u64; 2],
}

impl<M: Media> Log<M> {
    /// Takes over the entries up to `upto`. The fast path appended them to the image by the rules of this log, in
    /// memory that needs no flush, but without their checksums, which this call fills in (`docs/spec/ordered-log.md`
    /// §10). The entries are durable when this call returns.
    ///
    /// # Errors
    /// [`LogError::Followed`]: this log could not have appended the entry.
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

    /// Returns the state with which the fast path beside this log continues.
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

    /// Opens the log in an image whose owner has died without closing the log, while the memory of the image stayed
    /// intact. Nothing is repaired, and the incarnation stays. `tail`: state of the log's end, as the fast path has
    /// kept it. Before its death the owner may have freed space by a superblock that the fast path does not know. Then
    /// the superblock counts, and the freed space may be overwritten.
    ///
    /// # Errors
    /// [`LogError`]: the superblocks cannot be read, the log is not the expected one, or tail and image contradict each
    /// other.
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
        // `follow` checks each entry again, beginning with the oldest kept entry.
        (log.last, log.durable, log.reported) = (released, released, released);
        log.released = released;
        log.stated = 0;
        log.follow(tail.last)?;
        (log.stated, log.released) = (stated, released);
        log.laps = tail.laps;
        Ok(log)
    }
}
