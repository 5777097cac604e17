//! For each peer, the queue and the Ethernet addresses for packets to it, learned from the peer's own packets.
//!
//! Invariants: the table is bounded. The table learns only from accepted packets that say something new, because any
//! host that sees a sealed packet can repeat it from another Ethernet address. If a peer has sent no packet for a
//! while, packets to it are sent through the kernel's stack, which resolves the peer's address. This module must not
//! send packets.

use std::net::{IpAddr, SocketAddr};

use pmnet_proto::time::{Nanos, SECOND};
use pmnet_proto::{Peer, Time};
use rustc_hash::FxHashMap;

use super::frame::{Came, Mac};

/// Maximum number of known peers. Packets to other peers are sent through the kernel's stack.
const NEIGHBOURS_MAX: usize = 4096;
/// Time without a packet after which the peer's path counts as unknown, because the peer may have moved. The kernel's
/// stack knows the new path, but a packet through the stack must be copied.
const HEARD_MAX: Nanos = SECOND;

/// The path to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Neighbour {
    /// Index of the queue.
    pub queue: usize,
    /// Ethernet address of the peer, or of the router on the path to the peer.
    pub mac: Mac,
    /// Our Ethernet address on this path.
    pub own_mac: Mac,
    /// Our IP address, as the peer knows it.
    pub own: IpAddr,
}

impl Neighbour {
    fn of(queue: usize, came: &Came) -> Neighbour {
        Neighbour {
            queue,
            mac: came.mac_from,
            own_mac: came.mac_to,
            own: came.to,
        }
    }
}

/// All peers that are known.
#[derive(Debug, Default)]
pub(super) struct Neighbours {
    known: FxHashMap<SocketAddr, (Neighbour, Time)>,
}

impl Neighbours {
    /// Learns a peer from an accepted packet that came through this queue. Ignores addresses that no peer can have.
    pub fn learn(&mut self, now: Time, queue: usize, came: &Came) {
        let (from, to) = (came.from.ip(), came.to);
        let nobody =
            from.is_loopback() || from.is_unspecified() || from.is_multicast() || from == to;
        let group = |mac: &Mac| mac[0] & 1 != 0;
        if nobody || group(&came.mac_from) || group(&came.mac_to) {
            return;
        }
        if !self.known.contains_key(&came.from) && self.known.len() >= NEIGHBOURS_MAX {
            self.known
                .retain(|_, (_, heard)| now.since(*heard) < HEARD_MAX);
            if self.known.len() >= NEIGHBOURS_MAX {
                return;
            }
        }
        self.known
            .insert(came.from, (Neighbour::of(queue, came), now));
    }

    /// Processes a packet that may be a repetition. If the packet came by the known path of its sender, this path stays
    /// valid.
    pub fn confirm(&mut self, now: Time, queue: usize, came: &Came) {
        if let Some((neighbour, heard)) = self.known.get_mut(&came.from)
            && *neighbour == Neighbour::of(queue, came)
        {
            *heard = now;
        }
    }

    /// Returns the path to a peer. `None`: the packet must be sent through the kernel's stack.
    pub fn find(&self, now: Time, peer: Peer) -> Option<Neighbour> {
        self.known
            .get(&peer)
            .filter(|(_, heard)| now.since(*heard) < HEARD_MAX)
            .map(|(neighbour, _)| *neighbour)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn came(last: u32, mac: u8) -> Came {
        Came {
            from: format!(
                "10.{}.{}.{}:7",
                last >> 16 & 255,
                last >> 8 & 255,
                last & 255
            )
            .parse()
            .unwrap(),
            to: "10.255.0.1".parse().unwrap(),
            mac_from: [mac * 2; 6],
            mac_to: [8; 6],
            hops: 64,
            datagram: 0..0,
        }
    }

    #[test]
    fn a_peer_is_where_it_was_heard_last() {
        let mut all = Neighbours::default();
        let peer = came(5, 0).from;
        assert_eq!(all.find(Time(0), peer), None);
        all.learn(Time(0), 0, &came(5, 1));
        all.learn(Time(10), 1, &came(5, 2));
        let found = all.find(Time(20), peer).unwrap();
        assert_eq!((found.queue, found.mac, found.own_mac), (1, [4; 6], [8; 6]));
        assert_eq!(
            all.find(Time(10 + HEARD_MAX), peer),
            None,
            "silent too long"
        );
    }

    #[test]
    fn a_repetition_moves_nobody() {
        let mut all = Neighbours::default();
        let (peer, known, moved) = (came(5, 0).from, came(5, 1), came(5, 2));
        all.confirm(Time(0), 0, &moved);
        assert_eq!(all.find(Time(0), peer), None, "from the unknown");
        all.learn(Time(0), 0, &known);
        for at in [1, HEARD_MAX / 2, HEARD_MAX - 1] {
            all.confirm(Time(at), 0, &moved);
            assert_eq!(all.find(Time(at), peer).unwrap().mac, known.mac_from);
        }
        assert_eq!(
            all.find(Time(HEARD_MAX), peer),
            None,
            "a repetition is no sign of life"
        );
        all.confirm(Time(HEARD_MAX), 0, &known);
        assert_eq!(all.find(Time(HEARD_MAX), peer).unwrap().mac, known.mac_from);
        all.learn(Time(HEARD_MAX), 0, &moved);
        assert_eq!(all.find(Time(HEARD_MAX), peer).unwrap().mac, moved.mac_from);
    }

    #[test]
    fn addresses_that_nobody_has_are_not_believed() {
        let mut all = Neighbours::default();
        for from in [
            "127.0.0.1:7",
            "0.0.0.0:7",
            "224.0.0.1:7",
            "10.255.0.1:7",
            "[::1]:7",
        ] {
            let from = from.parse().unwrap();
            all.learn(Time(0), 0, &Came { from, ..came(1, 1) });
            assert_eq!(all.find(Time(0), from), None, "{from}");
        }
        let group = [255; 6];
        for (mac_from, mac_to) in [(group, [8; 6]), ([2; 6], group)] {
            let forged = Came {
                mac_from,
                mac_to,
                ..came(1, 1)
            };
            all.learn(Time(0), 0, &forged);
        }
        assert_eq!(all.known.len(), 0);
        // A packet from another port of the same computer says nothing about this port.
        all.learn(Time(0), 0, &came(1, 1));
        let mut other = came(1, 1).from;
        other.set_port(8);
        assert_eq!(all.find(Time(0), other), None);
    }

    #[test]
    fn there_is_a_bound_and_the_silent_ones_make_room() {
        let mut all = Neighbours::default();
        let most = u32::try_from(NEIGHBOURS_MAX).unwrap();
        for last in 0..most + 5 {
            all.learn(Time(0), 0, &came(last, 1));
        }
        assert_eq!(all.known.len(), NEIGHBOURS_MAX);
        assert_eq!(all.find(Time(0), came(most, 1).from), None);
        all.learn(Time(HEARD_MAX), 0, &came(most, 1));
        assert_eq!(all.known.len(), 1);
    }
}
