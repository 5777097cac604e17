//! Devices whose next hops form a circle. A datagram that no device understands must stop after a bounded number of
//! hops. In a chain, every datagram must pass, even if it is repeated (`docs/spec/protocol.md` §4).

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};

use super::world::{Place, Plan, READY_MAX, World};

/// Five bytes that belong to no known protocol.
const FOREIGN: &[u8] = b"\x05rest";
/// Number of hops that a datagram from this machine may make.
const HOPS: u8 = 64;
/// Number of times that a capture on the loopback interface shows each datagram: when it leaves, and when it arrives.
const SHOWN: usize = 2;
/// Number of messages that each device must have sent before the test concludes that no other datagram circulates. A
/// device takes the datagrams that wait in its socket before it sends.
const WORDS: usize = 5 * SHOWN;
/// Protocol number for all protocols (linux/if_ether.h).
const ETH_P_ALL: u16 = 3;

/// A captured UDP datagram.
struct Seen {
    from: u16,
    hops: u8,
    payload: Vec<u8>,
}

/// A capture of all datagrams on a machine's interfaces.
struct Tap(Socket);

impl Tap {
    fn new(world: &World) -> Tap {
        world.inside("server", || {
            let all = Protocol::from(i32::from(ETH_P_ALL.to_be()));
            let socket = Socket::new(Domain::PACKET, Type::RAW, Some(all)).unwrap();
            socket
                .set_read_timeout(Some(Duration::from_secs(10)))
                .unwrap();
            Tap(socket)
        })
    }

    fn next(&self) -> Seen {
        let mut frame = [0; 2_048];
        loop {
            let length = whatever_signals(|| (&self.0).read(&mut frame)).expect("somebody speaks");
            let ip = &frame[14..length.max(14)];
            let (hops, protocol, udp) = match frame[12..14] {
                [0x08, 0x00] => (ip[8], ip[9], &ip[20..]),
                [0x86, 0xdd] => (ip[7], ip[6], &ip[40..]),
                _ => continue,
            };
            if protocol == 17 {
                return Seen {
                    from: u16::from_be_bytes([udp[0], udp[1]]),
                    hops,
                    payload: udp[8..].to_vec(),
                };
            }
        }
    }
}

/// Repeats a call until no signal interrupts it. Other parts of the test may cause signals.
fn whatever_signals<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

fn world(ipv6: bool) -> Option<World> {
    let mut plan = Plan::new(Place::Nic);
    plan.ipv6 = ipv6;
    World::without_device(plan)
}

/// Starts devices at these addresses of one machine. Each device sends to the next device, and the last device sends to
/// `end`.
fn wire(world: &mut World, addresses: &[SocketAddr], end: SocketAddr) {
    for (index, listen) in addresses.iter().enumerate() {
        let next = addresses.get(index + 1).unwrap_or(&end);
        world.start_relay(index, *listen, *next);
    }
}

fn socket(world: &World, beside: SocketAddr) -> UdpSocket {
    let any = SocketAddr::new(beside.ip(), 0);
    let socket = world.inside("server", || UdpSocket::bind(any).unwrap());
    socket.set_read_timeout(Some(READY_MAX)).unwrap();
    socket
}

/// Sends one datagram into the circle, and waits until it has stopped.
fn comes_to_rest(world: &mut World, addresses: &[SocketAddr], end: SocketAddr) {
    let tap = Tap::new(world);
    wire(world, addresses, end);
    // When a device sends requests to the server, it is running.
    let mut silent: BTreeSet<u16> = addresses.iter().map(SocketAddr::port).collect();
    let deadline = Instant::now() + READY_MAX;
    while !silent.is_empty() {
        silent.remove(&tap.next().from);
        assert!(Instant::now() < deadline, "silent: {silent:?}");
    }
    let client = socket(world, addresses[0]);
    client.send_to(FOREIGN, addresses[0]).unwrap();
    let (mut hops, mut shown) = (BTreeSet::new(), 0);
    let ports = || addresses.iter().map(|device| (device.port(), WORDS));
    let mut words: BTreeMap<u16, usize> = ports().collect();
    let deadline = Instant::now() + READY_MAX;
    while words.values().any(|due| *due > 0) {
        assert!(Instant::now() < deadline, "{hops:?}, {words:?}");
        let seen = tap.next();
        if seen.payload == FOREIGN {
            shown += 1;
            words = ports().collect();
            hops.insert(seen.hops);
            let most = SHOWN * usize::from(HOPS);
            assert!(shown <= most, "seen more than {most} times");
        } else if let Some(due) = words.get_mut(&seen.from).filter(|_| shown > 0) {
            *due = due.saturating_sub(1);
        }
    }
    // The datagram circulated until its hop limit was used up. Only this limit stopped the datagram.
    assert_eq!(hops, (1..=HOPS).collect());
}

/// Regression test: a foreign datagram circulated for ever, 100,000 times per second.
#[test]
fn a_foreign_datagram_among_devices_in_a_circle_comes_to_rest() {
    for (ipv6, address) in [(false, "127.0.0.1"), (true, "::1")] {
        let Some(mut world) = world(ipv6) else {
            return;
        };
        let at = |port| SocketAddr::new(address.parse().unwrap(), port);
        let addresses = [at(52_001), at(52_002), at(52_003)];
        comes_to_rest(&mut world, &addresses, addresses[0]);
    }
}

/// The next hop of the device is the device itself. The device cannot know this from the next hop's address.
#[test]
fn a_foreign_datagram_at_a_device_that_is_its_own_next_hop_comes_to_rest() {
    let Some(mut world) = world(false) else {
        return;
    };
    let end = "127.0.0.2:52001".parse().unwrap();
    comes_to_rest(&mut world, &["0.0.0.0:52001".parse().unwrap()], end);
}

/// Eight devices, which is the longest chain. Foreign programs on both sides of the chain must receive each other's
/// datagrams, even if a datagram is repeated often, and if two programs send equal bytes.
#[test]
fn foreign_requests_and_replies_pass_however_often_they_are_the_same() {
    let Some(mut world) = world(false) else {
        return;
    };
    let addresses: Vec<SocketAddr> = (52_001..=52_008)
        .map(|port| SocketAddr::from(([127, 0, 0, 1], port)))
        .collect();
    let far = socket(&world, addresses[0]);
    wire(&mut world, &addresses, far.local_addr().unwrap());
    let mut buffer = [0; 2_048];
    // The far end also receives the devices' own requests. The first device begins last.
    for silent in &addresses {
        let tap = socket(&world, *silent);
        let deadline = Instant::now() + READY_MAX;
        far.set_read_timeout(Some(Duration::from_millis(100)))
            .unwrap();
        loop {
            tap.send_to(b"anybody?", silent).unwrap();
            let got = whatever_signals(|| far.recv(&mut buffer));
            if got.is_ok_and(|got| buffer[..got] == *b"anybody?") {
                break;
            }
            assert!(Instant::now() < deadline, "{silent} is silent");
        }
    }
    far.set_read_timeout(Some(READY_MAX)).unwrap();
    let clients = [socket(&world, addresses[0]), socket(&world, addresses[0])];
    for number in 0..300 {
        let client = &clients[number % 2];
        client.send_to(b"the same", addresses[0]).unwrap();
        let from = loop {
            let (got, from) = whatever_signals(|| far.recv_from(&mut buffer)).expect("it passes");
            if buffer[..got] == *b"the same" {
                break from;
            }
        };
        assert_eq!(from, addresses[7]);
        far.send_to(b"the same answer", from).unwrap();
        let (got, from) =
            whatever_signals(|| client.recv_from(&mut buffer)).expect("the answer passes");
        assert_eq!(
            (&buffer[..got], from),
            (b"the same answer".as_slice(), addresses[0])
        );
    }
}
