//! Calls of a connection: submitting, and matching outcomes to replies.

use bytes::Bytes;
use pmnet_resp::{Arguments, reply, scan::count, write_command};
use pmnet_wire::command::{Form, PREAMBLE_LEN, Protocol, preamble};

use super::beside::{LONG_READ, PAUSE};
use super::pack::{Company, Kind, Pack, Packed, Part};
use crate::client::client_command::ClientsAsk;
use crate::client::replies::Slot;
use crate::client::shared::Probed;
use crate::client::transaction::Rest;
use crate::client::{Connection, Later, Shared};
use crate::table::{self, Facts, early_ack};
use crate::upstream::{CallId, Closed, Outcome, Refused, Time, Upstream};

/// The time was up before anything was sent.
const LATE: &str = "ERR pmnet: deadline passed before the call could be sent";

/// What a call was for.
#[derive(Debug)]
pub(in crate::client) enum Purpose {
    /// An update: `+OK` once committed. So many GETs behind it wait for it.
    Update { readers: usize },
    /// A bypass of so many commands: the reply as it is. `again`: the payload, if it is a pack of
    /// reads that may have to be sent one by one. `plain`: reads that run no code.
    Bypass {
        replies: u32,
        again: Option<Bytes>,
        plain: bool,
    },
    /// Commands and transactions of which the store may leave the last ones out.
    Pack(Packed),
    /// A PUBLISH of a subscriber: the reply as it is, behind the messages before it.
    Publish,
    /// Whether the store has this database.
    Select { database: u32 },
    /// The same, for a SELECT that is to be queued in MULTI.
    SelectQueued { database: u32, frame: Vec<u8> },
    /// EXEC of a transaction of which the front answers a part.
    Exec(Rest),
    /// The question for the store's facts, from a HELLO.
    Hello {
        protocol: Protocol,
        name: Option<Bytes>,
    },
    /// What the store says of its client, to know what to say of ours.
    ClientFields(ClientsAsk),
    /// The question whether the store takes the conditions of a CLIENT LIST or KILL, before the front answers.
    ClientsWhich(Option<ClientsAsk>),
    /// Whether the store knows a command that is to be queued in MULTI.
    Probe {
        name: Vec<u8>,
        frame: Vec<u8>,
        unknown: Bytes,
    },
}

impl Purpose {
    /// A bypass of one command or transaction.
    pub(in crate::client) fn one() -> Purpose {
        Purpose::Bypass {
            replies: 1,
            again: None,
            plain: false,
        }
    }

    /// How many commands travel as this bypass; `None` if it is none.
    pub(in crate::client) fn bypassed(&self) -> Option<u32> {
        match self {
            Purpose::Bypass { replies, .. } => Some(*replies),
            _ => None,
        }
    }

    /// The same error as the reply to each of its commands.
    pub(in crate::client) fn failed(&self, error: &Bytes) -> Bytes {
        match self {
            Purpose::Pack(packed) => packed.failed(error),
            _ => repeated(error, self.bypassed().unwrap_or(1)),
        }
    }

    /// How many replies of unknown length are to be expected.
    fn replies_expected(&self) -> usize {
        match self {
            Purpose::Bypass { replies, .. } => usize::try_from(*replies).unwrap_or(1),
            // The store ends it when they are long.
            Purpose::Pack(_) => 2,
            _ => 0,
        }
    }
}

/// How a payload is submitted.
#[derive(Clone, Copy)]
pub(in crate::client) enum Submit {
    Update,
    Bypass { read_only: bool },
}

impl Connection {
    pub(in crate::client) fn preamble(&self, form: Form) -> [u8; PREAMBLE_LEN] {
        preamble(form, self.settings.protocol, self.settings.database)
    }

    /// Submits a payload on this connection's session, which is opened if necessary. The inner error is
    /// the reply for a payload that can never be accepted, or whose time, which began at `begun`, is over.
    pub(in crate::client) fn submit<U: Upstream>(
        &mut self,
        payload: &Bytes,
        key_hash: u64,
        how: Submit,
        begun: Time,
        up: &mut U,
        shared: &Shared,
    ) -> Result<Result<CallId, Bytes>, Later> {
        let deadline = begun.saturating_add(shared.call_timeout);
        self.submit_until(payload, key_hash, how, deadline, up, shared)
    }

    /// The same with the end of its time.
    pub(in crate::client) fn submit_until<U: Upstream>(
        &mut self,
        payload: &Bytes,
        key_hash: u64,
        how: Submit,
        deadline: Time,
        up: &mut U,
        shared: &Shared,
    ) -> Result<Result<CallId, Bytes>, Later> {
        if shared.now >= deadline {
            return Ok(Err(reply::error(LATE)));
        }
        // A session may have been closed without our having seen the event; a fresh one never is.
        for _ in 0..2 {
            let session = match self.session.map_or_else(|| up.open(shared.now), Ok) {
                Ok(session) => session,
                Err(error) => return Ok(Err(reply::error(&format!("ERR pmnet: {error}")))),
            };
            self.session = Some(session);
            let result = match how {
                Submit::Update => {
                    up.update(shared.now, session, payload.clone(), key_hash, deadline)
                }
                Submit::Bypass { read_only } => up.bypass(
                    shared.now,
                    session,
                    payload.clone(),
                    key_hash,
                    read_only,
                    deadline,
                ),
            };
            match result {
                Ok(call) => return Ok(Ok(call)),
                Err(Refused::Busy) => return Err(Later::Busy),
                Err(error @ Refused::TooLarge) => {
                    return Ok(Err(reply::error(&format!("ERR pmnet: {error}"))));
                }
                Err(Refused::Closed | Refused::Sessions) => self.session = None,
            }
        }
        Ok(Err(reply::error("ERR pmnet: no session could be opened")))
    }

    /// Asks the store something that the front itself needs to know, with a command that only reads. The client's later
    /// commands wait for the answer. False if it could not be asked; the client then has the error.
    pub(in crate::client) fn ask_store<U: Upstream>(
        &mut self,
        database: u32,
        command: &[&[u8]],
        purpose: Purpose,
        up: &mut U,
        shared: &mut Shared,
    ) -> Result<bool, Later> {
        self.flush_pack(up, shared)?;
        let mut payload = preamble(Form::Single, Protocol::Resp2, database).to_vec();
        write_command(&mut payload, command);
        let bytes = payload.len();
        let how = Submit::Bypass { read_only: true };
        let submitted = self.submit(
            &Bytes::from(payload),
            0,
            how,
            self.times.begun(),
            up,
            shared,
        )?;
        let asked = submitted.is_ok();
        if asked {
            self.hold.for_outcome();
        }
        self.expect(submitted, purpose, bytes);
        Ok(asked)
    }

    /// Puts the outcome of [`Connection::submit`] into its slot.
    pub(in crate::client) fn expect(
        &mut self,
        submitted: Result<CallId, Bytes>,
        purpose: Purpose,
        bytes: usize,
    ) {
        match submitted {
            Ok(call) => {
                let bytes =
                    bytes + purpose.replies_expected() * crate::client::REPLY_BYTES_EXPECTED;
                self.replies.await_call(call, purpose, bytes);
            }
            Err(error) => {
                self.reply(purpose.failed(&error));
            }
        }
    }

    pub(in crate::client) fn submit_update<U: Upstream>(
        &mut self,
        frame: &[u8],
        facts: Option<&Facts>,
        arguments: &Arguments<'_>,
        up: &mut U,
        shared: &mut Shared,
    ) -> Result<(), Later> {
        let key_hash = facts.map_or(0, |facts| table::key_hash(facts, arguments));
        // Its turn comes when the writes in front of it have their replies, so it may as well go with them. An assumed
        // command may not: its reply is always OK.
        let has_room = |pack: &Pack| pack.has_room(Kind::Writes, frame.len());
        let packs = match self.packs.open() {
            Some(pack) => has_room(pack),
            None => self.may_open_pack(frame.len()),
        };
        if packs && early_ack(arguments) {
            shared.own_writes.forget();
            let part = Part {
                frame,
                key_hash,
                kind: Kind::Writes,
                company: Company::Any,
            };
            self.pack_part(part, up, shared)?;
            self.packs.count_detour();
            return Ok(());
        }
        self.flush_pack(up, shared)?;
        let mut payload = Vec::with_capacity(PREAMBLE_LEN + frame.len());
        payload.extend_from_slice(&self.preamble(Form::Single));
        payload.extend_from_slice(frame);
        let bytes = payload.len();
        let payload = Bytes::from(payload);
        let submitted = self.submit(
            &payload,
            key_hash,
            Submit::Update,
            self.times.begun(),
            up,
            shared,
        )?;
        let call = submitted.as_ref().ok().copied();
        shared.own_writes.note(call, arguments, &payload);
        self.expect(submitted, Purpose::Update { readers: 0 }, bytes);
        Ok(())
    }

    /// The outcome of a call of this connection.
    pub fn done(&mut self, call: CallId, outcome: Outcome, shared: &mut Shared) {
        if self.passage_done(call, &outcome, shared) {
            return;
        }
        self.reads.uncertain |= outcome == Outcome::Unknown;
        match outcome {
            Outcome::Committed { .. } | Outcome::Reply(_) => self.times.answer(shared.now),
            Outcome::Failed(_) | Outcome::Unknown => self.times.fail(),
        }
        let found = self
            .replies
            .slots
            .iter()
            .position(|slot| matches!(slot, Slot::Call { call: c, .. } if *c == call));
        let Some(index) = found else { return };
        let Some((_, purpose)) = self.replies.take_call(index) else {
            return;
        };
        self.release(&purpose);
        if let Purpose::Update { readers } = purpose {
            self.answer_readers(index, call, readers, &outcome);
        } else if let Outcome::Reply(reply) = &outcome {
            // It came behind everything before it.
            self.reads.uncertain = false;
            if matches!(purpose, Purpose::Bypass { plain: true, .. }) && reply.len() > LONG_READ {
                self.reads.apart_before = shared.now.saturating_add(PAUSE);
            }
        }
        if let Purpose::ClientFields(ask) = purpose {
            if let Outcome::Reply(reply) = &outcome {
                shared.learn_client_fields(reply);
            }
            self.replies.slots[index] = Slot::Clients;
            self.wait_for_clients(ask);
        } else if let Purpose::ClientsWhich(ask) = purpose {
            match Connection::clients_which(ask, outcome, shared) {
                Ok(ask) => {
                    self.replies.slots[index] = Slot::Clients;
                    self.wait_for_clients(ask);
                }
                Err(reply) => self.replies.fill(index, reply),
            }
        } else if let Purpose::Publish = purpose {
            let reply = self.answer(purpose, outcome, shared);
            self.fence(index, reply);
        } else if let Purpose::Pack(packed) = purpose {
            self.pack_done(index, packed, outcome, shared);
        } else if !self.unpack(index, &purpose, &outcome) {
            let reply = self.answer(purpose, outcome, shared);
            self.replies.fill(index, reply);
        }
        self.replies.drain();
    }

    /// The call for this purpose has its outcome.
    pub(in crate::client) fn release(&mut self, purpose: &Purpose) {
        let held = match purpose {
            Purpose::Select { .. }
            | Purpose::SelectQueued { .. }
            | Purpose::Exec(_)
            | Purpose::Probe { .. }
            | Purpose::ClientFields(_)
            | Purpose::Hello { .. }
            | Purpose::ClientsWhich(_)
            | Purpose::Publish => true,
            Purpose::Bypass { again, .. } => again.is_some(),
            Purpose::Pack(_) => {
                self.packs.came_back();
                false
            }
            Purpose::Update { .. } => false,
        };
        if held {
            self.hold.release();
        }
    }

    fn answer(&mut self, purpose: Purpose, outcome: Outcome, shared: &mut Shared) -> Bytes {
        let replies = purpose.bypassed().unwrap_or(1);
        if let Purpose::Hello { protocol, name } = purpose {
            shared.about.learn(&outcome, shared.now);
            return self.greet(protocol, name, shared);
        }
        let outcome = outcome_reply(outcome);
        match purpose {
            Purpose::Update { .. }
            | Purpose::Bypass { .. }
            | Purpose::Publish
            | Purpose::Hello { .. }
            | Purpose::ClientFields(_)
            | Purpose::ClientsWhich(_) => match outcome {
                Ok(reply) if replies > 1 && count(&reply) != Some(replies) => {
                    // One error is the answer to all packed commands; otherwise the client would get out
                    // of step.
                    let lost = reply::error(
                        "ERR pmnet: the store gave another number of replies than asked for",
                    );
                    let one = reply.starts_with(b"-") && count(&reply) == Some(1);
                    repeated(if one { &reply } else { &lost }, replies)
                }
                Ok(reply) => reply,
                Err(error) => repeated(&error, replies),
            },
            Purpose::Pack(packed) => packed.failed(&outcome.unwrap_or_else(|error| error)),
            Purpose::SelectQueued { database, frame } => {
                self.select_checked(database, &frame, outcome, shared)
            }
            Purpose::Exec(rest) => self.executed(rest, outcome, shared),
            Purpose::Select { database } => match outcome {
                Ok(reply) if !reply.starts_with(b"-") => {
                    shared.databases.insert(database);
                    self.settings.database = database;
                    reply::OK
                }
                Ok(error) => error,
                Err(error) => {
                    // What follows is not for the database before it.
                    self.end.cut_off();
                    error
                }
            },
            Purpose::Probe {
                name,
                frame,
                unknown,
            } => {
                match outcome {
                    // An array of one description, which is nil for an unknown command.
                    Ok(reply)
                        if reply.starts_with(b"*1\r\n*")
                            && !reply.starts_with(b"*1\r\n*-1\r\n") =>
                    {
                        shared.remember_probe(name, Probed::Known);
                        self.queue_frame(&frame, Kind::Writes)
                    }
                    Ok(reply) => {
                        if !reply.starts_with(b"-") {
                            shared.remember_probe(name, Probed::Unknown);
                        }
                        self.fail_transaction();
                        unknown
                    }
                    Err(error) => {
                        self.fail_transaction();
                        error
                    }
                }
            }
        }
    }

    /// The session is gone: what is outstanding has an unknown outcome. The next command opens another.
    /// After a loss of acknowledged updates the client is told instead, and its connection closed.
    pub fn session_closed(&mut self, reason: Closed, shared: &mut Shared) {
        self.reported.session_closed();
        if let Closed::DataLoss { .. } = reason {
            tracing::error!(client = self.peer, %reason, "session closed");
            let error = reply::error(&format!("ERR pmnet: {reason}"));
            self.fail_unsent(&error);
            self.end.lose(error);
        } else {
            tracing::debug!(client = self.peer, %reason, "session closed");
        }
        self.session = None;
        self.passage_session_closed();
        for index in 0..self.replies.slots.len() {
            if let Some((call, purpose)) = self.replies.take_call(index) {
                self.reads.uncertain = true;
                self.release(&purpose);
                if let Purpose::Update { readers } = purpose {
                    self.answer_readers(index, call, readers, &Outcome::Unknown);
                }
                let reply = self.answer(purpose, Outcome::Unknown, shared);
                self.replies.fill(index, reply);
            }
        }
        self.passing.has_published();
        self.replies.drain();
    }
}

/// The reply for an outcome; an error if there is no reply from the store.
pub(in crate::client) fn outcome_reply(outcome: Outcome) -> Result<Bytes, Bytes> {
    match outcome {
        Outcome::Committed { .. } => Ok(reply::OK),
        Outcome::Reply(bytes) => Ok(bytes),
        Outcome::Failed(text) => Err(reply::error(&format!("ERR pmnet: {text}"))),
        Outcome::Unknown => Err(reply::error(
            "ERR pmnet: outcome unknown (deadline passed); the command may or may not take effect once",
        )),
    }
}

pub(in crate::client) fn repeated(error: &Bytes, times: u32) -> Bytes {
    if times == 1 {
        return error.clone();
    }
    (0..times).flat_map(|_| error.iter().copied()).collect()
}
