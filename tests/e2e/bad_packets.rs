//! Invalid datagrams arrive at every port while other clients work. Processes drop and count the invalid datagrams. No
//! answer may be longer than the datagram, and no process may crash (`docs/spec/wire.md` §5). A device forwards foreign
//! datagrams unchanged.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use pmnet_lab::harness::{Cluster, Medium, Role, StoreKind, Topology, settle};
use pmnet_lab::resp::Reply;
use pmnet_wire::header::VERSION;
use pmnet_wire::{FRAGMENT_BYTES, Flags, HEADER_LEN, Header, Kind, raw};

use crate::common;
use crate::support::{front, launch, ok, seed};

/// Longest wait for an answer, to prove that none comes.
const QUIET: Duration = Duration::from_millis(3);
/// Maximum UDP payload in bytes.
const DATAGRAM_MAX: usize = 65_507;

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(QUIET)).unwrap();
    socket
}

/// Returns a header of this kind with random fields and correct checksums.
fn any_header(random: &mut fastrand::Rng, kind: Kind) -> Header {
    // Half of the numbers are small, because existing sessions and orders have small numbers.
    let mut number = || {
        if random.bool() {
            random.u64(..300)
        } else {
            random.u64(..)
        }
    };
    let (session, seq, order, request, key_hash) =
        (number(), number(), number(), number(), number());
    Header {
        flags: Flags(random.u8(..)),
        copies: raw(random.u8(..5)),
        shard: random.u32(..2),
        epoch: random.u32(..4),
        device: random.u32(..),
        incarnation: random.u32(..3),
        session,
        seq,
        order,
        request: raw(request),
        key_hash: raw(key_hash),
        fragment_index: random.u16(..4),
        fragment_count: random.u16(..6),
        tag: random.u64(..),
        ..Header::new(kind)
    }
}

fn any_payload(random: &mut fastrand::Rng, max: usize) -> Vec<u8> {
    let size = match random.u8(..4) {
        0 => 0,
        1 => random.usize(..64),
        _ => random.usize(..=max),
    };
    let mut payload = vec![0; size];
    random.fill(&mut payload);
    payload
}

/// Returns a complete packet, as a legitimate sender would send it.
fn packet(random: &mut fastrand::Rng) -> Vec<u8> {
    let kind = Kind::ALL[random.usize(..Kind::ALL.len())];
    let payload = any_payload(random, FRAGMENT_BYTES);
    let mut bytes = Vec::new();
    any_header(random, kind).write(&payload, &mut bytes);
    bytes
}

/// The ways in which a datagram is made invalid.
const WAYS: &[&str] = &[
    "random bytes",
    "right checksums, nothing else",
    "truncated",
    "a bit flipped",
    "oversized",
    "another version",
    "foreign text",
    "unknown kind",
    "empty",
];

fn bad_datagram(random: &mut fastrand::Rng, way: usize) -> Vec<u8> {
    let mut bytes = packet(random);
    match way {
        0 => any_payload(random, 2_000),
        1 => bytes,
        2 => {
            bytes.truncate(random.usize(..bytes.len()));
            bytes
        }
        3 => {
            let bit = random.usize(..bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            bytes
        }
        4 => {
            let most = if random.u8(..8) == 0 {
                DATAGRAM_MAX
            } else {
                9_000
            };
            bytes.resize(random.usize(HEADER_LEN + FRAGMENT_BYTES + 1..=most), 0);
            bytes
        }
        5 => {
            bytes[2] = random.u8(VERSION + 1..);
            bytes
        }
        6 => b"GET / HTTP/1.1\r\nHost: example\r\n\r\n".to_vec(),
        7 => {
            bytes[3] = random.u8(20..);
            bytes
        }
        _ => Vec::new(),
    }
}

/// Returns the UDP ports on which a process listens or sends, from the kernel's tables.
fn udp_ports(pid: u32) -> Vec<u16> {
    let inodes: Vec<String> = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .filter_map(|link| {
            let text = link.to_str()?.strip_prefix("socket:[")?;
            Some(text.strip_suffix(']')?.to_owned())
        })
        .collect();
    let tables = ["/proc/net/udp", "/proc/net/udp6"]
        .map(|path| std::fs::read_to_string(path).unwrap_or_default());
    tables
        .iter()
        .flat_map(|table| table.lines().skip(1))
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let port = u16::from_str_radix(fields.get(1)?.rsplit(':').next()?, 16).ok()?;
            inodes
                .iter()
                .any(|inode| inode == fields[9])
                .then_some(port)
        })
        .collect()
}

/// Returns the addresses to which datagrams are sent.
fn targets(cluster: &Cluster) -> Vec<(Role, SocketAddr)> {
    cluster
        .processes()
        .filter(|(role, _)| *role != Role::Redis)
        .flat_map(|(role, process)| {
            udp_ports(process.id().unwrap())
                .into_iter()
                .map(move |port| (role, SocketAddr::from(([127, 0, 0, 1], port))))
        })
        .collect()
}

fn all_alive(cluster: &mut Cluster) {
    let roles: Vec<Role> = cluster.processes().map(|(role, _)| role).collect();
    for role in roles {
        let process = cluster.process(role).unwrap();
        let ended = process.exited().unwrap();
        assert!(
            ended.is_none(),
            "{role} ended: {ended:?} {}",
            process.stderr()
        );
        assert!(
            !process.stderr().contains("panicked"),
            "{}",
            process.stderr()
        );
    }
}

/// Returns the number of bytes that arrive within [`QUIET`].
fn answered(socket: &UdpSocket) -> usize {
    let mut buffer = vec![0; DATAGRAM_MAX];
    let mut sum = 0;
    // The loop is bounded, because a process that never stops answering would also be an amplifier.
    for _ in 0..100 {
        match socket.recv(&mut buffer) {
            Ok(got) => sum += got,
            Err(_) => return sum,
        }
    }
    panic!("answers without end");
}

#[test]
fn malformed_packets_change_nothing_and_amplify_nothing() {
    let seed = seed();
    let Some(mut cluster) = common::start(
        "bad-packets",
        Topology::new(StoreKind::Redis, 2, Medium::Dram).unkeyed(),
    ) else {
        return;
    };
    let mut client = front(&cluster);
    assert_eq!(client.call(&["SET", "steady", "0"]).unwrap(), ok());
    let targets = targets(&cluster);
    for role in [Role::Server, Role::Device(0), Role::Device(1), Role::Front] {
        assert!(
            targets.iter().any(|(found, _)| *found == role),
            "{role} has no UDP port"
        );
    }
    let mut random = fastrand::Rng::with_seed(seed);
    let mut increments = 0;
    for (way, name) in WAYS.iter().enumerate() {
        for (role, address) in &targets {
            let socket = socket();
            let (mut sent, mut received) = (0, 0);
            for number in 0..300 {
                let bytes = bad_datagram(&mut random, way);
                // Some datagrams are sent and checked alone. Most are sent in bursts.
                let alone = number % 10 == 0;
                let _ = socket.send_to(&bytes, address);
                sent += bytes.len();
                if alone {
                    let back = answered(&socket);
                    assert!(
                        back <= sent,
                        "{role} gave {back} bytes for {sent}: {name}, seed {seed}"
                    );
                    received += back;
                }
            }
            received += answered(&socket);
            assert!(
                received <= sent,
                "{role} amplifies {sent} to {received}: {name}"
            );
            let value = format!("{name}:{role}");
            assert_eq!(client.call(&["SET", "steady", &value]).unwrap(), ok());
            increments += 1;
            assert_eq!(
                client.call(&["INCR", "count"]).unwrap(),
                Reply::Integer(increments),
                "{name} at {role}"
            );
            assert_eq!(
                client.call(&["GET", "steady"]).unwrap(),
                Reply::Bulk(value.into_bytes())
            );
        }
        all_alive(&mut cluster);
    }
    // The invalid datagrams must not have changed the database.
    settle(&cluster).unwrap();
    let mut direct = cluster.reader().unwrap();
    let Reply::Array(keys) = direct.call(&["KEYS", "*"]).unwrap() else {
        panic!("KEYS");
    };
    for key in keys {
        let key = key.text().unwrap();
        assert!(
            ["steady", "count"].contains(&&*key) || key.starts_with("pmnet:{"),
            "{key:?} was not written by anybody"
        );
    }
    // After this, all processes must still be able to restart.
    for role in [Role::Device(0), Role::Device(1), Role::Server, Role::Front] {
        cluster.kill(role).unwrap();
        cluster.restart(role).unwrap();
    }
    let mut client = front(&cluster);
    assert_eq!(
        client.call(&["INCR", "count"]).unwrap(),
        Reply::Integer(increments + 1)
    );
}

/// Packets are recorded between hops, and are sent again later or from another address. The repeated packets must have
/// no effect.
#[test]
fn old_packets_sent_again_have_no_effect() {
    let seed = seed();
    let Some(mut cluster) = common::start(
        "bad-replay",
        Topology::new(StoreKind::Redis, 1, Medium::Dram).unkeyed(),
    ) else {
        return;
    };
    // A front that is connected to the device through a recorder.
    let tap = socket();
    let head = cluster.head().unwrap();
    let listen = format!("127.0.0.1:{}", pmnet_lab::harness::free_port().unwrap());
    let via = tap.local_addr().unwrap().to_string();
    let args = [
        "redis",
        "--anyone-may-connect",
        "--listen",
        &listen,
        "--via",
        &via,
    ];
    let mut tapped = launch("tapped-front", cluster.folder(), &args);
    let stop = std::sync::atomic::AtomicBool::new(false);
    let recorded = std::thread::scope(|scope| {
        let recorder = scope.spawn(|| record(&tap, head, &stop));
        tapped.wait_ready(Duration::from_secs(10)).unwrap();
        let mut client = crate::support::connect(listen.parse().unwrap());
        for number in 0..100 {
            let text = number.to_string();
            assert_eq!(client.call(&["SET", "last", &text]).unwrap(), ok());
            let reply = client.call(&["INCR", "count"]).unwrap();
            assert_eq!(reply, Reply::Integer(number + 1));
            assert!(matches!(
                client.call(&["LPUSH", "list", &text]).unwrap(),
                Reply::Integer(_)
            ));
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        recorder.join().unwrap()
    });
    assert!(recorded.len() > 300, "{} recorded", recorded.len());
    tapped.kill().unwrap();
    let mut client = front(&cluster);
    let mut random = fastrand::Rng::with_seed(seed);
    let elsewhere = socket();
    let server = targets(&cluster)
        .into_iter()
        .find(|(role, _)| *role == Role::Server)
        .unwrap()
        .1;
    for round in 0..3 {
        for (number, bytes) in recorded.iter().enumerate() {
            let target = if round == 2 { server } else { head };
            let mut bytes = bytes.clone();
            if round == 1 {
                let bit = random.usize(..bytes.len() * 8);
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            elsewhere.send_to(&bytes, target).unwrap();
            if number % 50 == 0 {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        let reply = client.call(&["GET", "last"]).unwrap();
        assert_eq!(reply, Reply::Bulk(b"99".to_vec()), "round {round}");
        assert_eq!(
            client.call(&["GET", "count"]).unwrap(),
            Reply::Bulk(b"100".to_vec()),
            "round {round}"
        );
        assert_eq!(client.call(&["LLEN", "list"]).unwrap(), Reply::Integer(100));
        all_alive(&mut cluster);
    }
}

/// Passes datagrams between a front and a device. Keeps those of the front.
fn record(
    tap: &UdpSocket,
    device: SocketAddr,
    stop: &std::sync::atomic::AtomicBool,
) -> Vec<Vec<u8>> {
    let mut recorded = Vec::new();
    let mut client = None;
    let mut buffer = vec![0; DATAGRAM_MAX];
    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
        let Ok((got, from)) = tap.recv_from(&mut buffer) else {
            continue;
        };
        if from == device {
            if let Some(client) = client {
                tap.send_to(&buffer[..got], client).unwrap();
            }
        } else {
            client = Some(from);
            recorded.push(buffer[..got].to_vec());
            tap.send_to(&buffer[..got], device).unwrap();
        }
    }
    recorded
}

/// A device must forward datagrams that it does not understand, in both directions, unchanged.
#[test]
fn foreign_datagrams_pass_untouched_in_both_directions() {
    let seed = seed();
    let folder = common::folder().join(format!("foreign-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let far = socket();
    far.set_read_timeout(Some(Duration::from_millis(500)))
        .unwrap();
    let near = socket();
    near.set_read_timeout(Some(Duration::from_millis(500)))
        .unwrap();
    let listen = format!("127.0.0.1:{}", pmnet_lab::harness::free_port().unwrap());
    let next = far.local_addr().unwrap().to_string();
    let log = folder.join("log");
    let args = [
        "device",
        "--listen",
        &listen,
        "--next",
        &next,
        "--media",
        "dram",
        "--log-size",
        "1M",
        "--log",
        log.to_str().unwrap(),
    ];
    let device = launch("device", &folder, &args);
    let address: SocketAddr = listen.parse().unwrap();
    let mut random = fastrand::Rng::with_seed(seed);
    let mut buffer = vec![0; DATAGRAM_MAX];
    // When the device sends requests to the server, it is running.
    let deadline = Instant::now() + Duration::from_secs(10);
    while far.recv(&mut buffer).is_err() {
        assert!(Instant::now() < deadline, "{}", device.stderr());
    }
    // The far end also receives the device's own requests, and must ignore them.
    let mut receive = |socket: &UdpSocket, expected: &[u8]| {
        for _ in 0..100 {
            let Ok(got) = socket.recv(&mut buffer) else {
                return false;
            };
            if buffer[..got] == *expected {
                return true;
            }
        }
        false
    };
    for number in 0..200 {
        let datagram = match number % 4 {
            0 => b"GET / HTTP/1.1\r\nHost: example\r\n\r\n".to_vec(),
            1 => {
                let mut other_version = packet(&mut random);
                other_version[2] = VERSION + 1;
                other_version
            }
            2 => vec![u8::try_from(number).unwrap(); number + 1],
            _ => {
                let mut bytes = vec![b'x'; random.usize(1..1_473)];
                random.fill(&mut bytes[1..]);
                bytes
            }
        };
        near.send_to(&datagram, address).unwrap();
        assert!(receive(&far, &datagram), "{number}: lost on the way there");
        let answer: Vec<u8> = datagram.iter().rev().map(|byte| byte | 0x80).collect();
        far.send_to(&answer, address).unwrap();
        assert!(receive(&near, &answer), "{number}: lost on the way back");
    }
    drop(device);
    std::fs::remove_dir_all(&folder).unwrap();
}
