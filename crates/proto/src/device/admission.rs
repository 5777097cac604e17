//! Admits entries, and passes on bypasses and answers (`docs/spec/protocol.md` §2 rules 2, 4 and 8).

use super::session::Session;
use super::shares::NoPlace;
use super::{Acknowledger, Device, Phase, RETRANS_GUARD, Room, Verdict};
use crate::keys::Seal;
use crate::rules::Rule;
use crate::{Outbox, Peer, Time};
use pmnet_wire::packet::{
    Append, Bypass, EntryKind, Identity, Nack, NotLogged, Open, OpenReply, Ping, Pong, Retrans,
};
use pmnet_wire::{Flags, Header, Kind, Packet, Payloads};

impl Device {
    /// Decides about an OPEN, update or END of a client by rule 2, the order of the session. Only the head admits these
    /// packets.
    pub(super) fn on_client_entry(
        &mut self,
        now: Time,
        from: Peer,
        packet: &Packet<'_>,
        room: Room,
        out: &mut Outbox,
    ) -> Verdict {
        let header = &packet.header;
        if self.chain.position != 0 || self.joining || from == self.config.next {
            self.counters.not_ready += 1;
            return Verdict::Done;
        }
        if header.kind == Kind::Open {
            return self.on_open(now, from, packet, room, out);
        }
        let Some(expected) = self.known_session(now, from, header, out) else {
            return Verdict::Done;
        };
        let rules = self.config.rules;
        let session = self
            .table
            .sessions
            .get_mut(&header.session)
            .expect("looked up above");
        if session.ended || (header.seq < expected && rules.hold(Rule::Duplicates)) {
            session.end_asked |=
                session.ended && (header.kind, header.seq) == (Kind::End, session.last);
            self.counters.duplicates += 1;
            self.touch(header.session);
            return Verdict::Done;
        }
        if header.seq > expected && rules.hold(Rule::SessionOrder) {
            self.nack(from, header, expected, out);
            return Verdict::Done;
        }
        // An END is admitted even if the store is short of space, because it frees space.
        let short = self.short && header.kind == Kind::Update;
        // If a NIC acknowledges updates, the head admits an update even if the store is short of space. Otherwise the
        // update would block all later bypasses of the session, and one of these bypasses may free space.
        let short = short && self.config.acknowledger == Acknowledger::Device;
        // The front holds its share of the log, and other fronts need the rest. So the update goes to the server, and
        // the session continues at the server's speed (§4, "Shares").
        let over_share = header.kind == Kind::Update && self.table.shares.is_over(session.share);
        if over_share {
            self.counters.over_share += 1;
            self.table.shares.refused(session.share);
        }
        if short
            || over_share
            || !room.fits(packet.payload)
            || session.unapplied >= self.config.session_entries_max
        {
            self.counters.not_logged += 1;
            session.told_short = self.short;
            let reply = NotLogged {
                session: header.session,
                seq: header.seq,
                token: 0,
                room: room.entries,
                why: 0,
                short: self.short,
                full: self.full,
            };
            let reply = reply.header(&self.stamp().tagged(header.tag));
            out.seal(self.answers, from, &reply, &[]);
            return Verdict::Done;
        }
        session.end_asked = header.kind == Kind::End;
        self.note_change(header.session);
        self.admit(header, packet.payload, Identity::NOBODY)
    }

    pub(super) fn on_open(
        &mut self,
        now: Time,
        from: Peer,
        packet: &Packet<'_>,
        room: Room,
        out: &mut Outbox,
    ) -> Verdict {
        let header = &packet.header;
        // An OPEN must name its front if this device has keys, and must not name a front otherwise.
        let keyed = self.has_keys();
        let right = |said: &Identity| said.token == header.tag && said.front.is_some() == keyed;
        let said = Identity::read(packet.payload).filter(right);
        let Some(said) = said.filter(|said| said.token != 0) else {
            self.counters.wrong_token += 1;
            return Verdict::Done;
        };
        let token = self.token_beside_tag(said.token);
        if let Some(&id) = self.table.opening.get(&said) {
            // A repeated OPEN gets the session of the first OPEN, if that session was not used meanwhile.
            if let Some(session) = self.table.sessions.get_mut(&id) {
                let moved = session.address.replace(from) != Some(from);
                session.seen = now;
                if moved {
                    self.note_change(id);
                }
                if id <= self.cursors.committed {
                    self.open_reply(id, room, out);
                }
                return Verdict::Done;
            }
        }
        let open = Open::read(header);
        if self.takes.exclude(Payloads::from_wire(open.payloads)) {
            self.counters.other_payloads += 1;
            let takes = self.takes.on_wire();
            self.refuse_open(from, header, token, takes, NotLogged::OTHER_PAYLOADS, out);
            return Verdict::Done;
        }
        let may_be_in_formation = self.cursors.last == 0 && self.config.rules.hold(Rule::FirstHead);
        if may_be_in_formation && open.searches {
            self.counters.not_ready += 1;
            return Verdict::Done;
        }
        if may_be_in_formation && open.copies > self.copies() {
            // The chain has fewer devices than this client demands, so the client would close the session. And once the
            // log has its first entry, devices that start late can no longer belong to the chain (`decide`, line 12).
            self.counters.not_ready += 1;
            let reply = OpenReply {
                session: 0,
                size: self.fragment_size().on_wire(),
                token,
                room: 0,
                copies: self.copies(),
                short: self.short,
            };
            let reply = reply.header(&self.stamp().tagged(header.tag));
            out.seal(self.answers, from, &reply, &[]);
            return Verdict::Done;
        }
        self.note_client(now, from, said.front, (open.client, open.start));
        let refused = self.finds_no_place(now, said.front, room);
        let why = match refused {
            Some(NoPlace::InTable) => NotLogged::CROWDED,
            _ => 0,
        };
        if self.full || refused.is_some() || !room.fits(packet.payload) {
            let share = self.table.shares.row_of(now, said.front);
            self.table.shares.waits(now, share);
            self.counters.not_logged += 1;
            self.refuse_open(from, header, token, 0, why, out);
            return Verdict::Done;
        }
        let order = self.cursors.last + 1;
        let verdict = self.admit(header, packet.payload, said);
        let session = self
            .table
            .sessions
            .get_mut(&order)
            .expect("folded by admit");
        session.address = Some(from);
        session.seen = now;
        session.client = (open.client, open.start);
        self.note_change(order);
        self.table.opening.insert(said, order);
        let serving = self.phase.serving();
        serving
            .next_expiry
            .get_or_insert(now + self.config.session_idle / 4);
        verdict
    }

    /// Answers an OPEN that begins no session with NOT_LOGGED. `room`, `why`: fields of [`NotLogged`].
    fn refuse_open(
        &self,
        from: Peer,
        asked: &Header,
        token: u64,
        room: u64,
        why: u8,
        out: &mut Outbox,
    ) {
        let reply = NotLogged {
            session: 0,
            seq: 0,
            token,
            room,
            why,
            short: self.short,
            // If the kind of payloads is the reason, the answer does not also state that the store is full.
            full: self.full && why != NotLogged::OTHER_PAYLOADS,
        };
        let reply = reply.header(&self.stamp().tagged(asked.tag));
        out.seal(self.answers, from, &reply, &[]);
    }

    /// Returns the entry of an admitted packet, with its order. `said`: the identity of the session that the entry
    /// begins.
    pub(super) fn admit(&mut self, header: &Header, payload: &[u8], said: Identity) -> Verdict {
        let entry = Append::admitted(header, self.cursors.last + 1, &self.stamp());
        self.fold(&entry, said);
        if Append::read(&entry).entry == EntryKind::Update {
            self.reads.admitted_here(Append::read(&entry).key_hash);
        }
        self.counters.admitted += 1;
        Verdict::Append(self.sealed(&entry, payload))
    }

    /// Returns the header of an entry as it is stored: with this device's seal, under which the entry is forwarded.
    fn sealed(&self, entry: &Header, payload: &[u8]) -> Header {
        match self.hop_seal() {
            Seal::Token => *entry,
            Seal::Key(key) => key.seal(entry, payload),
        }
    }

    /// Decides about an entry of the previous hop, by rules 3 and 4. A follower takes only order `last + 1`.
    pub(super) fn on_append(
        &mut self,
        now: Time,
        from: Peer,
        packet: &Packet<'_>,
        room: Room,
        out: &mut Outbox,
    ) -> Verdict {
        let header = &packet.header;
        self.predecessor = Some(from);
        if header.order <= self.cursors.last {
            if let Some(row) = self.row(header.order).copied()
                && (row.session, row.seq, row.payload_crc)
                    != (header.session, header.seq, header.payload_crc)
            {
                self.phase = Phase::Stopped;
                return Verdict::Stop(format!(
                    "PM1022 order {} is (session {}, seq {}) in this log but (session {}, seq {}) at the hop before: \
                     two histories met. Keep both logs, stop the shard, and compare them with `pmnet log inspect`.",
                    header.order, row.session, row.seq, header.session, header.seq
                ));
            }
            self.counters.duplicates += 1;
            self.owed.tell_durable = true;
            self.owed.tell_applied = true;
            return Verdict::Done;
        }
        if header.order > self.cursors.last + 1 {
            let expected = self.cursors.last + 1;
            let guard = &mut self.phase.serving().retrans_guard;
            if guard.is_none_or(|(order, at)| order != expected || now.since(at) >= RETRANS_GUARD) {
                *guard = Some((expected, now));
                let ask = Retrans {
                    first: expected,
                    last: header.order - 1,
                };
                out.seal(self.hop_seal(), from, &ask.header(&self.stamp()), &[]);
            }
            return Verdict::Done;
        }
        let Some(said) = entry_identity(header, packet.payload) else {
            self.counters.unexpected += 1;
            return Verdict::Done;
        };
        if !room.fits(packet.payload) {
            // The previous hop keeps the entry, and sends it again when this log has room.
            self.counters.not_logged += 1;
            self.owed.tell_durable = true;
            return Verdict::Done;
        }
        self.fold(header, said);
        self.counters.admitted += 1;
        Verdict::Append(self.sealed(header, packet.payload))
    }

    /// Stamps a client's bypass with the head's last order (rule 8), and sends it to the server.
    pub(super) fn on_client_bypass(
        &mut self,
        now: Time,
        from: Peer,
        packet: &Packet<'_>,
        out: &mut Outbox,
    ) {
        let header = &packet.header;
        if self.chain.position != 0 || self.joining || from == self.config.next {
            self.counters.not_ready += 1;
            return;
        }
        let Some(expected) = self.known_session(now, from, header, out) else {
            return;
        };
        let overtakes = header.seq >= expected && self.config.rules.hold(Rule::LastSeq);
        if overtakes && !header.flags.has(Flags::FALLBACK) {
            self.nack(from, header, expected, out);
            return;
        }
        if self.reads.answers()
            && let Some(session) = self.table.sessions.get_mut(&header.session)
        {
            self.reads.bypass_passes(header, session);
            if header.flags.has(Flags::FALLBACK) {
                self.note_change(header.session);
            }
        }
        self.counters.bypasses += 1;
        self.link.hurry();
        let stamped = Bypass::stamped(header, self.cursors.last, &self.stamp());
        out.seal_checked(self.hop_seal(), self.config.next, &stamped, packet.payload);
    }

    pub(super) fn pass_bypass(&mut self, from: Peer, packet: &Packet<'_>, out: &mut Outbox) {
        self.predecessor = Some(from);
        self.counters.bypasses += 1;
        self.link.hurry();
        let (seal, next) = (self.hop_seal(), self.config.next);
        out.seal_checked(seal, next, &packet.header, packet.payload);
    }

    pub(super) fn on_client_ping(
        &mut self,
        now: Time,
        from: Peer,
        header: &Header,
        out: &mut Outbox,
    ) {
        if self.chain.position != 0 {
            return;
        }
        if let Some(expected) = self.known_session(now, from, header, out) {
            let Ping { client, start, .. } = Ping::read(header);
            if let Some(session) = self.table.sessions.get_mut(&header.session)
                && client != 0
            {
                session.client = (client, start);
                let front = session.front;
                self.note_client(now, from, front, (client, start));
            }
            let pong = Pong {
                session: header.session,
                size: self.fragment_size().on_wire(),
                expected,
            };
            let pong = pong.header(&self.stamp().tagged(header.tag));
            out.seal(self.answers, from, &pong, &[]);
        }
    }

    /// Returns the next seq that the head admits in this session. If the head does not know session and token, it
    /// answers the client and returns `None`.
    pub(super) fn known_session(
        &mut self,
        now: Time,
        from: Peer,
        header: &Header,
        out: &mut Outbox,
    ) -> Option<u64> {
        if !self.config.rules.hold(Rule::KnownSession) {
            self.table
                .sessions
                .entry(header.session)
                .or_insert_with(|| Session::unknown(header, now));
        }
        let Some(session) = self.table.sessions.get_mut(&header.session) else {
            self.refuse_session(from, header, out);
            return None;
        };
        if session.token != header.tag && self.config.rules.hold(Rule::Token) {
            // After a declared loss, another session may have this id. The answer carries the packet's token, so a
            // sender that only guesses learns nothing from it.
            self.counters.wrong_token += 1;
            self.refuse_session(from, header, out);
            return None;
        }
        let moved = session.address.replace(from) != Some(from);
        session.seen = now;
        let expected = session.next_seq();
        if moved {
            self.note_change(header.session);
        }
        if header.epoch > self.epoch {
            // The client states a later epoch than this device's. This statement alone does not end the device's
            // service: the device asks the server, and meanwhile serves the other clients.
            self.probe(now, out);
            return None;
        }
        Some(expected)
    }

    /// Answers that no session with this token exists.
    fn refuse_session(&mut self, from: Peer, header: &Header, out: &mut Outbox) {
        self.counters.nacks += 1;
        let reply = self.over(header.session, header.tag);
        let reply = reply.header(&self.stamp().tagged(header.tag));
        out.seal(self.answers, from, &reply, &[]);
    }

    /// Sends a NACK. A session gets at most one NACK in a burst, not counting NACKs of bypasses.
    pub(super) fn nack(&mut self, from: Peer, header: &Header, expected: u64, out: &mut Outbox) {
        let burst = self.owed.burst;
        if let Some(session) = self.table.sessions.get_mut(&header.session)
            && (session.nacked_in != burst || header.kind == Kind::Bypass)
        {
            session.nacked_in = burst;
            self.counters.nacks += 1;
            let refused = if header.kind == Kind::Bypass {
                Bypass::read(header).request
            } else {
                0
            };
            let reply = Nack {
                session: header.session,
                expected,
                refused,
                why: 0,
                unknown_session: false,
            };
            let reply = reply.header(&self.stamp().tagged(header.tag));
            out.seal(self.answers, from, &reply, &[]);
        }
    }

    /// Passes an answer of the server on to its client.
    pub(super) fn on_server_answer(&mut self, packet: &Packet<'_>, out: &mut Outbox) {
        let header = &packet.header;
        if self.chain.position != 0 {
            match self.predecessor {
                Some(predecessor) => {
                    self.counters.responses += 1;
                    out.seal_checked(self.hop_seal(), predecessor, header, packet.payload);
                }
                None => self.counters.no_route += 1,
            }
            return;
        }
        let Some(session) = self.table.sessions.get_mut(&header.session) else {
            self.counters.no_route += 1;
            return;
        };
        if header.kind == Kind::Response
            && header.flags.has(Flags::FALLBACK)
            && !header.flags.has(Flags::PROGRESS)
            && header.seq > session.last
        {
            // The server has applied this update directly, so the session continues after it (docs/spec/protocol.md,
            // "Fallback").
            session.last = header.seq;
            session.committed = session.committed.max(header.seq);
            self.note_change(header.session);
        }
        if header.kind == Kind::Response
            && !header.flags.has(Flags::PROGRESS)
            && let Some(session) = self.table.sessions.get_mut(&header.session)
        {
            let fell_back = session.outstanding.falls_back();
            let (last, rules) = (self.cursors.last, self.config.rules);
            self.reads.answer_passes(header, session, last, rules);
            let told_short = session.told_short;
            if fell_back && !session.outstanding.falls_back() {
                self.note_change(header.session);
            }
            if told_short {
                // A session that sends no updates gets no ACK otherwise. This ACK tells its client whether the shortage
                // of space is over.
                self.touch(header.session);
            }
        }
        let Some(session) = self.table.sessions.get_mut(&header.session) else {
            return;
        };
        let Some((address, seal)) = session.route(&self.config) else {
            self.counters.no_route += 1;
            return;
        };
        self.counters.responses += 1;
        let answer = Header {
            tag: session.token,
            ..*header
        };
        out.seal_checked(seal, address, &answer, packet.payload);
    }
}

/// Returns the identity of the session that an entry begins: the payload of OPEN. [`Identity::NOBODY`]: the entry
/// begins no session. `None`: the entry's kind is unknown, or the entry is an OPEN whose payload is no identity.
pub(super) fn entry_identity(header: &Header, payload: &[u8]) -> Option<Identity> {
    match Append::read(header).entry {
        EntryKind::Open => Identity::read(payload),
        EntryKind::Update | EntryKind::End => Some(Identity::NOBODY),
        EntryKind::Unknown(_) => None,
    }
}
