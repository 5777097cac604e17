//! Writes Ethernet, IPv4 and UDP headers before a datagram. Parses received frames, and checks
//! their lengths and checksums.

use std::net::SocketAddrV4;

use anyhow::{Context, ensure};

/// Number of bytes of all headers before a datagram.
pub const HEADERS: usize = ETHERNET + IPV4 + UDP;
const ETHERNET: usize = 14;
const IPV4: usize = 20;
const UDP: usize = 8;
/// EtherType of IPv4.
const TYPE: [u8; 2] = [8, 0];
/// IP version 4, with a header of five 32-bit words.
const VERSION: u8 = 0x45;
const DO_NOT_FRAGMENT: u8 = 0x40;
const TIME_TO_LIVE: u8 = 64;
const PROTOCOL_UDP: u8 = 17;

/// Addresses of both ends of a link, as the client sees them.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    /// Own hardware address.
    pub own_mac: [u8; 6],
    /// Hardware address of the next hop.
    pub far_mac: [u8; 6],
    /// Own address.
    pub own: SocketAddrV4,
    /// Address to which datagrams are sent.
    pub far: SocketAddrV4,
}

impl Path {
    /// Writes a frame with this datagram. Returns the length of the frame.
    ///
    /// # Errors
    /// Fails if the frame is too short for the datagram.
    pub fn write(&self, datagram: &[u8], frame: &mut [u8]) -> anyhow::Result<usize> {
        let length = HEADERS + datagram.len();
        let frame = frame.get_mut(..length).context("a frame is too short")?;
        let part = |from: usize| u16::try_from(length - from).context("a datagram is too long");
        let (ip_length, udp_length) = (part(ETHERNET)?, part(ETHERNET + IPV4)?);
        frame[..6].copy_from_slice(&self.far_mac);
        frame[6..12].copy_from_slice(&self.own_mac);
        frame[12..14].copy_from_slice(&TYPE);
        let ip = &mut frame[ETHERNET..ETHERNET + IPV4];
        ip.fill(0);
        ip[0] = VERSION;
        ip[2..4].copy_from_slice(&ip_length.to_be_bytes());
        ip[6] = DO_NOT_FRAGMENT;
        ip[8] = TIME_TO_LIVE;
        ip[9] = PROTOCOL_UDP;
        ip[12..16].copy_from_slice(&self.own.ip().octets());
        ip[16..20].copy_from_slice(&self.far.ip().octets());
        let checksum = !sum(ip, 0);
        ip[10..12].copy_from_slice(&checksum.to_be_bytes());
        let udp = &mut frame[ETHERNET + IPV4..];
        udp[..2].copy_from_slice(&self.own.port().to_be_bytes());
        udp[2..4].copy_from_slice(&self.far.port().to_be_bytes());
        udp[4..6].copy_from_slice(&udp_length.to_be_bytes());
        udp[6..8].fill(0);
        udp[UDP..].copy_from_slice(datagram);
        let checksum = match !udp_sum(&frame[ETHERNET..]) {
            // UDP uses the checksum 0 for "no checksum", so 0 is sent as the equivalent 0xffff.
            0 => u16::MAX,
            other => other,
        };
        frame[ETHERNET + IPV4 + 6..HEADERS].copy_from_slice(&checksum.to_be_bytes());
        Ok(length)
    }
}

/// The contents of a received frame.
#[derive(Debug)]
pub struct Parsed<'a> {
    /// Address of the sender.
    pub from: SocketAddrV4,
    /// Address of the receiver.
    pub to: SocketAddrV4,
    /// The datagram.
    pub datagram: &'a [u8],
}

/// Parses a frame.
///
/// # Errors
/// Fails if the frame is not a UDP datagram over IPv4, or if a length or checksum is wrong.
pub fn parse(frame: &[u8]) -> anyhow::Result<Parsed<'_>> {
    ensure!(frame.len() >= HEADERS, "a frame of {} bytes", frame.len());
    ensure!(frame[12..14] == TYPE, "a frame that is not IPv4");
    let number = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    let ip = &frame[ETHERNET..ETHERNET + IPV4];
    ensure!(ip[0] == VERSION && ip[9] == PROTOCOL_UDP, "not UDP");
    // Short frames have padding after the IP packet.
    let end = ETHERNET + usize::from(number(ETHERNET + 2));
    let udp = ETHERNET + IPV4;
    ensure!(
        (HEADERS..=frame.len()).contains(&end) && usize::from(number(udp + 4)) == end - udp,
        "a frame with wrong lengths"
    );
    ensure!(sum(ip, 0) == u16::MAX, "a wrong IPv4 checksum");
    ensure!(
        number(udp + 6) == 0 || udp_sum(&frame[ETHERNET..end]) == u16::MAX,
        "a wrong UDP checksum"
    );
    let address = |at: usize, port: usize| {
        let octets = [frame[at], frame[at + 1], frame[at + 2], frame[at + 3]];
        SocketAddrV4::new(octets.into(), number(port))
    };
    Ok(Parsed {
        from: address(ETHERNET + 12, udp),
        to: address(ETHERNET + 16, udp + 2),
        datagram: &frame[HEADERS..end],
    })
}

/// Returns the UDP checksum of an IPv4 packet without options. The sum covers the pseudo header and
/// the UDP part.
fn udp_sum(packet: &[u8]) -> u16 {
    let udp = &packet[IPV4..];
    let length = u32::try_from(udp.len()).unwrap_or(u32::MAX);
    let pseudo = u32::from(sum(&packet[12..IPV4], 0)) + u32::from(PROTOCOL_UDP) + length;
    sum(udp, pseudo)
}

/// Returns the ones' complement sum (RFC 1071), not inverted.
fn sum(bytes: &[u8], start: u32) -> u16 {
    let mut sum = u64::from(start);
    let mut words = bytes.chunks_exact(4);
    for word in &mut words {
        sum += u64::from(u32::from_be_bytes([word[0], word[1], word[2], word[3]]));
    }
    let mut last = [0; 4];
    last[..words.remainder().len()].copy_from_slice(words.remainder());
    sum += u64::from(u32::from_be_bytes(last));
    while sum > u64::from(u16::MAX) {
        sum = (sum & u64::from(u16::MAX)) + (sum >> 16);
    }
    u16::try_from(sum).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const PATH: Path = Path {
        own_mac: [2, 0, 0, 0, 0, 1],
        far_mac: [2, 0, 0, 0, 0, 2],
        own: SocketAddrV4::new(Ipv4Addr::new(192, 168, 0, 1), 40_000),
        far: SocketAddrV4::new(Ipv4Addr::new(192, 168, 0, 199), 51_000),
    };

    #[test]
    fn what_is_written_is_read_and_any_change_is_seen() {
        for length in [0, 1, 2, 3, 88, 1433] {
            let datagram: Vec<u8> = (0..length).map(|n: u32| n.to_le_bytes()[0]).collect();
            let mut frame = [0xaa; 1514];
            let written = PATH.write(&datagram, &mut frame).unwrap();
            assert_eq!(written, HEADERS + datagram.len());
            let parsed = parse(&frame[..written]).unwrap();
            assert_eq!((parsed.from, parsed.to), (PATH.own, PATH.far));
            assert_eq!(parsed.datagram, datagram);
            // Bytes after the IP packet are ignored.
            assert_eq!(parse(&frame[..written + 9]).unwrap().datagram, datagram);
            for at in 12..written {
                let mut changed = frame[..written].to_vec();
                changed[at] ^= 0x40;
                assert!(parse(&changed).is_err(), "{at}");
            }
            for short in 0..written {
                assert!(parse(&frame[..short]).is_err(), "{short}");
            }
        }
        assert!(PATH.write(&[0; 100], &mut [0; 100]).is_err());
    }

    /// Checks the sums of an example in RFC 1071 and of a well-known IPv4 header.
    #[test]
    fn checksums_are_the_internets() {
        assert_eq!(sum(&[0, 1, 0xf2, 3, 0xf4, 0xf5, 0xf6, 0xf7], 0), 0xddf2);
        let header = [
            0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0, 0, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0,
            0xc7,
        ];
        assert_eq!(!sum(&header, 0), 0xb861);
    }

    #[test]
    fn a_datagram_without_a_checksum_is_taken() {
        let mut frame = [0; 100];
        let written = PATH.write(b"hello", &mut frame).unwrap();
        frame[40..42].fill(0);
        assert_eq!(parse(&frame[..written]).unwrap().datagram, b"hello");
    }
}
