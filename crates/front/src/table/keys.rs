//! Where the keys of a command are: the one place that knows.
//!
//! As Redis finds them for its cluster (`COMMAND GETKEYS`). Arguments that are no command of Redis have no keys, or fewer: the
//! store then says what is wrong with them.

use pmnet_resp::{Arguments, parse_integer};

use super::{Facts, Sub, Verdict};

/// All keys of a command, read and written ones, in the order of its arguments. Nothing if it has none, or it is not known where.
#[must_use]
pub fn keys<'a>(verdict: &Verdict, arguments: &Arguments<'a>) -> Vec<&'a [u8]> {
    let facts = match (verdict.sub, verdict.facts) {
        (Sub::Known(sub), _) => sub,
        (Sub::No, Some(facts)) => facts,
        (Sub::Unknown, _) | (Sub::No, None) => return Vec::new(),
    };
    match facts.name {
        "EVAL" | "EVALSHA" | "EVAL_RO" | "EVALSHA_RO" | "FCALL" | "FCALL_RO" | "BLMPOP"
        | "BZMPOP" => all_counted(arguments, 2),
        "SINTERCARD" | "ZDIFF" | "ZINTER" | "ZINTERCARD" | "ZUNION" | "LMPOP" | "ZMPOP" => {
            all_counted(arguments, 1)
        }
        "ZDIFFSTORE" | "ZINTERSTORE" | "ZUNIONSTORE" => {
            let mut keys = fixed(facts, arguments);
            keys.extend(all_counted(arguments, 2));
            keys
        }
        "XREAD" => all_streams(arguments, 1),
        "XREADGROUP" => all_streams(arguments, 4),
        "SORT" | "SORT_RO" => {
            let mut keys = fixed(facts, arguments);
            if let Some(at) = sort_options(arguments).store {
                keys.push(arguments.get(at));
            }
            keys
        }
        "GEORADIUS" | "GEORADIUSBYMEMBER" => {
            let mut keys = fixed(facts, arguments);
            let stores = |at: &usize| arguments.is(*at, "STORE") || arguments.is(*at, "STOREDIST");
            let first = if facts.name == "GEORADIUS" { 6 } else { 5 };
            let found = (first..arguments.len().saturating_sub(1)).filter(stores);
            keys.extend(found.map(|at| arguments.get(at + 1)));
            keys
        }
        "MIGRATE" if arguments.get(3).is_empty() => {
            let at = (6..arguments.len()).find(|at| arguments.is(*at, "KEYS"));
            let behind = at.unwrap_or(arguments.len()) + 1;
            arguments.iter().skip(behind).collect()
        }
        _ => fixed(facts, arguments),
    }
}

/// What the options of SORT say of other keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SortOptions {
    /// Which argument is the key to store to.
    pub(crate) store: Option<usize>,
    /// It sorts by other keys.
    pub(crate) by: bool,
    /// It gets other keys.
    pub(crate) get: bool,
    /// The first option for which it reads other keys, as far as Redis looks at rights.
    pub(crate) others: Option<&'static str>,
}

/// Reads the options of SORT and `SORT_RO`.
pub(crate) fn sort_options(arguments: &Arguments<'_>) -> SortOptions {
    let mut found = SortOptions::default();
    let mut at = 2;
    while at < arguments.len() {
        let left = arguments.len() - at - 1;
        let is = |word| arguments.is(at, word);
        if is("STORE") && left >= 1 {
            found.store = Some(at + 1);
        } else if is("BY") && left >= 1 {
            let by = arguments.get(at + 1).contains(&b'*');
            found.by |= by;
            found.others = found.others.or(by.then_some("BY"));
        } else if is("GET") && left >= 1 {
            found.get = true;
            found.others = found.others.or(Some("GET"));
        }
        at += match () {
            () if is("LIMIT") => 3,
            () if is("STORE") || is("BY") || is("GET") => 2,
            () => 1,
        };
    }
    found
}

/// Keys at fixed places.
pub(crate) fn fixed<'a>(facts: &Facts, arguments: &Arguments<'a>) -> Vec<&'a [u8]> {
    let place = |place: i32| usize::try_from(place).ok();
    let count = i32::try_from(arguments.len()).unwrap_or(i32::MAX);
    let last = if facts.last_key < 0 {
        count.saturating_add(facts.last_key)
    } else {
        facts.last_key.min(count - 1)
    };
    let (Some(first), Some(last), Some(step)) =
        (place(facts.first_key), place(last), place(facts.step))
    else {
        return Vec::new();
    };
    if first == 0 || step == 0 {
        return Vec::new();
    }
    (first..=last)
        .step_by(step)
        .map(|at| arguments.get(at))
        .collect()
}

/// So many keys as the argument at `at` says, behind it.
pub(crate) fn counted<'a>(arguments: &Arguments<'a>, at: usize) -> Vec<&'a [u8]> {
    if at >= arguments.len() {
        return Vec::new();
    }
    let count = parse_integer(arguments.get(at)).and_then(|count| usize::try_from(count).ok());
    arguments
        .iter()
        .skip(at + 1)
        .take(count.unwrap_or(0))
        .collect()
}

/// The same, if there are so many arguments.
fn all_counted<'a>(arguments: &Arguments<'a>, at: usize) -> Vec<&'a [u8]> {
    let count = parse_integer(arguments.get(at)).and_then(|count| usize::try_from(count).ok());
    let there = arguments.len().saturating_sub(at + 1);
    if count.is_some_and(|count| count <= there) {
        counted(arguments, at)
    } else {
        Vec::new()
    }
}

/// The keys of [`streams`], if each has an id.
fn all_streams<'a>(arguments: &Arguments<'a>, from: usize) -> Vec<&'a [u8]> {
    let at = (from..arguments.len()).find(|at| arguments.is(*at, "STREAMS"));
    let is_even = at.is_some_and(|at| (arguments.len() - at - 1).is_multiple_of(2));
    if is_even {
        streams(arguments, from)
    } else {
        Vec::new()
    }
}

/// The first half of what is behind STREAMS, which is among the options from `from` on.
pub(crate) fn streams<'a>(arguments: &Arguments<'a>, from: usize) -> Vec<&'a [u8]> {
    let Some(at) = (from..arguments.len()).find(|at| arguments.is(*at, "STREAMS")) else {
        return Vec::new();
    };
    let rest = arguments.len() - at - 1;
    arguments.iter().skip(at + 1).take(rest / 2).collect()
}
