//! Packet buffers as frame space, and the owner of each buffer (`docs/spec/ordered-log.md` §11).
//!
//! A buffer is in one of four states. Free: neither the log nor the port uses it. Lent: the component that moves
//! packets has it. Live: an entry of the log points into it. Away: a store in the same region has it. This module never
//! sees the bytes of a buffer. At most [`Buffers::live_max`] buffers are live, so that packets can always be received.

use std::collections::VecDeque;
use std::ops::Range;

use crate::layout::{FrameSpace, Parameters, to_u64, to_usize};

/// The log keeps a reserve of buffers that are never live: 1/16 of the buffers, but at least [`RESERVE_MIN`].
const RESERVE_FRACTION: u64 = 16;
/// Smallest reserve. Half of the reserve is lent, so that packets can be received into it. The other half is for copied
/// frames: ENDs that the device makes, and packets that are not in a lent buffer.
const RESERVE_MIN: u64 = 8;
/// Offset of a copied frame in its buffer, in bytes. The offset is a multiple of a cache line. It leaves space for the
/// headers of Ethernet, IPv6 and UDP, so that the frame can be sent from the buffer.
const COPY_OFFSET: usize = 128;

/// Owner of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    Free,
    /// The component that moves packets.
    Lent,
    /// The log.
    Live,
    /// The store of the region that also holds the log (`docs/spec/packet-store.md` §11).
    Away,
}

/// The packet buffers of a log.
#[derive(Debug)]
pub(crate) struct Buffers {
    bytes: usize,
    holders: Vec<Holder>,
    /// Numbers of free buffers. The buffer that was used last is taken first, because it is in the CPU's cache.
    free: Vec<u32>,
    /// Buffers that are no longer live and now count as lent. The component that moves packets must take them back,
    /// because it may still be sending from them.
    released: VecDeque<u32>,
    live: u64,
    /// Number of buffers that belong to the log. The reserve is a fraction of this number.
    own: u64,
    live_max: u64,
    /// Number of free buffers that are kept for copies, and not lent.
    kept_for_copies: usize,
    lends: bool,
}

impl Buffers {
    /// Returns all buffers of a log as free, or `None` if its frame space is a ring.
    pub(crate) fn new(parameters: &Parameters) -> Option<Buffers> {
        let FrameSpace::Buffers(bytes) = parameters.space else {
            return None;
        };
        let count = parameters.buffer_count();
        let number = u32::try_from(count).expect("bounded by the parameters");
        let mut buffers = Buffers {
            bytes: usize::try_from(bytes).expect("u32 fits usize"),
            holders: vec![Holder::Free; to_usize(count)],
            free: (0..number).rev().collect(),
            released: VecDeque::new(),
            live: 0,
            own: 0,
            live_max: 0,
            kept_for_copies: 0,
            lends: false,
        };
        buffers.count_on(count, parameters.entries);
        Some(buffers)
    }

    /// Sets the number of buffers that belong to the log (`own`), and from it the reserve.
    fn count_on(&mut self, own: u64, entries: u64) {
        let reserve = (own / RESERVE_FRACTION).max(RESERVE_MIN);
        self.own = own;
        self.live_max = own.saturating_sub(reserve).min(entries);
        self.kept_for_copies = to_usize(reserve / 2);
    }

    /// Marks the buffer of a frame that recovery keeps. Returns false if the buffer already holds another kept frame.
    pub(crate) fn keep(&mut self, offset: usize) -> bool {
        let at = offset / self.bytes;
        if self.holders[at] != Holder::Free {
            return false;
        }
        self.holders[at] = Holder::Live;
        self.live += 1;
        true
    }

    /// Fills the free list, after all kept buffers have been marked.
    pub(crate) fn kept(mut self) -> Buffers {
        let holders = &self.holders;
        self.free
            .retain(|&number| holders[index(number)] == Holder::Free);
        self
    }

    /// Ends the recovery of a log whose region a store shares: buffers without a kept frame count as away. `own`:
    /// number of buffers that the store will lend to the log permanently.
    pub(crate) fn kept_beside_a_store(mut self, own: u64, entries: u64) -> Buffers {
        for holder in &mut self.holders {
            if *holder == Holder::Free {
                *holder = Holder::Away;
            }
        }
        self.free.clear();
        self.count_on(own, entries);
        // Released buffers have to be polled from the start, because they may go to the store.
        self.lends = true;
        self
    }

    /// Returns whether a released buffer waits to be polled.
    pub(crate) fn has_released(&self) -> bool {
        !self.released.is_empty()
    }

    /// Takes a buffer that the store lends to the log.
    ///
    /// # Panics
    /// The store does not have the buffer.
    pub(crate) fn take_in(&mut self, number: u32) {
        let holder = &mut self.holders[index(number)];
        assert_eq!(*holder, Holder::Away, "only what is away is taken in");
        *holder = Holder::Free;
        self.free.push(number);
    }

    /// Gives a released buffer to the store instead of the component that moves packets.
    ///
    /// # Panics
    /// If the buffer is not lent.
    pub(crate) fn withhold(&mut self, number: u32) {
        let holder = &mut self.holders[index(number)];
        assert_eq!(*holder, Holder::Lent, "only what was released is withheld");
        *holder = Holder::Away;
    }

    /// Returns whether a store has the buffer.
    pub(crate) fn is_away(&self, number: u32) -> bool {
        self.holders[index(number)] == Holder::Away
    }

    /// Returns whether an entry points into the buffer.
    pub(crate) fn is_live(&self, number: u32) -> bool {
        self.holders[index(number)] == Holder::Live
    }

    /// Returns the largest number of buffers that may be live at the same time.
    pub(crate) const fn live_max(&self) -> u64 {
        self.live_max
    }

    /// Returns the number of buffers that may still become live.
    pub(crate) const fn room(&self) -> u64 {
        self.live_max.saturating_sub(self.live)
    }

    /// Returns the length of the longest frame that can be copied in now. The length is 0 if no buffer is free for
    /// copies because all other buffers are lent.
    pub(crate) fn room_for_a_copy(&self) -> usize {
        if self.free.is_empty() {
            0
        } else {
            self.copy_bytes_max()
        }
    }

    /// Returns the length of the longest frame that can be copied into a buffer, in bytes.
    pub(crate) const fn copy_bytes_max(&self) -> usize {
        self.bytes - COPY_OFFSET
    }

    /// Makes a free buffer live for a copied frame of `len` bytes. Returns the offset at which the frame must be
    /// stored.
    pub(crate) fn copy(&mut self, len: usize) -> Option<usize> {
        if self.room() == 0 || len > self.copy_bytes_max() {
            return None;
        }
        let number = self.free.pop()?;
        self.holders[index(number)] = Holder::Live;
        self.live += 1;
        Some(index(number) * self.bytes + COPY_OFFSET)
    }

    /// Returns whether `frame` is inside one lent buffer.
    pub(crate) fn is_lent(&self, frame: &Range<usize>) -> bool {
        let at = frame.start / self.bytes;
        self.holders.get(at) == Some(&Holder::Lent) && frame.end <= (at + 1) * self.bytes
    }

    /// Makes the lent buffer around `frame` live. Returns false if no further buffer may be live.
    ///
    /// # Panics
    /// If the frame is not inside one lent buffer.
    pub(crate) fn keep_lent(&mut self, frame: &Range<usize>) -> bool {
        assert!(self.is_lent(frame), "the frame is in a lent buffer");
        let at = frame.start / self.bytes;
        if self.room() == 0 {
            return false;
        }
        self.holders[at] = Holder::Live;
        self.live += 1;
        true
    }

    /// Releases the frame at `offset`, which is no longer needed.
    pub(crate) fn release(&mut self, offset: usize) {
        let at = offset / self.bytes;
        debug_assert_eq!(
            self.holders[at],
            Holder::Live,
            "only what is live is released"
        );
        self.live -= 1;
        let number = u32::try_from(at).expect("counted in 32 bits");
        if self.lends {
            self.holders[at] = Holder::Lent;
            self.released.push_back(number);
        } else {
            self.holders[at] = Holder::Free;
            self.free.push(number);
        }
    }

    /// Returns the next released buffer, which counts as lent until it is given back.
    pub(crate) fn poll_released(&mut self) -> Option<u32> {
        self.released.pop_front()
    }

    /// Sets the number of buffers, besides those for copies, that are never live. Buffers that are live now stay live
    /// until they are released.
    pub(crate) fn leave_to_port(&mut self, wanted: u64) {
        let left = self
            .own
            .saturating_sub(to_u64(self.kept_for_copies) + wanted);
        self.live_max = self.live_max.min(left);
    }

    /// Lends a buffer. After the first loan, released buffers have to be polled.
    pub(crate) fn lend(&mut self) -> Option<u32> {
        self.lends = true;
        if self.free.len() <= self.kept_for_copies {
            return None;
        }
        let number = self.free.pop()?;
        self.holders[index(number)] = Holder::Lent;
        Some(number)
    }

    /// Returns whether fewer buffers are free than should be kept for copies.
    pub(crate) const fn wants(&self) -> bool {
        self.free.len() < self.kept_for_copies
    }

    /// Takes back a lent buffer.
    ///
    /// # Panics
    /// If the buffer is not lent.
    pub(crate) fn give_back(&mut self, number: u32) {
        let holder = &mut self.holders[index(number)];
        assert_eq!(*holder, Holder::Lent, "only what is lent is given back");
        *holder = Holder::Free;
        self.free.push(number);
    }
}

impl Parameters {
    /// Returns the number of packet buffers; 0 if the frame space is a ring.
    #[must_use]
    pub fn buffer_count(&self) -> u64 {
        match self.space {
            FrameSpace::Ring => 0,
            FrameSpace::Buffers(bytes) => self.frame_bytes / u64::from(bytes),
        }
    }
}

fn index(number: u32) -> usize {
    usize::try_from(number).expect("u32 fits usize")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffers() -> Buffers {
        Buffers::new(&Parameters::buffers(1024, 256 * 2048, 2048)).unwrap()
    }

    #[test]
    fn a_buffer_has_one_holder_and_comes_back() {
        let mut all = buffers();
        let number = all.lend().unwrap();
        let start = index(number) * 2048;
        assert!(all.keep_lent(&(start + 300..start + 2048)));
        assert_eq!(all.room(), 239);
        all.release(start + 300);
        assert_eq!(all.poll_released(), Some(number));
        assert_eq!(all.poll_released(), None);
        all.give_back(number);
        assert_eq!((all.room(), all.free.len()), (240, 256));
    }

    #[test]
    fn reception_and_copies_keep_their_reserve() {
        let mut all = buffers();
        let mut lent = Vec::new();
        while let Some(number) = all.lend() {
            lent.push(number);
        }
        assert_eq!(lent.len(), 256 - 8);
        for (live, number) in lent.iter().enumerate() {
            let start = index(*number) * 2048;
            assert_eq!(all.keep_lent(&(start..start + 100)), live < 240, "{live}");
        }
        assert_eq!((all.room(), all.copy(10)), (0, None));
        all.release(index(lent[0]) * 2048);
        assert!(all.copy(1920).is_some());
        assert_eq!(all.copy(1), None);
    }

    #[test]
    fn a_port_may_need_more() {
        let mut all = buffers();
        all.leave_to_port(64);
        assert_eq!((all.live_max(), all.room()), (256 - 8 - 64, 184));
        all.leave_to_port(1);
        assert_eq!(all.live_max(), 184, "never less than was left to it before");
        all.copy(1).unwrap();
        all.leave_to_port(1_000);
        assert_eq!((all.room(), all.copy(1)), (0, None));
    }

    #[test]
    fn without_a_borrower_what_is_released_is_free() {
        let mut all = buffers();
        let offset = all.copy(1).unwrap();
        assert_eq!(all.copy(1921), None);
        all.release(offset);
        assert_eq!((all.free.len(), all.poll_released()), (256, None));
    }

    #[test]
    fn beside_a_store_the_log_has_what_it_is_lent() {
        let mut all = buffers();
        assert!(all.keep(2048 + 64));
        let mut all = all.kept_beside_a_store(64, 1024);
        assert_eq!((all.live_max(), all.room()), (56, 55));
        assert_eq!((all.lend(), all.copy(1)), (None, None), "all else is away");
        assert!(all.is_live(1) && all.is_away(0) && all.is_away(2));
        (10..20).for_each(|number| all.take_in(number));
        let lent = all.lend().unwrap();
        assert!(all.keep_lent(&(index(lent) * 2048..index(lent) * 2048 + 100)));
        // The frame is released before the first loan. The buffer must become free, because no port polls
        // released buffers yet.
        all.release(2048 + 64);
        all.release(index(lent) * 2048);
        assert_eq!(all.poll_released(), Some(1));
        all.withhold(1);
        assert!(all.is_away(1));
        assert_eq!(all.poll_released(), Some(lent));
        assert_eq!(all.room(), 56);
        all.leave_to_port(16);
        assert_eq!(all.live_max(), 64 - 4 - 16);
        let few = buffers().kept_beside_a_store(64, 16);
        assert_eq!(few.live_max(), 16, "an entry for each");
    }

    #[test]
    fn each_change_of_a_holder_can_be_seen() {
        let mut all = buffers();
        assert_eq!(all.room_for_a_copy(), 1920);
        let offset = all.copy(1).unwrap();
        assert!(!all.is_lent(&(offset..offset + 1)), "it is live");
        all.release(offset);
        assert!(all.keep(offset), "what is released is free");
        let mut all = all.kept_beside_a_store(64, 1024);
        assert_eq!(all.room_for_a_copy(), 0, "all is live or away");
        // The frame is released before the first buffer is lent.
        all.release(offset);
        let released = all.poll_released().unwrap();
        assert_eq!(index(released), offset / 2048);
        all.take_in(released + 1);
        assert!(!all.is_away(released + 1));
        assert_eq!(all.room_for_a_copy(), 1920);
    }

    #[test]
    fn two_kept_frames_in_one_buffer_are_seen() {
        let mut all = buffers();
        assert!(all.keep(4096 + 300));
        assert!(!all.keep(4096));
        assert_eq!(all.kept().free.len(), 255);
    }
}
