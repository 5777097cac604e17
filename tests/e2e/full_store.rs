//! Writes through a front fill a packet store completely. Every acknowledged update must be
//! applied, clients must get advice, deletes must work, and `pmnet store grow` must make space
//! (`docs/spec/packet-store.md` §6, §12, §13).

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use pmnet_lab::harness::{Cluster, Medium, Role, StoreKind, Topology};
use pmnet_lab::resp::{Client, Reply, write_command};

use crate::common;
use crate::support::{CALL_MAX, eventually, front, ok};

const VALUE_BYTES: usize = 1_000;
/// Number of SETs in one pipeline.
const PIPELINE: usize = 50;

/// Sends SETs until the store is full. Returns the keys whose SET was answered with OK, and the
/// errors.
fn fill(cluster: &Cluster, value: &[u8]) -> (Vec<String>, Vec<String>) {
    let mut client = front(cluster);
    let (mut kept, mut errors) = (Vec::new(), Vec::new());
    let begin = Instant::now();
    for first in (0..).step_by(PIPELINE) {
        assert!(begin.elapsed() < 2 * CALL_MAX, "{} kept", kept.len());
        let keys: Vec<String> = (first..first + PIPELINE)
            .map(|n| format!("key:{n}"))
            .collect();
        let mut commands = Vec::new();
        for key in &keys {
            write_command(&mut commands, &[b"SET", key.as_bytes(), value]);
        }
        let replies = client.exchange(&commands, keys.len()).unwrap();
        for (key, reply) in keys.into_iter().zip(replies) {
            match reply {
                Reply::Error(text) => errors.push(text),
                other => {
                    assert_eq!(other, ok());
                    kept.push(key);
                }
            }
        }
        if errors.len() > 2 * PIPELINE {
            return (kept, errors);
        }
    }
    unreachable!("the loop ends with a return")
}

/// Returns the output of `pmnet store` with these arguments before the path.
fn store(words: &[&str], path: &Path) -> String {
    let output = Command::new(common::pmnet())
        .arg("store")
        .args(words)
        .arg(path)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {told}");
    String::from_utf8(output.stdout).unwrap()
}

fn full(
    name: &str,
    mut topology: Topology,
    role: Role,
    place: &dyn Fn(&Cluster) -> std::path::PathBuf,
) {
    topology.front_args = ["--deadline-ms", "20000"].map(String::from).to_vec();
    let Some(mut cluster) = common::start(name, topology) else {
        return;
    };
    let value = vec![b'v'; VALUE_BYTES];
    let (kept, errors) = fill(&cluster, &value);
    println!("{} kept, {} refused", kept.len(), errors.len());
    assert!(kept.len() > 3_000, "{}", kept.len());
    for error in &errors {
        // No SET may have an unknown outcome.
        assert!(
            error.starts_with("OOM ") && error.contains("pmnet store grow"),
            "{error}"
        );
    }
    let mut client = front(&cluster);
    let found = |client: &mut Client, key: &str| {
        client.call(&["GET", key]).unwrap().bytes() == Some(&value)
    };
    for key in kept.iter().step_by(17) {
        assert!(found(&mut client, key), "{key}");
    }
    // Deletes must work, and the space that they free must be usable.
    for key in &kept[..1_000] {
        assert_eq!(client.call(&["DEL", key]).unwrap(), Reply::Integer(1));
    }
    assert_eq!(client.call(&["SET", "after", "deletes"]).unwrap(), ok());
    let path = place(&cluster);
    let process = cluster.process(role).unwrap();
    assert!(process.stop().unwrap(), "{}", process.stderr());
    let advice = format!("pmnet store grow {} --size", path.display());
    assert!(store(&["stat"], &path).contains(&advice));
    let grown = store(&["grow", "--json", "--size", "256M"], &path);
    let grown: serde_json::Value = serde_json::from_str(&grown).expect(&grown);
    assert!(
        grown["frames"].as_u64() > grown["frames_before"].as_u64(),
        "{grown}"
    );
    assert!(!store(&["stat"], &path).contains("pmnet store grow"));
    cluster.restart(role).unwrap();
    eventually("it is served again", CALL_MAX, || {
        client = front(&cluster);
        client.call(&["SET", "after", "growing"]).unwrap() == ok()
    });
    for key in kept[1_000..].iter().step_by(29) {
        assert!(found(&mut client, key), "{key}");
    }
    // After some SETs that go to the store, SETs are acknowledged early again. The number of SETs
    // that go to the store equals the number of SETs that found no space before.
    std::thread::sleep(Duration::from_millis(300));
    for number in 0..kept.len() {
        let key = format!("more:{number}");
        assert_eq!(
            client.call(&[b"SET", key.as_bytes(), &value]).unwrap(),
            ok()
        );
    }
    let count = i64::try_from(2 * kept.len() - 1_000 + 1).unwrap();
    eventually("all of it is there", CALL_MAX, || {
        client.call(&["DBSIZE"]).unwrap() == Reply::Integer(count)
    });
}

#[test]
fn of_a_device() {
    let mut topology = Topology::new(StoreKind::Region, 1, Medium::Dram);
    topology.store_size = Some("32M");
    topology.device_args = ["--log-size", "2M"].map(String::from).to_vec();
    full("full-region", topology, Role::Device(0), &Cluster::region);
}

#[test]
fn of_the_last_device_of_a_chain() {
    let mut topology = Topology::new(StoreKind::Region, 2, Medium::Dram);
    topology.store_size = Some("32M");
    topology.device_args = ["--log-size", "2M"].map(String::from).to_vec();
    full(
        "full-region-chain",
        topology,
        Role::Device(1),
        &Cluster::region,
    );
}

#[test]
fn of_a_server() {
    let mut topology = Topology::new(StoreKind::Packet, 2, Medium::Dram);
    topology.store_size = Some("32M");
    let small = ["--entries", "1024", "--frame-bytes", "2097152"];
    topology.device_args = small.map(String::from).to_vec();
    full("full-packet-store", topology, Role::Server, &|cluster| {
        cluster.folder().join("store")
    });
}
