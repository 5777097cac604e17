//! A Redis is restarted, or moves to another address, while no client uses it. A front accepts no client while the
//! front finds another Redis than the server's. So the server gets no work that would show it the change.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use pmnet_lab::harness::{Cluster, Medium, Process, Ready, Role, Spec, StoreKind, Topology};
use pmnet_lab::harness::{find_program, free_port};
use pmnet_lab::resp::Client;

use crate::common;
use crate::support::{bulk, connect, launch, ok};

/// Time within which a new client must be served.
const SERVED_MAX: Duration = Duration::from_secs(8);
/// Time after which no request is outstanding, and none is sent again.
const IDLE: Duration = Duration::from_secs(2);
/// The host name of Redis in the server's configuration.
const NAME: &str = "redis.pmnet.test";

/// Starts a front whose clients log in as users of Redis. The front must ask this Redis before it accepts a client.
fn front(cluster: &Cluster) -> (Process, SocketAddr) {
    let listen = SocketAddr::from(([127, 0, 0, 1], free_port().unwrap()));
    let (at, via) = (listen.to_string(), cluster.head().unwrap().to_string());
    let args = ["redis", "--users-of-redis", "--listen", &at, "--via", &via];
    let mut front = launch("front-with-users", cluster.folder(), &args);
    front.wait_ready(SERVED_MAX).unwrap();
    (front, listen)
}

/// Checks that a new client is served, and that it finds the earlier data.
fn is_served(front: &Process, at: SocketAddr) {
    let begun = Instant::now();
    loop {
        let mut client = connect(at);
        let found = client.call(&["GET", "k"]);
        if found.as_ref().is_ok_and(|reply| *reply == bulk("before")) {
            break;
        }
        assert!(
            begun.elapsed() < SERVED_MAX,
            "{found:?}\n{}",
            front.stderr()
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(connect(at).call(&["SET", "l", "after"]).unwrap(), ok());
    println!("a new client was served after {:?}", begun.elapsed());
}

#[test]
fn an_idle_redis_is_restarted_and_a_new_client_is_let_in() {
    let topology = Topology::new(StoreKind::Redis, 1, Medium::Dram);
    let Some(mut cluster) = common::start("idle-restart", topology) else {
        return;
    };
    let (front, at) = front(&cluster);
    assert_eq!(connect(at).call(&["SET", "k", "before"]).unwrap(), ok());
    std::thread::sleep(IDLE);
    cluster.kill(Role::Redis).unwrap();
    cluster.restart(Role::Redis).unwrap();
    is_served(&front, at);
}

/// Starts a server in a mount namespace in which the name [`NAME`] is resolved with this hosts file.
fn server_with_names(cluster: &Cluster, hosts: &std::path::Path) -> Option<Process> {
    let redis = cluster.redis().unwrap();
    let listen = cluster.server().unwrap().to_string();
    let store = format!("redis://{NAME}:{}", redis.port());
    let script = r#"mount --bind "$1" /etc/hosts && shift && exec "$@""#;
    let (hosts, pmnet) = (hosts.to_str()?, common::pmnet().to_str()?);
    let args = [
        ["--mount", "sh"],
        ["-c", script],
        ["sh", hosts],
        [pmnet, "server"],
        ["--listen", &listen],
        ["--store", &store],
    ];
    let spec = Spec {
        name: "server-with-names".into(),
        binaries: common::binaries().clone(),
        program: Some(find_program("unshare")?),
        args: args.as_flattened().iter().map(Into::into).collect(),
        ready: Ready::Line,
    };
    let mut server = Process::launch(spec, cluster.folder()).unwrap();
    server.wait_ready(SERVED_MAX).ok()?;
    Some(server)
}

#[test]
fn an_idle_redis_moves_behind_its_name_and_a_new_client_is_let_in() {
    // The test starts the server by itself, without a key.
    let topology = Topology::new(StoreKind::Redis, 1, Medium::Dram).unkeyed();
    let Some(mut cluster) = common::start("idle-moves", topology) else {
        return;
    };
    let hosts = cluster.folder().join("hosts");
    let leads_to = |address: &str| {
        std::fs::write(&hosts, format!("127.0.0.1 localhost\n{address} {NAME}\n")).unwrap();
    };
    leads_to("127.0.0.1");
    cluster.kill(Role::Server).unwrap();
    let Some(_server) = server_with_names(&cluster, &hosts) else {
        return common::skip("no mount namespace here");
    };
    let (front, at) = front(&cluster);
    assert_eq!(connect(at).call(&["SET", "k", "before"]).unwrap(), ok());
    std::thread::sleep(IDLE);
    let moved = SocketAddr::from(([127, 0, 0, 2], cluster.redis().unwrap().port()));
    let redis = cluster.process(Role::Redis).unwrap();
    redis.kill().unwrap();
    redis.set_flag("--bind", Some("127.0.0.2"));
    redis.relaunch().unwrap();
    leads_to("127.0.0.2");
    let is_there = || {
        let client = Client::connect(moved, Duration::from_millis(500));
        client.and_then(|mut client| client.call(&["PING"])).is_ok()
    };
    crate::support::eventually("Redis is at its new address", SERVED_MAX, is_there);
    is_served(&front, at);
}
