//! Arguments of commands: numbers, words and options, with the errors of Redis.

use std::borrow::Cow;

use pmnet_resp::parse_integer;

use super::float;
use super::long_double::Long;
use crate::rows::Fault;

/// The reason why a command ends without its usual reply.
#[derive(Debug)]
pub enum Stop {
    /// The reply is this error; the command has changed nothing.
    Error(Cow<'static, [u8]>),
    /// The store failed.
    Fault(Fault),
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Stop {
        Stop::Fault(fault)
    }
}

/// Result of a command, or of a part of a command.
pub type Outcome<T = ()> = Result<T, Stop>;

/// Returns an error reply.
pub const fn error(text: &'static str) -> Stop {
    Stop::Error(Cow::Borrowed(text.as_bytes()))
}

pub const NOT_AN_INTEGER: Stop = error("ERR value is not an integer or out of range");
pub const NOT_A_FLOAT: Stop = error("ERR value is not a valid float");
pub const SYNTAX: Stop = error("ERR syntax error");
pub const WRONG_TYPE: Stop =
    error("WRONGTYPE Operation against a key holding the wrong kind of value");
pub const NO_SUCH_KEY: Stop = error("ERR no such key");
pub const TOO_LONG: Stop = error("ERR string exceeds maximum allowed size (proto-max-bulk-len)");
pub const OVERFLOW: Stop = error("ERR increment or decrement would overflow");
pub const NOT_FINITE: Stop = error("ERR increment would produce NaN or Infinity");
pub const NO_SUCH_DATABASE: Stop = error("ERR DB index is out of range");

/// Returns the error for a wrong number of arguments.
pub fn wrong_number(name: &str) -> Stop {
    Stop::Error(
        format!("ERR wrong number of arguments for '{name}' command")
            .into_bytes()
            .into(),
    )
}

/// Returns whether an argument is this word in any case. As in Redis, the argument ends at its first NUL.
pub fn is(argument: &[u8], word: &str) -> bool {
    float::c_string(argument).eq_ignore_ascii_case(word.as_bytes())
}

/// Parses an integer.
pub fn integer(text: &[u8]) -> Outcome<i64> {
    parse_integer(text).ok_or(NOT_AN_INTEGER)
}

/// Parses an integer that is at least `least`; `why` is the error for anything else.
pub fn at_least(text: &[u8], least: i64, why: &'static str) -> Outcome<i64> {
    parse_integer(text)
        .filter(|number| *number >= least)
        .ok_or(error(why))
}

/// Parses a count, which may be 0.
pub fn positive(text: &[u8]) -> Outcome<u64> {
    at_least(text, 0, "ERR value is out of range, must be positive").map(i64::unsigned_abs)
}

/// Parses a count that may be negative. Its absolute value must fit into an `i64`.
pub fn signed_count(text: &[u8]) -> Outcome<i64> {
    let count = integer(text)?;
    if count == i64::MIN {
        return Err(error(
            "ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807",
        ));
    }
    Ok(count)
}

/// Parses the number of a database.
pub fn database(text: &[u8]) -> Outcome<u32> {
    let number = integer(text)?;
    if i32::try_from(number).is_err() {
        return Err(error(
            "ERR value is out of range, value must between -2147483648 and 2147483647",
        ));
    }
    u32::try_from(number)
        .ok()
        .filter(|number| *number < super::layout::DATABASES)
        .ok_or(NO_SUCH_DATABASE)
}

/// Parses a score.
pub fn double(text: &[u8]) -> Outcome<f64> {
    float::double(text).ok_or(NOT_A_FLOAT)
}

/// Checks the time for which a client wants to wait, in seconds. The store itself does not wait: the client's front
/// asks again. `now` is in ms since 1970.
pub fn timeout(text: &[u8], now: u64) -> Outcome {
    /// 2^63 milliseconds, which exceeds the largest signed integer by one.
    const MILLIS_MAX: f64 = 9_223_372_036_854_775_808.0;
    // Redis reads the number as a long double.
    let seconds = Long::parse(text).and_then(|_| float::limit(text));
    let seconds = seconds.ok_or(error("ERR timeout is not a float or out of range"))?;
    let millis = (seconds * 1000.0).ceil();
    // Redis 7.0 does not check larger numbers: it converts them to negative times.
    if !(0.0..MILLIS_MAX).contains(&millis) {
        return Err(error("ERR timeout is negative"));
    }
    let now = f64::from(u32::try_from(now / 1000).unwrap_or(u32::MAX)) * 1000.0;
    if millis > MILLIS_MAX - now {
        return Err(error("ERR timeout is out of range"));
    }
    Ok(())
}

/// Options after the fixed arguments of a command, read from left to right.
pub struct Options<'a> {
    rest: &'a [&'a [u8]],
}

impl<'a> Options<'a> {
    /// Returns options that read these arguments.
    pub fn new(rest: &'a [&'a [u8]]) -> Options<'a> {
        Options { rest }
    }

    /// Takes the next argument.
    pub fn next(&mut self) -> Option<&'a [u8]> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(first)
    }

    /// Returns the arguments that have not been taken yet.
    pub fn left(&self) -> &'a [&'a [u8]] {
        self.rest
    }

    /// Takes the argument of the option that was taken last. If there is no further argument, returns a syntax error.
    pub fn value(&mut self) -> Outcome<&'a [u8]> {
        self.next().ok_or(SYNTAX)
    }
}

/// Returns the first and the last index of a slice of a sequence with `length` elements. `start` and `end` count from 0
/// or, if negative, from the end of the sequence, as in Redis. `None`: the slice is empty.
pub fn slice(start: i64, end: i64, length: u64) -> Option<(u64, u64)> {
    let length = i64::try_from(length).unwrap_or(i64::MAX);
    let from_front = |index: i64| if index < 0 { length + index } else { index };
    let (start, end) = (from_front(start).max(0), from_front(end).min(length - 1));
    (start <= end).then_some((start.unsigned_abs(), end.unsigned_abs()))
}

/// Parses the arguments of `LMPOP` and `ZMPOP`: the keys, the end of the collection from which to pop, and the count.
pub fn many<'a, T>(
    arguments: &'a [&'a [u8]],
    side: impl FnOnce(&[u8]) -> Outcome<T>,
) -> Outcome<(&'a [&'a [u8]], T, u64)> {
    let [number, rest @ ..] = arguments else {
        return Err(SYNTAX);
    };
    let number = at_least(number, 1, "ERR numkeys should be greater than 0")?;
    let number = usize::try_from(number).unwrap_or(usize::MAX);
    if number >= rest.len() {
        return Err(SYNTAX);
    }
    let (keys, rest) = rest.split_at(number);
    let side = side(rest[0])?;
    let mut count = None;
    let mut options = Options::new(&rest[1..]);
    while let Some(option) = options.next() {
        if count.is_some() || !is(option, "COUNT") {
            return Err(SYNTAX);
        }
        count = Some(at_least(
            options.value()?,
            1,
            "ERR count should be greater than 0",
        )?);
    }
    Ok((keys, side, count.unwrap_or(1).unsigned_abs()))
}
