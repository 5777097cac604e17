//! Large values, large replies, long pipelines and transactions. The answers must be those of Redis itself.

use pmnet_lab::harness::{Cluster, Medium, StoreKind, Topology, settle};
use pmnet_lab::resp::{Client, Reply, write_command};

use crate::common;
use crate::support::{Caller, bulk, front, ok, seed};

const MIB: usize = 1 << 20;
/// Maximum size of a value (`docs/spec/protocol.md` §3).
const VALUE_MAX: usize = 16 * MIB;

fn cluster(name: &str, medium: Medium) -> Option<Cluster> {
    let mut topology = Topology::new(StoreKind::Redis, 1, medium);
    // On a busy machine these values take long, which is no fault.
    topology.front_args = ["--deadline-ms", "60000"].map(String::from).to_vec();
    common::start(name, topology)
}

/// Returns bytes of all possible values, CR LF included. The bytes do not repeat within a packet.
fn bytes(size: usize, seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut bytes = vec![0; size];
    random.fill(&mut bytes);
    bytes
}

/// Compares two values without printing megabytes.
fn same(what: &str, found: &Reply, expected: &[u8]) {
    match found {
        Reply::Bulk(found) => assert!(
            found == expected,
            "{what}: {} bytes, first difference at {:?}",
            found.len(),
            found.iter().zip(expected).position(|(a, b)| a != b)
        ),
        other => panic!("{what}: {other:?}"),
    }
}

#[test]
fn exactly_sixteen_mebibytes() {
    for medium in [Medium::Dram, Medium::File] {
        let Some(cluster) = cluster("values-16m", medium) else {
            return;
        };
        let mut client = front(&cluster);
        let mut direct = cluster.reader().unwrap();
        let value = bytes(VALUE_MAX, 16);
        for key in ["whole", "again"] {
            let reply = client.call(&[b"SET", key.as_bytes(), &value]).unwrap();
            assert_eq!(reply, ok());
            same(key, &client.call(&["GET", key]).unwrap(), &value);
            same(key, &direct.call(&["GET", key]).unwrap(), &value);
        }
        // Two bypasses write the halves of the value. The value is then read in pieces.
        let (first, second) = value.split_at(VALUE_MAX / 2);
        assert_eq!(client.call(&[b"SET", &b"halves"[..], first]).unwrap(), ok());
        let length = i64::try_from(VALUE_MAX).unwrap();
        assert_eq!(
            client.call(&[b"APPEND", &b"halves"[..], second]).unwrap(),
            Reply::Integer(length)
        );
        assert_eq!(
            client.call(&["STRLEN", "halves"]).unwrap(),
            Reply::Integer(length)
        );
        for (number, piece) in value.chunks(3 * MIB).enumerate() {
            let start = number * 3 * MIB;
            let end = start + piece.len() - 1;
            let reply = client.call(&["GETRANGE", "halves", &start.to_string(), &end.to_string()]);
            same("GETRANGE", &reply.unwrap(), piece);
        }
        same("GET", &client.call(&["GET", "halves"]).unwrap(), &value);
        // The value is an argument of a command that is not a nilext update.
        assert_eq!(
            client.call(&[b"SET", &b"nx"[..], &value, b"NX"]).unwrap(),
            ok()
        );
        same("NX", &direct.call(&["GET", "nx"]).unwrap(), &value);
    }
}

#[test]
fn more_than_sixteen_mebibytes_is_a_clear_error() {
    let Some(cluster) = cluster("values-more", Medium::Dram) else {
        return;
    };
    let mut client = front(&cluster);
    assert_eq!(client.call(&["SET", "small", "1"]).unwrap(), ok());
    for size in [VALUE_MAX + 1, VALUE_MAX + MIB] {
        let value = vec![b'x'; size];
        for command in ["SET", "APPEND", "GETSET"] {
            let mut caller = front(&cluster);
            // The error must arrive although the client sends the whole command before it reads.
            match caller.call(&[command.as_bytes(), b"more", &value]) {
                Ok(Reply::Error(text)) => assert!(text.contains("16 MiB"), "{command}: {text}"),
                other => panic!("{command} of {size} bytes: {other:?}"),
            }
        }
    }
    // The client announces only the length. The error must arrive before the client sends the bytes.
    let mut whole = b"*3\r\n$3\r\nSET\r\n$4\r\nmore\r\n$16777217\r\n".to_vec();
    let reply = front(&cluster).exchange(&whole, 1).unwrap();
    assert!(
        matches!(&reply[0], Reply::Error(text) if text.contains("16 MiB")),
        "{reply:?}"
    );
    // Each argument is small enough, but all arguments together are too large.
    whole.clear();
    let part = vec![b'y'; 6 * MIB];
    write_command(
        &mut whole,
        &[&b"MSET"[..], b"a", &part, b"b", &part, b"c", &part],
    );
    let reply = front(&cluster).exchange(&whole, 1).unwrap();
    assert!(
        matches!(&reply[0], Reply::Error(text) if text.contains("16 MiB")),
        "{:?}",
        reply[0].text()
    );
    // Two commands of a permitted size make a value that is too large for a reply.
    let half = bytes(10 * MIB, 3);
    assert_eq!(client.call(&[b"SET", &b"long"[..], &half]).unwrap(), ok());
    let length = i64::try_from(20 * MIB).unwrap();
    assert_eq!(
        client.call(&[b"APPEND", &b"long"[..], &half]).unwrap(),
        Reply::Integer(length)
    );
    match client.call(&["GET", "long"]).unwrap() {
        Reply::Error(text) => assert!(text.contains("16 MiB"), "{text}"),
        other => panic!("{:?} bytes", other.bytes().map(<[u8]>::len)),
    }
    let end = (20 * MIB - 1).to_string();
    let reply = client.call(&["GETRANGE", "long", &(10 * MIB).to_string(), &end]);
    same("GETRANGE", &reply.unwrap(), &half);
    // The refused commands must have had no effect, and another client must still work.
    assert_eq!(
        client.call(&["EXISTS", "more", "a", "b", "c"]).unwrap(),
        Reply::Integer(0)
    );
    assert_eq!(client.call(&["GET", "small"]).unwrap(), bulk("1"));
}

#[test]
fn replies_of_several_mebibytes() {
    let Some(cluster) = cluster("values-replies", Medium::Dram) else {
        return;
    };
    let mut client = front(&cluster);
    let mut direct = cluster.reader().unwrap();
    for batch in 0..50 {
        let mut push = vec![b"RPUSH".to_vec(), b"list".to_vec()];
        push.extend((0..100).map(|item| bytes(1_000, batch * 100 + item)));
        assert!(matches!(client.call(&push).unwrap(), Reply::Integer(_)));
    }
    let mut mget = vec!["MGET".to_owned()];
    for number in 0..64 {
        let key = format!("key:{number}");
        let value = bytes(128 << 10, number);
        assert_eq!(
            client.call(&[b"SET", key.as_bytes(), &value]).unwrap(),
            ok()
        );
        let field = format!("field:{number}");
        let reply = client.call(&[b"HSET", b"hash", field.as_bytes(), &value[..40_000]]);
        assert_eq!(reply.unwrap(), Reply::Integer(1));
        mget.push(key);
    }
    settle(&cluster).unwrap();
    for ask in [
        vec!["LRANGE".to_owned(), "list".into(), "0".into(), "-1".into()],
        mget,
        vec!["HGETALL".to_owned(), "hash".into()],
    ] {
        let expected = direct.call(&ask).unwrap();
        for _ in 0..3 {
            assert!(client.call(&ask).unwrap() == expected, "{}", ask[0]);
        }
        // Several large values in one pipeline, followed by a write.
        let mut commands = Vec::new();
        write_command(&mut commands, &ask);
        write_command(&mut commands, &["SET", "behind", "1"]);
        write_command(&mut commands, &ask);
        let replies = client.exchange(&commands, 3).unwrap();
        assert!(
            replies[0] == expected && replies[2] == expected,
            "{}",
            ask[0]
        );
        assert_eq!(replies[1], ok());
    }
    // Large values inside a transaction.
    let value = bytes(4 * MIB, 4);
    let mut commands = Vec::new();
    write_command(&mut commands, &["MULTI"]);
    for key in ["m1", "m2", "m3"] {
        write_command(&mut commands, &[b"SET", key.as_bytes(), &value]);
    }
    write_command(&mut commands, &["STRLEN", "m3"]);
    write_command(&mut commands, &["GET", "m1"]);
    write_command(&mut commands, &["EXEC"]);
    let replies = client.exchange(&commands, 7).unwrap();
    let Some(Reply::Array(results)) = replies.last() else {
        panic!("EXEC: {:?}", replies.last().and_then(Reply::text));
    };
    assert_eq!(results[..3], [ok(), ok(), ok()]);
    assert_eq!(results[3], Reply::Integer(i64::try_from(4 * MIB).unwrap()));
    same("GET in EXEC", &results[4], &value);
}

/// Appends one random command, or a transaction of several commands, to `out`. Returns the number of replies.
fn any_command(random: &mut fastrand::Rng, out: &mut Vec<u8>) -> usize {
    let key = |random: &mut fastrand::Rng, kind: &str| format!("{kind}:{}", random.u8(..4));
    // Sometimes the key has a value of another type, because the errors must also be equal.
    let kind = |random: &mut fastrand::Rng, kind: &'static str| match random.u8(..12) {
        0 => ["s", "n", "l", "h", "z", "t"][random.usize(..6)],
        _ => kind,
    };
    let value: String = (0..random.usize(..20))
        .map(|_| random.alphanumeric())
        .collect();
    let number = random.i32(-5..100).to_string();
    let index = random.i32(-6..6).to_string();
    let string = {
        let k = kind(random, "s");
        key(random, k)
    };
    let counter = {
        let k = kind(random, "n");
        key(random, k)
    };
    let list = {
        let k = kind(random, "l");
        key(random, k)
    };
    let hash = {
        let k = kind(random, "h");
        key(random, k)
    };
    let sorted = {
        let k = kind(random, "z");
        key(random, k)
    };
    let set = {
        let k = kind(random, "t");
        key(random, k)
    };
    let field = format!("f{}", random.u8(..4));
    let words: Vec<&str> = match random.u8(..40) {
        0..=4 => vec!["SET", &string, &value],
        5 | 6 => vec!["GET", &string],
        7 => vec!["SET", &string, &value, "NX"],
        8 => vec!["SET", &string, &value, "XX", "GET"],
        9 => vec!["SETEX", &string, "1000", &value],
        10 => vec!["MSET", &string, &value, &counter, &number],
        11 => vec!["MGET", &string, &counter, &list],
        12 => vec!["APPEND", &string, &value],
        13 => vec!["GETRANGE", &string, "1", &index],
        14 => vec!["SETRANGE", &string, "3", &value],
        15 | 16 => vec!["INCR", &counter],
        17 => vec!["DECRBY", &counter, &number],
        18 => vec!["INCRBYFLOAT", &counter, "0.5"],
        19 | 20 => vec!["LPUSH", &list, &value, &number],
        21 => vec!["RPOP", &list],
        22 => vec!["LRANGE", &list, "0", &index],
        23 => vec!["LSET", &list, &index, &value],
        24 | 25 => vec!["HSET", &hash, &field, &value],
        26 => vec!["HGETALL", &hash],
        27 => vec!["HINCRBY", &hash, &field, &number],
        28 => vec!["ZADD", &sorted, &number, &field],
        29 => vec!["ZRANGE", &sorted, "0", "-1", "WITHSCORES"],
        30 => vec!["SADD", &set, &number],
        31 => vec!["SCARD", &set],
        32 => vec!["TYPE", &string],
        33 => vec!["DEL", &string, &list],
        34 => vec!["RENAME", &string, &counter],
        35 => vec![
            "EVAL",
            "return {redis.call('INCR', KEYS[1]), ARGV[1]}",
            "1",
            &counter,
            &value,
        ],
        36 => vec!["SET", &string],
        37 => vec!["NOSUCHCOMMAND", &value, "x"],
        38 => vec!["EXPIRE", &string, "notanumber"],
        _ => {
            write_command(out, &["MULTI"]);
            let mut count = 2;
            for _ in 0..random.usize(1..5) {
                // A command that is invalid by itself aborts the transaction. The abort is also compared.
                let words: Vec<&str> = match random.u8(..6) {
                    0 => vec!["INCR", &counter],
                    1 => vec!["SET", &string, &value],
                    2 => vec!["LPUSH", &list, &value],
                    3 => vec!["HGET", &hash, &field],
                    4 => vec!["GET", &string],
                    _ if random.u8(..4) == 0 => vec!["GET"],
                    _ => vec!["STRLEN", &string],
                };
                write_command(out, &words);
                count += 1;
            }
            write_command(
                out,
                &[if random.u8(..8) == 0 {
                    "DISCARD"
                } else {
                    "EXEC"
                }],
            );
            return count;
        }
    };
    write_command(out, &words);
    1
}

/// Removes the line number from an error about a command in a script, because pmnet runs the script inside another
/// script, where the number is not known.
fn located(reply: &Reply) -> Reply {
    match reply {
        Reply::Error(text) => {
            let end = text.find(", on @user_script:").unwrap_or(text.len());
            Reply::Error(text[..end].to_owned())
        }
        other => other.clone(),
    }
}

/// A pipeline of a thousand mixed commands must get the replies that Redis gives to the single commands.
#[test]
fn pipelines_of_a_thousand_answer_as_redis_does() {
    let seed = seed();
    let Some(cluster) = cluster("values-pipeline", Medium::Dram) else {
        return;
    };
    let mut random = fastrand::Rng::with_seed(seed);
    let mut client = front(&cluster);
    let mut direct: Client = cluster.reader().unwrap();
    // The comparison uses the same Redis process, with another database number.
    assert_eq!(direct.call(&["SELECT", "1"]).unwrap(), ok());
    for round in 0..20 {
        let (mut commands, mut count) = (Vec::new(), 0);
        while count < 1_000 {
            count += any_command(&mut random, &mut commands);
        }
        let expected = direct.exchange(&commands, count).unwrap();
        let found = client.exchange(&commands, count).unwrap();
        for (number, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let (found, expected) = (located(found), located(expected));
            assert_eq!(
                found, expected,
                "seed {seed}, round {round}, reply {number}"
            );
        }
    }
    settle(&cluster).unwrap();
    // Afterwards the data must also be equal.
    let mut other = Caller::new(cluster.redis().unwrap());
    for kind in ["s", "n", "l", "h", "z", "t"] {
        for number in 0..4 {
            let key = format!("{kind}:{number}");
            let expected = direct.call(&["DUMP", &key]).unwrap();
            assert_eq!(other.read(&["DUMP", &key]), expected, "{key}");
        }
    }
}
