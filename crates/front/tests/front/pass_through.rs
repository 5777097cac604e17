//! Commands that pass through to the store: WATCH, blocking commands, subscriptions, WAIT.

use crate::common::{Redis, Running, command, eventually};
use bytes::Bytes;

#[test]
fn an_acknowledged_update_breaks_a_watch() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    let (mut watcher, mut other) = (front.client(), front.client());
    assert_eq!(watcher.ask("WATCH k"), "+OK\r\n");
    assert_eq!(watcher.ask("MULTI"), "+OK\r\n");
    assert_eq!(watcher.ask("SET k mine"), "+QUEUED\r\n");
    assert_eq!(other.ask("SET k theirs"), "+OK\r\n");
    assert_eq!(watcher.ask("EXEC"), "*-1\r\n");
    assert_eq!(watcher.ask("GET k"), "$6\r\ntheirs\r\n");
    // If the front refuses a command, it aborts the transaction, too.
    for line in ["WATCH k", "MULTI"] {
        assert_eq!(watcher.ask(line), "+OK\r\n");
    }
    assert!(watcher.ask("SHUTDOWN").starts_with("-ERR pmnet"));
    assert_eq!(watcher.ask("SET k x"), "+QUEUED\r\n");
    assert!(watcher.ask("EXEC").starts_with("-EXECABORT"));
    assert_eq!(watcher.ask("GET k"), "$6\r\ntheirs\r\n");
    // pmnet keeps the scripts, so they are known while keys are watched, too.
    let loaded = watcher.ask("SCRIPT LOAD return(7)");
    let sha = loaded.lines().nth(1).unwrap().to_owned();
    assert!(watcher.ask("WATCH k").starts_with("+OK"));
    let known = watcher.ask(&format!("SCRIPT EXISTS {sha} {}", "0".repeat(40)));
    assert_eq!(known, "*2\r\n:1\r\n:0\r\n");
    assert!(watcher.ask("DEL pmnet:{0}").starts_with("-ERR pmnet"));
}

#[test]
fn what_would_undo_a_promise_never_reaches_the_store() {
    let Some(redis) = Redis::start_with(&["--appendonly", "yes"]) else {
        return;
    };
    let front = Running::start(&redis);
    let mut client = front.client();
    assert_eq!(client.ask("SET k v"), "+OK\r\n");
    // Commands, each with a part of the reason why it is refused.
    let refused = [
        ("CONFIG SET appendonly no", "change it in Redis itself"),
        ("config set appendfsync no", "change it in Redis itself"),
        ("CONFIG SET maxmemory-policy allkeys-lru", "change it in"),
        ("CONFIG SET hz 10 maxmemory 1mb", "change it in Redis"),
        ("CONFIG SET no-appendfsync-on-rewrite yes", "change it in"),
        ("SHUTDOWN NOSAVE", "stop the store under the log"),
        ("CLUSTER RESET HARD", "at its nodes themselves"),
        ("DEBUG SLEEP 0", "send it to the Redis server itself"),
        ("REPLICAOF 127.0.0.1 1", "on the Redis server itself"),
        ("SLAVEOF 127.0.0.1 1", "on the Redis server itself"),
        ("FAILOVER", "on the Redis server itself"),
        ("SWAPDB 0 1", "pmnet's own records"),
        ("EVAL return{redis.call('FLUSHALL')} 0", "without WATCH"),
        ("EVALSHA ff 0", "without WATCH"),
        ("FCALL f 0", "without WATCH"),
        ("SCRIPT FLUSH", "before WATCH"),
        ("SCRIPT LOAD x", "before WATCH"),
        ("SYNC", "replication stream"),
        ("PSYNC ? -1", "replication stream"),
        ("REPLCONF ack 0", "replication stream"),
        ("HELLO 3", "finish WATCH"),
        ("AUTH x", "finish WATCH"),
        ("MONITOR", "finish WATCH"),
        ("SUBSCRIBE c", "finish WATCH"),
        ("COPY k pmnet:{0}", "are reserved"),
        ("RENAME pmnet:{0} k", "are reserved"),
    ];
    for (line, why) in refused {
        assert_eq!(client.ask("WATCH k"), "+OK\r\n");
        let error = client.ask(line);
        assert!(
            error.starts_with("-ERR pmnet: ") && error.contains(why),
            "{line}: {error}"
        );
        // The connection continues. EXEC of the MULTI executes nothing.
        assert_eq!(client.ask("MULTI"), "+OK\r\n", "{line}");
        assert_eq!(client.ask("SET k changed"), "+QUEUED\r\n", "{line}");
        assert!(client.ask(line).starts_with("-ERR pmnet: "), "{line}");
        assert!(client.ask("EXEC").starts_with("-EXECABORT"), "{line}");
    }
    // Commands that pass are refused outside WATCH, too.
    for line in ["BLMOVE k pmnet:{0} LEFT LEFT 1", "WATCH pmnet:{0}"] {
        assert!(client.ask(line).contains("are reserved"), "{line}");
    }
    let mut direct = redis.client();
    for (setting, value) in [
        ("appendonly", "yes"),
        ("maxmemory-policy", "noeviction"),
        ("maxmemory", "0"),
        ("no-appendfsync-on-rewrite", "no"),
    ] {
        let answer = direct.ask(&format!("CONFIG GET {setting}"));
        assert!(answer.ends_with(&format!("\r\n{value}\r\n")), "{answer}");
    }
    assert_eq!(direct.ask("GET k"), "$1\r\nv\r\n");
    assert_eq!(direct.ask("DBSIZE"), ":1\r\n");
    assert!(direct.ask("ROLE").contains("master"));
    // Administrative commands that break no guarantee pass while keys are watched, as they do without WATCH.
    for (line, reply) in [
        ("WATCH k", "+OK\r\n"),
        ("CONFIG SET hz 11", "+OK\r\n"),
        ("CONFIG RESETSTAT", "+OK\r\n"),
        ("EVAL_RO return{1} 0", "*1\r\n:1\r\n"),
        ("FUNCTION FLUSH", "+OK\r\n"),
        (
            "SCRIPT KILL",
            "-NOTBUSY No scripts in execution right now.\r\n",
        ),
        ("UNWATCH", "+OK\r\n"),
    ] {
        assert_eq!(client.ask(line), reply, "{line}");
    }
}

#[test]
fn a_blocked_client_waits_for_another_and_then_goes_on() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    let (mut blocked, mut other) = (front.client(), front.client());
    assert_eq!(blocked.ask("SELECT 5"), "+OK\r\n");
    blocked.send(
        &[
            command("SET before 1"),
            command("BLPOP l 0"),
            command("SET after 1"),
            command("PING"),
        ]
        .concat(),
    );
    assert_eq!(blocked.text(), "+OK\r\n");
    let mut direct = redis.client();
    eventually("blocked", || {
        direct.ask("INFO clients").contains("blocked_clients:1")
    });
    assert_eq!(other.ask("SELECT 5"), "+OK\r\n");
    assert_eq!(other.ask("EXISTS after"), ":0\r\n");
    assert_eq!(other.ask("RPUSH l x"), ":1\r\n");
    assert_eq!(blocked.text(), "*2\r\n$1\r\nl\r\n$1\r\nx\r\n");
    assert_eq!(blocked.text(), "+OK\r\n");
    assert_eq!(blocked.text(), "+PONG\r\n");
    // The front's wait for the store ends when the client disconnects.
    blocked.send(&command("BLPOP l 0"));
    eventually("blocked", || {
        direct.ask("INFO clients").contains("blocked_clients:1")
    });
    drop(blocked);
    eventually("not blocked", || {
        direct.ask("INFO clients").contains("blocked_clients:0")
    });
}

#[test]
fn subscribers_hear_and_resp3_goes_on_meanwhile() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    let (mut two, mut three, mut other) = (front.client(), front.client(), front.client());
    assert_eq!(
        two.ask("SUBSCRIBE c"),
        "*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n"
    );
    assert!(three.ask("HELLO 3").starts_with("%7\r\n"));
    assert_eq!(
        three.ask("SUBSCRIBE c"),
        ">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n"
    );
    assert_eq!(three.ask("SET k v"), "+OK\r\n");
    assert_eq!(other.ask("PUBLISH c hello"), ":2\r\n");
    assert_eq!(
        two.text(),
        "*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$5\r\nhello\r\n"
    );
    assert_eq!(
        three.text(),
        ">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$5\r\nhello\r\n"
    );
    assert_eq!(three.ask("GET k"), "$1\r\nv\r\n");
    three.send(&command("BLPOP l 0"));
    let mut direct = redis.client();
    eventually("blocked", || {
        direct.ask("INFO clients").contains("blocked_clients:1")
    });
    assert_eq!(other.ask("RPUSH l x"), ":1\r\n");
    assert_eq!(three.text(), "*2\r\n$1\r\nl\r\n$1\r\nx\r\n");
    assert_eq!(two.ask("RESET"), "+RESET\r\n");
    assert_eq!(two.ask("GET k"), "$1\r\nv\r\n");
    assert_eq!(two.ask("MONITOR"), "+OK\r\n");
    assert_eq!(other.ask("SET seen 1"), "+OK\r\n");
    while !two.text().contains("\"seen\"") {}
    // Lines about the store's internal commands may come before the reply.
    two.send(&command("QUIT"));
    while two.text().trim() != "+OK" {}
    assert_eq!(two.next(), None);
}

#[test]
fn without_a_redis_store_nothing_passes_and_the_reason_is_said() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    front.knobs().address = Some(Bytes::from_static(b"-ERR the store is an embedded one\r\n"));
    let mut client = front.client();
    assert_eq!(
        client.ask("WATCH k"),
        "-ERR pmnet: WATCH needs a Redis store: the store is an embedded one\r\n"
    );
    assert_eq!(client.ask("SET k 1"), "+OK\r\n");
    front.knobs().address = Some(Bytes::from_static(pmnet_wire::command::NO_ADDRESS));
    assert_eq!(
        client.ask("SUBSCRIBE c"),
        "-ERR pmnet: SUBSCRIBE needs a Redis store: this store has no address of its own\r\n"
    );
    front.knobs().address = Some(Bytes::from_static(
        b"$57\r\nredis://127.0.0.1:1/?run_id=gone&records=pmnet:{0}&owner=\r\n",
    ));
    let error = client.ask("BLPOP k 0");
    assert!(
        error.starts_with("-ERR pmnet: the store cannot be reached directly"),
        "{error}"
    );
    front.knobs().address = None;
    assert_eq!(
        client.ask("WATCH k"),
        "+OK\r\n",
        "the address is asked for again"
    );
}

#[test]
fn losing_the_store_connection_loses_the_watch_and_so_the_client() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    let mut client = front.client();
    assert_eq!(client.ask("WATCH k"), "+OK\r\n");
    assert!(
        redis
            .client()
            .ask("CLIENT KILL TYPE normal SKIPME yes")
            .starts_with(':')
    );
    assert_eq!(client.next(), None);
}

#[test]
fn wait_counts_what_was_acknowledged() {
    let Some(redis) = Redis::start() else { return };
    let port = redis.address.port().to_string();
    let Some(replica) = Redis::start_with(&[
        "--replicaof",
        "127.0.0.1",
        &port,
        "--enable-debug-command",
        "yes",
    ]) else {
        return;
    };
    let front = Running::start(&redis);
    let mut client = front.client();
    eventually("replica", || {
        replica
            .client()
            .ask("INFO replication")
            .contains("master_link_status:up")
    });
    assert_eq!(client.ask("SET k v"), "+OK\r\n");
    assert_eq!(client.ask("WAIT 1 5000"), ":1\r\n");
    assert_eq!(replica.client().ask("GET k"), "$1\r\nv\r\n");
    // A replica that receives no data does not count in the reply to WAIT.
    let mut sleeper = replica.client();
    sleeper.send(&command("DEBUG SLEEP 3"));
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert_eq!(client.ask("SET k w"), "+OK\r\n");
    assert_eq!(client.ask("WAIT 1 200"), ":0\r\n");
}

/// Before a WAIT, the front sends a write to a newer Redis, which may refuse it. If Redis refuses the write, WAIT has
/// the error of the write, because Redis's answer to WAIT would say nothing about replicas. The client's connection and
/// its watch stay.
#[test]
fn a_wait_whose_write_is_refused_has_that_error() {
    let Some(redis) = Redis::start_named("redis-8.2") else {
        return;
    };
    let front = Running::start(&redis);
    let mut plain = redis.client();
    let mut client = front.client();
    assert_eq!(client.ask("WATCH k"), "+OK\r\n");
    for (option, refusing, usual, code) in [
        ("min-replicas-to-write", "1", "0", "-NOREPLICAS "),
        ("maxmemory", "1", "0", "-OOM "),
    ] {
        let mut set = |value| plain.ask(&format!("CONFIG SET {option} {value}"));
        assert_eq!(set(refusing), "+OK\r\n");
        for line in ["WAIT 0 10", "WAITAOF 0 0 10"] {
            let refused = client.ask(line);
            assert!(refused.starts_with(code), "{line}: {refused}");
        }
        assert_eq!(client.ask("GET k"), "$-1\r\n");
        assert_eq!(set(usual), "+OK\r\n");
        assert_eq!(client.ask("WAIT 0 10"), ":0\r\n");
    }
    // The client's keys are still watched.
    assert_eq!(plain.ask("SET k 1"), "+OK\r\n");
    let said = ["MULTI", "SET k 2", "EXEC"].map(|line| client.ask(line));
    assert_eq!(said[2], "*-1\r\n", "{said:?}");
}

/// A reply that looks like a message about subscriptions is only data. Regression test: such a reply was taken for a
/// message, and then the connection passed commands that are refused after WATCH.
#[test]
fn data_that_looks_like_a_subscription_is_data() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    let mut client = front.client();
    for line in ["SET name subscribe", "SET x x", "SET n 4"] {
        assert_eq!(client.ask(line), "+OK\r\n");
    }
    assert_eq!(client.ask("WATCH k"), "+OK\r\n");
    assert_eq!(client.ask("MULTI"), "+OK\r\n");
    for line in ["GET name", "GET x", "INCR n"] {
        assert_eq!(client.ask(line), "+QUEUED\r\n");
    }
    assert_eq!(
        client.ask("EXEC"),
        "*3\r\n$9\r\nsubscribe\r\n$1\r\nx\r\n:5\r\n"
    );
    assert_eq!(client.ask("WATCH k"), "+OK\r\n");
    assert!(client.ask("DEL pmnet:{0}").starts_with("-ERR pmnet"));
    assert_eq!(client.ask("MULTI"), "+OK\r\n");
    assert!(client.ask("FLUSHALL").starts_with("-ERR pmnet"));
    assert_eq!(client.ask("DISCARD"), "+OK\r\n");
}

/// Returns a message as RESP3 pushes it.
fn message(text: &str) -> String {
    let len = text.len();
    format!(">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n${len}\r\n{text}\r\n")
}

/// Messages of the store to one client keep their order, even around a command that waits for its barrier.
#[test]
fn messages_keep_their_order_around_a_command_that_waits_for_its_barrier() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    let mut direct = redis.client();
    for (line, reply) in [
        ("BLPOP l 0", "*2\r\n$1\r\nl\r\n$1\r\nx\r\n"),
        ("SUBSCRIBE d", ">3\r\n$9\r\nsubscribe\r\n$1\r\nd\r\n:2\r\n"),
        (
            "UNSUBSCRIBE c",
            ">3\r\n$11\r\nunsubscribe\r\n$1\r\nc\r\n:0\r\n",
        ),
        ("WATCH k", "+OK\r\n"),
    ] {
        let mut client = front.client();
        client.ask("HELLO 3");
        assert!(client.ask("SUBSCRIBE c").contains("subscribe"));
        let asked = front.knobs().bypasses.len();
        front.knobs().hold = true;
        client.send(&command(line));
        eventually("asked", || front.knobs().bypasses.len() > asked);
        assert_eq!(direct.ask("PUBLISH c before"), ":1\r\n");
        assert_eq!(client.text(), message("before"), "{line}");
        front.knobs().hold = false;
        if line.starts_with("BLPOP") {
            eventually("blocked", || {
                direct.ask("INFO clients").contains("blocked_clients:1")
            });
            assert_eq!(direct.ask("PUBLISH c between"), ":1\r\n");
            assert_eq!(client.text(), message("between"));
            assert_eq!(direct.ask("RPUSH l x"), ":1\r\n");
        }
        assert_eq!(client.text(), reply, "{line}");
        if line != "UNSUBSCRIBE c" {
            assert_eq!(direct.ask("PUBLISH c after"), ":1\r\n");
            assert_eq!(client.text(), message("after"), "{line}");
        }
        drop(client);
        eventually("gone", || {
            direct.ask("INFO clients").contains("connected_clients:3\r")
        });
    }
}

/// As with plain Redis, a RESP2 subscriber depends on Redis alone. A RESP2 subscriber is served even while the server
/// is down.
#[test]
fn a_subscriber_is_answered_and_stays_subscribed_while_the_server_is_away() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start_with(&redis, |config| {
        config.call_timeout = std::time::Duration::from_millis(400);
    });
    let mut direct = redis.client();
    let (mut two, mut three) = (front.client(), front.client());
    three.ask("HELLO 3");
    for client in [&mut two, &mut three] {
        assert!(client.ask("SUBSCRIBE c").contains("subscribe"));
    }
    front.knobs().hold = true;
    for round in 1..=3 {
        assert_eq!(direct.ask("PUBLISH c m"), ":2\r\n");
        assert!(two.text().contains("message"));
        assert_eq!(two.ask("PING"), "*2\r\n$4\r\npong\r\n$0\r\n\r\n");
        assert_eq!(two.ask("PING x"), "*2\r\n$4\r\npong\r\n$1\r\nx\r\n");
        assert_eq!(
            two.ask("SUBSCRIBE d"),
            "*3\r\n$9\r\nsubscribe\r\n$1\r\nd\r\n:2\r\n"
        );
        assert_eq!(
            two.ask("UNSUBSCRIBE d"),
            "*3\r\n$11\r\nunsubscribe\r\n$1\r\nd\r\n:1\r\n"
        );
        assert!(two.ask("GET k").starts_with("-ERR Can't execute 'get'"));
        // In RESP3, a subscriber's other commands depend on earlier writes. While the server is down, such a command
        // fails without any other effect.
        assert_eq!(three.text(), message("m"));
        for line in ["SUBSCRIBE d", "BLPOP l 0"] {
            let error = three.ask(line);
            assert!(
                error.contains("was not executed"),
                "{round} {line}: {error}"
            );
        }
    }
    // The client must not believe that its keys are watched if WATCH failed.
    assert!(three.ask("WATCH k").contains("was not executed"));
    assert_eq!(three.next(), None);
    front.knobs().hold = false;
    eventually("one subscriber is left", || {
        direct.ask("PUBSUB NUMSUB c").ends_with(":1\r\n")
    });
    assert_eq!(direct.ask("PUBLISH c m"), ":1\r\n");
    assert!(two.text().contains("message"));
}

#[test]
fn messages_and_answers_of_a_subscriber_come_in_the_order_of_the_store() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    let (mut client, mut direct) = (front.client(), redis.client());
    assert!(client.ask("SUBSCRIBE c").contains("subscribe"));
    const MESSAGES: usize = 3000;
    let publisher = std::thread::spawn(move || {
        for number in 0..MESSAGES {
            assert_eq!(direct.ask(&format!("PUBLISH c {number}")), ":1\r\n");
        }
    });
    let (mut heard, mut asked) = (0, 0);
    while heard < MESSAGES {
        if asked == 0 {
            for line in ["PING x", "SUBSCRIBE d", "UNSUBSCRIBE d"] {
                client.send(&command(line));
            }
            asked = 3;
        }
        let reply = client.text();
        if reply.contains("message") {
            assert!(
                reply.ends_with(&format!("\r\n{heard}\r\n")),
                "{heard}: {reply}"
            );
            heard += 1;
        } else {
            let expected = ["\r\nunsubscribe\r\n", "\r\nsubscribe\r\n", "\r\npong\r\n"];
            asked -= 1;
            assert!(reply.contains(expected[asked]), "{reply}");
        }
    }
    publisher.join().expect("publisher");
}
