//! Remembers the address by which each peer knows this machine, for a socket that is bound to all addresses.
//!
//! A peer gets answers from the address to which it sent last. Otherwise the answers would carry the address that the
//! routes prefer, and a client that asked another address would drop them.

use std::collections::HashMap;
use std::net::IpAddr;

use pmnet_proto::Peer;

/// Maximum number of peers that are remembered. One peer more, and all are forgotten. That is harmless: a packet of a
/// peer comes before each answer to it.
const PEERS_MAX: usize = 65_536;

/// For each peer, the address of this machine that the peer uses.
#[derive(Debug, Default)]
pub(crate) struct KnownAs {
    addresses: HashMap<Peer, IpAddr>,
    /// The peer that was heard last, with its address. (Most packets come in bursts of one peer.)
    last: Option<(Peer, IpAddr)>,
}

impl KnownAs {
    /// Notes that a packet from this peer came to this address.
    pub(crate) fn heard(&mut self, from: Peer, at: IpAddr) {
        if self.last == Some((from, at)) {
            return;
        }
        let usable = match at.to_canonical() {
            IpAddr::V4(at) => !(at.is_broadcast() || at.is_multicast() || at.is_unspecified()),
            IpAddr::V6(at) => !(at.is_multicast() || at.is_unspecified()),
        };
        if !usable {
            return;
        }
        self.last = Some((from, at));
        if self.addresses.len() >= PEERS_MAX && !self.addresses.contains_key(&from) {
            self.addresses.clear();
        }
        self.addresses.insert(from, at);
    }

    /// Returns the address from which this peer must be answered. `None`: no packet of this peer is known.
    pub(crate) fn to(&self, peer: Peer) -> Option<IpAddr> {
        match self.last {
            Some((last, at)) if last == peer => Some(at),
            _ => self.addresses.get(&peer).copied(),
        }
    }

    /// Forgets the address for this peer, because nothing can be sent from that address: it was the address of a
    /// network, or it has been removed.
    pub(crate) fn forget(&mut self, peer: Peer) {
        self.addresses.remove(&peer);
        self.last = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_that_was_heard_last_counts_and_not_all_are_remembered() {
        let peer = |port: u16, last: u8| Peer::from(([10, 0, 0, last], port));
        let (one, other) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let mut known = KnownAs::default();
        assert_eq!(known.to(peer(1, 9)), None);
        known.heard(peer(1, 9), one);
        known.heard(peer(2, 9), other);
        assert_eq!(
            (known.to(peer(1, 9)), known.to(peer(2, 9))),
            (Some(one), Some(other))
        );
        known.heard(peer(1, 9), other);
        assert_eq!(known.to(peer(1, 9)), Some(other));
        for none in ["255.255.255.255", "224.0.0.1", "0.0.0.0", "ff02::1", "::"] {
            known.heard(peer(1, 9), none.parse().unwrap());
        }
        assert_eq!(known.to(peer(1, 9)), Some(other));
        known.forget(peer(1, 9));
        assert_eq!(known.to(peer(1, 9)), None);
        for port in 0..=u16::MAX {
            known.heard(peer(port, 8), one);
        }
        known.heard(peer(7, 7), one);
        assert!(known.addresses.len() <= PEERS_MAX);
        assert_eq!(known.to(peer(7, 7)), Some(one));
    }
}
