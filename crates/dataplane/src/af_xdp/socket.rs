//! An AF_XDP socket with frames of its own.
//!
//! This module must not interpret the contents of a frame.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use super::config::Config;
use super::error::AfXdpError;
use super::queue::{Queue, Wake};
use super::region::Region;
use super::umem::{Frame, Received, Umem};

/// An AF_XDP socket with its memory. To receive: [`refill`](Socket::refill), [`receive`](Socket::receive),
/// [`give_back`](Socket::give_back). To send: [`take`](Socket::take), [`reserve`](Socket::reserve),
/// [`queue`](Socket::queue), [`submit`](Socket::submit), [`wake`](Socket::wake), [`complete`](Socket::complete).
#[derive(Debug)]
pub struct Socket<R> {
    // This field must be dropped first. Afterwards the kernel no longer uses the rings and the memory.
    queue: Queue,
    umem: Umem<R>,
}

impl<R: Region> Socket<R> {
    /// Binds to a queue. No packet is received before the kernel has frames ([`refill`](Socket::refill)) and a program
    /// redirects packets to this socket ([`super::Redirect`]). If an earlier owner of the queue is ending, waits for
    /// its end, but at most 5 seconds.
    ///
    /// # Errors
    /// [`AfXdpError`].
    pub fn bind(region: R, config: &Config) -> Result<Socket<R>, AfXdpError> {
        let umem = Umem::new(region, config.frame_bytes)?;
        let queue = Queue::bind(&umem, config, None)?;
        Ok(Socket { queue, umem })
    }

    /// Returns whether the socket is in zero-copy mode.
    #[must_use]
    pub const fn is_zero_copy(&self) -> bool {
        self.queue.is_zero_copy()
    }

    /// Returns the number of frames of the memory.
    #[must_use]
    pub const fn frames(&self) -> usize {
        self.umem.frames()
    }

    /// Returns the number of frames in the free list.
    #[must_use]
    pub const fn free(&self) -> usize {
        self.umem.free()
    }

    /// Returns the number of bytes of a frame: the length of the longest packet that can be sent.
    #[must_use]
    pub const fn frame_bytes(&self) -> usize {
        self.umem.frame_bytes()
    }

    /// Returns the length of the longest packet that can be received, in bytes; the kernel drops longer packets.
    #[must_use]
    pub const fn receive_bytes_max(&self) -> usize {
        self.umem.receive_bytes_max(self.queue.headroom())
    }

    /// Takes a frame from the free list, to be written and sent.
    pub fn take(&mut self) -> Option<Frame> {
        self.umem.take()
    }

    /// Puts a frame back into the free list.
    ///
    /// # Panics
    /// If the frame belongs to another socket. All functions that take a frame panic in this case.
    pub fn give_back(&mut self, frame: Frame) {
        self.umem.give_back(frame);
    }

    /// Returns the bytes of a frame.
    #[must_use]
    pub fn bytes(&self, frame: &Frame) -> &[u8] {
        self.umem.bytes(frame)
    }

    /// Returns the bytes of a frame, to be written.
    pub fn bytes_mut(&mut self, frame: &Frame) -> &mut [u8] {
        self.umem.bytes_mut(frame)
    }

    /// Gives the kernel free frames to receive into ([`Queue::refill`]).
    ///
    /// # Errors
    /// [`AfXdpError::Ring`].
    pub fn refill(&mut self, wanted: u32, reserve: usize) -> Result<u32, AfXdpError> {
        self.queue.refill(&mut self.umem, wanted, reserve)
    }

    /// Takes received packets ([`Queue::receive`]).
    ///
    /// # Errors
    /// [`AfXdpError::Ring`], [`AfXdpError::Descriptor`].
    pub fn receive(&mut self, burst: &mut Vec<Received>) -> Result<u32, AfXdpError> {
        self.queue.receive(&mut self.umem, burst)
    }

    /// Lets the driver receive waiting packets ([`Queue::poll_driver`]).
    ///
    /// # Errors
    /// [`AfXdpError::Wake`].
    pub fn poll_driver(&self) -> Result<Wake, AfXdpError> {
        self.queue.poll_driver()
    }

    /// Reserves entries for frames to be sent ([`Queue::reserve`]).
    ///
    /// # Errors
    /// [`AfXdpError::Ring`].
    pub fn reserve(&mut self, wanted: u32) -> Result<u32, AfXdpError> {
        self.queue.reserve(wanted)
    }

    /// Puts the first `bytes` bytes of a frame into an entry that was [reserved](Socket::reserve). The kernel sees the
    /// packet after [`submit`](Socket::submit).
    ///
    /// # Panics
    /// If no entry is reserved, or a frame is shorter than `bytes`.
    pub fn queue(&mut self, frame: Frame, bytes: usize) {
        assert!(bytes <= self.umem.frame_bytes(), "inside the frame");
        let address = self.umem.for_sending(frame, 0);
        self.queue.queue(address, bytes);
    }

    /// Passes the queued frames to the kernel ([`Queue::submit`]).
    pub fn submit(&mut self) -> u32 {
        self.queue.submit()
    }

    /// Wakes the kernel to send the submitted frames ([`Queue::wake`]).
    ///
    /// # Errors
    /// [`AfXdpError::Wake`].
    pub fn wake(&self) -> Result<Wake, AfXdpError> {
        self.queue.wake()
    }

    /// Takes sent frames back from the kernel ([`Queue::complete`]).
    ///
    /// # Errors
    /// [`AfXdpError::Ring`], [`AfXdpError::Descriptor`].
    pub fn complete(&mut self) -> Result<u32, AfXdpError> {
        self.queue.complete(&mut self.umem)
    }
}

impl<R> AsFd for Socket<R> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }
}

impl<R> AsRawFd for Socket<R> {
    fn as_raw_fd(&self) -> RawFd {
        self.queue.as_raw_fd()
    }
}
