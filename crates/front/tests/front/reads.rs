//! Reads that are not bypasses: the head answers them, or the front reads from the store directly.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::{Duration, Instant};

use crate::common::{Client, Knobs, Redis, Running, command, eventually, record, run_id};
use bytes::Bytes;
use pmnet_front::upstream::{Outcome, ReadAnswer};
use pmnet_resp::write_command;
use pmnet_wire::command::Protocol;
use pmnet_wire::command::{Form, key_hash, preamble, single};

/// Epoch of the store's record, and of a head's [`miss`].
const EPOCH: u32 = 7;
const WATERMARK: u64 = 1_000_000_000_000;

fn miss(_: &Knobs, _: &[u64]) -> ReadAnswer {
    ReadAnswer::Miss {
        epoch: EPOCH,
        need: WATERMARK,
        version: 1,
        replicas: 0,
    }
}

fn hit(payload: Vec<u8>) -> ReadAnswer {
    ReadAnswer::Hit {
        epoch: EPOCH,
        order: WATERMARK + 1,
        payload: Bytes::from(payload),
    }
}

fn reading() -> Knobs {
    Knobs {
        reads_allowed: true,
        answer: Some(miss),
        ..Knobs::default()
    }
}

/// Starts a store with a record, and a front that reads from this store.
fn start() -> Option<(Redis, Running)> {
    let redis = Redis::start()?;
    record(&redis, EPOCH, WATERMARK);
    let front = Running::start_as(&redis, reading(), |_| {});
    Some((redis, front))
}

fn pipeline(lines: &[&str]) -> Vec<u8> {
    lines.iter().flat_map(|line| command(line)).collect()
}

fn at_once(client: &mut Client, lines: &[&str]) -> Vec<String> {
    client.send(&pipeline(lines));
    lines.iter().map(|_| client.text()).collect()
}

fn bulk(value: &str) -> String {
    format!("${}\r\n{value}\r\n", value.len())
}

/// Returns the bypasses since the last call of this function, without the front's questions for the store's name.
fn bypassed(front: &Running) -> Vec<(bool, Form, usize)> {
    let mut bypasses = std::mem::take(&mut front.knobs().bypasses);
    bypasses.retain(|bypass| bypass.1 != Form::Barrier);
    bypasses
}

fn hashes(keys: &[&str]) -> Vec<u64> {
    keys.iter().map(|key| key_hash(key.as_bytes())).collect()
}

#[test]
fn a_miss_is_read_from_the_store_in_both_protocols_as_redis_answers() {
    let Some((redis, front)) = start() else {
        return;
    };
    let mut plain = redis.client();
    for line in [
        "SET k v",
        "HSET h a 1 b 2",
        "ZADD z 1.5 m",
        "SADD s x",
        "RPUSH l 1 2 3",
        "SETBIT bits 7 1",
    ] {
        plain.ask(line);
    }
    let lines = [
        "GET k",
        "get none",
        "STRLEN k",
        "HGETALL h",
        "HMGET h a c",
        "ZRANGE z 0 -1 WITHSCORES",
        "ZSCORE z m",
        "SMEMBERS s",
        "SISMEMBER s y",
        "LRANGE l 0 -1",
        "EXISTS k none l",
        "MGET k none h",
        "TYPE z",
        "TTL k",
        "GETBIT bits 7",
        "LCS k k",
    ];
    for hello in ["HELLO 2", "HELLO 3"] {
        plain.ask(hello);
        let mut client = front.client();
        client.ask(hello);
        for line in lines {
            assert_eq!(client.ask(line), plain.ask(line), "{line}");
        }
        assert_eq!(at_once(&mut client, &lines), at_once(&mut plain, &lines));
    }
    assert_eq!(bypassed(&front), []);
    let reads = std::mem::take(&mut front.knobs().reads);
    assert_eq!(reads[0], hashes(&["k"]));
    assert_eq!(reads[10], hashes(&["k", "none", "l"]));
    assert_eq!(reads[15], hashes(&["k"]), "each once");
    let counters = front.stop();
    assert_eq!(counters.direct_reads, 4 * 16);
    assert_eq!((counters.hits, counters.bypassed_reads), (0, 0));
}

#[test]
fn many_keys_are_all_keys() {
    let Some((_redis, front)) = start() else {
        return;
    };
    let mut client = front.client();
    assert!(client.ask("MGET 1 2 3 4 5 6 7 8").starts_with("*8\r\n"));
    assert!(client.ask("MGET 1 2 3 4 5 6 7 8 9").starts_with("*9\r\n"));
    assert!(client.ask("MGET 1 2 3 4 5 6 7 8 8").starts_with("*9\r\n"));
    let reads = front.knobs().reads.clone();
    assert_eq!([reads[0].len(), reads[1].len(), reads[2].len()], [8, 0, 8]);
    assert_eq!(bypassed(&front), []);
}

/// Returns the keys of a SCAN, in pages of this size.
fn scan(client: &mut Client, count: usize) -> Vec<String> {
    let (mut keys, mut cursor) = (Vec::new(), "0".to_owned());
    loop {
        let page = client.ask(&format!("SCAN {cursor} COUNT {count}"));
        let mut lines = page.split("\r\n").skip(2);
        cursor = lines.next().expect("a cursor").to_owned();
        keys.extend(lines.skip(2).step_by(2).map(str::to_owned));
        if cursor == "0" {
            keys.retain(|key| !key.is_empty());
            keys.sort();
            return keys;
        }
    }
}

#[test]
fn keys_are_listed_by_the_store_itself_without_pmnets_own() {
    let Some((redis, front)) = start() else {
        return;
    };
    let mut plain = redis.client();
    plain.ask("SET pmnet:{7} x");
    plain.ask("SET pmnet:other x");
    for number in 0..300 {
        plain.ask(&format!("SET key:{number} x"));
    }
    for (hello, database) in [("HELLO 2", 0), ("HELLO 3", 0), ("HELLO 3", 1)] {
        plain.ask(&format!("SELECT {database}"));
        plain.ask("SET pmnet:{8} x");
        let mut client = front.client();
        client.ask(hello);
        client.ask(&format!("SELECT {database}"));
        bypassed(&front);
        let is_shown = |key: &String| database > 0 || !key.starts_with("pmnet:{");
        for _ in 0..3 {
            for count in [1, 10, 1000] {
                let mut all = scan(&mut plain, count);
                all.retain(is_shown);
                assert_eq!(scan(&mut client, count), all, "{hello} {database}");
            }
        }
        let listed = client.ask("KEYS *");
        let shown = listed.matches("\r\n$").count();
        assert_eq!(shown, if database == 0 { 301 } else { 1 });
        assert_eq!(listed.contains("pmnet:{"), database == 1);
        // The listing travels together with a read of one key.
        let both = at_once(&mut client, &["GET key:7", "SCAN 0 COUNT 1000 TYPE string"]);
        assert_eq!(both[1].contains("pmnet:{"), database == 1);
        // The errors are those of Redis.
        for line in ["SCAN x", "KEYS", "SCAN 0 COUNT", "SCAN 0 MATCH"] {
            assert_eq!(client.ask(line), plain.ask(line), "{line}");
        }
        std::thread::sleep(Duration::from_millis(50));
        client.ask("SCAN 0");
        bypassed(&front);
        client.ask("SCAN 0");
        assert_eq!(bypassed(&front), []);
    }
    assert!(front.knobs().reads.iter().all(Vec::is_empty));
}

/// A listing covers all keys, so the store must have everything that was acknowledged.
#[test]
fn keys_are_listed_behind_everything_acknowledged() {
    let Some((_redis, front)) = start() else {
        return;
    };
    let mut client = front.client();
    client.ask("SCAN 0");
    front.knobs().answer = Some(|_, _| ReadAnswer::Miss {
        epoch: EPOCH,
        need: WATERMARK + 1,
        version: 1,
        replicas: 0,
    });
    bypassed(&front);
    client.ask("SCAN 0");
    assert_eq!(bypassed(&front), [(true, Form::Single, 1)]);
    // The next listing is not read from the store, unless this machine is so slow that the pause is over.
    let waits = (0..20).any(|_| {
        let asked = front.knobs().reads.len();
        client.ask("SCAN 0");
        assert_eq!(bypassed(&front), [(true, Form::Single, 1)]);
        front.knobs().reads.len() == asked
    });
    assert!(waits);
    front.knobs().answer = Some(miss);
    eventually("it tries again", || {
        client.ask("SCAN 0");
        bypassed(&front).is_empty()
    });
}

#[test]
fn long_pipelines_of_reads_are_few_questions() {
    let Some((redis, front)) = start() else {
        return;
    };
    let mut plain = redis.client();
    for i in 0..200 {
        plain.ask(&format!("SET k{i} v{i}"));
    }
    let lines: Vec<String> = (0..200).map(|i| format!("GET k{i}")).collect();
    let lines: Vec<&str> = lines.iter().map(|line| &line[..]).collect();
    let mut client = front.client();
    for _ in 0..5 {
        for (i, reply) in at_once(&mut client, &lines).iter().enumerate() {
            assert_eq!(*reply, bulk(&format!("v{i}")));
        }
    }
    assert_eq!(bypassed(&front), []);
    let reads = front.knobs().reads.len();
    assert!(reads <= 50, "{reads} questions for 1,000 reads");
}

#[test]
fn a_hit_is_the_value_of_a_plain_set_and_of_nothing_else() {
    let Some((redis, front)) = start() else {
        return;
    };
    redis.client().ask("SET k old");
    let mut client = front.client();
    let set = |_: &Knobs, hashes: &[u64]| {
        assert_eq!(hashes, [key_hash(b"k")]);
        hit(single(&["set", "k", "new"]))
    };
    front.knobs().answer = Some(set);
    assert_eq!(client.ask("GET k"), bulk("new"));
    assert_eq!(at_once(&mut client, &["GET k"; 3]), vec![bulk("new"); 3]);
    assert_eq!(client.ask("HELLO 3").as_bytes()[0], b'%');
    assert_eq!(client.ask("GET k"), bulk("new"));
    assert_eq!(bypassed(&front), []);
    // The store has not applied the update, so a read that the hit does not answer is a bypass.
    assert_eq!(client.ask("STRLEN k"), ":3\r\n");
    assert_eq!(at_once(&mut client, &["GET k", "STRLEN k"])[0], bulk("old"));
    assert_eq!(bypassed(&front).len(), 2);
    let others: [fn(&Knobs, &[u64]) -> ReadAnswer; 6] = [
        |_, _| hit(single(&["SET", "other", "new"])),
        |_, _| hit(single(&["APPEND", "k", "new"])),
        |_, _| hit(single(&["SET", "k", "new", "EX", "9"])),
        |_, _| hit(single(&["MSET", "k", "new"])),
        |_, _| {
            let mut payload = preamble(Form::Single, Protocol::Resp2, 1).to_vec();
            write_command(&mut payload, &["SET", "k", "new"]);
            hit(payload)
        },
        |_, _| hit(b"damaged".to_vec()),
    ];
    for other in others {
        front.knobs().answer = Some(other);
        assert_eq!(client.ask("GET k"), bulk("old"));
        assert_eq!(bypassed(&front).len(), 1);
    }
    // A store that has applied the update is fresh enough.
    front.knobs().answer = Some(|_, _| ReadAnswer::Hit {
        epoch: EPOCH,
        order: WATERMARK,
        payload: Bytes::from(single(&["APPEND", "k", "x"])),
    });
    assert_eq!(client.ask("GET k"), bulk("old"));
    assert_eq!(bypassed(&front), []);
    assert_eq!(front.stop().hits, 5);
}

#[test]
fn a_store_that_is_not_as_fresh_or_of_another_epoch_is_not_used() {
    let Some((redis, front)) = start() else {
        return;
    };
    let mut client = front.client();
    client.ask("SET k v");
    assert_eq!(client.ask("GET k"), bulk("v"));
    assert_eq!(bypassed(&front), []);
    let unfit: [fn(&Knobs, &[u64]) -> ReadAnswer; 4] = [
        |_, _| ReadAnswer::Miss {
            epoch: EPOCH,
            need: WATERMARK + 1,
            version: 1,
            replicas: 0,
        },
        |_, _| ReadAnswer::Miss {
            epoch: EPOCH + 1,
            need: 0,
            version: 1,
            replicas: 0,
        },
        |_, _| ReadAnswer::Miss {
            epoch: EPOCH - 1,
            need: 0,
            version: 1,
            replicas: 0,
        },
        |_, _| ReadAnswer::None,
    ];
    for answer in unfit {
        front.knobs().answer = Some(answer);
        assert_eq!(client.ask("GET k"), bulk("v"));
        assert_eq!(at_once(&mut client, &["GET k", "GET j"])[0], bulk("v"));
        assert_eq!(
            bypassed(&front),
            [(true, Form::Single, 1), (true, Form::Pipeline, 2)]
        );
    }
    // If the head does not answer, the next reads do not ask it. Later reads ask the head again after a pause.
    let asked = front.knobs().reads.len();
    assert_eq!(client.ask("GET k"), bulk("v"));
    assert_eq!(
        front.knobs().reads.len(),
        asked,
        "asked a silent head again at once"
    );
    front.knobs().answer = Some(miss);
    eventually("it is asked again", || {
        client.ask("GET k");
        front.knobs().reads.len() > asked
    });
    // The records are invalid or missing.
    bypassed(&front);
    let mut plain = redis.client();
    for line in [
        "HSET pmnet:{0} watermark 7",
        // If the store is a replica of the server's store, its record names another store.
        "HSET pmnet:{0} store another",
        "HDEL pmnet:{0} watermark",
        "DEL pmnet:{0}",
        "SET pmnet:{0} x",
    ] {
        plain.ask(line);
        assert_eq!(client.ask("GET k"), bulk("v"), "{line}");
        assert_eq!(bypassed(&front).len(), 1, "{line}");
    }
}

/// Sends reads until the next MISS of this version is probable.
fn warm(client: &mut Client) {
    for _ in 0..9 {
        client.ask("GET warm");
    }
}

/// Makes the head answer a read of `k` with this answer, after the store has answered.
fn behind_the_store(
    (redis, front): (&Redis, &Running),
    client: &mut Client,
    meanwhile: &str,
    answer: fn(&Knobs, &[u64]) -> ReadAnswer,
) -> String {
    let mut plain = redis.client();
    let reads = |plain: &mut Client| {
        let text = plain.ask("INFO commandstats");
        let (_, rest) = text
            .split_once("cmdstat_get:calls=")
            .expect("it was read from");
        let digits = rest.split(',').next().expect("a number");
        digits.parse::<u64>().expect("a number")
    };
    let before = reads(&mut plain);
    front.knobs().is_slow = true;
    client.send(&command("GET k"));
    eventually("the store is asked", || reads(&mut plain) > before);
    plain.ask(meanwhile);
    let mut knobs = front.knobs();
    (knobs.answer, knobs.is_slow) = (Some(answer), false);
    drop(knobs);
    client.text()
}

#[test]
fn where_a_miss_is_probable_head_and_store_are_asked_at_once() {
    let Some((redis, front)) = start() else {
        return;
    };
    let mut client = front.client();
    let mut plain = redis.client();
    warm(&mut client);
    for number in 0..20 {
        plain.ask(&format!("SET k {number}"));
        assert_eq!(client.ask("GET k"), bulk(&number.to_string()));
        let several = at_once(&mut client, &["GET k", "GET none", "STRLEN k"]);
        assert_eq!(several[..2], [bulk(&number.to_string()), "$-1\r\n".into()]);
    }
    plain.ask("SET k old");
    let said = behind_the_store((&redis, &front), &mut client, "SET k new", miss);
    assert_eq!(said, bulk("old"), "both may be; it was read before");
    assert_eq!(client.ask("GET k"), bulk("new"));
    assert_eq!(bypassed(&front), []);
    let counters = front.stop();
    assert_eq!(counters.direct_reads, 9 + 20 * 4 + 2);
    assert_eq!(counters.reads_at_once, counters.direct_reads - 9);
}

#[test]
fn what_the_store_said_is_not_used_behind_another_version_epoch_or_update() {
    let Some((redis, front)) = start() else {
        return;
    };
    let mut client = front.client();
    let both = (&redis, &front);
    let mut plain = redis.client();
    plain.ask("SET k old");
    // In the meantime a call without an order was answered, so the front asks the store again.
    warm(&mut client);
    let other: fn(&Knobs, &[u64]) -> ReadAnswer = |_, _| ReadAnswer::Miss {
        epoch: EPOCH,
        need: WATERMARK,
        version: 2,
        replicas: 0,
    };
    let said = behind_the_store(both, &mut client, "SET k second", other);
    assert_eq!(said, bulk("second"));
    assert_eq!(client.ask("GET k"), bulk("second"), "not asked at once");
    assert_eq!(bypassed(&front), []);
    // A HIT is newer than the store.
    warm(&mut client);
    let said = behind_the_store(both, &mut client, "SET k third", |_, _| {
        hit(single(&["SET", "k", "pending"]))
    });
    assert_eq!(said, bulk("pending"));
    front.knobs().answer = Some(miss);
    assert_eq!(at_once(&mut client, &["GET k", "GET none"])[1], "$-1\r\n");
    assert_eq!(bypassed(&front), []);
    // If the store lacks the order, or its record names another epoch, the read becomes a bypass, which waits at the
    // server.
    let unfit: [fn(&Knobs, &[u64]) -> ReadAnswer; 3] = [
        |_, _| ReadAnswer::Miss {
            epoch: EPOCH,
            need: WATERMARK + 1,
            version: 1,
            replicas: 0,
        },
        |_, _| ReadAnswer::Miss {
            epoch: EPOCH + 1,
            need: WATERMARK,
            version: 1,
            replicas: 0,
        },
        |_, _| ReadAnswer::None,
    ];
    for (number, answer) in unfit.into_iter().enumerate() {
        front.knobs().answer = Some(miss);
        eventually("the head is asked again", || {
            let asked = front.knobs().reads.len();
            client.ask("GET warm");
            front.knobs().reads.len() > asked
        });
        warm(&mut client);
        bypassed(&front);
        let said = behind_the_store(both, &mut client, &format!("SET k {number}"), answer);
        assert_eq!(said, bulk(&number.to_string()));
        assert_eq!(bypassed(&front), [(true, Form::Single, 1)], "{number}");
    }
    // The client gets an error of the store only from a bypass, not from a direct read.
    front.knobs().answer = Some(miss);
    eventually("the head is asked again", || {
        let asked = front.knobs().reads.len();
        client.ask("GET warm");
        front.knobs().reads.len() > asked
    });
    warm(&mut client);
    plain.ask("RPUSH list 1");
    for _ in 0..3 {
        assert!(client.ask("GET list").starts_with("-WRONGTYPE"));
        assert_eq!(client.ask("GET k"), bulk("2"));
    }
}

#[test]
fn a_client_that_goes_away_leaves_nothing_to_the_next_one() {
    let Some((redis, front)) = start() else {
        return;
    };
    redis.client().ask("SET k v");
    let mut client = front.client();
    warm(&mut client);
    for _ in 0..20 {
        let mut other = front.client();
        front.knobs().is_slow = true;
        other.send(&command("GET k"));
        drop(other);
        front.knobs().is_slow = false;
        let mut next = front.client();
        assert_eq!(next.ask("GET none"), "$-1\r\n");
        assert_eq!(client.ask("GET k"), bulk("v"));
    }
}

#[test]
fn what_the_head_cannot_know_is_a_bypass() {
    let Some((_redis, front)) = start() else {
        return;
    };
    let mut client = front.client();
    assert_eq!(client.ask("GET k"), "$-1\r\n");
    assert_eq!(bypassed(&front), []);
    // A call with an unknown outcome may still take effect. Of all requests, only a bypass is certain to be executed
    // after this call.
    front.knobs().outcome = Some(Outcome::Unknown);
    assert!(client.ask("SET k 1").contains("outcome unknown"));
    front.knobs().outcome = Some(Outcome::Failed("no answer"));
    assert!(client.ask("GET k").contains("no answer"));
    front.knobs().outcome = None;
    bypassed(&front);
    assert_eq!(client.ask("GET k"), "$-1\r\n");
    assert_eq!(bypassed(&front).len(), 1);
    assert_eq!(client.ask("GET k"), "$-1\r\n");
    assert_eq!(bypassed(&front), [], "a bypass was answered since");
    // These reads have no key, run a script, or stand inside MULTI.
    for line in [
        "DBSIZE",
        "EVAL_RO return(1) 0",
        "SORT_RO l",
        "OBJECT HELP",
        "GET pmnet:{0}",
    ] {
        client.ask(line);
        assert_eq!(bypassed(&front).len(), 1, "{line}");
    }
    at_once(&mut client, &["MULTI", "GET k", "EXEC"]);
    assert_eq!(bypassed(&front), [(true, Form::Transaction, 1)]);
    // If a write precedes these reads in the same pipeline, they travel with the write.
    let replies = at_once(
        &mut client,
        &["INCR n", "GET n", "SET j 1", "GET n", "INCR n", "GET n"],
    );
    assert_eq!(replies[1], bulk("1"), "{replies:?}");
    assert_eq!(replies[5], bulk("2"), "{replies:?}");
    assert_eq!(bypassed(&front), [(false, Form::Pack, 6)]);
    let replies = at_once(&mut client, &["INCR n", "GET k", "INCR n", "GET k"]);
    assert_eq!(replies[1], "$-1\r\n", "{replies:?}");
    assert_eq!(bypassed(&front), [(false, Form::Pack, 4)]);
}

#[test]
fn clients_with_a_state_of_their_own_read_as_they_did() {
    let Some((redis, front)) = start() else {
        return;
    };
    redis.client().ask("SET k v");
    let mut watching = front.client();
    assert_eq!(watching.ask("WATCH k"), "+OK\r\n");
    assert_eq!(watching.ask("GET k"), bulk("v"));
    assert_eq!(bypassed(&front), [], "it is passed through");
    let mut subscribed = front.client();
    subscribed.ask("HELLO 3");
    assert!(subscribed.ask("SUBSCRIBE c").starts_with(">3"));
    assert_eq!(subscribed.ask("GET k"), bulk("v"));
    assert_eq!(bypassed(&front), [(true, Form::Single, 1)]);
    assert!(front.knobs().reads.is_empty());
    // From now on these clients read as others do.
    assert_eq!(watching.ask("UNWATCH"), "+OK\r\n");
    assert_eq!(watching.ask("GET k"), bulk("v"));
    assert_eq!(front.knobs().reads.len(), 1);
    assert_eq!(bypassed(&front), []);
}

#[test]
fn the_head_is_asked_when_everything_before_is_acknowledged() {
    let Some((_redis, front)) = start() else {
        return;
    };
    let mut client = front.client();
    front.knobs().hold = true;
    client.send(&pipeline(&["SET k 1", "GET j", "GET k", "PING"]));
    eventually("the write is sent", || front.knobs().updates.len() == 1);
    std::thread::sleep(Duration::from_millis(50));
    assert!(
        front.knobs().reads.is_empty(),
        "asked before the write is acknowledged"
    );
    front.knobs().hold = false;
    for reply in ["+OK\r\n", "$-1\r\n", "$1\r\n1\r\n", "+PONG\r\n"] {
        assert_eq!(client.text(), reply);
    }
    assert_eq!(front.knobs().reads, [hashes(&["j", "k"])]);
    assert_eq!(bypassed(&front), []);
}

#[test]
fn databases_are_told_apart_also_within_one_transaction() {
    let Some((redis, front)) = start() else {
        return;
    };
    let mut plain = redis.client();
    for database in 0..4 {
        plain.ask(&format!("SELECT {database}"));
        plain.ask(&format!("SET k in-{database}"));
    }
    let mut clients: Vec<Client> = (0..12).map(|_| front.client()).collect();
    for (at, client) in clients.iter_mut().enumerate() {
        client.ask(&format!("SELECT {}", at % 4));
    }
    bypassed(&front);
    for _ in 0..50 {
        for client in &mut clients {
            client.send(&pipeline(&["GET k", "EXISTS k nothing"]));
        }
        for (at, client) in clients.iter_mut().enumerate() {
            assert_eq!(client.text(), bulk(&format!("in-{}", at % 4)));
            assert_eq!(client.text(), ":1\r\n");
        }
    }
    assert_eq!(bypassed(&front), []);
}

#[test]
fn without_the_stores_leave_only_hits_are_used() {
    let Some(redis) = Redis::start() else { return };
    record(&redis, EPOCH, WATERMARK);
    let knobs = Knobs {
        reads_allowed: false,
        ..reading()
    };
    let front = Running::start_as(&redis, knobs, |_| {});
    let mut client = front.client();
    client.ask("SET k old");
    assert_eq!(client.ask("GET k"), bulk("old"));
    assert_eq!(front.knobs().reads.len(), 1, "it could have been a hit");
    assert!(client.ask("MGET k j").starts_with("*2"));
    assert_eq!(front.knobs().reads.len(), 1, "no hit can answer it");
    assert_eq!(bypassed(&front).len(), 2);
    front.knobs().answer = Some(|_, _| hit(single(&["SET", "k", "new"])));
    assert_eq!(client.ask("GET k"), bulk("new"));
    // The server may allow direct reads later, so it is asked from time to time.
    front.knobs().answer = Some(miss);
    front.knobs().reads_allowed = true;
    eventually("it is allowed", || {
        bypassed(&front);
        client.ask("GET k");
        bypassed(&front).is_empty()
    });
}

#[test]
fn errors_of_the_store_are_the_bypasses_to_give() {
    let Some((redis, front)) = start() else {
        return;
    };
    redis.client().ask("RPUSH list x");
    redis.client().ask("SET k v");
    let mut client = front.client();
    let replies = at_once(
        &mut client,
        &["GET k", "GET list", "GET k", "LRANGE list 0 -1"],
    );
    assert_eq!(replies[0], bulk("v"));
    assert!(replies[1].starts_with("-WRONGTYPE"), "{replies:?}");
    assert_eq!(replies[2], bulk("v"));
    assert_eq!(replies[3], "*1\r\n$1\r\nx\r\n");
    // The first read that fails becomes a bypass, and so do all later reads.
    assert_eq!(bypassed(&front), [(true, Form::Pipeline, 3)]);
    let counters = front.stop();
    assert_eq!((counters.direct_reads, counters.bypassed_reads), (1, 3));
}

#[test]
fn a_command_that_the_user_may_not_run_is_nobody_elses_trouble() {
    let Some(redis) = Redis::start() else { return };
    record(&redis, EPOCH, WATERMARK);
    let mut plain = redis.client();
    plain.ask("SET k v");
    assert_eq!(
        plain.ask("ACL SETUSER reader on >pw ~* +@all -strlen"),
        "+OK\r\n"
    );
    let direct = |config: &mut pmnet_front::FrontConfig| {
        config.direct = Some(format!("redis://reader:pw@{}", redis.address));
    };
    let front = Running::start_as(&redis, reading(), direct);
    let mut clients: Vec<Client> = (0..6).map(|_| front.client()).collect();
    for _ in 0..20 {
        for (at, client) in clients.iter_mut().enumerate() {
            client.send(&command(["GET k", "STRLEN k", "EXISTS k"][at % 3]));
        }
        for (at, client) in clients.iter_mut().enumerate() {
            let reply = client.text();
            assert_eq!(reply, ["$1\r\nv\r\n", ":1\r\n", ":1\r\n"][at % 3]);
        }
    }
    let counters = front.stop();
    // If the commands of another client make two of a read's transactions fail, the read becomes a bypass.
    assert_eq!(counters.direct_reads + counters.bypassed_reads, 120);
    assert!(
        (60..=80).contains(&counters.direct_reads),
        "{counters:?}: nobody else's trouble"
    );
    // If the front's user may not read the record, all reads are bypasses.
    assert_eq!(plain.ask("ACL SETUSER reader -hmget"), "+OK\r\n");
    let front = Running::start_as(&redis, reading(), direct);
    let mut client = front.client();
    for _ in 0..5 {
        assert_eq!(client.ask("GET k"), bulk("v"));
    }
    let counters = front.stop();
    assert_eq!((counters.direct_reads, counters.bypassed_reads), (0, 5));
}

#[test]
fn replies_that_are_too_long_together_come_by_bypass() {
    let Some((redis, front)) = start() else {
        return;
    };
    let mut plain = redis.client();
    let large = "x".repeat(9_000_000);
    plain.ask(&format!("SET large {large}"));
    plain.ask("SET k v");
    let mut client = front.client();
    let lines = ["GET k", "GET large", "GET k", "GET large", "GET k"];
    let begun = Instant::now();
    for _ in 0..2 {
        for (at, reply) in at_once(&mut client, &lines).into_iter().enumerate() {
            assert!(
                reply == bulk(if at % 2 == 0 { "v" } else { &large }),
                "{at}"
            );
        }
    }
    let quick = begun.elapsed() < Duration::from_secs(1);
    // The first pipeline is read from the store until its replies are too long. The second pipeline follows at once, so
    // its reads are bypasses. If the machine is so busy that a second has passed, the second pipeline is read from the
    // store, too.
    let counters = front.stop();
    let found = (counters.direct_reads, counters.bypassed_reads);
    assert!(found == (3, 7) || !quick && found == (6, 4), "{found:?}");
}

/// How a fake Redis server answers a transaction.
#[derive(Clone, Copy, Debug)]
enum Fake {
    /// The server sends this instead of the right answer.
    Says(&'static str),
    /// The server sends the beginning of a right answer, and closes the connection.
    Half,
    Nothing,
    /// The fake server is not the process that the pmnet server names.
    Other,
}

/// Serves connections one after the other. A connection without input ends the loop.
fn fake(listener: &TcpListener, run: &str, kind: Fake) {
    for stream in listener.incoming() {
        let Ok(mut stream) = stream else { return };
        let mut seen = Vec::new();
        let mut chunk = [0; 4096];
        let run = if matches!(kind, Fake::Other) {
            "other"
        } else {
            run
        };
        let info = format!("run_id:{run}\r\n");
        loop {
            match stream.read(&mut chunk) {
                Ok(0) | Err(_) if seen == b"end" => return,
                Ok(0) | Err(_) => break,
                Ok(count) => seen.extend_from_slice(&chunk[..count]),
            }
            let text = String::from_utf8_lossy(&seen).into_owned();
            let reply = if text.ends_with("owner\r\n") {
                format!("{}$-1\r\n", bulk(&info))
            } else if text.ends_with("EXEC\r\n") {
                match kind {
                    Fake::Says(text) => text.to_owned(),
                    Fake::Half => "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n*2\r\n$8\r\n1234".to_owned(),
                    Fake::Nothing | Fake::Other => String::new(),
                }
            } else {
                continue;
            };
            seen.clear();
            if stream.write_all(reply.as_bytes()).is_err()
                || matches!(kind, Fake::Half) && reply.starts_with('+')
            {
                break;
            }
        }
    }
}

/// A store's reply about its records, in which this store began the epoch.
fn fakes_record(run_id: &str) -> String {
    let store = bulk(run_id);
    format!("*3\r\n$8\r\n\u{1}2345678\r\n$4\r\n\0\0\0\u{7}\r\n{store}")
}

#[test]
fn a_store_that_answers_oddly_or_not_at_all_is_gone_past() {
    let Some(redis) = Redis::start() else { return };
    redis.client().ask("SET k v");
    let run = run_id(&mut redis.client());
    let taken = "+OK\r\n+QUEUED\r\n+QUEUED\r\n";
    let says = |text: String| Fake::Says(Box::leak(text.into_boxed_str()));
    let record = fakes_record(&run);
    let other = fakes_record("another");
    for kind in [
        says(format!(
            "{taken}*2\r\n*3\r\n$8\r\n12345678\r\n$-1\r\n$-1\r\n$4\r\nFAKE\r\n"
        )),
        says(format!(
            "{taken}*2\r\n*3\r\n$-1\r\n$-1\r\n$-1\r\n$4\r\nFAKE\r\n"
        )),
        // This is the record of a replica, which has the records of its master.
        says(format!("{taken}*2\r\n{other}$4\r\nFAKE\r\n")),
        says(format!(
            "{taken}*2\r\n*1\r\n$8\r\n12345678\r\n$4\r\nFAKE\r\n"
        )),
        says(format!("{taken}*3\r\n{record}$4\r\nFAKE\r\n$4\r\nFAKE\r\n")),
        says(format!("{taken}*1\r\n{record}")),
        says(format!("{taken}$4\r\nFAKE\r\n")),
        says(format!("{taken}*-1\r\n")),
        says(format!("{taken}-EXECABORT no reason\r\n")),
        says(format!("{taken}what is this\r\n")),
        says("+OK\r\n+OK\r\n+OK\r\n+OK\r\n".into()),
        says("+OK\r\n-LOADING soon\r\n-LOADING soon\r\n-EXECABORT\r\n".into()),
        says("-LOADING soon\r\n".into()),
        says("$4\r\nFAKE\r\n".into()),
        says("\r\n\r\n".into()),
        Fake::Half,
        Fake::Nothing,
        Fake::Other,
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let address = listener.local_addr().expect("address");
        let name =
            format!("redis://{address}/?run_id={run}&records=pmnet:{{0}}&owner=&reads=direct");
        let thread = std::thread::spawn({
            let run = run.clone();
            move || fake(&listener, &run, kind)
        });
        let knobs = Knobs {
            address: Some(Bytes::from(bulk(&name))),
            ..reading()
        };
        let front = Running::start_as(&redis, knobs, |config| {
            config.call_timeout = Duration::from_secs(1)
        });
        let mut client = front.client();
        assert_eq!(client.ask("GET k"), bulk("v"), "{kind:?}");
        assert_eq!(front.knobs().reads.len(), 1);
        // Reads continue without the fake store, and the front tries to connect to it again.
        for _ in 0..10 {
            assert_eq!(
                at_once(&mut client, &["GET k", "GET k"]),
                [bulk("v"), bulk("v")]
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        let counters = front.stop();
        assert_eq!(
            (counters.direct_reads, counters.bypassed_reads),
            (0, 21),
            "{kind:?}"
        );
        Client::connect(address).send(b"end");
        thread.join().expect("the fake");
    }
}

#[test]
fn a_right_answer_of_the_fake_is_used_so_the_wrong_ones_are_what_is_refused() {
    let Some(redis) = Redis::start() else { return };
    let run = run_id(&mut redis.client());
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let address = listener.local_addr().expect("address");
    let record = fakes_record(&run);
    let right = format!("+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n{record}$4\r\nFAKE\r\n");
    let right = Box::leak(right.into_boxed_str());
    let name = format!("redis://{address}/?run_id={run}&records=pmnet:{{0}}&owner=&reads=direct");
    let thread = std::thread::spawn(move || fake(&listener, &run, Fake::Says(right)));
    let knobs = Knobs {
        address: Some(Bytes::from(bulk(&name))),
        ..reading()
    };
    let front = Running::start_as(&redis, knobs, |_| {});
    assert_eq!(front.client().ask("GET k"), bulk("FAKE"));
    front.stop();
    Client::connect(address).send(b"end");
    thread.join().expect("the fake");
}

#[test]
fn after_a_failover_the_new_store_is_read() {
    let Some((_old, front)) = start() else { return };
    let Some(new) = Redis::start() else { return };
    record(&new, EPOCH, WATERMARK);
    new.client().ask("SET k new");
    let mut client = front.client();
    assert_eq!(client.ask("GET k"), "$-1\r\n");
    front.knobs().moved = Some(new.address);
    eventually("the front knows of it", || {
        client.ask("GET k") == bulk("new")
    });
    bypassed(&front);
    eventually("it is read directly", || {
        assert_eq!(client.ask("GET k"), bulk("new"));
        bypassed(&front).is_empty()
    });
}

#[test]
fn a_connection_that_breaks_is_made_again() {
    let Some((redis, front)) = start() else {
        return;
    };
    let mut client = front.client();
    let mut plain = redis.client();
    plain.ask("SET k v");
    for _ in 0..3 {
        eventually("it is read directly", || {
            bypassed(&front);
            assert_eq!(client.ask("GET k"), bulk("v"));
            bypassed(&front).is_empty()
        });
        // Closes the front's connection for reads, which is the one whose last command is EXEC.
        let list = plain.ask("CLIENT LIST");
        let reader = list.lines().find(|line| line.contains("cmd=exec"));
        let id = reader.and_then(|line| line.split_once("id=")?.1.split(' ').next());
        assert_eq!(
            plain.ask(&format!("CLIENT KILL ID {}", id.expect("a reader"))),
            ":1\r\n"
        );
        assert_eq!(client.ask("GET k"), bulk("v"));
    }
}
