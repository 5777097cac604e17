//! A device whose NIC acknowledges clients' messages on its own. It consists of a [`DeviceNode`], slots and
//! connections, and runs in turns.
//!
//! Order of a turn: completions, messages in the order of their slots, the log, the cursor, new slots. No connection
//! outlives the epoch in which it was made, and no slot is posted before recovery has entered its old message.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::RawFd;

use pmnet_device::{DeviceError, DeviceNode, Served, SlotCounters, SlotRecovery, Slots};
use pmnet_log::Media;
use pmnet_log::slots::{Outcome, SlotScan, SlotsError};
use pmnet_proto::keys::ClusterKeys;
use pmnet_proto::time::{MILLISECOND, Nanos, SECOND, earliest};
use pmnet_proto::{Peer, Random, Time};
use pmnet_wire::{Header, Kind, Packet};

use crate::connections::{ConnectionCounters, Connections, Parts};
use crate::message::Refusal;
use crate::nic::{Completion, Nic, NicError, POLL_MAX};

/// Longest time that the oldest slot may stay open while later slots are complete.
const HEAD_DEADLINE: Nanos = SECOND;
/// Longest time for which no connection is accepted after all were broken for a new epoch. The time ends earlier if the
/// epoch changes.
const CLOSED: Nanos = 2 * SECOND;
/// When a device ends in order, the longest time that it waits for messages that its NIC has acknowledged.
const CLOSING: std::time::Duration = std::time::Duration::from_secs(2);

/// Settings of a device's queue.
#[derive(Clone, Debug)]
pub struct QueueConfig {
    /// The RDMA device's name.
    pub rdma: String,
    /// UDP address of the device; clients connect to the TCP port with the same number.
    pub listen: SocketAddr,
    /// Number of the shard.
    pub shard: u32,
}

/// Why a queue could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    /// The NIC cannot be used.
    #[error(transparent)]
    Nic(#[from] NicError),
    /// The TCP port cannot be used.
    #[error("cannot listen for connections on {0} (TCP)")]
    Listen(SocketAddr, #[source] io::Error),
}

impl NicError {
    fn stops(self) -> DeviceError {
        DeviceError::Stopped(format!("PM1701 the NIC failed: {self}"))
    }
}

enum Life<Q> {
    Recovering(SlotRecovery<Q>),
    Serving(Box<Slots<Q>>),
    /// The state only during the change from `Recovering` to `Serving`.
    Changing,
}

/// Counters of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounters {
    /// Messages that were taken from slots, in order.
    pub messages: u64,
    /// Slots with an error instead of a message.
    pub holes: u64,
    /// With keys: messages without a valid MAC. Each counts as a hole, and its connection is broken.
    pub forged: u64,
    /// Turns that ended early because the log had no room for an update.
    pub waits: u64,
    /// Completions that came while an earlier slot was still open.
    pub overtaken: u64,
    /// Updates that recovery has found only in slots, not in the log.
    pub recovered: u64,
    /// Datagrams of clients that were dropped, because they came by UDP but must come through the queue.
    pub outside: u64,
}

/// A device whose NIC acknowledges clients' messages on its own.
pub struct QueueDevice<M, Q> {
    node: DeviceNode<M>,
    life: Life<Q>,
    connections: Connections,
    /// The open slot that was the reason for breaking connections the last time.
    accused: Option<u64>,
    polled: Vec<Completion>,
    /// Whether the NIC was asked to wake this process at the next completion.
    armed: bool,
    /// The cluster's keys with their list of refused fronts. The list counts only after the recovery of the slots.
    later: Option<ClusterKeys>,
    /// While the device has this epoch, no connection is accepted before this time.
    closed: Option<(u32, Time)>,
    /// The destination of answers that no client needs.
    nobody: Peer,
    shard: u32,
    /// The time of the last turn.
    now: Time,
    /// Number of messages without a valid MAC at the last warning.
    told_forged: u64,
    // Counters, as in `QueueCounters`.
    outside: u64,
    overtaken: u64,
    recovered: u64,
}

/// An opened queue that is not yet connected to its device.
pub struct Queue<Q> {
    scan: SlotScan<Q>,
    connections: Connections,
    nobody: Peer,
    shard: u32,
}

impl<Q: Media> Queue<Q> {
    /// Opens the NIC, and listens for clients. `memory` is the memory of the slots. Clients can connect when the device
    /// serves and the old messages in the slots have been entered into its log.
    ///
    /// # Errors
    /// [`QueueError`].
    pub fn open(
        config: &QueueConfig,
        scan: SlotScan<Q>,
        memory: pmnet_media::Memory,
        random: Random,
    ) -> Result<Queue<Q>, QueueError> {
        let nic = Nic::open(&config.rdma, config.listen.ip())?;
        let parameters = scan.parameters();
        let parts = Parts::make(&nic, memory, parameters.slots, parameters.slot_bytes)?;
        let connections = Connections::listen(parts, config.listen, config.shard, random)
            .map_err(|error| QueueError::Listen(config.listen, error))?;
        let loopback: IpAddr = match config.listen.ip() {
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        };
        Ok(Queue {
            scan,
            connections,
            // Port 9 is "discard".
            nobody: SocketAddr::new(loopback, 9),
            shard: config.shard,
        })
    }

    /// Connects the queue to a device.
    pub fn before<M: Media>(self, node: DeviceNode<M>) -> QueueDevice<M, Q> {
        let mut connections = self.connections;
        connections.begin_with(node.machine().cluster_keys());
        QueueDevice {
            node,
            life: Life::Recovering(SlotRecovery::new(self.scan)),
            connections,
            accused: None,
            polled: Vec::with_capacity(POLL_MAX),
            armed: false,
            later: None,
            closed: None,
            nobody: self.nobody,
            shard: self.shard,
            now: Time(0),
            told_forged: 0,
            outside: 0,
            overtaken: 0,
            recovered: 0,
        }
    }
}

impl<M: Media, Q: Media> QueueDevice<M, Q> {
    /// Returns the epoch in which connections are accepted, or the reason why none is accepted.
    fn open(&mut self, now: Time) -> Result<u32, Refusal> {
        let machine = self.node.machine();
        let epoch = machine.epoch();
        let over = |(at, until): &(u32, Time)| *at != epoch || now >= *until;
        if self.closed.as_ref().is_some_and(over) {
            self.closed = None;
        }
        let serves = machine.is_head() && matches!(self.life, Life::Serving(_));
        if serves && self.closed.is_none() {
            Ok(epoch)
        } else {
            Err(Refusal::NotServing)
        }
    }

    /// Continues the recovery of slots. When the recovery is complete, the queue is open.
    fn recover(&mut self, now: Time) -> Result<(), DeviceError> {
        let Life::Recovering(recovery) = &mut self.life else {
            return Ok(());
        };
        if !recovery.turn(now, &mut self.node, self.nobody)? {
            return Ok(());
        }
        self.recovered = recovery.entered();
        if let Life::Recovering(recovery) = std::mem::replace(&mut self.life, Life::Changing) {
            let slots = recovery.begin().map_err(slots_stop)?;
            self.life = Life::Serving(Box::new(slots));
        }
        tracing::info!(
            entered = self.recovered,
            "what was in the slots is in the log: clients can connect"
        );
        if let Some(keys) = self.later.take() {
            self.node.rekey(now, keys)?;
        }
        self.post()
    }

    /// Posts all slots that may be posted now.
    fn post(&mut self) -> Result<(), DeviceError> {
        let Life::Serving(slots) = &mut self.life else {
            return Ok(());
        };
        let receiver = &self.connections.parts().receiver;
        while let Some(posting) = slots.queue().post() {
            let posted = receiver.post(posting.number, &posting.place);
            posted.map_err(NicError::stops)?;
        }
        Ok(())
    }

    /// Takes completions from the NIC until there are no more. (Each slot completes at most once, so this ends.)
    /// Returns true if there was a completion.
    fn poll(&mut self, now: Time) -> Result<bool, DeviceError> {
        let Life::Serving(slots) = &mut self.life else {
            return Ok(false);
        };
        let mut some = false;
        loop {
            self.polled.clear();
            let completions = &self.connections.parts().completions;
            completions
                .poll(&mut self.polled)
                .map_err(NicError::stops)?;
            for completion in &self.polled {
                // A device's QP sends nothing, so all completions are completions of slots.
                let number = self
                    .connections
                    .completed(completion.qpn, completion.id + 1);
                let (from, outcome) = match (number, completion.outcome) {
                    (Some(from), Ok(bytes)) => (from, Outcome::Message(bytes)),
                    (from, Err(_)) => (from.unwrap_or(0), Outcome::Error),
                    (None, Ok(_)) => {
                        return Err(
                            NicError::said("it completes a message of a destroyed QP").stops()
                        );
                    }
                };
                let queue = slots.queue();
                if let Err(odd) = queue.complete(completion.id, from, outcome) {
                    return Err(NicError::said(&odd.to_string()).stops());
                }
                self.overtaken += u64::from(queue.blocked().is_some());
                if outcome == Outcome::Error {
                    let failed = self.connections.failed(now, from);
                    failed.map_err(NicError::stops)?;
                }
            }
            some |= !self.polled.is_empty();
            if self.polled.len() < POLL_MAX {
                return Ok(some);
            }
        }
    }

    /// Breaks connections that must not continue, and destroys broken QPs whose completions have all been taken.
    fn police(&mut self, now: Time) -> Result<(), DeviceError> {
        if self.open(now).is_err() {
            let broken = self.connections.break_off(now, |_| true);
            broken.map_err(NicError::stops)?;
        }
        let settled = self.connections.settled(now);
        if !settled.is_empty() {
            // When [`Connections::settled`] returned these connections, their last completions were already in the
            // completion queue.
            self.poll(now)?;
            self.connections.drained(&settled);
        }
        self.unblock(now)
    }

    /// Breaks the connections that may have the oldest slot, if the slot has been open for too long. If the slot is
    /// still open when all these connections are gone, and all their completions were taken, the slot is a hole: no
    /// connection has it, and no client was told that its message arrived. Some NICs report such a slot with an error
    /// completion, and some do not.
    fn unblock(&mut self, now: Time) -> Result<(), DeviceError> {
        let Life::Serving(slots) = &mut self.life else {
            return Ok(());
        };
        let Some(blocked) = slots.blocked(now, self.connections.next_number()) else {
            return Ok(());
        };
        if now.since(blocked.since) < HEAD_DEADLINE {
            return Ok(());
        }
        let queue = slots.queue();
        let numbers = self.connections.numbers();
        let may = |it: &u32| *it < blocked.before && !queue.is_cleared(*it);
        let who: Vec<u32> = numbers.filter(may).collect();
        if who.is_empty() {
            let hole = queue.complete(blocked.slot, 0, Outcome::Error);
            return hole.map_err(|odd| NicError::said(&odd.to_string()).stops());
        }
        if self.accused != Some(blocked.slot) {
            self.accused = Some(blocked.slot);
            tracing::warn!(
                connections = who.len(),
                "PM1706 a client is in the middle of a message for too long: those that may be it are disconnected"
            );
            let broken = self.connections.break_off(now, |it| who.contains(&it));
            broken.map_err(NicError::stops)?;
        }
        Ok(())
    }

    /// Processes messages in the order of their slots.
    fn advance(&mut self, now: Time) -> Result<bool, DeviceError> {
        let Life::Serving(slots) = &mut self.life else {
            return self.node.finish(now);
        };
        let before = slots.queue().processed();
        let (connections, nobody) = (&self.connections, self.nobody);
        slots.hand_on(now, &mut self.node, |number| {
            connections.peer(number).unwrap_or(nobody)
        })?;
        let forgers = slots.take_forgers();
        let forged = slots.counters().forged;
        let mut worked = self.node.finish(now)?;
        slots.keep(&self.node).map_err(slots_stop)?;
        let processed = slots.queue().processed();
        worked |= processed != before;
        self.connections.processed(now, processed, &mut self.node);
        if !forgers.is_empty() {
            let broken = self.connections.break_off(now, |it| forgers.contains(&it));
            broken.map_err(NicError::stops)?;
            self.tell_of_forged(forged);
        }
        self.post()?;
        Ok(worked)
    }

    /// Prepares the change to a new epoch. Returns true if the new epoch may begin, because no message of the present
    /// epoch is under way.
    fn may_change_epoch(&mut self, now: Time) -> Result<bool, DeviceError> {
        let serving = self.node.machine().is_serving();
        let clean = match &mut self.life {
            Life::Serving(slots) if serving => {
                let queue = slots.queue();
                let processed = queue.oldest().is_none() && queue.blocked().is_none();
                processed && self.node.log().durable() == self.node.log().last()
            }
            _ => true,
        };
        if self.connections.are_gone() && clean {
            return Ok(true);
        }
        self.closed = Some((self.node.machine().epoch(), now + CLOSED));
        let broken = self.connections.break_off(now, |_| true);
        broken.map_err(NicError::stops)?;
        Ok(false)
    }

    /// Warns of messages that the NIC has acknowledged although they have no valid MAC. The warnings become less and
    /// less frequent.
    fn tell_of_forged(&mut self, forged: u64) {
        if forged < self.told_forged.saturating_mul(2) {
            return;
        }
        self.told_forged = forged;
        tracing::warn!(
            forged,
            "PM1708 a message in a slot has no valid MAC, and is dropped: somebody on the path of an RDMA connection sends packets in its place, so \
             with one device a write that the NIC has acknowledged may be lost. Its connection is broken; give these hosts a network of their own"
        );
    }

    /// Returns the counters of the connections.
    pub const fn connection_counters(&self) -> ConnectionCounters {
        self.connections.counters()
    }

    /// Returns the counters of messages.
    pub fn counters(&self) -> QueueCounters {
        let slots = match &self.life {
            Life::Serving(slots) => slots.counters(),
            Life::Recovering(_) | Life::Changing => SlotCounters::default(),
        };
        QueueCounters {
            messages: slots.messages,
            holes: slots.holes,
            forged: slots.forged,
            waits: slots.waits,
            overtaken: self.overtaken,
            recovered: self.recovered,
            outside: self.outside,
        }
    }
}

fn slots_stop(error: SlotsError) -> DeviceError {
    DeviceError::Stopped(format!("PM1702 the slots failed: {error}"))
}

impl<M: Media, Q: Media> Served for QueueDevice<M, Q> {
    type Medium = M;

    fn device(&self) -> &DeviceNode<M> {
        &self.node
    }

    fn device_mut(&mut self) -> &mut DeviceNode<M> {
        &mut self.node
    }

    /// Sets new keys. Connections with a removed key are broken, and their sessions keep their keys until all their
    /// slots are processed. Slots that are being recovered may have messages of fronts that were refused only later, so
    /// the list of refused fronts counts only after the recovery.
    fn rekey(&mut self, now: Time, keys: ClusterKeys) -> Result<(), DeviceError> {
        let broken = self.connections.rekey(now, &keys);
        broken.map_err(NicError::stops)?;
        let mut own = keys.clone();
        if !matches!(self.life, Life::Serving(_)) {
            own.refused.clear();
            self.later = Some(keys);
        }
        self.node.rekey(now, own)
    }

    fn wakeup_fd(&self) -> Option<RawFd> {
        Some(self.connections.fd())
    }

    fn receive_with_hops(
        &mut self,
        now: Time,
        from: Peer,
        hops: u8,
        datagram: &[u8],
    ) -> Result<(), DeviceError> {
        let recovering = !matches!(self.life, Life::Serving(_));
        match Header::kind_of(datagram) {
            // By UDP, such messages could overtake messages that wait in the queue.
            Some(Kind::Update | Kind::End | Kind::Bypass | Kind::Read) => {
                self.outside += 1;
                return Ok(());
            }
            // OPEN and PING can end sessions whose messages are still in the slots.
            Some(Kind::Open | Kind::Ping) if recovering => {
                self.outside += 1;
                return Ok(());
            }
            Some(Kind::RecoverReply) => {
                let machine = self.node.machine();
                let other = Packet::parse(datagram).is_ok_and(|it| machine.may_change_epoch(&it));
                if other && !self.may_change_epoch(now)? {
                    // The reply is dropped, and the machine asks the server again later.
                    return Ok(());
                }
            }
            _ => {}
        }
        self.node.receive_with_hops(now, from, hops, datagram)
    }

    fn finish(&mut self, now: Time) -> Result<bool, DeviceError> {
        if self.node.machine().is_serving() && !self.node.machine().is_head() {
            return Err(DeviceError::Stopped(
                "PM1703 --mode verbs is for the first device of a chain, and this one is not the first any more: what its NIC has acknowledged \
                 must not be dropped. Wire it as the head, or empty its slots by starting it as the head once."
                    .to_owned(),
            ));
        }
        self.now = now;
        self.recover(now)?;
        let open = self.open(now);
        let mut worked = self
            .connections
            .look(now, &mut self.node, open)
            .map_err(NicError::stops)?;
        for (client, session, tag) in self.connections.take_unknown() {
            let ping = Header {
                session,
                tag,
                shard: self.shard,
                ..Header::new(Kind::Ping)
            };
            let mut question = Vec::new();
            ping.write(&[], &mut question);
            // The PING is processed as if the client had sent it, so the client learns why its session is unknown.
            self.node.receive(now, client, &question)?;
        }
        worked |= self.poll(now)?;
        if !worked && self.connections.parts().completions.take_event() {
            self.armed = false;
        }
        self.police(now)?;
        Ok(self.advance(now)? | worked)
    }

    fn rest(&mut self, now: Time) -> Result<Option<Time>, DeviceError> {
        let due = self.node.rest(now)?;
        let mut soon = None;
        if matches!(self.life, Life::Serving(_)) && !self.armed {
            let completions = &self.connections.parts().completions;
            completions.arm().map_err(NicError::stops)?;
            self.armed = true;
            // A completion that came before this request does not wake the process.
            soon = Some(now);
        }
        if let Life::Serving(slots) = &mut self.life {
            let queue = slots.queue();
            let waits = queue.blocked().is_some() || queue.oldest().is_some();
            soon = soon.or(waits.then_some(now + MILLISECOND));
        }
        Ok(earliest(
            earliest(due, soon),
            self.connections.next_timeout(),
        ))
    }

    /// Breaks all connections, and enters their messages into the log as long as the log has room. The other messages
    /// stay in the slots.
    fn close(mut self) -> Result<(), DeviceError> {
        let begun = std::time::Instant::now();
        let first = self.now;
        let mut now = first;
        loop {
            if self.may_change_epoch(now)? || begun.elapsed() >= CLOSING {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
            now = first + u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.poll(now)?;
            self.police(now)?;
            self.advance(now)?;
            self.node.sent();
        }
        self.node.close()
    }
}
