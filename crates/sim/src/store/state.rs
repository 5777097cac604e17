//! The durable state of the store, and its answers to a server: the steps of a load, a batch and a request, each of
//! which may fail.

use super::operation::{Act, Operation};
use super::packets::Packets;
use super::redis::{Command, Data, Guard, Instance, Late, Ran};
use super::trouble::{Spell, Trouble};
use super::{StoreConfig, TOOK_OVER};
use crate::without::Place;
use bytes::Bytes;
use pmnet_proto::time::{MILLISECOND, Nanos};
use pmnet_proto::{Random, Time};
use pmnet_server::{Batch, RecordKey, Request, StoreError};
use std::collections::{BTreeMap, BTreeSet};

/// If atomic steps are switched off, one in this number of batches is torn.
const TORN_EVERY: u64 = 20;
/// Maximum number of calls of the store until a command of an abandoned connection is executed.
const LATE_CALLS_MAX: u64 = 12;
/// Number of low bits in the number of an owner. They are the number of the load; the bits above them are the number of
/// the process.
const PROCESS_SHIFT: u32 = 32;
/// Maximum number of waiting commands of abandoned connections.
const LATE_MAX: usize = 64;
/// On average, one in this number of requests begins a new group of requests, which are answered together.
const GROUP_EVERY: u64 = 6;
/// Longest time until a client kills code that never ends.
const HANG_MAX: Nanos = 40 * MILLISECOND;

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) config: StoreConfig,
    /// The first master, and then each promoted replica.
    pub(super) instances: Vec<Instance>,
    /// Index of the instance to which the server connects.
    pub(super) address: usize,
    /// Whether the server's connections to earlier masters are closed.
    pub(super) closed: bool,
    /// Whether the link to the replica is cut.
    pub(super) link_down: bool,
    /// Whether the replica that was promoted last lacks data.
    pub(super) lagging: bool,
    pub(super) now: Time,
    pub(super) stuck_until: Time,
    /// Whether a replaced master takes no writes any more.
    pub(super) stops_writes: bool,
    pub(super) owners: u64,
    pub(super) processes: u64,
    pub(super) names: u64,
    pub(super) step: u64,
    pub(super) random: u64,
    pub(super) spell: Option<Spell>,
    pub(super) malformed: u64,
    /// The rule that this store breaks.
    pub(super) broken: Option<Place>,
    /// Hashes of the applied operations, if the broken rule identifies updates by hashes.
    pub(super) hashes: BTreeSet<u16>,
    pub(super) happened: BTreeMap<&'static str, u64>,
    pub(super) asked: Vec<Asked>,
    /// The packet store that keeps the master's data, if this is a world with one.
    pub(super) packets: Option<Packets>,
    /// The violations that were found.
    pub(super) wrong: Vec<String>,
}

/// The state of a request that the store was asked to execute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// The request was begun.
    Begun(u64),
    /// The request was begun, and has no reply.
    Failed(u64),
}

/// A connection of a server process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    pub(super) at: usize,
    pub(super) guard: Guard,
    /// Whether the connection's process has become the owner of the records.
    pub(super) owns: bool,
}

pub(super) fn retry(words: &str) -> StoreError {
    StoreError::Retry(words.to_owned())
}

impl State {
    pub(super) fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(1);
        Random::new(self.random).next_u64()
    }

    pub(super) fn data(&self) -> &Data {
        &self.instances[self.address].data
    }

    pub(super) fn master(&mut self) -> &mut Instance {
        &mut self.instances[self.address]
    }

    pub(super) fn breaks(&self, place: Place) -> bool {
        self.broken == Some(place)
    }

    /// Draws the fault of the next step, if any.
    fn trouble(&mut self) -> Option<Trouble> {
        let every = self.config.trouble;
        let fails = self.spell.is_some() || (every > 0 && self.draw().is_multiple_of(every));
        if !fails {
            return None;
        }
        let trouble = match self.spell {
            Some(Spell::Lasting(trouble)) => trouble,
            _ if !self.config.steps => match self.draw() % 2 {
                0 => Trouble::Unreached,
                _ => Trouble::ReplyLost,
            },
            _ => {
                let all = Trouble::ALL;
                let at = self.draw() % u64::try_from(all.len()).expect("few");
                all[usize::try_from(at).expect("few")]
            }
        };
        // The store does not wait for a replica, so this fault makes no difference.
        let trouble = match trouble {
            Trouble::NotReplicated if !self.config.wait => Trouble::ReplyLost,
            trouble => trouble,
        };
        if self.config.steps {
            *self.happened.entry(trouble.words()).or_default() += 1;
        }
        Some(trouble)
    }

    /// Whether an operation is wrongly taken for an earlier operation, because both have the same hash and
    /// [`Place::Identity`] is switched off.
    fn is_taken_for_another(&mut self, payload: &[u8]) -> bool {
        let [high, low, ..] = pmnet_wire::crc(payload).to_be_bytes();
        self.breaks(Place::Identity) && !self.hashes.insert(u16::from_be_bytes([high, low]))
    }

    pub(super) fn parse(&mut self, payload: &[u8]) -> Option<Operation> {
        let operation = Operation::parse(payload);
        self.malformed += u64::from(operation.is_none());
        operation
    }

    pub(super) fn size(&mut self) -> usize {
        let bound = u64::try_from(self.config.reply_max).expect("small") + 1;
        usize::try_from(self.draw() % bound).expect("small")
    }

    /// Checks that the connection works and Redis is not busy.
    pub(super) fn reach(&mut self, link: Option<Link>) -> Result<Link, StoreError> {
        let link = link.ok_or_else(|| retry("not connected"))?;
        if link.at != self.address && self.closed {
            return Err(retry("the connection was closed"));
        }
        if self.now < self.stuck_until {
            return Err(retry("BUSY"));
        }
        Ok(link)
    }

    /// Gives up a connection. Redis will execute this command later.
    fn give_up(&mut self, at: usize, command: Command, guard: Guard) {
        let calls_left = self.draw() % LATE_CALLS_MAX;
        let late = &mut self.instances[at].late;
        if late.len() < LATE_MAX {
            // Commands of one connection keep their order.
            late.push(Late {
                command,
                guard,
                calls_left,
            });
        }
    }

    /// Executes the commands that were given up and are due.
    pub(super) fn run_late(&mut self) {
        if self.instances.iter().all(|i| i.late.is_empty()) || self.now < self.stuck_until {
            return;
        }
        for at in 0..self.instances.len() {
            let waiting = std::mem::take(&mut self.instances[at].late);
            for mut late in waiting {
                if late.calls_left > 0 {
                    late.calls_left -= 1;
                    self.instances[at].late.push(late);
                } else {
                    self.late(at, &late);
                }
            }
        }
    }

    fn late(&mut self, at: usize, late: &Late) {
        let fenced = !late.guard.admits(&self.instances[at].data) && !self.breaks(Place::Fenced);
        let happened = match fenced {
            true => "store: late and fenced",
            false => "store: late and executed",
        };
        if !matches!(late.command, Command::Claim { .. }) {
            *self.happened.entry(happened).or_default() += 1;
        }
        match &late.command {
            Command::Claim { before, owner } => {
                let data = &mut self.instances[at].data;
                if data.owner == *before {
                    data.owner = *owner;
                }
            }
            Command::Batch(batch) if !fenced => {
                self.batch(at, batch);
            }
            Command::Script(request) if !fenced => {
                self.step += 1;
                if let Some(operation) = self.parse(&request.payload) {
                    let step = (self.step, 0);
                    self.instances[at].script(operation, request, None, true, step);
                }
            }
            _ => {}
        }
    }

    /// Applies the effects and records of a batch as one transaction; returns false if it was torn.
    pub(super) fn batch(&mut self, at: usize, batch: &Batch) -> bool {
        self.step += 1;
        let step = self.step;
        for payload in &batch.effects {
            if self.is_taken_for_another(payload) {
                continue;
            }
            if let Some(operation) = self.parse(payload) {
                self.instances[at].data.effect(operation, step);
                if !self.config.steps {
                    // This draw keeps the runs of regression seeds unchanged.
                    self.size();
                }
            }
        }
        if self.breaks(Place::AtomicApply) && self.draw().is_multiple_of(TORN_EVERY) {
            return false;
        }
        for (key, value) in &batch.records {
            self.instances[at].data.change(key, value.clone(), step);
        }
        true
    }

    /// From now on the replica gets no changes.
    fn leave_behind(&mut self, at: usize) {
        let data = self.instances[at].data.clone();
        self.instances[at].behind.get_or_insert(data);
    }

    /// Checks that a write is as durable as configured before it is reported.
    fn durable(
        &mut self,
        at: usize,
        what: Place,
        trouble: Option<Trouble>,
    ) -> Result<(), StoreError> {
        let broken = self.breaks(Place::Replicas) || self.breaks(what);
        // A replaced master has no replica any more, and a master whose replica is cut off waits for the replica
        // without success.
        let alone = self.config.wait && (at != self.address || self.link_down);
        if (alone || trouble == Some(Trouble::NotReplicated)) && !broken {
            return Err(retry(Trouble::NotReplicated.words()));
        }
        if !self.link_down && !broken {
            self.instances[at].behind = None;
        }
        Ok(())
    }

    /// Whether the records belong to this process.
    pub(super) fn is_of(&self, process: u64) -> bool {
        self.data().owner >> PROCESS_SHIFT == process
    }

    /// Reads the records. `was`: the process knows that it once owned them.
    pub(super) fn load(
        &mut self,
        process: u64,
        was: bool,
    ) -> Result<(Link, Vec<(RecordKey, Bytes)>), StoreError> {
        let at = self.address;
        self.reach(Some(Link {
            at,
            guard: Guard::default(),
            owns: false,
        }))?;
        let trouble = match self.packets {
            Some(_) => {
                self.load_packets()?;
                None
            }
            None => self.trouble(),
        };
        self.owners += 1;
        let owner = process << PROCESS_SHIFT | self.owners;
        let mut link = Link {
            at,
            owns: true,
            guard: Guard {
                owner,
                watermark: self.data().watermark(),
            },
        };
        match trouble {
            Some(Trouble::Late) => {
                let claim = Command::Claim {
                    before: self.data().owner,
                    owner,
                };
                self.give_up(at, claim, link.guard);
            }
            // While Redis refuses writes, a load only reads the records. A process that never owned the records does
            // not read them in this state. The previous owner may still write, and this process would not learn of it.
            Some(Trouble::WritesRefused)
                if !self.config.wait && (was || self.breaks(Place::OwnRecords)) =>
            {
                link.owns = false;
            }
            None | Some(Trouble::ReplyLost | Trouble::ScriptFails | Trouble::HalfWay) => {
                self.master().data.owner = link.guard.owner;
            }
            Some(Trouble::NotReplicated) => {
                self.leave_behind(at);
                self.master().data.owner = link.guard.owner;
            }
            Some(_) => {}
        }
        match trouble {
            Some(Trouble::WritesRefused) if !link.owns => {}
            Some(trouble) => return Err(retry(trouble.words())),
            None => self.durable(at, Place::ReplicasLoad, None)?,
        }
        let records = self.data().records.iter();
        let records = records.map(|(k, v)| (k.clone(), v.clone())).collect();
        Ok((link, records))
    }

    pub(super) fn apply(&mut self, link: &mut Link, batch: &Batch) -> Result<(), StoreError> {
        if self.packets.is_some() {
            return self.apply_to_packets(link, batch);
        }
        let at = link.at;
        let trouble = self.trouble();
        match trouble {
            None | Some(Trouble::ReplyLost | Trouble::ScriptFails | Trouble::HalfWay) => {}
            Some(Trouble::NotReplicated) => self.leave_behind(at),
            Some(trouble) => {
                if trouble == Trouble::Late {
                    self.give_up(at, Command::Batch(batch.clone()), link.guard);
                }
                return Err(retry(trouble.words()));
            }
        }
        let whole = self.batch(at, batch);
        link.guard.watermark = self.instances[at].data.watermark();
        match trouble {
            None if whole => self.durable(at, Place::ReplicasApply, None),
            Some(Trouble::NotReplicated) => self.durable(at, Place::ReplicasApply, trouble),
            _ => Err(retry("the reply was lost")),
        }
    }

    pub(super) fn execute(
        &mut self,
        link: Link,
        requests: &[Request],
        replies: &mut Vec<Bytes>,
    ) -> Result<(), StoreError> {
        if self.packets.is_some() {
            return self.execute_in_packets(link, requests, replies);
        }
        let at = link.at;
        let mut group: Vec<Bytes> = Vec::new();
        let (mut wrote, mut durable) = (false, None);
        for (index, request) in requests.iter().enumerate() {
            let ends = !self.config.steps || self.draw().is_multiple_of(GROUP_EVERY);
            if ends && !group.is_empty() {
                if wrote {
                    self.durable(at, Place::ReplicasExecute, durable)?;
                }
                replies.append(&mut group);
            }
            let Some(operation) = self.parse(&request.payload) else {
                group.push(Bytes::new());
                continue;
            };
            if operation.act != Act::Fence {
                self.asked.push(Asked::Begun(operation.id));
            }
            if operation.act == Act::Hang {
                let hang = 1 + self.draw() % HANG_MAX;
                self.stuck_until = self.now + hang;
                *self
                    .happened
                    .entry("store: code that never ends")
                    .or_default() += 1;
                return Err(retry("no answer"));
            }
            let trouble = self.trouble();
            let guard = link.guard;
            let admitted = self.breaks(Place::OneServer) || guard.admits(&self.instances[at].data);
            if request.record.is_some() && !admitted {
                return Err(StoreError::Fatal(TOOK_OVER.to_owned()));
            }
            if trouble == Some(Trouble::NotReplicated) {
                self.leave_behind(at);
                durable = trouble;
            }
            self.step += 1;
            let record_first = !self.breaks(Place::RecordFirst);
            let size = match trouble {
                Some(Trouble::Unreached) => 0,
                _ => self.size(),
            };
            let step = (self.step, size);
            match self.instances[at].script(operation, request, trouble, record_first, step) {
                Ran::Replied(reply) => group.push(reply.bytes(size)),
                Ran::NoReply(words) => {
                    // The server's connection is abandoned. The following commands were already sent on this
                    // connection.
                    let is_late = trouble == Some(Trouble::Late);
                    let from = index + usize::from(!is_late);
                    if self.config.steps && (is_late || self.draw().is_multiple_of(2)) {
                        let late = requests[from..].iter().filter(|r| r.record.is_some());
                        for request in late {
                            self.give_up(at, Command::Script(request.clone()), guard);
                        }
                    }
                    return Err(retry(words));
                }
            }
            wrote |= request.record.is_some();
        }
        if wrote {
            self.durable(at, Place::ReplicasExecute, durable)?;
        }
        replies.append(&mut group);
        Ok(())
    }
}
