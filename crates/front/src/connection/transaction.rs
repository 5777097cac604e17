//! MULTI … EXEC: queued here, sent to the store as one atomic call.

use bytes::Bytes;
use pmnet_resp::{Arguments, reply};
use pmnet_wire::command::{COMMANDS_MAX, Form, PREAMBLE_LEN};

use super::calls::{Purpose, Submit};
use super::mode::Mode;
use super::{Connection, Later, Shared, arity_error, refusal, shown};
use crate::limits::COMMAND_BYTES_MAX;
use crate::table::{Action, Local, NO_MULTI, Pass, Sub, Verdict};
use crate::upstream::Upstream;

/// Commands queued since MULTI.
pub(super) struct Transaction {
    /// Preamble and commands.
    payload: Vec<u8>,
    commands: usize,
    read_only: bool,
    /// A command could not be queued: EXEC will abort.
    failed: bool,
}

impl Transaction {
    /// How many commands are queued.
    pub(super) fn count(&self) -> usize {
        self.commands
    }

    /// Whether all of them only read.
    pub(super) fn is_read_only(&self) -> bool {
        self.read_only
    }
}

const QUEUED: Bytes = Bytes::from_static(b"+QUEUED\r\n");
const EXEC_ARITY: Bytes = Bytes::from_static(
    b"-EXECABORT Transaction discarded because of: wrong number of arguments for 'exec' command\r\n",
);
pub(super) const EXECABORT: Bytes =
    Bytes::from_static(b"-EXECABORT Transaction discarded because of previous errors.\r\n");

impl Connection {
    pub(super) fn begin_transaction(&mut self) {
        let payload = self.preamble(Form::Transaction).to_vec();
        self.mode = Mode::Queueing(Transaction {
            payload,
            commands: 0,
            read_only: true,
            failed: false,
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
        arguments: &Arguments<'_>,
        frame: &[u8],
        verdict: &Verdict,
        up: &mut U,
        shared: &mut Shared,
    ) -> Result<(), Later> {
        let Some(facts) = verdict.facts else {
            let unknown = unknown_command(arguments);
            return self.queue_unknown(arguments.get(0), unknown, frame, up, shared);
        };
        let unsupported = "it is not supported inside MULTI";
        if facts.name == "EXEC" && arguments.len() != 1 {
            // The only arity error that ends the transaction.
            self.mode = Mode::Ordinary;
            self.reply(EXEC_ARITY);
            return Ok(());
        }
        let error = if let Some(error) = arity_error(verdict, arguments) {
            error
        } else if matches!(verdict.sub, Sub::Unknown) {
            let unknown = unknown_subcommand(arguments);
            if !matches!(verdict.action, Action::Bypass { .. }) {
                self.fail_transaction();
                self.reply(unknown);
                return Ok(());
            }
            let name = [arguments.get(0), b"|", arguments.get(1)].concat();
            return self.queue_unknown(&name, unknown, frame, up, shared);
        } else if facts.has(NO_MULTI) {
            reply::error("ERR Command not allowed inside a transaction")
        } else {
            match verdict.action {
                // Blocking commands do not block inside a transaction; Redis sees to it.
                Action::Update | Action::Pass(Pass::Blocking) => {
                    let queued = self.queue_frame(frame, false);
                    self.reply(queued);
                    return Ok(());
                }
                Action::Bypass { read_only, .. } => {
                    let queued = self.queue_frame(frame, read_only);
                    self.reply(queued);
                    return Ok(());
                }
                Action::Local(Local::Ping | Local::Echo) => {
                    let queued = self.queue_frame(frame, true);
                    self.reply(queued);
                    return Ok(());
                }
                Action::Local(
                    local @ (Local::Exec
                    | Local::Discard
                    | Local::Multi
                    | Local::Quit
                    | Local::Reset),
                ) => return self.local(local, verdict.sub, arguments, up, shared),
                Action::Pass(Pass::Watch) => {
                    // Not an error of the transaction: Redis goes on with it.
                    self.reply(reply::error("ERR WATCH inside MULTI is not allowed"));
                    return Ok(());
                }
                Action::Local(_) | Action::Pass(_) => refusal(arguments, unsupported),
                Action::Refuse(why) => refusal(arguments, why),
            }
        };
        self.fail_transaction();
        self.reply(error);
        Ok(())
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
        if name.len() > 64 || shared.probed.get(name) == Some(&false) {
            self.fail_transaction();
            self.reply(unknown);
            return Ok(());
        }
        if shared.probed.get(name) == Some(&true) {
            let queued = self.queue_frame(frame, false);
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

    /// Queues one command; returns the reply to it.
    pub(super) fn queue_frame(&mut self, frame: &[u8], read_only: bool) -> Bytes {
        let Some(transaction) = self.mode.transaction() else {
            return reply::error("ERR pmnet: the transaction is gone");
        };
        if transaction.failed {
            // Redis, too, says QUEUED and aborts at EXEC.
            return QUEUED;
        }
        let whole = transaction.payload.len() - PREAMBLE_LEN + frame.len();
        if whole > COMMAND_BYTES_MAX || transaction.commands >= COMMANDS_MAX {
            self.fail_transaction();
            return reply::error(&format!(
                "ERR pmnet: a transaction can have {COMMANDS_MAX} commands and {COMMAND_BYTES_MAX} bytes"
            ));
        }
        transaction.payload.extend_from_slice(frame);
        transaction.commands += 1;
        transaction.read_only &= read_only;
        QUEUED
    }

    /// EXEC.
    pub(super) fn execute<U: Upstream>(
        &mut self,
        up: &mut U,
        shared: &Shared,
    ) -> Result<(), Later> {
        let Some(transaction) = self.mode.take_transaction() else {
            self.reply(reply::error("ERR EXEC without MULTI"));
            return Ok(());
        };
        if transaction.failed {
            self.reply(EXECABORT);
            return Ok(());
        }
        if transaction.commands == 0 {
            self.reply(Bytes::from_static(b"*0\r\n"));
            return Ok(());
        }
        let bytes = transaction.payload.len();
        let payload = Bytes::from(transaction.payload);
        let how = Submit::Bypass {
            read_only: transaction.read_only,
        };
        match self.submit(&payload, 0, how, self.times.begun, up, shared) {
            Ok(submitted) => {
                self.expect(
                    submitted,
                    Purpose::Bypass {
                        replies: 1,
                        again: None,
                    },
                    bytes,
                );
                Ok(())
            }
            Err(later) => {
                self.mode = Mode::Queueing(Transaction {
                    payload: payload.into(),
                    ..transaction
                });
                Err(later)
            }
        }
    }
}

/// Redis' own error for a subcommand that it does not know.
pub(super) fn unknown_subcommand(arguments: &Arguments<'_>) -> Bytes {
    let sub = arguments.get(1);
    let sub = String::from_utf8_lossy(&sub[..sub.len().min(128)]);
    reply::error(&format!(
        "ERR unknown subcommand '{sub}'. Try {} HELP.",
        shown(arguments)
    ))
}

/// Redis' own error for a command that it does not know.
pub(super) fn unknown_command(arguments: &Arguments<'_>) -> Bytes {
    let text = |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len().min(128)]).into_owned();
    let mut beginning = String::new();
    for argument in arguments.iter().skip(1) {
        if beginning.len() >= 128 {
            break;
        }
        beginning.push_str(&format!("'{}' ", text(argument)));
    }
    let name = if arguments.get(0).len() > 128 {
        shown(arguments)
    } else {
        text(arguments.get(0))
    };
    reply::error(&format!(
        "ERR unknown command '{name}', with args beginning with: {beginning}"
    ))
}
