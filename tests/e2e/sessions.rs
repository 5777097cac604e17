//! Fronts that end without ending their sessions.

use std::time::Duration;

use pmnet_lab::harness::{Cluster, Medium, Process, Role, StoreKind, Topology};
use pmnet_lab::resp::Reply;

use crate::common;
use crate::support::{connect, eventually, front, ok};

/// Number of clients of a front. Each client gets a session.
const CLIENTS: usize = 150;
/// Longest wait for a condition.
const DONE_MAX: Duration = Duration::from_secs(20);

/// Returns the number of sessions in the records of the server's store.
fn sessions(cluster: &Cluster) -> usize {
    let reply = connect(cluster.redis().unwrap()).call(&["HKEYS", "pmnet:{0}"]);
    let Reply::Array(keys) = reply.unwrap() else {
        panic!("no records")
    };
    let is_session = |key: &&Reply| matches!(key, Reply::Bulk(key) if key.starts_with(b"session/"));
    keys.iter().filter(is_session).count()
}

/// The number of sessions of a device is limited. A front needs one session for each client that
/// writes. (Regression test: three crashes of a front with 20,000 clients occupied all sessions for
/// ten minutes, and no log reported it.)
#[test]
fn a_front_that_crashes_again_and_again_leaves_no_sessions_behind() {
    let topology = Topology::new(StoreKind::Redis, 1, Medium::Dram);
    let Some(mut cluster) = common::start("sessions", topology) else {
        return;
    };
    for round in 0..3 {
        let mut clients = Vec::new();
        for number in 0..CLIENTS {
            let mut client = front(&cluster);
            let key = format!("{round}:{number}");
            assert_eq!(client.call(&["SET", &key, "v"]).unwrap(), ok());
            clients.push(client);
        }
        eventually("all of them have a session", DONE_MAX, || {
            sessions(&cluster) >= CLIENTS
        });
        cluster.kill(Role::Front).unwrap();
        cluster.restart(Role::Front).unwrap();
    }
    // With its first session, the new front has told the device its name.
    assert_eq!(front(&cluster).call(&["SET", "l", "v"]).unwrap(), ok());
    eventually("those of its former starts are over", DONE_MAX, || {
        sessions(&cluster) < 20
    });
    let said = cluster.process(Role::Device(0)).unwrap().stderr();
    assert!(said.contains("of_clients_started_again="), "{said}");
    // The sessions of the present front must still work.
    let mut client = front(&cluster);
    for number in 0..20 {
        assert_eq!(
            client.call(&["SET", "m", &number.to_string()]).unwrap(),
            ok()
        );
    }
}

/// Regression test: the session in which a front asks for the freshness of its reads stayed for ten minutes after a
/// planned end of the front.
#[test]
fn a_front_that_is_asked_to_end_leaves_no_session() {
    let topology = Topology::new(StoreKind::Redis, 1, Medium::Dram);
    let Some(mut cluster) = common::start("sessions-ended", topology) else {
        return;
    };
    let redis = cluster.redis().unwrap().to_string();
    // While the front asks for the commands of the store, the session of this question cannot end.
    let knows_commands = |front: &Process| {
        eventually("the front knows the commands", DONE_MAX, || {
            front.stderr().contains("which commands it has")
        });
    };
    // Only a front that also reads from the store itself asks for freshness.
    let process = cluster.process(Role::Front).unwrap();
    knows_commands(process);
    process.set_flag("--direct", Some(&redis));
    assert!(process.stop().unwrap());
    cluster.restart(Role::Front).unwrap();
    knows_commands(cluster.process(Role::Front).unwrap());
    let mut client = front(&cluster);
    let value = Reply::Bulk(b"v".into());
    assert_eq!(client.call(&["SET", "k", "v"]).unwrap(), ok());
    assert_eq!(client.call(&["GET", "k"]).unwrap(), value);
    eventually(
        "sessions of the question, the client and the reads",
        DONE_MAX,
        || sessions(&cluster) >= 3,
    );
    // With this answer the front also has the answer to its last OPEN.
    assert_eq!(client.call(&["GET", "k"]).unwrap(), value);
    assert!(cluster.process(Role::Front).unwrap().stop().unwrap());
    eventually("all are over", DONE_MAX, || sessions(&cluster) == 0);
}
