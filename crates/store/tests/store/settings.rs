//! Settings and rights with which Redis would refuse acknowledged writes. A server that finds such settings or rights
//! at its start reports them and exits. A running server that finds them waits. Clients cannot change these settings
//! and rights.

use std::time::{Duration, Instant};

use crate::support::{Redis, arguments, batch, change, load, payload, read, single, watermark};
use bytes::Bytes;
use pmnet_server::{Store, StoreError};
use pmnet_store::{Passwords, Secret};
use pmnet_wire::MESSAGE_BYTES_MAX;
use pmnet_wire::command::{Form, Protocol};

const MIB: usize = 1 << 20;
const WAIT_MAX: Duration = Duration::from_secs(20);

fn fatal(store: &mut dyn Store, says: &[&str]) {
    match store.load() {
        Err(StoreError::Fatal(text)) => contains(&text, says),
        other => panic!("wanted a fatal error that says {says:?}, got {other:?}"),
    }
}

fn waits(store: &mut dyn Store, says: &[&str]) {
    match store.load() {
        Err(StoreError::Retry(text)) => {
            contains(&text, says);
            contains(
                &text,
                &["it waits", "the devices keep what was acknowledged"],
            );
        }
        other => panic!("wanted a retry that says {says:?}, got {other:?}"),
    }
}

fn contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
}

fn set(key: &str, bytes: usize) -> Bytes {
    arguments(&[b"SET", key.as_bytes(), &vec![b'v'; bytes]])
}

/// Settings for `CONFIG SET`: the name, a bad value, a good value, and parts of the message.
const SETTINGS: [(&str, &str, &str, &[&str]); 5] = [
    (
        "proto-max-bulk-len",
        "1mb",
        "512mb",
        &[
            "proto-max-bulk-len is 1048576",
            "CONFIG SET proto-max-bulk-len 32mb",
        ],
    ),
    (
        "client-query-buffer-limit",
        "16mb",
        "1gb",
        &["CONFIG SET client-query-buffer-limit 64mb"],
    ),
    (
        "client-output-buffer-limit",
        "normal 1mb 0 0",
        "normal 0 0 0",
        &["normal 1048576 0 0", "'normal 0 0 0'"],
    ),
    (
        "client-output-buffer-limit",
        "normal 0 1mb 60",
        "normal 0 0 0",
        &["normal 0 1048576 60"],
    ),
    (
        "maxmemory-policy",
        "allkeys-lru",
        "noeviction",
        &["CONFIG SET maxmemory-policy noeviction"],
    ),
];

/// Sets of rights that are not enough for the user of the pmnet server: the rules, and parts of the error.
const RIGHTS: [(&str, &[&str]); 7] = [
    ("-watch", &["may not run WATCH", "+@all"]),
    ("-hmget", &["may not run HMGET"]),
    ("-command", &["may not run COMMAND"]),
    ("-setex", &["may not run SETEX", "+@all"]),
    ("resetkeys ~app:*", &["may not run SET on every key"]),
    ("-evalsha", &["may not run EVALSHA"]),
    ("-multi", &["may not run MULTI"]),
];

fn acl(redis: &Redis, rules: &str) {
    let words = format!("ACL SETUSER default {rules}");
    let reply = redis.call(&words.split(' ').collect::<Vec<_>>());
    assert_eq!(reply, "+OK\r\n", "{words}");
}

#[test]
fn a_server_that_starts_refuses_settings_and_rights_that_refuse_what_is_acknowledged() {
    let Some(redis) = Redis::start(&["--maxmemory", "1gb"]) else {
        return;
    };
    for (name, bad, good, says) in SETTINGS {
        assert_eq!(redis.call(&["CONFIG", "SET", name, bad]), "+OK\r\n");
        fatal(&mut *redis.store(), says);
        redis.call(&["CONFIG", "SET", name, good]);
    }
    for (rules, says) in RIGHTS {
        acl(&redis, rules);
        fatal(&mut *redis.store(), says);
        acl(&redis, "allkeys +@all");
        assert_eq!(redis.call(&["KEYS", "*"]), "*0\r\n", "{rules}: nothing ran");
    }
    assert_eq!(redis.store().load(), Ok(vec![]));
}

#[test]
fn a_server_that_starts_names_the_command_that_redis_does_not_have() {
    for name in [
        "SET", "HSET", "HMGET", "MULTI", "DISCARD", "EVALSHA", "WATCH", "HELLO", "COMMAND",
    ] {
        let Some(redis) = Redis::start(&["--rename-command", name, ""]) else {
            return;
        };
        fatal(
            &mut *redis.store(),
            &[&format!("has no {name},"), "rename-command"],
        );
        assert_eq!(redis.call(&["DBSIZE"]), ":0\r\n", "{name}: nothing ran");
    }
}

/// Closes the connections of all clients of Redis, as a network failure would.
fn cut(redis: &Redis) {
    redis.call(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
}

#[test]
fn a_server_that_runs_waits_until_settings_and_rights_are_put_right() {
    let Some(redis) = Redis::start(&["--maxmemory", "1gb"]) else {
        return;
    };
    let mut store = redis.store();
    store.load().unwrap();
    let mut applied = 0;
    let mut goes_on = |store: &mut dyn Store| {
        assert_eq!(watermark(&load(store)), applied);
        applied += 1;
        assert_eq!(store.apply(&batch(&[single("SET k v")], applied)), Ok(0));
    };
    goes_on(&mut *store);
    for (name, bad, good, says) in SETTINGS {
        redis.call(&["CONFIG", "SET", name, bad]);
        cut(&redis);
        waits(&mut *store, says);
        redis.call(&["CONFIG", "SET", name, good]);
        goes_on(&mut *store);
    }
    for (rules, says) in RIGHTS {
        acl(&redis, rules);
        waits(&mut *store, says);
        acl(&redis, "allkeys +@all");
        goes_on(&mut *store);
    }
    // Redis refuses the script that claims the records.
    acl(&redis, "-eval");
    waits(&mut *store, &["EVAL"]);
    acl(&redis, "+@all");
    goes_on(&mut *store);
}

#[test]
fn a_server_that_runs_waits_for_a_redis_that_was_restarted_without_what_it_needs() {
    let Some(mut redis) = Redis::start(&[]) else {
        return;
    };
    let mut store = redis.store();
    store.load().unwrap();
    assert_eq!(store.apply(&batch(&[single("SET k 1")], 1)), Ok(0));
    let cases: [(&[&str], &[&str]); 4] = [
        (&["--rename-command", "SETEX", ""], &["has no SETEX,"]),
        (&["--rename-command", "EVALSHA", ""], &["has no EVALSHA,"]),
        (&["--requirepass", "x"], &["NOAUTH", "password"]),
        (
            &["--maxmemory", "1gb", "--maxmemory-policy", "allkeys-lru"],
            &["maxmemory-policy noeviction"],
        ),
    ];
    for (options, says) in cases {
        redis.restart_as(options);
        waits(&mut *store, says);
    }
    redis.restart_as(&[]);
    assert_eq!(watermark(&load(&mut *store)), 1);
    assert_eq!(store.apply(&batch(&[single("SET k 2")], 2)), Ok(0));
    assert_eq!(redis.get("k").as_deref(), Some("2"));
}

#[test]
fn a_password_that_was_set_while_a_server_runs_is_waited_for() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let mut store = redis.store();
    store.load().unwrap();
    redis.call(&["CONFIG", "SET", "requirepass", "x"]);
    assert_eq!(
        store.apply(&batch(&[single("SET k 1")], 1)),
        Ok(0),
        "still in"
    );
    waits(&mut *store, &["NOAUTH", "password"]);
    let mut other = pmnet_store::open(&format!("redis://:x@127.0.0.1:{}", redis.port), 0).unwrap();
    assert_eq!(watermark(&other.load().unwrap()), 1, "with the password");
    // The server is running when its password is removed.
    assert!(
        redis
            .call_as("x", &["CONFIG", "SET", "requirepass", ""])
            .starts_with("+OK")
    );
    waits(&mut *other, &["without any password"]);
    redis.call(&["CONFIG", "SET", "requirepass", "y"]);
    waits(&mut *other, &["WRONGPASS"]);
}

/// The password is changed in Redis, and then replaced in the running server.
#[test]
fn a_replaced_password_is_used_for_the_next_connection() {
    let Some(redis) = Redis::start(&["--requirepass", "old"]) else {
        return;
    };
    let password = Secret::new(b"old");
    let passwords = Passwords {
        store: Some(password.clone()),
        sentinel: None,
    };
    let url = format!("redis://127.0.0.1:{}", redis.port);
    let mut store = pmnet_store::open_with(&url, &passwords, None, 0).unwrap();
    store.load().unwrap();
    redis.call_as("old", &["CONFIG", "SET", "requirepass", "new"]);
    assert_eq!(
        store.apply(&batch(&[single("SET k 1")], 1)),
        Ok(0),
        "still in"
    );
    redis.call_as("new", &["CLIENT", "KILL", "TYPE", "normal"]);
    waits(&mut *store, &["WRONGPASS"]);
    password.replace(b"new");
    assert_eq!(watermark(&store.load().unwrap()), 1);
    assert_eq!(store.apply(&batch(&[single("SET k 2")], 2)), Ok(0));
    let got = redis.call_as("new", &["GET", "k"]);
    assert!(got.ends_with("$1\r\n2\r\n"), "{got}");
}

/// When Redis receives a value above its limit, it closes the connection, although the value was acknowledged.
#[test]
fn a_value_above_a_limit_waits_until_the_limit_is_set_back() {
    for (name, bad, good, says) in &SETTINGS[..2] {
        let Some(redis) = Redis::start(&[]) else {
            return;
        };
        let mut store = redis.store();
        store.load().unwrap();
        redis.call(&["CONFIG", "SET", name, "1mb"]);
        let large = batch(
            &[
                single("SET k first"),
                set("k", 2 * MIB),
                single("SET l last"),
            ],
            1,
        );
        let Err(StoreError::Retry(_)) = store.apply(&large) else {
            panic!("{name}: Redis takes it")
        };
        redis.call(&["CONFIG", "SET", name, bad]);
        waits(&mut *store, says);
        assert_eq!(redis.get("k"), None, "{name}: as a whole, or not at all");
        redis.call(&["CONFIG", "SET", name, good]);
        assert_eq!(watermark(&load(&mut *store)), 0);
        assert_eq!(store.apply(&large), Ok(0));
        assert_eq!(redis.call(&["STRLEN", "k"]), format!(":{}\r\n", 2 * MIB));
        assert_eq!(redis.get("l").as_deref(), Some("last"));
    }
}

#[test]
fn at_the_least_limits_the_largest_commands_and_replies_go_through() {
    let limits = [
        "--proto-max-bulk-len",
        "32mb",
        "--client-query-buffer-limit",
        "64mb",
        "--client-output-buffer-limit",
        "normal 256mb 256mb 10",
    ];
    let Some(redis) = Redis::start(&limits) else {
        return;
    };
    let mut store = redis.store();
    store.load().unwrap();
    let largest = MESSAGE_BYTES_MAX - 64;
    assert_eq!(store.apply(&batch(&[set("k", largest)], 1)), Ok(0));
    // One batch has as many arguments as a front accepts in a command, others have many small updates.
    let mut many: Vec<&[u8]> = vec![b"MSET"];
    many.resize((1 << 20) - 1, b"x");
    assert_eq!(store.apply(&batch(&[arguments(&many)], 2)), Ok(0));
    let small: Vec<Bytes> = (0..1024).map(|_| set("s", 4096)).collect();
    assert_eq!(store.apply(&batch(&small, 3)), Ok(0));
    let reply = read(&mut *store, single("GET k"));
    assert_eq!(reply.len(), largest + format!("${largest}\r\n\r\n").len());
    // The reply to this request, the old value, is kept in the records.
    let request = arguments(&[b"GETSET", b"k", &vec![b'w'; largest]]);
    let reply = change(&mut *store, request);
    assert_eq!(reply.len(), largest + format!("${largest}\r\n\r\n").len());
    assert_eq!(redis.call(&["STRLEN", "k"]), format!(":{largest}\r\n"));
}

/// `maxmemory-clients` has its smallest value, from the start of Redis, or from a moment when the server already runs.
#[test]
fn the_connection_of_a_server_is_not_closed_for_the_memory_that_it_takes() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let mut store = redis.store();
    store.load().unwrap();
    redis.call(&["CONFIG", "SET", "maxmemory-clients", "1mb"]);
    let large = batch(&[set("k", 8 * MIB)], 1);
    let Err(StoreError::Retry(_)) = store.apply(&large) else {
        panic!("Redis takes it, so this test shows nothing")
    };
    assert_eq!(watermark(&load(&mut *store)), 0);
    assert_eq!(store.apply(&large), Ok(0));
    let reply = read(&mut *store, single("STRLEN k"));
    assert_eq!(reply, format!(":{}\r\n", 8 * MIB));
}

#[test]
fn no_client_can_put_redis_wrong() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let url = format!("redis://pm:secret@127.0.0.1:{}", redis.port);
    let user = [
        "ACL",
        "SETUSER",
        "pm",
        "on",
        ">secret",
        "allkeys",
        "allchannels",
        "+@all",
    ];
    assert_eq!(redis.call(&user), "+OK\r\n");
    let mut store = pmnet_store::open(&url, 0).unwrap();
    store.load().unwrap();
    for line in [
        "CONFIG SET min-replicas-to-write 1",
        "CONFIG SET proto-max-bulk-len 1mb",
        "config set CLIENT-QUERY-BUFFER-LIMIT 1mb",
        "CONFIG SET hz 10 requirepass x",
        "CONFIG SET port 0",
        "CONFIG SET protected-mode yes",
        "CONFIG SET maxclients 1",
        "CONFIG SET dir /",
    ] {
        let reply = change(&mut *store, single(line));
        assert!(reply.contains("rest on this setting"), "{line}: {reply}");
    }
    // The error names the setting.
    let reply = change(&mut *store, single("CONFIG SET hz 10 port 0 dir /"));
    assert!(reply.contains("(port)"), "{reply}");
    for line in ["ACL SETUSER pm off", "ACL DELUSER pm", "ACL LOAD"] {
        let reply = change(&mut *store, single(line));
        assert!(reply.contains("pmnet's own rights"), "{line}: {reply}");
    }
    for line in [
        "CONFIG SET min-replicas-to-write 0",
        "CONFIG SET proto-max-bulk-len 1gb",
        "CONFIG SET maxmemory-policy noeviction",
        "ACL SETUSER default +@all",
        "ACL SETUSER guest on nopass ~guest:* +get",
    ] {
        assert_eq!(change(&mut *store, single(line)), "+OK\r\n", "{line}");
    }
    assert_eq!(change(&mut *store, single("ACL DELUSER guest")), ":1\r\n");
}

#[test]
fn how_redis_evicts_may_be_set_where_memory_has_no_limit() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let mut store = redis.store();
    store.load().unwrap();
    let policy = single("CONFIG SET maxmemory-policy allkeys-lru");
    assert_eq!(change(&mut *store, policy.clone()), "+OK\r\n");
    assert!(
        redis
            .call(&["CONFIG", "GET", "maxmemory-policy"])
            .contains("allkeys-lru")
    );
    // With this policy clients cannot set a memory limit, either.
    let limit = single("CONFIG SET maxmemory 1gb");
    let reply = change(&mut *store, limit);
    assert!(
        reply.contains("rest on this setting (maxmemory)"),
        "{reply}"
    );
    redis.call(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    redis.call(&["CONFIG", "SET", "maxmemory", "1gb"]);
    let reply = change(&mut *store, policy);
    assert!(
        reply.contains("rest on this setting (maxmemory-policy)"),
        "{reply}"
    );
}

#[test]
fn no_room_for_the_server_is_waited_for() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let mut store = redis.store();
    store.load().unwrap();
    redis.call(&["CONFIG", "SET", "maxclients", "1"]);
    // Redis allows only the one connection that exists.
    let Err(StoreError::Retry(text)) = redis.store().load() else {
        panic!("there is room")
    };
    contains(&text, &["max number of clients"]);
    assert_eq!(store.apply(&batch(&[single("SET k v")], 1)), Ok(0));
    drop(store);
    assert_eq!(watermark(&load(&mut *redis.store())), 1);
}

#[test]
fn a_connection_that_redis_closes_when_it_is_idle_costs_another_one() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let mut store = redis.store();
    store.load().unwrap();
    assert_eq!(store.apply(&batch(&[single("INCR n")], 1)), Ok(0));
    redis.call(&["CONFIG", "SET", "timeout", "1"]);
    let until = Instant::now() + WAIT_MAX;
    while !redis
        .call(&["INFO", "clients"])
        .contains("connected_clients:1\r\n")
    {
        assert!(Instant::now() < until, "Redis does not close it");
        std::thread::sleep(Duration::from_millis(20));
    }
    redis.call(&["CONFIG", "SET", "timeout", "0"]);
    let Err(StoreError::Retry(_)) = store.apply(&batch(&[single("INCR n")], 2)) else {
        panic!("it is closed")
    };
    assert_eq!(watermark(&load(&mut *store)), 1);
    assert_eq!(store.apply(&batch(&[single("INCR n")], 2)), Ok(0));
    assert_eq!(redis.get("n").as_deref(), Some("2"));
}

/// With these settings Redis may refuse writes for some time. Settings of this kind do no harm, because writes wait.
#[test]
fn replicas_that_are_missing_are_waited_for() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let mut store = redis.store();
    store.load().unwrap();
    redis.call(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    let Err(StoreError::Retry(text)) = store.apply(&batch(&[single("SET k v")], 1)) else {
        panic!("Redis takes it")
    };
    contains(&text, &["NOREPLICAS"]);
    assert_eq!(watermark(&load(&mut *store)), 0, "reads go on");
    redis.call(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    load(&mut *store);
    assert_eq!(store.apply(&batch(&[single("SET k v")], 1)), Ok(0));
}

/// Found: a right that was removed while a server ran was reported as a change of the records.
#[test]
fn a_right_that_is_missing_is_named() {
    for right in ["hmget", "watch"] {
        let Some(redis) = Redis::start(&[]) else {
            return;
        };
        let mut store = redis.store();
        store.load().unwrap();
        acl(&redis, &format!("-{right}"));
        let Err(StoreError::Retry(text)) = store.apply(&batch(&[single("SET k v")], 1)) else {
            panic!("{right}: it is needed")
        };
        contains(&text.to_lowercase(), &[right, "noperm"]);
        waits(&mut *store, &["may not run", &right.to_uppercase()]);
        acl(&redis, "+@all");
        let records = load(&mut *store);
        assert_eq!(watermark(&records), 1, "{right}: it was applied");
    }
}

/// Found: a client waited until its deadline, and did not get the reason.
#[test]
fn a_database_that_the_user_may_not_select_is_refused_with_redis_own_words() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    acl(&redis, "-select +select|0");
    redis.call(&["SET", "k", "zero"]);
    let mut store = redis.store();
    store.load().unwrap();
    let other = |command| payload(Form::Single, Protocol::Resp2, 1, &[command]);
    for _ in 0..2 {
        let reply = read(&mut *store, other("GET k"));
        assert!(reply.starts_with("-NOPERM"), "{reply}");
        assert!(change(&mut *store, other("INCR n")).starts_with("-NOPERM"));
        assert_eq!(read(&mut *store, single("GET k")), "$4\r\nzero\r\n");
    }
    let Err(StoreError::Retry(text)) = store.apply(&batch(&[other("SET k v")], 1)) else {
        panic!("it waits")
    };
    contains(&text, &["into database 1", "NOPERM", "SET k in database 1"]);
    acl(&redis, "+select");
    load(&mut *store);
    assert_eq!(store.apply(&batch(&[other("SET k v")], 1)), Ok(0));
    assert_eq!(read(&mut *store, other("GET k")), "$1\r\nv\r\n");
    assert_eq!(redis.get("k").as_deref(), Some("zero"));
}
