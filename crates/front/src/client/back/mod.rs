//! The half of a client that concerns the store after the chain: calls, packs, reads, own writes, and commands that pass through on
//! a connection of the client's own.
//!
//! Each part owns its state. [`Back`] says in which order they have their turn.

pub(in crate::client) mod again;
pub(in crate::client) mod batch;
pub(in crate::client) mod beside;
pub(in crate::client) mod calls;
pub(in crate::client) mod confirm;
pub(in crate::client) mod direct;
pub(in crate::client) mod embedded;
mod ending;
mod fence;
pub(in crate::client) mod mark;
pub(in crate::client) mod own_keys;
pub(in crate::client) mod own_write;
pub(in crate::client) mod pack;
pub(in crate::client) mod pass;
pub(in crate::client) mod passage;
pub(in crate::client) mod passing;
pub(in crate::client) mod read_before;
pub(in crate::client) mod reads;
mod receive;
pub(in crate::client) mod replicas;
mod send;
mod subscription;

use bytes::Bytes;
use pmnet_wire::command::{Form, PREAMBLE_LEN};

use super::Later;
use super::face::{Face, Pending};
use super::gates::Command;
use super::replies::Replies;
use crate::table::{early_ack, key_hash, read_keys, touches_reserved};
use crate::upstream::{Call, Submit};
use beside::{goes_beside_writes, may_open_pack};
use calls::{Context, Purpose, Session, head};
use own_keys::listing;
use own_write::read_own_write;
use pack::{Company, Kind, Packs, Part};
use passing::Passing;
use reads::{Kept, Read, Reads};

/// A client's calls to the store, and its own connection there.
#[derive(Default)]
pub(in crate::client) struct Back {
    pub(in crate::client) session: Session,
    pub(in crate::client) packs: Packs,
    pub(in crate::client) reads: Reads,
    pub(in crate::client) passing: Passing,
}

impl Back {
    /// Sends the pack, if there is one, and gets the batch of reads answered that comes after it. Then the next pack may be put
    /// together.
    ///
    /// # Errors
    /// [`Later`]: they could not be sent now.
    pub(in crate::client) fn begin_pack(&mut self, cx: &mut Context<'_>) -> Result<(), Later> {
        self.packs.send(&mut self.session, cx)?;
        if self.reads.has_batch() {
            self.reads.advance(&mut self.packs, &mut self.session, cx)?;
            self.packs.send(&mut self.session, cx)?;
        }
        Ok(())
    }

    /// The same. Then anything may be submitted.
    ///
    /// # Errors
    /// [`Later`]: nothing may be submitted after them now.
    pub(in crate::client) fn flush(&mut self, cx: &mut Context<'_>) -> Result<(), Later> {
        self.begin_pack(cx)?;
        if self.packs.is_out() {
            // The store may leave out a part of it, which comes before everything later.
            return Err(Later::Reads);
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
            self.flush(cx)?;
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
            self.begin_pack(cx)?;
        }
        self.packs.put(part, cx);
        Ok(())
    }

    /// An update: acknowledged as soon as it is durable.
    ///
    /// # Errors
    /// [`Later`]: it cannot be sent now.
    pub(in crate::client) fn update(
        &mut self,
        command: &Command<'_>,
        cx: &mut Context<'_>,
    ) -> Result<(), Later> {
        let Command {
            arguments,
            frame,
            verdict,
        } = *command;
        // Its turn comes when the writes before it have their replies, so it may as well go with them. An assumed
        // command may not: its reply is always OK.
        let packs = match self.packs.open() {
            Some(pack) => pack.has_room(Kind::Writes, frame.len()),
            None => may_open_pack(&self.packs, &self.reads, frame.len()),
        };
        if packs && early_ack(arguments) {
            cx.shared.own_writes.forget();
            self.pack(Part::of(command, Kind::Writes, Company::Any), cx)?;
            self.packs.count_detour();
            return Ok(());
        }
        let key_hash = verdict.facts.map_or(0, |facts| key_hash(facts, arguments));
        self.flush(cx)?;
        let mut payload = Vec::with_capacity(PREAMBLE_LEN + frame.len());
        payload.extend_from_slice(&head(Form::Single, cx.selected));
        payload.extend_from_slice(frame);
        let bytes = payload.len();
        let payload = Bytes::from(payload);
        let call = Call {
            payload: &payload,
            key_hash,
            how: Submit::Update,
            deadline: cx.deadline(),
        };
        let submitted = self.session.submit(call, cx.up, cx.shared.now)?;
        let call = submitted.as_ref().ok().copied();
        cx.shared.own_writes.note(call, arguments, &payload);
        cx.pending
            .expect(submitted, Purpose::Update { readers: 0 }, bytes);
        Ok(())
    }

    /// Answers a GET with what this turn has SET; false if it is none.
    pub(in crate::client) fn read_own_write(
        &mut self,
        command: &Command<'_>,
        cx: &mut Context<'_>,
    ) -> bool {
        // The commands of a pack or a batch have no place yet: the GET goes with them.
        let facts = command
            .verdict
            .facts
            .filter(|_| self.packs.is_empty() && !self.reads.has_batch());
        facts.is_some_and(|facts| {
            read_own_write(facts, command.arguments, &mut cx.pending.replies, cx.shared)
        })
    }

    /// Sends a read with the writes before it; false if it goes alone.
    ///
    /// # Errors
    /// [`Later`]: it cannot be sent now.
    pub(in crate::client) fn read_beside_writes(
        &mut self,
        command: &Command<'_>,
        company: Company,
        cx: &mut Context<'_>,
    ) -> Result<bool, Later> {
        let (protocol, now) = (cx.selected.protocol, cx.shared.now);
        if !goes_beside_writes(command, &self.packs, &self.reads, protocol, now) {
            return Ok(false);
        }
        cx.shared.counters.bypassed_reads += 1;
        self.pack(Part::of(command, Kind::Writes, company), cx)?;
        self.packs.count_detour();
        Ok(true)
    }

    /// Adds a read to the batch; false if it has to be a bypass.
    ///
    /// # Errors
    /// [`Later`]: it has to wait for the batch.
    pub(in crate::client) fn batch_read(
        &mut self,
        command: &Command<'_>,
        kept: Kept,
        cx: &mut Context<'_>,
    ) -> Result<bool, Later> {
        let Command {
            arguments, frame, ..
        } = *command;
        let takes = self.reads.take(frame.len(), &self.packs, cx.shared)
            && self.passing.subscriptions() == 0;
        let Some(facts) = command.verdict.facts.filter(|_| takes) else {
            return Ok(false);
        };
        let listing =
            listing(facts, arguments).filter(|_| cx.shared.now >= cx.shared.listing_after);
        let keys = read_keys(facts, arguments);
        if (keys.is_none() && listing.is_none()) || touches_reserved(arguments) {
            return Ok(false);
        }
        if !self.packs.is_empty() || self.reads.is_full() {
            self.flush(cx)?;
        }
        let read = Read {
            command,
            facts,
            listing,
            kept,
        };
        self.reads.add(read, keys.into_iter().flatten(), cx);
        Ok(true)
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
        self.flush(cx)?;
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
