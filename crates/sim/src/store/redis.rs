//! One Redis server: its data, and how it executes scripts, transactions, and clients' own commands.

use super::operation::{Act, Operation, Reply};
use super::trouble::Trouble;
use bytes::Bytes;
use pmnet_server::{Batch, RecordKey, Request};
use std::collections::{BTreeMap, BTreeSet};

/// The effects and refusals of a store, for the checkers.
#[derive(Clone, Debug, Default)]
pub struct Story {
    /// The final lists.
    pub lists: BTreeMap<u8, Vec<u64>>,
    /// For each id, the step in which it was last applied.
    pub applied_in: BTreeMap<u64, u64>,
    /// For each removed session, the step in which it was removed.
    pub ended_in: BTreeMap<u64, u64>,
    /// For each id, the number of times that one Redis delivered it to subscribers.
    pub delivered: BTreeMap<u64, u64>,
    /// Ids that one Redis has refused although it had not delivered them, and no Redis whose records it took over had
    /// delivered them.
    pub refused: BTreeSet<u64>,
    /// Number of effects that differ from what a client sent.
    pub malformed: u64,
    /// Keys of the records that remain.
    pub records: Vec<RecordKey>,
}

/// All data that a replica takes over.
#[derive(Clone, Debug, Default)]
pub(super) struct Data {
    pub(super) records: BTreeMap<RecordKey, Bytes>,
    /// The load, by a server process, that owns the records.
    pub(super) owner: u64,
    pub(super) story: Story,
    /// Ids that earlier masters had delivered, as far as this Redis took over their records.
    pub(super) delivered_before: BTreeSet<u64>,
    /// The changes since the last durable state; `None`: changes are not tracked.
    pub(super) changed: Option<Changed>,
}

/// Keys of changed lists and records.
#[derive(Clone, Debug, Default)]
pub(super) struct Changed {
    pub(super) lists: BTreeSet<u8>,
    pub(super) records: BTreeSet<RecordKey>,
}

impl Data {
    /// Whether this list is unchanged since it was made durable.
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

    /// Returns the id of the last state-changing bypass in a session's record; 0: none.
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

    /// Executes an operation.
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

/// A command that Redis has received on an abandoned connection, and executes later.
#[derive(Clone, Debug)]
pub(super) enum Command {
    /// A load that makes `owner` the owner of the records, if the owner is still `before`.
    Claim { before: u64, owner: u64 },
    /// A batch.
    Batch(Batch),
    /// A request that changes state.
    Script(Request),
}

/// A command that waits in the socket of a busy Redis.
#[derive(Clone, Debug)]
pub(super) struct Late {
    pub(super) command: Command,
    /// The owner and the watermark with which the command was sent.
    pub(super) guard: Guard,
    /// Number of calls, by any process, until the command is executed.
    pub(super) calls_left: u64,
}

/// The state of the records that the sender knew. If this state has changed, the command has no effect.
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
    /// Unique number of the server, like the run id of Redis.
    pub(super) name: u64,
    pub(super) data: Data,
    pub(super) late: Vec<Late>,
    /// The data of the replica, if the replica is behind.
    pub(super) behind: Option<Data>,
    /// The data of a replica from which clients read. This replica may be far behind, and is never promoted.
    pub(super) apart: Option<Box<Data>>,
}

/// The end of a script.
#[derive(Debug)]
pub(super) enum Ran {
    /// The script ran to its end, with this reply.
    Replied(Reply),
    /// There is no reply. The script had no effect, or its effect is unknown.
    NoReply(&'static str),
}

impl Instance {
    /// Runs a request of one operation in one script. With `record_first`, a record that says "begun" is written before
    /// the first effect. So after a failure, the server knows that the request may have had an effect.
    pub(super) fn script(
        &mut self,
        operation: Operation,
        request: &Request,
        trouble: Option<Trouble>,
        record_first: bool,
        (step, size): (u64, usize),
    ) -> Ran {
        let Some((key, prefix)) = &request.record else {
            // This is a read, so faults that prevent writes do not matter.
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
            // The broken rule: if the last write fails, the server assumes that the request had no effect.
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
