//! pmnet without a Redis, as a new operator uses it. The address of the store gives no size, and clients work as with a
//! Redis.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use pmnet_lab::harness::{Medium, StoreKind, Topology, find_program};

use crate::clients::{repository, run, set_up};
use crate::common;

/// Maximum memory of a process with an empty store, in KiB.
const MEMORY_KIB_MAX: u64 = 64 << 10;
/// Longest time for a start while other programs use the machine. On an idle machine, a start takes a second.
const START_MAX: Duration = Duration::from_secs(8);

/// A running process with a store. The process is killed when this value is dropped.
struct Running {
    child: Child,
    /// The ready line of the process.
    ready: String,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _ended = self.child.wait();
    }
}

impl Running {
    /// Starts the process, and waits until it is ready. Also returns the duration.
    fn start(args: &[&str]) -> (Running, Duration) {
        let begun = Instant::now();
        let child = Command::new(common::pmnet())
            .args(args)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut running = Running {
            child,
            ready: String::new(),
        };
        let out = running.child.stdout.take().unwrap();
        let line = &mut running.ready;
        BufReader::new(out).read_line(line).unwrap();
        assert!(line.starts_with("ready"), "{args:?}: {line:?}");
        (running, begun.elapsed())
    }

    fn memory_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status
            .lines()
            .find(|line| line.starts_with("VmRSS"))
            .unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }
}

fn starts_small(args: &[&str], path: &Path, bytes: std::ops::RangeInclusive<u64>) {
    for time in ["made", "opened again"] {
        let (running, took) = Running::start(args);
        let memory = running.memory_kib();
        println!("{args:?} {time}: {took:?}, {memory} KiB");
        assert!(took < START_MAX, "{args:?} {time}: {took:?}");
        assert!(memory < MEMORY_KIB_MAX, "{args:?} {time}: {memory} KiB");
    }
    let length = std::fs::metadata(path).unwrap().len();
    assert!(bytes.contains(&length), "{args:?}: {length}");
}

/// A store without a size has 1 GiB. While the store is empty, it must start quickly, and must not need the memory of a
/// full store.
#[test]
fn a_store_without_a_size_starts_at_once_and_takes_little_memory() {
    let folder = tempfile::tempdir_in(common::folder()).unwrap();
    let path = |name: &str| -> PathBuf { folder.path().join(name) };
    let store = |name: &str| format!("packet:{}", path(name).display());
    let gigabyte = 900 << 20..=1 << 30;
    let (listen, region) = ("127.0.0.1:0", store("region"));
    let device = ["device", "--listen", "127.0.0.1:51877", "--store", &region];
    starts_small(&device, &path("region"), gigabyte.clone());
    let alone = store("alone");
    let server = ["server", "--listen", listen, "--store", &alone];
    starts_small(&server, &path("alone"), gigabyte);
    // A store with a size has this size.
    let sized = format!("{}?size=300M", store("sized"));
    let device = ["device", "--listen", "127.0.0.1:51877", "--store", &sized];
    starts_small(&device, &path("sized"), 299 << 20..=300 << 20);
}

fn port(store: StoreKind, name: &str) -> Option<(pmnet_lab::harness::Cluster, String)> {
    let cluster = common::start(name, Topology::new(store, 1, Medium::Dram))?;
    let port = cluster.endpoint().unwrap().port().to_string();
    Some((cluster, port))
}

#[test]
fn ioredis() {
    set_up("node");
    let modules = repository().join("target/node/node_modules/ioredis");
    let Some(program) = find_program("node").filter(|_| modules.is_dir()) else {
        return common::skip("node with ioredis is not installed (make setup)");
    };
    for (store, name) in [
        (StoreKind::Region, "io-region"),
        (StoreKind::Packet, "io-packet"),
    ] {
        let Some((_cluster, port)) = port(store, name) else {
            return;
        };
        let text = run(&program, &["tests/programs/embedded.js", &port]);
        assert!(text.contains("all good"), "{name}: {text}");
    }
}

#[test]
fn redis_py() {
    set_up("python");
    let python = repository().join("target/venv/bin/python");
    if !python.is_file() {
        return common::skip("redis-py is not installed (make setup)");
    }
    let Some((_cluster, port)) = port(StoreKind::Region, "py-region") else {
        return;
    };
    let text = run(&python, &["tests/programs/embedded.py", &port]);
    assert!(text.contains("all good"), "{text}");
}

/// WATCH and blocking commands, with two fronts of one device, for each embedded store.
#[test]
fn watch_and_blocking_pops_work_without_a_redis() {
    set_up("python");
    let python = repository().join("target/venv/bin/python");
    if !python.is_file() {
        return common::skip("redis-py is not installed (make setup)");
    }
    for (store, name) in [
        (StoreKind::Region, "waits-region"),
        (StoreKind::Packet, "waits-packet"),
    ] {
        let Some((cluster, port)) = port(store, name) else {
            return;
        };
        let via = cluster.head().unwrap().to_string();
        let key = cluster.keys().unwrap().front.to_str().unwrap();
        let front = [
            "redis",
            "--listen",
            "127.0.0.1:0",
            "--via",
            &via,
            "--key",
            key,
        ];
        let (front, _) = Running::start(&front);
        let second = front.ready.split_whitespace();
        let second = second
            .filter_map(|word| word.strip_prefix("listen=127.0.0.1:"))
            .next();
        let second = second.expect(&front.ready);
        let text = run(
            &python,
            &["tests/programs/embedded_waits.py", &port, second],
        );
        println!("{name}: {text}");
        assert!(text.contains("all good"), "{name}: {text}");
    }
}
