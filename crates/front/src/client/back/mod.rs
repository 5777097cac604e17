//! The half of a client that concerns the store after the chain: calls, packs, reads, own writes, and commands that pass through on
//! a connection of the client's own.
//!
//! Each part owns its state. [`Back`] says in which order they have their turn.

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

/// A client's calls to the store, and its own connection there.
#[derive(Default)]
pub(in crate::client) struct Back {
    pub(in crate::client) session: Session,
    pub(in crate::client) packs: Packs,
    pub(in crate::client) reads: Reads,
    pub(in crate::client) passing: Passing,
}

impl Back {
    /// Submits the pack, and then the batch of reads after it. Then the next pack may be put together.
    ///
    /// # Errors
    /// [`Later`]: they could not be submitted now.
    pub(in crate::client) fn send_pack(&mut self, cx: &mut Context<'_>) -> Result<(), Later> {
        self.packs.send(&mut self.session, cx)?;
        if self.reads.has_batch() {
            self.reads.advance(&mut self.packs, &mut self.session, cx)?;
            self.packs.send(&mut self.session, cx)?;
        }
        Ok(())
    }

    /// Submits the pack and the batch, and fails while a pack is out: nothing may come after it.
    ///
    /// # Errors
    /// [`Later`]: nothing may be submitted after them now.
    pub(in crate::client) fn submit_all(&mut self, cx: &mut Context<'_>) -> Result<(), Later> {
        self.send_pack(cx)?;
        if self.packs.is_out() {
            // The store may leave out a part of it, which comes before everything later.
            return Err(Later::Outstanding);
        }
        Ok(())
    }

    /// Prepares for a reply of the front's own: a pack of writes takes it in; a pack or batch of reads, which cannot, is sent.
    ///
    /// # Errors
    /// [`Later`]: that could not be sent now.
    pub(in crate::client) fn make_room_for_reply(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Result<(), Later> {
        if self.packs.has_reads() || self.reads.has_batch() {
            self.submit_all(cx)?;
        }
        Ok(())
    }

    /// Puts a reply of the front's own after all that are outstanding.
    pub(in crate::client) fn reply(&mut self, pending: &mut Pending, reply: Bytes) {
        self.packs.reply(&mut pending.replies, reply);
    }

    /// Adds a command to the pack, after sending the pack if it does not fit.
    ///
    /// # Errors
    /// [`Later`]: it could not be sent now.
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

    /// Asks the store something that the front itself needs to know. The client's later commands wait for the answer. False if it could
    /// not be asked; the client then has the error.
    ///
    /// # Errors
    /// [`Later`]: it cannot be sent now.
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

    /// Drops what waits for an answer, but the places of the answers.
    pub(in crate::client) fn drop_outstanding(&mut self, pending: &mut Pending) {
        pending.hold.release();
        self.packs.clear();
        self.reads.drop_batch();
        self.passing.drop_passage();
        self.passing.drop_direct();
    }

    /// Drops what is outstanding: the client takes no answers.
    pub(in crate::client) fn abandon(&mut self, face: &mut Face) {
        face.end.end();
        face.pending.replies = Replies::default();
        self.drop_outstanding(&mut face.pending);
    }
}
