//! Addresses and numbers that the machines of all targets share.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use pmnet_proto::{Outbox, Peer};
use pmnet_wire::{DATAGRAM_BYTES_MAX, Header, Packet, Reject};

/// Number of the shard.
pub const SHARD: u32 = 3;

/// Returns an address: that of a device by its number, 100 for the server, from 200 on for clients.
#[must_use]
pub fn peer(last: u8) -> Peer {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)), 51_000)
}

/// Returns the server's address.
#[must_use]
pub fn server() -> Peer {
    peer(100)
}

/// Returns the address of a client.
#[must_use]
pub fn client(number: u8) -> Peer {
    peer(200 + number)
}

/// Returns a datagram in the form in which its author writes it.
#[must_use]
pub fn datagram(header: &Header, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    header.write(payload, &mut bytes);
    bytes
}

/// Returns every packet of pmnet that a machine wants to send, parsed; foreign packets are left
/// out.
///
/// # Panics
/// If one of them is damaged or too large.
pub fn sent(out: &Outbox) -> impl Iterator<Item = (Peer, Packet<'_>)> {
    parsed(out.iter())
}

/// Returns the parsed packets of pmnet among these datagrams.
///
/// # Panics
/// If one of them is damaged or too large, as for [`sent`].
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
