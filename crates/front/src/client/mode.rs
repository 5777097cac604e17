//! How a connection treats the commands of its client.
//!
//! Subscriptions are no mode: a RESP3 client that is subscribed may do everything else. They are counted with the
//! connection to the store that has them ([`super::back::passing`]).

use super::transaction::Transaction;
use crate::table::{Facts, Sub, Verdict};

#[derive(Default)]
pub(super) enum Mode {
    /// Commands are carried out one by one.
    #[default]
    Ordinary,
    /// MULTI was answered here: they are queued until EXEC.
    Queueing(Transaction),
    /// WATCH was passed: so is everything until EXEC, DISCARD or UNWATCH.
    Watching,
    /// MULTI was passed after WATCH. `failed`: a command inside it was refused here, so its EXEC must not run.
    WatchingMulti { failed: bool },
    /// MONITOR was passed: nothing but QUIT and RESET is possible.
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

    /// Whether commands are queued until EXEC, here or at the store.
    pub(super) fn queues(&self) -> bool {
        matches!(self, Mode::Queueing(_) | Mode::WatchingMulti { .. })
    }

    /// A command inside a transaction was refused: its EXEC will abort.
    pub(super) fn fail(&mut self) {
        match self {
            Mode::WatchingMulti { failed } => *failed = true,
            Mode::Queueing(transaction) => transaction.fail(),
            Mode::Ordinary | Mode::Watching | Mode::Monitoring => {}
        }
    }

    /// Whether the *pmnet server* runs it although the client watches: flushes, key listings and SCRIPT EXISTS, since these touch
    /// pmnet's records. After a flush EXEC fails: Redis sees to that.
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

    /// Ends a transaction that is queued here, if there is one.
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
