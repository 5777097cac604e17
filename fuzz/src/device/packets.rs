//! The neighbours' packets, drawn from the input.

use std::ops::Bound;

use pmnet_wire::record::{DurableRow, Member, write_durable, write_path};
use pmnet_wire::{FRAGMENT_BYTES, Flags, Header, Kind, raw};

use super::world::World;
use crate::input::Input;
use crate::peers::{SHARD, client, peer};

/// Changes some fields to nearby or random values.
pub(super) fn disturb(header: &mut Header, input: &mut Input<'_>) {
    for _ in 0..1 + input.index(3) {
        match input.byte() % 13 {
            0 => header.epoch = input.near_word(header.epoch),
            1 => header.device = input.near_word(header.device),
            2 => header.incarnation = input.near_word(header.incarnation),
            3 => header.session = input.near(header.session),
            4 => header.seq = input.near(header.seq),
            5 => header.order = input.near(header.order),
            6 => header.request = raw(input.near(header.request.raw())),
            7 => header.tag = input.near(header.tag),
            8 => header.flags = Flags(input.byte()),
            9 => header.copies = raw(input.byte()),
            10 => header.key_hash = raw(input.long()),
            11 => header.shard = input.near_word(header.shard),
            _ => {
                header.fragment_count = 1 + input.short() % 12_500;
                header.fragment_index = input.short() % header.fragment_count;
            }
        }
    }
}

impl World {
    fn header(&self, kind: Kind) -> Header {
        Header {
            shard: SHARD,
            epoch: self.epoch,
            ..Header::new(kind)
        }
    }

    fn hop(&self, kind: Kind, device: u8) -> Header {
        Header {
            device: u32::from(device),
            incarnation: 1,
            tag: self.token,
            ..self.header(kind)
        }
    }

    /// Disturbs a packet if its sender may lie.
    fn perhaps(&self, mut header: Header, input: &mut Input<'_>) -> Header {
        if !self.honest && input.rarely(3) {
            disturb(&mut header, input);
        }
        header
    }

    /// Clients are never trusted.
    fn client_says(&mut self, mut header: Header, payload: &[u8], input: &mut Input<'_>) {
        if input.rarely(6) {
            // Clients know only the epochs that devices told them.
            let epoch = header.epoch;
            disturb(&mut header, input);
            if self.honest {
                header.epoch = header.epoch.min(epoch);
            }
        }
        self.give(client(input.byte() % 2), &header, payload);
    }

    pub(super) fn open(&mut self, input: &mut Input<'_>) {
        let tag = 0x70ce_0000 + u64::from(input.byte() % 8);
        let header = Header {
            tag,
            ..self.header(Kind::Open)
        };
        self.client_says(header, &tag.to_be_bytes(), input);
    }

    /// Returns a session that a client knows, and its next seq.
    fn session(&self, input: &mut Input<'_>) -> (u64, u64, u64) {
        if self.sessions.is_empty() {
            return (1, 0x70ce_0000, 1);
        }
        let (id, token, _) = self.sessions[input.index(self.sessions.len())];
        let admitted = self.pipeline().machine().admitted(id).unwrap_or(0);
        (id, token, admitted.wrapping_add(1))
    }

    pub(super) fn update(&mut self, input: &mut Input<'_>) {
        let (session, tag, seq) = self.session(input);
        let length = input.pick(&[0, 8, 100, FRAGMENT_BYTES]);
        let payload = vec![input.byte(); length];
        let count = 1 + input.below(6);
        for ahead in 0..count {
            let header = Header {
                session,
                seq: seq.wrapping_add(ahead),
                tag,
                ..self.header(Kind::Update)
            };
            self.client_says(header, &payload, input);
        }
    }

    pub(super) fn bypass(&mut self, input: &mut Input<'_>) {
        let (session, tag, seq) = self.session(input);
        let header = Header {
            session,
            seq: input.near(seq.wrapping_sub(1)),
            request: raw(1 + u64::from(input.byte())),
            tag,
            flags: Flags(input.pick(&[0, 1, 2, 4, 5])),
            ..self.header(Kind::Bypass)
        };
        self.client_says(header, b"bypass", input);
    }

    pub(super) fn end_or_ping(&mut self, input: &mut Input<'_>) {
        let (session, tag, seq) = self.session(input);
        let kind = input.pick(&[Kind::End, Kind::Ping]);
        let header = Header {
            session,
            seq: if kind == Kind::End { seq } else { 0 },
            tag,
            ..self.header(kind)
        };
        self.client_says(header, &[], input);
    }

    /// Delivers an entry of the previous hop. An honest hop sends only one history.
    pub(super) fn append(&mut self, input: &mut Input<'_>) {
        if self.position == 0 && self.honest {
            return;
        }
        let last = self.pipeline().machine().cursors().0;
        let count = 1 + input.below(8);
        for ahead in 1..=count {
            let order = if self.honest {
                last + ahead + u64::from(input.rarely(16))
            } else {
                input.near(last.wrapping_add(ahead))
            };
            // Every eighth entry opens a session; its seven updates follow.
            let opens = order % 8 == 1;
            let session = order.wrapping_sub(1) / 8 * 8 + 1;
            let token = session.to_be_bytes();
            let kind = if opens { Kind::Open } else { Kind::Update };
            let header = Header {
                copies: raw(kind.number()),
                session,
                seq: order.wrapping_sub(session),
                order,
                ..self.hop(Kind::Append, 1)
            };
            let header = self.perhaps(header, input);
            self.give(self.before(), &header, &token);
        }
    }

    pub(super) fn hop_before(&mut self, input: &mut Input<'_>) {
        let kind = input.pick(&[Kind::Ping, Kind::Bypass, Kind::StaleEpoch]);
        let header = Header {
            session: if kind == Kind::Bypass { 1 } else { 0 },
            ..self.hop(kind, 1)
        };
        let header = self.perhaps(header, input);
        self.give(self.before(), &header, &[]);
    }

    /// Returns the highest order that the next hop has seen.
    fn seen(&self) -> u64 {
        self.forwarded
            .last_key_value()
            .map_or(0, |(order, _)| *order)
    }

    pub(super) fn durable(&mut self, input: &mut Input<'_>) {
        let upto = self.seen();
        let mut ceiling = upto;
        for at in 0..self.durable.len() {
            // Each device has at most as much as the previous one, and at least as much as it
            // reported before.
            let gained = input.below(ceiling.saturating_sub(self.durable[at]).saturating_add(1));
            ceiling = ceiling.min(self.durable[at] + gained);
            self.durable[at] = self.durable[at].max(ceiling);
        }
        let mut rows: Vec<DurableRow> = (self.position + 2..=self.chain)
            .zip(&self.durable)
            .map(|(device, order)| DurableRow {
                device: u32::from(device),
                incarnation: 1,
                order: *order,
            })
            .collect();
        if !self.honest {
            for row in &mut rows {
                row.order = input.near(row.order);
                row.incarnation = input.near_word(row.incarnation);
            }
            rows.truncate(input.index(9));
        }
        let header = Header {
            order: rows.first().map_or(0, |row| row.order),
            request: raw(input.near(32)),
            ..self.hop(Kind::Durable, self.position + 2)
        };
        let header = self.perhaps(header, input);
        self.give(self.next(), &header, &write_durable(&rows));
    }

    /// Lets the server apply some of its possible entries, and report it.
    pub(super) fn applied(&mut self, input: &mut Input<'_>) {
        let reachable = self.durable.last().copied().unwrap_or(self.seen());
        let upto = self.applied + input.below(reachable.saturating_sub(self.applied) + 1);
        // A log that a lie has set to a high order is far from the others.
        let applied = (Bound::Excluded(self.applied), Bound::Included(upto));
        for (header, payload) in self.forwarded.range(applied).map(|(_, sent)| sent) {
            let token = <[u8; 8]>::try_from(&payload[..]).map_or(0, u64::from_be_bytes);
            match Kind::from_u8(header.copies.raw()) {
                Some(Kind::Open) => drop(self.rows.insert(header.session, (token, 0))),
                Some(Kind::End) => drop(self.rows.remove(&header.session)),
                _ => {
                    if let Some(row) = self.rows.get_mut(&header.session) {
                        row.1 = row.1.max(header.seq);
                    }
                }
            }
        }
        self.applied = upto;
        let header = Header {
            order: upto,
            request: raw(input.near(32)),
            device: 0,
            incarnation: 0,
            ..self.hop(Kind::Applied, 0)
        };
        let header = self.perhaps(header, input);
        self.give(self.next(), &header, &[]);
    }

    pub(super) fn retrans(&mut self, input: &mut Input<'_>) {
        let header = Header {
            order: input.near(self.applied + 1),
            request: raw(input.near(self.seen())),
            ..self.hop(Kind::Retrans, self.position + 2)
        };
        let header = self.perhaps(header, input);
        self.give(self.next(), &header, &[]);
    }

    pub(super) fn answer(&mut self, input: &mut Input<'_>) {
        let (session, _, seq) = self.session(input);
        let kind = input.pick(&[Kind::Response, Kind::Response, Kind::Nack, Kind::NotLogged]);
        let fallback = !self.honest && input.rarely(3);
        let header = Header {
            session,
            seq: if fallback {
                input.near(seq)
            } else {
                seq.wrapping_sub(1)
            },
            request: raw(1),
            flags: if fallback { Flags::FALLBACK } else { Flags(0) },
            ..self.hop(kind, 0)
        };
        let header = self.perhaps(header, input);
        self.give(self.next(), &header, b"+OK\r\n");
    }

    pub(super) fn recover_reply(&mut self, input: &mut Input<'_>) {
        if input.rarely(8) {
            self.epoch += 1;
        }
        let Some((mut header, mut reply)) = self.reply() else {
            return;
        };
        if input.rarely(4) {
            header.flags = Flags::REFUSED.with(Flags::PROGRESS);
            self.give(self.next(), &header, b"wait");
            return;
        }
        if !self.honest {
            header = self.perhaps(header, input);
            if let Some(row) = reply.sessions.first_mut() {
                row.last_seq = input.near(row.last_seq);
                row.session = input.near(row.session);
            }
            reply.members.truncate(input.index(5));
        }
        self.give(self.next(), &header, &reply.write());
    }

    /// Delivers a RECOVER of a device before this one.
    pub(super) fn relay(&mut self, input: &mut Input<'_>) {
        let id = input.pick(&[9, 8, self.position.max(1)]);
        if self.honest && self.position == 0 {
            return;
        }
        let member = Member {
            device: u32::from(id),
            incarnation: input.near_word(1),
            log_uuid: u128::from(id),
            tail: input.near(0),
            applied: 0,
            flags: 0,
            word_epoch: 0,
            served: input.near_word(0),
            size: pmnet_wire::FragmentSize::MAX,
        };
        let path = vec![member; 1 + usize::from(!self.honest) * input.index(9)];
        let header = Header {
            device: u32::from(id),
            request: raw(u64::from(input.byte())),
            ..self.header(Kind::Recover)
        };
        let header = self.perhaps(header, input);
        self.give(peer(id), &header, &write_path(&path));
    }

    /// Delivers a foreign or damaged packet in either direction.
    pub(super) fn passes(&mut self, input: &mut Input<'_>) {
        let from = input.pick(&[self.next(), client(0)]);
        let mut bytes = input.bytes(200).to_vec();
        if input.rarely(2) {
            bytes.splice(0..0, [0x50, 0x4d, 1]);
        }
        self.deliver(from, bytes);
    }
}
