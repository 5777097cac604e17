//! `trait Port`: where a device's bursts come from and go to, and the loop that serves one.

use crate::node::{DeviceError, DeviceNode};
use pmnet_log::{Log, Media};
use pmnet_proto::keys::ClusterKeys;
use pmnet_proto::time::Nanos;
use pmnet_proto::{FragmentSize, Outbox, Peer, Time};
use std::io;
use std::ops::Range;
use std::os::fd::RawFd;

/// Reason why [`Port::wait`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// Something may have arrived, or the time has come.
    Work,
    /// The device is asked to stop.
    Stop,
}

/// The lease store gave or renewed the device's lease ([`DeviceNode::renewed`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renewal {
    /// Epoch of the lease.
    pub epoch: u32,
    /// Time of the port's clock before the agent asked.
    pub sent_at: Time,
    /// Length of the lease.
    pub length: Nanos,
}

/// Datagrams that a port could not move as it should, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Datagrams that the system had no room for; the protocol sends them again.
    pub send_dropped: u64,
    /// Errors reported for earlier datagrams (an unreachable next hop, mostly).
    pub send_errors: u64,
    /// Datagrams from port 0, which nobody can answer.
    pub from_nowhere: u64,
    /// Datagrams that were longer than their path carries, and were sent as IP fragments.
    pub fragmented: u64,
}

/// A turn of [`serve`], for its observer. Both times are read for the turn itself.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    /// Time before the turn received.
    pub began: Time,
    /// Time after it had received. What became durable by then was acknowledged in this turn.
    pub now: Time,
    /// Events of the port so far.
    pub port: PortCounters,
}

/// Fate of a packet in a lent buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It was dropped: its sender may be forged.
    Refused,
    /// It was taken in, and is needed no longer.
    Heard,
    /// It was taken in, and its buffer belongs to the log now.
    Kept,
}

/// The packet buffers of a device's log (`docs/spec/ordered-log.md` §11), for the port that moves packets in them.
pub trait Buffers {
    /// Returns a buffer to receive into or to send from. `None`: the log needs the rest.
    fn lend(&mut self) -> Option<u32>;
    /// A packet is stored into a lent buffer, at this place of the frame space: for networks in user space.
    fn deposit(&mut self, at: usize, packet: &[u8]);
    /// A buffer that was lent or released goes back.
    fn give_back(&mut self, number: u32);
    /// Returns the next buffer that the log no longer needs; it counts as lent.
    fn poll_released(&mut self) -> Option<u32>;
    /// The log has fewer buffers for what it copies than it should.
    fn wants(&self) -> bool;
}

impl<M: Media> Buffers for Log<M> {
    fn lend(&mut self) -> Option<u32> {
        self.lend_buffer()
    }
    fn deposit(&mut self, at: usize, packet: &[u8]) {
        Log::deposit(self, at, packet);
    }
    fn give_back(&mut self, number: u32) {
        self.give_back_buffer(number);
    }
    fn poll_released(&mut self) -> Option<u32> {
        Log::poll_released(self)
    }
    fn wants(&self) -> bool {
        self.wants_buffers()
    }
}

/// A device's side of the network: UDP relay, AF_XDP, a simulated link.
pub trait Port {
    /// Receives one burst of at most a bounded number of datagrams without blocking. Returns their
    /// number. Each comes with the number of hops that it may still make, its own arrival being none (time to live of IPv4,
    /// hop limit of IPv6).
    ///
    /// # Errors
    /// Errors that make the port unusable.
    fn receive(&mut self, deliver: &mut dyn FnMut(Peer, u8, &[u8])) -> io::Result<usize>;

    /// Receives one burst of packets that lie in lent buffers of the log: sender, hops as above, and place in the frame space. `deliver` says
    /// the fate of each. A log without packet buffers has none.
    ///
    /// # Errors
    /// Errors that make the port unusable.
    fn receive_in_place(
        &mut self,
        deliver: &mut dyn FnMut(Peer, u8, &Range<usize>) -> Taken,
    ) -> io::Result<usize> {
        let _none = deliver;
        Ok(0)
    }

    /// Takes over what the log has released, and gives it what it wants: once a turn, after everything else.
    ///
    /// # Errors
    /// Errors that make the port unusable.
    fn exchange(&mut self, log: &mut dyn Buffers) -> io::Result<()> {
        let _nothing = log;
        Ok(())
    }

    /// Tells the address of the hop before, if it is known, before each burst is sent. Only a port that does not speak to
    /// hops as it does to clients needs that.
    fn hop_before(&mut self, peer: Option<Peer>) {
        let _nothing = peer;
    }

    /// Sends a burst, and foreign datagrams with the number of hops given with them. A datagram that cannot be sent is dropped and
    /// counted: the protocol sends it again.
    ///
    /// # Errors
    /// Errors that make the port unusable.
    fn send(&mut self, out: &Outbox) -> io::Result<()>;

    /// Tells that the next hop was heard of in this turn ([`DeviceNode::heard_next`]).
    fn heard_next(&mut self) {}

    /// Returns the last renewal of this device's lease, if it is new since the last turn.
    fn renewal(&mut self) -> Option<Renewal> {
        None
    }

    /// Returns the cluster's keys, if there are others since the last turn.
    fn keys(&mut self) -> Option<ClusterKeys> {
        None
    }

    /// Returns the events so far.
    fn counters(&self) -> PortCounters {
        PortCounters::default()
    }

    /// Returns how many entries are sent on in one turn, at most, besides as many as the turn has appended; the rest follows in the next
    /// turns. Packets that come meanwhile wait for the end of the turn, so a port that needs time for each packet gives a small number.
    fn forwards_max(&self) -> usize {
        usize::MAX
    }

    /// Largest fragments that the paths to the next hop and to the one before carry, if the port has looked in this turn. It need not be looked at in each.
    fn paths(&mut self, now: Time, next: Peer, before: Option<Peer>) -> Option<FragmentSize> {
        let _unknown = (now, next, before);
        None
    }

    /// Returns the time, read before and behind what a turn receives.
    fn now(&self) -> Time;

    /// Waits until something arrives, a persist completes, or `until`; may spin before it blocks.
    /// `busy` says whether the last turn did something.
    ///
    /// # Errors
    /// Errors that make the port unusable.
    fn wait(&mut self, busy: bool, until: Option<Time>) -> io::Result<Wake>;
}

/// The machines that a port serves: a device, alone or with more beside it.
pub trait Served: Sized {
    /// The medium of the device's log.
    type Medium: Media;

    /// Returns the device.
    fn device(&self) -> &DeviceNode<Self::Medium>;

    /// Returns the device.
    fn device_mut(&mut self) -> &mut DeviceNode<Self::Medium>;

    /// As [`DeviceNode::rekey`], for all that is beside the device as well.
    ///
    /// # Errors
    /// As there.
    fn rekey(&mut self, now: Time, keys: ClusterKeys) -> Result<(), DeviceError> {
        self.device_mut().rekey(now, keys)
    }

    /// A descriptor that can be read when there is something to do besides what the port brings. A wait of the port ends then, too.
    fn wakeup_fd(&self) -> Option<RawFd> {
        None
    }

    /// As [`DeviceNode::receive_with_hops`].
    ///
    /// # Errors
    /// As there.
    fn receive_with_hops(
        &mut self,
        now: Time,
        from: Peer,
        hops: u8,
        datagram: &[u8],
    ) -> Result<(), DeviceError> {
        self.device_mut()
            .receive_with_hops(now, from, hops, datagram)
    }

    /// As [`DeviceNode::receive_in_place`].
    ///
    /// # Errors
    /// As there.
    fn receive_in_place(
        &mut self,
        now: Time,
        from: Peer,
        hops: u8,
        frame: &Range<usize>,
    ) -> Result<Taken, DeviceError> {
        self.device_mut().receive_in_place(now, from, hops, frame)
    }

    /// As [`DeviceNode::finish`].
    ///
    /// # Errors
    /// As there.
    fn finish(&mut self, now: Time) -> Result<bool, DeviceError> {
        self.device_mut().finish(now)
    }

    /// Sends what may leave last in this turn. Returns true if something was done.
    ///
    /// # Errors
    /// [`DeviceError`]: the device ends.
    fn work(&mut self, now: Time) -> Result<bool, DeviceError> {
        let _nothing = now;
        Ok(false)
    }

    /// As [`Port::exchange`].
    ///
    /// # Errors
    /// As there.
    fn exchange(&mut self, port: &mut dyn Port) -> io::Result<()> {
        port.exchange(self.device_mut().buffers())
    }

    /// As [`DeviceNode::rest`].
    ///
    /// # Errors
    /// As there.
    fn rest(&mut self, now: Time) -> Result<Option<Time>, DeviceError> {
        self.device_mut().rest(now)
    }

    /// As [`DeviceNode::close`].
    ///
    /// # Errors
    /// As there.
    fn close(self) -> Result<(), DeviceError>;
}

impl<M: Media> Served for DeviceNode<M> {
    type Medium = M;
    fn device(&self) -> &DeviceNode<M> {
        self
    }
    fn device_mut(&mut self) -> &mut DeviceNode<M> {
        self
    }
    fn close(self) -> Result<(), DeviceError> {
        DeviceNode::close(self)
    }
}

/// Serves a port until it says stop; then closes the log cleanly. `observe` is called once a turn, after all that the turn does.
///
/// # Errors
/// [`DeviceError`]: the port failed, the log failed, or the shard must stop.
pub fn serve<N: Served>(
    mut node: N,
    port: &mut impl Port,
    mut observe: impl FnMut(&N, &Turn),
) -> Result<(), DeviceError> {
    node.device_mut().forward_at_most(port.forwards_max());
    loop {
        let began = port.now();
        let now = began;
        if let Some(keys) = port.keys() {
            node.rekey(now, keys)?;
        }
        let mut failed = Ok(());
        let received = port.receive(&mut |from, hops, datagram| {
            if failed.is_ok() {
                failed = node.receive_with_hops(now, from, hops, datagram);
            }
        })?;
        let in_place = port.receive_in_place(&mut |from, hops, frame| {
            if failed.is_err() {
                return Taken::Refused;
            }
            let taken = node.receive_in_place(now, from, hops, frame);
            taken.unwrap_or_else(|error| {
                failed = Err(error);
                Taken::Refused
            })
        })?;
        failed?;
        // A process that was stopped meanwhile may have received what came long after `now`: what a lease allows is judged
        // behind that.
        if let Some(renewal) = port.renewal() {
            node.device_mut()
                .renewed(renewal.epoch, renewal.sent_at, renewal.length);
        }
        if node.device_mut().heard_next() {
            port.heard_next();
        }
        let now = port.now();
        let (next, before) = node.device().machine().hops();
        if let Some(size) = port.paths(now, next, before) {
            node.device_mut().set_path(now, size);
        }
        let mut worked = node.finish(now)?;
        if !node.device().out().is_empty() {
            port.hop_before(node.device().machine().hop_before());
            port.send(node.device().out())?;
            node.device_mut().sent();
        }
        worked |= node.work(now)?;
        node.exchange(port)?;
        observe(
            &node,
            &Turn {
                began,
                now,
                port: port.counters(),
            },
        );
        let until = node.rest(now)?;
        match port.wait(received + in_place > 0 || worked, until)? {
            Wake::Work => {}
            Wake::Stop => return node.close(),
        }
    }
}
