//! The alert rules of `contrib/prometheus` in a real Prometheus that watches real processes. Each alert must fire when
//! its fault is made. No alert may fire before its fault, or under load while processes are killed and restarted. This
//! Prometheus also evaluates the queries of the dashboard of `contrib/grafana`.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pmnet_lab::harness::{
    Cluster, Medium, Process, Ready, Role, Spec, StoreKind, Topology, free_port,
};
use rustix::process::Signal;

use crate::common;
use crate::fleet::etcd::Etcds;
use crate::status::{load, of_prometheus, place, root, send_bad_ones, shown};
use crate::support::{Caller, SetOnDrop, connect, eventually, front, launch, ok};

const RULES: &str = "contrib/prometheus/pmnet.rules.yml";
/// Longest wait until an alert fires. The wait covers the longest time limit in a rule (10 s), and some evaluations of
/// Prometheus.
const FIRES_MAX: Duration = Duration::from_secs(45);
const READY_MAX: Duration = Duration::from_secs(30);
/// Time for some evaluations of Prometheus, in which a wrong alert would fire.
const WATCHED: Duration = Duration::from_secs(5);
/// Interval at which Prometheus scrapes and evaluates.
const EVERY: &str = "1s";

/// The times for which a state must last before an alert fires.
#[derive(Clone, Copy)]
enum Patience {
    /// The times that the rules have.
    Rules,
    /// Every time is one second, and rates are computed over a few seconds, so that the test does not take minutes. The
    /// thresholds of the rules stay.
    Short,
}

impl Patience {
    fn rules(self) -> String {
        let text = std::fs::read_to_string(root().join(RULES)).unwrap();
        let lines = text.lines().map(|line| match self {
            Patience::Rules => line.to_owned(),
            Patience::Short if line.trim_start().starts_with("for: ") => "        for: 1s".into(),
            Patience::Short => line.replace("[5m]", "[10s]").replace("[10m]", "[10s]"),
        });
        lines.map(|line| line + "\n").collect()
    }
}

/// A Prometheus that watches status ports.
struct Watch {
    _process: Process,
    at: SocketAddr,
    targets: PathBuf,
    folder: PathBuf,
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.folder);
    }
}

impl Watch {
    /// Starts Prometheus. Returns `None` if Prometheus is not installed.
    fn start(name: &str, patience: Patience) -> Option<Watch> {
        let program = of_prometheus("prometheus")?;
        let folder = common::folder().join(format!("prometheus-{name}-{}", std::process::id()));
        let _old = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let targets = folder.join("targets.json");
        std::fs::write(&targets, "[]").unwrap();
        std::fs::write(folder.join("rules.yml"), patience.rules()).unwrap();
        let config = format!(
            "global: {{scrape_interval: {EVERY}, evaluation_interval: {EVERY}}}\nrule_files: [rules.yml]\n\
             scrape_configs:\n  - job_name: pmnet\n    file_sd_configs: [{{files: [targets.json], refresh_interval: 1s}}]\n"
        );
        std::fs::write(folder.join("prometheus.yml"), config).unwrap();
        let at = SocketAddr::from(([127, 0, 0, 1], free_port().unwrap()));
        let flag = |flag: &str, value: &str| format!("--{flag}={value}").into();
        let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
        let spec = Spec {
            name: "prometheus".into(),
            binaries: common::binaries().clone(),
            program: Some(program),
            args: vec![
                flag("config.file", &path("prometheus.yml")),
                flag("storage.tsdb.path", &path("data")),
                flag("web.listen-address", &at.to_string()),
                flag("log.level", "warn"),
            ],
            ready: Ready::Line,
        };
        let process = Process::launch(spec, &folder).unwrap();
        let watch = Watch {
            _process: process,
            at,
            targets,
            folder,
        };
        eventually("Prometheus is ready", READY_MAX, || {
            answer(at, "/-/ready").is_ok()
        });
        Some(watch)
    }

    /// From now on, Prometheus watches these status ports.
    fn aim(&self, places: &[SocketAddr]) {
        let places: Vec<String> = places.iter().map(SocketAddr::to_string).collect();
        let text = if places.is_empty() {
            "[]".into()
        } else {
            serde_json::json!([{ "targets": places }]).to_string()
        };
        let new = self.targets.with_extension("new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(&new, &self.targets).unwrap();
    }

    fn ask(&self, path: &str) -> serde_json::Value {
        serde_json::from_str(&answer(self.at, path).unwrap()).unwrap()
    }

    /// Returns the names of the alerts that fire now.
    fn firing(&self) -> BTreeSet<String> {
        let said = self.ask("/api/v1/alerts");
        let alerts = said["data"]["alerts"].as_array().unwrap().iter();
        let firing = alerts.filter(|alert| alert["state"] == "firing");
        let names = firing.map(|alert| alert["labels"]["alertname"].as_str().unwrap().to_owned());
        names.collect()
    }

    /// Waits until Prometheus has scraped this number of processes, and all of them have answered.
    fn sees(&self, processes: usize) {
        let wanted = processes.to_string();
        eventually("all are asked", READY_MAX, || {
            let said = self.ask("/api/v1/query?query=sum(up)");
            said["data"]["result"][0]["value"][1].as_str() == Some(&*wanted)
        });
    }

    /// Checks that the alert does not fire yet. Then makes the fault again and again until the alert fires.
    fn fires(&self, alert: &str, mut fault: impl FnMut()) {
        assert!(!self.firing().contains(alert), "{alert} fires too early");
        eventually(&format!("{alert} fires"), FIRES_MAX, || {
            fault();
            self.firing().contains(alert)
        });
        println!("{alert} fires");
    }

    /// Waits until the alert no longer fires.
    fn ends(&self, alert: &str) {
        eventually(&format!("{alert} ends"), FIRES_MAX, || {
            !self.firing().contains(alert)
        });
    }
}

/// Returns the body of an answer of Prometheus. The request uses HTTP 1.0, so the body is not chunked.
fn answer(at: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(at)?;
    stream.set_read_timeout(Some(READY_MAX))?;
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_default();
    if head.split(' ').nth(1) == Some("200") {
        Ok(body.to_owned())
    } else {
        Err(std::io::Error::other(text))
    }
}

fn places(cluster: &Cluster) -> Vec<SocketAddr> {
    let ours = cluster.processes().filter(|(role, _)| *role != Role::Redis);
    ours.map(|(_, process)| place(process)).collect()
}

/// Returns the names of the alerts in the rules.
fn alerts() -> BTreeSet<String> {
    let text = std::fs::read_to_string(root().join(RULES)).unwrap();
    let names = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "));
    names.map(str::to_owned).collect()
}

/// `promtool` must accept the rules, and their unit tests must pass.
#[test]
fn rules_are_as_their_tests_say() {
    let Some(promtool) = of_prometheus("promtool") else {
        return;
    };
    let folder = root().join("contrib/prometheus");
    for args in [
        ["check", "rules", "pmnet.rules.yml"],
        ["test", "rules", "pmnet.rules.test.yml"],
    ] {
        let output = Command::new(&promtool)
            .args(args)
            .current_dir(&folder)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success() && said.contains("SUCCESS"),
            "{said}"
        );
    }
    let tested = std::fs::read_to_string(folder.join("pmnet.rules.test.yml")).unwrap();
    let untested: Vec<String> = alerts()
        .into_iter()
        .filter(|alert| !tested.contains(alert))
        .collect();
    assert_eq!(untested, [""; 0]);
}

/// Alerts whose faults are made in a chain of two devices with a Redis.
const OF_A_CHAIN: [&str; 14] = [
    "PmnetUpdatesRejected",
    "PmnetFailedLogins",
    "PmnetBadPackets",
    "PmnetStuck",
    "PmnetStorePaused",
    "PmnetNotReady",
    "PmnetLogFilling",
    "PmnetLogFull",
    "PmnetStoreBehind",
    "PmnetDevicesSilent",
    "PmnetSlowWrites",
    "PmnetDown",
    "PmnetNoHead",
    "PmnetAbsent",
];
/// Alerts whose faults need another chain.
const OF_OTHERS: [&str; 3] = ["PmnetTooFewCopies", "PmnetLeaseLost", "PmnetEtcdSilent"];

/// Every alert must have a test in which it fires.
#[test]
fn each_alert_has_its_fault() {
    let made: BTreeSet<String> = OF_A_CHAIN
        .iter()
        .chain(&OF_OTHERS)
        .map(|alert| (*alert).to_owned())
        .collect();
    assert_eq!(made, alerts());
}

#[test]
fn faults_of_a_chain_and_its_store_fire() {
    let mut topology = shown(Topology::new(StoreKind::Redis, 2, Medium::Dram));
    topology
        .device_args
        .extend(["--entries", "512", "--frame-bytes", "262144"].map(String::from));
    topology.front_args.extend(
        [
            "--deadline-ms",
            "3000",
            "--copies",
            "2",
            "--assume-ok",
            "HMSET",
        ]
        .map(String::from),
    );
    let Some(watch) = Watch::start("chain", Patience::Short) else {
        return;
    };
    let Some(mut cluster) = common::start("alerts-chain", topology) else {
        return;
    };
    watch.aim(&places(&cluster));
    watch.sees(4);
    load(&cluster);
    std::thread::sleep(WATCHED);
    assert_eq!(watch.firing(), BTreeSet::new(), "all is well");
    faults_of_clients(&cluster, &watch);
    faults_of_the_store(&mut cluster, &watch);
    faults_of_devices(&mut cluster, &watch);
}

fn faults_of_clients(cluster: &Cluster, watch: &Watch) {
    let mut client = front(cluster);
    assert_eq!(client.call(&["SET", "text", "v"]).unwrap(), ok());
    watch.fires("PmnetUpdatesRejected", || {
        assert_eq!(client.call(&["HMSET", "text", "f", "v"]).unwrap(), ok());
    });
    watch.fires("PmnetFailedLogins", || {
        for _ in 0..3 {
            // The reply does not matter, because the test reads the counter.
            let _refused = connect(cluster.endpoint().unwrap()).call(&["AUTH", "eve", "wr0ng"]);
        }
    });
    let head = cluster.head().unwrap();
    watch.fires("PmnetBadPackets", || send_bad_ones(head));
}

fn faults_of_the_store(cluster: &mut Cluster, watch: &Watch) {
    // Redis hangs in a command.
    let signal = |cluster: &mut Cluster, signal| {
        let redis = cluster.process(Role::Redis).unwrap();
        redis.signal(signal).unwrap();
    };
    let mut caller = Caller::new(cluster.endpoint().unwrap());
    signal(cluster, Signal::STOP);
    watch.fires("PmnetStuck", || {
        caller.call(&["SET", "a", "1"]);
    });
    signal(cluster, Signal::CONT);
    watch.ends("PmnetStuck");
    // Redis is not running.
    cluster.kill(Role::Redis).unwrap();
    watch.fires("PmnetStorePaused", || {
        caller.call(&["SET", "a", "1"]);
    });
    eventually("PmnetNotReady fires", FIRES_MAX, || {
        watch.firing().contains("PmnetNotReady")
    });
    eventually("PmnetStoreBehind fires", FIRES_MAX, || {
        watch.firing().contains("PmnetStoreBehind")
    });
    // The log has only 512 entries. When the log is full, a call lasts until its deadline.
    let mut key = 0;
    watch.fires("PmnetLogFull", || {
        for _ in 0..if key < 500 { 50 } else { 1 } {
            key += 1;
            caller.call(&["SET", &format!("k{key}"), "v"]);
        }
    });
    eventually("PmnetLogFilling fires", FIRES_MAX, || {
        watch.firing().contains("PmnetLogFilling")
    });
    cluster.restart(Role::Redis).unwrap();
    for alert in [
        "PmnetStorePaused",
        "PmnetStoreBehind",
        "PmnetLogFilling",
        "PmnetNotReady",
    ] {
        watch.ends(alert);
    }
}

fn faults_of_devices(cluster: &mut Cluster, watch: &Watch) {
    let mut caller = Caller::new(cluster.endpoint().unwrap());
    let signal = |cluster: &mut Cluster, signal| {
        let tail = cluster.process(Role::Device(1)).unwrap();
        tail.signal(signal).unwrap();
    };
    watch.fires("PmnetSlowWrites", || {
        signal(cluster, Signal::STOP);
        std::thread::scope(|scope| {
            scope.spawn(|| caller.call(&["SET", "slow", "1"]));
            std::thread::sleep(Duration::from_millis(300));
            signal(cluster, Signal::CONT);
        });
    });
    signal(cluster, Signal::STOP);
    watch.fires("PmnetDevicesSilent", || {
        caller.call(&["SET", "silent", "1"]);
    });
    signal(cluster, Signal::CONT);
    watch.ends("PmnetDevicesSilent");
    watch.ends("PmnetDown");
    cluster.kill(Role::Device(0)).unwrap();
    watch.fires("PmnetDown", || ());
    eventually("PmnetNoHead fires", FIRES_MAX, || {
        watch.firing().contains("PmnetNoHead")
    });
    watch.aim(&[]);
    watch.fires("PmnetAbsent", || ());
}

#[test]
fn a_chain_that_is_too_short_fires() {
    let mut topology = shown(Topology::new(StoreKind::Null, 1, Medium::Dram));
    topology
        .device_args
        .extend(["--copies", "2"].map(String::from));
    let Some(watch) = Watch::start("short", Patience::Short) else {
        return;
    };
    let cluster = common::start("alerts-short", topology).unwrap();
    watch.aim(&places(&cluster));
    watch.fires("PmnetTooFewCopies", || ());
}

#[test]
fn an_etcd_that_is_gone_fires() {
    let Some(mut etcds) = Etcds::start("alerts", 1) else {
        return;
    };
    let Some(watch) = Watch::start("etcd", Patience::Short) else {
        return;
    };
    let mut topology = shown(Topology::new(StoreKind::Null, 1, Medium::File));
    topology.device_args.extend(etcds.flags());
    topology.server_args.extend(etcds.flags());
    let cluster = common::start("alerts-etcd", topology).unwrap();
    let flags = etcds.flags();
    let mut args = vec!["controller", "--status", "127.0.0.1:0"];
    args.extend(flags.iter().map(String::as_str));
    let mut controller = launch("controller", cluster.folder(), &args);
    controller.wait_ready(READY_MAX).unwrap();
    let all = [places(&cluster), vec![place(&controller)]].concat();
    watch.aim(&all);
    watch.sees(all.len());
    std::thread::sleep(WATCHED);
    assert_eq!(watch.firing(), BTreeSet::new(), "all is well");
    etcds.kill(0);
    watch.fires("PmnetLeaseLost", || ());
    watch.fires("PmnetEtcdSilent", || ());
}

/// Returns the expressions of the dashboard as Grafana sends them if all jobs and all shards are selected.
fn expressions() -> Vec<String> {
    let text = std::fs::read_to_string(root().join("contrib/grafana/pmnet.json")).unwrap();
    let dashboard: serde_json::Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let expressions = targets.map(|target| {
        let text = target["expr"].as_str().unwrap();
        let chosen = text.replace("$job", ".*").replace("$shard", ".*");
        chosen.replace("$__rate_interval", "10s")
    });
    expressions.collect()
}

/// Encodes a text for the query of a URL.
fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// Each expression of the dashboard must return a value under load.
#[test]
fn every_expression_of_the_dashboard_returns_data() {
    let Some(watch) = Watch::start("dashboard", Patience::Rules) else {
        return;
    };
    let topology = shown(Topology::new(StoreKind::Redis, 2, Medium::Dram));
    let Some(cluster) = common::start("alerts-dashboard", topology) else {
        return;
    };
    watch.aim(&places(&cluster));
    watch.sees(4);
    let (is_over, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let endpoint = cluster.endpoint().unwrap();
    let all = expressions();
    assert!(all.len() > 20, "{all:?}");
    std::thread::scope(|scope| {
        let _ends = SetOnDrop(&is_over);
        let (is_over, done) = (&is_over, &done);
        scope.spawn(move || write_and_count(endpoint, 0, is_over, done));
        for expression in all {
            assert!(!expression.contains('$'), "{expression}");
            let path = format!("/api/v1/query?query={}", encoded(&expression));
            eventually(&expression, READY_MAX, || {
                let said = watch.ask(&path);
                let values = said["data"]["result"].as_array().into_iter().flatten();
                let mut values = values.filter_map(|one| one["value"][1].as_str());
                values.any(|value| value.parse::<f64>().is_ok_and(f64::is_finite))
            });
        }
    });
}

/// The roles that are killed.
const VICTIMS: [Role; 5] = [
    Role::Device(0),
    Role::Server,
    Role::Device(1),
    Role::Redis,
    Role::Front,
];
/// Time from a kill to the restart. This time is about the time that a supervisor needs.
const DOWN: Duration = Duration::from_secs(1);

/// Runs load, and kills and restarts a process every `interval`. No alert may fire, with the times that the rules have.
fn none_cries_wolf(name: &str, duration: Duration, interval: Duration) {
    let mut topology = shown(Topology::new(StoreKind::Redis, 2, Medium::Dram));
    topology
        .device_args
        .extend(["--copies", "2"].map(String::from));
    topology
        .front_args
        .extend(["--deadline-ms", "20000"].map(String::from));
    let Some(watch) = Watch::start(name, Patience::Rules) else {
        return;
    };
    let Some(mut cluster) = common::start(&format!("alerts-{name}"), topology) else {
        return;
    };
    watch.aim(&places(&cluster));
    watch.sees(4);
    let (is_over, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let endpoint = cluster.endpoint().unwrap();
    let until = Instant::now() + duration;
    let mut kills = 0;
    std::thread::scope(|scope| {
        let _ends = SetOnDrop(&is_over);
        for client in 0..4 {
            let (is_over, done) = (&is_over, &done);
            scope.spawn(move || write_and_count(endpoint, client, is_over, done));
        }
        for victim in VICTIMS.iter().cycle() {
            let next = Instant::now() + interval;
            cluster.kill(*victim).unwrap();
            std::thread::sleep(DOWN);
            cluster.restart(*victim).unwrap();
            kills += 1;
            watch.aim(&places(&cluster));
            while Instant::now() < next {
                assert_eq!(watch.firing(), BTreeSet::new(), "after {kills} kills");
                std::thread::sleep(Duration::from_millis(500));
            }
            if Instant::now() >= until {
                break;
            }
        }
    });
    watch.sees(4);
    let done = done.load(Ordering::Relaxed);
    println!("{kills} kills, {done} calls answered, no alert");
    assert!(done > 1_000, "{done}");
}

fn write_and_count(endpoint: SocketAddr, client: u32, is_over: &AtomicBool, done: &AtomicU64) {
    let mut caller = Caller::new(endpoint);
    while !is_over.load(Ordering::Relaxed) {
        let key = format!("w{client}");
        for command in [&["SET", &key, "v"][..], &["INCR", "n"], &["GET", &key]] {
            if let crate::support::Answer::Reply(_) = caller.call(command) {
                done.fetch_add(1, Ordering::Relaxed);
            }
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn none_cries_wolf_under_load_with_kills() {
    none_cries_wolf("wolf", Duration::from_secs(50), Duration::from_secs(10));
}

/// Kills one process each minute, for `PMNET_MINUTES` minutes.
#[test]
#[ignore = "a campaign: make alerts"]
fn none_cries_wolf_for_long() {
    let minutes = std::env::var("PMNET_MINUTES").ok();
    let minutes: u64 = minutes.and_then(|text| text.parse().ok()).unwrap_or(10);
    none_cries_wolf(
        "wolf-long",
        Duration::from_secs(60 * minutes),
        Duration::from_secs(60),
    );
}
