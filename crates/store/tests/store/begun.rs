//! Tests every reason for which Redis refuses writes, with every kind of request. A refused request must have no
//! effect, and a request that had an effect must not be refused, so that nothing happens twice.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::support::proxy::Proxy;
use crate::support::{Redis, batch, bulk, change, load, read, single};
use bytes::Bytes;
use pmnet_resp::write_command;
use pmnet_server::{Request, Store, StoreError};
use pmnet_wire::command::{Form, Protocol, preamble};

/// Number of attempts during which the reason for the refusal lasts.
const TRIES: usize = 3;

/// Kind of a request. The single effect of such a request adds one to the key `n`, or publishes one message.
struct Kind {
    name: &'static str,
    form: Form,
    commands: &'static [&'static [&'static str]],
    /// Whether Redis refuses the request when memory is short: it refuses the command itself, or queues nothing.
    needs_memory: bool,
}

const fn kind(
    name: &'static str,
    form: Form,
    commands: &'static [&'static [&'static str]],
    needs_memory: bool,
) -> Kind {
    Kind {
        name,
        form,
        commands,
        needs_memory,
    }
}

const KINDS: &[Kind] = &[
    kind("incr", Form::Single, &[&["INCR", "n"]], true),
    kind("publish", Form::Single, &[&["PUBLISH", "ch", "m"]], false),
    kind(
        "publish in MULTI",
        Form::Transaction,
        &[&["GET", "n"], &["PUBLISH", "ch", "m"]],
        true,
    ),
    kind(
        "publish and incr in MULTI",
        Form::Transaction,
        &[&["PUBLISH", "ch", "m"], &["INCR", "n"]],
        true,
    ),
    kind(
        "publish in EVAL",
        Form::Single,
        &[&[
            "EVAL",
            "redis.call('GET', 'n') return redis.call('PUBLISH', 'ch', 'm')",
            "0",
        ]],
        false,
    ),
    kind(
        "incr in EVAL",
        Form::Single,
        &[&["EVAL", "return redis.call('INCR', 'n')", "0"]],
        true,
    ),
    kind(
        "incr in EVAL, its error caught",
        Form::Single,
        &[&[
            "EVAL",
            "redis.call('SELECT', 3) redis.call('SELECT', 0) return redis.pcall('INCR', 'n')",
            "0",
        ]],
        true,
    ),
    kind(
        "publish beside what cannot run in a script",
        Form::Transaction,
        &[&["BLPOP", "none", "0"], &["PUBLISH", "ch", "m"]],
        true,
    ),
    kind(
        "incr beside what cannot run in a script",
        Form::Transaction,
        &[&["BLPOP", "none", "0"], &["INCR", "n"]],
        true,
    ),
    // Redis would run an FCALL alone at once, but pmnet has to queue it.
    kind("function", Form::Single, &[&["FCALL", "tell", "0"]], true),
    kind(
        "pipeline",
        Form::Pipeline,
        &[&["GET", "n"], &["PUBLISH", "ch", "m"]],
        false,
    ),
    kind(
        "pack of two that publish",
        Form::Pack,
        &[&["PUBLISH", "ch", "m"], &["PUBLISH", "ch", "m"]],
        false,
    ),
    kind(
        "pack with publish in MULTI",
        Form::Pack,
        &[&["PING"], &["MULTI"], &["PUBLISH", "ch", "m"], &["EXEC"]],
        true,
    ),
    kind(
        "pack with incr",
        Form::Pack,
        &[&["PING"], &["INCR", "n"]],
        true,
    ),
];

/// A reason for which Redis refuses writes, with the commands that begin and end it.
struct Reason {
    code: &'static str,
    begin: fn(&Redis),
    end: fn(&Redis),
}

const REASONS: &[Reason] = &[
    Reason {
        code: "OOM",
        begin: |redis| config(redis, "maxmemory", "1"),
        end: |redis| config(redis, "maxmemory", "0"),
    },
    Reason {
        code: "NOREPLICAS",
        begin: |redis| config(redis, "min-replicas-to-write", "1"),
        end: |redis| config(redis, "min-replicas-to-write", "0"),
    },
    Reason {
        code: "MISCONF",
        begin: fail_to_save,
        end: |redis| config(redis, "stop-writes-on-bgsave-error", "no"),
    },
    Reason {
        code: "NOPERM",
        begin: |redis| rights(redis, "-hset"),
        end: |redis| rights(redis, "+hset"),
    },
    Reason {
        code: "NOPERM",
        begin: |redis| rights(redis, "-evalsha"),
        end: |redis| rights(redis, "+evalsha"),
    },
    Reason {
        code: "NOPERM",
        begin: |redis| rights(redis, "-eval"),
        end: |redis| rights(redis, "+eval"),
    },
    Reason {
        code: "NOPERM",
        begin: |redis| rights(redis, "-hdel"),
        end: |redis| rights(redis, "+hdel"),
    },
    Reason {
        code: "NOPERM",
        begin: |redis| rights(redis, "-select"),
        end: |redis| rights(redis, "+select"),
    },
    Reason {
        code: "NOPERM",
        begin: |redis| rights(redis, "-multi -exec -watch -unwatch"),
        end: |redis| rights(redis, "+multi +exec +watch +unwatch"),
    },
    Reason {
        code: "NOPERM",
        begin: |redis| rights(redis, "resetkeys"),
        end: |redis| rights(redis, "allkeys"),
    },
    Reason {
        code: "NOPERM",
        begin: |redis| rights(redis, "-incr -publish"),
        end: |redis| rights(redis, "+incr +publish"),
    },
];

fn config(redis: &Redis, setting: &str, value: &str) {
    assert_eq!(redis.call(&["CONFIG", "SET", setting, value]), "+OK\r\n");
}

/// Changes the rights of the user as which the store logs in.
fn rights(redis: &Redis, rules: &str) {
    let mut command = vec!["ACL", "SETUSER", "shard"];
    command.extend(rules.split(' '));
    assert_eq!(redis.call(&command), "+OK\r\n");
}

/// Makes a background save fail, so that Redis answers MISCONF.
fn fail_to_save(redis: &Redis) {
    let reply = redis.call(&["CONFIG", "GET", "dir"]);
    let directory = reply.lines().nth(4).expect("a directory");
    std::fs::create_dir_all(format!("{directory}/dump.rdb/in the way")).unwrap();
    config(redis, "save", "900 1");
    config(redis, "stop-writes-on-bgsave-error", "yes");
    let until = Instant::now() + Duration::from_secs(20);
    while !redis
        .call(&["INFO", "persistence"])
        .contains("rdb_last_bgsave_status:err")
    {
        // Redis refuses BGSAVE during a rewrite of the AOF.
        redis.call(&["BGSAVE"]);
        assert!(Instant::now() < until, "the save does not fail");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The messages that a subscriber has received.
#[derive(Default)]
struct Messages {
    count: AtomicUsize,
    marks: AtomicUsize,
    /// Number of marks that a caller has waited for.
    marks_seen: AtomicUsize,
}

/// Returns the messages of a subscriber to `ch`.
fn subscriber(redis: &Redis) -> Arc<Messages> {
    let mut stream = TcpStream::connect(("127.0.0.1", redis.port)).unwrap();
    let mut out = Vec::new();
    write_command(&mut out, &["SUBSCRIBE", "ch"]);
    stream.write_all(&out).unwrap();
    let mut lines = BufReader::new(stream).lines();
    while lines.next().unwrap().unwrap() != ":1" {}
    let messages = Arc::new(Messages::default());
    let counted = Arc::clone(&messages);
    std::thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            match line.as_str() {
                "m" => counted.count.fetch_add(1, Ordering::SeqCst),
                "mark" => counted.marks.fetch_add(1, Ordering::SeqCst),
                _ => 0,
            };
        }
    });
    messages
}

fn request(kind: &Kind) -> Request {
    let mut payload = preamble(kind.form, Protocol::Resp2, 0).to_vec();
    for command in kind.commands {
        write_command(&mut payload, command);
    }
    Request {
        source: pmnet_server::Source::default(),
        payload: payload.into(),
        record: Some((b"reply/1".to_vec(), Bytes::from_static(b"p"))),
    }
}

/// Starts a Redis with a user for the store, and with a function that publishes.
fn ready() -> Option<(Redis, Box<dyn Store>)> {
    let redis = Redis::start(&[])?;
    redis.call(&[
        "ACL",
        "SETUSER",
        "shard",
        "on",
        ">secret",
        "+@all",
        "allkeys",
        "allchannels",
    ]);
    redis.call(&[
        "FUNCTION",
        "LOAD",
        "#!lua name=tell\nredis.register_function('tell', function() return redis.call('PUBLISH', 'ch', 'm') end)",
    ]);
    let url = format!("redis://shard:secret@127.0.0.1:{}", redis.port);
    let mut store = pmnet_store::open(&url, 0).unwrap();
    store.load().unwrap();
    Some((redis, store))
}

/// Returns the number of effects: the value of the key, or the number of messages. When a mark has arrived, all
/// messages that were published before the mark have arrived, too.
fn happened(redis: &Redis, messages: &Messages) -> usize {
    assert_eq!(redis.call(&["PUBLISH", "ch", "mark"]), ":1\r\n");
    let marks = messages.marks_seen.fetch_add(1, Ordering::SeqCst) + 1;
    let until = Instant::now() + Duration::from_secs(20);
    while messages.marks.load(Ordering::SeqCst) < marks {
        assert!(Instant::now() < until, "the mark does not arrive");
        std::thread::sleep(Duration::from_millis(1));
    }
    let n: usize = redis.get("n").map_or(0, |n| n.parse().unwrap());
    messages.count.load(Ordering::SeqCst) + n
}

/// Returns the record of the request, without its prefix.
fn recorded(records: &[(Vec<u8>, Bytes)]) -> Option<String> {
    let (_, value) = records.iter().find(|(key, _)| key == b"reply/1")?;
    Some(String::from_utf8_lossy(&value[1..]).into_owned())
}

#[test]
fn every_request_has_its_effect_once_whatever_redis_refuses_meanwhile() {
    for reason in REASONS {
        let Some((redis, mut store)) = ready() else {
            return;
        };
        let messages = subscriber(&redis);
        for (number, kind) in (1u64..).zip(KINDS) {
            let what = format!("{} during {}", kind.name, reason.code);
            // Removes the record of an earlier request, so that it is not taken for the record of this request.
            assert_eq!(store.apply(&removed(number)), Ok(0), "{what}");
            let before = happened(&redis, &messages);
            (reason.begin)(&redis);
            let mut reply = None;
            for _try in 0..TRIES {
                let mut replies = Vec::new();
                match store.execute(&[request(kind)], &mut replies) {
                    Ok(()) => {
                        reply = Some(String::from_utf8_lossy(&replies[0]).into_owned());
                        break;
                    }
                    Err(StoreError::Retry(_)) => {}
                    Err(StoreError::Fatal(text)) => panic!("{what}: {text}"),
                }
                // Acts as a server does: loads, and looks for the record.
                if let Ok(records) = store.load()
                    && let Some(found) = recorded(&records)
                {
                    reply = Some(found);
                    break;
                }
            }
            if reply.is_none() {
                let effects = happened(&redis, &messages) - before;
                // No client must be told of the effect yet, but the record says that the request has begun.
                let begun = redis.call(&["HEXISTS", "pmnet:{0}", "reply/1"]) == ":1\r\n";
                assert!(
                    effects == 0 || begun,
                    "{what}: it happened, and would again"
                );
            }
            (reason.end)(&redis);
            let refused = reply.is_none();
            let reply = reply.unwrap_or_else(|| {
                // A client that is still connected asks again.
                let found = recorded(&load(&mut *store));
                found.unwrap_or_else(|| {
                    let mut replies = Vec::new();
                    store.execute(&[request(kind)], &mut replies).unwrap();
                    String::from_utf8_lossy(&replies[0]).into_owned()
                })
            });
            assert_eq!(
                recorded(&load(&mut *store)).as_ref(),
                Some(&reply),
                "{what}"
            );
            assert!(!reply.contains("lost in a crash"), "{what}: {reply}");
            let effects = happened(&redis, &messages) - before;
            let says_error = [
                "EXECABORT",
                "OOM ",
                "NOPERM ",
                "The user executing the script can't",
            ]
            .iter()
            .any(|text| reply.contains(text));
            let wanted = match kind.name {
                _ if says_error => 0,
                "publish and incr in MULTI" | "pack of two that publish" => 2,
                _ => 1,
            };
            assert_eq!(effects, wanted, "{what}: {reply:?}");
            if reason.code == "OOM" {
                assert_eq!(
                    says_error, kind.needs_memory,
                    "{what}: as Redis itself: {reply}"
                );
                assert!(!refused, "{what}: it is an answer");
            }
        }
    }
}

fn removed(watermark: u64) -> pmnet_server::Batch {
    let mut batch = batch(&[], watermark);
    batch.records.push((b"reply/1".to_vec(), None));
    batch
}

/// Sets of rights that are taken away together. Found: without some of these rights the watermark was written, although
/// acknowledged updates were refused.
const MISSING: &[&str] = &[
    "-multi",
    "-exec",
    "-watch",
    "-hset",
    "-hdel",
    "-hmget",
    "-set",
    "-mset",
    "-mset -incr",
    "-select",
    "-evalsha",
    "-multi -blpop",
    "-multi -blpop -set",
    "-multi -blpop -hset",
    "-multi -blpop -incr",
    "-@all +@hash",
    "-@transaction -@blocking -@string",
    "-@transaction -@blocking -@hash",
    "-@all +@write -set -blpop",
    "-@all",
    "resetkeys",
    "resetkeys ~pmnet:{0}",
    "resetkeys ~n ~k ~other",
];
const ALL_RIGHTS: &str = "+@all allkeys allchannels";

#[test]
fn a_batch_takes_effect_once_and_whole_whatever_rights_are_missing_meanwhile() {
    for missing in MISSING {
        let Some((redis, mut store)) = ready() else {
            return;
        };
        let effects = [
            single("SET k v"),
            crate::support::payload(Form::Single, Protocol::Resp2, 3, &["SET other v"]),
            single("INCR n"),
        ];
        rights(&redis, missing);
        for _try in 0..TRIES {
            let result = store.apply(&batch(&effects, 2));
            assert!(
                !matches!(result, Err(StoreError::Fatal(_))),
                "{missing}: {result:?}"
            );
            let _not_while_a_right_is_missing = store.load();
        }
        rights(&redis, ALL_RIGHTS);
        // INCR is not acknowledged early: it is dropped if only the right to INCR is missing.
        let mut dropped = missing.contains("-incr");
        if crate::support::watermark(&load(&mut *store)) != 2 {
            assert_eq!(redis.get("n"), None, "{missing}");
            assert_eq!(store.apply(&batch(&effects, 2)), Ok(0));
            dropped = false;
        }
        assert_eq!(crate::support::watermark(&load(&mut *store)), 2);
        let wanted = (!dropped).then_some("1");
        assert_eq!(redis.get("n").as_deref(), wanted, "{missing}");
        assert_eq!(redis.get("k").as_deref(), Some("v"), "{missing}");
        assert_eq!(redis.get("other"), None, "{missing}: in its own database");
        let there = redis.call(&[
            "EVAL",
            "redis.call('SELECT', 3) return redis.call('GET', 'other')",
            "0",
        ]);
        assert_eq!(bulk(&there).as_deref(), Some("v"), "{missing}");
    }
}

/// A function is called in a MULTI. Found: the function ran outside the transaction, or twice, or its record said that
/// the function had run although it had not.
#[test]
fn a_function_runs_once_whatever_rights_are_missing_meanwhile() {
    for missing in MISSING.iter().chain(&["-multi -blpop -fcall", "-fcall"]) {
        let Some((redis, mut store)) = ready() else {
            return;
        };
        redis.call(&[
            "FUNCTION",
            "LOAD",
            "#!lua name=add\nredis.register_function('add', function() return redis.call('INCR', 'n') end)",
        ]);
        let call = Request {
            source: pmnet_server::Source::default(),
            payload: crate::support::payload(Form::Single, Protocol::Resp2, 3, &["FCALL add 0"]),
            record: Some((b"reply/1".to_vec(), Bytes::from_static(b"p"))),
        };
        rights(&redis, missing);
        let mut reply = None;
        for turn in 0..TRIES {
            if turn + 1 == TRIES {
                rights(&redis, ALL_RIGHTS);
            }
            let mut replies = Vec::new();
            if store
                .execute(std::slice::from_ref(&call), &mut replies)
                .is_ok()
            {
                reply = Some(String::from_utf8_lossy(&replies[0]).into_owned());
                break;
            }
            if turn + 1 == TRIES {
                load(&mut *store);
            } else {
                let _not_while_a_right_is_missing = store.load();
            }
        }
        let reply = reply
            .or_else(|| recorded(&load(&mut *store)))
            .unwrap_or_else(|| {
                let mut replies = Vec::new();
                store
                    .execute(std::slice::from_ref(&call), &mut replies)
                    .unwrap();
                String::from_utf8_lossy(&replies[0]).into_owned()
            });
        let n = redis.call(&[
            "EVAL",
            "redis.call('SELECT', 3) return redis.call('GET', 'n')",
            "0",
        ]);
        let wanted = if reply == ":1\r\n" { Some("1") } else { None };
        assert!(
            reply == ":1\r\n" || reply.contains("NOPERM") || reply.contains("can't"),
            "{missing}: {reply}"
        );
        assert_eq!(bulk(&n).as_deref(), wanted, "{missing}: {reply}");
        assert_eq!(redis.get("n"), None, "{missing}: in its own database");
    }
}

/// Redis checks rights again at EXEC. If Redis then executes a command, but not the write of its record, the command
/// counts as executed, and its record is written before anything else.
#[test]
fn what_was_executed_without_its_record_is_not_executed_again() {
    let Some(mut redis) = Redis::start(&[]) else {
        return;
    };
    let proxy = Proxy::start(redis.port);
    let mut store = pmnet_store::open(&proxy.url(), 0).unwrap();
    store.load().unwrap();
    // A script cannot pass this number of arguments to a command, so the batch needs a MULTI. The proxy replaces only
    // the answer to the write of the record. Real rights would have to change within microseconds.
    let long = single(&format!("RPUSH list{}", " x".repeat(5000)));
    proxy.answer(":5000\r\n$2\r\nOK\r\n", ":5000\r\n-NO OK\r\n");
    let result = store.apply(&batch(std::slice::from_ref(&long), 1));
    assert!(
        matches!(&result, Err(StoreError::Retry(text)) if text.contains("refused to keep")),
        "{result:?}"
    );
    redis.call(&["HDEL", "pmnet:{0}", "watermark"]);
    assert_eq!(crate::support::watermark(&load(&mut *store)), 1);
    assert_eq!(
        bulk(&redis.call(&["HGET", "pmnet:{0}", "watermark"])).map(|w| w.len()),
        Some(8)
    );
    assert_eq!(redis.call(&["LLEN", "list"]), ":5000\r\n");
    // A restarted Redis may lack the watermark, so its records show whether the batch was applied.
    proxy.answer(":10000\r\n$2\r\nOK\r\n", ":10000\r\n-NO OK\r\n");
    let result = store.apply(&batch(&[long], 2));
    assert!(matches!(result, Err(StoreError::Retry(_))), "{result:?}");
    redis.restart();
    assert_eq!(crate::support::watermark(&load(&mut *store)), 2);
    assert_eq!(redis.call(&["LLEN", "list"]), ":10000\r\n");
    assert_eq!(store.apply(&batch(&[single("INCR n")], 3)), Ok(0));
}

/// As in Redis, a script that only reads is answered even when memory is short. The store keeps the text of this
/// script, too.
#[test]
fn a_script_that_only_reads_answers_when_memory_is_short() {
    let Some((redis, mut store)) = ready() else {
        return;
    };
    let store = &mut *store;
    assert_eq!(change(store, single("INCR n")), ":1\r\n");
    config(&redis, "maxmemory", "1");
    assert_eq!(
        change(store, single("EVAL return(redis.call('GET','n')) 0")),
        "$1\r\n1\r\n"
    );
    let sha = redis.call(&[
        "EVAL",
        "return redis.sha1hex(\"return(redis.call('GET','n'))\")",
        "0",
    ]);
    let sha = sha.lines().nth(1).unwrap().to_owned();
    assert_eq!(
        change(store, single(&format!("EVALSHA {sha} 0"))),
        "$1\r\n1\r\n"
    );
    // A script that first frees memory may use some later: Redis checks the memory only at the first write.
    let frees = "EVAL redis.call('DEL','n')return(redis.call('SET','m','v')) 0";
    assert_eq!(change(store, single(frees)), "+OK\r\n");
    assert_eq!(change(store, single("DEL m")), ":1\r\n");
    // As in Redis, the whole transaction is discarded.
    let reply = change(
        store,
        crate::support::payload(Form::Transaction, Protocol::Resp2, 0, &["DEL m", "SET m v"]),
    );
    assert!(
        reply.starts_with("-EXECABORT") && reply.contains("OOM"),
        "{reply}"
    );
    assert_eq!(redis.get("m"), None);
}

/// An error that a client's code invents is the reply to this client. Found: such an error was taken for an error of
/// Redis itself. Then all clients lost the connection, and the code's own client waited for ten seconds.
#[test]
fn an_error_of_a_clients_code_is_its_reply() {
    let Some((redis, mut store)) = ready() else {
        return;
    };
    redis.call(&[
        "FUNCTION",
        "LOAD",
        "#!lua name=say\nredis.register_function{function_name='say', callback=function() return \
         redis.error_reply('LOADING x') end, flags={'no-writes'}}",
    ]);
    let clients = || redis.call(&["INFO", "stats"]);
    let connections = |text: String| {
        let line = text
            .lines()
            .find(|l| l.starts_with("total_connections_received"));
        line.unwrap().to_owned()
    };
    for code in [
        "BUSY",
        "OOM",
        "LOADING",
        "READONLY",
        "MISCONF",
        "NOREPLICAS",
        "NOPERM",
        "NOAUTH",
        "TRYAGAIN",
        "MASTERDOWN",
        "CLUSTERDOWN",
        "FENCED",
        "NOSCRIPT",
        "PARTLY",
    ] {
        for command in ["EVAL_RO", "EVAL"] {
            let text = format!("{command} return(redis.error_reply('{code}\\032x')) 0");
            let wanted = format!("-{code} x\r\n");
            let reply = if command == "EVAL_RO" {
                read(&mut *store, single(&text))
            } else {
                change(&mut *store, single(&text))
            };
            assert_eq!(reply, wanted, "{command}");
        }
    }
    let before = connections(clients());
    for text in [
        "EVAL_RO return(redis.error_reply('BUSY\\032x')) 0",
        "FCALL_RO say 0",
    ] {
        assert!(read(&mut *store, single(text)).starts_with('-'));
    }
    // The test itself has one more connection, on which it asks for the number.
    let count = |line: &str| {
        line.split(':')
            .nth(1)
            .unwrap()
            .trim()
            .parse::<u64>()
            .unwrap()
    };
    assert_eq!(count(&connections(clients())), count(&before) + 1);
}

/// Sends SCRIPT KILL, which a busy Redis answers. Sends no command after the SCRIPT KILL.
fn kill_script(redis: &Redis) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", redis.port)).unwrap();
    stream.write_all(b"SCRIPT KILL\r\n").unwrap();
    let line = BufReader::new(stream).lines().next();
    line.expect("an answer").unwrap()
}

/// As in Redis, a client's script that never ends can be killed while it has changed nothing. Found: pmnet had kept the
/// script's text by a write before the script ran, so Redis answered UNKILLABLE.
#[test]
fn a_script_that_hangs_can_be_killed() {
    let Some(redis) = Redis::start(&["--busy-reply-threshold", "100"]) else {
        return;
    };
    let mut store = redis.store();
    store.load().unwrap();
    for body in [
        "while true do end",
        "while true do redis.call('GET', 'n') end",
        "while true do pcall(redis.call, 'GET', 'n') end",
    ] {
        let payload = crate::support::script(Protocol::Resp2, &["EVAL", body, "0"]);
        std::thread::scope(|scope| {
            let killed = scope.spawn(|| {
                let until = Instant::now() + Duration::from_secs(4);
                loop {
                    let reply = kill_script(&redis);
                    if reply == "+OK" {
                        return;
                    }
                    assert!(!reply.contains("UNKILLABLE"), "{reply}");
                    assert!(Instant::now() < until, "{reply}");
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
            let reply = change(&mut *store, payload);
            assert!(reply.contains("Script killed by user"), "{reply}");
            killed.join().unwrap();
        });
    }
    assert_eq!(change(&mut *store, single("INCR n")), ":1\r\n");
}

/// If a client's script is killed after the deadline of the store's call, the client gets the error that the script was
/// killed.
#[test]
fn a_script_that_hangs_long_can_be_killed() {
    let Some(redis) = Redis::start(&["--busy-reply-threshold", "100"]) else {
        return;
    };
    let mut store = redis.store();
    store.load().unwrap();
    let hangs = |command| {
        let body = "while true do redis.call('GET', 'n') end";
        crate::support::script(Protocol::Resp2, &[command, body, "0"])
    };
    for command in ["EVAL", "EVAL_RO"] {
        std::thread::scope(|scope| {
            let killed = scope.spawn(|| {
                std::thread::sleep(Duration::from_secs(7));
                kill_script(&redis)
            });
            let reply = match command {
                "EVAL" => change(&mut *store, hangs(command)),
                _ => read(&mut *store, hangs(command)),
            };
            assert!(reply.contains("Script killed by user"), "{reply}");
            assert_eq!(killed.join().unwrap(), "+OK");
        });
    }
    assert_eq!(change(&mut *store, single("INCR n")), ":1\r\n");
}
