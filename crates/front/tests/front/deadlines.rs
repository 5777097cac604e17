//! Every wait has an end, even if the store is suspended or the client disconnects. But no client gets an error while
//! its store is alive.

use std::time::Duration;

use crate::common::{Client, Redis, Running, command, eventually};

/// Deadline of a command in tests that wait until the deadline passes.
const SHORT: Duration = Duration::from_millis(400);
/// Deadline of a command in tests that never wait until the deadline passes.
const LONG: Duration = Duration::from_secs(600);

fn start(redis: &Redis, timeout: Duration) -> Running {
    Running::start_with(redis, |config| config.call_timeout = timeout)
}

fn until(direct: &mut Client, text: &str) {
    eventually(text, || direct.ask("INFO clients").contains(text));
}

/// After an error the client's connection continues. The connection ends only after WATCH, because otherwise the client
/// would believe that its keys are watched.
fn goes_on(client: &mut Client, line: &str) {
    if line.starts_with("WATCH") {
        assert_eq!(client.next(), None, "{line}");
    } else {
        assert_eq!(client.ask("PING"), "+PONG\r\n", "{line}");
    }
}

#[test]
fn a_store_that_is_stopped_is_noticed_whatever_is_passed() {
    let Some(redis) = Redis::start() else { return };
    let front = start(&redis, SHORT);
    let mut direct = redis.client();
    // Commands before the stop, a line that is sent after the stop (none: the client already waits), and the reply to
    // the line.
    let begun: &[(&[&str], &str)] = &[
        (&["WATCH k"], "GET k"),
        (&["WATCH k", "MULTI", "SET k 1"], "EXEC"),
        (&["WATCH k", "MULTI"], "SET k 1"),
        (&["WATCH k"], "UNWATCH"),
        (&["BLPOP l 0.01"], "BLPOP l 0"),
        (&["BLPOP l 0.01"], "XREAD BLOCK 0 STREAMS s 0"),
        (&["BLPOP l 0.01"], "WATCH k"),
        (&["BLPOP l 0.01"], "WAIT 1 0"),
    ];
    let mut clients = Vec::new();
    for (lines, then) in begun {
        let mut client = front.client();
        for line in *lines {
            assert!(!client.ask(line).starts_with('-'), "{line}");
        }
        clients.push((client, *then));
    }
    let mut waiting = Vec::new();
    for line in [
        "BLPOP l 0",
        "XREAD BLOCK 0 STREAMS s 0",
        "WAIT 1 0",
        "BLMOVE l m LEFT LEFT 0",
    ] {
        let mut client = front.client();
        client.send(&command(line));
        waiting.push((client, line));
    }
    let mut listening = Vec::new();
    for line in ["SUBSCRIBE c", "PSUBSCRIBE c", "MONITOR"] {
        let mut client = front.client();
        client.ask(line);
        listening.push((client, line));
    }
    until(&mut direct, "blocked_clients:4");
    drop(direct);
    redis.signal("-STOP");
    for (client, line) in &mut clients {
        client.send(&command(line));
    }
    let unknown = "may or may not have taken effect";
    for (mut client, line) in clients.into_iter().chain(waiting) {
        let error = client.text();
        assert!(
            error.starts_with("-ERR pmnet: ") && error.contains(unknown),
            "{line}: {error}"
        );
        let watched = ["GET k", "EXEC", "SET k 1", "UNWATCH"].contains(&line);
        if watched {
            assert_eq!(client.next(), None, "{line}: the watch is lost");
        } else {
            goes_on(&mut client, line);
        }
    }
    for (mut client, line) in listening {
        while let Some(reply) = client.next() {
            assert_eq!(line, "MONITOR", "{}", String::from_utf8_lossy(&reply));
        }
    }
    // The kernel accepts new connections, but the stopped process answers none.
    for line in ["WATCH k", "BLPOP l 0", "SUBSCRIBE c", "MONITOR", "WAIT 1 0"] {
        let mut client = front.client();
        let error = client.ask(line);
        assert!(error.contains("was not executed"), "{line}: {error}");
        goes_on(&mut client, line);
    }
    redis.signal("-CONT");
    let mut direct = redis.client();
    // There are three connections: two of the endpoint, and the test's own.
    until(&mut direct, "connected_clients:3\r");
    let mut client = front.client();
    assert_eq!(client.ask("RPUSH l x"), ":1\r\n");
    assert_eq!(client.ask("BLPOP l 0"), "*2\r\n$1\r\nl\r\n$1\r\nx\r\n");
    assert_eq!(client.ask("WATCH k"), "+OK\r\n");
    assert_eq!(client.ask("UNWATCH"), "+OK\r\n");
}

#[test]
fn who_waits_for_a_store_that_lives_waits_on() {
    let Some(redis) = Redis::start() else { return };
    let front = start(&redis, SHORT);
    let mut subscriber = front.client();
    assert!(subscriber.ask("SUBSCRIBE c").contains("subscribe"));
    let mut blocked = Vec::new();
    for line in [
        "BLPOP l 0",
        "BRPOP m 0",
        "BLPOP none 3",
        "XREAD BLOCK 0 STREAMS s 0",
    ] {
        let mut client = front.client();
        client.send(&command(line));
        blocked.push(client);
    }
    let mut watcher = front.client();
    assert_eq!(watcher.ask("WATCH k"), "+OK\r\n");
    let mut direct = redis.client();
    until(&mut direct, "blocked_clients:4");
    // The test waits several times as long as a command may take.
    std::thread::sleep(SHORT * 5);
    assert!(direct.ask("INFO clients").contains("blocked_clients:4"));
    let mut other = front.client();
    for (line, reply) in [
        ("RPUSH l x", ":1\r\n"),
        ("RPUSH m y", ":1\r\n"),
        ("XADD s 1-1 f v", "$3\r\n1-1\r\n"),
        ("PUBLISH c z", ":1\r\n"),
    ] {
        assert_eq!(other.ask(line), reply);
    }
    assert_eq!(blocked[0].text(), "*2\r\n$1\r\nl\r\n$1\r\nx\r\n");
    assert_eq!(blocked[1].text(), "*2\r\n$1\r\nm\r\n$1\r\ny\r\n");
    assert_eq!(blocked[2].text(), "*-1\r\n");
    assert!(blocked[3].text().starts_with("*1\r\n"));
    assert!(subscriber.text().contains("message"));
    assert_eq!(watcher.ask("MULTI"), "+OK\r\n");
    assert_eq!(watcher.ask("EXEC"), "*0\r\n");
    // No client waits any longer, so the connection for the questions is closed and the session has ended.
    drop((blocked, subscriber, watcher, other));
    until(&mut direct, "connected_clients:3\r");
    eventually("sessions end", || {
        let sessions = front.knobs().sessions;
        sessions.0 == sessions.1
    });
}

#[test]
fn a_client_that_goes_away_while_the_store_is_stopped_frees_its_place_and_its_connection() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start_with(&redis, |config| {
        config.call_timeout = LONG;
        config.connections_max = 8;
    });
    let begun: &[(&[&str], &[&str])] = &[
        (&["WATCH k"], &["GET k"]),
        (&["WATCH k", "MULTI", "SET k 1"], &["EXEC"]),
        (&["WATCH k", "MULTI"], &["SET k 1", "SET k 2"]),
        (&[], &["WATCH k", "GET k"]),
        (&[], &["BLPOP l 0"]),
        (&[], &["SUBSCRIBE c"]),
        (&["SUBSCRIBE c"], &["SUBSCRIBE d"]),
        (&["WATCH k"], &["BLPOP l 0"]),
    ];
    let mut clients = Vec::new();
    for (lines, then) in begun {
        let mut client = front.client();
        for line in *lines {
            assert!(!client.ask(line).starts_with('-'), "{line}");
        }
        clients.push((client, *then));
    }
    redis.signal("-STOP");
    for (mut client, lines) in clients {
        for line in lines {
            client.send(&command(line));
        }
        drop(client);
    }
    let mut rest = Vec::new();
    for _ in 0..8 {
        eventually("a place is free", || {
            let mut client = front.client();
            client.send(&command("PING"));
            let served = client.next().as_deref() == Some(b"+PONG\r\n");
            if served {
                rest.push(client);
            }
            served
        });
    }
    eventually("sessions end", || {
        let sessions = front.knobs().sessions;
        sessions.0 == sessions.1
    });
    redis.signal("-CONT");
    let mut direct = redis.client();
    until(&mut direct, "connected_clients:3\r");
    assert_eq!(direct.ask("EXISTS l"), ":0\r\n");
}

#[test]
fn a_client_that_goes_away_before_its_barrier_or_behind_unread_input_frees_its_place() {
    let Some(redis) = Redis::start() else { return };
    let front = start(&redis, LONG);
    let mut direct = redis.client();
    // The input is longer than the part that is read while a command waits, and longer than the kernel's buffers.
    let mut client = front.client();
    client.send(&command("BLPOP l 0"));
    until(&mut direct, "blocked_clients:1");
    client.send(&command("SET behind 1").repeat(100_000));
    drop(client);
    until(&mut direct, "blocked_clients:0");
    // The server sends no reply.
    front.knobs().hold = true;
    for line in ["WATCH k", "BLPOP l 0", "SUBSCRIBE c", "MONITOR"] {
        let asked = front.knobs().bypasses.len();
        let mut client = front.client();
        client.send(&command(line));
        eventually("asked", || front.knobs().bypasses.len() > asked);
        drop(client);
    }
    eventually("sessions end", || {
        let sessions = front.knobs().sessions;
        sessions.0 == sessions.1
    });
    front.knobs().hold = false;
    // There are three connections: two of the endpoint, and the test's own.
    until(&mut direct, "connected_clients:3\r");
}

#[test]
fn a_barrier_without_an_answer_ends_the_command_at_its_deadline() {
    let Some(redis) = Redis::start() else { return };
    let front = start(&redis, SHORT);
    front.knobs().hold = true;
    for line in ["WATCH k", "BLPOP l 0", "SUBSCRIBE c", "MONITOR", "WAIT 0 0"] {
        let mut client = front.client();
        let error = client.ask(line);
        assert!(error.contains("was not executed"), "{line}: {error}");
        goes_on(&mut client, line);
    }
}

/// Commands that were sent before a client closes its sending side are answered, unless they have to wait.
#[test]
fn a_transaction_sent_before_the_end_is_answered() {
    let Some(redis) = Redis::start() else { return };
    let front = start(&redis, LONG);
    let mut client = front.client();
    let lines = ["WATCH k", "GET k", "MULTI", "SET k 1", "EXEC"];
    let all: Vec<u8> = lines.iter().flat_map(|line| command(line)).collect();
    client.send(&all);
    let end = client.stream.shutdown(std::net::Shutdown::Write);
    end.expect("shutdown");
    for reply in [
        "+OK\r\n",
        "$-1\r\n",
        "+OK\r\n",
        "+QUEUED\r\n",
        "*1\r\n+OK\r\n",
    ] {
        assert_eq!(client.text(), reply);
    }
    assert_eq!(client.next(), None);
}

#[test]
fn a_client_that_stays_after_a_protocol_error_frees_its_place_in_the_end() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start_with(&redis, |config| config.connections_max = 1);
    let mut stays = front.client();
    assert!(stays.ask("PING").contains("PONG"));
    stays.send(b"*x\r\n");
    assert!(stays.text().starts_with("-ERR Protocol error"));
    assert_eq!(stays.next(), None);
    eventually("a place is free", || {
        let mut client = front.client();
        client.send(&command("PING"));
        client.next().as_deref() == Some(b"+PONG\r\n")
    });
    drop(stays);
}

/// On a connection of its own, the front asks the store for a sign of life. If the store has no free place for this
/// connection, it is alive nevertheless: waiting clients must not get the error that the store does not answer.
#[test]
fn who_waits_for_a_store_that_takes_no_more_connections_waits_on() {
    let Some(redis) = Redis::start() else { return };
    let front = start(&redis, SHORT);
    let mut client = front.client();
    assert_eq!(client.ask("ECHO x"), "$1\r\nx\r\n");
    let mut direct = redis.client();
    // There are four connections: two of the endpoint, the test's own, and the waiting client's.
    assert_eq!(direct.ask("CONFIG SET maxclients 4"), "+OK\r\n");
    client.send(&command("BLPOP l 0"));
    until(&mut direct, "blocked_clients:1");
    std::thread::sleep(SHORT * 5);
    assert!(direct.ask("INFO clients").contains("blocked_clients:1"));
    assert!(
        !direct.ask("INFO stats").contains("rejected_connections:0"),
        "the heart was let in"
    );
    assert_eq!(direct.ask("RPUSH l x"), ":1\r\n");
    assert_eq!(client.text(), "*2\r\n$1\r\nl\r\n$1\r\nx\r\n");
}

/// The client means the later commands of its pipeline for the other database, or for a watched key. If these commands
/// were acknowledged, they would change the wrong database, or run although a watched key has changed.
#[test]
fn nothing_follows_a_select_or_a_watch_without_an_answer() {
    let Some(redis) = Redis::start() else { return };
    let front = start(&redis, SHORT);
    let mut direct = redis.client();
    for (first, again) in [("SELECT 7", "SELECT 8"), ("WATCH k", "WATCH k")] {
        for (first, pause) in [(first, Duration::ZERO), (again, SHORT / 2)] {
            front.knobs().hold_bypasses = true;
            let mut client = front.client();
            client.send(&command(first));
            // These commands arrived after the command that times out, so the timeout of that command does not end
            // them.
            std::thread::sleep(pause);
            client.send(&[command("SET k 1"), command("MULTI")].concat());
            client.send(&[command("SET k 2"), command("EXEC")].concat());
            let error = client.text();
            assert!(
                error.starts_with("-ERR pmnet: deadline passed"),
                "{first}: {error}"
            );
            assert_eq!(client.next(), None, "{first}");
            front.knobs().hold_bypasses = false;
            let mut other = front.client();
            assert_eq!(other.ask("GET k"), "$-1\r\n", "{first}");
        }
        assert_eq!(direct.ask("DBSIZE"), ":0\r\n");
    }
    // An error of Redis is an answer: as with plain Redis, the client stays in its database.
    let mut client = front.client();
    assert!(client.ask("SELECT 99").starts_with("-ERR DB index"));
    assert_eq!(client.ask("SET k 1"), "+OK\r\n");
    assert_eq!(direct.ask("GET k"), "$1\r\n1\r\n");
}
