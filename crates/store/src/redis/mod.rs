//! A Redis or Valkey server as the store: unmodified, possibly used by others at the same time.
//!
//! **Where the records are.** One hash `pmnet:{SHARD}` in database 0, one field a record; scripts of
//! clients in `pmnet:{SHARD}:scripts`. Commands that name such keys are refused.
//!
//! **A batch** (`apply`) is one MULTI … EXEC: the effects, byte for byte as the client sent them,
//! then HSET/HDEL of the records. Redis writes a transaction to its AOF as a whole and drops a torn
//! one when it loads, so effects and records live or die together. What Redis refuses while
//! queueing for a passing reason (memory, read-only, loading, …) fails the batch: nothing ran. What
//! it refuses for good (unknown command, arity) is left out and the rest is sent again; what fails in EXEC (wrong
//! type, …) failed alone. Redis checks the passing reasons before EXEC, for the whole transaction.
//!
//! **A request that changes state** (`execute` with a record) runs in one Lua script, which encodes
//! the replies itself and writes them into the record: effect and reply are one atomic step, also
//! in the AOF and in replicas (Redis replicates effects, not scripts). Differences from running it
//! bare: maps and sets of a RESP3 reply come in any order, doubles have 17 digits, EVAL_RO inside a
//! state-changing request is not held to reading, a script that raises has a shorter error text.
//! Commands that cannot run in a script (BLPOP, FCALL, CONFIG, unknown ones, …) take MULTI instead:
//! command and a record with the reply [`LOST_REPLY`] in one transaction, then the record with the
//! true reply; only a crash between the two shows [`LOST_REPLY`], and even then nothing runs twice.
//!
//! **FLUSHALL, FLUSHDB** run in a script that carries the hashes over, in the same step.
//!
//! **Somebody else** (FLUSHALL behind our back, a second server for the shard): the hash is WATCHed
//! between calls, so a foreign change makes the next batch fail before it does anything; scripts
//! compare the watermark. `load` then tells: records gone or older than known is fatal.
//!
//! **Durable** means what the server's configuration allows ([`config::Persistence`]); WAITAOF and
//! WAIT go behind the batch on the same connection. Any failure drops the connection: only `load`
//! connects again.

mod apply;
mod commands;
mod config;
mod connection;
mod execute;
mod plan;
mod resp;
mod transaction;
mod url;

use bytes::Bytes;
use pmnet_server::{Batch, RecordKey, Request, Store, StoreError};

use crate::OpenError;
use commands::CommandTable;
use config::{Facts, Persistence, refused};
use connection::Connection;
use url::RedisUrl;

/// Field of the records whose value only grows (compared as big-endian bytes).
const WATERMARK: &[u8] = b"watermark";
/// How long WAIT and WAITAOF may take, in milliseconds; below the deadline of a call.
const WAIT_MILLISECONDS: &str = "4000";
/// Stored in place of a reply while the true one is not known yet.
const LOST_REPLY: &[u8] = b"-ERR pmnet: applied, reply lost in a crash\r\n";
/// Carries the records over a FLUSHALL.
const FLUSH_LUA: &str = include_str!("flush.lua");
/// Writes one record as it is. WAIT and WAITAOF wait for the writes of their own connection, and a
/// new connection has none; this makes it wait for everything before it.
const TOUCH_LUA: &str = "local field = 'watermark'
if redis.call('HEXISTS', KEYS[1], field) == 0 then field = redis.call('HKEYS', KEYS[1])[1] end
if field then redis.call('HSET', KEYS[1], field, redis.call('HGET', KEYS[1], field)) end";
/// Runs one state-changing request.
const REQUEST_LUA: &str = concat!(include_str!("flush.lua"), include_str!("request.lua"));

/// See the module's text.
pub struct RedisStore {
    url: RedisUrl,
    hash: Vec<u8>,
    scripts: Vec<u8>,
    link: Option<Link>,
    /// Commands of the server with this run id: they cannot change while it runs.
    known_commands: Option<(String, CommandTable)>,
    /// Last value of the field `watermark` that this process wrote or read.
    watermark: Bytes,
    seen_records: bool,
    persistence: Option<Persistence>,
    rejected: u64,
}

/// A connection that has been loaded from: the hash is watched, the script is there.
struct Link {
    connection: Connection,
    commands: CommandTable,
    facts: Facts,
    request_sha: Vec<u8>,
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
            watermark: Bytes::new(),
            seen_records: false,
            persistence: None,
            rejected: 0,
        })
    }

    fn connect(&mut self) -> Result<Link, StoreError> {
        let mut connection = Connection::open(&self.url)?;
        if let Some(password) = &self.url.password {
            let reply = match &self.url.user {
                Some(user) => connection.call(&[b"AUTH", user.as_bytes(), password.as_bytes()])?,
                None => connection.call(&[b"AUTH", password.as_bytes()])?,
            };
            if let Some(error) = resp::error(&reply) {
                return Err(match refused(error, "AUTH") {
                    StoreError::Retry(text) if !commands::is_passing(error) => {
                        StoreError::Fatal(text)
                    }
                    other => other,
                });
            }
        }
        let facts = Facts::ask(&mut connection)?;
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
            _ => match CommandTable::parse(&connection.call(&[b"COMMAND"])?) {
                Ok(table) => {
                    self.known_commands = Some((facts.run_id.clone(), table.clone()));
                    table
                }
                Err(error) => {
                    tracing::warn!(
                        error,
                        "COMMAND is not available: every command is tried in a script"
                    );
                    CommandTable::default()
                }
            },
        };
        let reply = connection.call(&[b"SCRIPT", b"LOAD", REQUEST_LUA.as_bytes()])?;
        if let Some(error) = resp::error(&reply) {
            return Err(refused(error, "SCRIPT LOAD"));
        }
        let request_sha = resp::text(&reply).unwrap_or_default().to_vec();
        Ok(Link {
            connection,
            commands,
            facts,
            request_sha,
        })
    }

    fn read_records(&mut self, link: &mut Link) -> Result<Vec<(RecordKey, Bytes)>, StoreError> {
        let waits = self.url.wait_replicas > 0 || link.facts.persistence == Persistence::WaitAof;
        if waits {
            link.connection
                .add(&[b"EVAL", TOUCH_LUA.as_bytes(), b"1", &self.hash]);
        }
        link.connection.add(&[b"WATCH", &self.hash]);
        link.connection.add(&[b"HGETALL", &self.hash]);
        link.add_wait(self.url.wait_replicas);
        link.connection.send()?;
        let touched = if waits {
            link.connection.reply()?
        } else {
            Bytes::new()
        };
        let watched = link.connection.reply()?;
        let records = link.connection.reply()?;
        let waited = link.read_wait(self.url.wait_replicas);
        if let Some(error) = resp::error(&watched).or(resp::error(&records)) {
            if error.starts_with("WRONGTYPE") {
                return Err(StoreError::Fatal(format!(
                    "the key {} in Redis is not pmnet's: remove it, or give the shard another number",
                    String::from_utf8_lossy(&self.hash)
                )));
            }
            return Err(refused(error, "HGETALL"));
        }
        if let Some(error) = resp::error(&touched) {
            return Err(refused(error, "EVAL"));
        }
        waited?;
        let not_understood =
            || StoreError::Retry("Redis's answer to HGETALL is not understood".into());
        let fields = resp::elements(&records).ok_or_else(not_understood)?;
        let mut found = Vec::with_capacity(fields.len() / 2);
        for pair in fields.chunks_exact(2) {
            let key = resp::text(pair[0]).ok_or_else(not_understood)?;
            let value = resp::text(pair[1]).ok_or_else(not_understood)?;
            found.push((key.to_vec(), records.slice_ref(value)));
        }
        Ok(found)
    }

    /// Compares what was loaded with what this process knows to have been there.
    fn check_progress(&mut self, records: &[(RecordKey, Bytes)]) -> Result<(), StoreError> {
        let watermark = records
            .iter()
            .find(|(key, _)| key == WATERMARK)
            .map(|(_, value)| value.clone())
            .unwrap_or_default();
        let hash = String::from_utf8_lossy(&self.hash);
        if self.seen_records && records.is_empty() {
            return Err(StoreError::Fatal(format!(
                "pmnet's records ({hash}) are gone from Redis although this server wrote them: FLUSHALL or DEL \
                 behind pmnet's back, or Redis restarted without its data. Acknowledged writes may be lost with \
                 them. Restore Redis's data, or start the shard anew"
            )));
        }
        if watermark < self.watermark {
            return Err(StoreError::Fatal(format!(
                "pmnet's records ({hash}) in Redis are older than what this server wrote: Redis lost writes that \
                 it had confirmed (restored backup, failover to a lagging replica, crash without appendfsync \
                 always). Restore Redis's data, or start the shard anew"
            )));
        }
        self.seen_records |= !records.is_empty();
        self.watermark = watermark;
        Ok(())
    }

    fn take_link(&mut self) -> Result<Link, StoreError> {
        self.link
            .take()
            .ok_or_else(|| StoreError::Retry("not connected to Redis: load first".into()))
    }

    /// Counts and reports an effect that will never be applied.
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
                let counts = resp::elements(&reply).unwrap_or_default();
                let count = |i: usize| counts.get(i).and_then(|c| resp::integer(c)).unwrap_or(-1);
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
                let ok = resp::integer(&reply).is_some_and(|n| n >= wanted);
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

    /// Adds what watches the records anew. `dirty`: our own writes since the last WATCH were not
    /// made by EXEC (which ends it).
    fn add_watch(&mut self, hash: &[u8], dirty: bool) {
        if dirty {
            self.connection.add(&[b"UNWATCH"]);
        }
        self.connection.add(&[b"WATCH", hash]);
        self.connection.add(&[b"HGET", hash, WATERMARK]);
    }

    /// Reads the replies to [`Link::add_watch`]; the watermark must be ours.
    fn read_watch(&mut self, dirty: bool, watermark: &[u8]) -> Result<(), StoreError> {
        for _ in 0..=usize::from(dirty) {
            let reply = self.connection.reply()?;
            if let Some(error) = resp::error(&reply) {
                return Err(StoreError::Retry(format!("WATCH: {error}")));
            }
        }
        let reply = self.connection.reply()?;
        if resp::text(&reply).unwrap_or_default() == watermark {
            return Ok(());
        }
        Err(StoreError::Retry(
            "the records in Redis were changed by somebody else".into(),
        ))
    }

    /// Whether the server has this database. Asks it only for indexes not known to exist.
    fn has_database(&mut self, database: u32) -> Result<bool, StoreError> {
        if database < self.facts.databases {
            return Ok(true);
        }
        let reply = self
            .connection
            .call(&[b"SELECT", database.to_string().as_bytes()])?;
        if let Some(error) = resp::error(&reply) {
            return if commands::is_passing(error) {
                Err(refused(error, "SELECT"))
            } else {
                Ok(false)
            };
        }
        self.connection.call(&[b"SELECT", b"0"])?;
        self.facts.databases = database.saturating_add(1);
        Ok(true)
    }
}

impl Store for RedisStore {
    fn load(&mut self) -> Result<Vec<(RecordKey, Bytes)>, StoreError> {
        self.link = None;
        let mut link = self.connect()?;
        let records = self.read_records(&mut link)?;
        self.check_progress(&records)?;
        self.link = Some(link);
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
