//! The front between real clients and a real redis-server (the network in between is left out).

use std::io::Write as _;
use std::process::{Command, Stdio};

use crate::common::{Client, Redis, Running, command, eventually, skip::skip};
use pmnet_front::upstream::{Outcome, SessionHandle};
use pmnet_resp::write_command;
use pmnet_wire::command::Form;

/// Sends the script and a final PING in one write. Returns all replies up to the reply to the PING.
fn replies(client: &mut Client, script: &[&str]) -> Vec<String> {
    for line in script {
        client.send(format!("{line}\r\n").as_bytes());
    }
    client.send(&command("ECHO the-end"));
    let mut all = Vec::new();
    loop {
        let reply = client.text();
        if reply.ends_with("the-end\r\n") {
            return all;
        }
        // Only the number of the connection may differ.
        let id = reply.find("$2\r\nid\r\n:").map(|at| at + 9);
        all.push(id.map_or(reply.clone(), |at| {
            let end = at + reply[at..].find('\r').unwrap_or(0);
            format!("{}{}", &reply[..at], &reply[end..])
        }));
    }
}

/// Runs the same script on Redis itself and through the front, and compares replies and data.
fn same(redis: &Redis, front: &Running, script: &[&str]) {
    let mut direct = redis.client();
    direct.ask("FLUSHALL");
    let expected = replies(&mut direct, script);
    direct.ask("FLUSHALL");
    let got = replies(&mut front.client(), script);
    assert_eq!(got, expected, "script: {script:#?}");
}

#[test]
fn replies_are_those_of_redis() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    let scripts: &[&[&str]] = &[
        &[
            "SET a 1",
            "GET a",
            "INCR a",
            "INCR a",
            "GET a",
            "SET a x NX",
            "SET b 2 GET",
            "DEL a b",
            "GET a",
        ],
        &[
            "SET a",
            "GET",
            "SET a 1 EX 0",
            "SET a 1 EX x",
            "SET a 1 FOO",
            "MSET a",
            "MSET a 1 b",
            "SETEX a 0 v",
            "NOPE 1 2",
            "GET a",
        ],
        &[
            "MSET a 1 b 2",
            "MGET a b c",
            "PSETEX p 100000 v",
            "TTL p",
            "SET p v KEEPTTL",
            "TTL p",
            "EXISTS a b p",
        ],
        &[
            "LPUSH l a b c",
            "LRANGE l 0 -1",
            "GET l",
            "INCR l",
            "HSET h f v",
            "HGETALL h",
            "ZADD z 1 m",
            "ZRANGE z 0 -1 WITHSCORES",
        ],
        &[
            "PING",
            "PING hello",
            "PING a b",
            "ECHO x",
            "ECHO",
            "SELECT 1",
            "SET x 1",
            "SELECT 0",
            "GET x",
            "SELECT 1",
            "GET x",
        ],
        &[
            "SELECT 16",
            "SELECT x",
            "SELECT -1",
            "SELECT",
            "GET a",
            "SELECT 15",
            "SET a 1",
            "DBSIZE",
        ],
        &[
            "MULTI",
            "SET a 1",
            "INCR a",
            "GET a",
            "LPUSH a x",
            "EXEC",
            "GET a",
        ],
        &[
            "MULTI", "SET a 1", "DISCARD", "GET a", "EXEC", "DISCARD", "MULTI", "EXEC",
        ],
        &["MULTI", "MULTI", "WATCH a", "SET a 1", "EXEC", "GET a"],
        &["MULTI", "SET a 1", "GET", "SET a 2", "EXEC", "GET a"],
        &[
            "MULTI",
            "NOSUCH a b",
            "SET a 2",
            "EXEC",
            "GET a",
            "MULTI",
            "NOSUCH a b",
            "EXEC",
        ],
        &[
            "MULTI",
            "EXEC x",
            "EXEC",
            "MULTI",
            "SAVE",
            "EXEC",
            "MULTI",
            "PING",
            "ECHO x",
            "EXEC",
            "MULTI",
            "BLPOP none 0",
            "EXEC",
        ],
        &[
            "EVAL return{KEYS[1],ARGV[1],1.5} 1 k v",
            "EVAL return{err=ARGV[1]} 0 x",
            "EVALSHA ff 0",
            "SCRIPT EXISTS ff",
        ],
        &[
            "HELLO 3",
            "SET a 1",
            "GET none",
            "HSET h f v",
            "HGETALL h",
            "ZADD z 1.5 m",
            "ZSCORE z m",
            "SMEMBERS none",
            "MULTI",
            "HGETALL h",
            "EXEC",
        ],
        &[
            "HELLO 9",
            "HELLO x",
            "HELLO 2 FOO",
            "HELLO 2 SETNAME a\u{1}b",
            "CLIENT GETNAME",
            "CLIENT SETNAME n",
            "CLIENT GETNAME",
            "CLIENT SETNAME \"a b\"",
            "RESET",
            "CLIENT GETNAME",
        ],
        &[
            "SET a 1", "WATCH a", "GET a", "MULTI", "SET a 2", "INCR a", "EXEC", "GET a",
            "SET b 1", "GET b",
        ],
        &[
            "WATCH a", "UNWATCH", "SET a 1", "WATCH a", "MULTI", "GET a", "DISCARD", "GET a",
            "UNWATCH",
        ],
        &[
            "WATCH a", "EXEC", "MULTI", "MULTI", "WATCH b", "NOSUCH", "SET a 1", "EXEC", "GET a",
        ],
        &[
            "WATCH a", "SELECT 2", "SET s 1", "MULTI", "SET s 2", "EXEC", "GET s", "SELECT 0",
            "GET s",
        ],
        &[
            "RPUSH l a b",
            "BLPOP l 0",
            "GET l",
            "BLPOP l 1",
            "BLPOP l x",
            "BLPOP",
            "BLMOVE a b LEFT LEFT 0.01",
            "XADD s 1-1 f v",
            "XREAD BLOCK 10 STREAMS s 0",
        ],
        &[
            "SUBSCRIBE a b",
            "PING x",
            "GET k",
            "UNSUBSCRIBE",
            "SET k v",
            "GET k",
            "UNSUBSCRIBE",
            "PUNSUBSCRIBE x y",
            "PSUBSCRIBE p*",
            "PUNSUBSCRIBE p*",
        ],
        &[
            "SSUBSCRIBE s",
            "SUBSCRIBE a",
            "SUNSUBSCRIBE s",
            "UNSUBSCRIBE a",
            "GET k",
        ],
        &[
            "HELLO 3 SETNAME x",
            "SUBSCRIBE a",
            "SET k v",
            "GET k",
            "UNSUBSCRIBE a",
            "GET k",
        ]
        .as_slice()[1..],
        &[
            "WAIT 0 10",
            "OBJECT ENCODING x",
            "TYPE x",
            "RANDOMKEY",
            "PUBLISH a b",
            "PUBSUB CHANNELS",
            "COPY a b",
            "ASKING",
        ],
        &[
            "SORT none",
            "GEOADD g 1 1 m",
            "GEOPOS g m",
            "BITFIELD b SET u8 0 255 GET u8 0",
            "CONFIG GET appendonly",
            "LASTSAVE X",
            "SLOWLOG LEN",
        ],
        &[
            "",
            "   ",
            "SET \"a b\" 'c d'",
            "GET \"a\\x20b\"",
            "get a",
            "gEt a",
        ],
    ];
    for script in scripts {
        same(&redis, &front, script);
    }
}

#[test]
fn commands_of_a_cluster_get_the_error_of_a_redis_that_is_none() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    let (mut direct, mut client) = (redis.client(), front.client());
    let lines = [
        "CLUSTER INFO",
        "CLUSTER SLOTS",
        "CLUSTER",
        "READONLY",
        "READWRITE",
        "ASKING",
    ];
    for line in lines {
        assert_eq!(client.ask(line), direct.ask(line), "{line}");
    }
    for line in ["MULTI", "READONLY", "CLUSTER INFO", "EXEC"] {
        assert_eq!(client.ask(line), direct.ask(line), "{line} in MULTI");
    }
    assert_eq!(client.ask("WATCH k"), "+OK\r\n");
    for line in lines.into_iter().filter(|line| *line != "CLUSTER") {
        assert_eq!(client.ask(line), direct.ask(line), "{line} while WATCHing");
    }
}

#[test]
fn only_plain_sets_are_updates_and_neighbours_are_packed() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    let mut client = front.client();
    let mut all = Vec::new();
    for i in 0..10 {
        write_command(&mut all, &["SET", &format!("k{i}"), "v"]);
    }
    for i in 0..10 {
        write_command(&mut all, &["STRLEN", &format!("k{i}")]);
    }
    for _ in 0..10 {
        write_command(&mut all, &["INCR", "n"]);
    }
    client.send(&all);
    for _ in 0..10 {
        assert_eq!(client.text(), "+OK\r\n");
    }
    for _ in 0..10 {
        assert_eq!(client.text(), ":1\r\n");
    }
    for i in 1..=10 {
        assert_eq!(client.text(), format!(":{i}\r\n"));
    }
    let knobs = front.knobs();
    assert_eq!(knobs.updates.len(), 10);
    assert_eq!(
        knobs.bypasses,
        [(true, Form::Pipeline, 10), (false, Form::Pack, 10)]
    );
    assert_eq!(knobs.sessions, (1, 0));
}

#[test]
fn a_transaction_is_one_call_and_a_read_if_it_only_reads() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    let mut client = front.client();
    // Commands that follow each other directly would travel together.
    replies(&mut client, &["MULTI", "GET a", "PING", "EXEC"]);
    replies(&mut client, &["MULTI", "GET a", "SET a 1", "EXEC"]);
    assert_eq!(
        front.knobs().bypasses,
        [(true, Form::Transaction, 2), (false, Form::Transaction, 2)]
    );
    assert!(front.knobs().updates.is_empty());
}

#[test]
fn outcomes_that_are_no_replies_become_errors_one_for_each_command() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    front.knobs().outcome = Some(Outcome::Unknown);
    let mut client = front.client();
    client.send(
        &[
            command("GET a"),
            command("GET b"),
            command("SET a 1"),
            command("PING"),
        ]
        .concat(),
    );
    for _ in 0..3 {
        assert_eq!(
            client.text(),
            "-ERR pmnet: outcome unknown (deadline passed); the command may or may not take effect once\r\n"
        );
    }
    assert_eq!(client.text(), "+PONG\r\n");
    front.knobs().outcome = Some(Outcome::Failed("no\r\nway"));
    assert_eq!(client.ask("INCR a"), "-ERR pmnet: no  way\r\n");
    let mut other = front.client();
    assert_eq!(other.ask("SELECT 3"), "-ERR pmnet: no  way\r\n");
    assert_eq!(other.next(), None);
    assert_eq!(
        client.ask("BLPOP a 0"),
        "-ERR pmnet: no  way; the command was not executed\r\n"
    );
    front.knobs().outcome = None;
    assert_eq!(client.ask("SET a 1"), "+OK\r\n");
    assert_eq!(redis.client().ask("GET a"), "$1\r\n1\r\n", "in database 0");
}

#[test]
fn a_closed_session_is_replaced_and_a_loss_is_told() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    let (mut one, mut other) = (front.client(), front.client());
    assert_eq!(one.ask("SET a 1"), "+OK\r\n");
    front.knobs().hold = true;
    one.send(&[command("INCR a"), command("PING")].concat());
    eventually("submitted", || front.knobs().bypasses.len() == 1);
    front.knobs().close = Some((SessionHandle(1), false));
    assert!(one.text().starts_with("-ERR pmnet: outcome unknown"));
    assert_eq!(one.text(), "+PONG\r\n");
    front.knobs().hold = false;
    assert_eq!(one.ask("INCR a"), ":2\r\n");
    assert_eq!(front.knobs().sessions, (2, 0));
    front.knobs().close = Some((SessionHandle(2), true));
    assert_eq!(other.ask("PING"), "+PONG\r\n", "wakes the front");
    assert_eq!(
        one.ask("GET a"),
        "-ERR pmnet: DATA_LOSS: acknowledged updates 1 to 2 of this session are gone\r\n"
    );
    assert_eq!(one.next(), None);
}

#[test]
fn local_commands_and_refusals() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start_with(&redis, |config| config.assume_ok = vec!["hmset".into()]);
    let mut client = front.client();
    assert!(
        client
            .ask("AUTH x")
            .starts_with("-ERR AUTH <password> called without any password")
    );
    assert!(
        client
            .ask("HELLO 3 AUTH u p")
            .starts_with("-WRONGPASS invalid username-password pair")
    );
    assert_eq!(client.ask("CLIENT SETINFO LIB-NAME x"), "+OK\r\n");
    assert!(client.ask("CLIENT ID").starts_with(':'));
    assert!(client.ask("CLIENT INFO").contains("addr=127.0.0.1:"));
    assert!(
        client
            .ask("DEBUG SLEEP 0")
            .starts_with("-ERR pmnet: DEBUG is not possible")
    );
    assert!(
        client
            .ask("SHUTDOWN NOSAVE")
            .starts_with("-ERR pmnet: SHUTDOWN is not possible")
    );
    assert!(client.ask("HELLO").starts_with("*14\r\n"));
    assert_eq!(client.ask("HMSET h f v"), "+OK\r\n");
    assert_eq!(
        front.knobs().updates,
        ["*4\r\n$5\r\nHMSET\r\n$1\r\nh\r\n$1\r\nf\r\n$1\r\nv\r\n"]
    );
    assert_eq!(client.ask("MULTI"), "+OK\r\n");
    assert!(
        client
            .ask("HELLO 3 AUTH u p")
            .starts_with("-ERR pmnet: HELLO is not possible")
    );
    assert!(client.ask("EXEC").starts_with("-EXECABORT"));
    assert_eq!(client.ask("QUIT"), "+OK\r\n");
    assert_eq!(client.next(), None);
}

#[test]
fn the_tools_of_redis_work() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    let port = front.address.port().to_string();
    let benchmark = Command::new("redis-benchmark")
        .args([
            "-p",
            &port,
            "-t",
            "set,get,incr,lpush,mset",
            "-P",
            "16",
            "-n",
            "20000",
            "-c",
            "20",
            "-q",
        ])
        .output();
    let Ok(benchmark) = benchmark else {
        return skip("redis-benchmark is not installed");
    };
    let text = String::from_utf8_lossy(&benchmark.stdout).into_owned();
    assert!(
        benchmark.status.success() && text.contains("MSET"),
        "{text}"
    );
    assert!(!text.to_lowercase().contains("error"), "{text}");
    let cli = Command::new("redis-cli")
        .args(["-p", &port])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .and_then(|mut child| {
            if let Some(stdin) = &mut child.stdin {
                stdin.write_all(
                    b"SET a 1\nINCR a\nHELLO 3\nHSET h f v\nHGETALL h\nMULTI\nGET a\nEXEC\n",
                )?;
            }
            child.wait_with_output()
        })
        .expect("redis-cli");
    let text = String::from_utf8_lossy(&cli.stdout).into_owned();
    assert!(
        text.contains("OK\n2\n") && text.contains("QUEUED\n2\n"),
        "{text}"
    );
}
