//! The network of the world.
//!
//! Fault model: packets are lost, duplicated, reordered, delayed for long, damaged by flipped bits, and cut off in one
//! direction for a while, each independently. An attacker who does not know the tokens injects foreign traffic, and
//! well-formed packets of every kind with guessed contents. The attacker also injects packets that were on the wire
//! before: much later, or with another token or an older epoch. Without keys, pmnet does not protect against an
//! attacker on the path, so this attacker never changes a packet and keeps its right token. He also never uses the
//! operator's flags (`--declare-data-loss`). Worlds with `--keyed` have another adversary.

use crate::cells::Fault;
use crate::hosts::{CLUSTER, NEXT, device_id};
use crate::store::Operation;
use crate::world::{Event, World, address};
use pmnet_proto::time::{MICROSECOND, MILLISECOND};
use pmnet_proto::{Outbox, Peer};
use pmnet_wire::record::{Member, write_path};
use pmnet_wire::{Flags, Header, Kind, Life, Packet, raw};

/// Maximum number of packets that the injector remembers.
const MEMORY_MAX: usize = 256;
const MEMORY_MAX_U64: u64 = 256;
/// One in this number of packets is remembered.
const MEMORY_EVERY: u64 = 7;

/// A packet on the wire: receiver, sender, bytes.
pub(crate) type Seen = (Peer, Peer, Vec<u8>);

impl World {
    /// Sends one packet, or loses it.
    pub(crate) fn send(&mut self, from: Peer, to: Peer, bytes: &[u8]) {
        let to = self.routed(from, to);
        if self.cut.contains(&(from, to)) || self.is_isolated(from, to) {
            self.hit_packet(Fault::Loss, from, to, bytes);
            self.happened("packets cut off");
            return;
        }
        self.look_at_length(from, to, bytes);
        if self.config.injection > 0 {
            self.remember(from, to, bytes);
        }
        let struck = self.struck.take();
        if self.chance(self.config.loss) || struck == Some(Fault::Loss) {
            self.hit_packet(Fault::Loss, from, to, bytes);
            self.happened("packets lost");
            return;
        }
        let mut copies = 1;
        if self.chance(self.config.duplication) || struck == Some(Fault::Disorder) {
            self.hit_packet(Fault::Disorder, from, to, bytes);
            self.happened("packets duplicated");
            copies = 2;
        }
        for _ in 0..copies {
            let mut delay = 2 * MICROSECOND + self.below(10 * MICROSECOND);
            if self.chance(self.config.long_delay) || struck == Some(Fault::Disorder) {
                self.hit_packet(Fault::Disorder, from, to, bytes);
                self.happened("packets delayed for long");
                delay += self.below(300 * MILLISECOND);
            }
            let mut bytes = bytes.to_vec();
            let damaged = self.chance(self.config.corruption);
            if !bytes.is_empty() && (damaged || struck == Some(Fault::Corruption)) {
                self.hit_packet(Fault::Corruption, from, to, &bytes);
                self.happened("packets damaged");
                for _ in 0..=self.below(3) {
                    let bits = u64::try_from(bytes.len() * 8).expect("short packets");
                    let bit = self.below(bits);
                    bytes[usize::try_from(bit / 8).expect("short packets")] ^= 1 << (bit % 8);
                }
            }
            self.schedule(delay, Event::Deliver { to, from, bytes });
        }
        if self.chance(self.config.injection) {
            self.inject();
        }
    }

    /// Sends the packets of a node's outbox.
    pub(crate) fn send_all(&mut self, node: usize, out: &Outbox) {
        for (to, bytes) in out.iter() {
            self.send(address(node), to, bytes);
        }
    }

    /// Whether a device at one end is cut off. Such a device can still exchange packets with clients.
    fn is_isolated(&self, from: Peer, to: Peer) -> bool {
        self.isolated.iter().any(|&node| {
            let machine = |peer| (0..=self.config.devices).any(|n| address(n) == peer);
            let node = address(node);
            (from == node && machine(to)) || (to == node && machine(from))
        })
    }

    fn remember(&mut self, from: Peer, to: Peer, bytes: &[u8]) {
        if self.below(MEMORY_EVERY) != 0 {
            return;
        }
        let seen = (to, from, bytes.to_vec());
        if self.memory.len() < MEMORY_MAX {
            self.memory.push(seen);
        } else {
            // A new packet replaces a random packet, so that some packets are remembered for long.
            let at = usize::try_from(self.below(MEMORY_MAX_U64)).expect("small");
            self.memory[at] = seen;
        }
    }

    fn inject(&mut self) {
        let injected = match self.below(5) {
            0 => self.foreign(),
            1 => self.guessed(),
            _ => self.seen_before(),
        };
        if let Some((to, from, bytes)) = injected {
            self.happened("packets injected");
            let delay = self.below(MILLISECOND);
            self.schedule(delay, Event::Deliver { to, from, bytes });
        }
    }

    /// Returns a datagram of another protocol.
    fn foreign(&mut self) -> Option<Seen> {
        let (to, from) = (self.any_node(), self.any_node());
        let length = usize::try_from(self.below(200)).expect("small");
        let bytes = (0..length)
            .map(|_| self.random.next_u64().to_le_bytes()[0])
            .collect();
        Some((address(to), address(from), bytes))
    }

    /// Returns a well-formed packet of any kind with guessed fields.
    fn guessed(&mut self) -> Option<Seen> {
        let (to, from) = (self.any_node(), self.any_node());
        let kinds = u64::try_from(Kind::ALL.len()).expect("few kinds");
        let kind = Kind::ALL[usize::try_from(self.below(kinds)).expect("few kinds")];
        let count = u16::try_from(1 + self.below(3)).expect("small");
        let header = Header {
            flags: Flags(self.random.next_u64().to_le_bytes()[0]),
            copies: raw(u8::try_from(self.below(22)).expect("small")),
            epoch: u32::try_from(self.below(4)).expect("small"),
            device: u32::try_from(self.below(5)).expect("small"),
            incarnation: u32::try_from(self.below(5)).expect("small"),
            session: self.below(40),
            seq: self.below(40),
            order: self.below(200),
            request: raw(self.below(40)),
            fragment_index: u16::try_from(self.below(u64::from(count))).expect("small"),
            fragment_count: count,
            tag: if kind == Kind::Recover {
                0
            } else {
                self.random.next_u64()
            },
            ..Header::new(kind)
        };
        let payload = match kind {
            // Before the chain exists, the first device that asks becomes its member. Without keys the server cannot
            // distinguish this attack from the start of a device.
            Kind::Recover if self.server.store.is_fresh() => return None,
            Kind::Recover => write_path(&[Member {
                device: header.device,
                incarnation: header.incarnation,
                log_uuid: u128::from(self.random.next_u64()),
                tail: self.below(100),
                applied: self.below(100),
                flags: if self.below(2) == 0 {
                    0
                } else {
                    Member::SHRINK | Member::DECLARE_LOSS
                },
                // An operator's statement names an epoch. The attacker never guesses an epoch that the world reaches.
                word_epoch: u32::MAX - u32::try_from(self.below(100)).expect("small"),
                served: u32::try_from(self.below(5)).expect("small"),
                size: pmnet_wire::FragmentSize::MAX,
            }]),
            _ => {
                let length = usize::try_from(self.below(100)).expect("small");
                (0..length)
                    .map(|_| self.random.next_u64().to_le_bytes()[0])
                    .collect()
            }
        };
        let mut bytes = Vec::new();
        header.write(&payload, &mut bytes);
        Some((address(to), address(from), bytes))
    }

    /// Returns a packet that was on the wire before, unchanged or changed.
    fn seen_before(&mut self) -> Option<Seen> {
        if self.memory.is_empty() {
            return None;
        }
        let at = self.below(u64::try_from(self.memory.len()).expect("bounded"));
        let (to, from, bytes) = self.memory[usize::try_from(at).expect("bounded")].clone();
        let packet = Packet::parse(&bytes).ok()?;
        let mut header = packet.header;
        if self.config.keyed {
            if self.is_forgotten() && self.below(2) == 0 {
                return self.with_the_old_key(&packet);
            }
            return self.without_a_key(to, from, &packet);
        }
        if header.kind == Kind::Recover && self.server.store.is_fresh() {
            // Before the first session, after a RECOVER of a lost device the head waits for this device until an
            // operator starts the head again.
            return None;
        }
        if self.below(2) == 0 {
            return Some((to, from, bytes));
        }
        if matches!(header.kind, Kind::Recover | Kind::RecoverReply) {
            // Without keys, only nonce and log identity authenticate a RECOVER and a recover-reply,
            // so the injector changes none of these packets.
            return None;
        }
        if self.below(2) == 0 {
            header.tag ^= 1 + self.below(1 << 20);
            header.seq = header.seq.wrapping_add(self.below(3));
            header.order = header.order.wrapping_add(self.below(3));
        } else {
            header.epoch = header.epoch.saturating_sub(1);
        }
        let mut changed = Vec::new();
        header.write(packet.payload, &mut changed);
        Some((to, from, changed))
    }

    /// Returns a packet that was seen before, as an adversary without a key sends it again: to another receiver, under
    /// another sender's address, or changed. The packet's tag stays unchanged.
    fn without_a_key(&mut self, to: Peer, from: Peer, packet: &Packet<'_>) -> Option<Seen> {
        let mut header = packet.header;
        let mut payload = packet.payload.to_vec();
        if self.server.store.is_fresh() && matches!(header.kind, Kind::Recover | Kind::Open) {
            // Before the first session, the adversary can make a chain too short by redirecting an OPEN to another
            // device, or prevent its forming by repeating a RECOVER of a lost device. No data is lost by this
            // (docs/spec/keys.md §6), so he does not do it.
            return None;
        }
        let (to, from) = match self.below(3) {
            0 => (to, from),
            1 => (address(self.any_node()), from),
            _ => (address(self.any_node()), address(self.any_node())),
        };
        let number = 1 + self.below(3);
        match self.below(12) {
            0..4 => {}
            4 => header.seq = header.seq.wrapping_add(number),
            5 => header.order = header.order.wrapping_add(number),
            6 => header.session = header.session.wrapping_add(number),
            7 => header.epoch = header.epoch.wrapping_add(1),
            8 => header.epoch = header.epoch.saturating_sub(1),
            9 => header.request = raw(header.request.raw().wrapping_add(number)),
            10 => header.flags.0 ^= 1 << self.below(8),
            _ => {
                let bits = u64::try_from(payload.len() * 8).expect("short packets");
                if bits > 0 {
                    let bit = self.below(bits);
                    payload[usize::try_from(bit / 8).expect("short packets")] ^= 1 << (bit % 8);
                }
            }
        }
        let mut bytes = Vec::new();
        header.write(&payload, &mut bytes);
        Some((to, from, bytes))
    }

    /// Returns a packet that a thief makes from a packet that was seen before. The thief has the cluster key that all
    /// processes have forgotten. The packet is the next entry for the server, sealed as if the tail had sent it.
    fn with_the_old_key(&mut self, packet: &Packet<'_>) -> Option<Seen> {
        let mut header = packet.header;
        let chain = self.server.running.as_ref()?.machine().chain()?;
        let (epoch, token) = (chain.epoch, chain.shard_token);
        let tail = chain.members.last()?.device;
        if header.kind != Kind::Append {
            return None;
        }
        let mut payload = packet.payload.to_vec();
        let bits = u64::try_from(payload.len() * 8).expect("short packets");
        if bits > 0 {
            let bit = self.below(bits);
            payload[usize::try_from(bit / 8).expect("short packets")] ^= 1 << (bit % 8);
        }
        (header.epoch, header.order) = (epoch, self.watermark + 1 + self.below(2));
        header.seq = header.seq.wrapping_add(self.below(3));
        let key = CLUSTER.hop(Life { shard: 0, token }, epoch, tail);
        let header = key.seal(&header.for_payload(&payload), &payload);
        let mut bytes = Vec::new();
        header.write(&payload, &mut bytes);
        let node = (0..self.config.devices).find(|&node| device_id(node) == tail)?;
        self.happened("packets that a thief has sealed");
        Some((address(self.config.devices), address(node), bytes))
    }

    /// Notes for the checkers the session under which an id is sent.
    pub(crate) fn note_session(&mut self, bytes: &[u8]) {
        let server = self.server.running.as_ref();
        let chain = server.and_then(|running| running.machine().chain());
        self.lives.extend(chain.map(|chain| chain.shard_token));
        let Ok(packet) = Packet::parse(bytes) else {
            return;
        };
        let header = &packet.header;
        if !matches!(header.kind, Kind::Append | Kind::Bypass) || header.fragment_index != 0 {
            return;
        }
        let forgotten = self.is_forgotten();
        let sealed_by = |sender| {
            let lives = self.lives.iter().map(|token| Life {
                shard: 0,
                token: *token,
            });
            // No device has sent a packet that is sealed with the forgotten key, so the packet is the thief's.
            let accepted = if forgotten {
                &[NEXT][..]
            } else {
                &[CLUSTER, NEXT]
            };
            let mut keys = lives.flat_map(|life| {
                accepted
                    .iter()
                    .map(move |key| key.hop(life, header.epoch, sender))
            });
            keys.any(|key| key.verifies(&packet))
        };
        if self.config.keyed && !(0..self.config.devices).map(device_id).any(sealed_by) {
            // No device has sent the packet in this form.
            return;
        }
        let Some(operation) = Operation::peek(packet.payload) else {
            return;
        };
        if operation.appends() {
            let sessions = self.sent_in.entry(operation.id).or_default();
            sessions.insert(header.session);
        }
        if header.kind == Kind::Bypass && !header.flags.has(Flags::FALLBACK) {
            self.asked_again(operation.id, header);
        }
    }
}
