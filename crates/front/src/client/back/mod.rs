//! The part of a client that uses the store: calls, packs, reads, own writes, and commands that pass through
//! on a connection of the client's own.
//!
//! Each part owns its state. [`Back`] defines the order in which the parts are sent.

pub(in crate::client) mod again;
pub(in crate::client) mod batch;
mod beside;
pub(in crate::client) mod calls;
pub(in crate::client) mod execute;
mod own_keys;
pub(in crate::client) mod own_write;
pub(in crate::client) mod pack;
pub(in crate::client) mod passing;
mod read;
pub(in crate::client) mod read_before;
pub(in crate::client) mod reads;
pub(in crate::client) mod replicas;
mod update;

use bytes::Bytes;

use super::context::{Context, Later};
use super::face::{Face, Pending};
use super::replies::Replies;
use crate::upstream::Call;
use calls::{Purpose, Session};
use pack::{Packs, Part};
use passing::Passing;
use reads::Reads;

/// A client's calls to the store, and its own connection to the store.
#[derive(Default)]
pub(in crate::client) struct Back {
    pub(in crate::client) session: Session,
    pub(in crate::client) packs: Packs,
    pub(in crate::client) reads: Reads,
    pub(in crate::client) passing: Passing,
}

impl Back {
    /// Submits the pack, and then the batch of reads after it. Once both are submitted, the next pack may be put
    /// together.
    ///
    /// # Errors
    /// [`Later`]: the pack or the batch could not be submitted now.
    pub(in crate::client) fn send_pack(&mut self, cx: &mut Context<'_>) -> Result<(), Later> {
        self.packs.send(&mut self.session, cx)?;
        if self.reads.has_batch() {
            self.reads.advance(&mut self.packs, &mut self.session, cx)?;
            self.packs.send(&mut self.session, cx)?;
        }
        Ok(())
    }

    /// Submits the pack and the batch. Fails while a pack is under way, because no later call may be
    /// submitted then.
    ///
    /// # Errors
    /// [`Later`]: no later call may be submitted now.
    pub(in crate::client) fn submit_all(&mut self, cx: &mut Context<'_>) -> Result<(), Later> {
        self.send_pack(cx)?;
        if self.packs.is_out() {
            // The store may leave out a part of the pack. The part that the store left out must be sent again before
            // every later command.
            return Err(Later::Outstanding);
        }
        Ok(())
    }

    /// Prepares for a reply that the front itself gives. An open pack of writes takes the reply in. A pack or batch of
    /// reads cannot take the reply in, so the pack or batch is sent first.
    ///
    /// # Errors
    /// [`Later`]: the pack or batch could not be sent now.
    pub(in crate::client) fn make_room_for_reply(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Result<(), Later> {
        if self.packs.has_reads() || self.reads.has_batch() {
            self.submit_all(cx)?;
        }
        Ok(())
    }

    /// Puts a reply that the front itself gives after all outstanding replies.
    pub(in crate::client) fn reply(&mut self, pending: &mut Pending, reply: Bytes) {
        self.packs.reply(&mut pending.replies, reply);
    }

    /// Adds a command to the pack. If the command does not fit, the pack is sent first.
    ///
    /// # Errors
    /// [`Later`]: the pack could not be sent now.
    pub(in crate::client) fn pack(
        &mut self,
        part: Part<'_>,
        cx: &mut Context<'_>,
    ) -> Result<(), Later> {
        if self.packs.goes_before(&part) {
            self.send_pack(cx)?;
        }
        self.packs.put(part, cx);
        Ok(())
    }

    /// Asks the store a question of the front. The client's later commands wait for the answer. Returns false if the
    /// question could not be sent; the client has then got an error.
    ///
    /// # Errors
    /// [`Later`]: the question cannot be sent now.
    pub(in crate::client) fn ask(
        &mut self,
        payload: Bytes,
        purpose: Purpose,
        cx: &mut Context<'_>,
    ) -> Result<bool, Later> {
        self.submit_all(cx)?;
        let call = Call::question(&payload, cx.deadline());
        let submitted = self.session.submit(call, cx.up, cx.shared.now)?;
        let asked = submitted.is_ok();
        cx.pending.expect_first(submitted, purpose, payload.len());
        Ok(asked)
    }

    /// Whether everything is sent and answered.
    pub(in crate::client) fn is_idle(&self) -> bool {
        self.packs.is_empty() && !self.reads.has_batch() && !self.passing.is_under_way()
    }

    /// Drops all calls and reads that wait for an answer. Their places among the replies stay.
    pub(in crate::client) fn drop_outstanding(&mut self, pending: &mut Pending) {
        pending.hold.release();
        self.packs.clear();
        self.reads.drop_batch();
        self.passing.drop_passage();
        self.passing.drop_direct();
    }

    /// Drops all outstanding calls, because the client takes no further answers.
    pub(in crate::client) fn abandon(&mut self, face: &mut Face) {
        face.end.end();
        face.pending.replies = Replies::default();
        self.drop_outstanding(&mut face.pending);
    }
}
