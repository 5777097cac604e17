//! Reads that were packed together and whose replies do not fit into one message together.
//!
//! Each alone may fit, as it would have without packing, so they are sent again one by one, unless
//! their client has sent something that changes state after them: they would see it.

use bytes::Bytes;
use pmnet_wire::command::{Commands, Form, preamble, write_command};

use super::calls::{Purpose, Slot, Submit};
use super::{Busy, Connection, Shared};
use crate::reply;
use crate::upstream::{Outcome, Upstream};

impl Connection {
    /// Whether this outcome of the call at `index` asks for its commands to be sent one by one; if
    /// so, that is arranged.
    pub(super) fn unpack(&mut self, index: usize, purpose: &Purpose, outcome: &Outcome) -> bool {
        let (
            Purpose::Bypass {
                replies,
                again: Some(payload),
                ..
            },
            Outcome::Reply(reply),
        ) = (purpose, outcome)
        else {
            return false;
        };
        if reply::count(reply) == Some(*replies) || !self.only_reads_after(index) {
            return false;
        }
        let Ok(commands) = Commands::parse(payload) else {
            return false;
        };
        let head = preamble(Form::Single, commands.protocol, commands.database);
        let mut after = self.slots.split_off(index);
        after.pop_front();
        self.slots.extend(commands.iter().map(|arguments| {
            let mut single = head.to_vec();
            write_command(&arguments.collect::<Vec<_>>(), &mut single);
            Slot::Again(Bytes::from(single))
        }));
        self.slots.append(&mut after);
        self.repeating = true;
        true
    }

    fn only_reads_after(&self, index: usize) -> bool {
        self.slots.iter().skip(index + 1).all(|slot| match slot {
            Slot::Ready(_) | Slot::Again(_) => true,
            Slot::Call {
                purpose:
                    Purpose::Update
                    | Purpose::Bypass {
                        read_only: false, ..
                    },
                ..
            } => false,
            Slot::Call { .. } => true,
            Slot::Passage => false,
        })
    }

    /// Submits what has to be sent again, before anything else is.
    pub(super) fn repeat_reads<U: Upstream>(
        &mut self,
        up: &mut U,
        shared: &Shared,
    ) -> Result<(), Busy> {
        for index in 0..self.slots.len() {
            let Slot::Again(payload) = &self.slots[index] else {
                continue;
            };
            let payload = payload.clone();
            let submitted =
                self.submit(&payload, 0, Submit::Bypass { read_only: true }, up, shared)?;
            let purpose = Purpose::Bypass {
                replies: 1,
                read_only: true,
                again: None,
            };
            match submitted {
                Ok(call) => {
                    self.slots[index] = Slot::Call {
                        call,
                        purpose,
                        bytes: 0,
                    }
                }
                Err(error) => self.fill(index, error),
            }
        }
        self.repeating = false;
        self.drain();
        Ok(())
    }
}
