//! The AF_XDP sockets of a device, one for each queue of its interfaces, and the memory that they share with the log.
//!
//! Invariants: every buffer belongs to the kernel, to this module, or to the log. A buffer of the log is used only to
//! send from. This module must not interpret a datagram.

#![allow(unsafe_code)]

use std::ops::Range;

use pmnet_device::Buffers;
use pmnet_media::Memory;

use super::sockets::SocketsConfig;
use super::{Bound, DirectError, Part};
use crate::af_xdp::{
    AfXdpError, Config, Frame, Places, Queue, RECEIVE_HEADROOM, Received, Region, Umem, Wake,
};

/// Number of entries of a queue's fill ring, and of its RX ring.
const RECEIVE_RING: u32 = 1024;
/// Number of entries of a queue's TX ring, and of its completion ring.
const SEND_RING: u32 = 1024;
/// Minimum number of buffers into which each queue can receive when the log is full.
const RECEIVE_MIN: u64 = 64;
/// With several queues, 1/4 of all buffers is divided among them in equal parts. Each part has at least [`RECEIVE_MIN`]
/// buffers, and at most as many as the ring has entries. A single queue can use all buffers that are not live.
const RECEIVE_FRACTION: u64 = 4;
/// Number of buffers that are kept free to send from.
const SEND_RESERVE: usize = 32;
/// Number of bytes that stay free before a packet, in addition to the kernel's. With them, a datagram after Ethernet,
/// IPv4 and UDP headers begins at a cache line, so that an entry's header takes two lines and not three.
const HEADROOM: u32 = 22;
/// Number of bytes that stay free before a packet: the kernel's bytes and [`HEADROOM`].
pub(super) const ROOM_IN_FRONT: u64 = 256 + 22;
const _: () = assert!((RECEIVE_HEADROOM + 22 + 14 + 20 + 8).is_multiple_of(64));

/// The frame space of a log as memory that sockets receive into.
#[derive(Debug)]
pub(super) struct FrameMemory {
    memory: Memory,
    space: Range<usize>,
}

impl FrameMemory {
    /// Returns the frame space `space` of the log in this memory.
    ///
    /// # Panics
    /// The frame space is not inside the image.
    pub fn new(memory: Memory, space: Range<usize>) -> FrameMemory {
        assert!(
            space.start <= space.end && space.end <= memory.len(),
            "the frame space is inside the image"
        );
        FrameMemory { memory, space }
    }
}

// SAFETY: the frame space is inside the memory of the image, which may be read and written, stays in place, and lives
// as long as this value. The log, and a store in the same region, use the same memory. Log and store write and read the
// buffers that they own. The log reads a lent buffer only while a packet in it is delivered: at that time the kernel
// does not have the buffer, and this module has no reference into it.
unsafe impl Region for FrameMemory {
    fn start(&self) -> *mut u8 {
        // SAFETY: `new` checked that the space is inside the memory.
        unsafe { self.memory.start().add(self.space.start) }
    }
    fn bytes(&self) -> usize {
        self.space.len()
    }
}

/// Division of the buffers. The buffers that are never live suffice for all queues, so that packets can be received
/// even when the log is full, after any earlier traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Share {
    /// Maximum number of buffers that the kernel may have for one queue.
    receive: usize,
    /// Number of buffers that are never live: those for all queues, and those to send from.
    never_live: u64,
}

impl Share {
    /// Returns the division of `buffers` buffers among the queues. There must be at least 256 buffers for each queue.
    fn of(buffers: u64, queues: usize) -> Share {
        let count = u64::try_from(queues.max(1)).expect("few");
        let send = u64::try_from(SEND_RESERVE).expect("few");
        if count == 1 {
            // A single queue may use all remaining buffers, because no other queue needs them.
            return Share {
                receive: usize::MAX,
                never_live: RECEIVE_MIN + send,
            };
        }
        let each = (buffers / RECEIVE_FRACTION / count).clamp(RECEIVE_MIN, u64::from(RECEIVE_RING));
        Share {
            receive: usize::try_from(each).expect("bounded by a ring"),
            never_live: each * count + send,
        }
    }
}

/// The AF_XDP sockets of all queues of a shard.
pub(super) struct Queues {
    // This field must be dropped first, so that the programs are detached, and then the sockets are closed, before the
    // memory is unmapped. A program that other shards still use stays attached. The program then finds no socket for
    // this shard's packets, and passes them to the kernel's stack.
    _part: Part,
    queues: Vec<Queue>,
    /// For each queue, whether frames are submitted for which the kernel must still be woken.
    asleep: Vec<bool>,
    /// For each queue, the number of buffers into which the kernel can receive.
    filled: Vec<usize>,
    share: Share,
    /// Whether the drivers are polled.
    polls: bool,
    umem: Umem<FrameMemory>,
    buffer_bytes: usize,
    bound: Vec<Bound>,
    /// Number of packets for which no buffer or no entry of a ring was free. The protocol sends these packets again.
    send_dropped: u64,
}

impl Queues {
    /// Binds to every queue that the shard has of every interface.
    pub fn open(
        config: &SocketsConfig,
        memory: FrameMemory,
        buffer_bytes: u32,
        buffers: u64,
    ) -> Result<Queues, DirectError> {
        let umem = Umem::kept(memory, buffer_bytes)?;
        let mut all = Queues {
            _part: config.part.clone(),
            queues: Vec::new(),
            asleep: Vec::new(),
            filled: Vec::new(),
            share: Share::default(),
            polls: config.busy_poll.is_some(),
            umem,
            buffer_bytes: usize::try_from(buffer_bytes).expect("u32 fits usize"),
            bound: Vec::new(),
            send_dropped: 0,
        };
        for interface in &config.interfaces {
            config.part.attach(interface, config)?;
            for queue in config.part.queues(interface) {
                let own = Config {
                    mode: config.mode,
                    frame_bytes: buffer_bytes,
                    headroom: HEADROOM,
                    receive_ring: RECEIVE_RING,
                    send_ring: SEND_RING,
                    busy_poll: config.busy_poll,
                    ..Config::new(interface, queue)
                };
                let socket = Queue::bind(&all.umem, &own, all.queues.first())?;
                config.part.serve(interface, queue, &socket)?;
                all.bound.push(Bound {
                    interface: interface.clone(),
                    queue,
                    zero_copy: socket.is_zero_copy(),
                });
                all.queues.push(socket);
                all.asleep.push(false);
                all.filled.push(0);
            }
        }
        all.share = Share::of(buffers, all.queues.len());
        Ok(all)
    }

    pub fn bound(&self) -> &[Bound] {
        &self.bound
    }

    /// Returns the number of buffers that the log must not use for live entries.
    pub const fn never_live(&self) -> u64 {
        self.share.never_live
    }

    pub fn places(&self) -> Places {
        self.umem.places()
    }

    pub const fn send_dropped(&self) -> u64 {
        self.send_dropped
    }

    pub fn sockets(&self) -> &[Queue] {
        &self.queues
    }

    /// Takes packets that a queue has received, up to the capacity of `burst`.
    pub fn receive(&mut self, queue: usize, burst: &mut Vec<Received>) -> Result<(), AfXdpError> {
        let before = burst.len();
        let socket = &mut self.queues[queue];
        let mut received = socket.receive(&mut self.umem, burst);
        if self.polls && matches!(received, Ok(0)) {
            socket.poll_driver()?;
            received = socket.receive(&mut self.umem, burst);
        }
        self.filled[queue] -= burst.len() - before;
        received.map(drop)
    }

    /// Returns the bytes of a received packet.
    pub fn packet(&self, received: &Received) -> &[u8] {
        &self.umem.bytes(&received.frame)[received.bytes.clone()]
    }

    /// Returns the offset of a received packet in the frame space.
    pub fn place(&self, received: &Received) -> usize {
        self.start(received.frame.number()) + received.bytes.start
    }

    /// Returns the bytes of a datagram in a buffer of the log.
    pub fn logged(&self, place: &Range<usize>) -> &[u8] {
        let (number, inside) = self.split(place);
        self.umem.kept_bytes(number, &inside)
    }

    /// Returns the number of a buffer, and the range in this buffer.
    fn split(&self, place: &Range<usize>) -> (u32, Range<usize>) {
        let at = place.start / self.buffer_bytes;
        let start = at * self.buffer_bytes;
        let number = u32::try_from(at).expect("counted in 32 bits");
        (number, place.start - start..place.end - start)
    }

    /// Returns whether the kernel must be woken again.
    pub fn pending(&self) -> bool {
        self.asleep.iter().any(|asleep| *asleep)
    }

    fn start(&self, number: u32) -> usize {
        usize::try_from(number).expect("u32 fits usize") * self.buffer_bytes
    }

    /// Ends the use of a received packet. `kept`: the packet's buffer now belongs to the log.
    pub fn done(&mut self, frame: Frame, kept: bool) {
        if kept {
            self.umem.keep(frame);
        } else {
            self.umem.give_back(frame);
        }
    }

    /// Copies a datagram into a free buffer and queues it, with the headers that `head` writes before it.
    pub fn send(
        &mut self,
        queue: usize,
        datagram: &[u8],
        head: impl FnOnce(&mut [u8], &[u8]) -> Option<usize>,
    ) -> Result<(), AfXdpError> {
        const FRONT: usize = 64;
        if FRONT + datagram.len() > self.buffer_bytes || !self.reserve(queue)? {
            self.send_dropped += 1;
            return Ok(());
        }
        let Some(frame) = self.umem.take() else {
            self.send_dropped += 1;
            return Ok(());
        };
        let bytes = self.umem.bytes_mut(&frame);
        let (front, rest) = bytes.split_at_mut(FRONT);
        rest[..datagram.len()].copy_from_slice(datagram);
        let Some(used) = head(front, datagram) else {
            self.umem.give_back(frame);
            self.send_dropped += 1;
            return Ok(());
        };
        let address = self.umem.for_sending(frame, FRONT - used);
        self.queues[queue].queue(address, used + datagram.len());
        self.asleep[queue] = true;
        Ok(())
    }

    /// Queues a datagram without a copy. `place`: the datagram's range in the frame space, in a buffer of the log.
    /// Returns false if the kernel already sends from this buffer, or if there is no space for the headers.
    pub fn send_logged(
        &mut self,
        queue: usize,
        place: &Range<usize>,
        head: impl FnOnce(&mut [u8], &[u8]) -> Option<usize>,
    ) -> Result<bool, AfXdpError> {
        if !self.reserve(queue)? {
            self.send_dropped += 1;
            return Ok(true);
        }
        let (number, inside) = self.split(place);
        let Some((address, used)) = self.umem.for_sending_kept(number, &inside, head) else {
            return Ok(false);
        };
        self.queues[queue].queue(address, used + place.len());
        self.asleep[queue] = true;
        Ok(true)
    }

    /// Reserves an entry of the TX ring. Returns false if no entry is free.
    fn reserve(&mut self, queue: usize) -> Result<bool, AfXdpError> {
        if self.queues[queue].reserve(1)? == 1 {
            return Ok(true);
        }
        self.flush(queue)?;
        Ok(self.queues[queue].reserve(1)? == 1)
    }

    /// Submits the queued packets, wakes the kernel, and takes sent buffers back.
    pub fn flush_all(&mut self) -> Result<(), AfXdpError> {
        (0..self.queues.len()).try_for_each(|queue| self.flush(queue))
    }

    fn flush(&mut self, queue: usize) -> Result<(), AfXdpError> {
        let socket = &mut self.queues[queue];
        if self.asleep[queue] {
            socket.submit();
            self.asleep[queue] = socket.wake()? == Wake::Again;
        }
        socket.complete(&mut self.umem).map(drop)
    }

    /// Takes the buffers that the log has released, gives the log the buffers that it needs, and gives other free
    /// buffers to the kernel to receive into.
    pub fn exchange(&mut self, log: &mut dyn Buffers) -> Result<(), AfXdpError> {
        while let Some(number) = log.poll_released() {
            self.umem.leave(number);
        }
        while log.wants() {
            let Some(number) = self.umem.surrender() else {
                break;
            };
            log.give_back(number);
        }
        if self.umem.free() <= SEND_RESERVE {
            while let Some(number) = log.lend() {
                self.umem.leave(number);
            }
        }
        for (socket, filled) in self.queues.iter_mut().zip(&mut self.filled) {
            let wanted = self.share.receive.saturating_sub(*filled);
            let wanted = u32::try_from(wanted).unwrap_or(RECEIVE_RING);
            let more = socket.refill(&mut self.umem, wanted, SEND_RESERVE)?;
            *filled += usize::try_from(more).expect("bounded by the ring");
            if more > 0 {
                socket.wake_receive()?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_log_leaves_every_queue_something() {
        let share = |buffers, queues| {
            let share = Share::of(buffers, queues);
            assert!(
                share.never_live < buffers / 2,
                "{buffers} for {queues}: {share:?}"
            );
            (share.receive, share.never_live)
        };
        assert_eq!(share(256, 1), (usize::MAX, 96));
        assert_eq!(share(512, 2), (64, 160));
        assert_eq!(share(16_384, 64), (64, 4128));
        assert_eq!(share(32_768, 8), (1024, 8224));
        assert_eq!(share(1 << 20, 2), (1024, 2080));
    }
}
