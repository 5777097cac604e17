//! Errors and log lines of scripts equal those of Redis byte for byte.

use crate::support::{Redis, bare, bulk, change, read, script};
use pmnet_wire::command::{Form, Protocol, preamble};

/// The version of Redis whose error texts are compared. Other versions have other texts.
const VERSION: &str = "redis_version:7.0";

fn comparable() -> Option<Redis> {
    let redis = Redis::start(&["--appendfsync", "no"])?;
    if redis.call(&["INFO", "server"]).contains(VERSION) {
        return Some(redis);
    }
    println!("SKIPPED: the texts are those of another Redis");
    None
}

fn same(redis: &Redis, commands: &[&[&str]]) {
    let mut store = redis.store();
    store.load().unwrap();
    for protocol in [Protocol::Resp2, Protocol::Resp3] {
        for command in commands {
            redis.call(&["SET", "word", "abc"]);
            let wanted = bare(redis, protocol, command);
            let got = change(&mut *store, script(protocol, command));
            assert_eq!(got, wanted, "{command:?} {protocol:?}");
        }
    }
}

#[test]
fn errors_say_where_they_come_from() {
    let Some(redis) = comparable() else { return };
    let bodies = [
        "return redis.call('NOSUCH')",
        "return redis.pcall('NOSUCH')",
        "return redis.call('GET')",
        "return redis.call()",
        "return redis.call({})",
        "return redis.call('GET', {})",
        "return redis.call('LPUSH', 'word', 'x')",
        "\n\nreturn redis.call('LPUSH', 'word', 'x')",
        "local x = 1\nlocal y = redis.call('LPUSH', 'word', 'x')\nreturn y",
        "local function push()\n return redis.call('LPUSH', 'word', 'x')\nend\npush()",
        "return redis.call('SUBSCRIBE', 'x')",
        "return redis.call('MULTI')",
        "return redis.sha1hex()",
        "redis.setresp(4)",
        "\nredis.setresp(4)",
        "error('boom')",
        "error('boom', 0)",
        "\nerror({err = 'ERR boom'})",
        "error({err = 'My boom'})",
        "error()",
        "local a = nil\nreturn a.b",
        "return foo",
        "foo = 1",
        "return 1 +",
        "retur",
        "local ok, e = pcall(redis.call, 'LPUSH', 'word', 'x')\nreturn e",
        "local ok, e = pcall(redis.call, 'LPUSH', 'word', 'x')\nerror(e)",
    ];
    let commands = bodies.map(|body| ["EVAL", body, "0"]);
    let commands: Vec<&[&str]> = commands.iter().map(|command| &command[..]).collect();
    same(&redis, &commands);
}

#[test]
fn a_script_that_says_it_writes_nothing_is_kept_to_it() {
    let Some(redis) = comparable() else { return };
    let reads = |body: &str| format!("#!lua flags=no-writes\n{body}");
    let bodies = [
        reads("return redis.call('SET', 'k', 'v')"),
        reads("return redis.pcall('SET', 'k', 'v')"),
        reads("local t = redis.pcall('SET', 'k', 'v')\nreturn t.err"),
        reads("return redis.call('PUBLISH', 'c', 'x')"),
        reads("return redis.call('PFCOUNT', 'none')"),
        reads("return redis.call('GET', 'word')"),
        reads("return redis.call('GET', 'k')"),
        "#!lua\nreturn redis.call('SET', 'k', 'v')".to_owned(),
        "#!lua flags=allow-oom,no-cluster,allow-stale,allow-cross-slot-keys\nreturn 1".to_owned(),
        "#!lua flags=no-writes flags=no-writes\nreturn 1".to_owned(),
        "#!lua flags=\nreturn 1".to_owned(),
        "#!lua flags=foo\nreturn 1".to_owned(),
        "#!lua flags=no-writes, allow-oom\nreturn 1".to_owned(),
        "#!lua flags\nreturn 1".to_owned(),
        "#!lua name=x\nreturn 1".to_owned(),
        "#!js\nreturn 1".to_owned(),
        "#!lua".to_owned(),
        "#!lua return 1".to_owned(),
    ];
    for command in ["EVAL", "SCRIPT"] {
        let commands = bodies.each_ref().map(|body| match command {
            "EVAL" => ["EVAL", body, "0"],
            _ => ["SCRIPT", "LOAD", body],
        });
        let commands: Vec<&[&str]> = commands.iter().map(|command| &command[..]).collect();
        same(&redis, &commands);
    }
}

#[test]
fn scripts_are_forgotten_from_every_database() {
    let Some(redis) = Redis::start(&["--appendfsync", "no"]) else {
        return;
    };
    let mut store = redis.store();
    let store = &mut *store;
    store.load().unwrap();
    let body = "return 5";
    let sha = bulk(&redis.call(&["SCRIPT", "LOAD", body])).expect("a digest");
    let in_nine = |words: &[&str]| {
        let arguments: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        let mut payload = preamble(Form::Single, Protocol::Resp2, 9).to_vec();
        pmnet_resp::write_command(&mut payload, &arguments);
        bytes::Bytes::from(payload)
    };
    assert_eq!(change(store, in_nine(&["EVAL", body, "0"])), ":5\r\n");
    assert_eq!(change(store, in_nine(&["EVALSHA", &sha, "0"])), ":5\r\n");
    assert_eq!(change(store, in_nine(&["SCRIPT", "FLUSH"])), "+OK\r\n");
    store.load().unwrap();
    let none = "-NOSCRIPT No matching script. Please use EVAL.\r\n";
    assert_eq!(change(store, in_nine(&["EVALSHA", &sha, "0"])), none);
    assert_eq!(change(store, in_nine(&["SET", "k", "v"])), "+OK\r\n");
    assert_eq!(redis.call(&["EXISTS", "k"]).trim(), ":0");
}

#[test]
fn a_script_that_only_read_is_known_afterwards() {
    let Some(redis) = Redis::start(&["--appendfsync", "no"]) else {
        return;
    };
    let mut store = redis.store();
    store.load().unwrap();
    let two = Protocol::Resp2;
    for (body, known) in [("return 77", true), ("return 78 +", false)] {
        let sha = bulk(&bare(
            &redis,
            two,
            &["EVAL", "return redis.sha1hex(ARGV[1])", "0", body],
        ));
        let sha = sha.expect("a digest");
        let none = "-NOSCRIPT No matching script. Please use EVAL.\r\n";
        assert_eq!(
            change(&mut *store, script(two, &["EVALSHA", &sha, "0"])),
            none
        );
        // If the number of keys is wrong, Redis does not examine the script.
        for count in ["1", "-1", "x"] {
            let said = read(&mut *store, script(two, &["EVAL_RO", body, count]));
            assert!(said.starts_with("-ERR "), "{said}");
        }
        assert_eq!(
            change(&mut *store, script(two, &["EVALSHA", &sha, "0"])),
            none
        );
        for _ in 0..2 {
            let said = read(&mut *store, script(two, &["EVAL_RO", body, "0"]));
            assert_eq!(said == ":77\r\n", known, "{said}");
        }
        let expected = if known { ":77\r\n" } else { none };
        assert_eq!(
            change(&mut *store, script(two, &["EVALSHA", &sha, "0"])),
            expected
        );
        let exists = change(&mut *store, script(two, &["SCRIPT", "EXISTS", &sha]));
        assert_eq!(exists, format!("*1\r\n:{}\r\n", u8::from(known)));
        // Redis forgets the script, and then knows it again.
        assert_eq!(
            change(&mut *store, script(two, &["SCRIPT", "FLUSH"])),
            "+OK\r\n"
        );
        store.load().unwrap();
        assert_eq!(
            change(&mut *store, script(two, &["EVALSHA", &sha, "0"])),
            none
        );
        read(&mut *store, script(two, &["EVAL_RO", body, "0"]));
        assert_eq!(
            change(&mut *store, script(two, &["EVALSHA", &sha, "0"])),
            expected
        );
    }
}

/// Found: `allow-oom` had no effect, and a script without `allow-oom` ran until it needed memory.
#[test]
fn a_script_says_whether_it_may_run_when_memory_is_short() {
    let Some(redis) = comparable() else { return };
    let mut store = redis.store();
    store.load().unwrap();
    let store = &mut *store;
    let lines = [
        "",
        "#!lua\n",
        "#!lua flags=allow-oom\n",
        "#!lua flags=no-writes\n",
        "#!lua flags=no-writes,allow-oom\n",
    ];
    let calls = [
        "return redis.call('GET', 'k')",
        "return redis.call('SET', 'k', 'v')",
        "return redis.pcall('SET', 'k', 'v')",
        "redis.call('DEL', 'none') return redis.call('SET', 'k', 'v')",
        "return redis.call('DEL', 'none')",
    ];
    for most in ["1", "100mb", "0"] {
        redis.call(&["CONFIG", "SET", "maxmemory", most]);
        for body in lines
            .iter()
            .flat_map(|line| calls.map(|call| format!("{line}{call}")))
        {
            for command in ["EVAL", "EVALSHA"] {
                let sha = bare(&redis, Protocol::Resp2, &["SCRIPT", "LOAD", &body]);
                let sha = bulk(&sha).expect("a digest");
                let code = if command == "EVAL" { &body } else { &sha };
                bare(&redis, Protocol::Resp2, &["DEL", "k"]);
                let wanted = bare(&redis, Protocol::Resp2, &[command, code, "0"]);
                bare(&redis, Protocol::Resp2, &["DEL", "k"]);
                let got = change(store, script(Protocol::Resp2, &[command, code, "0"]));
                assert_eq!(got, wanted, "{command} {body:?} with maxmemory {most}");
            }
        }
    }
}
