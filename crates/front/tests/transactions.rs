//! What is queued in MULTI, and what is refused then, as from Redis.

mod common;

use common::{Client, Redis, Running};

/// What a client is told for these lines, one after the other.
fn told(mut client: Client, lines: &[&str]) -> Vec<String> {
    lines.iter().map(|line| client.ask(line)).collect()
}

/// The same lines on Redis itself and through the front.
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
