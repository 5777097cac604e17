//! Programs of others, unmodified, through the front: redis-cli, redis-benchmark, redis-py, and a
//! client of another language.

use std::path::{Path, PathBuf};
use std::process::Command;

use pmnet_lab::harness::{Cluster, Medium, StoreKind, Topology, find_program};

use crate::common;

/// Seconds that a program may take.
const LIMIT: &str = "60";

fn cluster(name: &str) -> Option<Cluster> {
    common::start(name, Topology::new(StoreKind::Redis, 1, Medium::Dram))
}

pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Runs a program with a limit in time; its output.
pub fn run(program: &Path, args: &[&str]) -> String {
    let output = Command::new("timeout")
        .args(["-k", "5", LIMIT])
        .arg(program)
        .args(args)
        .current_dir(repository())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{}: {text}\n{errors}",
        program.display()
    );
    text
}

/// Installs a client library below `target/`, if it is not there and that is possible.
pub fn set_up(what: &str) {
    let status = Command::new("sh")
        .args(["tests/setup.sh", what])
        .current_dir(repository())
        .status();
    assert!(status.unwrap().success());
}

fn port(cluster: &Cluster) -> String {
    cluster.endpoint().unwrap().port().to_string()
}

#[test]
fn redis_cli() {
    let Some(cluster) = cluster("cli") else {
        return;
    };
    let Some(program) = find_program("redis-cli") else {
        return common::skip("redis-cli is not installed");
    };
    let port = port(&cluster);
    let ask = |args: &[&str]| {
        run(&program, &[&["-p", &port][..], args].concat())
            .trim()
            .to_owned()
    };
    assert_eq!(ask(&["SET", "greeting", "hello"]), "OK");
    assert_eq!(ask(&["GET", "greeting"]), "hello");
    assert_eq!(ask(&["-3", "HSET", "h", "a", "1", "b", "2"]), "2");
    assert!(ask(&["-3", "HGETALL", "h"]).contains('a'));
    assert_eq!(
        ask(&["EVAL", "return redis.call('INCR', KEYS[1])", "1", "n"]),
        "1"
    );
    assert_eq!(ask(&["LPUSH", "l", "x"]), "1");
    assert_eq!(ask(&["BLPOP", "l", "1"]), "l\nx");
    assert!(ask(&["SHUTDOWN", "NOSAVE"]).contains("ERR"));
    assert!(ask(&["INFO", "server"]).contains("redis_version"));
}

#[test]
fn redis_benchmark() {
    let Some(cluster) = cluster("bench") else {
        return;
    };
    let Some(program) = find_program("redis-benchmark") else {
        return common::skip("redis-benchmark is not installed");
    };
    let port = port(&cluster);
    let args = [
        "-p",
        &port,
        "-t",
        "set,get,incr,lpush,mset",
        "-P",
        "16",
        "-n",
        "4000",
        "--csv",
    ];
    let text = run(&program, &args);
    for test in ["SET", "GET", "INCR", "LPUSH", "MSET (10 keys)"] {
        assert!(text.contains(&format!("\"{test}\"")), "{text}");
    }
}

/// Everything that redis-benchmark does by itself, without a Redis behind.
#[test]
fn redis_benchmark_with_the_embedded_store() {
    let topology = Topology::new(StoreKind::Kv, 1, Medium::Dram);
    let Some(cluster) = common::start("bench-kv", topology) else {
        return;
    };
    let Some(program) = find_program("redis-benchmark") else {
        return common::skip("redis-benchmark is not installed");
    };
    let args = [
        "-p",
        &port(&cluster),
        "-P",
        "16",
        "-n",
        "2000",
        "-r",
        "1000",
        "--csv",
    ];
    let text = run(&program, &args);
    for test in [
        "PING_INLINE",
        "PING_MBULK",
        "SET",
        "GET",
        "INCR",
        "LPUSH",
        "RPUSH",
        "LPOP",
        "RPOP",
        "SADD",
        "HSET",
        "SPOP",
        "ZADD",
        "ZPOPMIN",
        "LPUSH (needed to benchmark LRANGE)",
        "LRANGE_100 (first 100 elements)",
        "LRANGE_600 (first 600 elements)",
        "MSET (10 keys)",
    ] {
        assert!(text.contains(&format!("\"{test}\"")), "{test} in {text}");
    }
    assert!(!text.contains("Error"), "{text}");
}

#[test]
fn redis_py() {
    let Some(cluster) = cluster("py") else {
        return;
    };
    set_up("python");
    let python = repository().join("target/venv/bin/python");
    if !python.is_file() {
        return common::skip("redis-py is not installed (make setup)");
    }
    let text = run(&python, &["tests/programs/redis_py.py", &port(&cluster)]);
    assert!(text.contains("all good"), "{text}");
}

#[test]
fn node() {
    let Some(cluster) = cluster("node") else {
        return;
    };
    set_up("node");
    let modules = repository().join("target/node/node_modules/ioredis");
    let Some(program) = find_program("node").filter(|_| modules.is_dir()) else {
        return common::skip("node with ioredis is not installed (make setup)");
    };
    let text = run(&program, &["tests/programs/ioredis.js", &port(&cluster)]);
    assert!(text.contains("all good"), "{text}");
}
