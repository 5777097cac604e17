//! A chain is repaired: devices are lost for good under load, and spares, or the same devices after a repair, join a
//! chain that holds data. Later the older devices are lost, one after the other. So a missing entry in a device that
//! joined would be noticed.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use pmnet_lab::harness::{
    ACKNOWLEDGED_MIN, ChaosPlan, Joiner, Medium, Replacement, Role, StoreKind, Topology, chaos,
    settle,
};
use pmnet_lab::resp::Reply;

use crate::common;
use crate::support::{front, launch, ok, seed};

/// Returns a plan with load for `seconds` seconds. The devices of `replacements` are replaced during the load.
fn plan(seconds: u64, replacements: Vec<Replacement>, seed: u64) -> ChaosPlan {
    ChaosPlan {
        duration: Duration::from_secs(seconds),
        clients: 6,
        pipeline: 4,
        deadline: Duration::from_secs(10),
        victims: Vec::new(),
        interval: Duration::from_millis(200),
        down: Duration::from_millis(20),
        lose_at_half: Vec::new(),
        replacements,
        exchanges: Vec::new(),
        value_bytes: 0,
        seed,
    }
}

/// Loses and replaces devices of a chain under load. Then loses all devices except the one that joined last.
fn heal(name: &str, devices: usize, medium: Medium, seconds: u64, replacements: Vec<Replacement>) {
    let seed = seed();
    let topology = Topology::new(StoreKind::Redis, devices, medium);
    let Some(mut cluster) = common::start(name, topology) else {
        return;
    };
    let stop = AtomicBool::new(false);
    let report = chaos(
        &mut cluster,
        &plan(seconds, replacements, seed),
        &stop,
        |_| {},
    )
    .unwrap();
    println!("{}", report.verdict);
    assert!(report.verdict.is_clean(), "{}", report.verdict);
    assert!(
        report.verdict.acknowledged >= ACKNOWLEDGED_MIN,
        "{}",
        report.verdict
    );
    let chain = cluster.chain();
    assert_eq!(chain.len(), devices, "R is what it was");
    let last = cluster.process(Role::Device(chain[devices - 1])).unwrap();
    let said = last.stdout();
    assert!(said.contains(&format!("copies={devices}")), "{said}");
    let mut after = plan(4, Vec::new(), seed + 1);
    after.lose_at_half = chain[..devices - 1].to_vec();
    let report = chaos(&mut cluster, &after, &stop, |_| {}).unwrap();
    println!("{}", report.verdict);
    assert!(report.verdict.is_clean(), "{}", report.verdict);
}

const fn replaced(place: usize, joiner: Joiner) -> Replacement {
    Replacement { place, joiner }
}

#[test]
fn the_head_is_replaced() {
    let with = vec![replaced(0, Joiner::Spare)];
    heal("joining-head", 3, Medium::Dram, 6, with);
}

#[test]
fn the_middle_is_replaced() {
    let with = vec![replaced(1, Joiner::Repaired)];
    heal("joining-middle", 3, Medium::File, 6, with);
}

#[test]
fn the_tail_is_replaced() {
    let with = vec![replaced(2, Joiner::Returned)];
    heal("joining-tail", 3, Medium::Dram, 6, with);
}

#[test]
fn random_devices_are_replaced_one_after_the_other() {
    let mut random = fastrand::Rng::with_seed(seed());
    let joiners = [Joiner::Spare, Joiner::Repaired, Joiner::Returned];
    for devices in [2, 3] {
        let with: Vec<Replacement> = (0..5)
            .map(|_| replaced(random.usize(..devices), joiners[random.usize(..3)]))
            .collect();
        println!("{with:?}");
        heal("joining-random", devices, Medium::Dram, 14, with);
    }
}

/// A chain of one device gets a second device, with writes before and after. Then the first device is lost. Redis must
/// have all writes.
#[test]
fn one_becomes_two_and_the_first_is_lost() {
    let topology = Topology::new(StoreKind::Redis, 1, Medium::Dram);
    let Some(mut cluster) = common::start("joining-second", topology) else {
        return;
    };
    let mut client = front(&cluster);
    for number in 0..500 {
        let reply = client.call(&["SET", &format!("before:{number}"), "1"]);
        assert_eq!(reply.unwrap(), ok());
    }
    let spare = cluster.spare();
    cluster.join(spare, false).unwrap();
    for number in 0..500 {
        let reply = client.call(&["SET", &format!("after:{number}"), "1"]);
        assert_eq!(reply.unwrap(), ok());
    }
    cluster.lose(&[0]).unwrap();
    settle(&cluster).unwrap();
    let mut direct = cluster.reader().unwrap();
    for key in (0..500).flat_map(|n| [format!("before:{n}"), format!("after:{n}")]) {
        let reply = direct.call(&["GET", &key]).unwrap();
        assert_eq!(reply, Reply::Bulk(b"1".to_vec()), "{key}");
    }
}

/// Mistakes of an operator. After each mistake, the process refuses or waits, with a message, and the chain must
/// continue.
#[test]
fn what_may_not_join_says_why() {
    // Some of these devices do not know the id of their next hop, so the chain has no keys.
    let topology = Topology::new(StoreKind::Packet, 1, Medium::Dram).unkeyed();
    let Some(mut cluster) = common::start("joining-wrong", topology) else {
        return;
    };
    let mut client = front(&cluster);
    assert_eq!(client.call(&["SET", "a", "1"]).unwrap(), ok());
    let head = cluster.head().unwrap();
    let server = cluster.server().unwrap().to_string();
    let log = cluster.folder().join("other.log");
    let log = log.to_str().unwrap();
    let try_to_join = |name: &str, id: String, next: &str, says: &str| {
        let port = pmnet_lab::harness::free_port().unwrap();
        let listen = format!("127.0.0.1:{port}");
        let args = [
            "device", "--join", "--media", "file", "--log", log, "--id", &id, "--listen", &listen,
            "--next", next,
        ];
        let process = launch(name, cluster.folder(), &args);
        crate::support::eventually(says, Duration::from_secs(10), || {
            process.stderr().contains(says)
        });
        drop(process);
        std::fs::remove_file(log).unwrap();
    };
    try_to_join(
        "same-id",
        head.port().to_string(),
        &server,
        "comes with another log than the one it registered",
    );
    try_to_join(
        "at-the-head",
        "7".into(),
        &head.to_string(),
        "or at its end, with --join",
    );
    try_to_join("ready", "7".into(), &server, "is ready to join");
    assert_eq!(client.call(&["SET", "a", "2"]).unwrap(), ok());
    assert!(
        cluster
            .process(Role::Device(0))
            .unwrap()
            .exited()
            .unwrap()
            .is_none()
    );
}
