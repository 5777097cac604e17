//! How a passed command gets to the store: the front's mark if it may change the store, barrier, connection, command.
//!
//! The barrier's reply names the store that the server uses now. The command is sent only on a
//! connection that leads to exactly that store ([`crate::store::identity`]). Any other connection is closed, and
//! its state is lost: a watch fails, a subscription ends. All of this has one deadline, and so has the
//! reply, unless the command blocks ([`crate::client::deadline`]).

use bytes::Bytes;
use pmnet_resp::{reply, write_command};
use pmnet_wire::StoreName;
use pmnet_wire::command::{Form, NO_ADDRESS, Protocol, preamble};

use super::calls::{Submit, outcome_reply};
use super::confirm::Answer;
use super::direct::Direct;
use super::embedded::Waits;
use super::pass::Effect;
use crate::client::mode::Mode;
use crate::client::replies::Slot;
use crate::client::transaction::EXECABORT;
use crate::client::{Connection, Later, Shared};
use crate::store::identity::{Match, store_name};
use crate::upstream::{CallId, Outcome, Time, Upstream};

/// A barrier that changes nothing, and may be repeated.
const READ: Submit = Submit::Bypass { read_only: true };
/// A barrier that the server records in its store, and so finds out whether it still has it.
const RECORDED: Submit = Submit::Bypass { read_only: false };

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::client) enum Stage {
    /// Needs the store's name; asked for with this call.
    Address(Option<CallId>),
    /// Needs the front's mark to be open.
    Mark,
    /// Needs a connection to where the store is, and no more: a busy store would not say which it is.
    Kill,
    /// Needs everything acknowledged to be applied; asked for with this call.
    Barrier(Option<CallId>),
    /// Needs a connection that leads to the store with this name.
    Connection(StoreName),
    /// Needs the connection to have logged in as the client.
    Login,
    /// The store is no Redis: served with this call ([`super::embedded`]).
    Embedded(Option<CallId>),
    /// The same, and there was nothing: waits to be woken.
    Rest,
    /// Sent to the store.
    Sent,
    /// Answered by the store. Needs the server to confirm that; asked for with this call.
    Confirm(Option<CallId>),
}

/// The command that is being passed.
pub(in crate::client) struct Passage {
    pub(in crate::client) effect: Effect,
    pub(in crate::client) stage: Stage,
    /// When its time began. When that is up it must have been sent, and answered unless it blocks.
    pub(in crate::client) begun: Time,
    /// It may change the store.
    pub(in crate::client) marks: bool,
    /// It may wait for others before it answers.
    pub(in crate::client) blocks: bool,
    /// It ends a script.
    pub(in crate::client) kills: bool,
    /// The connection was lost, made or asked anew since the barrier: the last try.
    pub(in crate::client) identified: bool,
    /// The command's name, for error texts.
    pub(in crate::client) name: String,
    pub(in crate::client) frame: Vec<u8>,
    /// Send SELECT first even if the database is right, and what WAIT needs beside: it counts what precedes the connection's
    /// last command, or write.
    pub(in crate::client) fresh: bool,
    /// An EXEC that must abort.
    pub(in crate::client) aborted: bool,
    pub(in crate::client) sentinel: Vec<u8>,
    /// Its wait, at a store that is no Redis.
    pub(in crate::client) waits: Option<Waits>,
    /// Its reply has to be confirmed, by a server that uses the store with this `run_id` still ([`super::confirm`]). Until the
    /// barrier has named the store: it may have to be.
    pub(in crate::client) confirms: Option<String>,
    /// The store's reply, which is to be confirmed.
    pub(in crate::client) answer: Option<Answer>,
    /// A part of its replies has been handed on, so nothing else can be its reply.
    pub(in crate::client) handed_on: bool,
}

impl Connection {
    /// Gets the passed command on, as far as it can go now.
    pub(in crate::client) fn advance_passage<U: Upstream>(
        &mut self,
        up: &mut U,
        shared: &mut Shared,
    ) -> Result<(), Later> {
        if shared.embedded
            && matches!(&self.passing.passage, Some(it) if it.stage == Stage::Address(None))
        {
            // It has said before that it is no Redis.
            self.serve_embedded();
        }
        if let Some(Passage {
            stage: stage @ Stage::Address(None),
            kills,
            ..
        }) = &mut self.passing.passage
        {
            if shared.store.is_some() {
                *stage = if *kills { Stage::Kill } else { Stage::Mark };
            } else {
                let call = self.ask(Form::StoreAddress, READ, up, shared)?;
                self.set_stage(call.map(Stage::Address));
            }
        }
        if let Some(Passage {
            stage: Stage::Kill, ..
        }) = &self.passing.passage
        {
            self.send_kill(shared);
        }
        self.advance_embedded(up, shared)?;
        if let Some(passage) = &mut self.passing.passage
            && passage.stage == Stage::Mark
        {
            if shared.mark_open || !passage.marks {
                passage.stage = Stage::Barrier(None);
            } else {
                self.wishes.open_mark();
            }
        }
        if let Some(Passage {
            stage: Stage::Barrier(None),
            ..
        }) = &self.passing.passage
        {
            if let (None, Some(store), Some(name)) =
                (&self.passing.direct, &shared.store, &shared.name)
            {
                // The front sees it and connects while the barrier is under way.
                self.passing
                    .new_direct(store, shared.now)
                    .identify(&name.records);
            }
            let call = self.ask(Form::Barrier, READ, up, shared)?;
            self.set_stage(call.map(Stage::Barrier));
        }
        if let Some(Passage {
            stage: Stage::Connection(name),
            ..
        }) = &self.passing.passage
        {
            let name = name.clone();
            self.check_store(&name, shared);
        }
        if let Some(Passage {
            stage: Stage::Login,
            kills,
            ..
        }) = &self.passing.passage
            && let Some(direct) = &mut self.passing.direct
            && direct.acts_as_client()
        {
            if *kills {
                self.send_kill(shared);
            } else {
                self.send_passed();
            }
        }
        if let Some(passage) = &mut self.passing.passage
            && passage.stage == Stage::Confirm(None)
        {
            passage.time_confirmation(shared.now);
            match self.ask(Form::Barrier, RECORDED, up, shared)? {
                Ok(call) => self.set_stage(Ok(Stage::Confirm(call))),
                Err(error) => {
                    let why = String::from_utf8_lossy(error.trim_ascii()).into_owned();
                    self.unconfirmed(why.trim_start_matches("-ERR pmnet: "));
                }
            }
        }
        Ok(())
    }

    fn ask<U: Upstream>(
        &mut self,
        form: Form,
        how: Submit,
        up: &mut U,
        shared: &Shared,
    ) -> Result<Result<Option<CallId>, Bytes>, Later> {
        let payload = Bytes::from(preamble(form, Protocol::Resp2, 0).to_vec());
        let begun = self
            .passing
            .passage
            .as_ref()
            .map_or(0, |passage| passage.begun);
        let call = self.submit(&payload, 0, how, begun, up, shared)?;
        Ok(call.map(Some))
    }

    fn set_stage(&mut self, stage: Result<Stage, Bytes>) {
        match (stage, &mut self.passing.passage) {
            (Ok(stage), Some(passage)) => passage.stage = stage,
            (Ok(_), None) => {}
            (Err(error), _) => self.give_up(error),
        }
    }

    /// Whether `call` was one of the passage's; if so, gets on with it.
    pub(in crate::client) fn passage_done(
        &mut self,
        call: CallId,
        outcome: &Outcome,
        shared: &mut Shared,
    ) -> bool {
        if self.confirmation_done(call, outcome, shared)
            || self.embedded_done(call, outcome, shared)
        {
            return true;
        }
        let Some(passage) = &self.passing.passage else {
            return false;
        };
        let at_barrier = match passage.stage {
            Stage::Address(Some(mine)) if mine == call => false,
            Stage::Barrier(Some(mine)) if mine == call => true,
            _ => return false,
        };
        match outcome_reply(outcome.clone()) {
            Ok(reply) if reply == NO_ADDRESS && self.serve_embedded() => shared.embedded = true,
            Ok(reply) => match store_name(&reply) {
                Ok(name) => {
                    shared.store_named(&name);
                    let Some(passage) = &mut self.passing.passage else {
                        return true;
                    };
                    passage.stage = if at_barrier {
                        Stage::Connection(name)
                    } else if passage.kills {
                        Stage::Kill
                    } else {
                        Stage::Mark
                    };
                }
                Err(why) => {
                    let name = self
                        .passing
                        .passage
                        .as_ref()
                        .map_or("", |passage| &passage.name);
                    let text = format!("ERR pmnet: {name} needs a Redis store: {why}");
                    self.refuse_passage(reply::error(&text));
                }
            },
            // A barrier has no effect, whatever became of it.
            Err(_) => {
                let why = match outcome {
                    Outcome::Failed(text) => text,
                    _ => "deadline passed before the store could be asked",
                };
                self.give_up(reply::error(&format!(
                    "ERR pmnet: {why}; the command was not executed"
                )));
            }
        }
        true
    }

    /// The session closed: calls of the passage are lost.
    pub(in crate::client) fn passage_session_closed(&mut self) {
        if let Some(Passage {
            stage: Stage::Address(Some(_)) | Stage::Barrier(Some(_)),
            ..
        }) = &self.passing.passage
        {
            self.give_up(reply::error(
                "ERR pmnet: the session closed; the command was not executed",
            ));
        } else if let Some(passage) = &self.passing.passage
            && matches!(passage.stage, Stage::Confirm(Some(_)))
        {
            self.unconfirmed("the session closed");
        }
        self.embedded_session_closed();
    }

    /// Everything acknowledged is applied in the store with this name. Sends the command if the connection
    /// leads there; otherwise makes a connection, asks again, or ends what cannot go on.
    fn check_store(&mut self, name: &StoreName, shared: &Shared) {
        let stateful = self.stateful();
        let Some(passage) = &mut self.passing.passage else {
            return;
        };
        if shared.now >= passage.begun.saturating_add(shared.call_timeout) {
            // The barrier may be older than it looks: this process may have stood still.
            return self.expire();
        }
        let last_try = passage.identified;
        if let Some(run_id) = &mut passage.confirms {
            run_id.clone_from(&name.run_id);
        }
        passage.confirms.take_if(|_| name.reads);
        let Some(store) = &shared.store else {
            return;
        };
        let matches = match &self.passing.direct {
            None => {
                self.passing
                    .new_direct(store, shared.now)
                    .identify(&name.records);
                return;
            }
            // Made in advance, to where the store was before.
            Some(direct) if !stateful && direct.line.address != store.address => Match::Other,
            Some(direct) if direct.identifies() => return,
            Some(direct) => match &direct.found {
                Some(found) => found.compare(name),
                None => Match::OtherOwner,
            },
        };
        let in_passing =
            self.mode.passed_multi() || self.mode.monitors() || self.passing.subscriptions() > 0;
        match matches {
            Match::Same => self.send_passed(),
            Match::OtherOwner if !last_try && !in_passing => {
                self.mark_identified();
                if let Some(direct) = &mut self.passing.direct {
                    direct.identify(&name.records);
                }
            }
            // It cannot be asked now, but it is the same process.
            Match::OtherOwner if !last_try && !self.mode.passed_multi() => self.send_passed(),
            Match::Other if !last_try && !stateful => {
                self.mark_identified();
                self.passing
                    .new_direct(store, shared.now)
                    .identify(&name.records);
            }
            Match::OtherOwner | Match::Other => {
                self.wishes.doubt_store();
                self.lose_store(name);
            }
        }
    }

    fn mark_identified(&mut self) {
        if let Some(passage) = &mut self.passing.passage {
            passage.identified = true;
        }
    }

    /// The connection does not lead to the store, and cannot be replaced.
    fn lose_store(&mut self, name: &StoreName) {
        let Some(passage) = &self.passing.passage else {
            return;
        };
        let effect = passage.effect;
        let is_exec = effect == Effect::End && passage.name == "EXEC";
        if is_exec || matches!(effect, Effect::End | Effect::Unwatch) {
            // A watch on another store is worth nothing: EXEC fails, as if a key had been changed.
            let answer = match self.settings.protocol {
                _ if !is_exec => reply::OK,
                _ if passage.aborted => EXECABORT,
                Protocol::Resp2 => Bytes::from_static(b"*-1\r\n"),
                Protocol::Resp3 => Bytes::from_static(b"_\r\n"),
            };
            tracing::debug!(client = self.peer, store = %name, "the store is another one: the watch is lost");
            self.passing.passage = None;
            self.times.make_way();
            if self.passing.has_state() {
                // It is lost as well, and only the end of its connection says that.
                self.end.cut_off();
            }
            self.passing.drop_direct();
            self.mode = Mode::Ordinary;
            return self.settle(answer);
        }
        let address = self
            .passing
            .direct
            .as_ref()
            .map_or(name.address, |direct| direct.line.address);
        self.refuse_passage(reply::error(&format!(
            "ERR pmnet: the Redis at {address} is not the store that the pmnet server uses (run_id {}); the command was \
             not executed",
            name.run_id
        )));
    }

    /// Puts the command into the store connection's outbox.
    pub(in crate::client) fn send_passed(&mut self) {
        let (Some(passage), Some(direct)) = (&mut self.passing.passage, &mut self.passing.direct)
        else {
            return self.fail_passage(reply::error(
                "ERR pmnet: the connection to the store was lost",
            ));
        };
        if direct.protocol != self.settings.protocol {
            let version = match self.settings.protocol {
                Protocol::Resp2 => "2",
                Protocol::Resp3 => "3",
            };
            direct.set(&["HELLO", version]);
            direct.protocol = self.settings.protocol;
        }
        if !self.mode.passed_multi() && (direct.database != self.settings.database || passage.fresh)
        {
            direct.act_as_front();
            direct.set(&["SELECT", &self.settings.database.to_string()]);
            direct.database = self.settings.database;
            if passage.fresh {
                direct.come_behind_writes();
            }
            passage.fresh = false;
        }
        if !direct.acts_as_client() {
            passage.stage = Stage::Login;
            return;
        }
        if passage.aborted {
            // A command that Redis does not know makes it abort the transaction; DISCARD would need a right.
            direct.fence();
        }
        direct.line.outbox().append(&mut passage.frame);
        if !passage.sentinel.is_empty() {
            write_command(direct.line.outbox(), &[&passage.sentinel]);
        }
        direct.used = false;
        // From now on it has time to answer.
        direct.heard = true;
        passage.stage = Stage::Sent;
    }

    /// Puts SCRIPT KILL into the store connection's outbox. Nothing that a busy store would refuse may come before it, so the
    /// connection is not asked where it leads. A script that has changed nothing can be killed, no other.
    fn send_kill(&mut self, shared: &Shared) {
        let stateful = self.stateful();
        let Some(store) = &shared.store else { return };
        let leads_there = |direct: &Direct| stateful || direct.line.address == store.address;
        if !self.passing.direct.as_ref().is_some_and(leads_there) {
            self.passing.new_direct(store, shared.now);
        }
        let (Some(passage), Some(direct)) = (&mut self.passing.passage, &mut self.passing.direct)
        else {
            return;
        };
        if !direct.acts_as_client() {
            passage.stage = Stage::Login;
            return;
        }
        direct.line.outbox().append(&mut passage.frame);
        direct.used = false;
        direct.heard = true;
        passage.stage = Stage::Sent;
    }

    /// The store does not let the client log in on its connection.
    pub(in crate::client) fn login_refused(&mut self, why: &str) {
        let name = self
            .passing
            .passage
            .as_ref()
            .map_or("", |passage| &passage.name);
        let why = why.trim_start_matches('-');
        let error = reply::error(&format!(
            "ERR pmnet: {name} runs in Redis itself, which does not take the password any more that this client logged in with ({why}): \
             log in again (AUTH), or switch the user on; the command was not executed"
        ));
        self.refuse_passage(error);
    }

    /// Ends the passage with an error before anything of it was sent. The store's connection has not
    /// changed, so a client that is only subscribed stays subscribed.
    pub(in crate::client) fn give_up(&mut self, error: Bytes) {
        let subscriber = self.passing.subscriptions() > 0 && !self.mode.watches();
        let watch = |passage: &Passage| passage.effect == Effect::Watch;
        if !subscriber || self.passing.passage.as_ref().is_some_and(watch) {
            return self.fail_passage(error);
        }
        self.end_unanswered();
        self.settle(error);
    }

    /// Ends the passage with an error, and the client's connection. Otherwise commands after a failed WATCH
    /// would run as if the keys were watched, or half of a reply would be taken for a whole one.
    pub(in crate::client) fn fail_passage(&mut self, error: Bytes) {
        let broken = |passage: &Passage| passage.handed_on || passage.effect == Effect::Watch;
        if self.passing.passage.as_ref().is_some_and(broken) {
            self.end.cut_off();
        }
        self.refuse_passage(error);
    }

    /// Ends the passage with an error. State on the store's connection cannot be trusted then.
    fn refuse_passage(&mut self, error: Bytes) {
        if let Some(passage) = self.end_unanswered() {
            tracing::debug!(
                client = self.peer,
                command = passage.name,
                "pass-through failed"
            );
        }
        self.settle(error);
        if self.stateful() {
            self.end.cut_off();
        }
        self.passing.drop_direct();
    }

    /// The passage is over, without an answer to its command. Later commands that are as old must not wait
    /// for another whole deadline, unless the command blocked: then it made them wait.
    fn end_unanswered(&mut self) -> Option<Passage> {
        let passage = self.passing.drop_passage()?;
        let waited = passage.stage == Stage::Sent || passage.is_answered();
        self.times.give_up(passage.blocks && waited);
        Some(passage)
    }

    /// Gives the passed command its reply.
    pub(in crate::client) fn settle(&mut self, bytes: Bytes) {
        let passage = |slot: &Slot| matches!(slot, Slot::Passage);
        if let Some(index) = self.replies.slots.iter().position(passage) {
            self.replies.fill(index, bytes);
        }
        self.replies.drain();
    }
}
