//! Executes the payloads of updates and requests over rows. The code is the same for every way in which a store keeps
//! its rows.

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use pmnet_resp::{reply, write_header};
use pmnet_server::{Batch, Origin, Request};
use pmnet_wire::command::{Commands, Form, Protocol, preamble};

use crate::rows::{Fault, Rows, Update, place_in};
use crate::types::{Context, Cursors, Keyspace, execaborted, refuse_as_read, run, unchanged};
use crate::{OpenError, PACK_HEADER_BYTES_MAX, REPLY_BYTES_MAX, REPLY_TOO_LONG};

/// A pack ends when its replies have this many bytes.
const PACK_REPLIES_BYTES_MAX: usize = 256 * 1024;
/// Longest reply of a read in a pack, in bytes.
const PACK_READ_BYTES_MAX: usize = 16 * 1024;

/// Number of keys that are checked for expiry in one turn while nothing is written.
pub const TIDIED_KEYS: usize = 1_000;
/// Redis's error for a write that finds no memory, with advice for an operator.
const OUT_OF_MEMORY: &str = "OOM command not allowed: the packet store is full; delete keys, or make it larger (pmnet store grow)";
/// The error for a command that may change data and whose reply would be too long.
const REFUSED_TOO_LONG: &str =
    "ERR pmnet: the reply would be larger than 16 MiB, so nothing was done; ask for less at once";

/// Makes a keyspace over the rows of one transaction. The keyspace leaves out keys that have expired at the present
/// time.
///
/// # Errors
/// [`Fault::Storage`]: the system gives no random numbers.
pub fn keyspace<'r>(
    rows: &'r mut dyn Rows,
    cursors: &'r mut Cursors,
) -> Result<Keyspace<'r>, Fault> {
    let seed = getrandom::u64().map_err(|error| Fault::Storage(error.to_string()))?;
    Ok(Keyspace::new(rows, now(), cursors, seed))
}

/// Returns the time, in ms since 1970.
pub fn now() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Returns random starting points for the iterations (SCAN) of clients.
///
/// # Errors
/// [`OpenError::Random`].
pub fn cursors() -> Result<Cursors, OpenError> {
    let seed = getrandom::u64().map_err(|error| OpenError::Random {
        why: error.to_string(),
    })?;
    let mut cursors = Cursors::new(seed);
    cursors.started = now();
    Ok(cursors)
}

/// Counts events of one kind. The more events there are, the fewer of them are logged, so that they do not flood the
/// log.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counted(u64);

impl Counted {
    /// Counts one more event. Returns the new total if this event must be logged.
    pub fn one_more(&mut self) -> Option<u64> {
        self.0 += 1;
        self.0.is_power_of_two().then_some(self.0)
    }

    /// Returns the number of events so far.
    pub const fn total(self) -> u64 {
        self.0
    }
}

/// Number of updates that were rejected.
#[derive(Debug, Default)]
pub struct Rejections(Counted);

impl Rejections {
    /// Counts the rejected updates, and logs some of the reasons.
    pub fn note(&mut self, reasons: &[String]) {
        for why in reasons {
            if let Some(total) = self.0.one_more() {
                tracing::warn!(
                    total,
                    why,
                    "PM2411 an update was rejected and has no effect"
                );
            }
        }
    }
}

/// Applies updates in order. Returns the reason for each rejected update. A rejected command has no effect. In a
/// transaction, as in Redis, each command succeeds or fails on its own.
///
/// # Errors
/// A [`Fault`] of the rows. The caller must then give the transaction up.
pub fn apply(keys: &mut Keyspace<'_>, batch: &Batch) -> Result<Vec<String>, Fault> {
    let mut rejected = Vec::new();
    for (at, payload) in batch.effects.iter().enumerate() {
        match Commands::parse(payload) {
            Ok(commands) if commands.count > 0 => {
                let origin = batch.origins.get(at).copied().flatten();
                keys.begin_update(origin.and_then(|origin| update(origin, payload, &commands)));
                let replies = run_all(keys, &commands)?;
                let error = replies.iter().find(|reply| reply.starts_with(b"-"));
                rejected.extend(error.map(|e| String::from_utf8_lossy(e).trim_end().to_owned()));
            }
            Ok(_) => rejected.push("an update without a command".into()),
            Err(error) => rejected.push(error.to_string()),
        }
    }
    keys.begin_update(None);
    Ok(rejected)
}

/// Returns the update if the payload is a single command about a key.
fn update(origin: Origin, payload: &Bytes, commands: &Commands<'_>) -> Option<Update> {
    let single = commands.form == Form::Single;
    let key = commands.iter().next().filter(|_| single)?.nth(1)?;
    Some(Update {
        origin,
        payload: payload.clone(),
        key: place_in(payload, key)?,
    })
}

/// Executes a request. An error of the request is its reply.
///
/// # Errors
/// A [`Fault`] of the rows, or [`Fault::ReplyTooLong`] of a request that may have changed something. After such a
/// fault, the caller must give the transaction up.
pub fn answer(keys: &mut Keyspace<'_>, request: &Request) -> Result<Bytes, Fault> {
    let commands = match Commands::parse(&request.payload) {
        Ok(commands) => commands,
        Err(error) => return Ok(crate::malformed_reply(error)),
    };
    match commands.form {
        Form::Barrier => return Ok(reply::OK),
        Form::StoreAddress => return Ok(Bytes::from_static(pmnet_wire::command::NO_ADDRESS)),
        Form::Single | Form::Pipeline | Form::Transaction | Form::Pack => {}
    }
    if request.record.is_none()
        && let Some(error) = commands.iter().find_map(refuse_as_read)
    {
        return Ok(error);
    }
    if commands.form == Form::Pack {
        return answer_pack(keys, &commands);
    }
    let reply = reply_of(keys, &commands)?;
    match request.record {
        Some(_) if reply.len() > REPLY_BYTES_MAX => Err(Fault::ReplyTooLong),
        _ => Ok(reply.into()),
    }
}

/// If the request is a pack of several parts, returns a request for its first part alone.
pub fn first_part(request: &Request) -> Option<Request> {
    let commands = Commands::parse(&request.payload).ok();
    let pack = commands.filter(|commands| commands.form == Form::Pack)?;
    let mut units = pack.units();
    let first = units.next()?;
    units.next()?;
    let head = preamble(Form::Pack, pack.protocol, pack.database);
    Some(Request {
        source: request.source,
        payload: [&head[..], first.resp].concat().into(),
        record: request.record.clone(),
    })
}

/// Returns the error text for a client whose request failed with this fault; `None` if the store itself failed.
pub fn told(fault: &Fault) -> Option<String> {
    match fault {
        Fault::Full => Some(OUT_OF_MEMORY.to_owned()),
        Fault::ReplyTooLong => Some(REFUSED_TOO_LONG.to_owned()),
        Fault::Corrupted(what) => Some(format!("ERR pmnet: {what}")),
        Fault::Storage(_) => None,
    }
}

/// Returns the reply to a request that cannot be executed. For a pack, the reply has the form of a pack with one part.
pub fn refusal(request: &Request, why: &str) -> Bytes {
    let error = reply::error(why);
    match Commands::parse(&request.payload) {
        Ok(commands) if commands.form == Form::Pack => [b"*1\r\n", &error[..]].concat().into(),
        _ => error,
    }
}

fn reply_of(keys: &mut Keyspace<'_>, commands: &Commands<'_>) -> Result<Vec<u8>, Fault> {
    let watched = unchanged(keys, commands)?;
    if watched == Some(false) {
        return Ok(match commands.protocol {
            Protocol::Resp2 => b"*-1\r\n".to_vec(),
            Protocol::Resp3 => b"_\r\n".to_vec(),
        });
    }
    let replies = run_all(keys, commands)?;
    // The first reply belongs to the front's own question, so the client does not get it.
    let own = usize::from(watched.is_some());
    let mut whole = Vec::new();
    if commands.form == Form::Transaction && replies.len() == commands.count {
        write_header(&mut whole, commands.count - own);
    }
    let own = if replies.len() == commands.count {
        own
    } else {
        0
    };
    for reply in replies.into_iter().skip(own) {
        whole.extend_from_slice(&reply);
    }
    Ok(whole)
}

/// Executes parts of a pack until their replies have reached the limit.
fn answer_pack(keys: &mut Keyspace<'_>, commands: &Commands<'_>) -> Result<Bytes, Fault> {
    let (mut count, mut replies) = (0, Vec::new());
    for unit in commands.units() {
        let mut reply = reply_of(keys, &unit.commands)?;
        let room = REPLY_BYTES_MAX - PACK_HEADER_BYTES_MAX - replies.len();
        // A single read changes nothing, so the front can send it again.
        let reads = unit.commands.form == Form::Single
            && unit.commands.iter().find_map(refuse_as_read).is_none();
        if reads && reply.len() > PACK_READ_BYTES_MAX {
            break;
        }
        if reply.len() > room {
            if !reads {
                return Err(Fault::ReplyTooLong);
            }
            reply = REPLY_TOO_LONG.to_vec();
        }
        replies.append(&mut reply);
        count += 1;
        if replies.len() > PACK_REPLIES_BYTES_MAX {
            break;
        }
    }
    let mut whole = Vec::with_capacity(PACK_HEADER_BYTES_MAX + replies.len());
    write_header(&mut whole, count);
    whole.append(&mut replies);
    Ok(whole.into())
}

/// Returns the reply of each command, or a single error for a transaction that Redis would not have queued.
fn run_all(keys: &mut Keyspace<'_>, commands: &Commands<'_>) -> Result<Vec<Bytes>, Fault> {
    let context = Context {
        database: commands.database,
        resp3: commands.protocol == Protocol::Resp3,
    };
    if commands.form == Form::Transaction
        && let Some(error) = execaborted(commands)
    {
        return Ok(vec![error]);
    }
    commands
        .iter()
        .map(|arguments| run(keys, &context, &arguments.collect::<Vec<_>>()))
        .collect()
}
