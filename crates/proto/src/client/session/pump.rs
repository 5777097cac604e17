//! Sends a session's packets: its OPEN, its window of updates, and its bypass or fallback.

use super::super::{CallId, ClientConfig, Context};
use super::{Bypass, Call, Sent, Session, State, Transfer, Update, Work};
use crate::rules::Rule;
use crate::{Outbox, Peer, Time};
use bytes::Bytes;
use pmnet_wire::command::barrier;
use pmnet_wire::packet::{self, Fallback, Fragment, Identity, Open, Ping, Stamp, TimeLeft};
use pmnet_wire::{FragmentSize, FrontKey, Kind};

impl Session {
    /// Sends all packets that may be sent now. Returns true if any of them was not a PING.
    pub(in crate::client) fn pump(
        &mut self,
        now: Time,
        out: &mut Outbox,
        context: &mut Context<'_>,
    ) -> bool {
        self.dirty = false;
        let config = context.config;
        let sent_before = out.len();
        if let State::Opening { last_sent } = self.state {
            if last_sent.is_none() {
                self.state = State::Opening {
                    last_sent: Some(now),
                };
                self.send_open(config, context.head, context.searches, out);
            }
            return out.len() != sent_before;
        }
        let session = self.id;
        let stamp = self.stamp(config, context.epoch);
        let seal = self.seal();
        if self.direct.repair {
            // The head does not know that the server has applied these updates. This packet requests the server's
            // confirmation again, and the confirmation passes through the head.
            self.direct.repair = false;
            let repair = Fallback {
                session,
                last_seq: self.direct.fallback_upto,
                barrier: 0,
                first_seq: self.direct.fallback_upto,
                key_hash: 0,
                fragment: Fragment::WHOLE,
            };
            out.seal(seal, context.head, &repair.header(&stamp), &[]);
        }
        if let Some(fallback) = &mut self.direct.fallback {
            let header = Fallback {
                session,
                last_seq: fallback.last_seq,
                barrier: 0,
                first_seq: fallback.first_seq,
                key_hash: fallback.key_hash,
                fragment: Fragment::WHOLE,
            };
            let header = header.header(&stamp);
            fallback
                .transfer
                .send(now, seal, context.head, &header, out);
            if self.keys.is_some() && std::mem::take(&mut self.log.asks) {
                self.send_ping(config, &stamp, context.head, out);
            }
        } else {
            self.begin_calls(config, context.size);
            self.send_updates(now, out, context, &stamp);
            if std::mem::take(&mut self.log.asks) {
                self.send_ping(config, &stamp, context.head, out);
            }
            let ready = self.all_sent();
            if let Some(bypass) = self.direct.bypass.as_mut().filter(|_| ready) {
                let header = packet::Bypass {
                    session,
                    last_seq: self.log.next_seq - 1,
                    barrier: 0,
                    request: bypass.request,
                    key_hash: bypass.key_hash,
                    left: TimeLeft::of_nanos(bypass.deadline.since(now)),
                    fragment: Fragment::WHOLE,
                    read_only: bypass.read_only,
                    more: false,
                };
                let mut header = header.header(&stamp);
                header.flags = header
                    .flags
                    .with(bypass.transfer.reply_size(context.size).flags());
                bypass.transfer.send(now, seal, context.head, &header, out);
            }
        }
        let requests = out.len() != sent_before;
        if !requests && now.since(self.last_sent) >= config.ping_every {
            self.send_ping(config, &stamp, context.head, out);
        }
        if out.len() != sent_before {
            self.last_sent = now;
        }
        requests
    }

    /// Sends `peer` a packet that only the head answers: the session's PING or its OPEN.
    pub(in crate::client) fn ask(
        &self,
        config: &ClientConfig,
        epoch: u32,
        peer: Peer,
        searches: bool,
        out: &mut Outbox,
    ) {
        if matches!(self.state, State::Opening { .. }) {
            self.send_open(config, peer, searches, out);
        } else {
            self.send_ping(config, &self.stamp(config, epoch), peer, out);
        }
    }

    /// Sends a PING. With keys the PING carries token and front of the session, so that a head that does not know the
    /// session can verify the PING and answer.
    fn send_ping(&self, config: &ClientConfig, stamp: &Stamp, to: Peer, out: &mut Outbox) {
        let (client, start) = config.name;
        let ping = Ping {
            session: self.id,
            client,
            start,
        };
        let identity = self.identity();
        let says = if identity.front.is_some() {
            &*identity.write()
        } else {
            &[]
        };
        out.seal(self.seal(), to, &ping.header(stamp), says);
    }

    fn identity(&self) -> Identity {
        Identity {
            token: self.token,
            front: self.front.as_ref().map(FrontKey::id),
        }
    }

    fn stamp(&self, config: &ClientConfig, epoch: u32) -> Stamp {
        Stamp {
            shard: config.shard,
            epoch,
            tag: self.token,
            ..Stamp::default()
        }
    }

    fn send_open(&self, config: &ClientConfig, to: Peer, searches: bool, out: &mut Outbox) {
        let (client, start) = config.name;
        let open = Open {
            client,
            start,
            payloads: config.payloads.on_wire(),
            copies: config.copies_min,
            searches,
        };
        let open = open.header(&self.stamp(config, 0));
        out.seal(self.seal(), to, &open, &self.identity().write());
    }

    /// Gives waiting calls their seqs or request ids, as far as order and window allow.
    fn begin_calls(&mut self, config: &ClientConfig, size: FragmentSize) {
        while self.direct.bypass.is_none() && self.in_flight() < u64::from(config.window_max) {
            if matches!(
                self.queue.front(),
                Some(Call {
                    work: Work::End,
                    ..
                })
            ) && !self.log.updates.is_empty()
            {
                return;
            }
            if self.direct.doubtful
                && config.rules.hold(Rule::AfterUnknown)
                && let Some(deadline) = self.next_bypass()
            {
                self.begin_fence(deadline, size);
                return;
            }
            let Some(call) = self.queue.pop_front() else {
                return;
            };
            match call.work {
                // If the store is short of space, the update goes to the server instead of the log: if the log
                // acknowledged it early, the store might later have no space for it.
                Work::Update { payload, key_hash } if self.window.short => {
                    self.begin_bypass(Some(call.id), payload, key_hash, false, call.deadline, size);
                }
                Work::Update { payload, key_hash } => {
                    self.begin_update(
                        Some(call.id),
                        Kind::Update,
                        payload,
                        key_hash,
                        call.deadline,
                        size,
                    );
                }
                Work::End => {
                    self.begin_update(None, Kind::End, Bytes::new(), 0, call.deadline, size);
                }
                Work::Bypass {
                    payload,
                    key_hash,
                    read_only,
                } => {
                    self.begin_bypass(
                        Some(call.id),
                        payload,
                        key_hash,
                        read_only,
                        call.deadline,
                        size,
                    );
                }
            }
        }
    }

    /// Returns the deadline of the next call; `None`: the next call is no bypass.
    fn next_bypass(&self) -> Option<Time> {
        let next = self.queue.front()?;
        let goes = match next.work {
            Work::Bypass { .. } => true,
            Work::Update { .. } => self.window.short,
            Work::End => false,
        };
        goes.then_some(next.deadline)
    }

    /// Sends a fence: a bypass without effect that the store records. After the fence no older bypass is executed, even
    /// after a restart.
    fn begin_fence(&mut self, deadline: Time, size: FragmentSize) {
        self.begin_bypass(None, barrier().into(), 0, false, deadline, size);
    }

    fn begin_bypass(
        &mut self,
        call: Option<CallId>,
        payload: Bytes,
        key_hash: u64,
        read_only: bool,
        deadline: Time,
        size: FragmentSize,
    ) {
        self.direct.bypass = Some(Bypass {
            call,
            request: self.direct.next_request,
            read_only,
            key_hash,
            deadline,
            nacked: None,
            transfer: Transfer::new(payload, size),
        });
        self.direct.next_request += 1;
    }

    fn begin_update(
        &mut self,
        call: Option<CallId>,
        kind: Kind,
        payload: Bytes,
        key_hash: u64,
        deadline: Time,
        size: FragmentSize,
    ) {
        let fragments = u64::try_from(size.count(payload.len())).expect("bounded");
        let first_seq = self.log.next_seq;
        let last_seq = first_seq + fragments - 1;
        self.log.next_seq = last_seq + 1;
        self.log.sent.extend((0..fragments).map(|_| None));
        self.log.updates.push_back(Update {
            call,
            first_seq,
            last_seq,
            payload,
            key_hash,
            deadline,
            kind,
            size,
        });
    }

    fn in_flight(&self) -> u64 {
        self.log.next_seq - 1 - self.log.acked
    }

    fn send_updates(&mut self, now: Time, out: &mut Outbox, context: &Context<'_>, stamp: &Stamp) {
        let window = u64::from(self.window.size).min(self.window.credit.max(1));
        let limit = (self.log.acked + 1 + window).min(self.log.next_seq);
        if self.log.next_send >= limit {
            return;
        }
        let first = self
            .log
            .updates
            .partition_point(|update| update.last_seq < self.log.next_send);
        for update in self.log.updates.range(first..) {
            if self.log.next_send >= limit {
                break;
            }
            let count = update.last_seq - update.first_seq + 1;
            let size = update.size.bytes();
            while self.log.next_send <= update.last_seq && self.log.next_send < limit {
                let index = self.log.next_send - update.first_seq;
                let start = usize::try_from(index).expect("bounded") * size;
                let end = (start + size).min(update.payload.len());
                let (session, seq) = (self.id, self.log.next_send);
                let header = if update.kind == Kind::End {
                    packet::End { session, seq }.header(stamp)
                } else {
                    let update = packet::Update {
                        session,
                        seq,
                        key_hash: update.key_hash,
                        fragment: Fragment {
                            index: u16::try_from(index).expect("checked at submit"),
                            count: u16::try_from(count).expect("checked at submit"),
                        },
                    };
                    update.header(stamp)
                };
                out.seal(
                    self.seal(),
                    context.head,
                    &header,
                    &update.payload[start..end],
                );
                let row = usize::try_from(self.log.next_send - self.log.acked - 1)
                    .expect("within the window");
                let again = self.log.sent[row].is_some();
                self.log.sent[row] = Some(Sent { at: now, again });
                self.log.next_send += 1;
            }
        }
    }
}
