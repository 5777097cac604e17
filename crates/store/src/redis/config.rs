//! The settings of the Redis server, and how durable an effect is when the reply is sent.
//!
//! The settings are checked at every load, but not between loads. If an operator weakens the settings of a running
//! Redis with CONFIG SET, pmnet notices it at the next reconnect.

use std::collections::HashMap;

use pmnet_server::StoreError;

use super::connection::Connection;
use super::kind::{check_kind, check_run_id};
use super::settings::check_limits;
use super::torn::{TornEnd, rewrites_whole_aof};
use pmnet_resp::read::{elements, error, text};

/// Oldest Redis that accepts every command that the front acknowledges early (SET … EXAT, PXAT).
const REDIS_VERSION_MIN: (u32, u32) = (6, 2);
/// First Redis with WAITAOF.
const WAITAOF_VERSION: (u32, u32) = (7, 2);

/// Which writes wait for Redis's sync, if Redis replies before it syncs (`--store-sync`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoreSync {
    /// All writes wait: a reply is sent after the sync, and devices keep updates that were acknowledged early until the
    /// sync.
    #[default]
    Replies,
    /// Only updates that were acknowledged early wait. A reply to a request is sent before the sync.
    Updates,
    /// No writes wait: a write counts as applied when Redis has replied.
    None,
}

/// The purpose for which the adaptor waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitFor {
    /// The adaptor waits for writes that were acknowledged early, or for pmnet's own records.
    Updates,
    /// The adaptor waits before it returns a reply.
    Reply,
}

/// How durable a write is when the server returns its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persistence {
    /// `appendfsync always`: Redis syncs before it replies.
    Always,
    /// WAITAOF: the adaptor waits for a sync that comes at once, or after a rewrite.
    WaitAof,
    /// `appendfsync everysec` with WAITAOF: the adaptor waits for a sync, which Redis makes once a second.
    WaitSecond,
    /// WAITAOF, but only for writes that were acknowledged early.
    WaitUpdates,
    /// `appendfsync always` with `no-appendfsync-on-rewrite yes`, on a Redis without a command that waits for the sync.
    ExceptRewrites,
    /// The AOF is synced every second, and no command waits for the sync.
    EverySecond,
    /// The kernel syncs the AOF when it chooses to (`appendfsync no`).
    Kernel,
    /// There is no AOF. A Redis without an AOF may still make snapshots.
    Off,
}

impl Persistence {
    /// Returns a line that describes the durability to operators.
    #[must_use]
    pub fn describe(self, wait_replicas: u32) -> String {
        let own = match self {
            Persistence::Always => {
                "synced to the AOF before every reply (appendfsync always): survives power loss"
            }
            Persistence::WaitAof => {
                "synced to the AOF before every reply (WAITAOF): survives power loss"
            }
            Persistence::WaitSecond => {
                "synced to the AOF before every reply (WAITAOF): survives power loss. With appendfsync everysec a reply \
                 such as that to INCR waits for the next sync, up to 2 s; early acknowledged writes do not wait. \
                 `CONFIG SET appendfsync always` makes such replies fast. So does --store-sync updates: a crash of \
                 the machine then loses up to a second of these writes"
            }
            Persistence::WaitUpdates => {
                "early acknowledged writes are synced to the AOF (WAITAOF) before the devices forget them: they survive power \
                 loss; replies of Redis itself, such as that to INCR, do not wait for a sync (--store-sync updates): a \
                 crash of the machine loses up to a second of these"
            }
            Persistence::ExceptRewrites => {
                "synced to the AOF before every reply, but not while Redis rewrites its AOF or saves \
                 (no-appendfsync-on-rewrite yes): survives a crash of Redis; a crash of the machine in such a time \
                 loses what was written during it. CONFIG SET no-appendfsync-on-rewrite no, put it into redis.conf, \
                 and restart the pmnet server"
            }
            Persistence::EverySecond => {
                "AOF synced every second: survives a crash of Redis; a crash of the machine loses up to a second"
            }
            Persistence::Kernel => {
                "AOF never synced (appendfsync no): survives a crash of Redis; a crash of the machine loses \
                 what the kernel had not written"
            }
            Persistence::Off => {
                "AOF is off: a crash of Redis loses everything since its last snapshot"
            }
        };
        match wait_replicas {
            0 => own.to_owned(),
            n => format!("{own}; and in {n} replica(s) before every reply"),
        }
    }

    /// Returns whether an acknowledged effect survives a power cut of this machine.
    #[must_use]
    pub fn is_durable(self) -> bool {
        matches!(
            self,
            Persistence::Always | Persistence::WaitAof | Persistence::WaitSecond
        )
    }

    /// Returns whether the adaptor waits for Redis's sync.
    #[must_use]
    pub fn waits(self, what: WaitFor) -> bool {
        match self {
            Persistence::WaitAof | Persistence::WaitSecond => true,
            Persistence::WaitUpdates => what == WaitFor::Updates,
            _ => false,
        }
    }
}

/// A server's AOF settings and state.
#[derive(Clone, Debug, Default)]
struct Aof {
    enabled: bool,
    /// Whether a rewrite of the AOF runs or is about to start.
    rewriting: bool,
    /// Whether this pmnet server has seen that the AOF is complete, or the server that requested the rewrite has seen
    /// it.
    known_whole: bool,
    fsync: Option<String>,
    /// Whether Redis makes no sync during a rewrite (`no-appendfsync-on-rewrite`).
    pauses: bool,
    /// Whether the server has WAITAOF, which counts only syncs of a complete AOF.
    waitaof: bool,
    /// Which writes wait until the AOF is synced, as the operator has chosen (`--store-sync`).
    sync: StoreSync,
}

impl Persistence {
    /// Returns how durable an effect is when the server replies.
    ///
    /// An AOF that was switched on while Redis runs protects nothing until its first rewrite has ended. INFO does not
    /// show whether a rewrite is the first rewrite. (`aof_base_size` does not help: it is 0 in a new AOF, too. After
    /// the AOF was off for a while, the value is that of the former AOF.) So the store waits for every rewrite, except
    /// in two cases. Either this server process saw a complete AOF at the last check, or pmnet itself has requested the
    /// rewrite ([`super::torn`]).
    ///
    /// # Errors
    /// `Retry` while such a rewrite runs.
    fn judge(aof: &Aof) -> Result<Persistence, StoreError> {
        if !aof.enabled {
            return Ok(Persistence::Off);
        }
        let fsync = aof.fsync.as_deref();
        if aof.waitaof && fsync != Some("no") && aof.sync != StoreSync::None {
            let always = fsync == Some("always");
            return Ok(if always && !aof.pauses && !aof.rewriting {
                Persistence::Always
            } else if aof.sync == StoreSync::Updates {
                Persistence::WaitUpdates
            } else if always {
                Persistence::WaitAof
            } else {
                Persistence::WaitSecond
            });
        }
        if aof.rewriting && !aof.known_whole {
            return Err(StoreError::Retry(
                "PM2203 Redis rewrites its AOF, perhaps for the first time since it was switched on; until that is done a \
                 crash of Redis may lose all that it confirms. Waiting until INFO persistence says \
                 aof_rewrite_in_progress:0 and aof_rewrite_scheduled:0"
                    .into(),
            ));
        }
        Ok(match fsync {
            Some("always") if aof.pauses => Persistence::ExceptRewrites,
            Some("always") => Persistence::Always,
            Some("no") => Persistence::Kernel,
            _ => Persistence::EverySecond,
        })
    }
}

/// Facts about the connected Redis.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Run id of the Redis process. Each start of Redis has another run id.
    pub run_id: String,
    /// How durable an effect is when the server replies.
    pub persistence: Persistence,
    /// Whether the AOF holds all data, as far as INFO can tell.
    pub aof_is_whole: bool,
    /// The action that the end of the AOF requires before anything is written.
    pub torn_end: TornEnd,
    /// Number of databases (the setting `databases`). 0: Redis does not report the number, or is a node of a Redis
    /// Cluster, which may have only one database.
    pub databases: u32,
}

impl Facts {
    /// Asks Redis for its facts, and refuses a Redis that cannot keep the store's promises. `whole_aof_of`: run id of a
    /// Redis process whose AOF was seen to be whole. `cluster`: whether the Redis must be a node of a Redis Cluster.
    /// `sync`: the writes that may wait for a sync.
    ///
    /// # Errors
    /// `Fatal` for a server that must not be used, `Retry` for a server that is not ready yet.
    pub fn ask(
        connection: &mut Connection,
        whole_aof_of: Option<&str>,
        cluster: bool,
        sync: StoreSync,
    ) -> Result<Facts, StoreError> {
        let reply = connection.call(&[b"INFO"])?;
        if let Some(error) = error(&reply) {
            return Err(refused(error, "INFO"));
        }
        let info = parse_info(text(&reply).unwrap_or_default());
        let field = |name: &str| info.get(name).copied().unwrap_or("");
        if field("loading") == "1" {
            return Err(StoreError::Retry(
                "PM2201 Redis is loading its data set".into(),
            ));
        }
        check_kind(connection, &info)?;
        let in_cluster = field("redis_mode") == "cluster" || field("cluster_enabled") == "1";
        if in_cluster != cluster {
            let text = if in_cluster {
                "PM2104 this Redis is a node of a Redis Cluster: name the cluster's nodes and the slots of this shard, --store \
                 redis+cluster://HOST:PORT,HOST:PORT/0-5460"
            } else {
                "PM2105 this Redis is no node of a Redis Cluster (cluster-enabled no): name it with --store redis://HOST:PORT"
            };
            return Err(StoreError::Fatal(text.into()));
        }
        if field("role") == "slave" {
            return Err(StoreError::Retry(
                "PM2202 this Redis is a replica: point the store at the primary".into(),
            ));
        }
        let version = check_version(field("redis_version"))?;
        check_eviction(field("maxmemory"), field("maxmemory_policy"))?;
        check_limits(connection, version)?;
        check_run_id(field("run_id"))?;
        let rewriting = field("aof_rewrite_in_progress") == "1";
        let aof = Aof {
            enabled: field("aof_enabled") == "1" && is_appendonly(connection)?,
            rewriting: rewriting || field("aof_rewrite_scheduled") == "1",
            known_whole: whole_aof_of == Some(field("run_id"))
                || rewriting && rewrites_whole_aof(connection, &info)?,
            fsync: setting(connection, "appendfsync")?,
            // If the setting cannot be read, the weakest value is assumed.
            pauses: setting(connection, "no-appendfsync-on-rewrite")?.as_deref() != Some("no"),
            waitaof: version >= WAITAOF_VERSION || !field("valkey_version").is_empty(),
            sync,
        };
        let persistence = Persistence::judge(&aof)?;
        let torn_end = if aof.enabled {
            let cuts = setting(connection, "aof-load-truncated")?;
            TornEnd::of(&info, version, cuts.as_deref())
        } else {
            TornEnd::None
        };
        let databases = match cluster {
            true => None,
            false => setting(connection, "databases")?,
        };
        let databases = databases.and_then(|number| number.parse().ok());
        Ok(Facts {
            databases: databases.unwrap_or_default(),
            run_id: field("run_id").to_owned(),
            persistence,
            aof_is_whole: aof.enabled && (!aof.rewriting || aof.known_whole),
            torn_end,
        })
    }
}

/// Returns whether the operator has switched the AOF on. INFO does not show this: while `BACKUP` of Redis 8.10 runs,
/// there is an AOF, which INFO calls enabled, even if the operator has not switched it on. During the backup Redis
/// refuses WAITAOF, and after the backup the AOF is gone.
fn is_appendonly(connection: &mut Connection) -> Result<bool, StoreError> {
    Ok(setting(connection, "appendonly")?.as_deref() != Some("no"))
}

/// Returns the error for a refused command that the store cannot work without.
pub fn refused(error: &str, command: &str) -> StoreError {
    match error.split(' ').next().unwrap_or("") {
        "NOAUTH" | "WRONGPASS" => StoreError::Fatal(format!(
            "PM2102 Redis does not let us in ({error}): put the password into the store's address, redis://:PASSWORD@HOST:PORT"
        )),
        "NOPERM" => StoreError::Fatal(format!(
            "PM2103 the Redis user may not run {command} ({error}): allow it (ACL SETUSER)"
        )),
        _ if error.contains("unknown command") => super::settings::lacks(&[command]),
        _ => StoreError::Retry(format!("{command}: {error}")),
    }
}

/// Returns the version of Redis if this version can keep the front's promises.
fn check_version(text: &str) -> Result<(u32, u32), StoreError> {
    let version = version(text);
    if version < REDIS_VERSION_MIN {
        return Err(StoreError::Fatal(format!(
            "PM2106 Redis {text} is too old: it does not know all commands that pmnet acknowledges early (SET … EXAT). \
             Install Redis 6.2 or newer, or Valkey"
        )));
    }
    Ok(version)
}

/// Refuses a Redis that evicts keys. A Redis that evicts keys may drop the records, and then it would be unknown which
/// updates were applied.
fn check_eviction(maxmemory: &str, policy: &str) -> Result<(), StoreError> {
    let limited = !matches!(maxmemory, "" | "0");
    if limited && policy.starts_with("allkeys-") {
        return Err(StoreError::Fatal(format!(
            "PM2101 Redis may evict any key (maxmemory-policy {policy}), so acknowledged writes and pmnet's own records \
             could vanish: run CONFIG SET maxmemory-policy noeviction (or a volatile-* policy) and put it into redis.conf"
        )));
    }
    Ok(())
}

/// Returns one CONFIG setting; `None` (with a warning) if CONFIG is forbidden or renamed.
pub fn setting(connection: &mut Connection, name: &str) -> Result<Option<String>, StoreError> {
    let reply = connection.call(&[b"CONFIG", b"GET", name.as_bytes()])?;
    if let Some(error) = error(&reply) {
        tracing::warn!(
            setting = name,
            error,
            "PM2215 CONFIG GET is not available: assuming the weakest setting"
        );
        return Ok(None);
    }
    let value = elements(&reply).and_then(|pair| Some(text(pair.get(1)?)?.to_vec()));
    Ok(value.and_then(|v| String::from_utf8(v).ok()))
}

/// Returns the lines `NAME:VALUE` of a reply to INFO.
pub fn parse_info(text: &[u8]) -> HashMap<&str, &str> {
    let text = std::str::from_utf8(text).unwrap_or("");
    text.lines()
        .filter_map(|line| line.trim_end().split_once(':'))
        .collect()
}

fn version(text: &str) -> (u32, u32) {
    let mut parts = text.split('.').map(|p| p.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eviction_is_refused_only_where_it_can_hit_the_records() {
        assert!(check_eviction("0", "allkeys-lru").is_ok());
        assert!(check_eviction("100", "noeviction").is_ok());
        assert!(check_eviction("100", "volatile-ttl").is_ok());
        let Err(StoreError::Fatal(text)) = check_eviction("100", "allkeys-lfu") else {
            panic!("must be fatal")
        };
        assert!(
            text.contains("CONFIG SET maxmemory-policy noeviction"),
            "{text}"
        );
    }

    #[test]
    fn versions_compare_as_numbers() {
        assert!(version("7.10.3") > WAITAOF_VERSION);
        assert!(version("7.0.15") < WAITAOF_VERSION);
        assert_eq!(version("nonsense"), (0, 0));
        assert_eq!(check_version("6.2.0"), Ok((6, 2)));
        assert!(matches!(check_version("6.0.20"), Err(StoreError::Fatal(_))));
    }

    #[test]
    fn power_loss_is_survived_only_where_every_reply_waits_for_a_sync() {
        let mut seen_durable = 0;
        for bits in 0..16u32 {
            for fsync in [None, Some("always"), Some("everysec"), Some("no")] {
                for sync in [StoreSync::Replies, StoreSync::Updates, StoreSync::None] {
                    let bit = |n: u32| bits & (1 << n) != 0;
                    let aof = Aof {
                        enabled: true,
                        rewriting: bit(0),
                        known_whole: bit(1),
                        fsync: fsync.map(str::to_owned),
                        pauses: bit(2),
                        waitaof: bit(3),
                        sync,
                    };
                    seen_durable += u32::from(judged_right(&aof));
                }
            }
        }
        assert_eq!(seen_durable, 16);
    }

    /// Returns whether Redis itself syncs before it replies, according to [`judge`].
    fn judged_right(aof: &Aof) -> bool {
        let off = Aof {
            enabled: false,
            ..aof.clone()
        };
        assert_eq!(Persistence::judge(&off), Ok(Persistence::Off));
        let fsync = aof.fsync.as_deref();
        let waits = aof.waitaof && fsync != Some("no") && aof.sync != StoreSync::None;
        match Persistence::judge(aof) {
            Ok(Persistence::Always) => {
                assert!(fsync == Some("always") && !aof.pauses, "{aof:?}");
                assert!(!aof.rewriting || aof.known_whole, "{aof:?}");
                return true;
            }
            Ok(durable) if durable.is_durable() => {
                assert!(waits && aof.sync == StoreSync::Replies, "{aof:?}");
                assert!(durable.waits(WaitFor::Reply) && durable.waits(WaitFor::Updates));
                assert!(durable.describe(0).contains("survives power loss"));
            }
            Ok(Persistence::WaitUpdates) => {
                assert!(waits && aof.sync == StoreSync::Updates, "{aof:?}");
            }
            Ok(weak) => {
                assert!(!weak.describe(0).contains("power loss"), "{aof:?}");
                assert!(!weak.waits(WaitFor::Reply) && !weak.waits(WaitFor::Updates));
            }
            Err(_) => assert!(aof.rewriting && !waits, "{aof:?}"),
        }
        false
    }
}
