//! MULTI at the front queues and refuses the same commands as MULTI at Redis.

use crate::common::{Client, Redis, Running};
use pmnet_resp::write_command;

/// Returns the replies to these lines. Each line is sent after the reply to the previous line.
fn told(mut client: Client, lines: &[&str]) -> Vec<String> {
    lines.iter().map(|line| client.ask(line)).collect()
}

/// Compares the replies to the same lines from Redis itself and through the front.
fn same(redis: &Redis, front: &Running, lines: &[&str]) {
    let expected = told(redis.client(), lines);
    assert_eq!(told(front.client(), lines), expected, "{lines:#?}");
}

#[test]
fn subcommands_are_looked_at_when_they_are_queued() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    for line in [
        "CONFIG NOSUCH",
        "CONFIG nosuch x y",
        "CONFIG SET",
        "CONFIG SET hz",
        "CONFIG GET",
        "CONFIG RESETSTAT x",
        "OBJECT ENCODING",
        "OBJECT FOO k",
        "XGROUP CREATE k",
        "XINFO NOSUCH k",
        "SCRIPT LOAD",
        "SCRIPT NOSUCH",
        "ACL NOSUCH",
        "ACL SETUSER",
        "MEMORY USAGE",
        "COMMAND NOSUCH",
        "COMMAND COUNT x",
        "FUNCTION NOSUCH",
        "CLIENT NOSUCH",
        "CLIENT SETNAME",
        "CONFIG",
    ] {
        same(&redis, &front, &["MULTI", line, "SET k v", "EXEC", "GET k"]);
        same(&redis, &front, &[line, "GET k"]);
        let watching = ["WATCH a", "MULTI", line, "SET k v", "EXEC", "GET k"];
        same(&redis, &front, &watching);
    }
    same(&redis, &front, &["MULTI", "OBJECT ENCODING k", "EXEC"]);
}

#[test]
fn what_is_about_the_connection_is_queued_too() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    for protocol in ["HELLO 2", "HELLO 3"] {
        for lines in [
            &["UNWATCH"][..],
            &["CLIENT SETNAME me", "CLIENT GETNAME", "CLIENT NOSUCH"],
            &[
                "CLIENT GETNAME",
                "SET k v",
                "CLIENT SETNAME me",
                "GET k",
                "CLIENT GETNAME",
                "UNWATCH",
            ],
            &[
                "CLIENT GETREDIR",
                "CLIENT TRACKINGINFO",
                "CLIENT NO-EVICT x",
                "CLIENT CACHING yes",
            ],
            &["SELECT 1"],
            &["SELECT 1", "SET k one", "SELECT 2", "SET k two", "DBSIZE"],
            &[
                "SET k zero",
                "SELECT 3",
                "GET k",
                "SELECT 0",
                "GET k",
                "CLIENT GETNAME",
            ],
            &[
                "SELECT x",
                "SET k v",
                "SELECT 99",
                "SELECT -1",
                "GET k",
                "SELECT",
            ],
            &["SELECT 99", "SET k v", "GET k"],
            &["SELECT 4", "INCR n", "LPUSH n x", "HGETALL h"],
            &["WAIT 0 10", "SET k v", "WAIT 1 1"],
            &["SET k v", "SELECT 5", "NOSUCH"],
        ] {
            let script = [protocol, "MULTI"].into_iter().chain(lines.iter().copied());
            let script = script.chain([
                "EXEC",
                "SET after 1",
                "CLIENT GETNAME",
                "SELECT 0",
                "EXISTS after",
                "GET k",
            ]);
            let script: Vec<&str> = script.collect();
            let said = [redis.client(), front.client()].map(|mut client| {
                client.ask("FLUSHALL");
                // The replies to HELLO differ, so they are not compared.
                client.ask(script[0]);
                script[1..]
                    .iter()
                    .map(|line| client.ask(line))
                    .collect::<Vec<_>>()
            });
            assert_eq!(said[1], said[0], "{script:#?}");
        }
    }
}

/// If the outcome of the transaction is unknown, the selected database is unknown, too.
#[test]
fn a_transaction_that_selects_and_whose_outcome_is_unknown_ends_the_connection() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    let mut client = front.client();
    for line in ["MULTI", "SELECT 1", "SET k v"] {
        client.ask(line);
    }
    front.knobs().outcome = Some(pmnet_front::upstream::Outcome::Unknown);
    assert!(
        client
            .ask("EXEC")
            .starts_with("-ERR pmnet: outcome unknown")
    );
    assert_eq!(client.next(), None);
}

/// Earlier versions of the front refused HELLO in MULTI. The replies to HELLO of both sides differ only in the number
/// of the connection.
#[test]
fn hello_is_queued_and_changes_the_protocol_at_the_end() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    // In a transaction the front does not ask the store for its version.
    assert!(front.client().ask("HELLO").contains("7.0.15"));
    for lines in [
        &["HSET h f v", "HELLO 3"][..],
        &["GET k", "HELLO 3 SETNAME me", "CLIENT GETNAME"],
        &["HELLO 2", "HSET h f v", "HGETALL h"],
        &["HELLO", "HELLO 3", "HELLO 2", "HGETALL h"],
        &["HELLO 9", "HELLO x", "HELLO 3 FOO", "HGETALL h"],
        &["HELLO 3", "CLIENT SETNAME x", "NOSUCH"],
    ] {
        let said = [redis.client(), front.client()].map(|mut client| {
            let script = ["FLUSHALL", "MULTI"]
                .into_iter()
                .chain(lines.iter().copied());
            let script = script.chain(["EXEC", "HSET h g w", "HGETALL h", "CLIENT GETNAME"]);
            let said: Vec<String> = script.map(|line| client.ask(line)).collect();
            let numbers = |text: &String| {
                let without = |line: &&str| !line.starts_with(':');
                text.lines().filter(without).collect::<Vec<_>>().join("\n")
            };
            said.iter().map(numbers).collect::<Vec<_>>()
        });
        assert_eq!(said[1], said[0], "{lines:#?}");
    }
    // These replies would differ in the other protocol.
    let mut client = front.client();
    for line in ["MULTI", "HELLO 3"] {
        client.ask(line);
    }
    assert!(
        client
            .ask("HGETALL h")
            .starts_with("-ERR pmnet: behind a HELLO")
    );
    assert!(client.ask("EXEC").starts_with("-EXECABORT"));
    assert_eq!(client.ask("HGETALL h"), "*2\r\n$1\r\ng\r\n$1\r\nw\r\n");
}

/// Redis cuts its texts off at the first NUL.
#[test]
fn what_redis_does_not_know_is_shown_as_redis_shows_it() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    let long = "n".repeat(200);
    let words: [&[&[u8]]; 6] = [
        &[b"a\0b", b"c\0d", b"\xff\r\n"],
        &[b"\0", b"", b"x"],
        &[long.as_bytes(), long.as_bytes(), b"next"],
        &[b"NOSUCH", &[b'x'; 120], &[b'y'; 20], b"z"],
        &[b"CLIENT", b"\0\xff\r\n\x80", b"TRACKINGINFO"],
        &[b"XGROUP", b"he\xff\0lp", long.as_bytes()],
    ];
    for words in words {
        let mut frame = Vec::new();
        write_command(&mut frame, words);
        for before in ["PING", "MULTI"] {
            let [expected, said] = [redis.client(), front.client()].map(|mut client| {
                client.ask(before);
                client.send(&frame);
                client.next().expect("reply")
            });
            assert!(expected.starts_with(b"-ERR unknown "));
            assert_eq!(said, expected, "{before}, {words:?}");
        }
    }
}

/// Servers differ in the forms of commands that exist, and in the commands that MULTI refuses. The front follows its
/// store.
#[test]
fn newer_forms_are_those_of_the_store() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    let (mut direct, mut through) = (redis.client(), front.client());
    direct.ask("ZADD z 0.1 a 2 b");
    for hello in ["HELLO 2", "HELLO 3"] {
        direct.ask(hello);
        through.ask(hello);
        for line in [
            "ZRANK z a",
            "ZRANK z a WITHSCORE",
            "ZREVRANK z a WITHSCORE",
            "ZRANK z a OOPS",
            "ZRANK z",
            "MULTI",
            "ZRANK z a WITHSCORE",
            "EXEC",
            "DISCARD",
            "MULTI",
            "MULTI",
            "PING",
            "EXEC",
            "DISCARD",
            "MULTI",
            "WATCH z",
            "PING",
            "EXEC",
            "DISCARD",
            "WATCH z",
            "MULTI",
            "MULTI",
            "PING",
            "EXEC",
            "DISCARD",
            "UNWATCH",
            "MULTI",
            "CLIENT NO-TOUCH ON",
            "CLIENT CAPA redirect",
            "EXEC",
            "DISCARD",
            "MULTI",
            "SHUTDOWN",
            "EXEC",
            "DISCARD",
            "WAITAOF 0 0 10",
            "WAITAOF 0 0",
            "MULTI",
            "WAITAOF 0 0 10",
            "EXEC",
            "DISCARD",
            "COMMAND GETKEYS PING",
            "COMMAND GETKEYS ZRANK z a WITHSCORE",
            "COMMAND GETKEYS",
        ] {
            assert_eq!(through.ask(line), direct.ask(line), "{hello}: {line}");
        }
    }
}
