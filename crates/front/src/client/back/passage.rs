//! How a passed command gets to the store: the front's mark if it may change the store, barrier, connection, command.
//!
//! The barrier's reply names the store that the server uses now. The command is sent only on a
//! connection that leads to exactly that store ([`crate::store::identity`]). Any other connection is closed, and
//! its state is lost: a watch fails, a subscription ends. All of this has one deadline, and so has the
//! reply, unless the command blocks ([`crate::client::deadline`]).

use bytes::Bytes;
use pmnet_resp::reply;
use pmnet_wire::StoreName;
use pmnet_wire::command::{Form, NO_ADDRESS, Protocol, preamble};

use super::calls::{Session, outcome_reply};
use super::confirm::Answer;
use super::embedded::Waits;
use super::pass::Effect;
use super::passing::Passing;
use crate::client::face::Face;
use crate::client::mode::Mode;
use crate::client::transaction::EXECABORT;
use crate::client::{Later, Shared};
use crate::store::identity::{Match, store_name};
use crate::upstream::{Call, CallId, Calls, Outcome, Submit, Time};

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

impl Passing {
    /// Gets the passed command on, as far as it can go now.
    pub(in crate::client) fn advance(
        &mut self,
        face: &mut Face,
        session: &mut Session,
        up: &mut dyn Calls,
        shared: &mut Shared,
    ) -> Result<(), Later> {
        if shared.embedded && self.is_at(&Stage::Address(None)) {
            // It has said before that it is no Redis.
            self.serve_embedded();
        }
        let Some(passage) = &mut self.passage else {
            return Ok(());
        };
        let kills = passage.kills;
        if passage.stage == Stage::Address(None) {
            if shared.store.is_some() {
                passage.stage = if kills { Stage::Kill } else { Stage::Mark };
            } else {
                let call = self.ask(session, Form::StoreAddress, READ, up, shared)?;
                self.set_stage(face, call.map(Stage::Address));
            }
        }
        if self.is_at(&Stage::Kill) {
            self.send_kill(&face.mode, shared);
        }
        self.advance_embedded(face, session, up, shared)?;
        if let Some(passage) = &mut self.passage
            && passage.stage == Stage::Mark
        {
            if shared.mark_open || !passage.marks {
                passage.stage = Stage::Barrier(None);
            } else {
                face.wishes.open_mark();
            }
        }
        if self.is_at(&Stage::Barrier(None)) {
            if let (None, Some(store), Some(name)) = (&self.direct, &shared.store, &shared.name) {
                // The front sees it and connects while the barrier is under way.
                self.new_direct(store, shared.now).identify(&name.records);
            }
            let call = self.ask(session, Form::Barrier, READ, up, shared)?;
            self.set_stage(face, call.map(Stage::Barrier));
        }
        if let Some(Passage {
            stage: Stage::Connection(name),
            ..
        }) = &self.passage
        {
            let name = name.clone();
            self.check_store(face, &name, shared);
        }
        if self.is_at(&Stage::Login)
            && let Some(direct) = &mut self.direct
            && direct.acts_as_client()
        {
            if kills {
                self.send_kill(&face.mode, shared);
            } else {
                self.send_passed(face);
            }
        }
        if let Some(passage) = &mut self.passage
            && passage.stage == Stage::Confirm(None)
        {
            passage.time_confirmation(shared.now);
            match self.ask(session, Form::Barrier, RECORDED, up, shared)? {
                Ok(call) => self.set_stage(face, Ok(Stage::Confirm(call))),
                Err(error) => {
                    let why = String::from_utf8_lossy(error.trim_ascii()).into_owned();
                    self.unconfirmed(face, why.trim_start_matches("-ERR pmnet: "));
                }
            }
        }
        Ok(())
    }

    fn ask(
        &mut self,
        session: &mut Session,
        form: Form,
        how: Submit,
        up: &mut dyn Calls,
        shared: &Shared,
    ) -> Result<Result<Option<CallId>, Bytes>, Later> {
        let payload = Bytes::from(preamble(form, Protocol::Resp2, 0).to_vec());
        let begun = self.passage.as_ref().map_or(0, |passage| passage.begun);
        let call = Call {
            payload: &payload,
            key_hash: 0,
            how,
            deadline: shared.deadline(begun),
        };
        Ok(session.submit(call, up, shared.now)?.map(Some))
    }

    fn set_stage(&mut self, face: &mut Face, stage: Result<Stage, Bytes>) {
        match (stage, &mut self.passage) {
            (Ok(stage), Some(passage)) => passage.stage = stage,
            (Ok(_), None) => {}
            (Err(error), _) => self.give_up(face, error),
        }
    }

    /// Whether `call` was one of the passage's; if so, gets on with it.
    pub(in crate::client) fn done(
        &mut self,
        face: &mut Face,
        call: CallId,
        outcome: &Outcome,
        shared: &mut Shared,
    ) -> bool {
        if self.confirm(face, call, outcome, shared)
            || self.embedded_answered(face, call, outcome, shared)
        {
            return true;
        }
        let Some(passage) = &self.passage else {
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
                    let Some(passage) = &mut self.passage else {
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
                    let name = self.passage.as_ref().map_or("", |passage| &passage.name);
                    let text = format!("ERR pmnet: {name} needs a Redis store: {why}");
                    self.refuse(face, reply::error(&text));
                }
            },
            // A barrier has no effect, whatever became of it.
            Err(_) => {
                let why = match outcome {
                    Outcome::Failed(text) => text,
                    _ => "deadline passed before the store could be asked",
                };
                self.give_up(
                    face,
                    reply::error(&format!("ERR pmnet: {why}; the command was not executed")),
                );
            }
        }
        true
    }

    /// The session closed: calls of the passage are lost.
    pub(in crate::client) fn session_closed(&mut self, face: &mut Face) {
        let stage = self.passage.as_ref().map(|passage| &passage.stage);
        if let Some(Stage::Address(Some(_)) | Stage::Barrier(Some(_))) = stage {
            self.give_up(
                face,
                reply::error("ERR pmnet: the session closed; the command was not executed"),
            );
        } else if let Some(Stage::Confirm(Some(_))) = stage {
            self.unconfirmed(face, "the session closed");
        }
        self.embedded_session_closed(face);
    }

    /// Everything acknowledged is applied in the store with this name. Sends the command if the connection
    /// leads there; otherwise makes a connection, asks again, or ends what cannot go on.
    fn check_store(&mut self, face: &mut Face, name: &StoreName, shared: &Shared) {
        let stateful = self.stateful(&face.mode);
        let Some(passage) = &mut self.passage else {
            return;
        };
        if shared.now >= passage.begun.saturating_add(shared.call_timeout) {
            // The barrier may be older than it looks: this process may have stood still.
            return self.expire(face);
        }
        let last_try = passage.identified;
        if let Some(run_id) = &mut passage.confirms {
            run_id.clone_from(&name.run_id);
        }
        passage.confirms.take_if(|_| name.reads);
        let Some(store) = &shared.store else {
            return;
        };
        let matches = match &self.direct {
            None => {
                self.new_direct(store, shared.now).identify(&name.records);
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
            face.mode.passed_multi() || face.mode.monitors() || self.subscriptions() > 0;
        match matches {
            Match::Same => self.send_passed(face),
            Match::OtherOwner if !last_try && !in_passing => {
                self.mark_identified();
                if let Some(direct) = &mut self.direct {
                    direct.identify(&name.records);
                }
            }
            // It cannot be asked now, but it is the same process.
            Match::OtherOwner if !last_try && !face.mode.passed_multi() => self.send_passed(face),
            Match::Other if !last_try && !stateful => {
                self.mark_identified();
                self.new_direct(store, shared.now).identify(&name.records);
            }
            Match::OtherOwner | Match::Other => {
                face.wishes.doubt_store();
                self.lose_store(face, name);
            }
        }
    }

    fn mark_identified(&mut self) {
        if let Some(passage) = &mut self.passage {
            passage.identified = true;
        }
    }

    /// The connection does not lead to the store, and cannot be replaced.
    fn lose_store(&mut self, face: &mut Face, name: &StoreName) {
        let Some(passage) = &self.passage else {
            return;
        };
        let effect = passage.effect;
        let is_exec = effect == Effect::End && passage.name == "EXEC";
        if is_exec || matches!(effect, Effect::End | Effect::Unwatch) {
            // A watch on another store is worth nothing: EXEC fails, as if a key had been changed.
            let answer = match face.settings.selected.protocol {
                _ if !is_exec => reply::OK,
                _ if passage.aborted => EXECABORT,
                Protocol::Resp2 => Bytes::from_static(b"*-1\r\n"),
                Protocol::Resp3 => Bytes::from_static(b"_\r\n"),
            };
            tracing::debug!(client = face.peer, store = %name, "the store is another one: the watch is lost");
            self.passage = None;
            face.pending.times.make_way();
            if self.has_state() {
                // It is lost as well, and only the end of its connection says that.
                face.end.cut_off();
            }
            self.drop_direct();
            face.mode = Mode::Ordinary;
            return face.pending.settle(answer);
        }
        let address = self
            .direct
            .as_ref()
            .map_or(name.address, |direct| direct.line.address);
        self.refuse(face, reply::error(&format!(
            "ERR pmnet: the Redis at {address} is not the store that the pmnet server uses (run_id {}); the command was \
             not executed",
            name.run_id
        )));
    }
}
