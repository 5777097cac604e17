//! A Redis or Valkey server as the store: unmodified, possibly used by others at the same time.
//!
//! **Where the records are.** One hash `pmnet:{SHARD}` in database 0, one field a record; scripts of
//! clients in `pmnet:{SHARD}:scripts`. Commands that name such keys are refused.
//!
//! **A batch** (`apply`) is one script: whatever could fail is tried for all of it (rights, SELECT, what a flush
//! needs), then the records change, then the effects happen. Redis writes what a script did to its AOF as one transaction, and drops a torn
//! one when it loads, so effects and records live or die together. What Redis refuses for a passing
//! reason (memory, read-only, rights, …) fails the batch: nothing ran. What it refuses for good (unknown
//! command) is left out and the rest is sent again; what fails while it runs (wrong type, …) failed alone. In
//! MULTI … EXEC rights could change between the turn of a command to be queued and EXEC: what was acknowledged was
//! refused there, with its watermark written. Only a batch with what cannot run in a script (thousands of
//! arguments) is sent that way; and before Redis 7 a script cannot ask for rights beforehand.
//! Neighbours that are plain SETs are called as one MSET ([`runs`]): a call costs a script more than its effect does.
//! Nothing is ever left out that a front acknowledged early by itself ([`promise`]): if Redis refuses
//! that, the batch waits until Redis has been put right, or the shard stops.
//!
//! **A request that changes state** (`execute` with a record) runs in one Lua script, which encodes
//! the replies itself and writes them into the record: effect and reply are one atomic step, also
//! in the AOF and in replicas (Redis replicates effects, not scripts). Before the first effect the script
//! writes [`LOST_REPLY`] into the record. If Redis takes no writes now (memory, replicas, rights, disk, …), that is
//! where it says so, and nothing has happened: the request can be tried again. What fails behind that
//! line is never tried again. When memory is short, only commands that need some are refused, with Redis's
//! own error, which is a reply like others. Differences from running it
//! bare: maps and sets of a RESP3 reply come in any order, doubles have 17 digits, EVAL_RO inside a
//! state-changing request is not held to reading, a script that raises has a shorter error text.
//! Commands that cannot run in a script (BLPOP, FCALL, CONFIG, unknown ones, …) take MULTI instead:
//! a record with the reply [`LOST_REPLY`] and the command in one transaction, then the record with the
//! true reply; only a crash of this process between the two shows [`LOST_REPLY`], and even then nothing runs
//! twice. Redis looks at rights once more for each command in EXEC, and goes on behind one that it refuses. So the
//! commands run in the database that was selected before MULTI, and scripts change the records, in theirs or
//! not at all. A record that Redis does not take there, or behind it, is *owed*: this process keeps it until Redis
//! takes it. If Redis is restarted meanwhile, a record of which nothing had been written becomes [`LOST_REPLY`].
//!
//! **FLUSHALL, FLUSHDB** run in a script that carries the hashes of all shards over, in the same step.
//!
//! **Code of clients** (EVAL) runs with a `redis` of its own, and reaches neither the true one nor the
//! records. Functions (FCALL), and EVAL in one transaction with what cannot run in a script, run as
//! they are: there the shard's hash is compared before and after, and a change stops the shard. Its scripts, and other
//! shards' hashes, are not.
//!
//! **Somebody else** (FLUSHALL behind our back, a second server for the shard, a command of a
//! connection that was given up): scripts compare the watermark, and the owner, which every
//! `load` makes a new one ([`owner`]), before they do anything; for what goes by MULTI the hash is WATCHed between calls. `load` then tells: another process took over, records gone,
//! older than known or ahead of it is fatal.
//!
//! **Durable** means what the server's configuration allows ([`config::Persistence`]); WAITAOF and
//! WAIT go behind the batch on the same connection. Any failure drops the connection: only `load`
//! connects again.

mod apply;
mod commands;
mod config;
mod connection;
mod execute;
mod owner;
mod passing;
mod pending;
mod plan;
mod promise;
mod record;
mod runs;
mod settings;
mod transaction;
mod url;

use std::collections::BTreeSet;

use bytes::Bytes;
use pmnet_resp::read;
use pmnet_server::{Batch, RecordKey, Request, Store, StoreError};

use crate::OpenError;
use commands::CommandTable;
use config::{Facts, Persistence, refused};
use connection::Connection;
use owner::Owner;
use passing::{is_not_now, is_passing, passing_lua};
use pending::{expect_ok, not_understood};
use record::Owed;
use url::RedisUrl;

/// Field of the records whose value only grows (compared as big-endian bytes).
const WATERMARK: &[u8] = b"watermark";
/// How long WAIT and WAITAOF may take, in milliseconds; below the deadline of a call.
const WAIT_MILLISECONDS: &str = "4000";
/// Stored in place of a reply from before a request's first effect until its true reply is known.
const LOST_REPLY: &[u8] = b"-ERR pmnet: applied, reply lost in a crash\r\n";
/// Carries the records over a FLUSHALL.
const FLUSH_LUA: &str = include_str!("flush.lua");
/// Runs one state-changing request.
const REQUEST_LUA: &str = concat!(
    passing_lua!(),
    include_str!("flush.lua"),
    include_str!("request.lua")
);

/// Applies one batch.
const APPLY_LUA: &str = concat!(include_str!("flush.lua"), include_str!("apply.lua"));

/// See the module's text.
pub struct RedisStore {
    url: RedisUrl,
    hash: Vec<u8>,
    scripts: Vec<u8>,
    link: Option<Link>,
    /// Commands of the server with this run id: they cannot change while it runs.
    known_commands: Option<(String, CommandTable)>,
    /// Run id of the server process whose AOF was seen to be whole.
    whole_aof_of: Option<String>,
    owner: Owner,
    owed: Owed,
    /// Last value of the field `watermark` that this process wrote or read.
    watermark: Bytes,
    /// Its value after a batch that was sent, until the fate of that batch is known.
    in_flight: Option<Bytes>,
    seen_records: bool,
    /// This Redis was fit once.
    served: bool,
    persistence: Option<Persistence>,
    rejected: u64,
}

/// A connection that has been loaded from: the hash is watched, the script is there.
struct Link {
    connection: Connection,
    commands: CommandTable,
    facts: Facts,
    /// Databases that were tried on this connection.
    databases: BTreeSet<u32>,
    request_sha: Vec<u8>,
    apply_sha: Vec<u8>,
    /// Value of the field `owner` that makes this link's writes effective.
    owner: Bytes,
    /// Why Redis takes no writes: then the records were only read, and nothing may be written.
    writes_refused: Option<String>,
}

impl RedisStore {
    /// A store for one shard at `rest` (what follows `redis://`); connects in [`Store::load`].
    ///
    /// # Errors
    /// [`OpenError::Url`].
    pub fn new(rest: &str, shard: u32) -> Result<RedisStore, OpenError> {
        Ok(RedisStore {
            url: RedisUrl::parse(rest)?,
            hash: format!("pmnet:{{{shard}}}").into_bytes(),
            scripts: format!("pmnet:{{{shard}}}:scripts").into_bytes(),
            link: None,
            known_commands: None,
            whole_aof_of: None,
            owner: Owner::new(),
            owed: Owed::default(),
            watermark: Bytes::new(),
            in_flight: None,
            seen_records: false,
            served: false,
            persistence: None,
            rejected: 0,
        })
    }

    /// What stops a server that starts is waited for by one that runs: it was put wrong in Redis meanwhile, and can be put
    /// right there. The devices keep what was acknowledged.
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
        let mut connection = Connection::open(&self.url)?;
        if let Some(password) = &self.url.password {
            let reply = match &self.url.user {
                Some(user) => connection.call(&[b"AUTH", user.as_bytes(), password.as_bytes()])?,
                None => connection.call(&[b"AUTH", password.as_bytes()])?,
            };
            if let Some(error) = read::error(&reply) {
                return Err(match refused(error, "AUTH") {
                    StoreError::Retry(text) if !is_passing(error) => StoreError::Fatal(text),
                    other => other,
                });
            }
        }
        let facts = Facts::ask(&mut connection, self.whole_aof_of.as_deref())?;
        self.whole_aof_of = facts.aof_is_whole.then(|| facts.run_id.clone());
        if self.persistence != Some(facts.persistence) {
            let text = facts.persistence.describe(self.url.wait_replicas);
            if facts.persistence.is_durable() {
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
        let request_sha = load_script(REQUEST_LUA)?;
        let apply_sha = load_script(APPLY_LUA)?;
        self.rehearse(&mut connection, &request_sha)?;
        Ok(Link {
            connection,
            commands,
            facts,
            databases: BTreeSet::new(),
            request_sha,
            apply_sha,
            owner: Bytes::new(),
            writes_refused: None,
        })
    }

    /// Redis's name for the user that this store is.
    fn user(&self) -> &str {
        self.url.user.as_deref().unwrap_or("default")
    }

    fn take_link(&mut self) -> Result<Link, StoreError> {
        self.link
            .take()
            .ok_or_else(|| StoreError::Retry("not connected to Redis: load first".into()))
    }

    /// Counts and reports an effect that will never be applied: one that is no promise.
    fn reject(&mut self, why: &str) {
        self.rejected += 1;
        // Logged less and less often, so that a flood of them does not flood the log.
        if self.rejected.is_power_of_two() {
            tracing::warn!(
                total = self.rejected,
                why,
                "an update was rejected and has no effect"
            );
        }
    }
}

impl Link {
    /// Adds the commands after which the server's state is durable as configured.
    fn add_wait(&mut self, replicas: u32) {
        let replicas_text = replicas.to_string();
        match (self.facts.persistence, replicas) {
            (Persistence::WaitAof, _) => {
                // Counts replicas that have it on disk; one without an AOF never counts.
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

    /// Reads the reply to [`Link::add_wait`].
    fn read_wait(&mut self, replicas: u32) -> Result<(), StoreError> {
        let wanted = i64::from(replicas);
        let waited = |ok: bool, what: &str| {
            if ok {
                Ok(())
            } else {
                Err(StoreError::Retry(format!(
                    "Redis has it, but not durably: {what}"
                )))
            }
        };
        match (self.facts.persistence, replicas) {
            (Persistence::WaitAof, _) => {
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
                let ok = read::integer(&reply).is_some_and(|n| n >= wanted);
                waited(
                    ok,
                    &format!(
                        "WAIT {wanted} said {}",
                        String::from_utf8_lossy(&reply).escape_debug()
                    ),
                )
            }
        }
    }

    /// Whether this database was tried on this connection.
    fn knows_database(&self, database: u32) -> bool {
        database == 0 || self.databases.contains(&database)
    }

    /// Whether commands of this connection may run in this database: it is tried once. The inner error is
    /// Redis's own: it has no such database, or does not let its user in.
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
        Some(Bytes::copy_from_slice(link.facts.run_id.as_bytes()))
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
            None => format!(
                "Redis at {}: not connected yet, so not known",
                self.url.endpoint()
            ),
        }
    }
}
