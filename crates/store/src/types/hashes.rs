//! Hashes.

use std::ops::ControlFlow;

use pmnet_resp::parse_integer;

use super::Call;
use super::arguments::{
    NOT_A_FLOAT, NOT_FINITE, OVERFLOW, Outcome, SYNTAX, error, integer, wrong_number,
};
use super::layout::{Head, Kind, Part};
use super::long_double::Long;
use super::members::ALL;
use crate::rows::Order;

impl Call<'_, '_> {
    /// Writes a field of a hash. The caller writes the head of the hash later. Returns whether the field is new.
    fn put_field(&mut self, hash: &mut Head, field: &[u8], value: &[u8]) -> Outcome<bool> {
        let new = !self.keys.has(hash.id, Part::Members, field)?;
        self.keys.put_member(hash.id, Part::Members, field, value)?;
        hash.count += u64::from(new);
        Ok(new)
    }

    /// Replies with a field's value.
    fn reply_field(&mut self, hash: Option<&Head>, field: &[u8]) -> Outcome {
        let reply = &mut self.reply;
        let found = match hash {
            Some(hash) => self
                .keys
                .member(hash.id, Part::Members, field, |row| reply.bulk(row.value))?,
            None => None,
        };
        if found.is_none() {
            self.reply.null();
        }
        Ok(())
    }
}

pub fn hset(call: &mut Call<'_, '_>) -> Outcome {
    let created = set_fields(call)?;
    call.reply.integer(created);
    Ok(())
}

pub fn hmset(call: &mut Call<'_, '_>) -> Outcome {
    set_fields(call)?;
    call.reply.ok();
    Ok(())
}

fn set_fields(call: &mut Call<'_, '_>) -> Outcome<i64> {
    let [key, pairs @ ..] = call.arguments else {
        return Err(SYNTAX);
    };
    if !pairs.len().is_multiple_of(2) {
        return Err(wrong_number(call.name));
    }
    let mut hash = call.find_or_create(key, Kind::Hash)?;
    let mut created = 0;
    for pair in pairs.chunks_exact(2) {
        created += i64::from(call.put_field(&mut hash, pair[0], pair[1])?);
    }
    call.keep(key, &hash)?;
    Ok(created)
}

pub fn hsetnx(call: &mut Call<'_, '_>) -> Outcome {
    let [key, field, value] = call.arguments else {
        return Err(SYNTAX);
    };
    let mut hash = call.find_or_create(key, Kind::Hash)?;
    let free = !call.keys.has(hash.id, Part::Members, field)?;
    if free {
        call.put_field(&mut hash, field, value)?;
        call.keep(key, &hash)?;
    }
    call.reply.flag(free);
    Ok(())
}

/// Calls `look` with the old value of a field, if the field exists.
fn old<T>(
    call: &Call<'_, '_>,
    hash: Option<&Head>,
    field: &[u8],
    read: impl FnOnce(&[u8]) -> T,
) -> Outcome<Option<T>> {
    Ok(match hash {
        Some(hash) => call
            .keys
            .member(hash.id, Part::Members, field, |row| read(row.value))?,
        None => None,
    })
}

/// Writes the new value of a counter.
fn put_counter(call: &mut Call<'_, '_>, value: &str) -> Outcome {
    let (key, field) = (call.arguments[0], call.arguments[1]);
    let mut hash = call.find_or_create(key, Kind::Hash)?;
    call.put_field(&mut hash, field, value.as_bytes())?;
    call.keep(key, &hash)
}

pub fn hincrby(call: &mut Call<'_, '_>) -> Outcome {
    let [key, field, by] = call.arguments else {
        return Err(SYNTAX);
    };
    let by = integer(by)?;
    let hash = call.find(key, Kind::Hash)?;
    let old = old(call, hash.as_ref(), field, parse_integer)?.unwrap_or(Some(0));
    let old = old.ok_or(error("ERR hash value is not an integer"))?;
    let sum = old.checked_add(by).ok_or(OVERFLOW)?;
    put_counter(call, &sum.to_string())?;
    call.reply.integer(sum);
    Ok(())
}

pub fn hincrbyfloat(call: &mut Call<'_, '_>) -> Outcome {
    let [key, field, by] = call.arguments else {
        return Err(SYNTAX);
    };
    let by = Long::parse(by).ok_or(NOT_A_FLOAT)?;
    if !by.is_finite() {
        return Err(error("ERR value is NaN or Infinity"));
    }
    let hash = call.find(key, Kind::Hash)?;
    let old = old(call, hash.as_ref(), field, Long::parse)?.unwrap_or(Some(Long::ZERO));
    let old = old.ok_or(error("ERR hash value is not a float"))?;
    let sum = old.plus(by).ok_or(NOT_FINITE)?.text();
    put_counter(call, &sum)?;
    call.reply.bulk(sum.as_bytes());
    Ok(())
}

pub fn hget(call: &mut Call<'_, '_>) -> Outcome {
    let hash = call.find(call.arguments[0], Kind::Hash)?;
    call.reply_field(hash.as_ref(), call.arguments[1])
}

pub fn hmget(call: &mut Call<'_, '_>) -> Outcome {
    let [key, fields @ ..] = call.arguments else {
        return Err(SYNTAX);
    };
    let hash = call.find(key, Kind::Hash)?;
    call.reply.array(fields.len());
    for field in fields {
        call.reply_field(hash.as_ref(), field)?;
    }
    Ok(())
}

pub fn hdel(call: &mut Call<'_, '_>) -> Outcome {
    call.remove_members(Kind::Hash)
}

pub fn hlen(call: &mut Call<'_, '_>) -> Outcome {
    call.reply_length(Kind::Hash)
}

pub fn hexists(call: &mut Call<'_, '_>) -> Outcome {
    call.reply_exists(Kind::Hash)
}

pub fn hstrlen(call: &mut Call<'_, '_>) -> Outcome {
    let hash = call.find(call.arguments[0], Kind::Hash)?;
    let length = old(call, hash.as_ref(), call.arguments[1], <[u8]>::len)?.unwrap_or(0);
    call.reply.count(u64::try_from(length).unwrap_or(u64::MAX));
    Ok(())
}

pub fn hgetall(call: &mut Call<'_, '_>) -> Outcome {
    fields(call, true, true)
}

pub fn hkeys(call: &mut Call<'_, '_>) -> Outcome {
    fields(call, true, false)
}

pub fn hvals(call: &mut Call<'_, '_>) -> Outcome {
    fields(call, false, true)
}

fn fields(call: &mut Call<'_, '_>, names: bool, values: bool) -> Outcome {
    let hash = call.find(call.arguments[0], Kind::Hash)?;
    let count = super::size(hash.map_or(0, |hash| hash.count));
    let reply = &mut call.reply;
    if names && values {
        reply.map(count);
    } else {
        reply.array(count);
    }
    let Some(hash) = hash else {
        return Ok(());
    };
    call.keys.members(
        hash.id,
        Part::Members,
        ALL,
        Order::Ascending,
        &mut |name, row| {
            if names {
                reply.bulk(name);
            }
            if values {
                reply.bulk(row.value);
            }
            ControlFlow::Continue(())
        },
    )?;
    Ok(())
}

pub fn hrandfield(call: &mut Call<'_, '_>) -> Outcome {
    call.reply_random(Kind::Hash, Some("WITHVALUES"))
}
