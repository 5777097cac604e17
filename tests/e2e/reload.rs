//! SIGHUP under checked load. The log filter and limits must change, keys that need a restart must be reported, and an
//! invalid file must change nothing.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pmnet_lab::check::verify;
use pmnet_lab::harness::{
    Cluster, Medium, Process, Ready, Role, Scratch, Spec, StoreKind, Topology, find_program,
    free_port, settle,
};
use pmnet_lab::resp::{Client, Reply};
use rustix::process::Signal;

use crate::common;
use crate::status::{CLIENTS, get, load_until, place, shown};
use crate::support::{SetOnDrop, connect, eventually, ok};

const SOON: Duration = Duration::from_secs(20);

/// Returns the configuration file of a front with this limit of connections.
fn text(filter: &str, connections: usize, more: &str) -> String {
    format!(
        "log-filter = \"{filter}\"\n[redis]\nconnections-max = {connections}\ndeadline-ms = 30000\n{more}"
    )
}

/// Replaces the file as an editor does, and sends SIGHUP to the process. Returns the length of the log before.
fn change(cluster: &mut Cluster, path: &Path, text: &str) -> usize {
    std::fs::write(path, text).unwrap();
    let front = cluster.process(Role::Front).unwrap();
    let before = front.stderr().len();
    front.signal(Signal::HUP).unwrap();
    before
}

/// Waits until the front has logged this text after position `before` of its log.
fn says(cluster: &mut Cluster, before: usize, text: &str) {
    let front = cluster.process(Role::Front).unwrap();
    let mut said = String::new();
    let deadline = std::time::Instant::now() + SOON;
    while std::time::Instant::now() < deadline {
        said = front.stderr()[before..].to_owned();
        if said.contains(text) {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("not said: {text}\n{said}");
}

/// Returns whether the front accepts another client.
fn gets_in(endpoint: SocketAddr) -> bool {
    let mut client: Client = connect(endpoint);
    client
        .call(&["PING"])
        .is_ok_and(|reply| reply == Reply::Status(b"PONG".to_vec()))
}

/// Returns the number of the front's clients, including the one that asks.
fn clients(endpoint: SocketAddr) -> usize {
    match connect(endpoint).call(&["CLIENT", "LIST"]).unwrap() {
        Reply::Bulk(text) => text
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
            .count(),
        other => panic!("{other:?}"),
    }
}

fn begin(name: &str) -> Option<(Cluster, PathBuf, Scratch)> {
    let scratch = Scratch::new(common::folder(), &format!("{name}-file")).unwrap();
    let path = scratch.disk().join("front.toml");
    std::fs::write(&path, text("info", 100, "")).unwrap();
    let mut topology = Topology::new(StoreKind::Redis, 2, Medium::Dram);
    let words = ["--config", path.to_str().unwrap()];
    topology.front_args.extend(words.map(String::from));
    let cluster = common::start(name, topology)?;
    Some((cluster, path, scratch))
}

#[test]
fn limits_and_the_log_filter_change_under_load() {
    let Some((mut cluster, path, _scratch)) = begin("reload-load") else {
        return;
    };
    let endpoint = cluster.endpoint().unwrap();
    let over = AtomicBool::new(false);
    let (ledger, done) = std::thread::scope(|scope| {
        let over = &over;
        let _ends = SetOnDrop(over);
        let load = scope.spawn(move || load_until(endpoint, None, over));
        // Otherwise the limit could refuse a connection of the load.
        eventually("the load has its connections", SOON, || {
            clients(endpoint) > CLIENTS
        });
        steps(&mut cluster, &path, endpoint);
        over.store(true, Ordering::Relaxed);
        load.join().unwrap()
    });
    settle(&cluster).unwrap();
    let verdict = verify(&ledger, &mut cluster.reader().unwrap()).unwrap();
    assert!(verdict.is_clean(), "{verdict}");
    assert!(done.values().sum::<u64>() > 100, "{done:?}");
}

/// Changes one setting after the other.
fn steps(cluster: &mut Cluster, path: &Path, endpoint: SocketAddr) {
    assert!(gets_in(endpoint));
    // The limit permits no further client, because the load has four connections.
    let mut held: Vec<Client> = (0..12).map(|_| connect(endpoint)).collect();
    let before = change(cluster, path, &text("debug", 10, ""));
    says(
        cluster,
        before,
        "PM6031 SIGHUP: read again: the configuration",
    );
    eventually("nobody gets in", SOON, || !gets_in(endpoint));
    // With this filter, the front logs that a client has disconnected.
    held.pop();
    says(cluster, before, "DEBUG");
    let before = change(cluster, path, &text("info", 100, ""));
    says(cluster, before, "PM6031");
    eventually("clients get in", SOON, || gets_in(endpoint));
    // Now the first filter is used again.
    let front = cluster.process(Role::Front).unwrap();
    eventually("debug lines end", SOON, || {
        let before = front.stderr().len();
        assert!(gets_in(endpoint));
        std::thread::sleep(Duration::from_millis(300));
        !front.stderr()[before..].contains("DEBUG")
    });
    // The log must name the key that needs a restart, and no other key.
    let before = change(
        cluster,
        path,
        &text("info", 99, "spin-us = 7\ncache = \"log\"\n"),
    );
    says(
        cluster,
        before,
        "PM6034 [redis]: other values than at the start",
    );
    says(cluster, before, "after a restart only: cache, spin-us");
    // A file with one wrong key, and a file that is wrong as a whole, must change nothing. The error must be reported.
    for wrong in [
        text("debug", 1, "unknown-key = 1\n"),
        text("debug", 0, ""),
        text("not=a=filter", 1, ""),
        "[redis".to_owned(),
    ] {
        let before = change(cluster, path, &wrong);
        says(
            cluster,
            before,
            "PM6032 SIGHUP: wrong, and left as before: the configuration",
        );
        assert!(gets_in(endpoint), "{wrong}");
        let front = cluster.process(Role::Front).unwrap();
        assert!(!front.stderr()[before..].contains("DEBUG"), "{wrong}");
    }
}

#[test]
fn a_device_that_runs_wants_another_number_of_copies() {
    let scratch = Scratch::new(common::folder(), "reload-copies-file").unwrap();
    let path = scratch.disk().join("device.toml");
    let write = |copies: u8| {
        let text = format!("[device]\ncopies = {copies}\n");
        std::fs::write(&path, text).unwrap();
    };
    write(1);
    let mut topology = shown(Topology::new(StoreKind::Packet, 1, Medium::Dram));
    let words = ["--config", path.to_str().unwrap()];
    topology.device_args.extend(words.map(String::from));
    let Some(mut cluster) = common::start("reload-copies", topology) else {
        return;
    };
    let device = cluster.process(Role::Device(0)).unwrap();
    let at = place(device);
    assert_eq!(get(at, "/readyz").0, 200);
    write(2);
    device.signal(Signal::HUP).unwrap();
    eventually("another copy is wanted", SOON, || {
        let (status, said) = get(at, "/readyz");
        status == 503 && said.contains("and 2 are wanted")
    });
    // The number is larger than the maximum, so the setting must stay unchanged.
    write(9);
    device.signal(Signal::HUP).unwrap();
    eventually("it is refused", SOON, || device.stderr().contains("PM6032"));
    assert_eq!(get(at, "/readyz").0, 503);
    write(1);
    device.signal(Signal::HUP).unwrap();
    eventually("one is enough", SOON, || get(at, "/readyz").0 == 200);
    let said = device.stderr();
    assert!(!said.contains("PM6034"), "no restart is needed: {said}");
}

/// Starts a Redis with the user `pmnet`, whose password is in a file.
fn redis_with_a_user(folder: &Path, password: &str) -> (Process, SocketAddr) {
    let address = SocketAddr::from(([127, 0, 0, 1], free_port().unwrap()));
    let port = address.port().to_string();
    let dir = folder.to_str().unwrap();
    let args = [
        ["--port", &port],
        ["--bind", "127.0.0.1"],
        ["--dir", dir],
        ["--appendonly", "yes"],
        ["--appendfsync", "always"],
        ["--save", ""],
    ];
    let spec = Spec {
        name: "redis-with-a-user".into(),
        binaries: common::binaries().clone(),
        program: find_program("redis-server"),
        args: args.as_flattened().iter().map(OsString::from).collect(),
        ready: Ready::Redis(address),
    };
    let redis = Process::start(spec, folder, SOON).unwrap();
    set_password(address, password);
    (redis, address)
}

fn set_password(redis: SocketAddr, password: &str) {
    let words = ["ACL", "SETUSER", "pmnet", "on", "resetpass"];
    let password = format!(">{password}");
    let rights = [&*password, "~*", "&*", "+@all"];
    let reply = connect(redis).call(&[&words[..], &rights].concat());
    assert_eq!(reply.unwrap(), ok());
}

/// The password of Redis's user is changed while a server and a front use it: in Redis, in the file, and with
/// SIGHUP. No process is restarted.
#[test]
fn the_password_of_redis_changes_while_server_and_front_run() {
    if find_program("redis-server").is_none() {
        return common::skip("redis-server is not installed");
    }
    let scratch = Scratch::new(common::folder(), "reload-password-file").unwrap();
    let file = scratch.disk().join("password");
    let write = |text: &str| {
        std::fs::write(&file, text).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&file, mode).unwrap();
    };
    write("old");
    let (_redis, at) = redis_with_a_user(scratch.disk(), "old");
    let mut topology = Topology::new(StoreKind::Redis, 1, Medium::Dram);
    let url = format!("redis://pmnet:@{at}");
    let path = file.to_str().unwrap();
    topology.store_url = Some(url.clone());
    let words = ["--store-password-file", path];
    topology.server_args.extend(words.map(String::from));
    let words = ["--direct", &url, "--direct-password-file", path];
    topology.front_args.extend(words.map(String::from));
    let mut cluster = common::start("reload-password", topology).unwrap();
    let endpoint = cluster.endpoint().unwrap();
    // WATCH needs a connection from the front to Redis.
    let works = || {
        let mut client = connect(endpoint);
        [&["SET", "k", "v"][..], &["WATCH", "k"]]
            .iter()
            .all(|command| client.call(command).is_ok_and(|reply| reply == ok()))
            && matches!(client.call(&["INCR", "n"]), Ok(Reply::Integer(_)))
    };
    assert!(works());
    set_password(at, "new");
    let killed = connect(at).call(&["CLIENT", "KILL", "USER", "pmnet"]);
    assert!(matches!(killed, Ok(Reply::Integer(1..))), "{killed:?}");
    let server = cluster.process(Role::Server).unwrap();
    eventually("the server cannot log in", SOON, || {
        server.stderr().contains("WRONGPASS")
    });
    write("new");
    for (role, flag) in [
        (Role::Server, "--store-password-file"),
        (Role::Front, "--direct-password-file"),
    ] {
        let process = cluster.process(role).unwrap();
        let before = process.stderr().len();
        process.signal(Signal::HUP).unwrap();
        eventually("it is read again", SOON, || {
            let said = &process.stderr()[before..];
            said.contains("PM6031") && said.contains(flag)
        });
    }
    eventually("all work again", SOON, works);
    for role in [Role::Server, Role::Front] {
        let said = cluster.process(role).unwrap().stderr();
        assert!(!said.contains("panicked"), "{said}");
    }
    assert!(cluster.stop().unwrap().is_empty());
}
