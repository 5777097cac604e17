//! Messages that a NIC has acknowledged by itself, on their way from slots into the log (`docs/spec/verbs.md` §4, §5).
//!
//! Invariants: messages reach the machine in the order of their slots, after a crash as well. Messages in slots were acknowledged,
//! so an update for which the log has no room stays in its slot, and all later ones wait. A slot is given back when its message is
//! durable in the log. This module answers no client: the machine does that.

use std::collections::VecDeque;

use crate::node::{DeviceError, DeviceNode};
use pmnet_log::Media;
use pmnet_log::slots::{Oldest, SlotQueue, SlotScan, SlotsError};
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

/// The oldest slot, which is open while later ones are complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// Its number.
    pub slot: u64,
    /// Since when it is known that a client has it.
    pub since: Time,
    /// A connection with this number or a higher one does not have it: the slot was taken before that one was made. Nor has one that
    /// is cleared ([`SlotQueue::is_cleared`]).
    pub before: u32,
}

/// Complete slots that were seen while earlier ones were open: all slots before a complete one are taken. So several slots that stay open count their
/// time at the same time, not one after the other. Both numbers grow from each sight to the next. There are at most as many sights as slots.
#[derive(Debug, Default)]
struct Sights(VecDeque<Sight>);

#[derive(Debug)]
struct Sight {
    /// A complete slot.
    upto: u64,
    since: Time,
    /// The number of the next connection at that time.
    next: u32,
}

impl Sights {
    /// `open`: the oldest slot, and the newest complete one.
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

/// The slots of one device that are posted.
#[derive(Debug)]
pub struct Slots<Q> {
    queue: SlotQueue<Q>,
    /// Each message below this number is in the log up to that order, or has no effect.
    noted: (u64, u64),
    sights: Sights,
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

    /// Returns the oldest slot, if it is open while later ones are complete: a client is in the middle of a message, or has died there. `next`: the number
    /// that the next connection gets; numbers go up. Call this once a turn.
    pub fn blocked(&mut self, now: Time, next: u32) -> Option<Blocked> {
        let newest = self.queue.newest();
        let open = self.queue.blocked().zip(newest);
        self.sights.look(now, open, next)
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
            sights: Sights::default(),
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
        // 10 is open, and so is 12: that is known when 13 is complete.
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
