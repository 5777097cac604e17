//! Reads of one client that are answered together ([`super::reads`]).

use bytes::Bytes;
use pmnet_wire::command::{Commands, Form, Protocol, key_hash};
use pmnet_wire::packet::READ_KEYS_MAX;

use super::own_keys::{Listing, without_own};
use super::read_before::Missed;
use crate::client::{COMMANDS_PER_TURN, Shared};
use crate::limits::BULK_BYTES_MAX;
use crate::upstream::{CallId, Calls, Time};

/// If the commands of a batch have more bytes than this, the batch takes no further command.
pub const BATCH_BYTES_MAX: usize = 64 * 1024;
/// Maximum number of bytes of all replies of a batch together. A pack of bypasses has the same bound.
pub const BATCH_REPLY_BYTES_MAX: usize = BULK_BYTES_MAX;

/// Reads of one connection that are answered together.
pub(in crate::client) struct Batch {
    /// Number of the batch's question to the store, which distinguishes it from earlier questions of this connection.
    pub(super) question: u64,
    pub(super) stage: BatchStage,
    /// The time when the deadline of the first command began to run.
    pub(super) begun: Time,
    /// The bytes of all commands, and the end of each command in them.
    pub(super) commands: Vec<u8>,
    pub(super) ends: Vec<usize>,
    /// Number of commands that are answered or were sent as bypasses.
    pub(super) done: usize,
    /// Bytes of the replies that came from the store.
    pub(super) reply_bytes: usize,
    /// Whether the store could not answer a read. The rest of the batch then goes as bypasses.
    pub(super) store_failed: bool,
    /// Different hashes of the commands' keys: at most [`READ_KEYS_MAX`] + 1.
    hashes: Vec<u64>,
    /// The key, if all commands are GETs of one key.
    pub(super) key: Option<Vec<u8>>,
    /// The commands that list the keys of database 0, by index.
    pub(super) listings: Vec<(usize, Listing)>,
    /// Whether one of the commands reads all keys.
    pub(super) all_keys: bool,
    /// Whether all commands may be answered by a replica.
    pub(super) fits_replicas: bool,
    /// Whether the question to the head also asks which order a replica must have applied.
    pub(super) asks_replica: bool,
    /// Whether the batch's latest question went to a replica.
    pub(super) of_replica: bool,
    /// The head's answer, unless it was a HIT whose value was used.
    pub(super) missed: Option<Missed>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::client) enum BatchStage {
    /// The batch takes further reads, or waits until all earlier commands are answered.
    Gathers,
    /// The head was asked with this call and has not answered.
    Asked(CallId),
    /// The head has said MISS. An earlier question to the store is under way, and its answer may be fresh
    /// enough.
    Awaits { epoch: u32, need: u64 },
    /// The batch may be read from the store if the store's record names this epoch and the store has applied everything
    /// up to `need`.
    Missed { epoch: u32, need: u64 },
    /// The batch may be read from a replica if the replica's record names this epoch and the replica has applied
    /// everything up to `need`.
    Replica { epoch: u32, need: u64 },
    /// The shell has the commands and reads from the store.
    HandedOut,
    /// The commands are to be sent as bypasses.
    Bypassed,
}

/// Reads of one connection that the shell is to send to the store directly.
#[derive(Clone, Debug)]
pub struct StoreRead {
    /// The connection, by [`Connection::id`].
    pub connection: u64,
    /// Number of the connection's question, by which late replies to earlier questions are recognized.
    pub batch: u64,
    /// RESP version of the replies.
    pub protocol: Protocol,
    /// The database of the keys.
    pub database: u32,
    /// The bytes of the commands, one command after the other.
    pub commands: Bytes,
    /// Number of commands.
    pub count: usize,
    /// How fresh the store must be.
    pub freshness: Freshness,
    /// Whether the commands are read from a replica of the store.
    pub replica: bool,
}

/// How fresh a store must be to be read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// The epoch and order that the head named.
    Known {
        /// Epoch that the store's record must name.
        epoch: u32,
        /// Order that the store must have applied.
        need: u64,
    },
    /// The head has not answered yet. The shell gives the store's record to the connection, which decides whether the
    /// store is fresh enough.
    Told,
}

/// Why a batch cannot be read from the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// The store cannot be asked, is not fresh enough, or sent an unexpected answer.
    Unfit,
    /// The batch's replies are longer than [`BATCH_REPLY_BYTES_MAX`].
    Large,
}

impl Batch {
    pub(super) fn new(begun: Time) -> Batch {
        Batch {
            question: 0,
            stage: BatchStage::Gathers,
            begun,
            commands: Vec::new(),
            ends: Vec::new(),
            done: 0,
            reply_bytes: 0,
            store_failed: false,
            hashes: Vec::new(),
            key: None,
            listings: Vec::new(),
            all_keys: false,
            fits_replicas: true,
            asks_replica: false,
            of_replica: false,
            missed: None,
        }
    }

    /// Returns the batch's next stage after a MISS if the batch cannot be read from a replica.
    pub(super) fn at_master(&self, shared: &Shared, protocol: Protocol) -> BatchStage {
        match self.missed {
            Some(Missed { epoch, need, .. })
                if shared.reads_from_store(protocol) && !self.store_failed =>
            {
                BatchStage::Missed { epoch, need }
            }
            _ => BatchStage::Bypassed,
        }
    }

    pub(super) fn add<'a>(
        &mut self,
        frame: &[u8],
        get: Option<&[u8]>,
        mut keys: impl Iterator<Item = &'a [u8]>,
    ) {
        // The list gets at most one hash more than the maximum. The additional hash shows that the batch has too many
        // keys.
        while self.hashes.len() <= READ_KEYS_MAX
            && let Some(key) = keys.next()
        {
            let hash = key_hash(key);
            if !self.hashes.contains(&hash) {
                self.hashes.push(hash);
            }
        }
        if self.ends.is_empty() {
            self.key = get.map(<[u8]>::to_vec);
        } else if self.key.as_deref() != get {
            self.key = None;
        }
        self.commands.extend_from_slice(frame);
        self.ends.push(self.commands.len());
    }

    pub(super) fn has_room(&self) -> bool {
        self.ends.len() < COMMANDS_PER_TURN && self.commands.len() < BATCH_BYTES_MAX
    }

    /// Returns the store's reply to the command at `index` as clients see it.
    pub(super) fn shown(&self, index: usize, reply: Bytes) -> Bytes {
        let found = self.listings.iter().find(|(at, _)| *at == index);
        match found {
            Some((_, listing)) => without_own(*listing, reply),
            None => reply,
        }
    }

    /// Returns the command at `index`.
    pub(super) fn frame(&self, index: usize) -> &[u8] {
        let from = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.commands[from..self.ends[index]]
    }

    /// If all commands are GETs of one key, returns the value that the update in `payload` gives to this key.
    pub(super) fn value_in<'a>(&self, payload: &'a [u8], database: u32) -> Option<&'a [u8]> {
        value_of(payload, database, self.key.as_ref()?)
    }

    /// Returns the hash of the key if all commands read one key, and 0 otherwise.
    pub(super) fn key_hash(&self) -> u64 {
        match self.hashes[..] {
            [hash] => hash,
            _ => 0,
        }
    }

    /// Asks the head how fresh the store must be. If no answer could be used, the batch goes as bypasses.
    pub(super) fn ask_head(
        &mut self,
        protocol: Protocol,
        up: &mut dyn Calls,
        shared: &mut Shared,
    ) -> BatchStage {
        let deadline = shared.deadline(self.begun);
        self.asks_replica = self.fits_replicas && shared.replicas.are_wanted(protocol, shared.now);
        let useful = self.key.is_some() || shared.reads_from_store(protocol) || self.asks_replica;
        if !useful || shared.now >= deadline {
            return BatchStage::Bypassed;
        }
        let hashes = if self.all_keys || self.hashes.len() > READ_KEYS_MAX {
            &[]
        } else {
            &self.hashes[..]
        };
        match up.read(shared.now, hashes, self.asks_replica, deadline) {
            Ok(call) => BatchStage::Asked(call),
            Err(error) => {
                tracing::trace!(%error, "the head is not asked");
                shared.head_is_silent();
                BatchStage::Bypassed
            }
        }
    }
}

/// If `payload` is a plain SET of `key`, returns the value that this SET gives to the key.
fn value_of<'a>(payload: &'a [u8], database: u32, key: &[u8]) -> Option<&'a [u8]> {
    let commands = Commands::parse(payload).ok()?;
    if commands.form != Form::Single || commands.database != database {
        return None;
    }
    let mut arguments = commands.iter().next()?;
    let words = [(); 3].map(|()| arguments.next());
    match (words, arguments.next()) {
        ([Some(name), Some(set), Some(value)], None)
            if name.eq_ignore_ascii_case(b"SET") && set == key =>
        {
            Some(value)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pmnet_resp::write_command;
    use pmnet_wire::command::{preamble, single};

    #[test]
    fn only_a_plain_set_of_the_key_in_the_database_has_its_value() {
        let of = |payload: &[u8]| value_of(payload, 0, b"k").map(<[u8]>::to_vec);
        assert_eq!(of(&single(&["SET", "k", "v"])), Some(b"v".to_vec()));
        assert_eq!(of(&single(&["set", "k", ""])), Some(Vec::new()));
        for other in [
            &["SET", "k2", "v"][..],
            &["SET", "K", "v"],
            &["SET", "k"],
            &["SET", "k", "v", "KEEPTTL"],
            &["SET", "k", "v", "EX", "9"],
            &["MSET", "k", "v"],
            &["SETEX", "k", "9", "v"],
            &["APPEND", "k", "v"],
        ] {
            assert_eq!(of(&single(other)), None, "{other:?}");
        }
        let with = |form: Form, protocol: Protocol, database: u32, times: usize| {
            let mut payload = preamble(form, protocol, database).to_vec();
            for _ in 0..times {
                write_command(&mut payload, &["SET", "k", "v"]);
            }
            of(&payload)
        };
        let resp3 = with(Form::Single, Protocol::Resp3, 0, 1);
        assert_eq!(resp3, Some(b"v".to_vec()), "whoever set it");
        assert_eq!(with(Form::Single, Protocol::Resp2, 1, 1), None);
        assert_eq!(with(Form::Transaction, Protocol::Resp2, 0, 1), None);
        assert_eq!(with(Form::Pipeline, Protocol::Resp2, 0, 2), None);
        assert_eq!(of(b""), None);
        assert_eq!(of(&single(&["SET", "k", "v"])[..20]), None);
    }
}
