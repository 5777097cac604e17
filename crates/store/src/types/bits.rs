//! Strings as arrays of bits.

use pmnet_resp::parse_integer;

use super::arguments::{Outcome, SYNTAX, Stop, error, integer, is};
use super::strings::check_length;
use super::{Call, size};

/// Longest string in which a bit can be set, in bytes, as in Redis.
const BYTES_MAX: u64 = 512 * 1024 * 1024;

const BAD_OFFSET: Stop = error("ERR bit offset is not an integer or out of range");
const BAD_BIT: Stop = error("ERR bit is not an integer or out of range");

fn offset(text: &[u8]) -> Outcome<u64> {
    let offset = parse_integer(text).and_then(|offset| u64::try_from(offset).ok());
    offset
        .filter(|offset| offset >> 3 < BYTES_MAX)
        .ok_or(BAD_OFFSET)
}

/// Returns the byte that has this bit, and the mask of the bit in its byte. The first bit of a byte is its highest bit.
fn place(offset: u64) -> (usize, u8) {
    (size(offset >> 3), 0x80 >> (offset & 7))
}

pub fn setbit(call: &mut Call<'_, '_>) -> Outcome {
    let [key, at, bit] = call.arguments else {
        return Err(SYNTAX);
    };
    let (byte, mask) = place(offset(at)?);
    let bit = match parse_integer(bit) {
        Some(0) => false,
        Some(1) => true,
        _ => return Err(BAD_BIT),
    };
    let (expires, mut value) = call.string(key)?.unwrap_or_default();
    let grows = value.len() <= byte;
    if grows {
        check_length(byte + 1)?;
        value.resize(byte + 1, 0);
    }
    let old = value[byte] & mask != 0;
    if old == bit && !grows {
        // The bit already has this value, and the string does not grow. So nothing is written, and the key counts as
        // unchanged.
        call.reply.flag(old);
        return Ok(());
    }
    if bit {
        value[byte] |= mask;
    } else {
        value[byte] &= !mask;
    }
    call.put(key, expires, &value)?;
    call.reply.flag(old);
    Ok(())
}

pub fn getbit(call: &mut Call<'_, '_>) -> Outcome {
    let (byte, mask) = place(offset(call.arguments[1])?);
    let set = call.look(call.arguments[0], |_, value| {
        value.get(byte).is_some_and(|byte| byte & mask != 0)
    })?;
    call.reply.flag(set.unwrap_or(false));
    Ok(())
}

/// Returns the first and the last bit of a range that is given in bytes or in bits; `None` if the range is empty.
fn bits(start: i64, end: i64, length: usize, in_bits: bool) -> Option<(u64, u64)> {
    let length = i64::try_from(length).unwrap_or(i64::MAX);
    let total = if in_bits { length * 8 } else { length };
    let from_front = |index: i64| {
        if index < 0 {
            (total + index).max(0)
        } else {
            index
        }
    };
    let (start, end) = (from_front(start), from_front(end).min(total - 1));
    if start > end {
        return None;
    }
    let (start, end) = (start.unsigned_abs(), end.unsigned_abs());
    Some(if in_bits {
        (start, end)
    } else {
        (start * 8, end * 8 + 7)
    })
}

fn unit(text: &[u8]) -> Outcome<bool> {
    match () {
        () if is(text, "BIT") => Ok(true),
        () if is(text, "BYTE") => Ok(false),
        () => Err(SYNTAX),
    }
}

fn is_set(value: &[u8], bit: u64) -> bool {
    let (byte, mask) = place(bit);
    value.get(byte).is_some_and(|byte| byte & mask != 0)
}

/// Returns the number of set bits between two positions, both included.
fn set_between(value: &[u8], first: u64, last: u64) -> u64 {
    let (from, to) = (size(first >> 3), size(last >> 3));
    let whole: u64 = value[from..=to]
        .iter()
        .map(|byte| u64::from(byte.count_ones()))
        .sum();
    let before = (first & !7..first)
        .filter(|bit| is_set(value, *bit))
        .count();
    let behind = (last + 1..(last | 7) + 1)
        .filter(|bit| is_set(value, *bit))
        .count();
    whole - u64::try_from(before + behind).unwrap_or(0)
}

pub fn bitcount(call: &mut Call<'_, '_>) -> Outcome {
    let [key, range @ ..] = call.arguments else {
        return Err(SYNTAX);
    };
    let Some(value) = call.string(key)?.map(|(_, value)| value) else {
        call.reply.integer(0);
        return Ok(());
    };
    let found = match range {
        [] => bits(0, -1, value.len(), false),
        [start, end, unit_text @ ..] if unit_text.len() <= 1 => {
            let (start, end) = (integer(start)?, integer(end)?);
            let reversed = start < 0 && end < 0 && start > end;
            if reversed {
                None
            } else {
                let in_bits = unit_text.first().map_or(Ok(false), |text| unit(text))?;
                bits(start, end, value.len(), in_bits)
            }
        }
        _ => return Err(SYNTAX),
    };
    let count = found.map_or(0, |(first, last)| set_between(&value, first, last));
    call.reply.count(count);
    Ok(())
}

pub fn bitpos(call: &mut Call<'_, '_>) -> Outcome {
    let [key, bit, range @ ..] = call.arguments else {
        return Err(SYNTAX);
    };
    let wanted = match integer(bit)? {
        0 => false,
        1 => true,
        _ => return Err(error("ERR The bit argument must be 1 or 0.")),
    };
    let Some(value) = call.string(key)?.map(|(_, value)| value) else {
        call.reply.integer(if wanted { -1 } else { 0 });
        return Ok(());
    };
    let (mut start, mut end, mut in_bits) = (0, None, false);
    match range {
        [] => {}
        [first, rest @ ..] if rest.len() <= 2 => {
            start = integer(first)?;
            in_bits = rest.get(1).map_or(Ok(false), |text| unit(text))?;
            end = rest.first().map(|text| integer(text)).transpose()?;
        }
        _ => return Err(SYNTAX),
    }
    let found = bits(start, end.unwrap_or(i64::MAX), value.len(), in_bits).map(|(first, last)| {
        let position = first_of(&value, wanted, first, last);
        match position {
            Some(position) => i64::try_from(position).unwrap_or(i64::MAX),
            // Beyond the end of the string all bits count as 0, unless the client gave an end.
            None if !wanted && end.is_none() => i64::try_from(last + 1).unwrap_or(i64::MAX),
            None => -1,
        }
    });
    call.reply.integer(found.unwrap_or(-1));
    Ok(())
}

/// Returns the position of the first bit with the wanted value between two positions, both included.
fn first_of(value: &[u8], wanted: bool, first: u64, last: u64) -> Option<u64> {
    let dull = if wanted { 0 } else { u8::MAX };
    let mut bit = first;
    while bit <= last {
        let (byte, _) = place(bit);
        if bit & 7 == 0 && value[byte] == dull {
            bit += 8;
        } else if is_set(value, bit) == wanted {
            return Some(bit);
        } else {
            bit += 1;
        }
    }
    None
}

pub fn bitop(call: &mut Call<'_, '_>) -> Outcome {
    let [operation, target, sources @ ..] = call.arguments else {
        return Err(SYNTAX);
    };
    let join: fn(u8, u8) -> u8 = match () {
        () if is(operation, "AND") => |a, b| a & b,
        () if is(operation, "OR") => |a, b| a | b,
        () if is(operation, "XOR") => |a, b| a ^ b,
        () if is(operation, "NOT") => |a, _| !a,
        () => return Err(SYNTAX),
    };
    let inverts = is(operation, "NOT");
    if inverts && sources.len() != 1 {
        return Err(error(
            "ERR BITOP NOT must be called with a single source key.",
        ));
    }
    let mut values = Vec::with_capacity(sources.len());
    for source in sources {
        values.push(call.string(source)?.unwrap_or_default().1);
    }
    let length = values.iter().map(Vec::len).max().unwrap_or(0);
    let mut values = values.into_iter();
    let mut result = values.next().unwrap_or_default();
    result.resize(length, 0);
    if inverts {
        result.iter_mut().for_each(|byte| *byte = join(*byte, 0));
    }
    for value in values {
        for (at, byte) in result.iter_mut().enumerate() {
            *byte = join(*byte, value.get(at).copied().unwrap_or(0));
        }
    }
    if result.is_empty() {
        call.remove(target)?;
    } else {
        call.put(target, 0, &result)?;
    }
    call.reply.count(u64::try_from(length).unwrap_or(u64::MAX));
    Ok(())
}
