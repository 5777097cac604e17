//! The owner of a shard's records: only the process that read the records last may write.
//!
//! A command can run long after its connection was given up. Its bytes wait in a socket of a busy Redis, while the
//! process has connected again, or was killed and replaced. So `load` writes a new value, the *owner*, into the hash in
//! the same atomic step in which it reads the records. If the owner in the hash has changed, writes of this store have
//! no effect. Scripts compare the owner, and transactions run under a WATCH that began before the owner was last read.
//! `load` replaces only the owner that it has read, so a late `load` of a dead process cannot take over, either.
//!
//! A refusal on the present connection therefore has only one reason: another process has taken over. If another
//! process has taken over, this process stops. Without this rule, two processes would take the shard from each other
//! again and again.
//!
//! If Redis refuses all writes for a temporary reason, a process that the hash still names as the owner reads the
//! records, but does not claim them again. Such a process answers reads, and every write leads to another `load`. A
//! process that was never the owner waits, and answers no requests. Otherwise the owner in the hash could write the
//! records as soon as Redis accepts writes, and the values that the waiting process has read would be old. A device
//! that receives an old watermark or epoch assumes that the store lost data.

use std::collections::HashMap;

use bytes::Bytes;
use pmnet_resp::read;
use pmnet_server::{RecordKey, StoreError, TAKEN_OVER};

use super::config::{WaitFor, refused};
use super::passing::is_passing;
use super::{Link, RedisStore, WATERMARK};
use crate::OpenError;

/// Field of the hash that names the owner. This field is not a record.
pub const OWNER: &[u8] = b"owner";
/// Field of the hash with the highest number of databases that a Redis of this shard had. This field is not a record.
const DATABASES: &[u8] = b"databases";
/// Field that the hash has while code of a client runs. The field stays if the code changed the records
/// (`transaction`). It is not a record.
const SEAL: &[u8] = b"seal";
/// Minimum number of fields in one piece of the records.
const PIECE_FIELDS_MIN: usize = 16;
/// Maximum number of fields in one piece of the records.
const PIECE_FIELDS_MAX: usize = 8192;
/// If a piece has more bytes than this, the next piece has [`PIECE_FIELDS_MIN`] fields. (The record of a reply has up to
/// 16 MiB.)
const PIECE_BYTES: usize = 4 << 20;
/// First word of the error that pmnet's scripts raise if the records have another owner.
pub const FENCED: &str = "FENCED";
/// Claims the hash for the owner ARGV[2] if its owner is ARGV[1] (empty: none), and notes that its Redis has had
/// ARGV[3] databases. Returns the watermark of the hash. HDEL comes first: Redis permits HDEL when memory is short, and
/// after it permits all further commands of the script.
const CLAIM_LUA: &str = "if (redis.call('HGET', KEYS[1], 'owner') or '') ~= ARGV[1] then
  return {err = 'TRYAGAIN another process loads the records, too'}
end
local reply = redis.pcall('HDEL', KEYS[1], 'owner')
if type(reply) == 'table' and reply.err then return {err = (string.gsub(reply.err, '^-', ''))} end
redis.call('HSET', KEYS[1], 'owner', ARGV[2])
if tonumber(ARGV[3]) > (tonumber(redis.call('HGET', KEYS[1], 'databases')) or 0) then
  redis.call('HSET', KEYS[1], 'databases', ARGV[3])
end
return redis.call('HGET', KEYS[1], 'watermark') or ''";
/// Changes records if the owner is ARGV[1]. ARGV[2] is the number of records to remove. Their names follow, and then
/// the names and values of records to write. HDEL comes first, because Redis permits it when memory is short, and after
/// it permits all further commands of the script. The script selects database 0 itself, for the reason that the module
/// `transaction` gives. If the call names no key, the hash is the last element of ARGV: a transaction of a Redis
/// Cluster may have its keys in another slot.
pub const RECORDS_LUA: &str = "redis.call('SELECT', 0)
local hash, last_value = KEYS[1], #ARGV
if not hash then hash, last_value = ARGV[#ARGV], #ARGV - 1 end
local owner = redis.call('HGET', hash, 'owner')
if owner ~= ARGV[1] then
  return {err = owner and 'FENCED' or 'TRYAGAIN the records were changed by another process'}
end
local at = 3 + tonumber(ARGV[2])
local reply = redis.pcall('HDEL', hash, '')
if type(reply) == 'table' and reply.err then return {err = (string.gsub(reply.err, '^-', ''))} end
for first = 3, at - 1, 2000 do
  redis.call('HDEL', hash, unpack(ARGV, first, math.min(first + 1999, at - 1)))
end
while at < last_value do
  local last = math.min(at + 1999, last_value)
  redis.call('HSET', hash, unpack(ARGV, at, last))
  at = last + 1
end
return 'OK'";

/// Lua code that checks whether the user has the rights which [`RECORDS_LUA`] needs. Only Redis 7 and newer can check
/// them.
pub const MAY_RECORD_LUA: &str = "local may = redis.acl_check_cmd
for _, command in ipairs(may and {{'SELECT', '0'}, {'HGET', KEYS[1], 'f'}, {'HSET', KEYS[1], 'f', 'v'},
  {'HDEL', KEYS[1], 'f'}} or {}) do
  if not may(unpack(command)) then return {err = 'NOPERM ' .. command[1] .. ' is not allowed'} end
end
return 'OK'";

/// The name of this process, and the names of its loads as an owner.
pub struct Owner {
    process: String,
    loads: u64,
    /// Whether this process was once the owner. Once this process was the owner, any other owner in the hash has taken
    /// over later.
    was: bool,
}

impl Owner {
    pub fn new() -> Result<Owner, OpenError> {
        let mut name = [0; 16];
        getrandom::fill(&mut name).map_err(|error| OpenError::Random {
            why: error.to_string(),
        })?;
        Ok(Owner {
            process: format!("{:032x}", u128::from_be_bytes(name)),
            loads: 0,
            was: false,
        })
    }

    /// Returns a new name that no other process has.
    pub fn some_name(&self) -> String {
        format!("{}-{}", self.process, self.loads)
    }

    fn next(&mut self) -> Bytes {
        self.loads += 1;
        format!("{}-{}", self.process, self.loads).into()
    }

    fn is_us(&self, owner: &[u8]) -> bool {
        owner
            .strip_prefix(self.process.as_bytes())
            .is_some_and(|rest| rest.starts_with(b"-"))
    }
}

/// Returns the error for records that differ from what this server wrote last.
pub(super) fn records_changed() -> StoreError {
    StoreError::Retry("PM2308 the records in Redis were changed by another process".into())
}

/// Returns the error for records that a client's code has changed.
pub(super) fn forged(hash: &[u8]) -> StoreError {
    let hash = String::from_utf8_lossy(hash);
    StoreError::Fatal(format!(
        "PM2007 a function or script of a client changed pmnet's records ({hash}) in Redis. Going on could \
         skip acknowledged writes, or apply some twice. Remove that code (FUNCTION LIST), restore \
         Redis's data, or start the shard anew. A server that is started before ends with this message, too. If you know that the \
         records are right: redis-cli HDEL '{hash}' seal"
    ))
}

/// Returns the error for records that belong to another process.
pub fn taken_over(hash: &[u8]) -> StoreError {
    StoreError::Fatal(format!(
        "{TAKEN_OVER} ({}) in Redis, so this one stops; nothing \
         is lost. One shard has one server: see which one the devices should have (--next) and do not start the \
         other; two shards in one Redis need different --shard numbers",
        String::from_utf8_lossy(hash)
    ))
}

fn older(hash: &[u8], found: &[u8], confirmed: &[u8]) -> StoreError {
    let order = |watermark: &[u8]| watermark.try_into().map_or(0, u64::from_be_bytes);
    let (found, confirmed) = (order(found), order(confirmed));
    StoreError::Fatal(format!(
        "PM2002 pmnet's records ({}) in Redis are older than what this server wrote: Redis lost writes that it had \
         confirmed (restored backup, failover to a lagging replica, crash without appendfsync always). It has what was \
         applied up to order {found}, and had confirmed up to {confirmed}: what is between is missing. Restore \
         Redis's data, or start the shard anew",
        String::from_utf8_lossy(hash)
    ))
}

impl RedisStore {
    /// Becomes the owner and reads the records, in one step. Afterwards the hash is watched.
    pub(super) fn claim(&mut self, link: &mut Link) -> Result<Vec<(RecordKey, Bytes)>, StoreError> {
        let before = self.seen_owner(link)?;
        let owner = self.owner.next();
        link.owner = owner.clone();
        link.connection.add(&[
            b"EVAL",
            CLAIM_LUA.as_bytes(),
            b"1",
            &self.hash,
            &before,
            &owner,
            self.databases.to_string().as_bytes(),
        ]);
        link.add_watch(&self.hash, false);
        link.add_wait(WaitFor::Updates, self.url.wait_replicas);
        link.connection.send()?;
        let reply = link.connection.reply()?;
        if let Some(error) = read::error(&reply) {
            if !is_passing(error) || ["TRYAGAIN", "NOPERM"].iter().any(|e| error.starts_with(e)) {
                return Err(self.patient(refused(error, "EVAL")));
            }
            return self.read_only(link, error);
        }
        let watermark = read::text(&reply).unwrap_or_default().to_vec();
        link.read_watch(&self.hash, false, &watermark)?;
        link.read_wait(WaitFor::Updates, self.url.wait_replicas)?;
        let records = self.read_records(link)?;
        self.check_progress(&records)?;
        self.owner.was = true;
        self.in_flight = None;
        Ok(records)
    }

    /// Returns the current owner in the hash (empty: none). If another process has become the owner since this process
    /// was, returns an error.
    fn seen_owner(&mut self, link: &mut Link) -> Result<Vec<u8>, StoreError> {
        let reply = link
            .connection
            .call(&[b"HMGET", &self.hash, OWNER, WATERMARK])?;
        if let Some(error) = read::error(&reply) {
            if error.starts_with("WRONGTYPE") {
                return Err(StoreError::Fatal(format!(
                    "PM2008 the key {} in Redis is not pmnet's: remove it, or give the shard another number",
                    String::from_utf8_lossy(&self.hash)
                )));
            }
            return Err(self.patient(refused(error, "HMGET")));
        }
        let (owner, watermark) = two_texts(&reply);
        let other = !owner.is_empty() && !self.owner.is_us(owner);
        if self.owner.was && other {
            // Records that are older than this process knows cannot come from a later owner. So this Redis has lost
            // data.
            return Err(if watermark < &self.watermark[..] {
                older(&self.hash, watermark, &self.watermark)
            } else {
                taken_over(&self.hash)
            });
        }
        Ok(owner.to_vec())
    }

    /// Reads the records of a Redis that accepts no writes now, because of `error`.
    fn read_only(
        &mut self,
        link: &mut Link,
        error: &str,
    ) -> Result<Vec<(RecordKey, Bytes)>, StoreError> {
        if self.url.wait_replicas > 0 || link.facts.persistence.waits(WaitFor::Updates) {
            // WAIT and WAITAOF wait for a write of their own connection.
            return Err(refused(error, "EVAL"));
        }
        if !self.owner.was {
            return Err(StoreError::Retry(format!(
                "PM2301 Redis takes no writes now: {error}. This server cannot take over the shard's records before it does. Until then \
                 another server may write them, so this one answers nobody. Make Redis take writes (INFO, its log)"
            )));
        }
        link.writes_refused = Some(error.to_owned());
        link.owner = Bytes::new();
        for _ in 0..2 {
            link.connection.reply()?;
        }
        let records = self.read_records(link)?;
        self.check_progress(&records)?;
        Ok(records)
    }

    /// Reads all records in pieces. Each piece has a deadline of its own, so the total time is not bounded. The pieces
    /// belong together, because only the owner changes the records, and the owner is the same before and after.
    fn read_records(&mut self, link: &mut Link) -> Result<Vec<(RecordKey, Bytes)>, StoreError> {
        let not_understood =
            || StoreError::Retry("Redis's answer to HSCAN is not understood".into());
        let (mut cursor, mut count) = (b"0".to_vec(), PIECE_FIELDS_MIN);
        // A field may appear in two pieces.
        let mut found = HashMap::new();
        loop {
            let number = count.to_string();
            let call: [&[u8]; 5] = [b"HSCAN", &self.hash, &cursor, b"COUNT", number.as_bytes()];
            let reply = link.connection.call(&call)?;
            if let Some(error) = read::error(&reply) {
                return Err(self.patient(refused(error, "HSCAN")));
            }
            let page = read::elements(&reply).ok_or_else(not_understood)?;
            let [next, fields] = page[..] else {
                return Err(not_understood());
            };
            let fields = read::elements(fields).ok_or_else(not_understood)?;
            for pair in fields.chunks_exact(2) {
                let key = read::text(pair[0]).ok_or_else(not_understood)?;
                let value = read::text(pair[1]).ok_or_else(not_understood)?;
                found.insert(key.to_vec(), reply.slice_ref(value));
            }
            cursor = read::text(next).ok_or_else(not_understood)?.to_vec();
            if cursor == b"0" {
                break;
            }
            if reply.len() > PIECE_BYTES {
                count = PIECE_FIELDS_MIN;
            } else if reply.len() < PIECE_BYTES / 16 {
                count = (count * 2).min(PIECE_FIELDS_MAX);
            }
        }
        if found.contains_key(SEAL) {
            return Err(forged(&self.hash));
        }
        let owner = found.remove(OWNER).unwrap_or_default();
        if let Some(number) = found.remove(DATABASES) {
            let number = std::str::from_utf8(&number)
                .ok()
                .and_then(|n| n.parse().ok());
            self.databases = self.databases.max(number.unwrap_or_default());
        }
        let watermark = found.get(WATERMARK).cloned().unwrap_or_default();
        let after = link
            .connection
            .call(&[b"HMGET", &self.hash, OWNER, WATERMARK])?;
        if two_texts(&after) != (&owner[..], &watermark[..]) {
            return Err(records_changed());
        }
        Ok(found.into_iter().collect())
    }

    /// Compares the loaded records with the records that this process wrote or read last.
    fn check_progress(&mut self, records: &[(RecordKey, Bytes)]) -> Result<(), StoreError> {
        let watermark = watermark_of(records);
        let hash = String::from_utf8_lossy(&self.hash);
        if self.seen_records && records.is_empty() {
            return Err(StoreError::Fatal(format!(
                "PM2001 pmnet's records ({hash}) are gone from Redis although this server wrote them: FLUSHALL or DEL \
                 behind pmnet's back, or Redis restarted without its data. Acknowledged writes may be lost with \
                 them. Restore Redis's data, or start the shard anew"
            )));
        }
        if watermark < self.watermark {
            return Err(older(&self.hash, &watermark, &self.watermark));
        }
        // Only the owner writes records, and only the last batch has an unknown outcome.
        if self.owner.was
            && watermark != self.watermark
            && self.in_flight.as_ref() != Some(&watermark)
        {
            return Err(StoreError::Fatal(format!(
                "PM2006 pmnet's records ({hash}) in Redis say that more was applied than this server applied: another \
                 program changed them. Going on would skip acknowledged writes. Find out which one, \
                 restore Redis's data, or start the shard anew"
            )));
        }
        self.seen_records |= !records.is_empty();
        self.watermark = watermark;
        Ok(())
    }
}

impl Link {
    /// Adds the commands that watch the records again. `dirty`: whether pmnet has written since the last WATCH by other
    /// means than EXEC, which would have ended the WATCH.
    pub(super) fn add_watch(&mut self, hash: &[u8], dirty: bool) {
        if dirty {
            self.connection.add(&[b"UNWATCH"]);
        }
        self.connection.add(&[b"WATCH", hash]);
        self.connection.add(&[b"HMGET", hash, OWNER, WATERMARK]);
    }

    /// Reads the replies to [`Link::add_watch`]. Owner and watermark must be those of this process.
    pub(super) fn read_watch(
        &mut self,
        hash: &[u8],
        dirty: bool,
        watermark: &[u8],
    ) -> Result<(), StoreError> {
        for _ in 0..=usize::from(dirty) {
            let reply = self.connection.reply()?;
            if let Some(error) = read::error(&reply) {
                return Err(StoreError::Retry(format!("WATCH: {error}")));
            }
        }
        let reply = self.connection.reply()?;
        if let Some(error) = read::error(&reply) {
            return Err(StoreError::Retry(format!("HMGET: {error}")));
        }
        let (owner, found) = two_texts(&reply);
        if !owner.is_empty() && owner != self.owner {
            return Err(taken_over(hash));
        }
        if owner == self.owner && found == watermark {
            return Ok(());
        }
        Err(records_changed())
    }

    /// Checks whether writes may be sent.
    ///
    /// # Errors
    /// `Retry` if this process has read the records without becoming their owner.
    pub(super) fn may_write(&self) -> Result<(), StoreError> {
        match &self.writes_refused {
            None => Ok(()),
            Some(error) => Err(StoreError::Retry(format!(
                "PM2302 Redis takes no writes: {error}"
            ))),
        }
    }
}

/// Returns the two elements of a reply to HMGET; a missing element is empty.
fn two_texts(reply: &[u8]) -> (&[u8], &[u8]) {
    let texts = read::elements(reply).unwrap_or_default();
    let at = |i: usize| texts.get(i).and_then(|t| read::text(t)).unwrap_or_default();
    (at(0), at(1))
}

fn watermark_of(records: &[(RecordKey, Bytes)]) -> Bytes {
    records
        .iter()
        .find(|(key, _)| key == WATERMARK)
        .map(|(_, value)| value.clone())
        .unwrap_or_default()
}
