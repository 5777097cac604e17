//! The deadline of a command in a pipeline counts from the moment when the command is read, or when the previous
//! command is answered. So long pipelines succeed. Pipelines without an answer fail as a whole at once.

use std::time::Duration;

use crate::common::{Redis, Running, command};
use pmnet_wire::command::Form;

/// Deadline of a command in tests that wait until the deadline passes.
const SHORT: Duration = Duration::from_millis(400);
/// Time for a command that is shorter than the time of many commands together.
const MEDIUM: Duration = Duration::from_secs(1);

fn start(redis: &Redis, timeout: Duration) -> Running {
    Running::start_with(redis, |config| config.call_timeout = timeout)
}

fn pipeline(lines: &[&str]) -> Vec<u8> {
    lines.iter().flat_map(|line| command(line)).collect()
}

/// Returns the number of updates and the number of bypasses that were sent.
fn sent(front: &Running) -> (usize, usize) {
    let knobs = front.knobs();
    (knobs.updates.len(), knobs.bypasses.len())
}

/// If a command gets no answer, later commands that have waited just as long fail together with it. If the later
/// commands were sent, each of them would have a deadline of its own, and the times would add up.
#[test]
fn what_waits_behind_a_command_without_an_answer_is_not_sent() {
    let Some(redis) = Redis::start() else { return };
    let front = start(&redis, SHORT);
    let mut warm = front.client();
    assert_eq!(warm.ask("GET k"), "$-1\r\n");
    front.knobs().hold_bypasses = true;
    let repeated = |lines: &[&'static str], times: usize| lines.repeat(times);
    let unsent = "deadline passed before the call could be sent";
    // Pipelines, each with the number of its updates and bypasses that are sent.
    for (lines, updates, bypasses) in [
        (repeated(&["GET k"], 400), 0, 1),
        (repeated(&["GET k", "GET k", "SET k 1"], 6), 0, 1),
        (repeated(&["SET k 1", "GET l", "GET l"], 6), 1, 1),
        (repeated(&["GET k", "GET k", "INCR n"], 5), 0, 1),
        (repeated(&["BLPOP l 1"], 5), 0, 1),
        (repeated(&["BLPOP l 1", "SET k 1"], 5), 0, 1),
        (repeated(&["WAIT 0 0"], 5), 0, 1),
        (repeated(&["SUBSCRIBE c"], 5), 0, 1),
        (repeated(&["MULTI", "NEW.ONE", "DISCARD"], 5), 0, 1),
        (vec!["GET k", "GET k", "SELECT 7"], 0, 1),
    ] {
        let before = sent(&front);
        let mut client = front.client();
        client.send(&pipeline(&lines));
        let mut last = String::new();
        for line in &lines {
            let reply = client.text();
            assert!(!reply.contains("outcome unknown"), "{line}: {reply}");
            if !["MULTI", "DISCARD"].contains(line) {
                last = reply;
            }
        }
        assert!(last.contains(unsent), "{:?}: {last}", &lines[..2]);
        let expected = (before.0 + updates, before.1 + bypasses);
        assert_eq!(sent(&front), expected, "{:?}", &lines[..2]);
    }
    // A command that arrives later has its own deadline.
    front.knobs().hold_bypasses = false;
    assert_eq!(warm.ask("GET k"), "$1\r\n1\r\n");
}

#[test]
fn a_pipeline_may_take_longer_than_one_command_may() {
    let Some(redis) = Redis::start() else { return };
    let front = start(&redis, MEDIUM);
    front.knobs().delay = MEDIUM / 10;
    let mut client = front.client();
    let watched = ["WATCH k", "GET k", "MULTI", "INCR n", "EXEC", "INCR n"];
    let lines = [&["GET k", "GET l", "BLPOP l 0.01"][..], &watched].concat();
    let lines = lines.repeat(3);
    client.send(&pipeline(&lines));
    for line in &lines {
        let reply = client.text();
        assert!(!reply.starts_with('-'), "{line}: {reply}");
    }
    assert_eq!(client.ask("GET n"), "$1\r\n6\r\n");
}

#[test]
fn who_waits_behind_a_command_that_blocks_has_time_when_it_ends() {
    let Some(redis) = Redis::start() else { return };
    let front = start(&redis, SHORT);
    let mut client = front.client();
    // The pipeline takes several times as long as a command may take.
    let lines = [
        "BLPOP l 1",
        "GET k",
        "GET k",
        "BLPOP l 1",
        "SET k 1",
        "INCR k",
    ];
    client.send(&pipeline(&lines));
    for reply in [
        "*-1\r\n", "$-1\r\n", "$-1\r\n", "*-1\r\n", "+OK\r\n", ":2\r\n",
    ] {
        assert_eq!(client.text(), reply);
    }
}

#[test]
fn who_takes_no_replies_for_long_gets_them_all_in_the_end() {
    let Some(redis) = Redis::start() else { return };
    // Even on a busy machine, all commands are executed within this time once they are taken.
    let deadline = 3 * MEDIUM;
    let front = start(&redis, deadline);
    let mut client = front.client();
    let large = "x".repeat(100_000);
    assert_eq!(client.ask(&format!("SET k {large}")), "+OK\r\n");
    // Reads with a PING between two of them travel alone.
    let lines = ["GET k", "PING"].repeat(400);
    client.send(&pipeline(&lines));
    std::thread::sleep(deadline * 2);
    for (at, line) in lines.iter().enumerate() {
        let reply = client.text();
        assert!(!reply.starts_with('-'), "{at} {line}: {reply}");
    }
}

/// A session has one bypass under way at a time, so each bypass costs a round trip to the store.
#[test]
fn writes_of_a_kilobyte_travel_together() {
    let Some(redis) = Redis::start() else { return };
    let front = start(&redis, MEDIUM * 10);
    let mut client = front.client();
    let value = "v".repeat(1024);
    client.send(&pipeline(&[&format!("GETSET k {value}")]).repeat(400));
    assert_eq!(client.text(), "$-1\r\n");
    for _ in 1..400 {
        assert!(client.text() == format!("$1024\r\n{value}\r\n"));
    }
    let (_, bypasses) = sent(&front);
    assert!(bypasses <= 40, "{bypasses} bypasses");
    // A command that is longer than a pack travels alone.
    let large = "v".repeat(200_000);
    client.send(&pipeline(&[
        "INCR n",
        &format!("GETSET k {large}"),
        "INCR n",
    ]));
    assert_eq!(client.text(), ":1\r\n");
    assert!(client.text() == format!("$1024\r\n{value}\r\n"));
    assert_eq!(client.text(), ":2\r\n");
}

#[test]
fn a_set_between_writes_travels_with_them() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start_with(&redis, |config| config.assume_ok = vec!["HMSET".into()]);
    let mut client = front.client();
    let value = "v".repeat(1024);
    client.send(&pipeline(&["INCR n", &format!("SET k {value}"), "STRLEN k"]).repeat(200));
    for at in 1..=200 {
        assert_eq!(client.text(), format!(":{at}\r\n"));
        assert_eq!(client.text(), "+OK\r\n");
        assert_eq!(client.text(), ":1024\r\n");
    }
    // A SET is sent alone only if no command precedes it when the front reads it.
    let updates = sent(&front).0;
    assert!(updates <= 20, "{updates} updates");
    front.knobs().bypasses.clear();
    client.send(&pipeline(&["INCR n", "SET k 1"]).repeat(200));
    for at in 201..=400 {
        assert_eq!(client.text(), format!(":{at}\r\n"));
        assert_eq!(client.text(), "+OK\r\n");
    }
    let (updates, bypasses) = sent(&front);
    assert!(updates + bypasses <= 40, "{updates} and {bypasses}");
    // A command of `--assume-ok` gets OK whatever Redis replies. So it never joins a pack, because the commands of a
    // pack get Redis's own replies.
    front.knobs().updates.clear();
    client.send(&pipeline(&["INCR n", "HMSET h f v", "INCR n"]));
    for reply in [":401\r\n", "+OK\r\n", ":402\r\n"] {
        assert_eq!(client.text(), reply);
    }
    assert_eq!(sent(&front).0, 1);
}

/// Regression test: each of these commands cost a round trip of its own, so a pipeline of pairs was as slow as single
/// commands.
#[test]
fn reads_travel_with_the_writes_in_front_of_them() {
    let Some(redis) = Redis::start() else { return };
    let front = start(&redis, MEDIUM);
    let mut direct = redis.client();
    direct.ask("SET text abc");
    for (lines, packs) in [
        // Pipelines and their bypasses. For each bypass: its number of commands, and whether they only read.
        (
            &["INCR n", "GET n", "DECRBY n 5", "GET n", "TTL n"][..],
            &[(5, false)][..],
        ),
        (
            &[
                "ZADD z 1 a",
                "ZCARD z",
                "ZSCORE z a",
                "EXPIRE z 9",
                "TYPE z",
            ],
            &[(5, false)],
        ),
        (&["INCR text", "GET text", "GET text"], &[(3, false)]),
        (&["INCR n", "GET m", "GET n"], &[(3, false)]),
        (&["APPEND n 1", "GET n"], &[(2, false)]),
        // Reads before a write are sent without the write. Commands that run code, or that cannot run in the store's
        // script, are sent without other commands, too.
        (
            &["STRLEN text", "INCR n", "HGETALL h"],
            &[(1, true), (2, false)],
        ),
        (
            &["EVAL return(1) 0", "GET n", "INCR n", "DBSIZE"],
            &[(1, false), (1, true), (1, false), (1, true)],
        ),
    ] {
        direct.ask("DEL n z");
        direct.send(&pipeline(lines));
        let expected: Vec<String> = lines.iter().map(|_| direct.text()).collect();
        direct.ask("DEL n z");
        front.knobs().bypasses.clear();
        let mut client = front.client();
        client.send(&pipeline(lines));
        let said: Vec<String> = lines.iter().map(|_| client.text()).collect();
        assert_eq!(said, expected, "{lines:?}");
        let sent = front.knobs().bypasses.clone();
        let wanted: Vec<(bool, Form, usize)> = packs
            .iter()
            .map(|&(count, reads)| {
                let form = match (count, reads) {
                    (1, _) => Form::Single,
                    (_, true) => Form::Pipeline,
                    (_, false) => Form::Pack,
                };
                (reads, form, count)
            })
            .collect();
        assert_eq!(sent, wanted, "{lines:?}");
    }
}
