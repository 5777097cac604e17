//! The chain of a shard: its members and its epoch (`docs/spec/protocol.md` §5).
//!
//! A change of the chain is durable in the store before any device hears of it. [`decide`] is a pure function of the
//! record and the path of a RECOVER.

use super::decide::{Decision, Reason, decide, lives_on};
use super::{Doubt, Server};
use crate::keys::{HopKeys, Seal};
use crate::rules::Rule;
use crate::{Outbox, Peer};
use bytes::Bytes;
use pmnet_wire::packet::{self, Fragment, Recover, Stamp};
use pmnet_wire::record::{
    KEYED_ROWS_PER_PART, Member, RecoverReply, SESSION_ROWS_PER_PART, SessionRow, read_path,
    shard_size,
};
use pmnet_wire::{FRAGMENT_BYTES_MIN, FragmentSize, Header, Life, Packet};
use rustc_hash::FxHashMap;
use std::mem::{Discriminant, discriminant};

/// The chain of one epoch, head first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Epoch, from 1.
    pub epoch: u32,
    /// Token in every packet between hops of the shard.
    pub shard_token: u64,
    /// Devices, head first, with the log identity and incarnation that they registered.
    pub members: Vec<Member>,
    /// Name of the store to which this epoch's records were first written; empty: the store has no name.
    pub store: Bytes,
}

fn smaller(next: &Chain) -> String {
    format!(
        "PM2604 epoch {}: a path between devices and server carries less than before. From now on a message is cut into packets with \
         {} bytes of it",
        next.epoch,
        shard_size(&next.members)
    )
}

/// How a RECOVER is refused: permanently, until the operator acts, or until the device has erased its log.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Refusal {
    Final,
    Held,
    Erase,
}

/// A RECOVER that is answered once the new chain record is durable.
#[derive(Debug)]
pub(super) struct PendingRecover {
    from: Peer,
    header: Header,
}

/// A copy of the session table, which one recovering device requests in parts.
#[derive(Debug)]
pub(super) struct Snapshot {
    nonce: u64,
    epoch: u32,
    applied: u64,
    rows: Vec<SessionRow>,
    /// Number of session rows in a part. The number is smaller if any row names its front.
    per_part: usize,
}

/// Counts refused RECOVERs of the present epoch, for each device and each kind of reason. A host that has recorded old
/// RECOVERs can repeat them, so the operator is told of the same refusal more and more rarely. A new kind of reason is
/// told at once, so that repeated packets cannot hide that a device has lost its log.
#[derive(Debug, Default)]
pub(super) struct Refused {
    epoch: u32,
    counts: FxHashMap<(u32, Discriminant<Reason>), u64>,
}

impl Refused {
    /// Counts a refusal. If the operator must be told, returns the number of refusals of this device for this kind of
    /// reason in this epoch. If [`REFUSED_MAX`] rows are in use, all further devices share one row for each kind of
    /// reason.
    fn again(&mut self, epoch: u32, device: u32, why: &Reason) -> Option<u64> {
        if self.epoch != epoch {
            self.epoch = epoch;
            self.counts.clear();
        }
        let why = discriminant(why);
        let is_known = self.counts.contains_key(&(device, why)) || self.counts.len() < REFUSED_MAX;
        let device = if is_known { device } else { OTHER_DEVICES };
        let count = self.counts.entry((device, why)).or_default();
        *count += 1;
        count.is_power_of_two().then_some(*count)
    }
}

/// Maximum number of rows for single devices. Each kind of reason can have one more row, for all other devices.
const REFUSED_MAX: usize = 64;
/// Number in place of a device id in the row of all other devices. No device has this id.
const OTHER_DEVICES: u32 = 0;
const SNAPSHOTS_MAX: usize = 8;
const PENDING_MAX: usize = 64;

impl Server {
    pub(super) fn on_recover(&mut self, from: Peer, packet: &Packet<'_>, out: &mut Outbox) {
        let header = packet.header;
        let Some(path) = read_path(packet.payload).filter(|path| {
            path[0].device == header.device
                && path[0].incarnation == header.incarnation
                && header.device != 0
        }) else {
            self.counters.dropped += 1;
            return;
        };
        let nonce = Recover::read(&header).nonce;
        let epoch = self.epoch();
        if self
            .recovers
            .snapshots
            .iter()
            .any(|snapshot| snapshot.nonce == nonce && snapshot.epoch == epoch)
        {
            self.reply_recover(from, &header, out);
            return;
        }
        if self.recovers.next_chain.is_some() || self.recovers.pending.len() >= PENDING_MAX {
            // Another change of the chain is under way, or too many devices wait for an answer. The device asks again.
            return;
        }
        let mut path = self.as_registered(path);
        for came in &mut path {
            came.size = came.size.min(self.path);
        }
        let members = self.members_as_judged();
        let members = &members[..];
        let had_sessions = !self.sessions.is_empty() || !self.entries.queue.is_empty();
        let decision = decide(members, &path, epoch, self.entries.applied, had_sessions);
        let from_memory = match &decision {
            Decision::Refuse(_) | Decision::Erase(_) => true,
            Decision::Keep(kept) => kept == members,
            // A change needs no doubt: the record is written first, which also checks the records. The device asks
            // again meanwhile.
            Decision::Change { .. } | Decision::Hold(_) | Decision::Wait => false,
        };
        if from_memory
            && self.config.rules.hold(Rule::FreshRecords)
            && !self.doubts.is_settled(Doubt::Recover(nonce))
        {
            return;
        }
        match decision {
            Decision::Refuse(why) => {
                let text = why.to_string();
                self.tell_refused(header.device, &why, &text);
                self.refuse(from, &header, Refusal::Final, &text, out);
            }
            Decision::Hold(why) => {
                self.refuse(from, &header, Refusal::Held, &why.to_string(), out);
            }
            Decision::Erase(why) => {
                self.refuse(from, &header, Refusal::Erase, &why.to_string(), out);
            }
            Decision::Wait => {}
            Decision::Keep(kept) if kept == members => {
                self.take_snapshot(nonce);
                self.reply_recover(from, &header, out);
            }
            Decision::Keep(kept) => {
                let next = self.with_news(kept);
                self.write_first(next, PendingRecover { from, header });
            }
            Decision::Change { members, notice } => {
                self.notice(notice.to_string());
                let next = self.new_chain(members);
                self.write_first(next.clone(), PendingRecover { from, header });
                if !self.config.rules.hold(Rule::ServerFirst) {
                    self.enter(Some(next));
                    self.take_snapshot(nonce);
                    self.reply_recover(from, &header, out);
                }
            }
        }
    }

    /// Tells the operator that a device was refused for this reason. The same refusal is told more and more rarely.
    fn tell_refused(&mut self, device: u32, why: &Reason, text: &str) {
        let Some(count) = self.recovers.refused.again(self.epoch(), device, why) else {
            return;
        };
        let perhaps = if self.config.keys.is_some() {
            ". If that device serves, nothing is wrong with it: a host repeats an old packet of it"
        } else {
            ""
        };
        self.notice(format!(
            "PM2601 refused device {device} (refusal {count} for this reason in this epoch): {text}{perhaps}"
        ));
    }

    /// Returns the present chain with these new rows of its members.
    fn with_news(&mut self, members: Vec<Member>) -> Chain {
        let present = self.chain.as_ref().expect("kept members are of a chain");
        let size = shard_size(&present.members);
        let mut next = Chain {
            members,
            ..present.clone()
        };
        if shard_size(&next.members) < size {
            // The other devices and the clients must learn the smaller size, so a new epoch begins.
            next.epoch += 1;
            next.store = self.store.clone();
            self.notice(smaller(&next));
        }
        next
    }

    /// Returns the chain of the next epoch with these members.
    fn new_chain(&mut self, members: Vec<Member>) -> Chain {
        let shard_token = match &self.chain {
            Some(chain) => chain.shard_token,
            None => self.random.next_nonzero(),
        };
        Chain {
            epoch: self.epoch() + 1,
            shard_token,
            members,
            store: self.store.clone(),
        }
    }

    /// Queues the write of the chain record `next`. The device that asks gets its answer when the record is durable.
    fn write_first(&mut self, next: Chain, asks: PendingRecover) {
        self.recovers.next_chain = Some(next);
        self.recovers.pending.push_back(asks);
    }

    /// Returns the members of the present chain. Without [`Rule::Synced`], no member appears as joined, so none has to
    /// catch up.
    fn members_as_judged(&self) -> Vec<Member> {
        let chain = self.chain.as_ref();
        let mut members = chain.map_or_else(Vec::new, |chain| chain.members.clone());
        if !self.config.rules.hold(Rule::Synced) {
            for member in &mut members {
                member.flags &= !Member::JOINED;
            }
        }
        members
    }

    /// Returns the path without flags that only the chain record may set. Without [`Rule::LogIdentity`],
    /// [`Rule::Incarnation`], [`Rule::EraseOnJoin`], [`Rule::LastMember`] or [`Rule::WordEpoch`], the path gets
    /// statements that its devices did not make. Without [`Rule::StandsStill`], the log of the device before a joiner
    /// appears as short as it was registered.
    fn as_registered(&self, mut path: Vec<Member>) -> Vec<Member> {
        let rules = self.config.rules;
        let members = self.chain.as_ref().map_or(&[][..], |chain| &chain.members);
        let epoch = self.epoch();
        let is_member = |device| members.iter().any(|member| member.device == device);
        let nobody_stays = !members.is_empty() && !path.iter().any(|came| is_member(came.device));
        if nobody_stays && path[0].flags & Member::JOIN == 0 && !rules.hold(Rule::LastMember) {
            path[0].flags |= Member::DECLARE_LOSS;
            path[0].word_epoch = epoch;
        }
        let somebody_joins = path.iter().any(|came| !is_member(came.device));
        for came in &mut path {
            if !rules.hold(Rule::WordEpoch) {
                came.word_epoch = epoch;
            }
            // Only the chain record may set this flag.
            came.flags &= !Member::JOINED;
            let joins = came.flags & Member::JOIN != 0;
            if joins
                && !rules.hold(Rule::EraseOnJoin)
                && members.iter().all(|m| m.device != came.device)
            {
                (came.tail, came.applied) = (0, 0);
            }
            if let Some(registered) = members.iter().find(|m| m.device == came.device) {
                if somebody_joins && !rules.hold(Rule::StandsStill) {
                    came.tail = came.tail.min(registered.tail);
                }
                if !rules.hold(Rule::LogIdentity) {
                    came.log_uuid = registered.log_uuid;
                }
                let any_life = !rules.hold(Rule::LogIdentity) || !rules.hold(Rule::Incarnation);
                if any_life && !lives_on(registered, came) {
                    came.incarnation = came.incarnation.max(registered.incarnation);
                    came.served = came.served.max(registered.served);
                }
            }
        }
        path
    }

    fn refuse(&self, to: Peer, asked: &Header, how: Refusal, text: &str, out: &mut Outbox) {
        let text = &text.as_bytes()[..text.len().min(FRAGMENT_BYTES_MIN)];
        let refused = packet::RecoverReply {
            applied: 0,
            nonce: Recover::read(asked).nonce,
            payloads: 0,
            part: Fragment::WHOLE,
            refused: true,
            held: how != Refusal::Final,
            erase: how == Refusal::Erase,
            reads: false,
        };
        let refused = refused.header(&self.stamp_for(asked));
        out.seal(self.asking_seal(), to, &refused, text);
    }

    /// The new chain record is durable. From now on the devices may be told the new chain.
    pub(super) fn chain_written(&mut self, chain: Chain, out: &mut Outbox) {
        self.enter(Some(chain));
        self.recovers.next_chain = None;
        for pending in std::mem::take(&mut self.recovers.pending) {
            self.take_snapshot(Recover::read(&pending.header).nonce);
            self.reply_recover(pending.from, &pending.header, out);
        }
    }

    /// Makes the chain of the store's record the present chain, after this process has written or read the record.
    /// Forgets what came in packets of an earlier epoch.
    pub(super) fn enter(&mut self, chain: Option<Chain>) {
        let epoch = chain.as_ref().map_or(0, |chain| chain.epoch);
        let head = |chain: &Chain| {
            let head = chain.members.first()?;
            Some((head.device, head.incarnation))
        };
        let other_head = chain.as_ref().and_then(head) != self.chain.as_ref().and_then(head);
        if epoch > self.epoch() || other_head {
            self.room.clear();
        }
        if epoch > self.epoch() {
            self.tail = None;
        }
        self.chain = chain;
        self.derive_hop_keys();
    }

    /// Derives the server's keys with the tail, in the present epoch.
    pub(super) fn derive_hop_keys(&mut self) {
        let members = self.chain.as_ref().map_or(&[][..], |chain| &chain.members);
        let life = Life {
            shard: self.config.shard,
            token: self.chain.as_ref().map_or(0, |chain| chain.shard_token),
        };
        let epoch = self.epoch();
        let keys = self.config.keys.as_ref();
        self.keys = keys.map(|keys| HopKeys::new(keys, life, epoch, members, members.len()));
    }

    /// Returns the seal of recover-replies.
    fn asking_seal(&self) -> Seal {
        let keys = self.config.keys.as_ref();
        Seal::of(keys.map(|keys| keys.present.asking(self.config.shard, 0)))
    }

    /// **Another store, another epoch**: before a store executes anything, its records must name an epoch that began in
    /// this store. The previous store may still run and answer readers, but its records name an earlier epoch (reads.md
    /// §3).
    pub(super) fn leave_other_store(&mut self) {
        let Some(chain) = &self.chain else { return };
        if chain.store == self.store || !self.config.rules.hold(Rule::StoreEpoch) {
            return;
        }
        let epoch = chain.epoch + 1;
        let decided = self.recovers.next_chain.take();
        let next = Chain {
            epoch,
            store: self.store.clone(),
            ..decided.unwrap_or_else(|| chain.clone())
        };
        self.notice(format!(
            "PM2602 epoch {}: the store is another process than the one before",
            next.epoch
        ));
        self.recovers.next_chain = Some(next);
    }

    /// **The next epoch, with the same members**: begins if `epoch` is the present epoch and no other change is
    /// pending. Afterwards a device cannot join by a report from the old epoch, and an operator's statement for the old
    /// epoch no longer counts (protocol.md §14).
    pub fn end_epoch(&mut self, epoch: u32) {
        let Some(chain) = self.chain.as_ref().filter(|chain| chain.epoch == epoch) else {
            return;
        };
        if !self.loaded || self.recovers.next_chain.is_some() {
            return;
        }
        let next = Chain {
            epoch: epoch + 1,
            store: self.store.clone(),
            ..chain.clone()
        };
        self.notice(format!(
            "PM2603 epoch {}: the chain stays; a device that was to join was lost meanwhile",
            next.epoch
        ));
        self.recovers.next_chain = Some(next);
    }

    /// A device asks to belong to the chain, over a path that carries `size`. The server's own size is at most this
    /// size when it judges the question.
    pub fn asked_by(&mut self, size: FragmentSize) {
        self.path = self.path.min(size);
    }

    /// Sets the size of the largest fragments that the server's path to the tail carries. If this size is smaller than
    /// the shard's size, the next epoch begins, with the same members and the smaller size (protocol.md §7).
    pub fn set_path(&mut self, size: FragmentSize) {
        let size = size.min(self.config.size_max);
        self.path = size;
        let Some(chain) = &self.chain else { return };
        if size >= shard_size(&chain.members) || !self.loaded || self.recovers.next_chain.is_some()
        {
            return;
        }
        let mut next = Chain {
            epoch: chain.epoch + 1,
            store: self.store.clone(),
            ..chain.clone()
        };
        for member in &mut next.members {
            member.size = member.size.min(size);
        }
        self.notice(smaller(&next));
        self.recovers.next_chain = Some(next);
    }

    fn take_snapshot(&mut self, nonce: u64) {
        if self.recovers.snapshots.len() == SNAPSHOTS_MAX {
            self.recovers.snapshots.pop_front();
        }
        let mut rows: Vec<SessionRow> = self
            .sessions
            .iter()
            .map(|(&session, s)| SessionRow {
                session,
                last_seq: s.last_seq,
                token: s.token,
                front: s.front,
            })
            .collect();
        rows.sort_unstable_by_key(|row| row.session);
        let per_part = if rows.iter().any(|row| row.front.is_some()) {
            KEYED_ROWS_PER_PART
        } else {
            SESSION_ROWS_PER_PART
        };
        self.recovers.snapshots.push_back(Snapshot {
            nonce,
            epoch: self.epoch(),
            applied: self.entries.applied,
            rows,
            per_part,
        });
    }

    /// Returns the stamp of a recover-reply. The stamp names the device that recovers, and has no shard token. An
    /// accepted device learns the token from the payload, and a refused device must not learn it.
    fn stamp_for(&self, asked: &Header) -> Stamp {
        Stamp {
            device: asked.device,
            incarnation: asked.incarnation,
            ..self.stamp().tagged(0)
        }
    }

    fn reply_recover(&mut self, to: Peer, asked: &Header, out: &mut Outbox) {
        let Some(chain) = &self.chain else { return };
        let Recover { nonce, part, .. } = Recover::read(asked);
        let Some(snapshot) = self
            .recovers
            .snapshots
            .iter()
            .find(|snapshot| snapshot.nonce == nonce && snapshot.epoch == self.epoch())
        else {
            return;
        };
        let per_part = snapshot.per_part;
        let parts = snapshot.rows.len().div_ceil(per_part).max(1);
        // If the device asks for a part that this snapshot does not have, it knows a longer snapshot from an earlier
        // process of this server. The answer is then the first part, which states the present number of parts. Without
        // an answer the device would ask for ever.
        let asked_index = usize::from(part.index);
        let index = if asked_index < parts { asked_index } else { 0 };
        let start = index * per_part;
        let end = (start + per_part).min(snapshot.rows.len());
        let reply = RecoverReply {
            shard_token: chain.shard_token,
            members: chain.members.clone(),
            sessions: snapshot.rows[start..end].to_vec(),
        };
        let header = packet::RecoverReply {
            applied: snapshot.applied,
            nonce,
            payloads: self.takes.on_wire(),
            part: Fragment {
                index: u16::try_from(index).unwrap_or(u16::MAX),
                count: u16::try_from(parts).unwrap_or(u16::MAX),
            },
            refused: false,
            held: false,
            erase: false,
            reads: true,
        };
        let header = header.header(&self.stamp_for(asked));
        out.seal(self.asking_seal(), to, &header, &reply.write());
    }
}
