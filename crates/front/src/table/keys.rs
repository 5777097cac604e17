//! Finds the keys among the arguments of a command. All other code uses this module to find keys.
//!
//! The result is the same as that of `COMMAND GETKEYS`, which Redis uses for its cluster. If the arguments are invalid,
//! the result has no keys, or too few. The store's error then says what is wrong.

use pmnet_resp::{Arguments, parse_integer};

use super::{Facts, NEW, OPAQUE, Sub, Verdict};

/// A key specification, as the store describes it: the places of some keys of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeySpec {
    pub(super) begin: Begin,
    pub(super) find: Find,
}

/// The place at which the search for the keys begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Begin {
    /// The keys begin at this argument.
    Index(usize),
    /// The keys begin after this word. The search for the word begins at the argument with this number. If the number
    /// is negative, it counts from the end, and the search runs towards the beginning.
    Keyword(&'static str, i32),
}

/// The arguments that are keys, from the beginning of the search on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Find {
    /// Every `step`-th argument up to `last`. If `last` is 0 or more, it counts from the first key. If `last` is
    /// negative, it counts from the end of all arguments. With a `limit`, it counts from the end of the first of
    /// `limit` equal parts of the remaining arguments.
    Range {
        last: i32,
        step: usize,
        limit: usize,
    },
    /// The argument `at` is the number of keys, and the argument `first` is the first key. Both positions count from
    /// the place at which the search begins.
    Number {
        at: usize,
        first: usize,
        step: usize,
    },
}

/// The positions of keys: the first position, the position after the last key, and the distance between two keys.
type Places = (usize, usize, usize);

impl KeySpec {
    /// Returns the positions of the keys: an empty range if there are none. `None`: the arguments are
    /// invalid.
    fn places(&self, arguments: &Arguments<'_>) -> Option<Places> {
        let count = arguments.len();
        let begin = match self.begin {
            Begin::Index(at) => at,
            Begin::Keyword(word, from) => match behind_word(arguments, word, from) {
                Some(at) => at,
                None => return Some((0, 0, 1)),
            },
        };
        let (first, last, step) = match self.find {
            Find::Range { last, step, limit } => {
                let back = usize::try_from(last.unsigned_abs()).ok()?;
                let last = if last >= 0 {
                    begin.checked_add(back)?
                } else if limit > 1 {
                    let part = count.checked_sub(begin)? / limit;
                    begin.checked_add(part)?.checked_sub(back)?
                } else {
                    count.checked_sub(back)?
                };
                (begin, last, step)
            }
            Find::Number { at, first, step } => {
                let at = begin.checked_add(at).filter(|at| *at < count)?;
                let keys = usize::try_from(parse_integer(arguments.get(at))?).ok()?;
                let Some(more) = keys.checked_sub(1) else {
                    return Some((0, 0, 1));
                };
                let first = begin.checked_add(first)?;
                let last = first.checked_add(more.checked_mul(step)?)?;
                (first, last, step)
            }
        };
        (first > 0 && step > 0 && first <= last && last < count).then(|| (first, last + 1, step))
    }
}

/// Returns the position of the argument after this word.
fn behind_word(arguments: &Arguments<'_>, word: &str, from: i32) -> Option<usize> {
    let away = usize::try_from(from.unsigned_abs()).ok()?;
    let count = arguments.len();
    let is_word = |at: &usize| arguments.is(*at, word);
    let found = if from >= 0 {
        (away..count.checked_sub(1)?).find(is_word)
    } else {
        (2..count.checked_sub(away)? + 1).rev().find(is_word)
    };
    found.map(|at| at + 1)
}

/// The keys that a [`NEW`] command names. The keys are in the order of the command's specifications, and within a
/// specification in the order of the arguments.
pub(crate) struct Named<'a> {
    arguments: Arguments<'a>,
    places: Places,
    more: std::slice::Iter<'static, KeySpec>,
}

impl<'a> Named<'a> {
    /// Makes the iterator for keys at fixed positions, all of which must exist among `arguments`.
    pub(super) fn fixed(
        arguments: Arguments<'a>,
        first: usize,
        last: usize,
        step: usize,
    ) -> Named<'a> {
        Named {
            arguments,
            places: (first, last + 1, step),
            more: [].iter(),
        }
    }
}

impl<'a> Iterator for Named<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        loop {
            let (at, end, step) = &mut self.places;
            if *at < *end {
                let key = self.arguments.get(*at);
                *at = at.saturating_add(*step);
                return Some(key);
            }
            self.places = self.more.next()?.places(&self.arguments)?;
        }
    }
}

/// Returns all keys that a [`NEW`] command names; empty if the command has none. `None`: the places of the keys are
/// unknown, or the arguments are invalid.
pub(crate) fn named<'a>(facts: &Facts, arguments: &Arguments<'a>) -> Option<Named<'a>> {
    let fits = |spec: &KeySpec| spec.places(arguments).is_some();
    (!facts.has(OPAQUE) && facts.keys.iter().all(fits)).then(|| Named {
        arguments: *arguments,
        places: (0, 0, 1),
        more: facts.keys.iter(),
    })
}

/// Returns all keys of a command, whether it reads or writes them, in the order of its arguments. The list is empty if
/// the command has no keys, or if their places are unknown.
#[must_use]
pub fn keys<'a>(verdict: &Verdict, arguments: &Arguments<'a>) -> Vec<&'a [u8]> {
    let facts = match (verdict.sub, verdict.facts) {
        (Sub::Known(sub), _) => sub,
        (Sub::No, Some(facts)) => facts,
        (Sub::Unknown, _) | (Sub::No, None) => return Vec::new(),
    };
    if facts.has(NEW) {
        return named(facts, arguments).into_iter().flatten().collect();
    }
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

/// The options of SORT by which it uses other keys than its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SortOptions {
    /// Position of the key into which the result is stored.
    pub(crate) store: Option<usize>,
    /// Whether the option BY names other keys.
    pub(crate) by: bool,
    /// Whether the option GET names other keys.
    pub(crate) get: bool,
    /// The first option for which Redis, when it checks rights, decides that the command reads other keys.
    pub(crate) others: Option<&'static str>,
}

/// Parses the options of SORT and `SORT_RO`.
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

/// Returns the keys at fixed positions.
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

/// Returns the keys after the argument at `at`. This argument is the number of keys.
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

/// Returns the keys of [`counted`], or none if there are fewer arguments than the number of keys requires.
fn all_counted<'a>(arguments: &Arguments<'a>, at: usize) -> Vec<&'a [u8]> {
    let count = parse_integer(arguments.get(at)).and_then(|count| usize::try_from(count).ok());
    let there = arguments.len().saturating_sub(at + 1);
    if count.is_some_and(|count| count <= there) {
        counted(arguments, at)
    } else {
        Vec::new()
    }
}

/// Returns the keys of [`streams`], or none if an id is missing.
fn all_streams<'a>(arguments: &Arguments<'a>, from: usize) -> Vec<&'a [u8]> {
    let at = (from..arguments.len()).find(|at| arguments.is(*at, "STREAMS"));
    let is_even = at.is_some_and(|at| (arguments.len() - at - 1).is_multiple_of(2));
    if is_even {
        streams(arguments, from)
    } else {
        Vec::new()
    }
}

/// Returns the first half of the arguments after STREAMS. The word STREAMS is searched among the options from `from`
/// on.
pub(crate) fn streams<'a>(arguments: &Arguments<'a>, from: usize) -> Vec<&'a [u8]> {
    let Some(at) = (from..arguments.len()).find(|at| arguments.is(*at, "STREAMS")) else {
        return Vec::new();
    };
    let rest = arguments.len() - at - 1;
    arguments.iter().skip(at + 1).take(rest / 2).collect()
}
