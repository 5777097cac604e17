//! AF_XDP over a veth pair: frames in both directions, rings that become full and wrap around, and refused requests.
//! The tests need root and iproute2. Otherwise the tests are skipped, with a message; in CI that is a failure.

mod beside;
mod link;
#[path = "../../../../tests/shared/skip.rs"]
mod skip;

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use link::{FAR, Link, NEAR, skipped};
use pmnet_dataplane::af_xdp::{
    AfXdpError, Anonymous, BusyPoll, Config, Mode, RECEIVE_HEADROOM, Received, Redirect, Socket,
    Wake, knows_busy_poll,
};

const FRAMES: usize = 24;
const RING: u32 = 8;
const PORT: u16 = 40_000;
/// Limit of every wait, far longer than any step of these tests takes.
const WAIT_MAX: Duration = Duration::from_secs(20);
/// Length of the Ethernet, IPv4 and UDP headers.
const HEADERS: usize = 14 + 20 + 8;

fn config(queue: u32) -> Config {
    Config {
        receive_ring: RING,
        send_ring: RING,
        ..Config::new("veth0", queue)
    }
}

fn memory() -> Anonymous {
    Anonymous::new(FRAMES * 2048).unwrap()
}

/// Returns a socket at the near end that gets the datagrams to [`PORT`] and the next port.
fn near(link: &Link) -> (Socket<Anonymous>, Redirect) {
    near_with(link, &config(0))
}

fn near_with(link: &Link, config: &Config) -> (Socket<Anonymous>, Redirect) {
    link.near(|| {
        let mut redirect = Redirect::attach("veth0", PORT..=PORT + 1).unwrap();
        let socket = Socket::bind(memory(), config).unwrap();
        redirect.serve(0, &socket).unwrap();
        (socket, redirect)
    })
}

fn udp(address: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind(address).unwrap();
    socket.set_read_timeout(Some(WAIT_MAX)).unwrap();
    socket
}

/// Waits until at least one frame was received.
fn receive(socket: &mut Socket<Anonymous>, burst: &mut Vec<Received>) {
    let begun = Instant::now();
    while socket.receive(burst).unwrap() == 0 {
        assert!(begun.elapsed() < WAIT_MAX, "nothing is received");
        socket.poll_driver().unwrap();
        std::thread::yield_now();
    }
}

/// Sends a frame back to its sender, in place.
fn turn(socket: &mut Socket<Anonymous>, received: Received) {
    let Received { frame, bytes } = received;
    let own = socket.bytes_mut(&frame);
    let length = bytes.len();
    own.copy_within(bytes, 0);
    let (mut to, mut from) = ([0; 6], [0; 6]);
    to.copy_from_slice(&own[..6]);
    from.copy_from_slice(&own[6..12]);
    own[..6].copy_from_slice(&from);
    own[6..12].copy_from_slice(&to);
    // Swaps addresses and ports, which does not change checksums.
    own[26..34].rotate_left(4);
    own[34..38].rotate_left(2);
    // No UDP checksum: the checksum in the frame may be wrong, because the sender may have left it to its hardware.
    own[40..42].fill(0);
    assert_eq!(socket.reserve(1).unwrap(), 1);
    socket.queue(frame, length);
}

fn send_all(socket: &mut Socket<Anonymous>) {
    let begun = Instant::now();
    socket.submit();
    while socket.wake().unwrap() == Wake::Again {
        assert!(begun.elapsed() < WAIT_MAX, "nothing is sent");
    }
}

#[test]
fn frames_go_both_ways_through_rings_that_wrap_around() {
    if skipped() {
        return;
    }
    both_ways(&config(0));
}

/// A socket with busy polling gets the same frames, even if the driver still uses interrupts.
#[test]
fn frames_go_both_ways_with_busy_polling() {
    if skipped() {
        return;
    }
    let polls = Config {
        busy_poll: Some(BusyPoll {
            micros: 20,
            budget: 64,
        }),
        ..config(0)
    };
    if knows_busy_poll() {
        both_ways(&polls);
        return;
    }
    let link = Link::new();
    let refused = link.near(|| Socket::bind(memory(), &polls).map(drop));
    assert!(
        matches!(refused, Err(AfXdpError::NoBusyPoll)),
        "{refused:?}"
    );
}

fn both_ways(config: &Config) {
    let link = Link::new();
    let (mut socket, _redirect) = near_with(&link, config);
    assert!(!socket.is_zero_copy(), "a veth has no such mode");
    let far = link.far(|| udp(SocketAddr::from((FAR, 0))));
    let mut burst = Vec::with_capacity(4);
    let mut buffer = [0; 2048];
    // A hundred times around the rings, so that all of the memory is used.
    for number in 0..RING * 100 {
        socket.refill(RING, 4).unwrap();
        let count = number % 4 + 1;
        for part in 0..count {
            let length = usize::try_from(8 + number % 1400).unwrap();
            let mut datagram = vec![u8::try_from(part).unwrap(); length];
            datagram[..4].copy_from_slice(&number.to_be_bytes());
            far.send_to(&datagram, (NEAR, PORT + u16::from(part % 2 == 1)))
                .unwrap();
        }
        let mut there = 0;
        while there < count {
            receive(&mut socket, &mut burst);
            for received in burst.drain(..) {
                assert!(received.bytes.start >= RECEIVE_HEADROOM);
                turn(&mut socket, received);
                there += 1;
            }
            send_all(&mut socket);
        }
        for part in 0..count {
            let (length, from) = far.recv_from(&mut buffer).unwrap();
            assert_eq!(buffer[..4], number.to_be_bytes());
            assert_eq!(buffer[7], u8::try_from(part).unwrap(), "in order");
            assert_eq!(length, usize::try_from(8 + number % 1400).unwrap());
            assert_eq!(from.ip(), std::net::IpAddr::from(NEAR));
        }
        socket.complete().unwrap();
    }
    // No frame is lost: each is free, or lent to the kernel for receiving.
    let begun = Instant::now();
    while socket.free() + usize::try_from(RING).unwrap() < FRAMES {
        socket.complete().unwrap();
        assert!(begun.elapsed() < WAIT_MAX, "frames are lost");
    }
}

#[test]
fn other_ports_pass_to_the_network_stack() {
    if skipped() {
        return;
    }
    let link = Link::new();
    let (mut socket, redirect) = near(&link);
    socket.refill(RING, 0).unwrap();
    let ordinary = link.near(|| udp(SocketAddr::from((NEAR, PORT + 2))));
    let same = link.near(|| udp(SocketAddr::from((NEAR, PORT))));
    let far = link.far(|| udp(SocketAddr::from((FAR, 0))));
    let mut burst = Vec::with_capacity(4);
    let mut buffer = [0; 64];
    far.send_to(b"other", (NEAR, PORT + 2)).unwrap();
    assert_eq!(ordinary.recv(&mut buffer).unwrap(), 5);
    assert_eq!(socket.receive(&mut burst).unwrap(), 0);
    far.send_to(b"mine", (NEAR, PORT)).unwrap();
    receive(&mut socket, &mut burst);
    let received = burst.pop().unwrap();
    let start = received.bytes.start + HEADERS;
    assert_eq!(&socket.bytes(&received.frame)[start..start + 4], b"mine");
    socket.give_back(received.frame);
    // Once the socket and the program are gone, the system's stack gets the packets to the port again.
    drop(socket);
    far.send_to(b"later", (NEAR, PORT)).unwrap();
    assert_eq!(same.recv(&mut buffer).unwrap(), 5);
    drop(redirect);
    far.send_to(b"last", (NEAR, PORT)).unwrap();
    assert_eq!(same.recv(&mut buffer).unwrap(), 4);
}

#[test]
fn what_does_not_fit_is_dropped_and_the_rest_goes_on() {
    if skipped() {
        return;
    }
    let link = Link::new();
    let (mut socket, _redirect) = near(&link);
    let ordinary = link.near(|| udp(SocketAddr::from((NEAR, PORT + 2))));
    let far = link.far(|| udp(SocketAddr::from((FAR, 0))));
    let mut buffer = [0; 64];
    let mut burst = Vec::with_capacity(FRAMES);
    for round in 0..20_u8 {
        let filled = socket.refill(u32::MAX, 0).unwrap();
        assert_eq!(filled, RING, "no more than there are places");
        for _ in 0..FRAMES {
            far.send_to(&[round; 9], (NEAR, PORT)).unwrap();
        }
        // This datagram arrives after all others, because it takes the same link.
        far.send_to(b"end", (NEAR, PORT + 2)).unwrap();
        assert_eq!(ordinary.recv(&mut buffer).unwrap(), 3);
        assert_eq!(socket.receive(&mut burst).unwrap(), RING);
        assert_eq!(socket.receive(&mut burst).unwrap(), 0);
        for received in burst.drain(..) {
            let start = received.bytes.start + HEADERS;
            let own = &socket.bytes(&received.frame)[start..received.bytes.end];
            assert_eq!(own, [round; 9]);
            socket.give_back(received.frame);
        }
        assert_eq!(socket.free(), FRAMES);
    }
}

#[test]
fn a_queue_has_one_owner_and_is_free_soon_after_it() {
    if skipped() {
        return;
    }
    let link = Link::new();
    link.near(|| {
        for _ in 0..10 {
            drop(Socket::bind(memory(), &config(0)).unwrap());
        }
        let _owner = Socket::bind(memory(), &config(0)).unwrap();
        let second = Socket::bind(memory(), &config(0)).map(drop).unwrap_err();
        assert!(
            matches!(second, AfXdpError::QueueInUse { queue: 0, .. }),
            "{second:?}"
        );
        assert_eq!(
            second.to_string(),
            "PM1440 AF_XDP: queue 0 of veth0 belongs to another socket: end the program that has it, or choose another queue"
        );
    });
}

/// On a busy machine the kernel frees the queue of a killed process only long after the process has ended.
#[test]
fn a_queue_that_is_freed_late_is_got() {
    if skipped() {
        return;
    }
    let link = Link::new();
    let owner = link.near(|| Socket::bind(memory(), &config(0)).unwrap());
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| link.near(|| Socket::bind(memory(), &config(0)).map(drop)));
        std::thread::sleep(Duration::from_millis(1_300));
        assert!(!waits.is_finished(), "somebody else has it");
        drop(owner);
        waits.join().unwrap().unwrap();
    });
}

#[test]
fn what_cannot_be_had_is_refused_with_a_reason() {
    if skipped() {
        return;
    }
    let link = Link::new();
    link.near(|| {
        let said = |config: &Config| {
            let tried = Socket::bind(memory(), config);
            tried.map(drop).unwrap_err().to_string()
        };
        let no_queue = said(&config(9));
        assert!(
            no_queue.contains("has the interface such a queue"),
            "{no_queue}"
        );
        let no_interface = said(&Config {
            interface: "no-such-if".into(),
            ..config(0)
        });
        assert!(no_interface.contains("no such interface"), "{no_interface}");
        let zero_copy = said(&Config {
            mode: Mode::ZeroCopy,
            ..config(0)
        });
        assert!(zero_copy.contains("no such mode"), "{zero_copy}");
        for wrong in [
            Config {
                receive_ring: 6,
                ..config(0)
            },
            Config {
                send_ring: 0,
                ..config(0)
            },
            Config {
                frame_bytes: 1500,
                ..config(0)
            },
            Config {
                headroom: 2048,
                ..config(0)
            },
        ] {
            let tried = Socket::bind(memory(), &wrong);
            assert!(matches!(tried, Err(AfXdpError::Config(_))), "{tried:?}");
        }
        let preferred = Config {
            mode: Mode::PreferZeroCopy,
            ..config(0)
        };
        let copies = Socket::bind(memory(), &preferred).unwrap();
        assert!(!copies.is_zero_copy());
    });
}
