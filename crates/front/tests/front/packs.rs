//! Writes of one pipeline travel in few requests, together with the commands between them. The replies to these
//! commands are equal to those of Redis.

use crate::common::{Client, Redis, Running, command};
use pmnet_front::upstream::Outcome;
use pmnet_wire::command::Form;

fn send(client: &mut Client, lines: &[&str]) -> Vec<String> {
    let all: Vec<u8> = lines.iter().flat_map(|line| command(line)).collect();
    client.send(&all);
    lines.iter().map(|_| client.text()).collect()
}

/// Runs the same lines on Redis itself and through the front, and each time begins with empty stores.
fn same(redis: &Redis, front: &Running, hello: &str, lines: &[&str]) {
    let [expected, said] = [redis.client(), front.client()].map(|mut client| {
        client.ask("FLUSHALL");
        client.ask(hello);
        send(&mut client, lines)
    });
    for (at, line) in lines.iter().enumerate() {
        assert_eq!(said[at], expected[at], "{hello}: {at} {line}");
    }
}

const MIXED: [&str; 42] = [
    "SET t abc",
    "INCR n",
    "GET n",
    "INCR t",
    "GET t",
    "MULTI",
    "INCR n",
    "GET t",
    "EXEC",
    "INCR",
    "LPUSH l a b",
    "LRANGE l 0 -1",
    "MULTI",
    "LPUSH t x",
    "SET u 1",
    "EXEC",
    "GETSET u 2",
    "HSET h f v",
    "HGETALL h",
    "MULTI",
    "INCR n",
    "INCR",
    "EXEC",
    "EXEC",
    "MULTI",
    "GET n",
    "EXEC",
    "INCR n",
    "MULTI",
    "INCR n",
    "DISCARD",
    "GET n",
    "EVAL return(1) 0",
    "APPEND t d",
    "SELECT 1",
    "INCR n",
    "GET n",
    "SELECT 0",
    "MULTI",
    "MULTI",
    "INCR n",
    "EXEC",
];

/// A part that the store leaves out of a pack is executed later, exactly once and at its place.
#[test]
fn replies_are_those_of_redis_wherever_the_store_ends_a_pack() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    let twice = [&MIXED[..], &MIXED].concat();
    for hello in ["HELLO 2", "HELLO 3"] {
        for most in [0, 1, 2, 5] {
            front.knobs().parts_max = most;
            same(&redis, &front, hello, &twice);
        }
    }
    let knobs = front.knobs();
    assert!(knobs.bypasses.iter().any(|bypass| bypass.1 == Form::Pack));
}

/// A command that travels alone waits until the outcome of all earlier commands is certain.
#[test]
fn nothing_overtakes_what_the_store_has_left_out() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    front.knobs().parts_max = 1;
    let long = format!("SET long {}", "x".repeat(100_000));
    for behind in [
        &["GETRANGE k 0 -1", "LRANGE l 0 -1"][..],
        &["SET k v", "GET k"],
        &["MULTI", "GET k", "STRLEN l", "EXEC"],
        &["MULTI", "EVAL_RO return(redis.call('get','k')) 0", "EXEC"],
        &[
            "EVAL return(redis.call('append','k','e')) 0",
            "EVAL_RO return(redis.call('get','k')) 0",
        ],
        &[&long, "STRLEN long"],
        &["WATCH k", "GET k", "MULTI", "APPEND k w", "EXEC"],
        &["SELECT 1", "GET k", "SELECT 0"],
        &["NOSUCH", "CLIENT GETNAME", "RESET"],
        &["BLPOP l 0", "BLPOP l 0"],
        &["SORT l", "SSCAN s 0", "KEYS k*", "DBSIZE"],
        &["CLIENT REPLY ON", "CLIENT GETNAME", "GET k"],
    ] {
        let mut lines = vec![
            "APPEND k a",
            "APPEND k b",
            "RPUSH l 1 2",
            "RPUSH l 3",
            "SADD s m",
        ];
        lines.extend(behind);
        lines.extend(["APPEND k c", "RPUSH l 4", "GET k"]);
        for hello in ["HELLO 2", "HELLO 3"] {
            for _ in 0..3 {
                same(&redis, &front, hello, &lines);
            }
        }
    }
}

#[test]
fn writes_that_alternate_with_reads_are_few_requests() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    for lines in [
        &["INCR a", "GET b"][..],
        &["GET b", "INCR a"],
        &["SET k v", "INCR a"],
        &["INCR a", "SET k v", "GET k", "HGETALL h"],
        &["MULTI", "INCR a", "INCR c", "EXEC"],
        &["MULTI", "INCR a", "EXEC", "GET a"],
    ] {
        let before = front.knobs().bypasses.len();
        same(&redis, &front, "HELLO 2", &lines.repeat(500));
        let sent = front.knobs().bypasses.len() - before;
        assert!(sent <= 60, "{lines:?}: {sent} requests");
    }
}

#[test]
fn many_reads_behind_a_write_go_their_own_way() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    let mut lines = vec!["INCR a"];
    lines.extend(["GET a"; 400]);
    same(&redis, &front, "HELLO 2", &lines);
    let knobs = front.knobs();
    let packed = knobs.bypasses.iter().filter(|bypass| !bypass.0);
    let packed: usize = packed.map(|bypass| bypass.2).sum();
    // The bypasses are those of FLUSHALL and INCR, and of some of the reads.
    assert!(packed <= 2 + 16, "{packed}");
}

/// A pack with a long reply would keep this reply together with the replies to writes.
#[test]
fn a_read_with_a_long_reply_goes_its_own_way() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    let long = format!("SET long {}", "x".repeat(100_000));
    let lines = [
        &long, "INCR a", "GET long", "INCR a", "GET long", "MULTI", "INCR a", "GET long", "EXEC",
        "GET a",
    ];
    for _ in 0..2 {
        same(&redis, &front, "HELLO 2", &lines);
        assert!(front.knobs().bypasses.contains(&(true, Form::Single, 1)));
    }
    // For some time no other read whose reply may be long joins a pack.
    front.knobs().bypasses.clear();
    same(&redis, &front, "HELLO 2", &["INCR a", "GET b", "STRLEN b"]);
}

#[test]
fn a_pack_without_an_outcome_has_an_error_for_each_part() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    for (outcome, text) in [
        (Outcome::Unknown, "-ERR pmnet: outcome unknown"),
        (Outcome::Failed("no"), "-ERR pmnet: no"),
        (
            Outcome::Reply(b"-ERR pmnet: odd\r\n"[..].into()),
            "-ERR pmnet: odd",
        ),
        (
            Outcome::Reply(b"*9\r\n:1\r\n"[..].into()),
            "-ERR pmnet: the store gave another number",
        ),
        (
            Outcome::Reply(b"*0\r\n"[..].into()),
            "-ERR pmnet: the store gave another number",
        ),
    ] {
        let mut client = front.client();
        front.knobs().outcome = Some(outcome);
        let lines = ["INCR a", "MULTI", "INCR a", "EXEC", "MULTI", "GET a"];
        let said = send(&mut client, &lines);
        let expected = [text, "+OK", "+QUEUED", text, "+OK", "+QUEUED"];
        for (said, expected) in said.iter().zip(expected) {
            assert!(said.starts_with(expected), "{said} {expected}");
        }
        front.knobs().outcome = None;
        assert_eq!(client.ask("EXEC"), "*1\r\n$-1\r\n");
    }
}
