//! Expiry of keys: options of other commands, and the `EXPIRE` and `TTL` families.

use super::Call;
use super::arguments::{Options, Outcome, SYNTAX, Stop, error, integer, is};
use super::float::c_string;

/// A time to live or a time of expiry, as a client wrote it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct End<'a> {
    text: &'a [u8],
    unit: Unit,
    absolute: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Unit {
    Seconds,
    Milliseconds,
}

impl Unit {
    fn milliseconds(self) -> i64 {
        match self {
            Unit::Seconds => 1000,
            Unit::Milliseconds => 1,
        }
    }
}

fn invalid(name: &str) -> Stop {
    Stop::Error(
        format!("ERR invalid expire time in '{name}' command")
            .into_bytes()
            .into(),
    )
}

impl<'a> End<'a> {
    /// Makes an `End` from a time to live in seconds.
    pub fn seconds(text: &'a [u8]) -> End<'a> {
        End {
            text,
            unit: Unit::Seconds,
            absolute: false,
        }
    }

    /// Makes an `End` from a time to live in milliseconds.
    pub fn milliseconds(text: &'a [u8]) -> End<'a> {
        End {
            unit: Unit::Milliseconds,
            ..End::seconds(text)
        }
    }

    /// Reads EX, PX, EXAT or PXAT with its argument. If an option is given twice, its later value counts.
    pub fn option(
        option: &[u8],
        options: &mut Options<'a>,
        before: Option<&End<'_>>,
    ) -> Outcome<Option<End<'a>>> {
        let known = [
            ("EX", Unit::Seconds, false),
            ("PX", Unit::Milliseconds, false),
            ("EXAT", Unit::Seconds, true),
            ("PXAT", Unit::Milliseconds, true),
        ];
        let Some((_, unit, absolute)) = known.into_iter().find(|(word, ..)| is(option, word))
        else {
            return Ok(None);
        };
        if before.is_some_and(|before| (before.unit, before.absolute) != (unit, absolute)) {
            return Err(SYNTAX);
        }
        let text = options.value()?;
        Ok(Some(End {
            text,
            unit,
            absolute,
        }))
    }

    /// Returns the time of expiry, in ms since 1970. Returns an error if the time is not positive, or is too large.
    pub fn time(&self, call: &Call<'_, '_>) -> Outcome<u64> {
        let value = integer(self.text)?;
        let span = value
            .checked_mul(self.unit.milliseconds())
            .filter(|span| *span > 0);
        let start = if self.absolute { 0 } else { now(call) };
        let time = span.and_then(|span| span.checked_add(start));
        time.map(i64::unsigned_abs)
            .ok_or_else(|| invalid(call.name))
    }
}

fn without_line_ends(mut text: &[u8]) -> &[u8] {
    while let [rest @ .., b'\r' | b'\n'] = text {
        text = rest;
    }
    text
}

fn now(call: &Call<'_, '_>) -> i64 {
    i64::try_from(call.keys.now()).unwrap_or(i64::MAX)
}

/// Sets the time of expiry of an existing key. If this time has passed, removes the key.
pub fn change(call: &mut Call<'_, '_>, key: &[u8], old: u64, new: u64) -> Outcome {
    if new != 0 && new <= call.keys.now() {
        return call.remove(key);
    }
    if new != old {
        call.keys.put_expiry(call.database, key, new)?;
    }
    Ok(())
}

pub fn expire(call: &mut Call<'_, '_>) -> Outcome {
    set_end(call, Unit::Seconds, false)
}

pub fn pexpire(call: &mut Call<'_, '_>) -> Outcome {
    set_end(call, Unit::Milliseconds, false)
}

pub fn expireat(call: &mut Call<'_, '_>) -> Outcome {
    set_end(call, Unit::Seconds, true)
}

pub fn pexpireat(call: &mut Call<'_, '_>) -> Outcome {
    set_end(call, Unit::Milliseconds, true)
}

/// Conditions of the EXPIRE family.
#[derive(Default)]
struct Conditions {
    nx: bool,
    xx: bool,
    gt: bool,
    lt: bool,
}

impl Conditions {
    fn parse(options: &[&[u8]]) -> Outcome<Conditions> {
        let mut found = Conditions::default();
        for option in options {
            match () {
                () if is(option, "NX") => found.nx = true,
                () if is(option, "XX") => found.xx = true,
                () if is(option, "GT") => found.gt = true,
                () if is(option, "LT") => found.lt = true,
                () => {
                    // Redis removes line ends from the end of the text.
                    let shown = without_line_ends(c_string(option));
                    let text = [b"ERR Unsupported option ", shown].concat();
                    return Err(Stop::Error(text.into()));
                }
            }
        }
        if found.nx && (found.xx || found.gt || found.lt) {
            return Err(error(
                "ERR NX and XX, GT or LT options at the same time are not compatible",
            ));
        }
        if found.gt && found.lt {
            return Err(error(
                "ERR GT and LT options at the same time are not compatible",
            ));
        }
        Ok(found)
    }

    /// Returns whether the conditions allow this new time of expiry in place of the old time (0: none).
    fn allow(&self, old: u64, new: i64) -> bool {
        let old = i64::try_from(old).ok().filter(|old| *old != 0);
        !(self.nx && old.is_some()
            || self.xx && old.is_none()
            || self.gt && old.is_none_or(|old| new <= old)
            || self.lt && old.is_some_and(|old| new >= old))
    }
}

fn set_end(call: &mut Call<'_, '_>, unit: Unit, absolute: bool) -> Outcome {
    let [key, text, options @ ..] = call.arguments else {
        return Err(SYNTAX);
    };
    let conditions = Conditions::parse(options)?;
    let start = if absolute { 0 } else { now(call) };
    let time = integer(text)?
        .checked_mul(unit.milliseconds())
        .and_then(|span| span.checked_add(start))
        .ok_or_else(|| invalid(call.name))?;
    let head = call.head(key)?;
    let head = head.filter(|head| conditions.allow(head.expires, time));
    if let Some(head) = head {
        // A time before 1970 counts as past.
        change(call, key, head.expires, time.max(1).unsigned_abs())?;
    }
    call.reply.flag(head.is_some());
    Ok(())
}

pub fn persist(call: &mut Call<'_, '_>) -> Outcome {
    let key = call.arguments[0];
    let ends = call.head(key)?.filter(|head| head.expires != 0);
    if let Some(head) = ends {
        change(call, key, head.expires, 0)?;
    }
    call.reply.flag(ends.is_some());
    Ok(())
}

pub fn ttl(call: &mut Call<'_, '_>) -> Outcome {
    show(call, Unit::Seconds, false)
}

pub fn pttl(call: &mut Call<'_, '_>) -> Outcome {
    show(call, Unit::Milliseconds, false)
}

pub fn expiretime(call: &mut Call<'_, '_>) -> Outcome {
    show(call, Unit::Seconds, true)
}

pub fn pexpiretime(call: &mut Call<'_, '_>) -> Outcome {
    show(call, Unit::Milliseconds, true)
}

fn show(call: &mut Call<'_, '_>, unit: Unit, absolute: bool) -> Outcome {
    let Some(head) = call.head(call.arguments[0])? else {
        call.reply.integer(-2);
        return Ok(());
    };
    if head.expires == 0 {
        call.reply.integer(-1);
        return Ok(());
    }
    let start = if absolute { 0 } else { call.keys.now() };
    let time = head.expires.saturating_sub(start);
    call.reply.count(match unit {
        Unit::Seconds => time.saturating_add(500) / 1000,
        Unit::Milliseconds => time,
    });
    Ok(())
}
