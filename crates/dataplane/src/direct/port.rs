//! The port of a device whose packets are received into its log.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::AsRawFd;

use pmnet_device::{Buffers, Port, Wake};
use pmnet_proto::{Outbox, Peer, Place, Time};
use pmnet_udp::Stop;

use super::frame::{self, Way};
use super::neighbours::{Neighbour, Neighbours};
use super::queues::{FrameMemory, Queues};
use super::{Bound, DirectConfig, DirectError};
use crate::af_xdp::{AfXdpError, Received};
use crate::relay::Relay;

/// Packets taken from a queue at once.
const BURST: usize = 64;
/// While the device spins, the socket in the kernel's stack is looked at once in so many turns: that is a system call.
const STACK_EVERY: u32 = 16;
/// Token of the first queue.
const QUEUES_TOKEN: usize = 16;

/// Sockets past the kernel's stack, and one in it.
pub(super) struct Direct {
    stack: Relay,
    queues: Queues,
    neighbours: Neighbours,
    listen: SocketAddr,
    burst: Vec<Received>,
    /// What goes by the kernel's stack.
    rest: Outbox,
    /// Time of this turn.
    now: Cell<Time>,
    turn: u32,
}

impl Direct {
    /// Binds to all that `config` names.
    pub fn open(
        config: &DirectConfig,
        memory: FrameMemory,
        buffer_bytes: u32,
        stop: &Stop,
    ) -> Result<Direct, DirectError> {
        let stack = Relay::open(&config.relay, stop)?;
        let listen = config.relay.listen;
        let interfaces = &config.interfaces;
        let queues = Queues::open(interfaces, listen, config.mode, memory, buffer_bytes)?;
        for (at, socket) in queues.sockets().iter().enumerate() {
            stack.wake_by(socket.as_raw_fd(), mio::Token(QUEUES_TOKEN + at))?;
        }
        Ok(Direct {
            now: Cell::new(stack.clock().now()),
            stack,
            queues,
            neighbours: Neighbours::default(),
            listen,
            burst: Vec::with_capacity(BURST),
            rest: Outbox::new(),
            turn: 0,
        })
    }

    pub const fn stack(&self) -> &Relay {
        &self.stack
    }

    pub fn bound(&self) -> &[Bound] {
        self.queues.bound()
    }

    pub const fn send_dropped(&self) -> u64 {
        self.queues.send_dropped()
    }

    fn way(&self, to: Peer, neighbour: &Neighbour) -> Way {
        Way {
            from: SocketAddr::new(neighbour.own, self.listen.port()),
            to,
            mac_from: neighbour.own_mac,
            mac_to: neighbour.mac,
        }
    }

    fn send_one(&mut self, out: &Outbox, place: Place) -> Result<(), AfXdpError> {
        let to = place.to;
        let neighbour = match place.hops {
            // Foreign datagrams go on as they came: with their hops, by whatever way the system knows.
            Some(hops) => {
                self.rest.pass(to, out.bytes(place.range), hops);
                return Ok(());
            }
            None => self.neighbours.find(self.now.get(), to.ip()),
        };
        let Some(neighbour) = neighbour else {
            match place.logged {
                Some(frame) => self.rest.send_raw(to, self.queues.logged(&frame)),
                None => self.rest.send_raw(to, out.bytes(place.range)),
            }
            return Ok(());
        };
        let (queue, way) = (neighbour.queue, self.way(to, &neighbour));
        let head = |front: &mut [u8], datagram: &[u8]| frame::write(front, &way, datagram);
        let Some(frame) = place.logged else {
            return self.queues.send(queue, out.bytes(place.range), head);
        };
        if !self.queues.send_logged(queue, &frame, head)? {
            // It is being sent already: this is a repetition.
            let copy = self.queues.logged(&frame).to_vec();
            self.queues.send(queue, &copy, head)?;
        }
        Ok(())
    }
}

impl Port for Direct {
    fn receive(&mut self, deliver: &mut dyn FnMut(Peer, u8, &[u8])) -> io::Result<usize> {
        self.turn = self.turn.wrapping_add(1);
        if !self.stack.asked() && !self.turn.is_multiple_of(STACK_EVERY) {
            return Ok(0);
        }
        self.stack.receive(deliver)
    }

    fn receive_in_place(
        &mut self,
        deliver: &mut dyn FnMut(Peer, u8, &Range<usize>) -> bool,
    ) -> io::Result<usize> {
        let mut packets = 0;
        for queue in 0..self.queues.sockets().len() {
            let received = self.queues.receive(queue, &mut self.burst);
            packets += self.burst.len();
            for one in self.burst.drain(..) {
                let came = frame::read(self.queues.packet(&one));
                // Port 0 cannot be answered. Only a forger writes it.
                let came = came.filter(|came| came.from.port() != 0);
                let kept = came.is_some_and(|came| {
                    self.neighbours.learn(self.now.get(), queue, &came);
                    let start = self.queues.place(&one);
                    let place = start + came.datagram.start..start + came.datagram.end;
                    deliver(came.from, came.hops, &place)
                });
                self.queues.done(one.frame, kept);
            }
            received.map_err(io::Error::other)?;
        }
        Ok(packets)
    }

    fn exchange(&mut self, log: &mut dyn Buffers) -> io::Result<()> {
        self.queues.exchange(log).map_err(io::Error::other)
    }

    fn send(&mut self, out: &Outbox) -> io::Result<()> {
        for place in out.places() {
            self.send_one(out, place).map_err(io::Error::other)?;
        }
        if !self.rest.is_empty() {
            self.stack.send(&self.rest)?;
            self.rest.clear();
        }
        self.queues.flush_all().map_err(io::Error::other)
    }

    fn now(&self) -> Time {
        let now = self.stack.now();
        self.now.set(now);
        now
    }

    fn wait(&mut self, busy: bool, until: Option<Time>) -> io::Result<Wake> {
        let pending = self.queues.pending();
        if pending {
            self.queues.flush_all().map_err(io::Error::other)?;
        }
        self.stack.wait(busy || pending, until)
    }
}
