//! CLIENT TRACKING: clients are told of changed keys, and no client keeps an old value in its cache.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::common::{Client, DEADLINE, Knobs, Redis, Running, command, eventually};
use bytes::Bytes;
use pmnet_front::upstream::ReadAnswer;
use pmnet_wire::command::Form;

/// A client that speaks RESP3.
fn resp3(front: &Running) -> Client {
    let mut client = front.client();
    assert!(client.ask("HELLO 3").starts_with('%'));
    client
}

/// Returns the message that a RESP3 client gets when this key has changed.
fn push(key: &str) -> String {
    format!(
        ">2\r\n$10\r\ninvalidate\r\n*1\r\n${}\r\n{key}\r\n",
        key.len()
    )
}

const ALL: &str = ">2\r\n$10\r\ninvalidate\r\n_\r\n";

fn id(client: &mut Client) -> String {
    client
        .ask("CLIENT ID")
        .trim_start_matches(':')
        .trim()
        .to_owned()
}

/// Checks that the client has no message: its next input is the reply to PING.
fn says_nothing(client: &mut Client) {
    assert_eq!(client.ask("PING"), "+PONG\r\n");
}

/// Returns the id, in Redis's list of clients, of the connection on which the front is told of changed keys.
fn link(redis: &mut Client) -> Option<String> {
    let list = redis.ask("CLIENT LIST");
    let line = list.lines().find(|line| line.contains("flags=tB"))?;
    let (_, rest) = line.split_once("id=")?;
    Some(rest.split(' ').next()?.to_owned())
}

/// Redis 7.0 does not know the commands of this test. A command that Redis 7.0 does not know may be a read, of a newer
/// version or of a module.
#[test]
fn what_an_unknown_command_reads_is_told_too() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    let (mut client, mut other) = (resp3(&front), front.client());
    assert_eq!(client.ask("CLIENT TRACKING ON"), "+OK\r\n");
    other.ask("HSET h f 1");
    for line in [
        "HTTL h FIELDS 1 f",
        "JSON.GET h",
        "NOSUCH x 1 h",
        "OBJECT NOSUCH h",
    ] {
        client.ask(line);
        other.ask("HINCRBY h f 1");
        assert_eq!(client.text(), push("h"), "{line}");
        says_nothing(&mut client);
    }
    if !redis.client().ask("HTTL h FIELDS 1 f").starts_with('-') {
        for line in ["MULTI", "HTTL h FIELDS 1 f", "GET other", "EXEC"] {
            client.ask(line);
        }
        other.ask("HINCRBY h f 1");
        assert_eq!(client.text(), push("h"));
    }
}

#[test]
fn a_client_is_told_of_the_next_change_of_what_it_has_read() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    let (mut client, mut other, mut direct) = (resp3(&front), front.client(), redis.client());
    assert_eq!(client.ask("CLIENT TRACKING ON"), "+OK\r\n");
    // The writes come from another client of the front, acknowledged early or not, and from a client of Redis.
    for (at, write) in ["SET k 1", "INCR k", "DEL k", "MSET x 1 k 2"]
        .iter()
        .enumerate()
    {
        client.ask("MGET k unrelated");
        let writer = if at % 2 == 0 { &mut other } else { &mut direct };
        assert!(!writer.ask(write).starts_with('-'));
        assert_eq!(client.text(), push("k"), "{write}");
        writer.ask("SET k 7");
        says_nothing(&mut client);
    }
    // First a key expires, and then all keys are removed.
    other.ask("SET k 1 PX 20");
    client.ask("GET k");
    assert_eq!(client.text(), push("k"));
    client.ask("GET k");
    assert!(direct.ask("FLUSHALL").starts_with('+'));
    assert_eq!(client.text(), ALL);
    assert_eq!(client.ask("CLIENT TRACKING OFF"), "+OK\r\n");
    client.ask("GET k");
    other.ask("SET k 2");
    direct.ask("SET k 3");
    says_nothing(&mut client);
    eventually("nobody needs it", || link(&mut direct).is_none());
}

#[test]
fn a_resp2_client_is_told_on_another_connection() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    let (mut client, mut told, mut other) = (front.client(), front.client(), front.client());
    let redirect = id(&mut told);
    told.ask("SUBSCRIBE __redis__:invalidate");
    assert_eq!(
        client.ask(&format!("CLIENT TRACKING ON REDIRECT {redirect}")),
        "+OK\r\n"
    );
    assert_eq!(client.ask("CLIENT GETREDIR"), format!(":{redirect}\r\n"));
    client.ask("GET k");
    other.ask("SET k 1");
    let message = "*3\r\n$7\r\nmessage\r\n$20\r\n__redis__:invalidate\r\n";
    assert_eq!(told.text(), format!("{message}*1\r\n$1\r\nk\r\n"));
    client.ask("GET k");
    other.ask("FLUSHALL");
    assert_eq!(told.text(), format!("{message}$-1\r\n"));
    // The client named in REDIRECT disconnects. A RESP3 client gets a message that its REDIRECT client has
    // disconnected.
    drop(told);
    eventually("the other connection is gone", || {
        !other
            .ask("CLIENT LIST")
            .contains(&format!("id={redirect} "))
    });
    client.ask("HELLO 3");
    client.ask("GET k");
    other.ask("INCR k");
    let broken = format!(">2\r\n$21\r\ntracking-redir-broken\r\n:{redirect}\r\n");
    assert_eq!(client.text(), broken);
    let info = client.ask("CLIENT TRACKINGINFO");
    assert!(info.contains("broken_redirect"), "{info}");
    let error = client.ask("CLIENT TRACKING ON REDIRECT 999999");
    assert_eq!(
        error,
        "-ERR The client ID you want redirect to does not exist\r\n"
    );
}

#[test]
fn prefixes_are_told_of_every_change() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    let (mut client, mut direct) = (resp3(&front), redis.client());
    assert_eq!(
        client.ask("CLIENT TRACKING ON BCAST PREFIX a: PREFIX b:"),
        "+OK\r\n"
    );
    direct.ask("HSET pmnet:{0} x 1");
    for round in 0..2 {
        direct.ask(&format!(
            "MSET a:1 {round} a:2 {round} c:1 {round} b:1 {round}"
        ));
        let mut told = [client.text(), client.text()];
        told.sort();
        let both = ">2\r\n$10\r\ninvalidate\r\n*2\r\n$3\r\na:1\r\n$3\r\na:2\r\n";
        assert_eq!(told, [push("b:1"), both.to_owned()]);
    }
    // Without prefixes, too, the mode BCAST tells clients nothing about pmnet's own keys.
    client.ask("CLIENT TRACKING OFF");
    client.ask("CLIENT TRACKING ON BCAST");
    direct.ask("HSET pmnet:{0} x 2");
    direct.ask("SET any 1");
    assert_eq!(client.text(), push("any"));
    says_nothing(&mut client);
}

#[test]
fn opting_in_and_out_is_about_one_command_or_transaction() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    let (mut client, mut direct) = (resp3(&front), redis.client());
    client.ask("CLIENT TRACKING ON OPTIN");
    for line in [
        "GET in",
        "CLIENT CACHING YES",
        "CLIENT GETNAME",
        "GET a",
        "GET out",
    ] {
        client.ask(line);
    }
    // Libraries send these commands.
    for line in [
        "CLIENT CACHING YES",
        "MULTI",
        "PTTL b",
        "GET b",
        "EXEC",
        "GET behind",
    ] {
        assert!(!client.ask(line).starts_with('-'), "{line}");
    }
    for key in ["in", "out", "behind", "a", "b"] {
        direct.ask(&format!("SET {key} 1"));
    }
    let mut told = [client.text(), client.text()];
    told.sort();
    assert_eq!(told, [push("a"), push("b")]);
    says_nothing(&mut client);
    client.ask("CLIENT TRACKING OFF");
    client.ask("CLIENT TRACKING ON OPTOUT");
    for line in ["CLIENT CACHING NO", "GET a", "GET b"] {
        client.ask(line);
    }
    direct.ask("SET a 2");
    direct.ask("SET b 2");
    assert_eq!(client.text(), push("b"));
    says_nothing(&mut client);
}

#[test]
fn errors_and_what_is_said_are_those_of_redis() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    for protocol in ["HELLO 2", "HELLO 3"] {
        let (mut direct, mut through) = (redis.client(), front.client());
        direct.ask(protocol);
        through.ask(protocol);
        for line in [
            "CLIENT TRACKING ON FOO",
            "CLIENT TRACKING ON REDIRECT",
            "CLIENT TRACKING ON REDIRECT x",
            "CLIENT TRACKING ON REDIRECT 999999",
            "CLIENT TRACKING OFF FOO",
            "CLIENT TRACKING x BCAST",
            "CLIENT TRACKING ON PREFIX a",
            "CLIENT TRACKING ON OPTIN OPTOUT",
            "CLIENT TRACKING ON BCAST OPTIN",
            "CLIENT TRACKING ON BCAST PREFIX ab PREFIX a",
            "CLIENT CACHING YES",
            "CLIENT TRACKINGINFO",
            "CLIENT TRACKING ON BCAST PREFIX a PREFIX b NOLOOP",
            "CLIENT TRACKINGINFO",
            "CLIENT GETREDIR",
            "CLIENT TRACKING ON BCAST PREFIX ax",
            "CLIENT TRACKING ON",
            "CLIENT TRACKING OFF",
            "CLIENT TRACKING ON OPTIN",
            "CLIENT TRACKING ON OPTOUT",
            "CLIENT CACHING NO",
            "CLIENT CACHING FOO",
            "CLIENT CACHING YES",
            "CLIENT TRACKINGINFO",
            "RESET",
            protocol,
            "CLIENT TRACKINGINFO",
            "CLIENT TRACKING ON OPTOUT",
            "CLIENT CACHING YES",
            "CLIENT CACHING NO",
            "CLIENT TRACKINGINFO",
            "PING",
            "CLIENT TRACKINGINFO",
            "MULTI",
            "CLIENT TRACKINGINFO",
            "CLIENT TRACKING OFF",
            "EXEC",
            "CLIENT TRACKINGINFO",
        ] {
            let [direct, through] = [&mut direct, &mut through].map(|client| {
                let reply = client.ask(line);
                // The reply to HELLO has the number of the client.
                if line.starts_with("HELLO") {
                    String::new()
                } else {
                    reply
                }
            });
            assert_eq!(through, direct, "{protocol}: {line}");
        }
    }
}

#[test]
fn a_reply_that_is_under_way_comes_before_the_word_that_it_is_old() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    let (mut client, mut direct) = (resp3(&front), redis.client());
    client.ask("CLIENT TRACKING ON");
    for read in ["GET k", "MGET k other", "EVAL_RO return 1 k"] {
        front.knobs().hold = true;
        let read = if read.starts_with("EVAL") {
            "EVAL_RO return(1) 1 k"
        } else {
            read
        };
        client.send(&command(read));
        // Barriers are bypasses, too, so they must be left out.
        let is_read = |(reads, form, _): &(bool, Form, usize)| *reads && *form == Form::Single;
        eventually("the read is under way", || {
            front.knobs().bypasses.iter().any(is_read)
        });
        front.knobs().bypasses.clear();
        direct.ask("INCR k");
        // When the client sends its next command, the front has been told of the change.
        std::thread::sleep(Duration::from_millis(100));
        front.knobs().hold = false;
        assert!(
            !client.text().starts_with(">2"),
            "{read}: the reply comes first"
        );
        assert_eq!(client.text(), push("k"), "{read}");
    }
}

#[test]
fn own_writes_are_told_before_redis_has_them() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    let (mut client, mut bare) = (resp3(&front), resp3(&front));
    client.ask("CLIENT TRACKING ON");
    bare.ask("CLIENT TRACKING ON NOLOOP");
    for client in [&mut client, &mut bare] {
        client.ask("MGET k x");
    }
    // Only the devices have acknowledged the write. Redis has not executed it.
    front.knobs().outcome = Some(pmnet_front::upstream::Outcome::Committed { copies: 1 });
    assert_eq!(client.ask("SET k 1"), "+OK\r\n");
    assert_eq!(client.text(), push("k"));
    assert_eq!(bare.ask("SET k 1"), "+OK\r\n");
    says_nothing(&mut bare);
    front.knobs().outcome = None;
    client.send(
        &[
            command("MULTI"),
            command("SET x 1"),
            command("GET x"),
            command("EXEC"),
        ]
        .concat(),
    );
    let replies = [(); 4].map(|()| client.text());
    assert_eq!(replies[3], "*2\r\n+OK\r\n$1\r\n1\r\n");
    assert_eq!(client.text(), push("x"));
    // If it is not certain that a key is unchanged, the client gets a message.
    assert_eq!(bare.text(), push("x"));
}

#[test]
fn when_redis_cannot_tell_all_counts_as_changed_and_reads_wait() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start_with(&redis, |config| {
        config.call_timeout = Duration::from_secs(2)
    });
    let (mut client, mut bare, mut direct) = (resp3(&front), resp3(&front), redis.client());
    client.ask("CLIENT TRACKING ON");
    bare.ask("CLIENT TRACKING ON BCAST");
    client.ask("GET k");
    let ends = link(&mut direct).expect("a client that is told of all keys");
    assert_eq!(direct.ask(&format!("CLIENT KILL ID {ends}")), ":1\r\n");
    assert_eq!(
        (client.text(), bare.text()),
        (ALL.to_owned(), ALL.to_owned())
    );
    // The front makes the connection again, and reads wait for the new connection.
    client.ask("GET k");
    assert!(link(&mut direct).is_some(), "the read waited for it");
    direct.ask("SET k 1");
    assert_eq!((client.text(), bare.text()), (push("k"), push("k")));
    // From now on Redis is silent.
    client.ask("GET k");
    redis.signal("-STOP");
    assert_eq!(client.text(), ALL);
    let error = client.ask("GET k");
    assert!(
        error.contains("CLIENT TRACKING") && error.contains("not executed"),
        "{error}"
    );
    assert_eq!(client.ask("PING"), "+PONG\r\n");
    redis.signal("-CONT");
    eventually("it is told again", || !client.ask("GET k").starts_with('-'));
    direct.ask("SET k 2");
    assert_eq!(client.text(), push("k"));
}

#[test]
fn after_a_failover_all_counts_as_changed() {
    let (Some(redis), Some(next)) = (Redis::start(), Redis::start()) else {
        return;
    };
    let front = Running::start(&redis);
    let mut client = resp3(&front);
    client.ask("CLIENT TRACKING ON");
    client.ask("GET k");
    front.knobs().moved = Some(next.address);
    assert_eq!(client.text(), ALL);
    client.ask("GET k");
    next.client().ask("SET k 1");
    assert_eq!(client.text(), push("k"));
}

#[test]
fn without_the_right_or_without_redis_it_is_refused() {
    let Some(redis) = Redis::start() else { return };
    redis.client().ask("ACL SETUSER default -client|tracking");
    let front = Running::start(&redis);
    let mut client = resp3(&front);
    let error = client.ask("CLIENT TRACKING ON");
    assert!(
        error.starts_with("-ERR pmnet: ") && error.contains("NOPERM"),
        "{error}"
    );
    redis.client().ask("ACL SETUSER default +client|tracking");
    eventually("it is asked again", || {
        client.ask("CLIENT TRACKING ON") == "+OK\r\n"
    });

    let knobs = Knobs {
        address: Some(Bytes::from_static(b"+OK\r\n")),
        ..Knobs::default()
    };
    let front = Running::start_as(&redis, knobs, |_| {});
    let error = resp3(&front).ask("CLIENT TRACKING ON");
    assert!(
        error.starts_with("-ERR pmnet: ") && error.contains("no Redis"),
        "{error}"
    );
}

#[test]
fn a_client_that_blocks_is_told_at_once() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    let (mut client, mut direct) = (resp3(&front), redis.client());
    client.ask("CLIENT TRACKING ON");
    client.ask("GET k");
    client.send(&command("BLPOP list 0"));
    eventually("it blocks", || {
        direct.ask("INFO clients").contains("blocked_clients:1")
    });
    direct.ask("SET k 1");
    assert_eq!(client.text(), push("k"));
    direct.ask("RPUSH list x");
    assert_eq!(client.text(), "*2\r\n$4\r\nlist\r\n$1\r\nx\r\n");
}

/// A client that caches values as libraries do: RESP3, one connection.
struct Caching {
    client: Client,
    cache: HashMap<String, String>,
    hits: usize,
    told: usize,
}

impl Caching {
    fn new(front: &Running) -> Caching {
        let mut client = resp3(front);
        assert_eq!(client.ask("CLIENT TRACKING ON"), "+OK\r\n");
        Caching {
            client,
            cache: HashMap::new(),
            hits: 0,
            told: 0,
        }
    }

    /// Returns the next reply. Messages that come before the reply change the cache.
    fn reply(&mut self) -> String {
        loop {
            let text = self.client.text();
            if !text.starts_with('>') {
                return text;
            }
            self.told += 1;
            if text == ALL {
                self.cache.clear();
            } else {
                let key = text.split("\r\n").nth(5).expect("a key");
                self.cache.remove(key);
            }
        }
    }

    fn read(&mut self, keys: &[String]) {
        let keys: Vec<&String> = keys
            .iter()
            .filter(|key| !self.cache.contains_key(*key))
            .collect();
        self.hits += usize::from(keys.is_empty());
        let frames = keys.iter().flat_map(|key| command(&format!("GET {key}")));
        self.client.send(&frames.collect::<Vec<u8>>());
        for key in keys {
            let value = self.reply();
            if value.starts_with('$') || value.starts_with('_') {
                self.cache.insert(key.clone(), value);
            }
        }
    }
}

/// Returns the next number of a deterministic sequence.
fn next(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed
}

/// The guarantee: when no key changes any more and all messages have come, no client caches an old value.
#[test]
fn no_cache_keeps_what_has_changed() {
    let Some(redis) = Redis::start() else { return };
    for direct_reads in [false, true] {
        let knobs = Knobs {
            reads_allowed: direct_reads,
            ..Knobs::default()
        };
        let front = Running::start_as(&redis, knobs, |_| {});
        // The head has no update of the key, or it has an old update, like the log of a real head.
        front.knobs().answer = Some(|_, _| ReadAnswer::Miss {
            epoch: 0,
            need: 0,
            version: 0,
            replicas: 0,
        });
        let mut caching: Vec<Caching> = (0..3).map(|_| Caching::new(&front)).collect();
        let writers: Vec<Client> = vec![front.client(), redis.client(), front.client()];
        let begun = Instant::now();
        let threads: Vec<_> = writers
            .into_iter()
            .enumerate()
            .map(|(at, mut writer)| {
                std::thread::spawn(move || {
                    let mut seed = 77 + at as u64;
                    while begun.elapsed() < Duration::from_millis(1500) {
                        let key = next(&mut seed) % 12;
                        let line = match next(&mut seed) % 6 {
                            0 => format!("DEL k{key}"),
                            1 => format!("MSET k{key} {at} k{} {at}", (key + 1) % 12),
                            2 => format!("APPEND k{key} {at}"),
                            3 => format!("SET k{key} {at} PX 3"),
                            _ => format!("SET k{key} {}", next(&mut seed) % 1000),
                        };
                        writer.ask(&line);
                        std::thread::sleep(Duration::from_micros(next(&mut seed) % 1500));
                    }
                })
            })
            .collect();
        let (mut seed, mut direct, mut kills) = (5, redis.client(), 0);
        while begun.elapsed() < Duration::from_millis(1600) {
            for one in &mut caching {
                let count = 1 + next(&mut seed) % 4;
                let keys: Vec<String> = (0..count)
                    .map(|_| format!("k{}", next(&mut seed) % 12))
                    .collect();
                one.read(&keys);
                if next(&mut seed).is_multiple_of(16) {
                    one.client.send(&command(&format!("SET {} own", keys[0])));
                    one.reply();
                    assert!(
                        !one.cache.contains_key(&keys[0]) || one.reply_is_due(),
                        "own write"
                    );
                }
            }
            if next(&mut seed).is_multiple_of(64)
                && let Some(link) = link(&mut direct)
            {
                direct.ask(&format!("CLIENT KILL ID {link}"));
                kills += 1;
            }
        }
        for thread in threads {
            thread.join().expect("a writer");
        }
        // All clients see that the keys with a time to live have expired.
        eventually("keys with a time to live are over", || {
            (0..12).all(|key| direct.ask(&format!("PTTL k{key}")).contains('-'))
        });
        let settled = Instant::now();
        loop {
            let mut old = Vec::new();
            for one in &mut caching {
                one.client.send(&command("PING"));
                assert_eq!(one.reply(), "+PONG\r\n");
                for (key, kept) in &one.cache {
                    let now = direct.ask(&format!("GET {key}"));
                    let kept = if kept == "_\r\n" { "$-1\r\n" } else { kept };
                    if now != kept {
                        old.push((key.clone(), kept.to_owned(), now));
                    }
                }
            }
            if old.is_empty() {
                break;
            }
            assert!(
                settled.elapsed() < DEADLINE,
                "kept although it has changed: {old:?}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        for one in &caching {
            assert!(
                one.hits > 0 && one.told > 0,
                "{} hits, told {} times",
                one.hits,
                one.told
            );
        }
        assert!(kills > 0, "no connection was ended");
        redis.client().ask("FLUSHALL");
    }
}

impl Caching {
    /// If a client changes a key by its own write, the message about the key comes directly after the reply.
    fn reply_is_due(&mut self) -> bool {
        self.client.send(&command("PING"));
        self.reply() == "+PONG\r\n"
    }
}
