//! MULTI … EXEC: the front queues the commands and sends them to the store as one atomic call.

mod recheck;

use bytes::Bytes;
use pmnet_resp::{Arguments, reply, write_header};
use pmnet_wire::command::{COMMANDS_MAX, Form, PREAMBLE_LEN, Protocol};

use super::Shared;
use super::back::calls::{Purpose, head, question};
use super::back::pack::Kind;
use super::back::passing::Passing;
use super::busy::runs_code;
use super::client_command::is_set_info;
use super::command::Command;
use super::errors::{EXEC_ARITY, arity_error, refusal, unknown_command, unknown_subcommand};
use super::settings::{Hello, Selected, parse_database};
use super::shared::Probed;
use crate::limits::COMMAND_BYTES_MAX;
use crate::table::{Action, Facts, Local, MODULE, NO_MULTI, Pass, Sub, Verdict};
use recheck::Recheck;
pub(super) use recheck::not_allowed_any_more;

/// Commands queued since MULTI.
pub(super) struct Transaction {
    /// The payload: preamble and commands.
    payload: Vec<u8>,
    commands: usize,
    read_only: bool,
    /// Whether one of the commands runs code.
    code: bool,
    /// Whether a command could not be queued. After such a command, EXEC will abort.
    failed: bool,
    /// The commands that the front answers, with their places among the replies.
    own: Vec<(usize, Own)>,
    /// The database at the end of the transaction, if it selects one.
    database: Option<u32>,
    /// The protocol at the end of the transaction, if a HELLO names one.
    protocol: Option<Protocol>,
    /// The check of the queued commands, which takes place at EXEC if the user's rights have changed.
    recheck: Option<Recheck>,
}

/// A command of a transaction that the front answers after the other commands have run.
#[derive(Debug)]
pub(super) enum Own {
    /// The command's frame.
    Command(Vec<u8>),
    /// The command's reply, which is already known.
    Reply(Bytes),
}

/// The front's part of a transaction, which the front carries out after the store has run the transaction.
#[derive(Debug)]
pub(super) struct Rest {
    own: Vec<(usize, Own)>,
    database: Option<u32>,
}

impl Transaction {
    /// Returns the number of queued commands.
    pub(super) fn count(&self) -> usize {
        self.commands + self.own.len()
    }

    /// Returns the database after the queued commands, if they select one. As with Valkey, a failed
    /// transaction selects no database.
    pub(super) fn database(&self) -> Option<u32> {
        self.database.filter(|_| !self.failed)
    }

    /// Whether EXEC sends the transaction to the store.
    pub(super) fn is_sent(&self) -> bool {
        !self.failed && self.commands > 0
    }

    /// Whether the transaction may travel with other commands. Code travels without other commands, so that it can be
    /// stopped.
    pub(super) fn packs(&self) -> bool {
        self.is_sent() && !self.code && self.own.is_empty() && self.database.is_none()
    }

    /// Whether EXEC aborts the transaction.
    pub(super) fn has_failed(&self) -> bool {
        self.failed
    }

    /// Whether the front itself answers all commands of the transaction.
    pub(super) fn is_own_alone(&self) -> bool {
        self.commands == 0
    }

    /// Returns the length of the payload.
    pub(super) fn bytes(&self) -> usize {
        self.payload.len()
    }

    /// Returns the bytes of the commands for the store.
    pub(super) fn commands(&self) -> &[u8] {
        &self.payload[PREAMBLE_LEN..]
    }

    /// Takes out the payload and the front's part.
    pub(super) fn take(&mut self) -> (Bytes, Rest) {
        let rest = Rest {
            own: std::mem::take(&mut self.own),
            database: self.database,
        };
        (Bytes::from(std::mem::take(&mut self.payload)), rest)
    }

    /// Puts the payload and the front's part back, because the payload could not be sent.
    pub(super) fn put_back(&mut self, payload: Bytes, rest: Rest) {
        self.payload = payload.into();
        self.own = rest.own;
    }

    /// Whether all commands only read.
    pub(super) fn is_read_only(&self) -> bool {
        self.read_only
    }
}

/// Longest CLIENT command that is queued, in bytes.
const OWN_BYTES_MAX: usize = 16 * 1024;
/// Subcommands of CLIENT that do not concern the front's other clients and do not change which replies are sent.
const QUEUED_CLIENT: [&str; 14] = [
    "CLIENT|CACHING",
    "CLIENT|CAPA",
    "CLIENT|GETNAME",
    "CLIENT|GETREDIR",
    "CLIENT|ID",
    "CLIENT|IMPORT-SOURCE",
    "CLIENT|NO-EVICT",
    "CLIENT|NO-TOUCH",
    "CLIENT|PAUSE",
    "CLIENT|SETINFO",
    "CLIENT|SETNAME",
    "CLIENT|TRACKING",
    "CLIENT|TRACKINGINFO",
    "CLIENT|UNPAUSE",
];

/// Returns the name of the command or subcommand if the store refuses it between MULTI and EXEC.
pub(super) fn not_in_multi(verdict: &Verdict) -> Option<&'static str> {
    let sub = match verdict.sub {
        Sub::Known(sub) => Some(sub),
        Sub::No | Sub::Unknown => None,
    };
    let mut both = verdict.facts.into_iter().chain(sub);
    both.find(|facts| facts.has(NO_MULTI))
        .map(|facts| facts.name)
}

fn may_queue_client(sub: Sub, arguments: &Arguments<'_>) -> bool {
    match sub {
        Sub::Known(sub) => QUEUED_CLIENT.contains(&sub.name),
        Sub::Unknown => is_set_info(arguments),
        Sub::No => false,
    }
}

const QUEUED: Bytes = Bytes::from_static(b"+QUEUED\r\n");

/// The treatment of a command between MULTI and EXEC.
pub(super) enum Handled {
    /// The command has this reply.
    Reply(Bytes),
    /// The command ends the transaction, with this reply.
    Ended(Bytes),
    /// The command is carried out at once.
    Runs(Local),
    /// The store is asked this question first.
    Asks(Bytes, Purpose),
}

/// The state of a client that queues commands.
#[derive(Clone, Copy)]
pub(super) struct Queuer<'a> {
    pub(super) selected: Selected,
    pub(super) passing: &'a Passing,
    pub(super) shared: &'a Shared,
}

impl Transaction {
    pub(super) fn new(selected: Selected) -> Transaction {
        Transaction {
            payload: head(Form::Transaction, selected).to_vec(),
            commands: 0,
            read_only: true,
            code: false,
            failed: false,
            own: Vec::new(),
            database: None,
            protocol: None,
            recheck: None,
        }
    }

    /// Marks the transaction as failed: EXEC will abort.
    pub(super) fn fail(&mut self) {
        self.failed = true;
        // The payload will never be sent.
        self.payload = Vec::new();
    }

    fn refuse(&mut self, error: Bytes) -> Handled {
        self.fail();
        Handled::Reply(error)
    }

    /// Handles a command between MULTI and EXEC.
    pub(super) fn queue(&mut self, command: &Command<'_>, by: Queuer<'_>) -> Handled {
        let Command {
            arguments, verdict, ..
        } = command;
        let Some(facts) = verdict.facts else {
            let unknown = unknown_command(arguments);
            return self.queue_unknown(arguments.get(0), unknown, command, by);
        };
        if facts.name == "EXEC" && arguments.len() != 1 {
            // An EXEC with arguments ends the transaction. Any other command with a wrong number of arguments
            // only makes EXEC fail.
            return Handled::Ended(EXEC_ARITY);
        }
        if let Some(error) = arity_error(verdict, arguments) {
            return self.refuse(error);
        }
        if matches!(verdict.sub, Sub::Unknown)
            && !(facts.name == "CLIENT" && is_set_info(arguments))
        {
            let unknown = unknown_subcommand(arguments);
            if !matches!(verdict.action, Action::Bypass { .. }) {
                return self.refuse(unknown);
            }
            let name = [arguments.get(0), b"|", arguments.get(1)].concat();
            return self.queue_unknown(&name, unknown, command, by);
        }
        if let Some(name) = not_in_multi(verdict) {
            let name = if by.shared.table.names_what_is_not_allowed() {
                format!("'{}' ", name.to_ascii_lowercase())
            } else {
                String::new()
            };
            return self.refuse(reply::error(&format!(
                "ERR Command {name}not allowed inside a transaction"
            )));
        }
        self.queue_by_action(facts, command, by)
    }

    fn queue_by_action(
        &mut self,
        facts: &'static Facts,
        command: &Command<'_>,
        by: Queuer<'_>,
    ) -> Handled {
        let Command {
            arguments,
            frame,
            verdict,
        } = *command;
        let protocol = by.selected.protocol;
        Handled::Reply(match verdict.action {
            Action::Bypass { .. } | Action::Pass(Pass::Blocking)
                if facts.has(MODULE) && by.passing.has_state() =>
            {
                let why = "commands of this client have set a state of its connection, which a MULTI does not see unless the \
                           client has sent WATCH before";
                return self.refuse(refusal(arguments, why));
            }
            // Blocking commands and WAIT do not wait inside a transaction. Redis ensures that.
            Action::Update | Action::Pass(Pass::Blocking | Pass::Wait) => {
                self.add(frame, Kind::Writes, protocol)
            }
            Action::Bypass { read_only, .. } => {
                let queued = self.add(frame, Kind::of(read_only), protocol);
                self.code |= runs_code(Some(facts));
                queued
            }
            Action::Local(Local::Ping | Local::Echo) => self.add(frame, Kind::Reads, protocol),
            Action::Local(
                local @ (Local::Exec | Local::Discard | Local::Multi | Local::Quit | Local::Reset),
            ) => return Handled::Runs(local),
            // Redis continues the transaction after this error, so the front's transaction does not fail, either.
            Action::Pass(Pass::Watch) => reply::error("ERR WATCH inside MULTI is not allowed"),
            Action::Local(Local::Unwatch) => self.add_own(Own::Command(frame.to_vec())),
            Action::Local(Local::Client) if may_queue_client(verdict.sub, arguments) => {
                self.add_own(Own::Command(frame.to_vec()))
            }
            Action::Local(Local::Hello) if may_queue_hello(arguments, by) => {
                self.queue_hello(arguments, frame, protocol)
            }
            Action::Local(Local::Select) => return self.queue_select(arguments, frame, by),
            Action::Local(Local::Auth | Local::Client | Local::Hello)
            | Action::Pass(
                Pass::Subscribe | Pass::Monitor | Pass::Kill | Pass::State | Pass::User,
            ) => {
                let why = "it is not supported inside MULTI";
                return self.refuse(refusal(arguments, why));
            }
            Action::Refuse(why) => return self.refuse(refusal(arguments, why)),
        })
    }

    /// Asks the store about a command of this name (a subcommand follows `|`) that the table does not have.
    /// The command may be of a module or of a newer version. An unknown command must abort the transaction
    /// before any part of it runs. `unknown`: the error for an unknown command.
    fn queue_unknown(
        &mut self,
        name: &[u8],
        unknown: Bytes,
        command: &Command<'_>,
        by: Queuer<'_>,
    ) -> Handled {
        let frame = command.frame;
        match by.shared.probed.get(name) {
            _ if name.len() > 64 => self.refuse(unknown),
            Some(Probed::Unknown) => self.refuse(unknown),
            Some(Probed::Known) => {
                Handled::Reply(self.add(frame, Kind::Writes, by.selected.protocol))
            }
            None => Handled::Asks(
                question(by.selected.database, &[b"COMMAND", b"INFO", name]),
                Purpose::Probe {
                    name: name.to_vec(),
                    frame: frame.to_vec(),
                    unknown,
                },
            ),
        }
    }

    /// Queues a command that the front answers. Returns the reply to the client.
    pub(super) fn add_own(&mut self, own: Own) -> Bytes {
        let bytes = match &own {
            Own::Command(bytes) => bytes.len(),
            Own::Reply(bytes) => bytes.len(),
        };
        if self.failed {
            return QUEUED;
        }
        if self.count() >= COMMANDS_MAX || bytes > OWN_BYTES_MAX {
            self.fail();
            return reply::error(&format!(
                "ERR pmnet: a transaction can have {COMMANDS_MAX} commands, and {OWN_BYTES_MAX} bytes in one of CLIENT"
            ));
        }
        self.own.push((self.count(), own));
        QUEUED
    }

    /// Queues a HELLO.
    fn queue_hello(&mut self, arguments: &Arguments<'_>, frame: &[u8], present: Protocol) -> Bytes {
        let hello = match Hello::parse(arguments, present).and_then(Hello::complete) {
            Ok(hello) => hello,
            // The HELLO is queued with its error, and the other commands run.
            Err(error) => return self.add_own(Own::Reply(error)),
        };
        if arguments.len() > 1 {
            self.protocol = Some(hello.protocol);
        }
        self.add_own(Own::Command(frame.to_vec()))
    }

    /// Queues a SELECT, which the store runs with the other commands. If no client has used its database yet, the store
    /// is first asked whether it has the database.
    fn queue_select(&mut self, arguments: &Arguments<'_>, frame: &[u8], by: Queuer<'_>) -> Handled {
        let database = match parse_database(arguments.get(1)) {
            Ok(database) => database,
            // The SELECT is queued with its error, and the other commands run.
            Err(error) => return Handled::Reply(self.add_own(Own::Reply(error))),
        };
        if by.shared.databases.contains(&database) {
            return Handled::Reply(self.add_select(database, frame, by.selected.protocol));
        }
        let purpose = Purpose::SelectQueued {
            database,
            frame: frame.to_vec(),
        };
        Handled::Asks(question(database, &[b"DBSIZE"]), purpose)
    }

    fn add_select(&mut self, database: u32, frame: &[u8], present: Protocol) -> Bytes {
        let queued = self.add(frame, Kind::Writes, present);
        self.database = Some(database);
        queued
    }

    /// Takes the store's answer to the question whether it has the database of a SELECT that is to be queued. Returns
    /// the reply to the SELECT.
    pub(super) fn select_checked(
        &mut self,
        database: u32,
        frame: &[u8],
        outcome: Result<Bytes, Bytes>,
        present: Protocol,
    ) -> Bytes {
        match outcome {
            Ok(reply) if !reply.starts_with(b"-") => self.add_select(database, frame, present),
            Ok(error) if error.starts_with(b"-ERR DB index") => {
                self.own.push((self.count(), Own::Reply(error)));
                QUEUED
            }
            Ok(error) | Err(error) => {
                self.fail();
                error
            }
        }
    }

    /// Queues one command. Returns the reply to the client.
    pub(super) fn add(&mut self, frame: &[u8], kind: Kind, present: Protocol) -> Bytes {
        if self.protocol.is_some_and(|then| then != present) {
            self.fail();
            return reply::error(
                "ERR pmnet: behind a HELLO that changes the protocol a MULTI can have no command that Redis answers",
            );
        }
        if self.failed {
            // Like Redis, replies QUEUED and aborts at EXEC.
            return QUEUED;
        }
        let whole = self.payload.len() - PREAMBLE_LEN + frame.len();
        if whole > COMMAND_BYTES_MAX || self.count() >= COMMANDS_MAX {
            self.fail();
            return reply::error(&format!(
                "ERR pmnet: a transaction can have {COMMANDS_MAX} commands and {COMMAND_BYTES_MAX} bytes"
            ));
        }
        self.payload.extend_from_slice(frame);
        self.commands += 1;
        self.read_only &= kind == Kind::Reads;
        QUEUED
    }
}

impl Rest {
    /// Whether the front has nothing to carry out after the transaction.
    pub(super) fn is_nothing(&self) -> bool {
        self.own.is_empty() && self.database.is_none()
    }

    /// Returns the database that the client has after the transaction, if the transaction has selected one.
    pub(super) fn database(&self) -> Option<u32> {
        self.database
    }

    /// Returns the reply to EXEC: the store's replies (`theirs`), and the front's `own` replies at the places of their
    /// commands.
    pub(super) fn merge(self, theirs: Vec<&[u8]>, mut answer: impl FnMut(&[u8]) -> Bytes) -> Bytes {
        let bytes: usize = theirs.iter().map(|reply| reply.len()).sum();
        let mut out = Vec::with_capacity(bytes);
        write_header(&mut out, theirs.len() + self.own.len());
        let mut theirs = theirs.into_iter();
        let mut count = 0;
        for (at, own) in self.own {
            while count < at {
                out.extend_from_slice(theirs.next().unwrap_or_default());
                count += 1;
            }
            let answer = match own {
                Own::Reply(answer) => answer,
                Own::Command(frame) => answer(&frame),
            };
            out.extend_from_slice(&answer);
            count += 1;
        }
        theirs.for_each(|reply| out.extend_from_slice(reply));
        Bytes::from(out)
    }
}

/// Whether the front may queue this HELLO and answer it at EXEC. The front may not queue a HELLO that logs in, because
/// Redis checks passwords. The front may not queue a HELLO of a client with subscriptions, because messages to the
/// client come in the present protocol.
fn may_queue_hello(arguments: &Arguments<'_>, by: Queuer<'_>) -> bool {
    let hello = Hello::parse(arguments, by.selected.protocol);
    let logs_in = hello.is_ok_and(|hello| hello.login.is_some());
    !logs_in && by.passing.subscriptions() == 0
}
