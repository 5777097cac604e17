//! `trait Port`: the interface through which a device receives and sends its bursts, and the loop that serves a device.

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
    /// A datagram may have arrived, a persist may be complete, or the given time has come.
    Work,
    /// The device must stop.
    Stop,
}

/// The lease store gave or renewed the device's lease ([`DeviceNode::renewed`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renewal {
    /// Epoch of the lease.
    pub epoch: u32,
    /// Time by the port's clock just before the agent sent its request.
    pub sent_at: Time,
    /// Length of the lease.
    pub length: Nanos,
}

/// Counters of datagrams that a port could not send or receive normally.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Datagrams that were dropped because the operating system's send queue had no space. The protocol sends them
    /// again.
    pub send_dropped: u64,
    /// Errors that the system has reported for earlier datagrams, mostly because of an unreachable next hop.
    pub send_errors: u64,
    /// Datagrams from port 0, which cannot be answered.
    pub from_nowhere: u64,
    /// Datagrams that were longer than their path carries, and were sent as IP fragments.
    pub fragmented: u64,
}

/// One turn of [`serve`], for its observer. Both times are read in each turn.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    /// Time before the turn received its datagrams.
    pub began: Time,
    /// Time after the turn received its datagrams. Entries that were durable at this time are acknowledged in this
    /// turn.
    pub now: Time,
    /// Counters of the port so far.
    pub port: PortCounters,
}

/// The result of processing a packet in a lent buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// The packet was dropped. Its sender may be forged.
    Refused,
    /// The packet was processed, and its buffer is no longer needed. The packet said nothing new, so it may be a copy
    /// from another host. So it does not prove its sender's address.
    NothingNew,
    /// The packet was processed, and its buffer is no longer needed.
    Heard,
    /// The packet was processed, and its buffer now belongs to the log.
    Kept,
}

/// The packet buffers of a device's log (`docs/spec/ordered-log.md` §11), for the port that moves packets in them.
pub trait Buffers {
    /// Lends a buffer to receive into or to send from. `None`: the log needs all remaining buffers.
    fn lend(&mut self) -> Option<u32>;
    /// Stores a packet into a lent buffer at this offset of the frame space. Only simulated networks in user space need
    /// this.
    fn deposit(&mut self, at: usize, packet: &[u8]);
    /// Gives back a buffer that was lent or released.
    fn give_back(&mut self, number: u32);
    /// Returns the next buffer that the log no longer needs. The buffer counts as lent.
    fn poll_released(&mut self) -> Option<u32>;
    /// Returns whether the log has too few buffers for entries that it copies.
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

/// The interface through which a device receives and sends its bursts: UDP sockets, AF_XDP, or a simulated network.
pub trait Port {
    /// Receives one burst of a bounded number of datagrams without blocking, and returns their number. Each datagram
    /// comes with its remaining hop limit (time to live of IPv4, hop limit of IPv6), as it was on arrival.
    ///
    /// # Errors
    /// Errors that make the port unusable.
    fn receive(&mut self, deliver: &mut dyn FnMut(Peer, u8, &[u8])) -> io::Result<usize>;

    /// Receives one burst of packets that lie in lent buffers of the log. `deliver` gets the sender, the remaining hop
    /// limit and the range in the frame space, and returns what the device did with the packet. A port without packet
    /// buffers receives no such packets.
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

    /// Takes over the buffers that the log has released, and gives the log the buffers that it wants. The loop calls
    /// this once a turn, at its end.
    ///
    /// # Errors
    /// Errors that make the port unusable.
    fn exchange(&mut self, log: &mut dyn Buffers) -> io::Result<()> {
        let _nothing = log;
        Ok(())
    }

    /// Tells the port the address of the previous hop, if it is known. The loop calls this before each burst is sent.
    /// Only a port that sends to hops and to clients by different means needs it.
    fn hop_before(&mut self, peer: Option<Peer>) {
        let _nothing = peer;
    }

    /// Sends a burst. Foreign datagrams are sent with the hop limit that the outbox states for them. A datagram that
    /// cannot be sent is dropped and counted: the protocol sends it again.
    ///
    /// # Errors
    /// Errors that make the port unusable.
    fn send(&mut self, out: &Outbox) -> io::Result<()>;

    /// Tells the port that a packet has come from the next hop in this turn ([`DeviceNode::heard_next`]).
    fn heard_next(&mut self) {}

    /// Returns the last renewal of this device's lease, if it is new since the last turn.
    fn renewal(&mut self) -> Option<Renewal> {
        None
    }

    /// Returns true once if the log's file is gone ([`DeviceNode::endanger`]). A port need not look in every turn.
    fn lost_log(&mut self, now: Time) -> bool {
        let _now = now;
        false
    }

    /// Returns the cluster's keys, if they have changed since the last turn.
    fn keys(&mut self) -> Option<ClusterKeys> {
        None
    }

    /// Returns the counters so far.
    fn counters(&self) -> PortCounters {
        PortCounters::default()
    }

    /// Returns the number of entries that one turn may forward in addition to the number of entries that it has
    /// appended. The next turns forward the rest. Packets that arrive during a turn wait for its end, so a port that
    /// needs much time for each packet returns a small number.
    fn forwards_max(&self) -> usize {
        usize::MAX
    }

    /// Returns the largest fragments that the paths to the next hop and to the previous hop carry, if the port has
    /// measured the paths in this turn. A port need not measure in every turn.
    fn paths(&mut self, now: Time, next: Peer, before: Option<Peer>) -> Option<FragmentSize> {
        let _unknown = (now, next, before);
        None
    }

    /// Returns the current time. The loop reads it before and after a turn's reception.
    fn now(&self) -> Time;

    /// Waits until a datagram arrives, a persist completes, or the time `until`. May spin before it blocks. `busy`: the
    /// last turn has done something.
    ///
    /// # Errors
    /// Errors that make the port unusable.
    fn wait(&mut self, busy: bool, until: Option<Time>) -> io::Result<Wake>;
}

/// The machines that [`serve`] serves through a port: a device, alone or together with others.
pub trait Served: Sized {
    /// The medium of the device's log.
    type Medium: Media;

    /// Returns the device.
    fn device(&self) -> &DeviceNode<Self::Medium>;

    /// Returns the device for changes.
    fn device_mut(&mut self) -> &mut DeviceNode<Self::Medium>;

    /// Sets other keys of the cluster ([`DeviceNode::rekey`]), also in the machines beside the device.
    ///
    /// # Errors
    /// The errors of [`DeviceNode::rekey`].
    fn rekey(&mut self, now: Time, keys: ClusterKeys) -> Result<(), DeviceError> {
        self.device_mut().rekey(now, keys)
    }

    /// Returns a descriptor that becomes readable when there is work that does not come from the port. It also ends the
    /// port's wait.
    fn wakeup_fd(&self) -> Option<RawFd> {
        None
    }

    /// Processes one datagram of a burst ([`DeviceNode::receive_with_hops`]).
    ///
    /// # Errors
    /// The errors of [`DeviceNode::receive_with_hops`].
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

    /// Processes one packet in a lent buffer ([`DeviceNode::receive_in_place`]).
    ///
    /// # Errors
    /// The errors of [`DeviceNode::receive_in_place`].
    fn receive_in_place(
        &mut self,
        now: Time,
        from: Peer,
        hops: u8,
        frame: &Range<usize>,
    ) -> Result<Taken, DeviceError> {
        self.device_mut().receive_in_place(now, from, hops, frame)
    }

    /// Ends a burst ([`DeviceNode::finish`]).
    ///
    /// # Errors
    /// The errors of [`DeviceNode::finish`].
    fn finish(&mut self, now: Time) -> Result<bool, DeviceError> {
        self.device_mut().finish(now)
    }

    /// Does work that may come at the end of the turn, after the device's packets are sent. Returns true if something
    /// was done.
    ///
    /// # Errors
    /// [`DeviceError`]: the device ends.
    fn work(&mut self, now: Time) -> Result<bool, DeviceError> {
        let _nothing = now;
        Ok(false)
    }

    /// Lets port and log exchange buffers ([`Port::exchange`]).
    ///
    /// # Errors
    /// The errors of [`Port::exchange`].
    fn exchange(&mut self, port: &mut dyn Port) -> io::Result<()> {
        port.exchange(self.device_mut().buffers())
    }

    /// Prepares a wait ([`DeviceNode::rest`]).
    ///
    /// # Errors
    /// The errors of [`DeviceNode::rest`].
    fn rest(&mut self, now: Time) -> Result<Option<Time>, DeviceError> {
        self.device_mut().rest(now)
    }

    /// Shuts down cleanly ([`DeviceNode::close`]).
    ///
    /// # Errors
    /// The errors of [`DeviceNode::close`].
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

/// Serves a port until the port returns [`Wake::Stop`], then closes the log cleanly. `observe` is called at the end of
/// each turn.
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
        if port.lost_log(now) {
            node.device_mut().endanger();
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
        // If the process was suspended, packets may have been received much later than `now`. So leases are judged by a
        // time that is read after the reception.
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
