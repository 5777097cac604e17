//! Payloads and replies of the simulated store. The protocol does not interpret them.
//!
//! A payload consists of a letter, a key, an id and padding. A reply contains a list or the name of a store, or says
//! that the operation was refused or may have happened. Because of the padding, long payloads and replies are sent in
//! fragments. The readers check all of the padding.

use bytes::Bytes;
use pmnet_proto::Random;
use pmnet_wire::command::{Form, Protocol, preamble};

/// The effect and the reply of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// An update that appends its id.
    Append,
    /// A bypass that appends its id, and replies the list.
    AppendRead,
    /// A bypass that appends its id if the list has an even length, and replies the list in any case.
    AppendIfEven,
    /// A bypass that replies the list.
    Read,
    /// A bypass that delivers its id to subscribers and replies the list, without a change of data. It is executed at
    /// most once.
    Publish,
    /// A bypass that runs code that never ends, until a client kills it.
    Hang,
    /// A bypass that replies the name of the store: the barrier before an operation on a client's own connection.
    Name,
    /// A session's fence: a bypass without an effect, whose payload the protocol defines.
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

/// The contents of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The operation.
    pub act: Act,
    /// The key of the list.
    pub key: u8,
    /// The id, unique among all calls.
    pub id: u64,
}

/// Number of bytes of a payload before its padding.
pub const OPERATION_BYTES: usize = 10;

fn pad(out: &mut Vec<u8>, size: usize, seed: u64) {
    let mut pattern = Random::new(seed);
    while out.len() < size {
        out.extend_from_slice(&pattern.next_u64().to_be_bytes());
    }
    out.truncate(size);
}

impl Operation {
    /// Returns the payload, padded to `size` bytes with a pattern that depends on the id.
    #[must_use]
    pub fn payload(self, size: usize) -> Bytes {
        let letter = LETTERS.iter().find(|(act, _)| *act == self.act);
        let mut out = vec![letter.map_or(0, |(_, letter)| *letter), self.key];
        out.extend_from_slice(&self.id.to_be_bytes());
        pad(&mut out, size.max(OPERATION_BYTES), self.id);
        out.into()
    }

    /// Reads the first bytes of a payload, without a check of the padding.
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

    /// Whether the operation may append its id to the list.
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
        // The payload must be exactly the client's payload, with all fragments in order.
        (operation.payload(payload.len()) == payload).then_some(operation)
    }
}

/// The contents of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The ids in the list.
    List(Vec<u64>),
    /// The operation was refused and had no effect.
    Refused,
    /// The script failed after its first effect. The operation may have happened, and will not be executed again.
    Unsure,
    /// The name of the store that answered.
    Store(u64),
}

/// First bytes of replies that are not lists. A reply with a list begins with the list's length, which never begins
/// with one of these bytes.
const REFUSED: u8 = b'E';
const UNSURE: u8 = b'U';
const STORE: u8 = b'S';

impl Reply {
    /// Returns the reply as bytes; a list is padded to `size`.
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

    /// Parses a reply; `None` if the store cannot have written it.
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
