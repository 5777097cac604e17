//! Two releases run together under checked load (`docs/operate/upgrade.md`). Each process in turn is replaced by the
//! new build, and later by the old build again. `make upgrade` runs this test.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use pmnet_lab::harness::{ACKNOWLEDGED_MIN, ChaosPlan, Medium, Role, StoreKind, Topology, chaos};

use crate::common;
use crate::support::seed;

/// Environment variable with the path of the previous release's build.
const BEFORE: &str = "PMNET_BEFORE";
/// The order of an upgrade. A downgrade uses the reverse order.
const ORDER: [Role; 4] = [Role::Front, Role::Server, Role::Device(1), Role::Device(0)];

fn version(pmnet: &PathBuf) -> String {
    let output = Command::new(pmnet).arg("--version").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().next().unwrap_or_default().to_owned()
}

/// Upgrades and downgrades a chain of two devices with this store, `rounds` times. Then upgrades the chain once more.
fn upgrade(before: &PathBuf, store: StoreKind, medium: Medium, rounds: usize) {
    let now = common::binaries().pmnet.clone();
    let mut binaries = common::binaries().clone();
    binaries.pmnet.clone_from(before);
    let name = format!("upgrade-{store:?}-{}", medium.name()).to_lowercase();
    let topology = Topology::new(store, 2, medium);
    let started = pmnet_lab::harness::Cluster::start(&binaries, common::folder(), &name, topology);
    let mut cluster = started.expect("the cluster starts");
    let forth = ORDER.map(|role| (role, now.clone()));
    let mut back = ORDER.map(|role| (role, before.clone()));
    back.reverse();
    let round = [forth.to_vec(), back.to_vec()].concat();
    let rounds_of_all = std::iter::repeat_n(round, rounds).flatten();
    let exchanges = rounds_of_all.chain(forth).collect();
    let plan = ChaosPlan {
        duration: Duration::from_secs(if rounds == 0 { 5 } else { 20 }),
        clients: 6,
        pipeline: 4,
        deadline: Duration::from_secs(10),
        victims: Vec::new(),
        interval: Duration::from_millis(300),
        down: Duration::from_millis(20),
        lose_at_half: Vec::new(),
        replacements: Vec::new(),
        exchanges,
        value_bytes: 3_000,
        seed: seed(),
    };
    let report = chaos(&mut cluster, &plan, &AtomicBool::new(false), |view| {
        if view.event.contains(" is ") {
            println!("{}", view.event);
        }
    })
    .expect("the run goes on");
    println!("{name}: {}", report.verdict);
    assert!(report.verdict.is_clean(), "{}", report.verdict);
    assert!(report.verdict.acknowledged >= ACKNOWLEDGED_MIN);
    assert_eq!(cluster.stop().unwrap(), Vec::<String>::new());
}

/// Makes the steps of an upgrade, with equal builds.
#[test]
fn each_process_is_exchanged_in_order_under_load() {
    upgrade(
        &common::binaries().pmnet.clone(),
        StoreKind::Packet,
        Medium::File,
        0,
    );
}

#[test]
#[ignore = "it needs the build of another release (make upgrade)"]
fn processes_of_two_releases_serve_together_forth_and_back() {
    let before = std::env::var_os(BEFORE).map(PathBuf::from);
    let before = before.unwrap_or_else(|| panic!("{BEFORE} names no build: make upgrade"));
    let now = version(&common::binaries().pmnet);
    println!("{} and {now}", version(&before));
    assert_ne!(version(&before), now, "these are the same build");
    upgrade(&before, StoreKind::Redis, Medium::Dram, 2);
    upgrade(&before, StoreKind::Redis, Medium::File, 2);
    upgrade(&before, StoreKind::Packet, Medium::File, 2);
}
