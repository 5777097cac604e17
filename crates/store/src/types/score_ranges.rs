//! Ranges of sorted sets: by rank, by score, or by member.

use std::ops::{Bound, ControlFlow};

use super::Call;
use super::arguments::{Options, Outcome, SYNTAX, error, integer, is, slice};
use super::float;
use super::layout::{Head, score};
use super::members::ALL;
use super::sorted_sets::{Scored, VisitScored, is_large, ranked};
use crate::rows::Order;

/// The ends of a range: ranks, scores or members.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Rank,
    Score,
    Member,
}

/// One end of a range of scores.
#[derive(Clone, Copy)]
struct ScoreEnd {
    score: f64,
    open: bool,
}

impl ScoreEnd {
    fn parse(text: &[u8]) -> Option<ScoreEnd> {
        let (text, open) = match text.strip_prefix(b"(") {
            Some(rest) => (rest, true),
            None => (text, false),
        };
        let score = float::limit(text)?;
        Some(ScoreEnd { score, open })
    }
}

/// One end of a range of members.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MemberEnd<'a> {
    Least,
    Greatest,
    Closed(&'a [u8]),
    Open(&'a [u8]),
}

impl<'a> MemberEnd<'a> {
    fn parse(text: &'a [u8]) -> Option<MemberEnd<'a>> {
        match float::c_string(text) {
            b"-" => return Some(MemberEnd::Least),
            b"+" => return Some(MemberEnd::Greatest),
            _ => {}
        }
        match text.split_first()? {
            (b'[', member) => Some(MemberEnd::Closed(member)),
            (b'(', member) => Some(MemberEnd::Open(member)),
            _ => None,
        }
    }

    /// Returns whether a range with this lower end may contain the member.
    fn is_below(self, member: &[u8]) -> bool {
        match self {
            MemberEnd::Least => true,
            MemberEnd::Greatest => false,
            MemberEnd::Closed(end) => member >= end,
            MemberEnd::Open(end) => member > end,
        }
    }

    /// Returns whether a range with this upper end may contain the member.
    fn is_above(self, member: &[u8]) -> bool {
        match self {
            MemberEnd::Least => false,
            MemberEnd::Greatest => true,
            MemberEnd::Closed(end) => member <= end,
            MemberEnd::Open(end) => member < end,
        }
    }
}

/// A range as the client has given it.
#[derive(Clone, Copy)]
enum Range<'a> {
    Ranks(i64, i64),
    Scores(ScoreEnd, ScoreEnd),
    Members(MemberEnd<'a>, MemberEnd<'a>),
}

impl<'a> Range<'a> {
    fn parse(by: By, min: &'a [u8], max: &'a [u8]) -> Outcome<Range<'a>> {
        match by {
            By::Rank => Ok(Range::Ranks(integer(min)?, integer(max)?)),
            By::Score => match (ScoreEnd::parse(min), ScoreEnd::parse(max)) {
                (Some(min), Some(max)) => Ok(Range::Scores(min, max)),
                _ => Err(error("ERR min or max is not a float")),
            },
            By::Member => match (MemberEnd::parse(min), MemberEnd::parse(max)) {
                (Some(min), Some(max)) => Ok(Range::Members(min, max)),
                _ => Err(error("ERR min or max not valid string range item")),
            },
        }
    }

    /// Visits the members in a range of scores or members, in the given order, without the first `skip` members. Must
    /// not be called for a range of ranks.
    fn visit(
        &self,
        call: &Call<'_, '_>,
        set: &Head,
        order: Order,
        mut skip: u64,
        visit: &mut VisitScored<'_>,
    ) -> Outcome {
        match self.place(call, set)? {
            Place::Nowhere => Ok(()),
            Place::Between(low, high) => {
                let range = (
                    low.as_ref().map(Vec::as_slice),
                    high.as_ref().map(Vec::as_slice),
                );
                call.in_order_from(set, range, order, skip, visit)
            }
            Place::Scattered(min, max) => {
                visit_scattered(call, set, (min, max), order, &mut |member, score| {
                    if skip > 0 {
                        skip -= 1;
                        return ControlFlow::Continue(());
                    }
                    visit(member, score)
                })
            }
        }
    }

    /// Returns the number of members in a range of scores or members.
    fn count(&self, call: &Call<'_, '_>, set: &Head) -> Outcome<u64> {
        if let Place::Between(low, high) = self.place(call, set)? {
            let range = (
                low.as_ref().map(Vec::as_slice),
                high.as_ref().map(Vec::as_slice),
            );
            return Ok(call.count_in_order(set, range));
        }
        let mut count = 0;
        self.visit(call, set, Order::Ascending, 0, &mut |_, _| {
            count += 1;
            ControlFlow::Continue(())
        })?;
        Ok(count)
    }

    /// Returns where the members in a range of scores or members are.
    fn place(&self, call: &Call<'_, '_>, set: &Head) -> Outcome<Place<'a>> {
        match self {
            Range::Ranks(..) => Ok(Place::Nowhere),
            Range::Scores(min, max) => {
                let after = |end: &ScoreEnd| next_score(score(end.score));
                let low = if min.open {
                    after(min)
                } else {
                    Some(score(min.score))
                };
                let high = if max.open {
                    Some(score(max.score))
                } else {
                    after(max)
                };
                let Some(low) = low else {
                    return Ok(Place::Nowhere);
                };
                let high = high.map_or(Bound::Unbounded, |high| Bound::Excluded(high.to_vec()));
                Ok(Place::Between(Bound::Included(low.to_vec()), high))
            }
            Range::Members(min, max) => place_of_members(call, set, (*min, *max)),
        }
    }
}

/// Returns the bytes of the next score: the smallest bytes that are greater than all names that begin with `bytes`.
fn next_score(bytes: [u8; 8]) -> Option<[u8; 8]> {
    u64::from_be_bytes(bytes)
        .checked_add(1)
        .map(u64::to_be_bytes)
}

/// The place of the members of a range.
enum Place<'a> {
    /// The range has no members.
    Nowhere,
    /// The members are neighbours in the order of [`ranked`], between these two names.
    Between(Bound<Vec<u8>>, Bound<Vec<u8>>),
    /// The members are anywhere in the set, between these ends.
    Scattered(MemberEnd<'a>, MemberEnd<'a>),
}

/// Returns where the members between two ends are. A range of members requires that all scores of the set are equal. If
/// all scores are equal, the members are neighbours.
fn place_of_members<'a>(
    call: &Call<'_, '_>,
    set: &Head,
    (min, max): (MemberEnd<'a>, MemberEnd<'a>),
) -> Outcome<Place<'a>> {
    let (Some(first), Some(last)) = (
        end_of(call, set, Order::Ascending)?,
        end_of(call, set, Order::Descending)?,
    ) else {
        return Ok(Place::Nowhere);
    };
    let reversed = match (min, max) {
        (MemberEnd::Greatest, _) | (_, MemberEnd::Least) => true,
        (
            MemberEnd::Closed(low) | MemberEnd::Open(low),
            MemberEnd::Closed(high) | MemberEnd::Open(high),
        ) => {
            low > high
                || (low == high && (min, max) != (MemberEnd::Closed(low), MemberEnd::Closed(low)))
        }
        _ => false,
    };
    if reversed || !min.is_below(&last.0) || !max.is_above(&first.0) {
        return Ok(Place::Nowhere);
    }
    let bound = |end: MemberEnd<'_>| match end {
        MemberEnd::Least | MemberEnd::Greatest => Bound::Unbounded,
        MemberEnd::Closed(member) => Bound::Included(ranked(first.1, member)),
        MemberEnd::Open(member) => Bound::Excluded(ranked(first.1, member)),
    };
    if first.1 == last.1 {
        return Ok(Place::Between(bound(min), bound(max)));
    }
    Ok(Place::Scattered(min, max))
}

/// Visits the members of a range of members, although the scores of the set differ. Like Redis in a small set, the
/// function begins at the first member that is not below the range, and stops at the first member above it.
fn visit_scattered(
    call: &Call<'_, '_>,
    set: &Head,
    (min, max): (MemberEnd<'_>, MemberEnd<'_>),
    order: Order,
    visit: &mut VisitScored<'_>,
) -> Outcome {
    let mut begun = false;
    call.in_order(set, ALL, order, &mut |member, score| {
        let (entered, left) = match order {
            Order::Ascending => (min.is_below(member), !max.is_above(member)),
            Order::Descending => (max.is_above(member), !min.is_below(member)),
        };
        begun |= entered;
        match (begun, left) {
            (false, _) => ControlFlow::Continue(()),
            (true, true) => ControlFlow::Break(()),
            (true, false) => visit(member, score),
        }
    })
}

/// Returns the first member of the set in the given order.
fn end_of(call: &Call<'_, '_>, set: &Head, order: Order) -> Outcome<Option<Scored>> {
    Ok(call.by_rank(set, (0, 0), order)?.pop())
}

/// Number of members to skip, and number of members to take after the skipped ones. With a negative offset no member is
/// taken; with a negative count all members are taken.
#[derive(Clone, Copy)]
struct Limit {
    offset: i64,
    count: i64,
}

/// Returns the members of a range.
fn select(
    call: &Call<'_, '_>,
    set: &Head,
    range: &Range<'_>,
    order: Order,
    limit: Limit,
) -> Outcome<Vec<Scored>> {
    if let Range::Ranks(start, end) = range {
        return match slice(*start, *end, set.count) {
            Some(ranks) => call.by_rank(set, ranks, order),
            None => Ok(Vec::new()),
        };
    }
    let mut found = Vec::new();
    let (skip, mut left) = match (u64::try_from(limit.offset), u64::try_from(limit.count)) {
        (Err(_), _) | (_, Ok(0)) => return Ok(found),
        (Ok(skip), count) => (skip, count.unwrap_or(u64::MAX)),
    };
    range.visit(call, set, order, skip, &mut |member, score| {
        found.push((member.to_vec(), score));
        left -= 1;
        if left == 0 {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    })?;
    Ok(found)
}

/// The arguments of `ZRANGE` and similar commands.
struct Question<'a> {
    range: Range<'a>,
    order: Order,
    limit: Limit,
    with_scores: bool,
}

impl<'a> Question<'a> {
    /// Reads the ends of a range and its options. `by` and `order` are those that the command's name gives.
    fn parse(
        arguments: &'a [&'a [u8]],
        by: Option<By>,
        order: Option<Order>,
        stores: bool,
    ) -> Outcome<Question<'a>> {
        let [min, max, rest @ ..] = arguments else {
            return Err(SYNTAX);
        };
        let (mut chosen, mut reverse, mut with_scores) = (by, order, false);
        let mut limit = Limit {
            offset: 0,
            count: -1,
        };
        let mut options = Options::new(rest);
        while let Some(option) = options.next() {
            if !stores && is(option, "WITHSCORES") {
                with_scores = true;
            } else if is(option, "LIMIT") && options.left().len() >= 2 {
                limit.offset = integer(options.value()?)?;
                limit.count = integer(options.value()?)?;
            } else if reverse.is_none() && is(option, "REV") {
                reverse = Some(Order::Descending);
            } else if chosen.is_none() && is(option, "BYLEX") {
                chosen = Some(By::Member);
            } else if chosen.is_none() && is(option, "BYSCORE") {
                chosen = Some(By::Score);
            } else {
                return Err(SYNTAX);
            }
        }
        let (by, order) = (
            chosen.unwrap_or(By::Rank),
            reverse.unwrap_or(Order::Ascending),
        );
        if limit.count != -1 && by == By::Rank {
            return Err(error(
                "ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX",
            ));
        }
        if with_scores && by == By::Member {
            return Err(error(
                "ERR syntax error, WITHSCORES not supported in combination with BYLEX",
            ));
        }
        let swapped = by != By::Rank && order == Order::Descending;
        let (min, max) = if swapped { (max, min) } else { (min, max) };
        Ok(Question {
            range: Range::parse(by, min, max)?,
            order,
            limit,
            with_scores,
        })
    }

    fn answer(&self, call: &Call<'_, '_>, key: &[u8]) -> Outcome<Vec<Scored>> {
        match call.sorted_set(key)? {
            Some(set) => select(call, &set, &self.range, self.order, self.limit),
            None => Ok(Vec::new()),
        }
    }
}

fn show(call: &mut Call<'_, '_>, by: Option<By>, order: Option<Order>) -> Outcome {
    let [key, rest @ ..] = call.arguments else {
        return Err(SYNTAX);
    };
    let question = Question::parse(rest, by, order, false)?;
    let found = question.answer(call, key)?;
    call.reply_scored(&found, question.with_scores);
    Ok(())
}

pub fn zrange(call: &mut Call<'_, '_>) -> Outcome {
    show(call, None, None)
}

pub fn zrevrange(call: &mut Call<'_, '_>) -> Outcome {
    show(call, Some(By::Rank), Some(Order::Descending))
}

pub fn zrangebyscore(call: &mut Call<'_, '_>) -> Outcome {
    show(call, Some(By::Score), Some(Order::Ascending))
}

pub fn zrevrangebyscore(call: &mut Call<'_, '_>) -> Outcome {
    show(call, Some(By::Score), Some(Order::Descending))
}

pub fn zrangebylex(call: &mut Call<'_, '_>) -> Outcome {
    show(call, Some(By::Member), Some(Order::Ascending))
}

pub fn zrevrangebylex(call: &mut Call<'_, '_>) -> Outcome {
    show(call, Some(By::Member), Some(Order::Descending))
}

pub fn zrangestore(call: &mut Call<'_, '_>) -> Outcome {
    let [target, key, rest @ ..] = call.arguments else {
        return Err(SYNTAX);
    };
    let question = Question::parse(rest, None, None, true)?;
    let found = question.answer(call, key)?;
    // For a range of ranks, Redis knows the number of members before it stores them.
    let large = matches!(question.range, Range::Ranks(..)) && is_large(found.len(), 0);
    call.store_scored(target, &found, large)
}

fn count(call: &mut Call<'_, '_>, by: By) -> Outcome {
    let [key, min, max] = call.arguments else {
        return Err(SYNTAX);
    };
    let range = Range::parse(by, min, max)?;
    let count = match call.sorted_set(key)? {
        Some(set) => range.count(call, &set)?,
        None => 0,
    };
    call.reply.count(count);
    Ok(())
}

pub fn zcount(call: &mut Call<'_, '_>) -> Outcome {
    count(call, By::Score)
}

pub fn zlexcount(call: &mut Call<'_, '_>) -> Outcome {
    count(call, By::Member)
}

fn remove(call: &mut Call<'_, '_>, by: By) -> Outcome {
    let [key, min, max] = call.arguments else {
        return Err(SYNTAX);
    };
    let range = Range::parse(by, min, max)?;
    let Some(mut set) = call.sorted_set(key)? else {
        call.reply.integer(0);
        return Ok(());
    };
    let all = Limit {
        offset: 0,
        count: -1,
    };
    let found = select(call, &set, &range, Order::Ascending, all)?;
    if !found.is_empty() {
        call.drop_scored(&mut set, &found)?;
        call.keep(key, &set)?;
    }
    call.reply
        .integer(i64::try_from(found.len()).unwrap_or(i64::MAX));
    Ok(())
}

pub fn zremrangebyrank(call: &mut Call<'_, '_>) -> Outcome {
    remove(call, By::Rank)
}

pub fn zremrangebyscore(call: &mut Call<'_, '_>) -> Outcome {
    remove(call, By::Score)
}

pub fn zremrangebylex(call: &mut Call<'_, '_>) -> Outcome {
    remove(call, By::Member)
}
