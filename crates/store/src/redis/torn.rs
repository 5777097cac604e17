//! A transaction that was cut off at the end of Redis's AOF (a torn transaction).
//!
//! Suppose that Redis dies while it writes a transaction (`MULTI`, effects, `EXEC`) to its AOF. The next start applies
//! nothing of the transaction. But with `aof-load-truncated yes` it cuts the file after the last whole *command*, so
//! the open `MULTI` and the first effects stay in the file. Later writes follow these effects, and the next `EXEC` ends
//! the old transaction. The next start of Redis then applies the old effects, although they were never part of the
//! data. If pmnet has applied the same effects again in the meantime, they take effect twice. (Redis up to 8 and Valkey
//! up to pull request 4342 do this. If no `EXEC` follows, the start drops everything after the open `MULTI`.)
//!
//! So pmnet writes nothing to a Redis whose AOF may end with an open transaction:
//!
//! - Redis 7 and newer begin another file when a rewrite starts. At the end of the old file, Redis drops the open
//!   transaction, whether the rewrite succeeds or not. (If the rewrite fails, the next start of Redis fails once,
//!   because the file that must be cut is not the last file. The failed start cuts the file, and the start after it
//!   succeeds.)
//!
//! - Redis 6.2 has one file, so the rewrite must end before pmnet writes.
//!
//! One rewrite for each Redis process is enough, because Redis cuts a file only while it starts. Other pmnet servers
//! (of another shard, or this server after a restart) must not mistake this rewrite for the first rewrite of an AOF
//! that was just switched on. Such an AOF protects nothing until its first rewrite ends. So pmnet marks the Redis
//! process by a script in its cache. The script stays in the cache while the process runs, and is in no file.

use std::collections::HashMap;

use pmnet_resp::read::{elements, error, integer, text};
use pmnet_server::StoreError;

use super::RedisStore;
use super::connection::Connection;
use super::passing::is_not_now;

/// First Redis whose AOF has several files.
const FILES_VERSION: (u32, u32) = (7, 0);

/// The SHA-1 of this script in Redis's cache shows that pmnet requested the first rewrite of this Redis process.
const MARK: &str = "return 'pmnet: the first rewrite of this process is of a whole AOF'";
const MARK_SHA: &str = "ef44ab03a99069adffc3c5ac6c9bb405492d5dfe";

/// The rewrite that is needed before anything may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TornEnd {
    /// The AOF does not end with a torn transaction.
    None,
    /// A rewrite must have started before anything is written.
    Start,
    /// A rewrite must have ended before anything is written.
    End,
}

impl TornEnd {
    /// Decides by the `INFO` of a Redis with an AOF which rewrite is needed. `cuts`: the value of the setting
    /// `aof-load-truncated`; `None`: the value is unknown, and the weakest value is assumed.
    pub fn of(info: &HashMap<&str, &str>, version: (u32, u32), cuts: Option<&str>) -> TornEnd {
        let field = |name: &str| info.get(name).copied().unwrap_or("");
        let several_files = version >= FILES_VERSION;
        let rewritten = if several_files {
            !matches!(field("aof_rewrites"), "" | "0")
        } else {
            field("aof_last_bgrewrite_status") == "ok"
                && !matches!(field("aof_last_rewrite_time_sec"), "" | "-1")
        };
        match (cuts, rewritten, several_files) {
            (Some("no"), ..) | (_, true, _) => TornEnd::None,
            (_, _, true) => TornEnd::Start,
            (_, _, false) => TornEnd::End,
        }
    }
}

/// Returns whether the rewrite that `info` reports rewrites a whole AOF, because [`RedisStore::leave_torn_end`]
/// requested this rewrite.
///
/// # Errors
/// `Retry` if Redis does not answer.
pub fn rewrites_whole_aof(
    connection: &mut Connection,
    info: &HashMap<&str, &str>,
) -> Result<bool, StoreError> {
    if info.get("aof_rewrites") != Some(&"1") {
        return Ok(false);
    }
    let reply = connection.call(&[b"SCRIPT", b"EXISTS", MARK_SHA.as_bytes()])?;
    let known = elements(&reply).and_then(|known| integer(known.first()?));
    Ok(known == Some(1))
}

impl RedisStore {
    /// Makes Redis rewrite its AOF if the end of the AOF may be torn.
    ///
    /// # Errors
    /// `Retry` until the rewrite has come far enough; `Fatal` if the user must not start a rewrite.
    pub(super) fn leave_torn_end(
        &self,
        connection: &mut Connection,
        end: TornEnd,
    ) -> Result<(), StoreError> {
        if end == TornEnd::None {
            return Ok(());
        }
        let reply = connection.call(&[b"BGREWRITEAOF"])?;
        if let Some(error) = error(&reply)
            && (is_not_now(error)
                || error.starts_with("NOPERM")
                || error.contains("unknown command"))
        {
            return Err(self.unfit("BGREWRITEAOF", error));
        }
        let says = text(&reply).unwrap_or_default();
        if end == TornEnd::Start && says.ends_with(b"started") {
            connection.call(&[b"SCRIPT", b"LOAD", MARK.as_bytes()])?;
            tracing::info!(
                redis = self.url.endpoint(),
                "Redis rewrites its AOF: pmnet asks for it once after each start of Redis, as a transaction may be torn \
                 at the end of the old file (aof-load-truncated)"
            );
            return Ok(());
        }
        Err(StoreError::Retry(format!(
            "PM2205 after its start Redis must rewrite its AOF before pmnet writes to it, because a transaction that is torn \
             at its end could take effect later (aof-load-truncated); Redis says: {}",
            String::from_utf8_lossy(error(&reply).map_or(says, str::as_bytes))
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rewrite_is_asked_for_until_it_has_come_far_enough() {
        let of = |version, cuts, fields: &[(&'static str, &'static str)]| {
            TornEnd::of(&fields.iter().copied().collect(), version, cuts)
        };
        for cuts in [None, Some("yes")] {
            assert_eq!(of((7, 0), cuts, &[("aof_rewrites", "0")]), TornEnd::Start);
            assert_eq!(of((7, 0), cuts, &[]), TornEnd::Start);
            assert_eq!(of((8, 2), cuts, &[("aof_rewrites", "1")]), TornEnd::None);
            let status = |status, seconds| {
                [
                    ("aof_last_bgrewrite_status", status),
                    ("aof_last_rewrite_time_sec", seconds),
                ]
            };
            assert_eq!(of((6, 2), cuts, &status("ok", "-1")), TornEnd::End);
            assert_eq!(of((6, 2), cuts, &status("err", "0")), TornEnd::End);
            assert_eq!(of((6, 2), cuts, &status("ok", "0")), TornEnd::None);
        }
        assert_eq!(of((7, 0), Some("no"), &[]), TornEnd::None);
    }
}
