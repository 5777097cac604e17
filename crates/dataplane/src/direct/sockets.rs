//! Receives datagrams into packet buffers of a log, and sends from these buffers: the sockets, and the path to each
//! peer.
//!
//! This module must not interpret a datagram.

use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};

use pmnet_device::{Buffers, Taken};
use pmnet_log::{FrameSpace, Parameters};
use pmnet_media::Memory;
use pmnet_proto::{FragmentSize, Peer, Time};

use super::frame::{self, Came, Way};
use super::neighbours::{Neighbour, Neighbours};
use super::queues::{FrameMemory, Queues};
use super::{Bound, DirectError, Mode, Part, fits};
use crate::af_xdp::{AfXdpError, BusyPoll, Frame, Places, Received, Transport};
use crate::interface::mtu;

/// Maximum number of packets that are taken from a queue at once.
const BURST: usize = 64;

/// Settings of the sockets, and of the datagrams that they receive.
#[derive(Clone, Debug)]
pub struct SocketsConfig {
    /// Network interfaces through which datagrams arrive.
    pub interfaces: Vec<String>,
    /// The address and port to which peers send datagrams.
    pub listen: SocketAddr,
    /// UDP datagrams or TCP segments. With TCP, the functions below handle the IP packet of a segment instead of a
    /// datagram.
    pub transport: Transport,
    /// Whether the driver moves packets without a copy.
    pub mode: Mode,
    /// The first two bytes that datagrams must have.
    pub magic: Option<u16>,
    /// Settings with which the drivers are polled for packets, instead of using interrupts.
    pub busy_poll: Option<BusyPoll>,
    /// The shard's part among the shards of this process.
    pub part: Part,
}

/// A datagram that has arrived. Each datagram must be given to [`Sockets::done`].
#[derive(Debug)]
pub struct Arrived {
    /// The datagram's range in the frame space.
    pub place: Range<usize>,
    /// The datagram's buffer.
    frame: Frame,
    came: Came,
    queue: usize,
}

impl Arrived {
    /// Returns the sender's address.
    #[must_use]
    pub const fn from(&self) -> Peer {
        self.came.from
    }
    /// Returns the number of remaining hops.
    #[must_use]
    pub const fn hops(&self) -> u8 {
        self.came.hops
    }
}

/// The packet buffers into which the sockets receive.
#[derive(Debug)]
pub struct BufferSpace {
    memory: FrameMemory,
    buffer_bytes: u32,
    /// Number of buffers that belong to the sockets and the log, and not to the store.
    own: u64,
}

impl BufferSpace {
    /// Returns all buffers of a log whose image is this memory.
    ///
    /// # Errors
    /// [`DirectError::Unfit`]: the log's frame space is a ring.
    pub fn of_log(memory: Memory, parameters: &Parameters) -> Result<BufferSpace, DirectError> {
        BufferSpace::beside_a_store(memory, 0, parameters, parameters.buffer_count())
    }

    /// Returns the buffers of a log in the region of a store. The log's image begins at byte `start` of this memory.
    /// `own`: number of buffers that do not belong to the store.
    ///
    /// # Errors
    /// [`DirectError::Unfit`]: the log's frame space is a ring.
    ///
    /// # Panics
    /// The log is not inside the memory.
    pub fn beside_a_store(
        memory: Memory,
        start: usize,
        parameters: &Parameters,
        own: u64,
    ) -> Result<BufferSpace, DirectError> {
        let FrameSpace::Buffers(buffer_bytes) = parameters.space else {
            return Err(DirectError::Unfit(
                "PM1443 the frame space of this log is a ring, and this mode needs packet buffers: make a new log, or use --mode relay"
                    .into(),
            ));
        };
        let inside = parameters.frame_space();
        let space = start + inside.start..start + inside.end;
        Ok(BufferSpace {
            memory: FrameMemory::new(memory, space),
            buffer_bytes,
            own,
        })
    }
}

/// The sockets of all queues that a shard has of some interfaces.
pub struct Sockets {
    queues: Queues,
    neighbours: Neighbours,
    port: u16,
    /// The sockets send to addresses of this family.
    ipv6: bool,
    interfaces: Vec<String>,
    transport: Transport,
    burst: Vec<Received>,
}

impl Sockets {
    /// Binds to every queue that the shard has of every interface.
    ///
    /// # Errors
    /// [`DirectError`].
    pub fn open(config: &SocketsConfig, space: BufferSpace) -> Result<Sockets, DirectError> {
        let BufferSpace {
            memory,
            buffer_bytes,
            own: buffers,
        } = space;
        let listen = config.listen;
        if listen.ip().is_unspecified() || listen.port() == 0 {
            return Err(DirectError::Unfit(format!(
                "{listen}: the address and port to which clients send are needed"
            )));
        }
        for interface in &config.interfaces {
            fits(interface, buffer_bytes)?;
        }
        let needed = config.part.buffers_needed(&config.interfaces);
        if buffers < needed {
            return Err(DirectError::Unfit(format!(
                "PM1444 this log has {buffers} packet buffers of {buffer_bytes} bytes, and the queues of {} need {needed}: make a larger \
                 one",
                config.interfaces.join(", ")
            )));
        }
        Ok(Sockets {
            queues: Queues::open(config, memory, buffer_bytes, buffers)?,
            neighbours: Neighbours::default(),
            port: listen.port(),
            ipv6: listen.is_ipv6(),
            interfaces: config.interfaces.clone(),
            transport: config.transport,
            burst: Vec::with_capacity(BURST),
        })
    }

    /// Returns the number of buffers that the log must not use ([`pmnet_log::Log::leave_buffers`]).
    #[must_use]
    pub const fn never_live(&self) -> u64 {
        self.queues.never_live()
    }

    /// Returns interface, queue and mode of each socket.
    #[must_use]
    pub fn bound(&self) -> &[Bound] {
        self.queues.bound()
    }

    /// Returns the number of buffers of each owner. All buffers of the log, live or not, count as kept.
    #[must_use]
    pub fn places(&self) -> Places {
        self.queues.places()
    }

    /// Returns the number of packets for which there was no free buffer or ring entry. The protocol sends these packets
    /// again.
    #[must_use]
    pub const fn send_dropped(&self) -> u64 {
        self.queues.send_dropped()
    }

    /// Returns the largest size of fragments that all interfaces carry at the moment.
    #[must_use]
    pub fn carries(&self) -> FragmentSize {
        let mtus = self.interfaces.iter().filter_map(|name| mtu(name).ok());
        let least = mtus.min().and_then(|mtu| usize::try_from(mtu).ok());
        least.map_or(FragmentSize::MAX, |mtu| {
            FragmentSize::of_mtu(mtu, self.ipv6)
        })
    }

    /// Returns descriptors that become readable when a packet arrives.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.queues.sockets().iter().map(AsFd::as_fd)
    }

    /// Takes the datagrams that have arrived, at most one burst of each queue.
    ///
    /// # Errors
    /// [`AfXdpError`]: the sockets must not be used any more.
    pub fn receive(&mut self, into: &mut Vec<Arrived>) -> Result<(), AfXdpError> {
        for queue in 0..self.queues.sockets().len() {
            let received = self.queues.receive(queue, &mut self.burst);
            for one in self.burst.drain(..) {
                let came = frame::read(self.transport, self.queues.packet(&one));
                // No answer can be sent to port 0, and only a forger sends from it.
                let Some(came) = came.filter(|came| came.from.port() != 0) else {
                    self.queues.done(one.frame, false);
                    continue;
                };
                let start = self.queues.place(&one);
                into.push(Arrived {
                    place: start + came.datagram.start..start + came.datagram.end,
                    frame: one.frame,
                    came,
                    queue,
                });
            }
            received?;
        }
        Ok(())
    }

    /// Ends the use of a received datagram. If the datagram said something new, packets to its sender are from now on
    /// sent by the path by which the datagram came.
    pub fn done(&mut self, now: Time, arrived: Arrived, taken: Taken) {
        match taken {
            Taken::Refused => (),
            Taken::NothingNew => self.neighbours.confirm(now, arrived.queue, &arrived.came),
            Taken::Heard | Taken::Kept => self.neighbours.learn(now, arrived.queue, &arrived.came),
        }
        self.queues.done(arrived.frame, taken == Taken::Kept);
    }

    /// Learns the path to the sender of a datagram, before [`Sockets::done`] is called for it.
    pub fn heard(&mut self, now: Time, arrived: &Arrived) {
        self.neighbours.learn(now, arrived.queue, &arrived.came);
    }

    fn way(&self, to: Peer, neighbour: &Neighbour) -> Way {
        Way {
            from: SocketAddr::new(neighbour.own, self.port),
            to,
            mac_from: neighbour.own_mac,
            mac_to: neighbour.mac,
        }
    }

    /// Returns the function that writes the headers of a datagram before it.
    fn head(&self, way: Way) -> impl Fn(&mut [u8], &[u8]) -> Option<usize> + use<> {
        let transport = self.transport;
        move |front, datagram| match transport {
            Transport::Udp => frame::write(front, &way, datagram),
            Transport::Tcp => frame::write_link(front, &way),
        }
    }

    /// Copies a datagram into a free buffer, and queues it. [`Sockets::flush`] sends it. Returns false if the peer's
    /// link address is unknown, because the peer has sent nothing lately.
    ///
    /// # Errors
    /// [`AfXdpError`].
    pub fn send(&mut self, now: Time, to: Peer, datagram: &[u8]) -> Result<bool, AfXdpError> {
        let Some(neighbour) = self.neighbours.find(now, to) else {
            return Ok(false);
        };
        let head = self.head(self.way(to, &neighbour));
        self.queues.send(neighbour.queue, datagram, head)?;
        Ok(true)
    }

    /// Queues a datagram without a copy. `place`: the datagram's range in the frame space, in a buffer of the log.
    /// Returns false under the conditions of [`Sockets::send`].
    ///
    /// # Errors
    /// [`AfXdpError`].
    pub fn send_logged(
        &mut self,
        now: Time,
        to: Peer,
        place: &Range<usize>,
    ) -> Result<bool, AfXdpError> {
        let Some(neighbour) = self.neighbours.find(now, to) else {
            return Ok(false);
        };
        let head = self.head(self.way(to, &neighbour));
        if !self.queues.send_logged(neighbour.queue, place, &head)? {
            // The datagram is a repetition, and the kernel already sends from its buffer. So the datagram is copied.
            let copy = self.queues.logged(place).to_vec();
            self.queues.send(neighbour.queue, &copy, &head)?;
        }
        Ok(true)
    }

    /// Returns the bytes of a datagram in a buffer of the log.
    #[must_use]
    pub fn logged(&self, place: &Range<usize>) -> &[u8] {
        self.queues.logged(place)
    }

    /// Submits the queued datagrams, and takes sent buffers back.
    ///
    /// # Errors
    /// [`AfXdpError`].
    pub fn flush(&mut self) -> Result<(), AfXdpError> {
        self.queues.flush_all()
    }

    /// Returns whether [`Sockets::flush`] must be called again, because the kernel could not take all datagrams.
    #[must_use]
    pub fn pending(&self) -> bool {
        self.queues.pending()
    }

    /// Takes the buffers that the log has released, gives the log the buffers that it needs, and receives into the
    /// other free buffers. Must be called once a turn.
    ///
    /// # Errors
    /// [`AfXdpError`].
    pub fn exchange(&mut self, log: &mut dyn Buffers) -> Result<(), AfXdpError> {
        self.queues.exchange(log)
    }
}
