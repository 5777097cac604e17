//! A log becomes full while the server is down. Devices must answer NOT_LOGGED and acknowledge
//! nothing that they cannot keep. The service must continue when the server is back
//! (`docs/spec/protocol.md` §4).

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pmnet_lab::harness::{Cluster, Medium, Role, StoreKind, Topology, settle};
use pmnet_lab::resp::Reply;

use crate::common;
use crate::support::{Answer, CALL_MAX, Caller, eventually, front, ok};

/// The topology has a small log, and a front with a short deadline.
fn topology(devices: usize, medium: Medium) -> Topology {
    let mut topology = Topology::new(StoreKind::Redis, devices, medium);
    let small = ["--entries", "512", "--frame-bytes", "262144"];
    topology.device_args = small.map(String::from).to_vec();
    topology.front_args = ["--deadline-ms", "1000"].map(String::from).to_vec();
    topology
}

/// Fills the log. Returns the keys that were acknowledged, and the number of refused and unknown
/// outcomes.
fn fill(cluster: &Cluster, clients: usize, value_bytes: usize) -> (Vec<String>, u64) {
    let endpoint = cluster.endpoint().unwrap();
    let value = vec![b'v'; value_bytes];
    let full = AtomicBool::new(false);
    let results = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..clients)
            .map(|client| {
                let (value, full) = (&value, &full);
                scope.spawn(move || {
                    let mut caller = Caller::new(endpoint);
                    let (mut acknowledged, mut other, mut number) = (Vec::new(), 0_u64, 0);
                    while other < 2 && !full.load(Ordering::Relaxed) {
                        let key = format!("fill:{client}:{number}");
                        number += 1;
                        let begin = Instant::now();
                        match caller.call(&[b"SET", key.as_bytes(), value]) {
                            Answer::Reply(reply) => {
                                assert_eq!(reply, ok());
                                acknowledged.push(key);
                            }
                            Answer::Unknown | Answer::Refused(_) => other += 1,
                        }
                        assert!(begin.elapsed() < Duration::from_secs(5), "a call hangs");
                    }
                    (acknowledged, other)
                })
            })
            .collect();
        // The worker that fills the log last may wait long for its second refusal.
        std::thread::sleep(Duration::from_secs(6));
        full.store(true, Ordering::Relaxed);
        let joined = threads.into_iter().map(|thread| thread.join().unwrap());
        joined.collect::<Vec<_>>()
    });
    let refused = results.iter().map(|(_, other)| other).sum();
    (
        results.into_iter().flat_map(|(keys, _)| keys).collect(),
        refused,
    )
}

/// Checks that the database has all acknowledged updates.
fn check(cluster: &Cluster, acknowledged: &[String], value_bytes: usize) {
    settle(cluster).unwrap();
    let mut direct = cluster.reader().unwrap();
    let expected = Reply::Integer(i64::try_from(value_bytes).unwrap());
    for key in acknowledged {
        assert_eq!(direct.call(&["STRLEN", key]).unwrap(), expected, "{key}");
    }
}

/// Returns the number of entries that a device would send to the server again after a start from
/// this log. The device must not be running.
fn entries_left(log: &std::path::Path) -> u64 {
    let output = Command::new(common::pmnet())
        .args(["log", "inspect", "--json"])
        .arg(log)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let json: serde_json::Value = serde_json::from_str(&text).expect(&text);
    let keep = &json["decision"]["keep"];
    keep["tail"].as_u64().expect(&text) - keep["applied"].as_u64().expect(&text)
}

fn brim(name: &str, devices: usize, medium: Medium, clients: usize, value_bytes: usize) {
    let Some(mut cluster) = common::start(name, topology(devices, medium)) else {
        return;
    };
    let mut steady = Caller::new(cluster.endpoint().unwrap());
    assert_eq!(steady.call(&["SET", "steady", "1"]), Answer::Reply(ok()));
    settle(&cluster).unwrap();
    cluster.kill(Role::Server).unwrap();
    let (acknowledged, refused) = fill(&cluster, clients, value_bytes);
    println!("{} acknowledged, {refused} not", acknowledged.len());
    assert!(
        acknowledged.len() > 40,
        "{} acknowledged",
        acknowledged.len()
    );
    assert!(refused > 0, "a full log acknowledged everything");
    // A device that restarts with a full log must keep all acknowledged updates.
    cluster.kill(Role::Device(0)).unwrap();
    let device = cluster.process(Role::Device(0)).unwrap();
    device.relaunch().unwrap();
    cluster.restart(Role::Server).unwrap();
    let device = cluster.process(Role::Device(0)).unwrap();
    device.wait_ready(CALL_MAX).unwrap();
    eventually("the client of before is served again", CALL_MAX, || {
        steady.call(&["SET", "steady", "2"]) == Answer::Reply(ok())
    });
    check(&cluster, &acknowledged, value_bytes);
    let (more, refused) = fill_again(&cluster);
    assert_eq!(refused, 0, "the service does not go on as before");
    check(&cluster, &more, 10);
    // Without traffic the log must become empty. The front's session ends with the front, or stays
    // open; in both cases no entry may remain.
    let log = match medium {
        Medium::File => Some(cluster.folder().join("device1.pmlog")),
        Medium::Dram => None,
    };
    if let Some(log) = log {
        std::thread::sleep(Duration::from_millis(300));
        let device = cluster.process(Role::Device(0)).unwrap();
        assert!(device.stop().unwrap(), "{}", device.stderr());
        assert_eq!(entries_left(&log), 0, "the log does not drain");
    }
}

/// Writes another thousand keys, one after the other.
fn fill_again(cluster: &Cluster) -> (Vec<String>, u64) {
    let mut client = front(cluster);
    let mut refused = 0;
    let mut keys = Vec::new();
    for number in 0..1_000 {
        let key = format!("again:{number}");
        if client.call(&["SET", &key, "0123456789"]).unwrap() == ok() {
            keys.push(key);
        } else {
            refused += 1;
        }
    }
    (keys, refused)
}

#[test]
fn in_memory_with_small_values() {
    brim("full-dram", 1, Medium::Dram, 8, 20);
}

#[test]
fn on_a_file_with_values_of_several_packets() {
    brim("full-file", 1, Medium::File, 4, 3_000);
}

#[test]
fn in_a_chain_of_three() {
    brim("full-chain", 3, Medium::Dram, 8, 300);
}

/// An update that is larger than the whole log must go to the server, in part or completely.
#[test]
fn updates_larger_than_the_log() {
    let mut topology = topology(2, Medium::Dram);
    topology.front_args.clear();
    let Some(cluster) = common::start("full-large", topology) else {
        return;
    };
    let mut client = front(&cluster);
    for (number, size) in [200 << 10, 1 << 20, 5 << 20, 16 << 20]
        .into_iter()
        .enumerate()
    {
        let value = vec![b'0' + u8::try_from(number).unwrap(); size];
        let key = format!("large:{number}");
        let reply = client.call(&[b"SET", key.as_bytes(), &value]).unwrap();
        assert_eq!(reply, ok(), "{size} bytes");
        let found = client.call(&["GET", &key]).unwrap();
        assert!(found.bytes() == Some(&value), "{size} bytes");
        assert_eq!(client.call(&["SET", "small", &key]).unwrap(), ok());
    }
}
