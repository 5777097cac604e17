//! If the server waits for replicas or for a sync, the reply to a passed command waits for a second barrier
//! (`docs/spec/reads.md` §5).

use std::time::Duration;

use crate::common::{Client, MARKS_FROM, Redis, Running, command, eventually};
use pmnet_front::upstream::SessionHandle;
use pmnet_wire::command::Form;

fn front_of(store: &Redis) -> Running {
    Running::start_with(store, |config| config.call_timeout = Duration::from_secs(2))
}

/// Returns the number of barriers so far that the server records.
fn recorded(front: &Running) -> usize {
    let knobs = front.knobs();
    let recorded = knobs.bypasses.iter();
    recorded
        .filter(|(read_only, form, _)| !read_only && *form == Form::Barrier)
        .count()
}

/// Waits until the client blocks on the list `l`.
fn blocks(client: &mut Client, store: &Redis) {
    client.send(&command("BLPOP l 0"));
    let mut direct = store.client();
    eventually("blocked", || {
        direct.ask("INFO clients").contains("blocked_clients:1")
    });
}

#[test]
fn what_shows_or_changes_data_is_confirmed_and_nothing_else() {
    let Some(store) = Redis::start() else { return };
    let front = front_of(&store);
    for (hello, nil) in [("HELLO 2", "*-1\r\n"), ("HELLO 3", "_\r\n")] {
        let mut client = front.client();
        client.ask(hello);
        assert_eq!(store.client().ask("RPUSH l a b"), ":2\r\n");
        let story = [
            ("WATCH k", "+OK\r\n", 0),
            ("SET m 1", "+OK\r\n", 1),
            ("GET m", "$1\r\n1\r\n", 1),
            ("LPUSH m 1", "-WRONGTYPE", 0),
            ("MULTI", "+OK\r\n", 0),
            ("SET k 1", "+QUEUED\r\n", 0),
            ("EXEC", "*1\r\n+OK\r\n", 1),
            ("BLPOP none 0.01", nil, 0),
            ("BLPOP l 0", "*2\r\n$1\r\nl\r\n$1\r\na\r\n", 1),
            ("WATCH k", "+OK\r\n", 0),
            ("MULTI", "+OK\r\n", 0),
            ("BLPOP l 0", "+QUEUED\r\n", 0),
            ("DISCARD", "+OK\r\n", 0),
            ("WATCH k", "+OK\r\n", 0),
            ("UNWATCH", "+OK\r\n", 0),
            ("WAIT 0 1", ":0\r\n", 0),
            ("BLMOVE l l LEFT LEFT 0", "$1\r\nb\r\n", 1),
        ];
        for (line, reply, more) in story {
            let before = recorded(&front);
            let answer = client.ask(line);
            assert!(answer.starts_with(reply), "{line}: {answer}");
            assert_eq!(recorded(&front) - before, more, "{line}");
        }
        assert_eq!(store.client().ask("DEL l k m"), ":3\r\n");
    }
    // From now on the store's own replies are as durable as those of the server.
    front.knobs().reads_allowed = true;
    let (mut client, before) = (front.client(), recorded(&front));
    for line in ["WATCH k", "GET k", "MULTI", "SET k 1"] {
        client.ask(line);
    }
    assert_eq!(client.ask("EXEC"), "*1\r\n+OK\r\n");
    assert_eq!(recorded(&front), before);
}

#[test]
fn what_a_store_answered_that_is_the_servers_no_more_has_an_unknown_outcome() {
    let (Some(old), Some(new)) = (Redis::start(), Redis::start()) else {
        return;
    };
    let front = front_of(&old);
    let mut client = front.client();
    assert_eq!(client.ask("WATCH k"), "+OK\r\n");
    assert_eq!(client.ask("MULTI"), "+OK\r\n");
    assert_eq!(client.ask("SET k lost"), "+QUEUED\r\n");
    // The store gets the command after the command's barrier. The store answers the command only when its process
    // continues.
    old.signal("-STOP");
    let asked = front.knobs().bypasses.len();
    client.send(&command("EXEC"));
    eventually("the barrier", || front.knobs().bypasses.len() > asked);
    std::thread::sleep(Duration::from_millis(50));
    front.knobs().moved = Some(new.address);
    old.signal("-CONT");
    let answer = client.text();
    assert!(
        answer.starts_with("-ERR pmnet: outcome unknown") && answer.contains("now"),
        "{answer}"
    );
    assert_eq!(old.client().ask("GET k"), "$4\r\nlost\r\n");
    // The client then uses the new store.
    assert_eq!(client.ask("SET k 1"), "+OK\r\n");
    assert_eq!(client.ask("WATCH k"), "+OK\r\n");
    assert_eq!(client.ask("GET k"), "$1\r\n1\r\n");
}

#[test]
fn a_confirmation_has_the_time_of_a_command_however_long_that_waited() {
    let Some(store) = Redis::start() else { return };
    let front = front_of(&store);
    let mut client = front.client();
    blocks(&mut client, &store);
    // The test waits longer than the time in which one command must be answered.
    std::thread::sleep(Duration::from_millis(2500));
    front.knobs().hold_bypasses = true;
    assert_eq!(store.client().ask("RPUSH l a"), ":1\r\n");
    eventually("asked", || recorded(&front) == 1);
    std::thread::sleep(Duration::from_millis(500));
    front.knobs().hold_bypasses = false;
    assert_eq!(client.text(), "*2\r\n$1\r\nl\r\n$1\r\na\r\n");
    // For this command no further barrier is recorded.
    blocks(&mut client, &store);
    front.knobs().hold_bypasses = true;
    assert_eq!(store.client().ask("RPUSH l b"), ":1\r\n");
    let answer = client.text();
    assert!(
        answer.starts_with("-ERR pmnet: outcome unknown") && answer.contains("did not confirm"),
        "{answer}"
    );
    front.knobs().hold_bypasses = false;
    assert_eq!(client.ask("BLPOP l 0.01"), "*-1\r\n");
}

#[test]
fn a_reply_outlives_the_connection_that_brought_it() {
    let Some(mut store) = Redis::start() else {
        return;
    };
    let front = front_of(&store);
    let mut client = front.client();
    blocks(&mut client, &store);
    front.knobs().hold_bypasses = true;
    assert_eq!(store.client().ask("RPUSH l a"), ":1\r\n");
    eventually("asked", || recorded(&front) == 1);
    // Only the server knows whether the store's answer is durable.
    store.kill();
    std::thread::sleep(Duration::from_millis(100));
    front.knobs().hold_bypasses = false;
    assert_eq!(client.text(), "*2\r\n$1\r\nl\r\n$1\r\na\r\n");
}

/// Returns a client whose BLPOP took the first of two elements, and has no confirmation yet.
fn unconfirmed(front: &Running, store: &Redis) -> Client {
    let mut client = front.client();
    blocks(&mut client, store);
    front.knobs().hold_bypasses = true;
    let before = recorded(front);
    assert_eq!(store.client().ask("RPUSH l a b"), ":2\r\n");
    eventually("asked", || recorded(front) > before);
    client
}

#[test]
fn a_mark_that_is_lost_executes_nothing_again() {
    let Some(store) = Redis::start() else { return };
    let front = front_of(&store);
    let mut client = unconfirmed(&front, &store);
    let mark = SessionHandle(MARKS_FROM + front.knobs().marks.0);
    front.knobs().close = Some((mark, false));
    std::thread::sleep(Duration::from_millis(100));
    front.knobs().hold_bypasses = false;
    assert_eq!(client.text(), "*2\r\n$1\r\nl\r\n$1\r\na\r\n");
    assert_eq!(store.client().ask("LRANGE l 0 -1"), "*1\r\n$1\r\nb\r\n");
}

#[test]
fn a_session_that_closes_leaves_the_outcome_unknown() {
    let Some(store) = Redis::start() else { return };
    let front = front_of(&store);
    let mut client = unconfirmed(&front, &store);
    let session = SessionHandle(front.knobs().sessions.0);
    front.knobs().close = Some((session, false));
    let answer = client.text();
    assert!(
        answer.starts_with("-ERR pmnet: outcome unknown") && answer.contains("session"),
        "{answer}"
    );
    assert_eq!(store.client().ask("LRANGE l 0 -1"), "*1\r\n$1\r\nb\r\n");
}
