//! Neighbouring SETs of a batch reach Redis as one MSET. The effect on the data is the same.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use crate::support::{Redis, batch, load, payload, single, watermark};
use bytes::Bytes;
use pmnet_resp::write_command;
use pmnet_server::{Store, StoreError};
use pmnet_wire::command::{Form, Protocol};

/// Starts a Redis with a user for the store.
fn ready() -> Option<(Redis, Box<dyn Store>)> {
    let redis = Redis::start(&[])?;
    rights(&redis, "on >secret +@all allkeys allchannels");
    let url = format!("redis://shard:secret@127.0.0.1:{}", redis.port);
    let mut store = pmnet_store::open(&url, 0).unwrap();
    store.load().unwrap();
    Some((redis, store))
}

/// Changes the rights of the user as which the store logs in.
fn rights(redis: &Redis, rules: &str) {
    let mut command = vec!["ACL", "SETUSER", "shard"];
    command.extend(rules.split(' '));
    assert_eq!(redis.call(&command), "+OK\r\n");
}

/// Returns how often a command was called, as Redis counts it.
fn calls(redis: &Redis, command: &str) -> u64 {
    let statistics = redis.call(&["INFO", "commandstats"]);
    let prefix = format!("cmdstat_{command}:calls=");
    let line = statistics
        .lines()
        .find_map(|line| line.strip_prefix(&prefix));
    line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
}

fn sets(keys: &[&str]) -> Vec<Bytes> {
    keys.iter()
        .map(|key| single(&format!("SET {key} v")))
        .collect()
}

#[test]
fn a_run_of_sets_is_one_command_and_takes_the_place_of_anything() {
    let Some((redis, mut store)) = ready() else {
        return;
    };
    redis.call(&["RPUSH", "list", "x"]);
    redis.call(&["SET", "timed", "x", "EX", "1000"]);
    let effects = sets(&["list", "timed", "new"]);
    assert_eq!(store.apply(&batch(&effects, 1)), Ok(0));
    for key in ["list", "timed", "new"] {
        assert_eq!(redis.get(key).as_deref(), Some("v"), "{key}");
        assert_eq!(redis.call(&["TTL", key]), ":-1\r\n", "{key}");
    }
    assert_eq!(calls(&redis, "mset"), 1);
    assert_eq!(
        calls(&redis, "set"),
        1,
        "the one that this test has sent itself"
    );
}

#[test]
fn the_order_of_a_batch_stays() {
    let Some((redis, mut store)) = ready() else {
        return;
    };
    let other = |line| payload(Form::Single, Protocol::Resp2, 3, &[line]);
    redis.call(&["RPUSH", "list", "x"]);
    let effects = [
        single("SET a 1"),
        single("DEL a"),
        single("SET a 2"),
        single("SET n 5"),
        single("SET n 6"),
        single("INCR n"),
        other("SET n 1"),
        other("INCR n"),
        single("SET m 1"),
        single("SETEX m 1000 2"),
        single("INCR list"),
        payload(
            Form::Transaction,
            Protocol::Resp2,
            0,
            &["SET list 3", "INCR list", "SET last 1"],
        ),
        single("set last 2"),
        single("SET last 3"),
    ];
    assert_eq!(store.apply(&batch(&effects, 1)), Ok(1), "INCR of a list");
    for (key, value) in [
        ("a", "2"),
        ("n", "7"),
        ("m", "2"),
        ("list", "4"),
        ("last", "3"),
    ] {
        assert_eq!(redis.get(key).as_deref(), Some(value), "{key}");
    }
    assert_ne!(redis.call(&["TTL", "m"]), ":-1\r\n");
    let there = crate::support::read(&mut *store, other("GET n"));
    assert_eq!(there, "$1\r\n2\r\n");
    assert_eq!(watermark(&load(&mut *store)), 1);
}

#[test]
fn a_run_may_be_of_any_length() {
    let Some((redis, mut store)) = ready() else {
        return;
    };
    for (round, length) in (1..).zip([1, 1999, 2000, 2001, 6001]) {
        redis.call(&["DEL", "last"]);
        let mut effects: Vec<Bytes> = (0..length)
            .map(|i| single(&format!("SET k{i} {round}-{i}")))
            .collect();
        effects.push(single("APPEND last x"));
        assert_eq!(store.apply(&batch(&effects, round)), Ok(0), "{length}");
        for i in [0, 1998, 1999, 2000, 2001, 3999, 4000, 6000] {
            if i < length {
                let wanted = format!("{round}-{i}");
                assert_eq!(redis.get(&format!("k{i}")), Some(wanted), "{length}");
            }
        }
        assert_eq!(redis.get("last").as_deref(), Some("x"), "{length}");
        let keys = redis.call(&["DBSIZE"]);
        assert_eq!(keys, format!(":{}\r\n", length + 2), "{length}");
    }
}

#[test]
fn who_listens_hears_of_every_set() {
    let Some((redis, mut store)) = ready() else {
        return;
    };
    redis.call(&["CONFIG", "SET", "notify-keyspace-events", "KEA"]);
    let mut stream = TcpStream::connect(("127.0.0.1", redis.port)).unwrap();
    let mut out = Vec::new();
    write_command(&mut out, &["SUBSCRIBE", "__keyevent@0__:set"]);
    stream.write_all(&out).unwrap();
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    assert!(lines.any(|line| line == ":1"));
    let keys = ["a", "b", "a", "end"];
    assert_eq!(store.apply(&batch(&sets(&keys), 1)), Ok(0));
    let heard: Vec<String> = lines
        .filter(|line| keys.contains(&line.as_str()))
        .take(keys.len())
        .collect();
    assert_eq!(heard, keys);
}

#[test]
fn where_mset_is_not_allowed_it_is_set() {
    let Some((redis, mut store)) = ready() else {
        return;
    };
    rights(&redis, "-mset");
    let effects = sets(&["a", "b"]);
    assert_eq!(store.apply(&batch(&effects, 1)), Ok(0));
    assert_eq!(redis.get("b").as_deref(), Some("v"));
    assert_eq!(calls(&redis, "set"), 2);
    // The user may write `c*`, and by a selector `d`, but no single permission covers all keys of the run. So Redis
    // refuses the MSET, but allows each SET.
    rights(&redis, "+mset resetkeys ~pmnet:{0} ~c* (+set ~d)");
    assert_eq!(store.apply(&batch(&sets(&["c1", "d", "c2"]), 2)), Ok(0));
    for key in ["c1", "d", "c2"] {
        assert_eq!(redis.get(key).as_deref(), Some("v"), "{key}");
    }
    assert_eq!(calls(&redis, "set"), 5);
}

#[test]
fn where_set_is_not_allowed_the_batch_waits_whatever_mset_may() {
    let Some((redis, mut store)) = ready() else {
        return;
    };
    let effects = [&sets(&["a", "b"])[..], &[single("INCR n")]].concat();
    for missing in ["-set", "resetkeys ~pmnet:{0} ~a ~n"] {
        rights(&redis, missing);
        let result = store.apply(&batch(&effects, 1));
        assert!(
            matches!(&result, Err(StoreError::Retry(text)) if text.contains("NOPERM SET")),
            "{missing}: {result:?}"
        );
        rights(&redis, "+@all allkeys");
        assert_eq!(watermark(&load(&mut *store)), 0, "{missing}");
        for key in ["a", "b", "n"] {
            assert_eq!(redis.get(key), None, "{missing}");
        }
    }
    assert_eq!(store.apply(&batch(&effects, 1)), Ok(0));
    assert_eq!(redis.get("n").as_deref(), Some("1"));
}

/// Found: an update of this kind made the shard wait until the right was given, although the update had not been
/// acknowledged early.
#[test]
fn what_is_not_allowed_and_was_not_promised_is_dropped() {
    let Some((redis, mut store)) = ready() else {
        return;
    };
    rights(&redis, "-incr -lpush");
    let mut effects = vec![single("INCR n"); 8];
    effects.extend([single("LPUSH l a"), single("LPUSH l b"), single("SET a v")]);
    assert_eq!(store.apply(&batch(&effects, 1)), Ok(10));
    assert_eq!(redis.get("a").as_deref(), Some("v"));
    // The batch needs a MULTI, because a script cannot run a command that Redis does not know.
    effects.extend([single("NOSUCH k"), single("SET b v")]);
    assert_eq!(store.apply(&batch(&effects, 2)), Ok(11));
    assert_eq!(redis.get("b").as_deref(), Some("v"));
    assert_eq!(watermark(&load(&mut *store)), 2);
    // An update that was acknowledged early waits, and so does an update for which a client may have been told OK. In a
    // script and in a MULTI, both kinds of updates wait.
    for (missing, extra) in [("set -mset", "SET c v"), ("hmset", "HMSET h f v")] {
        for effects in [&effects[..11], &effects[..]] {
            let effects = [effects, &[single(extra)]].concat();
            rights(&redis, &format!("-{missing}"));
            let result = store.apply(&batch(&effects, 3));
            assert!(
                matches!(&result, Err(StoreError::Retry(text)) if text.contains("NOPERM")),
                "{missing}: {result:?}"
            );
            rights(&redis, &format!("+{}", missing.replace('-', "+")));
            assert_eq!(watermark(&load(&mut *store)), 2, "{missing}");
        }
    }
    effects.push(single("HMSET h f v"));
    assert_eq!(store.apply(&batch(&effects, 3)), Ok(11));
}
