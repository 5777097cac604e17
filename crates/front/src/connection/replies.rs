//! The replies to a client, in the order of its commands.
//!
//! Invariant: a reply leaves only after the replies of all commands before it.

use std::collections::VecDeque;

use bytes::Bytes;

use super::calls::Purpose;
use super::{FLIGHT_BYTES_SOFT_MAX, OUTPUT_BYTES_SOFT_MAX, SLOTS_MAX};
use crate::upstream::CallId;

/// The place of a command's reply.
#[derive(Debug)]
pub(super) enum Slot {
    /// The reply, waiting for those before it.
    Ready(Bytes),
    /// A call is outstanding.
    Call {
        call: CallId,
        purpose: Purpose,
        bytes: usize,
    },
    /// A GET of what the update of this call sets: the reply if that is committed.
    OwnWrite { call: CallId, reply: Bytes },
    /// The command that is passed through.
    Passage,
    /// A read, as a payload of its own, that is to be submitted again.
    Again(Bytes),
}

#[derive(Default)]
pub(super) struct Replies {
    pub(super) slots: VecDeque<Slot>,
    /// Bytes of the replies that wait in `slots` for those before them.
    ready_bytes: usize,
    /// Bytes that the others in `slots` have in flight, or have set aside.
    pub(super) flight_bytes: usize,
    output: Vec<u8>,
    /// Bytes of `output` that are written already.
    written: usize,
}

impl Replies {
    /// Puts a reply behind all that are outstanding.
    pub(super) fn push(&mut self, reply: Bytes) {
        if self.slots.is_empty() {
            self.output.extend_from_slice(&reply);
        } else {
            self.ready_bytes += reply.len();
            self.slots.push_back(Slot::Ready(reply));
        }
    }

    /// Puts a message before the reply at `index`.
    pub(super) fn insert(&mut self, index: usize, message: &Bytes) {
        if index == 0 {
            self.output.extend_from_slice(message);
        } else {
            self.slots.insert(index, Slot::Ready(Bytes::new()));
            self.fill(index, message.clone());
        }
    }

    /// The call at `index` is over, if one is there; its reply is to be filled in.
    pub(super) fn take_call(&mut self, index: usize) -> Option<(CallId, Purpose)> {
        let slot = self.slots.get_mut(index)?;
        if let Slot::Call { .. } = slot
            && let Slot::Call {
                call,
                purpose,
                bytes,
            } = std::mem::replace(slot, Slot::Ready(Bytes::new()))
        {
            self.flight_bytes = self.flight_bytes.saturating_sub(bytes);
            return Some((call, purpose));
        }
        None
    }

    /// The reply to the command of this slot.
    pub(super) fn fill(&mut self, index: usize, reply: Bytes) {
        self.ready_bytes += reply.len();
        self.slots[index] = Slot::Ready(reply);
    }

    /// Moves the replies that are next in order to the output.
    pub(super) fn drain(&mut self) {
        while let Some(Slot::Ready(_)) = self.slots.front() {
            if let Some(Slot::Ready(bytes)) = self.slots.pop_front() {
                self.ready_bytes = self.ready_bytes.saturating_sub(bytes.len());
                self.output.extend_from_slice(&bytes);
            }
        }
    }

    pub(super) fn unwritten(&self) -> &[u8] {
        &self.output[self.written..]
    }

    pub(super) fn wrote(&mut self, count: usize) {
        self.written += count;
        if self.written >= self.output.len() {
            self.output.clear();
            self.written = 0;
            if self.output.capacity() > OUTPUT_BYTES_SOFT_MAX {
                self.output = Vec::new();
            }
        } else if self.written > OUTPUT_BYTES_SOFT_MAX {
            self.output.drain(..self.written);
            self.written = 0;
        }
    }

    /// Nothing is outstanding, and all is written.
    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty() && self.unwritten().is_empty()
    }

    pub(super) fn congested(&self) -> bool {
        self.unwritten().len() + self.ready_bytes > OUTPUT_BYTES_SOFT_MAX
    }

    /// Whether no further command may be taken.
    pub(super) fn full(&self) -> bool {
        self.slots.len() >= SLOTS_MAX
            || self.flight_bytes > FLIGHT_BYTES_SOFT_MAX
            || self.congested()
    }
}
