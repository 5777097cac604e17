//! Conditions on which the tests rely: ports are exclusive, each test talks to the server that it started, and skipped
//! tests are counted.

use crate::support::Redis;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Number of processes that ask for ports at the same time.
const ASKERS: usize = 4;
/// Number of ports that each of these processes takes.
const PORTS_EACH: usize = 100;
/// Environment variable that makes [`asker`] ask for ports.
const ASKER: &str = "PMNET_TEST_PORT_ASKER";

#[test]
fn no_two_processes_are_given_the_same_port() {
    let mut askers: Vec<_> = (0..ASKERS)
        .map(|_| {
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "infrastructure::asker", "--nocapture"])
                .env(ASKER, "1")
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let mut given = BTreeSet::new();
    for asker in &mut askers {
        let lines = BufReader::new(asker.stdout.as_mut().unwrap()).lines();
        let ports: Vec<u16> = lines
            .map(|line| line.unwrap())
            .filter_map(|line| line.strip_prefix("port ")?.parse().ok())
            .take(PORTS_EACH)
            .collect();
        assert_eq!(ports.len(), PORTS_EACH);
        for port in ports {
            assert!(given.insert(port), "{port} was given out twice");
        }
    }
    for asker in &mut askers {
        // The process ends when its input ends.
        drop(asker.stdin.take());
        let mut rest = String::new();
        let stdout = asker.stdout.as_mut().unwrap();
        stdout.read_to_string(&mut rest).unwrap();
        assert!(asker.wait().unwrap().success());
    }
}

/// This is not a test of its own: it asks for ports, names them, and keeps them until its input ends.
#[test]
fn asker() {
    if std::env::var_os(ASKER).is_none() {
        return;
    }
    for _ in 0..PORTS_EACH {
        println!("\nport {}", crate::support::claims::lasting().unwrap());
    }
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

#[test]
fn a_stranger_at_its_port_is_not_taken_for_the_redis_that_was_started() {
    let Some(mut redis) = Redis::start(&[]) else {
        return;
    };
    redis.kill();
    // Another test's probe once listened at this port for a moment.
    let stranger = TcpListener::bind(("127.0.0.1", redis.port)).unwrap();
    std::thread::spawn(move || {
        for stream in stranger.incoming() {
            let _ = stream.unwrap().write_all(b"+PONG\r\n+OK\r\n");
        }
    });
    let waited = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| redis.restart()));
    assert!(waited.is_err(), "Redis cannot listen there");
}

/// The next test runs this test without a redis-server.
#[test]
fn needs_redis() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    assert_eq!(redis.call(&["PING"]), "+PONG\r\n");
}

#[test]
fn what_cannot_run_is_counted_as_skipped_and_fails_in_ci() {
    let run = |ci: bool| -> Output {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "infrastructure::needs_redis", "--show-output"])
            .env("PMNET_TEST_REDIS", "/nonexistent/redis-server")
            .env_remove("CI");
        if ci {
            command.env("CI", "1");
        }
        command.output().unwrap()
    };
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    let outside = run(false);
    assert!(outside.status.success());
    std::fs::write(&log, &outside.stdout).unwrap();
    let totals = Command::new("bash")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/run.sh"))
        .arg("count")
        .arg(&log)
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8_lossy(&totals.stdout),
        "0 0 1\n",
        "passed, failed, skipped of\n{}",
        String::from_utf8_lossy(&outside.stdout)
    );
    assert!(!run(true).status.success(), "CI passes without a Redis");
}
