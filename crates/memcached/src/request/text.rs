//! The text protocol.

use pmnet_wire::item::{c_integer, c_unsigned};

use super::line::{ERROR, Words, bytes, say, say_unless};
use super::{
    BAD_FORMAT, Count, Form, KEY_BYTES_MAX, Line, Request, Stats, Store, Verb, item_bytes,
};

const BAD_EXPTIME: &str = "CLIENT_ERROR invalid exptime argument";
const BAD_DELTA: &str = "CLIENT_ERROR invalid numeric delta argument";
const BAD_DELETE: &str = "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]";

/// Parses a number of 32 bits. As in C, the high bits of a longer number are cut off.
pub(super) fn int32(word: &[u8]) -> Option<i32> {
    #[expect(clippy::cast_possible_truncation, reason = "as memcached does it")]
    c_integer(word).map(|number| number as i32)
}

pub(super) fn uint32(word: &[u8]) -> Option<u32> {
    #[expect(clippy::cast_possible_truncation, reason = "as memcached does it")]
    c_unsigned(word).map(|number| number as u32)
}

/// Parses the length of data. Returns `None` if the length is not allowed.
pub(super) fn length(word: &[u8]) -> Option<usize> {
    let length = int32(word).filter(|length| *length <= i32::MAX - 2)?;
    usize::try_from(length).ok()
}

/// Parses `get`, `gets`, `gat` or `gats`, with any number of words.
pub(super) fn retrieval(name: &[u8], words: &mut dyn Iterator<Item = &[u8]>) -> Option<Request> {
    let (touches, unique) = match name {
        b"get" | b"bget" => (false, false),
        b"gets" => (false, true),
        b"gat" => (true, false),
        b"gats" => (true, true),
        _ => return None,
    };
    let first = words.next();
    let Some(first) = first else {
        return Some(Request::Say(Some(ERROR)));
    };
    let exptime = touches.then(|| int32(first));
    if exptime == Some(None) {
        return Some(Request::Say(Some(BAD_EXPTIME)));
    }
    let keys = (!touches).then_some(first).into_iter().chain(words);
    let mut found = Vec::new();
    for key in keys {
        if key.len() > KEY_BYTES_MAX {
            return Some(Request::Say(Some(BAD_FORMAT)));
        }
        found.push(bytes(key));
    }
    Some(match exptime.flatten() {
        Some(exptime) => Request::GetAndTouch {
            keys: found,
            unique,
            exptime,
        },
        None => Request::Get {
            keys: found,
            unique,
        },
    })
}

/// Parses all other commands; `None`: the command is unknown.
pub(super) fn parse(words: &Words<'_>, item_max: u64) -> Option<Line> {
    let store = |verb| Some(store(verb, words, item_max));
    match words.get(0) {
        b"set" => store(Verb::Set),
        b"add" => store(Verb::Add),
        b"replace" => store(Verb::Replace),
        b"append" => store(Verb::Append),
        b"prepend" => store(Verb::Prepend),
        b"cas" => store(Verb::Cas),
        b"incr" | b"decr" => Some(count(words)),
        b"touch" => Some(touch(words)),
        b"delete" => Some(delete(words)),
        b"flush_all" => Some(flush(words)),
        b"stats" => Some(stats(words)),
        b"version" => Some(Line::Whole(Request::Version)),
        b"verbosity" => Some(verbosity(words)),
        b"quit" => Some(Line::Whole(Request::End(None))),
        b"shutdown" => Some(say("ERROR: shutdown not enabled")),
        _ => None,
    }
}

fn store(verb: Verb, words: &Words<'_>, item_max: u64) -> Line {
    let least = if verb == Verb::Cas { 6 } else { 5 };
    if words.count() != least && words.count() != least + 1 {
        return say(ERROR);
    }
    let quiet = words.is_quiet();
    let key = words.get(1);
    let compare = (verb == Verb::Cas).then(|| c_unsigned(words.get(5)));
    let numbers = (
        uint32(words.get(2)),
        int32(words.get(3)),
        length(words.get(4)),
    );
    let (Some(flags), Some(exptime), Some(length)) = numbers else {
        return say_unless(quiet, BAD_FORMAT);
    };
    if key.len() > KEY_BYTES_MAX || compare == Some(None) {
        return say_unless(quiet, BAD_FORMAT);
    }
    if item_bytes(key.len(), flags, length) > item_max {
        let key = (verb == Verb::Set).then(|| bytes(key));
        return Line::Refused(Request::TooLarge { key, quiet }, length);
    }
    let store = Store {
        verb,
        key: bytes(key),
        flags,
        exptime,
        compare: compare.flatten(),
        stale: false,
        data: bytes::Bytes::new(),
        form: Form::of(quiet),
    };
    Line::Data(Box::new(store), length)
}

fn count(words: &Words<'_>) -> Line {
    if !(3..=4).contains(&words.count()) {
        return say(ERROR);
    }
    let quiet = words.is_quiet();
    let key = words.get(1);
    if key.len() > KEY_BYTES_MAX {
        return say_unless(quiet, BAD_FORMAT);
    }
    let Some(delta) = c_unsigned(words.get(2)) else {
        return say_unless(quiet, BAD_DELTA);
    };
    Line::Whole(Request::Count(Count {
        up: words.get(0) == b"incr",
        key: bytes(key),
        delta,
        form: Form::of(quiet),
    }))
}

fn touch(words: &Words<'_>) -> Line {
    if !(3..=4).contains(&words.count()) {
        return say(ERROR);
    }
    let quiet = words.is_quiet();
    let key = words.get(1);
    if key.len() > KEY_BYTES_MAX {
        return say_unless(quiet, BAD_FORMAT);
    }
    let Some(exptime) = int32(words.get(2)) else {
        return say_unless(quiet, BAD_EXPTIME);
    };
    Line::Whole(Request::Touch {
        key: bytes(key),
        exptime,
        quiet,
    })
}

fn delete(words: &Words<'_>) -> Line {
    if !(2..=4).contains(&words.count()) {
        return say(ERROR);
    }
    let mut quiet = false;
    if words.count() > 2 {
        let zero = words.get(2) == b"0";
        quiet = words.is_quiet();
        let valid = match words.count() {
            3 => zero || quiet,
            _ => zero && quiet,
        };
        if !valid {
            return say_unless(quiet, BAD_DELETE);
        }
    }
    let key = words.get(1);
    if key.len() > KEY_BYTES_MAX {
        return say_unless(quiet, BAD_FORMAT);
    }
    Line::Whole(Request::Delete {
        key: bytes(key),
        form: Form::of(quiet),
    })
}

fn flush(words: &Words<'_>) -> Line {
    if words.count() > 3 {
        return say(ERROR);
    }
    let quiet = words.is_quiet();
    let plain = if quiet { 2 } else { 1 };
    let delay = if words.count() == plain {
        Some(0)
    } else {
        int32(words.get(1))
    };
    let Some(delay) = delay else {
        return say_unless(quiet, BAD_EXPTIME);
    };
    Line::Whole(Request::Flush { delay, quiet })
}

fn verbosity(words: &Words<'_>) -> Line {
    if !(2..=3).contains(&words.count()) {
        return say(ERROR);
    }
    let quiet = words.is_quiet();
    match uint32(words.get(1)) {
        // Clients must not change the log level of this process.
        Some(_) => say_unless(quiet, "OK"),
        None => say_unless(quiet, BAD_FORMAT),
    }
}

fn stats(words: &Words<'_>) -> Line {
    Line::Whole(match words.get(1) {
        b"" => Request::Stats(Stats::General),
        b"settings" => Request::Stats(Stats::Settings),
        b"reset" => Request::Stats(Stats::Reset),
        b"items" | b"slabs" | b"sizes" | b"conns" => Request::Stats(Stats::None),
        b"detail" => Request::Say(Some(match words.get(2) {
            b"off" => "OK",
            b"on" | b"dump" => "CLIENT_ERROR pmnet keeps no statistics of prefixes",
            _ => "CLIENT_ERROR usage: stats detail on|off|dump",
        })),
        b"cachedump" => Request::Say(Some("CLIENT_ERROR stats cachedump not allowed")),
        _ => Request::Say(Some(ERROR)),
    })
}
