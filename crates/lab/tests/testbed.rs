//! Runs `pmnet-lab testbed` and the benchmarks in it from the command line. The commands must do
//! their work, and leave no processes or networks, even if they are interrupted. The tests check no
//! times.

#[path = "testbed/demo.rs"]
mod demo;
#[path = "../../../tests/shared/skip.rs"]
mod skip;
#[path = "testbed/traffic.rs"]
mod traffic;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use pmnet_lab::bench::micro;
use pmnet_lab::harness::{Binaries, Turn};
use pmnet_lab::testbed::PREFIX;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use skip::skip;

/// Deadline of every step.
const WAIT_MAX: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(20);

/// Longest wait until other tests on this machine no longer use the testbed.
const TURN_MAX: Duration = Duration::from_secs(600);

/// Returns the turn if these tests can run here; otherwise prints the reason.
fn possible() -> Option<Turn> {
    // A machine has only one testbed, and few cores, so only one test at a time may run.
    let turn = Turn::wait("testbed", TURN_MAX).expect("the testbed, when others are done with it");
    let reason = match micro::refusal() {
        None if testbed().is_empty() => return Some(turn),
        None => "somebody's testbed is up".to_owned(),
        Some(reason) => reason,
    };
    skip(&reason);
    None
}

fn lab(arguments: &[&str]) -> Command {
    let mut command = Command::new(LAB);
    command.args(arguments).stdin(Stdio::null());
    // This network has no other users, so the processes need no keys.
    for role in ["DEVICE", "SERVER"] {
        command.env(format!("PMNET_{role}_INSECURE"), "true");
    }
    command
}

fn run(arguments: &[&str]) -> Output {
    lab(arguments).output().expect("pmnet-lab starts")
}

fn good(arguments: &[&str]) -> String {
    let output = run(arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {error}");
    String::from_utf8(output.stdout).expect("text")
}

fn bad(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}");
    String::from_utf8(output.stderr).expect("text")
}

/// Returns the namespaces whose names have this prefix.
fn namespaces(start: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/run/netns").into_iter().flatten();
    entries
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with(start))
        .collect()
}

/// Returns the number of devices that a run has left in the kernel.
fn in_kernel(start: &str) -> usize {
    let entries = std::fs::read_dir("/sys/fs/bpf/pmnet").into_iter().flatten();
    let names = entries.flatten().map(|entry| entry.file_name());
    names
        .filter(|name| name.to_string_lossy().starts_with(start))
        .count()
}

fn testbed() -> Vec<String> {
    namespaces(PREFIX)
}

/// When this value is dropped, even by a failed test, the testbed is removed and the process that
/// runs beside it ends.
#[derive(Default)]
struct Clean {
    children: Vec<Child>,
    /// Command that removes a device from the kernel.
    detach: Option<String>,
}

impl Drop for Clean {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        if let Some(line) = &self.detach {
            let _ = run(&words(line));
        }
        let _ = run(&["testbed", "down"]);
    }
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + WAIT_MAX;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(LOOK);
    }
}

fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

const LAB: &str = env!("CARGO_BIN_EXE_pmnet-lab");

/// Returns the path of the product.
fn product() -> String {
    let binaries = Binaries::beside(Path::new(LAB)).expect("the product is built");
    binaries.pmnet.to_str().expect("a path in UTF-8").to_owned()
}

impl Clean {
    /// Starts pmnet inside a node, and waits until it serves.
    fn serve(&mut self, folder: &Path, node: &str, command: &[&str]) {
        let out = folder.join(format!("{}.out", self.children.len()));
        let child = lab(&["testbed", "exec", node, &product()])
            .args(command)
            .stdout(std::fs::File::create(&out).unwrap())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.children.push(child);
        until(node, || {
            std::fs::read_to_string(&out).is_ok_and(|text| text.contains("ready"))
        });
    }
}

const SERVER: &str = "server --listen 10.51.0.200:51500 --store null:";

fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

/// Sends a hundred updates from a client, all of which must be acknowledged.
fn load(client: &str, via: &str) {
    let line = format!(
        "testbed exec {client} {LAB} load --via {via} --operations 100 --seconds 30 --warmup 0 \
         --mix set:100 --json"
    );
    let text = good(&words(&line));
    let summary: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert!(
        summary["acknowledged"].as_u64().unwrap() >= 100,
        "{summary}"
    );
}

/// Runs the example of `pmnet-lab testbed --help`.
#[test]
fn a_device_by_hand() {
    let Some(_one) = possible() else { return };
    let mut clean = Clean::default();
    let layout = good(&words("testbed up --devices 2 --clients 2 --json"));
    let layout: Value = serde_json::from_str(&layout).unwrap();
    assert_eq!(layout["nodes"].as_array().unwrap().len(), 5);
    assert_eq!(testbed().len(), 5);
    let again = bad(&["testbed", "up"]);
    assert!(again.contains("pmnet-lab testbed down"), "{again}");

    let folder = scratch("testbed-by-hand");
    clean.serve(&folder, "server", &words(SERVER));
    let device = format!(
        "device --listen 10.51.0.102:51000 --next 10.51.0.200:51500 --media dram --log-size 1M --log {}",
        folder.join("log").display()
    );
    clean.serve(&folder, "device2", &words(&device));
    load("client2", "10.51.0.102:51000");

    let status = run(&["testbed", "exec", "client1", "sh", "-c", "exit 7"]).status;
    assert_eq!(status.code(), Some(7));
    assert!(bad(&words("testbed exec client3 true")).contains("client1, client2"));
    let down = good(&["testbed", "down"]);
    assert!(down.contains("ended: 2"), "{down}");
    assert_eq!(testbed(), Vec::<String>::new());
    assert_eq!(in_kernel("testbed-links"), 0);
    for child in &mut clean.children {
        until("a program inside ends", || {
            child.try_wait().unwrap().is_some()
        });
    }
    assert!(good(&["testbed", "down"]).contains("no testbed"));
    assert!(bad(&words("testbed exec client1 true")).contains("testbed up"));
    std::fs::remove_dir_all(folder).unwrap();
}

/// The links must accept packets that a device transmits from XDP. Otherwise no update is
/// acknowledged.
#[test]
fn a_device_in_the_kernel_by_hand() {
    let Some(_one) = possible() else { return };
    let folder = scratch("testbed-kernel");
    let name = format!("testbed-test-{}", std::process::id());
    for (up, node, device, client, via) in [
        (
            "testbed up --devices 0 --clients 2",
            "server",
            "device --mode nic --dev eth0 --listen 10.51.0.200:51000",
            "client2",
            "10.51.0.200:51000",
        ),
        (
            "testbed up --devices 2",
            "device1",
            "device --mode router --dev client1 --listen 10.51.0.101:51000",
            "client1",
            "10.51.0.101:51000",
        ),
        (
            "testbed up --devices 1",
            "device1",
            "device --mode switch --ports client1 --address 10.51.0.101 --listen 10.51.0.200:51500",
            "client1",
            "10.51.0.200:51500",
        ),
    ] {
        let mut clean = Clean::default();
        good(&words(up));
        clean.serve(&folder, "server", &words(SERVER));
        let device = format!("{device} --next 10.51.0.200:51500 --name {name}");
        // A device in a switch watches its ports, so the test removes the device before the
        // network.
        let detach = format!(
            "testbed exec {node} {} {device} --detach --discard",
            product()
        );
        clean.detach = Some(detach.clone());
        clean.serve(&folder, node, &words(&device));
        load(client, via);
        let mut process = clean.children.pop().unwrap();
        process.kill().and_then(|()| process.wait()).unwrap();
        good(&words(&detach));
        good(&["testbed", "down"]);
        clean.detach = None;
        assert_eq!(in_kernel(&name), 0);
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn down_removes_what_a_crash_left() {
    let Some(_one) = possible() else { return };
    let _clean = Clean::default();
    let left = format!("{PREFIX}device3");
    let made = Command::new("ip").args(["netns", "add", &left]).status();
    assert!(made.unwrap().success());
    assert!(bad(&["testbed", "up"]).contains("device3"));
    assert!(good(&["testbed", "down"]).contains("device3"));
    // Several clients without a device are connected by a hub.
    good(&["testbed", "up", "--clients", "2", "--devices", "0"]);
    assert!(namespaces(&format!("{PREFIX}hub")).len() == 1);
    let ports = good(&["testbed", "exec", "hub", "ip", "-o", "link"]);
    for port in ["client1@", "client2@", "server@", "br0:"] {
        assert!(ports.contains(port), "{ports}");
    }
    good(&["testbed", "down"]);
    assert_eq!(testbed(), Vec::<String>::new());
}

/// Returns the arguments of `pmnet-lab bench micro` for few measurements.
fn micro_arguments(folder: &Path) -> Vec<String> {
    let out = folder.to_str().unwrap();
    [
        "bench",
        "micro",
        "--payloads",
        "50,1400",
        "--rounds",
        "2",
        "--out",
        out,
    ]
    .map(str::to_owned)
    .to_vec()
}

#[test]
fn every_system_is_measured_and_nothing_is_left() {
    let Some(_one) = possible() else { return };
    let folder = scratch("testbed-micro");
    let child = lab(&[])
        .args(micro_arguments(&folder))
        .args(["--clients", "1,3", "--seconds", "0.2", "--json"])
        .args(["--client-io", "socket,af-xdp"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let prefix = format!("pmnet-{}-", child.id());
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let outcome: Value = serde_json::from_slice(&output.stdout).unwrap();
    let cells = outcome["cells"].as_array().unwrap();
    let logging = ["nic", "nic-mapped", "switch", "router", "relay", "af-xdp"];
    let others = ["limit", "client-server-nic", "client-server"];
    assert_eq!(cells.len(), (others.len() + logging.len()) * 8);
    for system in others.into_iter().chain(logging) {
        let own: Vec<_> = cells
            .iter()
            .filter(|cell| cell["system"] == system)
            .collect();
        assert_eq!(own.len(), 8);
        let io = |name: &str| own.iter().filter(|cell| cell["client_io"] == name).count();
        assert_eq!((io("af-xdp"), io("socket")), (4, 4));
        for cell in own {
            assert!(cell["updates"].as_u64().unwrap() > 0, "{cell}");
            assert_eq!(cell["rounds_p50_us"].as_array().unwrap().len(), 2);
            let copies = u64::from(logging.contains(&system));
            assert_eq!(cell["copies"].as_u64(), Some(copies), "{cell}");
            assert_eq!(cell["faster"].is_null(), !logging.contains(&system));
            assert!(cell["of_limit"].as_f64().is_some());
        }
    }
    let title = outcome["title"].as_str().unwrap();
    assert!(title.contains("AF_XDP client and socket client"), "{title}");
    for system in logging {
        assert!(
            title.contains(&format!("{system} (DRAM, R = 1)")),
            "{title}"
        );
    }
    let page = std::fs::read_to_string(folder.join("micro.html")).unwrap();
    assert_eq!(page.matches("<svg").count(), 8);
    assert!(folder.join("micro.json").is_file());
    assert_eq!(namespaces(&prefix), Vec::<String>::new());
    assert_eq!(in_kernel(&prefix.replace("pmnet-", "bench-")), 0);
    // Only the report remains.
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 2);
    std::fs::remove_dir_all(folder).unwrap();
}

/// Measures the clients that use a library, in Rust and through libpmnet, with and without keys.
#[test]
fn programs_are_measured_in_rust_and_in_c() {
    let Some(_one) = possible() else { return };
    if !Path::new(&product())
        .with_file_name("libpmnet.so")
        .is_file()
    {
        return skip("libpmnet is not built (cargo build -p pmnet-capi)");
    }
    let folder = scratch("testbed-programs");
    let line = "bench micro --systems nic,nic-keyed,relay --client-io libpmnet,session --payloads 50,1400 --clients 1,3 \
                --rounds 2 --seconds 0.1 --json --out";
    let text = good(&[words(line), vec![folder.to_str().unwrap()]].concat());
    let outcome: Value = serde_json::from_str(&text).unwrap();
    let cells = outcome["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 3 * 2 * 2 * 2);
    for cell in cells {
        assert!(cell["updates"].as_u64().unwrap() > 0, "{cell}");
        assert_eq!(cell["copies"].as_u64(), Some(1), "{cell}");
        let ratio = cell["of_rust"].as_f64();
        assert_eq!(ratio.is_some(), cell["client_io"] == "libpmnet", "{cell}");
        assert!(ratio.is_none_or(|ratio| ratio > 0.0), "{cell}");
    }
    let page = std::fs::read_to_string(folder.join("micro.html")).unwrap();
    assert!(
        page.contains("nic (DRAM, R = 1), libpmnet client"),
        "{page}"
    );
    let refused = lab(&["bench", "micro", "--client-io", "libpmnet"]);
    let output = { refused }.output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        error.contains("need a device, which limit does not have"),
        "{error}"
    );
    std::fs::remove_dir_all(folder).unwrap();
}

/// Runs `pmnet-lab bench packets` with few measurements, on memory and on a file.
#[test]
fn three_ways_to_store_are_measured_and_nothing_is_left() {
    let Some(_one) = possible() else { return };
    let folder = scratch("testbed-packets");
    let child = lab(&["bench", "packets", "--media", "tmpfs-flushed,file"])
        .args([
            "--payloads",
            "16,1472",
            "--queues",
            "1",
            "--in-flight",
            "1,8",
        ])
        .args(["--log-size", "4M", "--kept", "500", "--seconds", "0.1"])
        .args(["--rounds", "2", "--json", "--out"])
        .arg(&folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let prefix = format!("pmnet-{}-", child.id());
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let outcome: Value = serde_json::from_slice(&output.stdout).unwrap();
    let cells = outcome["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 2 * 2 * 2 * 3, "media, sizes, numbers, servers");
    for store in ["nothing", "copied", "buffers"] {
        let own = cells.iter().filter(|cell| cell["store"] == store);
        // On a busy machine, a run may end before any request is answered in the measured time.
        let requests: u64 = own.map(|cell| cell["requests"].as_u64().unwrap()).sum();
        assert!(requests > 0, "{store}");
    }
    for cell in cells {
        let copied = cell["store"] == "copied";
        assert!(!copied || cell["more_throughput"].is_null(), "{cell}");
        assert_eq!(
            cell["storing_ns"].is_null(),
            cell["store"] == "nothing",
            "{cell}"
        );
    }
    let page = std::fs::read_to_string(folder.join("packets.html")).unwrap();
    assert_eq!(page.matches("<svg").count(), 2 * 2 * 2, "two charts each");
    let json = std::fs::read(folder.join("packets.json")).unwrap();
    let file: Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(file, outcome);
    assert!(namespaces(&prefix).is_empty());
    let left = std::fs::read_dir(&folder).unwrap().count();
    assert_eq!(left, 2, "the report, and no log");
    for (flags, sentence) in [
        (["--log-size", "1M"], "--log-size"),
        (["--queues", "9"], "--queues"),
        (["--payloads", "15"], "--payloads"),
    ] {
        let output = lab(&["bench", "packets"]).args(flags).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&output.stderr).contains(sentence));
    }
}

/// Runs `pmnet-lab bench pipeline` with few measurements. The benchmark neither needs nor changes
/// namespaces.
#[test]
fn packets_are_measured_and_all_fare_as_they_should() {
    let Some(_one) = possible() else { return };
    let child = lab(&["bench", "pipeline", "--batch", "70", "--rounds", "2"])
        .args([
            "--payloads",
            "0,3,1344",
            "--sessions",
            "1,64",
            "--log-size",
            "1M",
        ])
        .arg("--json")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let pinned = format!("bench-{}-", child.id());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let outcome: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = outcome["rows"].as_array().unwrap();
    // Every kind is measured once for each number of sessions; updates are measured three times.
    let kinds = [
        "update",
        "update6",
        "duplicate",
        "unknown",
        "damaged",
        "read-hit",
        "read-miss",
        "other-port",
        "tcp",
        "arp",
    ];
    assert_eq!(rows.len(), 2 * (kinds.len() + 2));
    for kind in kinds {
        let own = rows.iter().filter(|row| row["packet"] == kind);
        assert_eq!(own.count(), if kind == "update" { 6 } else { 2 }, "{kind}");
    }
    for row in rows {
        assert_eq!(row["packets"].as_u64(), Some(140));
        for figure in ["ns", "ns_min", "subtracted_ns", "per_second"] {
            assert!(row[figure].as_f64().is_some(), "{figure}: {row}");
        }
    }
    assert_eq!(in_kernel(&pinned), 0);

    // Impossible measurements are refused before any program is loaded.
    for (flags, reason) in [
        (
            ["--log-size", "1M"],
            "--log-size 1M: a power of two is needed",
        ),
        (["--payloads", "1345"], "--payloads: numbers from 0 to 1344"),
    ] {
        let output = lab(&["bench", "pipeline"]).args(flags).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(reason), "{error}");
    }
}

/// Interrupts a run with this signal. Returns the run's exit code, and the prefix of the names of
/// its namespaces.
fn ended_by(signal: Signal, folder: &Path) -> (Option<i32>, String) {
    let mut child = lab(&[])
        .args(micro_arguments(folder))
        .args([
            "--clients",
            "1",
            "--seconds",
            "20",
            "--systems",
            "nic,relay,limit",
        ])
        .stdout(std::fs::File::create(folder.join("out")).unwrap())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let prefix = format!("pmnet-{}-", child.id());
    // Waits until the first run begins.
    until("it begins", || {
        std::fs::read_to_string(folder.join("out")).is_ok_and(|text| text.contains("round 1"))
    });
    assert_eq!(namespaces(&prefix).len(), 7);
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
    until("it ends", || child.try_wait().unwrap().is_some());
    (child.wait().unwrap().code(), prefix)
}

#[test]
fn interrupted_or_killed_it_leaves_nothing() {
    let Some(_one) = possible() else { return };
    let folder = scratch("testbed-ended");
    let (code, prefix) = ended_by(Signal::INT, &folder);
    let pinned = prefix.replace("pmnet-", "bench-");
    assert_eq!(code, Some(1));
    assert_eq!(namespaces(&prefix), Vec::<String>::new());
    assert_eq!(in_kernel(&pinned), 0);

    let (code, prefix) = ended_by(Signal::KILL, &folder);
    assert_eq!(code, None);
    // The killed process could remove nothing. Another pmnet on this machine may have removed its
    // namespaces and devices since then, so the test does not count them.
    let pinned = prefix.replace("pmnet-", "bench-");
    let again = "bench micro --systems limit --payloads 50 --clients 1 --rounds 1 --seconds 0.05";
    good(&[words(again), vec!["--out", folder.to_str().unwrap()]].concat());
    assert_eq!(namespaces(&prefix), Vec::<String>::new());
    assert_eq!(in_kernel(&pinned), 0);
    std::fs::remove_dir_all(folder).unwrap();
}
