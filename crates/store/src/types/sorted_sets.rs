//! Sorted sets: members with scores. Each member is stored under its name and under its score.

use std::ops::{Bound, ControlFlow};

use super::Call;
use super::arguments::{Options, Outcome, SYNTAX, double, error, is, many, positive, timeout};
use super::keyspace::Names;
use super::layout::{
    Head, Kind, Part, SMALL_COUNT_MAX, SMALL_MEMBER_BYTES_MAX, exact_score, score, score_of,
};
use super::members::ALL;
use crate::rows::{Fault, Order};

/// A member with its score.
pub type Scored = (Vec<u8>, f64);
/// A function that is called with each visited member and its score.
pub type VisitScored<'v> = dyn FnMut(&[u8], f64) -> ControlFlow<()> + 'v;

/// Number of bytes of the score, which precedes the member in a ranked name.
const SCORE_BYTES: usize = 8;

/// Returns the name of a member in the order of its set: the score, then the member.
pub fn ranked(value: f64, member: &[u8]) -> Vec<u8> {
    [&score(value)[..], member].concat()
}

impl Call<'_, '_> {
    pub(super) fn sorted_set(&self, key: &[u8]) -> Outcome<Option<Head>> {
        self.find(key, Kind::SortedSet)
    }

    /// Returns the score of a member if the member exists.
    pub(super) fn score(&self, set: &Head, member: &[u8]) -> Outcome<Option<f64>> {
        let found = self.keys.member(set.id, Part::Members, member, |row| {
            row.value.try_into().map(score_of)
        })?;
        let damaged = |_| Fault::Corrupted("a score of another length".into());
        Ok(found.transpose().map_err(damaged)?)
    }

    /// Writes a member of a set. The caller writes the head of the set later. `old`: the member's score before.
    pub(super) fn put_score(
        &mut self,
        set: &mut Head,
        member: &[u8],
        old: Option<f64>,
        new: f64,
    ) -> Outcome {
        match old {
            Some(old) => {
                self.keys
                    .remove_member(set.id, Part::Scores, &ranked(old, member))?;
            }
            None => set.added(member),
        }
        // In a small set, Redis keeps whole numbers as integers, so the sign of zero gets lost.
        let new = if set.large { new } else { new + 0.0 };
        let stored = exact_score(new);
        self.keys
            .put_member(set.id, Part::Members, member, &stored)?;
        let name = ranked(new, member);
        Ok(self.keys.put_member(set.id, Part::Scores, &name, &stored)?)
    }

    /// Removes members of a set. The caller writes the head of the set later.
    pub(super) fn drop_scored(&mut self, set: &mut Head, members: &[Scored]) -> Outcome {
        for (member, score) in members {
            self.keys.remove_member(set.id, Part::Members, member)?;
            self.keys
                .remove_member(set.id, Part::Scores, &ranked(*score, member))?;
            set.count -= 1;
        }
        Ok(())
    }

    /// Visits members in the order of their scores, between two names that [`ranked`] makes.
    pub(super) fn in_order(
        &self,
        set: &Head,
        range: Names<'_>,
        order: Order,
        visit: &mut VisitScored<'_>,
    ) -> Outcome {
        self.in_order_from(set, range, order, 0, visit)
    }

    /// Visits the members between two names in the given order, without the first `skip` members.
    pub(super) fn in_order_from(
        &self,
        set: &Head,
        range: Names<'_>,
        order: Order,
        skip: u64,
        visit: &mut VisitScored<'_>,
    ) -> Outcome {
        let mut damaged = false;
        self.keys.members_from(
            set.id,
            Part::Scores,
            range,
            order,
            skip,
            &mut |name, row| match (name.get(SCORE_BYTES..), row.value.try_into()) {
                (Some(member), Ok(score)) => visit(member, score_of(score)),
                _ => {
                    damaged = true;
                    ControlFlow::Break(())
                }
            },
        )?;
        if damaged {
            return Err(Fault::Corrupted("a ranked member without a score".into()).into());
        }
        Ok(())
    }

    /// Returns the number of members between two names.
    pub(super) fn count_in_order(&self, set: &Head, range: Names<'_>) -> u64 {
        self.keys.count_members(set.id, Part::Scores, range)
    }

    /// Returns the members between two ranks, both included, counted in the given order.
    pub(super) fn by_rank(
        &self,
        set: &Head,
        (start, end): (u64, u64),
        order: Order,
    ) -> Outcome<Vec<Scored>> {
        let (mut rank, mut found) = (start, Vec::new());
        self.in_order_from(set, ALL, order, start, &mut |member, score| {
            found.push((member.to_vec(), score));
            rank += 1;
            if rank > end {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })?;
        Ok(found)
    }

    /// Replies with members, and with their scores if the client wants them.
    pub(super) fn reply_scored(&mut self, members: &[Scored], with_scores: bool) {
        if with_scores {
            self.reply.pairs(members.len());
        } else {
            self.reply.array(members.len());
        }
        for (member, score) in members {
            if with_scores {
                self.reply.pair();
            }
            self.reply.bulk(member);
            if with_scores {
                self.reply.double(*score);
            }
        }
    }

    /// Stores a sorted set of these members at a key, in place of the key's earlier value, and replies with their
    /// number. `large`: whether Redis makes the set a skip list at once.
    pub(super) fn store_scored(&mut self, key: &[u8], members: &[Scored], large: bool) -> Outcome {
        let mut set = self.keys.create(self.database, key, Kind::SortedSet)?;
        set.large = large;
        for (member, score) in members {
            self.put_score(&mut set, member, None, *score)?;
        }
        self.keep(key, &set)?;
        self.reply.count(set.count);
        Ok(())
    }
}

/// Returns whether Redis keeps a set as a skip list that has `count` members, the longest of which has `longest` bytes.
pub fn is_large(count: usize, longest: usize) -> bool {
    u64::try_from(count).is_ok_and(|count| count > SMALL_COUNT_MAX)
        || longest > SMALL_MEMBER_BYTES_MAX
}

/// Options of `ZADD`.
#[derive(Default)]
struct Add {
    nx: bool,
    xx: bool,
    gt: bool,
    lt: bool,
    changed: bool,
    increment: bool,
}

impl Add {
    fn parse(options: &mut Options<'_>) -> Add {
        let mut found = Add::default();
        while let Some(option) = options.left().first() {
            match () {
                () if is(option, "NX") => found.nx = true,
                () if is(option, "XX") => found.xx = true,
                () if is(option, "CH") => found.changed = true,
                () if is(option, "INCR") => found.increment = true,
                () if is(option, "GT") => found.gt = true,
                () if is(option, "LT") => found.lt = true,
                () => break,
            }
            options.next();
        }
        found
    }

    fn check(&self, pairs: usize) -> Outcome {
        if self.nx && self.xx {
            return Err(error(
                "ERR XX and NX options at the same time are not compatible",
            ));
        }
        if self.nx && (self.gt || self.lt) || self.gt && self.lt {
            return Err(error(
                "ERR GT, LT, and/or NX options at the same time are not compatible",
            ));
        }
        if self.increment && pairs > 1 {
            return Err(error(
                "ERR INCR option supports a single increment-element pair",
            ));
        }
        Ok(())
    }

    /// Returns the new score of a member; `None`: the score does not change.
    fn target(&self, old: Option<f64>, given: f64) -> Outcome<Option<f64>> {
        let Some(old) = old else {
            return Ok((!self.xx).then_some(given));
        };
        if self.nx {
            return Ok(None);
        }
        let new = if self.increment { old + given } else { given };
        if new.is_nan() {
            return Err(error("ERR resulting score is not a number (NaN)"));
        }
        let refused = (self.lt && new >= old) || (self.gt && new <= old);
        Ok((!refused).then_some(new))
    }
}

pub fn zadd(call: &mut Call<'_, '_>) -> Outcome {
    let mut options = Options::new(&call.arguments[1..]);
    let add = Add::parse(&mut options);
    add_scored(call, &add, options.left())
}

pub fn zincrby(call: &mut Call<'_, '_>) -> Outcome {
    // ZINCRBY accepts the options of ZADD, too, because Redis runs both commands with the same code.
    let mut options = Options::new(&call.arguments[1..]);
    let mut add = Add::parse(&mut options);
    add.increment = true;
    add_scored(call, &add, options.left())
}

fn add_scored(call: &mut Call<'_, '_>, add: &Add, pairs: &[&[u8]]) -> Outcome {
    if pairs.is_empty() || !pairs.len().is_multiple_of(2) {
        return Err(SYNTAX);
    }
    add.check(pairs.len() / 2)?;
    let scores: Vec<f64> = pairs
        .chunks_exact(2)
        .map(|pair| double(pair[0]))
        .collect::<Outcome<_>>()?;
    let key = call.arguments[0];
    let found = call.sorted_set(key)?;
    let mut set = match found {
        Some(set) => Some(set),
        None if add.xx => None,
        None => Some(call.find_or_create(key, Kind::SortedSet)?),
    };
    let (mut added, mut updated, mut last) = (0, 0, None);
    if let Some(set) = &mut set {
        for (pair, given) in pairs.chunks_exact(2).zip(scores) {
            let old = call.score(set, pair[1])?;
            last = add.target(old, given)?;
            if let Some(new) = last
                && old != last
            {
                call.put_score(set, pair[1], old, new)?;
                added += i64::from(old.is_none());
                updated += i64::from(old.is_some());
            }
        }
        if added + updated > 0 {
            call.keep(key, set)?;
        }
    }
    match (add.increment, last) {
        (true, Some(score)) => call.reply.double(score),
        (true, None) => call.reply.null(),
        (false, _) if add.changed => call.reply.integer(added + updated),
        (false, _) => call.reply.integer(added),
    }
    Ok(())
}

pub fn zrem(call: &mut Call<'_, '_>) -> Outcome {
    let [key, members @ ..] = call.arguments else {
        return Err(SYNTAX);
    };
    let Some(mut set) = call.sorted_set(key)? else {
        call.reply.integer(0);
        return Ok(());
    };
    let before = set.count;
    for member in members {
        if let Some(score) = call.score(&set, member)? {
            call.drop_scored(&mut set, &[(member.to_vec(), score)])?;
        }
    }
    if set.count != before {
        call.keep(key, &set)?;
    }
    call.reply.count(before - set.count);
    Ok(())
}

pub fn zcard(call: &mut Call<'_, '_>) -> Outcome {
    call.reply_length(Kind::SortedSet)
}

pub fn zscore(call: &mut Call<'_, '_>) -> Outcome {
    let set = call.sorted_set(call.arguments[0])?;
    reply_score(call, set.as_ref(), call.arguments[1])
}

pub fn zmscore(call: &mut Call<'_, '_>) -> Outcome {
    let [key, members @ ..] = call.arguments else {
        return Err(SYNTAX);
    };
    let set = call.sorted_set(key)?;
    call.reply.array(members.len());
    for member in members {
        reply_score(call, set.as_ref(), member)?;
    }
    Ok(())
}

fn reply_score(call: &mut Call<'_, '_>, set: Option<&Head>, member: &[u8]) -> Outcome {
    let score = match set {
        Some(set) => call.score(set, member)?,
        None => None,
    };
    match score {
        Some(score) => call.reply.double(score),
        None => call.reply.null(),
    }
    Ok(())
}

pub fn zrank(call: &mut Call<'_, '_>) -> Outcome {
    rank(call, Order::Ascending)
}

pub fn zrevrank(call: &mut Call<'_, '_>) -> Outcome {
    rank(call, Order::Descending)
}

fn rank(call: &mut Call<'_, '_>, order: Order) -> Outcome {
    let set = call.sorted_set(call.arguments[0])?;
    let member = call.arguments[1];
    let found = match &set {
        Some(set) => call.score(set, member)?.map(|score| (*set, score)),
        None => None,
    };
    let Some((set, score)) = found else {
        call.reply.null();
        return Ok(());
    };
    let name = ranked(score, member);
    let before = match order {
        Order::Ascending => (Bound::Unbounded, Bound::Excluded(&name[..])),
        Order::Descending => (Bound::Excluded(&name[..]), Bound::Unbounded),
    };
    let rank = call.count_in_order(&set, before);
    call.reply.count(rank);
    Ok(())
}

/// Takes `count` members from one end of a set, and writes the remaining set.
fn pop(
    call: &mut Call<'_, '_>,
    key: &[u8],
    mut set: Head,
    order: Order,
    count: u64,
) -> Outcome<Vec<Scored>> {
    if count == 0 {
        return Ok(Vec::new());
    }
    let popped = call.by_rank(&set, (0, count - 1), order)?;
    call.drop_scored(&mut set, &popped)?;
    call.keep(key, &set)?;
    Ok(popped)
}

pub fn zpopmin(call: &mut Call<'_, '_>) -> Outcome {
    pop_one_key(call, Order::Ascending)
}

pub fn zpopmax(call: &mut Call<'_, '_>) -> Outcome {
    pop_one_key(call, Order::Descending)
}

fn pop_one_key(call: &mut Call<'_, '_>, order: Order) -> Outcome {
    let [key, rest @ ..] = call.arguments else {
        return Err(SYNTAX);
    };
    let count = match rest {
        [] => None,
        [count] => Some(positive(count)?),
        _ => return Err(SYNTAX),
    };
    let popped = match call.sorted_set(key)? {
        Some(set) => pop(call, key, set, order, count.unwrap_or(1))?,
        None => Vec::new(),
    };
    if count.is_some() {
        call.reply_scored(&popped, true);
    } else {
        // The reply is one flat array, in RESP3 as well.
        call.reply.array(2 * popped.len());
        for (member, score) in &popped {
            call.reply.bulk(member);
            call.reply.double(*score);
        }
    }
    Ok(())
}

/// Returns the end of a sorted set that the argument names.
fn end(text: &[u8]) -> Outcome<Order> {
    match () {
        () if is(text, "MIN") => Ok(Order::Ascending),
        () if is(text, "MAX") => Ok(Order::Descending),
        () => Err(SYNTAX),
    }
}

pub fn zmpop(call: &mut Call<'_, '_>) -> Outcome {
    let (keys, order, count) = many(call.arguments, end)?;
    pop_many(call, keys, order, count)
}

pub fn bzmpop(call: &mut Call<'_, '_>) -> Outcome {
    let [wait, rest @ ..] = call.arguments else {
        return Err(SYNTAX);
    };
    let (keys, order, count) = many(rest, end)?;
    timeout(wait, call.keys.now())?;
    pop_many(call, keys, order, count)
}

pub fn bzpopmin(call: &mut Call<'_, '_>) -> Outcome {
    pop_first(call, Order::Ascending)
}

pub fn bzpopmax(call: &mut Call<'_, '_>) -> Outcome {
    pop_first(call, Order::Descending)
}

/// Takes a member of the first of the sorted sets that exists. The store does not wait: the front sends the command of
/// a waiting client again.
fn pop_first(call: &mut Call<'_, '_>, order: Order) -> Outcome {
    let [keys @ .., wait] = call.arguments else {
        return Err(SYNTAX);
    };
    timeout(wait, call.keys.now())?;
    for key in keys {
        if let Some(set) = call.sorted_set(key)? {
            let popped = pop(call, key, set, order, 1)?;
            call.reply.array(1 + 2 * popped.len());
            call.reply.bulk(key);
            for (member, score) in &popped {
                call.reply.bulk(member);
                call.reply.double(*score);
            }
            return Ok(());
        }
    }
    call.reply.null_array();
    Ok(())
}

fn pop_many(call: &mut Call<'_, '_>, keys: &[&[u8]], order: Order, count: u64) -> Outcome {
    for key in keys {
        if let Some(set) = call.sorted_set(key)? {
            let popped = pop(call, key, set, order, count)?;
            call.reply.array(2);
            call.reply.bulk(key);
            call.reply.array(popped.len());
            for (member, score) in &popped {
                call.reply.array(2);
                call.reply.bulk(member);
                call.reply.double(*score);
            }
            return Ok(());
        }
    }
    call.reply.null_array();
    Ok(())
}

pub fn zrandmember(call: &mut Call<'_, '_>) -> Outcome {
    call.reply_random(Kind::SortedSet, Some("WITHSCORES"))
}
