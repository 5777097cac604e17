//! Test benches. Each test bench holds one machine. The test gives packets to the machine and takes the packets that
//! the machine sends, as values, without sockets.

pub mod client;
pub mod device;
pub mod server;

use pmnet_proto::time::MILLISECOND;
use pmnet_proto::{Outbox, Peer, Time};
use pmnet_wire::{Flags, Header, Kind, Packet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

pub const SHARD: u32 = 3;
pub const EPOCH: u32 = 4;
/// Id of the session that the benches open: the order of its OPEN.
pub const SESSION: u64 = 1;
/// Token of the session that the benches open.
pub const TOKEN: u64 = 0x70ce_0002;
pub const SHARD_TOKEN: u64 = 0x5a4d_0001;

/// A packet that a machine sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    pub to: Peer,
    pub header: Header,
    pub payload: Vec<u8>,
}

impl Sent {
    pub fn is(&self, kind: Kind, flags: Flags) -> bool {
        (self.header.kind, self.header.flags) == (kind, flags)
    }
}

/// An address. Small numbers are addresses of devices.
pub fn peer(last: u8) -> Peer {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)), 51_000)
}

pub fn ms(count: u64) -> Time {
    Time(count * MILLISECOND)
}

/// The packets that the machine wants sent, as their receivers parse them.
pub fn take(out: &mut Outbox) -> Vec<Sent> {
    let sent = out
        .iter()
        .map(|(to, bytes)| {
            let packet = Packet::parse(bytes).expect("machines send whole packets");
            Sent {
                to,
                header: packet.header,
                payload: packet.payload.to_vec(),
            }
        })
        .collect();
    out.clear();
    sent
}

/// The only packet of the list.
#[track_caller]
pub fn only(mut sent: Vec<Sent>) -> Sent {
    assert_eq!(sent.len(), 1, "one packet expected: {sent:#?}");
    sent.remove(0)
}

pub fn kinds(sent: &[Sent]) -> Vec<Kind> {
    sent.iter().map(|sent| sent.header.kind).collect()
}

pub fn seqs(sent: &[Sent]) -> Vec<u64> {
    sent.iter().map(|sent| sent.header.seq).collect()
}

pub fn datagram(header: &Header, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    header.write(payload, &mut bytes);
    bytes
}
