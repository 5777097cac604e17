//! Names of rows for messages to people: the name shows a client's key, not the key of the row.

use std::collections::HashMap;

use super::layout::{self, Head, Kind, MEMBER_PREFIX, RowOf};
use crate::rows::Row;

/// The keys of collections, and the databases of key spaces, as far as the rows that were read so far reveal them.
#[derive(Debug, Default)]
pub struct Names {
    /// Key space and key of each collection, by the collection's number.
    owners: HashMap<u64, (u64, Vec<u8>)>,
    databases: HashMap<u64, u32>,
}

impl Names {
    /// Notes the facts that a row reveals.
    pub fn note(&mut self, key: &[u8], row: Row<'_>) {
        match layout::row_of(key) {
            Some(RowOf::Head { space, key }) => {
                if let Ok(head) = Head::read(row)
                    && head.kind != Kind::String
                {
                    self.owners.insert(head.id, (space, key.to_vec()));
                }
            }
            Some(RowOf::Database(database)) => {
                if let Ok(space) = row.value.try_into() {
                    self.databases.insert(u64::from_be_bytes(space), database);
                }
            }
            _ => {}
        }
    }

    /// Returns the name of a row. `key` is the row's key, whose end may be missing.
    #[must_use]
    pub fn of(&self, key: &[u8]) -> String {
        match layout::row_of(key) {
            Some(RowOf::Head { space, key }) => self.key(space, key),
            Some(RowOf::Member { id, part, name }) => {
                let what = match part {
                    0 => format!("\"{}\"", name.escape_ascii()),
                    1 => format!(
                        "the score of \"{}\"",
                        name.get(8..).unwrap_or_default().escape_ascii()
                    ),
                    _ => "an element".into(),
                };
                match self.owners.get(&id) {
                    Some((space, key)) => format!("{what} in {}", self.key(*space, key)),
                    None => format!("{what} in collection {id}, which no key has (any more)"),
                }
            }
            Some(RowOf::Database(database)) => format!("which keys database {database} has"),
            Some(RowOf::Own) => "a number of pmnet's own".into(),
            Some(RowOf::Garbage(id)) => {
                format!("a mark that what had the number {id} is to be removed")
            }
            None if key.first() == Some(&0xff) => {
                format!("a record of pmnet's own, {}", key[1..].escape_ascii())
            }
            None => format!("something unknown, {}", key.escape_ascii()),
        }
    }

    fn key(&self, space: u64, key: &[u8]) -> String {
        let key = key.escape_ascii();
        let database = self.databases.get(&space).copied();
        let first = u32::try_from(space).ok().filter(|n| *n < layout::DATABASES);
        match database.or(first) {
            Some(database) => format!("key \"{key}\" of database {database}"),
            None => format!("key \"{key}\" of a database that was emptied"),
        }
    }
}

/// In the key of a member's row, the name of the member begins after this many bytes.
const _: () = assert!(MEMBER_PREFIX == 10, "as `row_of` reads it");
