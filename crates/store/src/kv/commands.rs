//! The string commands of the embedded store, with the replies and errors of Redis 7.

use bytes::Bytes;
use pmnet_resp::reply::{OK, bulk, error, integer, null};
use pmnet_resp::{parse_integer, write_header};
use pmnet_wire::command::Commands;

use super::data::{Data, Fault, Stored};

/// Databases, as in a default Redis.
const DATABASES: u32 = 16;
/// Longest value, in bytes, as in Redis.
const VALUE_BYTES_MAX: usize = 512 * 1024 * 1024;
/// Longest arguments text that an error repeats, in bytes, as in Redis.
const SHOWN_BYTES_MAX: usize = 128;

/// Where and when a command runs.
#[derive(Clone, Copy, Debug)]
pub struct Context {
    /// Database.
    pub database: u32,
    /// Nulls are written as in RESP3.
    pub resp3: bool,
    /// Milliseconds since 1970.
    pub now: u64,
}

/// Name, arity as in Redis (negative: at least), whether it changes data.
const TABLE: &[(&str, i32, bool)] = &[
    ("append", 3, true),
    ("dbsize", 1, false),
    ("decr", 2, true),
    ("decrby", 3, true),
    ("del", -2, true),
    ("echo", 2, false),
    ("exists", -2, false),
    ("flushall", -1, true),
    ("flushdb", -1, true),
    ("get", 2, false),
    ("getset", 3, true),
    ("incr", 2, true),
    ("incrby", 3, true),
    ("mget", -2, false),
    ("mset", -3, true),
    ("ping", -1, false),
    ("psetex", 4, true),
    ("pttl", 2, false),
    ("set", -3, true),
    ("setex", 4, true),
    ("setnx", 3, true),
    ("strlen", 2, false),
    ("ttl", 2, false),
    ("unlink", -2, true),
];

fn find(name: &[u8]) -> Option<&'static (&'static str, i32, bool)> {
    TABLE
        .iter()
        .find(|(known, ..)| name.eq_ignore_ascii_case(known.as_bytes()))
}

/// Error for a command that changes data but was sent as a read.
pub fn refuse_as_read(name: &[u8]) -> Option<Bytes> {
    let (name, _, writes) = find(name)?;
    writes.then(|| {
        error(&format!(
            "ERR pmnet: {name} changes data, but came as a read"
        ))
    })
}

/// Why Redis would not even queue a command.
fn objection(arguments: &[&[u8]]) -> Option<Bytes> {
    let Some((name, arity, _)) = find(arguments[0]) else {
        let mut shown = String::new();
        for argument in &arguments[1..] {
            if shown.len() >= SHOWN_BYTES_MAX {
                break;
            }
            let room = SHOWN_BYTES_MAX - shown.len();
            shown += &format!("'{}' ", lossy(&argument[..argument.len().min(room)]));
        }
        let name = lossy(&arguments[0][..arguments[0].len().min(SHOWN_BYTES_MAX)]);
        return Some(error(&format!(
            "ERR unknown command '{name}', with args beginning with: {shown}"
        )));
    };
    let count = i32::try_from(arguments.len()).unwrap_or(i32::MAX);
    let fits = if *arity >= 0 {
        count == *arity
    } else {
        count >= -arity
    };
    let even = *name == "mset" && arguments.len().is_multiple_of(2);
    let extra = *name == "ping" && arguments.len() > 2;
    (!fits || even || extra).then(|| {
        error(&format!(
            "ERR wrong number of arguments for '{name}' command"
        ))
    })
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).replace(['\r', '\n'], " ")
}

/// The reply of a transaction if Redis would not have queued one of its commands.
pub fn execaborted(commands: &Commands<'_>) -> Option<Bytes> {
    commands
        .iter()
        .any(|arguments| objection(&arguments.collect::<Vec<_>>()).is_some())
        .then(|| error("EXECABORT Transaction discarded because of previous errors."))
}

fn count(value: usize) -> Bytes {
    integer(i64::try_from(value).unwrap_or(i64::MAX))
}

const NOT_INTEGER: &str = "ERR value is not an integer or out of range";
const SYNTAX: &str = "ERR syntax error";
const TOO_LONG: &str = "ERR string exceeds maximum allowed size (proto-max-bulk-len)";

impl Context {
    fn value(&self, stored: Option<Stored>) -> Bytes {
        stored.map_or_else(|| null(self.resp3), |stored| bulk(&stored.value))
    }

    /// Expiry in ms since 1970 from an option's argument; an error reply if it is not positive.
    fn expiry(&self, text: &[u8], unit: i64, absolute: bool, command: &str) -> Result<u64, Bytes> {
        let invalid = || error(&format!("ERR invalid expire time in '{command}' command"));
        let value = parse_integer(text).ok_or_else(|| error(NOT_INTEGER))?;
        let span = value
            .checked_mul(unit)
            .filter(|&s| s > 0)
            .ok_or_else(invalid)?;
        let start = if absolute {
            0
        } else {
            i64::try_from(self.now).map_err(|_| invalid())?
        };
        start
            .checked_add(span)
            .and_then(|at| u64::try_from(at).ok())
            .ok_or_else(invalid)
    }
}

/// Runs one command; errors of the command are replies, errors of the file are [`Fault`]s.
pub fn run(data: &mut impl Data, context: &Context, arguments: &[&[u8]]) -> Result<Bytes, Fault> {
    if let Some(error) = objection(arguments) {
        return Ok(error);
    }
    let db = context.database;
    if db >= DATABASES {
        return Ok(error("ERR DB index is out of range"));
    }
    let now = context.now;
    let name = arguments[0].to_ascii_lowercase();
    Ok(match (name.as_slice(), &arguments[1..]) {
        (b"get", [key]) => context.value(data.get(db, key, now)?),
        (b"set", [key, value, options @ ..]) => return set(data, context, key, value, options),
        (b"setnx", [key, value]) => {
            let free = data.get(db, key, now)?.is_none();
            if free {
                data.put(
                    db,
                    key,
                    &Stored {
                        expiry: 0,
                        value: value.to_vec(),
                    },
                )?;
            }
            integer(i64::from(free))
        }
        (command @ (b"setex" | b"psetex"), [key, time, value]) => {
            let (unit, shown) = if command == b"setex" {
                (1000, "setex")
            } else {
                (1, "psetex")
            };
            match context.expiry(time, unit, false, shown) {
                Err(error) => error,
                Ok(expiry) => {
                    data.put(
                        db,
                        key,
                        &Stored {
                            expiry,
                            value: value.to_vec(),
                        },
                    )?;
                    OK
                }
            }
        }
        (b"getset", [key, value]) => {
            let old = data.get(db, key, now)?;
            data.put(
                db,
                key,
                &Stored {
                    expiry: 0,
                    value: value.to_vec(),
                },
            )?;
            context.value(old)
        }
        (b"del" | b"unlink", keys) => {
            let mut removed = 0;
            for key in keys {
                removed += usize::from(data.get(db, key, now)?.is_some());
                data.remove(db, key)?;
            }
            count(removed)
        }
        (b"exists", keys) => {
            let mut found = 0;
            for key in keys {
                found += usize::from(data.get(db, key, now)?.is_some());
            }
            count(found)
        }
        (b"mget", keys) => {
            let mut out = Vec::new();
            write_header(&mut out, keys.len());
            for key in keys {
                out.extend(context.value(data.get(db, key, now)?));
            }
            out.into()
        }
        (b"mset", pairs) => {
            for pair in pairs.chunks_exact(2) {
                data.put(
                    db,
                    pair[0],
                    &Stored {
                        expiry: 0,
                        value: pair[1].to_vec(),
                    },
                )?;
            }
            OK
        }
        (b"append", [key, tail]) => {
            let mut stored = data.get(db, key, now)?.unwrap_or(Stored {
                expiry: 0,
                value: Vec::new(),
            });
            if stored.value.len() + tail.len() > VALUE_BYTES_MAX {
                return Ok(error(TOO_LONG));
            }
            stored.value.extend_from_slice(tail);
            data.put(db, key, &stored)?;
            count(stored.value.len())
        }
        (b"strlen", [key]) => count(data.get(db, key, now)?.map_or(0, |s| s.value.len())),
        (b"incr", [key]) => return add(data, context, key, 1),
        (b"decr", [key]) => return add(data, context, key, -1),
        (b"incrby", [key, by]) => match parse_integer(by) {
            Some(by) => return add(data, context, key, by),
            None => error(NOT_INTEGER),
        },
        (b"decrby", [key, by]) => match parse_integer(by).map(i64::checked_neg) {
            Some(Some(by)) => return add(data, context, key, by),
            Some(None) => error("ERR decrement would overflow"),
            None => error(NOT_INTEGER),
        },
        (command @ (b"ttl" | b"pttl"), [key]) => match data.get(db, key, now)? {
            None => integer(-2),
            Some(Stored { expiry: 0, .. }) => integer(-1),
            Some(Stored { expiry, .. }) => {
                let left = expiry.saturating_sub(now);
                let shown = if command == b"ttl" {
                    left.saturating_add(500) / 1000
                } else {
                    left
                };
                integer(i64::try_from(shown).unwrap_or(i64::MAX))
            }
        },
        (b"dbsize", []) => integer(i64::try_from(data.count(db, now)?).unwrap_or(i64::MAX)),
        (command @ (b"flushall" | b"flushdb"), options) => {
            let known =
                |o: &&[u8]| o.eq_ignore_ascii_case(b"ASYNC") || o.eq_ignore_ascii_case(b"SYNC");
            if options.len() > 1 || !options.iter().all(known) {
                return Ok(error(SYNTAX));
            }
            data.clear((command == b"flushdb").then_some(db))?;
            OK
        }
        (b"ping", []) => Bytes::from_static(b"+PONG\r\n"),
        (b"ping" | b"echo", [text]) => bulk(text),
        _ => error("ERR pmnet: the embedded store cannot run this command"),
    })
}

fn add(data: &mut impl Data, context: &Context, key: &[u8], by: i64) -> Result<Bytes, Fault> {
    let stored = data.get(context.database, key, context.now)?;
    let (expiry, old) = match &stored {
        None => (0, Some(0)),
        Some(stored) => (stored.expiry, parse_integer(&stored.value)),
    };
    let Some(old) = old else {
        return Ok(error(NOT_INTEGER));
    };
    let Some(new) = old.checked_add(by) else {
        return Ok(error("ERR increment or decrement would overflow"));
    };
    data.put(
        context.database,
        key,
        &Stored {
            expiry,
            value: new.to_string().into_bytes(),
        },
    )?;
    Ok(integer(new))
}

/// SET with all its options.
fn set(
    data: &mut impl Data,
    context: &Context,
    key: &[u8],
    value: &[u8],
    options: &[&[u8]],
) -> Result<Bytes, Fault> {
    let (mut nx, mut xx, mut get, mut keep) = (false, false, false, false);
    let mut expiry = None;
    let mut at = 0;
    while at < options.len() {
        let option = options[at].to_ascii_uppercase();
        let timed = match option.as_slice() {
            b"EX" => Some((1000, false)),
            b"PX" => Some((1, false)),
            b"EXAT" => Some((1000, true)),
            b"PXAT" => Some((1, true)),
            _ => None,
        };
        match (option.as_slice(), timed) {
            (b"NX", _) if !xx => nx = true,
            (b"XX", _) if !nx => xx = true,
            (b"GET", _) => get = true,
            (b"KEEPTTL", _) if expiry.is_none() => keep = true,
            (_, Some((unit, absolute))) if expiry.is_none() && !keep && at + 1 < options.len() => {
                at += 1;
                expiry = Some((options[at], unit, absolute));
            }
            _ => return Ok(error(SYNTAX)),
        }
        at += 1;
    }
    let mut ends = 0;
    if let Some((text, unit, absolute)) = expiry {
        match context.expiry(text, unit, absolute, "set") {
            Ok(at) => ends = at,
            Err(error) => return Ok(error),
        }
    }
    let old = data.get(context.database, key, context.now)?;
    let write = !(nx && old.is_some() || xx && old.is_none());
    if write {
        if keep {
            ends = old.as_ref().map_or(0, |old| old.expiry);
        }
        data.put(
            context.database,
            key,
            &Stored {
                expiry: ends,
                value: value.to_vec(),
            },
        )?;
    }
    Ok(match (get, write) {
        (true, _) => context.value(old),
        (false, true) => OK,
        (false, false) => context.value(None),
    })
}
