//! Reads that travel with the writes in front of them.
//!
//! A read behind a write of its pipeline waits for the write's reply, and then goes its own way: two ways to the store for two commands. If
//! its reply is short whatever the data is, it may as well be a part of the writes' bypass: there it is executed at its place,
//! and its reply is kept with theirs. A longer reply could make that of the whole bypass too long, and the writes' replies would be lost
//! with it.

use pmnet_resp::Arguments;

use super::Connection;
use crate::table::Facts;

/// Their replies are integers, scores or names of types. The store runs them in the script of the writes (`exact` in `crates/store`).
const SHORT: [&str; 20] = [
    "BITCOUNT",
    "BITPOS",
    "EXISTS",
    "EXPIRETIME",
    "GETBIT",
    "HEXISTS",
    "HLEN",
    "HSTRLEN",
    "LLEN",
    "PEXPIRETIME",
    "PTTL",
    "SCARD",
    "SISMEMBER",
    "STRLEN",
    "TTL",
    "TYPE",
    "XLEN",
    "ZCARD",
    "ZCOUNT",
    "ZSCORE",
];
/// What these leave behind is a number. If they fail because it is none, they change nothing.
const COUNTS: [&str; 4] = ["DECR", "DECRBY", "INCR", "INCRBY"];

/// The key that this command makes a number.
pub(super) fn counted<'a>(facts: Option<&Facts>, arguments: &Arguments<'a>) -> Option<&'a [u8]> {
    let counts = facts.is_some_and(|facts| COUNTS.contains(&facts.name));
    (counts && arguments.len() > 1).then(|| arguments.get(1))
}

impl Connection {
    /// Whether this read travels with the writes in front of it.
    pub(super) fn goes_beside_writes(
        &self,
        frame: &[u8],
        facts: Option<&Facts>,
        arguments: &Arguments<'_>,
    ) -> bool {
        let (Some(facts), Some(pack)) = (facts, &self.pack) else {
            return false;
        };
        pack.has_room(false, frame.len())
            && (SHORT.contains(&facts.name)
                || (facts.name == "GET" && pack.counts(arguments.get(1))))
    }
}
