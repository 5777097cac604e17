//! The data types of Redis over [`Rows`](crate::rows::Rows): the commands of the packet store.
//!
//! Purpose: strings, hashes, lists, sets, sorted sets and expiry with the replies and errors of Redis 7.0, for every
//! store that has ordered rows. Invariants: a command that replies with an error has changed nothing. All changes of a
//! command are in the transaction of its rows. No input causes a panic. Tests with random commands compare the replies
//! with those of a real Redis (`tests/store/types/`). `docs/spec/embedded-store.md` defines how keys and members become
//! rows. These modules do not know where rows are kept, and know no sessions, orders or records.
//!
//! | module | what it does |
//! |---|---|
//! | `table` | all commands by name; the checks of arguments before a command runs |
//! | `arguments`, `float`, `long_double`, `big` | numbers and options as Redis reads and writes them |
//! | `reply` | replies in RESP2 and RESP3 |
//! | `layout` | rows: how keys, members and scores are encoded |
//! | `keyspace` | keys and collections in one transaction |
//! | `strings`, `bits`, `hashes`, `lists`, `sets`, `sorted_sets` | the commands of each type |
//! | `members` | the common parts of hashes, sets and sorted sets |
//! | `score_ranges`, `score_sets` | ranges of sorted sets; their unions, intersections and differences |
//! | `sort` | `SORT` |
//! | `names` | names of rows for people |
//! | `keys`, `expiry`, `scan`, `glob` | commands for keys of any type; iteration |
//! | `items` | items of memcached |
//! | `waiting` | keys that clients watch, or wait for |
//! | `about` | facts about a store: `INFO`, `CONFIG`, `COMMAND` and the like |

mod about;
mod arguments;
mod big;
mod bits;
mod expiry;
mod float;
mod glob;
mod hashes;
mod items;
mod keys;
mod keyspace;
mod layout;
mod lists;
mod long_double;
mod members;
mod mend;
mod names;
mod reply;
mod scan;
mod score_ranges;
mod score_sets;
mod sets;
mod sort;
mod sorted_sets;
mod strings;
mod table;
#[cfg(test)]
mod tests;
mod waiting;

pub use keyspace::{Keyspace, SWEPT_ROWS};
pub use mend::mend;
pub use names::Names;
pub use scan::Cursors;
pub use table::{Context, execaborted, refuse_as_read, run};
pub use waiting::unchanged;

use arguments::{Outcome, WRONG_TYPE};
use layout::{Head, Kind};

use reply::Reply;

/// One command that is being run.
struct Call<'c, 'r> {
    keys: &'c mut Keyspace<'r>,
    database: u32,
    /// The command's name in lower case.
    name: &'static str,
    /// The command's arguments after the name.
    arguments: &'c [&'c [u8]],
    reply: Reply,
}

impl Call<'_, '_> {
    /// Returns the head of a key if the key exists.
    fn head(&self, key: &[u8]) -> Outcome<Option<Head>> {
        Ok(self.keys.head(self.database, key)?)
    }

    /// Returns the head of a key if the key exists and has this type. If the key has another type, returns an error.
    fn find(&self, key: &[u8], kind: Kind) -> Outcome<Option<Head>> {
        match self.head(key)? {
            Some(head) if head.kind != kind => Err(WRONG_TYPE),
            found => Ok(found),
        }
    }

    /// Returns the head of the collection at a key. If the key does not exist, returns the head of a new, empty
    /// collection.
    fn find_or_create(&mut self, key: &[u8], kind: Kind) -> Outcome<Head> {
        match self.find(key, kind)? {
            Some(head) => Ok(head),
            None => Ok(self.keys.create(self.database, key, kind)?),
        }
    }

    /// Writes a collection's head.
    fn keep(&mut self, key: &[u8], head: &Head) -> Outcome {
        Ok(self.keys.keep(self.database, key, head)?)
    }

    /// Removes a key and its value.
    fn remove(&mut self, key: &[u8]) -> Outcome {
        Ok(self.keys.remove(self.database, key)?)
    }
}

/// Converts a count to an index. All counted objects are in memory, so the count fits into the type.
fn size(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}
