//! A Redis or Valkey server as the store. The server is unmodified, and other clients may use it at the same time.
//!
//! **Where the records are.** The records are one hash `pmnet:{SHARD}` in database 0, with one field for each record.
//! Scripts of clients are in `pmnet:{SHARD}:scripts`. Commands that name one of these keys are refused.
//!
//! **A master of a Redis Cluster** ([`cluster`]): the hash is `pmnet:{SHARD-N}`, in a slot of this master. Scripts may
//! use all slots that the master serves. Before anything else, a script checks that the master serves the slots that
//! the script needs. A transaction has keys of only one slot, and changes the records by scripts inside the
//! transaction.
//!
//! **A batch** (`apply`) is one script. First the script tries, for the whole batch, every step that could fail
//! (rights, SELECT, the needs of a flush). Then the records change, and then the effects happen. Redis writes a
//! script's effects to its AOF as one transaction, and drops a torn transaction when it loads the AOF. (The torn
//! transaction is dropped for good only if Redis then rewrites the AOF: [`torn`].) So effects and records are kept or
//! lost together.
//! - If Redis refuses a command for a temporary reason (memory, read-only, rights, …), the batch fails and nothing has
//!   run. A command that is refused for good (unknown command) is left out, and the rest is sent again. If a command
//!   fails while it runs (wrong type, …), the other commands still take effect.
//! - MULTI … EXEC is not safe for a batch, because rights can change between queueing and EXEC. EXEC could then refuse
//!   an acknowledged command and still write the batch's watermark. MULTI … EXEC is used only for a batch that cannot
//!   run in a script (thousands of arguments). Before Redis 7, a script cannot check rights before it runs a command.
//! - Neighbouring plain SETs are called as one MSET ([`runs`]), because in a script a call costs more than
//!   its effect.
//! - A command that a front acknowledged early by its own rule ([`promise`]) is never left out. If Redis refuses such a
//!   command, the batch waits until the cause is removed, or the shard stops.
//!
//! **A request that changes state** (`execute` with a record) runs in one Lua script, which encodes the replies and
//! writes them into the record. So effect and reply are one atomic step, in the AOF and in replicas, too (Redis
//! replicates effects, not scripts). Before the first effect the script writes [`LOST_REPLY`] into the record. If Redis
//! accepts no writes at the moment (memory, replicas, rights, disk, …), it refuses this first write. If the first write
//! is refused, nothing has happened, and the request can be tried again. After [`LOST_REPLY`] has been written, no step
//! is tried again. When memory is short, Redis refuses only commands that need memory. Its error is then a reply like
//! any other. One thing differs from plain Redis: if a client's script raises an error, the text of the error is
//! shorter.
//!
//! Some commands use MULTI instead: those that cannot run in a script (BLPOP, FCALL, CONFIG, …), and those whose
//! replies a script cannot return unchanged ([`exact`]: XREADGROUP, EVAL_RO, maps of RESP3, all unknown commands, …).
//! One transaction contains the command, and a record with the reply [`LOST_REPLY`]. A second step writes the true
//! reply into the record. Requests of several clients that wait at the same time share both steps ([`together`]).
//! [`LOST_REPLY`] becomes visible only if this process crashes between the two steps. After such a crash, too, no
//! command runs twice. During EXEC, Redis checks rights again for each command. Redis refuses a command without the
//! right, and continues with the next command. So the commands run in the database that was selected before MULTI. The
//! records are changed by scripts, which either find their own database or change nothing. A record that Redis refuses
//! in EXEC, or later, is *owed*: this process keeps it until Redis accepts it. If Redis is restarted before it accepts
//! the record, and has nothing of the record, the record's reply becomes [`LOST_REPLY`].
//!
//! **FLUSHALL, FLUSHDB** run in a script that flushes, and keeps the hashes of all shards, in one atomic step.
//!
//! **Code of clients** (EVAL) runs with a `redis` object of its own, and can reach neither the true `redis` object nor
//! the records. Functions (FCALL) run unchanged, and so does an EVAL in one transaction with commands that cannot run
//! in a script. The shard's hash is compared before and after such code, and a change stops the shard. The shard's
//! scripts and the hashes of other shards are not compared. SCRIPT FLUSH runs in Redis and deletes the shard's scripts.
//! A command that asks Redis for scripts by their digests finds the kept scripts, too, because they are loaded before
//! the command runs.
//!
//! **Commands that are not known by name** (of newer servers, of modules) are treated by their facts from `COMMAND`
//! ([`commands`]). A command that changes keys without naming them is refused, because pmnet's keys could be among
//! them. A command that keeps state in its connection is refused, too, because clients share the connection.
//!
//! **pmnet's keys are hidden** from KEYS, SCAN, RANDOMKEY and DBSIZE, but not from code of clients ([`own_keys`]).
//!
//! **Interference** has several causes: FLUSHALL on Redis itself, a second server for the shard, or a late command of
//! an abandoned connection. So each script first compares the watermark and the owner, which every `load` changes
//! ([`owner`]). For a MULTI, the hash is WATCHed between calls. If a comparison fails, the next `load` finds the
//! reason. Three reasons are fatal: another process took over; the records are gone or older than known; the records
//! are newer than known.
//!
//! **Durable** means what the server's configuration allows ([`config::Persistence`]). WAITAOF and WAIT follow the
//! batch on the same connection. Any failure ends the connection; only `load` connects again.

mod apply;
mod cluster;
mod commands;
mod config;
mod connection;
mod exact;
mod execute;
mod kind;
mod lookup;
mod masters;
mod own_keys;
mod owner;
mod packs;
mod passing;
mod pending;
mod plan;
mod promise;
pub mod promote;
mod record;
mod runs;
mod sentinel;
mod settings;
mod together;
mod torn;
mod transaction;
mod url;

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use bytes::Bytes;
use pmnet_resp::read;
use pmnet_server::{Batch, RecordKey, Request, Store, StoreError};

use crate::OpenError;
use commands::CommandTable;
pub use config::StoreSync;
use config::{Facts, Persistence, WaitFor, refused};
use connection::Connection;
use masters::{Guides, Masters};
use owner::Owner;
use passing::{is_not_now, is_passing, passing_lua};
use pending::{expect_ok, not_understood};
use record::Owed;
pub(crate) use url::RedisUrl;

/// Field of the records whose value only grows (compared as a big-endian number).
const WATERMARK: &[u8] = b"watermark";
/// Longest time of WAIT and WAITAOF, in milliseconds. This time is shorter than the time limit of a call.
const WAIT_MILLISECONDS: &str = "4000";
/// The reply in a record before the true reply is known: from a request's first effect until its last step.
const LOST_REPLY: &[u8] = b"-ERR pmnet: applied, reply lost in a crash\r\n";
/// Lua function that runs a flush and keeps the records.
const FLUSH_LUA: &str = include_str!("flush.lua");
/// Lua script that executes one state-changing request.
const REQUEST_LUA: &str = concat!(
    passing_lua!(),
    include_str!("slots.lua"),
    include_str!("flush.lua"),
    include_str!("request.lua")
);

/// Lua script that applies one batch.
const APPLY_LUA: &str = concat!(
    include_str!("slots.lua"),
    include_str!("flush.lua"),
    include_str!("apply.lua")
);

/// A Redis or Valkey server that holds the data and the records of one shard, as the text of this module describes.
pub struct RedisStore {
    url: RedisUrl,
    /// If `url` names Sentinels or nodes, they give the address of the Redis to connect to.
    masters: Option<Masters>,
    /// Slot of the records, if the Redis is a master of a Redis Cluster.
    home: Option<u16>,
    /// Last logged message about slots of other nodes, so that no message is logged twice.
    unfit_slots: Option<String>,
    hash: Vec<u8>,
    scripts: Vec<u8>,
    /// Hashes of the texts that this process has run with `EVAL_RO`.
    read_scripts: std::collections::HashSet<u64>,
    link: Option<Link>,
    /// The commands of the Redis process with this run id. The commands of a Redis process cannot change while it runs.
    known_commands: Option<(String, CommandTable)>,
    /// Run id of the Redis process whose AOF was seen to be whole.
    whole_aof_of: Option<String>,
    owner: Owner,
    owed: Owed,
    /// Last value of the field `watermark` that this process wrote or read.
    watermark: Bytes,
    /// Value that the field `watermark` will have after the batch in flight, until the outcome of this batch is known.
    in_flight: Option<Bytes>,
    /// The highest number of databases that any Redis of this shard is known to have had.
    databases: u32,
    /// In a Redis Cluster, the slots that the master served when it was connected.
    served_slots: Vec<RangeInclusive<u16>>,
    seen_records: bool,
    /// Whether the configured Redis has once passed all checks.
    served: bool,
    persistence: Option<Persistence>,
    sync: StoreSync,
    rejected: u64,
}

/// A connection on which the records were loaded. Their hash is watched, and the scripts are in Redis.
struct Link {
    connection: Connection,
    commands: CommandTable,
    facts: Facts,
    /// Databases that were checked on this connection.
    databases: BTreeSet<u32>,
    request_sha: Vec<u8>,
    apply_sha: Vec<u8>,
    /// Value of the field `owner` with which this link's writes take effect.
    owner: Bytes,
    /// The reason why Redis accepts no writes; `None`: Redis accepts writes. If there is such a reason, the records
    /// were only read, and nothing may be written.
    writes_refused: Option<String>,
    /// Slot of the records, if the Redis is a master of a Redis Cluster.
    home: Option<u16>,
}

/// Returns the key of the hash with a shard's records. For a master of a Redis Cluster, this key is in the slot `home`.
fn records_name(shard: u32, home: Option<u16>) -> String {
    home.map_or_else(
        || format!("pmnet:{{{shard}}}"),
        |home| cluster::records_name(shard, home),
    )
}

impl RedisStore {
    /// Makes a store for one shard. The store connects in [`Store::load`].
    ///
    /// # Errors
    /// [`OpenError::Url`], [`OpenError::Random`].
    pub(crate) fn new(url: RedisUrl, shard: u32, sync: StoreSync) -> Result<RedisStore, OpenError> {
        let start = |guides| Masters::start(guides, url.clone());
        let masters = url.guides.clone().map(start).transpose()?;
        let home = url.guides.as_ref().and_then(Guides::home);
        let hash = records_name(shard, home);
        Ok(RedisStore {
            url,
            masters,
            home,
            unfit_slots: None,
            scripts: format!("{hash}:scripts").into_bytes(),
            hash: hash.into_bytes(),
            read_scripts: std::collections::HashSet::new(),
            link: None,
            known_commands: None,
            whole_aof_of: None,
            owner: Owner::new()?,
            owed: Owed::default(),
            watermark: Bytes::new(),
            in_flight: None,
            databases: 0,
            served_slots: Vec::new(),
            seen_records: false,
            served: false,
            persistence: None,
            sync,
            rejected: 0,
        })
    }

    /// Turns a fault that would stop a server at its start into one for which a running server waits. Redis was changed
    /// while the server ran, so the change can be undone. While the server waits, the devices keep acknowledged
    /// updates.
    fn patient(&self, error: StoreError) -> StoreError {
        match error {
            StoreError::Fatal(text) if self.served => StoreError::Retry(format!(
                "{text}. It was not so when this server started, so it waits until that is put right in Redis; the \
                 devices keep what was acknowledged"
            )),
            other => other,
        }
    }

    fn connect(&mut self) -> Result<Link, StoreError> {
        if let Some(masters) = &self.masters {
            let (host, port) = masters.master()?;
            self.url = self.url.at(&host, port).map_err(StoreError::Retry)?;
        }
        let mut connection = Connection::open(&self.url)?;
        let reply = connection.log_in(&self.url)?;
        if let Some(error) = reply.as_deref().and_then(read::error) {
            return Err(match refused(error, "AUTH") {
                StoreError::Retry(text) if !is_passing(error) => StoreError::Fatal(text),
                other => other,
            });
        }
        let facts = Facts::ask(
            &mut connection,
            self.whole_aof_of.as_deref(),
            self.home.is_some(),
            self.sync,
        )?;
        self.check_slots(&mut connection)?;
        self.databases = self.databases.max(facts.databases);
        self.whole_aof_of = facts.aof_is_whole.then(|| facts.run_id.clone());
        if self.persistence != Some(facts.persistence) {
            let text = facts.persistence.describe(self.url.wait_replicas);
            if facts.persistence.is_durable() && facts.persistence != Persistence::WaitSecond {
                tracing::info!(redis = self.url.endpoint(), "{text}");
            } else {
                tracing::warn!(redis = self.url.endpoint(), "{text}");
            }
            self.persistence = Some(facts.persistence);
        }
        let commands = match &self.known_commands {
            Some((run_id, commands)) if *run_id == facts.run_id => commands.clone(),
            _ => {
                let reply = connection.call(&[b"COMMAND"])?;
                if let Some(error) = read::error(&reply) {
                    return Err(self.unfit("COMMAND", error));
                }
                let table = CommandTable::parse(&reply)
                    .ok_or_else(|| not_understood("COMMAND", &reply))?
                    .of_user(self.user());
                self.known_commands = Some((facts.run_id.clone(), table.clone()));
                table
            }
        };
        let missing = promise::missing(&commands);
        if !missing.is_empty() {
            return Err(settings::lacks(&missing));
        }
        let mut load_script = |text: &str| {
            let reply = connection.call(&[b"SCRIPT", b"LOAD", text.as_bytes()])?;
            match read::error(&reply) {
                Some(error) => Err(refused(error, "SCRIPT LOAD")),
                None => Ok(read::text(&reply).unwrap_or_default().to_vec()),
            }
        };
        let (known, unnamed) = (commands.names(), commands.unnamed_writers());
        let request_sha = load_script(&format!(
            "local KNOWN, UNNAMED = '{known}', '{unnamed}'\n{REQUEST_LUA}"
        ))?;
        let apply_sha = load_script(APPLY_LUA)?;
        self.rehearse(&mut connection, &request_sha)?;
        self.leave_torn_end(&mut connection, facts.torn_end)?;
        Ok(Link {
            connection,
            commands,
            facts,
            databases: BTreeSet::new(),
            request_sha,
            apply_sha,
            owner: Bytes::new(),
            writes_refused: None,
            home: self.home,
        })
    }

    /// Returns the name of this store's user in Redis.
    fn user(&self) -> &str {
        self.url.user.as_deref().unwrap_or("default")
    }

    fn take_link(&mut self) -> Result<Link, StoreError> {
        self.link
            .take()
            .ok_or_else(|| StoreError::Retry("not connected to Redis: load first".into()))
    }

    /// Counts and reports an effect that will never be applied and was not promised.
    fn reject(&mut self, why: &str) {
        self.rejected += 1;
        // The more rejections there are, the fewer of them are logged, so that they do not flood the log.
        if self.rejected.is_power_of_two() {
            tracing::warn!(
                total = self.rejected,
                why,
                "PM2213 an update was rejected and has no effect"
            );
        }
    }
}

impl Link {
    /// Adds the commands that wait until earlier writes are as durable as this purpose requires.
    fn add_wait(&mut self, what: WaitFor, replicas: u32) {
        let replicas_text = replicas.to_string();
        match (self.facts.persistence.waits(what), replicas) {
            (true, _) => {
                // WAITAOF counts replicas that have the data on disk, so a replica without an AOF never counts.
                let arguments: [&[u8]; 4] = [
                    b"WAITAOF",
                    b"1",
                    replicas_text.as_bytes(),
                    WAIT_MILLISECONDS.as_bytes(),
                ];
                self.connection.add(&arguments);
            }
            (_, 0) => {}
            _ => self.connection.add(&[
                b"WAIT",
                replicas_text.as_bytes(),
                WAIT_MILLISECONDS.as_bytes(),
            ]),
        }
    }

    /// Reads the reply to [`Link::add_wait`] with the same arguments.
    fn read_wait(&mut self, what: WaitFor, replicas: u32) -> Result<(), StoreError> {
        let wanted = i64::from(replicas);
        let waited = |ok: bool, what: &str| {
            if ok {
                Ok(())
            } else {
                Err(StoreError::Retry(format!(
                    "PM2204 Redis has it, but not durably: {what}"
                )))
            }
        };
        match (self.facts.persistence.waits(what), replicas) {
            (true, _) => {
                let reply = self.connection.reply()?;
                let counts = read::elements(&reply).unwrap_or_default();
                let count = |i: usize| counts.get(i).and_then(|c| read::integer(c)).unwrap_or(-1);
                let ok = count(0) >= 1 && count(1) >= wanted;
                waited(
                    ok,
                    &format!(
                        "WAITAOF 1 {wanted} said {}",
                        String::from_utf8_lossy(&reply).escape_debug()
                    ),
                )
            }
            (_, 0) => Ok(()),
            _ => {
                let reply = self.connection.reply()?;
                let had = read::integer(&reply);
                waited(
                    had.is_some_and(|count| count >= wanted),
                    &format!(
                        "WAIT {wanted} said {}. INFO replication of this Redis shows its replicas; one that follows \
                         another master does not count",
                        String::from_utf8_lossy(&reply).trim_end()
                    ),
                )
            }
        }
    }

    /// Returns whether this database was checked on this connection.
    fn knows_database(&self, database: u32) -> bool {
        database == 0 || self.databases.contains(&database)
    }

    /// Returns whether commands of this connection may run in this database. Each database is checked once for each
    /// connection. The inner error comes from Redis itself: the database does not exist, or the user may not use it.
    fn try_database(&mut self, database: u32) -> Result<Result<(), String>, StoreError> {
        if self.knows_database(database) {
            return Ok(Ok(()));
        }
        let reply = self
            .connection
            .call(&[b"SELECT", database.to_string().as_bytes()])?;
        if let Some(error) = read::error(&reply) {
            return if is_not_now(error) {
                Err(refused(error, "SELECT"))
            } else {
                Ok(Err(error.to_owned()))
            };
        }
        expect_ok(&self.connection.call(&[b"SELECT", b"0"])?)?;
        self.databases.insert(database);
        Ok(Ok(()))
    }
}

impl Store for RedisStore {
    fn load(&mut self) -> Result<Vec<(RecordKey, Bytes)>, StoreError> {
        self.link = None;
        let mut link = self.connect().map_err(|error| self.patient(error))?;
        let mut records = self.claim(&mut link)?;
        self.settle(&mut link, &mut records)?;
        self.link = Some(link);
        self.served = true;
        Ok(records)
    }

    fn apply(&mut self, batch: &Batch) -> Result<u64, StoreError> {
        let mut link = self.take_link()?;
        let rejected = self.apply_batch(&mut link, batch)?;
        self.link = Some(link);
        Ok(rejected)
    }

    fn execute(
        &mut self,
        requests: &[Request],
        replies: &mut Vec<Bytes>,
    ) -> Result<(), StoreError> {
        let mut link = self.take_link()?;
        self.execute_all(&mut link, requests, replies)?;
        self.link = Some(link);
        Ok(())
    }

    fn identity(&self) -> Option<Bytes> {
        let link = self.link.as_ref()?;
        let takes_writes = link.writes_refused.is_none();
        takes_writes.then(|| Bytes::copy_from_slice(link.facts.run_id.as_bytes()))
    }

    fn attend(&mut self, wake: Box<dyn Fn() + Send>) {
        if let Some(masters) = &self.masters {
            masters.attend(wake);
        }
    }

    fn has_moved(&self) -> bool {
        self.masters.as_ref().is_some_and(Masters::has_moved)
    }

    fn is_gone(&mut self) -> bool {
        self.link
            .as_mut()
            .is_some_and(|link| link.connection.is_over())
    }

    fn may_go(&self) -> bool {
        true
    }

    fn durability(&self) -> String {
        match self.persistence {
            Some(persistence) => {
                format!(
                    "Redis at {}: {}",
                    self.url.endpoint(),
                    persistence.describe(self.url.wait_replicas)
                )
            }
            None => {
                let place = match &self.url.guides {
                    None => format!("Redis at {}", self.url.endpoint()),
                    Some(guides) => guides.text(),
                };
                format!("{place}: not connected yet, so not known")
            }
        }
    }
}
