//! The server after a chain, and clients with their sessions: only the parts that devices can see.

use std::collections::{BTreeMap, HashMap};

use fastrand::Rng;
use pmnet_proto::Peer;
use pmnet_wire::record::{Member, RecoverReply, SessionRow, read_path};
use pmnet_wire::{Flags, Header, Kind, Packet, raw};

use crate::world::{SHARD, SHARD_TOKEN};

pub struct ServerSide {
    /// The epoch, which sometimes rises as if the chain had changed.
    pub epoch: u32,
    pub applied: u64,
    pub sessions: BTreeMap<u64, (u64, u64)>,
    pub members: Vec<Member>,
    pub payloads: Vec<(u64, u64, Vec<u8>)>,
}

impl ServerSide {
    pub fn header(&self, kind: Kind) -> Header {
        Header {
            shard: SHARD,
            epoch: self.epoch,
            order: self.applied,
            request: raw(1_000),
            tag: SHARD_TOKEN,
            ..Header::new(kind)
        }
    }

    pub fn receive(&mut self, packet: &Packet<'_>) -> Option<(Header, Vec<u8>)> {
        let header = packet.header;
        if header.kind != Kind::Recover && header.epoch < self.epoch {
            return Some((self.header(Kind::StaleEpoch), Vec::new()));
        }
        match header.kind {
            Kind::Recover => {
                let origin = read_path(packet.payload).unwrap()[0];
                let member = self
                    .members
                    .iter_mut()
                    .find(|member| member.device == origin.device)
                    .unwrap();
                (member.incarnation, member.served) = (origin.incarnation, origin.served);
                let rows = self.sessions.iter();
                let rows = rows.map(|(&session, &(token, last_seq))| SessionRow {
                    session,
                    last_seq,
                    token,
                    front: None,
                });
                let payload = RecoverReply {
                    shard_token: SHARD_TOKEN,
                    members: self.members.clone(),
                    sessions: rows.collect(),
                };
                let reply = Header {
                    device: header.device,
                    incarnation: header.incarnation,
                    request: header.request,
                    flags: Flags::READS,
                    ..self.header(Kind::RecoverReply)
                };
                Some((reply, payload.write()))
            }
            Kind::Append if header.order == self.applied + 1 => {
                self.applied += 1;
                match Kind::from_u8(header.copies.raw()).unwrap() {
                    Kind::Open => {
                        let token = u64::from_be_bytes(packet.payload.try_into().unwrap());
                        self.sessions.insert(header.session, (token, 0));
                    }
                    Kind::End => {
                        let (_, last) = self
                            .sessions
                            .remove(&header.session)
                            .expect("of a known session");
                        assert_eq!(last + 1, header.seq);
                    }
                    Kind::Update => {
                        let session = self
                            .sessions
                            .get_mut(&header.session)
                            .expect("of a known session");
                        assert_eq!(session.1 + 1, header.seq, "each session's order holds");
                        session.1 = header.seq;
                        self.payloads
                            .push((header.session, header.seq, packet.payload.to_vec()));
                    }
                    other => panic!("{other:?}"),
                }
                None
            }
            Kind::Append if header.order > self.applied => {
                let ask = Header {
                    order: self.applied + 1,
                    request: raw(header.order - 1),
                    ..self.header(Kind::Retrans)
                };
                Some((ask, Vec::new()))
            }
            // These are answers to late packets of an earlier epoch.
            Kind::Bypass | Kind::StaleEpoch => None,
            Kind::Append | Kind::Ping => Some((self.header(Kind::Applied), Vec::new())),
            other => panic!("{other:?} to the server"),
        }
    }
}

#[derive(Debug)]
pub struct Session {
    pub address: Peer,
    pub token: u64,
    pub id: Option<u64>,
    /// Highest seq that was sent, and highest seq that was acknowledged.
    pub sent: u64,
    pub acked: u64,
    /// The session has sent its END, with seq `sent`.
    pub ending: bool,
}

pub fn payload(token: u64, seq: u64) -> Vec<u8> {
    let mut rng = Rng::with_seed(token.wrapping_mul(31) ^ seq);
    let len = if rng.u8(..12) == 0 {
        rng.usize(..=pmnet_wire::FRAGMENT_BYTES)
    } else {
        rng.usize(..120)
    };
    (0..len).map(|_| rng.u8(..)).collect()
}

/// Number of different hashes that the keys of updates have.
pub const KEYS: u64 = 5;

/// Returns the hash of an update's key; 0: unknown.
pub fn key(token: u64, seq: u64) -> u64 {
    let mut rng = Rng::with_seed(token.wrapping_mul(17) ^ seq);
    match rng.u8(..16) {
        0 => 0,
        _ => rng.u64(1..=KEYS),
    }
}

/// A READ, and the updates that its reader must see, because they were acknowledged earlier: the number of updates of
/// its key, and the number of updates of unknown keys.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    pub key: u64,
    pub known: usize,
    pub known_unknown: usize,
}

/// The clients' knowledge of updates, and the answers to their READs.
#[derive(Default)]
pub struct Reads {
    /// Acknowledged updates by key, as session and seq.
    acked: BTreeMap<u64, Vec<(u64, u64)>>,
    asked: Vec<Asked>,
    /// Each answer: the READ, the order, and for a HIT the checksum of the value that was shown.
    answers: Vec<(Asked, u64, Option<u32>)>,
}

impl Reads {
    /// Notes that an update was acknowledged.
    pub fn acked(&mut self, session: u64, token: u64, seq: u64) {
        let list = self.acked.entry(key(token, seq)).or_default();
        list.push((session, seq));
    }

    /// Sends a READ for this key. Returns the id of the READ.
    pub fn ask(&mut self, key: u64) -> u64 {
        let known = |key| self.acked.get(&key).map_or(0, Vec::len);
        self.asked.push(Asked {
            key,
            known: known(key),
            known_unknown: known(0),
        });
        self.asked.len().try_into().unwrap()
    }

    /// Notes a HIT or a MISS.
    pub fn answer(&mut self, header: &Header) {
        let at = usize::try_from(header.request.raw()).unwrap() - 1;
        let shown = (header.kind == Kind::Hit).then_some(header.payload_crc);
        self.answers.push((self.asked[at], header.order, shown));
    }

    /// Checks that each reader saw all updates that were acknowledged before its READ, and got the value of the stated
    /// order. Returns the numbers of HITs and of MISSes.
    pub fn check(
        &self,
        orders: &HashMap<(u64, u64), u64>,
        identities: &HashMap<u64, (u64, u64, u32, u8)>,
        tokens: &BTreeMap<u64, u64>,
    ) -> (usize, usize) {
        for &(asked, order, shown) in &self.answers {
            let list = |key, known| self.acked.get(&key).into_iter().flatten().take(known);
            let before = list(asked.key, asked.known).chain(list(0, asked.known_unknown));
            for update in before {
                let needed = orders[update];
                assert!(
                    needed <= order,
                    "{asked:?}: {update:?} has order {needed}, but the answer is {order}, {shown:?}"
                );
            }
            if let Some(crc) = shown {
                let (session, seq, payload_crc, _) = identities[&order];
                assert_eq!(payload_crc, crc, "{asked:?} at {order}");
                assert_eq!(key(tokens[&session], seq), asked.key, "at {order}");
            }
        }
        let hits = self.answers.iter().filter(|answer| answer.2.is_some());
        let hits = hits.count();
        (hits, self.answers.len() - hits)
    }
}
