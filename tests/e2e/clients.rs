//! The front with unmodified programs of others: redis-cli, redis-benchmark, redis-py, and a client in another
//! language.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use pmnet_lab::harness::{Cluster, Medium, StoreKind, Topology, find_program};

use crate::common;
use crate::support::eventually;

/// Maximum run time of a program, in seconds.
const LIMIT: &str = "60";

fn cluster(name: &str) -> Option<Cluster> {
    common::start(name, Topology::new(StoreKind::Redis, 1, Medium::Dram))
}

pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Runs a program with a time limit. Returns its output.
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

/// Installs a client library below `target/`, if it is missing and can be installed.
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

/// Returns all keys of the database except those of pmnet, with their values, and whether they expire.
fn everything(ask: &dyn Fn(&[&str]) -> String, database: &str) -> Vec<String> {
    let of = |args: &[&str]| ask(&[&["-n", database][..], args].concat());
    let keys = of(&["KEYS", "*"]);
    let keys = keys.lines().filter(|key| !key.starts_with("pmnet:{"));
    let mut all: Vec<String> = keys
        .map(|key| {
            let expires = of(&["PEXPIRETIME", key]);
            format!("{key} {expires} {}", of(&["DUMP", key]))
        })
        .collect();
    all.sort();
    all
}

/// Follows the steps in `docs/operate/backup.md`, "Load the data of another Redis".
#[test]
fn the_aof_of_a_redis_behind_pmnet_is_piped_into_another_shard() {
    let Some(from) = cluster("aof-from") else {
        return;
    };
    let Some(program) = find_program("redis-cli") else {
        return common::skip("redis-cli is not installed");
    };
    let asks = |port: String| {
        let program = program.clone();
        move |args: &[&str]| {
            run(&program, &[&["-p", &port][..], args].concat())
                .trim()
                .to_owned()
        }
    };
    let front = asks(port(&from));
    for line in [
        "SET a 1",
        "SET expires x EX 1000",
        "INCR n",
        "HSET h f v g w",
        "RPUSH l 1 2 3",
        "LPOP l",
        "ZADD z 1.5 m",
        "XADD st 1-1 f v",
        "SETEX gone 1 x",
        "DEL gone",
        "-n 3 SET three x",
        "-n 3 SADD s 1 2 3",
        "EVAL redis.call('SET',KEYS[1],'s')return{1} 1 scripted",
        "BLPOP l 1",
    ] {
        front(&line.split(' ').collect::<Vec<_>>());
    }
    let load = "#!lua name=lib\nredis.register_function('f', function() return 7 end)";
    front(&["FUNCTION", "LOAD", load]);
    let multi = "printf 'MULTI\\nSET in1 x\\nSELECT 3\\nSET in2 x\\nEXEC\\n' | redis-cli -p ";
    run(Path::new("sh"), &["-c", &format!("{multi}{}", port(&from))]);
    let redis = asks(from.redis().expect("a Redis").port().to_string());
    let folder = redis(&["CONFIG", "GET", "dir"]);
    let folder = Path::new(folder.lines().last().expect("a folder")).join("appendonlydir");
    for rewritten in [false, true] {
        if rewritten {
            redis(&["CONFIG", "SET", "aof-use-rdb-preamble", "no"]);
            redis(&["BGREWRITEAOF"]);
            eventually("the AOF is rewritten", Duration::from_secs(30), || {
                redis(&["INFO", "persistence"]).contains("aof_rewrite_in_progress:0")
                    && std::fs::read_dir(&folder).unwrap().any(|file| {
                        file.unwrap()
                            .path()
                            .to_string_lossy()
                            .ends_with(".base.aof")
                    })
            });
            front(&["SET", "late", "x"]);
        }
        let Some(into) = cluster("aof-into") else {
            return;
        };
        let pipe = format!(
            "cd {} && cat $(ls *.base.aof 2>/dev/null) *.incr.aof | redis-cli -p {} --pipe; true",
            folder.display(),
            port(&into)
        );
        let said = run(Path::new("sh"), &["-c", &pipe]);
        let errors = said
            .split("errors: ")
            .nth(1)
            .and_then(|rest| rest.split(',').next());
        let errors: u32 = errors
            .and_then(|count| count.parse().ok())
            .expect("a count");
        assert!((1..20).contains(&errors), "{said}");
        let loaded = asks(into.redis().expect("a Redis").port().to_string());
        for database in ["0", "3"] {
            let (right, found) = (everything(&redis, database), everything(&loaded, database));
            assert_eq!(found, right, "database {database}, rewritten: {rewritten}");
            assert!(right.len() >= 3, "{right:?}");
        }
        assert_eq!(asks(port(&into))(&["FCALL", "f", "0"]), "7");
        assert_eq!(asks(port(&into))(&["GET", "a"]), "1");
    }
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

/// Runs all standard tests of redis-benchmark, without a Redis.
#[test]
fn redis_benchmark_with_the_embedded_store() {
    let topology = Topology::new(StoreKind::Packet, 1, Medium::Dram);
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
