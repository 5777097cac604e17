//! Runs `pmnet-lab demo` as root. The result must have rows over links, and no processes or
//! networks may remain.

use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{in_kernel, lab, namespaces, possible, scratch, until};

/// Returns the command of the demo with few measurements.
fn demo(folder: &Path) -> Command {
    let out = folder.join("report");
    lab(&[
        "demo",
        "--quick",
        "--no-redis",
        "--checked-seconds",
        "4",
        "--out",
        out.to_str().unwrap(),
    ])
}

#[test]
fn the_demo_shows_the_device_in_the_kernel() {
    let Some(_one) = possible() else { return };
    let folder = scratch("testbed-demo");
    let child = demo(&folder)
        .arg("--json")
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
    let page = std::fs::read_to_string(folder.join("report/report.html")).unwrap();
    let picture = std::fs::read_to_string(folder.join("report/latency.svg")).unwrap();
    for stack in [
        "pmnet, R = 1, NIC, kernel (DRAM)",
        "pmnet, R = 1, switch, kernel (DRAM)",
    ] {
        let rows: Vec<_> = cells.iter().filter(|cell| cell["stack"] == stack).collect();
        let clients: Vec<_> = rows.iter().map(|row| row["clients"].as_u64()).collect();
        assert_eq!(clients, [Some(1), Some(16)], "{outcome}");
        for row in rows {
            assert_eq!(row["operation"], "set");
            assert_eq!(row["errors"], 0);
            assert!(row["throughput"].as_f64().unwrap() > 0.0, "{row}");
        }
        assert!(page.contains(stack));
        assert!(picture.contains(stack));
    }
    assert_eq!(namespaces(&prefix), Vec::<String>::new());
    assert_eq!(in_kernel(&prefix.replace("pmnet-", "bench-")), 0);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn an_interrupted_demo_leaves_nothing() {
    let Some(_one) = possible() else { return };
    let folder = scratch("testbed-demo-ended");
    let out = folder.join("out");
    let mut child = demo(&folder)
        .stdout(std::fs::File::create(&out).unwrap())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let prefix = format!("pmnet-{}-", child.id());
    until("it measures a switch", || {
        std::fs::read_to_string(&out)
            .is_ok_and(|text| text.contains("1 of 1: pmnet, R = 1, switch"))
    });
    assert_eq!(namespaces(&prefix).len(), 5);
    assert_eq!(in_kernel(&prefix.replace("pmnet-", "bench-")), 2);
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    until("it ends", || child.try_wait().unwrap().is_some());
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert_eq!(namespaces(&prefix), Vec::<String>::new());
    assert_eq!(in_kernel(&prefix.replace("pmnet-", "bench-")), 0);
    assert_eq!(std::fs::read_dir(folder.join("report")).unwrap().count(), 0);
    std::fs::remove_dir_all(folder).unwrap();
}
