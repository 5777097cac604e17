//! State that all clients of a front share.

use pmnet_resp::read;
use pmnet_wire::command::NO_ADDRESS;

use crate::stats::Counters;

/// The form of a change that the store understands (`pmnet_wire::item`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// The change is a script for Redis.
    Redis,
    /// The change is the packet store's own command.
    Packet,
}

/// The front's knowledge about the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Store {
    /// Nothing is known of the store.
    Unknown,
    /// The dialect of the store is known. It is not known whether the database of the items exists.
    Is(Dialect),
    /// The store serves this front.
    Serves(Dialect),
    /// The store does not serve this front. The values are the store's error, and the time of the question in
    /// milliseconds since 1970.
    Refuses(String, u64),
}

/// Time after which a store that has refused is asked again, in milliseconds.
const ASK_AGAIN: u64 = 1000;

/// A question to the store. Nothing is acknowledged early before all questions are answered. Otherwise the store could
/// skip commands that it does not support.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Question {
    /// The question which dialect the store understands.
    Dialect,
    /// The question whether the database of the items exists.
    Database,
}

/// State and settings of a front.
#[derive(Debug)]
pub struct Shared {
    /// The time at the beginning of this turn of the loop, in milliseconds since 1970.
    pub unix_millis: u64,
    /// Number of the database that has the items.
    pub database: u32,
    /// Size of the largest item in bytes, as memcached counts it.
    pub item_max: u64,
    /// Maximum number of clients at a time.
    pub connections_max: usize,
    store: Store,
    /// Number of times that the knowledge of the store was dropped.
    pub(super) round: u64,
    /// The last refusal of the store that was logged.
    told: Option<String>,
    /// The time when a delayed `flush_all` is due, in milliseconds since 1970.
    pub flush_at: Option<u64>,
    /// Counters since the start of the front.
    pub counters: Counters,
    /// The values of the counters at the last `stats reset`.
    pub reset: Counters,
    uniques: Uniques,
}

impl Shared {
    /// `id`: a number that makes the uniques of this front differ from those of other fronts. Its last 12 bits matter
    /// most.
    #[must_use]
    pub fn new(database: u32, item_max: u64, connections_max: usize, id: u64) -> Shared {
        Shared {
            unix_millis: 0,
            database,
            item_max,
            connections_max,
            store: Store::Unknown,
            round: 0,
            told: None,
            flush_at: None,
            counters: Counters::default(),
            reset: Counters::default(),
            uniques: Uniques {
                last: 0,
                id: id & UNIQUE_ID_MASK,
                begins: (id >> UNIQUE_ID_BITS) % 1000,
            },
        }
    }

    /// Returns what is known of the store. A refusal is forgotten after a second.
    #[must_use]
    pub fn store(&self) -> &Store {
        match &self.store {
            Store::Refuses(_, asked)
                if !(*asked..*asked + ASK_AGAIN).contains(&self.unix_millis) =>
            {
                &Store::Unknown
            }
            store => store,
        }
    }

    /// Drops the knowledge of the store, because another store may serve now. The store is asked again before the next
    /// early acknowledgement.
    pub fn forget_store(&mut self) {
        self.store = Store::Unknown;
        self.round += 1;
    }

    /// Takes the store's answer to a question.
    pub(super) fn store_answers(&mut self, question: Question, reply: &[u8]) {
        match (question, self.store()) {
            (Question::Dialect, _) if reply != NO_ADDRESS && read::bulk(reply).is_none() => {
                self.refused(reply);
            }
            (Question::Database, _)
                if read::error(reply).is_some_and(|error| !error.starts_with("WRONGTYPE")) =>
            {
                self.refused(reply);
            }
            (Question::Dialect, Store::Unknown) => {
                self.store = Store::Is(if reply == NO_ADDRESS {
                    Dialect::Packet
                } else {
                    Dialect::Redis
                });
            }
            (Question::Database, Store::Is(dialect)) => {
                self.store = Store::Serves(*dialect);
                self.told = None;
            }
            // Another client has asked the same question before.
            _ => {}
        }
    }

    fn refused(&mut self, reply: &[u8]) {
        let why = read::error(reply).map_or_else(
            || "the store has answered in another form than expected".to_owned(),
            str::to_owned,
        );
        self.does_not_serve(why);
    }

    /// Notes why the store does not serve memcached clients. After a second the store is asked again.
    pub fn does_not_serve(&mut self, why: String) {
        if self.told.as_ref() != Some(&why) {
            tracing::warn!(
                why,
                "PM3107 the store does not serve memcached clients: set and the like are refused"
            );
            self.told = Some(why.clone());
        }
        self.store = Store::Refuses(why, self.unix_millis);
    }

    /// Returns a unique that no item of this front has had.
    pub fn unique(&mut self) -> u64 {
        self.uniques.next(self.unix_millis)
    }

    /// Returns the time of expiry of an item, in milliseconds since 1970; 0: the item never expires. As in memcached, a
    /// number above 30 days is a time of expiry, and a negative number means a time in the past.
    #[must_use]
    pub fn until(&self, exptime: i32) -> u64 {
        let millis = u64::from(exptime.unsigned_abs()) * 1000;
        match exptime {
            0 => 0,
            i32::MIN..0 => PAST,
            1..=RELATIVE_MAX => self.unix_millis + millis,
            _ => millis,
        }
    }

    /// Returns the time until an item expires, in seconds; 0: the item never expires, or has already expired.
    #[must_use]
    pub fn seconds_until(&self, exptime: i32) -> u64 {
        let until = self.until(exptime);
        until.saturating_sub(self.unix_millis).div_ceil(1000)
    }
}

/// Longest time to live in seconds: 30 days.
const RELATIVE_MAX: i32 = 30 * 24 * 60 * 60;
/// A time in the past.
const PAST: u64 = 1;

/// Number of bits of a unique that name the front.
const UNIQUE_ID_BITS: u32 = 12;
const UNIQUE_ID_MASK: u64 = (1 << UNIQUE_ID_BITS) - 1;

/// Makes uniques. A unique consists of the time in microseconds, and the id of the front. Each unique is greater than
/// all earlier uniques of the same process, whatever the clock does. Until the year 2041 uniques are below 2^63, so
/// there are no bits for a longer id.
#[derive(Debug)]
struct Uniques {
    last: u64,
    id: u64,
    /// Offset of the uniques within each millisecond, in microseconds. So two fronts with the same id seldom
    /// make the same unique.
    begins: u64,
}

impl Uniques {
    fn next(&mut self, unix_millis: u64) -> u64 {
        let time =
            (unix_millis.wrapping_mul(1000).wrapping_add(self.begins) << UNIQUE_ID_BITS) | self.id;
        self.last = time.max(self.last + (1 << UNIQUE_ID_BITS));
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(unix_millis: u64) -> Shared {
        Shared {
            unix_millis,
            ..Shared::new(0, 1 << 20, 1, 0xabcd)
        }
    }

    #[test]
    fn uniques_rise_and_say_whose_they_are() {
        let mut shared = at(1_800_000_000_000);
        let mut last = 0;
        for _ in 0..5000 {
            let unique = shared.unique();
            assert!(unique > last && unique & UNIQUE_ID_MASK == 0xbcd);
            last = unique;
        }
        // The clock was set back.
        shared.unix_millis = 5;
        assert!(shared.unique() > last && last < 1 << 63);
    }

    #[test]
    fn two_fronts_with_one_id_differ_unless_much_is_done_at_once() {
        let mut fronts = [0x5_0abc, 0x9_0abc].map(|id| Shared::new(0, 1 << 20, 1, id));
        let mut seen = std::collections::HashSet::new();
        for millis in 0..1000 {
            for shared in &mut fronts {
                shared.unix_millis = 1_800_000_000_000 + millis;
                assert!((0..50).all(|_| seen.insert(shared.unique())));
            }
        }
    }

    #[test]
    fn times_are_relative_up_to_thirty_days() {
        let shared = at(1_800_000_000_000);
        for (exptime, until, seconds) in [
            (0, 0, 0),
            (1, 1_800_000_001_000, 1),
            (2_592_000, 1_802_592_000_000, 2_592_000),
            (2_592_001, 2_592_001_000, 0),
            (1_800_000_007, 1_800_000_007_000, 7),
            (-1, 1, 0),
            (i32::MIN, 1, 0),
        ] {
            assert_eq!(shared.until(exptime), until, "{exptime}");
            assert_eq!(shared.seconds_until(exptime), seconds, "{exptime}");
        }
    }
}
