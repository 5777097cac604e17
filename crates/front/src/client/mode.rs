//! What a connection does with the commands of its client.
//!
//! Subscriptions are no mode: a RESP3 client that is subscribed may do everything else. They are counted with the
//! connection to the store that has them ([`super::back::direct`]).

use super::transaction::Transaction;

#[derive(Default)]
pub(super) enum Mode {
    /// Each on its own, as the table says.
    #[default]
    Ordinary,
    /// MULTI was answered here: they are queued until EXEC.
    Queueing(Transaction),
    /// WATCH was passed: so is everything until EXEC, DISCARD or UNWATCH.
    Watching,
    /// MULTI was passed behind WATCH. `failed`: a command inside it was refused here, so its EXEC must not run.
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
