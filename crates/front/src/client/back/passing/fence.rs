//! PUBLISH of a RESP3 client to a channel to which it is subscribed. In Redis 7.0 the message comes before the reply,
//! in newer versions right after the reply. The front keeps the order of the store's version.
//!
//! The message comes on the connection to the store, the reply comes from the server. When the reply has come, the
//! front sends a command (a *fence*) on the connection to the store, and holds the reply back until the fence is
//! answered. The store sent the message before it answered the fence. Until the fence is answered, no further command
//! is taken from the client. Messages of other clients that came before the client's own message precede the reply in
//! all versions.

use bytes::Bytes;
use pmnet_resp::read;

use super::Passing;
use super::direct::Direct;
use crate::client::back::calls::{Purpose, Session, single};
use crate::client::command::Command;
use crate::client::context::{Context, Later};
use crate::client::face::Pending;
use crate::client::replies::Slot;
use crate::upstream::{Call, Submit};

/// The first Redis version that sends the reply to a PUBLISH before the message, if a RESP3 client publishes
/// to its own subscription.
const REPLY_FIRST: (u32, u32) = (7, 2);

/// A PUBLISH that is under way.
pub(super) struct Published {
    channel: Vec<u8>,
    message: Vec<u8>,
    /// Whether the client's own message has come. Messages after the client's own message follow the reply, too.
    came: bool,
}

impl Passing {
    /// Begins a PUBLISH of a client that is subscribed.
    ///
    /// # Errors
    /// [`Later`]: the PUBLISH could not be sent now.
    pub(in crate::client) fn publish_to_itself(
        &mut self,
        command: &Command<'_>,
        session: &mut Session,
        cx: &mut Context<'_>,
    ) -> Result<(), Later> {
        let payload = single(command.frame, cx.selected);
        let call = Call {
            payload: &payload,
            key_hash: 0,
            how: Submit::Bypass { read_only: false },
            deadline: cx.deadline(),
        };
        let submitted = session.submit(call, cx.up, cx.shared.now)?;
        if submitted.is_ok() {
            self.publishes(command.arguments.get(1), command.arguments.get(2));
        }
        cx.pending
            .expect_first(submitted, Purpose::Publish, payload.len());
        Ok(())
    }

    /// Takes the reply to a PUBLISH, for the slot at `index`. The reply waits for the messages before it.
    pub(in crate::client) fn fence(&mut self, index: usize, reply: Bytes, pending: &mut Pending) {
        let Some(direct) = &mut self.direct else {
            self.has_published();
            return pending.replies.fill(index, reply);
        };
        direct.fence();
        pending.hold.for_outcome();
        pending.replies.slots[index] = Slot::Fenced(reply);
    }

    /// Releases the reply that is held back, because the messages before it have come.
    pub(super) fn pass_fence(&mut self, pending: &mut Pending) {
        let replies = &mut pending.replies;
        let fenced = |slot: &Slot| matches!(slot, Slot::Fenced(_));
        let Some(index) = replies.slots.iter().position(fenced) else {
            return;
        };
        self.has_published();
        if let Slot::Fenced(reply) = &replies.slots[index] {
            let reply = reply.clone();
            replies.fill(index, reply);
        }
        pending.hold.release();
        replies.drain();
    }

    /// Releases the reply that is held back if the connection with the fence is lost.
    pub(in crate::client) fn drop_stale_fence(&mut self, pending: &mut Pending) {
        let has_fence = self.direct.as_ref().is_some_and(Direct::has_fence);
        if pending.hold.is_for_outcome() && !has_fence {
            self.pass_fence(pending);
        }
    }

    /// Notes what the client publishes.
    fn publishes(&mut self, channel: &[u8], message: &[u8]) {
        let found = self
            .direct
            .as_ref()
            .and_then(|direct| direct.found.as_ref());
        self.published = found
            .filter(|found| found.version >= REPLY_FIRST)
            .map(|_| Published {
                channel: channel.to_vec(),
                message: message.to_vec(),
                came: false,
            });
    }

    /// Notes that the client has the reply to its PUBLISH.
    pub(in crate::client) fn has_published(&mut self) {
        self.published = None;
    }

    /// Whether this message must follow the reply to the client's PUBLISH.
    pub(super) fn is_behind_reply(&mut self, value: &[u8]) -> bool {
        let Some(published) = &mut self.published else {
            return false;
        };
        published.came = published.came
            || message_of(value).is_some_and(|(channel, message)| {
                published.channel == channel && published.message == message
            });
        published.came
    }
}

/// If `value` is a message to a subscriber, returns its channel and its text.
fn message_of(value: &[u8]) -> Option<(&[u8], &[u8])> {
    let parts = read::elements(value)?;
    let bulk = |at: usize| read::bulk(parts.get(at)?);
    match (bulk(0)?, parts.len()) {
        (b"message" | b"smessage", 3) => Some((bulk(1)?, bulk(2)?)),
        (b"pmessage", 4) => Some((bulk(2)?, bulk(3)?)),
        _ => None,
    }
}
