//! Requests on a real Redis. Each request is executed exactly once, gets Redis's reply byte for byte, and has its
//! record.

use crate::support::{Redis, arguments, bare, change, payload, read, script, single};
use bytes::Bytes;
use pmnet_server::{Request, Store};
use pmnet_wire::command::{Form, Protocol, barrier, preamble};

/// The data that the compared commands find.
fn prepare(redis: &Redis, command: &[&str]) {
    let setup: &[&[&str]] = &[
        &["SET", "k", "v"],
        &["SET", "n", "41"],
        &["RPUSH", "l", "x", "y", "z"],
        &["HSET", "h", "f", "0"],
        &["ZADD", "z", "1.25", "a"],
        &["SADD", "s", "m"],
        &["GEOADD", "geo", "13.361389", "38.115556", "p"],
        &["XADD", "st", "1-0", "a", "b"],
        &["SET", "a", "ohmy"],
        &["SET", "b", "my"],
    ];
    for command in setup {
        redis.call(command);
    }
    match command[0] {
        "XADD" => drop(redis.call(&["DEL", "st"])),
        "XPENDING" => drop(redis.call(&["XGROUP", "CREATE", "st", "g", "0"])),
        _ => {}
    }
}

fn ready(options: &[&str]) -> Option<(Redis, Box<dyn Store>)> {
    let redis = Redis::start(options)?;
    let mut store = redis.store();
    assert_eq!(store.load().unwrap(), vec![]);
    Some((redis, store))
}

#[test]
fn replies_are_those_of_a_bare_redis() {
    let Some(redis) = Redis::start(&["--appendfsync", "no"]) else {
        return;
    };
    // Each command, whether it reads or writes, is sent as a recorded request, and to a bare Redis with the same fresh
    // data.
    for command in [
        "SET k v",
        "GET k",
        "GET nothing",
        "SET k v GET",
        "SETNX k w",
        "INCR n",
        "DEL n",
        "LPUSH l a b c",
        "LRANGE l 0 -1",
        "DEL l",
        "LPOP l",
        "LPOP l 2",
        "HSET h f 1 g 2",
        "HMGET h f x g y",
        "HGET h f",
        "DEL h",
        "ZADD z 1.5 a 2 b",
        "ZSCORE z a",
        "ZRANGE z 0 -1 WITHSCORES",
        "ZMSCORE z a x",
        "ZADD z INCR 0.25 c",
        "ZPOPMIN z",
        "DEL z",
        "SADD s m",
        "SMEMBERS s",
        "SPOP s",
        "MGET k nothing k nothing nothing",
        "GETDEL k",
        "EXPIRE nothing 5",
        "OBJECT ENCODING nothing",
        "GEOADD geo 13.361389 38.115556 p",
        "GEOPOS geo p q",
        "GEODIST geo p p",
        "DEL geo",
        "BITFIELD bf OVERFLOW FAIL SET u8 0 5 INCRBY u2 0 3",
        "DEL bf",
        "XADD st 1-1 a b",
        "XRANGE st - +",
        "XREAD STREAMS st 5-5",
        "XGROUP CREATE st g 0",
        "XPENDING st g - + 5",
        "DEL st",
        "LMPOP 1 l LEFT",
        "BLPOP l 0",
        "BRPOPLPUSH l m 0",
        "SORT l GET #",
        "PING",
        "PING hi",
        "ECHO x",
        "TYPE k",
        "NOSUCH a b",
        "GET",
        "SET k v EX 0",
        "SET k v NX XX",
        "INCRBY k x",
        "PUBLISH c m",
        "OBJECT HELP",
        "CONFIG GET save",
        "COMMAND COUNT",
        "LCS a b",
        "FUNCTION LIST",
        "HRANDFIELD nothing",
        "SMISMEMBER s a b",
        "TIME x",
        "SETEX k 0 v",
        "ACL WHOAMI",
        "OBJECT FREQ",
        "CLIENTX",
        "LPOP nothing 2",
        "ZINCRBY z 0.1 a",
        "ZINCRBY z inf a",
        "ZADD z NX INCR 1 a",
        "SPOP s 2",
        "HGETALL h",
        "XINFO STREAM st",
        "KEYS h",
        "DBSIZE",
        "RANDOMKEY x",
        "SCAN 0 COUNT 1000 TYPE hash",
        "SCAN x",
    ] {
        for protocol in [Protocol::Resp2, Protocol::Resp3] {
            redis.call(&["FLUSHDB"]);
            let mut fresh = redis.store();
            let words: Vec<&str> = command.split(' ').collect();
            prepare(&redis, &words);
            let wanted = bare(&redis, protocol, &words);
            redis.call(&["FLUSHDB"]);
            fresh.load().unwrap();
            prepare(&redis, &words);
            let got = change(&mut *fresh, script(protocol, &words));
            assert_eq!(got, wanted, "{command} {protocol:?}");
        }
    }
}

#[test]
fn reads_are_passed_through_in_both_protocols_and_any_database() {
    let Some((redis, mut store)) = ready(&[]) else {
        return;
    };
    redis.call(&["HSET", "h", "f", "1"]);
    let hgetall = ["HGETALL h"];
    let request = |form, protocol, database, commands: &[&str]| Request {
        source: pmnet_server::Source::default(),
        payload: payload(form, protocol, database, commands),
        record: None,
    };
    let requests = [
        request(Form::Single, Protocol::Resp2, 0, &hgetall),
        request(Form::Single, Protocol::Resp3, 0, &hgetall),
        Request {
            source: pmnet_server::Source::default(),
            payload: payload(Form::Single, Protocol::Resp2, 3, &["SET k three"]),
            record: Some((b"r".to_vec(), Bytes::new())),
        },
        request(
            Form::Pipeline,
            Protocol::Resp3,
            3,
            &["GET k", "GET none", "SUBSCRIBE c"],
        ),
        request(Form::Transaction, Protocol::Resp2, 3, &["GET k", "PING"]),
        request(Form::Single, Protocol::Resp2, 0, &["GET k"]),
        request(Form::Single, Protocol::Resp2, 99, &["GET k"]),
        Request {
            source: pmnet_server::Source::default(),
            payload: barrier().into(),
            record: None,
        },
        Request {
            source: pmnet_server::Source::default(),
            payload: preamble(Form::StoreAddress, Protocol::Resp2, 0)
                .to_vec()
                .into(),
            record: None,
        },
        Request {
            source: pmnet_server::Source::default(),
            payload: Bytes::from_static(b"nonsense"),
            record: None,
        },
        request(
            Form::Single,
            Protocol::Resp2,
            0,
            &["XREAD BLOCK 0 STREAMS a 0"],
        ),
    ];
    let mut replies = Vec::new();
    store.execute(&requests, &mut replies).unwrap();
    let text: Vec<_> = replies
        .iter()
        .map(|r| String::from_utf8_lossy(r).into_owned())
        .collect();
    assert_eq!(text[0], "*2\r\n$1\r\nf\r\n$1\r\n1\r\n");
    assert_eq!(text[1], "%1\r\n$1\r\nf\r\n$1\r\n1\r\n");
    assert_eq!(text[2], "+OK\r\n");
    assert!(
        text[3].starts_with("$5\r\nthree\r\n_\r\n-ERR pmnet: SUBSCRIBE"),
        "{}",
        text[3]
    );
    assert_eq!(text[4], "*2\r\n$5\r\nthree\r\n+PONG\r\n");
    assert_eq!(text[5], "$-1\r\n");
    assert_eq!(text[6], "-ERR DB index is out of range\r\n");
    let name = crate::support::bulk(&text[7]).expect("a name");
    assert!(name.starts_with(&redis.url()), "{name}");
    assert_eq!(text[8], text[7]);
    assert!(text[9].starts_with("-ERR pmnet: malformed"), "{}", text[9]);
    assert!(text[10].starts_with("-ERR pmnet:"), "{}", text[10]);
    // The next batch still succeeds, so the hash is watched again.
    assert_eq!(
        store.apply(&crate::support::batch(&[single("SET k zero")], 1)),
        Ok(0)
    );
    assert_eq!(read(&mut *store, single("GET k")), "$4\r\nzero\r\n");
}

/// Replies that a Lua script cannot return: nulls inside RESP3 arrays, null arrays, maps in their order, doubles, and
/// integers beyond 53 bits.
#[test]
fn replies_that_lua_cannot_hold_are_redis_own_alone_and_in_transactions() {
    let (Some(redis), Some(other)) = (Redis::start(&[]), Redis::start(&[])) else {
        return;
    };
    let mut store = redis.store();
    store.load().unwrap();
    for there in [&redis, &other] {
        for setup in [
            &["XADD", "st", "1-1", "a", "b"][..],
            &["XADD", "st", "2-1", "a", "b"],
            &["XGROUP", "CREATE", "st", "g", "0"],
            &["XGROUP", "CREATE", "st", "empty", "$"],
            &["XREADGROUP", "GROUP", "g", "c", "STREAMS", "st", ">"],
            &["XTRIM", "st", "MAXLEN", "1"],
            &["HSET", "h", "z", "1", "a", "2", "m", "3", "b", "4"],
            &["ZADD", "z", "1.1", "a", "2", "b"],
            &["BITFIELD", "wide", "SET", "i64", "0", "-9007199254740993"],
        ] {
            there.call(setup);
        }
    }
    let commands = [
        "XREADGROUP GROUP g c STREAMS st 0",
        "XPENDING st empty",
        "XINFO STREAM st",
        "HGETALL h",
        "ZRANGE z 0 -1 WITHSCORES",
        "BITFIELD_RO wide GET i64 0",
        "BITFIELD wide GET i64 0",
        "HMGET h z none a",
        "GEOPOS none a",
        "SET k v",
    ];
    for protocol in [Protocol::Resp2, Protocol::Resp3] {
        let mut all = String::new();
        for command in commands {
            let words: Vec<&str> = command.split(' ').collect();
            let wanted = bare(&other, protocol, &words);
            let got = change(&mut *store, script(protocol, &words));
            assert_eq!(got, wanted, "{command} {protocol:?}");
            all += &wanted;
        }
        let transaction = payload(Form::Transaction, protocol, 0, &commands);
        let got = change(&mut *store, transaction);
        assert_eq!(got, format!("*{}\r\n{all}", commands.len()), "{protocol:?}");
    }
}

#[test]
fn pmnets_own_keys_are_neither_listed_nor_counted() {
    let Some((redis, mut store)) = ready(&[]) else {
        return;
    };
    let store = &mut *store;
    // From now on Redis knows the second script, too.
    let loaded = script(Protocol::Resp2, &["SCRIPT", "LOAD", "return 1"]);
    assert!(change(store, loaded).starts_with("$40"));
    assert_eq!(redis.call(&["DBSIZE"]), ":2\r\n");
    let commands = ["DBSIZE", "RANDOMKEY", "KEYS *", "SCAN 0 COUNT 100"];
    let empty = ":0\r\n$-1\r\n*0\r\n*2\r\n$1\r\n0\r\n*0\r\n";
    let mine = ":1\r\n$4\r\nmine\r\n*1\r\n$4\r\nmine\r\n*2\r\n$1\r\n0\r\n*1\r\n$4\r\nmine\r\n";
    for wanted in [empty, mine] {
        let pipeline = payload(Form::Pipeline, Protocol::Resp2, 0, &commands);
        assert_eq!(read(store, pipeline), wanted);
        let in_array = format!("*4\r\n{wanted}");
        let transaction = payload(Form::Transaction, Protocol::Resp2, 0, &commands);
        assert_eq!(read(store, transaction.clone()), in_array);
        assert_eq!(change(store, transaction), in_array);
        redis.call(&["SET", "mine", "v"]);
    }
    // Another database has none of pmnet's keys.
    let other = payload(Form::Single, Protocol::Resp2, 3, &["KEYS pmnet*"]);
    assert_eq!(read(store, other), "*0\r\n");
}

#[test]
fn integers_are_exact_beyond_what_lua_can_hold() {
    let Some((redis, mut store)) = ready(&[]) else {
        return;
    };
    let store = &mut *store;
    redis.call(&["SET", "n", "9007199254740992"]);
    assert_eq!(change(store, single("INCR n")), ":9007199254740993\r\n");
    assert_eq!(
        change(store, single("INCRBY n 9214364837600034813")),
        ":9223372036854775806\r\n"
    );
    assert_eq!(
        change(store, single("DECRBY n 1")),
        ":9223372036854775805\r\n"
    );
    redis.call(&["HSET", "h", "f", "-9223372036854775807"]);
    assert_eq!(
        change(store, single("HINCRBY h f -1")),
        ":-9223372036854775808\r\n"
    );
    assert_eq!(
        change(
            store,
            single("BITFIELD b SET i64 0 9223372036854775807 GET i64 0")
        ),
        "*2\r\n:0\r\n:9223372036854775807\r\n"
    );
}

#[test]
fn client_scripts_work_inside_ours() {
    let Some((redis, mut store)) = ready(&[]) else {
        return;
    };
    let store = &mut *store;
    let two = Protocol::Resp2;
    let body =
        "return {KEYS[1], ARGV[1], 3.7, false, true, {1, nil, 2}, redis.status_reply('FINE')}";
    let wanted = "*7\r\n$1\r\nk\r\n$1\r\na\r\n:3\r\n$-1\r\n:1\r\n*1\r\n:1\r\n+FINE\r\n";
    assert_eq!(
        change(store, script(two, &["EVAL", body, "1", "k", "a"])),
        wanted
    );
    assert_eq!(bare(&redis, two, &["EVAL", body, "1", "k", "a"]), wanted);
    for protocol in [Protocol::Resp2, Protocol::Resp3] {
        for body in [
            "redis.setresp(3) return redis.call('HGETALL', 'nothing')",
            "redis.setresp(3) return {true, false}",
            "return {true, false}",
            "return {double = 1.5}",
            "return redis.call('INCR', 'word')",
            "return redis.pcall('NOSUCH')",
            "return redis.error_reply('MY own')",
            "return {err = 'PLAIN text'}",
            "return",
            "return 1e300",
            "return redis.sha1hex('x')",
            "local ok, e = pcall(redis.call, 'INCR', 'word') return e",
        ] {
            redis.call(&["SET", "word", "abc"]);
            let wanted = bare(&redis, protocol, &["EVAL", body, "0"]);
            let got = change(store, script(protocol, &["EVAL", body, "0"]));
            // Redis appends the position to a raised error. The error's code and text must be equal on both sides.
            let (wanted, got) = (
                wanted.split(" script:").next(),
                got.split(" script:").next(),
            );
            assert_eq!(got, wanted, "{body} {protocol:?}");
        }
    }
    // The scripts have a shebang line, a compile error, a runtime error, and wrong numbers of keys.
    assert_eq!(
        change(
            store,
            script(two, &["EVAL", "#!lua flags=no-writes\nreturn 7", "0"])
        ),
        ":7\r\n"
    );
    assert!(
        change(store, script(two, &["EVAL", "retur", "0"]))
            .starts_with("-ERR Error compiling script")
    );
    // The position in the error differs between Redis and Valkey.
    let boom = change(store, script(two, &["EVAL", "error('boom')", "0"]));
    assert!(
        boom.starts_with("-ERR user_script:1: boom script: "),
        "{boom}"
    );
    for keys in ["x", "-1", "5"] {
        let command = ["EVAL", "return 1", keys];
        assert_eq!(
            change(store, script(two, &command)),
            bare(&redis, two, &command)
        );
    }
    // EVALSHA of scripts that came by EVAL, by SCRIPT LOAD, or not at all. EVALSHA is sent as a change and as a read.
    let sha = crate::support::bulk(&change(
        store,
        script(
            two,
            &["SCRIPT", "LOAD", "return redis.call('INCR', KEYS[1])"],
        ),
    ))
    .unwrap();
    assert_eq!(
        change(
            store,
            script(two, &["EVALSHA", &sha.to_uppercase(), "1", "c"])
        ),
        ":1\r\n"
    );
    assert_eq!(
        change(store, script(two, &["SCRIPT", "EXISTS", &sha, "ff"])),
        "*2\r\n:1\r\n:0\r\n"
    );
    let none = change(store, script(two, &["EVALSHA", &"0".repeat(40), "0"]));
    assert_eq!(none, "-NOSCRIPT No matching script. Please use EVAL.\r\n");
    let sha = crate::support::bulk(&change(
        store,
        script(two, &["SCRIPT", "LOAD", "return redis.call('GET', 'c')"]),
    ))
    .unwrap();
    assert_eq!(
        read(store, script(two, &["EVALSHA_RO", &sha, "0"])),
        "$1\r\n1\r\n"
    );
    assert_eq!(change(store, script(two, &["SCRIPT", "FLUSH"])), "+OK\r\n");
    assert_eq!(
        change(store, script(two, &["SCRIPT", "EXISTS", &sha])),
        "*1\r\n:0\r\n"
    );
    // The script cannot reach the records.
    for body in ["redis.call('DEL', 'pmnet:{0}')", "redis.call('FLUSHALL')"] {
        assert!(
            change(store, script(two, &["EVAL", body, "0"])).starts_with("-ERR pmnet:"),
            "{body}"
        );
    }
}

#[test]
fn transactions_and_pipelines_are_one_step() {
    let Some((redis, mut store)) = ready(&[]) else {
        return;
    };
    let store = &mut *store;
    let request = |form, commands: &[&str]| payload(form, Protocol::Resp2, 0, commands);
    assert_eq!(
        change(
            store,
            request(
                Form::Transaction,
                &["SET k a", "LPUSH k b", "INCR n", "GET k"]
            )
        ),
        "*4\r\n+OK\r\n-WRONGTYPE Operation against a key holding the wrong kind of value\r\n:1\r\n$1\r\na\r\n"
    );
    // BLPOP cannot run in a script, so this request needs a MULTI.
    assert_eq!(
        change(
            store,
            request(Form::Transaction, &["INCR n", "BLPOP l 0", "INCR n"])
        ),
        "*3\r\n:2\r\n*-1\r\n:3\r\n"
    );
    assert_eq!(
        change(store, request(Form::Transaction, &["INCR n", "NOSUCH"])),
        "-EXECABORT Transaction discarded because of previous errors.\r\n"
    );
    let pipeline = change(
        store,
        request(
            Form::Pipeline,
            &["INCR n", "NOSUCH", "SELECT 3", "BLPOP l 0", "INCR n"],
        ),
    );
    let lines: Vec<&str> = pipeline.split("\r\n").collect();
    assert_eq!(
        (lines[0], lines[3], lines[4]),
        (":4", "*-1", ":5"),
        "{pipeline}"
    );
    assert!(
        lines[1].starts_with("-ERR unknown command 'NOSUCH'"),
        "{pipeline}"
    );
    assert!(lines[2].starts_with("-ERR pmnet: SELECT"), "{pipeline}");
    assert!(
        change(store, request(Form::Transaction, &["INCR n", "MULTI"]))
            .starts_with("-ERR pmnet: MULTI")
    );
    assert!(change(store, single("SET pmnet:{0} x")).starts_with("-ERR pmnet: keys"));
    assert_eq!(
        change(store, single("SET k pmnet:{0}")),
        "+OK\r\n",
        "a value may look like it"
    );
    assert!(change(store, single("CONFIG SET appendonly no")).starts_with("-ERR pmnet:"));
    assert_eq!(redis.get("n").as_deref(), Some("5"));
    // The command has a thousand arguments more than fit into Lua's stack.
    let many: Vec<Vec<u8>> = (0..9000).map(|i| format!("m{i}").into_bytes()).collect();
    let words: Vec<&[u8]> = std::iter::once(&b"RPUSH"[..])
        .chain([&b"big"[..]])
        .chain(many.iter().map(Vec::as_slice))
        .collect();
    assert_eq!(change(store, arguments(&words)), ":9000\r\n");
}

/// Redis 7.0 has none of these commands. Such commands must not reach a newer server.
#[test]
fn commands_that_reach_pmnets_keys_without_naming_them_are_refused() {
    let Some((_redis, mut store)) = ready(&[]) else {
        return;
    };
    let store = &mut *store;
    for line in [
        "FT.CREATE i SCHEMA t TEXT",
        "FT.DROPINDEX i DD",
        "CLUSTER FLUSHSLOT 1",
        "TRIMSLOTS RANGES 1 0 5",
    ] {
        let said = change(store, single(line));
        assert!(said.contains("is not available here"), "{line}: {said}");
        let words: Vec<&str> = line.split(' ').collect();
        let code = format!("return redis.call('{}')", words.join("','"));
        if !line.starts_with("FT.CREATE") {
            let said = change(store, script(Protocol::Resp2, &["EVAL", &code, "0"]));
            assert!(
                said.contains("is not available inside scripts"),
                "{line}: {said}"
            );
        }
    }
    let said = change(store, single("FT.DROPINDEX i"));
    assert!(said.starts_with("-ERR unknown command"), "{said}");
}

/// A client that replays the AOF of a Redis that pmnet has used sends such transactions.
#[test]
fn a_transaction_with_pmnets_own_keys_runs_without_them() {
    let Some((redis, mut store)) = ready(&[]) else {
        return;
    };
    let store = &mut *store;
    let reserved = "-ERR pmnet: keys that begin with pmnet:{ are reserved\r\n";
    for (protocol, form) in [
        (Protocol::Resp2, Form::Transaction),
        (Protocol::Resp3, Form::Transaction),
    ] {
        redis.call(&["DEL", "k", "n"]);
        let mut run = |commands: &[&str]| change(store, payload(form, protocol, 0, commands));
        // The transaction runs in a script, in a MULTI, and with no command left to run.
        let own = "HSET pmnet:{0} owner x";
        let said = run(&[own, "SET k v", "DEL pmnet:{0}:scripts", "INCR n"]);
        assert_eq!(said, format!("*4\r\n{reserved}+OK\r\n{reserved}:1\r\n"));
        let said = run(&["INCR n", own, "SELECT 3", "SET k three", own]);
        assert_eq!(
            said,
            format!("*5\r\n:2\r\n{reserved}+OK\r\n+OK\r\n{reserved}")
        );
        let said = run(&[own, "BLPOP l 0", "INCR n"]);
        assert_eq!(
            said,
            format!("*3\r\n{reserved}*-1\r\n:3\r\n").replace(
                "*-1",
                if protocol == Protocol::Resp3 {
                    "_"
                } else {
                    "*-1"
                }
            )
        );
        assert_eq!(run(&[own, own]), format!("*2\r\n{reserved}{reserved}"));
        assert_eq!(run(&["GET k"]), "*1\r\n$1\r\nv\r\n");
    }
    assert_ne!(redis.call(&["HGET", "pmnet:{0}", "owner"]), "$1\r\nx\r\n");
    // For any other command, the refusal fails the whole transaction.
    let refused = change(
        store,
        payload(
            Form::Transaction,
            Protocol::Resp2,
            0,
            &[
                "INCR n",
                "HSET pmnet:{0} owner x",
                "CONFIG SET appendonly no",
            ],
        ),
    );
    assert!(
        refused.starts_with("-ERR pmnet: acknowledged writes rest"),
        "{refused}"
    );
    assert_eq!(redis.get("n").as_deref(), Some("3"));
}

#[test]
fn a_state_changing_group_is_in_order_and_survives_a_kill() {
    let Some((mut redis, mut store)) = ready(&[]) else {
        return;
    };
    let requests: Vec<Request> = (0..500)
        .map(|i: u32| Request {
            source: pmnet_server::Source::default(),
            payload: single(if i.is_multiple_of(5) {
                "GET n"
            } else {
                "INCR n"
            }),
            record: (!i.is_multiple_of(5))
                .then(|| (format!("r{i}").into_bytes(), Bytes::from_static(b"p"))),
        })
        .collect();
    let mut replies = Vec::new();
    store.execute(&requests, &mut replies).unwrap();
    assert_eq!(replies.len(), 500);
    assert_eq!(&replies[498][..], b":399\r\n");
    assert_eq!(&replies[495][..], b"$3\r\n396\r\n");
    redis.restart();
    let records = crate::support::load(&mut *store);
    assert_eq!(records.len(), 400);
    assert_eq!(redis.get("n").as_deref(), Some("400"));
}

/// Found: each request that cannot run in a script had a transaction of its own. When many clients sent such requests,
/// each request waited for all earlier requests: some 1,400 requests a second in total.
#[test]
fn what_needs_a_transaction_shares_it_with_others() {
    let Some((mut redis, mut store)) = ready(&[]) else {
        return;
    };
    redis.call(&["XGROUP", "CREATE", "st", "g", "0", "MKSTREAM"]);
    for number in 0..60 {
        let id = format!("{}-0", number + 1);
        redis.call(&["XADD", "st", &id, "n", &number.to_string()]);
    }
    let line = |i: u32| match i {
        // Redis does not queue the first of these commands, and the second command fails when it runs.
        7 => "NOSUCH a",
        11 => "XREADGROUP GROUP none c STREAMS st >",
        // Three kinds of requests end a shared transaction: a request that a script can run, a read, and a request of
        // another database.
        20 => "INCR n",
        30 => "GET n",
        _ => "XREADGROUP GROUP g c COUNT 1 STREAMS st >",
    };
    let requests: Vec<Request> = (0..50)
        .map(|i| Request {
            source: pmnet_server::Source::default(),
            payload: if i == 40 {
                payload(Form::Single, Protocol::Resp2, 1, &["XAUTOCLAIM s g c 0 0"])
            } else {
                single(line(i))
            },
            record: (i != 30).then(|| (format!("r{i}").into_bytes(), Bytes::from_static(b"p"))),
        })
        .collect();
    let mut replies = Vec::new();
    store.execute(&requests, &mut replies).unwrap();
    assert_eq!(replies.len(), 50);
    let mut next = 1;
    for (i, reply) in (0..).zip(&replies) {
        let text = String::from_utf8_lossy(reply);
        let expected = match i {
            7 => "-ERR unknown command 'NOSUCH'".to_owned(),
            11 | 40 => "-NOGROUP ".to_owned(),
            20 => ":1\r\n".to_owned(),
            30 => "$1\r\n1\r\n".to_owned(),
            _ => {
                next += 1;
                let id = format!("{}-0", next - 1);
                format!(
                    "*1\r\n*2\r\n$2\r\nst\r\n*1\r\n*2\r\n${}\r\n{id}\r\n",
                    id.len()
                )
            }
        };
        assert!(text.starts_with(&expected), "{i}: {text}, not {expected}");
    }
    let stats = redis.call(&["INFO", "commandstats"]);
    let exec = stats.split("cmdstat_exec:calls=").nth(1).expect("EXEC");
    let exec: u32 = exec.split(',').next().unwrap().parse().unwrap();
    // Some of these transactions ran before the requests were sent.
    assert!(exec <= 9, "{exec} transactions for 47 requests");
    redis.restart();
    let records = crate::support::load(&mut *store);
    for (i, reply) in (0..50).zip(&replies) {
        let name = format!("r{i}").into_bytes();
        let found = records.iter().find(|(key, _)| *key == name);
        let kept = found.map(|(_, value)| value.slice(1..));
        assert_eq!(kept.as_ref(), (i != 30).then_some(reply), "{i}");
    }
}

/// Found: all replies were written in one call, whose length had no bound.
#[test]
fn long_replies_of_a_shared_transaction_are_recorded_in_several_calls() {
    let Some((redis, mut store)) = ready(&[]) else {
        return;
    };
    let push =
        "for i = 1, 5 do redis.call('RPUSH', 'l', i .. string.rep('x', 7999999)) end return 1";
    assert_eq!(redis.call(&["EVAL", push, "0"]), ":1\r\n");
    redis.call(&["CONFIG", "RESETSTAT"]);
    let requests: Vec<Request> = (0..5)
        .map(|i| Request {
            source: pmnet_server::Source::default(),
            payload: single("BLPOP l 0"),
            record: Some((format!("r{i}").into_bytes(), Bytes::from_static(b"p"))),
        })
        .collect();
    let mut replies = Vec::new();
    store.execute(&requests, &mut replies).unwrap();
    let stats = redis.call(&["INFO", "commandstats"]);
    let calls = |name: &str| {
        let found = stats.split(&format!("cmdstat_{name}:calls=")).nth(1);
        found.unwrap().split(',').next().unwrap().to_owned()
    };
    assert_eq!(calls("exec"), "1");
    assert_eq!(calls("eval"), "5", "two that begin it, and three parts");
    let records = store.load().unwrap();
    for (i, reply) in (0..5).zip(&replies) {
        assert!(reply.starts_with(format!("*2\r\n$1\r\nl\r\n$8000000\r\n{}", i + 1).as_bytes()));
        let name = format!("r{i}").into_bytes();
        let found = records.iter().find(|(key, _)| *key == name);
        assert!(
            found.is_some_and(|(_, value)| value[1..] == reply[..]),
            "{i}"
        );
    }
}

/// While memory is short, Redis queues no command.
#[test]
fn those_that_share_a_transaction_are_refused_while_memory_is_short() {
    let Some((redis, mut store)) = ready(&[]) else {
        return;
    };
    redis.call(&["XGROUP", "CREATE", "st", "g", "0", "MKSTREAM"]);
    redis.call(&["XADD", "st", "1-0", "n", "1"]);
    let requests: Vec<Request> = (0..6)
        .map(|i| Request {
            source: pmnet_server::Source::default(),
            payload: single("XREADGROUP GROUP g c STREAMS st >"),
            record: Some((format!("r{i}").into_bytes(), Bytes::from_static(b"p"))),
        })
        .collect();
    let mut replies = Vec::new();
    redis.call(&["CONFIG", "SET", "maxmemory", "1"]);
    store.execute(&requests[..3], &mut replies).unwrap();
    redis.call(&["CONFIG", "SET", "maxmemory", "0"]);
    store.execute(&requests[3..], &mut replies).unwrap();
    let begins: Vec<&[u8]> = replies.iter().map(|reply| &reply[..4]).collect();
    assert_eq!(begins[..3], [b"-OOM"; 3]);
    assert_eq!(begins[3], b"*1\r\n");
    assert_eq!(begins[4..], [b"*-1\r"; 2]);
}

/// Found: the long reply was kept in a record, and was read again at each load. The load then took longer than a call
/// may take, so no load succeeded any more.
#[test]
fn a_reply_that_is_too_long_to_be_handed_on_is_not_kept() {
    const TOO_LONG: &str = "-ERR pmnet: the reply is larger than 16 MiB\r\n";
    let Some((redis, mut store)) = ready(&[]) else {
        return;
    };
    let store = &mut *store;
    redis.call(&["SETRANGE", "large", "9000000", "x"]);
    let mib = "string.rep('x', 1048576)";
    let table = format!("local t = {{}} for i = 1, 20 do t[i] = {mib} end return t");
    for code in [
        format!("redis.call('INCR', 'n') {table}"),
        format!("redis.call('INCR', 'n') return string.rep({mib}, 20)"),
        format!("redis.call('INCR', 'n') return redis.error_reply('E ' .. string.rep({mib}, 20))"),
        format!("redis.call('INCR', 'n') return {{string.rep({mib}, 15), string.rep({mib}, 15)}}"),
    ] {
        let reply = change(
            store,
            crate::support::script(Protocol::Resp2, &["EVAL", &code, "0"]),
        );
        assert_eq!(reply, TOO_LONG, "{code}");
    }
    let twice = [
        "GETSET large y",
        "SETRANGE large 9000000 x",
        "GETSET large z",
    ];
    for (form, commands) in [
        (Form::Transaction, &twice[..]),
        (
            Form::Pipeline,
            &["SETRANGE large 17200000 x", "GETSET large z"],
        ),
        // This transaction needs a MULTI.
        (
            Form::Transaction,
            &[
                "SETRANGE large 17200000 x",
                "BLPOP none 0",
                "GETSET large z",
            ],
        ),
    ] {
        let reply = change(store, payload(form, Protocol::Resp2, 0, commands));
        assert_eq!(reply, TOO_LONG, "{commands:?}");
        redis.call(&["SETRANGE", "large", "9000000", "x"]);
    }
    // A script that raises an error leaves no long record, either.
    let code = format!("redis.call('INCR', 'n') error(string.rep({mib}, 20))");
    let reply = change(
        store,
        crate::support::script(Protocol::Resp2, &["EVAL", &code, "0"]),
    );
    assert_eq!(reply, TOO_LONG);
    assert_eq!(redis.get("n").as_deref(), Some("5"), "each has run");
    assert_eq!(change(store, single("INCR n")), ":6\r\n");
}

#[test]
fn a_transaction_may_select_and_ask_for_replicas() {
    let Some((redis, mut store)) = ready(&[]) else {
        return;
    };
    let store = &mut *store;
    let in_multi = |protocol, database, commands: &[&str]| {
        payload(Form::Transaction, protocol, database, commands)
    };
    for protocol in [Protocol::Resp2, Protocol::Resp3] {
        redis.call(&["DEL", "k"]);
        let commands = [
            "SET k zero",
            "SELECT 1",
            "SET k one",
            "DBSIZE",
            "WAIT 0 100",
            "SELECT 2",
            "FLUSHDB",
            "SET k two",
            "SELECT 0",
            "GET k",
            "DBSIZE",
        ];
        let wanted = "*11\r\n+OK\r\n+OK\r\n+OK\r\n:1\r\n:0\r\n+OK\r\n+OK\r\n+OK\r\n+OK\r\n$4\r\nzero\r\n:1\r\n";
        assert_eq!(change(store, in_multi(protocol, 0, &commands)), wanted);
        // The next request still runs in its own database, and its record is written to database 0.
        assert_eq!(change(store, single("GET k")), "$4\r\nzero\r\n");
        assert_eq!(
            change(store, in_multi(protocol, 2, &["GET k", "SELECT 1"])),
            "*2\r\n$3\r\ntwo\r\n+OK\r\n"
        );
        assert_eq!(change(store, single("GET k")), "$4\r\nzero\r\n");
        assert_eq!(read(store, single("GET k")), "$4\r\nzero\r\n");
    }
    // In these requests the database does not exist, the SELECT is outside a transaction, or there is no record.
    for payload in [
        in_multi(Protocol::Resp2, 0, &["SET k x", "SELECT 99"]),
        in_multi(Protocol::Resp2, 0, &["SET k x", "SELECT x"]),
        single("SELECT 1"),
        single("WAIT 0 1"),
    ] {
        let error = change(store, payload);
        assert!(error.starts_with("-ERR pmnet: "), "{error}");
    }
    let error = read(store, in_multi(Protocol::Resp2, 0, &["SELECT 1", "GET k"]));
    assert!(
        error.starts_with("-ERR pmnet: SELECT is not available"),
        "{error}"
    );
    assert_eq!(redis.get("k").as_deref(), Some("zero"));
    let records = redis.call(&["EXISTS", "pmnet:{0}"]);
    assert!(records.contains('1'), "{records}");
}
