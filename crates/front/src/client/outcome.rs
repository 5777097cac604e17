//! The outcomes of a client's calls. Each outcome becomes the reply of its command.

use bytes::Bytes;
use pmnet_resp::{read, reply, scan::count};

use super::back::again::unpack;
use super::back::calls::{Purpose, outcome_reply, repeated};
use super::back::own_write::answer_readers;
use super::back::pack::Kind;
use super::client_command::{ClientsAsk, ClientsTold, clients_which, unblock, verbatim};
use super::info::with_section;
use super::replies::Slot;
use super::shared::Probed;
use super::transaction::Rest;
use super::{Connection, Shared};
use crate::upstream::{Call, CallId, Calls, Closed, Outcome};

impl Connection {
    /// Takes the outcome of a call of this connection.
    pub fn done(&mut self, call: CallId, outcome: Outcome, shared: &mut Shared) {
        let passing = &mut self.back.passing;
        if passing.done(&mut self.face, call, &outcome, shared) {
            return;
        }
        if outcome == Outcome::Unknown {
            self.back.reads.doubt();
        }
        let pending = &mut self.face.pending;
        match outcome {
            Outcome::Committed { .. } | Outcome::Reply(_) => pending.times.answer(shared.now),
            Outcome::Failed(_) | Outcome::Unknown => pending.times.fail(),
        }
        let Some(index) = pending.replies.place_of(call) else {
            return;
        };
        let Some((_, purpose)) = pending.replies.take_call(index) else {
            return;
        };
        self.release(&purpose);
        if let Purpose::Update { readers } = purpose {
            let replies = &mut self.face.pending.replies;
            answer_readers(replies, index, call, readers, &outcome);
        } else if let Outcome::Reply(reply) = &outcome {
            // The answered bypass was executed after all earlier calls.
            self.back.reads.trust();
            if matches!(purpose, Purpose::Bypass { plain: true, .. }) {
                self.back.reads.note_length(reply.len(), shared.now);
            }
        }
        let reply = match purpose {
            Purpose::ClientFields(ask) => {
                if let Outcome::Reply(reply) = &outcome {
                    shared.learn_client_fields(reply);
                }
                self.ask_front(index, ask);
                None
            }
            Purpose::ClientsWhich(ask) => match clients_which(ask, outcome, shared) {
                Ok(ask) => {
                    self.ask_front(index, ask);
                    None
                }
                Err(reply) => Some(reply),
            },
            Purpose::Publish => {
                let reply = self.answer(purpose, outcome, shared);
                let passing = &mut self.back.passing;
                passing.fence(index, reply, &mut self.face.pending);
                None
            }
            Purpose::Pack(packed) => {
                packed.done(index, outcome, &mut self.face.pending, &shared.table);
                None
            }
            _ if unpack(&mut self.face.pending, index, &purpose, &outcome) => None,
            _ => Some(self.answer(purpose, outcome, shared)),
        };
        let replies = &mut self.face.pending.replies;
        if let Some(reply) = reply {
            replies.fill(index, reply);
        }
        replies.drain();
    }

    /// Makes the command at `index` wait until the front has answered this request.
    fn ask_front(&mut self, index: usize, ask: ClientsAsk) {
        self.face.pending.replies.slots[index] = Slot::Clients;
        self.wait_for_clients(ask);
    }

    /// Ends the wait of the next command for a call with this purpose, because the call has its outcome.
    fn release(&mut self, purpose: &Purpose) {
        if let Purpose::Pack(_) = purpose {
            self.back.packs.came_back();
        } else if purpose.holds() {
            self.face.pending.hold.release();
        }
    }

    /// Carries out the further effects of an outcome, and returns the reply.
    fn answer(&mut self, purpose: Purpose, outcome: Outcome, shared: &mut Shared) -> Bytes {
        if let Purpose::Hello { protocol, name } = purpose {
            shared.about.learn(&outcome, shared.now);
            return self.face.greet(protocol, name, shared);
        }
        let outcome = outcome_reply(outcome);
        match purpose {
            Purpose::Update { .. }
            | Purpose::Publish
            | Purpose::Hello { .. }
            | Purpose::ClientFields(_)
            | Purpose::ClientsWhich(_) => outcome.unwrap_or_else(|error| error),
            Purpose::Bypass { replies, .. } => bypassed(outcome, replies),
            Purpose::Info { section } => {
                outcome.map_or_else(|error| error, |reply| with_section(reply, &section))
            }
            Purpose::Pack(packed) => packed.failed(&outcome.unwrap_or_else(|error| error)),
            Purpose::SelectQueued { database, frame } => {
                if matches!(&outcome, Ok(reply) if !reply.starts_with(b"-")) {
                    shared.databases.insert(database);
                }
                let present = self.face.protocol();
                match self.face.mode.transaction() {
                    Some(queue) => queue.select_checked(database, &frame, outcome, present),
                    None => gone(),
                }
            }
            Purpose::Exec(rest) => self.exec(rest, outcome, shared),
            Purpose::Select { database } => match outcome {
                Ok(reply) if !reply.starts_with(b"-") => {
                    shared.databases.insert(database);
                    self.face.settings.selected.database = database;
                    reply::OK
                }
                Ok(error) => error,
                Err(error) => {
                    // The client means its later commands for the new database.
                    self.face.end.cut_off();
                    error
                }
            },
            Purpose::Probe {
                name,
                frame,
                unknown,
            } => match outcome {
                // The reply to COMMAND INFO is an array of one description, which is nil for an unknown command.
                Ok(reply)
                    if reply.starts_with(b"*1\r\n*") && !reply.starts_with(b"*1\r\n*-1\r\n") =>
                {
                    shared.remember_probe(name, Probed::Known);
                    let present = self.face.protocol();
                    match self.face.mode.transaction() {
                        Some(queue) => queue.add(&frame, Kind::Writes, present),
                        None => gone(),
                    }
                }
                Ok(reply) => {
                    if !reply.starts_with(b"-") {
                        shared.remember_probe(name, Probed::Unknown);
                    }
                    self.face.mode.fail();
                    unknown
                }
                Err(error) => {
                    self.face.mode.fail();
                    error
                }
            },
        }
    }

    /// Returns the reply to an EXEC of which the front answers some commands.
    fn exec(&mut self, rest: Rest, outcome: Result<Bytes, Bytes>, shared: &mut Shared) -> Bytes {
        match outcome {
            Ok(reply) => match read::elements(&reply) {
                Some(theirs) => self.executed(rest, theirs, shared),
                // The store's reply is an error: no command has run.
                None => reply,
            },
            Err(error) => {
                if rest.database().is_some() {
                    // The client may mean its later commands for another database.
                    self.face.end.cut_off();
                }
                error
            }
        }
    }

    /// Notes that the session was closed: outstanding calls have an unknown outcome. The next command opens
    /// another session. If acknowledged updates were lost, the client gets an error instead, and its
    /// connection is closed.
    pub fn session_closed(&mut self, reason: Closed, shared: &mut Shared) {
        self.reported.session_closed();
        let client = &self.face.peer;
        if let Closed::DataLoss { .. } = reason {
            tracing::error!(client, %reason, "PM3212 acknowledged updates of a client are lost: its session is closed");
            let error = reply::error(&format!("ERR pmnet: {reason}"));
            let replies = &mut self.face.pending.replies;
            replies.fail_unsent(&error);
            self.back.packs.fail(replies, &error);
            self.face.end.lose(error);
        } else {
            tracing::debug!(client, %reason, "session closed");
        }
        self.back.session.close();
        self.back.passing.session_closed(&mut self.face);
        for index in 0..self.face.pending.replies.slots.len() {
            let replies = &mut self.face.pending.replies;
            let Some((call, purpose)) = replies.take_call(index) else {
                continue;
            };
            self.back.reads.doubt();
            if let Purpose::Update { readers } = purpose {
                answer_readers(replies, index, call, readers, &Outcome::Unknown);
            }
            self.release(&purpose);
            let reply = self.answer(purpose, Outcome::Unknown, shared);
            self.face.pending.replies.fill(index, reply);
        }
        self.back.passing.has_published();
        self.face.pending.replies.drain();
    }

    /// Takes the front's answer to a request about clients.
    pub(crate) fn clients_told(
        &mut self,
        told: ClientsTold,
        error: bool,
        up: &mut dyn Calls,
        shared: &mut Shared,
    ) {
        let pending = &mut self.face.pending;
        pending.hold.release();
        let asks = |slot: &Slot| matches!(slot, Slot::Clients);
        let Some(index) = pending.replies.slots.iter().position(asks) else {
            return;
        };
        let answer = match told {
            ClientsTold::Reply(answer) => answer,
            ClientsTold::Lines(lines) => verbatim(&lines, self.face.settings.selected.protocol),
            ClientsTold::Unblock(id) => {
                let payload = unblock(id, error);
                let call = Call::question(&payload, shared.deadline(pending.times.begun()));
                match self.back.session.submit(call, up, shared.now) {
                    Ok(Ok(call)) => {
                        let (replies, bytes) = (&mut pending.replies, payload.len());
                        replies.await_call_at(index, call, Purpose::one(), bytes);
                        return;
                    }
                    Ok(Err(error)) => error,
                    Err(_) => reply::error("ERR pmnet: too much is under way; try again"),
                }
            }
        };
        pending.replies.fill(index, answer);
        pending.replies.drain();
    }
}

/// Returns the reply to commands that travelled as one bypass.
fn bypassed(outcome: Result<Bytes, Bytes>, replies: u32) -> Bytes {
    match outcome {
        Ok(reply) if replies > 1 && count(&reply) != Some(replies) => {
            // This error is the reply to each packed command. Otherwise the client would match later replies to wrong
            // commands.
            let lost =
                reply::error("ERR pmnet: the store gave another number of replies than asked for");
            let one = reply.starts_with(b"-") && count(&reply) == Some(1);
            repeated(if one { &reply } else { &lost }, replies)
        }
        Ok(reply) => reply,
        Err(error) => repeated(&error, replies),
    }
}

fn gone() -> Bytes {
    reply::error("ERR pmnet: the transaction is gone")
}
