//! MULTI … EXEC: queued here, sent to the store as one atomic call.

mod recheck;

use bytes::Bytes;
use pmnet_resp::{Arguments, Parser, Status, read, reply, write_header};
use pmnet_wire::command::{COMMANDS_MAX, Form, PREAMBLE_LEN, Protocol};

use super::back::calls::{Purpose, Submit};
use super::back::pack::Kind;
use super::busy::runs_code;
use super::client_command::is_set_info;
use super::gates::Command;
use super::local::{Hello, parse_database};
use super::mode::Mode;
use super::shared::Probed;
use super::{Connection, Later, Shared, arity_error, refusal, shown};
use crate::limits::{COMMAND_BYTES_MAX, REQUESTS};
use crate::table::{Action, Facts, Local, MODULE, NO_MULTI, Pass, Sub, Verdict};
use crate::upstream::Upstream;
use recheck::Recheck;
pub(super) use recheck::not_allowed_any_more;

/// Commands queued since MULTI.
pub(super) struct Transaction {
    /// Preamble and commands.
    payload: Vec<u8>,
    commands: usize,
    read_only: bool,
    /// One of them runs code.
    code: bool,
    /// A command could not be queued: EXEC will abort.
    failed: bool,
    /// What the front answers, and where among the replies.
    own: Vec<(usize, Own)>,
    /// The database that it ends in, if it selects one.
    database: Option<u32>,
    /// The protocol that it ends in, if a HELLO names one.
    protocol: Option<Protocol>,
    /// The rights of its user have changed, and it is at EXEC.
    recheck: Option<Recheck>,
}

/// A command of a transaction that the front answers when the others have run.
#[derive(Debug)]
pub(super) enum Own {
    /// Its frame.
    Command(Vec<u8>),
    /// Its reply, known before.
    Reply(Bytes),
}

/// What is left to do when a transaction has run.
#[derive(Debug)]
pub(super) struct Rest {
    own: Vec<(usize, Own)>,
    database: Option<u32>,
}

impl Transaction {
    /// How many commands are queued.
    pub(super) fn count(&self) -> usize {
        self.commands + self.own.len()
    }

    /// The database that it is in after what is queued, if it selects one. One that has failed is not in it, as for Valkey.
    pub(super) fn database(&self) -> Option<u32> {
        self.database.filter(|_| !self.failed)
    }

    /// Whether EXEC sends it.
    pub(super) fn is_sent(&self) -> bool {
        !self.failed && self.commands > 0
    }

    /// Whether it may travel with others. Code can be ended as long as nothing is in front of it or behind it.
    fn packs(&self) -> bool {
        self.is_sent() && !self.code && self.own.is_empty() && self.database.is_none()
    }

    /// Whether all of them only read.
    pub(super) fn is_read_only(&self) -> bool {
        self.read_only
    }
}

/// Largest CLIENT that is queued, in bytes.
const OWN_BYTES_MAX: usize = 16 * 1024;
/// Subcommands of CLIENT that are answered without the front's other clients, and that change nothing about replies.
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

/// The command, or the subcommand, if the store does not take it between MULTI and EXEC.
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
pub(super) const EXEC_ARITY: Bytes = Bytes::from_static(
    b"-EXECABORT Transaction discarded because of: wrong number of arguments for 'exec' command\r\n",
);
pub(crate) const EXECABORT: Bytes =
    Bytes::from_static(b"-EXECABORT Transaction discarded because of previous errors.\r\n");

impl Connection {
    pub(super) fn begin_transaction(&mut self) {
        let payload = self.preamble(Form::Transaction).to_vec();
        self.mode = Mode::Queueing(Transaction {
            payload,
            commands: 0,
            read_only: true,
            code: false,
            failed: false,
            own: Vec::new(),
            database: None,
            protocol: None,
            recheck: None,
        });
    }

    pub(super) fn fail_transaction(&mut self) {
        if let Mode::WatchingMulti { failed } = &mut self.mode {
            *failed = true;
        }
        if let Some(transaction) = self.mode.transaction() {
            transaction.failed = true;
            // It will never be sent.
            transaction.payload = Vec::new();
        }
    }

    /// A command between MULTI and EXEC.
    pub(super) fn queue_command<U: Upstream>(
        &mut self,
        command: &Command<'_>,
        up: &mut U,
        shared: &mut Shared,
    ) -> Result<(), Later> {
        let Command {
            arguments,
            frame,
            verdict,
        } = command;
        let Some(facts) = verdict.facts else {
            let unknown = unknown_command(arguments);
            return self.queue_unknown(arguments.get(0), unknown, frame, up, shared);
        };
        if facts.name == "EXEC" && arguments.len() != 1 {
            // The only arity error that ends the transaction.
            self.mode = Mode::Ordinary;
            self.unwatch();
            self.reply(EXEC_ARITY);
            return Ok(());
        }
        if let Some(error) = arity_error(verdict, arguments) {
            return self.fail_command(error);
        }
        if matches!(verdict.sub, Sub::Unknown)
            && !(facts.name == "CLIENT" && is_set_info(arguments))
        {
            let unknown = unknown_subcommand(arguments);
            if !matches!(verdict.action, Action::Bypass { .. }) {
                return self.fail_command(unknown);
            }
            let name = [arguments.get(0), b"|", arguments.get(1)].concat();
            return self.queue_unknown(&name, unknown, frame, up, shared);
        }
        if let Some(name) = not_in_multi(verdict) {
            let name = if shared.table.names_what_is_not_allowed() {
                format!("'{}' ", name.to_ascii_lowercase())
            } else {
                String::new()
            };
            return self.fail_command(reply::error(&format!(
                "ERR Command {name}not allowed inside a transaction"
            )));
        }
        self.queue_by_action(facts, command, up, shared)
    }

    fn queue_by_action<U: Upstream>(
        &mut self,
        facts: &'static Facts,
        command: &Command<'_>,
        up: &mut U,
        shared: &mut Shared,
    ) -> Result<(), Later> {
        let Command {
            arguments,
            frame,
            verdict,
        } = *command;
        match verdict.action {
            Action::Bypass { .. } | Action::Pass(Pass::Blocking)
                if facts.has(MODULE) && self.passing.has_state() =>
            {
                let why = "commands of this client have set a state of its connection, which a MULTI does not see unless the \
                           client has sent WATCH before";
                self.fail_command(refusal(arguments, why))
            }
            // Blocking commands do not block inside a transaction; Redis sees to it.
            Action::Update | Action::Pass(Pass::Blocking) => {
                let queued = self.queue_frame(frame, Kind::Writes);
                self.reply(queued);
                Ok(())
            }
            Action::Bypass { read_only, .. } => {
                let queued = self.queue_frame(frame, Kind::of(read_only));
                if let Some(transaction) = self.mode.transaction() {
                    transaction.code |= runs_code(Some(facts));
                }
                self.reply(queued);
                Ok(())
            }
            Action::Local(Local::Ping | Local::Echo) => {
                let queued = self.queue_frame(frame, Kind::Reads);
                self.reply(queued);
                Ok(())
            }
            Action::Local(
                local @ (Local::Exec | Local::Discard | Local::Multi | Local::Quit | Local::Reset),
            ) => {
                if matches!(local, Local::Quit | Local::Reset) {
                    self.flush_pack(up, shared)?;
                }
                self.local(local, verdict.sub, arguments, up, shared)
            }
            Action::Pass(Pass::Watch) => {
                // Not an error of the transaction: Redis goes on with it.
                self.reply(reply::error("ERR WATCH inside MULTI is not allowed"));
                Ok(())
            }
            Action::Local(Local::Unwatch) => self.queue_own(Own::Command(frame.to_vec())),
            Action::Local(Local::Client) if may_queue_client(verdict.sub, arguments) => {
                self.queue_own(Own::Command(frame.to_vec()))
            }
            Action::Local(Local::Hello) if self.may_queue_hello(arguments) => {
                self.queue_hello(arguments, frame)
            }
            Action::Local(Local::Select) => self.queue_select(arguments, frame, up, shared),
            // Between MULTI and EXEC it does not wait; Redis sees to it.
            Action::Pass(Pass::Wait) => {
                let queued = self.queue_frame(frame, Kind::Writes);
                self.reply(queued);
                Ok(())
            }
            Action::Local(_) | Action::Pass(_) => {
                self.fail_command(refusal(arguments, "it is not supported inside MULTI"))
            }
            Action::Refuse(why) => self.fail_command(refusal(arguments, why)),
        }
    }

    /// A command of this name, with a subcommand behind `|`, that is not in the table may be a module's or a newer one: the
    /// store is asked, as an unknown command must abort the transaction before any of it runs. `unknown`: the error if it is one.
    fn queue_unknown<U: Upstream>(
        &mut self,
        name: &[u8],
        unknown: Bytes,
        frame: &[u8],
        up: &mut U,
        shared: &mut Shared,
    ) -> Result<(), Later> {
        if name.len() > 64 || shared.probed.get(name) == Some(&Probed::Unknown) {
            return self.fail_command(unknown);
        }
        if shared.probed.get(name) == Some(&Probed::Known) {
            let queued = self.queue_frame(frame, Kind::Writes);
            self.reply(queued);
            return Ok(());
        }
        let purpose = Purpose::Probe {
            name: name.to_vec(),
            frame: frame.to_vec(),
            unknown,
        };
        self.ask_store(
            self.settings.database,
            &[b"COMMAND", b"INFO", name],
            purpose,
            up,
            shared,
        )?;
        Ok(())
    }

    /// Queues a command that the front answers.
    pub(super) fn queue_own(&mut self, own: Own) -> Result<(), Later> {
        let bytes = match &own {
            Own::Command(bytes) => bytes.len(),
            Own::Reply(bytes) => bytes.len(),
        };
        let error = match self.mode.transaction() {
            None => Some(reply::error("ERR pmnet: the transaction is gone")),
            Some(transaction) if transaction.failed => None,
            Some(transaction) if transaction.count() >= COMMANDS_MAX || bytes > OWN_BYTES_MAX => {
                Some(reply::error(&format!(
                    "ERR pmnet: a transaction can have {COMMANDS_MAX} commands, and {OWN_BYTES_MAX} bytes in one of CLIENT"
                )))
            }
            Some(transaction) => {
                transaction.own.push((transaction.count(), own));
                None
            }
        };
        if error.is_some() {
            self.fail_transaction();
        }
        self.reply(error.unwrap_or(QUEUED));
        Ok(())
    }

    /// Whether the front answers this HELLO at its place: not if it logs in, for Redis looks at passwords, and not if there are
    /// messages in the present protocol.
    fn may_queue_hello(&self, arguments: &Arguments<'_>) -> bool {
        let hello = Hello::parse(arguments, self.settings.protocol);
        let logs_in = hello.is_ok_and(|hello| hello.login.is_some());
        !logs_in && self.passing.subscriptions() == 0
    }

    /// HELLO.
    fn queue_hello(&mut self, arguments: &Arguments<'_>, frame: &[u8]) -> Result<(), Later> {
        let present = self.settings.protocol;
        let hello = match Hello::parse(arguments, present).and_then(Hello::complete) {
            Ok(hello) => hello,
            // It is queued all the same, and the others run.
            Err(error) => return self.queue_own(Own::Reply(error)),
        };
        if arguments.len() > 1
            && let Some(transaction) = self.mode.transaction()
        {
            transaction.protocol = Some(hello.protocol);
        }
        self.queue_own(Own::Command(frame.to_vec()))
    }

    /// SELECT. The store runs it with the others; a database that nobody has used yet is first checked with it.
    fn queue_select<U: Upstream>(
        &mut self,
        arguments: &Arguments<'_>,
        frame: &[u8],
        up: &mut U,
        shared: &mut Shared,
    ) -> Result<(), Later> {
        let database = match parse_database(arguments.get(1)) {
            Ok(database) => database,
            // It is queued all the same, and the others run.
            Err(error) => return self.queue_own(Own::Reply(error)),
        };
        if shared.databases.contains(&database) {
            let queued = self.queue_known_select(database, frame);
            self.reply(queued);
            return Ok(());
        }
        let purpose = Purpose::SelectQueued {
            database,
            frame: frame.to_vec(),
        };
        self.ask_store(database, &[b"DBSIZE"], purpose, up, shared)?;
        Ok(())
    }

    fn queue_known_select(&mut self, database: u32, frame: &[u8]) -> Bytes {
        let queued = self.queue_frame(frame, Kind::Writes);
        if let Some(transaction) = self.mode.transaction() {
            transaction.database = Some(database);
        }
        queued
    }

    /// The store has said whether it has the database of a SELECT that is to be queued; the reply to that.
    pub(super) fn select_checked(
        &mut self,
        database: u32,
        frame: &[u8],
        outcome: Result<Bytes, Bytes>,
        shared: &mut Shared,
    ) -> Bytes {
        match outcome {
            Ok(reply) if !reply.starts_with(b"-") => {
                shared.databases.insert(database);
                self.queue_known_select(database, frame)
            }
            Ok(error) if error.starts_with(b"-ERR DB index") => {
                if let Some(transaction) = self.mode.transaction() {
                    let at = transaction.count();
                    transaction.own.push((at, Own::Reply(error)));
                }
                QUEUED
            }
            Ok(error) | Err(error) => {
                self.fail_transaction();
                error
            }
        }
    }

    /// The reply to EXEC, with what the front answers in its place.
    pub(super) fn executed(
        &mut self,
        rest: Rest,
        outcome: Result<Bytes, Bytes>,
        shared: &mut Shared,
    ) -> Bytes {
        let reply = match outcome {
            Ok(reply) => reply,
            Err(error) => {
                if rest.database.is_some() {
                    // What follows may be for another database.
                    self.end.cut_off();
                }
                return error;
            }
        };
        let Some(theirs) = read::elements(&reply) else {
            // An error: nothing has run.
            return reply;
        };
        if let Some(database) = rest.database {
            self.settings.database = database;
        }
        let mut theirs = theirs.into_iter();
        let mut out = Vec::with_capacity(reply.len());
        write_header(&mut out, theirs.len() + rest.own.len());
        let mut count = 0;
        for (at, own) in rest.own {
            while count < at {
                out.extend_from_slice(theirs.next().unwrap_or_default());
                count += 1;
            }
            let answer = match own {
                Own::Reply(answer) => answer,
                Own::Command(frame) => self.answer_own(&frame, shared),
            };
            out.extend_from_slice(&answer);
            count += 1;
        }
        theirs.for_each(|reply| out.extend_from_slice(reply));
        Bytes::from(out)
    }

    fn answer_own(&mut self, frame: &[u8], shared: &mut Shared) -> Bytes {
        let mut parser = Parser::new(REQUESTS);
        let Ok(Status::Complete) = parser.poll(frame) else {
            return reply::error("ERR pmnet: a queued command cannot be read");
        };
        let arguments = parser.arguments(frame);
        if arguments.is(0, "HELLO") {
            return match Hello::parse(&arguments, self.settings.protocol) {
                Ok(hello) => {
                    let name = hello.name.map(Bytes::copy_from_slice);
                    self.greet(hello.protocol, name, shared)
                }
                Err(error) => error,
            };
        }
        match shared.table.verdict(&arguments).sub {
            Sub::Known(sub) => self.client_alone(sub.name, &arguments, shared),
            Sub::Unknown => self.settings.set_info(&arguments),
            // UNWATCH.
            Sub::No => reply::OK,
        }
    }

    /// Queues one command; returns the reply to it.
    pub(super) fn queue_frame(&mut self, frame: &[u8], kind: Kind) -> Bytes {
        let present = self.settings.protocol;
        let Some(transaction) = self.mode.transaction() else {
            return reply::error("ERR pmnet: the transaction is gone");
        };
        if transaction.protocol.is_some_and(|then| then != present) {
            self.fail_transaction();
            return reply::error(
                "ERR pmnet: behind a HELLO that changes the protocol a MULTI can have no command that Redis answers",
            );
        }
        if transaction.failed {
            // Redis, too, says QUEUED and aborts at EXEC.
            return QUEUED;
        }
        let whole = transaction.payload.len() - PREAMBLE_LEN + frame.len();
        if whole > COMMAND_BYTES_MAX || transaction.count() >= COMMANDS_MAX {
            self.fail_transaction();
            return reply::error(&format!(
                "ERR pmnet: a transaction can have {COMMANDS_MAX} commands and {COMMAND_BYTES_MAX} bytes"
            ));
        }
        transaction.payload.extend_from_slice(frame);
        transaction.commands += 1;
        transaction.read_only &= kind == Kind::Reads;
        QUEUED
    }

    /// EXEC.
    pub(super) fn execute<U: Upstream>(
        &mut self,
        up: &mut U,
        shared: &mut Shared,
    ) -> Result<(), Later> {
        let watches = self.watching.is_some();
        let (packs, bytes) = self.mode.transaction().map_or((false, 0), |transaction| {
            let packs = transaction.packs() && !watches;
            (packs, transaction.payload.len())
        });
        if !(packs && self.has_room_for_transaction(bytes)) {
            self.flush_pack(up, shared)?;
        }
        let Some(mut transaction) = self.mode.take_transaction() else {
            self.reply(reply::error("ERR EXEC without MULTI"));
            return Ok(());
        };
        if transaction.failed {
            self.unwatch();
            self.reply(EXECABORT);
            return Ok(());
        }
        let rest = Rest {
            own: std::mem::take(&mut transaction.own),
            database: transaction.database,
        };
        if transaction.commands == 0 && !watches {
            let answer = self.executed(rest, Ok(Bytes::from_static(b"*0\r\n")), shared);
            self.reply(answer);
            return Ok(());
        }
        if packs && self.has_room_for_transaction(bytes) {
            let commands = &transaction.payload[PREAMBLE_LEN..];
            self.pack_transaction(commands, Kind::of(transaction.read_only));
            self.packs.count_own();
            return Ok(());
        }
        let queued = Bytes::from(transaction.payload);
        let payload = match &self.watching {
            Some(watching) => Bytes::from(Connection::guarded(watching, &queued)),
            None => queued.clone(),
        };
        let how = Submit::Bypass {
            read_only: transaction.read_only,
        };
        match self.submit(&payload, 0, how, self.times.begun(), up, shared) {
            Ok(submitted) => {
                self.unwatch();
                let purpose = if rest.own.is_empty() && rest.database.is_none() {
                    Purpose::one()
                } else {
                    if submitted.is_ok() {
                        // It changes what the next command means.
                        self.hold.for_outcome();
                    }
                    Purpose::Exec(rest)
                };
                self.expect(submitted, purpose, bytes);
                Ok(())
            }
            Err(later) => {
                self.mode = Mode::Queueing(Transaction {
                    payload: queued.into(),
                    own: rest.own,
                    ..transaction
                });
                Err(later)
            }
        }
    }
}

/// Redis' own error for a subcommand that it does not know.
pub(super) fn unknown_subcommand(arguments: &Arguments<'_>) -> Bytes {
    let (sub, name) = (shown_text(arguments.get(1), 128), shown(arguments));
    let name = name.as_bytes();
    reply::error(
        &[
            b"ERR unknown subcommand '",
            sub,
            b"'. Try ",
            name,
            b" HELP.",
        ]
        .concat(),
    )
}

/// Redis' own error for a command that it does not know.
pub(crate) fn unknown_command(arguments: &Arguments<'_>) -> Bytes {
    let mut beginning = Vec::new();
    for argument in arguments.iter().skip(1) {
        let Some(room) = 128_usize
            .checked_sub(beginning.len())
            .filter(|room| *room > 0)
        else {
            break;
        };
        beginning.extend_from_slice(&[b"'", shown_text(argument, room), b"' "].concat());
    }
    let name = shown_text(arguments.get(0), 128);
    let parts = [
        b"ERR unknown command '",
        name,
        b"', with args beginning with: ",
        &beginning,
    ];
    reply::error(&parts.concat())
}

/// As much of this as Redis shows: at most so many bytes, and up to a NUL.
fn shown_text(bytes: &[u8], most: usize) -> &[u8] {
    let most = most.min(bytes.len());
    let end = bytes[..most].iter().position(|byte| *byte == 0);
    &bytes[..end.unwrap_or(most)]
}
