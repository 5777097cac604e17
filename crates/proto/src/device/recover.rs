//! The recovery of a device: RECOVER and its replies, and how a device passes on RECOVERs and replies of other devices
//! (`docs/spec/protocol.md` §5).

use super::reads::Reads;
use super::{Cursors, Device, OwnChain, Phase, RELAYED_MAX, Serving, Verdict};
use crate::keys::{self, ClusterKey, HopKeys};
use crate::rto::Rto;
use crate::rules::Rule;
use crate::time::{MILLISECOND, Nanos, SECOND};
use crate::{Outbox, Peer, Time};
use pmnet_wire::packet::{self, Fragment, Identity, Recover, Stamp};
use pmnet_wire::record::{
    CHAIN_MAX, DurableRow, Member, RecoverReply, SessionRow, read_path, shard_size,
    write_padded_path, write_path,
};
use pmnet_wire::{Flags, FragmentSize, Header, Life, Packet, Payloads};

/// Shortest time between two questions of [`Device::probe`].
const PROBE_EVERY: Nanos = SECOND;
/// Number of parts of a session table that are requested at a time.
const PARTS_AHEAD: usize = 16;
/// Maximum number of replies that may pass back for one question. Each reply is a requested part, and a part may come
/// several times. If the question comes again, more replies may pass.
const REPLIES_DUE_MAX: u32 = 64;

/// A question of [`Device::probe`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Probe {
    nonce: u64,
    /// Time at which the question was last sent.
    at: Time,
    /// The question was answered, so the next question needs a new nonce.
    answered: bool,
}

/// The server's complete answer: the state to which the log is brought before the device serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovery {
    epoch: u32,
    applied: u64,
    members: Vec<Member>,
    shard_token: u64,
    sessions: Vec<SessionRow>,
    /// The head may answer READs.
    reads: bool,
    /// Kinds of payloads that the server takes.
    takes: Payloads,
}

impl Recovery {
    /// Returns the epoch, which the log must persist before the device serves.
    #[must_use]
    pub const fn epoch(&self) -> u32 {
        self.epoch
    }
    /// Returns the last applied order.
    #[must_use]
    pub const fn applied(&self) -> u64 {
        self.applied
    }
}

/// Result of [`Device::serve`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// The device serves.
    Serving,
    /// The device asks once more: the server must first know that this log is marked to serve in this incarnation.
    AskAgain,
}

/// A question of another device that this device passed on.
#[derive(Debug)]
pub(super) struct Relayed {
    nonce: u64,
    pub(super) from: Peer,
    /// Number of replies that may still pass back: one for each time that the question was asked. Without this bound a
    /// reply could circle for ever, if devices are wired in a circle.
    due: u32,
}

#[derive(Debug)]
pub(super) struct Recovering {
    nonce: u64,
    last_sent: Option<Time>,
    started: Time,
    rto: Rto,
    /// Size of a datagram to which the question is padded.
    padding: FragmentSize,
    /// The state that the first part of the answer stated. All parts must state the same epoch and the same A.
    found: Option<Found>,
}

#[derive(Debug)]
struct Found {
    epoch: u32,
    applied: u64,
    members: Vec<Member>,
    shard_token: u64,
    reads: bool,
    takes: Payloads,
    parts: Vec<Option<Vec<SessionRow>>>,
    asked: usize,
}

impl Recovering {
    pub(super) fn new(nonce: u64, now: Time) -> Recovering {
        let rto = Rto::new(10 * MILLISECOND, 250 * MILLISECOND);
        Recovering {
            nonce,
            last_sent: None,
            started: now,
            rto,
            padding: FragmentSize::MIN,
            found: None,
        }
    }
    /// Changes the padding after a question without an answer. A server or device of an earlier version accepts only a
    /// question of the largest size, so the padding alternates between the smallest and the largest size.
    fn turn_padding(&mut self, path: FragmentSize) {
        if self.found.is_none() && path == FragmentSize::MAX {
            self.padding = if self.padding == FragmentSize::MIN {
                FragmentSize::MAX
            } else {
                FragmentSize::MIN
            };
        }
    }
    /// Returns the payload of a question. The padding is at most `own`, the size that the device's own path carries
    /// now.
    fn path(&self, member: Member, own: FragmentSize) -> Vec<u8> {
        write_padded_path(&[member], self.padding.min(own))
    }
    pub(super) fn due(&self) -> Time {
        self.last_sent
            .map_or(self.started, |at| at + self.rto.timeout())
    }
}

impl Device {
    /// Asks the server whether this device's log and the server's store still belong together, after the next hop has
    /// sent a packet that contradicts an earlier packet. Meanwhile the device serves on, because the contradiction may
    /// come from an old packet. Only a refusal by the server has consequences.
    pub(super) fn probe(&mut self, now: Time, out: &mut Outbox) {
        let nonce = match self.probe {
            Some(last) if now.since(last.at) < PROBE_EVERY => return,
            // Before a server gives a final answer, it reads its records, and answers only when a question with the
            // same nonce comes again (§12).
            Some(last) if !last.answered => last.nonce,
            _ => self.random.next_nonzero(),
        };
        self.probe = Some(Probe {
            nonce,
            at: now,
            answered: false,
        });
        let header = self.question(nonce, Fragment::WHOLE);
        let path = write_path(&[self.member()]);
        out.seal(self.asking_seal(), self.config.next, &header, &path);
    }

    /// Returns the RECOVER for this part.
    fn question(&self, nonce: u64, part: Fragment) -> Header {
        let recover = Recover {
            meant: self.meant(),
            persisted: self.cursors.last,
            nonce,
            part,
        };
        recover.header(&self.stamp().tagged(0))
    }

    /// Returns the number of the next hop as a RECOVER states it ([`keys::said`]); 0 without keys. This device sends
    /// its own RECOVERs, and RECOVERs of other devices, to this hop.
    fn meant(&self) -> u64 {
        let keys = self.config.keys.as_ref();
        keys.map_or(0, |keys| keys::said(keys.next))
    }

    /// Stops serving, and asks the server until it has answered in its present epoch.
    pub(super) fn recover_again(&mut self, now: Time) {
        let nonce = self.random.next_nonzero();
        self.phase = Phase::Recovering(Recovering::new(nonce, now));
    }

    pub(super) fn tick_recovery(&mut self, now: Time, out: &mut Outbox) {
        let (member, next, own) = (self.member(), self.config.next, self.path);
        let Phase::Recovering(recovering) = &mut self.phase else {
            return;
        };
        if now < recovering.due() {
            return;
        }
        if recovering.last_sent.replace(now).is_some() {
            recovering.rto.back_off();
            recovering.turn_padding(own);
        }
        let path = recovering.path(member, own);
        let nonce = recovering.nonce;
        let asked = match &recovering.found {
            None => vec![Fragment::WHOLE],
            Some(found) => (0..found.asked)
                .filter(|&part| found.parts[part].is_none())
                .take(PARTS_AHEAD)
                .map(|part| numbered(part, found.parts.len()))
                .collect(),
        };
        for part in asked {
            out.seal(self.asking_seal(), next, &self.question(nonce, part), &path);
        }
    }

    /// Forwards another device's RECOVER to the server, with this device added to its path.
    pub(super) fn relay_recover(
        &mut self,
        _now: Time,
        from: Peer,
        packet: &Packet<'_>,
        out: &mut Outbox,
    ) {
        let Some(mut path) = read_path(packet.payload) else {
            self.counters.unexpected += 1;
            return;
        };
        let looped = path.iter().any(|member| member.device == self.config.id);
        if looped || path.len() >= CHAIN_MAX || from == self.config.next {
            self.counters.unexpected += 1;
            if looped && from != self.config.next {
                self.say_looped(from, &packet.header, out);
            }
            return;
        }
        let newcomer = path
            .last()
            .is_some_and(|before| self.chain.members.iter().all(|m| m.device != before.device));
        if (self.is_head() || !self.is_serving()) && newcomer && self.cursors.last == 0 {
            // The chain is still forming, and another device becomes its head. This device has reported an empty log,
            // and the log must stay empty. So the device admits nothing, even if its own recovery makes it the head.
            self.joining = true;
        }
        let nonce = Recover::read(&packet.header).nonce;
        let known = self.relayed.iter().position(|one| one.nonce == nonce);
        let known = known.and_then(|at| self.relayed.remove(at));
        let due = known
            .filter(|one| one.from == from)
            .map_or(0, |one| one.due);
        if self.relayed.len() == RELAYED_MAX {
            self.relayed.pop_front();
        }
        self.relayed.push_back(Relayed {
            nonce,
            from,
            due: (due + 1).min(REPLIES_DUE_MAX),
        });
        path.push(self.member());
        let padding = u64::try_from(packet.payload.len()).expect("checked by read_path");
        let padding = FragmentSize::from_wire(padding).min(self.path);
        let mut header = packet.header;
        if self.has_keys() {
            header.seq = self.meant();
        }
        let path = write_padded_path(&path, padding);
        out.seal(self.asking_seal(), self.config.next, &header, &path);
    }

    /// Answers that this device's id is already on the path. The answer only informs the operator, because a stray
    /// packet can cause it, too.
    fn say_looped(&self, to: Peer, asked: &Header, out: &mut Outbox) {
        let text = format!(
            "PM1011 device id {} is on the path twice: two devices use it (give each its own with --id), or --next leads \
             in a circle.",
            self.config.id
        );
        let reply = packet::RecoverReply {
            applied: 0,
            nonce: Recover::read(asked).nonce,
            payloads: 0,
            part: Fragment::WHOLE,
            refused: true,
            held: true,
            erase: false,
            reads: false,
        };
        let stamp = Stamp {
            epoch: self.epoch,
            tag: 0,
            ..Stamp::of(asked)
        };
        let reply = reply.header(&stamp);
        out.seal(self.asking_seal(), to, &reply, text.as_bytes());
    }

    /// Whether the device may enter another epoch because of this reply. The reply must answer a question of this
    /// device, and with keys the next hop must have sealed the reply.
    #[must_use]
    pub fn may_change_epoch(&self, reply: &Packet<'_>) -> bool {
        let header = &reply.header;
        let nonce = packet::RecoverReply::read(header).nonce;
        let asked = matches!(&self.phase, Phase::Recovering(r) if r.nonce == nonce)
            || self
                .probe
                .as_ref()
                .is_some_and(|probe| probe.nonce == nonce)
            || self.takes_any_reply(header);
        let sealed = self.config.keys.as_ref().is_none_or(|keys| {
            let key = |key: &ClusterKey| key.asking(self.config.shard, keys.next);
            keys.cluster.verify(reply, key)
        });
        header.epoch != self.epoch && asked && sealed
    }

    pub(super) fn on_recover_reply(
        &mut self,
        now: Time,
        from: Peer,
        packet: &Packet<'_>,
        out: &mut Outbox,
    ) -> Verdict {
        let header = &packet.header;
        if from != self.config.next {
            self.counters.unexpected += 1;
            return Verdict::Done;
        }
        let nonce = packet::RecoverReply::read(header).nonce;
        let mine = matches!(&self.phase, Phase::Recovering(r) if r.nonce == nonce)
            && (header.device, header.incarnation) == (self.config.id, self.log.incarnation)
            || self.takes_any_reply(header);
        if mine {
            return self.on_own_reply(now, packet, out);
        }
        if let Some(probe) = self.probe.as_mut().filter(|asked| asked.nonce == nonce) {
            probe.answered = true;
            if header.flags == Flags::REFUSED {
                self.phase = Phase::Stopped;
                return Verdict::Stop(sentence(packet.payload));
            }
            if header.epoch > self.epoch && self.is_serving() {
                self.recover_again(now);
            }
            return Verdict::Done;
        }
        let asking = self.asking_seal();
        let Some(asked) = self.relayed.iter_mut().find(|one| one.nonce == nonce) else {
            self.counters.unexpected += 1;
            return Verdict::Done;
        };
        if asked.due > 0 {
            asked.due -= 1;
            out.seal_checked(asking, asked.from, header, packet.payload);
            if self.joining && header.flags == Flags::REFUSED {
                // This device still admits nothing (`joining`): the server may still accept an earlier question of the
                // refused device.
                self.waits_for = Some(format!(
                    "PM1110 device {}, which was to become the head before device {}, was refused. This one admits nothing, \
                     because it had promised that its log stays empty. Start the other one again if it belongs to the \
                     chain; otherwise stop it, then start this one again.",
                    header.device, self.config.id
                ));
            }
        } else {
            self.counters.unexpected += 1;
        }
        if header.epoch > self.epoch && self.is_serving() && !header.flags.has(Flags::REFUSED) {
            self.recover_again(now);
        }
        Verdict::Done
    }

    /// Without [`Rule::OwnReply`]: accepts any reply to this device, whichever question it answers.
    fn takes_any_reply(&self, header: &Header) -> bool {
        let recovers = matches!(self.phase, Phase::Recovering(_));
        !self.config.rules.hold(Rule::OwnReply) && recovers && header.device == self.config.id
    }

    fn on_own_reply(&mut self, now: Time, packet: &Packet<'_>, out: &mut Outbox) -> Verdict {
        let header = &packet.header;
        let words = Member::SHRINK | Member::DECLARE_LOSS | Member::JOIN;
        let speaks = self.config.flags & words != 0 && self.config.word_epoch.is_none();
        let told = packet::RecoverReply::read(header);
        if told.refused && told.held && told.erase {
            return self.prepare(now, header.epoch, packet.payload);
        }
        if header.flags.has(Flags::REFUSED) && speaks && header.epoch != self.log.word_epoch {
            // The refusal states the epoch to which the operator's statement applies.
            self.log.word_epoch = header.epoch;
            self.recover_again(now);
            return Verdict::Done;
        }
        if header.flags.has(Flags::REFUSED.with(Flags::PROGRESS)) {
            let text = sentence(packet.payload);
            self.waits_for = Some(text);
            return Verdict::Done;
        }
        if header.flags.has(Flags::REFUSED) {
            self.phase = Phase::Stopped;
            return Verdict::Stop(sentence(packet.payload));
        }
        let reply = RecoverReply::read(packet.payload)
            .filter(|reply| reply.members.iter().any(|m| m.device == self.config.id));
        let Some(reply) = reply else {
            self.counters.unexpected += 1;
            return Verdict::Done;
        };
        if header.epoch < self.epoch {
            self.phase = Phase::Stopped;
            return Verdict::Stop(format!(
                "PM1012 the server is in epoch {} but this device has served epoch {}: the server's state was rolled \
                 back or belongs to another shard. Restore the server's store, then start the device again.",
                header.epoch, self.epoch
            ));
        }
        let (member, own) = (self.member(), self.path);
        let Phase::Recovering(recovering) = &mut self.phase else {
            return Verdict::Done;
        };
        let path = recovering.path(member, own);
        let count = usize::from(told.part.count);
        let found = recovering.found.get_or_insert_with(|| Found {
            epoch: header.epoch,
            applied: told.applied,
            members: reply.members.clone(),
            shard_token: reply.shard_token,
            reads: told.reads,
            takes: Payloads::from_wire(told.payloads),
            parts: vec![None; count],
            asked: 1,
        });
        if (found.epoch, found.applied, found.parts.len()) != (header.epoch, told.applied, count) {
            // The server restarted between two parts, so the device asks again from the start.
            self.recover_again(now);
            return Verdict::Done;
        }
        found.parts[usize::from(told.part.index)].get_or_insert(reply.sessions);
        let missing = found.parts.iter().filter(|part| part.is_none()).count();
        if missing == 0 {
            let found = recovering.found.take().expect("all parts are there");
            return self.check_found(found);
        }
        let outstanding = found.parts[..found.asked]
            .iter()
            .filter(|part| part.is_none())
            .count();
        let first = found.asked;
        found.asked = (first + PARTS_AHEAD - outstanding.min(PARTS_AHEAD))
            .min(count)
            .max(first);
        let more = first..found.asked;
        recovering.last_sent = Some(now);
        recovering.rto.progress();
        for part in more {
            let question = self.question(told.nonce, numbered(part, count));
            out.seal(self.asking_seal(), self.config.next, &question, &path);
        }
        Verdict::Done
    }

    /// Prepares to join: this device is no member, so it must erase its log first. Only the server states that the
    /// device is no member, and only the server's answer to the present question of this incarnation counts. So an old
    /// packet never erases a member's log.
    fn prepare(&mut self, now: Time, epoch: u32, text: &[u8]) -> Verdict {
        self.waits_for = Some(sentence(text));
        if self.config.flags & Member::JOIN == 0 {
            return Verdict::Done;
        }
        self.log.word_epoch = epoch;
        let used = self.cursors.last > 0;
        if used && self.epoch >= epoch {
            self.phase = Phase::Stopped;
            return Verdict::Stop(format!(
                "PM1016 the log of device {} has served epoch {}, and the chain that it is to join is in epoch {epoch}: it is \
                 the log of another chain, or this is an old store. Nothing was erased. Correct --next, or give \
                 another --log.",
                self.config.id, self.epoch
            ));
        }
        if self.config.rules.hold(Rule::EraseOnJoin) {
            return Verdict::Erase;
        }
        self.log.served = self.log.incarnation;
        self.recover_again(now);
        Verdict::Done
    }

    /// The log is empty and marked to serve in this incarnation, and both are durable. Now the device asks the server
    /// whether it may join.
    pub fn erased(&mut self, now: Time) {
        self.log.served = self.log.incarnation;
        self.cursors = Cursors {
            last: 0,
            persisted: 0,
            committed: 0,
            applied: 0,
        };
        self.link.restart(0);
        self.recover_again(now);
    }

    /// Tells the device that a fast path may have appended to the log in this incarnation, and may continue during this
    /// device's recovery. So the end of the log is unknown until this device serves.
    pub const fn log_goes_on(&mut self) {
        self.goes_on = true;
    }

    fn check_found(&mut self, found: Found) -> Verdict {
        let applied = found.applied;
        if applied < self.cursors.applied {
            self.phase = Phase::Stopped;
            return Verdict::Stop(format!(
                "PM1013 the server says it applied orders up to {applied}, but earlier it said {}: its store lost data \
                 (restored from an old copy? FLUSHALL behind its back? appendfsync not `always`?). Restore the \
                 store, or accept the loss by starting the device with a new log and --declare-data-loss.",
                self.cursors.applied
            ));
        }
        Verdict::Resume(Recovery {
            epoch: found.epoch,
            applied,
            members: found.members,
            shard_token: found.shard_token,
            reads: found.reads,
            takes: found.takes,
            sessions: found.parts.into_iter().flatten().flatten().collect(),
        })
    }

    /// Begins to serve with the server's answer, or asks the server again. Before this call, the caller has persisted
    /// the epoch in the log, and marked the log to serve. `last`: last order of the log. `frames`: the stored entries
    /// above the applied order, in order. They are folded into the server's session table, and are later forwarded like
    /// other entries.
    ///
    /// # Errors
    /// A text that says why a frame cannot belong to this log.
    pub fn serve<'a>(
        &mut self,
        now: Time,
        recovery: Recovery,
        last: u64,
        frames: impl Iterator<Item = &'a [u8]>,
    ) -> Result<Served, String> {
        let Recovery {
            epoch,
            applied,
            members,
            shard_token,
            sessions,
            reads,
            takes,
        } = recovery;
        let own = |member: &Member| member.device == self.config.id;
        let position = members.iter().position(own).unwrap_or(0);
        self.epoch = epoch;
        self.takes = takes;
        self.goes_on = false;
        let life = Life {
            shard: self.config.shard,
            token: shard_token,
        };
        let keys = self.config.keys.as_ref();
        let keys = keys.map(|keys| HopKeys::new(&keys.cluster, life, epoch, &members, position));
        self.chain = OwnChain {
            stored_before: if keys.is_some() { last } else { 0 },
            keys,
            size: shard_size(&members),
            members,
            position,
            shard_token,
        };
        // Every entry of the log is already durable.
        let last = last.max(applied);
        self.cursors = Cursors {
            last,
            persisted: last,
            committed: applied,
            applied,
        };
        let before = std::mem::take(&mut self.table);
        self.reads = Reads::default();
        self.link.restart(applied);
        self.link.heard(now);
        self.waits_for = None;
        // The log is marked to serve in this incarnation, but the server must register the mark before the device
        // serves. Otherwise an older copy of the log could be taken for this log, if the copy is started often enough.
        self.log.served = self.log.incarnation;
        if self.chain.members[position].served < self.log.incarnation {
            self.table.sessions = before.sessions;
            self.table.shares = before.shares;
            self.recover_again(now);
            return Ok(Served::AskAgain);
        }
        for row in sessions {
            let whose = Identity {
                token: row.token,
                front: row.front,
            };
            if row.last_seq == 0 {
                self.table.opening.insert(whose, row.session);
            }
            self.begin_session(&row, now);
        }
        self.cursors.last = applied;
        for frame in frames {
            self.fold_frame(now, frame)?;
        }
        self.table.keep_bound(&before);
        let behind = self.chain.members.iter().skip(position + 1);
        let downstream = behind.map(|member| DurableRow {
            device: member.device,
            incarnation: member.incarnation,
            order: applied,
        });
        let head = position == 0;
        if head && reads {
            let (marks, tells) = (self.marks(), self.has_fast_path());
            let (buckets, rules) = (self.config.read_buckets, self.config.rules);
            self.reads
                .begin(buckets, last, marks, &mut self.random, tells, rules);
        }
        self.phase = Phase::Serving(Serving {
            downstream: downstream.collect(),
            touched: Vec::new(),
            next_expiry: head.then(|| now + self.config.session_idle / 4),
            retrans_guard: None,
        });
        self.leaving.begin();
        self.note_all();
        self.joining &= head && self.cursors.last == 0;
        (self.short, self.full) = (self.endangered, false);
        let persisted = self.cursors.persisted;
        self.persisted(persisted);
        Ok(Served::Serving)
    }

    /// Folds the next entry above the applied order. `frame`: the stored entry.
    fn fold_frame(&mut self, now: Time, frame: &[u8]) -> Result<(), String> {
        let packet = Packet::parse(frame)
            .map_err(|reason| format!("a logged frame does not parse: {reason}"))?;
        let said = super::admission::entry_identity(&packet.header, packet.payload)
            .ok_or_else(|| format!("a logged frame is not an entry: {}", packet.header))?;
        if packet.header.order != self.cursors.last + 1 {
            return Err(format!(
                "frame of order {} found at order {}",
                packet.header.order,
                self.cursors.last + 1
            ));
        }
        self.fold(&packet.header, said);
        if let Some(session) = self.table.sessions.get_mut(&packet.header.session) {
            session.seen = now;
        }
        Ok(())
    }
}

fn numbered(part: usize, count: usize) -> Fragment {
    Fragment {
        index: u16::try_from(part).expect("bounded by the reply's count"),
        count: u16::try_from(count).expect("bounded by the reply's count"),
    }
}

/// Returns the text in a packet, for logs and terminals. Without keys any host can have sent the text, so control
/// characters are replaced.
fn sentence(payload: &[u8]) -> String {
    let text = String::from_utf8_lossy(payload);
    text.replace(|letter: char| letter.is_control(), " ")
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_sentence_of_another_process_moves_no_cursor() {
        let said = super::sentence(b"PM1011 wait\x1b[2J\nready \xff");
        assert_eq!(said, "PM1011 wait [2J ready \u{fffd}");
    }
}
