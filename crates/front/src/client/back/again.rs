//! What is sent again: reads that were packed together and whose replies do not fit into one message together, and what the store has left
//! out of a pack ([`super::pack`]).
//!
//! Each reply alone may fit, as it would have without packing, so the reads are sent again one by one.
//! Until a pack has its replies, nothing after it is sent on its connection. Otherwise later commands of
//! the pipeline would be executed before the reads that are sent again, and the later commands would
//! show an older state. A session has one bypass at a time anyway, so waiting costs no round trip.

use bytes::Bytes;
use pmnet_resp::{scan::count, write_command};
use pmnet_wire::command::{Commands, Form, preamble};

use super::calls::{Purpose, Submit};
use crate::client::replies::Slot;
use crate::client::{Connection, Later, Shared};
use crate::upstream::{Outcome, Upstream};

impl Connection {
    /// Whether this outcome of the call at `index` asks for its commands to be sent one by one; if
    /// so, that is arranged.
    pub(in crate::client) fn unpack(
        &mut self,
        index: usize,
        purpose: &Purpose,
        outcome: &Outcome,
    ) -> bool {
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
        if count(reply) == Some(*replies) {
            return false;
        }
        let Ok(commands) = Commands::parse(payload) else {
            return false;
        };
        let head = preamble(Form::Single, commands.protocol, commands.database);
        // Behind it are messages to a subscriber, at most.
        let mut after = self.replies.slots.split_off(index);
        after.pop_front();
        self.replies.slots.extend(commands.iter().map(|arguments| {
            let mut single = head.to_vec();
            write_command(&mut single, &arguments.collect::<Vec<_>>());
            Slot::Again {
                payload: Bytes::from(single),
                purpose: Purpose::one(),
                read_only: true,
            }
        }));
        self.replies.slots.append(&mut after);
        self.hold.for_repeats();
        true
    }

    /// Submits what must be sent again, before anything else. Each waits until the one before it has its
    /// reply and the client has room for another, so that only one reply is held here.
    ///
    /// # Errors
    /// [`Later`], as long as there is more.
    pub(in crate::client) fn repeat_reads<U: Upstream>(
        &mut self,
        up: &mut U,
        shared: &Shared,
    ) -> Result<(), Later> {
        let again = |slot: &Slot| matches!(slot, Slot::Again { .. });
        while let Some(index) = self.replies.slots.iter().position(again) {
            let waits = |slot: &Slot| matches!(slot, Slot::Call { .. });
            if self.congested() || self.replies.slots.iter().take(index).any(waits) {
                return Err(Later::Reads);
            }
            let Slot::Again {
                payload, read_only, ..
            } = &self.replies.slots[index]
            else {
                break;
            };
            let (payload, read_only) = (payload.clone(), *read_only);
            // Each has a time of its own, from the answer to the one before it.
            let how = Submit::Bypass { read_only };
            let submitted = self.submit(&payload, 0, how, self.times.answered(), up, shared)?;
            if self.replies.submitted(index, submitted) {
                self.packs.went_out();
            }
            self.replies.drain();
        }
        self.hold.release();
        Ok(())
    }
}
