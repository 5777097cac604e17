//! The Wireshark dissector with packets of real processes. The dissector must name every packet,
//! must not call any packet damaged, and must show an ACK for each update.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use pmnet_lab::harness::{Cluster, Medium, StoreKind, Topology, find_program};

use crate::common;
use crate::support::{eventually, front, ok};

/// A capture on the loopback interface. The capture runs until it is stopped.
struct Capture {
    dumpcap: Child,
    path: PathBuf,
}

impl Capture {
    fn begin(name: &str) -> Capture {
        let path = common::folder().join(format!("{name}.pcapng"));
        let _ = std::fs::remove_file(&path);
        let mut dumpcap = Command::new("dumpcap");
        dumpcap.args(["-q", "-i", "lo", "-B", "64", "-f", "udp", "-w"]);
        let dumpcap = dumpcap.arg(&path).stderr(Stdio::null()).spawn().unwrap();
        let written = |path: &Path| path.metadata().is_ok_and(|about| about.len() > 0);
        eventually("it captures", Duration::from_secs(10), || written(&path));
        Capture { dumpcap, path }
    }

    fn end(mut self) -> PathBuf {
        let pid = rustix::process::Pid::from_child(&self.dumpcap);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        self.dumpcap.wait().unwrap();
        self.path.clone()
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        let _ = self.dumpcap.kill();
        let _ = self.dumpcap.wait();
    }
}

const FIELDS: [&str; 9] = [
    "frame.number",
    "pmnet.name",
    "pmnet.reject",
    "_ws.expert.message",
    "pmnet.command",
    "pmnet.answer_in",
    "pmnet.answer_time",
    "pmnet.fragment_count",
    "pmnet.append.entry",
];

/// Returns the fields of each packet from or to one of these ports.
fn shown(path: &Path, ports: &[u16]) -> Vec<Vec<String>> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/wireshark/pmnet.lua");
    let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
    let mut tshark = Command::new("tshark");
    tshark.args(["-2", "-n", "-T", "fields", "-E", "separator=|"]);
    tshark.args(["-E", "aggregator=;"]);
    tshark
        .arg("-X")
        .arg(format!("lua_script:{}", script.display()));
    tshark.arg("-r").arg(path);
    // The filter excludes ICMP answers about closed ports.
    let filter = format!("udp.port in {{{}}} && !icmp", ports.join(","));
    tshark.args(["-Y", &filter]);
    for field in FIELDS {
        tshark.args(["-e", field]);
    }
    let done = tshark.output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && !said.contains("Lua:"), "{said}");
    let text = String::from_utf8(done.stdout).expect("text");
    text.lines()
        .map(|line| line.split('|').map(str::to_owned).collect())
        .collect()
}

fn use_it(cluster: &Cluster) {
    let mut client = front(cluster);
    for number in 0..50 {
        let key = format!("key{number}");
        assert_eq!(client.call(&["SET", &key, "value"]).unwrap(), ok());
    }
    let long = "x".repeat(5000);
    assert_eq!(client.call(&["SET", "long", &long]).unwrap(), ok());
    client.call(&["INCR", "counter"]).unwrap();
    client.call(&["GET", "key7"]).unwrap();
    client.call(&["GETRANGE", "long", "0", "4000"]).unwrap();
    client
        .call(&["EVAL", "return string.rep('y', 9000)", "0"])
        .unwrap();
}

fn look(rows: &[Vec<String>]) {
    let mut names = BTreeSet::new();
    let (mut answered, mut fragments, mut appended) = (0, 0, 0);
    for row in rows {
        let [
            frame,
            name,
            reject,
            expert,
            command,
            answer_in,
            answer_time,
            count,
            entry,
        ] = &row[..]
        else {
            panic!("{row:?}");
        };
        assert_ne!(name, "", "frame {frame} is not named: {row:?}");
        assert_eq!(reject, "", "frame {frame}: {row:?}");
        // An update for which the log had no space, or whose session is not known yet, is not
        // damaged.
        let is_damage =
            expert.contains("payload") || expert.contains("Lua") || expert.contains("drops");
        assert!(!is_damage, "frame {frame}: {row:?}");
        names.extend(name.split(';'));
        // If a process gave several packets to the system together, the capture shows them as one
        // frame.
        if name.contains(';') {
            fragments += name.split(';').filter(|one| *one == "UPDATE").count();
            appended += name.split(';').filter(|one| *one == "APPEND").count();
            continue;
        }
        if name == "UPDATE" && command.starts_with("SET key") {
            // An update that was sent again, or whose ACK shares a frame with other packets, has no answer here.
            answered += usize::from(!answer_in.is_empty());
        }
        if name == "ACK" && !answer_time.is_empty() {
            let seconds: f64 = answer_time.parse().expect("seconds");
            assert!((0.0..60.0).contains(&seconds), "frame {frame}: {seconds}");
        }
        fragments += usize::from(name == "UPDATE" && count != "1");
        appended += usize::from(name == "APPEND" && entry == "3");
    }
    // On a busy machine, some updates share a frame with other packets, too.
    assert!(answered >= 25, "{answered} updates");
    assert!(appended >= 100, "{appended} appends on two hops");
    assert!(fragments >= 4, "{fragments} fragments of a long update");
    for wanted in [
        "OPEN",
        "OPEN_REPLY",
        "UPDATE",
        "APPEND",
        "ACK",
        "DURABLE",
        "APPLIED",
        "BYPASS",
        "RESPONSE",
        "RECOVER",
        "RECOVER_REPLY",
        "END",
    ] {
        assert!(names.contains(wanted), "no {wanted}: {names:?}");
    }
    println!("{} packets: {names:?}", rows.len());
}

fn run(name: &str, topology: Topology) {
    if find_program("tshark").is_none() || find_program("dumpcap").is_none() {
        return common::skip("tshark is not installed");
    }
    let capture = Capture::begin(name);
    let Some(cluster) = common::start(name, topology) else {
        return;
    };
    use_it(&cluster);
    let ports = [
        cluster.head().unwrap().port(),
        cluster.server().unwrap().port(),
    ];
    cluster.stop().unwrap();
    // The capture program still has the last packets in a buffer.
    std::thread::sleep(Duration::from_secs(1));
    look(&shown(&capture.end(), &ports));
}

#[test]
fn every_packet_of_a_chain_with_keys_is_named() {
    run(
        "wireshark-keys",
        Topology::new(StoreKind::Redis, 2, Medium::Dram),
    );
}

#[test]
fn every_packet_of_a_chain_without_keys_is_named() {
    run(
        "wireshark",
        Topology::new(StoreKind::Redis, 2, Medium::Dram).unkeyed(),
    );
}
