//! The clients whose TLS handshake is under way. The front and the router have one `Shaking` each.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use pmnet_udp::place_for;

/// Maximum number of clients whose TLS handshake is under way.
const HANDSHAKES_MAX: usize = 256;

/// The clients whose TLS handshake is under way, in the order in which they connected.
#[derive(Default)]
pub(crate) struct Shaking {
    /// Seat and address of each client, by the client's id. A later client has a higher id.
    clients: BTreeMap<u64, (usize, SocketAddr)>,
}

impl Shaking {
    /// Notes that the handshake of the client with this id, at this seat, begins.
    pub(crate) fn begins(&mut self, id: u64, index: usize, peer: SocketAddr) {
        self.clients.insert(id, (index, peer));
    }

    /// Notes that this client's handshake is over, or that the client is closed.
    pub(crate) fn ends(&mut self, id: u64) {
        self.clients.remove(&id);
    }

    /// Returns whether a new handshake may begin if there are `clients` clients of at most `clients_max`. If a new
    /// handshake finds no place, the oldest client of the host with the most handshakes must be closed first. So one
    /// host cannot keep other hosts out. If the new client's own host has the most handshakes, the new client is
    /// refused, because the host's earlier handshakes shall end first.
    pub(crate) fn admits(&self, newcomer: IpAddr, clients: usize, clients_max: usize) -> Admits {
        let begun = self.clients.len();
        let no_seat = clients >= clients_max && begun * 2 >= clients_max;
        // Without TLS there is no handshake.
        if begun == 0 || begun < HANDSHAKES_MAX && !no_seat {
            return Admits::Yes;
        }
        let hosts = self.clients.values().map(|(_, peer)| peer.ip());
        let at = place_for(newcomer, hosts);
        let chosen = at.and_then(|at| self.clients.values().nth(at).copied());
        chosen.map_or(Admits::No, |(index, peer)| Admits::InPlaceOf(index, peer))
    }
}

/// Whether the handshake of a new client may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admits {
    /// The new handshake may begin.
    Yes,
    /// The new handshake may begin after the client with this seat and this address is closed.
    InPlaceOf(usize, SocketAddr),
    /// The new handshake may not begin.
    No,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_with_most_handshakes_makes_room_for_others() {
        let peer = |host: &str, port: u64| {
            let port = u16::try_from(port).expect("a port");
            SocketAddr::new(host.parse().expect("an address"), port)
        };
        let mut shaking = Shaking::default();
        let admits = |shaking: &Shaking, host: &str, clients, clients_max| match shaking.admits(
            host.parse().expect("an address"),
            clients,
            clients_max,
        ) {
            Admits::InPlaceOf(index, peer) => Some((index, peer.port())),
            Admits::Yes => None,
            Admits::No => Some((usize::MAX, 0)),
        };
        let (most, one, other) = ("10.0.0.9", "10.0.0.1", "10.0.0.2");
        shaking.begins(1, 7, peer(one, 1));
        for id in 2..=256 {
            assert_eq!(admits(&shaking, other, 256, 10_000), None, "{id}");
            let index = usize::try_from(1000 - id).expect("an index");
            shaking.begins(id, index, peer(most, id));
        }
        assert_eq!(admits(&shaking, other, 256, 10_000), Some((998, 2)));
        assert_eq!(admits(&shaking, one, 256, 10_000), Some((998, 2)));
        let refused = Some((usize::MAX, 0));
        assert_eq!(admits(&shaking, most, 256, 10_000), refused);
        shaking.ends(2);
        assert_eq!(admits(&shaking, other, 9_999, 10_000), None);
        // No seat is left, and clients in their handshake have half of the seats.
        assert_eq!(admits(&shaking, other, 509, 510), None);
        assert_eq!(admits(&shaking, other, 510, 510), Some((997, 3)));
        assert_eq!(admits(&shaking, other, 511, 511), None);
    }
}
