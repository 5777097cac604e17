//! Messages that a NIC has acknowledged by itself, on their way from slots into the log (`docs/spec/verbs.md` §4, §5).
//!
//! Invariants: messages reach the machine in the order of their slots, after a crash as well. Messages in slots were acknowledged,
//! so an update for which the log has no room stays in its slot, and all later ones wait. A slot is given back when its message is
//! durable in the log. This module answers no client: the machine does that.

use crate::node::{DeviceError, DeviceNode};
use pmnet_log::Media;
use pmnet_log::slots::{Oldest, SlotQueue, SlotScan, SlotsError};
use pmnet_proto::time::Nanos;
use pmnet_proto::{Peer, Time};
use pmnet_wire::{Kind, Packet};

/// Messages that are handed on in one turn, at most.
pub const SLOTS_A_TURN: usize = 64;

/// Events of slots, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotCounters {
    /// Messages that were handed on.
    pub messages: u64,
    /// Slots with an error in place of a message.
    pub holes: u64,
    /// Turns that ended because the log had no room for an update.
    pub waits: u64,
}

/// The slots of one device that are posted.
#[derive(Debug)]
pub struct Slots<Q> {
    queue: SlotQueue<Q>,
    /// Each message below this number is in the log up to that order, or has no effect.
    noted: (u64, u64),
    /// Since when the oldest slot has been open while a later one was complete.
    blocked: Option<(u64, Time)>,
    counters: SlotCounters,
}

impl<Q: Media> Slots<Q> {
    /// Returns the ring: to post, and to say what the NIC has completed.
    pub const fn queue(&mut self) -> &mut SlotQueue<Q> {
        &mut self.queue
    }

    /// Returns the events so far.
    #[must_use]
    pub const fn counters(&self) -> SlotCounters {
        self.counters
    }

    /// Hands on complete messages, in order, and at most [`SLOTS_A_TURN`] of them. `from` says where the client of a connection
    /// is. To be followed by [`DeviceNode::finish`], and then by [`Slots::keep`].
    ///
    /// # Errors
    /// [`DeviceError`]: the device ends.
    pub fn hand_on<M: Media>(
        &mut self,
        now: Time,
        node: &mut DeviceNode<M>,
        from: impl Fn(u32) -> Peer,
    ) -> Result<(), DeviceError> {
        for _ in 0..SLOTS_A_TURN {
            if !node.machine().is_serving() {
                break;
            }
            match self.queue.oldest() {
                None => break,
                Some(Oldest::Hole { .. }) => self.counters.holes += 1,
                Some(Oldest::Message {
                    from: connection,
                    bytes,
                    ..
                }) => {
                    if !offer(now, node, from(connection), bytes)? {
                        self.counters.waits += 1;
                        // It was acknowledged, and waits: its client has nothing to do.
                        node.tell_nobody_of_room();
                        break;
                    }
                    self.counters.messages += 1;
                }
            }
            self.queue.advance();
        }
        Ok(())
    }

    /// Returns whether the oldest slot has been open for this long while later ones were complete: a client has died in the middle of a
    /// message. The caller must then break all connections that may have it ([`SlotQueue::is_cleared`]). Call this once a turn.
    pub fn is_blocked(&mut self, now: Time, deadline: Nanos) -> bool {
        let since = |number| match self.blocked {
            Some((before, since)) if before == number => since,
            _ => now,
        };
        self.blocked = self.queue.blocked().map(|number| (number, since(number)));
        self.blocked
            .is_some_and(|(_, since)| now.since(since) >= deadline)
    }

    /// Gives back the slots whose messages are durable in the log: begins to store the cursor, or looks whether it is stored.
    ///
    /// # Errors
    /// [`SlotsError`]: nothing more may be posted.
    pub fn keep<M: Media>(&mut self, node: &DeviceNode<M>) -> Result<(), SlotsError> {
        if !self.queue.keep_poll(false)? {
            return Ok(());
        }
        let log = node.log();
        let now = (self.queue.processed(), log.last());
        if log.durable() == log.last() {
            self.noted = now;
        }
        let (entered, order) = self.noted;
        if log.durable() >= order {
            self.queue.keep_start(entered)?;
            self.noted = now;
        }
        Ok(())
    }

    /// Returns the medium back, as after the process died.
    #[must_use]
    pub fn into_media(self) -> Q {
        self.queue.into_media()
    }
}

/// False: an update was refused for want of room.
fn offer<M: Media>(
    now: Time,
    node: &mut DeviceNode<M>,
    from: Peer,
    bytes: &[u8],
) -> Result<bool, DeviceError> {
    let before = node.machine().counters().not_logged;
    node.receive(now, from, bytes)?;
    Ok(node.machine().counters().not_logged == before)
}

/// Slots as a crash or a stop has left them, on their way into the log.
#[derive(Debug)]
pub struct SlotRecovery<Q> {
    scan: SlotScan<Q>,
    next: usize,
    entered: u64,
}

impl<Q: Media> SlotRecovery<Q> {
    /// None of their messages is known to be in the log yet.
    #[must_use]
    pub const fn new(scan: SlotScan<Q>) -> SlotRecovery<Q> {
        SlotRecovery {
            scan,
            next: 0,
            entered: 0,
        }
    }

    /// One step, once the device serves. True: all messages that count are durable in the log. Until then no client may be let in. `unused`:
    /// an address to which nothing is sent; clients that connect again get their answers. Call this again after
    /// [`DeviceNode::finish`].
    ///
    /// # Errors
    /// [`DeviceError`]: the device ends.
    pub fn turn<M: Media>(
        &mut self,
        now: Time,
        node: &mut DeviceNode<M>,
        unused: Peer,
    ) -> Result<bool, DeviceError> {
        if !node.machine().is_serving() {
            return Ok(false);
        }
        let before = node.machine().counters().admitted;
        let mut full = false;
        // A hole says nothing about later slots. The machine knows which messages count: duplicates, and all that follows a gap, do not.
        for slot in self.scan.slots().skip(self.next) {
            if let Some(bytes) = logged(slot)
                && !offer(now, node, unused, bytes)?
            {
                full = true;
                break;
            }
            self.next += 1;
        }
        self.entered += node.machine().counters().admitted - before;
        if full {
            node.tell_nobody_of_room();
            return Ok(false);
        }
        let log = node.log();
        Ok(log.durable() == log.last())
    }

    /// Number of messages that were found and were not in the log.
    #[must_use]
    pub const fn entered(&self) -> u64 {
        self.entered
    }

    /// The slots can be posted: all messages that count are in the log.
    ///
    /// # Errors
    /// [`SlotsError`].
    ///
    /// # Panics
    /// If [`SlotRecovery::turn`] has not been through all slots.
    pub fn begin(self) -> Result<Slots<Q>, SlotsError> {
        let slots = self.scan.slots().count();
        assert_eq!(
            self.next, slots,
            "the slots are in the log before they are posted"
        );
        let queue = self.scan.begin()?;
        Ok(Slots {
            noted: (queue.processed(), 0),
            blocked: None,
            queue,
            counters: SlotCounters::default(),
        })
    }

    /// Returns the medium back, as after the process died.
    #[must_use]
    pub fn into_media(self) -> Q {
        self.scan.into_media()
    }
}

/// Returns the packet in a slot, if it is whole and takes a seq: only these were acknowledged.
fn logged(slot: &[u8]) -> Option<&[u8]> {
    let packet = Packet::parse_first(slot).ok()?;
    let bytes = slot.get(..pmnet_wire::HEADER_LEN + packet.payload.len())?;
    matches!(packet.header.kind, Kind::Update | Kind::End).then_some(bytes)
}
