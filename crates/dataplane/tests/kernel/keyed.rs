//! A shard with keys (`docs/spec/keys.md`): the packets of the tests without keys, sealed. Some packets are sealed with
//! a wrong key, or were changed after they were sealed. Both devices must drop the same packets.
//!
//! The tests of `differential.rs`, `chain.rs` and `lease.rs` send packets without seals. [`Keys`] stands between these
//! tests and the two devices: it seals the packets of the tests, and verifies the packets of the devices.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use aya::maps::{Array, Map, MapData};
use fastrand::Rng;
use pmnet_dataplane::xdp::{Kernel, KernelConfig};
use pmnet_device::FastPath;
use pmnet_log::Tail;
use pmnet_proto::device::SessionState;
use pmnet_proto::keys::{ClusterKeys, DeviceKeys};
use pmnet_proto::{Peer, Time};
use pmnet_wire::packet::Identity;
use pmnet_wire::record::{DurableRow, write_durable};
use pmnet_wire::{ClusterKey, FrontKey, Header, Kind, Life, MacKey, Packet, raw};

use crate::chain;
use crate::differential::{PACKETS_ALL, Run, compared, number};
use crate::load::addresses;
use crate::races::fresh;
use crate::rig::{Node, Passed, run};
use crate::world::{
    DEVICE, SHARD, SHARD_TOKEN, Scratch, Sent, Words, World, before, config, frame, others,
    recover_reply, server, settings, skipped,
};

/// The key that the server and all other hops of the device use at first.
const CLUSTER: ClusterKey = ClusterKey::new(*b"a key of cluster");
const LIFE: Life = Life {
    shard: SHARD,
    token: SHARD_TOKEN,
};
/// The key with which the device sends during a rollover.
const NEXT: ClusterKey = ClusterKey::new(*b"the key after it");
/// Of this number of packets, one is forged.
const FORGED: u8 = 20;

/// Returns the keys of a device that has these numbers of devices before and after it. With `rollover`, the device
/// sends with another key than the other hops, and accepts the key of the other hops.
pub fn keys(behind: (usize, usize), rollover: bool) -> DeviceKeys {
    DeviceKeys {
        cluster: ClusterKeys {
            present: if rollover { NEXT } else { CLUSTER },
            other: rollover.then_some(CLUSTER),
            refused: Vec::new(),
        },
        next: beside(behind).1,
    }
}

/// Returns the ids of the previous and the next hop. 0 is the server; a head has no previous hop.
fn beside((before, behind): (usize, usize)) -> (u32, u32) {
    let id = |at: usize| others().nth(at).expect("a short chain");
    (
        before.checked_sub(1).map_or(u32::MAX, id),
        if behind == 0 { 0 } else { id(before) },
    )
}

/// Seals and verifies packets in place of the other parties of a chain.
pub struct Keys {
    /// The key with which the device sends.
    own: ClusterKey,
    before: u32,
    next: u32,
    hops: [Peer; 2],
    /// Tokens of sessions by their ids, and all tokens that any packet has carried.
    sessions: HashMap<u64, u64>,
    tokens: Vec<u64>,
    rng: Rng,
    /// No packet is forged.
    pub honest: bool,
}

impl Keys {
    /// Returns the keys of all parties around devices with this address.
    pub fn new(keys: &DeviceKeys, address: Peer, around: (usize, usize)) -> Keys {
        let (sender, next) = beside(around);
        Keys {
            own: keys.cluster.present,
            before: sender,
            next,
            hops: [before(address), server(address)],
            sessions: HashMap::new(),
            tokens: Vec::new(),
            rng: Rng::with_seed(7),
            honest: false,
        }
    }

    fn identity(&self, token: u64) -> Identity {
        Identity {
            token,
            front: Some(front_of(token).id()),
        }
    }

    /// Returns the datagram as a sender with keys sends it. One datagram in [`FORGED`] is returned in a form that no
    /// sender with keys sends.
    pub fn seal(&mut self, datagram: &[u8]) -> Vec<u8> {
        let Ok(packet) = Packet::parse(datagram) else {
            return datagram.to_vec();
        };
        let header = packet.header;
        let (key, payload) = self.key(&packet);
        if !self.honest && header.kind != Kind::RecoverReply && self.rng.u8(..FORGED) == 0 {
            return self.forge(&key, &header, payload);
        }
        sealed(&key, &header, &payload)
    }

    /// Returns a PING of the session of this packet.
    pub fn ping(&self, header: &Header) -> Vec<u8> {
        let token = self.sessions[&header.session];
        let keys = front_of(token).session(SHARD, token);
        let header = Header {
            kind: Kind::Ping,
            ..*header
        };
        sealed(&keys.to_head, &header, &self.identity(token).write())
    }

    /// Returns the key of the packet's sender, and the payload that the packet has with keys.
    fn key(&mut self, packet: &Packet<'_>) -> (MacKey, Vec<u8>) {
        let header = &packet.header;
        let payload = packet.payload.to_vec();
        let of_client = match header.kind {
            Kind::Open | Kind::Update | Kind::End | Kind::Read => true,
            Kind::Bypass => header.tag != SHARD_TOKEN,
            Kind::Ping => header.session != 0,
            _ => false,
        };
        if of_client {
            if header.kind == Kind::Open {
                self.tokens.push(header.tag);
            }
            let keys = front_of(header.tag).session(SHARD, header.tag);
            let payload = match header.kind {
                Kind::Open | Kind::Ping => self.identity(header.tag).write().to_vec(),
                _ => payload,
            };
            return (keys.to_head, payload);
        }
        if header.kind == Kind::RecoverReply {
            return (CLUSTER.asking(SHARD, self.next), payload);
        }
        let sender = match header.kind {
            Kind::Append | Kind::Bypass | Kind::Ping => self.before,
            _ => self.next,
        };
        // A sender that does not know the token has no key.
        let sender = if header.tag == SHARD_TOKEN {
            sender
        } else {
            999
        };
        let payload = match header.kind {
            Kind::Append if header.copies.raw() == Kind::Open.number() => {
                let token = Identity::read(&payload).map_or(0, |said| said.token);
                self.identity(token).write().to_vec()
            }
            _ => payload,
        };
        let life = Life {
            shard: header.shard,
            ..LIFE
        };
        (CLUSTER.hop(life, header.epoch, sender), payload)
    }

    /// Returns a packet with correct checksums that has not been sent by a holder of the key.
    fn forge(&mut self, key: &MacKey, header: &Header, mut payload: Vec<u8>) -> Vec<u8> {
        let rng = &mut self.rng;
        let right = key.seal(&header.for_payload(&payload), &payload);
        let wrong = match rng.u8(..10) {
            // The tag is the token, which is not secret.
            0 => *header,
            1 => Header {
                tag: right.tag ^ 1 << rng.u8(..64),
                ..right
            },
            2 => Header { tag: 0, ..right },
            // The packet is sealed by this device itself, and sent back to this device.
            3 => CLUSTER
                .hop(LIFE, header.epoch, DEVICE)
                .seal(&right, &payload),
            4 => front_of(header.tag)
                .session(SHARD, header.tag)
                .to_client
                .seal(&right, &payload),
            5 => MacKey::seal(&CLUSTER.hop(LIFE, header.epoch, 107), &right, &payload),
            6 => Header {
                seq: right.seq ^ 1 << rng.u8(..3),
                ..right
            },
            7 => Header {
                order: right.order ^ 1 << rng.u8(..3),
                ..right
            },
            8 => Header {
                session: right.session ^ 1 << rng.u8(..3),
                ..right
            },
            _ => {
                if let Some(byte) = rng.choice(&mut payload) {
                    *byte ^= 1;
                }
                right
            }
        };
        let mut out = Vec::new();
        wrong.write(&payload, &mut out);
        out
    }

    /// Verifies a packet of a device, and returns it as a device without keys sends it.
    pub fn open(&mut self, mut sent: Sent) -> Sent {
        let Ok(packet) = Packet::parse(&sent.bytes) else {
            return sent;
        };
        let header = packet.header;
        if header.kind == Kind::Recover {
            assert!(self.own.asking(SHARD, DEVICE).verifies(&packet), "{header}");
            return sent;
        }
        // A sender with the right key counts as the previous hop, at any address.
        let only_hops_say = !matches!(
            header.kind,
            Kind::OpenReply
                | Kind::Ack
                | Kind::Nack
                | Kind::NotLogged
                | Kind::Hit
                | Kind::Miss
                | Kind::Pong
                | Kind::Response
        );
        let token = if only_hops_say || self.hops.contains(&sent.to) {
            assert!(
                self.own.hop(LIFE, header.epoch, DEVICE).verifies(&packet),
                "{header}"
            );
            SHARD_TOKEN
        } else {
            self.token(&packet)
        };
        let header = Header {
            tag: token,
            order: if header.kind == Kind::OpenReply {
                0
            } else {
                header.order
            },
            ..header
        };
        let mut bytes = Vec::new();
        header.write(packet.payload, &mut bytes);
        sent.bytes = bytes;
        sent
    }

    /// Returns the token of the session of a packet to a client.
    fn token(&mut self, packet: &Packet<'_>) -> u64 {
        let header = &packet.header;
        if header.kind == Kind::OpenReply {
            self.sessions.insert(header.session, header.order);
        }
        let known = self.sessions.get(&header.session);
        let all = known.into_iter().chain(self.tokens.iter().rev());
        let seals = |&&token: &&u64| {
            front_of(token)
                .session(SHARD, token)
                .to_client
                .verifies(packet)
        };
        let mut all = all;
        *all.find(seals)
            .unwrap_or_else(|| panic!("nobody can verify {header}"))
    }
}

fn sealed(key: &MacKey, header: &Header, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    key.seal(&header.for_payload(payload), payload)
        .write(payload, &mut out);
    out
}

#[test]
fn with_keys_the_kernel_answers_as_user_space_does() {
    if skipped() {
        return;
    }
    let packets = number("PMNET_PACKETS", PACKETS_ALL);
    let begin = |seed: u64| {
        Run::new(seed, |address, settings| {
            World::new(address, |device| {
                settings(device);
                device.keys = Some(keys((0, 0), seed.is_multiple_of(4)));
            })
        })
    };
    let (hits, misses) = compared(packets, "answered", begin, Run::step, |run| &run.world);
    let few = packets < 10 * crate::differential::PACKETS;
    assert!(
        few || (hits * 1_000 > packets && misses * 100 > packets),
        "{hits} HITs, {misses} MISSes: few READs were compared"
    );
}

#[test]
fn in_a_chain_with_keys_the_kernel_does_what_user_space_does() {
    if skipped() {
        return;
    }
    let packets = number("PMNET_PACKETS", chain::PACKETS_ALL) / 5;
    let begin = |seed| chain::Run::with_keys(seed);
    compared(
        packets,
        "answered or sent on",
        begin,
        chain::Run::step,
        |run| &run.world,
    );
}

/// Two CPUs append at the same time. An entry's tag is made before the lock is taken, for the order that is next at
/// that moment. The CPU that gets the lock second must make its tag again.
#[test]
fn whoever_comes_second_to_the_lock_seals_its_entry_for_the_order_that_it_gets() {
    if skipped() {
        return;
    }
    let (address, client) = addresses()[0];
    let second = Peer::new(client.ip(), client.port() + 1);
    for _world in 0..10 {
        let mut world = World::with(address, None, (0, 1), |settings| {
            settings.keys = Some(keys((0, 1), false));
        });
        world.nobody_forges();
        let sessions = [(client, 0x2000), (second, 0x3000)]
            .map(|(client, token)| (client, token, open_in_chain(&mut world, client, token)));
        let barrier = Arc::new(Barrier::new(2));
        let cpus = sessions.map(|(client, token, session)| {
            let (pins, barrier) = (world.pins().clone(), barrier.clone());
            std::thread::spawn(move || {
                let settings = KernelConfig {
                    keys: Some(keys((0, 1), false).cluster.print()),
                    ..config(address)
                };
                let (mut kernel, _image) = Kernel::load(&settings, pins).unwrap();
                let key = front_of(token).session(SHARD, token).to_head;
                let frames: Vec<_> = (1..=20)
                    .map(|seq| {
                        let header = Header {
                            shard: SHARD,
                            epoch: 1,
                            session,
                            seq,
                            ..Header::new(Kind::Update)
                        };
                        frame(client, address, &sealed(&key, &header, &[7; 200]))
                    })
                    .collect();
                barrier.wait();
                let mut out = [0; 4096];
                // If the lock is taken for too long, the packet goes to the process, and in this test there is no
                // process that takes it.
                for _pass in 0..1_000 {
                    for frame in &frames {
                        kernel.run(frame, &mut out).unwrap();
                    }
                    if kernel.tail().last == 42 {
                        break;
                    }
                }
            })
        });
        for cpu in cpus {
            cpu.join().unwrap();
        }
        world.device.finish(Time(world.now.0 + 1)).unwrap();
        assert_eq!(world.device.log().last(), 42, "two OPENs, and all updates");
        let own = CLUSTER.hop(LIFE, 1, DEVICE);
        for order in 1..=42 {
            let entry = world.device.log().frame(order).unwrap();
            let packet = Packet::parse(entry).unwrap();
            assert!(own.verifies(&packet), "{}", packet.header);
        }
    }
}

/// Opens a session at the head of a chain of two devices.
fn open_in_chain(world: &mut World, client: Peer, token: u64) -> u64 {
    let open = Header {
        shard: SHARD,
        tag: token,
        ..Header::new(Kind::Open)
    };
    let mut bytes = Vec::new();
    open.write(&token.to_be_bytes(), &mut bytes);
    world.receive(client, &bytes);
    let order = world.device.log().last();
    let next = others().start;
    let row = DurableRow {
        device: next,
        incarnation: 1,
        order,
    };
    let durable = Header {
        shard: SHARD,
        epoch: 1,
        tag: SHARD_TOKEN,
        device: next,
        incarnation: 1,
        order,
        request: raw(100),
        copies: raw(1),
        ..Header::new(Kind::Durable)
    };
    let mut bytes = Vec::new();
    durable.write(&write_durable(&[row]), &mut bytes);
    world.receive(server(world.address), &bytes);
    order
}

fn front() -> FrontKey {
    front_of(Alone::TOKEN)
}

/// Returns the front of the session with this token. One half of the sessions belongs to one front, the other half to
/// another.
fn front_of(token: u64) -> FrontKey {
    let name: &[u8] = if token & 2 == Alone::TOKEN & 2 {
        b"web"
    } else {
        b"other"
    };
    CLUSTER.front(CLUSTER.front_id(name)).unwrap()
}

/// A device without a chain, with its process.
struct Alone {
    node: Node,
    now: Time,
    client: Peer,
    session: u64,
    seq: u64,
}

impl Alone {
    const TOKEN: u64 = 0x4000;

    fn new() -> Alone {
        let (address, client) = addresses()[0];
        let mut settings = settings(DEVICE, server(address));
        settings.keys = Some(keys((0, 0), false));
        let now = Time(1);
        let node = Node::new(address, settings, Arc::new(|_, _| ()), now);
        let mut alone = Alone {
            node,
            now,
            client,
            session: 0,
            seq: 0,
        };
        alone.serve();
        let identity = Identity {
            token: Alone::TOKEN,
            front: Some(front().id()),
        };
        let open = Header {
            shard: SHARD,
            ..Header::new(Kind::Open)
        };
        let open = sealed(
            &front().session(SHARD, Alone::TOKEN).to_head,
            &open,
            &identity.write(),
        );
        let said = alone.turn(&[(client, open)]);
        let reply = said
            .iter()
            .find(|(to, _)| *to == client)
            .expect("an answer");
        alone.session = Packet::parse(&reply.1).unwrap().header.session;
        alone
    }

    fn turn(&mut self, burst: &[(Peer, Vec<u8>)]) -> Vec<(Peer, Vec<u8>)> {
        self.now = Time(self.now.0 + 300_000_000);
        self.node.turn(self.now, burst).unwrap()
    }

    /// Answers the device as the server would.
    fn serve(&mut self) {
        let next = server(self.node.address);
        for _turn in 0..16 {
            let said = self.turn(&[]);
            let replies = said
                .iter()
                .filter_map(|(_, bytes)| recover_reply(bytes, (0, 0)));
            let replies = replies.map(|reply| {
                let packet = Packet::parse(&reply).unwrap();
                let key = CLUSTER.asking(SHARD, 0);
                (next, sealed(&key, &packet.header, packet.payload))
            });
            let replies: Vec<_> = replies.collect();
            self.turn(&replies);
        }
        assert!(self.node.device().unwrap().machine().is_serving());
    }

    /// Sends the next update, and returns the pipeline's verdict.
    fn update(&mut self) -> Passed {
        self.seq += 1;
        self.update_again()
    }

    /// Sends the last update again, and returns what happened to it.
    fn update_again(&mut self) -> Passed {
        let header = Header {
            shard: SHARD,
            epoch: 1,
            session: self.session,
            seq: self.seq,
            ..Header::new(Kind::Update)
        };
        let key = front().session(SHARD, Alone::TOKEN).to_head;
        let bytes = sealed(&key, &header, b"update");
        run(&self.node.kernel, self.client, self.node.address, &bytes)
    }

    fn take_over(&mut self, keys: Option<DeviceKeys>) {
        self.node.kill();
        self.node
            .reconfigure(move |settings| settings.keys = keys.clone());
        self.node.restart(self.now).unwrap();
    }
}

#[test]
fn with_the_same_keys_a_process_takes_the_pipeline_over_while_it_goes_on() {
    if skipped() {
        return;
    }
    let mut alone = Alone::new();
    assert!(matches!(alone.update(), Passed::Out(..)));
    alone.node.kill();
    assert!(
        matches!(alone.update(), Passed::Out(..)),
        "without a process"
    );
    alone.take_over(Some(keys((0, 0), false)));
    assert!(
        matches!(alone.update(), Passed::Out(..)),
        "before the server has answered"
    );
    alone.serve();
    // The process does not know the client's address yet, so this update goes to the process.
    let passed = alone.update();
    assert!(matches!(passed, Passed::Up), "{passed:?}");
}

/// Keys of a device that refuses the front.
fn refusing() -> DeviceKeys {
    let mut refusing = keys((0, 0), false);
    refusing.cluster.refused.push(front().id());
    refusing
}

#[test]
fn other_keys_count_in_the_pipeline_as_soon_as_its_process_has_them() {
    if skipped() {
        return;
    }
    for (others, is_served) in [(keys((0, 0), true), true), (refusing(), false)] {
        let mut alone = Alone::new();
        assert!(matches!(alone.update(), Passed::Out(..)));
        alone.node.rekey(alone.now, others.cluster).unwrap();
        let passed = alone.update();
        assert!(matches!(passed, Passed::Up), "it is held: {passed:?}");
        alone.turn(&[]);
        let passed = alone.update_again();
        assert_eq!(matches!(passed, Passed::Out(..)), is_served, "{passed:?}");
    }
}

/// If such packets counted, a sender at the next hop's address without the hop's key could keep the device from looking
/// for the hop's new address.
#[test]
fn a_packet_that_the_next_hop_has_not_sealed_is_no_sign_of_it() {
    if skipped() {
        return;
    }
    let mut alone = Alone::new();
    let next = server(alone.node.address);
    assert!(alone.node.heard_next(), "it has answered");
    let applied = Header {
        shard: SHARD,
        epoch: 1,
        order: 1,
        ..Header::new(Kind::Applied)
    };
    let by = |sender| sealed(&CLUSTER.hop(LIFE, 1, sender), &applied, &[]);
    alone.turn(&[(next, by(99))]);
    assert!(!alone.node.heard_next());
    alone.turn(&[(next, by(0))]);
    assert!(alone.node.heard_next());
}

/// The keys of a closed session have no use any more, and the maps outlive the process.
#[test]
fn the_keys_of_a_session_that_is_over_are_erased() {
    if skipped() {
        return;
    }
    let scratch = Scratch::new();
    let (address, client) = addresses()[0];
    let own = keys((0, 0), false).cluster;
    let settings = KernelConfig {
        keys: Some(own.print()),
        ..config(address)
    };
    let (mut kernel, _image) = Kernel::load(&settings, scratch.0.clone()).unwrap();
    let state = SessionState {
        address: Some(client),
        keys: Some(front().session(SHARD, Alone::TOKEN)),
        ..fresh()
    };
    let map = scratch.0.path("pm_session_keys");
    let map = MapData::from_pin(map).unwrap();
    let map: Array<_, [u64; 4]> = Map::Array(map).try_into().unwrap();
    let known = || {
        map.iter()
            .filter(|keys| *keys.as_ref().unwrap() != [0; 4])
            .count()
    };
    kernel
        .hold()
        .unwrap()
        .set_session(state.id, Some(state))
        .unwrap();
    assert_eq!(known(), 1);
    kernel.hold().unwrap().set_session(state.id, None).unwrap();
    assert_eq!(known(), 0, "while it is held");
    kernel
        .hold()
        .unwrap()
        .set_session(state.id, Some(state))
        .unwrap();
    kernel.hold().unwrap().release(&Tail::default()).unwrap();
    assert_eq!(known(), 1);
    kernel.refresh_session(state.id, None).unwrap();
    assert_eq!(known(), 0);
    assert!(kernel.admits(), "it goes on");
    kernel
        .hold()
        .unwrap()
        .set_session(state.id, Some(state))
        .unwrap();
    kernel.hold().unwrap().forget_sessions().unwrap();
    assert_eq!(known(), 0);
}

/// A process that changes to other keys writes into the maps which keys they have. So a later process with these keys
/// can continue.
#[test]
fn a_process_with_the_keys_that_came_last_takes_the_pipeline_over_while_it_goes_on() {
    if skipped() {
        return;
    }
    for (others, goes_on) in [(keys((0, 0), true), true), (keys((0, 0), false), false)] {
        let mut alone = Alone::new();
        assert!(matches!(alone.update(), Passed::Out(..)));
        let last = keys((0, 0), true).cluster;
        alone.node.rekey(alone.now, last).unwrap();
        alone.turn(&[]);
        alone.take_over(Some(others));
        let passed = alone.update();
        assert_eq!(matches!(passed, Passed::Out(..)), goes_on, "{passed:?}");
    }
}

/// If the process ended instead, the pipeline would use the old keys for ever.
#[test]
fn a_process_with_other_keys_tries_again_if_it_cannot_hold_the_pipeline() {
    if skipped() {
        return;
    }
    let mut alone = Alone::new();
    assert!(matches!(alone.update(), Passed::Out(..)));
    let words = Words::of(alone.node.pins());
    words.shard().taken.store(1, Ordering::SeqCst);
    let leaves = std::thread::spawn(move || {
        // One try of the process lasts three seconds.
        std::thread::sleep(Duration::from_secs(4));
        words.shard().taken.store(0, Ordering::SeqCst);
    });
    let keyed = alone.node.rekey(alone.now, refusing().cluster);
    leaves.join().unwrap();
    keyed.unwrap();
    assert!(matches!(alone.update(), Passed::Up));
}

/// A key that has just become invalid must not stay in use until the server answers, which may take long.
#[test]
fn with_other_keys_a_process_holds_the_pipeline_at_once() {
    if skipped() {
        return;
    }
    for others in [Some(keys((0, 0), true)), Some(refusing()), None] {
        let mut alone = Alone::new();
        assert!(matches!(alone.update(), Passed::Out(..)));
        alone.take_over(others);
        let passed = alone.update();
        assert!(matches!(passed, Passed::Up), "{passed:?}");
    }
    let mut alone = Alone::new();
    alone.take_over(Some(refusing()));
    alone.serve();
    assert!(matches!(alone.update(), Passed::Up));
    let counters = *alone.node.device().unwrap().machine().counters();
    assert_eq!(counters.admitted, 0, "nothing of a refused front");
}
