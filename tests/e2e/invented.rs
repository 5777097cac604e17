//! Commands that pmnet does not know, from a test module (`tests/shared/invented.c`), with real processes. pmnet must
//! handle each of them according to Redis's description of the command.

#[path = "../shared/module.rs"]
mod module;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pmnet_lab::harness::{Cluster, Medium, Role, StoreKind, Topology, settle};
use pmnet_lab::resp::Reply;

use crate::common;
use crate::support::{Answer, Caller, bulk, front, kill_for, ok, seed};
use module::invented;

const WORKERS: usize = 8;
const LOAD: Duration = Duration::from_secs(12);
const KILL_INTERVAL: Duration = Duration::from_millis(300);
const VICTIMS: [Role; 4] = [Role::Redis, Role::Device(0), Role::Server, Role::Front];

fn cluster(name: &str) -> Option<(Cluster, tempfile::TempDir)> {
    let directory = tempfile::tempdir().expect("a directory");
    let mut topology = Topology::new(StoreKind::Redis, 1, Medium::Dram);
    topology.redis_args = vec!["--loadmodule".into(), invented(directory.path())];
    Some((common::start(name, topology)?, directory))
}

fn error(reply: Reply) -> String {
    match reply {
        Reply::Error(text) => text,
        other => panic!("no error: {other:?}"),
    }
}

#[test]
fn each_is_handled_by_what_redis_says_of_it() {
    let Some((cluster, _module)) = cluster("invented") else {
        return;
    };
    let (mut client, mut other) = (front(&cluster), front(&cluster));
    let mut direct = cluster.reader().unwrap();
    // The command follows a write that is acknowledged before Redis has it.
    assert_eq!(client.call(&["SET", "a", "hello"]).unwrap(), ok());
    assert_eq!(client.call(&["inv.len", "a"]).unwrap(), Reply::Integer(5));
    assert_eq!(other.call(&["SET", "b", "hi"]).unwrap(), ok());
    let sum = ["inv.sum", "2", "a", "b"];
    assert_eq!(client.call(&sum).unwrap(), Reply::Integer(7));
    let store = ["inv.store", "2", "a", "b", "INTO", "sum"];
    assert_eq!(client.call(&store).unwrap(), Reply::Integer(7));
    assert_eq!(direct.call(&["GET", "sum"]).unwrap(), bulk("7"));
    let lines = [
        ["inv.add", "n", "2"],
        ["inv.add", "n", "3"],
        ["INCRBY", "n", "1"],
    ];
    let commands: Vec<&[&str]> = lines.iter().map(|line| &line[..]).collect();
    let replies: Vec<Answer> = Caller::new(cluster.endpoint().unwrap()).exchange(&commands);
    assert_eq!(replies, [2, 5, 6].map(|n| Answer::Reply(Reply::Integer(n))));
    // `inv.prepare` changes the state of its connection.
    assert_eq!(client.call(&["inv.prepare", "mine"]).unwrap(), ok());
    assert_eq!(other.call(&["inv.prepare", "yours"]).unwrap(), ok());
    assert_eq!(client.call(&["inv.put", "k1"]).unwrap(), ok());
    assert_eq!(other.call(&["inv.put", "k2"]).unwrap(), ok());
    assert_eq!(
        client.call(&["MGET", "k1", "k2"]).unwrap(),
        Reply::Array(vec![bulk("mine"), bulk("yours")])
    );
    let nobodys = error(front(&cluster).call(&["inv.put", "k3"]).unwrap());
    assert_eq!(nobodys, "ERR nothing is prepared on this connection");
    // A command that removes keys without naming them could remove pmnet's records. So `inv.wipe` must be refused:
    // alone, in a transaction, after WATCH, and in a script.
    let mut third = front(&cluster);
    let refused = |text: String| assert!(text.contains("does not name"), "{text}");
    refused(error(third.call(&["inv.wipe", "pmnet"]).unwrap()));
    third.call(&["MULTI"]).unwrap();
    refused(error(third.call(&["inv.wipe", "pmnet"]).unwrap()));
    assert!(error(third.call(&["EXEC"]).unwrap()).starts_with("EXECABORT"));
    third.call(&["WATCH", "k"]).unwrap();
    refused(error(third.call(&["inv.wipe", "pmnet"]).unwrap()));
    third.call(&["UNWATCH"]).unwrap();
    let script = ["EVAL", "return redis.call('inv.wipe', 'pmnet')", "0"];
    let text = error(third.call(&script).unwrap());
    assert!(text.contains("not available inside scripts"), "{text}");
    assert_eq!(third.call(&["inv.len", "a"]).unwrap(), Reply::Integer(5));
    assert_eq!(
        third.call(&["inv.add", "n", "1"]).unwrap(),
        Reply::Integer(7)
    );
    cluster.stop().unwrap();
}

/// The server runs these commands inside MULTI and EXEC. One transaction can have commands of several clients.
#[test]
fn invented_writes_take_effect_once_while_processes_are_killed() {
    let seed = seed();
    let Some((mut cluster, _module)) = cluster("invented-kills") else {
        return;
    };
    let endpoint = cluster.endpoint().unwrap();
    let ended = AtomicBool::new(false);
    let (seen, kills) = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..WORKERS)
            .map(|_| {
                let ended = &ended;
                scope.spawn(move || {
                    let mut caller = Caller::new(endpoint);
                    let (mut done, mut maybe, mut lost) = (Vec::new(), 0, 0);
                    let add = ["inv.add", "n", "1"];
                    while !ended.load(Ordering::Acquire) {
                        for answer in caller.exchange(&[&add[..]; 3]) {
                            match answer {
                                Answer::Reply(Reply::Integer(value)) => done.push(value),
                                Answer::Unknown => maybe += 1,
                                Answer::Refused(why) if why.contains("reply lost in a crash") => {
                                    lost += 1
                                }
                                Answer::Refused(_) => {}
                                other => panic!("{other:?}"),
                            }
                        }
                    }
                    (done, maybe, lost)
                })
            })
            .collect();
        let kills = kill_for(&mut cluster, &VICTIMS, LOAD, KILL_INTERVAL, seed, &ended);
        let seen: Vec<_> = threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect();
        (seen, kills)
    });
    settle(&cluster).unwrap();
    let mut done: Vec<i64> = seen
        .iter()
        .flat_map(|(done, ..)| done.iter().copied())
        .collect();
    let maybe: usize = seen.iter().map(|(_, maybe, _)| maybe).sum();
    let lost: usize = seen.iter().map(|(_, _, lost)| lost).sum();
    let Reply::Bulk(value) = cluster.reader().unwrap().call(&["GET", "n"]).unwrap() else {
        panic!("no counter");
    };
    let value: usize = String::from_utf8(value).unwrap().parse().unwrap();
    println!(
        "{kills} kills; {} answered, {lost} without their reply, {maybe} unknown; {value}",
        done.len()
    );
    assert!(kills >= 10 && done.len() > 1000);
    done.sort_unstable();
    assert!(
        done.windows(2).all(|two| two[0] < two[1]),
        "one was executed twice"
    );
    let least = done.len() + lost;
    assert!(
        (least..=least + maybe).contains(&value),
        "{value} of {least} to {}",
        least + maybe
    );
    cluster.stop().unwrap();
}
