//! The records that a store keeps for the protocol (`docs/spec/protocol.md`, "Records").
//!
//! | key | value |
//! |---|---|
//! | `watermark` | A, 8 bytes |
//! | `chain` | epoch, shard token, members |
//! | `store` | name of the store in which the epoch began |
//! | `session/` + id | token, last applied seq; with keys its front |
//! | `reply/` + id | request id, reply |
//! | `stage/` + id + seq | number of fragments of the update (2 bytes), the fragment's payload |
//!
//! Numbers are big-endian; ids and seqs in keys are 8 raw bytes.

use super::{Chain, Part};
use bytes::Bytes;
use pmnet_wire::FrontId;
use pmnet_wire::packet::Identity;
use pmnet_wire::record::{Member, RecoverReply};

/// A change of one record.
pub(super) type Record = (Vec<u8>, Option<Bytes>);

const SESSION: &[u8] = b"session/";
const REPLY: &[u8] = b"reply/";
const STAGE: &[u8] = b"stage/";
const STORE: &[u8] = b"store";

/// A record as the server has read it from the store.
#[derive(Debug)]
pub(super) enum Loaded {
    Watermark(u64),
    Chain(Chain),
    Store(Bytes),
    Session {
        id: u64,
        said: Identity,
        last_seq: u64,
    },
    Reply {
        id: u64,
        request: u64,
        reply: Bytes,
    },
    Stage {
        id: u64,
        part: Part,
    },
}

fn key(prefix: &[u8], numbers: &[u64]) -> Vec<u8> {
    let mut key = prefix.to_vec();
    for number in numbers {
        key.extend_from_slice(&number.to_be_bytes());
    }
    key
}

pub(super) fn watermark(applied: u64) -> Record {
    (
        b"watermark".to_vec(),
        Some(Bytes::copy_from_slice(&applied.to_be_bytes())),
    )
}

pub(super) fn session(id: u64, said: Identity, last_seq: u64) -> Record {
    let mut value = said.token.to_be_bytes().to_vec();
    value.extend_from_slice(&last_seq.to_be_bytes());
    if let Some(front) = said.front {
        value.extend_from_slice(&front.get().to_be_bytes());
    }
    (key(SESSION, &[id]), Some(value.into()))
}

pub(super) fn session_gone(id: u64) -> Record {
    (key(SESSION, &[id]), None)
}

pub(super) fn reply_key(id: u64) -> Vec<u8> {
    key(REPLY, &[id])
}

pub(super) fn reply_prefix(request: u64) -> Bytes {
    Bytes::copy_from_slice(&request.to_be_bytes())
}

pub(super) fn stage(id: u64, part: &Part) -> Record {
    let mut value = part.count.to_be_bytes().to_vec();
    value.extend_from_slice(&part.payload);
    (key(STAGE, &[id, part.seq]), Some(value.into()))
}

pub(super) fn stage_gone(id: u64, seq: u64) -> Record {
    (key(STAGE, &[id, seq]), None)
}

/// Returns the records of an epoch: its chain, and the name of the store in which the epoch began.
pub(super) fn chain(chain: &Chain) -> Vec<Record> {
    let mut value = chain.epoch.to_be_bytes().to_vec();
    let reply = RecoverReply {
        shard_token: chain.shard_token,
        members: chain.members.clone(),
        sessions: Vec::new(),
    };
    value.extend_from_slice(&reply.write());
    let mut records = vec![(b"chain".to_vec(), Some(value.into()))];
    if !chain.store.is_empty() {
        records.push((STORE.to_vec(), Some(chain.store.clone())));
    }
    records
}

/// Upper bound of orders and seqs. A record with a higher number is damaged.
const NUMBER_MAX: u64 = u64::MAX / 2;

/// Reads one record; `None`: it is not a record of the protocol, or it is damaged.
pub(super) fn read(key: &[u8], value: &Bytes) -> Option<Loaded> {
    let number = |bytes: &[u8]| Some(u64::from_be_bytes(bytes.try_into().ok()?));
    let position = |bytes: &[u8]| number(bytes).filter(|number| *number <= NUMBER_MAX);
    if key == b"watermark" {
        return Some(Loaded::Watermark(position(value)?));
    }
    if key == b"chain" {
        let (epoch, rest) = value.split_first_chunk::<4>()?;
        let reply = RecoverReply::read(rest)?;
        let members: Vec<Member> = reply.members;
        return Some(Loaded::Chain(Chain {
            epoch: u32::from_be_bytes(*epoch),
            shard_token: reply.shard_token,
            members,
            store: Bytes::new(),
        }));
    }
    if key == STORE {
        return Some(Loaded::Store(value.clone()));
    }
    if let Some(id) = key.strip_prefix(SESSION) {
        let (token, rest) = value.split_at_checked(8)?;
        let (last_seq, front) = rest.split_at_checked(8)?;
        let front = match front {
            [] => None,
            front => Some(FrontId::new(number(front)?)?),
        };
        return Some(Loaded::Session {
            id: number(id)?,
            said: Identity {
                token: number(token)?,
                front,
            },
            last_seq: position(last_seq)?,
        });
    }
    if let Some(id) = key.strip_prefix(REPLY) {
        let (request, _) = value.split_first_chunk::<8>()?;
        return Some(Loaded::Reply {
            id: number(id)?,
            request: u64::from_be_bytes(*request),
            reply: value.slice(8..),
        });
    }
    let (id, seq) = key.strip_prefix(STAGE)?.split_at_checked(8)?;
    let (count, _) = value.split_first_chunk::<2>()?;
    Some(Loaded::Stage {
        id: number(id)?,
        part: Part {
            seq: number(seq)?,
            count: u16::from_be_bytes(*count),
            payload: value.slice(2..),
        },
    })
}
