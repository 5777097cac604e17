//! The status port of real processes. The counts of the port must agree with the ledger, every metric must change, and
//! a role must be ready exactly while it serves.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pmnet_lab::check::{Ledger, verify};
use pmnet_lab::harness::{
    Cluster, Medium, Port, Process, Role, Scratch, StoreKind, Topology, find_program, settle,
};
use pmnet_lab::load::{
    CheckedOptions, Hooks, Op, Options, Outcome, Record, Summary, Workload, run,
};
use pmnet_lab::resp::Reply;
use pmnet_wire::{HEADER_LEN, Header, Kind};

use crate::common;
use crate::fleet::etcd::Etcds;
use crate::support::{connect, eventually, front, launch, ok};

/// The log line that has the address of the status port, which the system chose.
const OPEN: &str = "the status port is open at=";
const ANSWERED_MAX: Duration = Duration::from_secs(10);
/// Number of clients of the load.
pub const CLIENTS: usize = 4;
const SCRAPED_EVERY: Duration = Duration::from_millis(20);

/// Returns a topology in which every process has a status port.
pub fn shown(mut topology: Topology) -> Topology {
    let status = ["--status", "127.0.0.1:0"].map(String::from);
    for args in [
        &mut topology.server_args,
        &mut topology.device_args,
        &mut topology.front_args,
    ] {
        args.extend(status.clone());
    }
    topology
}

/// Returns the address of a process's status port, from the last log line about it.
pub fn place(process: &Process) -> SocketAddr {
    let log = process.stderr();
    let said = log.rsplit_once(OPEN).map(|(_, rest)| rest);
    let address = said.and_then(|rest| rest.split_whitespace().next());
    address
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(|| panic!("no status port: {log}"))
}

/// Makes a request. Returns the status and the body of the answer.
pub fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(ANSWERED_MAX)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, body.to_owned())
}

/// The metrics of one process at one moment, without comment lines.
#[derive(Clone, Debug, Default)]
pub struct Metrics(BTreeMap<String, f64>);

impl Metrics {
    pub fn of(address: SocketAddr) -> Metrics {
        let (status, text) = get(address, "/metrics");
        assert_eq!(status, 200, "{text}");
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let values = lines.map(|line| {
            let (name, value) = line.rsplit_once(' ').unwrap();
            (name.to_owned(), value.parse().unwrap())
        });
        Metrics(values.collect())
    }

    /// Returns the sum of all values of a metric whose labels include all of `labels`. Each label has the form
    /// `key="value"`.
    pub fn sum(&self, name: &str, labels: &[&str]) -> f64 {
        let is = |line: &str| {
            let (found, rest) = line.split_once('{').unwrap_or((line, ""));
            found == name && labels.iter().all(|label| rest.contains(label))
        };
        let found: Vec<f64> = self
            .0
            .iter()
            .filter(|(line, _)| is(line))
            .map(|(_, value)| *value)
            .collect();
        assert!(
            !found.is_empty(),
            "no {name} {labels:?} in {:?}",
            self.0.keys()
        );
        found.iter().sum()
    }

    /// Returns the growth of a counter since `before`.
    pub fn since(&self, before: &Metrics, name: &str, labels: &[&str]) -> u64 {
        let grown = self.sum(name, labels) - before.sum(name, labels);
        assert!(grown >= 0.0, "{name}: {grown}");
        // Counts below 2^53 are converted exactly.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        {
            grown as u64
        }
    }
}

/// Returns the status ports of all running processes of pmnet.
fn places(cluster: &Cluster) -> impl Iterator<Item = (Role, SocketAddr)> {
    let ours = cluster.processes().filter(|(role, _)| *role != Role::Redis);
    ours.map(|(role, process)| (role, place(process)))
        .filter(|(_, place)| TcpStream::connect(place).is_ok())
}

/// Returns the metrics of all processes of pmnet.
fn all(cluster: &Cluster) -> BTreeMap<Role, Metrics> {
    places(cluster)
        .map(|(role, place)| (role, Metrics::of(place)))
        .collect()
}

/// Runs checked load. Returns the ledger, and the number of acknowledged operations by kind.
pub fn load(cluster: &Cluster) -> (Ledger, BTreeMap<Op, u64>) {
    let never = AtomicBool::new(false);
    load_until(cluster.endpoint().unwrap(), Some(4_000), &never)
}

/// Runs checked load until it has made this number of operations, or until `over` is set.
pub fn load_until(
    endpoint: SocketAddr,
    operations: Option<u64>,
    over: &AtomicBool,
) -> (Ledger, BTreeMap<Op, u64>) {
    let mut options = Options::new(endpoint);
    options.clients = CLIENTS;
    options.operations = operations;
    options.duration = Duration::from_secs(120);
    options.workload = Workload::Checked(CheckedOptions {
        prefix: "s:".into(),
        ring: 50,
        lists: true,
        value_bytes: 0,
    });
    let (summary, ledger, done) = checked_load(&options, over);
    assert_eq!((summary.failed, summary.unknown), (0, 0));
    (ledger, done)
}

/// Runs checked load with these options. Returns its summary, the ledger, and the number of acknowledged operations by
/// kind.
pub fn checked_load(options: &Options, over: &AtomicBool) -> (Summary, Ledger, BTreeMap<Op, u64>) {
    let (mut ledger, mut done) = (Ledger::new(), BTreeMap::new());
    let mut record = |record: &Record| {
        if matches!(record.outcome, Outcome::Ok) {
            *done.entry(record.op).or_default() += 1;
        }
        Ok(ledger.add(record)?)
    };
    let hooks = Hooks {
        record: Some(&mut record),
        progress: None,
    };
    let summary = run(options, hooks, over).unwrap();
    (summary, ledger, done)
}

/// Waits until all entries are durable everywhere and applied, and no process is an entry ahead of another. Returns the
/// metrics of that moment: an entry that comes between two responses (a front ends a session) would differ.
fn quiet(cluster: &Cluster) -> BTreeMap<Role, Metrics> {
    let mut now = BTreeMap::new();
    eventually("all is applied", ANSWERED_MAX, || {
        now = all(cluster);
        let watermark = now[&Role::Server].sum("pmnet_server_order", &["cursor=\"watermark\""]);
        let mut devices = now
            .iter()
            .filter(|(role, _)| matches!(role, Role::Device(_)));
        devices.all(|(_, device)| {
            let order = |cursor| device.sum("pmnet_device_order", &[cursor]);
            let cursors = [
                "cursor=\"last\"",
                "cursor=\"committed\"",
                "cursor=\"applied\"",
            ];
            cursors.into_iter().all(|cursor| order(cursor) == watermark)
        })
    });
    now
}

/// When this value is dropped, even by a failed test, the flag is set.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn sums_are_those_of_the_ledger() {
    let topology = shown(Topology::new(StoreKind::Redis, 2, Medium::Dram));
    let Some(cluster) = common::start("status-sums", topology) else {
        return;
    };
    // The status ports are read all the time, which must change nothing.
    let over = AtomicBool::new(false);
    let places: Vec<SocketAddr> = places(&cluster).map(|(_, place)| place).collect();
    let before = quiet(&cluster);
    let (ledger, done) = std::thread::scope(|scope| {
        let _ends = Ends(&over);
        for place in &places {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    Metrics::of(*place);
                    std::thread::sleep(SCRAPED_EVERY);
                }
            });
        }
        load(&cluster)
    });
    settle(&cluster).unwrap();
    let verdict = verify(&ledger, &mut cluster.reader().unwrap()).unwrap();
    assert!(verdict.is_clean(), "{verdict}");
    let early = done[&Op::Set];
    let late = done[&Op::Rpush] + done[&Op::Incr] + done[&Op::Setnx];
    assert!(early > 500 && late > 500, "{done:?}");
    let now = quiet(&cluster);
    let grown =
        |role: Role, name: &str, labels: &[&str]| now[&role].since(&before[&role], name, labels);
    let (head, tail) = (Role::Device(0), Role::Device(1));
    assert_eq!(
        grown(
            Role::Front,
            "pmnet_front_call_seconds_count",
            &["class=\"early\""]
        ),
        early
    );
    assert_eq!(
        grown(
            Role::Front,
            "pmnet_front_call_seconds_count",
            &["class=\"write\""]
        ),
        late
    );
    // Beginnings and ends of sessions are entries too. The head makes the entries of some ends by itself, and admits
    // the entries of all others.
    let entries = grown(tail, "pmnet_device_entries_total", &[]);
    let sessions = u64::try_from(CLIENTS).unwrap() * 2 + 8;
    let admitted = grown(head, "pmnet_device_entries_total", &[]);
    assert!(
        early <= admitted && admitted <= entries && entries <= early + sessions,
        "{early} {admitted} {entries}"
    );
    assert_eq!(
        grown(head, "pmnet_device_order", &["cursor=\"last\""]),
        entries
    );
    for role in [head, tail] {
        assert_eq!(
            grown(role, "pmnet_device_durable_seconds_count", &[]),
            entries
        );
        assert_eq!(
            grown(role, "pmnet_device_acknowledged_seconds_count", &[]),
            entries
        );
    }
    assert_eq!(
        grown(Role::Server, "pmnet_server_applied_total", &[]),
        early
    );
    assert_eq!(
        grown(Role::Server, "pmnet_server_batch_updates_sum", &[]),
        early
    );
    assert!(grown(Role::Server, "pmnet_server_executed_total", &[]) >= late);
    assert_eq!(now[&head].sum("pmnet_device_copies", &[]), 2.0);
    assert_eq!(now[&Role::Front].sum("pmnet_front_copies", &[]), 2.0);
    // No process may have dropped a packet.
    for (role, name) in [
        (head, "pmnet_device_dropped_total"),
        (Role::Server, "pmnet_server_dropped_total"),
        (Role::Front, "pmnet_front_dropped_total"),
    ] {
        assert_eq!(grown(role, name, &[]), 0, "{role} {name}");
    }
}

/// A role is ready while it serves. A role that does not serve must report the reason. The role is alive in both
/// states.
#[test]
fn a_role_is_ready_while_it_serves() {
    let mut topology = shown(Topology::new(StoreKind::Redis, 2, Medium::Dram));
    topology
        .device_args
        .extend(["--copies", "2"].map(String::from));
    topology
        .front_args
        .extend(["--deadline-ms", "1000"].map(String::from));
    let Some(mut cluster) = common::start("status-ready", topology) else {
        return;
    };
    let ready = |cluster: &mut Cluster, role: Role| {
        let place = place(cluster.process(role).unwrap());
        assert_eq!(get(place, "/livez"), (200, "alive\n".into()), "{role}");
        get(place, "/readyz")
    };
    let becomes = |cluster: &mut Cluster, role: Role, status: u16, why: &str| {
        eventually(&format!("{role}: {status} {why}"), ANSWERED_MAX, || {
            let (found, text) = ready(cluster, role);
            found == status && text.contains(why)
        });
    };
    for role in [Role::Server, Role::Device(0), Role::Device(1), Role::Front] {
        becomes(&mut cluster, role, 200, "ready");
    }
    cluster.kill(Role::Redis).unwrap();
    // The server notices the fault when it has work, or when it checks the store.
    becomes(&mut cluster, Role::Server, 503, "the store is left alone");
    let server = place(cluster.process(Role::Server).unwrap());
    assert_eq!(
        Metrics::of(server).sum("pmnet_server_store_paused", &[]),
        1.0
    );
    // The devices still acknowledge, and show how far the store lags.
    assert_eq!(front(&cluster).call(&["SET", "k", "v"]).unwrap(), ok());
    let head = place(cluster.process(Role::Device(0)).unwrap());
    eventually("the lag grows", ANSWERED_MAX, || {
        Metrics::of(head).sum("pmnet_device_oldest_unapplied_seconds", &[]) > 1.0
    });
    assert_eq!(get(head, "/readyz").0, 200);
    cluster.restart(Role::Redis).unwrap();
    becomes(&mut cluster, Role::Server, 200, "ready");
    eventually("the lag is gone", ANSWERED_MAX, || {
        Metrics::of(head).sum("pmnet_device_oldest_unapplied_seconds", &[]) == 0.0
    });
    // When the chain is lost, a front is not ready from the moment at which a command has had no answer in time.
    cluster.kill(Role::Device(0)).unwrap();
    let refused = front(&cluster).call(&["SET", "k", "w"]);
    assert!(!refused.is_ok_and(|reply| reply == ok()));
    becomes(
        &mut cluster,
        Role::Front,
        503,
        "nothing has come back from the devices",
    );
    cluster.restart(Role::Device(0)).unwrap();
    becomes(&mut cluster, Role::Device(0), 200, "ready");
    becomes(&mut cluster, Role::Front, 200, "ready");
    // A chain of one device is too short, and the state must show this.
    cluster.kill(Role::Server).unwrap();
    cluster.restart(Role::Server).unwrap();
    becomes(&mut cluster, Role::Server, 200, "ready");
    let places: Vec<String> = [Role::Server, Role::Device(0), Role::Front]
        .map(|role| place(cluster.process(role).unwrap()).to_string())
        .to_vec();
    let (is_ready, said) = ask(&["--at", &places.join(","), "--wait", "10"]);
    assert!(
        is_ready && said.contains(": ready\n") && said.contains("redis"),
        "{said}"
    );
    let (is_ready, said) = ask(&["--at", &places[0], "--json"]);
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert!(is_ready && said[0]["state"]["role"] == "server", "{said}");
    let json = get(head_of(&mut cluster), "/api/v1/status").1;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["role"], "device");
    assert_eq!(json["loops"][0]["metrics"]["pmnet_device_copies_wanted"], 2);
}

/// Waits until the role has this status, with this reason. Prints how long it took.
fn turns(cluster: &mut Cluster, role: Role, fault: &str, status: u16, why: &str) {
    let at = place(cluster.process(role).unwrap());
    let begun = Instant::now();
    eventually(
        &format!("{fault}: {role}: {status} {why}"),
        ANSWERED_MAX,
        || {
            let (found, text) = get(at, "/readyz");
            found == status && text.contains(why)
        },
    );
    let took = begun.elapsed().as_secs_f64();
    println!("{fault}: {role} answers {status} after {took:.2} s");
}

/// If a process is lost, its neighbour is not ready. If a device's log becomes full, the device is not ready. When the
/// fault has ended, all processes are ready again.
#[test]
fn every_fault_shows_at_a_neighbour() {
    let mut topology = shown(Topology::new(StoreKind::Redis, 2, Medium::Dram));
    let small = [
        "--copies",
        "2",
        "--entries",
        "512",
        "--frame-bytes",
        "262144",
    ];
    topology.device_args.extend(small.map(String::from));
    let Some(mut cluster) = common::start("status-faults", topology) else {
        return;
    };
    let (head, tail) = (Role::Device(0), Role::Device(1));
    let all = [Role::Server, head, tail, Role::Front];
    // A device learns of the chain's first epoch only after the front was ready.
    for role in all {
        turns(&mut cluster, role, "the chain is new", 200, "ready");
    }
    let silent = "its next hop has said nothing";
    for (lost, tells, why) in [
        (Role::Server, tail, silent),
        (Role::Redis, Role::Server, "the store is left alone"),
        (tail, head, silent),
    ] {
        let (fault, mended) = (format!("{lost} is lost"), format!("{lost} is back"));
        cluster.kill(lost).unwrap();
        turns(&mut cluster, tells, &fault, 503, why);
        cluster.restart(lost).unwrap();
        for role in all {
            turns(&mut cluster, role, &mended, 200, "ready");
        }
    }
    // Without Redis the log becomes full.
    cluster.kill(Role::Redis).unwrap();
    let mut client = front(&cluster);
    for number in 0..=512 * 4 / 5 {
        let key = format!("k{number}");
        assert_eq!(client.call(&["SET", &key, "v"]).unwrap(), ok());
    }
    let full = "the log is over 80 % full";
    turns(&mut cluster, head, full, 503, "its log is filling up");
    cluster.restart(Role::Redis).unwrap();
    for role in all {
        turns(&mut cluster, role, "it is empty again", 200, "ready");
    }
}

/// Without etcd a device loses its lease, and is not ready until etcd is back.
#[test]
fn a_device_without_a_lease_is_not_ready() {
    let Some(mut etcds) = Etcds::start("status-lease", 1) else {
        return;
    };
    let mut topology = shown(Topology::new(StoreKind::Null, 1, Medium::File));
    topology.device_args.extend(etcds.flags());
    topology.server_args.extend(etcds.flags());
    let mut cluster = common::start("status-lease", topology).unwrap();
    let head = Role::Device(0);
    turns(&mut cluster, head, "all is well", 200, "ready");
    etcds.kill(0);
    let at = head_of(&mut cluster);
    eventually("the lease is over", ANSWERED_MAX, || {
        Metrics::of(at).sum("pmnet_device_lease_seconds_left", &[]) == 0.0
    });
    turns(
        &mut cluster,
        head,
        "its lease is over",
        503,
        "it has no lease",
    );
    etcds.restart(0);
    turns(&mut cluster, head, "etcd is back", 200, "ready");
}

/// Runs `pmnet status`. Returns whether the command reports no fault, and the output of the command.
pub fn ask(args: &[&str]) -> (bool, String) {
    let mut command = std::process::Command::new(common::pmnet());
    let output = command.arg("status").args(args).output().unwrap();
    (
        output.status.success(),
        String::from_utf8(output.stdout).unwrap(),
    )
}

fn head_of(cluster: &mut Cluster) -> SocketAddr {
    place(cluster.process(Role::Device(0)).unwrap())
}

/// Regression test: a device went on acknowledging writes in a log whose file was removed. Such a log is lost with its
/// process.
#[test]
fn a_device_whose_log_was_removed_promises_nothing_more() {
    let mut topology = shown(Topology::new(StoreKind::Redis, 2, Medium::Dram));
    topology
        .front_args
        .extend(["--deadline-ms", "2000"].map(String::from));
    let Some(mut cluster) = common::start("status-removed", topology) else {
        return;
    };
    let mut client = front(&cluster);
    assert_eq!(client.call(&["SET", "a", "1"]).unwrap(), ok());
    std::fs::remove_file(cluster.device_log(1)).unwrap();
    turns(
        &mut cluster,
        Role::Device(1),
        "its log is removed",
        503,
        "PM1328",
    );
    // The server, and then the store, must have a write before it is acknowledged.
    eventually("writes go to the server", ANSWERED_MAX, || {
        let before = executed(&mut cluster);
        assert_eq!(client.call(&["SET", "b", "2"]).unwrap(), ok());
        executed(&mut cluster) > before
    });
    cluster.kill(Role::Server).unwrap();
    assert_ne!(client.call(&["SET", "c", "3"]).ok(), Some(ok()));
    cluster.restart(Role::Server).unwrap();
    for device in [0, 1] {
        cluster.kill(Role::Device(device)).unwrap();
    }
    let mut redis = connect(cluster.redis().unwrap());
    for (key, value) in [("a", "1"), ("b", "2")] {
        let value = Reply::Bulk(value.into());
        eventually("Redis has all", ANSWERED_MAX, || {
            redis.call(&["GET", key]).unwrap() == value
        });
    }
}

/// Number of requests that the server has executed.
fn executed(cluster: &mut Cluster) -> f64 {
    let server = place(cluster.process(Role::Server).unwrap());
    Metrics::of(server).sum("pmnet_server_executed_total", &[])
}

/// If the chain has fewer devices than wanted, its devices serve, but are not ready.
#[test]
fn too_few_copies_are_no_reason_to_stop_but_not_ready() {
    let mut topology = shown(Topology::new(StoreKind::Null, 1, Medium::Dram));
    topology
        .device_args
        .extend(["--copies", "3"].map(String::from));
    let mut cluster = common::start("status-copies", topology).unwrap();
    let head = head_of(&mut cluster);
    assert_eq!(get(head, "/readyz").0, 503);
    assert!(
        get(head, "/readyz")
            .1
            .contains("the chain has 1 copies, and 3 are wanted")
    );
    assert_eq!(get(head, "/livez").0, 200);
    let (is_ready, said) = ask(&["--at", &head.to_string()]);
    assert!(
        !is_ready && said.contains("not ready: the chain has 1 copies"),
        "{said}"
    );
    assert!(!ask(&["--at", "127.0.0.1:1"]).0, "nobody is there");
    assert_eq!(front(&cluster).call(&["SET", "k", "v"]).unwrap(), ok());
}

/// Metrics, or parts of metrics, that this test cannot change, each with the reason.
const ELSEWHERE: &[(&str, &str)] = &[
    ("pmnet_front_rdma_total", "needs RDMA: tests/verbs"),
    ("pmnet_verbs_", "needs RDMA: tests/verbs"),
    ("pmnet_kernel_", "needs root and a network of namespaces"),
    ("pmnet_controller_", "needs etcd"),
    ("pmnet_memcached_", "another front"),
    ("pmnet_router_", "needs many shards: sharding"),
    ("pmnet_device_lease_seconds_left", "needs etcd"),
];

/// Metrics and parts that may stay 0, because this test may not produce the fault that they count. All other metrics
/// must change.
const MAY_STAY: &[&str] = &[
    "pmnet_device_other_payloads_total",
    r#"pmnet_device_dropped_total reason="forged""#,
    r#"pmnet_device_dropped_total reason="from_nowhere""#,
    r#"pmnet_device_dropped_total reason="kind""#,
    r#"pmnet_device_dropped_total reason="misled""#,
    r#"pmnet_device_dropped_total reason="no_route""#,
    r#"pmnet_device_dropped_total reason="other_epoch""#,
    r#"pmnet_device_dropped_total reason="silenced""#,
    r#"pmnet_device_dropped_total reason="stale_epoch""#,
    r#"pmnet_device_dropped_total reason="unexpected""#,
    r#"pmnet_device_dropped_total reason="unknown_key""#,
    r#"pmnet_device_duplicates_total"#,
    r#"pmnet_device_opens_refused_total"#,
    r#"pmnet_device_other_mode_total"#,
    r#"pmnet_device_over_share_total"#,
    r#"pmnet_device_retransmissions_total"#,
    r#"pmnet_device_send_problems_total problem="fragmented""#,
    r#"pmnet_device_send_problems_total problem="send_dropped""#,
    r#"pmnet_device_send_problems_total problem="send_errors""#,
    r#"pmnet_device_sessions_ended_total reason="crowded_out""#,
    r#"pmnet_device_sessions_ended_total reason="expired""#,
    r#"pmnet_device_sessions_ended_total reason="over_share""#,
    r#"pmnet_device_sessions_ended_total reason="succeeded""#,
    r#"pmnet_front_clients_closed_unread_total"#,
    r#"pmnet_front_dropped_total reason="forged""#,
    r#"pmnet_front_dropped_total reason="from_nowhere""#,
    r#"pmnet_front_dropped_total reason="rejected""#,
    r#"pmnet_front_dropped_total reason="stale_epoch""#,
    r#"pmnet_front_dropped_total reason="unexpected""#,
    r#"pmnet_front_failed_logins_total"#,
    r#"pmnet_front_fallbacks_total"#,
    r#"pmnet_front_reads_at_once_total"#,
    r#"pmnet_front_replica_reads_total"#,
    r#"pmnet_front_send_problems_total problem="fragmented""#,
    r#"pmnet_front_send_problems_total problem="send_dropped""#,
    r#"pmnet_front_send_problems_total problem="send_errors""#,
    r#"pmnet_front_sessions_crowded_total"#,
    r#"pmnet_front_tls_failed_total"#,
    r#"pmnet_server_abandoned_total"#,
    r#"pmnet_server_answered_again_total"#,
    r#"pmnet_server_dropped_total reason="forged""#,
    r#"pmnet_server_dropped_total reason="from_nowhere""#,
    r#"pmnet_server_dropped_total reason="misled""#,
    r#"pmnet_server_dropped_total reason="no_room""#,
    r#"pmnet_server_dropped_total reason="other_epoch""#,
    r#"pmnet_server_expired_total"#,
    r#"pmnet_server_fallbacks_total"#,
    r#"pmnet_server_kept_reply_bytes"#,
    r#"pmnet_server_other_mode_total"#,
    r#"pmnet_server_rejected_total"#,
    r#"pmnet_server_repeated_total"#,
    r#"pmnet_server_replies_let_go_total"#,
    r#"pmnet_server_retransmissions_total"#,
    r#"pmnet_server_send_problems_total problem="fragmented""#,
    r#"pmnet_server_send_problems_total problem="send_dropped""#,
    r#"pmnet_server_send_problems_total problem="send_errors""#,
    r#"pmnet_server_store_paused reason="none""#,
];

/// Returns the metrics and parts whose value is not 0: the names without the suffixes of histograms, with the label of
/// the part.
fn moved(metrics: &Metrics) -> BTreeSet<String> {
    let moving = metrics.0.iter().filter(|(_, value)| **value != 0.0);
    moving.map(|(line, _)| part(line)).collect()
}

/// Returns `name` or `name label="part"` of a metric line.
fn part(line: &str) -> String {
    let (name, rest) = line.split_once('{').unwrap_or((line, ""));
    let name = ["_bucket", "_sum", "_count"]
        .iter()
        .find_map(|end| name.strip_suffix(end))
        .unwrap_or(name);
    let labels = rest.trim_end_matches('}').split(',');
    let own = [
        "reason=", "answer=", "problem=", "cursor=", "class=", "event=",
    ];
    let part = labels
        .into_iter()
        .find(|label| own.iter().any(|own| label.starts_with(own)));
    part.map_or_else(|| name.to_owned(), |part| format!("{name} {part}"))
}

/// Returns the root folder of the repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .unwrap()
}

/// Returns the names of all metrics that the page documents.
fn documented() -> BTreeSet<String> {
    let page = std::fs::read_to_string(root().join("docs/reference/metrics.md")).unwrap();
    let rows = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `pmnet_"));
    rows.map(|row| format!("pmnet_{}", row.split('`').next().unwrap()))
        .collect()
}

/// Sends bad datagrams. Each datagram has one fault.
pub fn send_bad_ones(to: SocketAddr) {
    let packet = |change: &dyn Fn(&mut Header), payload: &[u8]| {
        let mut header = Header {
            epoch: 1,
            session: 77,
            fragment_count: 1,
            ..Header::new(Kind::Update)
        };
        change(&mut header);
        let mut bytes = Vec::new();
        header.write(payload, &mut bytes);
        bytes
    };
    let good = packet(&|_| (), b"payload");
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    let last = good.len() - 1;
    let datagrams = [
        b"GET / HTTP/1.1".to_vec(),
        good[..HEADER_LEN - 1].to_vec(),
        good[..last].to_vec(),
        [&good[..], &[0; 3000]].concat(),
        with(3, 200),
        with(7, 1),
        with(last, !good[last]),
        with(20, !good[20]),
        packet(&|header| header.fragment_index = 7, b"payload"),
        packet(&|header| header.shard = 9, b"payload"),
        packet(&|header| header.tag = 5, b"payload"),
        packet(&|header| header.epoch = 0, b"payload"),
        packet(&|header| header.kind = Kind::Append, b"payload"),
        packet(&|header| header.kind = Kind::Ack, b""),
    ];
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    for datagram in datagrams {
        socket.send_to(&datagram, to).unwrap();
    }
}

/// Every documented metric must be served and must change, except counts of faults that this test does not produce.
#[test]
fn every_metric_moves() {
    let mut topology = shown(Topology::new(StoreKind::Redis, 2, Medium::Dram).unkeyed());
    topology
        .device_args
        .extend(["--entries", "512", "--frame-bytes", "262144"].map(String::from));
    topology
        .front_args
        .extend(["--deadline-ms", "1000"].map(String::from));
    let Some(mut cluster) = common::start("status-all", topology) else {
        return;
    };
    let mut seen = BTreeSet::new();
    let mut served = BTreeSet::new();
    let mut look = |cluster: &Cluster| {
        for metrics in all(cluster).values() {
            seen.extend(moved(metrics));
            served.extend(metrics.0.keys().map(|line| part(line)));
        }
    };
    load(&cluster);
    let mut client = front(&cluster);
    assert_eq!(client.call(&["SET", "a", "1"]).unwrap(), ok());
    let both = b"*3\r\n$3\r\nSET\r\n$1\r\nb\r\n$1\r\n1\r\n*2\r\n$3\r\nGET\r\n$1\r\nb\r\n";
    client.exchange(both, 2).unwrap();
    for _ in 0..20 {
        client.call(&["SET", "c", "1"]).unwrap();
        client.call(&["GET", "c"]).unwrap();
        client.call(&["GET", "never"]).unwrap();
    }
    client.call(&["EVAL_RO", "return 1", "0"]).unwrap();
    let targets: Vec<SocketAddr> = [cluster.head(), cluster.server()]
        .into_iter()
        .flatten()
        .collect();
    targets.into_iter().for_each(send_bad_ones);
    look(&cluster);
    // The log becomes full: the device refuses updates, and the server executes them when the store is back.
    cluster.kill(Role::Redis).unwrap();
    let endpoint = cluster.endpoint().unwrap();
    std::thread::scope(|scope| {
        for number in 0..4 {
            scope.spawn(move || {
                for key in 0..400 {
                    let mut client = crate::support::connect(endpoint);
                    if client
                        .call(&["SET", &format!("full:{number}:{key}"), "v"])
                        .is_ok_and(|reply| reply != ok())
                    {
                        break;
                    }
                }
            });
        }
    });
    look(&cluster);
    cluster.restart(Role::Redis).unwrap();
    eventually("the log is empty again", ANSWERED_MAX, || {
        look(&cluster);
        front(&cluster).call(&["INCR", "n"]).is_ok()
    });
    cluster.kill(Role::Device(0)).unwrap();
    let _ = front(&cluster).call(&["SET", "a", "2"]);
    look(&cluster);
    cluster.restart(Role::Device(0)).unwrap();
    look(&cluster);
    let elsewhere = |name: &str| ELSEWHERE.iter().any(|(start, _)| name.starts_with(start));
    let names: BTreeSet<String> = served
        .iter()
        .map(|part| part.split(' ').next().unwrap().to_owned())
        .collect();
    let documented = documented();
    let unknown: Vec<&String> = names.difference(&documented).collect();
    assert!(unknown.is_empty(), "served and not documented: {unknown:?}");
    let missing: Vec<&String> = documented
        .difference(&names)
        .filter(|name| !elsewhere(name))
        .collect();
    assert!(missing.is_empty(), "documented and not served: {missing:?}");
    let still: Vec<&String> = served
        .difference(&seen)
        .filter(|name| !elsewhere(name) && !MAY_STAY.contains(&name.as_str()))
        .collect();
    assert!(still.is_empty(), "nothing moved {still:?}");
    let gone: Vec<&&str> = MAY_STAY
        .iter()
        .filter(|name| !served.contains(**name))
        .collect();
    assert!(gone.is_empty(), "not served: {gone:?}");
}

/// Returns the path of a program of Prometheus: `prometheus` or `promtool`. Returns `None` if the program is not
/// installed. The test is then skipped.
pub fn of_prometheus(program: &str) -> Option<PathBuf> {
    let fetched = root().join("target/promtool").join(program);
    let fetched = fetched.exists().then_some(fetched);
    let found = find_program(program).or(fetched);
    if found.is_none() {
        common::skip(&format!(
            "{program} is not installed (tests/setup.sh promtool)"
        ));
    }
    found
}

/// `promtool` must accept the metrics of every role.
#[test]
fn promtool_agrees() {
    let Some(promtool) = of_prometheus("promtool") else {
        return;
    };
    let topology = shown(Topology::new(StoreKind::Null, 1, Medium::Dram));
    let cluster = common::start("status-promtool", topology).unwrap();
    assert_eq!(front(&cluster).call(&["SET", "k", "v"]).unwrap(), ok());
    let etcds = Etcds::start("status-promtool", 1);
    let mut others = others(&cluster, etcds.as_ref());
    let scratch = Scratch::new(common::folder(), "status-promtool-run").unwrap();
    others.push(("run", together(&scratch)));
    let mut asked = 0;
    let parts = cluster
        .processes()
        .map(|(role, one)| (role.to_string(), one));
    for (role, process) in parts.chain(others.iter().map(|(name, one)| ((*name).into(), one))) {
        asked += 1;
        let (_, text) = get(place(process), "/metrics");
        assert!(text.lines().count() > 20, "{role}: {text}");
        let mut child = std::process::Command::new(&promtool)
            .args(["check", "metrics"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        child
            .stdin
            .take()
            .unwrap()
            .write_all(text.as_bytes())
            .unwrap();
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned()
            + &String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && said.trim().is_empty(),
            "{role}: {said}\n{text}"
        );
    }
    println!("promtool has no objection to the metrics of {asked} processes");
}

/// Starts the roles that a cluster does not have: a memcached front, a router and, if there is an etcd, a
/// controller.
fn others(cluster: &Cluster, etcds: Option<&Etcds>) -> Vec<(&'static str, Process)> {
    let folder = cluster.folder();
    let head = cluster.head().unwrap().to_string();
    let path = folder.join("shards.toml");
    let text = format!("[[shard]]\nslots = \"0-16383\"\nvia = \"{head}\"\n");
    std::fs::write(&path, text).unwrap();
    let shards = path.to_str().unwrap();
    let flags = etcds.map(Etcds::flags).unwrap_or_default();
    let mut controller = vec!["controller"];
    controller.extend(flags.iter().map(String::as_str));
    let mut all = vec![
        ("memcached", vec!["memcached", "--via", &head]),
        (
            "router",
            vec!["redis", "--anyone-may-connect", "--shards", shards],
        ),
    ];
    for (_, args) in &mut all {
        args.extend(["--listen", "127.0.0.1:0"]);
    }
    if etcds.is_some() {
        all.push(("controller", controller));
    }
    let started = all.into_iter().map(|(name, mut args)| {
        args.extend(["--status", "127.0.0.1:0"]);
        let mut process = launch(name, folder, &args);
        process.wait_ready(ANSWERED_MAX).unwrap();
        (name, process)
    });
    started.collect()
}

/// Starts all roles in one process.
fn together(scratch: &Scratch) -> Process {
    let [server, device] = [(); 2].map(|()| Port::claim().unwrap());
    let path = scratch.disk().join("pmnet.toml");
    let text = format!(
        "[run]\nstatus = \"127.0.0.1:0\"\n[server]\nlisten = \"127.0.0.1:{0}\"\nstore = \"null:\"\n\
         [device]\nlisten = \"127.0.0.1:{1}\"\nnext = \"127.0.0.1:{0}\"\nlog = \"{2}\"\nmedia = \"dram\"\nlog-size = \"1M\"\n\
         [redis]\nlisten = \"127.0.0.1:0\"\nvia = \"127.0.0.1:{1}\"\nanyone-may-connect = true\n",
        server.number(),
        device.number(),
        scratch.memory().join("log").display()
    );
    std::fs::write(&path, text).unwrap();
    let mut process = launch("run", scratch.disk(), &["run", path.to_str().unwrap()]);
    process.wait_ready(ANSWERED_MAX).unwrap();
    process
}
