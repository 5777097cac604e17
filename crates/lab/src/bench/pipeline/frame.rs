//! Ethernet frames as they arrive from a client.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, bail};

const CLIENT_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
const DEVICE_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];
const ARP: [u8; 2] = [0x08, 0x06];
const UDP: u8 = 17;
const TCP: u8 = 6;
/// Minimum length of a frame on the wire, without the frame check sequence.
const FRAME_BYTES_MIN: usize = 60;

fn ethernet(protocol: [u8; 2]) -> Vec<u8> {
    [&DEVICE_MAC[..], &CLIENT_MAC, &protocol].concat()
}

fn ip(
    out: &mut Vec<u8>,
    from: IpAddr,
    to: IpAddr,
    protocol: u8,
    payload_len: usize,
) -> anyhow::Result<()> {
    let length = |extra: usize| u16::try_from(payload_len + extra).context("a datagram");
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let begin = out.len();
            out.extend([0x45, 0]);
            out.extend(length(20)?.to_be_bytes());
            out.extend([0, 1, 0x40, 0, 64, protocol, 0, 0]);
            out.extend(from.octets());
            out.extend(to.octets());
            let sum = internet_checksum(&out[begin..]);
            out[begin + 10..begin + 12].copy_from_slice(&sum.to_be_bytes());
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            out.extend([0x60, 0, 0, 0]);
            out.extend(length(0)?.to_be_bytes());
            out.extend([protocol, 64]);
            out.extend(from.octets());
            out.extend(to.octets());
        }
        _ => bail!("one family"),
    }
    Ok(())
}

fn ip_frame(from: IpAddr, to: IpAddr, protocol: u8, payload_len: usize) -> anyhow::Result<Vec<u8>> {
    let mut out = ethernet(if to.is_ipv4() { IPV4 } else { IPV6 });
    ip(&mut out, from, to, protocol, payload_len)?;
    Ok(out)
}

/// Returns a frame with a UDP datagram.
///
/// # Errors
/// Fails if the datagram is too long, or if the addresses belong to different families.
pub fn udp(from: SocketAddr, to: SocketAddr, datagram: &[u8]) -> anyhow::Result<Vec<u8>> {
    let udp_len = 8 + datagram.len();
    let mut out = ip_frame(from.ip(), to.ip(), UDP, udp_len)?;
    out.extend(from.port().to_be_bytes());
    out.extend(to.port().to_be_bytes());
    out.extend(u16::try_from(udp_len).context("a datagram")?.to_be_bytes());
    out.extend([0, 0]);
    out.extend(datagram);
    out.resize(out.len().max(FRAME_BYTES_MIN), 0);
    Ok(out)
}

/// Returns a frame with a TCP segment of `payload_bytes` zeros. No connection expects this segment.
///
/// # Errors
/// Fails if the segment is too long, or if the addresses belong to different families.
pub fn tcp(from: SocketAddr, to: SocketAddr, payload_bytes: usize) -> anyhow::Result<Vec<u8>> {
    let mut out = ip_frame(from.ip(), to.ip(), TCP, 20 + payload_bytes)?;
    out.extend(from.port().to_be_bytes());
    out.extend(to.port().to_be_bytes());
    // Sequence numbers, a header of five 32-bit words, ACK and a window. The other fields are zero.
    out.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 2, 0, 0, 0, 0, 0]);
    out.resize((out.len() + payload_bytes).max(FRAME_BYTES_MIN), 0);
    Ok(out)
}

/// Returns an ARP request for an address. IPv6 has no ARP, so for IPv6 addresses the request names
/// a fixed IPv4 address.
pub fn arp(from: IpAddr, to: IpAddr) -> Vec<u8> {
    let four = |address: IpAddr| match address {
        IpAddr::V4(address) => address.octets(),
        IpAddr::V6(_) => [10, 0, 0, 1],
    };
    let mut out = ethernet(ARP);
    out.extend([0, 1, 8, 0, 6, 4, 0, 1]);
    out.extend(CLIENT_MAC);
    out.extend(four(from));
    out.extend([0; 6]);
    out.extend(four(to));
    out.resize(FRAME_BYTES_MIN, 0);
    out
}

fn internet_checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks_exact(2);
    let sum: u32 = words
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    !u16::try_from(folded).expect("16 bits after two folds of a header's sum")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_whole() {
        let four: [SocketAddr; 2] =
            ["10.0.0.7:51000", "10.0.0.1:51000"].map(|a| a.parse().unwrap());
        let six: [SocketAddr; 2] =
            ["[fd51::7]:51000", "[fd51::1]:51000"].map(|a| a.parse().unwrap());
        let frame = udp(four[0], four[1], &[7; 100]).unwrap();
        assert_eq!(frame.len(), 14 + 20 + 8 + 100);
        assert_eq!(internet_checksum(&frame[14..34]), 0);
        let frame = udp(six[0], six[1], &[7; 100]).unwrap();
        assert_eq!(frame.len(), 14 + 40 + 8 + 100);
        assert_eq!(u16::from_be_bytes([frame[18], frame[19]]), 108);
        assert_eq!(
            tcp(four[0], four[1], 100).unwrap().len(),
            14 + 20 + 20 + 100
        );
        assert_eq!(arp(four[0].ip(), four[1].ip()).len(), FRAME_BYTES_MIN);
        assert!(udp(four[0], six[1], b"").is_err());
        assert!(udp(four[0], four[1], &[0; 70_000]).is_err());
    }
}
