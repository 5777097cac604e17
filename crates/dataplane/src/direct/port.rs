//! The port of a device whose packets are received into its log.

use std::cell::Cell;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;

use pmnet_device::{Buffers, Port, PortCounters, Renewal, Taken, Wake};
use pmnet_proto::keys::ClusterKeys;
use pmnet_proto::{FragmentSize, Outbox, Peer, Place, Time};
use pmnet_udp::Stop;
use pmnet_wire::MAGIC;

use super::sockets::{Arrived, BufferSpace, Sockets, SocketsConfig};
use super::{Bound, DirectConfig, DirectError};
use crate::af_xdp::{AfXdpError, Transport};
use crate::relay::Relay;

/// While the device spins, it polls its socket in the kernel's stack only once in this number of turns, because each
/// poll is a system call.
const STACK_EVERY: u32 = 16;
/// Number of entries that one turn may forward in addition to the number that it has appended. Each entry takes one to
/// three microseconds, because the call that sends it runs the driver or the kernel's stack. Packets that arrive
/// meanwhile wait.
const FORWARDS_MAX: usize = 4;
/// Poll token of the first queue. The other queues have the following tokens.
const QUEUES_TOKEN: usize = 16;

/// The AF_XDP sockets of the device, and its socket in the kernel's stack.
pub(super) struct Direct {
    stack: Relay,
    sockets: Sockets,
    arrived: Vec<Arrived>,
    /// Packets that leave through the kernel's stack.
    rest: Outbox,
    /// Time of this turn.
    now: Cell<Time>,
    turn: u32,
    /// Length of the longest datagram that is sent through an AF_XDP socket, in bytes.
    longest: usize,
}

impl Direct {
    /// Binds the sockets that `config` names.
    pub fn open(
        config: &DirectConfig,
        space: BufferSpace,
        stop: &Stop,
    ) -> Result<Direct, DirectError> {
        let stack = Relay::open(&config.relay, stop)?;
        let packets = SocketsConfig {
            interfaces: config.interfaces.clone(),
            listen: config.relay.listen,
            transport: Transport::Udp,
            mode: config.mode,
            magic: Some(MAGIC),
            busy_poll: config.busy_poll,
            part: config.part.clone(),
        };
        let sockets = Sockets::open(&packets, space)?;
        for (at, fd) in sockets.descriptors().enumerate() {
            stack.wake_by(fd.as_raw_fd(), mio::Token(QUEUES_TOKEN + at))?;
        }
        Ok(Direct {
            now: Cell::new(stack.clock().now()),
            stack,
            sockets,
            arrived: Vec::new(),
            rest: Outbox::new(),
            turn: 0,
            longest: FragmentSize::MAX.datagram_bytes(),
        })
    }

    pub const fn stack(&self) -> &Relay {
        &self.stack
    }

    pub const fn stack_mut(&mut self) -> &mut Relay {
        &mut self.stack
    }

    pub fn bound(&self) -> &[Bound] {
        self.sockets.bound()
    }

    pub const fn never_live(&self) -> u64 {
        self.sockets.never_live()
    }

    fn send_one(&mut self, out: &Outbox, place: Place) -> Result<(), AfXdpError> {
        let (now, to) = (self.now.get(), place.to);
        match (place.hops, place.logged) {
            // Foreign datagrams are passed on unchanged, with their remaining hops, through the kernel's stack.
            (Some(hops), _) => self.rest.pass(to, out.bytes(place.range), hops),
            (None, Some(frame)) => {
                let long = frame.len() > self.longest;
                if long || !self.sockets.send_logged(now, to, &frame)? {
                    self.rest.send_raw(to, self.sockets.logged(&frame));
                }
            }
            (None, None) => {
                let bytes = out.bytes(place.range);
                if bytes.len() > self.longest || !self.sockets.send(now, to, bytes)? {
                    self.rest.send_raw(to, bytes);
                }
            }
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
        deliver: &mut dyn FnMut(Peer, u8, &Range<usize>) -> Taken,
    ) -> io::Result<usize> {
        let received = self.sockets.receive(&mut self.arrived);
        let packets = self.arrived.len();
        for one in self.arrived.drain(..) {
            let taken = deliver(one.from(), one.hops(), &one.place);
            self.sockets.done(self.now.get(), one, taken);
        }
        received.map_err(io::Error::other)?;
        Ok(packets)
    }

    fn exchange(&mut self, log: &mut dyn Buffers) -> io::Result<()> {
        self.sockets.exchange(log).map_err(io::Error::other)
    }

    fn send(&mut self, out: &Outbox) -> io::Result<()> {
        // Clients wait for answers, and not for entries. So entries, which are sent from the log, leave last.
        for from_log in [false, true] {
            let these = |place: &Place| place.logged.is_some() == from_log;
            for place in out.places().filter(these) {
                self.send_one(out, place).map_err(io::Error::other)?;
            }
        }
        if !self.rest.is_empty() {
            self.stack.send(&self.rest)?;
            self.rest.clear();
        }
        self.sockets.flush().map_err(io::Error::other)
    }

    fn counters(&self) -> PortCounters {
        let stack = self.stack.counters();
        PortCounters {
            send_dropped: stack.send_dropped + self.sockets.send_dropped(),
            ..stack
        }
    }

    fn forwards_max(&self) -> usize {
        FORWARDS_MAX
    }

    fn paths(&mut self, now: Time, next: Peer, before: Option<Peer>) -> Option<FragmentSize> {
        let size = self.stack.paths(now, next, before)?;
        // No router reports to these sockets that a packet is too long. So long packets are sent through the kernel's
        // stack.
        self.longest = size.min(self.sockets.carries()).datagram_bytes();
        Some(size)
    }

    fn heard_next(&mut self) {
        self.stack.heard_next();
    }

    fn renewal(&mut self) -> Option<Renewal> {
        self.stack.renewal()
    }

    fn lost_log(&mut self, now: Time) -> bool {
        self.stack.lost_log(now)
    }

    fn keys(&mut self) -> Option<ClusterKeys> {
        self.stack.keys()
    }

    fn now(&self) -> Time {
        let now = self.stack.now();
        self.now.set(now);
        now
    }

    fn wait(&mut self, busy: bool, until: Option<Time>) -> io::Result<Wake> {
        let pending = self.sockets.pending();
        if pending {
            self.sockets.flush().map_err(io::Error::other)?;
        }
        self.stack.wait(busy || pending, until)
    }
}
