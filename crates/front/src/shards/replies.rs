//! The outstanding replies of a client, in the order of its commands, and the bytes that it has not read.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use super::link::shrink;
use super::merge::Merge;
use super::subscribe::Change;
use crate::client::SLOTS_MAX;
use crate::shell::socket::{Ended, Socket};
use crate::upstream::Time;

/// Answers to one client that it has not read, above which no more are taken from the links, in bytes.
const OUT_BYTES_SOFT_MAX: usize = 1024 * 1024;

/// The source of the reply to one command.
pub(super) enum Wait {
    /// It is here.
    Ready(Bytes),
    /// The next of this link.
    One(usize),
    /// The same; if it is an error, the transaction with this number has not begun.
    Multi(usize, u64),
    /// The next of this link, to a SCAN: the shard goes into the cursor.
    Scan(usize),
    /// The same, to an INFO: the router's lines come after those of the front.
    Info(usize),
    /// One of each link.
    All(Merge, Vec<Option<Bytes>>),
    /// Those of a change of subscriptions.
    Subscribe(Box<Change>),
    /// The outcome of the change of state with this number.
    State(u64),
}

impl Wait {
    /// Whether the reply comes from this link, as far as it is not here.
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
    /// Its reply is not sent (CLIENT REPLY).
    pub(super) silent: bool,
    /// When it was taken.
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
    /// How many of the slots change subscriptions.
    changes: usize,
    /// How many of the slots were taken before the map was changed last.
    taken_before: usize,
}

impl Replies {
    /// A command was taken.
    pub(super) fn expect(&mut self, slot: Slot) {
        self.changes += usize::from(slot.changes_subscriptions());
        self.slots.push_back(slot);
    }

    /// Takes out the command whose turn it is.
    pub(super) fn next(&mut self) -> Option<Slot> {
        self.slots.pop_front()
    }

    /// Its reply is not here: it stays the one whose turn it is.
    pub(super) fn put_back(&mut self, slot: Slot) {
        self.slots.push_front(slot);
    }

    /// The command that was taken out is answered.
    pub(super) fn answered(&mut self, slot: &Slot, reply: &[u8]) {
        self.taken_before = self.taken_before.saturating_sub(1);
        self.changes -= usize::from(slot.changes_subscriptions());
        if !slot.silent {
            self.tell(reply);
        }
    }

    /// Bytes for the client, now.
    pub(super) fn tell(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    /// Whether no command is without a reply.
    pub(super) fn is_idle(&self) -> bool {
        self.slots.is_empty()
    }

    /// Whether so much is unread that no more is taken.
    pub(super) fn is_congested(&self) -> bool {
        self.out.len() > OUT_BYTES_SOFT_MAX
    }

    /// Whether there is room for what a further command brings, and it need not wait for the one before it.
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

    /// Whether the reply whose turn it is comes from this link.
    pub(super) fn wait_for(&self, shard: usize) -> bool {
        let next = self.slots.front();
        next.is_some_and(|slot| slot.wait.is_for(shard))
    }

    /// Writes what there is for the client, as far as it goes.
    pub(super) fn write(&mut self, socket: &mut Socket) -> Result<(), Ended> {
        socket.write(&mut self.out)?;
        shrink(&mut self.out);
        Ok(())
    }

    /// Whether everything that is here was written.
    pub(super) fn are_written(&self) -> bool {
        self.out.is_empty()
    }

    /// Drops what is outstanding: the client takes no replies any more.
    pub(super) fn drop_outstanding(&mut self) {
        (self.slots, self.changes) = (VecDeque::new(), 0);
    }

    /// The map has changed: returns how many commands were taken before.
    pub(super) fn note_map(&mut self) -> usize {
        self.taken_before = self.slots.len();
        self.taken_before
    }

    /// How many commands that were taken before the map changed have no reply.
    pub(super) fn taken_before(&self) -> usize {
        self.taken_before
    }
}
