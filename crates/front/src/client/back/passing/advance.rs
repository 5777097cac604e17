//! The steps of a passed command, in order: the front's mark (if the command may change the store), a barrier, a
//! connection, the command itself.
//!
//! The barrier's reply names the store that the server uses now. The command is sent only on a connection
//! that leads to exactly that store ([`crate::store::identity`]). Any other connection is closed, and its
//! state is lost: a watch fails, a subscription ends. All these steps have one deadline together. The reply has a
//! deadline of its own, unless the command blocks ([`super::deadline`]).

use bytes::Bytes;
use pmnet_resp::reply;
use pmnet_wire::StoreName;
use pmnet_wire::command::{Form, NO_ADDRESS, Protocol, preamble};

use super::Passing;
use super::direct::Direct;
use super::passage::{Passage, Stage};
use crate::client::Shared;
use crate::client::back::calls::{Session, outcome_reply};
use crate::client::context::Later;
use crate::client::face::Face;
use crate::store::identity::{Match, store_name};
use crate::upstream::{Call, CallId, Calls, Outcome, Submit};

/// A barrier that changes nothing, and may be repeated.
const READ: Submit = Submit::Bypass { read_only: true };
/// A barrier that the server records in its store. A server that has lost the store notices it by this write.
const RECORDED: Submit = Submit::Bypass { read_only: false };

impl Passing {
    /// Takes the passed command through as many stages as are possible now.
    ///
    /// # Errors
    /// [`Later`]: a call could not be submitted now.
    pub(in crate::client) fn advance(
        &mut self,
        face: &mut Face,
        session: &mut Session,
        up: &mut dyn Calls,
        shared: &mut Shared,
    ) -> Result<(), Later> {
        // The stages stand in the order in which a command reaches them. A command may pass several stages at once.
        if let Some(Stage::Address(None)) = self.stage() {
            self.find_store(face, session, up, shared)?;
        }
        if let Some(Stage::Kill) = self.stage() {
            self.send_kill(&face.mode, shared);
        }
        self.advance_embedded(face, session, up, shared)?;
        if let Some(Stage::Mark) = self.stage() {
            self.await_mark(face, shared);
        }
        if let Some(Stage::Barrier(None)) = self.stage() {
            if let (None, Some(store), Some(name)) = (&self.direct, &shared.store, &shared.name) {
                // The front connects while the barrier is under way.
                self.new_direct(store, shared.now).identify(&name.records);
            }
            let call = self.ask(session, Form::Barrier, READ, up, shared)?;
            self.set_stage(face, call.map(Stage::Barrier));
        }
        if let Some(Stage::Connection(name)) = self.stage() {
            let name = name.clone();
            self.check_store(face, &name, shared);
        }
        if let Some(Stage::Login) = self.stage()
            && self.direct.as_mut().is_some_and(Direct::acts_as_client)
        {
            if self.passage.as_ref().is_some_and(Passage::kills) {
                self.send_kill(&face.mode, shared);
            } else {
                self.send_passed(face);
            }
        }
        if let Some(Stage::Confirm { call: None, .. }) = self.stage() {
            self.ask_for_confirmation(face, session, up, shared)?;
        }
        Ok(())
    }

    /// Asks where the store is, unless the address is known.
    fn find_store(
        &mut self,
        face: &mut Face,
        session: &mut Session,
        up: &mut dyn Calls,
        shared: &Shared,
    ) -> Result<(), Later> {
        // If the store is known to be no Redis, it serves the command itself.
        if shared.embedded && self.serve_embedded() {
            return Ok(());
        }
        if shared.store.is_none() {
            let call = self.ask(session, Form::StoreAddress, READ, up, shared)?;
            self.set_stage(face, call.map(Stage::Address));
        } else if let Some(passage) = &mut self.passage {
            passage.store_found();
        }
        Ok(())
    }

    fn ask_for_confirmation(
        &mut self,
        face: &mut Face,
        session: &mut Session,
        up: &mut dyn Calls,
        shared: &Shared,
    ) -> Result<(), Later> {
        self.time_confirmation(shared.now);
        match self.ask(session, Form::Barrier, RECORDED, up, shared)? {
            Ok(asked) => {
                if let Some(passage) = &mut self.passage
                    && let Stage::Confirm { call, .. } = &mut passage.stage
                {
                    *call = asked;
                }
            }
            Err(error) => {
                let why = String::from_utf8_lossy(error.trim_ascii()).into_owned();
                self.unconfirmed(face, why.trim_start_matches("-ERR pmnet: "));
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

    /// Returns whether `call` belonged to the passage. For such a call, this function advances the passage with the
    /// call's outcome.
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
                    if at_barrier {
                        passage.stage = Stage::Connection(name);
                    } else {
                        passage.store_found();
                    }
                }
                Err(why) => {
                    let name = self.passage.as_ref().map_or("", |passage| &passage.name);
                    let text = format!("ERR pmnet: {name} needs a Redis store: {why}");
                    self.refuse(face, reply::error(&text));
                }
            },
            // A barrier has no effect, whatever its outcome was.
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

    /// The session was closed: the calls of the passage are lost.
    pub(in crate::client) fn session_closed(&mut self, face: &mut Face) {
        match self.stage() {
            Some(Stage::Address(Some(_)) | Stage::Barrier(Some(_))) => self.give_up(
                face,
                reply::error("ERR pmnet: the session closed; the command was not executed"),
            ),
            Some(Stage::Confirm { call: Some(_), .. }) => {
                self.unconfirmed(face, "the session closed");
            }
            _ => {}
        }
        self.embedded_session_closed(face);
    }

    /// Continues after the barrier: all acknowledged writes are applied in the store `name`. If the front's connection
    /// leads to that store, the command is sent. If the connection does not lead to that store, the front makes a
    /// connection, asks again, or ends the passage with an error.
    fn check_store(&mut self, face: &mut Face, name: &StoreName, shared: &Shared) {
        let stateful = self.stateful(&face.mode);
        let Some(passage) = &mut self.passage else {
            return;
        };
        if shared.now >= passage.begun.saturating_add(shared.call_timeout) {
            // This process may have been suspended, so the barrier may be older than its arrival suggests.
            return self.expire(face);
        }
        let last_try = passage.last_try;
        if let Some(run_id) = &mut passage.confirm_run_id {
            run_id.clone_from(&name.run_id);
        }
        passage.confirm_run_id.take_if(|_| name.reads);
        let Some(store) = &shared.store else {
            return;
        };
        let matches = match &self.direct {
            None => {
                self.new_direct(store, shared.now).identify(&name.records);
                return;
            }
            // The connection was made in advance, to the store's earlier address.
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
            // The front cannot ask for the identity again now, but the connection leads to the same process.
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
            passage.last_try = true;
        }
    }
}

impl Passage {
    /// Continues with the next stage: the address of the store is known.
    fn store_found(&mut self) {
        self.stage = if self.kills() {
            Stage::Kill
        } else {
            Stage::Mark
        };
    }
}
