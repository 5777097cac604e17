//! Users, passwords and TLS, as an operator sets them up: the programs of others log in, and who may not write does not.

#[path = "../shared/certificates.rs"]
mod certificates;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use certificates::Files;
use pmnet_lab::harness::{Cluster, Medium, Process, StoreKind, Topology, find_program, free_port};

use crate::clients::{repository, run, set_up};
use crate::common;
use crate::support::{connect, launch};

/// Longest wait for a front.
const READY: Duration = Duration::from_secs(20);

/// A cluster, and a front of its own with TLS and the users `bob`, who may do everything, and `reader`, who may not set.
struct Stand {
    cluster: Cluster,
    files: Files,
    port: String,
    front: Process,
}

impl Stand {
    fn ca(&self) -> String {
        self.files.path("ca.pem").to_str().unwrap().to_owned()
    }
}

fn stand(name: &str) -> Option<Stand> {
    let cluster = common::start(name, Topology::new(StoreKind::Redis, 1, Medium::Dram))?;
    let mut redis = connect(cluster.redis().unwrap());
    for user in ["bob +@all", "reader +@all -set"] {
        let (user, rights) = user.split_once(' ').unwrap();
        let words = ["ACL", "SETUSER", user, "on", ">s3cret", "~*", "&*"];
        let words: Vec<&str> = words.into_iter().chain(rights.split(' ')).collect();
        redis.call(&words).unwrap();
    }
    let files = certificates::files();
    let (certificate, key) = files.pair("server");
    let port = free_port().unwrap().to_string();
    let listen = format!("127.0.0.1:{port}");
    let via = cluster.head().unwrap().to_string();
    let args = [
        ["redis", "--users-of-redis"],
        ["--listen", &listen],
        ["--via", &via],
        ["--tls-cert", certificate.to_str().unwrap()],
        ["--tls-key", key.to_str().unwrap()],
    ];
    let mut front = launch("front-with-users", cluster.folder(), args.as_flattened());
    front.wait_ready(READY).unwrap();
    Some(Stand {
        cluster,
        files,
        port,
        front,
    })
}

#[test]
fn redis_cli_logs_in() {
    let Some(stand) = stand("logins-cli") else {
        return;
    };
    let Some(program) = find_program("redis-cli") else {
        return common::skip("redis-cli is not installed");
    };
    let ca = stand.ca();
    let fixed = [
        "-h",
        "localhost",
        "-p",
        &stand.port,
        "--tls",
        "--cacert",
        &ca,
    ];
    let ask = |user: &str, args: &[&str]| {
        let user = ["--user", user, "--pass", "s3cret", "--no-auth-warning"];
        run(&program, &[&fixed[..], &user, args].concat())
            .trim()
            .to_owned()
    };
    assert_eq!(ask("bob", &["SET", "k", "v"]), "OK");
    assert_eq!(ask("bob", &["-3", "GET", "k"]), "v");
    assert_eq!(ask("reader", &["GET", "k"]), "v");
    assert_eq!(
        ask("reader", &["SET", "forbidden", "x"]),
        "NOPERM this user has no permissions to run the 'set' command"
    );
    // Behind everything that was acknowledged.
    assert_eq!(ask("bob", &["INCR", "n"]), "1");
    assert_eq!(ask("bob", &["DBSIZE"]), "2");
    assert_eq!(ask("bob", &["ACL", "WHOAMI"]), "bob");
    // Nothing but a command that needs no login is taken from who has not logged in as the default user, who needs none.
    assert_eq!(
        run(&program, &[&fixed[..], &["GET", "k"]].concat()).trim(),
        "v"
    );
    let wrong = ["--user", "bob", "--pass", "wr0ng", "GET", "k"];
    let output = Command::new(&program)
        .args([&fixed[..], &wrong].concat())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("WRONGPASS"), "{text}");
    let said = stand.front.stderr();
    assert!(
        !said.contains("s3cret") && !said.contains("wr0ng"),
        "{said}"
    );
    assert!(stand.cluster.stop().is_ok());
}

#[test]
fn redis_py_logs_in() {
    let Some(stand) = stand("logins-py") else {
        return;
    };
    set_up("python");
    let python = repository().join("target/venv/bin/python");
    program(&stand, &python, "tests/programs/redis_py.py", "redis-py");
}

#[test]
fn node_logs_in() {
    let Some(stand) = stand("logins-node") else {
        return;
    };
    set_up("node");
    let modules = repository().join("target/node/node_modules/ioredis");
    let Some(node) = find_program("node").filter(|_| modules.is_dir()) else {
        return common::skip("node with ioredis is not installed (make setup)");
    };
    program(&stand, &node, "tests/programs/ioredis.js", "ioredis");
}

/// All that an application does with this library, as bob and with TLS.
fn program(stand: &Stand, interpreter: &Path, script: &str, library: &str) {
    if !interpreter.is_file() {
        return common::skip(&format!("{library} is not installed (make setup)"));
    }
    let text = run(
        interpreter,
        &[script, &stand.port, &stand.ca(), "bob", "s3cret"],
    );
    assert!(text.contains("all good"), "{text}");
}

#[test]
fn a_front_for_others_wants_to_know_for_whom() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["redis", "--listen", "0.0.0.0:0", "--via", "127.0.0.1:51000"];
    let (code, text) = crate::support::refuses("unsaid", folder.path(), &args);
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("say who may: --users-of-redis"), "{text}");
}
