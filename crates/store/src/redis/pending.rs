//! The requests of one group, from the moment when they are written into the output until their replies are read.

use bytes::Bytes;
use pmnet_resp::read::{error, text_range};
use pmnet_resp::reply;
use pmnet_server::{RecordChange, RecordKey, StoreError};
use pmnet_wire::command::Form;

use crate::{REPLY_TOO_LONG, warn_too_long};

use super::Link;
use super::cluster::{ELSEWHERE_TEXT, elsewhere, elsewhere_reply, is_elsewhere, waits_for};
use super::commands::{blocks, is_flush, runs_code, runs_reading_code};
use super::own_keys::OwnKeys;
use super::owner::{FENCED, taken_over};
use super::passing::{is_not_now, is_passing};
use super::plan::{Item, Plan};

/// First word of the request script's error if some commands may have taken effect.
const PARTLY: &str = "PARTLY ";
/// First word of the request script's error if nothing has happened and the refusal does not come from Redis. The text
/// after this word may come from a client.
const RAISED: &str = "RAISED ";
/// Maximum number of bytes of an answer that a message shows.
const SHOWN_BYTES_MAX: usize = 64;
/// Answer to a command that was sent as a read although it may write.
const NO_READ: &[u8] = b"-ERR pmnet: this command cannot be sent as a read\r\n";

/// The answer to one command of a read.
pub enum Answer {
    /// The answer is known without asking Redis.
    Here(Bytes),
    /// Redis will send the answer.
    Comes {
        /// Whether the client's own code runs, so that any error may come from that code.
        code: bool,
    },
}

/// A request whose replies are still to be read.
pub enum Pending {
    /// Nothing was sent, because this reply is already known.
    Done(Bytes),
    /// First come `skip` replies to pmnet's own commands (SELECT, HELLO), then one reply for each command of the
    /// client.
    Read { skip: usize, items: Vec<Answer> },
    /// The replies to MULTI, to `queued` commands, and to EXEC come.
    ReadTransaction { skip: usize, queued: usize },
    /// The reply of the request script comes. If the script failed for good, this record still needs a reply.
    Script {
        skip: usize,
        field: RecordKey,
        prefix: Bytes,
        /// The slots that the script checks in a Redis Cluster.
        slots: Vec<u16>,
    },
}

/// Adds a read-only request to the output.
pub fn add_read(link: &mut Link, plan: &Plan<'_>, own: OwnKeys<'_>) -> Pending {
    let no_read = |name: &[u8], arguments: &[&[u8]]| {
        blocks(name, arguments) || is_flush(name) || runs_code(name)
    };
    let unfit = match plan.form {
        Form::Transaction => plan
            .runs()
            .any(|(name, _)| is_flush(name) || runs_code(name)),
        // A pack has a record, so it is never a read.
        Form::Pack => true,
        _ => false,
    };
    if unfit {
        return Pending::Done(Bytes::from_static(NO_READ));
    }
    let connection = &mut link.connection;
    let protocol = if plan.resp3 { 3 } else { 2 };
    let mut skip = 0;
    if connection.protocol != protocol {
        connection.add(&[b"HELLO", protocol.to_string().as_bytes()]);
        connection.protocol = protocol;
        skip += 1;
    }
    skip += usize::from(connection.add_select(plan.database));
    if plan.form == Form::Transaction {
        // Without UNWATCH, an earlier write of pmnet in this group would make EXEC fail.
        connection.add(&[b"UNWATCH"]);
        skip += 1;
        connection.add(&[b"MULTI"]);
        for (name, arguments) in plan.runs() {
            let hidden = own.hidden(plan.database, name, arguments);
            connection.add(hidden.as_ref().unwrap_or(arguments));
        }
        connection.add(&[b"EXEC"]);
        return Pending::ReadTransaction {
            skip,
            queued: plan.items.len(),
        };
    }
    let items = plan
        .items
        .iter()
        .map(|item| match item {
            Item::Done(reply) => Answer::Here(Bytes::copy_from_slice(reply)),
            Item::Select(_) | Item::Transaction(_) => Answer::Here(Bytes::from_static(NO_READ)),
            Item::Run(name, arguments) if no_read(name, arguments) => {
                Answer::Here(Bytes::from_static(NO_READ))
            }
            Item::Run(name, arguments) => {
                let hidden = own.hidden(plan.database, name, arguments);
                connection.add(hidden.as_ref().unwrap_or(arguments));
                Answer::Comes {
                    code: runs_reading_code(name),
                }
            }
        })
        .collect();
    Pending::Read { skip, items }
}

/// Reads the replies of one request. Returns the record that still has to be written, if the
/// script failed for good.
pub fn read_pending(
    link: &mut Link,
    pending: Pending,
    hash: &[u8],
    ready: &mut Vec<Bytes>,
) -> Result<Option<RecordChange>, StoreError> {
    let home = link.home;
    let connection = &mut link.connection;
    let skip = match &pending {
        Pending::Done(_) => 0,
        Pending::Read { skip, .. }
        | Pending::ReadTransaction { skip, .. }
        | Pending::Script { skip, .. } => *skip,
    };
    for _ in 0..skip {
        expect_ok(&connection.reply()?)?;
    }
    match pending {
        Pending::Done(reply) => ready.push(reply),
        Pending::Read { items, .. } => {
            let single = items.len() == 1;
            let mut all = Vec::new();
            for item in items {
                let (reply, final_) = match item {
                    Answer::Here(reply) => (reply, true),
                    Answer::Comes { code } => answer(connection.reply()?, code, home.is_some()),
                };
                if !final_
                    && let Some(error) = error(&reply)
                    && is_not_now(error)
                {
                    return Err(StoreError::Retry(error.to_owned()));
                }
                if single {
                    ready.push(reply);
                    return Ok(None);
                }
                all.extend_from_slice(&reply);
            }
            ready.push(all.into());
        }
        Pending::ReadTransaction { queued, .. } => {
            // If MULTI failed, the commands after it did not run as a transaction.
            expect_ok(&connection.reply()?)?;
            for _ in 0..queued {
                connection.reply()?;
            }
            let (reply, _) = answer(connection.reply()?, false, home.is_some());
            match error(&reply) {
                Some(error) if is_passing(error) && home.is_none() => {
                    return Err(StoreError::Retry(error.to_owned()));
                }
                _ => ready.push(reply),
            }
        }
        Pending::Script {
            field,
            prefix,
            slots,
            ..
        } => {
            let reply = connection.reply()?;
            // For every command, the script's result is a string.
            if reply.starts_with(b"$")
                && let Some(range) = text_range(&reply)
            {
                if reply[range.clone()] == *REPLY_TOO_LONG {
                    warn_too_long(&field);
                }
                ready.push(reply.slice(range));
                return Ok(None);
            }
            let Some(error) = error(&reply) else {
                return Err(not_understood("EVALSHA", &reply));
            };
            if error.starts_with(FENCED) {
                return Err(taken_over(hash));
            }
            let text = if let Some((slot, why)) = elsewhere(error, &slots) {
                if Some(slot) == home {
                    return Err(StoreError::Retry(waits_for(slot, why)));
                }
                elsewhere_reply(slot).into()
            } else if let Some(why) = error.strip_prefix(PARTLY) {
                tracing::warn!(
                    error,
                    "PM2211 the request script failed; what it did so far stands"
                );
                reply::error(&format!(
                    "ERR pmnet: failed while running, part of it may have taken effect: {why}"
                ))
            } else if is_passing(error)
                || error.starts_with("NOSCRIPT")
                || (home.is_some() && is_elsewhere(error))
            {
                return Err(StoreError::Retry(error.to_owned()));
            } else if error.contains("Script killed by user") {
                // Redis kills only scripts that have changed nothing. The position in the error's text is a position in
                // pmnet's script, so it is cut off.
                reply::error(error.split(" script: ").next().unwrap_or(error))
            } else {
                // The request would fail in the same way again. If the request were tried again and again, the shard
                // would stand still.
                tracing::warn!(
                    error,
                    "PM2212 the request script failed; nothing has happened"
                );
                let why = error.strip_prefix(RAISED).unwrap_or(error);
                reply::error(&format!("ERR pmnet: cannot be run: {why}"))
            };
            let value = [&prefix[..], &text].concat();
            ready.push(text);
            return Ok(Some((field, Some(value.into()))));
        }
    }
    Ok(None)
}

/// Returns the answer to a read, and whether it is final even if it is an error. `cluster`: whether the store is a
/// Redis Cluster. Clients must not see Redis's errors about slots, because they would connect to another node and
/// bypass pmnet. The end of the group shows whether this Redis is still the master.
fn answer(reply: Bytes, code: bool, cluster: bool) -> (Bytes, bool) {
    match error(&reply) {
        Some(error) if cluster && is_elsewhere(error) && !error.starts_with("CROSSSLOT") => {
            (reply::error(ELSEWHERE_TEXT), true)
        }
        _ => (reply, code),
    }
}

/// Returns the error for an answer whose form Redis never uses.
pub fn not_understood(command: &str, reply: &[u8]) -> StoreError {
    StoreError::Retry(format!(
        "PM2210 Redis's answer to {command} is not understood: {}",
        reply[..reply.len().min(SHOWN_BYTES_MAX)].escape_ascii()
    ))
}

/// Checks that an answer is not an error.
pub fn expect_ok(reply: &[u8]) -> Result<(), StoreError> {
    match error(reply) {
        Some(error) => Err(StoreError::Retry(error.to_owned())),
        None => Ok(()),
    }
}
