//! The server behind a chain, and clients with their sessions: as much of them as devices can see.

use std::collections::BTreeMap;

use fastrand::Rng;
use pmnet_proto::Peer;
use pmnet_wire::record::{Member, RecoverReply, SessionRow, read_path};
use pmnet_wire::{Header, Kind, Packet};

use crate::world::{SHARD, SHARD_TOKEN};

pub struct ServerSide {
    /// Raised now and then, as if the chain changed.
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
            request: 1_000,
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
                    ..self.header(Kind::RecoverReply)
                };
                Some((reply, payload.write()))
            }
            Kind::Append if header.order == self.applied + 1 => {
                self.applied += 1;
                match Kind::from_u8(header.copies).unwrap() {
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
                    request: header.order - 1,
                    ..self.header(Kind::Retrans)
                };
                Some((ask, Vec::new()))
            }
            // The answer to a late packet of an earlier epoch.
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
    /// Highest seq sent, acknowledged.
    pub sent: u64,
    pub acked: u64,
    /// It has sent its END, with seq `sent`.
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
