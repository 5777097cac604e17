//! The client machine under arbitrary replies (`docs/spec/protocol.md` §3).
//!
//! Invariants: nothing panics. Every call ends exactly once, by its deadline if the client is asked
//! in time. Sent packets parse, are bounded, and go to the head. A closed session sends nothing
//! more. When everything has ended, no timer remains.

use std::collections::BTreeMap;

use bytes::Bytes;
use pmnet_proto::client::{CallId, Client, ClientConfig, Event, Outcome, Refused, SessionHandle};
use pmnet_proto::time::{MILLISECOND, SECOND};
use pmnet_proto::{Outbox, Random, Time};
use pmnet_wire::{FRAGMENT_BYTES, Flags, Header, Kind, raw};

use crate::input::Input;
use crate::peers::{SHARD, client, datagram, peer, sent};

/// Maximum number of operations of one input.
const OPERATIONS: usize = 500;
/// Maximum number of waiting calls in a session.
const QUEUE_MAX: usize = 16;
/// Maximum number of sessions.
const SESSIONS_MAX: usize = 3;
/// Maximum number of packets in one flush: a window of each session, and a transfer.
const FLUSH_MAX: usize = 256;

struct Call {
    session: SessionHandle,
    deadline: Time,
    update: bool,
}

struct World {
    client: Client,
    out: Outbox,
    now: Time,
    sessions: Vec<SessionHandle>,
    /// The calls that have not ended.
    calls: BTreeMap<CallId, Call>,
    /// The last sent packets, from which answers are made.
    asked: Vec<Header>,
    epoch: u32,
    next_id: u64,
    /// Ids of opened sessions, by token.
    ids: BTreeMap<u64, u64>,
}

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let config = ClientConfig {
        shard: SHARD,
        queue_max: QUEUE_MAX,
        sessions_max: SESSIONS_MAX,
        window_max: input.pick(&[2, 32]),
        copies_min: input.pick(&[1, 2]),
        ping_every: input.pick(&[60 * SECOND, SECOND]),
        ..ClientConfig::new(peer(1))
    };
    let mut world = World {
        client: Client::new(config, Random::new(7)),
        out: Outbox::new(),
        now: Time(MILLISECOND),
        sessions: Vec::new(),
        calls: BTreeMap::new(),
        asked: Vec::new(),
        epoch: 1,
        next_id: 1,
        ids: BTreeMap::new(),
    };
    for _ in 0..OPERATIONS {
        if !input.more() {
            break;
        }
        world.step(&mut input);
    }
    world.wind_up();
}

impl World {
    fn step(&mut self, input: &mut Input<'_>) {
        match input.byte() % 16 {
            0 => self.open(),
            1..=3 => self.call(input),
            4 if input.rarely(4) => {
                if let Some(session) = self.session(input) {
                    self.client.end(session, self.now + SECOND);
                }
            }
            5..=12 => self.answer(input),
            13 => self.client.receive(self.now, peer(1), input.bytes(120)),
            _ => {
                self.now =
                    self.now + input.pick(&[0, 1000, 5 * MILLISECOND, 80 * MILLISECOND, SECOND]);
                self.flush();
            }
        }
        self.events();
    }

    fn open(&mut self) {
        match self.client.open(self.now) {
            Ok(session) => self.sessions.push(session),
            Err(refused) => {
                assert_eq!(refused, Refused::Sessions);
                assert!(self.client.sessions() >= SESSIONS_MAX);
            }
        }
    }

    fn session(&self, input: &mut Input<'_>) -> Option<SessionHandle> {
        (!self.sessions.is_empty()).then(|| self.sessions[input.index(self.sessions.len())])
    }

    fn call(&mut self, input: &mut Input<'_>) {
        let Some(session) = self.session(input) else {
            return;
        };
        let length = input.pick(&[
            0,
            9,
            9,
            FRAGMENT_BYTES,
            FRAGMENT_BYTES + 1,
            40 * FRAGMENT_BYTES,
        ]);
        let payload = Bytes::from(vec![input.byte(); length]);
        let deadline = self.now + input.pick(&[0, MILLISECOND, SECOND, 5 * SECOND]);
        let update = !input.rarely(3);
        let result = if update {
            self.client.update(session, payload, 9, deadline)
        } else {
            let read_only = input.rarely(2);
            self.client.bypass(session, payload, 9, read_only, deadline)
        };
        match result {
            Ok(call) => {
                let call_state = Call {
                    session,
                    deadline,
                    update,
                };
                let before = self.calls.insert(call, call_state);
                assert!(before.is_none(), "a call is never reused");
            }
            Err(refused) => assert!(matches!(refused, Refused::Busy | Refused::Closed)),
        }
    }

    /// Delivers an answer to one of the last packets, which is right or nearly right.
    fn answer(&mut self, input: &mut Input<'_>) {
        if self.asked.is_empty() {
            return;
        }
        let asked = self.asked[input.index(self.asked.len())];
        if input.rarely(32) {
            self.epoch += 1;
        }
        let mut header = Header {
            flags: Flags(0),
            epoch: self.epoch,
            device: 1,
            incarnation: 1,
            copies: raw(input.pick(&[1, 2, 2, 2])),
            request: raw(input.near(1000)),
            key_hash: raw(0),
            fragment_index: 0,
            fragment_count: 1,
            ..asked
        };
        let mut payload: &[u8] = &[];
        match (asked.kind, input.byte() % 8) {
            (Kind::Open, 0..=5) => {
                header.kind = Kind::OpenReply;
                let next = self.next_id;
                header.session = *self.ids.entry(asked.tag).or_insert(next);
                self.next_id += 1;
            }
            (Kind::Update | Kind::End, 0..=3) => header.kind = Kind::Ack,
            (Kind::Update, 4 | 5) => header.kind = Kind::NotLogged,
            (Kind::Bypass, 0..=5) => {
                header.kind = Kind::Response;
                header.request = asked.request;
                payload = b"$3\r\nabc\r\n";
                self.shape_response(&mut header, &asked, input);
            }
            (_, 6) => {
                header.kind = Kind::Nack;
                header.request = input.pick(&[raw(0), asked.request]);
                if input.rarely(8) {
                    header.flags = Flags::UNKNOWN_SESSION;
                }
            }
            _ => header.kind = input.pick(Kind::ALL),
        }
        header.seq = input.near(asked.seq);
        if input.rarely(5) {
            header.order = input.long();
            header.session = input.near(header.session);
            header.request = raw(input.near(header.request.raw()));
            header.tag = input.near(header.tag);
            header.epoch = input.near_word(self.epoch).min(self.epoch);
            header.key_hash = raw(input.long());
        }
        let from = if input.rarely(16) { client(1) } else { peer(1) };
        let mut bytes = datagram(&header, payload);
        if input.rarely(16) {
            let at = input.index(bytes.len());
            bytes[at] ^= input.byte();
        }
        self.client.receive(self.now, from, &bytes);
    }

    /// Shapes a response: progress, a confirmation of a fallback, or a reply in fragments.
    fn shape_response(&self, header: &mut Header, asked: &Header, input: &mut Input<'_>) {
        if asked.flags.has(Flags::FALLBACK) {
            header.flags = Flags::FALLBACK;
        }
        match input.byte() % 4 {
            0 => {
                header.flags = header.flags.with(Flags::PROGRESS);
                header.order = input.near(u64::from(asked.fragment_index) + 1);
            }
            1 => {
                header.fragment_count = 1 + u16::from(input.byte() % 80);
                header.fragment_index = input.short() % header.fragment_count;
                header.key_hash = raw(u64::from(pmnet_wire::crc(b"$3\r\nabc\r\n$3\r\nabc\r\n")));
            }
            _ => {}
        }
    }

    /// Asks the client until it has nothing more to send now, which must happen soon.
    fn flush(&mut self) {
        for _ in 0..4 {
            self.flush_once();
            let next = self.client.next_timeout();
            if next.is_none_or(|time| time > self.now) {
                return;
            }
        }
        panic!("the client wants to be asked again and again at one moment");
    }

    fn flush_once(&mut self) {
        self.client.flush(self.now, &mut self.out);
        assert!(self.out.len() <= FLUSH_MAX, "{} packets", self.out.len());
        for (to, packet) in sent(&self.out) {
            assert_eq!((to, packet.header.shard), (peer(1), SHARD));
            assert_ne!(packet.header.tag, 0);
            self.asked.push(packet.header);
        }
        self.out.clear();
        let keep = self.asked.len().saturating_sub(12);
        self.asked.drain(..keep);
    }

    fn events(&mut self) {
        while let Some(event) = self.client.poll_event() {
            match event {
                Event::Done {
                    session,
                    call,
                    outcome,
                } => {
                    let known = self.calls.remove(&call);
                    let known = known.expect("a call ends once, and only if it was made");
                    assert_eq!(known.session, session);
                    let fits = match outcome {
                        Outcome::Committed { .. } => known.update,
                        Outcome::Reply(_) => !known.update,
                        Outcome::Failed(why) => !why.is_empty(),
                        Outcome::Unknown => true,
                    };
                    assert!(fits, "an update is not answered, a bypass not committed");
                }
                Event::Read { .. } | Event::Marked { .. } => panic!("nobody asked"),
                Event::SessionClosed { session, .. } => {
                    assert!(self.calls.values().all(|call| call.session != session));
                    self.sessions.retain(|known| *known != session);
                }
            }
        }
    }

    /// Gives no answers any more: all calls end by their deadlines, and so do their sessions.
    fn wind_up(&mut self) {
        let latest = self.calls.values().map(|call| call.deadline).max();
        let latest = latest.unwrap_or(self.now).max(self.now);
        // The client is asked exactly at the times that it requests.
        for _ in 0..5000 {
            self.flush();
            self.events();
            let Some(next) = self.client.next_timeout() else {
                break;
            };
            if next > latest + MILLISECOND {
                break;
            }
            self.now = self.now.max(next);
        }
        self.now = self.now.max(latest + MILLISECOND);
        self.flush();
        self.events();
        let left: Vec<_> = self.calls.keys().collect();
        assert!(left.is_empty(), "calls outlive their deadlines: {left:?}");
    }
}
