//! Payloads and replies of the simulated store. The protocol does not look into them.
//!
//! A payload is a letter, a key, an id and padding; a reply shows a list, names a store, or says
//! that something was refused or may have happened. Padding makes long ones travel in fragments;
//! all of it is checked.

use bytes::Bytes;
use pmnet_proto::Random;
use pmnet_wire::command::{Form, Protocol, preamble};

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Appends; an update.
    Append,
    /// Appends and replies the list; a bypass.
    AppendRead,
    /// Appends if the list has an even length, and replies it in any case; a bypass.
    AppendIfEven,
    /// Replies the list.
    Read,
    /// Delivers its id to subscribers and replies the list: acts, and changes no data. A bypass
    /// that is executed once.
    Publish,
    /// Code that never ends, until somebody ends it.
    Hang,
    /// Replies which store this is: the barrier before a client's own connection.
    Name,
    /// Nothing: a session's own fence, whose payload the protocol defines.
    Fence,
}

const LETTERS: [(Act, u8); 7] = [
    (Act::Append, b'A'),
    (Act::AppendRead, b'B'),
    (Act::AppendIfEven, b'C'),
    (Act::Read, b'R'),
    (Act::Publish, b'P'),
    (Act::Hang, b'H'),
    (Act::Name, b'N'),
];

/// An operation of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// What it does.
    pub act: Act,
    /// Key.
    pub key: u8,
    /// Unique among all calls.
    pub id: u64,
}

/// Bytes of a payload before its padding.
pub const OPERATION_BYTES: usize = 10;

fn pad(out: &mut Vec<u8>, size: usize, seed: u64) {
    let mut pattern = Random::new(seed);
    while out.len() < size {
        out.extend_from_slice(&pattern.next_u64().to_be_bytes());
    }
    out.truncate(size);
}

impl Operation {
    /// The payload, padded to `size` bytes with a pattern that follows from the id.
    #[must_use]
    pub fn payload(self, size: usize) -> Bytes {
        let letter = LETTERS.iter().find(|(act, _)| *act == self.act);
        let mut out = vec![letter.map_or(0, |(_, letter)| *letter), self.key];
        out.extend_from_slice(&self.id.to_be_bytes());
        pad(&mut out, size.max(OPERATION_BYTES), self.id);
        out.into()
    }

    /// What a payload's first bytes say.
    #[must_use]
    pub fn peek(payload: &[u8]) -> Option<Operation> {
        let (head, _) = payload.split_first_chunk::<OPERATION_BYTES>()?;
        let (act, _) = LETTERS.iter().find(|(_, letter)| *letter == head[0])?;
        Some(Operation {
            act: *act,
            key: head[1],
            id: u64::from_be_bytes(head[2..].try_into().ok()?),
        })
    }

    /// Whether its id stands in the list when it has taken effect.
    #[must_use]
    pub const fn appends(self) -> bool {
        matches!(self.act, Act::Append | Act::AppendRead | Act::AppendIfEven)
    }

    pub(super) fn parse(payload: &[u8]) -> Option<Operation> {
        if payload == preamble(Form::Barrier, Protocol::Resp2, 0) {
            return Some(Operation {
                act: Act::Fence,
                key: 0,
                id: 0,
            });
        }
        let operation = Operation::peek(payload)?;
        // The whole payload must be what the client made: fragments in order, none missing.
        (operation.payload(payload.len()) == payload).then_some(operation)
    }
}

/// What a reply says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The list.
    List(Vec<u64>),
    /// Refused: no effect.
    Refused,
    /// It began and failed behind its first effect: it may have happened, and will not be tried
    /// again.
    Unsure,
    /// Which store answered.
    Store(u64),
}

/// First bytes of replies that are no lists: a list's length never begins like that.
const REFUSED: u8 = b'E';
const UNSURE: u8 = b'U';
const STORE: u8 = b'S';

impl Reply {
    /// Its bytes; a list is padded to `size`.
    pub(super) fn bytes(&self, size: usize) -> Bytes {
        match self {
            Reply::List(list) => {
                let count = u64::try_from(list.len()).expect("short lists");
                let mut out = count.to_be_bytes().to_vec();
                out.extend(list.iter().flat_map(|id| id.to_be_bytes()));
                let size = size.max(out.len());
                pad(&mut out, size, count);
                out.into()
            }
            Reply::Refused => Bytes::from_static(&[REFUSED]),
            Reply::Unsure => Bytes::from_static(&[UNSURE]),
            Reply::Store(name) => [&[STORE][..], &name.to_be_bytes()].concat().into(),
        }
    }

    /// What it says; `None` if it is not what the store wrote.
    #[must_use]
    pub fn read(reply: &[u8]) -> Option<Reply> {
        let short = match reply {
            [REFUSED] => Some(Reply::Refused),
            [UNSURE] => Some(Reply::Unsure),
            [STORE, name @ ..] => Some(Reply::Store(u64::from_be_bytes(name.try_into().ok()?))),
            _ => None,
        };
        if short.is_some() {
            return short;
        }
        let (count, rest) = reply.split_first_chunk::<8>()?;
        let count = usize::try_from(u64::from_be_bytes(*count)).ok()?;
        let words = rest.get(..count.checked_mul(8)?)?;
        let list = words
            .chunks(8)
            .map(|word| word.try_into().map_or(u64::MAX, u64::from_be_bytes))
            .collect();
        let list = Reply::List(list);
        (list.bytes(reply.len()) == reply).then_some(list)
    }
}
