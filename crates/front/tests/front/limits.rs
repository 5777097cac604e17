//! Bounds, back-pressure, invalid input, and clients that connect and disconnect.

use std::io::Write as _;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::{DEADLINE, Executor, Knobs, Redis, Running, command, eventually};
use pmnet_front::{Front, FrontConfig};
use pmnet_resp::write_command;

#[test]
fn thousands_of_commands_in_one_pipeline_come_back_in_order() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    front.knobs().queue_max = 7;
    let mut client = front.client();
    let mut writer = client.stream.try_clone().expect("clone");
    let sender = std::thread::spawn(move || {
        let mut all = Vec::new();
        for i in 0..5000 {
            let value = i.to_string();
            // More commands follow each other than the queue takes, so the rest of them travel together.
            for _ in 0..8 {
                write_command(&mut all, &["SET", "k", &value]);
            }
            write_command(&mut all, &["PING", &value]);
            write_command(&mut all, &["GET", "k"]);
            write_command(&mut all, &["INCR", "n"]);
        }
        writer.write_all(&all).expect("send");
    });
    for i in 0..5000 {
        let value = i.to_string();
        let bulk = format!("${}\r\n{value}\r\n", value.len());
        for _ in 0..8 {
            assert_eq!(client.text(), "+OK\r\n");
        }
        assert_eq!(client.text(), bulk);
        assert_eq!(client.text(), bulk);
        assert_eq!(client.text(), format!(":{}\r\n", i + 1));
    }
    sender.join().expect("sender");
    assert!(
        front.knobs().refused > 0,
        "the queue was never full: nothing was tested"
    );
}

#[test]
fn many_clients_share_a_small_queue() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    front.knobs().queue_max = 3;
    let threads: Vec<_> = (0..32)
        .map(|_| {
            let mut client = front.client();
            std::thread::spawn(move || {
                for _ in 0..50 {
                    assert!(client.ask("INCR n").starts_with(':'));
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("client");
    }
    assert_eq!(redis.client().ask("GET n"), "$4\r\n1600\r\n");
    eventually("sessions end", || front.knobs().sessions == (32, 32));
}

/// Regression test: when the endpoint gets a free place, one client is woken. When the woken client had disconnected,
/// no other client was woken, and all clients waited without end.
#[test]
fn a_turn_given_to_a_client_that_has_gone_is_passed_on() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    front.knobs().queue_max = 1;
    front.knobs().hold = true;
    let mut first = front.client();
    first.send(&command("INCR n"));
    eventually("submitted", || front.knobs().bypasses.len() == 1);
    let mut refused = 0;
    let mut wait_refused = |front: &Running| {
        eventually("refused", || front.knobs().refused > refused);
        refused = front.knobs().refused;
    };
    let mut gone = front.client();
    gone.send(&command("INCR n"));
    wait_refused(&front);
    let mut waits = front.client();
    waits.send(&command("INCR n"));
    wait_refused(&front);
    // The client's end resets the connection, so that the front has no unread bytes of this client.
    socket2::SockRef::from(&gone.stream)
        .set_linger(Some(std::time::Duration::ZERO))
        .expect("linger");
    drop(gone);
    eventually("closed", || front.knobs().sessions.1 == 1);
    front.knobs().hold = false;
    assert_eq!(first.text(), ":1\r\n");
    assert_eq!(waits.text(), ":2\r\n");
}

#[test]
fn values_up_to_sixteen_mebibytes_and_clear_words_beyond() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    let mut client = front.client();
    let value = vec![b'x'; 16 * 1024 * 1024];
    let mut set = Vec::new();
    write_command(&mut set, &[b"SET".as_slice(), b"big", &value]);
    client.send(&set);
    assert_eq!(client.text(), "+OK\r\n");
    client.send(&command("GET big"));
    assert!(
        client
            .next()
            .is_some_and(|reply| reply[11..].starts_with(&value))
    );
    client.send(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$536870912\r\n");
    let error = client.text();
    assert!(
        error.starts_with("-ERR Protocol error: invalid bulk length") && error.contains("16 MiB"),
        "{error}"
    );
    assert_eq!(client.next(), None);
    // A transaction that is too long is refused as a whole.
    let mut client = front.client();
    let mut half = Vec::new();
    write_command(
        &mut half,
        &[b"SET".as_slice(), b"big", &value[..9 * 1024 * 1024]],
    );
    assert_eq!(client.ask("MULTI"), "+OK\r\n");
    client.send(&half);
    assert_eq!(client.text(), "+QUEUED\r\n");
    client.send(&half);
    assert!(
        client
            .text()
            .starts_with("-ERR pmnet: a transaction can have")
    );
    assert!(client.ask("EXEC").starts_with("-EXECABORT"));
}

#[test]
fn garbage_is_answered_and_the_connection_closed() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    for garbage in [
        "*x\r\n",
        "*1\r\nGET\r\n",
        "*1\r\n$x\r\n",
        "SET a \"b\r\n",
        "*1\r\n$1\r\nabc",
        "\0",
        "\0abc\r\nPING\r\n",
        "PI\0NG\r\n",
    ] {
        let mut client = front.client();
        client.send(format!("SET before 1\r\n{garbage}").as_bytes());
        assert_eq!(client.text(), "+OK\r\n");
        let error = client.text();
        assert!(
            error.starts_with("-ERR Protocol error: "),
            "{garbage:?}: {error}"
        );
        assert_eq!(client.next(), None, "{garbage:?}");
    }
    let mut http = front.client();
    http.send(b"POST / HTTP/1.1\r\nHost: x\r\n\r\nSET evil 1\r\n");
    assert_eq!(http.next(), None);
    assert_eq!(redis.client().ask("EXISTS evil"), ":0\r\n");
    assert_eq!(front.client().ask("PING"), "+PONG\r\n");
}

#[test]
fn what_was_sent_before_the_end_is_executed_and_answered() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    let mut client = front.client();
    let mut all = Vec::new();
    for _ in 0..1000 {
        write_command(&mut all, &["INCR", "n"]);
        write_command(&mut all, &["PING"]);
    }
    all.extend_from_slice(b"*2\r\n$3\r\nGET");
    client.send(&all);
    client
        .stream
        .shutdown(std::net::Shutdown::Write)
        .expect("shutdown");
    for i in 1..=1000 {
        assert_eq!(client.text(), format!(":{i}\r\n"));
        assert_eq!(client.text(), "+PONG\r\n");
    }
    assert_eq!(client.next(), None);
}

#[test]
fn too_many_clients_and_a_port_in_use_are_said() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start_with(&redis, |config| config.connections_max = 2);
    let (mut one, mut two) = (front.client(), front.client());
    assert_eq!(one.ask("PING"), "+PONG\r\n");
    assert_eq!(two.ask("PING"), "+PONG\r\n");
    let mut three = front.client();
    assert_eq!(three.text(), "-ERR max number of clients reached\r\n");
    assert_eq!(three.next(), None);
    drop(two);
    eventually("room again", || {
        let mut four = front.client();
        four.stream.write_all(&command("PING")).is_ok()
            && four.next().is_some_and(|reply| reply == b"+PONG\r\n")
    });
    let config = FrontConfig::new(front.address);
    let executor = Executor::new(redis.address, Arc::new(Mutex::new(Knobs::default())));
    let error = Front::bind(&config, executor)
        .err()
        .map(|error| error.to_string())
        .unwrap_or_default();
    assert!(
        error.contains("cannot listen on 127.0.0.1:") && error.contains("listens there"),
        "{error}"
    );
}

#[test]
fn clients_that_vanish_anywhere_leave_nothing_behind() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    let script = [
        "SET a 1",
        "GET a",
        "INCR n",
        "MULTI",
        "SET b 2",
        "EXEC",
        "SELECT 3",
        "WATCH a",
        "MULTI",
        "SET a 2",
        "EXEC",
        "SUBSCRIBE c",
        "UNSUBSCRIBE c",
        "BLPOP none 0",
    ];
    let all: Vec<u8> = script.iter().flat_map(|line| command(line)).collect();
    for cut in (0..=all.len()).step_by(3) {
        let mut client = front.client();
        client.send(&all[..cut]);
        if cut % 2 == 0 {
            client
                .stream
                .shutdown(std::net::Shutdown::Write)
                .expect("shutdown");
        }
    }
    eventually("all sessions ended", || {
        let sessions = front.knobs().sessions;
        sessions.0 > 0 && sessions.0 == sessions.1
    });
    let mut direct = redis.client();
    eventually("all connections closed", || {
        direct.ask("INFO clients").contains("connected_clients:3\r")
    });
    assert_eq!(front.client().ask("PING"), "+PONG\r\n");
}

#[test]
fn an_idle_front_sleeps() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    let mut client = front.client();
    assert_eq!(client.ask("SET a 1"), "+OK\r\n");
    std::thread::sleep(std::time::Duration::from_millis(50));
    let switches = || -> u64 {
        let tasks = std::fs::read_dir("/proc/self/task").expect("tasks");
        tasks
            .flatten()
            .filter(|task| {
                std::fs::read_to_string(task.path().join("comm"))
                    .is_ok_and(|comm| comm.trim() == front.thread_name())
            })
            .filter_map(|task| std::fs::read_to_string(task.path().join("status")).ok())
            .flat_map(|status| {
                status
                    .lines()
                    .filter(|line| line.contains("ctxt_switches"))
                    .filter_map(|line| line.split_whitespace().last()?.parse::<u64>().ok())
                    .collect::<Vec<_>>()
            })
            .sum()
    };
    let before = switches();
    assert!(before > 0, "the front's thread was not found");
    std::thread::sleep(std::time::Duration::from_millis(500));
    let after = switches();
    assert!(
        after - before <= 2,
        "{} context switches in half a second of idleness",
        after - before
    );
}

#[test]
fn reads_whose_replies_are_too_large_together_are_sent_one_by_one() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    front.knobs().reply_max = 100;
    let mut client = front.client();
    let value = "x".repeat(60);
    assert_eq!(client.ask(&format!("SET k {value}")), "+OK\r\n");
    let bulk = format!("$60\r\n{value}\r\n");
    client.send(
        &[
            command("GET k"),
            command("GET k"),
            command("GET none"),
            command("PING"),
            command("GET k"),
        ]
        .concat(),
    );
    for expected in [&bulk, &bulk, "$-1\r\n", "+PONG\r\n", &bulk] {
        assert_eq!(client.text(), expected);
    }
    // The client's write after these reads waits until the reads have been repeated.
    client.send(
        &[
            command("GET k"),
            command("GET k"),
            command("SET k 1"),
            command("GET k"),
        ]
        .concat(),
    );
    for expected in [&bulk, &bulk, "+OK\r\n", "$1\r\n1\r\n"] {
        assert_eq!(client.text(), expected);
    }
    // Writes are never repeated.
    let set = command(&format!("GETSET k {value}"));
    client.send(&[set.clone(), set.clone(), set, command("PING")].concat());
    for _ in 0..3 {
        assert_eq!(client.text(), "-ERR pmnet: the reply is larger\r\n");
    }
    assert_eq!(client.text(), "+PONG\r\n");
}

/// Replies that the front itself gives wait for earlier replies, too. So a client with a slow command must not be able
/// to accumulate an unbounded number of replies.
#[test]
fn replies_that_wait_for_another_are_bounded() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    let mut client = front.client();
    assert_eq!(client.ask("SET k v"), "+OK\r\n");
    front.knobs().hold = true;
    client.send(&command("GET k"));
    let mut writer = client.stream.try_clone().expect("clone");
    writer
        .set_write_timeout(Some(std::time::Duration::from_millis(300)))
        .expect("a timeout");
    let mut echo = Vec::new();
    write_command(&mut echo, &[b"ECHO".as_slice(), &vec![b'x'; 1024 * 1024]]);
    let mut taken = 0;
    while taken < 100 && writer.write_all(&echo).is_ok() {
        taken += 1;
    }
    assert!(
        taken < 50,
        "{taken} MiB were taken behind a command that has no reply yet"
    );
    front.knobs().hold = false;
}

/// Regression test: a client with nothing left to read counted as a client that reads, so it was kept until it had sent
/// 512 MiB.
#[test]
fn who_goes_on_sending_after_a_protocol_error_is_closed() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    let mut client = front.client();
    client.send(b"*\0\r\n");
    assert!(client.text().starts_with("-ERR Protocol error"));
    let begun = Instant::now();
    // A write fails once the front has closed the socket.
    while client.stream.write_all(b"payload").is_ok() {
        assert!(begun.elapsed() < DEADLINE, "it is still there");
        std::thread::sleep(Duration::from_millis(1));
    }
}
