//! The differential fuzzer for chains: a head, a follower in the middle, and a last device. Each is compared with a
//! device that is entirely in user space. A failure names its seed.
//!
//! `PMNET_PACKETS` and `PMNET_SEED` work as in `differential.rs`.

use std::net::{Ipv4Addr, SocketAddr};

use fastrand::Rng;
use pmnet_device::DeviceConfig;
use pmnet_proto::Time;
use pmnet_proto::time::{MILLISECOND, SECOND};
use pmnet_wire::record::{DurableRow, write_durable};
use pmnet_wire::{Flags, Header, Kind, Packet, raw};

use crate::differential::{compared, number};
use crate::load::addresses;
use crate::world::{SHARD, SHARD_TOKEN, Sent, World, before, others, server, skipped};

/// Number of packets if `PMNET_PACKETS` is not set. This test sends a fifth of this number.
pub const PACKETS_ALL: u64 = 200_000;
/// Numbers of devices before and after the compared one.
const PLACES: [(usize, usize); 5] = [(0, 1), (0, 2), (1, 1), (1, 0), (0, 7)];

/// The kind of network between the devices of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Network {
    Ipv4,
    Ipv6,
    /// An IPv4 network in which the device is in a switch: clients send to the server's address.
    Switch,
}

const NETWORKS: [Network; 3] = [Network::Ipv4, Network::Ipv6, Network::Switch];

pub struct Run {
    rng: Rng,
    pub world: World,
    around: (usize, usize),
    client: SocketAddr,
    /// Sessions, each with its id, its token and its last seq.
    sessions: Vec<(u64, u64, u64)>,
    old: Vec<(SocketAddr, Vec<u8>)>,
    /// Incarnation of the next device.
    incarnation: u32,
}

impl Run {
    /// Returns a run with this seed. With `leased`, the device needs a lease to answer, and has none yet.
    pub fn new(seed: u64, leased: bool) -> Run {
        let mut rng = Rng::with_seed(seed);
        let around = PLACES[rng.usize(..PLACES.len())];
        let network = NETWORKS[rng.usize(..NETWORKS.len())];
        Run::at(rng, network, around, |settings| settings.leased = leased)
    }

    /// Returns a run in which the devices have keys. In every fourth story there are two cluster keys.
    pub fn with_keys(seed: u64) -> Run {
        let mut rng = Rng::with_seed(seed);
        let around = PLACES[rng.usize(..PLACES.len())];
        let network = NETWORKS[rng.usize(..NETWORKS.len())];
        Run::at(rng, network, around, |settings| {
            settings.keys = Some(crate::keyed::keys(around, seed.is_multiple_of(4)));
        })
    }

    fn at(
        rng: Rng,
        network: Network,
        around: (usize, usize),
        device: impl Fn(&mut DeviceConfig),
    ) -> Run {
        let (address, client) = addresses()[usize::from(network == Network::Ipv6)];
        // Devices in a switch have addresses of their own.
        let own = SocketAddr::from((Ipv4Addr::new(10, 0, 0, 12), address.port()));
        let own = Some(own).filter(|_| network == Network::Switch);
        let world = World::with(address, own, around, |settings| {
            // No timer ends during the test: only the device in user space measures all round-trip times, so the timers
            // would differ.
            settings.link_timeout_floor = 1_000 * SECOND;
            settings.link_timeout_ceiling = 1_000 * SECOND;
            device(settings);
        });
        Run {
            rng,
            world,
            around,
            client,
            sessions: Vec::new(),
            old: Vec::new(),
            incarnation: 1,
        }
    }

    fn is_head(&self) -> bool {
        self.around.0 == 0
    }

    pub fn step(&mut self) {
        match self.rng.u8(..100) {
            0..=44 if self.is_head() => self.update(),
            0..=44 => self.append(),
            45..=79 if self.around.1 > 0 => self.durable(),
            45..=89 => self.applied(),
            90..=92 => self.again(),
            93..=95 => self.other(),
            _ => {
                self.world.now = Time(self.world.now.0 + self.rng.u64(..3 * MILLISECOND));
                let sent = self.world.finish();
                self.learn(&sent);
            }
        }
    }

    fn payload(&mut self) -> Vec<u8> {
        let len = match self.rng.u8(..8) {
            0 => 0,
            1 => self.rng.usize(..=pmnet_wire::FRAGMENT_BYTES),
            _ => self.rng.usize(..200),
        };
        (0..len).map(|_| self.rng.u8(..)).collect()
    }

    fn hop(&mut self, kind: Kind) -> Header {
        let mut header = Header {
            shard: SHARD,
            epoch: 1,
            tag: SHARD_TOKEN,
            device: 101,
            incarnation: 1,
            ..Header::new(kind)
        };
        match self.rng.u8(..120) {
            0 => header.tag ^= 1,
            1 => header.epoch = 0,
            2 => header.shard ^= 1,
            3 => header.flags = Flags(self.rng.u8(..)),
            _ => {}
        }
        header
    }

    /// Gives the devices an update of a client at the head, or an OPEN if there are few sessions.
    fn update(&mut self) {
        if self.sessions.len() < 3 || self.rng.u8(..40) == 0 {
            let token = self.rng.u64(1..);
            let header = Header {
                shard: SHARD,
                tag: token,
                ..Header::new(Kind::Open)
            };
            self.send(self.client, header, &token.to_be_bytes());
            return;
        }
        let which = self.rng.usize(..self.sessions.len());
        let payload = self.payload();
        let (session, tag, seq) = &mut self.sessions[which];
        let mut header = Header {
            shard: SHARD,
            epoch: 1,
            session: *session,
            tag: *tag,
            seq: *seq + 1,
            ..Header::new(Kind::Update)
        };
        match self.rng.u8(..40) {
            0 => header.seq += 1,
            1 | 2 => header.seq = header.seq.saturating_sub(self.rng.u64(1..4)),
            3 => header.kind = Kind::End,
            _ => {}
        }
        if header.seq == *seq + 1 {
            *seq += 1;
        }
        let payload = if header.kind == Kind::End {
            Vec::new()
        } else {
            payload
        };
        self.send(self.client, header, &payload);
    }

    /// Gives the devices an entry of the previous hop.
    fn append(&mut self) {
        let last = self.world.reference.machine().cursors().0;
        let mut header = self.hop(Kind::Append);
        header.order = last + 1;
        let mut payload = self.payload();
        let kind = match self.rng.u8(..30) {
            _ if self.sessions.is_empty() => Kind::Open,
            0 => Kind::Open,
            1 => Kind::End,
            2 => Kind::Bypass,
            _ => Kind::Update,
        };
        header.copies = raw(kind.number());
        if kind == Kind::Open {
            let token = self.rng.u64(1..);
            header.session = header.order;
            payload = token.to_be_bytes().to_vec();
            self.sessions.push((header.session, token, 0));
        } else {
            let which = self.rng.usize(..self.sessions.len());
            self.sessions[which].2 += 1;
            header.session = self.sessions[which].0;
            header.seq = self.sessions[which].2;
            header.key_hash = raw(self.rng.u64(..));
            if kind == Kind::End {
                self.sessions.swap_remove(which);
            }
        }
        match self.rng.u8(..40) {
            0 => header.order += 1,
            1 => header.order = header.order.saturating_sub(self.rng.u64(1..4)),
            2 => header.fragment_count = 3,
            3 => header.request = raw(7),
            _ => {}
        }
        if header.order <= last {
            // A different entry with a known order would stop the shard, so only the same entry may arrive again.
            self.again();
            return;
        }
        let from = match self.rng.u8(..30) {
            0 => self.client,
            _ => before(self.world.address),
        };
        self.send(from, header, &payload);
    }

    /// Gives the devices a DURABLE of the later devices.
    fn durable(&mut self) {
        let (last, _, committed, _) = self.world.reference.machine().cursors();
        let mut rows: Vec<DurableRow> = others()
            .skip(self.around.0)
            .take(self.around.1)
            .map(|device| DurableRow {
                device,
                incarnation: 1,
                order: 0,
            })
            .collect();
        if self.rng.u8(..200) == 0 {
            self.incarnation += 1;
        }
        rows[0].incarnation = self.incarnation;
        // In most cases all later devices confirm the next order.
        let mut order = match self.rng.u8(..8) {
            0 => self.rng.u64(..=last),
            1 => last,
            _ => (committed + 1).min(last),
        };
        for row in &mut rows {
            row.order = order;
            if self.rng.u8(..6) == 0 {
                order = self.rng.u64(..=order);
            }
        }
        match self.rng.u8(..60) {
            0 => rows[0].device += 1,
            1 => rows[0].incarnation -= 1,
            2 => rows.truncate(1),
            3 => rows.push(rows[0]),
            _ => {}
        }
        let mut header = self.hop(Kind::Durable);
        header.device = rows[0].device;
        header.order = rows[0].order;
        header.copies = raw(u8::try_from(rows.len()).unwrap());
        header.request = match self.rng.u8(..6) {
            0 => raw(self.rng.u64(..6)),
            _ => raw(self.rng.u64(..100)),
        };
        let next = server(self.world.address);
        let from = match self.rng.u8(..40) {
            0 => self.client,
            // The sender is another machine that uses the same port.
            1 => SocketAddr::new(self.client.ip(), next.port()),
            _ => next,
        };
        self.send(from, header, &write_durable(&rows));
    }

    fn applied(&mut self) {
        let (last, _, _, applied) = self.world.reference.machine().cursors();
        let mut header = self.hop(Kind::Applied);
        header.order = self.rng.u64(applied..=last);
        header.request = raw(self.rng.u64(1..2_000));
        if self.rng.u8(..6) == 0 {
            header.kind = Kind::Retrans;
        }
        self.send(server(self.world.address), header, b"");
    }

    /// Gives the devices a bypass, a PING, or a damaged packet.
    fn other(&mut self) {
        let from = if self.is_head() {
            self.client
        } else {
            before(self.world.address)
        };
        let kind = [Kind::Ping, Kind::Bypass][self.rng.usize(..2)];
        let mut header = self.hop(kind);
        if self.is_head() && !self.sessions.is_empty() {
            let (session, tag, seq) = self.sessions[self.rng.usize(..self.sessions.len())];
            (header.session, header.tag, header.seq) = (session, tag, seq);
        }
        let mut bytes = Vec::new();
        header.write(&self.payload(), &mut bytes);
        if self.rng.u8(..3) == 0 {
            let at = self.rng.usize(..bytes.len());
            bytes[at] ^= 1 << self.rng.u8(..8);
        }
        self.deliver(from, &bytes);
    }

    fn again(&mut self) {
        let Some((from, mut bytes)) = self.rng.choice(&self.old).cloned() else {
            return;
        };
        if self.rng.u8(..3) == 0 {
            let at = self.rng.usize(..bytes.len());
            bytes[at] ^= 1 << self.rng.u8(..8);
        }
        self.deliver(from, &bytes);
    }

    fn send(&mut self, from: SocketAddr, header: Header, payload: &[u8]) {
        let mut bytes = Vec::new();
        header.write(payload, &mut bytes);
        self.deliver(from, &bytes);
        // An entry that the devices did not take is not sent again, because another entry may get its order.
        if header.kind == Kind::Append && self.world.reference.machine().cursors().0 != header.order
        {
            return;
        }
        if self.old.len() == 32 {
            self.old.swap_remove(self.rng.usize(..32));
        }
        self.old.push((from, bytes));
    }

    fn deliver(&mut self, from: SocketAddr, bytes: &[u8]) {
        let sent = self.world.receive(from, bytes);
        self.learn(&sent);
    }

    fn learn(&mut self, sent: &[Sent]) {
        if !self.is_head() {
            return;
        }
        for packet in sent {
            let Ok(parsed) = Packet::parse(&packet.bytes) else {
                continue;
            };
            let header = parsed.header;
            let mut known = self.sessions.iter_mut();
            let session = known.find(|(id, _, _)| *id == header.session);
            match (header.kind, session) {
                (Kind::OpenReply, None) => self.sessions.push((header.session, header.tag, 0)),
                (Kind::Nack, Some(session)) if header.flags == Flags(0) => {
                    session.2 = header.seq.saturating_sub(1);
                }
                (Kind::Nack, Some(_)) => self.sessions.retain(|(id, _, _)| *id != header.session),
                (Kind::NotLogged, Some(session)) => {
                    session.2 = session.2.min(header.seq.saturating_sub(1));
                }
                _ => {}
            }
        }
    }
}

#[test]
fn in_a_chain_the_kernel_does_what_user_space_does() {
    if !skipped() {
        let packets = number("PMNET_PACKETS", PACKETS_ALL) / 5;
        let did = "answered or sent on";
        let begin = |seed| Run::new(seed, false);
        compared(packets, did, begin, Run::step, |run| &run.world);
    }
}

/// In each kind of network, and at each place of the chain, the kernel does most of the work.
#[test]
fn whatever_the_network_is_the_kernel_talks_to_the_hops_beside_it() {
    if skipped() {
        return;
    }
    for network in NETWORKS {
        for around in PLACES {
            let mut run = Run::at(Rng::with_seed(1), network, around, |_| ());
            // In any network some packets go to the process. All packets that follow then go to the process too, until
            // it has caught up.
            for _packet in 0..2_000 {
                run.step();
            }
            let answered = run.world.answered;
            println!("{network:?}, {around:?}: {answered} answered or sent on by the kernel");
            assert!(answered > 300, "{network:?}, {around:?}: {answered}");
        }
    }
}
