//! Keys and values of rows. `docs/spec/embedded-store.md`, "Rows", defines them.

use std::ops::Bound;

use crate::rows::{Fault, Row};

/// Number of databases, as in a default Redis.
pub const DATABASES: u32 = 16;
/// First number that is given to a key space or a collection. Lower numbers are reserved for the first key spaces.
pub const FIRST_ID: u64 = 1024;

/// Maximum number of members of a sorted set that Redis keeps as a list (`zset-max-listpack-entries`).
pub const SMALL_COUNT_MAX: u64 = 128;
/// Longest member of a sorted set that Redis keeps as a list, in bytes (`zset-max-listpack-value`).
pub const SMALL_MEMBER_BYTES_MAX: usize = 64;

/// First byte of a row's key. The byte says to which table the row belongs.
const META: u8 = 0;
const HEADS: u8 = 1;
const MEMBERS: u8 = 2;
const GARBAGE: u8 = 3;

/// Kind of a row that is not a head row.
pub const PLAIN: u8 = 0;

/// The types of values, which are the kinds of head rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A string. The head row has the string itself.
    String,
    /// A hash: fields and their values.
    Hash,
    /// A list: elements by position.
    List,
    /// A set: members.
    Set,
    /// A sorted set: members with scores.
    SortedSet,
}

impl Kind {
    fn of(byte: u8) -> Result<Kind, Fault> {
        [
            Kind::String,
            Kind::Hash,
            Kind::List,
            Kind::Set,
            Kind::SortedSet,
        ]
        .into_iter()
        .find(|kind| kind.byte() == byte)
        .ok_or_else(|| Fault::Corrupted(format!("a key of the unknown type {byte}")))
    }

    /// Returns the byte that stands for the type in a row.
    pub fn byte(self) -> u8 {
        match self {
            Kind::String => 1,
            Kind::Hash => 2,
            Kind::List => 3,
            Kind::Set => 4,
            Kind::SortedSet => 5,
        }
    }

    /// Returns the name of the type as in the reply to `TYPE`.
    pub fn name(self) -> &'static str {
        match self {
            Kind::String => "string",
            Kind::Hash => "hash",
            Kind::List => "list",
            Kind::Set => "set",
            Kind::SortedSet => "zset",
        }
    }
}

/// The groups of rows in one collection. Each group has its purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The members of a set, the fields of a hash, or the members of a sorted set with their scores.
    Members,
    /// The members of a sorted set in the order of their scores.
    Scores,
    /// The elements of a list.
    Elements,
}

impl Part {
    fn byte(self) -> u8 {
        match self {
            Part::Members => 0,
            Part::Scores => 1,
            Part::Elements => 2,
        }
    }
}

/// Facts about a key without its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Type of the value.
    pub kind: Kind,
    /// Time of expiry, in ms since 1970; 0: the key never expires.
    pub expires: u64,
    /// Number of the collection; 0 for a string.
    pub id: u64,
    /// Number of members of the collection, or length of the string in bytes.
    pub count: u64,
    /// Position of a list's first element.
    pub first: i64,
    /// Whether Redis would keep the sorted set as a skip list, which changes how it writes some scores
    /// ([`Head::added`]).
    pub large: bool,
}

impl Head {
    /// Makes the head of a collection without members.
    pub fn empty(kind: Kind, id: u64) -> Head {
        Head {
            kind,
            expires: 0,
            id,
            count: 0,
            first: 0,
            large: false,
        }
    }

    /// Reads a head row.
    pub fn read(row: Row<'_>) -> Result<Head, Fault> {
        let kind = Kind::of(row.kind)?;
        let mut head = Head::empty(kind, 0);
        head.expires = row.expires_at_ms;
        let short = || Fault::Corrupted("a head is too short".into());
        let number = |at: usize| {
            let bytes = row.value.get(at..at + 8).ok_or_else(short)?;
            Ok::<_, Fault>(u64::from_be_bytes(bytes.try_into().map_err(|_| short())?))
        };
        if kind == Kind::String {
            head.count = u64::try_from(row.value.len()).unwrap_or(u64::MAX);
        } else {
            head.id = number(0)?;
            head.count = number(8)?;
        }
        if kind == Kind::List {
            head.first = number(16)?.cast_signed();
        }
        if kind == Kind::SortedSet {
            head.large = *row.value.get(16).ok_or_else(short)? != 0;
        }
        Ok(head)
    }

    /// Returns the value that the head row of this collection has.
    pub fn value(&self) -> Vec<u8> {
        let mut value = [self.id.to_be_bytes(), self.count.to_be_bytes()].concat();
        if self.kind == Kind::List {
            value.extend(self.first.to_be_bytes());
        }
        if self.kind == Kind::SortedSet {
            value.push(u8::from(self.large));
        }
        value
    }

    /// Counts a new member of a sorted set. The set becomes large if it has too many members or a member is too long.
    pub fn added(&mut self, member: &[u8]) {
        self.count += 1;
        self.large |= self.count > SMALL_COUNT_MAX || member.len() > SMALL_MEMBER_BYTES_MAX;
    }
}

/// Returns the key of the row that has the next free number.
pub fn next_id() -> Vec<u8> {
    vec![META, b'n']
}

/// Returns the key of the row that has the number of a database's key space.
pub fn database(database: u32) -> Vec<u8> {
    [&[META, b'd'][..], &database.to_be_bytes()].concat()
}

fn numbered(table: u8, id: u64, rest: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(9 + rest.len());
    key.push(table);
    key.extend(id.to_be_bytes());
    key.extend(rest);
    key
}

/// Returns the key of the row with the head of a client's key.
pub fn head(space: u64, key: &[u8]) -> Vec<u8> {
    numbered(HEADS, space, key)
}

/// Returns the key of the row with the member `name`.
pub fn member(id: u64, part: Part, name: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(10 + name.len());
    key.push(MEMBERS);
    key.extend(id.to_be_bytes());
    key.push(part.byte());
    key.extend(name);
    key
}

/// Number of bytes before a client's key in [`head`].
pub const HEAD_PREFIX: usize = 9;
/// Number of bytes before a name in [`member`].
pub const MEMBER_PREFIX: usize = 10;

/// Returns the range of the keys of all head rows of a key space.
pub fn heads_of(space: u64) -> (Vec<u8>, Vec<u8>) {
    (head(space, b""), head(space + 1, b""))
}

/// Returns the range of the keys of all head rows of all key spaces.
pub fn all_heads() -> (Vec<u8>, Vec<u8>) {
    (vec![HEADS], vec![HEADS + 1])
}

/// Returns the range of the keys of all rows of a collection.
pub fn members_of(id: u64) -> (Vec<u8>, Vec<u8>) {
    (numbered(MEMBERS, id, b""), numbered(MEMBERS, id + 1, b""))
}

/// Returns the first row key after the rows of a part.
pub fn end_of(id: u64, part: Part) -> Vec<u8> {
    numbered(MEMBERS, id, &[part.byte() + 1])
}

/// Returns the key of the row that marks the rows of a collection, or of a key space, for removal.
pub fn garbage(id: u64) -> Vec<u8> {
    numbered(GARBAGE, id, b"")
}

/// Returns the number in a [`garbage`] key.
pub fn garbage_id(key: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(key.get(1..9)?.try_into().ok()?))
}

/// Returns the range of the keys of all marks for removal.
pub fn all_garbage() -> (Vec<u8>, Vec<u8>) {
    (vec![GARBAGE], vec![GARBAGE + 1])
}

/// Returns the position of a list's element as a name. The order of these bytes is the order of the positions.
pub fn position(index: i64) -> [u8; 8] {
    (index.cast_unsigned() ^ (1 << 63)).to_be_bytes()
}

/// Returns the position that these bytes stand for.
pub fn position_of(bytes: [u8; 8]) -> i64 {
    (u64::from_be_bytes(bytes) ^ (1 << 63)).cast_signed()
}

/// Returns a score as bytes. The order of these bytes is the order of the scores. Both zeros give the same bytes.
pub fn score(score: f64) -> [u8; 8] {
    exact_score(score + 0.0)
}

/// Returns a score as bytes in the order of the scores, in which both zeros have different bytes.
pub fn exact_score(score: f64) -> [u8; 8] {
    let bits = score.to_bits();
    let sign = 1 << 63;
    let ordered = if bits & sign == 0 { bits | sign } else { !bits };
    ordered.to_be_bytes()
}

/// Returns the score that these bytes stand for.
pub fn score_of(bytes: [u8; 8]) -> f64 {
    let ordered = u64::from_be_bytes(bytes);
    let sign = 1 << 63;
    f64::from_bits(if ordered & sign == 0 {
        !ordered
    } else {
        ordered ^ sign
    })
}

/// The meaning of a row, by its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowOf<'k> {
    /// The head of a client's key.
    Head {
        /// Number of the key space.
        space: u64,
        /// The client's key.
        key: &'k [u8],
    },
    /// A member of a collection.
    Member {
        /// Number of the collection.
        id: u64,
        /// Byte of the [`Part`] to which the row belongs.
        part: u8,
        /// Name of the member.
        name: &'k [u8],
    },
    /// The row that has the number of a database's key space.
    Database(u32),
    /// A row with a number for the store's own use, such as the next free number.
    Own,
    /// The mark for the removal of the rows of this number.
    Garbage(u64),
}

/// Returns the meaning of the row with this key.
pub fn row_of(key: &[u8]) -> Option<RowOf<'_>> {
    let (table, rest) = key.split_first()?;
    if *table == META {
        return Some(match rest {
            [b'd', database @ ..] => RowOf::Database(u32::from_be_bytes(database.try_into().ok()?)),
            _ => RowOf::Own,
        });
    }
    let (number, rest) = rest.split_first_chunk()?;
    let number = u64::from_be_bytes(*number);
    match (*table, rest) {
        (HEADS, key) => Some(RowOf::Head { space: number, key }),
        (MEMBERS, [part, name @ ..]) => Some(RowOf::Member {
            id: number,
            part: *part,
            name,
        }),
        (GARBAGE, []) => Some(RowOf::Garbage(number)),
        _ => None,
    }
}

/// Borrows a range of whole keys, which includes its start and excludes its end.
pub fn range(bounds: &(Vec<u8>, Vec<u8>)) -> (Bound<&[u8]>, Bound<&[u8]>) {
    (Bound::Included(&bounds.0), Bound::Excluded(&bounds.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_in_the_order_of_numbers() {
        let scores = [
            f64::NEG_INFINITY,
            -1e300,
            -1.5,
            -f64::MIN_POSITIVE,
            0.0,
            4.9e-324,
            1.0,
            1e300,
            f64::INFINITY,
        ];
        assert!(
            scores
                .windows(2)
                .all(|pair| score(pair[0]) < score(pair[1]))
        );
        for value in scores {
            assert_eq!(score_of(score(value)).to_bits(), value.to_bits());
        }
        assert_eq!(score(-0.0), score(0.0));
        assert_eq!(score_of(exact_score(-0.0)).to_bits(), (-0.0f64).to_bits());
        let positions = [i64::MIN, -1, 0, 1, i64::MAX];
        assert!(
            positions
                .windows(2)
                .all(|pair| position(pair[0]) < position(pair[1]))
        );
    }
}
