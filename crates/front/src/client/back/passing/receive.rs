//! Replies and messages that the store sends on a client's own connection: answers to the front, messages to
//! the client, and the reply to the command that passes through.

use bytes::Bytes;
use pmnet_resp::reply;

use super::Passing;
use super::direct::{Direct, Failure};
use super::passage::{Confirmations, Effect, Passage};
use crate::client::Shared;
use crate::client::face::Face;
use crate::store::line::UNASKED;

/// Error text for a connection that is given up because its replies are invalid.
const NOT_RESP: &str = "the store sent something that is not an acceptable RESP reply";

impl Passing {
    /// Takes bytes from the store.
    pub(in crate::client) fn receive(&mut self, bytes: &[u8], face: &mut Face, shared: &Shared) {
        let Some(mut direct) = self.direct.take() else {
            return;
        };
        direct.heard = true;
        direct.line.receive(bytes);
        let mut result = Ok(());
        while result.is_ok() {
            match direct.line.next() {
                Ok(None) => break,
                Ok(Some(value)) => {
                    result = self.value(&mut direct, &value, face, shared);
                }
                Err(_) => result = Err(NOT_RESP.to_owned().into()),
            }
        }
        self.direct = Some(direct);
        match result {
            Ok(()) => {}
            Err(Failure::Lost(why)) => self.lost(face, &why),
            Err(Failure::Refused(why)) => self.login_refused(face, &why),
        }
    }

    /// Handles one reply or message.
    fn value(
        &mut self,
        direct: &mut Direct,
        value: &Bytes,
        face: &mut Face,
        shared: &Shared,
    ) -> Result<(), Failure> {
        if direct.take_answer(value)? {
            if std::mem::take(&mut direct.passed_fence) {
                self.pass_fence(&mut face.pending);
            }
            return Ok(());
        }
        let sent = self.is_sent();
        // Data may look like a subscription message. The value is a message only if messages can come at this point of
        // the conversation.
        let subscribes = match &self.passage {
            Some(passage) if sent => passage.is_about_subscriptions(),
            _ => direct.subscribed + direct.subscribed_sharded > 0,
        };
        if subscribes || value.starts_with(b">") {
            direct.note_subscription(value);
        }
        let Some(passage) = self.passage.as_mut().filter(|_| sent) else {
            if !(subscribes || face.mode.monitors() || value.starts_with(b">")) {
                // Otherwise the client would take this value for the reply to another command.
                return Err(UNASKED.to_owned().into());
            }
            // If a command waits to be sent, the store sent this value before it got the command.
            self.hand_on(value, face);
            return Ok(());
        };
        let is_reply = match &mut passage.effect {
            // Before the sentinel come confirmations and messages, in the order of the store.
            Effect::Subscribe(Confirmations {
                sentinel,
                handed_on,
            }) => {
                let ends = is_sentinel(value, sentinel);
                *handed_on |= !ends;
                ends
            }
            // A message to a RESP3 client while another command waits for its reply.
            _ => !value.starts_with(b">"),
        };
        if !is_reply {
            self.hand_on(value, face);
            return Ok(());
        }
        if let Some(passage) = self.passage.take() {
            self.answer(passage, direct, value, face, shared);
        }
        Ok(())
    }

    /// Handles the store's reply to the command.
    fn answer(
        &mut self,
        mut passage: Passage,
        direct: &mut Direct,
        value: &Bytes,
        face: &mut Face,
        shared: &Shared,
    ) {
        face.pending.times.make_way();
        if passage.kills() && value.starts_with(b"+") {
            self.killed = true;
        }
        let refused = direct.refused.take();
        let refused = refused.filter(|_| passage.name.starts_with("WAIT"));
        let value = refused.as_ref().unwrap_or(value);
        passage.apply(value, direct, face);
        let reply = match passage.effect {
            Effect::Subscribe(_) => Bytes::new(),
            Effect::Protocol if !value.starts_with(b"-") => face.hello_reply(shared),
            // A client that followed a redirection would bypass pmnet.
            _ if value.starts_with(b"-MOVED ") || value.starts_with(b"-ASK ") => reply::error(
                "TRYAGAIN pmnet: the slot of its keys is not with the master of its shard, or is being moved; the command was not \
                 executed",
            ),
            _ => value.clone(),
        };
        if passage.needs_confirmation(value) {
            passage.await_confirmation(reply);
            self.passage = Some(passage);
        } else {
            face.pending.settle(reply);
        }
    }

    /// Forwards a value of the store in the store's order. The value follows all replies to earlier commands. It
    /// precedes the reply to the command that is being passed, because that command may have caused the value.
    fn hand_on(&mut self, value: &Bytes, face: &mut Face) {
        let replies = &mut face.pending.replies;
        let behind_all = replies.slots.len();
        let place = if self.is_behind_reply(value) {
            behind_all
        } else {
            replies.message_place().unwrap_or(behind_all)
        };
        replies.insert(place, value);
    }
}

fn is_sentinel(value: &[u8], sentinel: &[u8]) -> bool {
    // The error is "ERR unknown command 'NAME', with args …". Redis before version 7 used other quotes.
    let name = value
        .strip_prefix(b"-ERR unknown command ")
        .and_then(|rest| rest.get(1..))
        .and_then(|rest| rest.strip_prefix(sentinel));
    matches!(name, Some([b'\'' | b'`', ..]))
}
