//! The headers before a datagram: Ethernet, IPv4 or IPv6, UDP or TCP.
//!
//! This module must not read the bytes after the headers.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use etherparse::{
    EtherType, Ethernet2Header, IpNumber, Ipv4Header, Ipv6FlowLabel, Ipv6Header, LinkSlice,
    NetSlice, SlicedPacket, TransportSlice, UdpHeader,
};

use crate::af_xdp::Transport;

/// An Ethernet address.
pub(super) type Mac = [u8; 6];

/// Length of the longest headers: Ethernet, IPv6 and UDP.
pub(super) const HEAD_BYTES_MAX: usize = 14 + 40 + 8;
/// Hop limit of the datagrams that this device sends: the kernel's own hop limit.
const HOPS: u8 = 64;

/// Content of the headers of a received packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Came {
    pub from: SocketAddr,
    pub to: IpAddr,
    pub mac_from: Mac,
    pub mac_to: Mac,
    /// Remaining hops.
    pub hops: u8,
    /// Range of the datagram in the packet; with TCP, range of the whole IP packet.
    pub datagram: Range<usize>,
}

/// Reads the headers of a packet. `None`: the packet is not a whole UDP datagram, or not a TCP segment.
pub(super) fn read(transport: Transport, packet: &[u8]) -> Option<Came> {
    let sliced = SlicedPacket::from_ethernet(packet).ok()?;
    let Some(LinkSlice::Ethernet2(link)) = sliced.link else {
        return None;
    };
    let (from, to, hops, network_bytes) = match sliced.net? {
        NetSlice::Ipv4(ip) if !ip.is_payload_fragmented() => {
            let ip = ip.header();
            let (from, to) = (ip.source_addr().into(), ip.destination_addr().into());
            (from, to, ip.ttl(), ip.slice().len())
        }
        NetSlice::Ipv6(ip) if ip.extensions().slice().is_empty() => {
            let ip = ip.header();
            let (from, to) = (ip.source_addr().into(), ip.destination_addr().into());
            (from, to, ip.hop_limit(), ip.slice().len())
        }
        _ => return None,
    };
    if !sliced.link_exts.is_empty() {
        return None;
    }
    let network = link.slice().len().min(14);
    let start = network + network_bytes;
    let (port, datagram) = match (transport, sliced.transport?) {
        (Transport::Udp, TransportSlice::Udp(udp)) => {
            let start = start + udp.header_slice().len();
            (udp.source_port(), start..start + udp.payload().len())
        }
        (Transport::Tcp, TransportSlice::Tcp(tcp)) => {
            let end = start + tcp.slice().len();
            (tcp.source_port(), network..end)
        }
        _ => return None,
    };
    Some(Came {
        from: SocketAddr::new(from, port),
        to,
        mac_from: link.source(),
        mac_to: link.destination(),
        hops,
        datagram,
    })
}

/// Source and destination addresses of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Way {
    pub from: SocketAddr,
    pub to: SocketAddr,
    pub mac_from: Mac,
    pub mac_to: Mac,
}

/// Writes the headers of a datagram to the end of `front`, which are the bytes directly before the datagram. Returns
/// the length of the headers. IPv4 headers get no UDP checksum, because pmnet's packets have their own. `None`: the
/// addresses are of two families, `front` is too short, or the datagram is too long.
pub(super) fn write(front: &mut [u8], way: &Way, datagram: &[u8]) -> Option<usize> {
    let mut head = [0; HEAD_BYTES_MAX];
    let mut rest = &mut head[..];
    let udp_bytes = u16::try_from(UdpHeader::LEN + datagram.len()).ok()?;
    let (ports, own) = ((way.from.port(), way.to.port()), datagram.len());
    let udp;
    match (way.from.ip(), way.to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            rest = ethernet(rest, way, EtherType::IPV4)?;
            let mut ip =
                Ipv4Header::new(udp_bytes, HOPS, IpNumber::UDP, from.octets(), to.octets()).ok()?;
            ip.dont_fragment = true;
            ip.header_checksum = ip.calc_header_checksum();
            let bytes = ip.to_bytes();
            rest = put(rest, &bytes)?;
            udp = UdpHeader::without_ipv4_checksum(ports.0, ports.1, own).ok()?;
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            rest = ethernet(rest, way, EtherType::IPV6)?;
            let ip = Ipv6Header {
                traffic_class: 0,
                flow_label: Ipv6FlowLabel::ZERO,
                payload_length: udp_bytes,
                next_header: IpNumber::UDP,
                hop_limit: HOPS,
                source: from.octets(),
                destination: to.octets(),
            };
            rest = put(rest, &ip.to_bytes())?;
            udp = UdpHeader::with_ipv6_checksum(ports.0, ports.1, &ip, datagram).ok()?;
        }
        _ => return None,
    }
    rest = put(rest, &udp.to_bytes())?;
    let used = HEAD_BYTES_MAX - rest.len();
    let at = front.len().checked_sub(used)?;
    front[at..].copy_from_slice(&head[..used]);
    Some(used)
}

/// Writes the Ethernet header of an IP packet, which already has its other headers. Returns the length of the header.
/// `None`: `front` is too short.
pub(super) fn write_link(front: &mut [u8], way: &Way) -> Option<usize> {
    let kind = if way.to.is_ipv4() {
        EtherType::IPV4
    } else {
        EtherType::IPV6
    };
    let at = front.len().checked_sub(Ethernet2Header::LEN)?;
    ethernet(&mut front[at..], way, kind)?;
    Some(Ethernet2Header::LEN)
}

fn ethernet<'a>(rest: &'a mut [u8], way: &Way, kind: EtherType) -> Option<&'a mut [u8]> {
    let header = Ethernet2Header {
        source: way.mac_from,
        destination: way.mac_to,
        ether_type: kind,
    };
    put(rest, &header.to_bytes())
}

fn put<'a>(rest: &'a mut [u8], bytes: &[u8]) -> Option<&'a mut [u8]> {
    let (place, rest) = rest.split_at_mut_checked(bytes.len())?;
    place.copy_from_slice(bytes);
    Some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(v6: bool) -> Way {
        let (from, to) = if v6 {
            ("[fd00::1]:51000", "[fd00::2]:40000")
        } else {
            ("10.0.0.1:51000", "10.0.0.2:40000")
        };
        Way {
            from: from.parse().unwrap(),
            to: to.parse().unwrap(),
            mac_from: [2, 0, 0, 0, 0, 1],
            mac_to: [2, 0, 0, 0, 0, 2],
        }
    }

    #[test]
    fn what_is_written_can_be_read() {
        for (v6, bytes) in [(false, 42), (true, 62)] {
            let way = way(v6);
            let mut packet = vec![0xee; 300];
            packet.extend_from_slice(b"the datagram");
            let (front, datagram) = packet.split_at_mut(300);
            assert_eq!(write(front, &way, datagram), Some(bytes));
            assert_eq!(packet[300 - bytes - 1], 0xee);
            let came = read(Transport::Udp, &packet[300 - bytes..]).unwrap();
            assert_eq!(
                (came.from, came.to, came.hops),
                (way.from, way.to.ip(), HOPS)
            );
            assert_eq!((came.mac_from, came.mac_to), (way.mac_from, way.mac_to));
            assert_eq!(came.datagram, bytes..bytes + 12);
        }
    }

    #[test]
    fn checksums_are_the_internets() {
        let sum = |bytes: &[u8]| {
            let words = bytes
                .chunks(2)
                .map(|two| u32::from(two[0]) << 8 | u32::from(two.get(1).copied().unwrap_or(0)));
            let mut sum: u32 = words.sum();
            while sum > 0xffff {
                sum = (sum & 0xffff) + (sum >> 16);
            }
            sum
        };
        let mut front = [0; 42];
        write(&mut front, &way(false), b"odd").unwrap();
        assert_eq!(sum(&front[14..34]), 0xffff, "of IPv4's header");
        assert_eq!(front[40..], [0, 0], "none over IPv4");
        let mut packet = [&[0; 62][..], b"odd"].concat();
        let (front, datagram) = packet.split_at_mut(62);
        write(front, &way(true), datagram).unwrap();
        let pseudo = [&packet[22..54], &[0, 0, 0, 11, 0, 0, 0, 17], &packet[54..]].concat();
        assert_eq!(sum(&pseudo), 0xffff, "of UDP over IPv6");
    }

    #[test]
    fn what_is_no_whole_datagram_is_not_read() {
        let mut packet = vec![0; 42];
        packet.extend_from_slice(b"12345678");
        let (front, datagram) = packet.split_at_mut(42);
        write(front, &way(false), datagram).unwrap();
        assert!(read(Transport::Udp, &packet).is_some());
        for end in 0..packet.len() {
            assert_eq!(read(Transport::Udp, &packet[..end]), None, "{end} bytes");
        }
        // Padding after a short datagram is not part of the datagram.
        packet.extend_from_slice(&[0; 20]);
        assert_eq!(read(Transport::Udp, &packet).unwrap().datagram, 42..50);
        for (at, byte) in [
            (12, 0x86),
            (14, 0x65),
            (20, 0x20),
            (21, 1),
            (23, 6),
            (38, 0xff),
        ] {
            let mut other = packet.clone();
            other[at] = byte;
            assert_eq!(read(Transport::Udp, &other), None, "byte {at}");
        }
    }

    #[test]
    fn a_segment_is_read_with_its_ip_header() {
        let own = b"GET /";
        let mut tcp = etherparse::TcpHeader::new(40_000, 80, 1, 1_000);
        tcp.syn = true;
        let bytes = u16::try_from(tcp.header_len() + own.len()).unwrap();
        let ip = Ipv4Header::new(bytes, 64, IpNumber::TCP, [10, 0, 0, 1], [10, 0, 0, 2]).unwrap();
        let link = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
        let mut segment = [&link[..], &ip.to_bytes(), &tcp.to_bytes(), own].concat();
        let end = segment.len();
        segment.extend_from_slice(&[0; 9]);
        let came = read(Transport::Tcp, &segment).unwrap();
        assert_eq!(came.datagram, 14..end);
        assert_eq!(came.from, "10.0.0.1:40000".parse().unwrap());
        assert_eq!(read(Transport::Udp, &segment), None);
        for end in 0..end {
            assert_eq!(read(Transport::Tcp, &segment[..end]), None, "{end} bytes");
        }
        // With source and destination swapped, the packet is addressed to its sender.
        let way = Way {
            from: "10.0.0.2:80".parse().unwrap(),
            to: came.from,
            mac_from: came.mac_to,
            mac_to: came.mac_from,
        };
        let mut front = [0; 20];
        assert_eq!(write_link(&mut front, &way), Some(14));
        assert_eq!(front[6..12], [2, 0, 0, 0, 0, 1]);
        assert_eq!(front[12..], [2, 0, 0, 0, 0, 2, 8, 0]);
        assert_eq!(write_link(&mut [0; 13], &way), None);
    }

    #[test]
    fn two_families_and_too_little_room_are_refused() {
        let mixed = Way {
            to: way(true).to,
            ..way(false)
        };
        assert_eq!(write(&mut [0; 100], &mixed, b"x"), None);
        assert_eq!(write(&mut [0; 41], &way(false), b"x"), None);
        assert_eq!(write(&mut [0; 100], &way(false), &[0; 65_536]), None);
    }
}
