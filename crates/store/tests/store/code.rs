//! Scripts and functions of clients on a real Redis: they see the same as in a bare Redis, and they cannot reach
//! pmnet's records.

use crate::support::{Redis, bare, change, payload, read, script, single};
use bytes::Bytes;
use pmnet_server::{Request, Store, StoreError};
use pmnet_wire::command::{Form, Protocol, preamble};

fn ready(options: &[&str]) -> Option<(Redis, Box<dyn Store>)> {
    let redis = Redis::start(options)?;
    let mut store = redis.store();
    assert_eq!(store.load().unwrap(), vec![]);
    Some((redis, store))
}

fn eval(body: &str) -> Bytes {
    script(Protocol::Resp2, &["EVAL", body, "1", "k", "argument"])
}

#[test]
fn no_script_of_a_client_reaches_the_records() {
    let Some((redis, mut store)) = ready(&[]) else {
        return;
    };
    let store = &mut *store;
    assert_eq!(
        store.apply(&crate::support::batch(&[single("SET k v")], 5)),
        Ok(0)
    );
    let owner = redis.call(&["HGET", "pmnet:{0}", "owner"]);
    // Objects through which a script could find a `call` that pmnet does not check. Each script then writes the
    // watermark.
    for way in [
        "redis",
        "server",
        "_G.redis",
        "_G['_G'].redis",
        "rawget(_G, 'redis')",
        "getmetatable(redis).__index",
        "getmetatable(_G).__index(_G, 'redis')",
        "getfenv(0).redis",
        "getfenv(1).redis",
        "getfenv(redis.call).redis",
        "loadstring('return redis')()",
        "loadstring('return _G.redis')()",
        "loadstring('end return redis, function()')()",
        "loadstring('return getfenv(0).redis')()",
        "_G.loadstring('return redis')()",
        "load(function() local f = done; done = 1 return nil end)() or redis",
        "(function() local n = 0; return load(function() n = n + 1; return n == 1 and 'return redis' or nil end) end)()()",
        "loadstring(string.dump(function() return redis end))()",
        "coroutine.wrap(function() return _G.redis end)()",
        "({pcall(loadstring, 'return redis')})[2]()",
        "(setfenv or error)(function() return redis end, _G)()",
        "package.loaded._G.redis",
        "debug.getregistry()[2].redis",
        "newproxy(true)",
    ] {
        for call in [
            "call('HSET', 'pmnet:{0}', 'watermark', 'zzzzzzzz')",
            "pcall('DEL', 'pmnet:{0}')",
            "call('FLUSHALL')",
            "set_repl(0)",
        ] {
            let reply = change(store, eval(&format!("return ({way}).{call}")));
            assert!(reply.starts_with('-'), "{way} {call}: {reply}");
        }
        let reply = change(
            store,
            eval(&format!(
                "return ({way}) == nil and 1 or ({way}).replicate_commands()"
            )),
        );
        assert!(
            reply.starts_with('-') || reply == ":1\r\n",
            "{way}: {reply}"
        );
    }
    // If a client's script contains an `end` of its own, the code after the `end` still runs inside pmnet's wrapper.
    for body in [
        "end redis.call('DEL', 'pmnet:{0}') do",
        "return 1 end, redis.call('DEL', 'pmnet:{0}'), function()",
        "end do return function() return _G.redis.call('DEL', 'pmnet:{0}') end end do",
    ] {
        assert!(change(store, eval(body)).starts_with('-'), "{body}");
    }
    assert_eq!(crate::support::watermark(&store.load().unwrap()), 5);
    assert_ne!(
        redis.call(&["HGET", "pmnet:{0}", "owner"]),
        owner,
        "loaded since"
    );
    assert_eq!(redis.call(&["EXISTS", "k"]), ":1\r\n");
    assert_eq!(
        store.apply(&crate::support::batch(&[single("SET k v")], 6)),
        Ok(0)
    );
}

#[test]
fn scripts_find_what_they_find_in_a_bare_redis() {
    let Some((redis, mut store)) = ready(&[]) else {
        return;
    };
    for body in [
        "return {KEYS[1], ARGV[1], _G.KEYS[1], _G.ARGV[1]}",
        "return loadstring('return KEYS[1] .. ARGV[1] .. ...')('x')",
        "return {loadstring('return +')}",
        "return redis.sha1hex('x') .. redis.REDIS_VERSION .. redis.LOG_WARNING",
        "return redis.call('SET', KEYS[1], 'v') ",
        "return _G.redis.call('GET', KEYS[1])",
        "return redis.error_reply('MY error')",
        "return redis.status_reply('fine')",
        "redis.replicate_commands() return 1",
        "return cjson.encode({a = {1, 2}}) .. string.rep('x', 3) .. tostring(bit.band(6, 3))",
        "return _G.string.format('%d', _G.tonumber('7'))",
        "return getmetatable(setmetatable({}, {__index = string})).__index.rep('a', 2)",
        "return type(_G._G) .. type(pcall) .. type(redis.call) .. type(math.floor)",
        "local t = {} for k in pairs({a = 1}) do t[#t + 1] = k end return t -- a comment",
        "return select('#', unpack({1, 2, 3}))",
        "return ...",
    ] {
        let words = ["EVAL", body, "1", "k", "argument"];
        let wanted = bare(&redis, Protocol::Resp2, &words);
        assert_eq!(
            change(&mut *store, script(Protocol::Resp2, &words)),
            wanted,
            "{body}"
        );
    }
    // Only the wording of these errors differs.
    for (body, says) in [
        ("return nowhere", "nonexistent global variable 'nowhere'"),
        ("x = 1", "global"),
        ("_G.x = 1", "global"),
        ("return _G.nowhere", "nonexistent global variable 'nowhere'"),
        ("return 1 +", "compiling"),
        ("return redis.call('GET')", "Wrong number of args"),
    ] {
        let words = ["EVAL", body, "1", "k", "argument"];
        let there = bare(&redis, Protocol::Resp2, &words);
        let here = change(&mut *store, script(Protocol::Resp2, &words));
        assert!(
            there.starts_with('-') && here.starts_with('-'),
            "{body}: {there} {here}"
        );
        assert_eq!(
            there.contains(says),
            here.contains(says),
            "{body}: {there} {here}"
        );
    }
}

#[test]
fn what_is_wrong_with_arguments_is_told_as_by_a_bare_redis() {
    let Some((redis, mut store)) = ready(&[]) else {
        return;
    };
    let unknown = "ab".repeat(20);
    let numbers = [
        "-0",
        "00",
        "01",
        "+1",
        "x",
        "",
        "-1",
        "3",
        "9223372036854775807",
        "9223372036854775808",
        "99999999999999999999",
    ];
    let evals = numbers.iter().flat_map(|number| {
        let with = |name, what: &str| vec![name, what.to_owned(), (*number).to_owned(), "k".into()];
        [
            with("EVAL".to_owned(), "return 1"),
            with("EVALSHA".to_owned(), &unknown),
            with("EVALSHA".to_owned(), "x"),
        ]
    });
    let bodies = [
        "return redis.call('GET', nil)",
        "return redis.pcall('GET', 'k', nil)",
        "return redis.call(nil)",
        "return redis.call('GET', {})",
        "return redis.call()",
        "local a = {} for i = 1, 7999 do a[i] = i end return redis.call('DEL', unpack(a))",
        "local a = {} for i = 1, 8001 do a[i] = i end return redis.call('DEL', unpack(a))",
    ];
    let bodies = bodies.map(|body| vec!["EVAL".to_owned(), body.to_owned(), "0".into()]);
    let scripts = [
        "SCRIPT NOSUCH",
        "SCRIPT LOAD",
        "SCRIPT LOAD a b",
        "SCRIPT EXISTS",
        "SCRIPT HELP",
        "SCRIPT HELP x",
        "PFDEBUG ENCODING nothing",
    ];
    let scripts = scripts.map(|line| line.split(' ').map(str::to_owned).collect());
    for words in evals.chain(bodies).chain(scripts) {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let there = bare(&redis, Protocol::Resp2, &words);
        let here = change(&mut *store, script(Protocol::Resp2, &words));
        assert_eq!(here, there, "{words:?}");
    }
}

/// If a request changes something, scripts of clients run inside pmnet's script. Even then, a script that may only read
/// does not write.
#[test]
fn a_script_that_may_only_read_does_not_write() {
    let Some((redis, mut store)) = ready(&[]) else {
        return;
    };
    let store = &mut *store;
    let load = script(
        Protocol::Resp2,
        &["SCRIPT", "LOAD", "return redis.call('SET','k','v')"],
    );
    let sha = change(store, load);
    let sha = crate::support::bulk(&sha).unwrap();
    for writes in [
        "EVAL_RO redis.call('SET','k','v') 0".to_owned(),
        "EVAL_RO return{redis.pcall('DEL','a')} 0".to_owned(),
        format!("EVALSHA_RO {sha} 0"),
    ] {
        let commands = ["SET a 1", &writes, "GET a"];
        let transaction = payload(Form::Transaction, Protocol::Resp2, 0, &commands);
        let reply = change(store, transaction);
        assert!(reply.starts_with("*3\r\n+OK\r\n"), "{writes}: {reply}");
        assert!(
            reply.contains("not allowed from read-only scripts"),
            "{writes}: {reply}"
        );
        assert!(reply.ends_with("$1\r\n1\r\n"), "{writes}: {reply}");
    }
    assert_eq!(redis.get("k"), None);
}

/// SCRIPT EXISTS reports the scripts that EVALSHA would find, and SCRIPT FLUSH makes Redis forget them.
#[test]
fn scripts_exist_from_load_to_flush() {
    let Some((redis, mut store)) = ready(&[]) else {
        return;
    };
    let store = &mut *store;
    let two = Protocol::Resp2;
    let sha = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db";
    let exists = || script(two, &["SCRIPT", "EXISTS", sha, "ff"]);
    let evalsha = || script(two, &["EVALSHA", sha, "0"]);
    assert_eq!(read(store, exists()), "*2\r\n:0\r\n:0\r\n");
    let load = script(two, &["SCRIPT", "LOAD", "return 1"]);
    assert_eq!(change(store, load), format!("$40\r\n{sha}\r\n"));
    for _ in 0..2 {
        assert_eq!(read(store, exists()), "*2\r\n:1\r\n:0\r\n");
        assert_eq!(change(store, evalsha()), ":1\r\n");
        // Redis may forget scripts that are still in pmnet's records.
        redis.call(&["SCRIPT", "FLUSH"]);
        assert!(store.load().is_ok());
    }
    let wrong = script(two, &["SCRIPT", "FLUSH", "FOO"]);
    assert!(change(store, wrong).starts_with("-ERR SCRIPT FLUSH only support"));
    assert_eq!(read(store, exists()), "*2\r\n:1\r\n:0\r\n");
    assert_eq!(change(store, script(two, &["SCRIPT", "FLUSH"])), "+OK\r\n");
    assert!(store.load().is_ok());
    assert_eq!(read(store, exists()), "*2\r\n:0\r\n:0\r\n");
    assert!(change(store, evalsha()).starts_with("-NOSCRIPT"));
    // A transaction that does not run in pmnet's script finds the client's scripts, too.
    let eval = script(two, &["EVAL", "return 1", "0"]);
    assert_eq!(change(store, eval), ":1\r\n");
    let evalsha = format!("EVALSHA {sha} 0");
    let transaction = payload(Form::Transaction, two, 0, &[&evalsha, "XPENDING none g"]);
    assert!(change(store, transaction).starts_with("*2\r\n:1\r\n-NOGROUP"));
}

#[test]
fn a_function_that_changes_the_records_stops_the_shard() {
    let Some((redis, mut store)) = ready(&[]) else {
        return;
    };
    let library = "#!lua name=l\n\
        redis.register_function('good', function(keys) return redis.call('INCR', keys[1]) end)\n\
        redis.register_function('bad', function() return redis.call('HSET', 'pmnet:{' .. '0}', 'session/1', 'x') end)";
    if redis
        .call(&["FUNCTION", "LOAD", library])
        .starts_with("-ERR unknown command")
    {
        println!("skipped: this Redis has no functions");
        return;
    }
    assert_eq!(
        store.apply(&crate::support::batch(&[single("SET k v")], 5)),
        Ok(0)
    );
    assert_eq!(change(&mut *store, single("FCALL good 1 n")), ":1\r\n");
    // A read does not run code that writes, either.
    for (form, command) in [
        (Form::Single, "FCALL good 1 n"),
        (Form::Single, "EVAL return(1) 0"),
        (Form::Pipeline, "EVALSHA abc 0"),
        (Form::Transaction, "FCALL good 1 n"),
        (Form::Transaction, "FLUSHALL"),
    ] {
        let reply = read(&mut *store, payload(form, Protocol::Resp2, 0, &[command]));
        assert!(
            reply.contains("cannot be sent as a read"),
            "{command}: {reply}"
        );
    }
    assert_eq!(redis.get("n").as_deref(), Some("1"));
    let request = |payload| Request {
        source: pmnet_server::Source::default(),
        payload,
        record: Some((b"r".to_vec(), Bytes::new())),
    };
    // This EVAL cannot run in pmnet's script because of another command in its transaction.
    let mut both = preamble(Form::Transaction, Protocol::Resp2, 0).to_vec();
    let raw = "return redis.call('HDEL', 'pmnet:{' .. '0}', 'r')";
    pmnet_resp::write_command(&mut both, &["EVAL", raw, "0"]);
    pmnet_resp::write_command(&mut both, &["BLPOP", "none", "0"]);
    assert_eq!(change(&mut *store, single("EVAL return(7) 0")), ":7\r\n");
    let says = |result: Result<(), StoreError>| match result {
        Err(StoreError::Fatal(text)) => assert!(text.contains("changed pmnet's records"), "{text}"),
        other => panic!("{other:?}"),
    };
    for payload in [single("FCALL bad 0"), Bytes::from(both)] {
        // The first script writes a field that the second script deletes.
        let mut store = redis.store();
        store.load().unwrap();
        let mut replies = Vec::new();
        store
            .execute(&[request(single("INCR m"))], &mut replies)
            .unwrap();
        says(store.execute(&[request(payload)], &mut replies));
        // A supervisor starts the server repeatedly. Found: the changed records were loaded without a message.
        for _ in 0..2 {
            says(redis.store().load().map(drop));
        }
        assert_eq!(redis.call(&["HDEL", "pmnet:{0}", "seal"]), ":1\r\n");
        redis.store().load().unwrap();
    }
}

/// Found: an error that a client's code raised while its result was read was taken for an error of the store. "FENCED"
/// ended the server at each start.
#[test]
fn no_code_of_a_client_speaks_for_the_store() {
    let Some((_redis, mut store)) = ready(&[]) else {
        return;
    };
    for word in [
        "FENCED",
        "READONLY z",
        "NOSCRIPT q",
        "PARTLY y",
        "RAISED x",
        "OOM x",
    ] {
        let said = format!("error('{word}', 0)");
        for code in [
            format!("return setmetatable({{}}, {{__index = function() {said} end}})"),
            format!("return {{setmetatable({{}}, {{__index = function() {said} end}})}}"),
            format!("return {{map = setmetatable({{}}, {{__index = function() {said} end}})}}"),
            format!(
                "error(setmetatable({{}}, {{__index = function() {said} end, __tostring = function() {said} end}}))"
            ),
            said.clone(),
            format!("error({{err = '{word}'}})"),
        ] {
            for protocol in [Protocol::Resp2, Protocol::Resp3] {
                let reply = change(
                    &mut *store,
                    crate::support::script(protocol, &["EVAL", &code, "0"]),
                );
                assert!(!reply.is_empty(), "{code}");
            }
        }
    }
}

/// If a script returns types that only RESP3 has, the reply equals Redis's: one reply, with correct lengths.
#[test]
fn replies_that_a_script_makes_up_are_those_of_a_bare_redis() {
    let Some((redis, mut store)) = ready(&[]) else {
        return;
    };
    for value in [
        "{verbatim_string={format='t',string='x'}}",
        "{verbatim_string={format='markdown',string='x'}}",
        "{verbatim_string={format='txt',string='a b'}}",
        "{verbatim_string={format='txt'}}",
        "{verbatim_string={string='x'}}",
        "{verbatim_string='x'}",
        "{big_number='12345678901234567890'}",
        "{big_number='1\\r\\n+OK\\r\\n$6\\r\\nforged'}",
        "{big_number=3}",
        "{ok='a\\r\\nb'}",
        "{err='A a\\r\\nb'}",
        "{double='x'}",
        "{double=0.1}",
        "{double=-0.30000000000000004}",
        "{double=0.00001}",
        "{double=0.00001234}",
        "{double=1.5e-7}",
        "{double=123456.789}",
        "{double=100000000}",
        "{double=1e18}",
        "{double=1e20}",
        "{double=1.25e21}",
        "{double=1/0}",
        "{double=-1/0}",
        "{map='x'}",
        "{set=3}",
        "{map={}}",
        "{set={}}",
        "{1, nil, 3}",
        "setmetatable({}, {__index = function() return 'x' end})",
    ] {
        for protocol in [Protocol::Resp2, Protocol::Resp3] {
            let code = format!("redis.setresp(3) return {value}");
            let arguments = ["EVAL", code.as_str(), "0"];
            let wanted = crate::support::bare(&redis, protocol, &arguments);
            assert_eq!(
                change(&mut *store, crate::support::script(protocol, &arguments)),
                wanted,
                "{code}"
            );
        }
    }
}

/// Found: a status of more than a megabyte was not accepted as RESP. The script ran again and again, or its reply was
/// reported as "lost in a crash".
#[test]
fn a_long_line_is_a_reply() {
    let Some((_redis, mut store)) = ready(&[]) else {
        return;
    };
    let code = "return {ok=string.rep('x', 3000000)}";
    let wanted = format!("+{}\r\n", "x".repeat(3_000_000));
    let eval = |name| crate::support::script(Protocol::Resp2, &[name, code, "0"]);
    assert!(crate::support::read(&mut *store, eval("EVAL_RO")) == wanted);
    assert!(change(&mut *store, eval("EVAL")) == wanted);
}
