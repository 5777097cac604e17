//! Compares the keys that the front finds in commands with those of a real redis-server (`COMMAND GETKEYS`).

use crate::common::{Redis, command, skip::skip};
use pmnet_front::limits::REQUESTS;
use pmnet_front::table::{Table, keys};
use pmnet_resp::{Parser, Status, read};

fn own_keys(words: &str) -> Vec<String> {
    let frame = command(words);
    let mut parser = Parser::new(REQUESTS);
    assert!(matches!(parser.poll(&frame), Ok(Status::Complete)));
    let arguments = parser.arguments(&frame);
    let table = Table::new::<String>(&[]).expect("a table");
    let text = |key: &[u8]| String::from_utf8_lossy(key).into_owned();
    keys(&table.verdict(&arguments), &arguments)
        .into_iter()
        .map(text)
        .collect()
}

#[test]
fn keys_are_where_redis_says() {
    let Some(redis) = Redis::start() else {
        return skip("redis-server is not installed");
    };
    let mut client = redis.client();
    let mut compared = 0;
    for words in [
        "GET a",
        "set a 1 EX 5",
        "MSET a 1 b 2 c 3",
        "MSETNX a 1",
        "DEL a b c",
        "BLPOP a b c 0",
        "BLMOVE a b LEFT RIGHT 0",
        "BITOP AND d a b",
        "BLMPOP 0 2 a b LEFT COUNT 3",
        "BZMPOP 1 1 a MIN",
        "LMPOP 2 a b LEFT",
        "ZMPOP 3 a b c MAX",
        "EVAL x 2 a b c d",
        "EVALSHA x 1 a",
        "FCALL f 2 a b c",
        "FCALL_RO f 1 a",
        "EVAL_RO x 1 a",
        "SINTERCARD 2 a b LIMIT 1",
        "ZUNION 2 a b WITHSCORES",
        "ZINTER 1 a",
        "ZDIFF 2 a b",
        "ZINTERCARD 2 a b",
        "ZUNIONSTORE d 2 a b WEIGHTS 1 2",
        "ZINTERSTORE d 1 a",
        "ZDIFFSTORE d 2 a b",
        "ZRANGESTORE d a 0 1",
        "XREAD COUNT 2 STREAMS a b 0 0",
        "XREAD BLOCK 5 streams a $",
        "XREADGROUP GROUP g c COUNT 1 NOACK STREAMS a b > >",
        "XREADGROUP GROUP streams c STREAMS a >",
        "SORT a",
        "SORT a BY w_* LIMIT 0 5 GET # ALPHA STORE d",
        "SORT a STORE d STORE e",
        "SORT_RO a BY w_*",
        "GEORADIUS a 1 2 3 m",
        "GEORADIUS a 1 2 3 m STORE d",
        "GEORADIUS a 1 2 3 m COUNT 1 STOREDIST d STORE e",
        "GEORADIUSBYMEMBER a m 3 m STORE d",
        "GEOSEARCHSTORE d a FROMMEMBER m BYRADIUS 1 m",
        "MIGRATE h 1 a 0 5",
        "MIGRATE h 1 a 0 5 COPY",
        "OBJECT ENCODING a",
        "XINFO STREAM a",
        "XGROUP CREATE a g $",
        "MEMORY USAGE a",
        "RENAME a b",
        "COPY a b REPLACE",
        "LCS a b",
        "SMOVE a b m",
        "PFMERGE a b c",
        "PFCOUNT a b",
        "WATCH a b",
        "SUNION a b",
        "XADD a * f v",
        "RPOPLPUSH a b",
        "TOUCH a b",
        "RESTORE a 0 x",
    ] {
        let own = own_keys(words);
        client.send(&command(&format!("COMMAND GETKEYS {words}")));
        let reply = client.next().expect("a reply");
        let found: Vec<String> = read::elements(&reply)
            .unwrap_or_else(|| panic!("{words}: {}", String::from_utf8_lossy(&reply)))
            .into_iter()
            .map(|key| String::from_utf8_lossy(read::bulk(key).unwrap_or_default()).into_owned())
            .collect();
        let sorted = |mut keys: Vec<String>| {
            keys.sort();
            keys
        };
        assert_eq!(sorted(own), sorted(found), "{words}");
        compared += 1;
    }
    assert!(compared > 50);
    // According to Redis, shard channels are not keys, but Redis hashes them like keys.
    assert_eq!(own_keys("SPUBLISH a m"), ["a"]);
    assert_eq!(own_keys("SSUBSCRIBE a b"), ["a", "b"]);
    // Redis finds an empty key in this command, although it uses the arguments after KEYS when it runs the command.
    let empty = {
        let mut frame = Vec::new();
        let words = ["MIGRATE", "h", "1", "", "0", "5", "KEYS", "a", "b"];
        pmnet_resp::write_command(&mut frame, &words);
        frame
    };
    let mut parser = Parser::new(REQUESTS);
    assert!(matches!(parser.poll(&empty), Ok(Status::Complete)));
    let arguments = parser.arguments(&empty);
    let table = Table::new::<String>(&[]).expect("a table");
    assert_eq!(
        keys(&table.verdict(&arguments), &arguments),
        [&b"a"[..], b"b"]
    );
}

#[test]
fn commands_without_keys_have_none() {
    for words in [
        "PING",
        "KEYS *",
        "SCAN 0",
        "EVAL x 0",
        "EVAL x -1 a",
        "EVAL x",
        "ZUNION x a",
        "ZINTER 9 a b",
        "EVAL x 3 a b",
        "XREAD STREAMS a b 0",
        "XREAD COUNT 1",
        "OBJECT HELP",
        "OBJECT NOSUCH a",
        "GET",
        "NOSUCH a",
        "CLIENT ID",
        "PUBLISH a b",
        "SUBSCRIBE a",
        "BLPOP a",
    ] {
        assert_eq!(own_keys(words), Vec::<String>::new(), "{words}");
    }
}
