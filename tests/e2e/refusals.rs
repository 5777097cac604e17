//! A Redis that refuses writes, hangs, or dies during a request. Each request must take effect once
//! or not at all, and no request may be sent again for a client that has disconnected
//! (`docs/spec/protocol.md` §2 rule 8).

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pmnet_client::{ClientConfig, Session};
use pmnet_lab::harness::{Cluster, Medium, Role, StoreKind, Topology};
use pmnet_lab::resp::{Reply, write_command};
use pmnet_wire::command::{Form, Protocol, preamble};

use crate::common;
use crate::support::{bulk, connect, eventually, front};

/// Deadline of the front's calls in these tests.
const DEADLINE: Duration = Duration::from_secs(3);
/// A time that is longer than a call's deadline, with the rounding of its remaining time.
const AFTERWARDS: Duration = Duration::from_secs(5);

fn cluster(name: &str) -> Option<Cluster> {
    cluster_with(name, DEADLINE)
}

fn cluster_with(name: &str, deadline: Duration) -> Option<Cluster> {
    let mut topology = Topology::new(StoreKind::Redis, 1, Medium::Dram);
    topology.front_args = vec!["--deadline-ms".into(), deadline.as_millis().to_string()];
    topology.redis_args = vec!["--busy-reply-threshold".into(), "100".into()];
    common::start(name, topology)
}

fn redis(cluster: &Cluster) -> SocketAddr {
    cluster.redis().expect("it has a Redis")
}

/// Sends one command directly to Redis.
fn direct(cluster: &Cluster, command: &[&str]) -> Reply {
    connect(redis(cluster)).call(command).unwrap()
}

fn config(cluster: &Cluster, setting: &str, value: &str) {
    let reply = direct(cluster, &["CONFIG", "SET", setting, value]);
    assert_eq!(reply, Reply::Status(b"OK".to_vec()));
}

/// Subscribes to a channel directly at Redis. Returns a counter of its messages.
fn subscribe(cluster: &Cluster) -> Arc<AtomicU64> {
    let mut client = connect(redis(cluster));
    let mut out = Vec::new();
    write_command(&mut out, &["SUBSCRIBE", "ch"]);
    client.exchange(&out, 1).unwrap();
    let count = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&count);
    std::thread::spawn(move || {
        while let Ok(messages) = client.exchange(&[], 1) {
            counted.fetch_add(u64::try_from(messages.len()).unwrap(), Ordering::SeqCst);
        }
    });
    count
}

/// Sends a command, and closes the connection without waiting for the reply.
fn send_and_leave(cluster: &Cluster, command: &[&str]) {
    let mut stream = TcpStream::connect(cluster.endpoint().unwrap()).unwrap();
    let mut out = Vec::new();
    write_command(&mut out, command);
    stream.write_all(&out).unwrap();
    // After this time the command has left the front.
    std::thread::sleep(Duration::from_millis(300));
}

/// The commands that publish a message, each with its reply if there is one subscriber.
const PUBLISHED: [&[&[&str]]; 3] = [
    &[&["PUBLISH", "ch", "once"]],
    &[&["MULTI"], &["PUBLISH", "ch", "once"], &["EXEC"]],
    &[&["EVAL", "return redis.call('PUBLISH', 'ch', 'once')", "0"]],
];

/// Regression test: at maxmemory, one PUBLISH was delivered 1,851 times in 12 s, and deliveries
/// continued after its client had disconnected.
#[test]
fn a_message_is_published_once_while_redis_takes_no_writes() {
    let Some(cluster) = cluster("refused-publish") else {
        return;
    };
    let count = subscribe(&cluster);
    let mut client = front(&cluster);
    assert_eq!(client.call(&["INCR", "n"]).unwrap(), Reply::Integer(1));
    for (setting, value, end) in [("maxmemory", "1", "0"), ("min-replicas-to-write", "1", "0")] {
        for commands in PUBLISHED {
            let what = format!("{setting}, {commands:?}");
            let before = count.load(Ordering::SeqCst);
            config(&cluster, setting, value);
            let mut out = Vec::new();
            for command in commands {
                write_command(&mut out, command);
            }
            let reply = std::thread::scope(|scope| {
                let call = scope.spawn(|| client.exchange(&out, commands.len()).unwrap().pop());
                std::thread::sleep(Duration::from_secs(1));
                let meanwhile = count.load(Ordering::SeqCst) - before;
                config(&cluster, setting, end);
                let reply = call.join().unwrap().unwrap();
                assert!(meanwhile <= 1, "{what}: published {meanwhile} times");
                reply
            });
            let delivered = u64::from(!matches!(reply, Reply::Error(_)));
            std::thread::sleep(Duration::from_millis(300));
            assert_eq!(
                count.load(Ordering::SeqCst) - before,
                delivered,
                "{what}: {reply:?}"
            );
        }
    }
}

#[test]
fn nothing_is_executed_for_a_client_that_has_gone() {
    let Some(cluster) = cluster("refused-gone") else {
        return;
    };
    let count = subscribe(&cluster);
    let mut client = front(&cluster);
    assert_eq!(client.call(&["INCR", "n"]).unwrap(), Reply::Integer(1));
    config(&cluster, "min-replicas-to-write", "1");
    send_and_leave(&cluster, &["PUBLISH", "ch", "once"]);
    send_and_leave(&cluster, &["INCR", "n"]);
    std::thread::sleep(AFTERWARDS);
    config(&cluster, "min-replicas-to-write", "0");
    eventually("writes go on", AFTERWARDS, || {
        matches!(client.call(&["INCR", "other"]), Ok(Reply::Integer(_)))
    });
    assert_eq!(count.load(Ordering::SeqCst), 0);
    assert_eq!(client.call(&["GET", "n"]).unwrap(), bulk("1"));
}

/// Regression test: `INCR` of a key with 0 replied 2, and left 2.
#[test]
fn a_right_that_is_missing_for_a_second_doubles_nothing() {
    let Some(cluster) = cluster("refused-right") else {
        return;
    };
    let mut client = front(&cluster);
    assert_eq!(client.call(&["GET", "n"]).unwrap(), Reply::Nil);
    let mut done = 0i64;
    for right in [
        "hset", "evalsha", "eval", "multi", "exec", "hdel", "select", "watch",
    ] {
        direct(
            &cluster,
            &["ACL", "SETUSER", "default", &format!("-{right}")],
        );
        let reply = std::thread::scope(|scope| {
            let call = scope.spawn(|| client.call(&["INCR", "n"]).unwrap());
            std::thread::sleep(Duration::from_secs(1));
            direct(
                &cluster,
                &["ACL", "SETUSER", "default", &format!("+{right}")],
            );
            call.join().unwrap()
        });
        let before = done;
        done += i64::from(reply == Reply::Integer(done + 1));
        // A lasting refusal would be right as well. Two effects would be wrong, and an unknown
        // outcome would be wrong.
        assert!(
            done > before || matches!(&reply, Reply::Error(text) if text.contains("can't run")),
            "{right}: {reply:?}"
        );
        assert_eq!(
            direct(&cluster, &["GET", "n"]),
            bulk(done.to_string()),
            "{right}: {reply:?}"
        );
    }
}

/// Regression test: `EVAL "while true do end" 0` could not be killed, and was executed again after
/// each restart of Redis.
#[test]
fn a_script_that_hangs_redis_is_not_executed_again_for_a_client_that_has_gone() {
    let Some(mut cluster) = cluster("refused-hang") else {
        return;
    };
    let busy = |cluster: &Cluster| matches!(direct(cluster, &["PING"]), Reply::Error(text) if text.starts_with("BUSY"));
    let answers = |cluster: &Cluster, key: &str| {
        // A killed script runs until Redis checks whether it was killed.
        eventually("it ends", AFTERWARDS, || !busy(cluster));
        let quiet = Instant::now() + AFTERWARDS;
        while Instant::now() < quiet {
            assert!(!busy(cluster), "{key}: it runs again");
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(
            front(cluster).call(&["INCR", key]).unwrap(),
            Reply::Integer(1)
        );
    };
    front(&cluster).call(&["SET", "k", "v"]).unwrap();
    // An operator kills the script after each request of its client.
    send_and_leave(
        &cluster,
        &["EVAL", "while true do redis.call('GET', 'k') end", "0"],
    );
    eventually("it hangs", AFTERWARDS, || busy(&cluster));
    std::thread::sleep(AFTERWARDS);
    assert_eq!(
        direct(&cluster, &["SCRIPT", "KILL"]),
        Reply::Status(b"OK".to_vec())
    );
    answers(&cluster, "killed");
    // The script has written and cannot be killed, so Redis is restarted.
    send_and_leave(
        &cluster,
        &["EVAL", "redis.call('INCR', 'hung') while true do end", "0"],
    );
    eventually("it hangs", AFTERWARDS, || busy(&cluster));
    std::thread::sleep(DEADLINE);
    cluster.kill(Role::Redis).unwrap();
    cluster.restart(Role::Redis).unwrap();
    answers(&cluster, "restarted");
    assert_eq!(
        direct(&cluster, &["GET", "hung"]),
        Reply::Nil,
        "it never ended, so nothing of it is there"
    );
}

/// Regression test: while a script did not end, other clients got no replies, and SCRIPT KILL was
/// refused. If a copy of the script's request arrived meanwhile, it would run the script again.
#[test]
fn a_script_that_hangs_redis_is_killed_through_the_front() {
    // With this long deadline, no client gives up meanwhile.
    let Some(cluster) = cluster_with("refused-busy", 4 * AFTERWARDS) else {
        return;
    };
    let says =
        |reply: &Reply, word: &str| matches!(reply, Reply::Error(text) if text.contains(word));
    let mut other = front(&cluster);
    other.call(&["SET", "k", "v"]).unwrap();
    for command in ["EVAL_RO", "EVAL"] {
        let mut own = front(&cluster);
        let killed = std::thread::scope(|scope| {
            let script = "while true do redis.call('GET', 'k') end";
            let call = scope.spawn(|| own.call(&[command, script, "0"]).unwrap());
            eventually("others are told", 3 * AFTERWARDS, || {
                let reply = other.call(&["STRLEN", "k"]).unwrap();
                says(&reply, "BUSY Redis is busy running a script.")
            });
            assert!(says(&other.call(&["INCR", "n"]).unwrap(), "BUSY "));
            // The update must be acknowledged nevertheless, and must be applied afterwards.
            let ok = Reply::Status(b"OK".to_vec());
            let mut early = front(&cluster);
            assert_eq!(early.call(&["SET", "early", command]).unwrap(), ok);
            // After this time, copies of the script's request are in flight.
            std::thread::sleep(Duration::from_secs(1));
            assert_eq!(other.call(&["SCRIPT", "KILL"]).unwrap(), ok);
            call.join().unwrap()
        });
        assert!(says(&killed, "Script killed by user"), "{killed:?}");
        assert_eq!(
            other.call(&["STRLEN", "early"]).unwrap(),
            Reply::Integer(command.len().try_into().unwrap())
        );
        let reply = other.call(&["SCRIPT", "KILL"]).unwrap();
        assert!(says(&reply, "NOTBUSY"), "{command} runs again: {reply:?}");
    }
    // Commands that were refused must not have been executed.
    eventually("the front has noticed", AFTERWARDS, || {
        let reply = other.call(&["INCR", "n"]).unwrap();
        assert!(
            reply == Reply::Integer(1) || says(&reply, "BUSY "),
            "{reply:?}"
        );
        reply == Reply::Integer(1)
    });
}

/// Regression test: one acknowledged update for a database that Redis does not have blocked all
/// later updates for ever.
#[test]
fn an_update_that_redis_will_never_take_holds_up_nobody() {
    let topology = Topology::new(StoreKind::Redis, 1, Medium::Dram).unkeyed();
    let Some(cluster) = common::start("refused-database", topology) else {
        return;
    };
    let head = cluster.head().expect("it has a device");
    let mut session = Session::start(ClientConfig::new(head), AFTERWARDS).unwrap();
    for (database, command) in [
        (2_147_483_646, &["SET", "p", "y"][..]),
        (99, &["FLUSHALL"]),
        (0, &["SET", "session", "here"]),
    ] {
        let mut payload = preamble(Form::Single, Protocol::Resp2, database).to_vec();
        write_command(&mut payload, command);
        let copies = session.update(payload.into(), 1).unwrap();
        assert!(copies > 0, "{command:?} is acknowledged early");
    }
    let mut client = front(&cluster);
    client.call(&["SET", "k", "v"]).unwrap();
    assert_eq!(client.call(&["INCR", "n"]).unwrap(), Reply::Integer(1));
    assert_eq!(direct(&cluster, &["GET", "k"]), bulk("v"));
    assert_eq!(direct(&cluster, &["GET", "session"]), bulk("here"));
}
