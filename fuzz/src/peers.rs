//! Addresses and numbers that the machines of all targets share.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use pmnet_proto::{Outbox, Peer};
use pmnet_wire::{DATAGRAM_BYTES_MAX, Header, Packet, Reject};

/// The shard.
pub const SHARD: u32 = 3;

/// An address; devices have their number, the server 100, clients begin at 200.
#[must_use]
pub fn peer(last: u8) -> Peer {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)), 51_000)
}

/// The server's address.
#[must_use]
pub fn server() -> Peer {
    peer(100)
}

/// The address of a client.
#[must_use]
pub fn client(number: u8) -> Peer {
    peer(200 + number)
}

/// A datagram as its author would write it.
#[must_use]
pub fn datagram(header: &Header, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    header.write(payload, &mut bytes);
    bytes
}

/// Every packet of ours that a machine wants sent, parsed; others pass through it.
///
/// # Panics
/// If one of them is damaged, or is larger than a packet may be.
pub fn sent(out: &Outbox) -> impl Iterator<Item = (Peer, Packet<'_>)> {
    parsed(out.iter())
}

/// The same for datagrams.
///
/// # Panics
/// As [`sent`].
pub fn parsed<'a>(
    datagrams: impl Iterator<Item = (Peer, &'a [u8])>,
) -> impl Iterator<Item = (Peer, Packet<'a>)> {
    datagrams.filter_map(|(to, bytes)| {
        assert!(bytes.len() <= DATAGRAM_BYTES_MAX, "{} bytes", bytes.len());
        match Packet::parse(bytes) {
            Ok(packet) => Some((to, packet)),
            Err(reason) => {
                assert_eq!(reason, Reject::Foreign, "machines send whole packets");
                None
            }
        }
    })
}
