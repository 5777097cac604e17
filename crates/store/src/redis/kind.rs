//! The kind of the store's server: Redis, Valkey, or a server of another design with the same protocol.
//!
//! pmnet needs three properties besides the commands. A script takes effect as a whole and in the order of its
//! connection. After a crash the script's effects are kept as a whole or not at all. `INFO` names each process by a
//! `run_id`. Servers of other makers accept the same commands, but lack some of these three properties, or were not
//! shown to have them.

use std::collections::HashMap;

use pmnet_server::StoreError;

use super::config::setting;
use super::connection::Connection;

/// Fields in `INFO` that reveal a server of another maker: the field, the server's name, and the reason why the server
/// cannot be the store.
const OTHERS: [(&str, &str, &str); 3] = [
    (
        "dragonfly_version",
        "Dragonfly",
        "it has no run_id and no AOF",
    ),
    (
        "garnet_version",
        "Garnet",
        "it was not shown that a crash keeps its scripts as a whole or not at all",
    ),
    (
        "kvrocks_version",
        "Kvrocks",
        "it was not shown that a crash keeps its scripts as a whole or not at all",
    ),
];
/// Settings of KeyDB by which several servers accept writes at the same time.
const SEVERAL_MASTERS: [&str; 2] = ["active-replica", "multi-master"];

/// Refuses a server on which pmnet's promises would not hold.
///
/// # Errors
/// `Fatal` for such a server, `Retry` if the server does not answer.
pub fn check_kind(
    connection: &mut Connection,
    info: &HashMap<&str, &str>,
) -> Result<(), StoreError> {
    for (field, name, why) in OTHERS {
        if let Some(version) = info.get(field) {
            return Err(StoreError::Fatal(format!(
                "PM2111 this server is {name} ({field} {version}), which cannot be the store: {why}, so after a crash pmnet \
                 could not tell which acknowledged writes it has. Use Redis 6.2 or newer, or Valkey"
            )));
        }
    }
    // Only KeyDB has this role, and the settings that are read next.
    let mut several = info.get("role") == Some(&"active-replica");
    if info.contains_key("mvcc_depth") || several {
        for name in SEVERAL_MASTERS {
            several |= setting(connection, name)?.as_deref() == Some("yes");
        }
        if !several {
            tracing::warn!("PM2114 this server is KeyDB, with which pmnet was never tested");
        }
    }
    if several {
        return Err(StoreError::Fatal(
            "PM2112 this server is KeyDB with active-replica or multi-master: other servers write the same keys, and of two writes one \
             is dropped, also an acknowledged one. Set both to `no`, or use Redis 6.2 or newer, or Valkey"
                .into(),
        ));
    }
    Ok(())
}

/// Refuses a server that does not identify its process.
///
/// # Errors
/// `Fatal` if there is no run id.
pub fn check_run_id(run_id: &str) -> Result<(), StoreError> {
    if run_id.is_empty() {
        return Err(StoreError::Fatal(
            "PM2113 INFO of this server has no run_id, so pmnet could not tell whether it was restarted and has lost acknowledged writes, \
             and no front could recognise it: it cannot be the store. Use Redis 6.2 or newer, or Valkey"
                .into(),
        ));
    }
    Ok(())
}
