//! Sets, their unions, intersections and differences.

use std::collections::BTreeSet;

use super::Call;
use super::arguments::{Options, Outcome, SYNTAX, at_least, error, is, positive};
use super::layout::{Head, Kind, Part};

impl Call<'_, '_> {
    /// Adds a member to a set. The caller writes the head of the set later. Returns whether the member is new.
    fn add_member(&mut self, set: &mut Head, member: &[u8]) -> Outcome<bool> {
        let new = !self.keys.has(set.id, Part::Members, member)?;
        if new {
            self.keys.put_member(set.id, Part::Members, member, b"")?;
            set.count += 1;
        }
        Ok(new)
    }

    fn names(&self, set: &Head) -> Outcome<Vec<Vec<u8>>> {
        Ok(self.all(set)?.into_iter().map(|(name, _)| name).collect())
    }

    fn reply_set<'m>(&mut self, members: impl ExactSizeIterator<Item = &'m Vec<u8>>) {
        self.reply.set(members.len());
        for member in members {
            self.reply.bulk(member);
        }
    }
}

pub fn sadd(call: &mut Call<'_, '_>) -> Outcome {
    let [key, members @ ..] = call.arguments else {
        return Err(SYNTAX);
    };
    let mut set = call.find_or_create(key, Kind::Set)?;
    let mut added = 0;
    for member in members {
        added += i64::from(call.add_member(&mut set, member)?);
    }
    if added > 0 {
        call.keep(key, &set)?;
    }
    call.reply.integer(added);
    Ok(())
}

pub fn srem(call: &mut Call<'_, '_>) -> Outcome {
    call.remove_members(Kind::Set)
}

pub fn scard(call: &mut Call<'_, '_>) -> Outcome {
    call.reply_length(Kind::Set)
}

pub fn sismember(call: &mut Call<'_, '_>) -> Outcome {
    call.reply_exists(Kind::Set)
}

pub fn smismember(call: &mut Call<'_, '_>) -> Outcome {
    let [key, members @ ..] = call.arguments else {
        return Err(SYNTAX);
    };
    let set = call.find(key, Kind::Set)?;
    call.reply.array(members.len());
    for member in members {
        let is = match &set {
            Some(set) => call.keys.has(set.id, Part::Members, member)?,
            None => false,
        };
        call.reply.flag(is);
    }
    Ok(())
}

pub fn smove(call: &mut Call<'_, '_>) -> Outcome {
    let [from, to, member] = call.arguments else {
        return Err(SYNTAX);
    };
    if call.head(from)?.is_none() {
        call.reply.flag(false);
        return Ok(());
    }
    let source = call.find(from, Kind::Set)?;
    call.find(to, Kind::Set)?;
    let has = match &source {
        Some(set) => call.keys.has(set.id, Part::Members, member)?,
        None => false,
    };
    if has && from != to {
        if let Some(mut source) = source {
            call.keys.remove_member(source.id, Part::Members, member)?;
            source.count -= 1;
            call.keep(from, &source)?;
        }
        let mut target = call.find_or_create(to, Kind::Set)?;
        call.add_member(&mut target, member)?;
        call.keep(to, &target)?;
    }
    call.reply.flag(has);
    Ok(())
}

pub fn smembers(call: &mut Call<'_, '_>) -> Outcome {
    let members = match call.find(call.arguments[0], Kind::Set)? {
        Some(set) => call.names(&set)?,
        None => Vec::new(),
    };
    call.reply_set(members.iter());
    Ok(())
}

pub fn spop(call: &mut Call<'_, '_>) -> Outcome {
    let [key, rest @ ..] = call.arguments else {
        return Err(SYNTAX);
    };
    let count = match rest {
        [] => None,
        [count] => Some(positive(count)?),
        _ => return Err(SYNTAX),
    };
    let drawn = match call.find(key, Kind::Set)? {
        Some(mut set) => {
            let drawn = call.draw(&set, count.unwrap_or(1))?;
            for (member, _) in &drawn {
                call.keys.remove_member(set.id, Part::Members, member)?;
                set.count -= 1;
            }
            if !drawn.is_empty() {
                call.keep(key, &set)?;
            }
            drawn
        }
        None => Vec::new(),
    };
    let members: Vec<Vec<u8>> = drawn.into_iter().map(|(member, _)| member).collect();
    match count {
        Some(_) => call.reply_set(members.iter()),
        None => call.reply.bulk_or_null(members.first().map(Vec::as_slice)),
    }
    Ok(())
}

pub fn srandmember(call: &mut Call<'_, '_>) -> Outcome {
    call.reply_random(Kind::Set, None)
}

/// The operation that combines sets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    Union,
    Intersection,
    Difference,
}

/// Returns the head of the set at each of these keys; `None` for a key that does not exist.
fn sources(call: &Call<'_, '_>, keys: &[&[u8]]) -> Outcome<Vec<Option<Head>>> {
    keys.iter().map(|key| call.find(key, Kind::Set)).collect()
}

/// Returns the members of the combined sets; for an intersection, at most `limit` members.
fn combine(
    call: &Call<'_, '_>,
    keys: &[&[u8]],
    operation: Operation,
    limit: usize,
) -> Outcome<BTreeSet<Vec<u8>>> {
    let mut sets = sources(call, keys)?;
    let mut result = BTreeSet::new();
    if operation == Operation::Union {
        for set in sets.iter().flatten() {
            result.extend(call.names(set)?);
        }
        return Ok(result);
    }
    if operation == Operation::Intersection {
        if sets.contains(&None) {
            return Ok(result);
        }
        sets.sort_by_key(|set| set.map_or(0, |set| set.count));
    }
    let (Some(Some(first)), others) = (sets.first(), &sets[1..]) else {
        return Ok(result);
    };
    let kept_if_found = operation == Operation::Intersection;
    for member in call.names(first)? {
        let mut kept = true;
        for other in others.iter().flatten() {
            if call.keys.has(other.id, Part::Members, &member)? != kept_if_found {
                kept = false;
                break;
            }
        }
        if kept {
            result.insert(member);
        }
        if result.len() >= limit {
            break;
        }
    }
    Ok(result)
}

fn show(call: &mut Call<'_, '_>, operation: Operation) -> Outcome {
    let members = combine(call, call.arguments, operation, usize::MAX)?;
    call.reply_set(members.iter());
    Ok(())
}

fn store(call: &mut Call<'_, '_>, operation: Operation) -> Outcome {
    let [target, keys @ ..] = call.arguments else {
        return Err(SYNTAX);
    };
    let members = combine(call, keys, operation, usize::MAX)?;
    let mut set = call.keys.create(call.database, target, Kind::Set)?;
    for member in &members {
        call.keys.put_member(set.id, Part::Members, member, b"")?;
        set.count += 1;
    }
    call.keep(target, &set)?;
    call.reply.count(set.count);
    Ok(())
}

pub fn sunion(call: &mut Call<'_, '_>) -> Outcome {
    show(call, Operation::Union)
}

pub fn sinter(call: &mut Call<'_, '_>) -> Outcome {
    show(call, Operation::Intersection)
}

pub fn sdiff(call: &mut Call<'_, '_>) -> Outcome {
    show(call, Operation::Difference)
}

pub fn sunionstore(call: &mut Call<'_, '_>) -> Outcome {
    store(call, Operation::Union)
}

pub fn sinterstore(call: &mut Call<'_, '_>) -> Outcome {
    store(call, Operation::Intersection)
}

pub fn sdiffstore(call: &mut Call<'_, '_>) -> Outcome {
    store(call, Operation::Difference)
}

pub fn sintercard(call: &mut Call<'_, '_>) -> Outcome {
    let [number, rest @ ..] = call.arguments else {
        return Err(SYNTAX);
    };
    let number = at_least(number, 1, "ERR numkeys should be greater than 0")?;
    let number = usize::try_from(number).unwrap_or(usize::MAX);
    if number > rest.len() {
        return Err(error(
            "ERR Number of keys can't be greater than number of args",
        ));
    }
    let (keys, rest) = rest.split_at(number);
    let mut limit = 0;
    let mut options = Options::new(rest);
    while let Some(option) = options.next() {
        if !is(option, "LIMIT") {
            return Err(SYNTAX);
        }
        limit = at_least(options.value()?, 0, "ERR LIMIT can't be negative")?;
    }
    let limit = match usize::try_from(limit) {
        Ok(0) | Err(_) => usize::MAX,
        Ok(limit) => limit,
    };
    let found = combine(call, keys, Operation::Intersection, limit)?.len();
    call.reply.count(u64::try_from(found).unwrap_or(u64::MAX));
    Ok(())
}
