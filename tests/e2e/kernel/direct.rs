//! A device that bypasses the kernel's network stack. The device's AF_XDP sockets receive directly into the log
//! (`docs/spec/packet-buffers.md`).

mod shards;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::{Duration, Instant};

use pmnet_dataplane::direct::knows_busy_poll;
use pmnet_lab::harness::find_program;
use pmnet_lab::resp::{Client, Reply};
use socket2::{Domain, Protocol, Socket, Type};

use super::load::Writer;
use super::traffic::{RAW, arrives, bulk, bytes, packets, socket};
use super::world::{Place, Plan, READY_MAX, World};
use super::{CALL_MAX, load};
use crate::{common, support::eventually};

/// Number of huge pages of 2 MiB that a log of the default size needs, with a reserve.
const HUGE_PAGES: u64 = 48;

fn plan(place: Place, media: &'static str) -> Plan {
    Plan {
        direct: Some(media),
        ..Plan::new(place)
    }
}

/// Processes die in every order, and no acknowledged update may be missing.
fn survives(plan: Plan) {
    let copies = u8::try_from(1 + plan.followers).unwrap();
    let Some(mut world) = World::start(plan) else {
        return;
    };
    let mut writer = world.session(CALL_MAX);
    writer.sets(200, copies);
    world.kill("server");
    writer.sets(200, copies);
    world.kill("device");
    world.process("server").relaunch().unwrap();
    world.restart("device");
    writer.sets(200, copies);
    world.check(&writer);
}

#[test]
fn whoever_is_killed_nothing_is_lost() {
    for media in ["dram", "file"] {
        survives(plan(Place::Nic, media));
        survives(plan(Place::Router, media));
    }
}

#[test]
fn over_ipv6_and_as_the_head_of_a_chain() {
    survives(Plan {
        ipv6: true,
        ..plan(Place::Router, "dram")
    });
    survives(Plan {
        followers: 1,
        ..plan(Place::Router, "dram")
    });
}

/// The device polls the drivers instead of using interrupts.
#[test]
fn with_busy_polling() {
    if !knows_busy_poll() {
        return common::skip("this kernel has no busy polling");
    }
    survives(Plan {
        args: vec!["--busy-poll".into()],
        ..plan(Place::Router, "dram")
    });
}

/// The device is also the server of its shard. The packets in their buffers become the store's records.
#[test]
fn packets_become_records_where_they_are_received() {
    for media in ["dram", "file"] {
        let Some(mut world) = World::start(Plan {
            region: true,
            ..plan(Place::Nic, media)
        }) else {
            return;
        };
        let front = world.start_front();
        let connect =
            |world: &World| world.inside("client1", || Client::connect(front, CALL_MAX).unwrap());
        let mut client = connect(&world);
        let value = |at: usize| -> Vec<u8> {
            let mut value = format!("{media}:{at}:").into_bytes();
            value.resize(1000, b'v');
            value
        };
        for at in 0..200 {
            let key = format!("key:{at}");
            let ok = client.call(&[b"SET", key.as_bytes(), &value(at)]).unwrap();
            assert_eq!(ok, Reply::Status(b"OK".to_vec()));
            client.call(&["INCR", "count"]).unwrap();
            if at % 70 == 50 {
                world.kill("device");
                world.restart("device");
            }
        }
        // A reply of the server shows that all earlier updates are applied.
        assert_eq!(
            client.call(&["INCR", "count"]).unwrap(),
            Reply::Integer(201)
        );
        for at in 0..200 {
            let read = client.call(&["GET", &format!("key:{at}")]).unwrap();
            assert_eq!(read, Reply::Bulk(value(at)), "{at}");
        }
        world.kill("device");
        let region = world.log().into_os_string();
        let args = ["store", "stat", "--json"].map(Into::into);
        let shown = world.run(common::pmnet(), args.into_iter().chain([region]).collect());
        let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
        assert_eq!(shown["records_in_packets"], 200, "{media}: {shown}");
        world.restart("device");
        let read = connect(&world).call(&["GET", "key:7"]).unwrap();
        assert_eq!(read, Reply::Bulk(value(7)));
    }
}

#[test]
fn killed_every_second() {
    for media in ["dram", "file"] {
        let Some(mut world) = World::start(plan(Place::Nic, media)) else {
            return;
        };
        let mut kills = 0;
        world.checked(load(5, 0), |world, _| {
            world.kill("device");
            std::thread::sleep(Duration::from_millis(100));
            world.restart("device");
            kills += 1;
        });
        assert!(kills >= 2, "{kills} kills");
    }
}

/// The log is full of entries that are not applied. The device must continue to receive, and afterwards the device must
/// be able to use every buffer again.
#[test]
fn a_full_log_goes_on_receiving() {
    for place in [Place::Nic, Place::Router] {
        full(plan(place, "dram"));
    }
}

fn full(mut plan: Plan) {
    // A log of 512K has 256 buffers, of which at most 152 can be live.
    plan.args = ["--log-size", "512K"].map(String::from).to_vec();
    let Some(mut world) = World::start(plan) else {
        return;
    };
    let mut writer = world.session(CALL_MAX);
    writer.sets(10, 1);
    let mut short = world.session(Duration::from_secs(1));
    world.kill("server");
    let mut logged = 0;
    while short.set().is_ok() {
        logged += 1;
        assert!(logged < 400, "more than the log holds");
    }
    assert!(
        (120..=152).contains(&logged),
        "{logged} before the log was full"
    );
    // The device still receives all packets: it answers, although it cannot acknowledge.
    for _ in 0..3 {
        short.set().unwrap_err();
    }
    world.restart("server");
    // The test sends ten times as many updates as there are buffers. Some updates find the log full again, and go to
    // the server.
    for _ in 0..2_500 {
        writer.set().unwrap();
    }
    world.settle();
    writer.sets(50, 1);
    world.check(&writer);
    for (key, value) in &short.acknowledged {
        let found = world.redis().call(&["GET", key]).unwrap();
        let value = value.clone().into_bytes();
        assert_eq!(found, pmnet_lab::resp::Reply::Bulk(value), "{key}");
    }
}

/// The server is stopped for `seconds` while clients continue, each with one call after the other. The device
/// acknowledges as many updates as the log can hold, and still receives all others. Afterwards the log must be able to
/// hold equally many updates again, which shows that no buffer is lost.
fn away(seconds: u64) {
    const CLIENTS: usize = 16;
    let mut plan = plan(Place::Router, "dram");
    plan.args = ["--log-size", "512K"].map(String::from).to_vec();
    let Some(mut world) = World::start(plan) else {
        return;
    };
    let mut writer = world.session(CALL_MAX);
    writer.sets(10, 1);
    // A session that is opened while the server cannot answer would wait.
    let short = |world: &World| world.session(Duration::from_millis(300));
    let writers: Vec<Writer> = (0..CLIENTS).map(|_| short(&world)).collect();
    world.kill("server");
    let end = Instant::now() + Duration::from_secs(seconds);
    let (mut writers, calls) = std::thread::scope(|scope| {
        let threads: Vec<_> = writers
            .into_iter()
            .map(|mut writer| {
                scope.spawn(move || {
                    let mut calls = 0_u64;
                    while Instant::now() < end {
                        // The call is acknowledged, or its outcome is unknown. Both results are answers in time.
                        let _ = writer.set();
                        calls += 1;
                    }
                    (writer, calls)
                })
            })
            .collect();
        let ended = threads.into_iter().map(|thread| thread.join().unwrap());
        let (writers, calls): (Vec<_>, Vec<_>) = ended.unzip();
        (writers, calls.iter().sum::<u64>())
    });
    let logged: usize = writers.iter().map(|one| one.acknowledged.len()).sum();
    println!("{calls} calls in {seconds} s without a server, {logged} acknowledged");
    assert!((100..=152).contains(&logged), "{logged} were acknowledged");
    world.restart("server");
    world.settle();
    // Some of the following updates find the log full again, and go to the server.
    for _ in 0..2_000 {
        writer.set().unwrap();
    }
    for writer in &mut writers {
        world.check(writer);
    }
    let mut again = world.session(Duration::from_secs(1));
    world.settle();
    world.kill("server");
    let mut logged = 0;
    while again.set().is_ok() {
        logged += 1;
        assert!(logged < 400, "more than the log holds");
    }
    assert!(
        (120..=152).contains(&logged),
        "only {logged} the second time"
    );
    world.restart("server");
    world.check(&again);
    world.check(&writer);
}

#[test]
fn the_server_is_away_under_load() {
    away(4);
}

#[test]
#[ignore = "a minute: make kernel"]
fn the_server_is_away_for_a_minute_under_load() {
    away(60);
}

/// Huge pages of this machine, with a mount for them. One test at a time can have these pages. The pages are released
/// when this value is dropped.
struct HugePages {
    folder: tempfile::TempDir,
    reserved: u64,
    _alone: std::fs::File,
}

const RESERVED: &str = "/proc/sys/vm/nr_hugepages";

fn reserved() -> u64 {
    let pages = std::fs::read_to_string(RESERVED).unwrap();
    pages.trim().parse().unwrap()
}

impl HugePages {
    /// Reserves and mounts the pages. An error says what is missing.
    fn new() -> Result<HugePages, String> {
        let alone = std::fs::File::create("/tmp/pmnet-huge-pages.lock").unwrap();
        alone.lock().unwrap();
        let before = reserved();
        std::fs::write(RESERVED, (before + HUGE_PAGES).to_string())
            .map_err(|error| format!("huge pages cannot be reserved: {error}"))?;
        let folder = tempfile::tempdir().unwrap();
        let mut mount = std::process::Command::new("mount");
        mount.args(["-t", "hugetlbfs", "none"]).arg(folder.path());
        let mounted = mount.status().unwrap();
        // From here on, the drop of `pages` releases the reserved pages.
        let pages = HugePages {
            folder,
            reserved: reserved() - before,
            _alone: alone,
        };
        let got = pages.reserved;
        if mounted.success() && got == HUGE_PAGES {
            Ok(pages)
        } else {
            Err(format!("{got} of {HUGE_PAGES} huge pages, {mounted}"))
        }
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        let mut unmount = std::process::Command::new("umount");
        let unmounted = unmount.arg(self.folder.path()).status();
        let left = std::fs::write(RESERVED, (reserved() - self.reserved).to_string());
        if !std::thread::panicking() {
            assert!(unmounted.unwrap().success());
            left.unwrap();
        }
    }
}

/// Runs the tests above on memory of hugetlbfs.
#[test]
fn on_huge_pages() {
    match HugePages::new() {
        Ok(pages) => survives(Plan {
            folder: Some(pages.folder.path().to_owned()),
            ..plan(Place::Router, "dram")
        }),
        Err(missing) => common::skip(&missing),
    }
}

/// A client's machine sends a packet with the next hop's address and without a valid token, and the link to the next
/// hop goes down for a moment. Neither may misdirect packets for long, and the device must continue.
#[test]
fn a_forged_packet_and_a_link_that_is_down_change_little() {
    let Some(mut world) = World::start(plan(Place::Router, "dram")) else {
        return;
    };
    let mut writer = world.session(Duration::from_secs(5));
    writer.sets(20, 1);
    let next: SocketAddrV4 = "10.51.0.200:51500".parse().unwrap();
    let SocketAddr::V4(head) = world.head() else {
        panic!("IPv4");
    };
    let raw = world.inside("client1", || {
        Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(RAW))).unwrap()
    });
    for _ in 0..5 {
        let forged = [b"PM\x01".to_vec(), vec![0; 85]].concat();
        for packet in packets(next, head, &forged, &[], 65_528) {
            raw.send_to(&packet, &SocketAddr::V4(head).into()).unwrap();
        }
        // The update has to pass the next hop, and must be answered in time.
        writer.sets(1, 1);
        writer.read().unwrap();
    }
    for state in ["down", "up"] {
        let args = ["link", "set", "server", state].map(Into::into);
        let ip = find_program("ip").unwrap();
        assert!(world.run(&ip, args.to_vec()).status.success());
        writer.sets(20, 1);
    }
    eventually("the next hop is reached again", READY_MAX, || {
        writer.read().is_ok()
    });
    world.check(&writer);
    assert!(world.process("device").exited().unwrap().is_none());
}

#[test]
fn everything_else_goes_to_the_stack() {
    let mut plan = plan(Place::Nic, "dram");
    // In this test another program has the device's TCP port.
    plan.args.push("--no-ctl".into());
    let Some(mut world) = World::start(plan) else {
        return;
    };
    assert!(world.has_program());
    let mut writer = world.session(CALL_MAX);
    let server = Ipv4Addr::new(10, 51, 0, 200);
    bulk(&world, SocketAddr::from((server, 7_000)));
    bulk(&world, SocketAddr::new(server.into(), world.head().port()));
    let from = socket(&world, "client1", SocketAddr::from(([10, 51, 0, 1], 0)));
    for port in [53, 50_999, 51_001] {
        let to = SocketAddr::new(IpAddr::from(server), port);
        let to = socket(&world, "server", to);
        for len in [0, 1, 88, 1_432, 1_473, 9_000] {
            arrives(&from, &to, &bytes(len));
        }
    }
    writer.sets(50, 1);
    // After the device's end, the interface must have its former state.
    world.stop("device");
    assert!(!world.has_program());
}

#[test]
fn what_cannot_be_is_refused_with_a_sentence() {
    let Some(mut world) = World::without_device(plan(Place::Nic, "dram")) else {
        return;
    };
    let refused = |world: &World, more: &[&str], sentence: &str| {
        let (good, said) = world.device_with(more);
        assert!(!good && said.contains(sentence), "{more:?}: {said}");
    };
    refused(&world, &["--log-size", "256K"], "need 256");
    assert!(
        !world.log().exists(),
        "no log is made that could not be used"
    );
    refused(&world, &["--dev", "nothing0"], "nothing0");
    refused(&world, &["--zero-copy", "always"], "has no such mode");
    refused(&world, &["--busy-poll", "0"], "1 to 10000 microseconds");
    assert!(!world.log().exists(), "what was made is taken back");
    assert!(!world.has_program(), "what was begun is taken back");
    // A log that was made in another mode is refused.
    let here = SocketAddr::from(([10, 51, 0, 200], 51_009));
    world.start_relay(0, here, SocketAddr::from(([10, 51, 0, 200], 51_010)));
    let ring = world.scratch().memory().join("relay1.log");
    eventually("a relay has made its log", READY_MAX, || ring.exists());
    world.kill("relay1");
    refused(
        &world,
        &["--log", ring.to_str().unwrap()],
        "needs packet buffers",
    );
    let mtu = |bytes: &str| {
        let args = ["link", "set", "eth0", "mtu", bytes].map(Into::into);
        let ip = find_program("ip").unwrap();
        assert!(world.run(&ip, args.to_vec()).status.success());
    };
    mtu("3000");
    refused(&world, &[], "mtu 1500");
    mtu("1500");
    world.start_device();
    world.wait_ready("device");
    let log = world.scratch().memory().join("other.log");
    let other = [
        "--log",
        log.to_str().unwrap(),
        "--listen",
        "10.51.0.200:51007",
    ];
    refused(&world, &other, "eth0");
    let mut writer = world.session(CALL_MAX);
    writer.sets(10, 1);
}
