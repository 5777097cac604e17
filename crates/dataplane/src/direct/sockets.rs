//! Datagrams that are received into packet buffers of a log and sent from there: sockets, and the way to each peer.
//!
//! May not: know what a datagram means.

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

/// Packets taken from a queue at once.
const BURST: usize = 64;

/// Kind of datagrams.
#[derive(Clone, Debug)]
pub struct SocketsConfig {
    /// Network interfaces by which they come.
    pub interfaces: Vec<String>,
    /// To which address and port.
    pub listen: SocketAddr,
    /// Datagrams of UDP, or segments of TCP. In place of a datagram there is the IP packet of a segment then, everywhere.
    pub transport: Transport,
    /// Whether the driver moves packets without a copy.
    pub mode: Mode,
    /// The first two bytes that they must have.
    pub magic: Option<u16>,
    /// Poll the drivers for packets, in place of their interrupts.
    pub busy_poll: Option<BusyPoll>,
    /// Which of the shards of this process they are for.
    pub part: Part,
}

/// A datagram that has arrived. It must be given to [`Sockets::done`].
#[derive(Debug)]
pub struct Arrived {
    /// Its place in the frame space.
    pub place: Range<usize>,
    /// Its buffer.
    frame: Frame,
    came: Came,
    queue: usize,
}

impl Arrived {
    /// Sender.
    #[must_use]
    pub const fn from(&self) -> Peer {
        self.came.from
    }
    /// Returns how many more hops it may make.
    #[must_use]
    pub const fn hops(&self) -> u8 {
        self.came.hops
    }
}

/// The packet buffers to receive into.
#[derive(Debug)]
pub struct BufferSpace {
    memory: FrameMemory,
    buffer_bytes: u32,
    /// Buffers that whoever receives and the log have together.
    own: u64,
}

impl BufferSpace {
    /// Returns all of a log whose image is this memory.
    ///
    /// # Errors
    /// [`DirectError::Unfit`]: its frame space is a ring.
    pub fn of_log(memory: Memory, parameters: &Parameters) -> Result<BufferSpace, DirectError> {
        BufferSpace::beside_a_store(memory, 0, parameters, parameters.buffer_count())
    }

    /// Returns the sockets of a log whose image begins at byte `start` of this memory, in the region of a store. `own` of them are not the
    /// store's.
    ///
    /// # Errors
    /// [`DirectError::Unfit`]: its frame space is a ring.
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
    /// They send to addresses of this family.
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

    /// Buffers that the log must never have itself ([`pmnet_log::Log::leave_buffers`]).
    #[must_use]
    pub const fn never_live(&self) -> u64 {
        self.queues.never_live()
    }

    /// Resources of each socket.
    #[must_use]
    pub fn bound(&self) -> &[Bound] {
        self.queues.bound()
    }

    /// Division of the buffers. Those that the log has, live or not, are kept.
    #[must_use]
    pub fn places(&self) -> Places {
        self.queues.places()
    }

    /// Packets that found no room; whoever waits for them asks again.
    #[must_use]
    pub const fn send_dropped(&self) -> u64 {
        self.queues.send_dropped()
    }

    /// Largest fragments that all interfaces carry at the moment.
    #[must_use]
    pub fn carries(&self) -> FragmentSize {
        let mtus = self.interfaces.iter().filter_map(|name| mtu(name).ok());
        let least = mtus.min().and_then(|mtu| usize::try_from(mtu).ok());
        least.map_or(FragmentSize::MAX, |mtu| {
            FragmentSize::of_mtu(mtu, self.ipv6)
        })
    }

    /// Descriptors that become readable when something arrives.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.queues.sockets().iter().map(AsFd::as_fd)
    }

    /// Takes what has arrived, at most a burst of each queue.
    ///
    /// # Errors
    /// [`AfXdpError`]: the sockets must not be used any more.
    pub fn receive(&mut self, into: &mut Vec<Arrived>) -> Result<(), AfXdpError> {
        for queue in 0..self.queues.sockets().len() {
            let received = self.queues.receive(queue, &mut self.burst);
            for one in self.burst.drain(..) {
                let came = frame::read(self.transport, self.queues.packet(&one));
                // Port 0 cannot be answered. Only a forger writes it.
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

    /// The received packets are done with. Unless it was refused, its sender can be reached the way it came.
    pub fn done(&mut self, now: Time, arrived: Arrived, taken: Taken) {
        if taken != Taken::Refused {
            self.neighbours.learn(now, arrived.queue, &arrived.came);
        }
        self.queues.done(arrived.frame, taken == Taken::Kept);
    }

    /// The sender of what arrived can be reached the way it came, already before it is [done](Sockets::done) with.
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

    /// Function that writes the headers of a datagram before it.
    fn head(&self, way: Way) -> impl Fn(&mut [u8], &[u8]) -> Option<usize> + use<> {
        let transport = self.transport;
        move |front, datagram| match transport {
            Transport::Udp => frame::write(front, &way, datagram),
            Transport::Tcp => frame::write_link(front, &way),
        }
    }

    /// Queues a datagram, copied into a free buffer; it leaves with [`Sockets::flush`]. Returns false if the link
    /// address of the peer is unknown because it has sent nothing lately.
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

    /// Returns the same for a datagram at `place` of the frame space, in a buffer of the log: it is sent from there.
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
            // It is being sent already: this is a repetition.
            let copy = self.queues.logged(place).to_vec();
            self.queues.send(neighbour.queue, &copy, &head)?;
        }
        Ok(true)
    }

    /// Returns a datagram in a buffer of the log.
    #[must_use]
    pub fn logged(&self, place: &Range<usize>) -> &[u8] {
        self.queues.logged(place)
    }

    /// Hands over what was queued, and takes back what was sent.
    ///
    /// # Errors
    /// [`AfXdpError`].
    pub fn flush(&mut self) -> Result<(), AfXdpError> {
        self.queues.flush_all()
    }

    /// Returns whether [`Sockets::flush`] could not hand over everything.
    #[must_use]
    pub fn pending(&self) -> bool {
        self.queues.pending()
    }

    /// Takes over what the log has released, gives it what it wants, and receives into the rest: once a turn.
    ///
    /// # Errors
    /// [`AfXdpError`].
    pub fn exchange(&mut self, log: &mut dyn Buffers) -> Result<(), AfXdpError> {
        self.queues.exchange(log)
    }
}
