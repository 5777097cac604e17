//! Checks settings and rights with which Redis would refuse updates that a front acknowledges early.
//!
//! The settings are checked whenever the store connects. This includes each change of the settings that closes the
//! connection. Settings are read with CONFIG GET. Renamed commands and missing rights show in a *rehearsal*: a MULTI
//! that is discarded. Redis checks names and rights of its commands, and runs none of them. `docs/operate/redis.md` has
//! a table of all settings.

use pmnet_server::StoreError;
use pmnet_wire::guard::{BULK_BYTES_MIN, OUTPUT_BYTES_MIN, QUERY_BYTES_MIN, memory, output_limit};

use super::RedisStore;
use super::config::{refused, setting};
use super::connection::Connection;
use pmnet_resp::read::error;

/// First Redis that limits the memory of clients, and can exempt a client from the limit.
const MAXMEMORY_CLIENTS_VERSION: (u32, u32) = (7, 0);

/// Refuses a Redis that cannot accept the largest command that a front acknowledges, or that cannot send the largest
/// reply.
///
/// # Errors
/// `Fatal` with advice for the operator.
pub fn check_limits(connection: &mut Connection, version: (u32, u32)) -> Result<(), StoreError> {
    for (name, least) in [
        ("proto-max-bulk-len", BULK_BYTES_MIN),
        ("client-query-buffer-limit", QUERY_BYTES_MIN),
    ] {
        let value = setting(connection, name)?;
        if let Some(found) = value.as_deref().and_then(|value| memory(value.as_bytes()))
            && found < least
        {
            return Err(too_low(
                name,
                &found.to_string(),
                "commands",
                &megabytes(least),
            ));
        }
    }
    let name = "client-output-buffer-limit";
    let value = setting(connection, name)?;
    if let Some(value) = value
        && output_limit(value.as_bytes()).is_some_and(|found| found < OUTPUT_BYTES_MIN)
    {
        return Err(too_low(name, &value, "replies", "'normal 0 0 0'"));
    }
    if version >= MAXMEMORY_CLIENTS_VERSION {
        let value = setting(connection, "maxmemory-clients")?;
        if value.is_some_and(|value| value != "0") {
            let reply = connection.call(&[b"CLIENT", b"NO-EVICT", b"on"])?;
            if let Some(error) = error(&reply) {
                return Err(StoreError::Fatal(format!(
                    "PM2107 Redis may close pmnet's connection when clients use much memory (maxmemory-clients), and does not \
                     except it (CLIENT NO-EVICT: {error}): run CONFIG SET maxmemory-clients 0 and put it into \
                     redis.conf, or give the user the right to CLIENT"
                )));
            }
        }
    }
    Ok(())
}

fn too_low(name: &str, found: &str, of: &str, wanted: &str) -> StoreError {
    StoreError::Fatal(format!(
        "PM2108 Redis closes the connection at {of} that pmnet must be able to send or read ({name} is {found}), so what was \
         acknowledged could not be applied: run CONFIG SET {name} {wanted} (or more) in Redis, and put it into \
         redis.conf"
    ))
}

fn megabytes(bytes: u64) -> String {
    format!("{}mb", bytes >> 20)
}

impl RedisStore {
    /// Checks that Redis has all commands that a front acknowledges early, and all that this store needs, and that the
    /// store's user may run them.
    ///
    /// # Errors
    /// `Fatal` with advice; `Retry` if Redis does not answer.
    pub(super) fn rehearse(
        &self,
        connection: &mut Connection,
        request_sha: &[u8],
    ) -> Result<(), StoreError> {
        // Any key will do for this check, because the clients' keys are not known yet.
        let name = self.owner.some_name();
        let key = match self.home {
            None => name,
            // This key is in the slot of the records, because all keys of a transaction must be in one slot.
            Some(home) => super::cluster::in_slot(home, &name),
        };
        let (key, hash) = (key.as_bytes(), &self.hash[..]);
        let commands: [&[&[u8]]; 19] = [
            &[b"SET", key, b"v"],
            &[b"MSET", key, b"v"],
            &[b"SETEX", key, b"1", b"v"],
            &[b"PSETEX", key, b"1", b"v"],
            &[b"SELECT", b"0"],
            &[b"HSET", hash, b"f", b"v"],
            &[b"HDEL", hash, b"f"],
            &[b"HGET", hash, b"f"],
            &[b"HMGET", hash, b"f"],
            &[b"HSCAN", hash, b"0"],
            &[b"EVAL", b"return 1", b"1", hash],
            &[b"EVALSHA", request_sha, b"1", hash],
            &[b"UNWATCH"],
            &[b"COMMAND", b"INFO", b"GET"],
            &[b"HEXISTS", hash, b"f"],
            &[b"HLEN", hash],
            &[b"DEL", hash],
            &[b"TYPE", hash],
            &[b"SCAN", b"0"],
        ];
        // MULTI is sent alone: if it failed, Redis would execute the next commands at once.
        let begun = connection.call(&[b"MULTI"])?;
        if let Some(error) = error(&begun) {
            return Err(self.unfit("MULTI", error));
        }
        for command in commands {
            connection.add(command);
        }
        connection.add(&[b"DISCARD"]);
        connection.send()?;
        let mut found = None;
        for command in commands {
            let reply = connection.reply()?;
            if let Some(error) = error(&reply)
                && is_lasting(error)
            {
                let name = std::str::from_utf8(command[0]).unwrap_or_default();
                found.get_or_insert_with(|| self.unfit(name, error));
            }
        }
        let ended = connection.reply()?;
        if let Some(error) = error(&ended) {
            found.get_or_insert_with(|| self.unfit("DISCARD", error));
        }
        if let Some(found) = found {
            return Err(found);
        }
        // Redis cannot queue the following commands. An empty transaction checks EXEC.
        let alone: [&[&[u8]]; 4] = [
            &[b"HELLO", b"2"],
            &[b"WATCH", hash],
            &[b"MULTI"],
            &[b"EXEC"],
        ];
        for command in alone {
            let reply = connection.call(command)?;
            if let Some(error) = error(&reply) {
                let name = String::from_utf8_lossy(command[0]);
                return Err(self.unfit(&name, error));
            }
        }
        Ok(())
    }

    /// Returns the error for a refused command that the store cannot work without.
    pub(super) fn unfit(&self, name: &str, error: &str) -> StoreError {
        if error.starts_with("NOPERM") {
            let user = self.user();
            return StoreError::Fatal(format!(
                "PM2109 the Redis user {user} may not run {name} on every key ({error}), but pmnet acknowledges before Redis \
                 sees the command: give it all rights (ACL SETUSER {user} on allkeys allchannels +@all), \
                 in the ACL file or redis.conf, too"
            ));
        }
        if error.contains("unknown command") {
            return lacks(&[name]);
        }
        refused(error, name)
    }
}

/// Returns whether the error of a queued command is permanent. An error that means only that Redis accepts no writes at
/// the moment is not permanent.
fn is_lasting(error: &str) -> bool {
    !super::passing::is_not_now(error)
}

/// Returns the error for commands that Redis lacks, or has only under another name.
pub fn lacks(names: &[&str]) -> StoreError {
    StoreError::Fatal(format!(
        "PM2110 Redis has no {}, which pmnet needs, or acknowledges before Redis sees it: remove its rename-command from \
         redis.conf and restart Redis",
        names.join(", ")
    ))
}
