//! A shard with keys (`docs/spec/keys.md`): the same packets as without, sealed; and some that are not sealed with the right key, or were
//! changed afterwards. Both devices must drop the same ones.
//!
//! The tests of `differential.rs`, `chain.rs` and `lease.rs` speak as without keys. [`Keys`] stands between them and the two devices: it seals what
//! they send, and verifies what the devices send.

use std::collections::HashMap;

use fastrand::Rng;
use pmnet_proto::Peer;
use pmnet_proto::keys::{ClusterKeys, DeviceKeys};
use pmnet_wire::packet::Identity;
use pmnet_wire::{ClusterKey, FrontKey, Header, Kind, MacKey, Packet};

use crate::chain;
use crate::differential::{PACKETS_ALL, Run, compared, number};
use crate::world::{DEVICE, SHARD, SHARD_TOKEN, Sent, World, before, others, server, skipped};

/// The server begins with this key, and so do all hops beside the device.
const CLUSTER: ClusterKey = ClusterKey::new(*b"a key of cluster");
/// The key under which the device sends during a rollover.
const NEXT: ClusterKey = ClusterKey::new(*b"the key after it");
/// One packet in so many is forged.
const FORGED: u8 = 20;

/// Keys of a device with this many devices behind it. `rollover`: it sends under another key than the others, and accepts theirs.
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

/// Ids of the hops beside the device; 0 is the server, and the head has none before it.
fn beside((before, behind): (usize, usize)) -> (u32, u32) {
    let id = |at: usize| others().nth(at).expect("a short chain");
    (
        before.checked_sub(1).map_or(u32::MAX, id),
        if behind == 0 { 0 } else { id(before) },
    )
}

/// Seals and verifies for the others of a chain.
pub struct Keys {
    /// The device sends under this one.
    own: ClusterKey,
    front: FrontKey,
    before: u32,
    next: u32,
    hops: [Peer; 2],
    /// Tokens of sessions, by their ids, and all tokens that were ever said.
    sessions: HashMap<u64, u64>,
    tokens: Vec<u64>,
    rng: Rng,
}

impl Keys {
    /// `address`: of the devices.
    pub fn new(keys: &DeviceKeys, address: Peer, around: (usize, usize)) -> Keys {
        let (sender, next) = beside(around);
        Keys {
            own: keys.cluster.present,
            front: CLUSTER.front(CLUSTER.front_id(b"web")).unwrap(),
            before: sender,
            next,
            hops: [before(address), server(address)],
            sessions: HashMap::new(),
            tokens: Vec::new(),
            rng: Rng::with_seed(7),
        }
    }

    fn identity(&self, token: u64) -> Identity {
        Identity {
            token,
            front: Some(self.front.id()),
        }
    }

    /// Returns the datagram as a sender with keys sends it; one in [`FORGED`] as nobody does.
    pub fn seal(&mut self, datagram: &[u8]) -> Vec<u8> {
        let Ok(packet) = Packet::parse(datagram) else {
            return datagram.to_vec();
        };
        let header = packet.header;
        let (key, payload) = self.key(&packet);
        if header.kind != Kind::RecoverReply && self.rng.u8(..FORGED) == 0 {
            return self.forge(&key, &header, payload);
        }
        sealed(&key, &header, &payload)
    }

    /// A PING of the session of this packet.
    pub fn ping(&self, header: &Header) -> Vec<u8> {
        let token = self.sessions[&header.session];
        let keys = self.front.session(SHARD, token);
        let header = Header {
            kind: Kind::Ping,
            ..*header
        };
        sealed(&keys.to_head, &header, &self.identity(token).write())
    }

    /// The key of its sender, and the payload that it has with keys.
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
            let keys = self.front.session(SHARD, header.tag);
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
        // Who does not know the token has no key.
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
        (CLUSTER.hop(header.shard, header.epoch, sender), payload)
    }

    /// A packet with right checksums that no holder of the key has sent.
    fn forge(&mut self, key: &MacKey, header: &Header, mut payload: Vec<u8>) -> Vec<u8> {
        let rng = &mut self.rng;
        let right = key.seal(&header.for_payload(&payload), &payload);
        let wrong = match rng.u8(..10) {
            // The token, which everybody can see.
            0 => *header,
            1 => Header {
                tag: right.tag ^ 1 << rng.u8(..64),
                ..right
            },
            2 => Header { tag: 0, ..right },
            // Of this device, sent back to it.
            3 => CLUSTER
                .hop(SHARD, header.epoch, DEVICE)
                .seal(&right, &payload),
            4 => self
                .front
                .session(SHARD, header.tag)
                .to_client
                .seal(&right, &payload),
            5 => MacKey::seal(&CLUSTER.hop(SHARD, header.epoch, 107), &right, &payload),
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

    /// Verifies what a device sends, and returns it as without keys.
    pub fn open(&mut self, mut sent: Sent) -> Sent {
        let Ok(packet) = Packet::parse(&sent.bytes) else {
            return sent;
        };
        let header = packet.header;
        if header.kind == Kind::Recover {
            assert!(self.own.asking(SHARD, DEVICE).verifies(&packet), "{header}");
            return sent;
        }
        // Whoever has the right key is taken for the hop before, whatever its address.
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
                self.own.hop(SHARD, header.epoch, DEVICE).verifies(&packet),
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

    /// The token of the session of a packet to a client.
    fn token(&mut self, packet: &Packet<'_>) -> u64 {
        let header = &packet.header;
        if header.kind == Kind::OpenReply {
            self.sessions.insert(header.session, header.order);
        }
        let known = self.sessions.get(&header.session);
        let all = known.into_iter().chain(self.tokens.iter().rev());
        let seals = |&&token: &&u64| self.front.session(SHARD, token).to_client.verifies(packet);
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
                device.keys = Some(keys((0, 0), seed % 4 == 0));
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
