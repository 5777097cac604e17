//! The packets that the adversary has seen, as a sample, and the packets that it makes from them.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};

use pmnet_wire::{FrontKey, HEADER_LEN, Header, Kind, Packet, SessionKeys, raw};
use serde::Serialize;

/// Maximum number of packets of each kind in the sample. The sample is drawn from all packets seen, old and new.
const KEPT: usize = 2_000;
/// Position of the header's checksum and of the MAC (`docs/spec/wire.md` §1).
const PAYLOAD_CRC_AT: std::ops::Range<usize> = 72..76;
const HEADER_CRC_AT: std::ops::Range<usize> = 76..80;
const TAG_AT: std::ops::Range<usize> = 80..88;

/// The way in which the adversary makes a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Trick {
    /// A new packet of any kind. The numbers in the packet come from seen packets, and the tag is invented.
    Forged,
    /// A new packet of any kind. The numbers in the packet come from seen packets, and the MAC is made with the key of
    /// the adversary's own front.
    Insider,
    /// A seen packet with some changed bits. The checksums are correct.
    Changed,
    /// A seen packet that is damaged or cut. The checksums are wrong.
    Damaged,
    /// A seen packet that is sent to another receiver.
    Redirected,
    /// A seen packet that is sent again, unchanged, to its receiver. The sender address may be another one.
    Repeated,
}

impl Trick {
    /// All tricks of this type.
    pub const ALL: [Trick; 6] = [
        Trick::Forged,
        Trick::Insider,
        Trick::Changed,
        Trick::Damaged,
        Trick::Redirected,
        Trick::Repeated,
    ];

    /// The name of the trick in the report's table.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Trick::Forged => "forged",
            Trick::Insider => "own key",
            Trick::Changed => "changed",
            Trick::Damaged => "damaged",
            Trick::Redirected => "redirected",
            Trick::Repeated => "repeated",
        }
    }
}

/// The tricks that the adversary uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tricks {
    /// All tricks except repeated packets. None of these tricks may have any effect.
    WithoutEffect,
    /// All tricks. A repeated packet may have the effects that `docs/spec/keys.md` §6 lists.
    All,
}

/// A datagram with its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// The sender's address in its headers.
    pub from: SocketAddrV4,
    /// The receiver's address in the packet's headers.
    pub to: SocketAddrV4,
    /// The UDP payload.
    pub bytes: Vec<u8>,
}

/// A sample of the packets that the taps saw, by kind.
#[derive(Debug, Default)]
pub struct Hoard {
    kinds: BTreeMap<u8, (u64, Vec<Datagram>)>,
}

impl Hoard {
    /// Adds a datagram to the sample, if it is a packet of pmnet.
    pub fn keep(&mut self, random: &mut fastrand::Rng, datagram: Datagram) {
        let Some(kind) = Header::kind_of(&datagram.bytes) else {
            return;
        };
        let (seen, kept) = self.kinds.entry(kind.number()).or_default();
        *seen += 1;
        if kept.len() < KEPT {
            kept.push(datagram);
        } else {
            let at = usize::try_from(random.u64(..*seen)).unwrap_or(usize::MAX);
            if let Some(old) = kept.get_mut(at) {
                *old = datagram;
            }
        }
    }

    /// Returns the number of packets of each kind that were seen.
    #[must_use]
    pub fn seen(&self) -> Vec<(Kind, u64)> {
        let kinds = self.kinds.iter();
        kinds
            .filter_map(|(kind, (seen, _))| Some((Kind::from_u8(*kind)?, *seen)))
            .collect()
    }

    /// Returns a random packet of the sample. Each kind is equally likely.
    fn any(&self, random: &mut fastrand::Rng) -> Option<&Datagram> {
        let at = random.usize(..self.kinds.len().max(1));
        let (_, kept) = self.kinds.values().nth(at)?;
        kept.get(random.usize(..kept.len()))
    }
}

/// The receivers, and the sender addresses that the adversary can use.
#[derive(Clone, Debug)]
pub struct Field {
    /// Addresses of all roles. The client's address is the one that was seen last.
    pub roles: Vec<SocketAddrV4>,
    /// The adversary's own key, which belongs to another front than the attacked front.
    pub own: Option<FrontKey>,
}

/// A packet that the adversary sends.
#[derive(Clone, Debug)]
pub struct Shot {
    /// The trick that made the packet.
    pub trick: Trick,
    /// The packet's kind, if its header still names one.
    pub kind: Option<Kind>,
    /// The packet with its addresses.
    pub datagram: Datagram,
}

impl Field {
    /// Makes one packet for one of these receivers. `None`: no packet was seen so far.
    pub fn shot(
        &self,
        random: &mut fastrand::Rng,
        hoard: &Hoard,
        tricks: Tricks,
        to: &[SocketAddrV4],
    ) -> Option<Shot> {
        let base = hoard.any(random)?;
        let all = match tricks {
            Tricks::WithoutEffect => 85,
            Tricks::All => 100,
        };
        let trick = match random.u8(..all) {
            0..25 => Trick::Forged,
            25..35 => Trick::Insider,
            35..65 => Trick::Changed,
            65..70 => Trick::Damaged,
            70..85 => Trick::Redirected,
            _ => Trick::Repeated,
        };
        let own = self.own.filter(|_| trick == Trick::Insider);
        // A client's packet has several legitimate receivers: each device that may be the head. So a client's packet to
        // any of these devices counts as repeated.
        let is_of_client = base.from.ip() == self.roles[0].ip();
        let is_device = |receiver: &SocketAddrV4| receiver.port() == base.to.port();
        let is_elsewhere = |receiver: &SocketAddrV4| {
            receiver.ip() != base.to.ip() && !(is_of_client && is_device(receiver))
        };
        let to = match trick {
            // The receiver is the packet's original receiver, if this tap reaches it.
            Trick::Repeated => *to.iter().find(|receiver| **receiver == base.to)?,
            Trick::Redirected => {
                let others: Vec<_> = to
                    .iter()
                    .filter(|receiver| is_elsewhere(receiver))
                    .collect();
                **random.choice(&others)?
            }
            _ => to[random.usize(..to.len())],
        };
        let bytes = match trick {
            Trick::Forged => forge(random, base, None)?,
            Trick::Insider => forge(random, base, Some(own?))?,
            Trick::Changed => change(random, &base.bytes),
            Trick::Damaged => damage(random, &base.bytes),
            Trick::Redirected | Trick::Repeated => base.bytes.clone(),
        };
        let any = SocketAddrV4::new(
            Ipv4Addr::new(10, 51, 0, random.u8(2..100)),
            random.u16(1_024..),
        );
        let from = match random.u8(..100) {
            0..60 => base.from,
            60..80 => self.roles[random.usize(..self.roles.len())],
            _ => any,
        };
        // Linux drops a packet with the receiver's own address as sender address.
        let from = if from.ip() == to.ip() { any } else { from };
        let kind = Header::kind_of(&bytes);
        let datagram = Datagram { from, to, bytes };
        Some(Shot {
            trick,
            kind,
            datagram,
        })
    }
}

/// Returns a number near the seen one, or any number.
fn near(random: &mut fastrand::Rng, seen: u64) -> u64 {
    match random.u8(..8) {
        0..4 => seen,
        4 => seen.wrapping_add(1),
        5 => seen.wrapping_add(random.u64(..1_000)),
        6 => seen.wrapping_sub(random.u64(..1_000)),
        _ => random.u64(..),
    }
}

fn near32(random: &mut fastrand::Rng, seen: u32) -> u32 {
    let number = near(random, seen.into());
    u32::try_from(number & u64::from(u32::MAX)).unwrap_or(0)
}

/// Makes a packet of any kind with the numbers of a seen packet. If the adversary has no key, the tag is the seen tag,
/// 0, or any number.
fn forge(random: &mut fastrand::Rng, base: &Datagram, own: Option<FrontKey>) -> Option<Vec<u8>> {
    let seen = Packet::parse(&base.bytes).ok()?;
    let kind = match random.u8(..4) {
        0 => seen.header.kind,
        _ => Kind::ALL[random.usize(..Kind::ALL.len())],
    };
    let header = Header {
        kind,
        epoch: near32(random, seen.header.epoch),
        device: near32(random, seen.header.device) % 5,
        session: near(random, seen.header.session),
        seq: near(random, seen.header.seq),
        order: near(random, seen.header.order),
        request: raw(near(random, seen.header.request.raw())),
        tag: match random.u8(..3) {
            0 => seen.header.tag,
            1 => 0,
            _ => random.u64(..),
        },
        ..seen.header
    }
    .for_payload(seen.payload);
    let header = match own {
        None => header,
        Some(key) => {
            let SessionKeys { to_head, to_client } = key.session(header.shard, random.u64(..));
            let key = if random.bool() { to_head } else { to_client };
            key.seal(&header, seen.payload)
        }
    };
    let mut bytes = Vec::with_capacity(HEADER_LEN + seen.payload.len());
    header.write(seen.payload, &mut bytes);
    // If the new packet equals the seen packet, it is not a forged packet.
    match bytes == base.bytes {
        true => Some(change(random, &bytes)),
        false => Some(bytes),
    }
}

/// A pattern of bits: the polynomial of CRC-32C, highest power first. If these bits of a payload are inverted, at any
/// place, the checksum does not change.
const UNNOTICED: u64 = 1 | 0x82f6_3b78 << 1;
/// Number of bytes that the pattern covers.
const UNNOTICED_BYTES: usize = 5;

/// Returns a changed packet with right checksums. Either one to four bytes of header, payload or tag differ, or the
/// payload differs and has the same checksum. Magic, version and lengths stay unchanged, so that the receiver still
/// takes the packet for a packet of pmnet.
fn change(random: &mut fastrand::Rng, packet: &[u8]) -> Vec<u8> {
    let mut bytes = packet.to_vec();
    if let Some(last) = bytes.len().checked_sub(HEADER_LEN + UNNOTICED_BYTES)
        && random.u8(..8) == 0
    {
        let at = HEADER_LEN + random.usize(..=last);
        for (byte, bits) in bytes[at..].iter_mut().zip(UNNOTICED.to_le_bytes()) {
            *byte ^= bits;
        }
        return bytes;
    }
    for change in 0..random.u8(1..=4) {
        let at = random.usize(3..bytes.len());
        let is_fixed = PAYLOAD_CRC_AT.contains(&at) || HEADER_CRC_AT.contains(&at);
        let is_length = (6..8).contains(&at) || (68..72).contains(&at);
        // If the chosen byte must stay unchanged, one bit of the tag is changed instead, at most once.
        let at = match is_fixed || is_length {
            false => at,
            true if change == 0 => TAG_AT.start,
            true => continue,
        };
        // A byte that was changed before is left alone, so that it does not get its old value again.
        if bytes[at] == packet[at] {
            bytes[at] ^= 1 << random.u8(..8);
        }
    }
    if let Some((header, payload)) = bytes.split_first_chunk_mut::<HEADER_LEN>() {
        header[PAYLOAD_CRC_AT].copy_from_slice(&crc32c::crc32c(payload).to_be_bytes());
        let covered = crc32c::crc32c(&header[..HEADER_CRC_AT.start]);
        let sum = crc32c::crc32c_append(covered, &header[TAG_AT]);
        header[HEADER_CRC_AT].copy_from_slice(&sum.to_be_bytes());
    }
    bytes
}

/// Changes bits and leaves the checksums, or cuts the packet. Magic and version stay.
fn damage(random: &mut fastrand::Rng, packet: &[u8]) -> Vec<u8> {
    let mut bytes = packet.to_vec();
    if random.bool() {
        bytes.truncate(random.usize(3..bytes.len()));
    } else {
        let at = random.usize(3..bytes.len());
        bytes[at] ^= 1 << random.u8(..8);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use pmnet_wire::{ClusterKey, Life, Reject};

    fn seen(kind: Kind, payload: &[u8]) -> Datagram {
        let keys = ClusterKey::new([1; 16]).hop(Life { shard: 0, token: 5 }, 1, 2);
        let header = keys.seal(&Header::new(kind).for_payload(payload), payload);
        let mut bytes = Vec::new();
        header.write(payload, &mut bytes);
        let at = |last| SocketAddrV4::new(Ipv4Addr::new(10, 51, 0, last), 51_000);
        Datagram {
            from: at(1),
            to: at(101),
            bytes,
        }
    }

    #[test]
    fn only_a_repeated_packet_verifies() {
        let mut random = fastrand::Rng::with_seed(7);
        let mut hoard = Hoard::default();
        let keys = ClusterKey::new([1; 16]).hop(Life { shard: 0, token: 5 }, 1, 2);
        for kind in Kind::ALL {
            hoard.keep(&mut random, seen(*kind, b"some payload"));
        }
        let stranger = ClusterKey::new([9; 16]);
        let field = Field {
            // Address of the client, from which the adversary's packets do not come.
            roles: vec![SocketAddrV4::new(Ipv4Addr::new(10, 51, 0, 9), 9)],
            own: stranger.front(stranger.front_id(b"other")),
        };
        let to = [101, 102].map(|last| SocketAddrV4::new(Ipv4Addr::new(10, 51, 0, last), 51_000));
        let mut made: BTreeMap<Trick, u32> = BTreeMap::new();
        for _ in 0..20_000 {
            let Some(shot) = field.shot(&mut random, &hoard, Tricks::All, &to) else {
                continue;
            };
            *made.entry(shot.trick).or_default() += 1;
            let packet = Packet::parse(&shot.datagram.bytes);
            let verifies = packet.is_ok_and(|packet| keys.verifies(&packet));
            match shot.trick {
                Trick::Repeated => assert!(verifies && shot.datagram.to == to[0]),
                Trick::Redirected => assert!(verifies && shot.datagram.to == to[1]),
                Trick::Damaged => assert!(packet.is_err()),
                // A changed packet can have a kind or a fragment number that does not exist.
                Trick::Changed => match packet {
                    Ok(_) => assert!(!verifies),
                    Err(reason) => assert!(matches!(reason, Reject::Kind | Reject::Fragment)),
                },
                Trick::Forged | Trick::Insider => assert!(!verifies),
            }
        }
        assert_eq!(made.len(), Trick::ALL.len(), "{made:?}");
    }
}
