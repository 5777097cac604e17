//! A transaction that is torn at the end of Redis's AOF.
//!
//! Redis dies while it writes a transaction (`MULTI`, effects, `EXEC`) to its AOF. At the next start it applies nothing of
//! it, but with `aof-load-truncated yes` it cuts the file after the last whole *command*, so the open `MULTI` and the first
//! effects stay in the file. Later writes go after them, and their `EXEC` ends the transaction: at the start
//! after that, these effects take place although they were never part of the data, and what pmnet applied anew takes
//! place once more. (Redis up to 8, Valkey up to pull request 4342. If no `EXEC` follows, all that follows is dropped.)
//!
//! So nothing is written after such an end:
//! - Redis 7 and newer begin another file when a rewrite starts. At the end of its file the open transaction is dropped,
//!   whether the rewrite ends or not. (If it does not: the next start of Redis fails once, because the file that is cut is
//!   not the last; it is cut then, and the start after that succeeds.)
//! - Redis 6.2 has one file; there the rewrite has to end.
//!
//! Once in the life of a Redis process is enough, as a file is cut only while Redis starts. Other servers (another shard's, or
//! the same started again) must know that this rewrite is not that of an AOF that was just switched on, which
//! protects nothing yet. A script in Redis's cache tells them: it lives as long as the process, and in no file.

use std::collections::HashMap;

use pmnet_resp::read::{elements, error, integer, text};
use pmnet_server::StoreError;

use super::RedisStore;
use super::connection::Connection;
use super::passing::is_not_now;

/// First Redis whose AOF has several files.
const FILES_VERSION: (u32, u32) = (7, 0);

/// Known to a Redis process whose first rewrite was asked for here; its SHA-1.
const MARK: &str = "return 'pmnet: the first rewrite of this process is of a whole AOF'";
const MARK_SHA: &str = "ef44ab03a99069adffc3c5ac6c9bb405492d5dfe";

/// Rewrite that is needed before anything may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TornEnd {
    /// The AOF does not end with a torn transaction.
    None,
    /// A rewrite must have started.
    Start,
    /// A rewrite must have ended.
    End,
}

impl TornEnd {
    /// Facts from `INFO` of a Redis with an AOF. `cuts`: its `aof-load-truncated`; if it is not known, assume the
    /// weakest.
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

/// Returns whether the rewrite that `info` tells of is one of a whole AOF, because [`RedisStore::leave_torn_end`] asked for it.
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
    /// Has Redis rewrite its AOF, if its end may be torn.
    ///
    /// # Errors
    /// `Retry` until the rewrite has come far enough; `Fatal` if the user may not start it.
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
