//! `SORT` and `SORT_RO`: the elements of a list, set or sorted set, sorted by themselves or by the values of other
//! keys.

use std::cmp::Ordering;
use std::ops::ControlFlow;

use super::arguments::{Options, Outcome, SYNTAX, WRONG_TYPE, error, integer, is};
use super::float;
use super::layout::{Head, Kind, Part};
use super::members::ALL;
use super::{Call, size};
use crate::rows::Order;

/// The options of a `SORT`.
struct Question<'a> {
    by: Option<&'a [u8]>,
    gets: Vec<&'a [u8]>,
    store: Option<&'a [u8]>,
    descending: bool,
    alpha: bool,
    start: i64,
    count: i64,
}

impl<'a> Question<'a> {
    fn parse(rest: &'a [&'a [u8]], may_store: bool) -> Outcome<Question<'a>> {
        let mut question = Question {
            by: None,
            gets: Vec::new(),
            store: None,
            descending: false,
            alpha: false,
            start: 0,
            count: -1,
        };
        let mut options = Options::new(rest);
        while let Some(option) = options.next() {
            let left = options.left().len();
            match () {
                () if is(option, "ASC") => question.descending = false,
                () if is(option, "DESC") => question.descending = true,
                () if is(option, "ALPHA") => question.alpha = true,
                () if is(option, "LIMIT") && left >= 2 => {
                    question.start = integer(options.value()?)?;
                    question.count = integer(options.value()?)?;
                }
                () if may_store && is(option, "STORE") && left >= 1 => {
                    question.store = Some(options.value()?);
                }
                () if is(option, "BY") && left >= 1 => question.by = Some(options.value()?),
                () if is(option, "GET") && left >= 1 => question.gets.push(options.value()?),
                () => return Err(SYNTAX),
            }
        }
        Ok(question)
    }

    /// Returns whether the elements stay in their present order.
    fn keeps_order(&self) -> bool {
        self.by
            .is_some_and(|pattern| !float::c_string(pattern).contains(&b'*'))
    }

    /// Returns the range of elements that LIMIT selects.
    fn part(&self, elements: usize) -> std::ops::Range<usize> {
        let length = i64::try_from(elements).unwrap_or(i64::MAX);
        let start = self.start.clamp(0, length);
        let count = self.count.clamp(-1, length);
        let end = match count {
            -1 => length,
            count => (start + count).min(length),
        };
        size(start.unsigned_abs())..size(end.max(start).unsigned_abs())
    }
}

/// An element, and the value by which it is sorted.
struct Element {
    value: Vec<u8>,
    weight: Weight,
}

enum Weight {
    None,
    Number(f64),
    Text(Option<Vec<u8>>),
}

pub fn sort(call: &mut Call<'_, '_>) -> Outcome {
    answer(call, true)
}

pub fn sort_ro(call: &mut Call<'_, '_>) -> Outcome {
    answer(call, false)
}

fn answer(call: &mut Call<'_, '_>, may_store: bool) -> Outcome {
    let (key, rest) = call.arguments.split_first().ok_or(SYNTAX)?;
    let mut question = Question::parse(rest, may_store)?;
    let head = call.head(key)?;
    let elements = match &head {
        Some(head) => elements(call, head, question.descending && question.keeps_order())?,
        None => Vec::new(),
    };
    let is_set = head.is_some_and(|head| head.kind == Kind::Set);
    if is_set && question.keeps_order() && question.store.is_some() {
        // A set has no order that could be stored, so Redis sorts its elements by their bytes.
        (question.by, question.alpha) = (None, true);
    }
    let mut sorted = weighed(call, elements, &question)?;
    if !question.keeps_order() {
        sorted.sort_by(|a, b| {
            let order = compare(a, b);
            if question.descending {
                order.reverse()
            } else {
                order
            }
        });
    }
    let part = question.part(sorted.len());
    let mut found: Vec<Option<Vec<u8>>> = Vec::new();
    for element in &sorted[part] {
        if question.gets.is_empty() {
            found.push(Some(element.value.clone()));
        }
        for pattern in &question.gets {
            found.push(look_up(call, pattern, &element.value)?);
        }
    }
    match question.store {
        Some(target) => store(call, target, found),
        None => {
            call.reply.array(found.len());
            for value in &found {
                call.reply.bulk_or_null(value.as_deref());
            }
            Ok(())
        }
    }
}

fn elements(call: &Call<'_, '_>, head: &Head, descending: bool) -> Outcome<Vec<Vec<u8>>> {
    let part = match head.kind {
        Kind::List => Part::Elements,
        Kind::Set => Part::Members,
        Kind::SortedSet => Part::Scores,
        Kind::String | Kind::Hash => return Err(WRONG_TYPE),
    };
    let order = match descending {
        true => Order::Descending,
        false => Order::Ascending,
    };
    let mut found = Vec::new();
    call.keys
        .members(head.id, part, ALL, order, &mut |name, row| {
            found.push(match head.kind {
                Kind::List => row.value.to_vec(),
                // In the row's name, the member follows the score.
                Kind::SortedSet => name.get(8..).unwrap_or_default().to_vec(),
                _ => name.to_vec(),
            });
            ControlFlow::Continue(())
        })?;
    Ok(found)
}

/// Returns the elements with the values by which they are sorted.
fn weighed(
    call: &Call<'_, '_>,
    elements: Vec<Vec<u8>>,
    question: &Question<'_>,
) -> Outcome<Vec<Element>> {
    let mut weighed = Vec::with_capacity(elements.len());
    for value in elements {
        let weight = if question.keeps_order() {
            Weight::None
        } else {
            let by = match question.by {
                Some(pattern) => look_up(call, pattern, &value)?,
                None => Some(value.clone()),
            };
            if question.alpha {
                Weight::Text(by)
            } else {
                Weight::Number(by.map_or(Some(0.0), |text| number(&text)).ok_or(error(
                    "ERR One or more scores can't be converted into double",
                ))?)
            }
        };
        weighed.push(Element { value, weight });
    }
    Ok(weighed)
}

/// Parses a number like `strtod`; an empty text is 0.
fn number(text: &[u8]) -> Option<f64> {
    let text = float::c_string(text);
    let blanks = text
        .iter()
        .take_while(|byte| matches!(byte, b' ' | b'\t'..=b'\r'));
    let text = match blanks.count() {
        all if all == text.len() && all > 0 => return None,
        some => &text[some..],
    };
    match text {
        [] => Some(0.0),
        text => float::double(text),
    }
}

fn compare(a: &Element, b: &Element) -> Ordering {
    match (&a.weight, &b.weight) {
        (Weight::Number(x), Weight::Number(y)) => {
            let order = x.partial_cmp(y).unwrap_or(Ordering::Equal);
            order.then_with(|| a.value.cmp(&b.value))
        }
        (Weight::Text(x), Weight::Text(y)) => x.cmp(y),
        _ => Ordering::Equal,
    }
}

/// Returns the value that a pattern names for an element: a string, or a field of a hash.
fn look_up(call: &Call<'_, '_>, pattern: &[u8], element: &[u8]) -> Outcome<Option<Vec<u8>>> {
    if pattern == b"#" {
        return Ok(Some(element.to_vec()));
    }
    let Some(star) = pattern.iter().position(|byte| *byte == b'*') else {
        return Ok(None);
    };
    let (front, back) = (&pattern[..star], &pattern[star + 1..]);
    let arrow = back.windows(2).position(|pair| pair == b"->");
    let field = arrow
        .map(|at| &back[at + 2..])
        .filter(|field| !field.is_empty());
    let back = match (arrow, field) {
        (Some(at), Some(_)) => &back[..at],
        _ => back,
    };
    let key = [front, element, back].concat();
    let Some(field) = field else {
        let found = call
            .keys
            .string(call.database, &key, |_, value| value.to_vec())?;
        return Ok(found);
    };
    match call.head(&key)? {
        Some(head) if head.kind == Kind::Hash => {
            Ok(call
                .keys
                .member(head.id, Part::Members, field, |row| row.value.to_vec())?)
        }
        _ => Ok(None),
    }
}

/// Stores a list of these elements at a key, in place of the key's earlier value, and replies with their number.
fn store(call: &mut Call<'_, '_>, target: &[u8], found: Vec<Option<Vec<u8>>>) -> Outcome {
    let mut list = call.keys.create(call.database, target, Kind::List)?;
    for element in found {
        call.push_back(&mut list, &element.unwrap_or_default())?;
    }
    call.keep(target, &list)?;
    call.reply.count(list.count);
    Ok(())
}
