//! MULTI … EXEC and WATCH. As in Redis Cluster, all keys of a transaction must be of one slot (but for known gap G57).
//!
//! The first key decides the shard. Until the first key comes, the router sends the commands to the shard that the
//! client used last. If the first key belongs to another shard, the router sends MULTI and all these commands to that
//! shard. The shard that was used last discards its copy of the commands, of which it has executed none.

use bytes::Bytes;
use pmnet_resp::reply;

use super::backs::{Backs, HOME, Stop, Taken};
use super::link::Owed;
use super::replies::Wait;
use super::route::{CROSSSLOT, Command, Kind, Place, TRYAGAIN};
use crate::client::EXECABORT;
use crate::table::Sub;

/// Maximum number of commands without keys before the first key of a transaction.
const EARLY_MAX: usize = 1024;
/// Maximum number of bytes of commands without keys before the first key of a transaction.
const EARLY_BYTES_MAX: usize = 1024 * 1024;

const MULTI: &[u8] = b"*1\r\n$5\r\nMULTI\r\n";
const DISCARD: &[u8] = b"*1\r\n$7\r\nDISCARD\r\n";

/// A transaction between MULTI and EXEC.
struct Transaction {
    number: u64,
    shard: usize,
    stage: Stage,
    fate: Fate,
    /// The slot of the keys that the client watches.
    watched: Option<u16>,
}

/// Whether the shard of a transaction is decided.
enum Stage {
    /// The transaction has no key yet. The value has the commands that were sent, and their length in bytes.
    Early(Vec<Vec<u8>>, usize),
    /// The transaction's first key is of this slot.
    Keyed(u16),
}

/// The outcome of a transaction at EXEC.
enum Fate {
    /// The command was sent to the shard, which queues or refuses it.
    Queued,
    /// The router refused a command. EXEC gets this error.
    Aborts(Bytes),
    /// EXEC gets this error, and the shard no longer has the transaction.
    Lost(Bytes),
}

impl Transaction {
    /// Returns the slot of the transaction's keys, once there is one.
    fn slot(&self) -> Option<u16> {
        match self.stage {
            Stage::Early(..) => None,
            Stage::Keyed(slot) => Some(slot),
        }
    }

    /// Makes EXEC fail with this error. If an error was set before, the earlier error stays.
    fn abort(&mut self, error: Bytes) {
        if matches!(self.fate, Fate::Queued) {
            self.fate = Fate::Aborts(error);
        }
    }

    /// Notes that the shard no longer has the transaction.
    fn lose(&mut self) {
        self.abort(EXECABORT);
        if let Fate::Aborts(error) = &mut self.fate {
            self.fate = Fate::Lost(std::mem::take(error));
        }
    }

    /// Answers a command with an error. EXEC will abort.
    fn refuse(&mut self, error: Bytes) -> Taken {
        self.abort(EXECABORT);
        Ok(Wait::Ready(error))
    }

    /// Makes sure that a shard takes commands. If the shard takes no commands, the transaction is lost.
    fn ready(&mut self, shard: usize, backs: &mut Backs) -> Result<(), Stop> {
        let ready = backs.ready(shard);
        if let Err(Stop::Answered(_)) = ready {
            if self.slot().is_none() {
                backs.send(self.shard, DISCARD, Owed::Nobody);
            }
            self.lose();
        }
        ready
    }

    /// Handles a command between MULTI and EXEC, other than those that end the transaction.
    fn take(&mut self, kind: &Kind, command: &Command<'_>, backs: &mut Backs) -> Taken {
        let Command {
            arguments,
            frame,
            verdict,
            ..
        } = command;
        let place = match kind {
            Kind::State | Kind::Subscribe | Kind::Reply | Kind::Scan => {
                let name = String::from_utf8_lossy(arguments.get(0)).to_ascii_uppercase();
                return self.refuse(reply::error(&format!(
                    "ERR pmnet: {name} in a MULTI is not possible here: it is about the connection to all shards, and a \
                     transaction is for one"
                )));
            }
            Kind::Own(error) if error.starts_with(b"-") => {
                return self.refuse(match command.place() {
                    Place::Cross => CROSSSLOT,
                    _ => error.clone(),
                });
            }
            Kind::Multi | Kind::Watch => Place::Anywhere,
            _ => command.place(),
        };
        if let Fate::Lost(_) = self.fate {
            return self.refuse(reply::error(
                "ERR pmnet: the shard of this transaction has lost it; begin it anew",
            ));
        }
        match place {
            Place::Anywhere => {
                if let Stage::Early(frames, bytes) = &self.stage
                    && (bytes + frame.len() > EARLY_BYTES_MAX || frames.len() >= EARLY_MAX)
                {
                    return self.refuse(reply::error(
                        "ERR pmnet: too many commands without keys in front of the first key of a transaction",
                    ));
                }
            }
            Place::Cross => return self.refuse(CROSSSLOT),
            Place::Slot(slot) => {
                let shard = match command.server_of(slot) {
                    Ok(shard) => shard,
                    Err(error) => return self.refuse(error),
                };
                let own = self.slot().or(self.watched);
                if shard != self.shard && own == Some(slot) {
                    // The slot was moved to another shard in the meantime.
                    return self.refuse(TRYAGAIN);
                }
                if shard != self.shard && own.is_none() {
                    return Err(self.move_to(slot, shard, backs));
                }
                if own.is_some_and(|own| own != slot) {
                    // After an error no further commands are queued.
                    self.abort(CROSSSLOT);
                }
                if self.slot().is_none() {
                    self.stage = Stage::Keyed(slot);
                }
            }
        }
        self.ready(self.shard, backs)?;
        backs.send(self.shard, frame, Owed::Client);
        if !verdict.arity_fits(arguments) || matches!(verdict.sub, Sub::Unknown) {
            self.abort(EXECABORT);
        }
        if let Stage::Early(frames, bytes) = &mut self.stage {
            *bytes += frame.len();
            frames.push(frame.to_vec());
        }
        Ok(Wait::One(self.shard))
    }

    /// Begins the transaction anew at the shard of its first key, because the client has used another shard until now.
    fn move_to(&mut self, slot: u16, shard: usize, backs: &mut Backs) -> Stop {
        if let Err(stop) = self.ready(shard, backs) {
            return stop;
        }
        backs.send(self.shard, DISCARD, Owed::Nobody);
        self.shard = shard;
        // The present command is sent only once its shard is known to be in MULTI.
        backs.send(shard, MULTI, Owed::Setup);
        if let Stage::Early(early, _) = std::mem::replace(&mut self.stage, Stage::Keyed(slot)) {
            for frame in early {
                backs.send(shard, &frame, Owed::Nobody);
            }
        }
        Stop::Later
    }

    /// Handles EXEC. With `abort`, the reply to EXEC is this error, and the shard executes nothing.
    fn execute(&self, abort: Option<Bytes>, command: &Command<'_>, backs: &mut Backs) -> Taken {
        // The map may have changed since the first command with a key, or since WATCH.
        let slot = self.slot().or(self.watched);
        let moves = slot.is_some_and(|slot| command.server_of(slot) != Ok(self.shard));
        let Some(error) = abort.or(moves.then_some(TRYAGAIN)) else {
            return backs.forward(self.shard, command.frame);
        };
        if !matches!(self.fate, Fate::Lost(_)) {
            backs.send(self.shard, DISCARD, Owed::Nobody);
        }
        Ok(Wait::Ready(error))
    }
}

/// A client's transaction, and the keys that it watches.
#[derive(Default)]
pub(super) struct Transactions {
    open: Option<Transaction>,
    ever: u64,
    /// The slot of the watched keys, and their shard.
    watched: Option<(u16, usize)>,
}

impl Transactions {
    /// Whether a transaction is open between MULTI and EXEC.
    pub(super) fn are_open(&self) -> bool {
        self.open.is_some()
    }

    /// Whether the client watches keys at this shard.
    pub(super) fn watch_at(&self, shard: usize) -> bool {
        self.watched.is_some_and(|(_, own)| own == shard)
    }

    /// Forgets the transaction and the watch.
    pub(super) fn drop_open(&mut self) {
        (self.open, self.watched) = (None, None);
    }

    /// Notes that the shard did not begin the transaction with this number.
    pub(super) fn not_begun(&mut self, number: u64) {
        self.open
            .take_if(|transaction| transaction.number == number);
    }

    /// Handles MULTI.
    pub(super) fn begin(&mut self, command: &Command<'_>, backs: &mut Backs) -> Taken {
        let shard = self.watched.map_or(backs.last, |(_, shard)| shard);
        backs.forward(shard, command.frame)?;
        self.ever += 1;
        self.open = Some(Transaction {
            number: self.ever,
            shard,
            stage: Stage::Early(Vec::new(), 0),
            fate: Fate::Queued,
            watched: self.watched.map(|(slot, _)| slot),
        });
        Ok(Wait::Multi(shard, self.ever))
    }

    /// Handles a command between MULTI and EXEC.
    pub(super) fn take(&mut self, kind: &Kind, command: &Command<'_>, backs: &mut Backs) -> Taken {
        let Some(transaction) = &mut self.open else {
            return Err(Stop::Later);
        };
        let misfit = !command.verdict.arity_fits(command.arguments);
        let done = match (kind, &transaction.fate) {
            // An EXEC with a wrong number of arguments ends the transaction. Any other command with
            // a wrong number only makes EXEC fail.
            _ if misfit && command.arguments.is(0, "EXEC") => {
                transaction.execute(None, command, backs)
            }
            (Kind::Exec, Fate::Queued) => transaction.execute(None, command, backs),
            (Kind::Exec, Fate::Aborts(error) | Fate::Lost(error)) => {
                let error = Some(error.clone());
                transaction.execute(error, command, backs)
            }
            (Kind::Discard, Fate::Lost(_)) => Ok(Wait::Ready(reply::OK)),
            (Kind::Discard, _) => backs.forward(transaction.shard, command.frame),
            _ => return transaction.take(kind, command, backs),
        };
        if !matches!(done, Err(Stop::Later)) {
            self.drop_open();
        }
        done
    }

    /// WATCH outside of a transaction. The keys of the WATCH and the keys that the client already watches must be of
    /// one slot.
    pub(super) fn watch(&mut self, command: &Command<'_>, backs: &mut Backs) -> Taken {
        let slot = match command.place() {
            Place::Slot(slot) if self.watched.is_none_or(|(own, _)| own == slot) => slot,
            Place::Slot(_) | Place::Cross => return Err(Stop::Own(CROSSSLOT)),
            Place::Anywhere => return backs.forward(HOME, command.frame),
        };
        let shard = command.server_of(slot).map_err(Stop::Own)?;
        if self.watched.is_some_and(|(_, own)| own != shard) {
            // The slot has moved since the first WATCH, and the first WATCH was sent to the old shard.
            return Err(Stop::Own(TRYAGAIN));
        }
        let wait = backs.forward(shard, command.frame)?;
        self.watched = Some((slot, shard));
        Ok(wait)
    }

    /// UNWATCH outside of a transaction.
    pub(super) fn unwatch(&mut self, command: &Command<'_>, backs: &mut Backs) -> Taken {
        let shard = self.watched.map_or(HOME, |(_, shard)| shard);
        let wait = backs.forward(shard, command.frame)?;
        self.watched = None;
        Ok(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open() -> Transaction {
        Transaction {
            number: 1,
            shard: 1,
            stage: Stage::Keyed(7),
            fate: Fate::Queued,
            watched: None,
        }
    }

    fn fate(transaction: &Transaction) -> (&str, &[u8]) {
        match &transaction.fate {
            Fate::Queued => ("queued", b""),
            Fate::Aborts(error) => ("aborts", error),
            Fate::Lost(error) => ("lost", error),
        }
    }

    #[test]
    fn exec_gets_the_first_error() {
        let (first, second) = (
            Bytes::from_static(b"-first"),
            Bytes::from_static(b"-second"),
        );
        let mut transaction = open();
        assert_eq!(fate(&transaction), ("queued", &b""[..]));
        transaction.abort(first.clone());
        transaction.abort(second.clone());
        assert_eq!(fate(&transaction), ("aborts", &first[..]));
        transaction.lose();
        assert_eq!(fate(&transaction), ("lost", &first[..]));
        // A transaction that the shard no longer has stays lost after a further error.
        transaction.abort(second);
        transaction.lose();
        assert_eq!(fate(&transaction), ("lost", &first[..]));
    }

    #[test]
    fn a_transaction_that_is_lost_first_aborts() {
        let mut transaction = open();
        transaction.lose();
        assert_eq!(fate(&transaction), ("lost", &EXECABORT[..]));
    }
}
