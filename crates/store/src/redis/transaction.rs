//! One MULTI … EXEC, sent with one write, every reply checked.
//!
//! A transaction is a list of slots: commands that belong to an item (an effect, or a command of a
//! request), and our own (SELECT, HSET, HDEL, looks at the records), without which it is worthless. Starts and ends in
//! database 0.

use bytes::Bytes;
use pmnet_resp::{read, write_command};
use pmnet_server::StoreError;

use super::passing::is_passing;
use super::pending::expect_ok;
use super::{FLUSH_LUA, Link};

/// Whose command a slot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    Own,
    Item(usize),
    /// A digest of the records: all of one transaction must be the same.
    Seal,
}

/// A digest of a hash that does not depend on the order of its fields.
const SEAL_LUA: &str = "local all, names, of, out = redis.call('HGETALL', KEYS[1]), {}, {}, {}
for i = 1, #all, 2 do names[#names + 1], of[all[i]] = all[i], all[i + 1] end
table.sort(names)
for i, name in ipairs(names) do out[i] = redis.sha1hex(name) .. redis.sha1hex(of[name]) end
return redis.sha1hex(table.concat(out))";

/// What became of a transaction.
#[derive(Debug)]
pub enum Outcome {
    /// It ran: the reply of each command of an item, in order, with the item's number.
    Ran(Vec<(usize, Bytes)>),
    /// Nothing ran, because Redis refused these items for good, with these errors.
    Refused(Vec<(usize, String)>),
    /// Nothing ran: memory is short, says this error, and Redis queues nothing then.
    NoMemory(String),
    /// It ran, with these replies, but for commands of our own: the records have not changed, for
    /// this reason. The connection is not to be used any more.
    Unrecorded(Vec<(usize, Bytes)>, String),
    /// It ran, with these replies, the records with it; but what was asked behind it failed, so nobody
    /// knows whether that is durable. The connection is not to be used any more.
    Doubtful(Vec<(usize, Bytes)>, StoreError),
}

/// What an item's error is worth when Redis queues it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Items {
    /// Its client has been told that it is done: what may pass is waited for.
    Promised,
    /// Its client waits: that memory is short, or a right missing, is its answer.
    Asked,
}

/// A transaction that is being put together, inside the connection's output.
pub struct Transaction<'a> {
    link: &'a mut Link,
    slots: Vec<Slot>,
    /// Database that it began in.
    home: u32,
    database: u32,
}

impl<'a> Transaction<'a> {
    /// Begins one whose commands run in `database`, which must exist. MULTI goes alone: if Redis refuses it
    /// (rights were taken away), what follows would run by itself. So does SELECT: whatever may be
    /// refused inside, no command runs in another database.
    ///
    /// # Errors
    /// `Retry` if it cannot begin.
    pub fn begin(link: &'a mut Link, database: u32) -> Result<Transaction<'a>, StoreError> {
        if database != 0 {
            let reply = link
                .connection
                .call(&[b"SELECT", database.to_string().as_bytes()])?;
            expect_ok(&reply)?;
        }
        expect_ok(&link.connection.call(&[b"MULTI"])?)?;
        Ok(Transaction {
            link,
            slots: Vec::new(),
            home: database,
            database,
        })
    }

    /// Makes what follows run in `database`, which must exist (else it would run in another one).
    pub fn select(&mut self, database: u32) {
        if self.database != database {
            self.database = database;
            self.own(&[b"SELECT", database.to_string().as_bytes()]);
        }
    }

    /// Adds a command of our own.
    pub fn own(&mut self, arguments: &[&[u8]]) {
        self.slots.push(Slot::Own);
        self.link.connection.add(arguments);
    }

    /// Adds a look at all records. What code of a client that we do not control does to them between two
    /// such looks cannot be prevented, but stops the shard.
    pub fn seal(&mut self, hash: &[u8]) {
        debug_assert_eq!(self.database, 0, "the records are in database 0");
        self.slots.push(Slot::Seal);
        self.link
            .connection
            .add(&[b"EVAL", SEAL_LUA.as_bytes(), b"1", hash]);
    }

    /// Adds one command of our own as bytes.
    pub fn own_bytes(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        self.slots.push(Slot::Own);
        write(self.link.connection.out());
    }

    /// Adds `count` commands of an item, byte for byte.
    pub fn verbatim(&mut self, item: usize, count: usize, resp: &[u8]) {
        self.slots
            .extend(std::iter::repeat_n(Slot::Item(item), count));
        self.link.connection.out().extend_from_slice(resp);
    }

    /// Adds one command of an item.
    pub fn command(&mut self, item: usize, arguments: &[&[u8]]) {
        self.slots.push(Slot::Item(item));
        write_command(self.link.connection.out(), arguments);
    }

    /// Adds a FLUSHALL or FLUSHDB of an item, such that pmnet's own hashes survive it.
    pub fn flush(&mut self, item: usize, arguments: &[&[u8]]) {
        let script = format!(
            "{FLUSH_LUA}\nlocal command = {{}}\n\
             for i = 2, #ARGV do command[i - 1] = ARGV[i] end\n\
             return pmnet_flush(ARGV[1], command)"
        );
        let database = self.database.to_string();
        let mut call: Vec<&[u8]> = vec![b"EVAL", script.as_bytes(), b"0", database.as_bytes()];
        call.extend(arguments);
        self.command(item, &call);
    }

    /// Ends the transaction, sends all, and reads every reply. The hash is watched again afterwards
    /// and must have the given watermark if the transaction ran (`after`) or not (`before`).
    ///
    /// # Errors
    /// `Retry` when nothing ran, or when it is unknown; `Fatal` when code of a client changed the records.
    pub fn run(
        self,
        hash: &[u8],
        before: &[u8],
        after: &[u8],
        wait_replicas: u32,
        items: Items,
    ) -> Result<Outcome, StoreError> {
        debug_assert_eq!(self.database, 0, "a transaction ends in database 0");
        let Transaction {
            link, slots, home, ..
        } = self;
        link.connection.add(&[b"EXEC"]);
        if home != 0 {
            link.connection.add(&[b"SELECT", b"0"]);
        }
        link.add_watch(hash, false);
        link.add_wait(wait_replicas);
        link.connection.send()?;

        let mut refused = Vec::new();
        let mut stop = None;
        let mut no_memory = None;
        for slot in &slots {
            let reply = link.connection.reply()?;
            let Some(error) = read::error(&reply) else {
                continue;
            };
            match slot {
                _ if items == Items::Asked && error.starts_with("OOM ") => {
                    no_memory.get_or_insert_with(|| error.to_owned());
                }
                Slot::Item(item) if items == Items::Asked && error.starts_with("NOPERM ") => {
                    refused.push((*item, error.to_owned()));
                }
                _ if is_passing(error) => {
                    stop.get_or_insert_with(|| StoreError::Retry(error.to_owned()));
                }
                // Nothing has run. `load` finds out why, and what to do.
                Slot::Own | Slot::Seal => {
                    stop = Some(StoreError::Retry(format!(
                        "Redis refuses the commands that keep pmnet's records: {error}"
                    )));
                }
                Slot::Item(item) => refused.push((*item, error.to_owned())),
            }
        }
        let executed = link.connection.reply()?;
        if home != 0 {
            expect_ok(&link.connection.reply()?)?;
        }
        if let Some(stop) = stop {
            return Err(stop);
        }
        if let Some(error) = read::error(&executed) {
            let answered = no_memory.is_some() || !refused.is_empty();
            if !answered || is_passing(error) {
                return Err(StoreError::Retry(format!("EXEC: {error}")));
            }
            link.read_watch(hash, false, before)?;
            link.read_wait(wait_replicas)?;
            return Ok(match no_memory {
                Some(error) => Outcome::NoMemory(error),
                None => Outcome::Refused(refused),
            });
        }
        let Some(results) = read::elements(&executed) else {
            link.read_watch(hash, false, before)?;
            return Err(StoreError::Retry(
                "the records in Redis were changed by somebody else".into(),
            ));
        };
        if results.len() != slots.len() {
            return Err(StoreError::Retry(
                "Redis's answer to EXEC has the wrong length".into(),
            ));
        }
        let mut ran = Vec::with_capacity(results.len());
        let mut seal = None;
        let mut unrecorded = None;
        for (slot, result) in slots.iter().zip(results) {
            match (slot, read::error(result)) {
                (Slot::Seal, _) if *seal.get_or_insert(result) != result => {
                    return Err(StoreError::Fatal(format!(
                        "a function or script of a client changed pmnet's records ({}) in Redis. Going on could \
                         skip acknowledged writes, or apply some twice. Remove that code (FUNCTION LIST), restore \
                         Redis's data, or start the shard anew",
                        String::from_utf8_lossy(hash)
                    )));
                }
                (Slot::Own | Slot::Seal, Some(error)) => {
                    unrecorded.get_or_insert_with(|| error.to_owned());
                }
                (Slot::Own | Slot::Seal, None) => {}
                (Slot::Item(item), _) => ran.push((*item, executed.slice_ref(result))),
            }
        }
        if let Some(why) = unrecorded {
            return Ok(Outcome::Unrecorded(ran, why));
        }
        let settled = link
            .read_watch(hash, false, after)
            .and_then(|()| link.read_wait(wait_replicas));
        Ok(match settled {
            Ok(()) => Outcome::Ran(ran),
            Err(error) => Outcome::Doubtful(ran, error),
        })
    }
}
