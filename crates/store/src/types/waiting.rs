//! The store's memory for waiting clients: the keys that clients watch, and the new lists and sorted sets for which
//! clients wait (`docs/spec/embedded-store.md` §8).
//!
//! The memory is bounded. A forgotten key counts as changed. A transaction whose client watched the key does not run,
//! and a client that waits for the key tries again.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use pmnet_resp::reply::error as error_reply;
use pmnet_resp::{parse_integer, reply};
use pmnet_wire::command::{ARRIVED, Commands, Form, UNCHANGED, WATCH};

use super::layout::DATABASES;
use super::table::Context;
use super::{Keyspace, Reply};
use crate::rows::Fault;

/// Maximum number of keys that are watched at a time. If there are more keys, all of them are forgotten.
const WATCHED_MAX: usize = 65_536;
/// Maximum number of bytes of the names of watched keys. If there are more bytes, all keys are forgotten.
const WATCHED_BYTES_MAX: usize = 32 << 20;
/// Maximum number of new lists and sorted sets that are remembered.
const ARRIVALS_MAX: usize = 4096;
/// Value that stands for the number of arrivals if the arrivals are unknown.
const ANY: i64 = 0;

/// State of a watched key at the first WATCH after the key's last change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Version {
    number: i64,
    /// Whether the key existed. If the key expires, only this field shows the change.
    there: bool,
}

/// Keys that clients watch and that have not changed since their WATCH.
#[derive(Debug, Default)]
pub struct Watched {
    databases: [HashMap<Vec<u8>, Version>; DATABASES as usize],
    count: usize,
    bytes: usize,
    last: i64,
}

impl Watched {
    fn of(&mut self, database: u32) -> Option<&mut HashMap<Vec<u8>, Version>> {
        self.databases.get_mut(usize::try_from(database).ok()?)
    }

    /// Returns the version of a key that a client begins to watch.
    fn watch(&mut self, database: u32, key: &[u8], there: bool) -> i64 {
        let known = self.of(database).and_then(|keys| keys.get(key));
        if let Some(version) = known.filter(|version| version.there == there) {
            return version.number;
        }
        self.changed(database, key);
        if self.count >= WATCHED_MAX || self.bytes + key.len() > WATCHED_BYTES_MAX {
            self.databases.iter_mut().for_each(HashMap::clear);
            (self.count, self.bytes) = (0, 0);
        }
        self.last += 1;
        let number = self.last;
        if let Some(keys) = self.of(database) {
            keys.insert(key.to_vec(), Version { number, there });
            self.count += 1;
            self.bytes += key.len();
        }
        number
    }

    /// Returns whether a client watches a key.
    pub fn has(&self, database: u32, key: &[u8]) -> bool {
        let at = usize::try_from(database).unwrap_or(usize::MAX);
        self.count > 0
            && self
                .databases
                .get(at)
                .is_some_and(|keys| keys.contains_key(key))
    }

    /// Notes that a key has changed.
    pub fn changed(&mut self, database: u32, key: &[u8]) {
        if self.count > 0
            && self
                .of(database)
                .and_then(|keys| keys.remove(key))
                .is_some()
        {
            self.count -= 1;
            self.bytes -= key.len();
        }
    }

    /// Notes that all keys of a database are removed. Keys that did not exist count as unchanged.
    pub fn emptied(&mut self, database: u32) {
        let (mut gone, mut bytes) = (0, 0);
        if let Some(keys) = self.of(database) {
            keys.retain(|key, version| {
                gone += usize::from(version.there);
                bytes += if version.there { key.len() } else { 0 };
                !version.there
            });
        }
        self.count -= gone;
        self.bytes -= bytes;
    }

    fn is_unchanged(&mut self, database: u32, key: &[u8], version: Version) -> bool {
        self.of(database).and_then(|keys| keys.get(key)) == Some(&version)
    }
}

/// Lists and sorted sets that were created under names that had no key.
#[derive(Debug, Default)]
pub struct Arrivals {
    /// Number of arrivals since the process began.
    count: u64,
    /// The newest arrivals, as numbers by [`pmnet_wire::command::arrival`].
    last: VecDeque<i64>,
}

impl Arrivals {
    /// Adds an arrival to the list.
    pub fn note(&mut self, arrival: i64) {
        self.count += 1;
        self.last.push_back(arrival);
        if self.last.len() > ARRIVALS_MAX {
            self.last.pop_front();
        }
    }

    /// Returns the arrivals after the first `count`; `None`: some of these arrivals are forgotten.
    fn since(&self, count: i64) -> Option<impl ExactSizeIterator<Item = i64>> {
        let new = usize::try_from(self.count.checked_sub(u64::try_from(count).ok()?)?).ok()?;
        let known = self.last.len().checked_sub(new)?;
        Some(self.last.iter().skip(known).copied())
    }
}

/// Commands that a front sends for its clients. Clients of Redis cannot send these commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Own {
    Watch,
    Unchanged,
    Arrived,
}

impl Own {
    /// Returns the command with this name.
    pub fn of(name: &[u8]) -> Option<Own> {
        match () {
            () if name == WATCH.as_bytes() => Some(Own::Watch),
            () if name == UNCHANGED.as_bytes() => Some(Own::Unchanged),
            () if name == ARRIVED.as_bytes() => Some(Own::Arrived),
            () => None,
        }
    }

    /// Runs the command.
    pub fn run(
        self,
        keys: &mut Keyspace<'_>,
        context: &Context,
        arguments: &[&[u8]],
    ) -> Result<Bytes, Fault> {
        let start = keys.cursors.id.cast_signed();
        let answer = match self {
            Own::Watch => {
                let mut answer = vec![start];
                for key in arguments {
                    let there = keys.head(context.database, key)?.is_some();
                    let watched = &mut keys.cursors.watched;
                    answer.push(watched.watch(context.database, key, there));
                }
                answer
            }
            Own::Unchanged => {
                let unchanged = are_unchanged(keys, start, arguments)?;
                return Ok(reply::integer(i64::from(unchanged)));
            }
            Own::Arrived => {
                let [of, count] = arguments else {
                    return Ok(error_reply("ERR syntax error"));
                };
                let arrivals = &keys.cursors.arrivals;
                let mut answer = vec![start, i64::try_from(arrivals.count).unwrap_or(i64::MAX)];
                let known = parse_integer(of).filter(|of| *of == start);
                match known.and_then(|_| arrivals.since(parse_integer(count)?)) {
                    Some(new) => answer.extend(new),
                    None => answer.push(ANY),
                }
                answer
            }
        };
        let mut reply = Reply::new(context.resp3);
        reply.array(answer.len());
        answer.into_iter().for_each(|number| reply.integer(number));
        Ok(reply.finish().into())
    }
}

/// Returns whether these keys are unchanged. In the arguments, each key follows its database and version. Arguments
/// that cannot be parsed count as changed keys.
fn are_unchanged(keys: &mut Keyspace<'_>, start: i64, arguments: &[&[u8]]) -> Result<bool, Fault> {
    let [of, watched @ ..] = arguments else {
        return Ok(false);
    };
    if parse_integer(of) != Some(start) || !watched.len().is_multiple_of(3) {
        return Ok(false);
    }
    for watched in watched.chunks_exact(3) {
        let database = parse_integer(watched[0]).and_then(|number| u32::try_from(number).ok());
        let (Some(database), Some(number)) = (database, parse_integer(watched[1])) else {
            return Ok(false);
        };
        let there = keys.head(database, watched[2])?.is_some();
        let version = Version { number, there };
        if !keys
            .cursors
            .watched
            .is_unchanged(database, watched[2], version)
        {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns whether all keys that a transaction's client watches are unchanged; `None`: the client watches no key.
///
/// # Errors
/// A [`Fault`] of the rows. The caller must then give the transaction up.
pub fn unchanged(keys: &mut Keyspace<'_>, commands: &Commands<'_>) -> Result<Option<bool>, Fault> {
    if commands.form != Form::Transaction {
        return Ok(None);
    }
    let mut first = commands.iter().next().into_iter().flatten();
    if first.next().and_then(Own::of) != Some(Own::Unchanged) {
        return Ok(None);
    }
    let start = keys.cursors.id.cast_signed();
    are_unchanged(keys, start, &first.collect::<Vec<_>>()).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_lasts_until_its_key_changes_or_too_many_are_watched() {
        let mut watched = Watched::default();
        let there = |number| Version {
            number,
            there: true,
        };
        let first = watched.watch(0, b"k", true);
        assert_eq!(watched.watch(0, b"k", true), first, "a second client");
        assert!(
            watched.is_unchanged(0, b"k", there(first))
                && !watched.is_unchanged(1, b"k", there(first))
        );
        // The key has expired.
        assert!(!watched.is_unchanged(
            0,
            b"k",
            Version {
                number: first,
                there: false
            }
        ));
        let gone = watched.watch(0, b"k", false);
        assert!(gone > first && !watched.is_unchanged(0, b"k", there(first)));
        let other = watched.watch(3, b"other", true);
        watched.emptied(0);
        watched.emptied(3);
        assert!(
            watched.is_unchanged(
                0,
                b"k",
                Version {
                    number: gone,
                    there: false
                }
            ),
            "it was not there"
        );
        assert!(!watched.is_unchanged(3, b"other", there(other)));
        watched.changed(0, b"k");
        assert!(!watched.has(0, b"k"));
        assert_eq!((watched.count, watched.bytes), (0, 0));
        let first = watched.watch(0, b"first", true);
        for number in 1..WATCHED_MAX {
            watched.watch(1, &number.to_be_bytes(), true);
        }
        assert!(watched.is_unchanged(0, b"first", there(first)));
        let last = watched.watch(99, b"no such database", true);
        assert!(
            !watched.is_unchanged(0, b"first", there(first)),
            "one too many"
        );
        assert!(!watched.is_unchanged(99, b"no such database", there(last)));
        let long = vec![0; WATCHED_BYTES_MAX];
        let long_one = watched.watch(0, &long, true);
        assert!(watched.is_unchanged(0, &long, there(long_one)));
        watched.watch(0, b"first", true);
        assert!(!watched.is_unchanged(0, &long, there(long_one)));
    }

    #[test]
    fn arrivals_are_told_once_and_those_that_were_forgotten_are_not_left_out() {
        let mut arrivals = Arrivals::default();
        let since =
            |arrivals: &Arrivals, count| arrivals.since(count).map(Iterator::collect::<Vec<_>>);
        assert_eq!(since(&arrivals, 0), Some(vec![]));
        (1..=3).for_each(|key| arrivals.note(key));
        assert_eq!(since(&arrivals, 1), Some(vec![2, 3]));
        assert_eq!(since(&arrivals, 3), Some(vec![]));
        assert_eq!(since(&arrivals, 4), None, "of another process");
        assert_eq!(since(&arrivals, -1), None);
        let many = i64::try_from(ARRIVALS_MAX).unwrap();
        (4..=many + 1).for_each(|key| arrivals.note(key));
        assert_eq!(since(&arrivals, 0), None);
        assert_eq!(since(&arrivals, 1).unwrap().len(), ARRIVALS_MAX);
    }
}
