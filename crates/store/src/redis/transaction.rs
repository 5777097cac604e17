//! One MULTI … EXEC. The transaction is sent with one write, and every reply is checked.
//!
//! A transaction is a list of slots. A slot has a command of an item (an effect, or a command of a request), or a
//! command of pmnet itself (the change of the records, a check of the records, SELECT).
//!
//! When EXEC runs the commands, Redis checks rights again for each command. Redis refuses a command without the right,
//! and continues with the next command. A command that Redis refuses inside EXEC must do no harm. So commands run in
//! the database that was selected before MULTI, and the records are changed and checked by scripts that select their
//! own database. Only a transaction for several databases contains a SELECT. Outside of a transaction the connection is
//! in database 0.

use bytes::Bytes;
use pmnet_resp::{read, write_command};
use pmnet_server::{RecordChange, StoreError};

use super::cluster::{ELSEWHERE_TEXT, is_elsewhere, probe};
use super::config::WaitFor;
use super::owner::{MAY_RECORD_LUA, OWNER, forged, records_changed};
use super::passing::is_passing;
use super::pending::expect_ok;
use super::record::add_records;
use super::{FLUSH_LUA, Link};

/// The owner of the command in a slot of the transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    /// A write of pmnet itself whose result is not needed.
    Write,
    Records,
    Select(u32),
    Item(usize),
    /// A digest of the records. All digests in one transaction must be equal.
    Seal,
}

/// Makes a digest of a hash of database 0. The digest does not depend on the order of the fields. ARGV is the hash, a
/// secret of this transaction, and `begin` or `end`. The call with `begin` stores the digest in the hash. The call with
/// `end` removes the digest if it still matches the hash. If the digest does not match any more, the call with `end`
/// leaves a broken digest. If there is a broken digest, no process accepts the records as its own, even if the answer
/// to this transaction is lost. A client's code that changes the hash between the two calls cannot make a matching
/// digest, because it does not know the secret.
const SEAL_LUA: &str = "redis.call('SELECT', 0)
local hash = ARGV[1]
local all, names, of, out = redis.call('HGETALL', hash), {}, {}, {}
for i = 1, #all, 2 do
  if all[i] ~= 'seal' then names[#names + 1], of[all[i]] = all[i], all[i + 1] end
end
table.sort(names)
for i, name in ipairs(names) do out[i] = redis.sha1hex(name) .. redis.sha1hex(of[name]) end
local digest = redis.sha1hex(ARGV[2] .. table.concat(out))
redis.call('HDEL', hash, '')
if ARGV[3] == 'begin' then
  redis.call('HSET', hash, 'seal', digest)
elseif redis.call('HGET', hash, 'seal') == digest then
  redis.call('HDEL', hash, 'seal')
else
  redis.call('HSET', hash, 'seal', 'broken')
end
return digest";

/// The result of a transaction.
#[derive(Debug)]
pub enum Outcome {
    /// The transaction ran. For each command of an item, in order: the number of the item, and the reply.
    Ran(Vec<(usize, Bytes)>),
    /// Nothing ran, because Redis refused these items for good, with these errors.
    Refused(Vec<(usize, String)>),
    /// Nothing ran: Redis reported with this error that memory is short, and queued no command.
    NoMemory(String),
    /// The commands ran with these replies, but the change of the records failed for this reason. The connection must
    /// not be used any more.
    Unrecorded(Vec<(usize, Bytes)>, String),
    /// The transaction ran only in part, or in another database; see [`Torn`]. The connection must not be used any
    /// more.
    Torn(Torn),
    /// The commands ran with these replies, and the records were changed. But a command that waits for durability
    /// failed, so it is not known whether the transaction is durable. The connection must not be used any more.
    Doubtful(Vec<(usize, Bytes)>, StoreError),
}

/// A transaction of which Redis executed only a part, or a part in another database.
#[derive(Debug)]
pub struct Torn {
    /// The reason why this happened.
    pub why: String,
    /// The items that did not run, or ran in another database.
    pub items: Vec<usize>,
    /// Whether the records have changed.
    pub recorded: bool,
}

/// How an error is treated with which Redis refuses to queue an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Items {
    /// The item's client already has its acknowledgement. If the error may be temporary, the batch waits.
    Promised,
    /// The item's client is waiting. An error about memory or rights is its answer.
    Asked,
}

/// A transaction that is being written into the connection's output.
pub struct Transaction<'a> {
    link: &'a mut Link,
    hash: &'a [u8],
    slots: Vec<Slot>,
    /// Database in which the transaction began.
    home: u32,
    database: u32,
    /// The secret of the transaction's seals; zeros: no seal was added yet.
    secret: [u8; 16],
}

impl<'a> Transaction<'a> {
    /// Begins a transaction whose commands run in `database`, which must exist. `hash`: the hash with the records.
    /// `slot`: in a Redis Cluster, the slot of the transaction's keys, if it has keys. The caller's commands are sent
    /// only after Redis has begun the transaction. If Redis had refused SELECT or MULTI (because a right was taken
    /// away), the commands would run in another database, or one by one.
    ///
    /// # Errors
    /// `Retry` if the transaction cannot begin, or if the records could not be written. The connection must not be used
    /// any more.
    pub fn begin(
        link: &'a mut Link,
        hash: &'a [u8],
        database: u32,
        slot: Option<u16>,
    ) -> Result<Transaction<'a>, StoreError> {
        let connection = &mut link.connection;
        // When Redis queues a script, it does not check the rights that the script's commands need.
        connection.add(&[b"EVAL", MAY_RECORD_LUA.as_bytes(), b"1", hash]);
        if database != 0 {
            connection.add(&[b"SELECT", database.to_string().as_bytes()]);
        }
        connection.add(&[b"MULTI"]);
        connection.send()?;
        for _ in 0..2 + usize::from(database != 0) {
            expect_ok(&connection.reply()?)?;
        }
        // A Redis that accepts no writes refuses an EXEC that contains a write command as a whole, but accepts an EXEC
        // that contains only scripts. So a write command is added that changes nothing.
        if let Some(home) = link.home {
            // Redis also refuses this command if another node serves the slot, or if the slot is being moved.
            connection.add(&[b"HDEL", &probe(slot.unwrap_or(home)), b""]);
        } else if database == 0 {
            connection.add(&[b"HSET", hash, OWNER, &link.owner]);
        } else {
            connection.add(&[b"HDEL", hash, b""]);
        }
        Ok(Transaction {
            link,
            hash,
            slots: vec![Slot::Write],
            home: database,
            database,
            secret: [0; 16],
        })
    }

    /// Selects `database` for the next commands. The database must exist. If the database did not exist, these commands
    /// would run in another database.
    pub fn select(&mut self, database: u32) {
        if self.database != database {
            self.database = database;
            self.slots.push(Slot::Select(database));
            self.link
                .connection
                .add(&[b"SELECT", database.to_string().as_bytes()]);
        }
    }

    /// Adds the change of the records.
    pub fn records(&mut self, changes: &[RecordChange]) {
        if !changes.is_empty() {
            self.slots.push(Slot::Records);
            add_records(self.link, self.hash, changes.iter());
        }
    }

    /// Adds a check of the records before (`"begin"`) or after (`"end"`) commands that run code. A client's code could
    /// change the records between the two checks, and pmnet cannot prevent this. But after such a change this server
    /// stops, and so does every server of the shard that starts later.
    ///
    /// # Errors
    /// `Retry`: the system gave no random numbers.
    pub fn seal(&mut self, moment: &str) -> Result<(), StoreError> {
        if self.secret == [0; 16] {
            getrandom::fill(&mut self.secret)
                .map_err(|error| StoreError::Retry(format!("no randomness: {error}")))?;
        }
        self.slots.push(Slot::Seal);
        let call: [&[u8]; 6] = [
            b"EVAL",
            SEAL_LUA.as_bytes(),
            b"0",
            self.hash,
            &self.secret,
            moment.as_bytes(),
        ];
        self.link.connection.add(&call);
        Ok(())
    }

    /// Adds `count` commands of an item, whose bytes are `resp`.
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

    /// Adds an item's FLUSHALL or FLUSHDB in a form that keeps pmnet's own hashes.
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

    /// Deletes the hash with the scripts of clients before a `SCRIPT FLUSH`, unless Redis would refuse the arguments of
    /// that command. (A SCRIPT FLUSH makes Redis forget pmnet's own scripts, too. The next call reports this, and the
    /// server connects again and loads them.)
    pub fn forget_scripts(&mut self, scripts: &[u8], arguments: &[&[u8]]) {
        let is_mode =
            |mode: &[u8]| mode.eq_ignore_ascii_case(b"ASYNC") || mode.eq_ignore_ascii_case(b"SYNC");
        if arguments.len() == 2 || (arguments.len() == 3 && is_mode(arguments[2])) {
            self.slots.push(Slot::Write);
            // The transaction may run in another database than 0. This script must not change the database of the next
            // commands.
            let forget = b"redis.call('SELECT', 0) return redis.call('DEL', ARGV[1])";
            self.link.connection.add(&[b"EVAL", forget, b"0", scripts]);
        }
    }

    /// Ends the transaction, sends it, and reads every reply. Afterwards the hash is watched again. Its watermark must
    /// be `after` if the transaction ran, and `before` if it did not. `wait_replicas`: the call waits for the sync, and
    /// for this many replicas; `None`: the caller waits.
    ///
    /// # Errors
    /// `Retry` if nothing ran, or if the outcome is unknown; `Fatal` if code of a client changed the records.
    pub fn run(
        self,
        before: &[u8],
        after: &[u8],
        wait_replicas: Option<u32>,
        items: Items,
    ) -> Result<Outcome, StoreError> {
        let Transaction {
            link,
            hash,
            slots,
            home,
            ..
        } = self;
        let moved = home != 0 || slots.iter().any(|slot| matches!(slot, Slot::Select(_)));
        link.connection.add(&[b"EXEC"]);
        if moved {
            link.connection.add(&[b"SELECT", b"0"]);
        }
        link.add_watch(hash, false);
        if let Some(replicas) = wait_replicas {
            link.add_wait(WaitFor::Updates, replicas);
        }
        link.connection.send()?;

        let unqueued = read_queued(link, &slots, items)?;
        let executed = link.connection.reply()?;
        // If the return to database 0 fails, too, the outcome of the transaction takes precedence over this error.
        let back = if moved {
            link.connection.reply().and_then(|reply| expect_ok(&reply))
        } else {
            Ok(())
        };
        let Some(results) = read::elements(&executed) else {
            if let Some(stop) = unqueued.stop {
                return Err(stop);
            }
            if let Some(error) = read::error(&executed)
                && error.starts_with("CROSSSLOT")
            {
                back?;
                link.read_watch(hash, false, before)?;
                let item = |slot: &Slot| match slot {
                    Slot::Item(item) => Some((*item, error.to_owned())),
                    _ => None,
                };
                return Ok(Outcome::Refused(slots.iter().filter_map(item).collect()));
            }
            if let Some(error) = read::error(&executed)
                && (unqueued.first.is_none() || is_passing(error))
            {
                return Err(StoreError::Retry(format!("EXEC: {error}")));
            }
            back?;
            link.read_watch(hash, false, before)?;
            if read::error(&executed).is_none() {
                return Err(records_changed());
            }
            read_waited(link, wait_replicas)?;
            return Ok(match unqueued.no_memory {
                Some(error) => Outcome::NoMemory(error),
                None => Outcome::Refused(unqueued.refused),
            });
        };
        if let Some((slot, error)) = unqueued.first {
            let of = |slot: &Slot| match slot {
                Slot::Item(item) => Some(*item),
                _ => None,
            };
            return Ok(Outcome::Torn(Torn {
                why: format!(
                    "PM2016 Redis refused a command of a transaction when it was to be queued ({error}), and executed the others \
                     all the same"
                ),
                items: slots.get(slot).and_then(of).into_iter().collect(),
                recorded: slots.get(slot) != Some(&Slot::Records),
            }));
        }
        if results.len() != slots.len() {
            return Err(StoreError::Retry(
                "PM2309 Redis's answer to EXEC has the wrong length".into(),
            ));
        }
        let mut ran = Vec::with_capacity(results.len());
        let mut seal = None;
        let mut unsealed = None;
        let mut unrecorded = None;
        // The last SELECT, if Redis refused it: its database, and Redis's error. Commands after it run in a wrong
        // database.
        let mut misplaced: Option<(u32, String)> = None;
        let mut torn: Option<(u32, String, Vec<usize>)> = None;
        for (slot, result) in slots.iter().zip(results) {
            match (slot, read::error(result)) {
                (Slot::Seal, None) if *seal.get_or_insert(result) != result => {
                    return Err(forged(hash));
                }
                (Slot::Seal, Some(error)) => {
                    unsealed.get_or_insert_with(|| error.to_owned());
                }
                (Slot::Records, Some(error)) => {
                    unrecorded.get_or_insert_with(|| error.to_owned());
                }
                (Slot::Select(database), error) => {
                    misplaced = error.map(|error| (*database, error.to_owned()));
                }
                (Slot::Write | Slot::Records | Slot::Seal, _) => {}
                (Slot::Item(item), _) => {
                    ran.push((*item, executed.slice_ref(result)));
                    if let Some((database, error)) = &misplaced {
                        let (_, _, items) =
                            torn.get_or_insert_with(|| (*database, error.clone(), Vec::new()));
                        items.push(*item);
                    }
                }
            }
        }
        if let Some((database, error, mut items)) = torn {
            items.dedup();
            return Ok(Outcome::Torn(Torn {
                why: format!(
                    "PM2017 Redis refused SELECT {database} inside a transaction that it had accepted ({error}), and executed \
                     what follows in the database before"
                ),
                items,
                recorded: unrecorded.is_none(),
            }));
        }
        if let Some(why) = unrecorded {
            return Ok(Outcome::Unrecorded(ran, why));
        }
        let settled = match unsealed {
            Some(error) => Err(StoreError::Retry(format!(
                "PM2303 Redis refuses to show pmnet's records: {error}"
            ))),
            None => back
                .and_then(|()| link.read_watch(hash, false, after))
                .and_then(|()| read_waited(link, wait_replicas)),
        };
        Ok(match settled {
            Ok(()) => Outcome::Ran(ran),
            Err(error) => Outcome::Doubtful(ran, error),
        })
    }
}

/// Reads the reply to the command with which [`Transaction::run`] waits.
fn read_waited(link: &mut Link, wait_replicas: Option<u32>) -> Result<(), StoreError> {
    wait_replicas.map_or(Ok(()), |replicas| {
        link.read_wait(WaitFor::Updates, replicas)
    })
}

/// Commands that Redis refused to queue.
#[derive(Default)]
struct Unqueued {
    /// The first refused command, with the number of its slot.
    first: Option<(usize, String)>,
    /// Items that are refused for good.
    refused: Vec<(usize, String)>,
    no_memory: Option<String>,
    /// The reason why the whole transaction must wait; `None`: it need not wait.
    stop: Option<StoreError>,
}

/// Reads Redis's replies to the commands before EXEC.
fn read_queued(link: &mut Link, slots: &[Slot], items: Items) -> Result<Unqueued, StoreError> {
    let mut found = Unqueued::default();
    for (number, slot) in slots.iter().enumerate() {
        let reply = link.connection.reply()?;
        let Some(error) = read::error(&reply) else {
            continue;
        };
        found
            .first
            .get_or_insert_with(|| (number, error.to_owned()));
        match slot {
            _ if items == Items::Asked && error.starts_with("OOM ") => {
                found.no_memory.get_or_insert_with(|| error.to_owned());
            }
            // For a promised item, the caller waits instead of returning this error.
            Slot::Item(item) if error.starts_with("NOPERM ") => {
                found.refused.push((*item, error.to_owned()));
            }
            // pmnet could not find out the keys of this command before it sent the command.
            Slot::Item(item) if link.home.is_some() && is_elsewhere(error) => {
                found.refused.push((*item, ELSEWHERE_TEXT.to_owned()));
            }
            _ if is_passing(error) => {
                found
                    .stop
                    .get_or_insert_with(|| StoreError::Retry(error.to_owned()));
            }
            Slot::Item(item) => found.refused.push((*item, error.to_owned())),
            // Nothing has run. `load` finds the reason, and the text for the operator.
            _ => {
                found.stop = Some(StoreError::Retry(format!(
                    "PM2304 Redis refuses the commands that keep pmnet's records: {error}"
                )));
            }
        }
    }
    Ok(found)
}
