//! The differential fuzzer. Two devices, one in user space and one with a pipeline, get the same random packets:
//! correct, wrong, damaged, repeated, early or late ones, and some from a wrong address. Answers and logs must be
//! equal. A failure names its seed.
//!
//! `PMNET_PACKETS` sets the number of packets (a million in the test suite), `PMNET_SEED` the first seed.

use std::net::SocketAddr;

use fastrand::Rng;
use pmnet_device::DeviceConfig;
use pmnet_proto::time::MILLISECOND;
use pmnet_proto::{Peer, Time};
use pmnet_wire::packet::READ_KEYS_MAX;
use pmnet_wire::{Flags, Header, Kind, Packet, raw};

use crate::load::addresses;
use crate::world::{SHARD, SHARD_TOKEN, Sent, World, server, skipped};

/// Number of packets in one world.
pub const PACKETS: u64 = 2_000;
/// Number of hashes that the keys of updates, READs and bypasses have. The hash 0 stands for several keys, or for
/// unknown keys.
const KEYS: u64 = 12;
/// Number of packets if `PMNET_PACKETS` is not set.
pub const PACKETS_ALL: u64 = 200_000;

pub fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{name}={text}: not a number"))
    })
}

struct Client {
    address: Peer,
    token: u64,
    session: u64,
    seq: u64,
    /// Id of the session's newest bypass.
    request: u64,
}

/// Two devices that get the same packets, and are compared.
pub trait Pair {
    /// Gives a datagram to both devices. Both devices must send the same packets, which are returned.
    fn receive(&mut self, from: Peer, datagram: &[u8]) -> Vec<Sent>;
    /// Lets this time pass, in nanoseconds. Returns the packets that the devices send.
    fn later(&mut self, nanos: u64) -> Vec<Sent>;
    /// Returns the address at which the devices listen.
    fn address(&self) -> SocketAddr;
    /// Returns the cursors of both devices ([`pmnet_proto::device::Device::cursors`]).
    fn cursors(&self) -> (u64, u64, u64, u64);
}

impl Pair for World {
    fn receive(&mut self, from: Peer, datagram: &[u8]) -> Vec<Sent> {
        World::receive(self, from, datagram)
    }
    fn later(&mut self, nanos: u64) -> Vec<Sent> {
        self.now = Time(self.now.0 + nanos);
        self.finish()
    }
    fn address(&self) -> SocketAddr {
        self.address
    }
    fn cursors(&self) -> (u64, u64, u64, u64) {
        self.reference.machine().cursors()
    }
}

pub struct Run<W> {
    rng: Rng,
    pub world: W,
    clients: Vec<Client>,
    /// Earlier datagrams, which may be sent again.
    old: Vec<(Peer, Vec<u8>)>,
    request: u64,
}

impl<W: Pair> Run<W> {
    /// Returns a run with this seed. `world` makes the two devices, with an address and settings that follow from the
    /// seed.
    pub fn new(seed: u64, world: impl Fn(SocketAddr, &dyn Fn(&mut DeviceConfig)) -> W) -> Run<W> {
        let mut rng = Rng::with_seed(seed);
        let (device, client) = addresses()[rng.usize(..2)];
        let quota = rng.u8(..4) == 0;
        let world = world(device, &|settings| {
            if quota {
                settings.session_entries_max = 5;
            }
            settings.session_idle = 40 * MILLISECOND;
        });
        let clients = (0..4)
            .map(|index| Client {
                address: SocketAddr::new(client.ip(), client.port() + index),
                token: 0x1000 + 2 * u64::from(index),
                session: 0,
                seq: 0,
                request: 0,
            })
            .collect();
        Run {
            rng,
            world,
            clients,
            old: Vec::new(),
            request: 0,
        }
    }

    /// Sends one packet, or lets time pass.
    pub fn step(&mut self) {
        let which = self.rng.usize(..self.clients.len());
        match self.rng.u8(..100) {
            0..=37 => self.update(which),
            38..=54 => self.read(which),
            55..=64 => self.again(),
            65..=69 => self.open(which),
            70..=72 => self.end(which),
            73..=75 => self.bypass(which),
            76..=90 => self.server(),
            91..=94 => self.damaged(which),
            95 => self.moved(which),
            _ => {
                let sent = self.world.later(self.rng.u64(..3 * MILLISECOND));
                self.learn(&sent);
            }
        }
    }

    fn payload(&mut self) -> Vec<u8> {
        let len = match self.rng.u8(..8) {
            0 => 0,
            1 => self.rng.usize(..=pmnet_wire::FRAGMENT_BYTES),
            2 => pmnet_wire::FRAGMENT_BYTES,
            _ => self.rng.usize(..200),
        };
        (0..len).map(|_| self.rng.u8(..)).collect()
    }

    fn header(&mut self, which: usize, kind: Kind) -> Header {
        let client = &self.clients[which];
        Header {
            shard: SHARD,
            epoch: 1,
            session: client.session,
            seq: client.seq,
            tag: client.token,
            ..Header::new(kind)
        }
    }

    fn update(&mut self, which: usize) {
        let payload = self.payload();
        let mut header = self.header(which, Kind::Update);
        header.seq += 1;
        header.key_hash = raw(self.key());
        // In one update of thirty a field is wrong.
        match self.rng.u8(..60) {
            0 => header.seq += self.rng.u64(1..4),
            1 => header.seq = header.seq.wrapping_sub(self.rng.u64(1..5)),
            2 => header.epoch = self.rng.u32(..3),
            3 => header.shard ^= 1,
            4 => header.tag ^= 1,
            5 => header.session += self.rng.u64(1..5),
            6 => header.flags = Flags(self.rng.u8(..)),
            7 => header.device = 1,
            8 => header.order = self.rng.u64(..),
            9 => header.request = raw(1),
            10 => header.copies = raw(1),
            11 => header.seq = self.rng.u64(..),
            12 => header.epoch = 7,
            13 => {
                header.fragment_count = self.rng.u16(1..9);
                header.fragment_index = self.rng.u16(..header.fragment_count);
            }
            _ => {}
        }
        if header.seq == self.clients[which].seq + 1 {
            self.clients[which].seq += 1;
        }
        self.send(self.clients[which].address, header, &payload);
    }

    /// Returns a random key; one in eight is unknown.
    fn key(&mut self) -> u64 {
        match self.rng.u8(..8) {
            0 => 0,
            _ => self.rng.u64(1..=KEYS) << 40,
        }
    }

    fn read(&mut self, which: usize) {
        let count = match self.rng.u8(..8) {
            0 => self.rng.usize(..=READ_KEYS_MAX + 1),
            1 => self.rng.usize(2..5),
            _ => 1,
        };
        let mut payload = Vec::new();
        for _key in 0..count {
            let hash = match self.key() {
                0 if self.rng.u8(..4) > 0 => 1,
                hash => hash,
            };
            payload.extend(hash.to_be_bytes());
        }
        if self.rng.u8(..60) == 0 {
            payload.pop();
        }
        let mut header = self.header(which, Kind::Read);
        header.seq = 0;
        header.request = raw(self.rng.u64(..));
        match self.rng.u8(..8) {
            0..4 => header.flags = Flags::KEPT,
            4 => header.flags = Flags::REPLICAS,
            _ => {}
        }
        // In one packet of twelve a field is wrong.
        match self.rng.u8(..120) {
            0 => header.seq = self.rng.u64(..),
            1 => header.order = self.rng.u64(..),
            2 => header.epoch = self.rng.u32(..3),
            3 => header.shard ^= 1,
            4 => header.tag ^= 1,
            5 => header.session += self.rng.u64(1..5),
            6 => header.flags = Flags(self.rng.u8(..)),
            7 => header.device = 1,
            8 => header.key_hash = raw(1),
            9 => header.copies = raw(1),
            10 => header.fragment_count = 2,
            _ => {}
        }
        self.send(self.clients[which].address, header, &payload);
    }

    fn open(&mut self, which: usize) {
        // With an odd token, the OPEN opens a mark.
        let mark = u64::from(self.rng.u8(..40) == 0);
        let client = &mut self.clients[which];
        if self.rng.bool() {
            client.token = self.rng.u64(1..1 << 60) << 1 | mark;
        }
        let (address, token) = (client.address, client.token);
        let header = Header {
            shard: SHARD,
            tag: token,
            ..Header::new(Kind::Open)
        };
        self.send(address, header, &token.to_be_bytes());
    }

    fn end(&mut self, which: usize) {
        let mut header = self.header(which, Kind::End);
        header.seq += 1;
        self.send(self.clients[which].address, header, b"");
    }

    fn bypass(&mut self, which: usize) {
        self.request += 1;
        let kind = if self.rng.bool() {
            Kind::Bypass
        } else {
            Kind::Ping
        };
        let mut header = self.header(which, kind);
        header.request = raw(self.request);
        header.key_hash = raw(self.key());
        match self.rng.u8(..6) {
            0 => {
                header.flags = Flags::FALLBACK;
                header.seq += 1;
                // The request id of a fallback is its first seq.
                header.request = raw(header.seq);
            }
            1 => header.flags = Flags::READ_ONLY,
            _ if kind == Kind::Bypass => self.clients[which].request = self.request,
            _ => {}
        }
        let payload = self.payload();
        self.send(self.clients[which].address, header, &payload);
    }

    /// Gives the devices one of the packets that a server sends.
    fn server(&mut self) {
        let (last, _, _, applied) = self.world.cursors();
        let which = self.rng.usize(..self.clients.len());
        let kind = match self.rng.u8(..8) {
            0..=2 => Kind::Applied,
            3 => Kind::Retrans,
            4..=6 => Kind::Response,
            _ => Kind::StaleEpoch,
        };
        let mut header = Header {
            shard: SHARD,
            epoch: 1,
            tag: SHARD_TOKEN,
            order: self.rng.u64(applied..=last),
            request: raw(self.rng.u64(1..2_000)),
            ..Header::new(kind)
        };
        if kind == Kind::Applied && self.rng.bool() {
            // Most orders are stated as applied only later, so that the devices have updates to show.
            header.order = applied;
        }
        if kind == Kind::Response {
            header.order = self.rng.u64(applied.saturating_sub(4)..=last);
            header.request = raw(if self.rng.u8(..6) == 0 {
                self.rng.u64(1..self.request + 2)
            } else {
                self.clients[which].request
            });
            let client = &mut self.clients[which];
            header.session = client.session;
            header.seq = client.seq;
            if self.rng.u8(..4) == 0 {
                header.flags = Flags::FALLBACK;
                client.seq += 1;
                header.seq = client.seq;
            }
        }
        let server = server(self.world.address());
        self.send(server, header, b"");
    }

    fn damaged(&mut self, which: usize) {
        let header = self.header(which, Kind::Update);
        let payload = self.payload();
        let mut bytes = Vec::new();
        Header {
            seq: header.seq + 1,
            ..header
        }
        .write(&payload, &mut bytes);
        if self.rng.bool() {
            let at = self.rng.usize(..bytes.len());
            bytes[at] ^= 1 << self.rng.u8(..8);
        } else {
            bytes.truncate(self.rng.usize(..bytes.len()));
        }
        self.deliver(self.clients[which].address, &bytes);
    }

    fn moved(&mut self, which: usize) {
        let address = &mut self.clients[which].address;
        address.set_port(address.port() ^ 0x100);
    }

    fn again(&mut self) {
        if let Some((from, bytes)) = self.rng.choice(&self.old).cloned() {
            self.deliver(from, &bytes);
        }
    }

    fn send(&mut self, from: Peer, header: Header, payload: &[u8]) {
        let mut bytes = Vec::new();
        header.write(payload, &mut bytes);
        if self.old.len() == 64 {
            self.old.swap_remove(self.rng.usize(..64));
        }
        self.old.push((from, bytes.clone()));
        self.deliver(from, &bytes);
    }

    fn deliver(&mut self, from: Peer, bytes: &[u8]) {
        let sent = self.world.receive(from, bytes);
        self.learn(&sent);
    }

    /// Clients learn from these packets their session ids, and the seqs with which they should continue.
    fn learn(&mut self, sent: &[Sent]) {
        for packet in sent {
            let Ok(parsed) = Packet::parse(&packet.bytes) else {
                continue;
            };
            let header = parsed.header;
            let Some(client) = self.clients.iter_mut().find(|c| c.token == header.tag) else {
                continue;
            };
            match header.kind {
                Kind::OpenReply => (client.session, client.seq) = (header.session, 0),
                Kind::Nack if header.session == client.session && header.seq > 0 => {
                    client.seq = header.seq - 1;
                }
                Kind::NotLogged if header.session == client.session => {
                    client.seq = client.seq.min(header.seq.saturating_sub(1));
                }
                _ => {}
            }
        }
    }
}

/// Sends `packets` packets, in stories that have a seed each; `step` sends one packet. The kernel must process a fair
/// share of these packets by itself (`did` tells how many). Returns the number of READs that the kernel answered with
/// HIT, and the number that it answered with MISS.
pub fn compared<R>(
    packets: u64,
    did: &str,
    begin: impl Fn(u64) -> R + std::panic::RefUnwindSafe,
    step: impl Fn(&mut R) + std::panic::RefUnwindSafe,
    world: impl Fn(&R) -> &World + std::panic::RefUnwindSafe,
) -> (u64, u64) {
    let first = number("PMNET_SEED", 1);
    let (mut answered, mut silences, mut hits, mut misses, mut forged) = (0, 0, 0, 0, Some(0));
    for seed in first..first + packets.div_ceil(PACKETS) {
        let outcome = std::panic::catch_unwind(|| {
            let mut run = begin(seed);
            for _packet in 0..PACKETS {
                if world(&run).diverged {
                    println!("PMNET_SEED={seed}: space comes back at another moment");
                    break;
                }
                step(&mut run);
            }
            world(&run).compare_logs();
            let forged = world(&run).compare_forged();
            let answered = world(&run).answered;
            (
                forged,
                answered,
                world(&run).compare_silence(),
                world(&run).reads,
            )
        });
        match outcome {
            Ok((forged_here, more, silent, reads)) => {
                forged = forged.zip(forged_here).map(|(all, here)| all + here);
                answered += more + silent;
                silences += silent;
                hits += reads.0;
                misses += reads.1;
            }
            Err(panic) => {
                println!("PMNET_SEED={seed} PMNET_PACKETS={PACKETS} shows it again");
                std::panic::resume_unwind(panic);
            }
        }
    }
    println!(
        "{packets} packets, {answered} {did} by the kernel alone, {hits} HITs and {misses} MISSes among them, and \
         {silences} that it kept to itself for want of a lease"
    );
    if let Some(forged) = forged {
        println!("{forged} forged ones were dropped by the kernel alone");
        assert!(
            forged * 100 > packets,
            "{forged} of {packets} forged: little was compared"
        );
    }
    assert!(
        answered * 8 > packets,
        "{answered} of {packets}: the kernel hardly ever did anything, so little was compared"
    );
    (hits, misses)
}

#[test]
fn the_kernel_answers_as_user_space_does() {
    if !skipped() {
        let packets = number("PMNET_PACKETS", PACKETS_ALL);
        let begin = |seed| Run::new(seed, |address, settings| World::new(address, settings));
        let (hits, misses) = compared(packets, "answered", begin, Run::step, |run| &run.world);
        // In a short run the kernel may answer too few READs.
        let few = packets < 10 * PACKETS;
        assert!(
            few || (hits * 1_000 > packets && misses * 100 > packets),
            "{hits} HITs, {misses} MISSes: few READs were compared"
        );
    }
}
