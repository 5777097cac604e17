//! Commands that are not acknowledged early. A read is answered by the nearest component that can answer it,
//! every other command is a bypass.

use super::Back;
use super::beside::goes_beside_writes;
use super::own_keys::listing;
use super::own_write::place_after_own_write;
use super::pack::{Company, Kind, Part};
use super::reads::{Kept, Read};
use crate::client::command::Command;
use crate::client::context::{Context, Later};
use crate::table::{Facts, read_keys, touches_reserved};

/// Commands whose result depends on the present subscriptions.
const ABOUT_SUBSCRIPTIONS: [&str; 3] = ["PUBLISH", "SPUBLISH", "PUBSUB"];

fn is_about_subscriptions(facts: Option<&Facts>) -> bool {
    facts.is_some_and(|facts| ABOUT_SUBSCRIPTIONS.contains(&facts.name))
}

impl Back {
    /// Executes a command that only reads. The nearest component that can answer the command executes it.
    ///
    /// # Errors
    /// [`Later`]: the command cannot be sent now.
    pub(in crate::client) fn read(
        &mut self,
        command: &Command<'_>,
        company: Company,
        kept: Kept,
        cx: &mut Context<'_>,
    ) -> Result<(), Later> {
        if self.read_own_write(command, cx) {
            return Ok(());
        }
        cx.shared.own_writes.forget();
        if is_about_subscriptions(command.verdict.facts) {
            self.wait_for_subscriptions(cx)?;
        }
        if self.read_beside_writes(command, company, cx)? {
            return Ok(());
        }
        if company == Company::Any && self.batch_read(command, kept, cx)? {
            return Ok(());
        }
        self.bypass(command, Kind::Reads, company, cx)
    }

    /// Executes a command that may change the store and is not acknowledged early.
    ///
    /// # Errors
    /// [`Later`]: the command cannot be sent now.
    pub(in crate::client) fn write(
        &mut self,
        command: &Command<'_>,
        company: Company,
        cx: &mut Context<'_>,
    ) -> Result<(), Later> {
        cx.shared.own_writes.forget();
        if is_about_subscriptions(command.verdict.facts) {
            self.wait_for_subscriptions(cx)?;
            if self.passing.subscriptions() > 0 {
                self.submit_all(cx)?;
                let session = &mut self.session;
                return self.passing.publish_to_itself(command, session, cx);
            }
        }
        self.bypass(command, Kind::Writes, company, cx)
    }

    /// Sends a command that Redis is to execute, unless Redis has said that it is busy.
    fn bypass(
        &mut self,
        command: &Command<'_>,
        kind: Kind,
        company: Company,
        cx: &mut Context<'_>,
    ) -> Result<(), Later> {
        if let Some(busy) = cx.shared.busy.error(cx.shared.now).cloned() {
            self.make_room_for_reply(cx)?;
            self.reply(cx.pending, busy);
            return Ok(());
        }
        self.pack(Part::of(command, kind, company), cx)?;
        self.packs.count_own();
        Ok(())
    }

    /// Makes the next command wait for all changes of subscriptions that began before this command.
    fn wait_for_subscriptions(&mut self, cx: &mut Context<'_>) -> Result<(), Later> {
        if cx.pending.hold.asks_others() {
            self.submit_all(cx)?;
        }
        cx.pending.hold.come_behind(&cx.shared.subscribing)
    }

    /// Answers a GET with the value that a SET of this turn gives to the key. Returns false if there is no such SET.
    fn read_own_write(&mut self, command: &Command<'_>, cx: &mut Context<'_>) -> bool {
        // The commands of a pack or batch have no slots yet, so the GET joins these commands.
        let facts = command
            .verdict
            .facts
            .filter(|_| self.packs.is_empty() && !self.reads.has_batch());
        facts.is_some_and(|facts| {
            place_after_own_write(facts, command.arguments, &mut cx.pending.replies, cx.shared)
        })
    }

    /// Sends a read together with the writes before it. Returns false if the read goes alone.
    ///
    /// # Errors
    /// [`Later`]: the read cannot be sent now.
    fn read_beside_writes(
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
        // The part has the kind of the pack which it joins.
        self.pack(Part::of(command, Kind::Writes, company), cx)?;
        self.packs.count_detour();
        Ok(true)
    }

    /// Adds a read to the batch. Returns false if the read must be a bypass.
    ///
    /// # Errors
    /// [`Later`]: the read has to wait for the batch.
    fn batch_read(
        &mut self,
        command: &Command<'_>,
        kept: Kept,
        cx: &mut Context<'_>,
    ) -> Result<bool, Later> {
        let Command {
            arguments, frame, ..
        } = *command;
        let takes = self.reads.may_join(frame.len(), &self.packs, cx.shared)
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
            self.submit_all(cx)?;
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
}
