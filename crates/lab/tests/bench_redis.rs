//! Runs `pmnet-lab bench redis` with very few measurements. The result must have every row, mix and
//! pipeline, and no processes or networks may remain. The test checks no times.

#[path = "../../../tests/shared/skip.rs"]
mod skip;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use pmnet_lab::bench::micro;
use pmnet_lab::harness::{Turn, find_program};
use serde_json::Value;
use skip::skip;

/// Longest wait until other tests on this machine no longer use the testbed.
const TURN_MAX: Duration = Duration::from_secs(600);
/// Rows that need only redis-server.
const LOCAL: &[&str] = &[
    "resp-limit",
    "direct",
    "wait",
    "always-wait",
    "relay-1",
    "relay-1-log",
    "relay-2",
    "relay-3",
];
/// Rows that need namespaces.
const LINKED: &[&str] = &[
    "link-resp-limit",
    "link-direct",
    "nic",
    "nic-log",
    "router-2",
    "router-3",
];

fn names(cells: &Value) -> Vec<&str> {
    let cells = cells.as_array().unwrap().iter();
    cells.map(|cell| cell["row"].as_str().unwrap()).collect()
}

#[test]
fn every_row_is_measured_and_nothing_is_left() {
    if find_program("redis-server").is_none() {
        return skip("redis-server is not installed");
    }
    // A machine has only one testbed, and few cores, so only one test at a time may run.
    let _turn = Turn::wait("testbed", TURN_MAX).expect("the testbed, when others are done with it");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bench-redis");
    let _ = std::fs::remove_dir_all(&folder);
    let file = folder.join("result.json");
    let child = Command::new(env!("CARGO_BIN_EXE_pmnet-lab"))
        .args([
            "bench",
            "redis",
            "--quick",
            "--replicas",
            "--reads",
            "0,50,alternate",
        ])
        .args(["--clients", "2", "--pipeline", "3", "--zipf", "0.99"])
        .args(["--keys", "700", "--pairs", "20", "--seconds", "0.02"])
        .args(["--rounds", "2", "--out", folder.to_str().unwrap()])
        .args(["--json", file.to_str().unwrap()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let prefix = format!("pmnet-{}-", child.id());
    let output = child.wait_with_output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");

    let text = std::fs::read_to_string(&file).unwrap();
    let outcome: Value = serde_json::from_str(&text).unwrap();
    let (mut rows, mut refused) = (LOCAL.to_vec(), Vec::<&str>::new());
    match micro::refusal() {
        None => rows.extend(LINKED),
        Some(reason) => {
            skip(&reason);
            refused.extend(LINKED);
        }
    }
    let cells = outcome["cells"].as_array().unwrap();
    let groups: Vec<_> = cells.chunks(rows.len()).collect();
    assert_eq!(groups.len(), 3, "{outcome}");
    for (group, reads) in groups.iter().zip(["0", "50", "alternate"]) {
        for (cell, row) in group.iter().zip(&rows) {
            assert_eq!(cell["row"], *row);
            assert_eq!(cell["reads"], reads);
            assert_eq!(cell["clients"], 2);
            assert_eq!(cell["errors"], 0, "{cell}");
            let operations = cell["operations"].as_u64().unwrap();
            assert!(operations > 0, "{cell}");
            assert_eq!(cell["rounds_p50_us"].as_array().unwrap().len(), 2);
            let both = cell["by_operation"].as_object().unwrap().len() == 2;
            // With few random operations, all of them may be of one kind.
            if reads != "50" || operations > 100 {
                assert_eq!(both, reads != "0", "{cell}");
            }
            let processes = cell["cpu_us"].as_array().unwrap().iter();
            let processes: Vec<_> = processes.map(|part| part[0].as_str().unwrap()).collect();
            let expected: &[&str] = match *row {
                "resp-limit" | "link-resp-limit" => &["load", "resp-limit"],
                "direct" | "link-direct" => &["load", "redis"],
                "relay-1" | "relay-1-log" | "nic" | "nic-log" => {
                    &["load", "front", "device1", "server", "redis"]
                }
                "relay-2" | "router-2" => {
                    &["load", "front", "device1", "device2", "server", "redis"]
                }
                "relay-3" | "router-3" => &[
                    "load", "front", "device1", "device2", "device3", "server", "redis",
                ],
                _ => &["load", "redis", "replica1", "replica2"],
            };
            assert_eq!(processes, expected);
        }
    }
    assert_eq!(names(&outcome["pairs"]), rows);
    for cell in outcome["pairs"].as_array().unwrap() {
        assert_eq!(cell["pairs"], 20);
        assert_eq!(cell["errors"], 0, "{cell}");
    }
    // Every front reports how it answered reads.
    let fronts = names(&outcome["fronts"]);
    let with_front = |row: &&str| {
        ["relay", "router", "nic"]
            .iter()
            .any(|start| row.starts_with(start))
    };
    let expected: Vec<&str> = rows.iter().copied().filter(with_front).collect();
    assert_eq!(fronts, expected);
    for front in outcome["fronts"].as_array().unwrap() {
        let counts = front["counts"].as_object().unwrap().values();
        let sum: u64 = counts.map(|count| count.as_u64().unwrap()).sum();
        assert!(sum > 0, "{front}");
    }
    assert_eq!(names(&outcome["refused"]), refused);
    let page = std::fs::read_to_string(folder.join("redis.html")).unwrap();
    assert_eq!(page.matches("<svg").count(), 3);
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains("50/50 SET/GET, 2 client(s)"), "{table}");
    // Only the report and the requested output remain.
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 3);
    let namespaces = std::fs::read_dir("/run/netns").into_iter().flatten();
    let names = namespaces.flatten().map(|entry| entry.file_name());
    let left = names.filter(|name| name.to_string_lossy().starts_with(&prefix));
    assert_eq!(left.count(), 0);
    std::fs::remove_dir_all(folder).unwrap();
}
