//! Decides what a device may acknowledge and free: the ack rule (`committable`) and the reclaim rule
//! (`docs/spec/protocol.md` §2 rules 5 and 7).

use super::{Device, Phase, Room, Verdict};
use crate::keys::Strangers;
use crate::rules::Rule;
use crate::{Outbox, Time};
use pmnet_wire::packet::{Ack, Applied, Durable, EntryKind, OpenReply};
use pmnet_wire::record::{DurableRow, read_durable, write_durable};
use pmnet_wire::{Header, Packet};

impl Device {
    /// All entries up to `order` are durable in this device. Before this call the device forwards and acknowledges none
    /// of them.
    pub fn persisted(&mut self, order: u64) {
        assert!(
            order <= self.cursors.last && order >= self.cursors.persisted,
            "durable prefix moves forward, behind the log's end"
        );
        self.cursors.persisted = order;
        self.owed.tell_durable = true;
        self.commit();
    }

    /// Handles a DURABLE, in which the next hop states its own durable order, and the durable orders of all devices
    /// after it.
    pub(super) fn on_durable(&mut self, now: Time, packet: &Packet<'_>) -> Verdict {
        let Some(rows) = read_durable(packet.payload) else {
            self.counters.unexpected += 1;
            return Verdict::Done;
        };
        let behind = &self.chain.members[self.chain.position + 1..];
        if rows.len() != behind.len()
            || rows
                .iter()
                .zip(behind)
                .any(|(row, member)| row.device != member.device)
        {
            self.counters.unexpected += 1;
            return Verdict::Done;
        }
        let downstream = &mut self.phase.serving().downstream;
        if rows[0].incarnation < downstream[0].incarnation {
            // The packet was sent before the next hop's restart, and the restarted device may hold less.
            self.counters.unexpected += 1;
            return Verdict::Done;
        }
        if rows[0].order > self.cursors.last {
            self.phase = Phase::Stopped;
            return Verdict::Stop(format!(
                "PM1021 device {} holds orders up to {}, but this device, before it in the chain, only up to {}: two \
                 histories met. Keep both logs, stop the shard, and compare them with `pmnet log inspect`.",
                rows[0].device, rows[0].order, self.cursors.last
            ));
        }
        let came_back = rows[0].incarnation > downstream[0].incarnation;
        let mut other_life = false;
        for (known, row) in downstream.iter_mut().zip(&rows) {
            let newer = row.incarnation > known.incarnation;
            let further = row.incarnation == known.incarnation && row.order > known.order;
            other_life |= newer;
            if newer || further {
                *known = *row;
            }
        }
        if other_life {
            self.tell_chain();
        }
        if came_back && rows[0].order < self.link.acked {
            // The next hop has lost the damaged end of its log. This device still holds the missing entries that the
            // server has not applied.
            self.link.restart(rows[0].order.max(self.cursors.applied));
        }
        let Durable {
            room, short, full, ..
        } = Durable::read(&packet.header);
        self.link.confirm(now, rows[0].order, room);
        self.hear(rows[0].order, room);
        (self.short, self.full) = (short || self.endangered, full);
        self.owed.tell_durable = true;
        self.commit();
        Verdict::Done
    }

    /// **The ack rule**: an order is committed when it is durable in this device and in every device after it. Only the
    /// head acknowledges: an order that the head has committed is durable in the whole chain.
    fn commit(&mut self) {
        let committable = self.committable();
        self.commit_upto(committable);
    }

    /// Returns the last order that is durable in this device and in every device after it.
    pub(super) fn committable(&self) -> u64 {
        let Phase::Serving(serving) = &self.phase else {
            return self.cursors.committed;
        };
        let rules = self.config.rules;
        let here = if rules.hold(Rule::DurableFirst) {
            self.cursors.persisted
        } else {
            self.cursors.last
        };
        let copies = serving.downstream.iter().map(|row| row.order);
        let behind = if !rules.hold(Rule::AllCopies) {
            None
        } else if !rules.hold(Rule::WhoseCopy) {
            copies.max()
        } else {
            copies.min()
        };
        behind.map_or(here, |order| order.min(here))
    }

    /// Commits all orders up to `committed`, and tells the clients and the fast path.
    pub(super) fn commit_upto(&mut self, committed: u64) {
        let first = self.cursors.committed + 1;
        self.commit_quietly(committed);
        if self.has_fast_path() && self.chain.position == 0 && self.chain.members.len() > 1 {
            for order in first..=self.cursors.committed {
                if let Some(&row) = self.row(order) {
                    self.note_change(row.session);
                }
            }
        }
    }

    /// Commits orders that the fast path has already committed, so the fast path is not told.
    pub(super) fn commit_quietly(&mut self, committed: u64) {
        while self.cursors.committed < committed {
            self.cursors.committed += 1;
            let Some(&row) = self.row(self.cursors.committed) else {
                continue;
            };
            if let Some(session) = self.table.sessions.get_mut(&row.session) {
                session.committed = session.committed.max(row.seq);
            }
            self.touch(row.session);
        }
    }

    /// Handles an APPLIED: the server and all its replicas have applied all orders up to the stated order, durably.
    pub(super) fn on_applied(&mut self, now: Time, header: &Header, out: &mut Outbox) -> Verdict {
        let Applied {
            applied,
            received,
            room,
            short,
            full,
        } = Applied::read(header);
        if applied > self.cursors.last && self.chain.position == 0 {
            self.phase = Phase::Stopped;
            return Verdict::Stop(format!(
                "PM1018 the server has applied orders up to {}, but this device, which gives the orders, has given {} only: \
                 another device serves with a copy of this log. Stop it, keep both logs, and compare them with \
                 `pmnet log inspect`.",
                applied, self.cursors.last
            ));
        }
        if applied < self.cursors.applied {
            // The packet is old, or the store has lost data.
            self.probe(now, out);
        }
        let applied = applied.min(self.cursors.last);
        if self.chain.position + 1 == self.chain.members.len() {
            self.link.confirm(now, applied, room);
            if received > 0 {
                self.hear(received, room);
            }
            // The previous hop is told of the shortage as long as it lasts, and once more at its end.
            self.owed.tell_durable |= self.short || short || self.full || full;
            (self.short, self.full) = (short || self.endangered, full);
        }
        if applied <= self.cursors.applied {
            return Verdict::Done;
        }
        // The server has received these entries from the tail, so every device of the chain holds them.
        self.link.pass(applied);
        self.commit_upto(applied);
        self.reclaim(applied);
        self.owed.tell_applied = true;
        Verdict::Done
    }

    /// **The reclaim rule**: an entry is removed only when the server and all its replicas have applied it. The node
    /// frees the log up to `applied` of [`Device::cursors`].
    pub(super) fn reclaim(&mut self, applied: u64) {
        while self.cursors.applied < applied {
            self.cursors.applied += 1;
            let Some(row) = self.table.index.pop_front() else {
                continue;
            };
            self.table.shares.entry_goes(row.share, row.blocks);
            if let Some(session) = self.table.sessions.get_mut(&row.session) {
                session.applied = session.applied.max(row.seq);
                session.unapplied = session.unapplied.saturating_sub(1);
                if row.entry == EntryKind::End {
                    let (whose, share) = (session.identity(), session.share);
                    self.table.shares.session_ends(share);
                    self.reads.session_over(whose.token, self.cursors.applied);
                    self.table.sessions.remove(&row.session);
                    self.table.opening.remove(&whose);
                }
                self.note_change(row.session);
            }
        }
    }

    /// Ends a burst: sends one acknowledgement for each session, and one DURABLE and APPLIED to the hop before. `now`
    /// is read after all packets of the burst were received.
    ///
    /// **The gate**: a device whose lease is over sends clients no statement about the whole chain (an acknowledgement
    /// or an answer to a READ). All such statements of a burst pass through this function.
    pub fn finish(&mut self, now: Time, room: Room, out: &mut Outbox) {
        self.finish_burst(room, out);
        if !self.may_answer(now) {
            self.counters.silenced += out.withdraw(self.gated());
        }
    }

    fn finish_burst(&mut self, room: Room, out: &mut Outbox) {
        self.owed.burst += 1;
        self.owed.strangers = Strangers::default();
        self.leaving.burst_ends();
        let Phase::Serving(serving) = &mut self.phase else {
            return;
        };
        for id in std::mem::take(&mut serving.touched) {
            let Some(session) = self.table.sessions.get_mut(&id) else {
                continue;
            };
            session.touched = false;
            if self.chain.position == 0 {
                self.acknowledge(id, room, out);
            }
        }
        let Some(predecessor) = self.predecessor.filter(|_| self.chain.position != 0) else {
            return;
        };
        if std::mem::take(&mut self.owed.tell_durable) {
            let own = DurableRow {
                device: self.config.id,
                incarnation: self.log.incarnation,
                order: self.cursors.persisted,
            };
            let rows: Vec<DurableRow> = std::iter::once(own)
                .chain(self.phase.serving().downstream.iter().copied())
                .collect();
            let durable = Durable {
                persisted: self.cursors.persisted,
                room: room.entries.min(self.config.receive_window),
                rows: u8::try_from(rows.len()).expect("a chain is short"),
                short: self.short,
                full: self.full,
            };
            let header = durable.header(&self.stamp());
            out.seal(self.hop_seal(), predecessor, &header, &write_durable(&rows));
        }
        if std::mem::take(&mut self.owed.tell_applied) {
            let applied = Applied {
                applied: self.cursors.applied,
                received: 0,
                room: 0,
                short: false,
                full: false,
            };
            let applied = applied.header(&self.stamp());
            out.seal(self.hop_seal(), predecessor, &applied, &[]);
        }
    }

    /// Sends the client of a session an acknowledgement with its last committed seq, if the session's OPEN is
    /// committed.
    fn acknowledge(&mut self, id: u64, room: Room, out: &mut Outbox) {
        if id > self.cursors.committed {
            return;
        }
        let Some(session) = self.table.sessions.get_mut(&id) else {
            return;
        };
        if session.committed == 0 {
            self.open_reply(id, room, out);
            return;
        }
        session.told_short = self.short;
        let Some((address, seal)) = session.route(&self.config) else {
            return;
        };
        let (committed, applied) = (session.committed, session.applied);
        let expired = session.is_expired() && committed == session.last;
        let token = session.token;
        let stamp = self.stamp().tagged(token);
        let updates = if expired { committed - 1 } else { committed };
        if updates > 0 {
            let ack = Ack {
                session: id,
                seq: updates,
                committed: self.cursors.committed,
                room: room.entries,
                applied: applied.min(updates),
                copies: self.copies(),
                short: self.short,
            };
            out.seal(seal, address, &ack.header(&stamp), &[]);
            self.counters.acks += 1;
        }
        if expired {
            let over = self.over(id, token);
            out.seal(seal, address, &over.header(&stamp), &[]);
            self.counters.nacks += 1;
        }
    }

    pub(super) fn open_reply(&mut self, id: u64, room: Room, out: &mut Outbox) {
        let Some(session) = self.table.sessions.get_mut(&id) else {
            return;
        };
        let Some((address, seal)) = session.route(&self.config) else {
            return;
        };
        session.told_short = self.short;
        let token = session.token;
        let reply = OpenReply {
            token: self.token_beside_tag(token),
            session: id,
            size: self.fragment_size().on_wire(),
            room: room.entries,
            copies: self.copies(),
            short: self.short,
        };
        let stamp = self.stamp().tagged(token);
        out.seal(seal, address, &reply.header(&stamp), &[]);
    }
}
