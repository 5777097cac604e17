//! Moves messages that a NIC has acknowledged on its own from its slots into the log (`docs/spec/verbs.md` §4, §5).
//!
//! Invariants: messages reach the machine in the order of their slots, also after a crash. Messages in slots are
//! already acknowledged, so an update for which the log has no room stays in its slot, and all later messages wait.
//! When a message is durable in the log, its slot may be posted again. Only the machine answers clients, and not this
//! module.

use std::collections::VecDeque;

use crate::node::{DeviceError, DeviceNode};
use pmnet_log::Media;
use pmnet_log::slots::{Oldest, SlotQueue, SlotScan, SlotsError};
use pmnet_proto::{Peer, Time};
use pmnet_wire::{Header, Kind, Packet};

/// Maximum number of messages that one turn gives to the machine.
pub const SLOTS_A_TURN: usize = 64;

/// Counters of slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotCounters {
    /// Messages that were given to the machine.
    pub messages: u64,
    /// Slots that held an error instead of a message.
    pub holes: u64,
    /// With keys: messages without a valid MAC. Each is also treated as a hole.
    pub forged: u64,
    /// Turns in which the log had no room for the update of the next slot.
    pub waits: u64,
}

/// An open (incomplete) oldest slot while later slots are complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// Number of the slot.
    pub slot: u64,
    /// Time since which it is known that a client has taken the slot.
    pub since: Time,
    /// All connections that may have the slot have lower numbers than this: the slot was taken before a connection with
    /// this number was made. Of the connections with lower numbers, those that [`SlotQueue::is_cleared`] excludes do
    /// not have the slot.
    pub before: u32,
}

/// The complete slots that were seen while earlier slots were open, each with the time. When a slot is complete,
/// clients have taken all slots before it. So several open slots can have their times at once. `upto` and `next` grow
/// from each sight to the next. There are at most as many sights as slots.
#[derive(Debug, Default)]
struct Sights(VecDeque<Sight>);

#[derive(Debug)]
struct Sight {
    /// Number of the complete slot.
    upto: u64,
    since: Time,
    /// Number that a next connection would have got at the time `since`.
    next: u32,
}

impl Sights {
    /// Returns the oldest slot with its time, if this slot is open. `open`: numbers of the oldest slot and of the
    /// newest complete slot; `None`: the oldest slot is not open.
    fn look(&mut self, now: Time, open: Option<(u64, u64)>, next: u32) -> Option<Blocked> {
        let Some((slot, newest)) = open else {
            self.0.clear();
            return None;
        };
        while self.0.front().is_some_and(|sight| sight.upto <= slot) {
            self.0.pop_front();
        }
        if self.0.back().is_none_or(|sight| sight.upto < newest) {
            self.0.push_back(Sight {
                upto: newest,
                since: now,
                next,
            });
        }
        let sight = self.0.front()?;
        Some(Blocked {
            slot,
            since: sight.since,
            before: sight.next,
        })
    }
}

/// The posted slots of one device.
#[derive(Debug)]
pub struct Slots<Q> {
    queue: SlotQueue<Q>,
    /// `(n, order)`: each message with a number below `n` is in the log up to `order`, or has no effect.
    noted: (u64, u64),
    sights: Sights,
    /// Connections on which messages without a valid MAC came. There are at most [`SLOTS_A_TURN`].
    forgers: Vec<u32>,
    counters: SlotCounters,
}

impl<Q: Media> Slots<Q> {
    /// Returns the ring of slots, to post slots and to report the NIC's completions.
    pub const fn queue(&mut self) -> &mut SlotQueue<Q> {
        &mut self.queue
    }

    /// Returns the counters so far.
    #[must_use]
    pub const fn counters(&self) -> SlotCounters {
        self.counters
    }

    /// Takes the connections on which messages without a valid MAC came since the last call. The caller must break
    /// these connections: their NICs still acknowledge later messages of the sessions, but without the dropped message
    /// the later messages have no effect.
    pub fn take_forgers(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.forgers)
    }

    /// Gives complete messages to the machine, in order, at most [`SLOTS_A_TURN`] of them. `from`: returns the address
    /// of a connection's client. Afterwards the caller must call [`DeviceNode::finish`] and then [`Slots::keep`].
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
                    let before = forged(node);
                    if !offer(now, node, from(connection), bytes)? {
                        self.counters.waits += 1;
                        // The NIC has acknowledged the message, which now waits in its slot. So its client need not
                        // send it again.
                        node.tell_nobody_of_room();
                        break;
                    }
                    if forged(node) != before {
                        self.counters.forged += 1;
                        self.forgers.push(connection);
                    }
                    self.counters.messages += 1;
                }
            }
            self.queue.advance();
        }
        Ok(())
    }

    /// Returns the oldest slot, if it is open while later slots are complete: the slot's client is still sending the
    /// message, or has died while sending. `next`: number that the next connection gets, which is above all earlier
    /// numbers. The caller calls this once a turn.
    pub fn blocked(&mut self, now: Time, next: u32) -> Option<Blocked> {
        let newest = self.queue.newest();
        let open = self.queue.blocked().zip(newest);
        self.sights.look(now, open, next)
    }

    /// Frees the slots whose messages are durable in the log: begins to write the cursor, or checks whether a write is
    /// complete.
    ///
    /// # Errors
    /// [`SlotsError`]: no further slot may be posted.
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

    /// Returns the medium as the death of the process would leave it.
    #[must_use]
    pub fn into_media(self) -> Q {
        self.queue.into_media()
    }
}

/// Offers one message to the machine. Returns false if an update was refused because the log has no room.
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

/// Returns the number of messages that a client with the front's key would not have sent: bytes that are no packet, and
/// packets without the right MAC, of another shard, or of a device. Without keys the number is 0. Messages of unknown
/// sessions are not counted, because a session may just have ended. Repeated genuine messages are not counted, either.
fn forged<M: Media>(node: &DeviceNode<M>) -> u64 {
    if !node.machine().has_keys() {
        return 0;
    }
    let counters = node.machine().counters();
    let no_packets: u64 = node.rejects().iter().sum();
    counters.forged + counters.wrong_shard + counters.other_epoch + counters.misled + no_packets
}

/// Moves messages that a crash or a stop has left in slots into the log.
#[derive(Debug)]
pub struct SlotRecovery<Q> {
    scan: SlotScan<Q>,
    next: usize,
    entered: u64,
}

impl<Q: Media> SlotRecovery<Q> {
    /// Returns a recovery that begins with the first slot.
    #[must_use]
    pub const fn new(scan: SlotScan<Q>) -> SlotRecovery<Q> {
        SlotRecovery {
            scan,
            next: 0,
            entered: 0,
        }
    }

    /// Takes one step, if the device serves. Returns true when all messages that count are durable in the log. Until
    /// then no client may connect, and the caller must call [`DeviceNode::finish`] and then this function again.
    /// `unused`: sender address for the messages. Answers to it are not sent, because the clients get their answers
    /// when they connect again.
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
        // After a hole, later slots must be read, too. The machine decides which messages count: duplicates and
        // messages after a gap do not.
        for slot in self.scan.slots().skip(self.next) {
            if let Some((header, bytes)) = logged(slot) {
                can_verify(node, &header)?;
                if !offer(now, node, unused, bytes)? {
                    full = true;
                    break;
                }
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

    /// Returns the number of messages that were found in slots and were missing in the log.
    #[must_use]
    pub const fn entered(&self) -> u64 {
        self.entered
    }

    /// Returns the slots, which can now be posted, because all messages that count are in the log.
    ///
    /// # Errors
    /// [`SlotsError`].
    ///
    /// # Panics
    /// If [`SlotRecovery::turn`] has not returned true yet.
    pub fn begin(self) -> Result<Slots<Q>, SlotsError> {
        let slots = self.scan.slots().count();
        assert_eq!(
            self.next, slots,
            "the slots are in the log before they are posted"
        );
        let queue = self.scan.begin()?;
        Ok(Slots {
            noted: (queue.processed(), 0),
            sights: Sights::default(),
            forgers: Vec::new(),
            queue,
            counters: SlotCounters::default(),
        })
    }

    /// Returns the medium as the death of the process would leave it.
    #[must_use]
    pub fn into_media(self) -> Q {
        self.scan.into_media()
    }
}

/// Returns the packet in a slot, if it is complete and of a kind that has a seq of its session. Only such packets count
/// as acknowledged by the NIC.
fn logged(slot: &[u8]) -> Option<(Header, &[u8])> {
    let packet = Packet::parse_first(slot).ok()?;
    let bytes = slot.get(..pmnet_wire::HEADER_LEN + packet.payload.len())?;
    matches!(packet.header.kind, Kind::Update | Kind::End).then_some((packet.header, bytes))
}

/// Stops the device if a message in a slot may have been acknowledged, but cannot be verified because the key of its
/// front was removed while the device did not run (docs/spec/verbs.md §5).
fn can_verify<M: Media>(node: &DeviceNode<M>, header: &Header) -> Result<(), DeviceError> {
    let machine = node.machine();
    let is_next = machine.admitted(header.session) == header.seq.checked_sub(1);
    if !is_next || !machine.lacks_keys(header.session) {
        return Ok(());
    }
    Err(DeviceError::Stopped(format!(
        "PM1707 the slots hold a write of session {}, which may be acknowledged, and the key to verify it was removed before the slots were \
         recovered. Start the device with that key as its second one (pmnet key both --send NEW --accept OLD); when it serves, give it the new file and \
         SIGHUP. Nothing has changed",
        header.session
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_that_stay_open_count_their_time_side_by_side() {
        let mut sights = Sights::default();
        let blocked = |slot, since, before| {
            let since = Time(since);
            Some(Blocked {
                slot,
                since,
                before,
            })
        };
        assert_eq!(sights.look(Time(1), None, 7), None);
        // Slots 10 and 12 are open. That slot 12 is taken is known once slot 13 is complete.
        assert_eq!(sights.look(Time(2), Some((10, 11)), 7), blocked(10, 2, 7));
        assert_eq!(sights.look(Time(3), Some((10, 13)), 8), blocked(10, 2, 7));
        assert_eq!(sights.look(Time(9), Some((10, 13)), 9), blocked(10, 2, 7));
        assert_eq!(
            sights.look(Time(10), Some((12, 13)), 9),
            blocked(12, 3, 8),
            "since then, and of a connection that was there then"
        );
        assert_eq!(sights.look(Time(11), Some((14, 15)), 9), blocked(14, 11, 9));
        assert_eq!(sights.look(Time(12), None, 9), None, "none is open");
        assert_eq!(sights.look(Time(13), Some((16, 17)), 9), blocked(16, 13, 9));
    }
}
