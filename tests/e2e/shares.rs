//! Shares of fronts (`docs/spec/protocol.md` §4, "Shares"). A front with a valid key floods the log. The other fronts
//! must keep their shares.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pmnet_lab::check::{Ledger, verify};
use pmnet_lab::harness::{
    Cluster, Medium, Process, Ready, Role, Spec, StoreKind, Topology, free_port, settle,
};
use pmnet_lab::load::{CheckedOptions, Hooks, Mix, Op, Options, Outcome, Record, Workload, run};
use rustix::process::Signal;

use crate::common::{binaries, pmnet, start};
use crate::status::{Metrics, checked_load, place, shown};
use crate::support::{SetOnDrop, eventually};

/// Number of entries of the log. The log is small, so that the flood fills its part quickly.
const ENTRIES: u32 = 1024;
/// Time within which the flood fills its part of the log.
const FILLS: Duration = Duration::from_secs(30);
const READY_MAX: Duration = Duration::from_secs(10);
/// Number of connections of the other front, and number of writes per second over all of them.
const WRITERS: (usize, u32) = (8, 40);
/// Number of writes of the other front that devices must acknowledge while the store is stopped and the flood is
/// refused. This number is less than the quarter of the log that the flood leaves free.
const EARLY: u64 = 100;
/// Time within which the devices must acknowledge the other front's writes. This time is shorter than the deadline of a
/// call.
const EARLY_MAX: Duration = Duration::from_secs(6);
const CHECKED: Duration = Duration::from_secs(4);
/// Longest wait of a call, even while the store is stopped.
const DEADLINE: Duration = Duration::from_secs(60);
/// Number of connections of the flood, and number of commands in flight on each.
const FLOOD: (usize, usize) = (64, 32);

/// Starts a second front of the cluster, which has a key of its own.
fn other_front(cluster: &Cluster, name: &str) -> (Process, SocketAddr) {
    let keys = cluster.keys().expect("the cluster has keys");
    let key = cluster.folder().join(format!("{name}.key"));
    let made = Command::new(pmnet())
        .args(["key", "front", name, "--of"])
        .args([&keys.cluster, &key])
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    front_with(cluster, name, &key)
}

fn front_with(cluster: &Cluster, name: &str, key: &Path) -> (Process, SocketAddr) {
    let listen = SocketAddr::from(([127, 0, 0, 1], free_port().unwrap()));
    let (at, via) = (listen.to_string(), cluster.head().unwrap().to_string());
    let words = [
        "redis",
        "--listen",
        &at,
        "--via",
        &via,
        "--anyone-may-connect",
        "--status",
        "127.0.0.1:0",
        "--key",
        key.to_str().unwrap(),
    ];
    let spec = Spec {
        name: name.into(),
        binaries: binaries().clone(),
        program: None,
        args: words.map(Into::into).to_vec(),
        ready: Ready::Line,
    };
    let front = Process::start(spec, cluster.folder(), READY_MAX).unwrap();
    (front, listen)
}

/// Sends SETs until `over` is set, and counts those that are acknowledged.
fn write(mut options: Options, name: &str, acknowledged: &AtomicU64, over: &AtomicBool) {
    options.duration = DEADLINE;
    options.deadline = DEADLINE;
    let Workload::Mix { prefix, mix, .. } = &mut options.workload else {
        unreachable!("the default")
    };
    (*prefix, *mix) = (format!("{name}:"), Mix::only(Op::Set));
    let mut record = |record: &Record| {
        acknowledged.fetch_add(u64::from(record.outcome == Outcome::Ok), Ordering::Relaxed);
        Ok(())
    };
    let hooks = Hooks {
        record: Some(&mut record),
        progress: None,
    };
    let summary = run(&options, hooks, over).unwrap();
    assert_eq!(summary.failed, 0, "{name}: {:?}", summary.errors);
}

/// Runs checked load through the cluster's own front.
fn checked(cluster: &Cluster) -> Ledger {
    let mut options = Options::new(cluster.endpoint().unwrap());
    options.clients = 4;
    options.duration = CHECKED;
    options.deadline = DEADLINE;
    options.workload = Workload::Checked(CheckedOptions {
        prefix: "checked:".into(),
        ring: 50,
        lists: false,
        value_bytes: 0,
    });
    let (summary, ledger, _) = checked_load(&options, &AtomicBool::new(false));
    assert_eq!(
        (summary.unknown, summary.failed),
        (0, 0),
        "{:?}",
        summary.errors
    );
    ledger
}

/// The store is stopped, so the server answers no client, and all acknowledgements come from devices. The flood uses
/// the space that no other front needs, and is refused any further space. The other front must continue. When the store
/// runs again, all clients continue.
#[test]
fn a_flood_of_one_front_leaves_the_others_their_share() {
    let mut topology = shown(Topology::new(StoreKind::Redis, 2, Medium::Dram));
    let entries = ENTRIES.to_string();
    let small = ["--entries", &entries, "--frame-bytes", "4194304"];
    topology.device_args.extend(small.map(String::from));
    let Some(mut cluster) = start("shares-flood", topology) else {
        return;
    };
    let (mut flooder, flooded) = other_front(&cluster, "flood");
    let head = place(cluster.process(Role::Device(0)).unwrap());
    let of_head = |name, labels: &[&str]| Metrics::of(head).sum(name, labels);
    let refused = || of_head("pmnet_device_over_share_total", &["what=\"updates\""]);
    let (flood, good, over) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let ledger = std::thread::scope(|scope| {
        let _ends = SetOnDrop(&over);
        let mut options = Options::new(flooded);
        (options.clients, options.pipeline) = FLOOD;
        scope.spawn(|| write(options, "flood", &flood, &over));
        let mut options = Options::new(cluster.endpoint().unwrap());
        (options.clients, options.rate) = (WRITERS.0, Some(WRITERS.1.into()));
        scope.spawn(|| write(options, "good", &good, &over));
        // By now, all questions that a connection asks the store at its beginning have been answered.
        let begun = FLOOD.0 as u64 * FLOOD.1 as u64;
        eventually("both write", FILLS, || {
            flood.load(Ordering::Relaxed) > begun && good.load(Ordering::Relaxed) > 16
        });
        let store = cluster.process(Role::Redis).unwrap();
        let mut of_flood = 0;
        eventually("the other front goes on", FILLS, || {
            store.signal(Signal::STOP).unwrap();
            let before = refused();
            eventually("the flood is refused", FILLS, || refused() > before);
            let (flood_then, good_then) =
                (flood.load(Ordering::Relaxed), good.load(Ordering::Relaxed));
            let begun = Instant::now();
            let goes_on = || good.load(Ordering::Relaxed) >= good_then + EARLY;
            while !goes_on() && begun.elapsed() < EARLY_MAX {
                std::thread::sleep(Duration::from_millis(10));
            }
            of_flood = flood.load(Ordering::Relaxed) - flood_then;
            let goes_on = goes_on();
            if !goes_on {
                // If the server executes a write, the write and its client wait for the store. On a busy machine this
                // happens at some moments, so the test tries again at another moment.
                store.signal(Signal::CONT).unwrap();
                std::thread::sleep(Duration::from_secs(1));
            }
            goes_on
        });
        let used = of_head("pmnet_device_log_entries_used", &[]);
        println!(
            "while the store stood still: {EARLY} writes of the other front acknowledged, {of_flood} of the flood; {used} of {ENTRIES} entries in use"
        );
        assert!(
            used >= f64::from(ENTRIES / 4 * 3),
            "the log is contended: {used}"
        );
        store.signal(Signal::CONT).unwrap();
        checked(&cluster)
    });
    let said = cluster.process(Role::Device(0)).unwrap().stderr();
    assert!(said.contains("PM1116 "), "{said}");
    settle(&cluster).unwrap();
    let verdict = verify(&ledger, &mut cluster.reader().unwrap()).unwrap();
    assert!(verdict.is_clean(), "{verdict}");
    flooder.stop().unwrap();
    assert_eq!(cluster.stop().unwrap(), Vec::<String>::new());
}
