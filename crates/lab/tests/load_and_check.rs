//! Tests the load generator and the checker with a real Redis, without pmnet. The tools must report
//! no violation in a correct run, and must find every intentional fault.

#[path = "../../../tests/shared/skip.rs"]
mod skip;

use std::io::Write;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use pmnet_lab::check::{Ledger, verify};
use pmnet_lab::harness::{
    Binaries, ChaosPlan, Cluster, Role, StoreKind, Topology, chaos, find_program,
};
use pmnet_lab::load::{CheckedOptions, Hooks, Mix, Options, Record, Workload, run};
use skip::skip;

fn redis(name: &str) -> Option<Cluster> {
    if find_program("redis-server").is_none() {
        skip("redis-server is not installed");
        return None;
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let binaries = Binaries::beside(Path::new(env!("CARGO_BIN_EXE_pmnet-lab"))).unwrap();
    let topology = Topology::direct(StoreKind::Redis);
    Some(Cluster::start(&binaries, folder, name, topology).expect("redis-server starts"))
}

fn checked(cluster: &Cluster, prefix: &str) -> (Options, Ledger) {
    let mut options = Options::new(cluster.endpoint().unwrap());
    options.clients = 4;
    options.pipeline = 5;
    options.operations = Some(4_000);
    options.duration = Duration::from_secs(20);
    options.workload = Workload::Checked(CheckedOptions {
        prefix: prefix.into(),
        ring: 50,
        lists: true,
        value_bytes: 0,
    });
    let mut ledger = Ledger::new();
    let mut record = |record: &Record| Ok(ledger.add(record)?);
    let hooks = Hooks {
        record: Some(&mut record),
        progress: None,
    };
    let summary = run(&options, hooks, &AtomicBool::new(false)).unwrap();
    assert_eq!((summary.failed, summary.unknown), (0, 0));
    assert!(summary.acknowledged >= 4_000);
    (options, ledger)
}

#[test]
fn finds_what_was_tampered_with() {
    let Some(cluster) = redis("tamper") else {
        return;
    };
    let (_, ledger) = checked(&cluster, "t:");
    let mut reader = cluster.reader().unwrap();
    let clean = verify(&ledger, &mut reader).unwrap();
    assert!(clean.is_clean(), "{clean}");

    for command in [
        &["DEL", "t:c:0:3"][..],
        &["SET", "t:o:1", "1"],
        &["INCR", "t:i:2"],
        &["RPUSH", "t:l:3", "1"],
        &["RPOP", "t:l:2"],
        &["SET", "t:lock:5", "999"],
        &["SET", "t:c:1:3", "7x"],
    ] {
        reader.ask(command).unwrap();
    }
    let found = verify(&ledger, &mut reader).unwrap();
    // The test deleted one key, set one to an older value, and popped one element.
    assert_eq!(found.lost, 3, "{found}");
    // The test incremented the counter once more, and pushed one number again.
    assert_eq!(found.twice, 2, "{found}");
    assert_eq!(found.shared_locks, 1, "{found}");
    assert_eq!(found.invented, 1, "{found}");
}

#[test]
fn redis_alone_survives_kills_and_the_checker_agrees() {
    let Some(mut cluster) = redis("kills") else {
        return;
    };
    let plan = ChaosPlan {
        duration: Duration::from_secs(4),
        clients: 4,
        pipeline: 4,
        deadline: Duration::from_secs(2),
        victims: vec![Role::Redis],
        interval: Duration::from_millis(700),
        down: Duration::from_millis(50),
        lose_at_half: Vec::new(),
        replacements: Vec::new(),
        exchanges: Vec::new(),
        value_bytes: 3_000,
        seed: 7,
    };
    let report = chaos(&mut cluster, &plan, &AtomicBool::new(false), |_| {}).unwrap();
    assert!(report.verdict.is_clean(), "{}", report.verdict);
    assert!(report.kills[0].1 >= 3, "{:?}", report.kills);
    assert!(
        report.verdict.unknown > 0,
        "a kill under load leaves some unknown"
    );
    assert!(report.verdict.acknowledged > 1_000, "{}", report.verdict);
}

#[test]
fn open_loop_keeps_the_rate_and_counts_a_stall() {
    let Some(cluster) = redis("rate") else {
        return;
    };
    let mut options = Options::new(cluster.endpoint().unwrap());
    options.clients = 4;
    options.rate = Some(500.0);
    options.duration = Duration::from_secs(2);
    options.workload = Workload::Mix {
        mix: "set:1,get:1,incr:1,lpush:1,mset:1,setnx:1,ping:1"
            .parse::<Mix>()
            .unwrap(),
        keys: 100,
        zipf: None,
        value_bytes: 10,
        prefix: "r:".into(),
    };
    let (_, redis) = cluster.processes().next().unwrap();
    let summary = std::thread::scope(|scope| {
        let load = scope.spawn(|| run(&options, Hooks::default(), &AtomicBool::new(false)));
        std::thread::sleep(Duration::from_millis(700));
        redis.signal(rustix::process::Signal::STOP).unwrap();
        std::thread::sleep(Duration::from_millis(500));
        redis.signal(rustix::process::Signal::CONT).unwrap();
        load.join().unwrap().unwrap()
    });
    assert_eq!((summary.failed, summary.unknown), (0, 0), "{summary:?}");
    // 1000 operations were due. The operations that were due during the stall were sent late, but
    // not dropped. On a busy machine some operations still wait at the end, and the run takes a
    // little longer.
    let due = summary.acknowledged + summary.backlog;
    assert!((950..=1050).contains(&due), "{summary:?}");
    // The server was stopped for a quarter of the time, so the higher percentiles must show it.
    assert!(summary.latency.p90_us > 100_000.0, "{summary:?}");
    let kept_up = summary.backlog == 0;
    assert!(
        !kept_up || summary.latency.p50_us < 100_000.0,
        "{summary:?}"
    );
    assert_eq!(summary.by_operation.len(), 7);
}

#[test]
fn nobody_listens() {
    let port = pmnet_lab::harness::free_port().unwrap();
    let options = Options::new(std::net::SocketAddr::from(([127, 0, 0, 1], port)));
    let error = run(
        &Options {
            duration: Duration::from_secs(30),
            ..options
        },
        Hooks::default(),
        &AtomicBool::new(false),
    )
    .unwrap_err();
    assert!(
        error.to_string().contains("is something listening"),
        "{error}"
    );
}

/// Runs `pmnet-lab check --history` with these arguments. Returns exit code and stdout.
fn check_histories(arguments: &[&str]) -> (Option<i32>, String) {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_pmnet-lab"))
        .args(["check", "--history"])
        .args(arguments)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output.status.code(), text)
}

#[test]
fn histories_of_a_redis_are_linearizable_until_they_are_tampered_with() {
    let Some(cluster) = redis("linear") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("one.jsonl");
    let file = path.to_str().unwrap();
    let load = std::process::Command::new(env!("CARGO_BIN_EXE_pmnet-lab"))
        .args(["load", "--checked", "--no-lists", "--clients", "6"])
        .args(["--operations", "3000", "--seconds", "20", "--json"])
        .args(["--redis", &cluster.endpoint().unwrap().to_string()])
        .args(["--history", file])
        .output()
        .unwrap();
    assert!(load.status.success(), "{load:?}");
    let (code, text) = check_histories(&[file]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains(" 0 not, 0 undecided"), "{text}");

    // One more INCR, by another client, makes the value too large by one.
    let history = std::fs::read_to_string(&path).unwrap();
    let counted = history
        .lines()
        .rfind(|line| line.contains("\"incr\""))
        .unwrap();
    let mut value: serde_json::Value = serde_json::from_str(counted).unwrap();
    let reply: u64 = value["reply"].as_str().unwrap().parse().unwrap();
    value["reply"] = (reply + 1).to_string().into();
    let bad = history.replace(counted, &value.to_string());
    let bad_path = folder.path().join("bad.jsonl");
    std::fs::write(&bad_path, bad).unwrap();
    let bad_file = bad_path.to_str().unwrap();
    let (code, text) = check_histories(&[bad_file]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("nothing explains this reply"), "{text}");
    assert!(text.contains(&format!("→ {}", reply + 1)), "{text}");

    // Each file is checked as a history of its own. The output is JSON.
    let (code, text) = check_histories(&[file, bad_file, "--json"]);
    assert_eq!(code, Some(1), "{text}");
    let verdict: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(verdict["linearizable"], false);
    assert_eq!(verdict["histories"][0]["linearizable"], true);
    assert_eq!(verdict["histories"][1]["not_linearizable"], 1);
    // The same file twice, as one history: every operation seems to have been done twice.
    let (code, _) = check_histories(&[file, file, "--together"]);
    assert_eq!(code, Some(1));
}

#[test]
fn histories_that_are_none() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("none.jsonl");
    std::fs::write(&path, "{}\n").unwrap();
    let (code, text) = check_histories(&[path.to_str().unwrap()]);
    assert_eq!((code, text.as_str()), (Some(1), ""));
    let (code, _) = check_histories(&["/nowhere/at/all.jsonl"]);
    assert_eq!(code, Some(1));
}

/// In an earlier run, a probe of another test listened for a moment at the port of a Redis that was
/// about to start. The harness took the probe's answer for the answer of Redis.
#[test]
fn a_stranger_who_answers_is_not_the_redis_that_was_started() {
    let Some(mut cluster) = redis("stranger") else {
        return;
    };
    cluster.kill(Role::Redis).unwrap();
    let stranger = std::net::TcpListener::bind(cluster.redis().unwrap()).unwrap();
    std::thread::spawn(move || {
        for stream in stranger.incoming() {
            let _ = stream.unwrap().write_all(b"+PONG\r\n");
        }
    });
    let restarted = cluster.restart(Role::Redis).unwrap_err().to_string();
    assert!(restarted.contains("redis ended"), "{restarted}");
}
