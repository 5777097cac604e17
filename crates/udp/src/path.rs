//! The longest packets that the paths to peers carry (`docs/spec/protocol.md` §7).
//!
//! The system knows the MTU of the interface and of the route, and what routers on the path have reported (ICMP).
//! Asking the system for each packet would cost too much. So it is asked once in a while, and after each packet that
//! was too long.

use crate::Socket;
use pmnet_proto::time::{MILLISECOND, Nanos, SECOND};
use pmnet_proto::{FragmentSize, Peer, Time};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

/// Time between two questions to the system.
const LOOK_EVERY: Nanos = SECOND;
/// Time between two questions as long as packets are too long.
const LOOK_AGAIN: Nanos = 50 * MILLISECOND;
/// Time between two log messages about packets that are too long.
const TELL_EVERY: Nanos = 5 * SECOND;
const MTU_MIN: usize = FragmentSize::MTU_MIN;

/// Returns the length in bytes, with the IP header, of the longest IP packet that the path to this address carries, as
/// far as the system knows.
///
/// # Errors
/// The system has no route to this address, or cannot give a socket.
pub fn path_mtu(to: Peer) -> io::Result<usize> {
    let ip = to.ip().to_canonical();
    let any: IpAddr = if ip.is_ipv4() {
        Ipv4Addr::UNSPECIFIED.into()
    } else {
        Ipv6Addr::UNSPECIFIED.into()
    };
    let socket = UdpSocket::bind((any, 0))?;
    let mut to = to;
    to.set_ip(ip);
    // A UDP connect sends no packet: it only looks up the route.
    socket.connect(to)?;
    let mtu = if ip.is_ipv4() {
        rustix::net::sockopt::ip_mtu(&socket)?
    } else {
        rustix::net::sockopt::ipv6_mtu(&socket)?
    };
    Ok(usize::try_from(mtu).unwrap_or(usize::MAX))
}

/// The paths of a socket to the peers to which it sends most.
#[derive(Debug)]
pub struct Paths {
    /// The maximum size, even if the system reports a larger one.
    most: FragmentSize,
    size: Option<FragmentSize>,
    peers: Vec<Peer>,
    next_look: Time,
    looked: Time,
    /// Number of the socket's packets that were too long, at the last question. The next field has this number at the
    /// last message about such packets, and the time of that message.
    fragmented: u64,
    told: (u64, Option<Time>),
    /// The MTU that was last reported as too small.
    too_small: Option<usize>,
}

impl Paths {
    /// Returns an empty set of paths. `most` is the maximum size, which the operator has set.
    #[must_use]
    pub const fn new(most: FragmentSize) -> Paths {
        Paths {
            most,
            size: None,
            peers: Vec::new(),
            next_look: Time(0),
            looked: Time(0),
            fragmented: 0,
            told: (0, None),
            too_small: None,
        }
    }

    /// Returns whether the system must be asked. If so, the caller must call [`Paths::look`] with the peers.
    #[must_use]
    pub fn is_due(&self, now: Time, socket: &Socket) -> bool {
        now >= self.next_look
            || (socket.counters().fragmented != self.fragmented
                && now.since(self.looked) >= LOOK_AGAIN)
    }

    /// Returns whether the last question to the system was also about this peer.
    #[must_use]
    pub fn knows(&self, peer: Peer) -> bool {
        self.peers.contains(&peer)
    }

    /// Returns the largest fragments that the path to this peer carries, as far as the system knows.
    #[must_use]
    pub fn glance(&self, peer: Peer) -> FragmentSize {
        let ipv6 = peer.ip().to_canonical().is_ipv6();
        let size = path_mtu(peer).map_or(FragmentSize::MAX, |mtu| FragmentSize::of_mtu(mtu, ipv6));
        size.min(self.most)
    }

    /// Asks the system for the paths to these peers, and returns the smallest size of all paths. From now on this
    /// socket sends longer packets to these peers as IP fragments. So packets that were already cut to a larger size
    /// are not lost. `own`: the address of the interface for incoming packets, with the size that it carries.
    pub fn look(
        &mut self,
        now: Time,
        socket: &mut Socket,
        peers: impl IntoIterator<Item = Peer>,
        own: Option<(Peer, usize)>,
    ) -> FragmentSize {
        self.looked = now;
        self.next_look = now + LOOK_EVERY;
        self.peers.clear();
        self.peers.extend(peers);
        let mut least = (self.most, None);
        let mut limits = Vec::new();
        // Without a route the size is unknown; but then no packet can be sent at all.
        let asked = self.peers.iter();
        let asked = asked.filter_map(|peer| Some((*peer, path_mtu(*peer).ok()?, true)));
        let own = own.map(|(address, mtu)| (address, mtu, false));
        for (peer, mtu, is_sent_to) in asked.chain(own) {
            let ipv6 = peer.ip().to_canonical().is_ipv6();
            let size = FragmentSize::of_mtu(mtu, ipv6).min(self.most);
            if is_sent_to {
                limits.push((peer, size));
            }
            if size < least.0 || mtu < MTU_MIN {
                least = (size, Some((peer, mtu)));
            }
        }
        socket.set_limits(limits);
        self.tell(now, socket, least);
        least.0
    }

    fn tell(
        &mut self,
        now: Time,
        socket: &Socket,
        (size, path): (FragmentSize, Option<(Peer, usize)>),
    ) {
        let before = self.size.replace(size);
        let shrank = before.is_some_and(|before| size < before);
        if let Some((peer, mtu)) = path.filter(|_| before != Some(size)) {
            if shrank {
                tracing::warn!(
                    %peer, mtu, fragment = size.bytes(),
                    "PM6002 the path to {peer}, or through it, carries less than before: packets of {mtu} bytes. What begins from now on is cut into \
                     smaller packets; what is under way, or in a log, is sent as IP fragments"
                );
            } else {
                tracing::info!(
                    %peer, mtu, fragment = size.bytes(),
                    "the path to {peer}, or through it, carries packets of {mtu} bytes, so a packet has {size} bytes of a message"
                );
            }
        }
        let too_small = path.map(|(_, mtu)| mtu).filter(|mtu| *mtu < MTU_MIN);
        if let Some((peer, mtu)) =
            path.filter(|_| too_small != self.too_small && too_small.is_some())
        {
            tracing::warn!(
                %peer, mtu,
                "PM6003 the path to {peer}, or through it, carries packets of {mtu} bytes only, and pmnet needs {MTU_MIN}: larger ones are sent as IP \
                 fragments, which is slow, and they are lost where a router drops IP fragments. Set a larger MTU"
            );
        }
        self.too_small = too_small;
        self.fragmented = socket.counters().fragmented;
        let (known, at) = self.told;
        if self.fragmented > known && at.is_none_or(|at| now.since(at) >= TELL_EVERY) {
            tracing::warn!(
                packets = self.fragmented - known,
                "PM6004 packets were longer than their path carries, and were sent as IP fragments. Did an MTU change, or does a \
                 peer of an earlier version send them?"
            );
            self.told = (self.fragmented, Some(now));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_carries_the_largest_fragments() {
        for address in ["127.0.0.1:9", "[::1]:9", "[::ffff:127.0.0.1]:9"] {
            let peer: Peer = address.parse().unwrap();
            assert!(path_mtu(peer).unwrap() >= 16_384, "{peer}");
        }
        let mut socket = Socket::bind("127.0.0.1:0".parse().unwrap(), false).unwrap();
        let mut paths = Paths::new(FragmentSize::MAX);
        assert!(paths.is_due(Time(0), &socket));
        let peer = "127.0.0.1:9".parse().unwrap();
        let size = paths.look(Time(0), &mut socket, [peer], None);
        assert_eq!(size, FragmentSize::MAX);
        assert!(paths.knows(peer) && !paths.is_due(Time(SECOND - 1), &socket));
        assert!(paths.is_due(Time(SECOND), &socket));
        // The operator's setting takes precedence.
        let small = FragmentSize::of_mtu(1400, false);
        let size = Paths::new(small).look(Time(0), &mut socket, [peer], None);
        assert_eq!(size, small);
        // The packets of other peers arrive at an interface with a smaller size, so this size counts.
        let own = Some((peer, 1400));
        assert_eq!(paths.look(Time(0), &mut socket, [peer], own), small);
    }
}
