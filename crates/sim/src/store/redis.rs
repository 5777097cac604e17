//! One Redis: its data, and what it does with a script, a transaction, or a client's own command.

use super::operation::{Act, Operation, Reply};
use super::trouble::Trouble;
use bytes::Bytes;
use pmnet_server::{Batch, RecordKey, Request};
use std::collections::{BTreeMap, BTreeSet};

/// What a store did, for the checkers.
#[derive(Clone, Debug, Default)]
pub struct Story {
    /// The lists.
    pub lists: BTreeMap<u8, Vec<u64>>,
    /// In which step each id was last applied.
    pub applied_in: BTreeMap<u64, u64>,
    /// In which step each session was removed.
    pub ended_in: BTreeMap<u64, u64>,
    /// How often each id was delivered to the subscribers of one Redis.
    pub delivered: BTreeMap<u64, u64>,
    /// Ids that one Redis refused, and that neither it nor a Redis whose records it took over had delivered.
    pub refused: BTreeSet<u64>,
    /// Effects that were not what a client made.
    pub malformed: u64,
    /// Keys of the records that are left.
    pub records: Vec<RecordKey>,
}

/// Everything that a replica takes over.
#[derive(Clone, Debug, Default)]
pub(super) struct Data {
    pub(super) records: BTreeMap<RecordKey, Bytes>,
    /// Which load of which process owns the records.
    pub(super) owner: u64,
    pub(super) story: Story,
    /// Ids that masters before this one delivered, as far as it took over their records.
    pub(super) delivered_before: BTreeSet<u64>,
    /// What has changed since it was made durable, if somebody wants to know.
    pub(super) changed: Option<Changed>,
}

/// Keys of what has changed.
#[derive(Clone, Debug, Default)]
pub(super) struct Changed {
    pub(super) lists: BTreeSet<u8>,
    pub(super) records: BTreeSet<RecordKey>,
}

impl Data {
    /// Whether this list is as it was made durable.
    pub(super) fn is_unchanged(&self, key: u8) -> bool {
        let changed = self.changed.as_ref();
        changed.is_none_or(|changed| !changed.lists.contains(&key))
    }

    pub(super) fn watermark(&self) -> u64 {
        let value = self.records.get(&b"watermark"[..]);
        value
            .and_then(|value| value[..].try_into().ok())
            .map_or(0, u64::from_be_bytes)
    }

    /// The id of the last state-changing bypass of a session (0: none), as its record says.
    pub(super) fn request_of(&self, session: u64) -> u64 {
        let key = [b"reply/", &session.to_be_bytes()[..]].concat();
        self.records
            .get(&key)
            .and_then(|value| value.first_chunk())
            .map_or(0, |request| u64::from_be_bytes(*request))
    }

    pub(super) fn list(&self, key: u8) -> &[u64] {
        self.story.lists.get(&key).map_or(&[][..], Vec::as_slice)
    }

    /// The effect of an operation.
    pub(super) fn effect(&mut self, operation: Operation, step: u64) {
        let Operation { act, key, id } = operation;
        if operation.appends() {
            let list = self.story.lists.entry(key).or_default();
            if act != Act::AppendIfEven || list.len().is_multiple_of(2) {
                list.push(id);
                if let Some(changed) = &mut self.changed {
                    changed.lists.insert(key);
                }
                self.story.applied_in.insert(id, step);
            }
        } else if act == Act::Publish {
            *self.story.delivered.entry(id).or_default() += 1;
        }
    }

    /// An operation was refused before it had an effect.
    fn refused(&mut self, id: u64) {
        if !self.story.delivered.contains_key(&id) && !self.delivered_before.contains(&id) {
            self.story.refused.insert(id);
        }
    }

    pub(super) fn change(&mut self, key: &RecordKey, value: Option<Bytes>, step: u64) {
        if let Some(changed) = &mut self.changed {
            changed.records.insert(key.clone());
        }
        match value {
            Some(value) => {
                self.records.insert(key.clone(), value);
            }
            None => {
                let id = key
                    .strip_prefix(b"session/")
                    .and_then(|id| id.try_into().ok());
                if self.records.remove(key).is_some()
                    && let Some(id) = id.map(u64::from_be_bytes)
                {
                    self.story.ended_in.insert(id, step);
                }
            }
        }
    }
}

/// What Redis was asked on a connection that was given up, and does later.
#[derive(Clone, Debug)]
pub(super) enum Command {
    /// A load that becomes the owner, if the owner is still `before`.
    Claim { before: u64, owner: u64 },
    /// A batch.
    Batch(Batch),
    /// A request that changes state.
    Script(Request),
}

/// A command that waits in the socket of a Redis that is busy.
#[derive(Clone, Debug)]
pub(super) struct Late {
    pub(super) command: Command,
    /// Owner and watermark under which it was sent.
    pub(super) guard: Guard,
    /// Calls of anybody until it runs.
    pub(super) calls_left: u64,
}

/// What must be unchanged since its sender saw it, or a command has no effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Guard {
    pub(super) owner: u64,
    pub(super) watermark: u64,
}

impl Guard {
    pub(super) fn admits(self, data: &Data) -> bool {
        data.owner == self.owner && data.watermark() == self.watermark
    }
}

/// A Redis server.
#[derive(Clone, Debug, Default)]
pub(super) struct Instance {
    /// A unique number, as the run id of Redis.
    pub(super) name: u64,
    pub(super) data: Data,
    pub(super) late: Vec<Late>,
    /// What its replica has, if that is not everything.
    pub(super) behind: Option<Data>,
    /// What a replica has that clients read from: it lags as it likes, and is never promoted.
    pub(super) apart: Option<Box<Data>>,
}

/// How a script ended.
#[derive(Debug)]
pub(super) enum Ran {
    /// It ran, and this is its reply.
    Replied(Reply),
    /// It has no effect, or nobody knows: no reply.
    NoReply(&'static str),
}

impl Instance {
    /// Runs a request of one operation in one script. With `record_first` a record that says "begun"
    /// is written before the first effect, so that a failure after it is not taken for a request that
    /// never happened.
    pub(super) fn script(
        &mut self,
        operation: Operation,
        request: &Request,
        trouble: Option<Trouble>,
        record_first: bool,
        (step, size): (u64, usize),
    ) -> Ran {
        let Some((key, prefix)) = &request.record else {
            // A read; what prevents writes does not matter to it.
            return match trouble {
                Some(
                    Trouble::Unreached
                    | Trouble::NotNow
                    | Trouble::Late
                    | Trouble::Torn
                    | Trouble::ReplyLost,
                ) => Ran::NoReply(trouble.map_or("", Trouble::words)),
                Some(Trouble::EffectRefused | Trouble::ScriptFails) => Ran::Replied(Reply::Refused),
                _ => Ran::Replied(self.reply(operation)),
            };
        };
        let with = |reply: &Reply| Some([&prefix[..], &reply.bytes(size)].concat().into());
        let dirties = operation.appends();
        let refused = match trouble {
            Some(Trouble::Unreached | Trouble::NotNow | Trouble::Late | Trouble::Torn) => true,
            Some(Trouble::WritesRefused) => record_first || dirties,
            Some(Trouble::RecordsRefused) => record_first,
            _ => false,
        };
        if refused {
            return Ran::NoReply(trouble.map_or("", Trouble::words));
        }
        if record_first {
            self.data.change(key, with(&Reply::Unsure), step);
        }
        if trouble == Some(Trouble::EffectRefused) {
            self.data.change(key, with(&Reply::Refused), step);
            self.data.refused(operation.id);
            return Ran::Replied(Reply::Refused);
        }
        self.data.effect(operation, step);
        let reply = match trouble {
            // The error of the last write is taken for "nothing has happened".
            Some(Trouble::WritesRefused | Trouble::RecordsRefused) => {
                return Ran::NoReply(trouble.map_or("", Trouble::words));
            }
            Some(Trouble::ScriptFails | Trouble::HalfWay) => Reply::Unsure,
            _ => self.reply(operation),
        };
        self.data.change(key, with(&reply), step);
        match trouble {
            Some(Trouble::HalfWay | Trouble::ReplyLost) => {
                Ran::NoReply(trouble.map_or("", Trouble::words))
            }
            _ => Ran::Replied(reply),
        }
    }

    pub(super) fn reply(&self, operation: Operation) -> Reply {
        match operation.act {
            Act::Name | Act::Fence => Reply::Store(self.name),
            _ => Reply::List(self.data.list(operation.key).to_vec()),
        }
    }
}
