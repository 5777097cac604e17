//! One server alone: the production core over a list store. The input plays the tail of its chain,
//! or several tails, and the store's behaviour (`docs/spec/protocol.md` §2 rules 4, 6, 7, 8; §5).
//!
//! Invariants: nothing panics; the waiting requests are bounded; sent packets parse; the watermark
//! never goes back; in any order of arrival no update takes effect twice, or out of its session's
//! order; a bypass that changes data takes effect once; invalid records stop the shard.

use std::collections::{BTreeMap, BTreeSet};

use pmnet_proto::server::{Server, ServerConfig};
use pmnet_proto::time::{MILLISECOND, SECOND};
use pmnet_proto::{Outbox, Random, Time};
use pmnet_server::ServerNode;
use pmnet_wire::record::{Member, write_path};
use pmnet_wire::{FRAGMENT_BYTES, Flags, Header, Kind, raw};

use crate::input::Input;
use crate::peers::{SHARD, datagram, peer, sent};
use crate::store::Lists;

/// Maximum number of operations of one input.
const OPERATIONS: usize = 500;
/// Maximum number of waiting entries.
const QUEUE_MAX: usize = 32;
/// Maximum number of packets that one turn may send.
const TURN_MAX: usize = 512;
/// Maximum number of steps of the store in one turn.
const WORKS: usize = 64;

struct World {
    core: ServerNode<Lists>,
    out: Outbox,
    store: Lists,
    now: Time,
    lives: u64,
    nonce: u64,
    /// Entries of the tail's one history, from order 1 on.
    told: Vec<Header>,
    /// The next seq of each session, by session id.
    sessions: BTreeMap<u64, u64>,
    watermark: u64,
    /// Whether records were changed without the server's knowledge.
    meddled: bool,
    stopped: bool,
}

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let store = Lists::default();
    let mut world = World {
        core: core(&store, 1),
        out: Outbox::new(),
        store,
        now: Time(MILLISECOND),
        lives: 1,
        nonce: 0,
        told: Vec::new(),
        sessions: BTreeMap::new(),
        watermark: 0,
        meddled: false,
        stopped: false,
    };
    world.turn();
    if !input.rarely(8) {
        world.recover(&mut Input::new(&[]));
    }
    for _ in 0..OPERATIONS {
        if !input.more() || world.stopped {
            break;
        }
        world.step(&mut input);
    }
    world.check();
}

fn core(store: &Lists, seed: u64) -> ServerNode<Lists> {
    let config = ServerConfig {
        batch_entries_max: 8,
        batch_bytes_max: 8192,
        queue_max: QUEUE_MAX,
        waiting_max: 8,
        waiting_bytes_max: 1 << 20,
        replies_bytes_max: 4096,
        execute_max: 4,
        ..ServerConfig::new(SHARD)
    };
    ServerNode::new(Server::new(config, Random::new(seed)), store.clone())
}

impl World {
    fn step(&mut self, input: &mut Input<'_>) {
        match input.byte() % 16 {
            0..=5 => self.entries(input),
            6..=8 => self.bypass(input),
            9 if input.rarely(3) => self.recover(input),
            10 => self.other(input),
            11 => {
                let mut state = self.store.state();
                state.fail_before = input.byte() % 3;
                state.fail_after = input.byte() % 2;
            }
            12 if input.rarely(4) => {
                self.lives += 1;
                self.core = core(&self.store, self.lives);
            }
            13 if input.rarely(32) => self.meddle(input),
            _ => self.now = self.now + input.pick(&[0, MILLISECOND, 50 * MILLISECOND, SECOND]),
        }
        if !input.rarely(4) {
            self.turn();
        }
    }

    fn header(&self, kind: Kind) -> Header {
        let chain = self.core.machine().chain();
        Header {
            shard: SHARD,
            epoch: chain.map_or(1, |chain| chain.epoch),
            device: chain.map_or(1, |chain| chain.members[0].device),
            incarnation: chain.map_or(1, |chain| chain.members[0].incarnation),
            tag: chain.map_or(0, |chain| chain.shard_token),
            ..Header::new(kind)
        }
    }

    fn give(&mut self, header: &Header, payload: &[u8]) {
        if self.stopped {
            return;
        }
        let bytes = datagram(header, payload);
        let result = self.core.receive(self.now, peer(1), &bytes, &mut self.out);
        self.stopped |= result.is_err();
    }

    /// Continues the history, or repeats parts of it in any order.
    fn entries(&mut self, input: &mut Input<'_>) {
        for _ in 0..1 + input.below(8) {
            let next = u64::try_from(self.told.len()).expect("few") + 1;
            let order = input.near(next).clamp(1, next + 2);
            while u64::try_from(self.told.len()).expect("few") < order {
                self.invent(input);
            }
            let index = usize::try_from(order - 1).expect("few");
            let entry = self.told[index];
            let header = Header {
                copies: entry.copies,
                session: entry.session,
                seq: entry.seq,
                order,
                fragment_index: entry.fragment_index,
                fragment_count: entry.fragment_count,
                ..self.header(Kind::Append)
            };
            self.give(&header, &payload_of(&entry));
        }
    }

    /// Adds one entry to the history: a session opens, goes on, or ends.
    fn invent(&mut self, input: &mut Input<'_>) {
        let order = u64::try_from(self.told.len()).expect("few") + 1;
        let mut entry = Header {
            order,
            ..Header::new(Kind::Append)
        };
        let known: Vec<u64> = self.sessions.keys().copied().collect();
        let choice = input.byte() % 16;
        if known.is_empty() || (choice == 0 && known.len() < 5) {
            (entry.session, entry.copies) = (order, raw(Kind::Open.number()));
            self.sessions.insert(order, 1);
        } else {
            let session = known[input.index(known.len())];
            let seq = self.sessions.get_mut(&session).expect("known");
            (entry.session, entry.seq) = (session, *seq);
            *seq += 1;
            entry.copies = raw(Kind::Update.number());
            if choice == 1 {
                entry.copies = raw(Kind::End.number());
                self.sessions.remove(&session);
            } else if choice < 5 {
                // A fragment is sometimes numbered wrongly; then it has no effect.
                entry.fragment_count = 2 + u16::from(input.byte() % 2);
                entry.fragment_index = input.short() % entry.fragment_count;
            }
        }
        self.told.push(entry);
    }

    fn bypass(&mut self, input: &mut Input<'_>) {
        let sessions: Vec<u64> = self.sessions.keys().copied().collect();
        let session = if sessions.is_empty() {
            1
        } else {
            sessions[input.index(sessions.len())]
        };
        let last = self.sessions.get(&session).map_or(0, |next| next - 1);
        let mut header = Header {
            session,
            seq: input.near(last),
            order: input.near(self.watermark),
            request: raw(1 + u64::from(input.byte() % 16)),
            flags: Flags(input.pick(&[0, 0, 1, 4, 5])),
            ..self.header(Kind::Bypass)
        };
        if input.rarely(4) {
            // A fallback carries first and last seq of its update.
            header.flags = Flags::FALLBACK;
            header.seq = input.near(last + 1);
            header.request = raw(header.seq.saturating_sub(input.below(3)));
            if let Some(next) = self.sessions.get_mut(&session)
                && header.seq < 1 << 32
            {
                // The session goes on after the fallback, in whichever way that took effect.
                *next = (*next).max(header.seq.saturating_add(1));
            }
        }
        if input.rarely(4) {
            header.fragment_count = 1 + input.short() % 40;
            header.fragment_index = input.short() % header.fragment_count;
        }
        let length = input.pick(&[16, 100, FRAGMENT_BYTES]);
        // A fallback is identified by its last seq; every other request has a request id.
        let fallback = header.flags.has(Flags::FALLBACK);
        let request = if fallback { 0 } else { header.request.raw() };
        let mut payload = change(session, header.seq, request);
        payload.resize(length.max(payload.len()), 0);
        self.give(&header, &payload);
    }

    /// Delivers a RECOVER with any path.
    fn recover(&mut self, input: &mut Input<'_>) {
        self.nonce += 1;
        let length = 1 + input.byte() % 3;
        let path: Vec<Member> = (1..=length)
            .map(|number| Member {
                device: u32::from(number),
                incarnation: 1 + u32::from(input.byte() % 3),
                log_uuid: u128::from(number) + u128::from(input.rarely(8)),
                tail: input.near(self.watermark) * u64::from(!self.told.is_empty()),
                applied: if input.rarely(8) {
                    input.near(self.watermark)
                } else {
                    0
                },
                flags: input.pick(&[0, 0, Member::SHRINK, Member::DECLARE_LOSS]),
                word_epoch: input.near_word(self.header(Kind::Recover).epoch),
                served: u32::from(input.byte() % 3),
                size: pmnet_wire::FragmentSize::MAX,
            })
            .collect();
        let header = Header {
            shard: SHARD,
            device: 1,
            incarnation: path[0].incarnation,
            request: raw(self.nonce),
            fragment_count: 1 + u16::from(input.rarely(8)) * (input.short() % 12_000),
            ..Header::new(Kind::Recover)
        };
        self.give(&header, &write_path(&path));
    }

    /// Delivers another packet from any sender.
    fn other(&mut self, input: &mut Input<'_>) {
        let header = Header {
            tag: input.near(self.header(Kind::Ping).tag),
            session: input.near(1),
            seq: input.near(1),
            request: raw(input.near(1)),
            flags: Flags(input.byte()),
            epoch: input.near_word(self.header(Kind::Ping).epoch),
            ..self.header(input.pick(Kind::ALL))
        };
        // An entry would belong to another history, which rightly stops the shard.
        if header.kind != Kind::Append {
            let payload = input.bytes(64);
            self.give(&header, payload);
        }
    }

    /// Changes a record of the store.
    fn meddle(&mut self, input: &mut Input<'_>) {
        self.meddled = true;
        let mut state = self.store.state();
        let keys: Vec<_> = state.records.keys().cloned().collect();
        let mut key = if keys.is_empty() {
            b"watermark".to_vec()
        } else {
            keys[input.index(keys.len())].clone()
        };
        if input.rarely(2) {
            key = input
                .pick(&[
                    &b"watermark"[..],
                    b"chain",
                    b"session/",
                    b"stage/",
                    b"reply/",
                ])
                .to_vec();
            key.extend_from_slice(input.bytes(20));
        }
        let value = input.bytes(80).to_vec();
        state.records.insert(key, value.into());
        drop(state);
        self.core = core(&self.store, 99);
    }

    fn turn(&mut self) {
        for _ in 0..WORKS {
            match self.core.step(self.now, &mut self.out) {
                Ok(true) => {}
                Ok(false) => break,
                Err(stop) => {
                    assert!(!stop.0.is_empty());
                    self.stopped = true;
                    break;
                }
            }
        }
        while self.core.machine_mut().poll_notice().is_some() {}
        assert!(self.out.len() <= TURN_MAX, "{} packets", self.out.len());
        for (_, packet) in sent(&self.out) {
            assert_eq!(packet.header.shard, SHARD);
        }
        self.out.clear();
        assert!(self.core.machine().queued() <= QUEUE_MAX);
        self.check();
    }

    fn check(&mut self) {
        if self.meddled {
            return;
        }
        let state = self.store.state();
        let stored = state.records.get(&b"watermark"[..]);
        let stored = stored.map_or(0, |value| {
            u64::from_be_bytes(value[..].try_into().expect("eight bytes"))
        });
        assert!(stored >= self.watermark, "the watermark went back");
        self.watermark = stored;
        let mut seen = BTreeSet::new();
        let mut last: BTreeMap<u64, u64> = BTreeMap::new();
        for effect in &state.effects {
            let [session, seq, request] = numbers(effect);
            let identity = if request == 0 {
                (session, seq, 0)
            } else {
                (session, 0, request)
            };
            assert!(seen.insert(identity), "twice: {session} {seq} {request}");
            if request > 0 {
                // Copies of one bypass may have different seqs in this target.
                continue;
            }
            let last = last.entry(session).or_default();
            assert!(*last <= seq, "session {session}: {seq} after {last}");
            *last = seq;
        }
    }
}

/// Returns the effect of an update; the effect of a fragment is a part of it.
fn payload_of(entry: &Header) -> Vec<u8> {
    match Kind::from_u8(entry.copies.raw()) {
        Some(Kind::Open) => entry.session.to_be_bytes().to_vec(),
        Some(Kind::End) => Vec::new(),
        _ => change(entry.session, entry.seq, 0),
    }
}

fn change(session: u64, seq: u64, request: u64) -> Vec<u8> {
    [session, seq, request].map(u64::to_be_bytes).concat()
}

/// Returns session, seq and request of the first part of an effect.
fn numbers(effect: &[u8]) -> [u64; 3] {
    let number = |at: usize| {
        let bytes = effect
            .get(at..at + 8)
            .and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u64::from_be_bytes)
    };
    [number(0), number(8), number(16)]
}
