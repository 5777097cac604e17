//! The clients whose TLS handshake is under way. The front has one such list, and the router has one.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use pmnet_udp::place_to_give_up;

/// Most clients whose TLS handshake is under way.
const HANDSHAKES_MAX: usize = 256;

/// The clients whose TLS handshake is under way, in the order in which they connected.
#[derive(Default)]
pub(crate) struct Shaking {
    /// Seat and address of each client, by the client's id. A later client has a higher id.
    clients: BTreeMap<u64, (usize, SocketAddr)>,
}

impl Shaking {
    /// Notes a client whose handshake begins. It has this id and this seat.
    pub(crate) fn begins(&mut self, id: u64, index: usize, peer: SocketAddr) {
        self.clients.insert(id, (index, peer));
    }

    /// Notes that this client's handshake is over, or that the client is closed.
    pub(crate) fn ends(&mut self, id: u64) {
        self.clients.remove(&id);
    }

    /// If no further handshake may begin, returns the seat and the address of the client that makes room: the oldest one
    /// of the host that has the most in this list. So one host cannot keep the others out. Of the front's
    /// `connections_max` places, handshakes may take one half.
    pub(crate) fn to_give_up(&self, connections_max: usize) -> Option<(usize, SocketAddr)> {
        if self.clients.len() < HANDSHAKES_MAX.min(connections_max.div_ceil(2)) {
            return None;
        }
        let at = place_to_give_up(self.clients.values().map(|(_, peer)| peer.ip()))?;
        self.clients.values().nth(at).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_with_most_handshakes_makes_room() {
        let peer = |host: &str, port: u64| {
            let port = u16::try_from(port).expect("a port");
            SocketAddr::new(host.parse().expect("an address"), port)
        };
        let mut shaking = Shaking::default();
        let gives_up = |shaking: &Shaking, connections_max| {
            let it = shaking.to_give_up(connections_max);
            it.map(|(index, peer)| (index, peer.port()))
        };
        assert_eq!(gives_up(&shaking, 0), None);
        shaking.begins(1, 7, peer("10.0.0.1", 1));
        for id in 2..=256 {
            assert_eq!(gives_up(&shaking, 10_000), None, "{id}");
            let index = usize::try_from(1000 - id).expect("an index");
            shaking.begins(id, index, peer("10.0.0.9", id));
        }
        assert_eq!(gives_up(&shaking, 10_000), Some((998, 2)));
        shaking.ends(2);
        assert_eq!(gives_up(&shaking, 10_000), None);
        assert_eq!(gives_up(&shaking, 511), None);
        assert_eq!(gives_up(&shaking, 510), Some((997, 3)));
    }
}
