//! Runs `pmnet-lab bench traffic` with few measurements. All traffic must move, and no processes or
//! networks may remain.

use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{in_kernel, lab, namespaces, possible, scratch, until};

const NATIVE: [&str; 4] = ["pass", "device", "control", "loaded"];
const OTHERS: [&str; 3] = ["bare", "generic", "offloaded"];
const WORKLOADS: [&str; 7] = [
    "tcp4",
    "tcp4-x4",
    "tcp6",
    "udp",
    "round-trip",
    "tcp-mtu3000",
    "tcp-jumbo",
];

#[test]
fn traffic_moves_through_every_variant_and_nothing_is_left() {
    let Some(_one) = possible() else { return };
    let folder = scratch("testbed-traffic");
    let all = [&NATIVE[..], &OTHERS].concat().join(",");
    let child = lab(&["bench", "traffic", "--variants", &all])
        .args(["--seconds", "0.1", "--rounds", "1", "--json", "--out"])
        .arg(&folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let prefix = format!("pmnet-{}-", child.id());
    let output = child.wait_with_output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let outcome: Value = serde_json::from_slice(&output.stdout).unwrap();
    let cells = outcome["cells"].as_array().unwrap();
    let refused = outcome["refused"].as_array().unwrap();
    // Every driver accepts XDP with an MTU of 1500. If a driver refuses a larger MTU, the result
    // reports the refusal.
    assert!(refused.iter().all(|one| one["mtu"].as_u64() > Some(1500)));
    assert!(refused.iter().all(|one| one["reason"].as_str() != Some("")));
    for workload in WORKLOADS {
        for variant in NATIVE.into_iter().chain(OTHERS) {
            let what = format!("{workload}, {variant}");
            let same = |cell: &&Value| cell["workload"] == workload && cell["variant"] == variant;
            let Some(cell) = cells.iter().find(same) else {
                let is_refused = |one: &Value| {
                    one["variant"] == variant
                        && format!("tcp-mtu{}", one["mtu"]).replace("mtu9000", "jumbo") == workload
                };
                assert!(refused.iter().any(is_refused), "{what} is missing");
                continue;
            };
            assert!(cell["bytes"].as_u64().unwrap() > 0, "{cell}");
            assert!(cell["figure"].as_f64().unwrap() > 0.0, "{cell}");
            assert_eq!(cell["rounds"].as_array().unwrap().len(), 1, "{what}");
            assert_eq!(cell["of_bare"].is_null(), variant == "bare", "{what}");
            assert_eq!(cell["sent"].is_null(), workload != "udp", "{what}");
            assert_eq!(cell["p99_us"].is_null(), workload != "round-trip", "{what}");
            // In the loaded variant the device serves during the traffic.
            assert_eq!(cell["acknowledged"].is_null(), variant != "loaded");
        }
    }
    assert_eq!(namespaces(&prefix), Vec::<String>::new());
    assert_eq!(in_kernel(&prefix.replace("pmnet-", "bench-")), 0);
    // Only the results remain.
    assert!(folder.join("traffic.json").is_file());
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn interrupted_it_leaves_nothing() {
    let Some(_one) = possible() else { return };
    let folder = scratch("testbed-traffic-ended");
    let out = folder.join("out");
    let mut child = lab(&["bench", "traffic", "--workloads", "tcp4", "--seconds", "20"])
        .args(["--variants", "bare,device", "--out"])
        .arg(folder.join("numbers"))
        .stdout(std::fs::File::create(&out).unwrap())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let prefix = format!("pmnet-{}-", child.id());
    let pinned = prefix.replace("pmnet-", "bench-");
    until("it measures", || {
        std::fs::read_to_string(&out).is_ok_and(|text| text.contains("round 1"))
    });
    assert_eq!(namespaces(&prefix).len(), 6);
    assert_eq!(in_kernel(&pinned), 1);
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    until("it ends", || child.try_wait().unwrap().is_some());
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert_eq!(namespaces(&prefix), Vec::<String>::new());
    assert_eq!(in_kernel(&pinned), 0);
    let left = std::fs::read_dir(folder.join("numbers")).unwrap();
    assert_eq!(left.count(), 0);
    std::fs::remove_dir_all(folder).unwrap();
}
