//! A port that limits the number of entries that are forwarded in a turn. The remaining entries follow at once, and
//! acknowledgements do not wait for them.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;

use pmnet_device::{DeviceConfig, DeviceNode, Port, Wake, serve};
use pmnet_proto::time::{MILLISECOND, Nanos};
use pmnet_proto::{Outbox, Peer, Random, Time};
use pmnet_wire::{Header, Kind, Packet, raw};

use crate::world::{
    DEVICE, IDENTITY, Memory, PARAMETERS, SHARD, SHARD_TOKEN, recover_reply, repaired, server,
    settings,
};

const MOST: usize = 4;
const UPDATES: u64 = 40;
const TOKEN: u64 = 2;
/// Nanoseconds between two turns with work. All turns end before any packet is sent again.
const TURN: u64 = 10_000;
/// Limit of the number of turns, far more than the test needs.
const TURNS_MAX: usize = 2_000;

/// The port of the device. It acts as the server and as one client. The client sends bursts of updates, and one more
/// update when the first entries are forwarded.
struct Turns {
    now: u64,
    next: Peer,
    /// Number of updates in one turn.
    burst: u64,
    /// Number of updates that are still to be sent.
    more: u64,
    /// Seq of the newest update.
    seq: u64,
    inbox: VecDeque<(Peer, Vec<u8>)>,
    /// The headers of the datagrams that each turn sent.
    sent: Vec<Vec<Header>>,
    turns: usize,
}

fn client() -> Peer {
    SocketAddr::from(([10, 0, 0, 1], 40_001))
}

impl Turns {
    fn client_says(&mut self, header: Header, payload: &[u8]) {
        let mut bytes = Vec::new();
        Header {
            shard: SHARD,
            tag: TOKEN,
            ..header
        }
        .write(payload, &mut bytes);
        self.inbox.push_back((client(), bytes));
    }

    fn update(&mut self) {
        self.seq += 1;
        let update = Header {
            epoch: 1,
            session: 1,
            seq: self.seq,
            ..Header::new(Kind::Update)
        };
        self.client_says(update, b"update");
    }

    fn of(&self, kind: Kind) -> Vec<(usize, Header)> {
        let turns = self.sent.iter().enumerate();
        let all = turns.flat_map(|(turn, sent)| sent.iter().map(move |header| (turn, *header)));
        all.filter(|(_, header)| header.kind == kind).collect()
    }

    fn forwarded(&self) -> Vec<(usize, Header)> {
        self.of(Kind::Append)
    }
}

impl Port for Turns {
    fn receive(&mut self, deliver: &mut dyn FnMut(Peer, u8, &[u8])) -> io::Result<usize> {
        let burst: Vec<_> = self.inbox.drain(..).collect();
        for (from, bytes) in &burst {
            deliver(*from, 64, bytes);
        }
        Ok(burst.len())
    }

    fn send(&mut self, out: &Outbox) -> io::Result<()> {
        let first = self.forwarded().is_empty();
        for (_, bytes) in out.iter() {
            if let Some(reply) = recover_reply(bytes, (0, 0)) {
                self.inbox.push_back((self.next, reply));
            }
        }
        let sent = out
            .iter()
            .map(|(_, bytes)| Packet::parse(bytes).unwrap().header);
        let sent: Vec<Header> = sent.collect();
        let has = |kind| sent.iter().any(|header| header.kind == kind);
        let newest = sent.iter().rfind(|header| header.kind == Kind::Append);
        if let Some(newest) = newest {
            // The server has room for all later entries.
            let mut applied = Vec::new();
            Header {
                shard: SHARD,
                epoch: 1,
                tag: SHARD_TOKEN,
                order: newest.order,
                request: raw(1_000),
                ..Header::new(Kind::Applied)
            }
            .write(b"", &mut applied);
            self.inbox.push_back((self.next, applied));
        }
        let extra = first && has(Kind::Append);
        self.sent.push(sent);
        if extra {
            self.update();
        }
        Ok(())
    }

    fn forwards_max(&self) -> usize {
        MOST
    }

    fn now(&self) -> Time {
        Time(self.now)
    }

    fn wait(&mut self, busy: bool, until: Option<Time>) -> io::Result<Wake> {
        self.turns += 1;
        if self.turns == 3 && self.of(Kind::OpenReply).is_empty() {
            let open = Header::new(Kind::Open);
            self.client_says(open, &TOKEN.to_be_bytes());
        }
        if !self.of(Kind::OpenReply).is_empty() {
            for _ in 0..self.burst.min(self.more) {
                self.update();
                self.more -= 1;
            }
        }
        // The OPEN and all updates.
        let all = usize::try_from(self.seq + 1).unwrap();
        let done = self.more == 0 && self.seq > 0 && self.forwarded().len() >= all;
        if done || self.turns > TURNS_MAX {
            return Ok(Wake::Stop);
        }
        self.now = match until {
            // Without work, the device need not run before this time.
            Some(until) if !busy && self.inbox.is_empty() => until.0.max(self.now),
            _ => self.now + TURN,
        };
        Ok(Wake::Work)
    }
}

/// Runs a device with such a port until all entries are forwarded.
fn turns(updates: u64, burst: u64, linger: Nanos) -> Turns {
    let address = SocketAddr::from(([10, 0, 0, 7], 51_000));
    let mut memory = Memory(vec![0; PARAMETERS.image_bytes()]);
    pmnet_log::format(&mut memory, &IDENTITY, &PARAMETERS).unwrap();
    let settings = DeviceConfig {
        server_linger: linger,
        ..settings(DEVICE, server(address))
    };
    let node = DeviceNode::new(settings, repaired(memory), Random::new(9), Time(1));
    let mut port = Turns {
        now: 1,
        next: server(address),
        burst,
        more: updates,
        seq: 0,
        inbox: VecDeque::new(),
        sent: Vec::new(),
        turns: 0,
    };
    serve(node, &mut port, |_, _| ()).unwrap();
    let orders: Vec<u64> = port.forwarded().iter().map(|(_, h)| h.order).collect();
    let all: Vec<u64> = (1..=updates + 2).collect();
    assert_eq!(orders, all, "each once, in order");
    port
}

#[test]
fn a_turn_sends_on_no_more_than_its_port_takes() {
    let port = turns(UPDATES, UPDATES, 8 * MILLISECOND);
    for (turn, sent) in port.sent.iter().enumerate() {
        let count = sent.iter().filter(|header| header.kind == Kind::Append);
        // A turn that appends an entry may send one more.
        assert!(count.count() <= MOST + 1, "turn {turn}: {sent:?}");
    }
    // The update that arrived when forwarding began was acknowledged before forwarding ended.
    let acks = port.of(Kind::Ack);
    let (at, _) = acks
        .iter()
        .find(|(_, header)| header.seq == UPDATES + 1)
        .expect("acknowledged");
    let forwarded = port.forwarded();
    let behind = forwarded.iter().filter(|(turn, _)| turn > at).count();
    assert!(
        behind > 10,
        "{behind} were sent on behind its acknowledgement"
    );
}

/// In each of many turns, more updates arrive than a turn may forward. All updates are forwarded, and the log, which
/// has room for the updates of six turns, never fills up.
#[test]
fn what_waits_to_be_sent_on_does_not_grow() {
    let port = turns(600, 10, 0);
    assert_eq!(port.of(Kind::NotLogged), []);
    assert!(port.sent.len() < 100, "{} turns", port.sent.len());
}
