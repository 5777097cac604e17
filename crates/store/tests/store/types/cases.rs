//! Edge cases of `docs/guide/embedded-store.md`, on purpose: what random commands would seldom meet.

use pmnet_wire::command::Protocol;

use super::grammar::Command;
use super::pair::Pair;

/// Commands as words; `\0`, `\n` and `""` stand for a NUL, an end of line and an empty argument.
const CASES: &[&str] = &[
    "ZADD z -0 m",
    "ZSCORE z m",
    "ZADD z 0x10 hex 1e17 large 3000000000000000000 larger",
    "ZSCAN z 0 COUNT 100",
    "ZADD z 1e-400 m",
    "ZADD z 1e400 m",
    "ZADD z nan m",
    "ZRANGEBYSCORE z \"\" 5",
    "ZRANGEBYSCORE z 0 1e999 WITHSCORES",
    "ZADD z XX INCR 1 none",
    "ZINCRBY z INCR m",
    "ZINCRBY z nx m",
    "ZADD z inf i",
    "ZINCRBY z -inf i",
    "ZRANGE z 0 inf BYSCORE LIMIT -1 5",
    "ZRANGE z 0 inf BYSCORE LIMIT 0 -3",
    "ZUNION 1 z WEIGHTS 0 WITHSCORES",
    "ZUNION 2 z z WEIGHTS 1 -1 WITHSCORES",
    "ZPOPMIN z",
    "ZPOPMIN z 1",
    "ZPOPMAX none",
    "ZPOPMAX none 0",
    "ZMPOP 1 none MIN",
    "SET k v",
    "LPUSH l a b c",
    "SET l v GET",
    "TYPE l",
    "SETRANGE none 5 \"\"",
    "EXISTS none",
    "SETRANGE k 536870912 x",
    "SETBIT k 4294967296 1",
    "APPEND k \"\"",
    "BITCOUNT k -1 -5 FOO",
    "BITCOUNT k 0",
    "BITPOS k 0 0 0",
    "LPOP none 0",
    "LPOP none",
    "RPOP l 2",
    "LINDEX none x",
    "LINDEX l x",
    "LSET none x v",
    "LMPOP 0 l LEFT",
    "LMPOP 5 l LEFT",
    "LMPOP 1 l LEFT COUNT 0",
    "SADD t a",
    "SRANDMEMBER t x y",
    "SRANDMEMBER t -9223372036854775808",
    "HSET h f 1",
    "HSET h f",
    "HMSET h f 1 g",
    "HRANDFIELD h x y z",
    "HRANDFIELD h 5 WITHVALUES",
    "HRANDFIELD h 9223372036854775807 WITHVALUES",
    "HINCRBYFLOAT h f 1e5000",
    "HINCRBYFLOAT h f inf",
    "HINCRBYFLOAT h f 0.1",
    "HINCRBY h f 1",
    "SCAN \"\"",
    "SCAN -1x",
    "HSCAN none 0 FOO",
    "SSCAN h 0",
    "EXPIRE k 10 \n",
    "EXPIRE k 10 NX\0XX",
    "EXPIRE k 10 NX GT",
    "EXPIRE k 10 GT LT",
    "EXPIRE k 9223372036854775",
    "EXPIRE k 9223372036854776",
    "PEXPIREAT k -1",
    "EXISTS k",
    "SET k v",
    "GETEX k EXAT 1",
    "EXISTS k",
    "SET k v EX 10 KEEPTTL",
    "SET k v KEEPTTL EX 10",
    "SET k v EX 0",
    "SET k v PXAT 9223372036854775807",
    "PERSIST k",
    "GETEX k PERSIST EX 10",
    "GETEX none EX 0",
    "INCRBYFLOAT n 0.1",
    "INCRBYFLOAT n 0.2",
    "INCRBYFLOAT n 1e17",
    "INCRBYFLOAT n 3.0e-10",
    "INCRBYFLOAT n nan",
    "INCRBYFLOAT n inf",
    "DECRBY n -9223372036854775808",
    "COPY k k",
    "COPY k other DB 16",
    "COPY k other DB 2147483648",
    "MOVE k 0",
    "MOVE k x",
    "RENAME none none",
    "RENAME k k",
    "RENAMENX k k",
    "MSETNX k 1 k2 2",
    "MSETNX k",
    "MSET k 1 k2",
    "SINTERCARD 3 t t",
    "SINTERCARD 1 t LIMIT -1",
    "SINTERCARD x t",
    "SMOVE t l a",
    "SMOVE none l a",
    "SMOVE t t a",
    "ZUNIONSTORE d 0 z",
    "ZUNIONSTORE d 2 z",
    "ZUNIONSTORE d 1 z WEIGHTS x",
    "ZUNIONSTORE d 1 z WITHSCORES",
    "ZDIFF 1 z WEIGHTS 1",
    "ZRANGE z 0 -1 LIMIT 0 1",
    "ZRANGE z 0 -1 LIMIT 0 -1",
    "ZRANGE z - + BYLEX WITHSCORES",
    "ZRANGESTORE d none 0 -1",
    "KEYS [",
    "KEYS \\",
    "LPOS l a RANK 0",
    "LPOS l a COUNT -1",
    "PING a b",
    "FLUSHALL now",
    "NOSUCH a\0b \n",
    "GET",
    "\"\"",
];

fn words(line: &str) -> Command {
    let word = |word: &str| {
        if word == "\"\"" {
            Vec::new()
        } else {
            word.as_bytes().to_vec()
        }
    };
    line.split(' ').map(word).collect()
}

#[test]
fn edge_cases_are_answered_as_by_redis() {
    for scheme in super::SCHEMES {
        let Some(mut pair) = Pair::new(scheme) else {
            return;
        };
        for protocol in [Protocol::Resp2, Protocol::Resp3] {
            for case in CASES {
                pair.compare(protocol, 0, &[words(case)], false);
                pair.transact(protocol, 0, &[words("PING"), words(case)]);
            }
            pair.look();
            pair.compare(protocol, 0, &[words("FLUSHALL")], false);
        }
        assert!(
            pair.differences.is_empty(),
            "{scheme}:\n{}",
            pair.differences.join("\n\n")
        );
    }
}
