//! Users, passwords and TLS, as an operator sets them up. Programs of others must be able to log
//! in, and a user without the right to write must not be able to write.

#[path = "../shared/certificates.rs"]
mod certificates;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use certificates::Files;
use pmnet_lab::harness::{Cluster, Medium, Process, StoreKind, Topology, find_program, free_port};
use pmnet_lab::resp::Reply;
use rustix::process::Signal;

use crate::clients::{repository, run, set_up};
use crate::common;
use crate::support::{connect, eventually, launch, ok};

/// Longest wait until a front serves.
const READY: Duration = Duration::from_secs(20);

/// A cluster, and a front with TLS and two users: `bob` may do everything, and `reader` may not use
/// SET.
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
    // The server executes the command after all acknowledged updates.
    assert_eq!(ask("bob", &["INCR", "n"]), "1");
    assert_eq!(ask("bob", &["DBSIZE"]), "2");
    assert_eq!(ask("bob", &["ACL", "WHOAMI"]), "bob");
    // From a client that has not logged in, the front accepts only the commands that need no login.
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

/// Runs a program with this client library. The program makes all operations of an application, as
/// user bob and with TLS.
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

/// Copies the certificate and the key with this name to the paths that a front reads.
fn put(files: &Files, from: &str, to: &str) {
    let (from, to) = (files.pair(from), files.pair(to));
    std::fs::copy(from.0, to.0).unwrap();
    std::fs::copy(from.1, to.1).unwrap();
}

/// Sends SIGHUP, and waits until the log has this line.
fn reload(front: &Process, line: &str) {
    let count = || front.stderr().matches(line).count();
    let before = count();
    front.signal(Signal::HUP).unwrap();
    eventually(line, READY, || count() > before);
}

#[test]
fn a_certificate_is_exchanged_under_load_and_no_command_fails() {
    let Some(mut stand) = stand("logins-reload") else {
        return;
    };
    let (Some(benchmark), Some(cli)) = (find_program("redis-benchmark"), find_program("redis-cli"))
    else {
        return common::skip("redis-benchmark is not installed");
    };
    let authorities = stand.files.path("both.pem");
    let texts = ["ca.pem", "other.pem"]
        .map(|name| std::fs::read_to_string(stand.files.path(name)).unwrap());
    std::fs::write(&authorities, texts.concat()).unwrap();
    let fixed = ["-h", "localhost", "-p", &stand.port, "--tls", "--cacert"];
    let load = |keeps: &str| {
        let args = [
            "--user", "bob", "-a", "s3cret", "-t", "set", "-c", "4", "-n", "4000", "-k", keeps,
            "-q",
        ];
        let trusts = authorities.to_str().unwrap();
        Command::new(&benchmark)
            .args([&fixed[..], &[trusts], &args].concat())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap()
    };
    // The first load uses lasting connections. The second load makes a new connection for each
    // command. A load ends at its first error.
    let mut loads = [load("1"), load("0")];
    let mut exchanged = 0;
    while loads
        .iter_mut()
        .any(|load| load.try_wait().unwrap().is_none())
    {
        put(
            &stand.files,
            ["stranger", "client"][exchanged % 2],
            "server",
        );
        reload(&stand.front, "PM6031 SIGHUP: read again: the certificate");
        exchanged += 1;
    }
    for load in loads {
        let output = load.wait_with_output().unwrap();
        let text =
            String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success() && text.contains("requests per second"),
            "{text}"
        );
        assert!(!text.contains("rror"), "{text}");
    }
    assert!(exchanged >= 2, "{exchanged}");
    println!("{exchanged} certificates");

    let ask = |authority: &str| {
        let trusts = stand.files.path(authority);
        let args = [&fixed[..], &[trusts.to_str().unwrap(), "PING"]].concat();
        let output = Command::new(&cli).args(args).output().unwrap();
        String::from_utf8_lossy(&output.stdout).trim() == "PONG"
    };
    put(&stand.files, "stranger", "server");
    reload(&stand.front, "PM6031 SIGHUP");
    assert!(ask("other.pem") && !ask("ca.pem"), "the new one is shown");
    // Neither a certificate with another key nor an invalid certificate replaces the present
    // certificate.
    let (certificate, key) = stand.files.pair("server");
    std::fs::copy(stand.files.pair("client").1, key).unwrap();
    reload(
        &stand.front,
        "PM6032 SIGHUP: wrong, and left as before: the certificate",
    );
    std::fs::write(certificate, "no certificate\n").unwrap();
    reload(
        &stand.front,
        "PM6032 SIGHUP: wrong, and left as before: the certificate",
    );
    assert!(ask("other.pem"));
    assert!(stand.front.stop().unwrap());
}

#[test]
fn a_password_is_exchanged_and_who_is_logged_in_stays_so() {
    let Some(cluster) = common::start(
        "logins-password",
        Topology::new(StoreKind::Redis, 1, Medium::Dram),
    ) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("password");
    std::fs::write(&path, "first\n").unwrap();
    let listen = format!("127.0.0.1:{}", free_port().unwrap());
    let via = cluster.head().unwrap().to_string();
    let args = [
        ["--listen", &listen],
        ["--via", &via],
        ["--requirepass-file", path.to_str().unwrap()],
    ];
    let mut front = launch(
        "front-password",
        cluster.folder(),
        &[&["redis"], args.as_flattened()].concat(),
    );
    front.wait_ready(READY).unwrap();
    let client = || connect(listen.parse().unwrap());
    let mut old = client();
    assert_eq!(old.call(&["AUTH", "first"]).unwrap(), ok());
    std::fs::write(&path, "second\n").unwrap();
    reload(&front, "PM6031 SIGHUP: read again: the password");
    assert_eq!(old.call(&["SET", "a", "1"]).unwrap(), ok());
    let refused = client().call(&["AUTH", "first"]).unwrap();
    assert!(
        matches!(&refused, Reply::Error(text) if text.starts_with("WRONGPASS")),
        "{refused:?}"
    );
    assert_eq!(client().call(&["AUTH", "second"]).unwrap(), ok());
    std::fs::write(&path, "\n").unwrap();
    reload(
        &front,
        "PM6032 SIGHUP: wrong, and left as before: the password",
    );
    assert_eq!(client().call(&["AUTH", "second"]).unwrap(), ok());
}
