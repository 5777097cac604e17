//! All packets at the interface that are not for pmnet must reach the network stack unchanged.

use std::io::{Read, Write};
use std::net::{
    IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream, UdpSocket,
};
use std::time::{Duration, Instant};

use pmnet_wire::{Header, Kind};
use socket2::{Domain, Protocol, Socket, Type};

use super::CALL_MAX;
use super::world::{Place, Plan, World};

const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 51, 0, 1);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 51, 0, 200);
const SERVER6: Ipv6Addr = Ipv6Addr::new(0xfd51, 0, 0, 0, 0, 0, 0, 0x200);
/// Longest wait for a packet that must come.
const WAIT_MAX: Duration = Duration::from_secs(10);
const BULK_BYTES: usize = 8 << 20;
/// Protocol number of UDP, and that of raw sockets that write their own IP headers.
const UDP: u8 = 17;
pub(super) const RAW: i32 = 255;

/// Returns a world in which the device is in the kernel and its process is dead. A socket of the
/// test takes the place of the process: it receives all packets that the pipeline leaves to the
/// stack.
fn bare() -> Option<(World, super::load::Writer)> {
    let mut world = World::start(Plan::new(Place::Nic))?;
    let mut writer = world.session(CALL_MAX);
    writer.sets(10, 1);
    world.kill("device");
    Some((world, writer))
}

pub(super) fn socket(world: &World, node: &str, address: SocketAddr) -> UdpSocket {
    world.inside(node, || {
        let socket = UdpSocket::bind(address).unwrap();
        socket.set_read_timeout(Some(WAIT_MAX)).unwrap();
        socket
    })
}

pub(super) fn bytes(len: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(u64::try_from(len).unwrap());
    (0..len).map(|_| random.u8(..)).collect()
}

/// Checks that a datagram arrives unchanged and with its sender's address.
pub(super) fn arrives(from: &UdpSocket, to: &UdpSocket, datagram: &[u8]) {
    from.send_to(datagram, to.local_addr().unwrap()).unwrap();
    comes(to, from.local_addr().unwrap(), datagram);
}

fn comes(to: &UdpSocket, from: SocketAddr, datagram: &[u8]) {
    let mut buffer = vec![0; 65_536];
    let (len, source) = to.recv_from(&mut buffer).expect("it arrives");
    assert_eq!(source, from);
    assert!(
        buffer[..len] == *datagram,
        "{} bytes became {len}",
        datagram.len()
    );
}

/// Sends bytes in both directions over TCP.
pub(super) fn bulk(world: &World, address: SocketAddr) {
    let sent = bytes(BULK_BYTES);
    let listener = world.inside("server", || TcpListener::bind(address).unwrap());
    let echo = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
        let mut received = vec![0; BULK_BYTES];
        stream.read_exact(&mut received).unwrap();
        stream.write_all(&received).unwrap();
    });
    let mut stream = world.inside("client1", || TcpStream::connect(address).unwrap());
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    stream.write_all(&sent).unwrap();
    let mut back = vec![0; BULK_BYTES];
    stream.read_exact(&mut back).unwrap();
    assert!(back == sent, "TCP to {address} was altered");
    echo.join().unwrap();
}

#[test]
fn tcp_and_udp_to_other_ports() {
    let Some((world, mut writer)) = bare() else {
        return;
    };
    // The port number of the shard, with another protocol.
    let addresses: [IpAddr; 2] = [SERVER.into(), SERVER6.into()];
    for address in addresses {
        bulk(&world, SocketAddr::new(address, 7_000));
        writer.sets(20, 1);
        bulk(&world, SocketAddr::new(address, world.head().port()));
        let here = SocketAddr::new(
            if address.is_ipv4() {
                CLIENT.into()
            } else {
                "fd51::1".parse().unwrap()
            },
            0,
        );
        let from = socket(&world, "client1", here);
        for port in [53, 50_999, 51_001] {
            let to = socket(&world, "server", SocketAddr::new(address, port));
            for len in [0, 1, 88, 1_432, 1_472, 1_473, 9_000, 60_000] {
                arrives(&from, &to, &bytes(len));
            }
        }
        writer.sets(20, 1);
    }
    // The port of the shard, with an address at which the device does not listen.
    let to = socket(
        &world,
        "server",
        SocketAddr::from((SERVER6, world.head().port())),
    );
    let from = socket(&world, "client1", "[fd51::1]:0".parse().unwrap());
    arrives(&from, &to, &update(1));
}

#[test]
fn pings_are_answered() {
    let Some((world, mut writer)) = bare() else {
        return;
    };
    let raw = world.inside("client1", || {
        Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4)).unwrap()
    });
    raw.set_read_timeout(Some(WAIT_MAX)).unwrap();
    raw.connect(&SocketAddr::from((SERVER, 0)).into()).unwrap();
    let mut raw = raw;
    for (sequence, len) in [(1_u16, 0), (2, 56), (3, 1_400), (4, 4_000)] {
        let payload = bytes(len);
        let mut request = vec![8, 0, 0, 0, 0x51, 0];
        request.extend(sequence.to_be_bytes());
        request.extend(&payload);
        let sum = internet_checksum(&request);
        request[2..4].copy_from_slice(&sum.to_be_bytes());
        raw.send(&request).unwrap();
        let mut buffer = vec![0; 65_536];
        let deadline = Instant::now() + WAIT_MAX;
        // Other ICMP messages may also arrive.
        let reply = loop {
            assert!(Instant::now() < deadline, "no answer to {len} bytes");
            let len = raw.read(&mut buffer).expect("an answer");
            if buffer[20] == 0 && buffer[26..28] == sequence.to_be_bytes() {
                break &buffer[28..len];
            }
        };
        assert!(reply == payload, "{len} bytes came back altered");
        writer.sets(5, 1);
    }
}

/// A valid update of a session that this device does not know.
fn update(session: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    Header {
        epoch: 1,
        session,
        seq: 1,
        tag: 7,
        ..Header::new(Kind::Update)
    }
    .write(b"payload", &mut bytes);
    bytes
}

/// Returns a UDP datagram as IP packets that the test makes. Each IP packet has at most `each`
/// bytes of the datagram.
pub(super) fn packets(
    from: SocketAddrV4,
    to: SocketAddrV4,
    payload: &[u8],
    options: &[u8],
    each: usize,
) -> Vec<Vec<u8>> {
    let udp_len = u16::try_from(8 + payload.len()).unwrap();
    let mut datagram = from.port().to_be_bytes().to_vec();
    datagram.extend(to.port().to_be_bytes());
    datagram.extend(udp_len.to_be_bytes());
    datagram.extend([0, 0]);
    datagram.extend(payload);
    assert!(each.is_multiple_of(8) && options.len().is_multiple_of(4));
    let words = u8::try_from(5 + options.len() / 4).unwrap();
    let id = fastrand::u16(1..);
    let count = datagram.chunks(each).count();
    let packet = |(index, part): (usize, &[u8])| {
        let more = u16::from(index + 1 < count) << 13;
        let offset = u16::try_from(index * each / 8).unwrap();
        let total = u16::try_from(20 + options.len() + part.len()).unwrap();
        let mut packet = vec![0x40 | words, 0];
        packet.extend(total.to_be_bytes());
        packet.extend(id.to_be_bytes());
        packet.extend((more | offset).to_be_bytes());
        packet.extend([64, UDP, 0, 0]);
        packet.extend(from.ip().octets());
        packet.extend(to.ip().octets());
        packet.extend(options);
        let sum = internet_checksum(&packet);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        packet.extend(part);
        packet
    };
    datagram.chunks(each).enumerate().map(packet).collect()
}

#[test]
fn datagrams_to_the_shard_with_options_or_in_fragments() {
    let Some((world, mut writer)) = bare() else {
        return;
    };
    let shard = world.head();
    let device = socket(&world, "server", shard);
    let from = socket(&world, "client1", SocketAddr::from((CLIENT, 0)));
    let (SocketAddr::V4(source), SocketAddr::V4(target)) = (from.local_addr().unwrap(), shard)
    else {
        panic!("IPv4");
    };
    let raw = world.inside("client1", || {
        Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(RAW))).unwrap()
    });
    let send = |payload: &[u8], options: &[u8], each: usize, backwards: bool| {
        let mut packets = packets(source, target, payload, options, each);
        if backwards {
            packets.reverse();
        }
        for packet in packets {
            raw.send_to(&packet, &SocketAddr::from((SERVER, 0)).into())
                .unwrap();
        }
        comes(&device, from.local_addr().unwrap(), payload);
    };
    for len in [0, 7, 88, 700] {
        let payload = [update(1), bytes(len)].concat();
        send(&payload, &[], 65_528, false);
        // The packet has IP options without effect.
        send(&payload, &[1, 1, 1, 1], 65_528, false);
        send(&payload, &[1; 40], 65_528, false);
        for each in [8, 48, 96] {
            send(&payload, &[], each, false);
            send(&payload, &[], each, true);
        }
        writer.sets(5, 1);
    }
    // The datagram is longer than a frame, so the client's own stack makes fragments.
    for len in [1_473, 4_000, 60_000] {
        arrives(&from, &device, &bytes(len));
    }
    // Packets of pmnet that are damaged, or that are not updates of a known session.
    for packet in [
        update(1),
        update(u64::MAX),
        update(1)[..87].to_vec(),
        bytes(88),
    ] {
        arrives(&from, &device, &packet);
    }
    writer.sets(20, 1);
}

fn internet_checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap()
}
