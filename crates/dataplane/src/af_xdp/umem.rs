//! The memory of the frames (UMEM), and the record of each frame's owner.
//!
//! Invariants: a frame is free, kept, held, or given to the kernel, and only its holder writes it. Each frame that the
//! kernel returns is checked against the record. This module must not know rings or sockets.

#![allow(unsafe_code)]

use std::ops::Range;

use super::RECEIVE_HEADROOM;
use super::error::AfXdpError;
use super::region::Region;

/// Size of a page in bytes: memory is registered in whole pages.
const PAGE_BYTES: usize = 4096;

/// A frame that its holder may read and write. If this value is dropped without
/// [`Socket::give_back`](super::Socket::give_back), the frame cannot be used until the socket is dropped.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a frame that is not given back is never used again"]
pub struct Frame(u32);

impl Frame {
    /// Returns the frame's number, counted from the start of the region.
    #[must_use]
    pub const fn number(&self) -> u32 {
        self.0
    }
}

/// A received packet.
#[derive(Debug)]
pub struct Received {
    /// The frame with the packet.
    pub frame: Frame,
    /// The range of the packet in the frame.
    pub bytes: Range<usize>,
}

/// Owner of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// The caller, who keeps the frame's content ([`Umem::keep`]).
    Kept,
    /// The caller, who keeps the frame's content, while the kernel sends from the frame.
    KeptSending,
    /// The kernel, which still sends from the frame. The caller no longer keeps the frame.
    LeftSending,
    /// The list of free frames.
    Free,
    /// A holder.
    Held,
    /// The kernel, which receives into the frame.
    Receiving,
    /// The kernel, which sends the frame.
    Sending,
}

/// Number of frames of each owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// Frames whose content the caller keeps.
    pub kept: usize,
    /// Frames that the kernel has to receive into.
    pub receiving: usize,
    /// Frames that the kernel is sending.
    pub sending: usize,
    /// Frames that holders have ([`Frame`]).
    pub held: usize,
    /// Frames in the free list.
    pub free: usize,
}

/// Frames of one size, numbered from the start of the region.
#[derive(Debug)]
pub struct Umem<R> {
    region: R,
    frame_bytes: usize,
    places: Vec<Place>,
    /// Numbers of free frames. The frame that was used last is taken first, because it is in the CPU's cache.
    free: Vec<u32>,
}

impl<R: Region> Umem<R> {
    /// Divides the region into frames, all of which count as kept by the caller.
    pub fn kept(region: R, frame_bytes: u32) -> Result<Umem<R>, AfXdpError> {
        let mut umem = Umem::new(region, frame_bytes)?;
        umem.places.fill(Place::Kept);
        umem.free.clear();
        Ok(umem)
    }

    /// Divides the region into free frames.
    pub fn new(region: R, frame_bytes: u32) -> Result<Umem<R>, AfXdpError> {
        let bytes = usize::try_from(frame_bytes).unwrap_or(usize::MAX);
        if !bytes.is_power_of_two() || !(2048..=PAGE_BYTES).contains(&bytes) {
            return Err(AfXdpError::Config(format!(
                "frames of {frame_bytes} bytes: 2048 or {PAGE_BYTES} are needed"
            )));
        }
        if !region.start().addr().is_multiple_of(PAGE_BYTES) {
            return Err(AfXdpError::Config(
                "the memory does not begin at a page".into(),
            ));
        }
        let count = u32::try_from(region.bytes() / bytes).unwrap_or(u32::MAX);
        if count == 0 {
            return Err(AfXdpError::Config(format!(
                "{} bytes of memory: one frame has {bytes}",
                region.bytes()
            )));
        }
        let frames = usize::try_from(count).expect("32 bits fit");
        Ok(Umem {
            region,
            frame_bytes: bytes,
            places: vec![Place::Free; frames],
            free: (0..count).rev().collect(),
        })
    }

    /// Returns the address and the length of the memory that is registered with the kernel: all whole frames.
    pub fn registered(&self) -> (*mut u8, usize) {
        (self.region.start(), self.places.len() * self.frame_bytes)
    }

    /// Returns the bytes of a frame.
    #[must_use]
    pub const fn frame_bytes(&self) -> usize {
        self.frame_bytes
    }

    /// Returns the number of frames of the region.
    #[must_use]
    pub const fn frames(&self) -> usize {
        self.places.len()
    }

    /// Returns the number of free frames.
    #[must_use]
    pub const fn free(&self) -> usize {
        self.free.len()
    }

    /// Counts the frames of each owner. This takes time in proportion to the number of frames.
    #[must_use]
    pub fn places(&self) -> Places {
        let mut all = Places::default();
        for place in &self.places {
            *match place {
                Place::Kept => &mut all.kept,
                Place::Receiving => &mut all.receiving,
                Place::KeptSending | Place::LeftSending | Place::Sending => &mut all.sending,
                Place::Held => &mut all.held,
                Place::Free => &mut all.free,
            } += 1;
        }
        all
    }

    fn at(number: u32) -> usize {
        usize::try_from(number).expect("32 bits fit")
    }

    fn held(&self, frame: &Frame) -> usize {
        let at = Umem::<R>::at(frame.0);
        assert!(
            self.places.get(at) == Some(&Place::Held),
            "the frame is of this socket"
        );
        at
    }

    /// Takes a free frame, so that the caller can write it.
    pub fn take(&mut self) -> Option<Frame> {
        let number = self.free.pop()?;
        self.places[Umem::<R>::at(number)] = Place::Held;
        Some(Frame(number))
    }

    /// Frees a held frame.
    ///
    /// # Panics
    /// The frame is of another region.
    pub fn give_back(&mut self, frame: Frame) {
        let at = self.held(&frame);
        self.places[at] = Place::Free;
        self.free.push(frame.0);
    }

    /// Turns a held frame into a kept frame: the caller keeps its content.
    pub fn keep(&mut self, frame: Frame) {
        let at = self.held(&frame);
        self.places[at] = Place::Kept;
    }

    /// Frees a kept frame that is no longer needed. Returns false if the kernel still sends from it: the frame is then
    /// freed when it has been sent.
    ///
    /// # Panics
    /// If the frame is not kept.
    pub fn leave(&mut self, number: u32) -> bool {
        let place = &mut self.places[Umem::<R>::at(number)];
        match place {
            Place::Kept => {
                *place = Place::Free;
                self.free.push(number);
                true
            }
            Place::KeptSending => {
                *place = Place::LeftSending;
                false
            }
            other => panic!("frame {number} is not kept: {other:?}"),
        }
    }

    /// Turns a free frame into a kept frame. Returns the number of the frame.
    pub fn surrender(&mut self) -> Option<u32> {
        let number = self.free.pop()?;
        self.places[Umem::<R>::at(number)] = Place::Kept;
        Some(number)
    }

    /// Returns a part of a kept frame, to be read.
    ///
    /// # Panics
    /// The frame is not kept, or the part is not inside it.
    pub fn kept_bytes(&self, number: u32, part: &Range<usize>) -> &[u8] {
        let at = Umem::<R>::at(number);
        let kept = matches!(self.places.get(at), Some(Place::Kept | Place::KeptSending));
        assert!(
            kept && part.start <= part.end && part.end <= self.frame_bytes,
            "inside a kept frame"
        );
        // SAFETY: whole frames are inside the region, whose memory is valid as long as `self`. The kernel may only read
        // this frame, and the caller that keeps the frame only reads it.
        unsafe {
            let start = self.region.start().add(at * self.frame_bytes + part.start);
            std::slice::from_raw_parts(start, part.len())
        }
    }

    /// Gives `part` of a kept frame to the kernel to be sent, with the headers that `head` writes directly before it.
    /// Returns the address, and the length of the headers. `None`: the kernel still sends from this frame, or there is
    /// no space for the headers.
    pub fn for_sending_kept(
        &mut self,
        number: u32,
        part: &Range<usize>,
        head: impl FnOnce(&mut [u8], &[u8]) -> Option<usize>,
    ) -> Option<(u64, usize)> {
        let at = Umem::<R>::at(number);
        if self.places.get(at) != Some(&Place::Kept) {
            return None;
        }
        let kept = self.kept_bytes(number, part);
        // SAFETY: the memory is valid, as in `kept_bytes`. Only bytes before `part` are written, and the caller that
        // keeps the frame has no content there.
        let front = unsafe {
            let frame = self.region.start().add(at * self.frame_bytes);
            std::slice::from_raw_parts_mut(frame, part.start)
        };
        let used = head(front, kept)?;
        let start = part.start.checked_sub(used)?;
        self.places[at] = Place::KeptSending;
        Some((
            self.address(at) + u64::try_from(start).expect("short"),
            used,
        ))
    }

    /// Returns the bytes of a held frame.
    #[must_use]
    pub fn bytes(&self, frame: &Frame) -> &[u8] {
        let at = self.held(frame);
        // SAFETY: whole frames are inside the region, whose memory is valid as long as `self`. This frame is held, so
        // the kernel does not use it. A write to this frame needs a mutable borrow of `self`.
        unsafe {
            let start = self.region.start().add(at * self.frame_bytes);
            std::slice::from_raw_parts(start, self.frame_bytes)
        }
    }

    /// Returns the bytes of a held frame, to be written.
    pub fn bytes_mut(&mut self, frame: &Frame) -> &mut [u8] {
        let at = self.held(frame);
        // SAFETY: the memory is valid, as in `bytes`. `self` is mutably borrowed as long as this reference lives, so
        // there is no other reference.
        unsafe {
            let start = self.region.start().add(at * self.frame_bytes);
            std::slice::from_raw_parts_mut(start, self.frame_bytes)
        }
    }

    /// Gives a free frame to the kernel to receive into. Returns the address of the frame.
    pub fn for_reception(&mut self) -> Option<u64> {
        let number = self.free.pop()?;
        let at = Umem::<R>::at(number);
        self.places[at] = Place::Receiving;
        Some(self.address(at))
    }

    /// Gives a held frame to the kernel to be sent from byte `start` on. Returns the address of that byte.
    pub fn for_sending(&mut self, frame: Frame, start: usize) -> u64 {
        let at = self.held(&frame);
        assert!(start < self.frame_bytes, "inside the frame");
        self.places[at] = Place::Sending;
        self.address(at) + u64::try_from(start).expect("short")
    }

    /// Takes back a frame into which the kernel has received.
    pub fn received(&mut self, address: u64, bytes: u32) -> Result<Received, AfXdpError> {
        let wrong = AfXdpError::Descriptor { address, bytes };
        let Some((at, start)) = self.find(address, Place::Receiving) else {
            return Err(wrong);
        };
        let end = usize::try_from(bytes)
            .ok()
            .and_then(|n| n.checked_add(start));
        let Some(end) = end.filter(|end| *end <= self.frame_bytes) else {
            return Err(wrong);
        };
        self.places[at] = Place::Held;
        Ok(Received {
            frame: Frame(u32::try_from(at).expect("frames are counted in 32 bits")),
            bytes: start..end,
        })
    }

    /// Takes back a frame that the kernel has sent, and frees it unless it is kept.
    pub fn sent(&mut self, address: u64) -> Result<(), AfXdpError> {
        let wrong = AfXdpError::Descriptor { address, bytes: 0 };
        let Some((at, _)) = self.split(address) else {
            return Err(wrong);
        };
        match self.places.get(at) {
            Some(Place::KeptSending) => {
                self.places[at] = Place::Kept;
                return Ok(());
            }
            Some(Place::LeftSending | Place::Sending) => {}
            _ => return Err(wrong),
        }
        self.places[at] = Place::Free;
        self.free
            .push(u32::try_from(at).expect("frames are counted in 32 bits"));
        Ok(())
    }

    /// Returns the number of an address's frame, and the offset in the frame, if `place` is the frame's owner.
    fn find(&self, address: u64, place: Place) -> Option<(usize, usize)> {
        self.split(address)
            .filter(|(at, _)| self.places.get(*at) == Some(&place))
    }

    /// Returns the number of an address's frame, and the offset in this frame.
    fn split(&self, address: u64) -> Option<(usize, usize)> {
        let address = usize::try_from(address).ok()?;
        Some((address / self.frame_bytes, address % self.frame_bytes))
    }

    fn address(&self, at: usize) -> u64 {
        u64::try_from(at * self.frame_bytes).expect("64 bits hold an offset")
    }

    /// Returns the length of the longest packet that can be received with `headroom` more bytes before it.
    pub const fn receive_bytes_max(&self, headroom: usize) -> usize {
        self.frame_bytes
            .saturating_sub(RECEIVE_HEADROOM)
            .saturating_sub(headroom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::af_xdp::Anonymous;

    fn umem(frames: usize) -> Umem<Anonymous> {
        Umem::new(Anonymous::new(frames * 2048).unwrap(), 2048).unwrap()
    }

    #[test]
    fn a_frame_goes_its_way_and_comes_back() {
        let mut umem = umem(2);
        let frame = umem.take().unwrap();
        umem.bytes_mut(&frame)[..3].copy_from_slice(b"abc");
        let address = umem.for_sending(frame, 0);
        assert_eq!(umem.free(), 1);
        umem.sent(address).unwrap();
        let address = umem.for_reception().unwrap();
        let received = umem.received(address + 256, 3).unwrap();
        assert_eq!(received.bytes, 256..259);
        assert_eq!(
            &umem.bytes(&received.frame)[..3],
            b"abc",
            "the last used first"
        );
        umem.give_back(received.frame);
        assert_eq!(umem.free(), 2);
    }

    #[test]
    fn what_the_kernel_does_not_have_is_an_error() {
        let mut umem = umem(4);
        let receiving = umem.for_reception().unwrap();
        let frame = umem.take().unwrap();
        let sending = umem.for_sending(frame, 0);
        let held = umem.take().unwrap();
        for address in [sending, 2048 * 2, 2048 * 3, 2048 * 4, u64::MAX] {
            assert!(umem.received(address, 1).is_err(), "{address}");
        }
        for bytes in [1793, 2048, u32::MAX] {
            assert!(umem.received(receiving + 256, bytes).is_err(), "{bytes}");
        }
        for address in [receiving, 2048 * 3, u64::MAX] {
            assert!(umem.sent(address).is_err(), "{address}");
        }
        // The kernel must not report the same frame twice.
        let whole = umem.received(receiving + 256, 1792).unwrap();
        assert!(umem.received(receiving + 256, 1792).is_err());
        umem.sent(sending).unwrap();
        assert!(umem.sent(sending).is_err());
        umem.give_back(whole.frame);
        umem.give_back(held);
        assert_eq!(umem.free(), umem.frames());
    }

    #[test]
    fn frames_of_another_socket_are_refused() {
        let (mut one, mut other) = (umem(1), umem(1));
        let frame = one.take().unwrap();
        let tried = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            other.give_back(frame);
        }));
        assert!(tried.is_err());
        assert_eq!(other.free(), 1);
    }

    #[test]
    fn a_kept_frame_is_free_when_it_is_left_and_sent() {
        let mut umem = Umem::kept(Anonymous::new(2 * 2048).unwrap(), 2048).unwrap();
        assert_eq!((umem.free(), umem.surrender()), (0, None));
        assert!(umem.leave(1));
        let address = umem.for_reception().unwrap();
        let received = umem.received(address + 256, 10).unwrap();
        assert_eq!(received.frame.number(), 1);
        umem.keep(received.frame);
        let put = |front: &mut [u8], datagram: &[u8]| {
            assert_eq!((front.len(), datagram.len()), (300, 10));
            Some(42)
        };
        let (sending, used) = umem.for_sending_kept(1, &(300..310), put).unwrap();
        assert_eq!((sending, used), (2048 + 258, 42));
        let again = umem.for_sending_kept(1, &(300..310), put);
        assert_eq!(again, None, "once at a time");
        assert_eq!(umem.for_sending_kept(0, &(300..310), |_, _| None), None);
        umem.sent(sending).unwrap();
        assert!(umem.sent(sending).is_err(), "a second time");
        let (sending, _) = umem.for_sending_kept(1, &(300..310), put).unwrap();
        assert!(!umem.leave(1), "the kernel has it");
        assert_eq!(umem.free(), 0);
        umem.sent(sending).unwrap();
        assert_eq!((umem.free(), umem.surrender()), (1, Some(1)));
    }

    #[test]
    fn frames_fit_into_pages() {
        for bytes in [0, 1024, 3000, 8192] {
            assert!(Umem::new(Anonymous::new(8192).unwrap(), bytes).is_err());
        }
        assert!(Umem::new(Anonymous::new(2047).unwrap(), 2048).is_err());
        let umem = Umem::new(Anonymous::new(4096 + 2047).unwrap(), 2048).unwrap();
        assert_eq!((umem.frames(), umem.registered().1), (2, 4096));
    }
}
