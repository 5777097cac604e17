//! The outstanding replies of a client, in the order of its commands, and the output that the client has not read.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use super::link::shrink;
use super::merge::Merge;
use super::subscribe::Change;
use crate::client::SLOTS_MAX;
use crate::shell::socket::{Ended, Socket};
use crate::upstream::Time;

/// Limit of one client's unread output, in bytes. Above this bound, the router takes no further replies from the links.
const OUT_BYTES_SOFT_MAX: usize = 1024 * 1024;

/// The source of the reply to one command.
pub(super) enum Wait {
    /// The reply is already known.
    Ready(Bytes),
    /// The next reply of this link.
    One(usize),
    /// The next reply of this link. If the reply is an error, the transaction with this number has not begun.
    Multi(usize, u64),
    /// The next reply of this link, which answers a SCAN. The shard is added to the reply's cursor.
    Scan(usize),
    /// The next reply of this link, which answers an INFO. The router's lines are added after the front's lines.
    Info(usize),
    /// One reply of each link.
    All(Merge, Vec<Option<Bytes>>),
    /// The confirmations of a change of subscriptions.
    Subscribe(Box<Change>),
    /// The outcome of the change of state with this number.
    State(u64),
}

impl Wait {
    /// Whether a part of the reply that has not come yet will come from this link.
    fn is_for(&self, shard: usize) -> bool {
        match self {
            Wait::Ready(_) => false,
            Wait::One(own) | Wait::Multi(own, _) | Wait::Scan(own) | Wait::Info(own) => {
                *own == shard
            }
            Wait::All(_, parts) => parts.get(shard).is_some_and(Option::is_none),
            Wait::Subscribe(change) => change.concerns(shard),
            Wait::State(_) => true,
        }
    }
}

/// A command that has no reply yet.
pub(super) struct Slot {
    pub(super) wait: Wait,
    /// The command's reply is not sent (CLIENT REPLY).
    pub(super) silent: bool,
    /// The time when the command was taken.
    pub(super) taken: Time,
}

impl Slot {
    fn changes_subscriptions(&self) -> bool {
        matches!(self.wait, Wait::Subscribe(_))
    }
}

/// The replies to one client.
#[derive(Default)]
pub(super) struct Replies {
    slots: VecDeque<Slot>,
    out: BytesMut,
    /// Number of slots that change subscriptions.
    changes: usize,
    /// Number of slots that were taken before the last change of the map.
    taken_before: usize,
}

impl Replies {
    /// Adds a command that was taken.
    pub(super) fn expect(&mut self, slot: Slot) {
        self.changes += usize::from(slot.changes_subscriptions());
        self.slots.push_back(slot);
    }

    /// Takes out the first command without a reply.
    pub(super) fn next(&mut self) -> Option<Slot> {
        self.slots.pop_front()
    }

    /// Puts a command that was taken out back to the first place, because its reply has not come yet.
    pub(super) fn put_back(&mut self, slot: Slot) {
        self.slots.push_front(slot);
    }

    /// Adds the reply to the command that was taken out to the output.
    pub(super) fn answered(&mut self, slot: &Slot, reply: &[u8]) {
        self.taken_before = self.taken_before.saturating_sub(1);
        self.changes -= usize::from(slot.changes_subscriptions());
        if !slot.silent {
            self.tell(reply);
        }
    }

    /// Adds bytes that the client gets before all outstanding replies.
    pub(super) fn tell(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    /// Whether every command has its reply.
    pub(super) fn is_idle(&self) -> bool {
        self.slots.is_empty()
    }

    /// Whether so much output is unread that no further reply is taken.
    pub(super) fn is_congested(&self) -> bool {
        self.out.len() > OUT_BYTES_SOFT_MAX
    }

    /// Whether the replies to a further command fit, and the command need not wait for the previous command.
    pub(super) fn have_room(&self) -> bool {
        let changes = |slot: &Slot| matches!(slot.wait, Wait::State(_));
        self.slots.len() < SLOTS_MAX
            && !self.is_congested()
            && !self.slots.back().is_some_and(changes)
    }

    /// Whether a change of subscriptions is under way.
    pub(super) fn change_subscriptions(&self) -> bool {
        self.changes > 0
    }

    /// Whether the first outstanding reply comes from this link.
    pub(super) fn wait_for(&self, shard: usize) -> bool {
        let next = self.slots.front();
        next.is_some_and(|slot| slot.wait.is_for(shard))
    }

    /// Writes as much of the output as the socket takes.
    pub(super) fn write(&mut self, socket: &mut Socket) -> Result<(), Ended> {
        socket.write(&mut self.out)?;
        shrink(&mut self.out);
        Ok(())
    }

    /// Whether all output was written.
    pub(super) fn are_written(&self) -> bool {
        self.out.is_empty()
    }

    /// Drops all outstanding replies, because the client takes no further replies.
    pub(super) fn drop_outstanding(&mut self) {
        (self.slots, self.changes) = (VecDeque::new(), 0);
    }

    /// Notes that the map has changed. Returns the number of outstanding commands that were taken earlier.
    pub(super) fn note_map(&mut self) -> usize {
        self.taken_before = self.slots.len();
        self.taken_before
    }

    /// Returns the number of commands that were taken before the last change of the map and have no reply.
    pub(super) fn taken_before(&self) -> usize {
        self.taken_before
    }
}
