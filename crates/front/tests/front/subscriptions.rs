//! Publish and subscribe: clients that do not wait for confirmations, and clients that get their own messages. Commands
//! of clients that watch keys or are subscribed.

use crate::common::{Client, Redis, Running, command, eventually};

fn subscriber(front: &Running, protocol: u8) -> Client {
    let mut client = front.client();
    client.ask(&format!("HELLO {protocol}"));
    client
}

#[test]
fn what_comes_behind_a_subscription_that_is_not_confirmed_knows_of_it() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    let mut other = front.client();
    for round in 0..20 {
        let channel = format!("c{round}");
        let mut client = subscriber(&front, 2 + round % 2);
        client.send(&command(&format!("SUBSCRIBE {channel}")));
        assert_eq!(other.ask(&format!("PUBLISH {channel} x")), ":1\r\n");
        assert!(client.text().contains("subscribe"));
        assert!(client.text().contains("message"));
        client.send(&command(&format!("PSUBSCRIBE {channel}*")));
        let answer = other.ask("PUBSUB NUMPAT");
        assert_eq!(answer, ":1\r\n", "round {round}");
        assert!(client.text().contains("psubscribe"));
        client.send(&command("PUNSUBSCRIBE"));
        client.send(&command("UNSUBSCRIBE"));
        assert_eq!(other.ask("PUBSUB NUMPAT"), ":0\r\n", "round {round}");
        for _ in 0..2 {
            assert!(client.text().contains("unsubscribe"));
        }
        assert_eq!(other.ask(&format!("PUBLISH {channel} x")), ":0\r\n");
    }
}

#[test]
fn who_publishes_while_others_subscribe_waits_for_none_that_came_later() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    let mut other = front.client();
    assert_eq!(other.ask("PING"), "+PONG\r\n");
    // This client's HELLO is the first, for which the front asks the store for its facts.
    subscriber(&front, 2);
    front.knobs().bypasses.clear();
    front.knobs().hold_bypasses = true;
    let mut first = subscriber(&front, 2);
    first.send(&command("SUBSCRIBE c"));
    eventually("its barrier", || front.knobs().bypasses.len() == 1);
    other.send(&[command("PUBLISH c x"), command("PING")].concat());
    let mut later = subscriber(&front, 2);
    later.send(&command("SUBSCRIBE d"));
    eventually("its barrier", || front.knobs().bypasses.len() == 2);
    // The client for whose subscription the PUBLISH waits disconnects.
    drop(first);
    eventually("published", || front.knobs().bypasses.len() == 3);
    front.knobs().hold_bypasses = false;
    assert_eq!(other.text(), ":0\r\n");
    assert_eq!(other.text(), "+PONG\r\n");
}

/// Redis before 7.2 sends the message first, newer versions send the reply first.
#[test]
fn a_subscriber_that_publishes_hears_itself_when_its_redis_says_so() {
    let named = ["redis-8.2", "valkey-9.1"].map(Redis::start_named);
    for redis in [Redis::start()].into_iter().chain(named).flatten() {
        let front = Running::start(&redis);
        // Each round uses a channel of its own, because Redis may take some time to notice that the subscribers of the
        // last round have left.
        for time in 0..10 {
            subscribe_and_publish(&redis, &front, time);
        }
    }
}

fn subscribe_and_publish(redis: &Redis, front: &Running, time: u8) {
    let lines = [
        "SUBSCRIBE c",
        "PUBLISH c one",
        "SET k 1",
        "PUBLISH c two",
        "INCR k",
        "PUBLISH none x",
        "PUBLISH c three",
        "GET k",
    ];
    let own = |line: &&str| command(&line.replace(" c", &format!(" c{time}")));
    let all: Vec<u8> = lines.iter().flat_map(own).collect();
    let [direct, through] = [redis.client(), front.client()].map(|mut client| {
        client.ask("HELLO 3");
        client.send(&all);
        // Three of the commands cause one more message each.
        (0..lines.len() + 3)
            .map(|_| client.text())
            .collect::<Vec<String>>()
    });
    // In both runs the other client is subscribed too, so the numbers of receivers differ.
    let through: Vec<String> = through
        .iter()
        .map(|reply| reply.replace(":2\r\n", ":1\r\n"))
        .collect();
    let direct: Vec<String> = direct
        .iter()
        .map(|reply| reply.replace(":2\r\n", ":1\r\n"))
        .collect();
    assert_eq!(through, direct);
}

#[test]
fn a_subscriber_may_go_back_to_resp2() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    let mut client = subscriber(&front, 3);
    let mut other = front.client();
    assert!(client.ask("SUBSCRIBE c").starts_with(">3\r\n"));
    assert_eq!(other.ask("PUBLISH c one"), ":1\r\n");
    assert!(client.text().starts_with(">3\r\n$7\r\nmessage"));
    let hello = client.ask("HELLO 2 SETNAME me");
    assert!(
        hello.starts_with("*14\r\n") && hello.contains("proto\r\n:2\r\n"),
        "{hello}"
    );
    assert_eq!(other.ask("PUBLISH c two"), ":1\r\n");
    assert!(client.text().starts_with("*3\r\n$7\r\nmessage"));
    // These errors come from Redis itself.
    for line in ["GET k", "HELLO 3"] {
        assert!(client.ask(line).starts_with("-ERR Can't execute"), "{line}");
    }
    assert!(client.ask("UNSUBSCRIBE").starts_with("*3\r\n$11\r\nunsub"));
    assert_eq!(client.ask("CLIENT GETNAME"), "$2\r\nme\r\n");
    assert!(client.ask("HELLO 3").starts_with("%7\r\n"));
}

#[test]
fn a_flush_of_a_client_that_watches_breaks_its_watch() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    let mut client = front.client();
    for (flush, watched, fails) in [
        ("FLUSHALL", "k", true),
        ("FLUSHDB ASYNC", "k", true),
        ("FLUSHALL", "none", false),
    ] {
        assert_eq!(client.ask("SET k v"), "+OK\r\n");
        let lines = [&format!("WATCH {watched}"), flush, "MULTI", "PING", "EXEC"];
        client.send(&lines.map(command).concat());
        let executed = if fails { "*-1\r\n" } else { "*1\r\n+PONG\r\n" };
        for reply in ["+OK\r\n", "+OK\r\n", "+OK\r\n", "+QUEUED\r\n", executed] {
            assert_eq!(client.text(), reply, "{flush}, {watched}");
        }
        assert_eq!(client.ask("EXISTS k"), ":0\r\n");
    }
    // Inside the passed MULTI, this command would reach Redis without the server's checks.
    assert_eq!(client.ask("WATCH k"), "+OK\r\n");
    assert_eq!(client.ask("MULTI"), "+OK\r\n");
    assert!(
        client
            .ask("FLUSHALL")
            .contains("pmnet's own records: send it before MULTI")
    );
    assert!(client.ask("EXEC").starts_with("-EXECABORT"));
}

/// The reply waits for messages that should come before it, but no message will come.
#[test]
fn a_subscriber_that_loses_the_store_gets_the_reply_that_was_held_back_and_the_end() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    let mut client = subscriber(&front, 3);
    assert!(client.ask("SUBSCRIBE c").starts_with(">3\r\n"));
    front.knobs().between = Some("CLIENT KILL TYPE pubsub");
    assert_eq!(client.ask("PUBLISH c x"), ":0\r\n");
    assert_eq!(client.next(), None);
    front.knobs().between = None;
    assert_eq!(front.client().ask("PUBLISH c x"), ":0\r\n");
}
