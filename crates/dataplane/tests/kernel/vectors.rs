//! Every packet except an update of a served session goes to user space unchanged, byte for byte: every packet of
//! `vectors/wire.json`, and frames of other protocols.

use std::net::{IpAddr, SocketAddr};

use pmnet_dataplane::xdp::{XDP_PASS, XDP_TX};
use pmnet_device::FastPath;
use pmnet_wire::{Header, Kind, Packet};

use crate::load::{TOKEN, addresses, open};
use crate::world::{SHARD, World, frame, skipped};

/// Longer than the largest frame of a test run. (The largest frame fills a page, except the part that the kernel uses.)
const OUT_BYTES: usize = 4096;
/// Bytes of an Ethernet header: a test run accepts no shorter frame.
const ETHERNET_BYTES: usize = 14;

/// Returns the names and packets of the vectors. The file has one field in each line.
fn vectors() -> Vec<(String, Vec<u8>)> {
    let text = include_str!("../../../../vectors/wire.json");
    let field = |line: &str, name: &str| {
        let rest = line.trim().strip_prefix(&format!("\"{name}\": \""))?;
        rest.split('"').next().map(str::to_owned)
    };
    let mut all = Vec::new();
    let mut name = None;
    for line in text.lines() {
        if let Some(found) = field(line, "name") {
            name = Some(found);
        } else if let (Some(hex), Some(name)) = (field(line, "hex"), name.as_ref()) {
            let bytes = (0..hex.len()).step_by(2);
            let bytes = bytes.map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap());
            all.push((name.clone(), bytes.collect()));
        }
    }
    assert!(all.len() > 20, "only {} vectors were found", all.len());
    all
}

/// Returns the pipeline's verdict, and whether the frame is unchanged.
fn verdict(world: &World, frame: &[u8]) -> (u32, bool) {
    let mut out = [0; OUT_BYTES];
    let mut kernel = world.kernel.0.lock().unwrap();
    let (verdict, after) = kernel.run(frame, &mut out).unwrap();
    (verdict, after == frame)
}

fn passes(world: &World, name: &str, frame: &[u8]) {
    let before = world.kernel.tail();
    assert_eq!(verdict(world, frame), (XDP_PASS, true), "{name}");
    assert_eq!(world.kernel.tail(), before, "{name}: the log was touched");
}

/// Returns the next update of a session, as a client sends it.
fn update(session: u64, seq: u64, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    Header {
        shard: SHARD,
        epoch: 1,
        session,
        seq,
        tag: TOKEN,
        ..Header::new(Kind::Update)
    }
    .write(payload, &mut bytes);
    bytes
}

/// Returns worlds, each with the client and the id of a session that the kernel serves.
fn worlds() -> Vec<(World, SocketAddr, u64)> {
    addresses()
        .into_iter()
        .map(|(device, client)| {
            let mut world = World::new(device, |_| ());
            let session = open(&mut world, client, TOKEN);
            (world, client, session)
        })
        .collect()
}

/// Checks that the pipeline takes this frame, from which the test makes all other frames.
fn is_taken(world: &World, frame: &[u8]) {
    let before = world.kernel.last();
    assert_eq!(verdict(world, frame), (XDP_TX, false));
    assert_eq!(world.kernel.last(), before + 1, "it was appended");
}

#[test]
fn every_packet_of_the_vectors_as_it_is() {
    if skipped() {
        return;
    }
    for (world, client, _) in worlds() {
        for (name, packet) in vectors() {
            passes(&world, &name, &frame(client, world.address, &packet));
        }
    }
}

/// The same packets, changed to the session, shard and epoch that the kernel serves: the kernel takes only the updates
/// among them.
#[test]
fn every_packet_of_the_vectors_in_a_session_that_is_served() {
    if skipped() {
        return;
    }
    for (world, client, session) in worlds() {
        let (mut seq, mut others) = (0, 0);
        for (name, packet) in vectors() {
            let Ok(parsed) = Packet::parse(&packet) else {
                continue;
            };
            let next = Header {
                shard: SHARD,
                epoch: 1,
                session,
                seq: seq + 1,
                tag: TOKEN,
                ..parsed.header
            };
            // The kernel takes an update only if all fields that a client does not set are 0.
            let update = next
                == Header {
                    shard: SHARD,
                    epoch: 1,
                    session,
                    seq: seq + 1,
                    tag: TOKEN,
                    key_hash: next.key_hash,
                    fragment_index: next.fragment_index,
                    fragment_count: next.fragment_count,
                    payload_len: next.payload_len,
                    payload_crc: next.payload_crc,
                    ..Header::new(Kind::Update)
                };
            seq += u64::from(update);
            let mut bytes = Vec::new();
            next.write(parsed.payload, &mut bytes);
            let frame = frame(client, world.address, &bytes);
            if update {
                is_taken(&world, &frame);
            } else {
                passes(&world, &name, &frame);
                others += 1;
            }
        }
        assert!(seq > 1 && others > 15, "{seq} updates, {others} others");
    }
}

#[test]
fn an_update_cut_short_or_followed_by_something() {
    if skipped() {
        return;
    }
    for (world, client, session) in worlds() {
        for payload in [&b""[..], &[7; 61]] {
            let seq = world.kernel.last().max(1);
            let whole = frame(client, world.address, &update(session, seq, payload));
            for length in ETHERNET_BYTES..whole.len() {
                passes(&world, &format!("{length} bytes"), &whole[..length]);
            }
            for more in [1, 4, 64] {
                let mut longer = whole.clone();
                longer.resize(whole.len() + more, 0);
                passes(&world, &format!("{more} bytes more"), &longer);
            }
            is_taken(&world, &whole);
        }
    }
}

/// Returns a frame with `inserted` at offset `at`.
fn with(frame: &[u8], at: usize, inserted: &[u8]) -> Vec<u8> {
    [&frame[..at], inserted, &frame[at..]].concat()
}

/// Returns a frame with some bytes replaced.
fn changed(frame: &[u8], at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut out = frame.to_vec();
    out[at..at + bytes.len()].copy_from_slice(bytes);
    out
}

/// Returns frames that each differ in one point from the frame of an update that the pipeline takes.
fn nearly(whole: &[u8], ipv6: bool) -> Vec<(&'static str, Vec<u8>)> {
    let vlan = [0x81, 0, 0, 5];
    let mut all = vec![
        ("a VLAN tag", with(whole, 12, &vlan)),
        (
            "two VLAN tags",
            with(&with(whole, 12, &vlan), 12, &[0x88, 0xa8, 0, 6]),
        ),
        ("another protocol", changed(whole, 12, &[0x88, 0xb5])),
        ("ARP", changed(whole, 12, &[8, 6])),
    ];
    if ipv6 {
        // The next header, the length after the first 8 bytes in units of 8 bytes, and padding.
        let options = |next| [next, 0, 1, 4, 0, 0, 0, 0];
        for (name, number) in [
            ("hop-by-hop options", 0),
            ("destination options", 60),
            ("a fragment header", 44),
        ] {
            let inserted = with(whole, 54, &options(17));
            let length = u16::from_be_bytes([whole[18], whole[19]]) + 8;
            let inserted = changed(&inserted, 18, &length.to_be_bytes());
            all.push((name, changed(&inserted, 20, &[number])));
        }
        all.push(("TCP", changed(whole, 20, &[6])));
        all.push(("ICMPv6", changed(whole, 20, &[58])));
        all.push(("another destination", changed(whole, 53, &[whole[53] ^ 1])));
        let all_nodes = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        let multicast = changed(whole, 38, &all_nodes);
        all.push((
            "multicast",
            changed(&multicast, 0, &[0x33, 0x33, 0, 0, 0, 1]),
        ));
    } else {
        let optioned = changed(&with(whole, 34, &[1, 1, 1, 1]), 14, &[0x46]);
        let length = u16::from_be_bytes([whole[16], whole[17]]) + 4;
        all.push(("IP options", changed(&optioned, 16, &length.to_be_bytes())));
        all.push(("a first fragment", changed(whole, 20, &[0x20, 0])));
        all.push(("a later fragment", changed(whole, 20, &[0x20, 0x10])));
        all.push(("a last fragment", changed(whole, 20, &[0, 0x10])));
        all.push(("a reserved bit", changed(whole, 20, &[0x80, 0])));
        all.push(("a header that is too short", changed(whole, 14, &[0x44])));
        all.push(("TCP", changed(whole, 23, &[6])));
        all.push(("ICMP", changed(whole, 23, &[1])));
        all.push(("another destination", changed(whole, 33, &[whole[33] ^ 1])));
        let multicast = changed(whole, 30, &[224, 0, 0, 1]);
        all.push(("multicast", changed(&multicast, 0, &[1, 0, 0x5e, 0, 0, 1])));
        let broadcast = changed(whole, 30, &[255; 4]);
        all.push(("broadcast", changed(&broadcast, 0, &[255; 6])));
    }
    let udp = if ipv6 { 54 } else { 34 };
    let length = u16::from_be_bytes([whole[udp + 4], whole[udp + 5]]);
    for (name, length) in [("a UDP length too small", 0), ("too large", length + 1)] {
        all.push((name, changed(whole, udp + 4, &length.to_be_bytes())));
    }
    all.push(("another port", changed(whole, udp + 2, &[0xc7, 0x39])));
    all.push(("another client's port", changed(whole, udp, &[0xc7, 0x39])));
    let source = if ipv6 { 37 } else { 29 };
    all.push((
        "another client",
        changed(whole, source, &[whole[source] ^ 1]),
    ));
    all.push(("the other family", changed(whole, 12, &other_family(ipv6))));
    all
}

fn other_family(ipv6: bool) -> [u8; 2] {
    if ipv6 { [8, 0] } else { [0x86, 0xdd] }
}

#[test]
fn frames_that_are_nearly_an_update() {
    if skipped() {
        return;
    }
    for (world, client, session) in worlds() {
        let whole = frame(client, world.address, &update(session, 1, b"payload"));
        let ipv6 = matches!(client.ip(), IpAddr::V6(_));
        for (name, frame) in nearly(&whole, ipv6) {
            assert_ne!(frame, whole, "{name}");
            passes(&world, name, &frame);
        }
        is_taken(&world, &whole);
    }
}

#[test]
fn frames_of_every_size() {
    if skipped() {
        return;
    }
    for (world, client, session) in worlds() {
        for size in [0, 1, 8, 1344, 1345, 1472, 2_000, 3_000] {
            let foreign: Vec<u8> = (0..size)
                .map(|at| u8::try_from(at % 251).unwrap())
                .collect();
            passes(
                &world,
                &format!("{size} bytes that are no packet"),
                &frame(client, world.address, &foreign),
            );
        }
        // The payload is longer than a fragment, and the header is otherwise correct.
        let mut large = update(session, 1, &[7; 1344]);
        large.extend([7; 1_000]);
        passes(
            &world,
            "a jumbo update",
            &frame(client, world.address, &large),
        );
        // A program that has not declared support for frames of several buffers gets only frames that fit into one
        // buffer. The kernel refuses to run the program with a larger frame, and to attach it to an interface where
        // larger frames may arrive.
        let jumbo = frame(client, world.address, &[7; 9_000]);
        let mut out = vec![0; 2 * jumbo.len()];
        let run = world
            .kernel
            .0
            .lock()
            .unwrap()
            .run(&jumbo, &mut out)
            .map(|(v, _)| v);
        assert!(run.is_err() || run.is_ok_and(|verdict| verdict == XDP_PASS));
        assert_eq!(world.kernel.last(), 1, "only the OPEN was appended");
    }
}
