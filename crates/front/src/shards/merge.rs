//! Combines the replies of all shards to one reply.

use bytes::Bytes;
use pmnet_resp::{read, reply, write_bulk, write_header, write_integer};
use rustc_hash::FxHashSet;

/// How the replies of all shards are combined to one reply. If a shard's reply is an error, this error is the combined
/// reply, except for [`Merge::Any`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Merge {
    /// The reply of the first shard, because all replies are equal.
    First,
    /// Integers are added.
    Sum,
    /// The largest integer.
    Largest,
    /// Arrays are joined. An element that several arrays have appears once.
    Join,
    /// Arrays of integers: the smallest at each place.
    Smallest,
    /// Arrays of names and numbers: the numbers are added.
    SumNumbers,
    /// The first reply that is not an error, if there is one.
    Any,
    /// The first reply that is not null. The search begins with this shard.
    Found(usize),
}

impl Merge {
    /// Combines the replies of all shards to one reply.
    pub(super) fn of(self, parts: &[Bytes]) -> Bytes {
        let first = || parts.first().cloned().unwrap_or_default();
        let is_error = |part: &&Bytes| part.starts_with(b"-");
        if self == Merge::Any {
            let found = parts.iter().find(|part| !is_error(part));
            return found.cloned().unwrap_or_else(first);
        }
        if let Some(error) = parts.iter().find(is_error) {
            return error.clone();
        }
        match self {
            Merge::First | Merge::Any => first(),
            Merge::Sum => {
                let sum = parts.iter().filter_map(|part| read::integer(part));
                reply::integer(sum.fold(0, i64::saturating_add))
            }
            Merge::Largest => {
                let largest = parts.iter().filter_map(|part| read::integer(part)).max();
                reply::integer(largest.unwrap_or(0))
            }
            Merge::Join => join(parts),
            Merge::Smallest => smallest(parts),
            Merge::SumNumbers => sum_numbers(parts),
            Merge::Found(begin) => {
                let mut rotated = parts.iter().cycle().skip(begin).take(parts.len());
                let is_null = |part: &&Bytes| matches!(&part[..], b"$-1\r\n" | b"_\r\n");
                let found = rotated.find(|part| !is_null(part));
                found.cloned().unwrap_or_else(first)
            }
        }
    }
}

fn join(parts: &[Bytes]) -> Bytes {
    let elements = parts.iter().filter_map(|part| read::elements(part));
    let mut seen = FxHashSet::default();
    let all: Vec<&[u8]> = elements
        .flatten()
        .filter(|element| seen.insert(*element))
        .collect();
    let mut out = Vec::with_capacity(parts.iter().map(Bytes::len).sum());
    write_header(&mut out, all.len());
    for element in all {
        out.extend_from_slice(element);
    }
    out.into()
}

fn smallest(parts: &[Bytes]) -> Bytes {
    let numbers = |part: &Bytes| -> Option<Vec<i64>> {
        let elements = read::elements(part)?;
        elements.into_iter().map(read::integer).collect()
    };
    let smaller = |a: Vec<i64>, b: Vec<i64>| a.iter().zip(&b).map(|(a, b)| *a.min(b)).collect();
    let found = parts.iter().filter_map(numbers).reduce(smaller);
    let found = found.unwrap_or_default();
    let mut out = Vec::new();
    write_header(&mut out, found.len());
    for number in found {
        write_integer(&mut out, number);
    }
    out.into()
}

fn sum_numbers(parts: &[Bytes]) -> Bytes {
    let mut sums: Vec<(&[u8], i64)> = Vec::new();
    for (shard, part) in parts.iter().enumerate() {
        let elements = read::elements(part).unwrap_or_default();
        for (at, pair) in elements.chunks_exact(2).enumerate() {
            let name = read::bulk(pair[0]).unwrap_or_default();
            let number = read::integer(pair[1]).unwrap_or(0);
            match sums.get_mut(at) {
                Some((_, sum)) => *sum = sum.saturating_add(number),
                None if shard == 0 => sums.push((name, number)),
                None => {}
            }
        }
    }
    let mut out = Vec::new();
    write_header(&mut out, 2 * sums.len());
    for (name, sum) in sums {
        write_bulk(&mut out, name);
        write_integer(&mut out, sum);
    }
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(merge: Merge, parts: &[&'static str]) -> String {
        let parts: Vec<Bytes> = parts
            .iter()
            .map(|part| Bytes::from_static(part.as_bytes()))
            .collect();
        String::from_utf8(merge.of(&parts).to_vec()).unwrap()
    }

    #[test]
    fn replies_become_one() {
        assert_eq!(merged(Merge::First, &["+OK\r\n", "+OK\r\n"]), "+OK\r\n");
        assert_eq!(
            merged(Merge::Sum, &[":1\r\n", ":2\r\n", ":39\r\n"]),
            ":42\r\n"
        );
        assert_eq!(
            merged(Merge::Largest, &[":0\r\n", ":1\r\n", ":0\r\n"]),
            ":1\r\n"
        );
        assert_eq!(
            merged(
                Merge::Join,
                &[
                    "*1\r\n$1\r\na\r\n",
                    "*0\r\n",
                    "*2\r\n$1\r\na\r\n$1\r\nb\r\n"
                ]
            ),
            "*2\r\n$1\r\na\r\n$1\r\nb\r\n"
        );
        assert_eq!(
            merged(
                Merge::Smallest,
                &["*2\r\n:1\r\n:0\r\n", "*2\r\n:1\r\n:1\r\n"]
            ),
            "*2\r\n:1\r\n:0\r\n"
        );
        assert_eq!(
            merged(
                Merge::SumNumbers,
                &["*2\r\n$1\r\nc\r\n:1\r\n", "*2\r\n$1\r\nc\r\n:2\r\n"]
            ),
            "*2\r\n$1\r\nc\r\n:3\r\n"
        );
        assert_eq!(
            merged(Merge::Any, &["-NOTBUSY x\r\n", "+OK\r\n"]),
            "+OK\r\n"
        );
        assert_eq!(merged(Merge::Any, &["-A x\r\n", "-B x\r\n"]), "-A x\r\n");
        let keys = ["$-1\r\n", "$1\r\nb\r\n", "$1\r\nc\r\n"];
        assert_eq!(merged(Merge::Found(2), &keys), "$1\r\nc\r\n");
        assert_eq!(merged(Merge::Found(3), &keys), "$1\r\nb\r\n");
        assert_eq!(merged(Merge::Found(0), &["_\r\n", "_\r\n"]), "_\r\n");
    }

    #[test]
    fn an_error_of_one_shard_is_the_reply() {
        for merge in [
            Merge::First,
            Merge::Sum,
            Merge::Largest,
            Merge::Join,
            Merge::Smallest,
            Merge::SumNumbers,
            Merge::Found(0),
        ] {
            assert_eq!(
                merged(merge, &[":1\r\n", "-ERR x\r\n", ":1\r\n"]),
                "-ERR x\r\n"
            );
        }
    }
}
