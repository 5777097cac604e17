//! A GET of a key that the same pipeline has just SET is answered with the value of the SET, without asking any
//! process.

use crate::common::{Client, Redis, Running, command, eventually};
use pmnet_front::upstream::{Outcome, SessionHandle};
use pmnet_wire::command::Form;

fn pipeline(lines: &[&str]) -> Vec<u8> {
    lines.iter().flat_map(|line| command(line)).collect()
}

/// Sends all lines at once. Returns the replies.
fn at_once(client: &mut Client, lines: &[&str]) -> Vec<String> {
    client.send(&pipeline(lines));
    lines.iter().map(|_| client.text()).collect()
}

fn bulk(value: &str) -> String {
    format!("${}\r\n{value}\r\n", value.len())
}

/// Returns the number of bypasses that the front has sent since the last call of this function.
fn bypasses(front: &Running) -> usize {
    std::mem::take(&mut front.knobs().bypasses).len()
}

#[test]
fn a_long_pipeline_of_writes_and_reads_of_them_reads_next_to_nothing_from_the_store() {
    const PAIRS: usize = 10_000;
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    for (hello, keys) in [("HELLO 2", 7), ("HELLO 3", PAIRS)] {
        let mut client = front.client();
        client.ask(hello);
        let mut writer = client.stream.try_clone().expect("another handle");
        let sender = std::thread::spawn(move || {
            let all: Vec<u8> = (0..PAIRS)
                .flat_map(|i| {
                    let key = i % keys;
                    pipeline(&[&format!("SET k{key} value-{i}"), &format!("get k{key}")])
                })
                .collect();
            std::io::Write::write_all(&mut writer, &all).expect("send");
        });
        for i in 0..PAIRS {
            assert_eq!(client.text(), "+OK\r\n");
            assert_eq!(client.text(), bulk(&format!("value-{i}")));
        }
        sender.join().expect("sender");
        // If a turn ends between the write and its read, the read is a bypass.
        let bypasses = bypasses(&front);
        assert!(bypasses <= PAIRS / 50, "{bypasses} bypasses");
    }
}

#[test]
fn every_value_and_way_of_writing_is_given_back_as_it_is() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    let mut client = front.client();
    let large = "$5\r\n".repeat(100_000);
    for value in ["", "$", "$3\r\nabc\r\n", "\r\n", &large] {
        let mut all = Vec::new();
        pmnet_resp::write_command(&mut all, &["set", "$1\r\n", value]);
        pmnet_resp::write_command(&mut all, &["GET", "$1\r\n"]);
        // A command in the inline form, with quotes.
        all.extend_from_slice(b"SET 'k $2' \"a\\tb\"\r\nGET \"k $2\"\r\n");
        client.send(&all);
        assert_eq!(client.text(), "+OK\r\n");
        assert_eq!(client.text(), bulk(value));
        assert_eq!(client.text(), "+OK\r\n");
        assert_eq!(client.text(), bulk("a\tb"));
    }
    assert!(bypasses(&front) <= 1, "a large command may end a turn");
}

#[test]
fn what_stands_between_decides() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    let mut client = front.client();
    let ok = "+OK\r\n".to_owned();
    for (lines, expected, asks) in [
        // The SET must stand directly before the GET. Otherwise other clients may have written between two commands of
        // this client.
        (
            &["SET k 1", "SET j 2", "GET k", "GET j", "SET k 3", "GET k"][..],
            &["+OK", "+OK", "1", "2", "+OK", "3"][..],
            1,
        ),
        // If a GET must be sent to the store, the GET after it travels with it.
        (
            &["SET k 1", "GET k", "GET other", "GET k", "GET k"],
            &["+OK", "1", "nil", "1", "1"],
            1,
        ),
        (
            &["SET k 1", "GET other", "SET j 1", "GET k"],
            &["+OK", "nil", "+OK", "1"],
            2,
        ),
        // After every command that may change the key, the front asks the store.
        (&["SET k 1", "APPEND k 2", "GET k"], &["+OK", ":2", "12"], 1),
        (&["SET k 1", "DEL j", "GET k"], &["+OK", ":1", "1"], 1),
        (
            &["SET k 1", "SETEX k 99 2", "GET k"],
            &["+OK", "+OK", "2"],
            1,
        ),
        (
            &["SET k 1", "SETEX j 99 2", "GET k"],
            &["+OK", "+OK", "1"],
            1,
        ),
        (
            &["SET k 1", "SET k 2 EX 99", "GET k"],
            &["+OK", "+OK", "2"],
            1,
        ),
        (&["SET k 1", "SET k 2 NX", "GET k"], &["+OK", "nil", "1"], 1),
        (
            &["SET k 1", "MSET j 1 k 2", "GET k"],
            &["+OK", "+OK", "2"],
            1,
        ),
        (
            &["SET k 1", "MULTI", "SET k 2", "EXEC", "GET k"],
            &["+OK", "+OK", "+QUEUED", "*1", "2"],
            1,
        ),
        (
            &["SET k 1", "MULTI", "GET k", "EXEC"],
            &["+OK", "+OK", "+QUEUED", "*1"],
            1,
        ),
        // These commands are not plain GETs, or are invalid.
        (
            &["SET k 1", "STRLEN k", "GETRANGE k 0 -1"],
            &["+OK", ":1", "1"],
            1,
        ),
        (
            &["SET k 1", "GET", "GET k j", "GET k"],
            &["+OK", "-ERR", "-ERR", "1"],
            0,
        ),
    ] {
        bypasses(&front);
        let replies = at_once(&mut client, lines);
        for (at, (reply, expected)) in replies.iter().zip(expected).enumerate() {
            let right = match *expected {
                "nil" => reply == "$-1\r\n",
                "+OK" => *reply == ok,
                text if text.starts_with(['+', '-', ':', '*']) => reply.starts_with(text),
                value => *reply == bulk(value),
            };
            assert!(right, "{lines:?} {at}: {replies:?}");
        }
        assert_eq!(bypasses(&front), asks, "{lines:?}");
    }
}

#[test]
fn a_write_in_one_database_is_not_read_in_another() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    let mut client = front.client();
    let lines = [
        "SELECT 1",
        "SELECT 0",
        "SET k zero",
        "SELECT 1",
        "GET k",
        "SET k one",
        "GET k",
        "SELECT 0",
        "GET k",
        "SET k null",
        "RESET",
        "GET k",
    ];
    for _ in 0..2 {
        let replies = at_once(&mut client, &lines);
        assert_eq!(replies[6], bulk("one"), "{replies:?}");
        assert_eq!(replies[8], bulk("zero"), "{replies:?}");
        assert_eq!(replies[11], bulk("null"), "{replies:?}");
        bypasses(&front);
        assert_eq!(
            at_once(&mut client, &["SELECT 1", "DEL k", "SELECT 0"])[1],
            ":1\r\n"
        );
    }
    // A value that another connection has just set is not an own write.
    let mut other = front.client();
    assert_eq!(client.ask("SET k 1"), "+OK\r\n");
    bypasses(&front);
    assert_eq!(other.ask("GET k"), bulk("1"));
    assert_eq!(bypasses(&front), 1);
}

#[test]
fn a_read_that_comes_later_asks_the_store() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    let mut client = front.client();
    front.knobs().hold = true;
    client.send(&command("SET k 1"));
    eventually("the write is sent", || front.knobs().updates.len() == 1);
    client.send(&command("GET k"));
    eventually("the read is sent", || {
        front.knobs().bypasses == [(true, Form::Single, 1)]
    });
    // When the GET begins, another client's write may already follow this client's SET.
    redis.client().ask("SET k 2");
    front.knobs().between = Some("SET k 3");
    front.knobs().hold = false;
    assert_eq!(client.text(), "+OK\r\n");
    assert_eq!(client.text(), bulk("3"));
}

#[test]
fn the_fate_of_the_write_is_that_of_its_reads() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    for (outcome, write, read) in [
        (Outcome::Committed { copies: 0 }, "+OK\r\n", "$1\r\n1\r\n"),
        (
            Outcome::Unknown,
            "-ERR pmnet: outcome unknown (deadline passed); the command",
            "-ERR pmnet: outcome unknown of the SET whose value this is (deadline passed); the SET",
        ),
        (
            Outcome::Failed("too bad"),
            "-ERR pmnet: too bad\r\n",
            "-ERR pmnet: too bad\r\n",
        ),
        // The store is short of memory: the SET was sent as a bypass and was not acknowledged early.
        (Outcome::Reply("+OK\r\n".into()), "+OK\r\n", "$1\r\n1\r\n"),
        (
            Outcome::Reply("-OOM full\r\n".into()),
            "-OOM full\r\n",
            "-OOM full\r\n",
        ),
    ] {
        front.knobs().outcome = Some(outcome);
        let replies = at_once(
            &mut front.client(),
            &["SET k 1", "GET k", "GET k", "SET j 1", "PING"],
        );
        assert!(replies[0].starts_with(write), "{replies:?}");
        for at in [1, 2] {
            assert!(replies[at].starts_with(read), "{replies:?}");
        }
        assert!(replies[3].starts_with(write), "{replies:?}");
        assert_eq!(replies[4], "+PONG\r\n");
    }
    assert_eq!(bypasses(&front), 0);
}

#[test]
fn reads_of_a_write_end_with_its_session() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    let mut client = front.client();
    front.knobs().hold = true;
    client.send(&pipeline(&[
        "SET k 1", "GET k", "GET k", "SET j 1", "GET k",
    ]));
    eventually("the writes are sent", || front.knobs().updates.len() == 2);
    front.knobs().close = Some((SessionHandle(1), false));
    for _ in 0..5 {
        let reply = client.text();
        assert!(reply.starts_with("-ERR pmnet: outcome unknown"), "{reply}");
    }
    front.knobs().hold = false;
    assert_eq!(
        at_once(&mut client, &["SET k 2", "GET k"]),
        ["+OK\r\n", "$1\r\n2\r\n"]
    );
}

#[test]
fn a_write_that_has_to_wait_for_the_endpoint_is_not_taken_for_sent() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    front.knobs().queue_max = 1;
    let mut client = front.client();
    let lines = [
        "SET k 1", "GET k", "SET k 2", "GET k", "SET j 3", "GET k", "GET j", "INCR k", "GET k",
    ];
    for _ in 0..20 {
        let replies = at_once(&mut client, &lines);
        for (at, value) in [(1, "1"), (3, "2"), (5, "2"), (6, "3"), (8, "3")] {
            assert_eq!(replies[at], bulk(value), "{replies:?}");
        }
    }
    assert!(front.knobs().refused > 0, "the queue was never full");
}

#[test]
fn large_values_that_are_read_again_and_again_are_bounded_in_flight() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    let mut client = front.client();
    let large = "x".repeat(1_000_000);
    client.ask(&format!("SET k {large}"));
    let value = bulk(&large);
    let set = format!("SET k {large}");
    let mut lines = vec![&set[..]];
    lines.extend(["GET k"; 100]);
    front.knobs().hold = true;
    client.send(&pipeline(&lines));
    eventually("the write is sent", || front.knobs().updates.len() == 2);
    front.knobs().hold = false;
    assert_eq!(client.text(), "+OK\r\n");
    for _ in 0..100 {
        assert!(client.text() == value);
    }
    let bypasses = bypasses(&front);
    assert!(bypasses > 0, "100 MB were in flight, and 32 may be");
}
