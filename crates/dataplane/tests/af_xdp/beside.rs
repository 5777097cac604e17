//! A relay and a device that uses AF_XDP, each in a network of its own, over real sockets. The same random stream of
//! datagrams must get the same answers, and leave the same log.
//!
//! Datagrams are sent one at a time. Each is followed by a READ of another client, whose answer shows that everything
//! before it has been answered. The number of datagrams is a tenth of `PMNET_PACKETS`; `PMNET_SEED` is the first seed.

use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fastrand::Rng;
use pmnet_dataplane::direct::{DirectConfig, DirectDevice, Mode, Part};
use pmnet_dataplane::relay::{self, RelayConfig};
use pmnet_device::DeviceConfig;
use pmnet_log::{Identity, Log, Parameters, Scan};
use pmnet_media::{AnyMedia, Kind as Medium};
use pmnet_udp::{Stop, StopTrigger};
use pmnet_wire::record::{RecoverReply, read_path};
use pmnet_wire::{FRAGMENT_BYTES, Flags, Header, Kind, Packet, raw};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::WAIT_MAX;
use crate::link::{FAR, Link, NEAR, skipped};

const SHARD: u32 = 3;
const SHARD_TOKEN: u64 = 0x1122_3344_5566_7788;
const DEVICE: u32 = 7;
const DEVICE_PORT: u16 = 51_000;
const SERVER_PORT: u16 = 51_500;
/// The parameters of both logs, so that both devices announce the same room. There are more buffers than entries,
/// because the buffers that a port holds do not count as room.
const PARAMETERS: Parameters = Parameters::buffers(128, 512 * 2048, 2048);
const CLIENTS: usize = 4;
/// Number of keys of updates and READs.
const KEYS: u64 = 8;
/// Time after which a READ without an answer is sent again. Even a busy machine loses hardly any packet of this test.
const AGAIN: Duration = Duration::from_secs(2);
/// Number of datagrams in one story (the part of the test with one seed).
const PACKETS: u64 = 1_500;

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().unwrap())
}

fn bytes(header: &Header, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    header.write(payload, &mut bytes);
    bytes
}

/// A device in its network; its clients and its server are at the other end.
struct Side {
    name: &'static str,
    // Must be dropped before the link.
    serving: Option<JoinHandle<()>>,
    stop: StopTrigger,
    server: UdpSocket,
    /// The clients. The last client only asks whether everything was answered.
    clients: Vec<UdpSocket>,
    _link: Arc<Link>,
    /// Answers to clients since the last comparison.
    answers: Vec<(usize, Vec<u8>)>,
    /// Datagrams at the server: entries by their order, other datagrams as often as each arrived.
    entries: BTreeMap<u64, Vec<u8>>,
    passed: Vec<Vec<u8>>,
    fence: (u64, u64),
}

fn log(path: &Path) -> Log<AnyMedia> {
    let mut media = pmnet_media::create(path, Medium::Dram, PARAMETERS.image_bytes()).unwrap();
    let identity = Identity {
        log_uuid: 0x0123_4567,
        device: DEVICE,
        shard: SHARD,
    };
    pmnet_log::format(&mut media, &identity, &PARAMETERS).unwrap();
    opened(media)
}

fn opened(media: AnyMedia) -> Log<AnyMedia> {
    let scan = Scan::open(media, None).unwrap();
    let decision = scan.decide();
    scan.repair(decision).unwrap()
}

impl Side {
    fn start(direct: bool, path: &Path) -> Side {
        let link = Arc::new(Link::new());
        let (stop, trigger) = Stop::new().unwrap();
        let listen = SocketAddr::from((NEAR, DEVICE_PORT));
        let next = SocketAddr::from((FAR, SERVER_PORT));
        let config = RelayConfig {
            listen,
            known_as: None,
            device: DeviceConfig::new(DEVICE, SHARD, next),
            spin_micros: 0,
            lease: None,
            keys: None,
            log: None,
            pulse: Arc::default(),
        };
        let (ready, is_ready) = mpsc::channel::<()>();
        let log = log(path);
        let (server, clients) = link.far(|| {
            let socket = |port| {
                let socket = UdpSocket::bind(SocketAddr::from((FAR, port))).unwrap();
                socket.set_nonblocking(true).unwrap();
                socket
            };
            let clients = (0..=u16::try_from(CLIENTS).unwrap()).map(|index| socket(40_001 + index));
            (socket(SERVER_PORT), clients.collect::<Vec<_>>())
        });
        let device = move || {
            if !direct {
                relay::run(config, log, None, &stop, |_, _| (), |_, _| drop(ready)).unwrap();
                return;
            }
            let config = DirectConfig {
                relay: config,
                interfaces: vec!["veth0".into()],
                mode: Mode::PreferZeroCopy,
                busy_poll: None,
                part: Part::alone(),
            };
            let memory = log.medium().memory();
            let device = DirectDevice::open(config, &log, memory, &stop).unwrap();
            device.serve(log, |_, _| (), |_, _, _| drop(ready)).unwrap();
        };
        let near = Arc::clone(&link);
        let serving = std::thread::spawn(move || near.near(device));
        let mut side = Side {
            name: if direct { "af-xdp" } else { "relay" },
            serving: Some(serving),
            stop: trigger,
            server,
            clients,
            _link: link,
            answers: Vec::new(),
            entries: BTreeMap::new(),
            passed: Vec::new(),
            fence: (0, 0),
        };
        let begun = Instant::now();
        while is_ready.try_recv() != Err(mpsc::TryRecvError::Disconnected) {
            assert!(begun.elapsed() < WAIT_MAX, "{} does not serve", side.name);
            side.serve();
            std::thread::sleep(Duration::from_millis(1));
        }
        side.open_fence();
        side
    }

    /// Processes the packets that have arrived at the server, and answers RECOVER.
    fn serve(&mut self) {
        let mut buffer = [0; 2048];
        while let Ok((length, from)) = self.server.recv_from(&mut buffer) {
            let Ok(packet) = Packet::parse(&buffer[..length]) else {
                self.passed.push(buffer[..length].to_vec());
                continue;
            };
            let header = packet.header;
            match header.kind {
                Kind::Recover => {
                    let reply = RecoverReply {
                        shard_token: SHARD_TOKEN,
                        members: read_path(packet.payload).unwrap(),
                        sessions: Vec::new(),
                    };
                    let answer = Header {
                        shard: SHARD,
                        epoch: 1,
                        device: header.device,
                        incarnation: header.incarnation,
                        request: header.request,
                        flags: Flags::READS,
                        ..Header::new(Kind::RecoverReply)
                    };
                    let answer = bytes(&answer, &reply.write());
                    self.server.send_to(&answer, from).unwrap();
                }
                // An entry may arrive again, when its timeout has passed.
                Kind::Append => {
                    let entry = buffer[..length].to_vec();
                    let known = self.entries.entry(header.order).or_insert(entry);
                    assert_eq!(known, &buffer[..length], "the same order, the same entry");
                }
                Kind::Ping => {}
                _ => self.passed.push(buffer[..length].to_vec()),
            }
        }
    }

    /// Processes the packets that have arrived at both devices, the server and the clients. Returns the packets for the
    /// last client.
    fn take(&mut self) -> Vec<Vec<u8>> {
        self.serve();
        let mut buffer = [0; 2048];
        let mut fence = Vec::new();
        for (index, socket) in self.clients.iter().enumerate() {
            while let Ok((length, _)) = socket.recv_from(&mut buffer) {
                let bytes = buffer[..length].to_vec();
                if index == CLIENTS {
                    fence.push(bytes);
                } else {
                    self.answers.push((index, bytes));
                }
            }
        }
        fence
    }

    fn send(&self, client: usize, bytes: &[u8]) {
        let to = SocketAddr::from((NEAR, DEVICE_PORT));
        self.clients[client].send_to(bytes, to).unwrap();
    }

    /// Sends this datagram as the last client, again and again until an answer fits.
    fn ask<T>(&mut self, asked: &[u8], fits: impl Fn(&Header) -> Option<T>) -> T {
        let begun = Instant::now();
        loop {
            self.send(CLIENTS, asked);
            let sent = Instant::now();
            while sent.elapsed() < AGAIN {
                for answer in self.take() {
                    let header = Packet::parse(&answer).unwrap().header;
                    if let Some(found) = fits(&header) {
                        return found;
                    }
                }
                std::thread::yield_now();
            }
            assert!(begun.elapsed() < WAIT_MAX, "{} is silent", self.name);
        }
    }

    fn open_fence(&mut self) {
        let token = 0x0fe4_ce00_u64;
        let open = Header {
            shard: SHARD,
            tag: token,
            ..Header::new(Kind::Open)
        };
        let session = self.ask(&bytes(&open, &token.to_be_bytes()), |header| {
            (header.kind == Kind::OpenReply).then_some(header.session)
        });
        self.fence = (session, 0);
    }

    /// Waits until all earlier datagrams are answered and the answers have arrived. It sends two READs, one after the
    /// other: the device has sent all answers of the first READ's turn before the second READ arrives.
    fn settle(&mut self) {
        for _twice in 0..2 {
            self.fence.1 += 1;
            let (session, request) = self.fence;
            let read = Header {
                shard: SHARD,
                epoch: 1,
                session,
                tag: 0x0fe4_ce00,
                request: raw(request),
                ..Header::new(Kind::Read)
            };
            let read = bytes(&read, &u64::MAX.to_be_bytes());
            self.ask(&read, |header| {
                let answers = matches!(header.kind, Kind::Miss | Kind::Hit);
                (answers && header.request == raw(request)).then_some(())
            });
        }
    }

    /// Returns the last order up to which the server has every entry. Entries after this order are sent again.
    fn without_gap(&self) -> u64 {
        let together = (1..).zip(self.entries.keys());
        together.take_while(|(next, order)| next == *order).count() as u64
    }

    /// Stops the device as an operator would.
    fn end(mut self) {
        self.stop.stop();
        self.serving.take().unwrap().join().unwrap();
    }
}

#[derive(Default)]
struct Client {
    token: u64,
    session: u64,
    seq: u64,
}

struct Story {
    rng: Rng,
    sides: [Side; 2],
    clients: Vec<Client>,
    old: Vec<(usize, Vec<u8>)>,
    applied: u64,
    request: u64,
    steps: u64,
    /// Number of answers, by kind.
    kinds: BTreeMap<String, u64>,
}

/// Removes from an answer the parts that may differ between the devices. Only the relay keeps applied updates: the
/// other device receives new packets into their buffers. The version of a MISS begins with a number that each device
/// chooses at random.
fn without_kept(answer: &[u8], applied: u64) -> Vec<u8> {
    let Ok(header) = Packet::parse(answer).map(|packet| packet.header) else {
        return answer.to_vec();
    };
    let miss = match header.kind {
        Kind::Hit => header.order <= applied,
        kind => kind == Kind::Miss,
    };
    if !miss {
        return answer.to_vec();
    }
    let miss = Header {
        kind: Kind::Miss,
        seq: 0,
        payload_len: 0,
        payload_crc: 0,
        ..header
    };
    bytes(&miss, b"")
}

fn described(answers: &[(usize, Vec<u8>)]) -> Vec<String> {
    let one = |(client, bytes): &(usize, Vec<u8>)| match Packet::parse(bytes) {
        Ok(packet) => format!("{client}: {:?}", packet.header),
        Err(reason) => format!("{client}: {reason}"),
    };
    answers.iter().map(one).collect()
}

impl Story {
    fn header(&self, which: usize, kind: Kind) -> Header {
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

    fn payload(&mut self) -> Vec<u8> {
        let length = match self.rng.u8(..8) {
            0 => 0,
            1 => FRAGMENT_BYTES,
            2 => self.rng.usize(..FRAGMENT_BYTES),
            _ => self.rng.usize(..200),
        };
        (0..length).map(|_| self.rng.u8(..)).collect()
    }

    fn step(&mut self) {
        self.steps += 1;
        let which = self.rng.usize(..CLIENTS);
        // Sometimes the server applies nothing until the log is full.
        let sent = match self.rng.u8(..100) {
            0..=44 => self.update(which),
            45..=57 => match self.rng.choice(&self.old).cloned() {
                Some((from, bytes)) => return self.deliver(from, &bytes),
                None => self.open(which),
            },
            58..=71 => self.read(which),
            72..=76 => self.open(which),
            77..=78 => {
                let mut end = self.header(which, Kind::End);
                end.seq += 1;
                bytes(&end, b"")
            }
            79..=82 => self.bypass(which),
            83..=88 => self.damaged(which),
            89..=90 => self.payload(),
            _ if self.steps % 1_000 < 400 => return self.apply(),
            _ => self.update(which),
        };
        if self.old.len() == 64 {
            self.old.swap_remove(self.rng.usize(..64));
        }
        self.old.push((which, sent.clone()));
        self.deliver(which, &sent);
    }

    fn open(&mut self, which: usize) -> Vec<u8> {
        if self.rng.bool() || self.clients[which].token == 0 {
            // The token is even, because an odd token would open a mark.
            self.clients[which].token = self.rng.u64(1..1 << 60) << 1;
        }
        let token = self.clients[which].token;
        let open = Header {
            shard: SHARD,
            tag: token,
            ..Header::new(Kind::Open)
        };
        bytes(&open, &token.to_be_bytes())
    }

    fn update(&mut self, which: usize) -> Vec<u8> {
        let payload = self.payload();
        let mut header = self.header(which, Kind::Update);
        header.seq += 1;
        header.key_hash = raw(self.rng.u64(1..=KEYS) << 40);
        match self.rng.u8(..40) {
            0 => header.seq += self.rng.u64(1..4),
            1 => header.seq = header.seq.wrapping_sub(self.rng.u64(1..5)),
            2 => header.epoch = self.rng.u32(..3),
            3 => header.shard ^= 1,
            4 => header.tag ^= 1,
            5 => header.session += self.rng.u64(1..5),
            6 => header.flags = Flags(self.rng.u8(..)),
            _ => self.clients[which].seq += 1,
        }
        bytes(&header, &payload)
    }

    fn read(&mut self, which: usize) -> Vec<u8> {
        self.request += 1;
        let mut header = self.header(which, Kind::Read);
        (header.seq, header.request) = (0, raw(self.request));
        let count = self.rng.usize(1..4);
        let hashes = (0..count).flat_map(|_| (self.rng.u64(1..=KEYS) << 40).to_be_bytes());
        let hashes: Vec<u8> = hashes.collect();
        bytes(&header, &hashes)
    }

    fn bypass(&mut self, which: usize) -> Vec<u8> {
        self.request += 1;
        let payload = self.payload();
        let mut header = self.header(which, Kind::Bypass);
        header.request = raw(self.request);
        header.key_hash = raw(self.rng.u64(1..=KEYS) << 40);
        if self.rng.bool() {
            header.flags = Flags::READ_ONLY;
        }
        bytes(&header, &payload)
    }

    fn damaged(&mut self, which: usize) -> Vec<u8> {
        let mut sent = self.update(which);
        if self.rng.bool() {
            let at = self.rng.usize(..sent.len());
            sent[at] ^= 1 << self.rng.u8(..8);
        } else {
            sent.truncate(self.rng.usize(..sent.len()));
        }
        sent
    }

    /// Gives both devices a datagram of a client.
    fn deliver(&mut self, which: usize, sent: &[u8]) {
        for side in &mut self.sides {
            side.send(which, sent);
        }
        self.compare();
    }

    /// The server applies some of the entries that it has from both devices.
    fn apply(&mut self) {
        let begun = Instant::now();
        // A packet that is still on its way arrives within some milliseconds.
        while self.arrived() <= self.applied && begun.elapsed() < Duration::from_millis(30) {
            for side in &mut self.sides {
                side.serve();
            }
        }
        let upto = self.rng.u64(self.applied..=self.arrived());
        self.apply_upto(upto);
    }

    /// Returns the last order up to which the server has every entry from both devices.
    fn arrived(&self) -> u64 {
        self.sides.iter().map(Side::without_gap).min().unwrap()
    }

    fn apply_upto(&mut self, order: u64) {
        self.applied = order;
        let applied = Header {
            shard: SHARD,
            epoch: 1,
            tag: SHARD_TOKEN,
            order,
            request: raw(1_000),
            ..Header::new(Kind::Applied)
        };
        let applied = bytes(&applied, b"");
        for side in &self.sides {
            let to = SocketAddr::from((NEAR, DEVICE_PORT));
            side.server.send_to(&applied, to).unwrap();
        }
        self.compare();
    }

    /// Checks that clients got the same answers from both devices.
    fn compare(&mut self) {
        let applied = self.applied;
        let mut all = self.sides.iter_mut().map(|side| {
            side.settle();
            let answers = std::mem::take(&mut side.answers);
            let mut answers: Vec<_> = answers
                .into_iter()
                .map(|(client, bytes)| (client, without_kept(&bytes, applied)))
                .collect();
            // The order of answers is compared for each socket alone.
            answers.sort_by_key(|(client, _)| *client);
            answers
        });
        let (one, other) = (all.next().unwrap(), all.next().unwrap());
        drop(all);
        assert_eq!(described(&one), described(&other), "relay beside af-xdp");
        assert_eq!(one, other);
        for (which, answer) in one {
            let header = Packet::parse(&answer).unwrap().header;
            *self.kinds.entry(format!("{:?}", header.kind)).or_default() += 1;
            let client = &mut self.clients[which];
            if header.tag != client.token {
                continue;
            }
            match header.kind {
                Kind::OpenReply if header.session != client.session => {
                    (client.session, client.seq) = (header.session, 0);
                }
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

    /// Waits until all datagrams have arrived at the server, and checks that both devices sent the same ones.
    fn compare_sent(&mut self) {
        let begun = Instant::now();
        let mut heard = begun;
        loop {
            // A device that has not heard from the server for long sends only a limited number of entries.
            if heard.elapsed() > Duration::from_millis(500) {
                self.apply_upto(self.arrived());
                heard = Instant::now();
            }
            for side in &mut self.sides {
                side.serve();
                side.passed.sort();
            }
            let [one, other] = &self.sides;
            let same = one.entries == other.entries && one.passed == other.passed;
            if same || begun.elapsed() > WAIT_MAX {
                let only = |one: &Side, other: &Side| -> Vec<u64> {
                    let there = |(order, entry): &(&u64, &Vec<u8>)| {
                        other.entries.get(*order) != Some(entry)
                    };
                    one.entries
                        .iter()
                        .filter(there)
                        .map(|(order, _)| *order)
                        .collect()
                };
                let (here, there) = (only(one, other), only(other, one));
                let applied = self.applied;
                assert!(
                    here.is_empty() && there.is_empty(),
                    "sent on by the relay alone {here:?}, by af-xdp alone {there:?}; {applied} are applied"
                );
                assert!(one.passed == other.passed, "the same is passed on");
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn story(seed: u64, packets: u64) -> BTreeMap<String, u64> {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let paths = ["relay", "af-xdp"].map(|name| folder.path().join(name));
    let sides = [Side::start(false, &paths[0]), Side::start(true, &paths[1])];
    let mut story = Story {
        rng: Rng::with_seed(seed),
        sides,
        clients: (0..CLIENTS).map(|_| Client::default()).collect(),
        old: Vec::new(),
        applied: 0,
        request: 0,
        steps: 0,
        kinds: BTreeMap::new(),
    };
    for _packet in 0..packets {
        story.step();
    }
    story.compare_sent();
    let Story { sides, kinds, .. } = story;
    for side in sides {
        side.end();
    }
    let logs = paths.map(|path| {
        let log = opened(pmnet_media::open(&path, Medium::Dram).unwrap());
        let orders = log.applied() + 1..=log.last();
        let entries = orders.map(|order| {
            let e = log.entry(order).unwrap();
            let said = (e.order, e.session, e.seq, e.kind, e.epoch, e.payload_crc);
            (said, log.frame(order).unwrap().to_vec())
        });
        (log.applied(), entries.collect::<Vec<_>>())
    });
    let [one, other] = logs;
    assert_eq!(one.0, other.0, "both know what is applied");
    assert_eq!(one.1, other.1, "both logs");
    kinds
}

#[test]
fn a_device_past_the_stack_answers_as_a_relay_does() {
    if skipped() {
        return;
    }
    // If one CPU sends all packets to one queue, they arrive in the order of sending.
    let mut one = CpuSet::new();
    let all = sched_getaffinity(None).unwrap();
    one.set((0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu)).unwrap());
    // The test waits for the answer to each datagram, so it sends fewer than the tests of the kernel's pipeline.
    let packets = number("PMNET_PACKETS", 40 * PACKETS) / 10;
    let first = number("PMNET_SEED", 1);
    let mut kinds = BTreeMap::<String, u64>::new();
    for seed in first..first + packets.div_ceil(PACKETS) {
        println!(
            "PMNET_SEED={seed} PMNET_PACKETS={} shows it again",
            10 * PACKETS
        );
        let told = std::thread::scope(|scope| {
            let telling = scope.spawn(|| {
                sched_setaffinity(None, &one).unwrap();
                story(seed, PACKETS)
            });
            telling
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        for (kind, count) in told {
            *kinds.entry(kind).or_default() += count;
        }
    }
    println!("{packets} datagrams, answers {kinds:?}");
    for kind in ["Ack", "Nack", "OpenReply", "NotLogged", "Hit", "Miss"] {
        assert!(
            kinds.contains_key(kind),
            "no {kind} was compared: {kinds:?}"
        );
    }
}
