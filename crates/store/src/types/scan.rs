//! `SCAN` and similar commands: iteration in pages.
//!
//! Rows are in the order of their keys, which may have any length. A cursor is a number, which cannot contain such a
//! key. So this module remembers the positions of the newest cursors. An unknown (or forgotten) cursor starts the
//! iteration from the beginning, so that no element is missed. An element may then be returned twice, which can happen
//! with Redis, too.

use std::collections::VecDeque;
use std::ops::{Bound, ControlFlow};

use super::Call;
use super::arguments::{Options, Outcome, SYNTAX, error, integer, is};
use super::glob;
use super::layout::{Kind, Part};
use super::members::shown_score;
use super::waiting::{Arrivals, Watched};
use crate::rows::Order;

/// Maximum number of positions that are remembered.
const CURSORS_MAX: usize = 4096;
/// Maximum number of bytes of names in the remembered positions.
const CURSOR_BYTES_MAX: usize = 16 << 20;
/// Number of elements on a page if the client gives no COUNT.
const COUNT: i64 = 10;

/// The position of an iteration: the collection or database, and the name of the next element.
#[derive(Debug)]
struct Position {
    cursor: u64,
    place: Place,
    next: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Database(u32),
    Collection(u64),
}

/// Positions of unfinished iterations, of clients and of the store itself.
#[derive(Debug, Default)]
pub struct Cursors {
    /// Start time of the process in ms since 1970, which INFO shows.
    pub started: u64,
    /// A number that differs in each process, which INFO shows.
    pub(super) id: u64,
    /// Row key at which the search for expired keys continues; empty: at the first key.
    pub reclaimed: Vec<u8>,
    /// Keys that clients watch.
    pub watched: Watched,
    /// Lists and sorted sets that were created.
    pub arrivals: Arrivals,
    positions: VecDeque<Position>,
    bytes: usize,
    last: u64,
}

impl Cursors {
    /// Makes an empty table of iterations. The numbers of cursors begin after `first`, which should differ in each
    /// process.
    pub fn new(first: u64) -> Cursors {
        Cursors {
            // With this start, the numbers can be incremented for at least half of their range.
            last: first >> 1,
            id: first,
            ..Cursors::default()
        }
    }

    fn keep(&mut self, place: Place, next: Vec<u8>) -> u64 {
        self.last += 1;
        self.bytes += next.len();
        self.positions.push_back(Position {
            cursor: self.last,
            place,
            next,
        });
        while self.positions.len() > CURSORS_MAX
            || (self.bytes > CURSOR_BYTES_MAX && self.positions.len() > 1)
        {
            let oldest = self.positions.pop_front();
            self.bytes -= oldest.map_or(0, |oldest| oldest.next.len());
        }
        self.last
    }

    /// Returns the next name of the iteration with this cursor. If the cursor is unknown, returns the beginning.
    fn find(&self, cursor: u64, place: Place) -> Vec<u8> {
        let known = self
            .positions
            .iter()
            .rev()
            .find(|position| (position.cursor, position.place) == (cursor, place));
        known.map_or_else(Vec::new, |position| position.next.clone())
    }
}

/// Reads a cursor like `strtoul`.
fn cursor(text: &[u8]) -> Outcome<u64> {
    let invalid = || error("ERR invalid cursor");
    let text = super::float::c_string(text);
    let (negative, digits) = match text {
        [] => return Ok(0),
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(invalid());
    }
    let mut value = 0u64;
    for digit in digits {
        value = value
            .checked_mul(10)
            .and_then(|value| value.checked_add(u64::from(digit - b'0')))
            .ok_or_else(invalid)?;
    }
    Ok(if negative {
        value.wrapping_neg()
    } else {
        value
    })
}

/// The arguments of an iteration.
struct Question<'a> {
    count: u64,
    pattern: Option<&'a [u8]>,
    kind: Option<&'a [u8]>,
}

impl<'a> Question<'a> {
    fn parse(rest: &'a [&'a [u8]], of_database: bool) -> Outcome<Question<'a>> {
        let mut question = Question {
            count: COUNT.unsigned_abs(),
            pattern: None,
            kind: None,
        };
        let mut options = Options::new(rest);
        while let Some(option) = options.next() {
            if is(option, "COUNT") {
                let count = integer(options.value()?)?;
                question.count = u64::try_from(count)
                    .ok()
                    .filter(|count| *count > 0)
                    .ok_or(SYNTAX)?;
            } else if is(option, "MATCH") {
                question.pattern = Some(options.value()?).filter(|pattern| *pattern != b"*");
            } else if of_database && is(option, "TYPE") {
                question.kind = Some(options.value()?);
            } else {
                return Err(SYNTAX);
            }
        }
        Ok(question)
    }

    fn wants(&self, name: &[u8]) -> bool {
        self.pattern
            .is_none_or(|pattern| glob::matches(pattern, name))
    }
}

/// A page that is being filled: the names, and the values that are shown with them.
struct Page {
    left: u64,
    found: Vec<Vec<u8>>,
    next: Option<Vec<u8>>,
}

impl Page {
    fn new(question: &Question<'_>) -> Page {
        Page {
            left: question.count,
            found: Vec::new(),
            next: None,
        }
    }

    /// Counts an element. Returns `false` if the page is full: the next page then begins with this element.
    fn takes(&mut self, name: &[u8]) -> bool {
        if self.left == 0 {
            self.next = Some(name.to_vec());
            return false;
        }
        self.left -= 1;
        true
    }

    fn reply(self, call: &mut Call<'_, '_>, place: Place) {
        let cursor = match self.next {
            Some(next) => call.keys.cursors.keep(place, next),
            None => 0,
        };
        call.reply.array(2);
        call.reply.bulk(cursor.to_string().as_bytes());
        call.reply.array(self.found.len());
        for text in &self.found {
            call.reply.bulk(text);
        }
    }
}

pub fn scan(call: &mut Call<'_, '_>) -> Outcome {
    let [cursor_text, rest @ ..] = call.arguments else {
        return Err(SYNTAX);
    };
    let cursor = cursor(cursor_text)?;
    let question = Question::parse(rest, true)?;
    let place = Place::Database(call.database);
    let from = call.keys.cursors.find(cursor, place);
    let mut page = Page::new(&question);
    call.keys.heads(call.database, &from, &mut |key, head| {
        if !page.takes(key) {
            return ControlFlow::Break(());
        }
        let kind_fits = question
            .kind
            .is_none_or(|wanted| is(wanted, head.kind.name()));
        if kind_fits && question.wants(key) {
            page.found.push(key.to_vec());
        }
        ControlFlow::Continue(())
    })?;
    page.reply(call, place);
    Ok(())
}

pub fn hscan(call: &mut Call<'_, '_>) -> Outcome {
    scan_members(call, Kind::Hash)
}

pub fn sscan(call: &mut Call<'_, '_>) -> Outcome {
    scan_members(call, Kind::Set)
}

pub fn zscan(call: &mut Call<'_, '_>) -> Outcome {
    scan_members(call, Kind::SortedSet)
}

fn scan_members(call: &mut Call<'_, '_>, kind: Kind) -> Outcome {
    let [key, cursor_text, rest @ ..] = call.arguments else {
        return Err(SYNTAX);
    };
    let cursor = cursor(cursor_text)?;
    let Some(head) = call.find(key, kind)? else {
        call.reply.array(2);
        call.reply.bulk(b"0");
        call.reply.array(0);
        return Ok(());
    };
    let question = Question::parse(rest, false)?;
    let place = Place::Collection(head.id);
    let from = call.keys.cursors.find(cursor, place);
    let mut page = Page::new(&question);
    let range = (Bound::Included(&from[..]), Bound::Unbounded);
    call.keys.members(
        head.id,
        Part::Members,
        range,
        Order::Ascending,
        &mut |name, row| {
            if !page.takes(name) {
                return ControlFlow::Break(());
            }
            if question.wants(name) {
                page.found.push(name.to_vec());
                match kind {
                    Kind::Hash => page.found.push(row.value.to_vec()),
                    Kind::SortedSet => page.found.push(shown_score(&head, row.value)),
                    Kind::String | Kind::List | Kind::Set => {}
                }
            }
            ControlFlow::Continue(())
        },
    )?;
    page.reply(call, place);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_are_read_as_by_strtoul() {
        for (text, value) in [
            ("0", 0),
            ("", 0),
            ("+7", 7),
            ("-1", u64::MAX),
            ("18446744073709551615", u64::MAX),
            ("007", 7),
        ] {
            assert_eq!(cursor(text.as_bytes()).ok(), Some(value), "{text}");
        }
        for text in [" 1", "1 ", "x", "-", "18446744073709551616"] {
            assert!(cursor(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn old_positions_are_forgotten_and_start_over() {
        let mut cursors = Cursors::new(9);
        let place = Place::Collection(1);
        let first = cursors.keep(place, b"first".to_vec());
        assert_eq!(cursors.find(first, place), b"first");
        assert_eq!(cursors.find(first, Place::Database(1)), b"");
        for _ in 0..CURSORS_MAX {
            cursors.keep(place, b"next".to_vec());
        }
        assert_eq!(cursors.find(first, place), b"");
        assert_eq!(cursors.find(cursors.last, place), b"next");
        cursors.keep(place, vec![0; CURSOR_BYTES_MAX + 1]);
        assert_eq!(
            (cursors.positions.len(), cursors.bytes),
            (1, CURSOR_BYTES_MAX + 1)
        );
    }
}
