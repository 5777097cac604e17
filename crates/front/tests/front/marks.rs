//! A command that passes no device and changes the store runs only while the devices know of the front's
//! mark.

use std::time::Duration;

use crate::common::{Client, MARKS_FROM, Redis, Running, command, eventually};
use pmnet_front::upstream::SessionHandle;
use pmnet_wire::command::Form;

/// Whether the store was asked to run this command.
fn ran(redis: &Redis, name: &str) -> bool {
    let stats = redis.client().ask("INFO commandstats");
    stats.contains(&format!("cmdstat_{name}:"))
}

/// Returns the number of opened marks, and the number of ended marks.
fn marks(front: &Running) -> (u32, u32) {
    front.knobs().marks
}

/// Makes the devices end the mark that was opened last.
fn close_mark(front: &Running) {
    let mut knobs = front.knobs();
    knobs.close = Some((SessionHandle(MARKS_FROM + knobs.marks.0), false));
}

fn barriers(front: &Running) -> usize {
    let knobs = front.knobs();
    // The server records the second barrier, which follows the store's reply.
    let barrier = |bypass: &&(bool, Form, usize)| bypass.0 && bypass.1 == Form::Barrier;
    knobs.bypasses.iter().filter(barrier).count()
}

#[test]
fn nothing_is_passed_before_the_mark_is_open_and_it_ends_when_nobody_needs_it() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    redis.client().ask("RPUSH l a b c");
    for (round, line) in ["BLPOP l 1", "WATCH k", "BLMOVE l m LEFT LEFT 1"]
        .into_iter()
        .enumerate()
    {
        let opened = u32::try_from(round).expect("few");
        eventually("the one before has ended", || {
            marks(&front) == (opened, opened)
        });
        front.knobs().hold_marks = true;
        let before = barriers(&front);
        let mut client = front.client();
        client.send(&command(line));
        eventually("a mark is asked for", || {
            marks(&front) == (opened + 1, opened)
        });
        std::thread::sleep(Duration::from_millis(50));
        let name = line.split(' ').next().expect("a name").to_ascii_lowercase();
        assert!(!ran(&redis, &name), "{name} went without a mark");
        assert_eq!(
            barriers(&front),
            before,
            "the barrier has to be behind the mark"
        );
        front.knobs().hold_marks = false;
        let reply = client.text();
        assert!(!reply.starts_with('-'), "{line}: {reply}");
        assert_eq!(marks(&front), (opened + 1, opened), "it has just been used");
    }
}

#[test]
fn there_is_one_mark_for_all_and_a_watch_keeps_it() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    let mut clients: Vec<Client> = (0..5).map(|_| front.client()).collect();
    for client in &mut clients {
        assert_eq!(client.ask("WATCH k"), "+OK\r\n");
    }
    // The test waits longer than the front keeps a mark that no command needs.
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(marks(&front), (1, 0));
    for (at, client) in clients.iter_mut().enumerate() {
        assert_eq!(client.ask("MULTI"), "+OK\r\n");
        assert_eq!(client.ask("SET k 1"), "+QUEUED\r\n");
        let reply = client.ask("EXEC");
        assert_eq!(reply, if at == 0 { "*1\r\n+OK\r\n" } else { "*-1\r\n" });
    }
    assert_eq!(marks(&front), (1, 0));
    eventually("it ends", || marks(&front) == (1, 1));
    let mut client = front.client();
    assert_eq!(client.ask("WATCH k"), "+OK\r\n");
    drop(client);
    eventually("it ends with its client", || marks(&front) == (2, 2));
}

#[test]
fn what_changes_nothing_needs_no_mark() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    for line in [
        "XREAD BLOCK 1 STREAMS s $",
        "WAIT 0 1",
        "SUBSCRIBE c",
        "MONITOR",
    ] {
        let reply = front.client().ask(line);
        assert!(!reply.starts_with('-'), "{line}: {reply}");
    }
    assert_eq!(marks(&front), (0, 0));
}

#[test]
fn what_went_under_a_mark_ends_with_it() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    let (mut watching, mut blocked, mut subscribed) =
        (front.client(), front.client(), front.client());
    assert_eq!(watching.ask("WATCH k"), "+OK\r\n");
    assert!(subscribed.ask("SUBSCRIBE c").starts_with("*3"));
    blocked.send(&command("BLPOP l 0"));
    eventually("it is blocked", || {
        ran(&redis, "subscribe")
            && redis
                .client()
                .ask("INFO clients")
                .contains("blocked_clients:1")
    });
    close_mark(&front);
    assert_eq!(watching.next(), None, "what follows would run unwatched");
    let reply = blocked.text();
    assert!(
        reply.contains("may or may not have taken effect"),
        "{reply}"
    );
    eventually("its connection to the store is closed", || {
        redis
            .client()
            .ask("INFO clients")
            .contains("blocked_clients:0")
    });
    assert_eq!(redis.client().ask("PUBLISH c x"), ":1\r\n");
    assert!(subscribed.text().contains("message"));
    // The next command opens another mark.
    redis.client().ask("RPUSH l x");
    assert_eq!(blocked.ask("BLPOP l 1"), "*2\r\n$1\r\nl\r\n$1\r\nx\r\n");
    assert_eq!(marks(&front).0, 2);
}

#[test]
fn who_is_not_passed_yet_when_the_mark_ends_waits_for_the_next() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    redis.client().ask("RPUSH l x");
    front.knobs().hold_bypasses = true;
    let mut client = front.client();
    client.send(&command("BLPOP l 1"));
    eventually("it waits for its barrier", || barriers(&front) == 1);
    front.knobs().hold_marks = true;
    close_mark(&front);
    eventually("another mark is asked for", || marks(&front).0 == 2);
    front.knobs().hold_bypasses = false;
    std::thread::sleep(Duration::from_millis(50));
    assert!(!ran(&redis, "blpop"), "its barrier was before the mark");
    front.knobs().hold_marks = false;
    assert_eq!(client.text(), "*2\r\n$1\r\nl\r\n$1\r\nx\r\n");
    assert_eq!(barriers(&front), 2);
}

#[test]
fn without_a_mark_in_time_nothing_is_executed() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start_with(&redis, |config| {
        config.call_timeout = Duration::from_millis(400)
    });
    front.knobs().hold_marks = true;
    let mut client = front.client();
    for line in ["BLPOP l 1", "BLMOVE l m LEFT LEFT 1"] {
        let reply = client.ask(line);
        assert!(reply.contains("not executed"), "{reply}");
    }
    let reply = client.ask("WATCH k");
    assert!(reply.contains("not executed"), "{reply}");
    assert_eq!(client.next(), None, "what follows would run unwatched");
    assert!(!ran(&redis, "blpop") && !ran(&redis, "watch"));
}

#[test]
fn a_mark_outlives_what_had_no_answer() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    let mut client = front.client();
    client.send(&command("BLPOP l 0"));
    eventually("it is blocked", || {
        redis
            .client()
            .ask("INFO clients")
            .contains("blocked_clients:1")
    });
    drop(client);
    // The test waits longer than the front keeps a mark after a command that was answered.
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(marks(&front), (1, 0));
}
