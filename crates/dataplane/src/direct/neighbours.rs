//! By which queue, and under which Ethernet addresses, a peer is reached: as its own packets came.
//!
//! Invariants: bounded; what was not heard of for a while is forgotten, and goes by the kernel's stack, which finds out
//! where it is. May not: ask anybody.

use std::net::IpAddr;

use pmnet_proto::Time;
use pmnet_proto::time::{Nanos, SECOND};
use rustc_hash::FxHashMap;

use super::frame::{Came, Mac};

/// Peers that are known at the same time. Others go by the kernel's stack.
const NEIGHBOURS_MAX: usize = 4096;
/// After so long without a packet from it, a peer may be elsewhere.
const HEARD_MAX: Nanos = 10 * SECOND;

/// How a peer is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Neighbour {
    /// Index of the queue.
    pub queue: usize,
    /// Its Ethernet address, or that of the router in front of it.
    pub mac: Mac,
    /// Ours.
    pub own_mac: Mac,
    /// Our address, as the peer knows it.
    pub own: IpAddr,
}

/// All peers that are known.
#[derive(Debug, Default)]
pub(super) struct Neighbours {
    known: FxHashMap<IpAddr, (Neighbour, Time)>,
}

impl Neighbours {
    /// A packet came by this queue.
    pub fn learn(&mut self, now: Time, queue: usize, came: &Came) {
        let neighbour = Neighbour {
            queue,
            mac: came.mac_from,
            own_mac: came.mac_to,
            own: came.to,
        };
        if !self.known.contains_key(&came.from.ip()) && self.known.len() >= NEIGHBOURS_MAX {
            self.known
                .retain(|_, (_, heard)| now.since(*heard) < HEARD_MAX);
            if self.known.len() >= NEIGHBOURS_MAX {
                return;
            }
        }
        self.known.insert(came.from.ip(), (neighbour, now));
    }

    /// How to reach a peer; `None`: by the kernel's stack.
    pub fn find(&self, now: Time, peer: IpAddr) -> Option<Neighbour> {
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
            mac_from: [mac; 6],
            mac_to: [9; 6],
            hops: 64,
            datagram: 0..0,
        }
    }

    #[test]
    fn a_peer_is_where_it_was_heard_last() {
        let mut all = Neighbours::default();
        let peer = came(5, 0).from.ip();
        assert_eq!(all.find(Time(0), peer), None);
        all.learn(Time(0), 0, &came(5, 1));
        all.learn(Time(10), 1, &came(5, 2));
        let found = all.find(Time(20), peer).unwrap();
        assert_eq!((found.queue, found.mac, found.own_mac), (1, [2; 6], [9; 6]));
        assert_eq!(
            all.find(Time(10 + HEARD_MAX), peer),
            None,
            "silent too long"
        );
    }

    #[test]
    fn there_is_a_bound_and_the_silent_ones_make_room() {
        let mut all = Neighbours::default();
        let most = u32::try_from(NEIGHBOURS_MAX).unwrap();
        for last in 0..most + 5 {
            all.learn(Time(0), 0, &came(last, 1));
        }
        assert_eq!(all.known.len(), NEIGHBOURS_MAX);
        assert_eq!(all.find(Time(0), came(most, 1).from.ip()), None);
        all.learn(Time(HEARD_MAX), 0, &came(most, 1));
        assert_eq!(all.known.len(), 1);
    }
}
