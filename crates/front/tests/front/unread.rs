//! Clients that write before they read, and clients that do not read.

use std::io::Write as _;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::common::{Client, Redis, Running, command, eventually};
use pmnet_resp::write_command;

const MIB: usize = 1024 * 1024;
/// A time longer than the front waits for a client that reads nothing.
const LONG: Duration = Duration::from_millis(1500);

fn value() -> String {
    "v".repeat(1024)
}

fn times(count: usize, words: &[&str]) -> Vec<u8> {
    let mut one = Vec::new();
    write_command(&mut one, words);
    one.repeat(count)
}

fn bulk(value: &str) -> String {
    format!("${}\r\n{value}\r\n", value.len())
}

/// Reads echoes until the connection ends. Returns their number, and the error that comes before the end of the
/// connection, if any.
fn echoes(client: &mut Client) -> (usize, Option<String>) {
    let expected = bulk(&value());
    let mut count = 0;
    while let Some(reply) = client.next() {
        if reply.starts_with(b"-") {
            assert_eq!(client.next(), None, "something came behind the error");
            return (count, Some(String::from_utf8_lossy(&reply).into_owned()));
        }
        assert!(reply == expected.as_bytes(), "echo {count}");
        count += 1;
    }
    (count, None)
}

#[test]
fn a_client_may_write_a_long_pipeline_before_it_reads_anything() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    let value = value();
    let (bulk, first) = (bulk(&value), "$-1\r\n".to_owned());
    let mut client = front.client();
    for (count, words, head) in [
        (40_000, &["ECHO", &value][..], None),
        (10_000, &["GETSET", "k", &value], Some(&first)),
        (60_000, &["GET", "k"], None),
    ] {
        client.send(&times(count, words));
        for at in 0..count {
            let expected = head.filter(|_| at == 0).unwrap_or(&bulk);
            assert!(client.text() == *expected, "{}: reply {at}", words[0]);
        }
    }
    // A reply that waits for an earlier reply does not count as unread.
    let mut pairs = Vec::new();
    for _ in 0..15_000 {
        write_command(&mut pairs, &["SET", "k", &value]);
        write_command(&mut pairs, &["GET", "k"]);
    }
    client.send(&pairs);
    for _ in 0..15_000 {
        assert_eq!(client.text(), "+OK\r\n");
        assert!(client.text() == bulk);
    }
    assert_eq!(front.stop().closed_unread, 0);
}

#[test]
fn who_leaves_more_unread_than_may_be_gets_an_error_and_is_closed() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start_with(&redis, |config| config.unread_max = 4 * MIB);
    let mut client = front.client();
    // These bytes are few enough for the client to send all of them. A client that is stuck in writing would not see
    // the error.
    client.send(&times(40_000, &["ECHO", &value()]));
    let (count, error) = echoes(&mut client);
    let error = error.expect("an error at the end");
    assert!(
        error.starts_with("-ERR pmnet: closing: ") && error.contains("--unread-max"),
        "{error}"
    );
    assert!((4000..40_000).contains(&count), "{count}");
    assert_eq!(front.client().ask("PING"), "+PONG\r\n");
    assert_eq!(front.stop().closed_unread, 1);
}

#[test]
fn what_a_client_that_does_not_read_asks_for_is_not_executed_without_end() {
    let Some(redis) = Redis::start() else { return };
    let (front, closed) = Running::start_watched(&redis, |config| config.unread_max = 16 * MIB);
    let mut client = front.client();
    let large = "x".repeat(MIB);
    assert_eq!(client.ask(&format!("SET big {large}")), "+OK\r\n");
    client.send(
        &[command("GET big"), command("INCR seen")]
            .concat()
            .repeat(400),
    );
    // A client that begins to read before the front gives up on it gets all its replies. The front may be slow to reach
    // its bound. So the test waits for the front's decision, not for a time.
    eventually("given up", || closed.load(Ordering::Relaxed) == 1);
    let mut seen = 0;
    loop {
        let reply = client.next().expect("an error before the end");
        if reply.starts_with(b"-ERR pmnet: closing: ") {
            break;
        }
        if reply.starts_with(b":") {
            seen += 1;
        }
    }
    assert_eq!(client.next(), None);
    let executed: usize = redis
        .client()
        .ask("GET seen")
        .lines()
        .last()
        .and_then(|number| number.parse().ok())
        .expect("a number");
    assert!(seen >= 1 && executed >= seen, "{seen} of {executed}");
    assert!(executed < 200, "{executed} of 400 commands were executed");
}

#[test]
fn who_reads_slowly_is_waited_for() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start_with(&redis, |config| config.unread_max = MIB);
    let mut client = front.client();
    let mut writer = client.stream.try_clone().expect("clone");
    let sender = std::thread::spawn(move || {
        writer
            .write_all(&times(40_000, &["ECHO", &value()]))
            .expect("send");
    });
    let expected = bulk(&value());
    for at in 0..40_000 {
        if at % 10_000 == 0 {
            // The pause is long enough for the sockets' buffers to be used up, but too short for the client to count as
            // one that reads nothing.
            std::thread::sleep(LONG / 5);
        }
        assert!(client.text() == expected, "echo {at}");
    }
    sender.join().expect("sender");
    assert_eq!(front.stop().closed_unread, 0);
}

#[test]
fn who_sends_nothing_more_may_read_as_late_as_it_likes() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start_with(&redis, |config| config.unread_max = MIB);
    let mut client = front.client();
    let large = "x".repeat(15 * MIB);
    assert_eq!(client.ask(&format!("SET big {large}")), "+OK\r\n");
    client.send(&command("GET big"));
    std::thread::sleep(LONG);
    assert!(client.text() == bulk(&large));
    assert_eq!(client.ask("PING"), "+PONG\r\n");
    assert_eq!(front.stop().closed_unread, 0);
}

#[test]
fn of_all_clients_the_one_with_most_unread_goes_first() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start_with(&redis, |config| config.unread_total_max = 24 * MIB);
    let mut small = front.client();
    small.send(&times(12_000, &["ECHO", &value()]));
    let mut large = front.client();
    large.stream.set_nonblocking(true).expect("nonblocking");
    let more = times(1000, &["ECHO", &value()]);
    let mut at = 0;
    eventually("closed", || {
        loop {
            match large.stream.write(&more[at..]) {
                Ok(count) => at = (at + count) % more.len(),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return false,
                Err(_) => return true,
            }
        }
    });
    // Other clients are not affected.
    assert_eq!(front.client().ask("PING"), "+PONG\r\n");
    for at in 0..12_000 {
        assert!(small.text() == bulk(&value()), "echo {at}");
    }
    assert_eq!(small.ask("PING"), "+PONG\r\n");
    assert_eq!(front.stop().closed_unread, 1);
}
