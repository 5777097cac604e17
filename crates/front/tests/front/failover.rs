//! The server changes to another Redis, and the old Redis remains alive and writable.

use crate::common::{Client, Redis, Running, command, eventually, run_id};
use pmnet_resp::reply;
use pmnet_wire::command::Form;

/// Starts two stores, and a front that uses the first store.
fn two() -> Option<(Redis, Redis, Running)> {
    let (old, new) = (Redis::start()?, Redis::start()?);
    let front = Running::start_with(&old, |config| {
        config.call_timeout = std::time::Duration::from_secs(2);
    });
    Some((old, new, front))
}

fn fail_over(front: &Running, to: &Redis) {
    front.knobs().moved = Some(to.address);
}

/// Waits until the store has only the connection that asks this question.
fn deserted(store: &Redis) {
    let mut direct = store.client();
    eventually("no connection is left", || {
        direct.ask("INFO clients").contains("connected_clients:1\r")
    });
}

fn gone(client: &mut Client, what: &str) {
    assert_eq!(client.next(), None, "{what}");
}

#[test]
fn exec_on_a_watch_of_the_old_store_fails_and_the_next_one_goes_to_the_new() {
    let Some((old, new, front)) = two() else {
        return;
    };
    for (hello, nil) in [("HELLO 2", "*-1\r\n"), ("HELLO 3", "_\r\n")] {
        front.knobs().moved = Some(old.address);
        let mut client = front.client();
        client.ask(hello);
        assert_eq!(client.ask("WATCH k"), "+OK\r\n");
        assert_eq!(client.ask("MULTI"), "+OK\r\n");
        assert_eq!(client.ask("SET k lost"), "+QUEUED\r\n");
        fail_over(&front, &new);
        assert_eq!(client.ask("EXEC"), nil);
        assert_eq!(old.client().ask("EXISTS k"), ":0\r\n");
        assert_eq!(new.client().ask("EXISTS k"), ":0\r\n");
        // The client tries the transaction again, as after a failed watch.
        for (line, reply) in [
            ("WATCH k", "+OK\r\n"),
            ("MULTI", "+OK\r\n"),
            ("SET k kept", "+QUEUED\r\n"),
        ] {
            assert_eq!(client.ask(line), reply);
        }
        assert_eq!(client.ask("EXEC"), "*1\r\n+OK\r\n");
        assert_eq!(old.client().ask("EXISTS k"), ":0\r\n");
        assert_eq!(new.client().ask("GETDEL k"), "$4\r\nkept\r\n");
    }
    drop(front);
    deserted(&old);
}

#[test]
fn nothing_is_read_or_done_at_the_old_store_while_watching() {
    let Some((old, new, front)) = two() else {
        return;
    };
    assert_eq!(old.client().ask("SET k old"), "+OK\r\n");
    for line in ["GET k", "SET k x", "MULTI", "WATCH l", "BLPOP l 0"] {
        front.knobs().moved = Some(old.address);
        let mut client = front.client();
        assert_eq!(client.ask("WATCH k"), "+OK\r\n");
        fail_over(&front, &new);
        let error = client.ask(line);
        assert!(
            error.starts_with("-ERR pmnet: ") && error.contains("not the store"),
            "{line}: {error}"
        );
        gone(&mut client, line);
    }
    // A command that ends the watch succeeds. The client's later commands go to the new store.
    for lines in [&["UNWATCH"][..], &["MULTI", "DISCARD"]] {
        front.knobs().moved = Some(old.address);
        let mut client = front.client();
        assert_eq!(client.ask("WATCH k"), "+OK\r\n");
        if lines.len() > 1 {
            assert_eq!(client.ask(lines[0]), "+OK\r\n");
        }
        fail_over(&front, &new);
        assert_eq!(client.ask(lines[lines.len() - 1]), "+OK\r\n");
        assert_eq!(client.ask("WATCH k"), "+OK\r\n");
        assert_eq!(client.ask("GET k"), "$-1\r\n");
    }
    assert_eq!(old.client().ask("GET k"), "$3\r\nold\r\n");
}

#[test]
fn blocking_commands_of_old_and_new_clients_go_to_the_new_store() {
    let Some((old, new, front)) = two() else {
        return;
    };
    let (mut used, mut blocked) = (front.client(), front.client());
    assert_eq!(old.client().ask("RPUSH l a"), ":1\r\n");
    assert_eq!(used.ask("BLPOP l 0"), "*2\r\n$1\r\nl\r\n$1\r\na\r\n");
    blocked.send(&command("BLPOP l 0"));
    let mut direct = old.client();
    eventually("blocked", || {
        direct.ask("INFO clients").contains("blocked_clients:1")
    });
    fail_over(&front, &new);
    // A client that still waited at the old store would wait without end, because all pushes go to the new store.
    let error = blocked.text();
    assert!(
        error.contains("another Redis now") && error.contains("may or may not"),
        "{error}"
    );
    // Until the old store notices that the client's connection has ended, the client may still get a pushed element
    // from this store. So the error says "may or may not".
    eventually("given up", || {
        direct.ask("INFO clients").contains("blocked_clients:0")
    });
    drop(direct);
    let mut fresh = front.client();
    for client in [&mut used, &mut blocked, &mut fresh] {
        assert_eq!(new.client().ask("RPUSH l b"), ":1\r\n");
        assert_eq!(old.client().ask("RPUSH l stale"), ":1\r\n");
        assert_eq!(client.ask("BLPOP l 0"), "*2\r\n$1\r\nl\r\n$1\r\nb\r\n");
        assert_eq!(old.client().ask("GETDEL none"), "$-1\r\n");
        assert_eq!(old.client().ask("DEL l"), ":1\r\n");
        assert_eq!(client.ask("XREAD BLOCK 1 STREAMS s 0"), "*-1\r\n");
        assert_eq!(client.ask("WAIT 0 1"), ":0\r\n");
    }
    deserted(&old);
}

#[test]
fn subscribers_and_monitors_of_the_old_store_end() {
    let Some((old, new, front)) = two() else {
        return;
    };
    let mut clients = Vec::new();
    for (hello, line) in [
        ("HELLO 2", "SUBSCRIBE c"),
        ("HELLO 3", "PSUBSCRIBE c*"),
        ("HELLO 2", "SSUBSCRIBE c"),
        ("HELLO 2", "MONITOR"),
    ] {
        let mut client = front.client();
        client.ask(hello);
        client.ask(line);
        clients.push((line, client));
    }
    fail_over(&front, &new);
    for (line, mut client) in clients {
        // Lines of MONITOR may come before the connection ends.
        while let Some(reply) = client.next() {
            assert_eq!(line, "MONITOR", "{}", String::from_utf8_lossy(&reply));
        }
    }
    deserted(&old);
    let mut client = front.client();
    assert!(client.ask("SUBSCRIBE c").contains("subscribe"));
    assert_eq!(new.client().ask("PUBLISH c x"), ":1\r\n");
    assert!(client.text().contains("message"));
}

#[test]
fn another_process_at_the_address_of_the_store_is_not_taken_for_it() {
    let Some((old, new, front)) = two() else {
        return;
    };
    let run = run_id(&mut old.client());
    for address in [new.address, old.address] {
        let name = format!("redis://{address}/?run_id={run}&records=pmnet:{{0}}&owner=");
        front.knobs().address = Some(reply::bulk(name.as_bytes()));
        let is_it = address == old.address;
        for line in ["WATCH k", "BLPOP l 1", "SUBSCRIBE c", "MONITOR", "WAIT 0 1"] {
            let answer = front.client().ask(line);
            let refused = answer.contains("not the store") && answer.contains("not executed");
            assert_eq!(refused, !is_it, "{address} {line}: {answer}");
        }
    }
    assert!(!new.client().ask("INFO commandstats").contains("blpop"));
}

/// Redis was restarted while it was idle. The server does not know of the restart yet, and no client can log in to send
/// a command that would show the restart.
#[test]
fn a_front_that_finds_another_process_makes_the_server_look() {
    let Some((old, new, front)) = two() else {
        return;
    };
    let run = run_id(&mut old.client());
    let name = format!(
        "redis://{}/?run_id={run}&records=pmnet:{{0}}&owner=",
        new.address
    );
    front.knobs().address = Some(reply::bulk(name.as_bytes()));
    let mut client = front.client();
    front.knobs().bypasses.clear();
    assert!(client.ask("BLPOP l 1").contains("not the store"));
    // A barrier that the server must record in its store.
    let recorded = (false, Form::Barrier, 0);
    eventually("the server is to record a barrier", || {
        front.knobs().bypasses.contains(&recorded)
    });
}

#[test]
fn an_address_set_by_hand_must_lead_to_the_store_too() {
    let (Some(old), Some(new)) = (Redis::start(), Redis::start()) else {
        return;
    };
    let front = Running::start_with(&new, |config| config.direct = Some(old.address.to_string()));
    let mut client = front.client();
    for line in ["WATCH k", "BLPOP l 1", "SUBSCRIBE c"] {
        let answer = client.ask(line);
        assert!(answer.contains("not the store"), "{line}: {answer}");
    }
    assert_eq!(client.ask("SET k 1"), "+OK\r\n");
    fail_over(&front, &old);
    assert_eq!(client.ask("WATCH k"), "+OK\r\n");
}

#[test]
fn the_owner_of_the_records_is_looked_at_and_a_new_load_of_the_same_store_does_no_harm() {
    let Some((old, _new, front)) = two() else {
        return;
    };
    let own = |owner: &str| {
        let line = format!("HSET pmnet:{{0}} owner {owner}");
        assert!(old.client().ask(&line).starts_with(':'));
    };
    front.knobs().owner = "o-1".into();
    let mut client = front.client();
    assert!(
        client.ask("WATCH k").contains("not the store"),
        "no records"
    );
    own("other-1");
    assert!(client.ask("WATCH k").contains("not the store"), "another's");
    own("o-1");
    assert_eq!(client.ask("WATCH k"), "+OK\r\n");
    // The server has lost its connection to the same Redis and loaded the records again.
    own("o-2");
    front.knobs().owner = "o-2".into();
    assert_eq!(client.ask("SELECT 3"), "+OK\r\n");
    own("o-3");
    front.knobs().owner = "o-3".into();
    assert_eq!(client.ask("GET k"), "$-1\r\n");
    assert_eq!(client.ask("MULTI"), "+OK\r\n");
    assert_eq!(client.ask("SET k 1"), "+QUEUED\r\n");
    assert_eq!(client.ask("EXEC"), "*1\r\n+OK\r\n");
    assert_eq!(client.ask("GET k"), "$1\r\n1\r\n");
    // Inside MULTI the front cannot ask for the store's identity.
    assert_eq!(client.ask("WATCH k"), "+OK\r\n");
    assert_eq!(client.ask("MULTI"), "+OK\r\n");
    own("o-4");
    front.knobs().owner = "o-4".into();
    assert_eq!(client.ask("EXEC"), "*-1\r\n");
    // Blocked and subscribed clients are not affected.
    let (mut blocked, mut subscriber) = (front.client(), front.client());
    blocked.send(&command("BLPOP l 0"));
    subscriber.ask("SUBSCRIBE c");
    let mut direct = old.client();
    eventually("blocked", || {
        direct.ask("INFO clients").contains("blocked_clients:1")
    });
    own("o-5");
    front.knobs().owner = "o-5".into();
    let asked = front.knobs().bypasses.len();
    eventually("asked", || front.knobs().bypasses.len() > asked + 1);
    assert!(subscriber.ask("SUBSCRIBE d").contains("subscribe"));
    assert_eq!(client.ask("SELECT 0"), "+OK\r\n");
    assert_eq!(client.ask("RPUSH l x"), ":1\r\n");
    assert_eq!(blocked.text(), "*2\r\n$1\r\nl\r\n$1\r\nx\r\n");
    assert_eq!(client.ask("PUBLISH c x"), ":1\r\n");
    assert!(subscriber.text().contains("message"));
}

#[test]
fn a_store_that_takes_no_more_connections_says_so_once() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    let mut client = front.client();
    assert_eq!(client.ask("BLPOP l 0.01"), "*-1\r\n");
    let mut direct = redis.client();
    // There are four connections: two of the endpoint, the client's connection, and the test's own.
    assert_eq!(direct.ask("CONFIG SET maxclients 4"), "+OK\r\n");
    let mut other = front.client();
    other.send(&[command("BLPOP l 0.01"), command("ECHO one")].concat());
    let error = other.text();
    assert!(error.contains("cannot be reached directly"), "{error}");
    assert_eq!(other.text(), "$3\r\none\r\n");
    assert_eq!(other.ask("ECHO two"), "$3\r\ntwo\r\n");
}

#[test]
fn what_an_earlier_connection_brings_is_not_taken_for_an_answer() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    let mut noise = redis.client();
    for _ in 0..20 {
        let mut client = front.client();
        assert_eq!(client.ask("MONITOR"), "+OK\r\n");
        client.send(&[command("RESET"), command("BLPOP l 0.05"), command("ECHO x")].concat());
        for _ in 0..20 {
            assert_eq!(noise.ask("ECHO noise"), "$5\r\nnoise\r\n");
        }
        // Lines of MONITOR come before the reply to RESET, and no such line comes after the reply.
        while client.text() != "+RESET\r\n" {}
        assert_eq!(client.text(), "*-1\r\n");
        assert_eq!(client.text(), "$1\r\nx\r\n");
    }
}
