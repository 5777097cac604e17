//! Sends random commands to the front of three shards, and to a real Redis Cluster of one node.
//! Their replies must be identical.

use fastrand::Rng;
use pmnet_lab::resp::Reply;

use super::{Oracle, oracle, pipeline, three};
use crate::support::{connect, seed};

/// Number of pipelines that are compared.
const PIPELINES: usize = 400;

/// Returns a key in one of a few slots. Keys with equal names usually have values of one type.
fn key(random: &mut Rng, tag: &str) -> String {
    format!(
        "{{{tag}}}{}",
        ["s", "n", "l", "h", "z", "t"][random.usize(..6)]
    )
}

fn tag(random: &mut Rng) -> &'static str {
    ["bar", "c", "foo", "hello", "x"][random.usize(..5)]
}

fn typed(random: &mut Rng, tag: &str, kind: &str) -> String {
    // Sometimes the value of a key has another type.
    if random.u8(..12) == 0 {
        key(random, tag)
    } else {
        format!("{{{tag}}}{kind}")
    }
}

/// Returns one command whose keys have these tags. Sometimes the second key has another tag.
fn command(random: &mut Rng) -> String {
    let first = tag(random);
    let second = if random.u8(..4) == 0 {
        tag(random)
    } else {
        first
    };
    let number = random.u8(..20);
    let mut of = |kind: &str, tag: &str| typed(random, tag, kind);
    let (s, s2) = (of("s", first), of("s", second));
    let (n, l, l2) = (of("n", first), of("l", first), of("l", second));
    let (h, z, z2) = (of("h", first), of("z", first), of("z", second));
    let (t, t2) = (of("t", first), of("t", second));
    match random.u8(..62) {
        0 | 1 => format!("SET {s} v{number}"),
        2 => format!("GET {s}"),
        3 => format!("MSET {s} a {s2} b"),
        4 => format!("MGET {s} {s2}"),
        5 => format!("DEL {s} {s2}"),
        6 => format!("EXISTS {s} {s2} {n}"),
        7 => format!("INCR {n}"),
        8 => format!("INCRBY {n} {number}"),
        9 => format!("APPEND {s} x"),
        10 => format!("SETNX {s} y"),
        11 => format!("GETDEL {s}"),
        12 => format!("SETRANGE {s} 2 zz"),
        13 => format!("RPUSH {l} {number} b"),
        14 => format!("LPUSH {l} {number}"),
        15 => format!("LRANGE {l} 0 -1"),
        16 => format!("LMOVE {l} {l2} LEFT RIGHT"),
        17 => format!("LPOP {l}"),
        18 => format!("RPOPLPUSH {l} {l2}"),
        19 => format!("BLPOP {l} {l2} 0.01"),
        20 => format!("LMPOP 2 {l} {l2} LEFT"),
        21 => format!("HSET {h} f{number} {number}"),
        22 => format!("HGET {h} f{number}"),
        23 => format!("HINCRBY {h} f{number} 2"),
        24 => format!("HLEN {h}"),
        25 => format!("ZADD {z} {number} m{number}"),
        26 => format!("ZRANGE {z} 0 -1 WITHSCORES"),
        27 => format!("ZUNIONSTORE {z} 2 {z} {z2}"),
        28 => format!("ZINTER 2 {z} {z2}"),
        29 => format!("ZRANGESTORE {z} {z2} 0 3"),
        30 => format!("ZMPOP 2 {z} {z2} MIN"),
        31 => format!("SADD {t} {number}"),
        32 => format!("SCARD {t}"),
        33 => format!("SINTERCARD 2 {t} {t2}"),
        34 => format!("SINTERSTORE {t} {t} {t2}"),
        35 => format!("SMOVE {t} {t2} {number}"),
        36 => format!("RENAME {s} {s2}"),
        37 => format!("COPY {s} {s2} REPLACE"),
        38 => format!("EVAL return(redis.call('GET',KEYS[1])) 1 {s}"),
        39 => format!("EVAL return{{KEYS[1],KEYS[2]}} 2 {s} {s2}"),
        40 => "EVAL return(7) 0".to_owned(),
        41 => format!("TYPE {}", key(random, first)),
        42 => format!("SORT {l}"),
        43 => format!("SORT {l} BY w_* ALPHA"),
        44 => format!("SORT {l} GET x"),
        45 => format!("SORT {l} ALPHA STORE {l2}"),
        46 => "SELECT 1".to_owned(),
        47 => "SELECT 0".to_owned(),
        48 => format!("MOVE {s} 1"),
        49 => "SWAPDB 0 1".to_owned(),
        50 => format!("COPY {s} {s2} DB 1"),
        51 => format!("CLUSTER KEYSLOT {s}"),
        52 => "PING".to_owned(),
        53 => format!("ECHO {number}"),
        54 => format!("GET {s} {s2}"),
        55 => "NOSUCH a b".to_owned(),
        56 => "CONFIG NOSUCH".to_owned(),
        57 => format!("XADD {{{first}}}x 0-{} f v", number),
        58 => format!("XREAD COUNT 3 STREAMS {{{first}}}x {{{second}}}x 0 0"),
        59 => format!("OBJECT REFCOUNT {l}"),
        60 => format!("PFADD {{{first}}}p {number}"),
        _ => format!("PFCOUNT {{{first}}}p {{{second}}}p"),
    }
}

/// Returns the lines that a client sends together: single commands and transactions.
fn lines(random: &mut Rng) -> Vec<String> {
    let mut lines = Vec::new();
    for _ in 0..1 + random.usize(..12) {
        if random.u8(..6) > 0 {
            lines.push(command(random));
            continue;
        }
        let tag = tag(random);
        let watches = random.bool();
        if watches {
            lines.push(format!("WATCH {{{tag}}}s {{{tag}}}n"));
            // As in a shard, a transaction belongs to the slot of its watched keys.
            lines.push("MULTI".into());
            lines.push(format!("INCR {{{tag}}}n"));
        } else {
            lines.push("MULTI".into());
        }
        for _ in 0..random.usize(..5) {
            let queued = command(random);
            // pmnet refuses SELECT, and commands that no shard accepts, at the moment at which they
            // are queued. Redis refuses these commands when they are executed.
            let runs_late = ["SELECT", "MOVE", "SWAPDB", "CLUSTER", "COPY", "SORT"];
            // While keys are watched, a front accepts no scripts.
            let refused = watches && queued.starts_with("EVAL");
            if !refused && !runs_late.iter().any(|name| queued.starts_with(name)) {
                lines.push(queued);
            }
        }
        lines.push(
            if random.u8(..5) == 0 {
                "DISCARD"
            } else {
                "EXEC"
            }
            .into(),
        );
    }
    lines
}

#[test]
fn words_are_those_of_a_redis_cluster() {
    let Some(shards) = three("shards-words", 10_000) else {
        return;
    };
    let oracle: Oracle = oracle();
    let (mut own, mut other) = (connect(shards.endpoint()), connect(oracle.address));
    let mut random = Rng::with_seed(seed());
    let (mut compared, mut cross, mut executed) = (0, 0, 0);
    for _ in 0..PIPELINES {
        let lines = lines(&mut random);
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let found = pipeline(&mut own, &lines);
        let expected = pipeline(&mut other, &lines);
        for (at, line) in lines.iter().enumerate() {
            assert_eq!(found[at], expected[at], "{line}\nof {lines:#?}");
            compared += 1;
            match &found[at] {
                Reply::Error(text) if text.starts_with("CROSSSLOT ") => cross += 1,
                Reply::Array(_) if *line == "EXEC" => executed += 1,
                _ => {}
            }
        }
    }
    println!("{compared} replies compared, {cross} of them CROSSSLOT, {executed} transactions");
    assert!(compared > 1000 && cross > 100 && executed > 20);
}
