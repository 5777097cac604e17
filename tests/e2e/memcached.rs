//! The memcached front. The front's answers are compared with those of a real memcached. While processes are killed,
//! nothing may be lost or done twice.

#[path = "../shared/memcached.rs"]
mod shared;

use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pmnet_lab::harness::{
    Cluster, Medium, Process, Ready, Role, Spec, StoreKind, Topology, find_program,
};

use crate::clients;
use crate::common::{self, binaries, skip};
use crate::support::{eventually, kill_for, seed, with_key};
use shared::{Caller, Known, Memcached, Script};

const READY_MAX: Duration = Duration::from_secs(15);
const EXCHANGES: usize = 600;
const TOGETHER: usize = 6;
const WORKERS: usize = 4;
const LOAD: Duration = Duration::from_secs(15);
const KILL_INTERVAL: Duration = Duration::from_millis(400);

/// A cluster with a memcached front.
struct Fronted {
    // The front is dropped first.
    front: Process,
    address: SocketAddr,
    udp: SocketAddr,
    cluster: Cluster,
}

fn start(name: &str, store: StoreKind, devices: usize) -> Option<Fronted> {
    let mut topology = Topology::new(store, devices, Medium::Dram);
    topology.front = false;
    topology.store_size = Some("384M");
    let cluster = common::start(name, topology)?;
    let via = cluster.head().unwrap().to_string();
    let args = [
        "memcached",
        "--listen",
        "127.0.0.1:0",
        "--udp",
        "127.0.0.1:0",
        "--via",
        &via,
        "--json",
    ];
    let spec = Spec {
        name: "memcached".into(),
        binaries: binaries().clone(),
        program: None,
        args: with_key(cluster.folder(), &args),
        ready: Ready::Line,
    };
    let front = Process::start(spec, cluster.folder(), READY_MAX).unwrap();
    let ready: serde_json::Value =
        serde_json::from_str(front.stdout().lines().next().unwrap()).unwrap();
    let address = |name: &str| ready[name].as_str().unwrap().parse().unwrap();
    Some(Fronted {
        address: address("listen"),
        udp: address("udp"),
        front,
        cluster,
    })
}

fn beside_memcached(name: &str, store: StoreKind) {
    let Some(theirs) = Memcached::start() else {
        return skip("memcached is not installed");
    };
    let Some(fronted) = start(name, store, 1) else {
        return;
    };
    let seed = seed();
    let mut callers = [
        Caller::connect(fronted.address),
        Caller::connect(theirs.address),
    ];
    let mut known = [Known::default(), Known::default()];
    let mut script = Script::new(seed);
    for number in 0..EXCHANGES {
        let commands = script.together(TOGETHER);
        let [ours, wanted] = [0, 1].map(|side: usize| {
            let answer = callers[side]
                .exchange(&known[side].render(&commands))
                .unwrap();
            known[side].normalise(&answer)
        });
        let sent = known[0].render(&commands);
        assert_eq!(
            ours,
            wanted,
            "exchange {number}, seed {seed}: {}",
            sent.escape_ascii()
        );
    }
}

#[test]
fn over_redis_the_answers_are_those_of_memcached() {
    beside_memcached("memcached-redis", StoreKind::Redis);
}

#[test]
fn over_a_packet_store_the_answers_are_those_of_memcached() {
    beside_memcached("memcached-packet", StoreKind::Packet);
}

#[test]
fn in_a_region_the_answers_are_those_of_memcached() {
    beside_memcached("memcached-region", StoreKind::Region);
}

/// What a worker knows at its end.
#[derive(Default)]
struct Seen {
    /// For each key: the last acknowledged value, and the later values with unknown outcome.
    values: BTreeMap<String, (Option<u64>, Vec<u64>)>,
    /// For each counter: the increments that were answered, and those that may have happened.
    counts: Vec<u64>,
    unknown: u64,
}

/// Sets, reads and counts until `ended` is set.
fn work(worker: usize, address: SocketAddr, ended: &AtomicBool) -> Seen {
    let mut caller = Caller::connect(address);
    let mut seen = Seen::default();
    let mut number = 0;
    while !ended.load(Ordering::Acquire) {
        number += 1;
        let key = format!("w{worker}:{}", number % 7);
        let text = number.to_string();
        let command = format!("set {key} 0 0 {}\r\n{text}\r\n", text.len());
        let answer = caller.exchange(command.as_bytes()).unwrap();
        let (last, maybe) = seen.values.entry(key.clone()).or_default();
        match &answer[..] {
            b"STORED\r\n" => (*last, *maybe) = (Some(number), Vec::new()),
            refused => {
                assert!(
                    refused.starts_with(b"SERVER_ERROR pmnet: "),
                    "{}",
                    refused.escape_ascii()
                );
                maybe.push(number);
            }
        }
        let answer = caller
            .exchange(format!("get {key}\r\n").as_bytes())
            .unwrap();
        if !answer.starts_with(b"SERVER_ERROR") {
            let value = value(&answer);
            assert!(
                value == *last || value.is_some_and(|value| maybe.contains(&value)),
                "{key}: {value:?}, {last:?}"
            );
        }
        let answer = caller.exchange(b"incr counter 1\r\n").unwrap();
        match std::str::from_utf8(&answer).unwrap().trim_end().parse() {
            Ok(count) => seen.counts.push(count),
            Err(_) if answer.ends_with(b"once\r\n") => seen.unknown += 1,
            Err(_) => assert!(
                answer.starts_with(b"SERVER_ERROR"),
                "{}",
                answer.escape_ascii()
            ),
        }
    }
    seen
}

/// Returns the number in the answer to `get`.
fn value(answer: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(answer).unwrap();
    let mut lines = text.split("\r\n");
    lines.next().filter(|line| line.starts_with("VALUE "))?;
    lines.next()?.parse().ok()
}

fn under_kills(name: &str, store: StoreKind, victims: &[Role]) {
    let Some(mut fronted) = start(name, store, 2) else {
        return;
    };
    let seed = seed();
    let address = fronted.address;
    let mut caller = Caller::connect(address);
    assert_eq!(
        caller.exchange(b"set counter 0 0 1\r\n0\r\n").unwrap(),
        b"STORED\r\n"
    );
    let ended = AtomicBool::new(false);
    let (results, kills) = std::thread::scope(|scope| {
        let ended = &ended;
        let threads: Vec<_> = (0..WORKERS)
            .map(|worker| scope.spawn(move || work(worker, address, ended)))
            .collect();
        let kills = kill_for(
            &mut fronted.cluster,
            victims,
            LOAD,
            KILL_INTERVAL,
            seed,
            ended,
        );
        let results: Vec<Seen> = threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect();
        (results, kills)
    });
    assert!(kills >= 10, "only {kills} kills");
    let mut counts: Vec<u64> = results
        .iter()
        .flat_map(|seen| seen.counts.clone())
        .collect();
    let unknown: u64 = results.iter().map(|seen| seen.unknown).sum();
    println!(
        "{kills} kills, {} counts, {unknown} of unknown outcome",
        counts.len()
    );
    let answered = counts.len();
    counts.sort_unstable();
    counts.dedup();
    assert_eq!(counts.len(), answered, "two increments got one number");
    let mut last = None;
    eventually("the store answers", Duration::from_secs(60), || {
        last = value(&caller.exchange(b"get counter\r\n").unwrap());
        last.is_some()
    });
    let (last, least) = (last.unwrap(), u64::try_from(answered).unwrap());
    assert!(
        (least..=least + unknown).contains(&last),
        "{last}: {least} and {unknown}"
    );
    assert!(counts.last().is_none_or(|greatest| *greatest <= last));
    let mut sets = 0;
    for (key, (acknowledged, maybe)) in results.iter().flat_map(|seen| &seen.values) {
        let found = value(
            &caller
                .exchange(format!("get {key}\r\n").as_bytes())
                .unwrap(),
        );
        assert!(
            found == *acknowledged || found.is_some_and(|found| maybe.contains(&found)),
            "{key}: {found:?}"
        );
        sets += 1;
    }
    assert!(answered > 100 && sets >= WORKERS * 7, "{answered} {sets}");
    assert!(
        fronted.front.stop().unwrap(),
        "the front ends in good order"
    );
}

#[test]
fn over_redis_nothing_is_lost_or_done_twice() {
    let victims = [Role::Device(0), Role::Device(1), Role::Server, Role::Redis];
    under_kills("memcached-kills", StoreKind::Redis, &victims);
}

#[test]
fn over_a_packet_store_nothing_is_lost_or_done_twice() {
    let victims = [Role::Device(0), Role::Device(1), Role::Server];
    under_kills("memcached-kills-packet", StoreKind::Packet, &victims);
}

/// Sends a request over UDP. Returns the text of the answer.
fn ask(socket: &UdpSocket, to: SocketAddr, header: [u8; 8], text: &[u8]) -> Option<Vec<u8>> {
    socket.send_to(&[&header, text].concat(), to).unwrap();
    let (mut answer, mut wanted) = (BTreeMap::new(), 1);
    let mut buffer = [0; 2000];
    while answer.len() < wanted {
        let (count, _) = socket.recv_from(&mut buffer).ok()?;
        let datagram = &buffer[..count];
        assert!(
            count <= 1400 && datagram[..2] == header[..2],
            "{datagram:?}"
        );
        let field = |at: usize| u16::from_be_bytes([datagram[at], datagram[at + 1]]);
        wanted = field(4).into();
        answer.insert(field(2), datagram[8..].to_vec());
    }
    Some(answer.into_values().collect::<Vec<_>>().concat())
}

#[test]
fn requests_over_udp_are_one_datagram() {
    let Some(fronted) = start("memcached-udp", StoreKind::Packet, 1) else {
        return;
    };
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(5)))
        .unwrap();
    let whole = [0x12, 0x34, 0, 0, 0, 1, 0, 0];
    let say = |text: &[u8]| ask(&socket, fronted.udp, whole, text).unwrap();
    assert_eq!(say(b"set k 5 0 3\r\nabc\r\n"), b"STORED\r\n");
    assert_eq!(say(b"get k\r\n"), b"VALUE k 5 3\r\nabc\r\nEND\r\n");
    assert_eq!(
        say(b"incr none 1\r\nversion\r\n"),
        b"NOT_FOUND\r\nVERSION 1.6.18-pmnet\r\n"
    );
    let large = vec![b'x'; 50_000];
    assert_eq!(
        say(&[&b"set l 0 0 50000\r\n"[..], &large, b"\r\n"].concat()),
        b"STORED\r\n"
    );
    assert_eq!(
        say(b"get l\r\n").len(),
        "VALUE l 0 50000\r\n\r\nEND\r\n".len() + 50_000
    );
    let piece = [0x12, 0x35, 0, 0, 0, 2, 0, 0];
    let refused = ask(&socket, fronted.udp, piece, b"get k").unwrap();
    assert_eq!(
        refused,
        b"SERVER_ERROR multi-packet request not supported\r\n"
    );
    // An incomplete command, an unknown command, and bytes without a frame header must be dropped.
    socket
        .set_read_timeout(Some(Duration::from_millis(300)))
        .unwrap();
    assert_eq!(ask(&socket, fronted.udp, whole, b"set k 0 0 9\r\nab"), None);
    assert_eq!(ask(&socket, fronted.udp, whole, b"ERROR\r\n"), None);
    assert_eq!(ask(&socket, fronted.udp, [0; 8], b"get k\r\n"), None);
    let stats = Caller::connect(fronted.address)
        .exchange(b"stats\r\n")
        .unwrap();
    let stats = String::from_utf8(stats).unwrap();
    assert!(stats.contains("STAT datagrams_dropped 4\r\n"), "{stats}");
}

/// pymemcache and pylibmc must get the same results as from a memcached.
#[test]
fn clients_for_python_are_told_what_memcached_tells_them() {
    clients::set_up("python");
    let python = clients::repository().join("target/venv/bin/python");
    if !python.is_file() {
        return skip("there is no target/venv (make setup)");
    }
    let Some(theirs) = Memcached::start() else {
        return skip("memcached is not installed");
    };
    let Some(fronted) = start("memcached-clients", StoreKind::Redis, 1) else {
        return;
    };
    let places = [fronted.address, theirs.address].map(|address| address.to_string());
    let program = "tests/programs/memcached_clients.py";
    let said = clients::run(&python, &[program, &places[0], &places[1]]);
    assert!(said.ends_with("all good\n"), "{said}");
    println!("{said}");
}

#[test]
fn memccapable_finds_what_it_looks_for() {
    if find_program("memccapable").is_none() {
        return skip("memccapable (libmemcached-tools) is not installed");
    }
    let Some(fronted) = start("memccapable", StoreKind::Packet, 1) else {
        return;
    };
    let (host, port) = (
        fronted.address.ip().to_string(),
        fronted.address.port().to_string(),
    );
    let output = std::process::Command::new("timeout")
        .args(["60", "memccapable", "-a", "-h", &host, "-p", &port])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && said.contains("All tests passed"),
        "{said}"
    );
}
