//! What the server says of itself, and what its replies are therefore worth.
//!
//! Checked at every load (not between loads): an operator who weakens a running Redis with CONFIG
//! SET is found at the next reconnect.

use std::collections::HashMap;

use pmnet_server::StoreError;

use super::connection::Connection;
use super::resp::{elements, error, text};

/// Oldest Redis that has all that the adaptor uses (RESP3, `redis.setresp`).
const REDIS_VERSION_MIN: (u32, u32) = (6, 0);
/// First Redis with WAITAOF.
const WAITAOF_VERSION: (u32, u32) = (7, 2);

/// What happens before a reply of this server is passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persistence {
    /// `appendfsync always`: Redis syncs before it replies.
    Always,
    /// `appendfsync everysec` with WAITAOF: the adaptor waits for the sync.
    WaitAof,
    /// AOF synced every second, and no way to wait for it.
    EverySecond,
    /// AOF synced when the kernel likes (`appendfsync no`).
    Kernel,
    /// No AOF: snapshots at most.
    Off,
}

impl Persistence {
    /// One line for people.
    #[must_use]
    pub fn describe(self, wait_replicas: u32) -> String {
        let own = match self {
            Persistence::Always => {
                "synced to the AOF before every reply (appendfsync always): survives power loss"
            }
            Persistence::WaitAof => {
                "synced to the AOF before every reply (WAITAOF): survives power loss"
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

    /// Whether an acknowledged effect survives a power cut of this machine.
    #[must_use]
    pub fn is_durable(self) -> bool {
        matches!(self, Persistence::Always | Persistence::WaitAof)
    }
}

/// Facts about the connected server.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Changes with every start of the server process.
    pub run_id: String,
    /// What replies are worth.
    pub persistence: Persistence,
    /// Databases known to exist: every index below this.
    pub databases: u32,
}

impl Facts {
    /// Asks the server, and refuses one that cannot keep the store's promises.
    ///
    /// # Errors
    /// `Fatal` for a server that must not be used, `Retry` for one that is not ready yet.
    pub fn ask(connection: &mut Connection) -> Result<Facts, StoreError> {
        let reply = connection.call(&[b"INFO"])?;
        if let Some(error) = error(&reply) {
            return Err(refused(error, "INFO"));
        }
        let info = parse_info(text(&reply).unwrap_or_default());
        let field = |name: &str| info.get(name).copied().unwrap_or("");
        if field("loading") == "1" {
            return Err(StoreError::Retry("Redis is loading its data set".into()));
        }
        if field("redis_mode") == "cluster" || field("cluster_enabled") == "1" {
            return Err(StoreError::Fatal(
                "this Redis runs in cluster mode, where a batch cannot be one transaction: give each shard a \
                 Redis of its own, with cluster-enabled no"
                    .into(),
            ));
        }
        if field("role") == "slave" {
            return Err(StoreError::Retry(
                "this Redis is a replica: point the store at the primary".into(),
            ));
        }
        let version = version(field("redis_version"));
        if version < REDIS_VERSION_MIN {
            return Err(StoreError::Fatal(format!(
                "Redis {} is too old: 6.0 or newer is needed",
                field("redis_version")
            )));
        }
        check_eviction(field("maxmemory"), field("maxmemory_policy"))?;
        let appendfsync = setting(connection, "appendfsync")?;
        let waitaof = version >= WAITAOF_VERSION || !field("valkey_version").is_empty();
        let persistence = match (field("aof_enabled"), appendfsync.as_deref()) {
            ("1", Some("always")) => Persistence::Always,
            ("1", Some("no")) => Persistence::Kernel,
            ("1", _) if waitaof => Persistence::WaitAof,
            ("1", _) => Persistence::EverySecond,
            _ => Persistence::Off,
        };
        let databases = setting(connection, "databases")?
            .and_then(|n| n.parse().ok())
            .unwrap_or(1);
        Ok(Facts {
            run_id: field("run_id").to_owned(),
            persistence,
            databases,
        })
    }
}

/// An error that the server gives to a command without which nothing works.
pub fn refused(error: &str, command: &str) -> StoreError {
    match error.split(' ').next().unwrap_or("") {
        "NOAUTH" | "WRONGPASS" => StoreError::Fatal(format!(
            "Redis does not let us in ({error}): put the password into the store's address, redis://:PASSWORD@HOST:PORT"
        )),
        "NOPERM" => StoreError::Fatal(format!(
            "the Redis user may not run {command} ({error}): allow it (ACL SETUSER)"
        )),
        _ => StoreError::Retry(format!("{command}: {error}")),
    }
}

/// An evicting Redis may drop the records, and with them the knowledge of what was applied.
fn check_eviction(maxmemory: &str, policy: &str) -> Result<(), StoreError> {
    let limited = !matches!(maxmemory, "" | "0");
    if limited && policy.starts_with("allkeys-") {
        return Err(StoreError::Fatal(format!(
            "Redis may evict any key (maxmemory-policy {policy}), so acknowledged writes and pmnet's own records \
             could vanish: run CONFIG SET maxmemory-policy noeviction (or a volatile-* policy) and put it into redis.conf"
        )));
    }
    Ok(())
}

/// One CONFIG setting; `None` (with a warning) when CONFIG is forbidden or renamed.
fn setting(connection: &mut Connection, name: &str) -> Result<Option<String>, StoreError> {
    let reply = connection.call(&[b"CONFIG", b"GET", name.as_bytes()])?;
    if let Some(error) = error(&reply) {
        tracing::warn!(
            setting = name,
            error,
            "CONFIG GET is not available: assuming the weakest setting"
        );
        return Ok(None);
    }
    let value = elements(&reply).and_then(|pair| Some(text(pair.get(1)?)?.to_vec()));
    Ok(value.and_then(|v| String::from_utf8(v).ok()))
}

fn parse_info(text: &[u8]) -> HashMap<&str, &str> {
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
    }
}
