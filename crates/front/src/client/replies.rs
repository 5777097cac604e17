//! The replies to a client, in the order of its commands.
//!
//! Invariant: a reply leaves only after the replies of all commands before it.

use std::collections::VecDeque;

use bytes::Bytes;

use super::back::calls::Purpose;
use super::backlog::Output;
use super::{FLIGHT_BYTES_SOFT_MAX, READY_BYTES_SOFT_MAX, SLOTS_MAX};
use crate::upstream::CallId;

/// Whether replies are discarded (CLIENT REPLY).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Muted {
    #[default]
    No,
    Yes,
}

/// The place of a command's reply.
#[derive(Debug)]
pub(super) enum Slot {
    /// The reply, which waits for earlier replies.
    Ready(Bytes),
    /// A call is outstanding.
    Call {
        call: CallId,
        purpose: Purpose,
        bytes: usize,
    },
    /// A GET of the value that this call's update sets: `reply` is given if the update is committed.
    OwnWrite { call: CallId, reply: Bytes },
    /// The command that passes through has no reply yet.
    Passage,
    /// The reply to a PUBLISH, which waits for the messages before it.
    Fenced(Bytes),
    /// A payload that must be submitted again, and its purpose.
    Again {
        payload: Bytes,
        purpose: Purpose,
        read_only: bool,
    },
    /// A message that is not a reply. The message waits for the replies before it.
    Message(Bytes),
    /// A request about the front's clients has no answer yet.
    Clients,
    /// From this place on, replies are discarded, or are sent again (CLIENT REPLY).
    Mute(Muted),
}

#[derive(Default)]
pub(super) struct Replies {
    pub(super) slots: VecDeque<Slot>,
    /// Bytes of the replies in `slots` that wait for earlier replies.
    ready_bytes: usize,
    /// Bytes that the other slots have in flight or set aside.
    flight_bytes: usize,
    output: Output,
    /// Bytes of `output` above which no further command is taken.
    unread_max: usize,
    /// Whether the replies that are next in order are discarded.
    muted: Muted,
}

impl Replies {
    /// Puts a reply after all outstanding replies.
    pub(super) fn push(&mut self, reply: Bytes) {
        if !self.slots.is_empty() {
            self.ready_bytes += reply.len();
            self.slots.push_back(Slot::Ready(reply));
        } else if self.muted == Muted::No {
            self.output.push(&reply);
        }
    }

    /// Puts a message before the reply at `index`. If there is no slot at `index`, the message goes after all replies.
    pub(super) fn insert(&mut self, index: usize, message: &Bytes) {
        if index == 0 {
            self.output.push(message);
        } else {
            self.ready_bytes += message.len();
            self.slots.insert(index, Slot::Message(message.clone()));
        }
    }

    /// From this place on, discards replies or stops discarding them. As in Redis, messages are not discarded.
    pub(super) fn mute(&mut self, muted: Muted) {
        if self.slots.is_empty() {
            self.muted = muted;
        } else {
            self.slots.push_back(Slot::Mute(muted));
        }
    }

    /// Returns the place among the replies for a message that arrives now. The place is before the reply to the command
    /// that may have caused the message. `None`: the message goes after all replies.
    pub(super) fn message_place(&self) -> Option<usize> {
        self.slots.iter().position(|slot| {
            matches!(
                slot,
                Slot::Passage
                    | Slot::Fenced(_)
                    | Slot::Call {
                        purpose: Purpose::Publish,
                        ..
                    }
            )
        })
    }

    /// Sets the bound of unread bytes. Above this bound no further command is taken.
    pub(super) fn set_unread_max(&mut self, bytes: usize) {
        self.unread_max = bytes;
    }

    /// Adds a call that is outstanding, with `bytes` in flight or set aside.
    pub(super) fn await_call(&mut self, call: CallId, purpose: Purpose, bytes: usize) {
        self.flight_bytes += bytes;
        self.slots.push_back(Slot::Call {
            call,
            purpose,
            bytes,
        });
    }

    /// Adds an outstanding call for the command at `index`, which has waited for another answer until now.
    pub(super) fn await_call_at(
        &mut self,
        index: usize,
        call: CallId,
        purpose: Purpose,
        bytes: usize,
    ) {
        self.flight_bytes += bytes;
        self.slots[index] = Slot::Call {
            call,
            purpose,
            bytes,
        };
    }

    /// Adds a GET of a value that an update under way sets. `call`: the call of that update. `reply`: the reply to the
    /// GET if the update is committed.
    pub(super) fn await_update(&mut self, call: CallId, reply: Bytes) {
        self.flight_bytes += reply.len();
        self.slots.push_back(Slot::OwnWrite { call, reply });
    }

    /// Takes out the reply of the GET at `index`. The caller must fill the slot.
    pub(super) fn take_own_write(&mut self, index: usize) -> Option<Bytes> {
        let Slot::OwnWrite { reply, .. } = self.slots.get(index)? else {
            return None;
        };
        self.flight_bytes = self.flight_bytes.saturating_sub(reply.len());
        Some(reply.clone())
    }

    /// Takes out the call at `index`, if there is one. The caller must fill the slot.
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

    /// Returns the slot of this call.
    pub(super) fn place_of(&self, call: CallId) -> Option<usize> {
        let is = |slot: &Slot| matches!(slot, Slot::Call { call: c, .. } if *c == call);
        self.slots.iter().position(is)
    }

    /// Gives this error to all commands that must be submitted again.
    pub(super) fn fail_unsent(&mut self, error: &Bytes) {
        for index in 0..self.slots.len() {
            if let Slot::Again { purpose, .. } = &self.slots[index] {
                let failed = purpose.failed(error);
                self.fill(index, failed);
            }
        }
    }

    /// Sets the reply to the command of this slot.
    pub(super) fn fill(&mut self, index: usize, reply: Bytes) {
        self.ready_bytes += reply.len();
        self.slots[index] = Slot::Ready(reply);
    }

    /// Notes that the payload at `index` was submitted again, or failed with an error. Returns whether the
    /// payload is a pack that is under way now.
    pub(super) fn submitted(&mut self, index: usize, submitted: Result<CallId, Bytes>) -> bool {
        let Slot::Again { purpose, .. } =
            std::mem::replace(&mut self.slots[index], Slot::Ready(Bytes::new()))
        else {
            return false;
        };
        match submitted {
            Ok(call) => {
                let is_pack = matches!(purpose, Purpose::Pack(_));
                self.slots[index] = Slot::Call {
                    call,
                    purpose,
                    bytes: 0,
                };
                is_pack
            }
            Err(error) => {
                self.fill(index, purpose.failed(&error));
                false
            }
        }
    }

    /// Puts these slots after the slot at `index`.
    pub(super) fn put_behind(&mut self, index: usize, slots: Vec<Slot>) {
        for (at, slot) in (index + 1..).zip(slots) {
            if let Slot::Ready(bytes) = &slot {
                self.ready_bytes += bytes.len();
            }
            self.slots.insert(at, slot);
        }
    }

    /// Moves the replies that are next in order to the output.
    pub(super) fn drain(&mut self) {
        let next =
            |slot: &mut Slot| matches!(slot, Slot::Ready(_) | Slot::Message(_) | Slot::Mute(_));
        while let Some(slot) = self.slots.pop_front_if(next) {
            let (bytes, muted) = match slot {
                Slot::Ready(bytes) => (bytes, self.muted),
                Slot::Message(bytes) => (bytes, Muted::No),
                Slot::Mute(muted) => {
                    self.muted = muted;
                    continue;
                }
                _ => continue,
            };
            self.ready_bytes = self.ready_bytes.saturating_sub(bytes.len());
            if muted == Muted::No {
                self.output.push(&bytes);
            }
        }
    }

    /// Drops all outstanding replies. Replies that are complete and next in order are kept, and `last` follows them as
    /// the last reply.
    pub(super) fn cut(&mut self, last: &Bytes) {
        self.slots.clear();
        self.ready_bytes = 0;
        self.flight_bytes = 0;
        self.output.push(last);
    }

    /// Returns the bytes to be written first.
    pub(super) fn unwritten(&self) -> &[u8] {
        self.output.head()
    }

    pub(super) fn wrote(&mut self, count: usize) {
        self.output.wrote(count);
    }

    /// Returns the bytes of replies that are held for the client.
    pub(super) fn held(&self) -> usize {
        self.output.len() + self.ready_bytes
    }

    /// Whether no reply is outstanding and all bytes are written.
    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty() && self.output.len() == 0
    }

    pub(super) fn congested(&self) -> bool {
        self.output.len() > self.unread_max
    }

    /// Whether no further command may be taken.
    pub(super) fn full(&self) -> bool {
        self.slots.len() >= SLOTS_MAX
            || self.flight_bytes > FLIGHT_BYTES_SOFT_MAX
            || self.ready_bytes > READY_BYTES_SOFT_MAX
            || self.congested()
    }

    /// Whether the bytes held for the client exceed the soft limit. Above the soft limit, further messages wait at the
    /// store.
    pub(super) fn holds_much(&self) -> bool {
        self.held() > READY_BYTES_SOFT_MAX
    }
}
