//! Packet buffers that are lent to the component that receives packets into them.

use std::ops::Range;

use super::Log;
use crate::buffers::Buffers;
use crate::entry::Entry;
use crate::frames::Frames;
use crate::media::Media;

impl<M: Media> Log<M> {
    /// Sets the number of packet buffers that are never live. The component that moves packets needs these buffers to
    /// receive into, and to send from.
    ///
    /// # Panics
    /// The log's frame space is a ring.
    pub fn leave_buffers(&mut self, count: u64) {
        self.buffers_mut().leave_to_port(count);
    }

    /// Lends a packet buffer. Returns the number of the buffer, counted from the start of the frame space, or `None` if
    /// the log keeps the remaining buffers. After the first loan, [`Log::poll_released`] has to be called.
    ///
    /// # Panics
    /// The log's frame space is a ring.
    pub fn lend_buffer(&mut self) -> Option<u32> {
        self.buffers_mut().lend()
    }

    /// Returns the bytes of the range `frame` of the frame space, which is inside a lent buffer.
    ///
    /// # Panics
    /// If `frame` is not inside the frame space.
    #[must_use]
    pub fn lent(&self, frame: &Range<usize>) -> &[u8] {
        let base = self.parameters().frames_offset();
        self.media.part(base + frame.start..base + frame.end)
    }

    /// Returns the range of a live entry's frame in the frame space.
    #[must_use]
    pub fn frame_place(&self, entry: &Entry) -> Range<usize> {
        let start = entry.frame_offset();
        start..start + entry.frame_bytes()
    }

    /// Returns whether fewer buffers are free than should be kept for copies. A borrower that does not need all its
    /// lent buffers should give some back.
    #[must_use]
    pub fn wants_buffers(&self) -> bool {
        match &self.frames {
            Frames::Ring(_) => false,
            Frames::Buffers(buffers) => buffers.wants(),
        }
    }

    /// Stores a packet into a lent buffer, as a network interface does. This function is for networks in user space.
    ///
    /// # Panics
    /// If `at .. at + packet.len()` of the frame space is not inside one lent buffer, or the log is a ring.
    pub fn deposit(&mut self, at: usize, packet: &[u8]) {
        let lent = self.buffers_mut().is_lent(&(at..at + packet.len()));
        assert!(lent, "a packet is stored into a lent buffer");
        let start = self.parameters().frames_offset() + at;
        self.media.store(start, packet);
    }

    /// Takes back a buffer that was lent or released.
    ///
    /// # Panics
    /// If the buffer is not lent, or the log is a ring.
    pub fn give_back_buffer(&mut self, number: u32) {
        self.buffers_mut().give_back(number);
    }

    /// Returns the next buffer whose frame the log no longer needs. The buffer counts as lent: when the borrower has
    /// finished sending from it, the borrower gives it back, or receives into it.
    pub fn poll_released(&mut self) -> Option<u32> {
        match &mut self.frames {
            Frames::Ring(_) => None,
            Frames::Buffers(buffers) => buffers.poll_released(),
        }
    }

    /// Returns whether [`Log::poll_released`] would return a buffer.
    #[must_use]
    pub fn has_released(&self) -> bool {
        match &self.frames {
            Frames::Ring(_) => false,
            Frames::Buffers(buffers) => buffers.has_released(),
        }
    }

    /// Takes over a buffer that the store in the same region lends to the log (`docs/spec/packet-store.md` §11).
    ///
    /// # Panics
    /// If the store does not have it, or the log is a ring.
    pub fn take_in_buffer(&mut self, number: u32) {
        self.buffers_mut().take_in(number);
    }

    /// Leaves a buffer that was just [released](Log::poll_released) to the store in the same region.
    ///
    /// # Panics
    /// If the buffer is not lent, or the log is a ring.
    pub fn withhold_buffer(&mut self, number: u32) {
        self.buffers_mut().withhold(number);
    }

    /// Returns whether a store in the same region has this buffer, and the log has no entry in this buffer.
    ///
    /// # Panics
    /// If the log is a ring, or has no such buffer.
    #[must_use]
    pub fn is_away(&self, number: u32) -> bool {
        match &self.frames {
            Frames::Buffers(buffers) => buffers.is_away(number),
            Frames::Ring(_) => panic!("the frame space of this log is packet buffers"),
        }
    }

    /// Returns whether an order above `released` has its frame in this buffer.
    ///
    /// # Panics
    /// If the log is a ring, or has no such buffer.
    #[must_use]
    pub fn is_live(&self, number: u32) -> bool {
        match &self.frames {
            Frames::Buffers(buffers) => buffers.is_live(number),
            Frames::Ring(_) => panic!("the frame space of this log is packet buffers"),
        }
    }

    /// Returns the medium, for an owner that lets a log and a store use it in turn.
    pub fn medium_mut(&mut self) -> &mut M {
        &mut self.media
    }

    pub(super) fn buffers_mut(&mut self) -> &mut Buffers {
        match &mut self.frames {
            Frames::Buffers(buffers) => buffers,
            Frames::Ring(_) => panic!("the frame space of this log is packet buffers"),
        }
    }
}
