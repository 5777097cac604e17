//! How a connection handles the commands of its client.
//!
//! Subscriptions are not a mode, because a subscribed RESP3 client may send all other commands. The connection to the
//! store on which subscriptions exist counts them ([`super::back::passing`]).

use super::transaction::Transaction;
use crate::table::{Facts, Sub, Verdict};

#[derive(Default)]
pub(super) enum Mode {
    /// Commands are carried out one by one.
    #[default]
    Ordinary,
    /// The front answered MULTI: commands are queued until EXEC.
    Queueing(Transaction),
    /// WATCH was passed: all commands are passed until EXEC, DISCARD or UNWATCH.
    Watching,
    /// MULTI was passed after WATCH. `failed`: the front refused a command inside the MULTI, so the EXEC must not run.
    WatchingMulti { failed: bool },
    /// MONITOR was passed: only QUIT and RESET are possible.
    Monitoring,
}

impl Mode {
    pub(super) fn watches(&self) -> bool {
        matches!(self, Mode::Watching | Mode::WatchingMulti { .. })
    }

    /// Whether MULTI was passed.
    pub(super) fn passed_multi(&self) -> bool {
        matches!(self, Mode::WatchingMulti { .. })
    }

    /// Whether commands are queued until EXEC, in the front or at the store.
    pub(super) fn queues(&self) -> bool {
        matches!(self, Mode::Queueing(_) | Mode::WatchingMulti { .. })
    }

    /// Notes that a command inside a transaction was refused: the transaction's EXEC will abort.
    pub(super) fn fail(&mut self) {
        match self {
            Mode::WatchingMulti { failed } => *failed = true,
            Mode::Queueing(transaction) => transaction.fail(),
            Mode::Ordinary | Mode::Watching | Mode::Monitoring => {}
        }
    }

    /// Whether the *pmnet server* executes a command although the client watches keys. The server executes flushes, key
    /// listings and SCRIPT EXISTS, because these commands touch pmnet's records. After a flush Redis makes EXEC fail.
    pub(super) fn leaves_to_server(&self, verdict: &Verdict) -> bool {
        let minds_records = |facts: &Facts| {
            let names = ["FLUSHALL", "FLUSHDB", "DBSIZE", "KEYS", "RANDOMKEY", "SCAN"];
            names.contains(&facts.name)
        };
        let asks_for_scripts =
            matches!(verdict.sub, Sub::Known(sub) if sub.name == "SCRIPT|EXISTS");
        matches!(self, Mode::Watching)
            && (asks_for_scripts || verdict.facts.is_some_and(minds_records))
    }

    pub(super) fn monitors(&self) -> bool {
        matches!(self, Mode::Monitoring)
    }

    pub(super) fn transaction(&mut self) -> Option<&mut Transaction> {
        match self {
            Mode::Queueing(transaction) => Some(transaction),
            _ => None,
        }
    }

    /// Takes out the transaction that the front queues, if there is one.
    pub(super) fn take_transaction(&mut self) -> Option<Transaction> {
        match std::mem::take(self) {
            Mode::Queueing(transaction) => Some(transaction),
            other => {
                *self = other;
                None
            }
        }
    }
}
