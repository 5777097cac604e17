//! A region over a veth pair. A kept datagram stays in the buffer into which it was received, and is found there again.
//! The tests need root and iproute2. Without root and iproute2 the tests are skipped with a message; in CI the missing
//! parts are a failure.

#[path = "../../dataplane/tests/af_xdp/link.rs"]
mod link;
#[path = "../../../tests/shared/skip.rs"]
mod skip;

use std::net::{SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use link::{FAR, Link, NEAR, skipped};
use pmnet_packets::{Medium, Options, Packet, Places, Region, Transport};

const PORT: u16 = 7_000;
/// This time is far longer than any step of the tests takes.
const WAIT_MAX: Duration = Duration::from_secs(20);
/// Number of buffers of the region. The region keeps at most 152 datagrams, because 96 buffers are for the sockets and
/// 8 for copies.
const BUFFERS: u64 = 256;

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = PathBuf::from(format!("/dev/shm/pmnet-{name}-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn open(link: &Link, scratch: &Scratch) -> Region {
    let options = Options {
        path: scratch.0.clone(),
        medium: Medium::Memory,
        bytes: BUFFERS * 2048,
        interfaces: vec!["veth0".into()],
        listen: SocketAddr::from((NEAR, PORT)),
        transport: Transport::Udp,
    };
    link.near(|| Region::open(&options).unwrap())
}

fn client(link: &Link) -> UdpSocket {
    link.far(|| {
        let socket = UdpSocket::bind((FAR, 0)).unwrap();
        socket.set_read_timeout(Some(WAIT_MAX)).unwrap();
        socket.connect((NEAR, PORT)).unwrap();
        socket
    })
}

/// Returns the next packet.
fn next(region: &mut Region) -> Packet {
    let begun = Instant::now();
    let mut burst = Vec::new();
    while burst.is_empty() {
        assert!(begun.elapsed() < WAIT_MAX, "nothing comes");
        region.receive(Duration::from_secs(1), &mut burst).unwrap();
    }
    assert_eq!(burst.len(), 1, "one at a time");
    burst.pop().unwrap()
}

fn kept(region: &Region) -> Vec<(u64, u64, Vec<u8>)> {
    region
        .kept()
        .map(|one| (one.order, one.tag, one.bytes.to_vec()))
        .collect()
}

#[test]
fn what_is_kept_is_found_again_by_name() {
    if skipped() {
        return;
    }
    let (link, scratch) = (Link::new(), Scratch::new("kept"));
    let mut region = open(&link, &scratch);
    assert!(!region.is_zero_copy(), "a veth has no such mode");
    let client = client(&link);
    for (tag, word) in [(7, "first"), (0, "released"), (9, "third")] {
        client.send(word.as_bytes()).unwrap();
        let packet = next(&mut region);
        assert_eq!(packet.from(), client.local_addr().unwrap());
        assert_eq!(region.bytes(&packet), word.as_bytes());
        if tag == 0 {
            region.release(packet);
        } else {
            let place = region.bytes(&packet).as_ptr().addr();
            let order = region.keep(packet, tag).unwrap();
            let found = region.kept().find(|one| one.order == order).unwrap();
            assert_eq!(found.bytes.as_ptr().addr(), place, "where it was");
        }
    }
    assert_eq!(region.persist().unwrap(), 2);
    // The datagram is sent from its buffer, after headers that do not belong to the datagram.
    assert!(region.send_kept(client.local_addr().unwrap(), 1).unwrap());
    region.flush().unwrap();
    let mut buffer = [0; 64];
    let bytes = client.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[..bytes], b"first");
    let before = kept(&region);
    assert_eq!(
        before,
        [(1, 7, b"first".to_vec()), (2, 9, b"third".to_vec())]
    );
    // The process ends without having closed the region.
    drop(region);
    let mut region = open(&link, &scratch);
    assert_eq!(kept(&region), before);
    region.forget(1);
    region.close().unwrap();
    assert_eq!(kept(&open(&link, &scratch)), before[1..]);
}

#[test]
fn a_full_region_goes_on_when_something_is_forgotten() {
    if skipped() {
        return;
    }
    let (link, scratch) = (Link::new(), Scratch::new("full"));
    let mut region = open(&link, &scratch);
    let client = client(&link);
    let mut refused = 0;
    for number in 0..2_000_u64 {
        client.send(&number.to_be_bytes()).unwrap();
        let packet = next(&mut region);
        let order = match region.keep(packet, number) {
            Ok(order) => order,
            Err((_full, packet)) => {
                refused += 1;
                let oldest = region.kept().next().unwrap().order;
                region.persist().unwrap();
                region.forget(oldest + 99);
                region.persist().unwrap();
                region.persist().unwrap();
                region.keep(packet, number).unwrap()
            }
        };
        assert_eq!(order, number + 1);
        assert!(region.kept().count() <= 152);
    }
    assert!(refused > 10, "{refused}");
    for one in region.kept() {
        assert_eq!(
            (one.order, one.bytes),
            (one.tag + 1, &one.tag.to_be_bytes()[..])
        );
    }
}

#[test]
fn a_part_is_kept_where_it_lies_and_whoever_was_heard_is_answered() {
    if skipped() {
        return;
    }
    let (link, scratch) = (Link::new(), Scratch::new("part"));
    let mut region = open(&link, &scratch);
    let client = client(&link);
    client.send(b"head: body").unwrap();
    let packet = next(&mut region);
    let from = packet.from();
    assert!(!region.send(from, b"too early").unwrap());
    region.heard(&packet);
    assert!(region.send(from, b"an answer").unwrap());
    region.flush().unwrap();
    let mut buffer = [0; 64];
    let bytes = client.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[..bytes], b"an answer");
    let (_, packet) = region.keep_part(packet, 3..3, 1).unwrap_err();
    let place = region.bytes(&packet)[6..].as_ptr().addr();
    let order = region.keep_part(packet, 6..10, 5).unwrap();
    let found = region.find(order).unwrap();
    assert_eq!(
        (found.tag, found.bytes, found.bytes.as_ptr().addr()),
        (5, &b"body"[..], place)
    );
    assert_eq!(region.find(order + 1), None);
    region.persist().unwrap();
    drop(region);
    assert_eq!(kept(&open(&link, &scratch)), [(order, 5, b"body".to_vec())]);
}

/// Datagrams arrive as fast as the kernel sends them, and the test forgets no kept datagram. Every datagram is still
/// received and answered, and at the end no buffer is missing. `PMNET_SECONDS` is the duration in seconds (default 3).
#[test]
fn reception_goes_on_while_nobody_forgets_and_every_buffer_comes_back() {
    if skipped() {
        return;
    }
    let seconds = std::env::var("PMNET_SECONDS").map_or(3, |text| text.parse().unwrap());
    let (link, scratch) = (Link::new(), Scratch::new("away"));
    let mut region = open(&link, &scratch);
    let client = client(&link);
    let (mut heard, mut refused, mut burst) = (0_u64, 0_u64, Vec::new());
    let ended = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let end = Instant::now() + Duration::from_secs(seconds);
            while Instant::now() < end {
                client.send(&[1; 1_000]).unwrap();
            }
            // The last datagram is needed, but may get lost like any other.
            while !ended.load(Ordering::Relaxed) && end.elapsed() < WAIT_MAX {
                client.send(b"the last").unwrap();
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let begun = Instant::now();
        let mut last = false;
        while !last {
            assert!(begun.elapsed() < WAIT_MAX + Duration::from_secs(seconds));
            region.receive(Duration::from_secs(1), &mut burst).unwrap();
            for packet in burst.drain(..) {
                heard += 1;
                last |= region.bytes(&packet) == b"the last";
                let from = packet.from();
                if let Err((_full, packet)) = region.keep(packet, heard) {
                    refused += 1;
                    region.release(packet);
                }
                assert!(region.send(from, b"heard").unwrap());
            }
            region.persist().unwrap();
            region.flush().unwrap();
        }
        ended.store(true, Ordering::Relaxed);
    });
    println!("{heard} heard, {refused} of them when the region was full");
    assert_eq!(heard - refused, 152);
    assert!(refused > 1_000, "{refused}: not much of a load");
    // Releases datagrams that still arrive. Ends when no more arrive, and all buffers with sent datagrams have come
    // back.
    let settled = |region: &mut Region| {
        let begun = Instant::now();
        let mut burst = Vec::new();
        loop {
            assert!(begun.elapsed() < WAIT_MAX, "{:?}", region.buffers());
            region.receive(Duration::ZERO, &mut burst).unwrap();
            let nothing = burst.is_empty();
            burst.drain(..).for_each(|packet| region.release(packet));
            if nothing && region.buffers().sending == 0 {
                return region.buffers();
            }
        }
    };
    let full = Places {
        kept: 152 + 8,
        receiving: 64,
        sending: 0,
        held: 0,
        free: 32,
    };
    assert_eq!(settled(&mut region), full);
    region.forget(u64::MAX);
    region.persist().unwrap();
    region.persist().unwrap();
    let empty = Places {
        kept: 8,
        receiving: 64 + 152,
        ..full
    };
    assert_eq!(settled(&mut region), empty);
}

#[test]
fn what_cannot_be_is_refused() {
    if skipped() {
        return;
    }
    let (link, scratch) = (Link::new(), Scratch::new("refused"));
    let region = open(&link, &scratch);
    let with = |change: &dyn Fn(&mut Options)| {
        let mut options = Options {
            path: scratch.0.clone(),
            medium: Medium::Memory,
            bytes: 1 << 20,
            interfaces: vec!["veth0".into()],
            listen: SocketAddr::from((NEAR, PORT)),
            transport: Transport::Udp,
        };
        change(&mut options);
        link.near(|| Region::open(&options).err().expect("an error").to_string())
    };
    let other = Scratch::new("refused-other");
    let elsewhere = |options: &mut Options| options.path = other.0.clone();
    let in_use = with(&|_| {});
    assert!(in_use.contains("another process"), "{in_use}");
    let taken = with(&elsewhere);
    assert!(taken.contains("veth0"), "{taken}");
    let nowhere = with(&|options| {
        elsewhere(options);
        options.interfaces = vec!["veth9".into()];
    });
    assert!(nowhere.contains("veth9"), "{nowhere}");
    assert!(!other.0.exists(), "nothing is left of a refused start");
    let small = with(&|options| {
        options.path = other.0.with_extension("small");
        options.bytes = 100;
    });
    assert!(small.contains("at least 16"), "{small}");
    let few = with(&|options| {
        options.path = other.0.with_extension("few");
        options.bytes = 254 * 2048;
    });
    assert!(few.contains("need 256"), "{few}");
    for extension in ["small", "few"] {
        assert!(
            !other.0.with_extension(extension).exists(),
            "nothing was made"
        );
    }
    drop(region);
}
