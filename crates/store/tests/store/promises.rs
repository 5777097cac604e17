//! If Redis refuses a write that a front acknowledged early, the write is never dropped: it waits, or the shard stops
//! with advice for the operator.

use crate::support::proxy::Proxy;
use crate::support::{Redis, batch, load, payload, single, watermark};
use bytes::Bytes;
use pmnet_server::{Store, StoreError};
use pmnet_wire::command::{Form, Protocol};

fn retry(result: Result<impl std::fmt::Debug, StoreError>, says: &[&str]) {
    let Err(StoreError::Retry(text)) = result else {
        panic!("wanted a retry that says {says:?}, got {result:?}")
    };
    for part in says {
        assert!(text.contains(part), "{text}");
    }
}

fn fatal(result: Result<impl std::fmt::Debug, StoreError>, says: &[&str]) {
    let Err(StoreError::Fatal(text)) = result else {
        panic!("wanted a fatal error that says {says:?}, got {result:?}")
    };
    for part in says {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn every_form_that_is_acknowledged_early_is_accepted_on_any_data() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let mut store = redis.store();
    store.load().unwrap();
    let forms = [
        "SET k v",
        "SET k v KEEPTTL",
        "SET k v EX 100000000000",
        "SET k v PX 100000000000000",
        "SET k v EXAT 100000000000",
        "SET k v PXAT 100000000000000",
        "SET k v EXAT 1",
        "SET k v PXAT 1",
        "MSET k v l w",
        "SETEX k 100000000000 v",
        "PSETEX k 100000000000000 v",
    ];
    for (round, form) in (1..).zip(forms) {
        redis.call(&["DEL", "k"]);
        redis.call(&["RPUSH", "k", "a list"]);
        assert_eq!(store.apply(&batch(&[single(form)], round)), Ok(0), "{form}");
        let found = redis.get("k");
        let past = form.ends_with("AT 1");
        assert_eq!(found.as_deref(), (!past).then_some("v"), "{form}");
    }
}

#[test]
fn a_database_that_redis_has_no_longer_is_waited_for() {
    let Some(mut redis) = Redis::start(&[]) else {
        return;
    };
    let mut store = redis.store();
    store.load().unwrap();
    assert_eq!(store.apply(&batch(&[single("SET a 1")], 1)), Ok(0));
    redis.restart_as(&["--databases", "4"]);
    let acknowledged = [
        single("SET a 2"),
        payload(Form::Single, Protocol::Resp2, 9, &["SET k nine"]),
    ];
    for _ in 0..2 {
        assert_eq!(watermark(&load(&mut *store)), 1);
        retry(
            store.apply(&batch(&acknowledged, 2)),
            &["no database 9", "SET k", "10 or more", "redis.conf"],
        );
        assert_eq!(redis.get("a").as_deref(), Some("1"), "nothing of the batch");
    }
    redis.restart_as(&[]);
    assert_eq!(watermark(&load(&mut *store)), 1);
    assert_eq!(store.apply(&batch(&acknowledged, 2)), Ok(0));
    let request = payload(Form::Single, Protocol::Resp2, 9, &["GET k"]);
    assert_eq!(crate::support::read(&mut *store, request), "$4\r\nnine\r\n");
}

/// Found: one such acknowledged update stopped the whole shard. Each batch with this update was refused, and was sent
/// again without end.
#[test]
fn an_update_for_a_database_that_redis_never_had_is_dropped() {
    let in_database =
        |database, command| payload(Form::Single, Protocol::Resp2, database, &[command]);
    // Without the right to CONFIG, the answer to SELECT decides.
    for config in ["+config", "-config"] {
        let Some(redis) = Redis::start(&[]) else {
            return;
        };
        redis.call(&["ACL", "SETUSER", "default", config]);
        let mut store = redis.store();
        store.load().unwrap();
        redis.call(&["SET", "k", "old"]);
        let effects = [
            in_database(2_147_483_646, "SET p y"),
            in_database(16, "SET p y"),
            in_database(99, "FLUSHDB"),
            in_database(99, "FLUSHALL"),
            in_database(u32::MAX, "SET p y"),
            in_database(15, "SET p y"),
            single("SET l new"),
        ];
        assert_eq!(store.apply(&batch(&effects, 7)), Ok(5), "{config}");
        assert_eq!(redis.get("k").as_deref(), Some("old"));
        assert_eq!(redis.get("l").as_deref(), Some("new"));
        let request = crate::support::read(&mut *store, in_database(16, "GET p"));
        assert!(
            request.starts_with("-ERR DB index is out of range"),
            "{request}"
        );
        assert_eq!(watermark(&load(&mut *store)), 7);
    }
}

/// A new process knows which databases Redis had before.
#[test]
fn a_database_that_redis_has_no_longer_is_waited_for_by_the_next_process_too() {
    let Some(mut redis) = Redis::start(&[]) else {
        return;
    };
    redis.store().load().unwrap();
    redis.restart_as(&["--databases", "4"]);
    let mut store = redis.store();
    store.load().unwrap();
    let nine = payload(Form::Single, Protocol::Resp2, 9, &["SET k nine"]);
    retry(
        store.apply(&batch(&[nine], 1)),
        &["PM2306", "no database 9 any more"],
    );
    let never = payload(Form::Single, Protocol::Resp2, 16, &["SET k never"]);
    load(&mut *store);
    assert_eq!(store.apply(&batch(&[never], 1)), Ok(1));
}

#[test]
fn a_redis_without_the_commands_that_are_acknowledged_early_is_refused() {
    for name in ["SET", "MSET", "SETEX", "PSETEX"] {
        let Some(redis) = Redis::start(&["--rename-command", name, ""]) else {
            return;
        };
        fatal(
            redis.store().load(),
            &[&format!("has no {name},"), "rename-command", "redis.conf"],
        );
    }
}

#[test]
fn a_refused_command_that_was_acknowledged_waits_until_redis_is_put_right() {
    let Some(mut redis) = Redis::start(&[]) else {
        return;
    };
    let mut store = redis.store();
    store.load().unwrap();
    let acknowledged = [single("SETEX k 1000 v"), single("SET other v")];
    redis.restart_as(&["--rename-command", "SETEX", "SAVED"]);
    for _ in 0..2 {
        retry(store.apply(&batch(&acknowledged, 1)), &[]);
        retry(store.load(), &["no SETEX", "redis.conf", "it waits"]);
        assert_eq!(redis.get("other"), None);
    }
    redis.restart_as(&[]);
    assert_eq!(watermark(&load(&mut *store)), 0);
    assert_eq!(store.apply(&batch(&acknowledged, 1)), Ok(0));
    assert_eq!(redis.get("k").as_deref(), Some("v"));
}

#[test]
fn what_was_let_through_and_what_no_front_sends_is_dropped_and_holds_up_nobody() {
    let Some(redis) = Redis::start(&["--rename-command", "PFMERGE", ""]) else {
        return;
    };
    let mut store = redis.store();
    store.load().unwrap();
    redis.call(&["RPUSH", "list", "x"]);
    let effects = [
        single("HMSET list f v"),
        single("PFMERGE a b"),
        single("SET k v EX 0"),
        single("SET k v NX XX"),
        Bytes::from_static(b"no payload"),
        payload(Form::Single, Protocol::Resp2, u32::MAX, &["SET k v"]),
        payload(
            Form::Transaction,
            Protocol::Resp2,
            0,
            &["SET k v", "NOSUCH"],
        ),
        single("SET k right"),
    ];
    assert_eq!(store.apply(&batch(&effects, 1)), Ok(7));
    assert_eq!(redis.get("k").as_deref(), Some("right"));
}

#[test]
fn a_promise_that_fails_while_it_is_executed_stops_the_shard() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let proxy = Proxy::start(redis.port);
    let mut store = pmnet_store::open(&proxy.url(), 0).unwrap();
    store.load().unwrap();
    // A Redis that is configured as documented never gives such an answer, so the proxy changes Redis's answer to EXEC.
    // (A command with so many arguments needs a MULTI.)
    proxy.answer(":0\r\n+OK\r\n", ":0\r\n-NO\r\n");
    let long = format!("MSET{}", " k v".repeat(3000));
    fatal(
        store.apply(&batch(&[single(&long)], 1)),
        &["MSET k", "is lost", "write this key again"],
    );
}

#[test]
fn a_redis_older_than_6_2_is_refused() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let info = redis.call(&["INFO", "server"]);
    let (_, rest) = info.split_once("redis_version:").unwrap();
    let proxy = Proxy::start(redis.port);
    let mut store = pmnet_store::open(&proxy.url(), 0).unwrap();
    let there = format!("redis_version:{}", &rest[..3]);
    proxy.answer(&there, "redis_version:6.0");
    fatal(store.load(), &["too old", "6.2"]);
    proxy.answer(&there, "redis_version:6.2");
    assert_eq!(load(&mut *store), []);
}
