//! The chain of a shard: who belongs to it, in which epoch (`docs/spec/protocol.md` §5).
//!
//! The server goes first: a change of the chain is durable in the store before any device hears
//! of it. [`decide`] is a pure function of the record and the path that a RECOVER came along.

use super::{Doubt, Server};
use crate::rules::Rule;
use crate::{Outbox, Peer};
use bytes::Bytes;
use pmnet_wire::packet::{self, Fragment, Recover, Stamp};
use pmnet_wire::record::{
    CHAIN_MAX, Member, RecoverReply, SESSION_ROWS_PER_PART, SessionRow, read_path, shard_size,
};
use pmnet_wire::{FRAGMENT_BYTES_MIN, FragmentSize, Header, Packet};

/// The chain of one epoch, head first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Epoch, from 1.
    pub epoch: u32,
    /// Token in every packet between hops.
    pub shard_token: u64,
    /// Devices, head first, with the log identity and incarnation that they registered.
    pub members: Vec<Member>,
    /// The store that this epoch's records were written to first, as it calls itself; empty: it has no name.
    pub store: Bytes,
}

/// What a RECOVER means for the chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The chain stands; its record may have a new incarnation to remember.
    Keep(Vec<Member>),
    /// A new epoch with these members.
    Change {
        /// Devices, head first.
        members: Vec<Member>,
        /// What an operator should read.
        notice: String,
    },
    /// Not to be decided yet: a device on the path has restarted and must register first. No
    /// answer is given; the device asks again.
    Wait,
    /// Not without an order of the operator; the device goes on asking, and says what it waits for.
    Hold(String),
    /// The same; it is no member, and before it joins it erases its log.
    Erase(String),
    /// The device must not serve; the text says why and what to do.
    Refuse(String),
}

/// Whether the log of this device can be the one that it registered, as it was then or later. An old
/// copy is recognised by the last incarnation in which it was marked to serve, however often it was
/// started since: the server registered the newer mark before the device served.
const fn lives_on(registered: &Member, now: &Member) -> bool {
    registered.incarnation <= now.incarnation && registered.served <= now.served
}

/// Whether this member holds everything that was acknowledged in earlier epochs and is not applied. One that has
/// joined does once it has, or the store has, everything up to the order that its record names. `tail`: how far its
/// log is.
const fn is_synced(registered: &Member, tail: u64, applied: u64) -> bool {
    let joined = registered.flags & Member::JOINED != 0;
    !joined || applied >= registered.tail || tail >= registered.tail
}

/// The members on a path, as the record is to have them: in their present lives, and with what they must hold.
fn on_path(members: &[Member], path: &[Member]) -> Vec<Member> {
    let with_need = |came: &Member| {
        let joined = |m: &&Member| m.device == came.device && m.flags & Member::JOINED != 0;
        members
            .iter()
            .find(joined)
            .map_or(*came, |registered| Member {
                tail: registered.tail,
                flags: came.flags | Member::JOINED,
                ..*came
            })
    };
    path.iter().map(with_need).collect()
}

/// Whether these devices are members, in the order of the chain.
fn is_part(members: &[Member], path: &[Member]) -> bool {
    let mut rest = members.iter();
    path.iter()
        .all(|came| rest.any(|member| member.device == came.device))
}

/// Decides about a path that ends with devices that are no members and are to join, `joiners`. Whoever is before them
/// on the path has the log that is registered.
fn decide_join(
    members: &[Member],
    before: &[Member],
    joiners: &[Member],
    epoch: u32,
    applied: u64,
) -> Decision {
    let ids = |list: &[Member]| list.iter().map(|member| member.device).collect::<Vec<_>>();
    let chain = ids(members);
    let ready = |joiner: &Member| {
        let empty = joiner.tail == 0 && joiner.applied == 0;
        let marked = joiner.served == joiner.incarnation;
        empty && marked && joiner.word_epoch == epoch
    };
    let (Some(origin), Some(last)) = (before.first(), before.last()) else {
        let joiner = joiners[0];
        let id = joiner.device;
        if joiner.applied > applied {
            return Decision::Refuse(format!(
                "device {id} is to join the chain {chain:?}, but its log knows that orders up to {} were applied, and \
                 the store's watermark is {applied}: it is the log of another shard, or the store lost data. Nothing \
                 was erased. Correct --next, or give another --log.",
                joiner.applied
            ));
        }
        if !ready(&joiner) {
            return Decision::Erase(format!(
                "device {id} is no member of the chain {chain:?}: it joins with an empty log, and erases what it has."
            ));
        }
        return Decision::Hold(format!(
            "device {id} is ready to join the chain {chain:?}, its log is empty. Now start the chain's last device \
             again, with --next to this one."
        ));
    };
    if !is_part(members, before) {
        return Decision::Refuse(format!(
            "the path {:?} does not fit the chain {chain:?}, which {:?} are to join at its end: check --next and --id of \
             the devices.",
            ids(before),
            ids(joiners)
        ));
    }
    let says_so = origin.flags & Member::SHRINK != 0 && origin.word_epoch == epoch;
    if !says_so && !chain.ends_with(&ids(before)) {
        return Decision::Hold(format!(
            "the path of device {} leaves out members of the chain {chain:?}. If they are stopped for good, start the \
             first device that is left, the new head, with --shrink-chain; otherwise correct --next.",
            origin.device
        ));
    }
    if let Some(joiner) = joiners.iter().find(|joiner| !ready(joiner)) {
        return Decision::Hold(format!(
            "device {}, behind this one, is no member of the chain {chain:?} yet, and its log is not known to be \
             empty: it has not asked the server itself in this epoch. Does it run, with --join?",
            joiner.device
        ));
    }
    let known = |member: &Member| members.iter().find(|m| m.device == member.device);
    if says_so
        && let Some(registered) = known(origin)
        && !is_synced(registered, origin.tail, applied)
    {
        return Decision::Hold(lacks(registered, origin, &chain, applied));
    }
    if last.flags & Member::SERVING != 0 {
        // What the joiner must hold is not known from a log that goes on.
        return Decision::Hold(format!(
            "{:?} would join behind device {}, whose log goes on while it asks: it serves, or it was taken over in the \
             kernel. Take it out of the kernel with its log (stop it with --spill FILE), then start it again.",
            ids(joiners),
            last.device
        ));
    }
    if before
        .iter()
        .any(|member| known(member).is_some_and(|m| !lives_on(m, member)))
    {
        return Decision::Wait;
    }
    let kept = if says_so {
        0
    } else {
        members.len() - before.len()
    };
    let mut after = members[..kept].to_vec();
    after.extend(on_path(members, before));
    if after.len() + joiners.len() > CHAIN_MAX {
        return Decision::Hold(format!(
            "a chain has at most {CHAIN_MAX} devices: {:?} cannot join {chain:?}.",
            ids(joiners)
        ));
    }
    // What was acknowledged until now is in the log of the device before them, which stands still, or it must get there
    // first, or it is applied.
    let owed = known(last).filter(|m| m.flags & Member::JOINED != 0);
    let needs = last
        .tail
        .max(applied)
        .max(owed.map_or(0, |member| member.tail));
    after.extend(joiners.iter().map(|joiner| Member {
        tail: needs,
        flags: joiner.flags | Member::JOINED,
        ..*joiner
    }));
    let notice = format!(
        "chain {chain:?} becomes {:?}; who joins does not count as a copy of what was acknowledged before until it has \
         everything up to order {needs} (applied: {applied})",
        ids(&after)
    );
    Decision::Change {
        members: after,
        notice,
    }
}

/// Why a device that has joined may not be the head.
fn lacks(registered: &Member, now: &Member, chain: &[u32], applied: u64) -> String {
    format!(
        "device {} has joined the chain {chain:?} lately and ends at order {}, but it must have everything up to {}, \
         which was acknowledged before it joined, and the store has applied {applied} only. Start a member that was \
         there before it. If none is left, what is missing is lost: --declare-data-loss.",
        now.device, now.tail, registered.tail
    )
}

/// Decides what the RECOVER of `path[0]` means, given the members of the present chain (none: the
/// shard is new), their epoch, how far the store has applied, and whether it has ever had a session.
#[must_use]
pub fn decide(
    members: &[Member],
    path: &[Member],
    epoch: u32,
    applied: u64,
    had_sessions: bool,
) -> Decision {
    let ids = |list: &[Member]| list.iter().map(|member| member.device).collect::<Vec<_>>();
    let origin = path[0];
    let virgin = applied == 0 && !had_sessions;
    // An order of the operator is valid in one epoch. Repeated, or late, it has no effect.
    let says = |flag| origin.flags & flag != 0 && origin.word_epoch == epoch;
    let declared = says(Member::DECLARE_LOSS);
    if members.is_empty() {
        if origin.flags & Member::JOIN != 0 && !declared {
            return Decision::Hold(format!(
                "device {} is to join a chain, but this shard has none: check --next, start the chain's other devices \
                 first, or start this one without --join.",
                origin.device
            ));
        }
        if !declared
            && path
                .iter()
                .any(|member| member.tail > 0 || member.applied > 0)
        {
            return Decision::Refuse(format!(
                "the store has no watermark, but device {} has a log with orders up to {}: the store is empty or was \
                 emptied. Restore it, or point the device at the store that it belongs to.",
                origin.device, origin.tail
            ));
        }
        if !declared && !virgin {
            return Decision::Refuse(format!(
                "the store has sessions or a watermark (orders up to {applied} are applied) but no record of its \
                 chain: records were deleted behind the server's back. Restore the store."
            ));
        }
        let notice = format!("new shard, chain {:?}", ids(path));
        return Decision::Change {
            members: path.to_vec(),
            notice,
        };
    }
    let known = |member: &Member| members.iter().find(|m| m.device == member.device);
    let same_log = |member: &Member| known(member).is_some_and(|m| m.log_uuid == member.log_uuid);
    if let Some(registered) = known(&origin)
        && !declared
    {
        if registered.log_uuid != origin.log_uuid {
            return Decision::Refuse(format!(
                "device {} comes with another log than the one it registered: its medium was lost, replaced or \
                 swapped. Put the right log back. If it is gone for good: start another member with --shrink-chain, \
                 or, if there is none, this one with --declare-data-loss.",
                origin.device
            ));
        }
        if !lives_on(registered, &origin) {
            return Decision::Refuse(format!(
                "device {} comes with incarnation {} (served in {}) but has registered {} (served in {}): its log was rolled back to an old copy, \
                 which may miss acknowledged updates. Put the newest log back, or treat the device as lost.",
                origin.device,
                origin.incarnation,
                origin.served,
                registered.incarnation,
                registered.served
            ));
        }
        if origin.applied > applied {
            return Decision::Refuse(format!(
                "device {} knows that orders up to {} were applied, but the store's watermark is {applied}. Before you \
                 restore anything: does the server's --store lead to this shard's store, and not to a replica, an old copy, \
                 or another shard's? If it is the right one, it lost data: restore it; with Redis set appendonly yes and \
                 appendfsync always.",
                origin.device, origin.applied
            ));
        }
    }
    let other_log = |member: &&Member| {
        known(member).is_some_and(|registered| registered.log_uuid != member.log_uuid)
    };
    if let Some(other) = path[1..].iter().find(other_log)
        && !declared
    {
        // Its own RECOVER will be refused; that is not the origin's fault.
        return Decision::Hold(format!(
            "device {} on the path comes with another log than the one it registered: put the right log back, or \
             start this device with another --next and --shrink-chain.",
            other.device
        ));
    }
    // Before the origin serves, its log stands still, and the next device's cannot be longer.
    if let [before, behind, ..] = path
        && !declared
        && before.flags & Member::SERVING == 0
        && same_log(before)
        && same_log(behind)
        && before.tail.max(applied) < behind.tail
    {
        if known(behind).is_some_and(|registered| !lives_on(registered, behind)) {
            // An old copy says nothing of the log before it. Its own RECOVER will be refused.
            return Decision::Hold(format!(
                "device {} on the path comes with an old copy of its log: put the newest log back, or treat it as lost, and \
                 start this device with another --next and --shrink-chain.",
                behind.device
            ));
        }
        return Decision::Refuse(format!(
            "the log of device {} ends at order {}, but that of device {}, which got everything from it, at {}: the \
             end of the first one was damaged, or it is an old copy. Put the newest log back, or treat the device as \
             lost.",
            before.device, before.tail, behind.device, behind.tail
        ));
    }
    // A follower that comes back is on a path without the devices before it, and nothing changes. The same
    // path with the operator's statement that they are stopped makes it the head: see below.
    let comes_back = origin.flags & Member::SHRINK == 0 || path.len() == members.len();
    // Checked above, unless a loss is declared. Then an old copy of the right log is a change too,
    // and must not be accepted as if nothing were missing.
    let whole = known(&origin).is_none_or(|m| lives_on(m, &origin)) && origin.applied <= applied;
    if whole && comes_back && ids(members).ends_with(&ids(path)) && path.iter().all(same_log) {
        let mut kept = members.to_vec();
        for member in &mut kept {
            if member.device == origin.device {
                (member.incarnation, member.served) = (origin.incarnation, origin.served);
            }
            if let Some(came) = path.iter().find(|came| came.device == member.device) {
                member.size = came.size;
            }
        }
        return Decision::Keep(kept);
    }
    if declared {
        let notice = format!(
            "DATA LOSS declared by the operator of device {}: chain {:?} replaced by {:?}; updates that were \
             acknowledged and not applied (orders above {applied}) are gone",
            origin.device,
            ids(members),
            ids(path)
        );
        return Decision::Change {
            members: path.to_vec(),
            notice,
        };
    }
    let joins = |member: &Member| known(member).is_none() && member.flags & Member::JOIN != 0;
    let joiners = path.iter().rev().take_while(|member| joins(member)).count();
    let (before, joiners) = path.split_at(path.len() - joiners);
    if !joiners.is_empty() {
        return decide_join(members, before, joiners, epoch, applied);
    }
    let forming = ids(path).ends_with(&ids(members));
    if forming {
        if virgin && path.iter().all(|member| member.tail == 0) {
            // An old path must not decide: what a device reported before its restart may no longer hold.
            if !path.iter().all(|member| {
                known(member)
                    .is_none_or(|m| m.incarnation == member.incarnation && lives_on(m, member))
            }) {
                return Decision::Wait;
            }
            if path
                .iter()
                .all(|member| known(member).is_none() || same_log(member))
            {
                let notice = format!("chain grows from {:?} to {:?}", ids(members), ids(path));
                return Decision::Change {
                    members: path.to_vec(),
                    notice,
                };
            }
        }
        return Decision::Refuse(format!(
            "device {} is not a member of the chain {:?}, which already holds data: a device joins a chain only \
             before its first session, or at its end, with --join.",
            origin.device,
            ids(members)
        ));
    }
    if is_part(members, path) && path.iter().all(same_log) {
        let gone: Vec<u32> = ids(members)
            .into_iter()
            .filter(|id| !ids(path).contains(id))
            .collect();
        if !says(Member::SHRINK) {
            return Decision::Hold(format!(
                "the path of device {} leaves out members {gone:?} of the chain {:?}. If they are stopped for good, \
                 start the first device that is left, the new head, with --shrink-chain; otherwise correct --next.",
                origin.device,
                ids(members)
            ));
        }
        if path
            .iter()
            .any(|member| known(member).is_some_and(|m| !lives_on(m, member)))
        {
            // An old path again. If it were accepted, the record would lose an incarnation that a device
            // has registered, and a rolled-back log would no longer be noticed.
            return Decision::Wait;
        }
        if let Some(registered) = known(&origin)
            && !is_synced(registered, origin.tail, applied)
        {
            return Decision::Hold(lacks(registered, &origin, &ids(members), applied));
        }
        let notice = format!(
            "chain shrinks from {:?} to {:?} by order of the operator",
            ids(members),
            ids(path)
        );
        return Decision::Change {
            members: on_path(members, path),
            notice,
        };
    }
    Decision::Refuse(format!(
        "the path {:?} does not fit the chain {:?} of this shard: check --next and --id of the devices.",
        ids(path),
        ids(members)
    ))
}

fn smaller(next: &Chain) -> String {
    format!(
        "epoch {}: a path between devices and server carries less than before. From now on a message is cut into packets with \
         {} bytes of it",
        next.epoch,
        shard_size(&next.members)
    )
}

/// How a RECOVER is refused.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Refusal {
    Final,
    Held,
    Erase,
}

/// A RECOVER that waits for the chain record to be durable.
#[derive(Debug)]
pub(super) struct PendingRecover {
    from: Peer,
    header: Header,
}

/// The session table as one recovering device gets it, part by part.
#[derive(Debug)]
pub(super) struct Snapshot {
    nonce: u64,
    epoch: u32,
    applied: u64,
    rows: Vec<SessionRow>,
}

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
            // It asks again; one change of the chain at a time.
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
            // The record is written first; the device goes on asking.
            Decision::Change { .. } | Decision::Hold(_) | Decision::Wait => false,
        };
        if from_memory
            && self.config.rules.hold(Rule::FreshRecords)
            && !self.doubts.is_settled(Doubt::Recover(nonce))
        {
            return;
        }
        match decision {
            Decision::Refuse(text) => {
                self.notice(format!("refused device {}: {text}", header.device));
                self.refuse(from, &header, Refusal::Final, &text, out);
            }
            Decision::Hold(text) => self.refuse(from, &header, Refusal::Held, &text, out),
            Decision::Erase(text) => self.refuse(from, &header, Refusal::Erase, &text, out),
            Decision::Wait => {}
            Decision::Keep(kept) if kept == members => {
                self.take_snapshot(nonce);
                self.reply_recover(from, &header, out);
            }
            Decision::Keep(kept) => {
                let present = self.chain.as_ref().expect("kept members are of a chain");
                let mut next = Chain {
                    members: kept,
                    ..present.clone()
                };
                if shard_size(&next.members) < shard_size(members) {
                    // The other devices, and the clients, must hear of it.
                    next.epoch += 1;
                    next.store = self.store.clone();
                    self.notice(smaller(&next));
                }
                self.recovers.next_chain = Some(next);
                self.recovers
                    .pending
                    .push_back(PendingRecover { from, header });
            }
            Decision::Change { members, notice } => {
                self.notice(notice);
                let shard_token = match &self.chain {
                    Some(chain) => chain.shard_token,
                    None => self.random.next_nonzero(),
                };
                let next = Chain {
                    epoch: epoch + 1,
                    shard_token,
                    members,
                    store: self.store.clone(),
                };
                self.recovers.next_chain = Some(next.clone());
                self.recovers
                    .pending
                    .push_back(PendingRecover { from, header });
                if !self.config.rules.hold(Rule::ServerFirst) {
                    self.enter(Some(next));
                    self.take_snapshot(nonce);
                    self.reply_recover(from, &header, out);
                }
            }
        }
    }

    /// The members of the present chain. Without [`Rule::Synced`] it is forgotten what they must hold.
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

    /// The path with what only its devices can say. Without [`Rule::LogIdentity`], [`Rule::Incarnation`],
    /// [`Rule::EraseOnJoin`], [`Rule::LastMember`] or [`Rule::WordEpoch`] also what they did not say; without
    /// [`Rule::StandsStill`] not how far the log of the device before a joiner is by now.
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
            // Only the record says that.
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
            part: Fragment::WHOLE,
            refused: true,
            held: how != Refusal::Final,
            erase: how == Refusal::Erase,
            reads: false,
        };
        out.send(to, &refused.header(&self.stamp_for(asked)), text);
    }

    /// The new chain record is durable: now its devices may hear of it.
    pub(super) fn chain_written(&mut self, chain: Chain, out: &mut Outbox) {
        self.enter(Some(chain));
        self.recovers.next_chain = None;
        for pending in std::mem::take(&mut self.recovers.pending) {
            self.take_snapshot(Recover::read(&pending.header).nonce);
            self.reply_recover(pending.from, &pending.header, out);
        }
    }

    /// The chain in the store's record is now the present one, whether this process was told that the
    /// record is written or has read it. What arrived in an earlier epoch does not count in this one.
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
    }

    /// **Another store, another epoch**: before anything is executed in a store, its records name an epoch that began in it.
    /// The store before may live on and answer whoever reads from it; its records name an epoch that is over
    /// (reads.md §3).
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
            "epoch {}: the store is another process than the one before",
            next.epoch
        ));
        self.recovers.next_chain = Some(next);
    }

    /// **The next epoch, with the same members**, if this is the present one and nothing else is about to change. What a device
    /// reported in this epoch cannot let anybody join any more, and no statement about it counts any more (protocol.md §14).
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
            "epoch {}: the chain stays; a device that was to join was lost meanwhile",
            next.epoch
        ));
        self.recovers.next_chain = Some(next);
    }

    /// Somebody asks to belong to the chain, by a path that carries this. Its question is judged accordingly.
    pub fn asked_by(&mut self, size: FragmentSize) {
        self.path = self.path.min(size);
    }

    /// Tells the server how much its path to the tail carries. If that is less than the shard's size, the next epoch begins, with the
    /// same members and the smaller size (protocol.md §7).
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
            })
            .collect();
        rows.sort_unstable_by_key(|row| row.session);
        self.recovers.snapshots.push_back(Snapshot {
            nonce,
            epoch: self.epoch(),
            applied: self.entries.applied,
            rows,
        });
    }

    /// Under the name of the device that recovers, without the shard's token. Devices learn the token from
    /// the payload; a refused device must not learn it.
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
        let parts = snapshot.rows.len().div_ceil(SESSION_ROWS_PER_PART).max(1);
        // A part that this snapshot has not was asked for by a device that knows a longer one, of this server's earlier
        // life. The first part tells it the present count; silence would let it ask for ever.
        let asked_index = usize::from(part.index);
        let index = if asked_index < parts { asked_index } else { 0 };
        let start = index * SESSION_ROWS_PER_PART;
        let end = (start + SESSION_ROWS_PER_PART).min(snapshot.rows.len());
        let reply = RecoverReply {
            shard_token: chain.shard_token,
            members: chain.members.clone(),
            sessions: snapshot.rows[start..end].to_vec(),
        };
        let header = packet::RecoverReply {
            applied: snapshot.applied,
            nonce,
            part: Fragment {
                index: u16::try_from(index).unwrap_or(u16::MAX),
                count: u16::try_from(parts).unwrap_or(u16::MAX),
            },
            refused: false,
            held: false,
            erase: false,
            reads: true,
        };
        out.send(to, &header.header(&self.stamp_for(asked)), &reply.write());
    }
}
