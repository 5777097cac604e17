//! Lists. Elements have consecutive positions, so both ends and every index are found in one step.

use std::ops::{Bound, ControlFlow};

use super::arguments::{
    NO_SUCH_KEY, Options, Outcome, SYNTAX, at_least, error, integer, is, many, positive, slice,
    timeout, wrong_number,
};
use super::layout::{Head, Kind, Part, position};
use super::{Call, size};
use crate::rows::{Order, Row};

/// An end of a list.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Left,
    Right,
}

impl Side {
    fn parse(text: &[u8]) -> Outcome<Side> {
        match () {
            () if is(text, "LEFT") => Ok(Side::Left),
            () if is(text, "RIGHT") => Ok(Side::Right),
            () => Err(SYNTAX),
        }
    }
}

/// Returns the position of the element at this index.
fn at(list: &Head, index: u64) -> i64 {
    list.first.saturating_add_unsigned(index)
}

impl Call<'_, '_> {
    fn list(&self, key: &[u8]) -> Outcome<Option<Head>> {
        self.find(key, Kind::List)
    }

    fn put_element(&mut self, list: &Head, index: u64, element: &[u8]) -> Outcome {
        let name = position(at(list, index));
        Ok(self
            .keys
            .put_member(list.id, Part::Elements, &name, element)?)
    }

    fn element<T>(
        &self,
        list: &Head,
        index: u64,
        look: impl FnOnce(Row<'_>) -> T,
    ) -> Outcome<Option<T>> {
        let name = position(at(list, index));
        Ok(self.keys.member(list.id, Part::Elements, &name, look)?)
    }

    fn remove_element(&mut self, list: &Head, index: u64) -> Outcome {
        let name = position(at(list, index));
        Ok(self.keys.remove_member(list.id, Part::Elements, &name)?)
    }

    /// Copies the element at the index `from` to the index `to`.
    fn move_element(&mut self, list: &Head, from: u64, to: u64) -> Outcome {
        if let Some(element) = self.element(list, from, |row| row.value.to_vec())? {
            self.put_element(list, to, &element)?;
        }
        Ok(())
    }

    /// Adds an element to one end of a list. The caller writes the head of the list later.
    fn push_element(&mut self, list: &mut Head, side: Side, element: &[u8]) -> Outcome {
        if side == Side::Left {
            list.first -= 1;
            self.put_element(list, 0, element)?;
        } else {
            self.put_element(list, list.count, element)?;
        }
        list.count += 1;
        Ok(())
    }

    /// Adds an element to the right end of a list. The caller writes the head of the list later.
    pub(super) fn push_back(&mut self, list: &mut Head, element: &[u8]) -> Outcome {
        self.push_element(list, Side::Right, element)
    }

    /// Removes elements from one end of a list. The caller writes the head of the list later.
    fn drop_elements(&mut self, list: &mut Head, side: Side, count: u64) -> Outcome {
        for _ in 0..count {
            if side == Side::Left {
                self.remove_element(list, 0)?;
                list.first += 1;
            } else {
                self.remove_element(list, list.count - 1)?;
            }
            list.count -= 1;
        }
        Ok(())
    }

    /// Visits the elements between two indexes, both included, with their indexes.
    fn elements(
        &self,
        list: &Head,
        (start, end): (u64, u64),
        order: Order,
        visit: &mut dyn FnMut(u64, &[u8]) -> ControlFlow<()>,
    ) -> Outcome {
        let names = (position(at(list, start)), position(at(list, end)));
        let range = (Bound::Included(&names.0[..]), Bound::Included(&names.1[..]));
        let mut index = if order == Order::Ascending {
            start
        } else {
            end
        };
        self.keys
            .members(list.id, Part::Elements, range, order, &mut |_, row| {
                let flow = visit(index, row.value);
                index = match order {
                    Order::Ascending => index + 1,
                    Order::Descending => index.saturating_sub(1),
                };
                flow
            })?;
        Ok(())
    }

    /// Replies with an array of the elements between two indexes.
    fn reply_elements(&mut self, list: &Head, (start, end): (u64, u64), order: Order) -> Outcome {
        let mut reply = std::mem::replace(&mut self.reply, super::Reply::new(false));
        reply.array(size(end - start + 1));
        let done = self.elements(list, (start, end), order, &mut |_, element| {
            reply.bulk(element);
            ControlFlow::Continue(())
        });
        self.reply = reply;
        done
    }

    /// Replies with an array of `count` elements from one end, and removes them. `count` must not be 0.
    fn pop_elements(&mut self, key: &[u8], mut list: Head, side: Side, count: u64) -> Outcome {
        let count = count.min(list.count);
        match side {
            Side::Left => self.reply_elements(&list, (0, count - 1), Order::Ascending)?,
            Side::Right => {
                let range = (list.count - count, list.count - 1);
                self.reply_elements(&list, range, Order::Descending)?;
            }
        }
        self.drop_elements(&mut list, side, count)?;
        self.keep(key, &list)
    }
}

pub fn lpush(call: &mut Call<'_, '_>) -> Outcome {
    push(call, Side::Left, false)
}

pub fn rpush(call: &mut Call<'_, '_>) -> Outcome {
    push(call, Side::Right, false)
}

pub fn lpushx(call: &mut Call<'_, '_>) -> Outcome {
    push(call, Side::Left, true)
}

pub fn rpushx(call: &mut Call<'_, '_>) -> Outcome {
    push(call, Side::Right, true)
}

fn push(call: &mut Call<'_, '_>, side: Side, only_existing: bool) -> Outcome {
    let [key, elements @ ..] = call.arguments else {
        return Err(SYNTAX);
    };
    if only_existing && call.list(key)?.is_none() {
        call.reply.integer(0);
        return Ok(());
    }
    let mut list = call.find_or_create(key, Kind::List)?;
    for element in elements {
        call.push_element(&mut list, side, element)?;
    }
    call.keep(key, &list)?;
    call.reply.count(list.count);
    Ok(())
}

pub fn lpop(call: &mut Call<'_, '_>) -> Outcome {
    pop(call, Side::Left)
}

pub fn rpop(call: &mut Call<'_, '_>) -> Outcome {
    pop(call, Side::Right)
}

fn pop(call: &mut Call<'_, '_>, side: Side) -> Outcome {
    let [key, rest @ ..] = call.arguments else {
        return Err(SYNTAX);
    };
    let count = match rest {
        [] => None,
        [count] => Some(positive(count)?),
        _ => return Err(wrong_number(call.name)),
    };
    match (call.list(key)?, count) {
        (None, None) => call.reply.null(),
        (None, Some(_)) => call.reply.null_array(),
        (Some(_), Some(0)) => call.reply.array(0),
        (Some(list), Some(count)) => call.pop_elements(key, list, side, count)?,
        (Some(mut list), None) => {
            let element = take(call, &mut list, side)?;
            call.keep(key, &list)?;
            call.reply.bulk(&element);
        }
    }
    Ok(())
}

/// Takes the element at one end of a list, which must not be empty. The caller writes the head of the list later.
fn take(call: &mut Call<'_, '_>, list: &mut Head, side: Side) -> Outcome<Vec<u8>> {
    let index = if side == Side::Left {
        0
    } else {
        list.count - 1
    };
    let element = call.element(list, index, |row| row.value.to_vec())?;
    call.drop_elements(list, side, 1)?;
    Ok(element.unwrap_or_default())
}

pub fn lmpop(call: &mut Call<'_, '_>) -> Outcome {
    let (keys, side, count) = many(call.arguments, Side::parse)?;
    pop_many(call, keys, side, count)
}

pub fn blmpop(call: &mut Call<'_, '_>) -> Outcome {
    let [wait, rest @ ..] = call.arguments else {
        return Err(SYNTAX);
    };
    let (keys, side, count) = many(rest, Side::parse)?;
    timeout(wait, call.keys.now())?;
    pop_many(call, keys, side, count)
}

fn pop_many(call: &mut Call<'_, '_>, keys: &[&[u8]], side: Side, count: u64) -> Outcome {
    for key in keys {
        if let Some(list) = call.list(key)? {
            call.reply.array(2);
            call.reply.bulk(key);
            return call.pop_elements(key, list, side, count);
        }
    }
    call.reply.null_array();
    Ok(())
}

pub fn blpop(call: &mut Call<'_, '_>) -> Outcome {
    pop_first(call, Side::Left)
}

pub fn brpop(call: &mut Call<'_, '_>) -> Outcome {
    pop_first(call, Side::Right)
}

/// Takes an element of the first of the lists that exists. The store does not wait: the front sends the command of a
/// waiting client again.
fn pop_first(call: &mut Call<'_, '_>, side: Side) -> Outcome {
    let [keys @ .., wait] = call.arguments else {
        return Err(SYNTAX);
    };
    timeout(wait, call.keys.now())?;
    for key in keys {
        if let Some(mut list) = call.list(key)? {
            let element = take(call, &mut list, side)?;
            call.keep(key, &list)?;
            call.reply.array(2);
            call.reply.bulk(key);
            call.reply.bulk(&element);
            return Ok(());
        }
    }
    call.reply.null_array();
    Ok(())
}

pub fn llen(call: &mut Call<'_, '_>) -> Outcome {
    call.reply_length(Kind::List)
}

pub fn lrange(call: &mut Call<'_, '_>) -> Outcome {
    let [key, start, end] = call.arguments else {
        return Err(SYNTAX);
    };
    let (start, end) = (integer(start)?, integer(end)?);
    let list = call.list(key)?;
    match list.and_then(|list| Some((list, slice(start, end, list.count)?))) {
        Some((list, range)) => call.reply_elements(&list, range, Order::Ascending),
        None => {
            call.reply.array(0);
            Ok(())
        }
    }
}

/// Converts a client's index to an index from the start, if the list has such an element.
fn index_in(list: &Head, index: i64) -> Option<u64> {
    slice(index, index, list.count).map(|(start, _)| start)
}

pub fn lindex(call: &mut Call<'_, '_>) -> Outcome {
    let Some(list) = call.list(call.arguments[0])? else {
        call.reply.null();
        return Ok(());
    };
    let index = index_in(&list, integer(call.arguments[1])?);
    let element = match index {
        Some(index) => call.element(&list, index, |row| row.value.to_vec())?,
        None => None,
    };
    call.reply.bulk_or_null(element.as_deref());
    Ok(())
}

pub fn lset(call: &mut Call<'_, '_>) -> Outcome {
    let [key, index, element] = call.arguments else {
        return Err(SYNTAX);
    };
    let list = call.list(key)?.ok_or(NO_SUCH_KEY)?;
    let index = index_in(&list, integer(index)?).ok_or(error("ERR index out of range"))?;
    call.put_element(&list, index, element)?;
    call.keys.changed(call.database, key);
    call.reply.ok();
    Ok(())
}

pub fn ltrim(call: &mut Call<'_, '_>) -> Outcome {
    let [key, start, end] = call.arguments else {
        return Err(SYNTAX);
    };
    let (start, end) = (integer(start)?, integer(end)?);
    if let Some(mut list) = call.list(key)? {
        match slice(start, end, list.count) {
            Some((start, end)) => {
                let behind = list.count - 1 - end;
                call.drop_elements(&mut list, Side::Right, behind)?;
                call.drop_elements(&mut list, Side::Left, start)?;
                call.keep(key, &list)?;
            }
            None => call.remove(key)?,
        }
    }
    call.reply.ok();
    Ok(())
}

pub fn linsert(call: &mut Call<'_, '_>) -> Outcome {
    let [key, place, pivot, element] = call.arguments else {
        return Err(SYNTAX);
    };
    let behind = match () {
        () if is(place, "AFTER") => true,
        () if is(place, "BEFORE") => false,
        () => return Err(SYNTAX),
    };
    let Some(mut list) = call.list(key)? else {
        call.reply.integer(0);
        return Ok(());
    };
    let mut found = None;
    call.elements(
        &list,
        (0, list.count - 1),
        Order::Ascending,
        &mut |index, value| {
            if value == *pivot {
                found = Some(index + u64::from(behind));
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        },
    )?;
    let Some(index) = found else {
        call.reply.integer(-1);
        return Ok(());
    };
    // The elements on the shorter side of the new element are moved.
    if index <= list.count / 2 {
        list.first -= 1;
        for moved in 0..index {
            call.move_element(&list, moved + 1, moved)?;
        }
    } else {
        for moved in (index..list.count).rev() {
            call.move_element(&list, moved, moved + 1)?;
        }
    }
    call.put_element(&list, index, element)?;
    list.count += 1;
    call.keep(key, &list)?;
    call.reply.count(list.count);
    Ok(())
}

pub fn lrem(call: &mut Call<'_, '_>) -> Outcome {
    let [key, count, element] = call.arguments else {
        return Err(SYNTAX);
    };
    let count = integer(count)?;
    let Some(mut list) = call.list(key)? else {
        call.reply.integer(0);
        return Ok(());
    };
    let order = if count < 0 {
        Order::Descending
    } else {
        Order::Ascending
    };
    let wanted = if count == 0 {
        u64::MAX
    } else {
        count.unsigned_abs()
    };
    let mut found = Vec::new();
    let mut left = wanted;
    call.elements(&list, (0, list.count - 1), order, &mut |index, value| {
        if value == *element {
            found.push(index);
            left -= 1;
        }
        if left == 0 {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    })?;
    found.sort_unstable();
    if let Some(first) = found.first() {
        // The remaining elements after the first removed element move towards the start.
        let (mut gaps, mut to) = (found.iter().peekable(), *first);
        for from in *first..list.count {
            if gaps.next_if_eq(&&from).is_none() {
                call.move_element(&list, from, to)?;
                to += 1;
            }
        }
        let removed = list.count - to;
        call.drop_elements(&mut list, Side::Right, removed)?;
        call.keep(key, &list)?;
    }
    call.reply
        .count(u64::try_from(found.len()).unwrap_or(u64::MAX));
    Ok(())
}

pub fn lmove(call: &mut Call<'_, '_>) -> Outcome {
    let from = Side::parse(call.arguments[2])?;
    let to = Side::parse(call.arguments[3])?;
    transfer(call, from, to)
}

pub fn blmove(call: &mut Call<'_, '_>) -> Outcome {
    let from = Side::parse(call.arguments[2])?;
    let to = Side::parse(call.arguments[3])?;
    timeout(call.arguments[4], call.keys.now())?;
    transfer(call, from, to)
}

pub fn brpoplpush(call: &mut Call<'_, '_>) -> Outcome {
    timeout(call.arguments[2], call.keys.now())?;
    transfer(call, Side::Right, Side::Left)
}

pub fn rpoplpush(call: &mut Call<'_, '_>) -> Outcome {
    transfer(call, Side::Right, Side::Left)
}

fn transfer(call: &mut Call<'_, '_>, from: Side, to: Side) -> Outcome {
    let (source, target) = (call.arguments[0], call.arguments[1]);
    let Some(mut list) = call.list(source)? else {
        call.reply.null();
        return Ok(());
    };
    call.list(target)?;
    let element = take(call, &mut list, from)?;
    if source == target {
        call.push_element(&mut list, to, &element)?;
        call.keep(source, &list)?;
    } else {
        call.keep(source, &list)?;
        let mut list = call.find_or_create(target, Kind::List)?;
        call.push_element(&mut list, to, &element)?;
        call.keep(target, &list)?;
    }
    call.reply.bulk(&element);
    Ok(())
}

pub fn lpos(call: &mut Call<'_, '_>) -> Outcome {
    let [key, element, rest @ ..] = call.arguments else {
        return Err(SYNTAX);
    };
    let (mut rank, mut count, mut most) = (1, None, 0);
    let mut options = Options::new(rest);
    while let Some(option) = options.next() {
        if is(option, "RANK") {
            rank = integer(options.value()?)?;
            if rank == 0 {
                return Err(error(
                    "ERR RANK can't be zero: use 1 to start from the first match, 2 from the second ... \
                     or use negative to start from the end of the list",
                ));
            }
        } else if is(option, "COUNT") {
            count = Some(at_least(
                options.value()?,
                0,
                "ERR COUNT can't be negative",
            )?);
        } else if is(option, "MAXLEN") {
            most = at_least(options.value()?, 0, "ERR MAXLEN can't be negative")?;
        } else {
            return Err(SYNTAX);
        }
    }
    let wanted = match count {
        None => 1,
        Some(0) => u64::MAX,
        Some(count) => count.unsigned_abs(),
    };
    let found = match call.list(key)? {
        Some(list) => matches(call, &list, element, rank, wanted, most.unsigned_abs())?,
        None => Vec::new(),
    };
    match (count, found.first()) {
        (Some(_), _) => {
            call.reply.array(found.len());
            for index in found {
                call.reply.count(index);
            }
        }
        (None, Some(index)) => call.reply.count(*index),
        (None, None) => call.reply.null(),
    }
    Ok(())
}

/// Returns the indexes of up to `wanted` elements that equal `element`, from the match with this rank on. Compares at
/// most `most` elements (0: all).
fn matches(
    call: &Call<'_, '_>,
    list: &Head,
    element: &[u8],
    rank: i64,
    wanted: u64,
    most: u64,
) -> Outcome<Vec<u64>> {
    let order = if rank < 0 {
        Order::Descending
    } else {
        Order::Ascending
    };
    let (mut skipped, mut looked, mut found) = (rank.unsigned_abs() - 1, 0, Vec::new());
    call.elements(list, (0, list.count - 1), order, &mut |index, value| {
        if most != 0 && looked >= most {
            return ControlFlow::Break(());
        }
        looked += 1;
        if value == element {
            if skipped > 0 {
                skipped -= 1;
            } else {
                found.push(index);
            }
        }
        if u64::try_from(found.len()).is_ok_and(|count| count >= wanted) {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    })?;
    Ok(found)
}
