//! Every process is killed (kill -9) under load, with a real Redis. No acknowledged write may be
//! lost, applied twice or applied out of order (`docs/spec/protocol.md` §10).

use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use pmnet_lab::harness::{
    ACKNOWLEDGED_MIN, ChaosPlan, ChaosReport, Cluster, Medium, Role, StoreKind, Topology, Trouble,
    chaos,
};

use crate::common;
use crate::support::seed;

/// Minimum number of kills of each process.
const KILLS: u32 = 50;

fn plan(seconds: u64, victims: Vec<Role>) -> ChaosPlan {
    ChaosPlan {
        duration: Duration::from_secs(seconds),
        clients: 6,
        pipeline: 4,
        deadline: Duration::from_secs(10),
        victims,
        interval: Duration::from_millis(200),
        down: Duration::from_millis(20),
        lose_at_half: Vec::new(),
        replacements: Vec::new(),
        exchanges: Vec::new(),
        value_bytes: 0,
        seed: seed(),
    }
}

fn suffer(cluster: &mut Cluster, plan: &ChaosPlan) -> ChaosReport {
    let report = chaos(cluster, plan, &AtomicBool::new(false), |_| {}).expect("the run goes on");
    println!("{} {:?}", report.verdict, report.kills);
    assert!(report.verdict.is_clean(), "{}", report.verdict);
    assert!(
        report.verdict.acknowledged >= ACKNOWLEDGED_MIN,
        "the load hardly got through: {}",
        report.verdict
    );
    // Every call must end at its deadline, plus one tick.
    assert!(
        report.summary.latency.max_us < plan.deadline.as_secs_f64() * 1e6 + 200_000.0,
        "{:?}",
        report.summary.latency
    );
    report
}

/// Returns the number of kills of the process that was killed least often.
fn least(report: &ChaosReport) -> u32 {
    let counts = report.kills.iter().map(|(_, count)| *count);
    counts.min().unwrap_or(0)
}

/// Kills all processes in turn, until each was killed [`KILLS`] times.
fn kill_all(name: &str, medium: Medium) {
    let Some(mut cluster) = common::start(name, Topology::new(StoreKind::Redis, 1, medium)) else {
        return;
    };
    let victims = vec![Role::Device(0), Role::Server, Role::Front, Role::Redis];
    let (mut kills, mut acknowledged, mut unknown) = (0, 0, 0);
    // Every round must end without a violation.
    for round in 0..20 {
        let mut plan = plan(23, victims.clone());
        plan.seed += round;
        // In every second round, values need several packets.
        plan.value_bytes = if round % 2 == 1 { 5_000 } else { 0 };
        let report = suffer(&mut cluster, &plan);
        kills += least(&report);
        acknowledged += report.verdict.acknowledged;
        unknown += report.verdict.unknown;
        if kills >= KILLS {
            println!(
                "each of four killed {kills} times: acknowledged {acknowledged}, unknown {unknown}, \
                 lost 0, applied twice 0, out of order 0"
            );
            return;
        }
    }
    panic!("only {kills} kills of each in all rounds");
}

#[test]
fn every_process_fifty_times_with_a_log_in_memory() {
    kill_all("kill-dram", Medium::Dram);
}

#[test]
fn every_process_with_a_log_on_a_file() {
    let topology = Topology::new(StoreKind::Redis, 1, Medium::File);
    let Some(mut cluster) = common::start("kill-file", topology) else {
        return;
    };
    let victims = vec![Role::Device(0), Role::Server, Role::Front, Role::Redis];
    let report = suffer(&mut cluster, &plan(20, victims));
    assert!(
        report.kills.iter().all(|(_, count)| *count >= 4),
        "{:?}",
        report.kills
    );
}

/// `pmnet run`: server, device and front die together. Separate processes never do.
#[test]
fn all_roles_in_one_process_with_kills() {
    for medium in [Medium::Dram, Medium::File] {
        let mut topology = Topology::new(StoreKind::Redis, 1, medium);
        topology.together = true;
        let name = format!("kill-run-{}", medium.name());
        let Some(mut cluster) = common::start(&name, topology) else {
            return;
        };
        let report = suffer(&mut cluster, &plan(15, vec![Role::Run, Role::Redis]));
        assert!(
            report.kills.iter().all(|(_, count)| *count >= 4),
            "{:?}",
            report.kills
        );
        assert_eq!(cluster.stop().unwrap(), Vec::<String>::new());
    }
}

#[test]
fn a_chain_of_three_with_kills() {
    let topology = Topology::new(StoreKind::Redis, 3, Medium::Dram);
    let Some(mut cluster) = common::start("kill-chain", topology) else {
        return;
    };
    let victims = vec![
        Role::Device(0),
        Role::Device(1),
        Role::Device(2),
        Role::Server,
        Role::Front,
    ];
    let report = suffer(&mut cluster, &plan(20, victims));
    assert!(
        report.kills.iter().all(|(_, count)| *count >= 2),
        "{:?}",
        report.kills
    );
}

#[test]
fn exactly_once_with_loss_and_kills() {
    let mut topology = Topology::new(StoreKind::Redis, 2, Medium::Dram);
    topology.trouble = Some(Trouble {
        drop: 0.02,
        repeat: 0.02,
        hold: 0.02,
        hold_max: Duration::from_millis(20),
        seed: 11,
    });
    let Some(mut cluster) = common::start("kill-loss", topology) else {
        return;
    };
    let victims = vec![Role::Device(0), Role::Server, Role::Front];
    suffer(&mut cluster, &plan(20, victims));
    let troubled = cluster.troubled();
    assert!(troubled.iter().all(|count| *count > 100), "{troubled:?}");
}

#[test]
fn the_packet_store_with_kills() {
    let topology = Topology::new(StoreKind::Packet, 1, Medium::File);
    let Some(mut cluster) = common::start("kill-packet", topology) else {
        return;
    };
    let victims = vec![Role::Device(0), Role::Server, Role::Front];
    suffer(&mut cluster, &plan(10, victims));
}

/// Returns the number of records in the last device's region that lie in the packets in which they
/// arrived. The device must not be running.
fn records_in_packets(cluster: &Cluster) -> u64 {
    let shown = Command::new(common::pmnet())
        .args(["store", "stat", "--json"])
        .arg(cluster.region())
        .output()
        .unwrap();
    assert!(shown.status.success(), "{shown:?}");
    let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
    shown["records_in_packets"].as_u64().unwrap()
}

/// The last device of the chain is also the server. In this one process, received packets become
/// the store's records.
fn store_device_with_kills(name: &str, devices: usize, medium: Medium) {
    let topology = Topology::new(StoreKind::Region, devices, medium);
    let Some(mut cluster) = common::start(name, topology) else {
        return;
    };
    let mut victims: Vec<Role> = (0..devices).map(Role::Device).collect();
    victims.push(Role::Front);
    let mut kills = 0;
    // On a busy disk, each start of the process with the region takes long.
    for round in 0..4 {
        let mut plan = plan(8, victims.clone());
        plan.seed += round;
        // A value of this length is too long to be copied, and fits into one packet.
        plan.value_bytes = 900;
        kills += least(&suffer(&mut cluster, &plan));
        if kills >= 4 {
            break;
        }
    }
    assert!(kills >= 4, "{kills} kills of each at least");
    cluster.kill(Role::Device(devices - 1)).unwrap();
    let kept = records_in_packets(&cluster);
    assert!(kept > 0);
    println!("{name}: {kept} records lie in the packets in which they came");
}

#[test]
fn a_device_that_is_the_server_with_kills() {
    store_device_with_kills("kill-region-dram", 1, Medium::Dram);
    store_device_with_kills("kill-region-file", 1, Medium::File);
}

#[test]
fn a_chain_whose_tail_is_the_server_with_kills() {
    store_device_with_kills("kill-region-chain", 2, Medium::Dram);
}
