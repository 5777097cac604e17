//! A separate world, in which a NIC acknowledges clients' messages by itself, and puts them into slots
//! (`docs/spec/verbs.md`).
//!
//! The device, its log, its slots and the server are the production code. The NIC and the clients are simulated. A
//! client of this world only sends a sequence of updates, each until it is acknowledged.
//!
//! Fault model: a message is received line by line, interleaved with messages of other connections. Completions come in
//! any order. Connections are cut at any time: in the middle of a message, or between its acknowledgement and the
//! client. A client dies in the middle of a message while its connection stays open. The client comes back after the
//! device has closed the connection. Sometimes no slot is posted (RNR). The computer loses power at any time, also in
//! the middle of a recovery. Words that were neither persisted nor read back by the client may be lost. In some worlds
//! only the process dies. Packets between device and server are late, and the server is down until the log is full. In
//! one world of three, device, server and clients have keys.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use pmnet_device::{DeviceConfig, DeviceNode, SlotRecovery, Slots};
use pmnet_log::slots::{Outcome, Posting, SlotParameters, SlotScan, format as format_slots};
use pmnet_log::{Expected, Identity, Media, Parameters, Scan, format};
use pmnet_proto::device::Acknowledger;
use pmnet_proto::keys::{ClusterKey, ClusterKeys, DeviceKeys, FrontKey};
use pmnet_proto::server::{Server, ServerConfig};
use pmnet_proto::time::{MILLISECOND, Nanos};
use pmnet_proto::{Outbox, Peer, Random, Time};
use pmnet_server::ServerNode;
use pmnet_wire::packet::Identity as Whose;
use pmnet_wire::{Header, Kind, Packet};

use crate::media::{Handle, Kind as MediaKind, SimMedia};
use crate::store::{Act, Operation, SimStore, StoreConfig};

const CLIENTS: usize = 3;
/// Number of updates of each client.
const UPDATES: u64 = 60;
/// Number of steps with faults.
const STEPS: u32 = 4000;
/// Length of an outage of the server, in steps.
const OUTAGE: u32 = 1500;
/// Maximum number of packets between device and server; further packets are lost.
const NETWORK_MAX: usize = 256;
/// Number of steps without faults within which all work must be done.
const HEAL_STEPS: u32 = 20_000;
const LINE: usize = 64;
const SLOTS: SlotParameters = SlotParameters {
    slots: 8,
    slot_bytes: 256,
};
const SLOTS_BYTES: usize = 8 * 256;
const LOG: Parameters = Parameters::ring(64, 8192);
const IDENTITY: Identity = Identity {
    log_uuid: 77,
    device: 1,
    shard: 0,
};

/// Longest time for which the oldest slot may be open while later slots are complete.
const DEADLINE: Nanos = 300 * MILLISECOND;

/// A rule that can be broken, to test whether the checks find this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// Messages are taken in the order of their completions, and not of their slots.
    CqOrder,
    /// An open slot is skipped.
    FirstHole,
    /// The NIC's own acknowledgement counts, without a READ after it.
    DrainRead,
    /// A new connection begins with the update after the first unacknowledged one.
    ResendFirst,
    /// The slots are not read after a crash.
    Recovery,
    /// The NIC uses posted slots in any order.
    SrqOrder,
    /// A client that has died in the middle of a message is not disconnected.
    HeadDeadline,
}

impl Broken {
    /// All rules that can be broken.
    pub const ALL: [Broken; 7] = [
        Broken::CqOrder,
        Broken::FirstHole,
        Broken::DrainRead,
        Broken::ResendFirst,
        Broken::Recovery,
        Broken::SrqOrder,
        Broken::HeadDeadline,
    ];
}

/// The violations and counters of one seed.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// A description of each violation.
    pub violations: Vec<String>,
    /// Number of acknowledged updates.
    pub acknowledged: u64,
    /// Number of completions that came while an earlier slot was open.
    pub overtaken: u64,
    /// Number of messages that found no slot.
    pub not_ready: u64,
    /// Number of slots with an error instead of a message.
    pub holes: u64,
    /// Number of turns in which an update waited in its slot because the log was full.
    pub waits: u64,
    /// Number of connections that were cut.
    pub cuts: u64,
    /// Number of clients that were disconnected because one of these clients had died in the middle of a message.
    pub cut_off: u64,
    /// Number of power losses and deaths of the process.
    pub crashes: u64,
    /// Number of updates that a recovery found only in slots, and not in the log.
    pub recovered: u64,
    /// Number of updates that were sent on more than one connection.
    pub resent: u64,
    /// Number of messages without a valid MAC.
    pub forged: u64,
    /// Number of acknowledged updates in worlds with keys.
    pub keyed: u64,
}

impl Seen {
    /// Adds the counters and violations of another seed.
    pub fn add(&mut self, other: Seen) {
        self.violations.extend(other.violations);
        self.acknowledged += other.acknowledged;
        self.overtaken += other.overtaken;
        self.not_ready += other.not_ready;
        self.holes += other.holes;
        self.waits += other.waits;
        self.cuts += other.cuts;
        self.cut_off += other.cut_off;
        self.crashes += other.crashes;
        self.recovered += other.recovered;
        self.resent += other.resent;
        self.forged += other.forged;
        self.keyed += other.keyed;
    }
}

#[derive(Debug, Default)]
struct Client {
    session: Option<u64>,
    connected: bool,
    /// Number of the connection: the client's number plus a multiple of the number of clients. The multiple is higher
    /// for each later connection of any client.
    connection: u32,
    /// Whether the client has died in the middle of a message.
    dead: bool,
    /// The seq of the next update to send.
    next: u64,
    acknowledged: u64,
    /// The message that is being received, and the number of its lines that have arrived.
    taking: Option<(Posting, Vec<u8>, usize)>,
    /// The messages that the NIC has acknowledged on this connection.
    placed: Vec<(u64, Posting, Vec<u8>)>,
}

enum Life {
    Down,
    Recovering(DeviceNode<SimMedia>, SlotRecovery<SimMedia>),
    Serving(DeviceNode<SimMedia>, Slots<SimMedia>),
}

#[derive(Clone, Copy, Debug, Default)]
struct Times {
    begun: u32,
    acknowledged: Option<u32>,
}

struct World {
    random: Random,
    /// The keys of the device, if this world has keys.
    keys: Option<ClusterKeys>,
    broken: Option<Broken>,
    now: Time,
    clock: u32,
    log: Handle,
    slots: Handle,
    life: Life,
    lives: u64,
    server: ServerNode<SimStore>,
    server_out: Outbox,
    store: SimStore,
    /// Packets between device and server, in order. True: the packet is sent to the server.
    network: VecDeque<(bool, Vec<u8>)>,
    /// Number of steps for which the server is still down.
    outage: u32,
    /// Number of steps for which another crash is likely, because a recovery has just found updates.
    aimed: u32,
    clients: [Client; CLIENTS],
    /// A number higher than the numbers of all connections so far.
    connections: u32,
    posted: VecDeque<Posting>,
    completions: Vec<(Posting, u32, Outcome)>,
    times: BTreeMap<u64, Times>,
    seen: Seen,
}

/// Runs the world of a seed.
#[must_use]
pub fn run(seed: u64, broken: Option<Broken>) -> Seen {
    let mut world = World::new(seed, broken);
    for _ in 0..STEPS {
        world.step(true);
    }
    let mut left = HEAL_STEPS;
    while left > 0 && !world.is_quiet() {
        world.step(false);
        left -= 1;
    }
    if left == 0 {
        world.wrong(format!("seed {seed}: it does not come to an end"));
    }
    world.check(seed);
    world.seen
}

fn address(last: u8) -> Peer {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)), 51_000)
}

const DEVICE: u8 = 1;
const SERVER: u8 = 2;
const NOBODY: u8 = 3;
const FIRST_CLIENT: u8 = 100;

/// Returns the address of the client with this number, or of the client with this connection.
fn client_address(connection: u32) -> Peer {
    let client = connection % number(CLIENTS);
    address(FIRST_CLIENT + u8::try_from(client).expect("few clients"))
}

fn number(client: usize) -> u32 {
    u32::try_from(client).expect("few clients")
}

/// Returns the id of an update, which the store appends to its list.
fn id(client: usize, seq: u64) -> u64 {
    u64::from(number(client)) * 1000 + seq
}

const CLUSTER: ClusterKey = ClusterKey::new(*b"a key of cluster");

/// Returns the key of the clients' front.
fn front() -> FrontKey {
    let id = CLUSTER.front_id(b"web");
    CLUSTER.front(id).expect("an id of this cluster")
}

fn token(client: usize) -> u64 {
    0x70ce_0000 + 2 * u64::from(number(client))
}

fn datagram(header: &Header, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    header.write(payload, &mut bytes);
    bytes
}

/// Returns a client's packet, with the session's token or with a MAC.
fn by(client: usize, keyed: bool, header: &Header, payload: &[u8]) -> Vec<u8> {
    let header = Header {
        tag: token(client),
        ..*header
    };
    if !keyed {
        return datagram(&header, payload);
    }
    let keys = front().session(IDENTITY.shard, token(client));
    datagram(
        &keys.to_head.seal(&header.for_payload(payload), payload),
        payload,
    )
}

impl World {
    fn new(seed: u64, broken: Option<Broken>) -> World {
        // In one world of four only the process dies, and not the computer.
        let kind = match seed % 4 {
            0 => MediaKind::Dram,
            _ => MediaKind::Forgetful,
        };
        let log = Handle::blank(kind, LOG.image_bytes());
        format(log.open(), &IDENTITY, &LOG).expect("a blank medium takes a log");
        let slots = Handle::blank(kind, SLOTS.image_bytes());
        format_slots(&mut slots.open(), IDENTITY, SLOTS).expect("a blank medium takes slots");
        let store = SimStore::new(seed, StoreConfig::default());
        let keys = (seed % 3 == 1).then(|| ClusterKeys::new(CLUSTER));
        let config = ServerConfig {
            keys: keys.clone(),
            ..ServerConfig::new(0)
        };
        let machine = Server::new(config, Random::new(seed ^ 1));
        World {
            random: Random::new(seed),
            keys,
            broken,
            now: Time(MILLISECOND),
            clock: 0,
            log,
            slots,
            life: Life::Down,
            lives: 0,
            server: ServerNode::new(machine, store.handle()),
            server_out: Outbox::new(),
            store,
            network: VecDeque::new(),
            outage: 0,
            aimed: 0,
            connections: number(CLIENTS),
            clients: std::array::from_fn(|client| Client {
                connection: number(client),
                ..Client::default()
            }),
            posted: VecDeque::new(),
            completions: Vec::new(),
            times: BTreeMap::new(),
            seen: Seen::default(),
        }
    }

    fn wrong(&mut self, text: String) {
        self.seen.violations.push(text);
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random.next_u64() % bound
    }

    fn index(&mut self, length: usize) -> usize {
        let bound = u64::try_from(length).expect("small");
        usize::try_from(self.below(bound)).expect("small")
    }

    fn is(&self, broken: Broken) -> bool {
        self.broken == Some(broken)
    }

    fn step(&mut self, faults: bool) {
        self.clock += 1;
        self.outage = match faults {
            true if self.outage == 0 && self.below(1500) == 0 => OUTAGE,
            true => self.outage.saturating_sub(1),
            false => 0,
        };
        let most = if self.below(8) == 0 { 20 } else { 1 };
        self.now = self.now + self.below(most * MILLISECOND);
        self.aimed = self.aimed.saturating_sub(1);
        if faults && self.aimed > 0 && self.below(40) == 0 {
            self.crash();
        }
        let client = self.index(CLIENTS);
        match self.below(64) {
            0..=3 => self.connect(client),
            4..=11 => self.take(client),
            12..=27 => self.write(client),
            28..=33 => self.read_back(client),
            34..=41 => self.complete(),
            42..=51 => self.turn(),
            52..=53 => self.log.complete(),
            56..=57 => self.slots.complete(),
            58..=61 => self.serve(),
            62 if faults && self.below(4) == 0 => self.cut(client),
            62 if faults && self.below(8) == 0 => {
                self.clients[client].dead = self.clients[client].taking.is_some();
            }
            63 if faults && self.below(8) == 0 => self.crash(),
            _ => self.turn(),
        }
    }

    fn connect(&mut self, client: usize) {
        let Life::Serving(node, _) = &mut self.life else {
            return;
        };
        let of = &mut self.clients[client];
        if of.session.is_none() {
            let front = self.keys.as_ref().map(|_| front().id());
            let whose = Whose {
                token: token(client),
                front,
            };
            let open = Header::new(Kind::Open);
            let open = by(client, self.keys.is_some(), &open, &whose.write());
            let from = client_address(number(client));
            if let Err(error) = node.receive(self.now, from, &open) {
                self.wrong(error.to_string());
            }
            return;
        }
        if of.connected {
            return;
        }
        of.connected = true;
        of.connection = self.connections + number(client);
        self.connections += number(CLIENTS);
        of.next = of.acknowledged + 1;
        if self.broken == Some(Broken::ResendFirst) && self.times.contains_key(&id(client, of.next))
        {
            of.next += 1;
        }
    }

    fn take(&mut self, client: usize) {
        let of = &self.clients[client];
        let free = of.connected && of.taking.is_none();
        let (Some(session), true) = (of.session, free) else {
            return;
        };
        let seq = of.next;
        if seq > UPDATES {
            return;
        }
        if self.posted.is_empty() {
            self.seen.not_ready += 1;
            return;
        }
        let at = if self.is(Broken::SrqOrder) {
            self.index(self.posted.len())
        } else {
            0
        };
        let posting = self.posted.remove(at).expect("it is there");
        let header = Header {
            session,
            seq,
            ..Header::new(Kind::Update)
        };
        let operation = Operation {
            act: Act::Append,
            key: 0,
            id: id(client, seq),
        };
        let size = 10 + self.index(150);
        let payload = operation.payload(size);
        let bytes = by(client, self.keys.is_some(), &header, &payload);
        let begun = self.clock;
        if self.times.contains_key(&operation.id) {
            self.seen.resent += 1;
        }
        self.times.entry(operation.id).or_insert(Times {
            begun,
            acknowledged: None,
        });
        self.clients[client].taking = Some((posting, bytes, 0));
    }

    /// The NIC receives the next line of a message.
    fn write(&mut self, client: usize) {
        let drain = !self.is(Broken::DrainRead);
        let Life::Serving(_, slots) = &mut self.life else {
            return;
        };
        let of = &mut self.clients[client];
        let Some((posting, bytes, lines)) = of.taking.as_mut().filter(|_| !of.dead) else {
            return;
        };
        let at = *lines * LINE;
        let part = &bytes[at..bytes.len().min(at + LINE)];
        slots
            .queue()
            .media_mut()
            .store(posting.place.start + at, part);
        *lines += 1;
        if *lines * LINE < bytes.len() {
            return;
        }
        let (posting, bytes, _) = of.taking.take().expect("it is being received");
        let length = u32::try_from(bytes.len()).expect("a datagram");
        let completion = (posting.clone(), of.connection, Outcome::Message(length));
        self.completions.push(completion);
        of.placed.push((of.next, posting, bytes));
        of.next += 1;
        if !drain {
            self.told(client);
        }
    }

    /// The client's READ after its messages completes, so the messages are durable and acknowledged.
    fn read_back(&mut self, client: usize) {
        if self.is(Broken::DrainRead) {
            return;
        }
        if let Life::Serving(_, slots) = &mut self.life {
            for (_, posting, bytes) in &self.clients[client].placed {
                let place = posting.place.start..posting.place.start + bytes.len();
                let medium = slots.queue().media_mut();
                // If the slot was posted again, it may hold another message. Then this message is already in the log.
                if medium.bytes()[place.clone()] == *bytes {
                    medium.drain(place);
                }
            }
            self.told(client);
        }
    }

    fn told(&mut self, client: usize) {
        let of = &mut self.clients[client];
        for (seq, ..) in std::mem::take(&mut of.placed) {
            of.acknowledged = of.acknowledged.max(seq);
            let times = self.times.entry(id(client, seq)).or_default();
            if times.acknowledged.is_none() {
                times.acknowledged = Some(self.clock);
                self.seen.acknowledged += 1;
                self.seen.keyed += u64::from(self.keys.is_some());
            }
        }
    }

    fn complete(&mut self) {
        if self.completions.is_empty() {
            return;
        }
        let at = self.index(self.completions.len());
        let (posting, from, outcome) = self.completions.swap_remove(at);
        let (cq_order, first_hole) = (self.is(Broken::CqOrder), self.is(Broken::FirstHole));
        let Life::Serving(node, slots) = &mut self.life else {
            return;
        };
        let queue = slots.queue();
        let mut outcome = outcome;
        let mut result = Ok(());
        if let (true, Outcome::Message(length)) = (cq_order, outcome) {
            let length = usize::try_from(length).expect("small");
            let start = posting.place.start;
            let bytes = queue.media_mut().bytes()[start..start + length].to_vec();
            result = node.receive(self.now, client_address(from), &bytes);
            outcome = Outcome::Error;
        }
        let odd = queue.complete(posting.number, from, outcome);
        let blocked = queue.blocked();
        self.seen.overtaken += u64::from(blocked.is_some());
        if let (true, Some(open)) = (first_hole, blocked) {
            let _passed = queue.complete(open, from, Outcome::Error);
        }
        if let Err(error) = result {
            self.wrong(error.to_string());
        }
        if let (Err(odd), false) = (odd, first_hole) {
            self.wrong(odd.to_string());
        }
    }

    /// Runs one turn of the device's loop.
    fn turn(&mut self) {
        let life = std::mem::replace(&mut self.life, Life::Down);
        let turned = match life {
            Life::Down => self.start(),
            Life::Recovering(node, recovery) => self.recover(node, recovery),
            Life::Serving(node, slots) => self.go_on(node, slots),
        };
        match turned {
            Ok(life) => self.life = life,
            Err(text) => self.wrong(text),
        }
    }

    fn start(&mut self) -> Result<Life, String> {
        self.lives += 1;
        let expected = Expected {
            device: IDENTITY.device,
            shard: IDENTITY.shard,
            parameters: None,
        };
        let scan = Scan::open(self.log.open(), Some(expected)).map_err(|e| e.to_string())?;
        let decision = scan.decide();
        let log = scan.repair(decision).map_err(|e| e.to_string())?;
        let config = DeviceConfig {
            acknowledger: Acknowledger::Nic,
            server_linger: MILLISECOND,
            keys: self
                .keys
                .clone()
                .map(|cluster| DeviceKeys { cluster, next: 0 }),
            ..DeviceConfig::new(IDENTITY.device, IDENTITY.shard, address(SERVER))
        };
        let node = DeviceNode::new(config, log, Random::new(self.lives), self.now);
        let mut medium = self.slots.open();
        if self.is(Broken::Recovery) {
            // The broken rule: the slots are erased before they were read.
            medium.store(SLOTS.place(0).start, &vec![0; SLOTS_BYTES]);
        }
        let scan = SlotScan::open(medium, Some(IDENTITY)).map_err(|e| e.to_string())?;
        Ok(Life::Recovering(node, SlotRecovery::new(scan)))
    }

    fn recover(
        &mut self,
        mut node: DeviceNode<SimMedia>,
        mut recovery: SlotRecovery<SimMedia>,
    ) -> Result<Life, String> {
        let nobody = address(NOBODY);
        let whole = recovery
            .turn(self.now, &mut node, nobody)
            .map_err(|e| e.to_string())?;
        node.finish(self.now).map_err(|e| e.to_string())?;
        self.route(&mut node);
        if whole {
            self.seen.recovered += recovery.entered();
            if recovery.entered() > 0 {
                self.aimed = 60;
            }
            let slots = recovery.begin().map_err(|e| e.to_string())?;
            return Ok(Life::Serving(node, slots));
        }
        Ok(Life::Recovering(node, recovery))
    }

    fn go_on(
        &mut self,
        mut node: DeviceNode<SimMedia>,
        mut slots: Slots<SimMedia>,
    ) -> Result<Life, String> {
        let before = slots.counters();
        slots
            .hand_on(self.now, &mut node, client_address)
            .map_err(|e| e.to_string())?;
        self.seen.holes += slots.counters().holes - before.holes;
        self.seen.waits += slots.counters().waits - before.waits;
        self.seen.forged += slots.counters().forged - before.forged;
        for connection in slots.take_forgers() {
            let client = usize::try_from(connection % number(CLIENTS)).expect("few clients");
            self.cut(client);
        }
        node.finish(self.now).map_err(|e| e.to_string())?;
        slots.keep(&node).map_err(|e| e.to_string())?;
        while let Some(posting) = slots.queue().post() {
            self.posted.push_back(posting);
        }
        self.route(&mut node);
        if let Some(blocked) = slots.blocked(self.now, self.connections) {
            let late = self.now.since(blocked.since);
            if late >= 4 * DEADLINE {
                self.wrong("a dead client keeps all others waiting".to_owned());
            }
            for client in 0..CLIENTS {
                let connection = self.clients[client].connection;
                let may = connection < blocked.before && !slots.queue().is_cleared(connection);
                if late >= DEADLINE && may && !self.is(Broken::HeadDeadline) {
                    self.cut(client);
                    self.seen.cut_off += 1;
                }
            }
        }
        Ok(Life::Serving(node, slots))
    }

    fn route(&mut self, node: &mut DeviceNode<SimMedia>) {
        let mut refused = Vec::new();
        for (to, bytes) in node.out().iter() {
            if to == address(SERVER) && self.network.len() < NETWORK_MAX {
                self.network.push_back((true, bytes.to_vec()));
            }
            let kind = Header::kind_of(bytes);
            if kind == Some(Kind::NotLogged)
                && !Packet::parse(bytes).is_ok_and(|it| it.header.session == 0)
            {
                refused.push(to);
            }
            for (client, of) in self.clients.iter_mut().enumerate() {
                let packet = Packet::parse(bytes);
                if let (true, Ok(packet)) = (to == client_address(number(client)), packet)
                    && packet.header.kind == Kind::OpenReply
                    && of.session.is_none()
                {
                    of.session = Some(packet.header.session);
                }
            }
        }
        node.sent();
        for client in refused {
            self.wrong(format!(
                "{client} is told that there is no room for what is acknowledged"
            ));
        }
    }

    /// Delivers packets between device and server, and runs the server.
    fn serve(&mut self) {
        if self.outage > 0 {
            return;
        }
        for _ in 0..self.network.len() {
            let Some((to_server, bytes)) = self.network.pop_front() else {
                break;
            };
            let result = match &mut self.life {
                _ if to_server => self
                    .server
                    .receive(self.now, address(DEVICE), &bytes, &mut self.server_out)
                    .map_err(|stop| stop.0),
                Life::Recovering(node, _) | Life::Serving(node, _) => node
                    .receive(self.now, address(SERVER), &bytes)
                    .map_err(|error| error.to_string()),
                Life::Down => Ok(()),
            };
            if let Err(text) = result {
                self.wrong(text);
            }
        }
        for _ in 0..16 {
            match self.server.step(self.now, &mut self.server_out) {
                Ok(true) => {}
                Ok(false) => break,
                Err(stop) => {
                    self.wrong(stop.0);
                    break;
                }
            }
        }
        for (_, bytes) in self.server_out.iter() {
            self.network.push_back((false, bytes.to_vec()));
        }
        self.server_out.clear();
    }

    fn cut(&mut self, client: usize) {
        let of = &mut self.clients[client];
        if !of.connected {
            return;
        }
        self.seen.cuts += 1;
        of.connected = false;
        of.dead = false;
        of.placed.clear();
        if let Some((posting, ..)) = of.taking.take() {
            let completion = (posting, of.connection, Outcome::Error);
            self.completions.push(completion);
        }
    }

    /// The computer loses power, or only the process dies.
    fn crash(&mut self) {
        let (node, slots) = match std::mem::replace(&mut self.life, Life::Down) {
            Life::Down => return,
            Life::Recovering(node, recovery) => (node, recovery.into_media()),
            Life::Serving(node, slots) => (node, slots.into_media()),
        };
        self.seen.crashes += 1;
        self.log.crash(&node.into_media(), &mut self.random);
        self.slots.crash(&slots, &mut self.random);
        for of in &mut self.clients {
            of.connected = false;
            of.dead = false;
            of.taking = None;
            of.placed.clear();
        }
        self.posted.clear();
        self.completions.clear();
        self.network.retain(|(to_server, _)| *to_server);
    }

    /// Whether every client has all acknowledgements, and the server has applied all entries of the log.
    fn is_quiet(&mut self) -> bool {
        let Life::Serving(node, slots) = &mut self.life else {
            return false;
        };
        let blocked = slots.queue().blocked().is_some() || slots.queue().oldest().is_some();
        let (last, .., applied) = node.machine().cursors();
        let told = |of: &Client| of.dead || of.acknowledged >= UPDATES;
        let open = self.completions.is_empty() && last == applied;
        !blocked && open && last > 0 && self.clients.iter().all(told)
    }

    fn check(&mut self, seed: u64) {
        let story = self.store.story();
        let list = story.lists.get(&0).cloned().unwrap_or_default();
        let mut place = BTreeMap::new();
        let mut wrong = Vec::new();
        for (at, id) in list.iter().enumerate() {
            if place.insert(*id, at).is_some() {
                wrong.push(format!("seed {seed}: {id} took effect twice"));
            }
            if !self.times.contains_key(id) {
                wrong.push(format!("seed {seed}: nobody sent {id}"));
            }
        }
        if story.malformed > 0 {
            wrong.push(format!("seed {seed}: effects that nobody sent"));
        }
        for (id, times) in &self.times {
            let Some(acknowledged) = times.acknowledged else {
                continue;
            };
            let Some(at) = place.get(id) else {
                wrong.push(format!("seed {seed}: {id} was acknowledged and is lost"));
                continue;
            };
            let overtook = |(other, of): (&u64, &Times)| {
                of.begun > acknowledged && place.get(other).is_some_and(|after| after < at)
            };
            if self.times.iter().any(overtook) {
                wrong.push(format!(
                    "seed {seed}: something that began behind the acknowledgement of {id} came before it"
                ));
            }
        }
        self.seen.violations.append(&mut wrong);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seed of a world with keys, in which only the process dies, and the memory stays.
    const KEYED: u64 = 4;

    /// Returns a world in which the first client has a session and is connected, and slots are posted.
    fn world() -> World {
        let mut world = World::new(KEYED, None);
        assert!(world.keys.is_some());
        for _ in 0..HEAL_STEPS {
            world.step(false);
            let ready = world.clients[0].connected && world.clients[0].taking.is_none();
            if ready && world.posted.len() > 1 {
                return world;
            }
        }
        panic!("no client is connected");
    }

    fn heal(world: &mut World) {
        for _ in 0..HEAL_STEPS {
            world.step(false);
        }
        assert!(world.is_quiet());
        world.check(KEYED);
    }

    #[test]
    fn a_message_in_a_slot_without_a_mac_is_a_hole() {
        let mut world = world();
        let connection = world.clients[0].connection;
        let header = Header {
            session: world.clients[0].session.expect("connected"),
            seq: world.clients[0].next,
            tag: token(0),
            ..Header::new(Kind::Update)
        };
        for bytes in [datagram(&header, b"a write that nobody sent"), vec![1; 100]] {
            let before = world.seen.forged;
            while world.posted.is_empty() {
                world.turn();
            }
            let posting = world.posted.pop_front().expect("a slot");
            let Life::Serving(_, slots) = &mut world.life else {
                panic!("it serves");
            };
            let medium = slots.queue().media_mut();
            medium.store(posting.place.start, &bytes);
            let length = u32::try_from(bytes.len()).expect("small");
            let completion = (posting, connection, Outcome::Message(length));
            world.completions.push(completion);
            for _ in 0..HEAL_STEPS {
                world.complete();
                world.write(0);
                world.turn();
                if world.seen.forged > before {
                    break;
                }
            }
            assert_eq!(world.seen.forged, before + 1);
        }
        assert!(world.clients.iter().any(|of| !of.connected), "it is cut");
        heal(&mut world);
        assert_eq!(world.seen.violations, Vec::<String>::new());
    }

    #[test]
    fn a_write_whose_key_is_gone_stops_the_recovery() {
        let next = ClusterKey::new(*b"the next of them");
        let both = ClusterKeys {
            other: Some(CLUSTER),
            ..ClusterKeys::new(next)
        };
        let mut world = world();
        let before = world.clients[0].acknowledged;
        world.take(0);
        for _ in 0..SLOTS.slot_bytes {
            world.write(0);
        }
        world.read_back(0);
        assert!(world.clients[0].acknowledged > before, "in a slot alone");
        world.crash();
        world.server.machine_mut().rekey(both.clone());
        world.keys = Some(ClusterKeys::new(next));
        for _ in 0..HEAL_STEPS {
            world.turn();
            world.serve();
            world.log.complete();
            if !world.seen.violations.is_empty() {
                break;
            }
        }
        let stopped = std::mem::take(&mut world.seen.violations);
        assert!(stopped.iter().all(|text| text.contains("PM1707")) && !stopped.is_empty());
        world.keys = Some(both);
        heal(&mut world);
        assert_eq!(world.seen.violations, Vec::<String>::new());
        assert!(world.seen.recovered > 0);
    }
}
