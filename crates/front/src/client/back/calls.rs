//! Calls to the store: how they are submitted, and the purpose of each.

use bytes::Bytes;
use pmnet_resp::{reply, write_command};
use pmnet_wire::command::{Form, PREAMBLE_LEN, Protocol, preamble};

use super::pack::Packed;
use crate::client::client_command::ClientsAsk;
use crate::client::context::Later;
use crate::client::settings::Selected;
use crate::client::transaction::Rest;
use crate::upstream::{Call, CallId, Calls, Outcome, Refused, SessionHandle, Time};

/// Error of a command whose deadline passed before any of its bytes were sent.
const LATE: &str = "ERR pmnet: deadline passed before the call could be sent";

/// The purpose of a call.
#[derive(Debug)]
pub(in crate::client) enum Purpose {
    /// An update, which is answered with `+OK` once it is committed. `readers`: number of GETs that wait for the
    /// update.
    Update { readers: usize },
    /// A bypass of `replies` commands; clients get its reply unchanged. `again`: the payload, if the bypass
    /// is a pack of reads that may have to be sent one by one. `plain`: the commands of the bypass only read, and run
    /// no code.
    Bypass {
        replies: u32,
        again: Option<Bytes>,
        plain: bool,
    },
    /// A pack of commands and transactions. The store may leave the last parts of the pack out.
    Pack(Packed),
    /// A PUBLISH of a subscriber. The client gets the reply unchanged, after the messages before it.
    Publish,
    /// A SELECT: asks whether the store has this database.
    Select { database: u32 },
    /// A SELECT that is to be queued in MULTI: asks whether the store has this database.
    SelectQueued { database: u32, frame: Vec<u8> },
    /// EXEC of a transaction. The front itself answers some of the transaction's commands.
    Exec(Rest),
    /// The question for the store's facts, from a HELLO.
    Hello {
        protocol: Protocol,
        name: Option<Bytes>,
    },
    /// An INFO. The front appends `section` to the reply.
    Info { section: String },
    /// A question for the store's CLIENT INFO line. The front shows its own clients with the fields of this line.
    ClientFields(ClientsAsk),
    /// A question whether the store accepts the conditions of a CLIENT LIST or CLIENT KILL, before the front
    /// answers.
    ClientsWhich(Option<ClientsAsk>),
    /// A question whether the store knows a command that is to be queued in MULTI.
    Probe {
        name: Vec<u8>,
        frame: Vec<u8>,
        unknown: Bytes,
    },
}

impl Purpose {
    /// Returns the purpose of a bypass of one command or transaction.
    pub(in crate::client) fn one() -> Purpose {
        Purpose::Bypass {
            replies: 1,
            again: None,
            plain: false,
        }
    }

    /// Returns the number of commands that travel in this bypass; `None` if the call is not a bypass.
    pub(in crate::client) fn bypassed(&self) -> Option<u32> {
        match self {
            Purpose::Bypass { replies, .. } => Some(*replies),
            _ => None,
        }
    }

    /// Returns the replies to all commands of a failed call: the error, repeated for each command.
    pub(in crate::client) fn failed(&self, error: &Bytes) -> Bytes {
        match self {
            Purpose::Pack(packed) => packed.failed(error),
            _ => repeated(error, self.bypassed().unwrap_or(1)),
        }
    }

    /// Returns the number of replies of unknown length that the call will bring.
    pub(in crate::client) fn replies_expected(&self) -> usize {
        match self {
            Purpose::Bypass { replies, .. } => usize::try_from(*replies).unwrap_or(1),
            // The count is 2 because the store ends a pack when replies become long.
            Purpose::Pack(_) => 2,
            Purpose::Info { .. } => 1,
            _ => 0,
        }
    }

    /// Whether the client's next command waits for the outcome of this call.
    pub(in crate::client) fn holds(&self) -> bool {
        match self {
            Purpose::Select { .. }
            | Purpose::SelectQueued { .. }
            | Purpose::Exec(_)
            | Purpose::Probe { .. }
            | Purpose::ClientFields(_)
            | Purpose::Hello { .. }
            | Purpose::Info { .. }
            | Purpose::ClientsWhich(_)
            | Purpose::Publish => true,
            Purpose::Bypass { again, .. } => again.is_some(),
            Purpose::Pack(_) | Purpose::Update { .. } => false,
        }
    }
}

/// The session that a client uses now at the endpoint.
#[derive(Default)]
pub(in crate::client) struct Session(Option<SessionHandle>);

impl Session {
    pub(in crate::client) fn handle(&self) -> Option<SessionHandle> {
        self.0
    }

    /// Forgets the session. The next call opens another session.
    pub(in crate::client) fn close(&mut self) {
        self.0 = None;
    }

    /// Submits a call, after opening a session if necessary. The inner error is the reply to a command whose payload
    /// can never be accepted, or whose deadline has passed.
    ///
    /// # Errors
    /// [`Later::Busy`], if the endpoint takes no further call.
    pub(in crate::client) fn submit(
        &mut self,
        call: Call<'_>,
        up: &mut dyn Calls,
        now: Time,
    ) -> Result<Result<CallId, Bytes>, Later> {
        if now >= call.deadline {
            return Ok(Err(reply::error(LATE)));
        }
        // The endpoint may have closed the session before its event was read. A fresh session is never
        // closed.
        for _ in 0..2 {
            let session = match self.0.map_or_else(|| up.open(now), Ok) {
                Ok(session) => session,
                Err(error) => return Ok(Err(reply::error(&format!("ERR pmnet: {error}")))),
            };
            self.0 = Some(session);
            match up.submit(now, session, call) {
                Ok(call) => return Ok(Ok(call)),
                Err(Refused::Busy) => return Err(Later::Busy),
                Err(error @ Refused::TooLarge) => {
                    return Ok(Err(reply::error(&format!("ERR pmnet: {error}"))));
                }
                Err(Refused::Closed | Refused::Sessions) => self.0 = None,
            }
        }
        Ok(Err(reply::error("ERR pmnet: no session could be opened")))
    }
}

/// Returns the preamble of a payload, which precedes its commands.
pub(in crate::client) fn head(form: Form, selected: Selected) -> [u8; PREAMBLE_LEN] {
    preamble(form, selected.protocol, selected.database)
}

/// Returns the payload of one command of a client.
pub(in crate::client) fn single(frame: &[u8], selected: Selected) -> Bytes {
    Bytes::from([&head(Form::Single, selected), frame].concat())
}

/// Returns the payload of a question that the front itself asks.
pub(in crate::client) fn question(database: u32, command: &[&[u8]]) -> Bytes {
    let mut payload = preamble(Form::Single, Protocol::Resp2, database).to_vec();
    write_command(&mut payload, command);
    payload.into()
}

/// Returns the store's reply in this outcome, or an error if the store gave no reply.
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
