//! Commands that pass through to Redis, while another Redis replaces it or while it is stopped; and the reads that a
//! client gets in one pipeline. The front's own tests check each case alone
//! (`crates/front/tests/front/{failover,deadlines,order}.rs`). In this file all processes are real.

use std::net::SocketAddr;

use pmnet_lab::harness::{Medium, Process, Ready, Role, Spec, StoreKind, Topology, free_port};
use pmnet_lab::resp::{Client, Reply, write_command};
use rustix::process::Signal;

use crate::common;
use crate::support::{CALL_MAX, bulk, connect, eventually, front, ok};

fn cluster(name: &str, front_args: &[&str]) -> Option<pmnet_lab::harness::Cluster> {
    let mut topology = Topology::new(StoreKind::Redis, 1, Medium::Dram);
    topology.front_args = front_args.iter().map(|arg| (*arg).to_owned()).collect();
    common::start(name, topology)
}

/// Starts a replica that has all data of `master`.
pub fn replica(master: SocketAddr, folder: &std::path::Path) -> (Process, SocketAddr) {
    let address = SocketAddr::from(([127, 0, 0, 1], free_port().unwrap()));
    let folder = folder.join("replica");
    std::fs::create_dir_all(&folder).unwrap();
    let args = [
        ("--bind", "127.0.0.1"),
        ("--port", &address.port().to_string()),
        ("--appendonly", "yes"),
        ("--appendfsync", "always"),
        ("--save", ""),
        ("--replicaof", &format!("127.0.0.1 {}", master.port())),
        ("--dir", folder.to_str().unwrap()),
    ];
    let spec = Spec {
        name: "replica".into(),
        binaries: common::binaries().clone(),
        program: pmnet_lab::harness::find_program("redis-server"),
        args: args
            .iter()
            .flat_map(|(flag, value)| [flag.into(), value.into()])
            .collect(),
        ready: Ready::Redis(address),
    };
    let process = Process::start(spec, &folder, CALL_MAX).unwrap();
    let mut client = connect(address);
    eventually("the replica has everything", CALL_MAX, || {
        let info = client.call(&["INFO", "replication"]).unwrap();
        info.text().unwrap().contains("master_link_status:up")
    });
    (process, address)
}

pub fn call(client: &mut Client, line: &str) -> Reply {
    client.call(&line.split(' ').collect::<Vec<_>>()).unwrap()
}

fn error(reply: Reply) -> String {
    match reply {
        Reply::Error(text) => text,
        other => panic!("an error was expected: {other:?}"),
    }
}

/// Makes a blocking call in another thread.
fn waiting(address: SocketAddr, line: &'static str) -> std::thread::JoinHandle<Reply> {
    std::thread::spawn(move || call(&mut connect(address), line))
}

fn blocked(address: SocketAddr, count: usize) {
    let mut client = connect(address);
    eventually("somebody waits", CALL_MAX, || {
        let info = call(&mut client, "INFO clients").text().unwrap();
        info.contains(&format!("blocked_clients:{count}\r"))
    });
}

#[test]
fn after_a_failover_by_hand_nothing_goes_to_the_old_redis() {
    let Some(mut cluster) = cluster("failover", &[]) else {
        return;
    };
    let (old, endpoint) = (cluster.redis().unwrap(), cluster.endpoint().unwrap());
    let (mut watcher, mut reader, mut used) = (front(&cluster), front(&cluster), front(&cluster));
    assert_eq!(call(&mut watcher, "SET k before"), ok());
    assert_eq!(call(&mut used, "RPUSH l 1"), Reply::Integer(1));
    assert_eq!(
        call(&mut used, "BLPOP l 0"),
        Reply::Array(vec![bulk("l"), bulk("1")])
    );
    // No client changes this key in either store.
    assert_eq!(call(&mut watcher, "WATCH untouched"), ok());
    assert_eq!(call(&mut watcher, "MULTI"), ok());
    assert_eq!(
        call(&mut watcher, "SET k lost"),
        Reply::Status(b"QUEUED".to_vec())
    );
    assert_eq!(call(&mut reader, "WATCH k"), ok());
    let waits = waiting(endpoint, "BLPOP l 0");
    blocked(old, 1);

    let (mut process, new) = replica(
        old,
        &common::folder().join(format!("replica-{}", old.port())),
    );
    assert_eq!(call(&mut connect(old), "WAIT 1 5000"), Reply::Integer(1));
    cluster.kill(Role::Server).unwrap();
    assert_eq!(call(&mut connect(new), "REPLICAOF NO ONE"), ok());
    let server = cluster.process(Role::Server).unwrap();
    server.set_flag("--store", Some(&format!("redis://{new}")));
    cluster.restart(Role::Server).unwrap();
    // The old master still runs, and accepts writes.
    assert_eq!(call(&mut connect(old), "SET k stale"), ok());

    assert_eq!(call(&mut front(&cluster), "GET k"), bulk("before"));
    assert_eq!(call(&mut watcher, "EXEC"), Reply::Nil);
    let text = error(call(&mut reader, "GET k"));
    assert!(text.contains("not the store"), "{text}");
    let text = error(waits.join().unwrap());
    assert!(text.contains("another Redis now"), "{text}");
    // Old and new connections of clients work with the new master.
    let mut fresh = front(&cluster);
    for client in [&mut watcher, &mut used, &mut fresh] {
        assert_eq!(call(client, "WATCH k"), ok());
        assert_ne!(call(client, "GET k"), bulk("stale"));
        assert_eq!(call(client, "MULTI"), ok());
        assert_eq!(call(client, "INCR n"), Reply::Status(b"QUEUED".to_vec()));
        assert!(matches!(call(client, "EXEC"), Reply::Array(_)));
        assert_eq!(call(&mut connect(new), "RPUSH l 2"), Reply::Integer(1));
        assert_eq!(
            call(client, "BLPOP l 0"),
            Reply::Array(vec![bulk("l"), bulk("2")])
        );
    }
    assert_eq!(call(&mut connect(new), "GET n"), bulk("3"));
    assert_eq!(call(&mut connect(old), "EXISTS n"), Reply::Integer(0));
    assert_eq!(call(&mut connect(old), "GET k"), bulk("stale"));
    process.kill().unwrap();
}

#[test]
fn where_replicas_are_waited_for_a_passed_command_is_answered_when_they_have_it() {
    let Some(mut cluster) = cluster("confirmed", &["--deadline-ms", "2000"]) else {
        return;
    };
    let redis = cluster.redis().unwrap();
    let folder = common::folder().join(format!("confirmed-{}", redis.port()));
    let (mut replica, _) = replica(redis, &folder);
    cluster.kill(Role::Server).unwrap();
    let server = cluster.process(Role::Server).unwrap();
    server.set_flag("--store", Some(&format!("redis://{redis}?wait_replicas=1")));
    cluster.restart(Role::Server).unwrap();
    let mut client = front(&cluster);
    let transaction = |client: &mut Client, value: &str| {
        assert_eq!(call(client, "WATCH k"), ok());
        assert_eq!(call(client, "MULTI"), ok());
        let queued = call(client, &format!("SET k {value}"));
        assert_eq!(queued, Reply::Status(b"QUEUED".to_vec()));
    };
    transaction(&mut client, "1");
    assert_eq!(call(&mut client, "EXEC"), Reply::Array(vec![ok()]));
    transaction(&mut client, "2");
    replica.signal(Signal::STOP).unwrap();
    let text = error(call(&mut client, "EXEC"));
    assert!(text.contains("outcome unknown"), "{text}");
    // Redis has the value, but its replica does not. If the replica were promoted now, the value would be lost. The
    // client was told that the outcome is unknown.
    assert_eq!(call(&mut connect(redis), "GET k"), bulk("2"));
    replica.signal(Signal::CONT).unwrap();
    let mut client = front(&cluster);
    transaction(&mut client, "3");
    assert_eq!(call(&mut client, "EXEC"), Reply::Array(vec![ok()]));
    replica.kill().unwrap();
}

#[test]
fn a_redis_that_is_stopped_is_noticed_and_clients_that_leave_meanwhile_are_forgotten() {
    let Some(mut cluster) = cluster("stopped", &["--deadline-ms", "2000"]) else {
        return;
    };
    let (redis, endpoint) = (cluster.redis().unwrap(), cluster.endpoint().unwrap());
    let mut watcher = front(&cluster);
    assert_eq!(call(&mut watcher, "WATCH k"), ok());
    let waits = waiting(endpoint, "BLPOP l 0");
    blocked(redis, 1);
    let gone: Vec<Client> = (0..4)
        .map(|_| {
            let mut client = front(&cluster);
            assert_eq!(call(&mut client, "WATCH k"), ok());
            client
        })
        .collect();
    let process = cluster.process(Role::Redis).unwrap();
    process.signal(Signal::STOP).unwrap();
    drop(gone);
    // Two error texts are possible, because the server may or may not answer before it has to wait for the stopped
    // Redis.
    let text = error(call(&mut watcher, "GET k"));
    let unsent = text.contains("was not executed");
    assert!(unsent || text.contains("may or may not"), "{text}");
    let text = error(waits.join().unwrap());
    assert!(text.contains("may or may not"), "{text}");
    let text = error(call(&mut front(&cluster), "WATCH k"));
    assert!(text.contains("was not executed"), "{text}");
    let process = cluster.process(Role::Redis).unwrap();
    process.signal(Signal::CONT).unwrap();
    let mut direct = connect(redis);
    eventually("only the server is left", CALL_MAX, || {
        let list = call(&mut direct, "CLIENT LIST").text().unwrap();
        list.lines().count() == 2
    });
    let mut client = front(&cluster);
    eventually("works again", CALL_MAX, || {
        call(&mut client, "WATCH k") == ok()
    });
}

/// Reads the count several times in one pipeline, and checks that it does not decrease. Returns the values.
fn counts(client: &mut Client) -> Vec<u64> {
    let mut bytes = Vec::new();
    write_command(&mut bytes, &["GET", "n"]);
    for _ in 0..20 {
        write_command(&mut bytes, &["GET", "large"]);
    }
    for _ in 0..120 {
        write_command(&mut bytes, &["GET", "n"]);
    }
    let replies = client.exchange(&bytes, 141).unwrap();
    let count = |reply: &Reply| reply.text().and_then(|text| text.parse().ok());
    let whole = |reply: &&Reply| reply.bytes().is_some_and(|bytes| bytes.len() == 1 << 20);
    assert_eq!(replies.iter().filter(whole).count(), 20);
    let (first, rest) = (&replies[..1], &replies[21..]);
    first.iter().chain(rest).filter_map(count).collect()
}

#[test]
fn reads_of_one_pipeline_do_not_go_back_in_time() {
    let Some(cluster) = cluster("back", &[]) else {
        return;
    };
    let endpoint = cluster.endpoint().unwrap();
    let mut client = front(&cluster);
    assert_eq!(
        client
            .call(&[&b"SET"[..], b"large", &vec![b'x'; 1 << 20]])
            .unwrap(),
        ok()
    );
    assert_eq!(call(&mut client, "SET n 0"), ok());
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut other = connect(endpoint);
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                assert!(matches!(call(&mut other, "INCR n"), Reply::Integer(_)));
            }
        });
        let seen: Vec<Vec<u64>> = (0..5).map(|_| counts(&mut client)).collect();
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        for counts in seen {
            assert_eq!(counts.len(), 121);
            assert!(counts.is_sorted(), "{counts:?}");
        }
    });
}
