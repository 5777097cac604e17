//! A subscriber that publishes, in RESP3: the message to itself comes before the reply, as with Redis 7.0, or right after it, as with newer
//! ones.
//!
//! The message comes on the connection to the store, the reply from the server. So the reply is held back
//! until the store has answered something that is sent on that connection when the reply is here (a *fence*): the store had put
//! the message there before. Nothing that follows is taken from the client meanwhile. Messages of others that came before its own stay in front
//! of the reply in either case.

use bytes::Bytes;

use super::calls::{Purpose, Submit};
use crate::client::replies::Slot;
use crate::client::{Connection, Later, Shared};
use crate::upstream::Upstream;
use pmnet_resp::Arguments;
use pmnet_wire::command::Form;

impl Connection {
    /// PUBLISH of a client that is subscribed.
    pub(in crate::client) fn publish_to_itself<U: Upstream>(
        &mut self,
        frame: &[u8],
        arguments: &Arguments<'_>,
        up: &mut U,
        shared: &mut Shared,
    ) -> Result<(), Later> {
        let payload = Bytes::from([&self.preamble(Form::Single), frame].concat());
        let how = Submit::Bypass { read_only: false };
        let submitted = self.submit(&payload, 0, how, self.times.begun(), up, shared)?;
        if submitted.is_ok() {
            self.hold.for_outcome();
            self.passing.publishes(arguments.get(1), arguments.get(2));
        }
        self.expect(submitted, Purpose::Publish, payload.len());
        Ok(())
    }

    /// The reply to a PUBLISH is here, for the slot at `index`: it waits for the messages before it.
    pub(in crate::client) fn fence(&mut self, index: usize, reply: Bytes) {
        let Some(direct) = &mut self.passing.direct else {
            self.passing.has_published();
            return self.replies.fill(index, reply);
        };
        direct.fence();
        self.hold.for_outcome();
        self.replies.slots[index] = Slot::Fenced(reply);
    }

    /// The messages before the reply that is held back are here.
    pub(in crate::client) fn pass_fence(&mut self) {
        let fenced = |slot: &Slot| matches!(slot, Slot::Fenced(_));
        let Some(index) = self.replies.slots.iter().position(fenced) else {
            return;
        };
        self.passing.has_published();
        if let Slot::Fenced(reply) = &self.replies.slots[index] {
            let reply = reply.clone();
            self.replies.fill(index, reply);
        }
        self.hold.release();
        self.replies.drain();
    }

    /// Gives the reply that is held back if the connection is gone on which the fence was.
    pub(in crate::client) fn drop_stale_fence(&mut self) {
        if self.hold.is_for_outcome()
            && !self
                .passing
                .direct
                .as_ref()
                .is_some_and(super::direct::Direct::has_fence)
        {
            self.pass_fence();
        }
    }

    /// Where a message has its place that comes now, if not behind all: before the reply to what may have caused it.
    pub(in crate::client) fn message_place(&self) -> Option<usize> {
        self.replies.slots.iter().position(|slot| {
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
}
