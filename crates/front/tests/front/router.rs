//! One address for three shards, each with a real redis-server. The tests check where commands go, and their replies.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use crate::common::sharded::{self, Sharded};
use crate::common::{Client, DEADLINE, command, eventually};
use pmnet_front::shards::slot::slot_of;
use pmnet_front::{Access, Secret};

/// Three shards. Slots of some keys: bar (5061) and hello (866) belong to the first shard, foo (12182) and {x} (16287)
/// to the third shard.
const THREE: [&str; 3] = ["0-5460", "5461-10922", "10923-16383"];
/// Keys of the first, the second and the third shard.
const KEYS: [&str; 3] = ["bar", "c", "foo"];

fn three() -> Option<Sharded> {
    for (shard, key) in KEYS.iter().enumerate() {
        assert_eq!(
            usize::from(slot_of(key.as_bytes())) * 3 / 16384,
            shard,
            "{key}"
        );
    }
    sharded::start(&THREE)
}

fn send_all(client: &mut Client, lines: &[&str]) -> Vec<String> {
    let bytes: Vec<u8> = lines.iter().flat_map(|line| command(line)).collect();
    client.send(&bytes);
    lines.iter().map(|_| client.text()).collect()
}

#[test]
fn keys_are_in_the_redis_of_their_slot_and_replies_in_order() {
    let Some(shards) = three() else { return };
    let mut client = shards.client();
    let mut lines = Vec::new();
    for round in 0..200 {
        for key in KEYS {
            lines.push(format!("RPUSH {key} {round}"));
            lines.push(format!("SET {{{key}}}:{round} v{round}"));
            lines.push(format!("GET {{{key}}}:{round}"));
        }
    }
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let replies = send_all(&mut client, &lines);
    for (at, reply) in replies.iter().enumerate() {
        let round = at / 9;
        let value = format!("v{round}");
        let expected = match at % 3 {
            0 => format!(":{}\r\n", round + 1),
            1 => "+OK\r\n".to_owned(),
            _ => format!("${}\r\n{value}\r\n", value.len()),
        };
        assert_eq!(*reply, expected, "{}", lines[at]);
    }
    for (store, key) in shards.stores.iter().zip(KEYS) {
        let mut direct = store.client();
        assert_eq!(direct.ask(&format!("LLEN {key}")), ":200\r\n");
        assert_eq!(direct.ask("DBSIZE"), ":201\r\n");
    }
}

#[test]
fn a_slow_shard_holds_up_what_is_behind_it_only() {
    let Some(shards) = three() else { return };
    let mut client = shards.client();
    assert_eq!(client.ask("SET foo 1"), "+OK\r\n");
    shards.knobs(1).hold = true;
    client.send(&[command("SET foo 2"), command("INCR c"), command("INCR foo")].concat());
    assert_eq!(client.text(), "+OK\r\n");
    // The command after the held command has taken effect, but its reply waits for that of the held command.
    let mut direct = shards.stores[2].client();
    eventually("foo is 3", || direct.ask("GET foo") == "$1\r\n3\r\n");
    // Other clients do not wait for the held command.
    assert_eq!(shards.client().ask("INCR foo"), ":4\r\n");
    shards.knobs(1).hold = false;
    assert_eq!(client.text(), ":1\r\n");
    assert_eq!(client.text(), ":3\r\n");
}

/// A slot is being moved, and then belongs to another shard. After the move the old shard runs no command for the slot,
/// even if the command began before the move.
#[test]
fn slots_move_while_clients_are_there() {
    let Some(shards) = three() else { return };
    let try_again = |reply: &str| reply.starts_with("-TRYAGAIN pmnet: ");
    let [mut client, mut begun, mut watches, mut listens] = [(); 4].map(|()| shards.client());
    assert_eq!(client.ask("INCR bar"), ":1\r\n");
    for line in ["MULTI", "INCR bar"] {
        begun.ask(line);
    }
    for line in ["WATCH bar", "MULTI"] {
        watches.ask(line);
    }
    listens.ask("SUBSCRIBE bar");
    // Commands that are under way when the slot moves continue.
    let mut slow = shards.client();
    assert_eq!(slow.ask("GET bar"), "$1\r\n1\r\n");
    let asked = shards.knobs(0).bypasses.len();
    shards.knobs(0).hold = true;
    slow.send(&command("INCR bar"));
    eventually("it is under way", || shards.knobs(0).bypasses.len() > asked);
    shards.change_map(&THREE, Some("5061"));
    eventually("the slot is moving", || try_again(&client.ask("GET bar")));
    for line in ["SET bar x", "WATCH bar", "EVAL return 1 bar"] {
        let reply = client.ask(line);
        assert!(try_again(&reply), "{line}: {reply}");
    }
    assert_eq!(shards.client().ask("INCR foo"), ":1\r\n");
    shards.knobs(0).hold = false;
    assert_eq!(slow.text(), ":2\r\n");
    assert_eq!(shards.client().ask("INCR hello"), ":1\r\n");
    assert!(try_again(&begun.ask("EXEC")));
    assert!(try_again(&watches.ask("INCR bar")));
    assert!(watches.ask("EXEC").starts_with("-EXECABORT "));
    let mut queued = shards.client();
    for line in ["WATCH hello", "MULTI", "INCR hello"] {
        queued.ask(line);
    }
    // The slot goes to the second shard, with the first shard's data. The slot of `hello` moves too, although it was
    // never marked as moving.
    assert_eq!(shards.stores[0].client().ask("DEL bar"), ":1\r\n");
    assert_eq!(shards.stores[1].client().ask("SET bar 2"), "+OK\r\n");
    shards.change_map(
        &["0-865,867-5060,5062-5460", "866,5061,5461-10922", THREE[2]],
        None,
    );
    eventually("it is there", || {
        shards.client().ask("GET bar") == "$1\r\n2\r\n"
    });
    assert!(try_again(&queued.ask("EXEC")));
    assert_eq!(queued.ask("INCR bar"), ":3\r\n");
    for line in ["MULTI", "INCR bar"] {
        begun.ask(line);
    }
    assert_eq!(begun.ask("EXEC"), "*1\r\n:4\r\n");
    assert_eq!(shards.stores[1].client().ask("GET bar"), "$1\r\n4\r\n");
    assert_eq!(shards.stores[0].client().ask("EXISTS bar"), ":0\r\n");
    // This client would not get messages that are published now.
    assert_eq!(listens.next(), None);
}

#[test]
fn many_keys_are_of_one_slot() {
    let Some(shards) = three() else { return };
    let mut client = shards.client();
    let cross = "-CROSSSLOT Keys in request don't hash to the same slot\r\n";
    assert_eq!(client.ask("MSET {foo}a 1 {foo}b 2"), "+OK\r\n");
    assert_eq!(client.ask("DEL {foo}a {foo}b {foo}c"), ":2\r\n");
    for line in [
        "MSET foo 1 bar 2",
        "DEL foo bar",
        // One of the keys is in another slot of the same shard.
        "MGET bar hello",
        "SUNIONSTORE foo bar hello",
        "EVAL return 2 foo bar",
        "RENAME foo bar",
        "SSUBSCRIBE foo bar",
    ] {
        assert_eq!(client.ask(line), cross, "{line}");
    }
    assert_eq!(client.ask("EXISTS foo"), ":0\r\n");
}

#[test]
fn what_is_about_no_key_is_of_all_shards() {
    let Some(shards) = three() else { return };
    let mut client = shards.client();
    for key in KEYS {
        assert_eq!(client.ask(&format!("SET {key} 1")), "+OK\r\n");
    }
    assert_eq!(client.ask("DBSIZE"), ":3\r\n");
    let keys = client.ask("KEYS *");
    assert!(keys.starts_with("*3\r\n"), "{keys}");
    let found: std::collections::BTreeSet<String> =
        (0..3).map(|_| client.ask("RANDOMKEY")).collect();
    assert_eq!(found.len(), 3, "each time another shard");
    // A loaded script can run in every shard.
    let sha = client.ask("SCRIPT LOAD return(redis.call('GET',KEYS[1]))");
    let sha = sha.lines().nth(1).expect("a digest").to_owned();
    for key in KEYS {
        assert_eq!(client.ask(&format!("EVALSHA {sha} 1 {key}")), "$1\r\n1\r\n");
    }
    assert_eq!(client.ask(&format!("SCRIPT EXISTS {sha}")), "*1\r\n:1\r\n");
    shards.stores[1].client().ask("SCRIPT FLUSH");
    assert_eq!(client.ask(&format!("SCRIPT EXISTS {sha}")), "*1\r\n:0\r\n");
    assert!(client.ask("SCRIPT KILL").starts_with("-NOTBUSY "));
    assert_eq!(client.ask("CONFIG SET hz 17"), "+OK\r\n");
    for store in &shards.stores {
        assert!(store.client().ask("CONFIG GET hz").contains("17"));
    }
    assert_eq!(client.ask("FLUSHALL"), "+OK\r\n");
    assert_eq!(client.ask("DBSIZE"), ":0\r\n");
    assert_eq!(client.ask("RANDOMKEY"), "$-1\r\n");
}

#[test]
fn scan_goes_through_all_shards() {
    let Some(shards) = three() else { return };
    let mut client = shards.client();
    for number in 0..500 {
        client.send(&command(&format!("SET key:{number} {number}")));
    }
    for _ in 0..500 {
        assert_eq!(client.text(), "+OK\r\n");
    }
    let (mut cursor, mut seen, mut steps) = ("0".to_owned(), Vec::new(), 0);
    loop {
        let reply = client.ask(&format!("SCAN {cursor} COUNT 20 MATCH key:*"));
        let mut lines = reply.lines().filter(|line| !line.starts_with(['*', '$']));
        cursor = lines.next().expect("a cursor").to_owned();
        seen.extend(lines.map(str::to_owned));
        steps += 1;
        assert!(steps < 200, "it ends");
        if cursor == "0" {
            break;
        }
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 500);
    assert_eq!(client.ask("SCAN x"), "-ERR invalid cursor\r\n");
}

#[test]
fn transactions_are_of_one_slot() {
    let Some(shards) = three() else { return };
    let mut client = shards.client();
    for key in KEYS {
        let lines = [
            "MULTI".to_owned(),
            "PING".to_owned(),
            format!("SET {key} 5"),
            format!("INCR {key}"),
            "EXEC".to_owned(),
        ];
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let replies = send_all(&mut client, &lines);
        assert_eq!(replies[4], "*3\r\n+PONG\r\n+OK\r\n:6\r\n", "{replies:?}");
        assert!(replies[1..4].iter().all(|reply| reply == "+QUEUED\r\n"));
    }
    let cross = "-CROSSSLOT Keys in request don't hash to the same slot\r\n";
    // As in Redis Cluster, this error comes at EXEC.
    let replies = send_all(&mut client, &["MULTI", "SET foo 7", "SET bar 7", "EXEC"]);
    assert_eq!(replies, ["+OK\r\n", "+QUEUED\r\n", "+QUEUED\r\n", cross]);
    // If the keys of a single command are in several slots, the error comes at this command.
    let replies = send_all(
        &mut client,
        &["MULTI", "SET foo 7", "MSET foo 7 bar 7", "EXEC", "GET foo"],
    );
    let abort = "-EXECABORT Transaction discarded because of previous errors.\r\n";
    assert_eq!(
        replies,
        ["+OK\r\n", "+QUEUED\r\n", cross, abort, "$1\r\n6\r\n"]
    );
    let replies = send_all(
        &mut client,
        &["MULTI", "NOSUCH", "SET foo 7", "EXEC", "PING"],
    );
    assert!(replies[1].starts_with("-ERR unknown command 'NOSUCH'"));
    assert_eq!(replies[2..], ["+QUEUED\r\n", abort, "+PONG\r\n"]);
    // After an error, the router does not check further commands.
    let replies = send_all(
        &mut client,
        &["MULTI", "SET foo 7", "GET", "SET bar 7", "EXEC"],
    );
    assert_eq!(replies[4], abort, "{replies:?}");
    let replies = send_all(&mut client, &["MULTI", "SET foo 7", "EXEC x", "EXEC"]);
    assert!(replies[2].starts_with("-EXECABORT Transaction discarded because of: wrong"));
    assert_eq!(replies[3], "-ERR EXEC without MULTI\r\n");
    let replies = send_all(&mut client, &["MULTI", "SET c 7", "DISCARD", "GET c"]);
    assert_eq!(replies[2..], ["+OK\r\n", "$1\r\n6\r\n"]);
    let replies = send_all(&mut client, &["MULTI", "EXEC", "EXEC", "DISCARD"]);
    assert_eq!(
        replies,
        [
            "+OK\r\n",
            "*0\r\n",
            "-ERR EXEC without MULTI\r\n",
            "-ERR DISCARD without MULTI\r\n"
        ]
    );
    for key in KEYS {
        assert_eq!(client.ask(&format!("GET {key}")), "$1\r\n6\r\n");
    }
}

#[test]
fn what_is_watched_and_the_transaction_are_of_one_slot() {
    let Some(shards) = three() else { return };
    let (mut client, mut other) = (shards.client(), shards.client());
    let cross = "-CROSSSLOT Keys in request don't hash to the same slot\r\n";
    for key in KEYS {
        assert_eq!(client.ask(&format!("WATCH {key}")), "+OK\r\n");
        assert_eq!(other.ask(&format!("SET {key} x")), "+OK\r\n");
        // The watch does not delay commands for keys of another shard.
        assert_eq!(client.ask("GET {x}other"), "$-1\r\n");
        let replies = send_all(&mut client, &["MULTI", &format!("SET {key} y"), "EXEC"]);
        assert_eq!(replies[2], "*-1\r\n", "it was changed");
        assert_eq!(client.ask(&format!("WATCH {key}")), "+OK\r\n");
        let replies = send_all(&mut client, &["MULTI", &format!("SET {key} y"), "EXEC"]);
        assert_eq!(replies[2], "*1\r\n+OK\r\n");
    }
    assert_eq!(client.ask("WATCH foo bar"), cross);
    assert_eq!(client.ask("WATCH foo"), "+OK\r\n");
    assert_eq!(client.ask("WATCH bar"), cross);
    let replies = send_all(&mut client, &["MULTI", "SET bar z", "EXEC"]);
    assert_eq!(replies, ["+OK\r\n", "+QUEUED\r\n", cross]);
    // Now the client watches no key.
    assert_eq!(client.ask("WATCH bar"), "+OK\r\n");
    assert_eq!(client.ask("UNWATCH"), "+OK\r\n");
    assert_eq!(client.ask("WATCH foo"), "+OK\r\n");
    let replies = send_all(&mut client, &["MULTI", "WATCH foo", "DISCARD"]);
    assert_eq!(replies[1], "-ERR WATCH inside MULTI is not allowed\r\n");
}

#[test]
fn blocking_commands_block_their_shard_alone() {
    let Some(shards) = three() else { return };
    let (mut client, mut other) = (shards.client(), shards.client());
    for key in KEYS {
        client.send(&[command(&format!("BLPOP {key} 0")), command("PING")].concat());
        eventually("it waits", || {
            other.ask("CLIENT LIST").contains("cmd=") && {
                let pushed = other.ask(&format!("RPUSH {key} v"));
                pushed == ":1\r\n"
            }
        });
        let popped = format!("*2\r\n${}\r\n{key}\r\n$1\r\nv\r\n", key.len());
        assert_eq!(client.text(), popped);
        assert_eq!(client.text(), "+PONG\r\n");
    }
    // Another client can end the wait, at any shard.
    client.send(&command("CLIENT ID"));
    let id = client.text();
    let id = id.trim_start_matches(':').trim().to_owned();
    client.send(&command("BLPOP c 0"));
    eventually("it is unblocked", || {
        other.ask(&format!("CLIENT UNBLOCK {id}")) == ":1\r\n"
    });
    assert_eq!(client.text(), "*-1\r\n");
}

/// Regression test: a command that followed a client's BLPOP could not be taken yet, and so the router did not notice
/// that the client had disconnected. The BLPOP of that client took the next element, and the client kept its place
/// without end.
#[test]
fn a_client_that_is_gone_does_not_take_what_is_pushed_later() {
    let Some(shards) = three() else { return };
    let mut other = shards.client();
    let many = "GET bar\n".repeat(3000);
    for (at, behind) in ["CLIENT SETNAME zz", "HELLO 3", &many]
        .into_iter()
        .enumerate()
    {
        for key in KEYS {
            let queue = format!("{{{key}}}:{at}");
            let mut client = shards.client();
            client.send(&command(&format!("BLPOP {queue} 0")));
            client.send(&behind.lines().flat_map(command).collect::<Vec<u8>>());
            drop(client);
            eventually("it is gone", || {
                let list = other.ask("CLIENT LIST");
                list.lines().filter(|line| line.contains("addr=")).count() == 1
            });
            eventually("nobody waits at Redis", || {
                let pushed = other.ask(&format!("RPUSH {queue} v"));
                pushed != ":0\r\n" && other.ask(&format!("LLEN {queue}")) != ":0\r\n"
            });
        }
    }
}

/// A client that sends all its commands and then closes its sending side gets all replies, even after commands that
/// wait for other clients.
#[test]
fn half_a_connection_gets_its_replies() {
    let Some(shards) = three() else { return };
    let mut client = shards.client();
    let lines = [
        "SET foo 1",
        "CLIENT SETNAME x",
        "GET foo",
        "HELLO 2",
        "CLIENT GETNAME",
    ];
    client.send(
        &lines
            .iter()
            .flat_map(|line| command(line))
            .collect::<Vec<u8>>(),
    );
    client.stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(
        [(); 3].map(|()| client.text()),
        ["+OK\r\n", "+OK\r\n", "$1\r\n1\r\n"]
    );
    assert!(client.text().starts_with('*'));
    assert_eq!(client.text(), "$1\r\nx\r\n");
}

/// Regression test: a reply that looks like a message was taken for a message, and so all later replies went to wrong
/// commands.
#[test]
fn what_is_stored_is_never_taken_for_a_message() {
    let Some(shards) = three() else { return };
    let mut client = shards.client();
    assert_eq!(client.ask("RPUSH {foo}l message x y"), ":3\r\n");
    client.ask("HELLO 3");
    let lines = [
        "SUBSCRIBE foo",
        "BLPOP {c}none 0.3",
        "LRANGE {foo}l 0 -1",
        "GET {foo}none",
        "PING one",
    ];
    let replies = send_all(&mut client, &lines);
    let list = "*3\r\n$7\r\nmessage\r\n$1\r\nx\r\n$1\r\ny\r\n";
    assert!(
        replies[0].starts_with(">3\r\n$9\r\nsubscribe\r\n"),
        "{replies:?}"
    );
    assert_eq!(replies[1..], ["_\r\n", list, "_\r\n", "$3\r\none\r\n"]);
    // A real message arrives in both protocols.
    let mut other = shards.client();
    assert_eq!(other.ask("PUBLISH foo m"), ":1\r\n");
    assert!(client.text().starts_with(">3\r\n$7\r\nmessage\r\n"));
    client.ask("HELLO 2");
    assert_eq!(other.ask("PUBLISH foo m"), ":1\r\n");
    assert!(client.text().starts_with("*3\r\n$7\r\nmessage\r\n"));
}

#[test]
fn a_slot_that_nobody_serves_is_an_error() {
    let Some(shards) = sharded::start(&["0-5460", "5461-10922"]) else {
        return;
    };
    let mut client = shards.client();
    let down = "-CLUSTERDOWN Hash slot not served\r\n";
    assert_eq!(client.ask("GET foo"), down);
    assert_eq!(client.ask("SET bar 1"), "+OK\r\n");
    assert_eq!(client.ask("WATCH foo"), down);
    let replies = send_all(&mut client, &["MULTI", "SET foo 1", "EXEC"]);
    assert_eq!(replies[1], down);
    assert!(replies[2].starts_with("-EXECABORT"));
    assert!(
        client
            .ask("CLUSTER INFO")
            .contains("cluster_slots_assigned:10923")
    );
    assert_eq!(client.ask("CLUSTER KEYSLOT foo"), ":12182\r\n");
}

#[test]
fn a_client_is_the_same_in_all_shards() {
    let Some(shards) = three() else { return };
    let (mut client, mut other) = (shards.client(), shards.client());
    assert_eq!(client.ask("CLIENT SETNAME me"), "+OK\r\n");
    let hello = client.ask("HELLO 3");
    assert!(hello.starts_with('%'), "{hello}");
    for key in KEYS {
        // In RESP3 a null is `_`, so the shard uses RESP3, too.
        assert_eq!(client.ask(&format!("GET {key}")), "_\r\n");
    }
    let list = other.ask("CLIENT LIST");
    let local = client.stream.local_addr().expect("an address");
    let line = list.lines().find(|line| line.contains(" name=me "));
    let line = line.unwrap_or_else(|| panic!("{list}"));
    assert!(line.contains(&format!(" addr={local} ")), "{line}");
    assert!(
        line.contains(&format!(" laddr={} ", shards.address)),
        "{line}"
    );
    assert_eq!(
        list.lines().filter(|line| line.contains("addr=")).count(),
        2
    );
    let id = client.ask("CLIENT ID");
    assert!(line.starts_with(&format!("id={} ", id.trim().trim_start_matches(':'))));
    assert_eq!(client.ask("RESET"), "+RESET\r\n");
    for key in KEYS {
        assert_eq!(client.ask(&format!("GET {key}")), "$-1\r\n");
    }
    assert_eq!(client.ask("CLIENT GETNAME"), "$-1\r\n");
    assert_eq!(other.ask("SELECT 0"), "+OK\r\n");
    assert_eq!(
        other.ask("SELECT 1"),
        "-ERR SELECT is not allowed in cluster mode\r\n"
    );
    assert_eq!(other.ask(&format!("CLIENT KILL ADDR {local}")), ":1\r\n");
    assert_eq!(client.next(), None);
    assert_eq!(other.ask("QUIT"), "+OK\r\n");
    assert_eq!(other.next(), None);
}

#[test]
fn replies_that_are_not_wanted_are_not_sent() {
    let Some(shards) = three() else { return };
    let mut client = shards.client();
    let sent: Vec<u8> = [
        "CLIENT REPLY OFF",
        "SET foo 1",
        "SET bar 1",
        "CLIENT REPLY ON",
        "GET foo",
        "CLIENT REPLY SKIP",
        "GET bar",
        "INCR bar",
    ]
    .iter()
    .flat_map(|line| command(line))
    .collect();
    client.send(&sent);
    assert_eq!(client.text(), "+OK\r\n");
    assert_eq!(client.text(), "$1\r\n1\r\n");
    assert_eq!(client.text(), ":2\r\n");
}

#[test]
fn one_password_is_for_all_shards() {
    let secret = |config: &mut pmnet_front::FrontConfig| {
        config.access = Access::Password(Secret::new(b"sesame"));
    };
    let Some(shards) = sharded::start_with(&THREE, &[], secret, |_| {}) else {
        return;
    };
    let mut client = shards.client();
    let noauth = "-NOAUTH Authentication required.\r\n";
    for line in [
        "GET foo",
        "GET bar",
        "MGET foo bar",
        "SELECT 1",
        "CLUSTER SLOTS",
        "READONLY",
        "DBSIZE",
        "MULTI",
        "CLIENT REPLY ON",
        "SCAN x",
        "NOSUCH",
    ] {
        assert_eq!(client.ask(line), noauth, "{line}");
    }
    let replies = send_all(&mut client, &["AUTH wrong", "GET foo"]);
    assert!(replies[0].starts_with("-WRONGPASS"), "{replies:?}");
    assert_eq!(replies[1], noauth);
    // After a pipeline that logs in, a shard that is first used later knows the login.
    let replies = send_all(
        &mut client,
        &[
            "AUTH sesame",
            "SET foo 1",
            "SET bar 1",
            "AUTH wrong",
            "GET c",
        ],
    );
    assert_eq!(replies[..3], ["+OK\r\n", "+OK\r\n", "+OK\r\n"]);
    assert!(replies[3].starts_with("-WRONGPASS"));
    assert_eq!(replies[4], "$-1\r\n");
    let mut hello = shards.client();
    let greeted = hello.ask("HELLO 3 AUTH default sesame SETNAME me");
    assert!(greeted.starts_with('%'), "{greeted}");
    assert_eq!(hello.ask("GET foo"), "$1\r\n1\r\n");
    assert_eq!(hello.ask("CLIENT GETNAME"), "$2\r\nme\r\n");
    assert_eq!(hello.ask("RESET"), "+RESET\r\n");
    assert_eq!(hello.ask("GET foo"), noauth);
    // Subscriptions have the rights of their user.
    let mut subscriber = shards.client();
    subscriber.ask("HELLO 3 AUTH default sesame");
    assert!(subscriber.ask("SUBSCRIBE foo").starts_with(">3"));
    let refused = subscriber.ask("AUTH sesame");
    assert!(
        refused.starts_with("-ERR pmnet: unsubscribe before"),
        "{refused}"
    );
    assert_eq!(hello.ask("AUTH sesame"), "+OK\r\n");
    assert_eq!(hello.ask("PUBLISH foo m"), ":1\r\n");
    assert!(subscriber.text().ends_with("foo\r\n$1\r\nm\r\n"));
    // A client that has not logged in cannot send much.
    let mut stranger = shards.client();
    stranger.send(b"*2\r\n$3\r\nGET\r\n$20000\r\n");
    assert_eq!(
        stranger.text(),
        "-ERR Protocol error: unauthenticated bulk length\r\n"
    );
    assert_eq!(stranger.next(), None);
}

#[test]
fn users_of_redis_log_in_to_all_shards() {
    let access = |config: &mut pmnet_front::FrontConfig| {
        config.access = Access::Redis;
        config.call_timeout = Duration::from_secs(4);
    };
    let Some(mut shards) = sharded::start_with(&THREE, &[], access, |_| {}) else {
        return;
    };
    for store in &shards.stores {
        let made = store
            .client()
            .ask("ACL SETUSER alice on >secret ~* &* +@all");
        assert_eq!(made, "+OK\r\n");
    }
    let mut client = shards.client();
    let whoami: Vec<&str> = vec!["AUTH alice secret", "SET foo 1", "SET bar 1", "ACL WHOAMI"];
    let replies = send_all(&mut client, &whoami);
    assert_eq!(replies[..3], ["+OK\r\n", "+OK\r\n", "+OK\r\n"]);
    assert_eq!(replies[3], "$5\r\nalice\r\n");
    let replies = send_all(&mut client, &["AUTH alice wrong", "GET foo"]);
    assert!(replies[0].starts_with("-WRONGPASS"));
    assert_eq!(replies[1], "$1\r\n1\r\n");
    // A client that needs no login may send a large value.
    let mut anybody = shards.client();
    let value = "x".repeat(100_000);
    assert_eq!(anybody.ask(&format!("SET foo {value}")), "+OK\r\n");
    // One shard is down. The other shards accept logins and serve commands.
    shards.stores[1].kill();
    let mut late = shards.client();
    assert_eq!(late.ask("AUTH alice secret"), "+OK\r\n");
    assert_eq!(late.ask("SET foo 2"), "+OK\r\n");
    let error = late.ask("GET c");
    assert!(error.starts_with("-ERR pmnet: "), "{error}");
    assert_eq!(late.ask("GET foo"), "$1\r\n2\r\n");
}

/// Reads messages until one equals `wanted`.
fn told(client: &mut Client, wanted: &str) {
    let got = client.text();
    assert_eq!(got, wanted);
}

#[test]
fn messages_of_all_shards_come_to_their_subscribers() {
    let Some(shards) = three() else { return };
    for resp3 in [false, true] {
        let (mut subscriber, mut publisher) = (shards.client(), shards.client());
        let marker = if resp3 { '>' } else { '*' };
        if resp3 {
            subscriber.ask("HELLO 3");
        }
        // The numbers in the confirmations count the client's own subscriptions, whatever the shards count.
        subscriber.send(&command("SUBSCRIBE foo bar c"));
        for (number, channel) in ["foo", "bar", "c"].iter().enumerate() {
            told(
                &mut subscriber,
                &format!(
                    "{marker}3\r\n$9\r\nsubscribe\r\n${}\r\n{channel}\r\n:{}\r\n",
                    channel.len(),
                    number + 1
                ),
            );
        }
        subscriber.send(&command("PSUBSCRIBE f*"));
        told(
            &mut subscriber,
            &format!("{marker}3\r\n$10\r\npsubscribe\r\n$2\r\nf*\r\n:4\r\n"),
        );
        subscriber.send(&command("SSUBSCRIBE c"));
        told(
            &mut subscriber,
            &format!("{marker}3\r\n$10\r\nssubscribe\r\n$1\r\nc\r\n:1\r\n"),
        );
        for (channel, count) in [("bar", 1), ("c", 1), ("foo", 2), ("fun", 1), ("no", 0)] {
            assert_eq!(
                publisher.ask(&format!("PUBLISH {channel} m")),
                format!(":{count}\r\n"),
                "{channel}"
            );
        }
        let message = |channel: &str| {
            format!(
                "{marker}3\r\n$7\r\nmessage\r\n${}\r\n{channel}\r\n$1\r\nm\r\n",
                channel.len()
            )
        };
        let patterned = |channel: &str| {
            format!("{marker}4\r\n$8\r\npmessage\r\n$2\r\nf*\r\n$3\r\n{channel}\r\n$1\r\nm\r\n")
        };
        // Messages of different shards may come in any order. Messages of one channel keep their order.
        let mut got: Vec<String> = (0..5).map(|_| subscriber.text()).collect();
        got.sort();
        let mut expected = vec![
            message("bar"),
            message("c"),
            message("foo"),
            patterned("foo"),
            patterned("fun"),
        ];
        expected.sort();
        assert_eq!(got, expected);
        assert_eq!(publisher.ask("SPUBLISH c s"), ":1\r\n");
        told(
            &mut subscriber,
            &format!("{marker}3\r\n$8\r\nsmessage\r\n$1\r\nc\r\n$1\r\ns\r\n"),
        );
        assert_eq!(
            publisher.ask("PUBSUB NUMSUB foo bar no"),
            "*6\r\n$3\r\nfoo\r\n:1\r\n$3\r\nbar\r\n:1\r\n$2\r\nno\r\n:0\r\n"
        );
        assert!(publisher.ask("PUBSUB CHANNELS").starts_with("*3\r\n"));
        assert_eq!(publisher.ask("PUBSUB NUMPAT"), ":1\r\n");
        if resp3 {
            assert_eq!(subscriber.ask("GET foo"), "_\r\n");
        } else {
            assert_eq!(
                subscriber.ask("GET foo"),
                "-ERR Can't execute 'get': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context\r\n"
            );
            assert_eq!(subscriber.ask("PING"), "*2\r\n$4\r\npong\r\n$0\r\n\r\n");
        }
        subscriber.send(
            &[
                command("PUNSUBSCRIBE"),
                command("UNSUBSCRIBE"),
                command("SUNSUBSCRIBE"),
            ]
            .concat(),
        );
        told(
            &mut subscriber,
            &format!("{marker}3\r\n$12\r\npunsubscribe\r\n$2\r\nf*\r\n:3\r\n"),
        );
        for left in (0..3).rev() {
            let gone = subscriber.text();
            assert!(gone.starts_with(&format!("{marker}3\r\n$11\r\nunsubscribe\r\n")));
            assert!(gone.ends_with(&format!("\r\n:{left}\r\n")), "{gone}");
        }
        told(
            &mut subscriber,
            &format!("{marker}3\r\n$12\r\nsunsubscribe\r\n$1\r\nc\r\n:0\r\n"),
        );
        let null = if resp3 { "_" } else { "$-1" };
        assert_eq!(
            subscriber.ask("UNSUBSCRIBE"),
            format!("{marker}3\r\n$11\r\nunsubscribe\r\n{null}\r\n:0\r\n")
        );
        // The client is an ordinary client again.
        assert_eq!(subscriber.ask("SET foo 1"), "+OK\r\n");
        assert_eq!(publisher.ask("DEL foo"), ":1\r\n");
    }
}

#[test]
fn a_transaction_with_publish_reaches_its_subscribers_or_is_refused() {
    let Some(shards) = three() else { return };
    let (mut subscriber, mut client) = (shards.client(), shards.client());
    subscriber.ask("SUBSCRIBE {foo}news");
    let replies = send_all(
        &mut client,
        &["MULTI", "SET foo 1", "PUBLISH {foo}news m", "EXEC"],
    );
    assert_eq!(replies[3], "*2\r\n+OK\r\n:1\r\n");
    assert!(subscriber.text().ends_with("{foo}news\r\n$1\r\nm\r\n"));
    let replies = send_all(
        &mut client,
        &["MULTI", "SET foo 1", "PUBLISH bar m", "EXEC"],
    );
    assert!(replies[3].starts_with("-CROSSSLOT"));
    let replies = send_all(&mut client, &["MULTI", "SUBSCRIBE x", "EXEC"]);
    assert!(replies[1].starts_with("-ERR pmnet: SUBSCRIBE in a MULTI"));
    assert!(replies[2].starts_with("-EXECABORT"));
}

#[test]
fn keys_that_change_are_told_behind_the_replies_that_showed_them() {
    let Some(shards) = three() else { return };
    let (mut client, mut other) = (shards.client(), shards.client());
    client.ask("HELLO 3");
    assert_eq!(client.ask("CLIENT TRACKING ON"), "+OK\r\n");
    for key in KEYS {
        assert_eq!(client.ask(&format!("GET {key}")), "_\r\n");
        assert_eq!(other.ask(&format!("SET {key} 1")), "+OK\r\n");
        let told = client.text();
        assert_eq!(
            told,
            format!(
                ">2\r\n$10\r\ninvalidate\r\n*1\r\n${}\r\n{key}\r\n",
                key.len()
            )
        );
    }
    // The reply waits for the reply of another shard, and the message about the key waits, too.
    shards.knobs(0).hold = true;
    let mut direct = shards.stores[2].client();
    let gets = |direct: &mut Client| {
        let stats = direct.ask("INFO commandstats");
        let line = stats.lines().find(|line| line.starts_with("cmdstat_get:"));
        line.map(|line| line.split(',').next().unwrap_or_default().to_owned())
    };
    let before = gets(&mut direct);
    client.send(&[command("INCR bar"), command("GET foo")].concat());
    eventually("foo is read", || gets(&mut direct) != before);
    assert_eq!(direct.ask("SET foo 2"), "+OK\r\n");
    // During this pause the message could overtake the reply. No assertion depends on its length.
    std::thread::sleep(Duration::from_millis(100));
    shards.knobs(0).hold = false;
    let got: Vec<String> = (0..3).map(|_| client.text()).collect();
    let place = |wanted: &str| {
        got.iter()
            .position(|text| text == wanted)
            .unwrap_or_else(|| panic!("{wanted}: {got:?}"))
    };
    let read = place("$1\r\n1\r\n");
    let told = place(">2\r\n$10\r\ninvalidate\r\n*1\r\n$3\r\nfoo\r\n");
    assert!(read < told, "{got:?}");
}

#[test]
fn what_cannot_be_read_ends_one_client_with_an_error() {
    let Some(shards) = three() else { return };
    let mut client = shards.client();
    client.send(&[&command("SET foo 1")[..], b"*1\r\nPING\r\n"].concat());
    assert_eq!(client.text(), "+OK\r\n");
    assert_eq!(
        client.text(),
        "-ERR Protocol error: expected '$', got 'P'\r\n"
    );
    // The client may continue to send. The client's connection is not reset before the client has read the error.
    let _ = client.stream.write_all(&[b'x'; 100_000]);
    assert_eq!(client.next(), None);
    // The commands of a client that closes its sending side are answered.
    let mut half = shards.client();
    half.send(&[command("INCR foo"), command("INCR bar")].concat());
    half.stream.shutdown(Shutdown::Write).expect("shutdown");
    assert_eq!(half.text(), ":2\r\n");
    assert_eq!(half.text(), ":1\r\n");
    assert_eq!(half.next(), None);
    let mut inline = shards.client();
    inline.send(b"SET foo 'a b'\r\nGET foo\r\n");
    assert_eq!(inline.text(), "+OK\r\n");
    assert_eq!(inline.text(), "$3\r\na b\r\n");
}

#[test]
fn clients_are_counted_once() {
    let Some(shards) =
        sharded::start_with(&THREE, &[], |_| {}, |config| config.connections_max = 2)
    else {
        return;
    };
    let (mut a, mut b) = (shards.client(), shards.client());
    for key in KEYS {
        assert_eq!(a.ask(&format!("SET {key} 1")), "+OK\r\n");
        assert_eq!(b.ask(&format!("GET {key}")), "$1\r\n1\r\n");
    }
    let mut c = shards.client();
    assert_eq!(c.text(), "-ERR max number of clients reached\r\n");
    assert_eq!(c.next(), None);
    drop(a);
    eventually("there is room again", || {
        let mut c = shards.client();
        c.send(&command("GET foo"));
        let mut reply = [0; 1];
        c.stream.read_exact(&mut reply).is_ok() && reply[0] == b'$'
    });
}

#[test]
fn a_client_that_does_not_read_holds_up_nobody_and_gets_everything() {
    let Some(shards) = three() else { return };
    let value = "v".repeat(64 * 1024);
    let mut other = shards.client();
    for key in KEYS {
        assert_eq!(other.ask(&format!("SET {key} {value}")), "+OK\r\n");
    }
    let rounds = 600;
    let mut stream = TcpStream::connect(shards.address).expect("connect");
    stream.set_read_timeout(Some(DEADLINE)).expect("timeout");
    let mut writer = stream.try_clone().expect("clone");
    let sender = std::thread::spawn(move || {
        for _ in 0..rounds {
            for key in KEYS {
                writer
                    .write_all(&command(&format!("GET {key}")))
                    .expect("send");
            }
        }
    });
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(other.ask("INCR {foo}n"), ":1\r\n");
    let mut left = rounds * KEYS.len() * (value.len() + "$65536\r\n\r\n".len());
    let mut chunk = vec![0; 1 << 20];
    while left > 0 {
        let count = stream.read(&mut chunk).expect("replies");
        assert!(count > 0, "closed with {left} to come");
        left -= count;
    }
    sender.join().expect("sender");
}

#[test]
fn large_values_go_through_in_both_directions() {
    let Some(shards) = three() else { return };
    let mut client = shards.client();
    let value = "x".repeat(3_000_000);
    for key in KEYS {
        assert_eq!(client.ask(&format!("SET {key} {value}")), "+OK\r\n");
        let reply = client.ask(&format!("GET {key}"));
        assert!(
            reply == format!("$3000000\r\n{value}\r\n"),
            "{}",
            reply.len()
        );
    }
}

/// Input of any kind ends at most the connection on which it came.
#[test]
fn rubbish_ends_nobody_else() {
    let Some(shards) = three() else { return };
    let lines = [
        "MULTI",
        "EXEC",
        "DISCARD",
        "WATCH foo",
        "UNWATCH",
        "GET foo",
        "SET bar 1",
        "MSET foo 1 bar 2",
        "SUBSCRIBE foo bar",
        "UNSUBSCRIBE",
        "PSUBSCRIBE *",
        "PUNSUBSCRIBE",
        "SSUBSCRIBE c",
        "SUNSUBSCRIBE",
        "HELLO 3",
        "HELLO 2",
        "HELLO 3 AUTH x",
        "HELLO 3 SETNAME",
        "RESET",
        "AUTH",
        "AUTH x y",
        "CLIENT REPLY OFF",
        "CLIENT REPLY ON",
        "CLIENT REPLY SKIP",
        "CLIENT REPLY",
        "CLIENT SETNAME a",
        "CLIENT TRACKING ON",
        "CLIENT TRACKING OFF",
        "CLIENT TRACKING",
        "SCAN 0",
        "SCAN 18446744073709551615",
        "SCAN 99999999999999999999",
        "DBSIZE",
        "KEYS *",
        "RANDOMKEY",
        "CLUSTER SLOTS",
        "CLUSTER",
        "QUIT x",
        "PUBLISH foo m",
        "EVAL x 1 foo",
        "BLPOP foo c 0.01",
        "BLPOP c 0.01",
        "PING",
        "ECHO",
        "INFO nosuch",
        "SCRIPT EXISTS x",
        "PUBSUB NUMSUB foo",
        "XREAD STREAMS foo",
        "SORT foo STORE",
        "COPY foo bar DB 1",
        "EXEC x",
        "MULTI x",
        "SELECT 5",
        "FUNCTION KILL",
    ];
    let mut random = TestRng::new();
    for _ in 0..150 {
        let mut bytes = Vec::new();
        for _ in 0..random.below(40) {
            bytes.extend(command(lines[random.below(lines.len())]));
        }
        for _ in 0..random.below(3) {
            if !bytes.is_empty() {
                let at = random.below(bytes.len());
                bytes[at] = u8::try_from(random.below(256)).expect("a byte");
            }
        }
        let mut stream = TcpStream::connect(shards.address).expect("connect");
        stream.set_nodelay(true).expect("nodelay");
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let (piece, behind) = rest.split_at(1 + random.below(rest.len()));
            if stream.write_all(piece).is_err() {
                break;
            }
            rest = behind;
        }
        if random.below(2) == 0 {
            let _ = stream.shutdown(Shutdown::Write);
            stream.set_read_timeout(Some(DEADLINE)).expect("timeout");
            let mut all = Vec::new();
            // Each connection is answered or closed, and none is left open without an answer.
            match stream.read_to_end(&mut all) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    panic!(
                        "neither answered nor closed: {:?}",
                        String::from_utf8_lossy(&bytes)
                    )
                }
                _ => {}
            }
        }
    }
    let mut client = shards.client();
    assert_eq!(client.ask("SET foo 1"), "+OK\r\n");
    assert_eq!(client.ask("SET c 1"), "+OK\r\n");
    assert_eq!(client.ask("SET bar 1"), "+OK\r\n");
    eventually("the others are gone", || {
        let list = client.ask("CLIENT LIST");
        list.lines().filter(|line| line.contains("addr=")).count() == 1
    });
}

/// Pseudo-random numbers. The test prints the seed when it fails.
struct TestRng(u64);

impl TestRng {
    fn new() -> TestRng {
        let since = std::time::SystemTime::UNIX_EPOCH
            .elapsed()
            .expect("a clock");
        let seed = u64::from(since.subsec_nanos()) | 1;
        println!("seed {seed}");
        TestRng(seed)
    }

    fn below(&mut self, bound: usize) -> usize {
        // xorshift64
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(bound).expect("a bound")).expect("small")
    }
}
