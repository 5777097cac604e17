//! Strings and counters.

use pmnet_resp::parse_integer;

use super::arguments::{
    NOT_A_FLOAT, NOT_AN_INTEGER, NOT_FINITE, OVERFLOW, Options, Outcome, SYNTAX, TOO_LONG, error,
    integer, is, wrong_number,
};
use super::expiry::{self, End};
use super::keyspace::STRING_BYTES_MAX;
use super::layout::{Head, Kind};
use super::long_double::Long;
use super::{Call, size};

pub(super) fn check_length(length: usize) -> Outcome {
    if length > STRING_BYTES_MAX {
        return Err(TOO_LONG);
    }
    Ok(())
}

impl Call<'_, '_> {
    /// Returns a copy of the string at a key, with its time of expiry.
    pub(super) fn string(&self, key: &[u8]) -> Outcome<Option<(u64, Vec<u8>)>> {
        self.look(key, |head, value| (head.expires, value.to_vec()))
    }

    /// Calls `look` with the string at a key, if the key exists.
    pub(super) fn look<T>(
        &self,
        key: &[u8],
        look: impl FnOnce(Head, &[u8]) -> T,
    ) -> Outcome<Option<T>> {
        let found = self.keys.string(self.database, key, look)?;
        if found.is_none() {
            self.find(key, Kind::String)?;
        }
        Ok(found)
    }

    pub(super) fn put(&mut self, key: &[u8], expires: u64, value: &[u8]) -> Outcome {
        Ok(self.keys.put_string(self.database, key, expires, value)?)
    }

    /// Writes a string that may be longer than the key's earlier string. A string that is too long is refused.
    pub(super) fn put_grown(&mut self, key: &[u8], expires: u64, value: &[u8]) -> Outcome {
        check_length(value.len())?;
        self.put(key, expires, value)
    }

    /// Replies with the string at a key.
    fn reply_string(&mut self, key: &[u8]) -> Outcome {
        let reply = &mut self.reply;
        let found = self
            .keys
            .string(self.database, key, |_, value| reply.bulk(value))?;
        if found.is_none() {
            self.find(key, Kind::String)?;
            self.reply.null();
        }
        Ok(())
    }
}

pub fn get(call: &mut Call<'_, '_>) -> Outcome {
    call.reply_string(call.arguments[0])
}

pub fn set(call: &mut Call<'_, '_>) -> Outcome {
    let [key, value, rest @ ..] = call.arguments else {
        return Err(SYNTAX);
    };
    let (mut nx, mut xx, mut get, mut keep) = (false, false, false, false);
    let mut end: Option<End<'_>> = None;
    let mut options = Options::new(rest);
    while let Some(option) = options.next() {
        if is(option, "NX") && !xx {
            nx = true;
        } else if is(option, "XX") && !nx {
            xx = true;
        } else if is(option, "GET") {
            get = true;
        } else if is(option, "KEEPTTL") && end.is_none() {
            keep = true;
        } else if !keep && let Some(found) = End::option(option, &mut options, end.as_ref())? {
            end = Some(found);
        } else {
            return Err(SYNTAX);
        }
    }
    let mut expires = match end {
        Some(end) => end.time(call)?,
        None => 0,
    };
    if get {
        call.reply_string(key)?;
    }
    let old = call.head(key)?;
    if nx && old.is_some() || xx && old.is_none() {
        if !get {
            call.reply.null();
        }
        return Ok(());
    }
    if keep {
        expires = old.map_or(0, |old| old.expires);
    }
    call.put(key, expires, value)?;
    if !get {
        call.reply.ok();
    }
    Ok(())
}

pub fn setnx(call: &mut Call<'_, '_>) -> Outcome {
    let free = call.head(call.arguments[0])?.is_none();
    if free {
        call.put(call.arguments[0], 0, call.arguments[1])?;
    }
    call.reply.flag(free);
    Ok(())
}

pub fn setex(call: &mut Call<'_, '_>) -> Outcome {
    set_with_end(call, End::seconds(call.arguments[1]))
}

pub fn psetex(call: &mut Call<'_, '_>) -> Outcome {
    set_with_end(call, End::milliseconds(call.arguments[1]))
}

fn set_with_end(call: &mut Call<'_, '_>, end: End<'_>) -> Outcome {
    let expires = end.time(call)?;
    call.put(call.arguments[0], expires, call.arguments[2])?;
    call.reply.ok();
    Ok(())
}

pub fn getset(call: &mut Call<'_, '_>) -> Outcome {
    let key = call.arguments[0];
    call.reply_string(key)?;
    call.put(key, 0, call.arguments[1])
}

pub fn getdel(call: &mut Call<'_, '_>) -> Outcome {
    let key = call.arguments[0];
    call.reply_string(key)?;
    call.remove(key)
}

pub fn getex(call: &mut Call<'_, '_>) -> Outcome {
    let [key, rest @ ..] = call.arguments else {
        return Err(SYNTAX);
    };
    let (mut persist, mut end): (_, Option<End<'_>>) = (false, None);
    let mut options = Options::new(rest);
    while let Some(option) = options.next() {
        if is(option, "PERSIST") && end.is_none() {
            persist = true;
        } else if !persist && let Some(found) = End::option(option, &mut options, end.as_ref())? {
            end = Some(found);
        } else {
            return Err(SYNTAX);
        }
    }
    let Some(head) = call.find(key, Kind::String)? else {
        call.reply.null();
        return Ok(());
    };
    let expires = match end {
        Some(end) => end.time(call)?,
        None if persist => 0,
        None => head.expires,
    };
    call.reply_string(key)?;
    expiry::change(call, key, head.expires, expires)
}

pub fn mget(call: &mut Call<'_, '_>) -> Outcome {
    call.reply.array(call.arguments.len());
    for key in call.arguments {
        let reply = &mut call.reply;
        let found = call
            .keys
            .string(call.database, key, |_, value| reply.bulk(value))?;
        if found.is_none() {
            call.reply.null();
        }
    }
    Ok(())
}

pub fn mset(call: &mut Call<'_, '_>) -> Outcome {
    pairs(call)?;
    put_all(call)?;
    call.reply.ok();
    Ok(())
}

pub fn msetnx(call: &mut Call<'_, '_>) -> Outcome {
    pairs(call)?;
    for pair in call.arguments.chunks_exact(2) {
        if call.head(pair[0])?.is_some() {
            call.reply.flag(false);
            return Ok(());
        }
    }
    put_all(call)?;
    call.reply.flag(true);
    Ok(())
}

fn pairs(call: &Call<'_, '_>) -> Outcome {
    if call.arguments.len().is_multiple_of(2) {
        Ok(())
    } else {
        Err(wrong_number(call.name))
    }
}

fn put_all(call: &mut Call<'_, '_>) -> Outcome {
    for pair in call.arguments.chunks_exact(2) {
        call.put(pair[0], 0, pair[1])?;
    }
    Ok(())
}

pub fn append(call: &mut Call<'_, '_>) -> Outcome {
    let [key, tail] = call.arguments else {
        return Err(SYNTAX);
    };
    let (expires, mut value) = call.string(key)?.unwrap_or_default();
    value.extend_from_slice(tail);
    call.put_grown(key, expires, &value)?;
    call.reply.integer(length(&value));
    Ok(())
}

fn length(value: &[u8]) -> i64 {
    i64::try_from(value.len()).unwrap_or(i64::MAX)
}

pub fn strlen(call: &mut Call<'_, '_>) -> Outcome {
    let head = call.find(call.arguments[0], Kind::String)?;
    call.reply.count(head.map_or(0, |head| head.count));
    Ok(())
}

pub fn incr(call: &mut Call<'_, '_>) -> Outcome {
    add(call, 1)
}

pub fn decr(call: &mut Call<'_, '_>) -> Outcome {
    add(call, -1)
}

pub fn incrby(call: &mut Call<'_, '_>) -> Outcome {
    add(call, integer(call.arguments[1])?)
}

pub fn decrby(call: &mut Call<'_, '_>) -> Outcome {
    let by = integer(call.arguments[1])?;
    let by = by
        .checked_neg()
        .ok_or(error("ERR decrement would overflow"))?;
    add(call, by)
}

fn add(call: &mut Call<'_, '_>, by: i64) -> Outcome {
    let key = call.arguments[0];
    let old = call.look(key, |head, value| (head.expires, parse_integer(value)))?;
    let (expires, old) = old.unwrap_or((0, Some(0)));
    let sum = old.ok_or(NOT_AN_INTEGER)?.checked_add(by).ok_or(OVERFLOW)?;
    call.put(key, expires, sum.to_string().as_bytes())?;
    call.reply.integer(sum);
    Ok(())
}

pub fn incrbyfloat(call: &mut Call<'_, '_>) -> Outcome {
    let [key, by] = call.arguments else {
        return Err(SYNTAX);
    };
    let old = call.look(key, |head, value| (head.expires, Long::parse(value)))?;
    let (expires, old) = old.unwrap_or((0, Some(Long::ZERO)));
    let old = old.ok_or(NOT_A_FLOAT)?;
    let by = Long::parse(by).ok_or(NOT_A_FLOAT)?;
    let sum = old.plus(by).ok_or(NOT_FINITE)?.text();
    call.put(key, expires, sum.as_bytes())?;
    call.reply.bulk(sum.as_bytes());
    Ok(())
}

pub fn getrange(call: &mut Call<'_, '_>) -> Outcome {
    let [key, start, end] = call.arguments else {
        return Err(SYNTAX);
    };
    let (start, end) = (integer(start)?, integer(end)?);
    let found = call.look(key, |_, value| part(value, start, end).to_vec())?;
    call.reply.bulk(&found.unwrap_or_default());
    Ok(())
}

/// Returns the bytes between two indexes; a negative index before the start counts as 0.
fn part(value: &[u8], start: i64, end: i64) -> &[u8] {
    if start < 0 && end < 0 && start > end {
        return &[];
    }
    let total = length(value);
    let from_front = |index: i64| {
        if index < 0 {
            (total + index).max(0)
        } else {
            index
        }
    };
    let (start, end) = (from_front(start), from_front(end).min(total - 1));
    if start > end {
        return &[];
    }
    &value[size(start.unsigned_abs())..=size(end.unsigned_abs())]
}

pub fn setrange(call: &mut Call<'_, '_>) -> Outcome {
    let [key, offset, patch] = call.arguments else {
        return Err(SYNTAX);
    };
    let offset = integer(offset)?;
    if offset < 0 {
        return Err(error("ERR offset is out of range"));
    }
    let head = call.find(key, Kind::String)?;
    if patch.is_empty() {
        call.reply.count(head.map_or(0, |head| head.count));
        return Ok(());
    }
    let offset = size(offset.unsigned_abs());
    let end = offset.checked_add(patch.len()).ok_or(TOO_LONG)?;
    check_length(end)?;
    let (expires, mut value) = call.string(key)?.unwrap_or_default();
    if value.len() < end {
        value.resize(end, 0);
    }
    value[offset..end].copy_from_slice(patch);
    call.put(key, expires, &value)?;
    call.reply.integer(length(&value));
    Ok(())
}
