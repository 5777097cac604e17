//! MULTI … EXEC and WATCH: all keys of one slot, as in Redis Cluster (but for known gap G57).
//!
//! Which shard it is for shows with its first key. MULTI, and what has no key before that, goes to the shard that the client used
//! last, which says what it thinks of it; if the key is of another shard, the transaction is begun anew there and dropped here.
//! Nothing of it was executed.

use bytes::Bytes;
use pmnet_resp::{Arguments, reply};

use super::answer::Wait;
use super::client::{Client, Common, Done, HOME};
use super::link::Owed;
use super::route::{CROSSSLOT, Kind, Place, TRYAGAIN, place_of, server_of};
use crate::client::EXECABORT;
use crate::table::{Sub, Verdict};

/// Commands without keys in front of the first key of a transaction, at most.
const EARLY_MAX: usize = 1024;
/// The same in bytes.
const EARLY_BYTES_MAX: usize = 1024 * 1024;

const MULTI: &[u8] = b"*1\r\n$5\r\nMULTI\r\n";
const DISCARD: &[u8] = b"*1\r\n$7\r\nDISCARD\r\n";

/// A transaction between MULTI and EXEC.
pub(super) struct Transaction {
    number: u64,
    shard: usize,
    /// The slot of its keys, once it has one.
    slot: Option<u16>,
    /// Its keys are of several slots.
    cross: bool,
    /// A command was refused here: EXEC will abort.
    failed: bool,
    /// Its shard does not know of it.
    lost: bool,
    /// What was sent before the first key.
    early: Vec<Vec<u8>>,
    early_bytes: usize,
}

impl Client {
    /// MULTI.
    pub(super) fn begin_transaction(&mut self, frame: &[u8], common: &mut Common) -> Done {
        let shard = self.watched.map_or(self.last, |(_, shard)| shard);
        self.transactions_ever += 1;
        let number = self.transactions_ever;
        if let Err(done) = self.ready(shard, common) {
            return done;
        }
        self.send(shard, frame, Owed::Client);
        self.wait_for(Wait::Multi(shard, number));
        self.transaction = Some(Transaction {
            number,
            shard,
            slot: None,
            cross: false,
            failed: false,
            lost: false,
            early: Vec::new(),
            early_bytes: 0,
        });
        Done::Taken
    }

    /// The shard did not begin it.
    pub(super) fn transaction_refused(&mut self, number: u64) {
        self.transaction
            .take_if(|transaction| transaction.number == number);
    }

    /// A command between MULTI and EXEC.
    pub(super) fn in_transaction(
        &mut self,
        kind: &Kind,
        verdict: &Verdict,
        arguments: &Arguments<'_>,
        frame: &[u8],
        common: &mut Common,
    ) -> Done {
        let Some(transaction) = &mut self.transaction else {
            return Done::Later;
        };
        let misfit = !verdict.arity_fits(arguments);
        let place = match kind {
            // Of all errors about arguments the only one that ends a transaction.
            _ if misfit && arguments.is(0, "EXEC") => {
                transaction.failed = false;
                transaction.cross = false;
                return self.execute(frame, common);
            }
            Kind::Exec => return self.execute(frame, common),
            Kind::Discard => return self.discard(frame, common),
            Kind::State if arguments.is(0, "RESET") => {
                return self.change_state(arguments, frame, common);
            }
            Kind::State | Kind::Subscribe | Kind::Reply | Kind::Scan => {
                let name = String::from_utf8_lossy(arguments.get(0)).to_ascii_uppercase();
                let error = reply::error(&format!(
                    "ERR pmnet: {name} in a MULTI is not possible here: it is about the connection to all shards, and a \
                     transaction is for one"
                ));
                return self.refuse(error);
            }
            Kind::Own(error) if error.starts_with(b"-") => {
                return self.refuse(match place_of(verdict, arguments) {
                    Place::Cross => CROSSSLOT,
                    _ => error.clone(),
                });
            }
            Kind::Multi | Kind::Watch => Place::Anywhere,
            _ => place_of(verdict, arguments),
        };
        if transaction.lost {
            return self.refuse(reply::error(
                "ERR pmnet: the shard of this transaction has lost it; begin it anew",
            ));
        }
        match place {
            Place::Anywhere => {
                let bytes = transaction.early_bytes + frame.len();
                if transaction.slot.is_none()
                    && (bytes > EARLY_BYTES_MAX || transaction.early.len() >= EARLY_MAX)
                {
                    return self.refuse(reply::error(
                        "ERR pmnet: too many commands without keys in front of the first key of a transaction",
                    ));
                }
            }
            Place::Cross => return self.refuse(CROSSSLOT),
            Place::Slot(slot) => {
                let shard = match server_of(slot, &common.map) {
                    Ok(shard) => shard,
                    Err(error) => return self.refuse(error),
                };
                let own = transaction.slot.or(self.watched.map(|(slot, _)| slot));
                if own == Some(slot) && shard != transaction.shard {
                    // It was moved meanwhile.
                    return self.refuse(TRYAGAIN);
                }
                if transaction.slot.is_none() && own.is_none() && shard != transaction.shard {
                    return self.move_transaction(slot, shard, common);
                }
                // What comes behind an error is not queued any more.
                transaction.cross |= !transaction.failed && own.is_some_and(|own| own != slot);
                transaction.slot = transaction.slot.or(Some(slot));
            }
        }
        let (shard, keyed) = (transaction.shard, transaction.slot.is_some());
        let fails = misfit || matches!(verdict.sub, Sub::Unknown);
        if let Err(done) = self.ready(shard, common) {
            return self.lost_transaction(done);
        }
        self.send(shard, frame, Owed::Client);
        self.wait_for(Wait::One(shard));
        if let Some(transaction) = &mut self.transaction {
            transaction.failed |= fails;
            if !keyed {
                transaction.early_bytes += frame.len();
                transaction.early.push(frame.to_vec());
            }
        }
        Done::Taken
    }

    /// The first key is of another shard: begins the transaction there.
    fn move_transaction(&mut self, slot: u16, shard: usize, common: &mut Common) -> Done {
        if let Err(done) = self.ready(shard, common) {
            return self.lost_transaction(done);
        }
        let Some(transaction) = &mut self.transaction else {
            return Done::Later;
        };
        let before = std::mem::replace(&mut transaction.shard, shard);
        transaction.slot = Some(slot);
        let early = std::mem::take(&mut transaction.early);
        self.send(before, DISCARD, Owed::Nobody);
        // The command is not sent before it is certain that it is queued there.
        self.send(shard, MULTI, Owed::Setup);
        for frame in early {
            self.send(shard, &frame, Owed::Nobody);
        }
        Done::Later
    }

    /// What was not possible; if it was answered, the transaction is lost.
    fn lost_transaction(&mut self, done: Done) -> Done {
        if matches!(done, Done::Taken)
            && let Some(transaction) = &mut self.transaction
        {
            if transaction.slot.is_none() {
                let shard = transaction.shard;
                self.send(shard, DISCARD, Owed::Nobody);
            }
            if let Some(transaction) = &mut self.transaction {
                transaction.lost = true;
                transaction.failed = true;
            }
        }
        done
    }

    /// Answers a command of a transaction with an error; EXEC will abort.
    fn refuse(&mut self, error: Bytes) -> Done {
        if let Some(transaction) = &mut self.transaction {
            transaction.failed = true;
        }
        self.wait_for(Wait::Ready(error));
        Done::Taken
    }

    fn execute(&mut self, frame: &[u8], common: &mut Common) -> Done {
        let Some(transaction) = &self.transaction else {
            return Done::Later;
        };
        let (shard, lost) = (transaction.shard, transaction.lost);
        let slot = transaction.slot.or(self.watched.map(|(slot, _)| slot));
        let moves = |slot| server_of(slot, &common.map) != Ok(shard);
        let error = if transaction.cross {
            Some(CROSSSLOT)
        } else if transaction.failed {
            Some(EXECABORT)
        } else {
            // Behind its first command, or what is watched, the map may have changed.
            slot.is_some_and(moves).then_some(TRYAGAIN)
        };
        if let Some(error) = error {
            if !lost {
                self.send(shard, DISCARD, Owed::Nobody);
            }
            self.wait_for(Wait::Ready(error));
        } else if self.forward(shard, frame, Wait::One(shard), common) == Done::Later {
            return Done::Later;
        }
        (self.transaction, self.watched) = (None, None);
        Done::Taken
    }

    fn discard(&mut self, frame: &[u8], common: &mut Common) -> Done {
        let Some(transaction) = &self.transaction else {
            return Done::Later;
        };
        let shard = transaction.shard;
        if transaction.lost {
            self.wait_for(Wait::Ready(reply::OK));
        } else if self.forward(shard, frame, Wait::One(shard), common) == Done::Later {
            return Done::Later;
        }
        (self.transaction, self.watched) = (None, None);
        Done::Taken
    }

    /// WATCH outside of a transaction: keys of one slot, also with what is watched already.
    pub(super) fn watch(
        &mut self,
        verdict: &Verdict,
        arguments: &Arguments<'_>,
        frame: &[u8],
        common: &mut Common,
    ) -> Done {
        let slot = match place_of(verdict, arguments) {
            Place::Slot(slot) if self.watched.is_none_or(|(own, _)| own == slot) => slot,
            Place::Slot(_) | Place::Cross => return self.own(CROSSSLOT, common),
            Place::Anywhere => return self.forward(HOME, frame, Wait::One(HOME), common),
        };
        let shard = match server_of(slot, &common.map) {
            Ok(shard) if self.watched.is_none_or(|(_, own)| own == shard) => shard,
            // What is watched is where the slot was before.
            Ok(_) => return self.own(TRYAGAIN, common),
            Err(error) => return self.own(error, common),
        };
        if let Err(done) = self.ready(shard, common) {
            return done;
        }
        self.send(shard, frame, Owed::Client);
        self.wait_for(Wait::One(shard));
        self.watched = Some((slot, shard));
        Done::Taken
    }

    /// UNWATCH outside of a transaction.
    pub(super) fn unwatch(&mut self, frame: &[u8], common: &mut Common) -> Done {
        let shard = self.watched.map_or(HOME, |(_, shard)| shard);
        if let Err(done) = self.ready(shard, common) {
            return done;
        }
        self.send(shard, frame, Owed::Client);
        self.wait_for(Wait::One(shard));
        self.watched = None;
        Done::Taken
    }
}
