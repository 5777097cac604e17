//! Servers other than the Redis of this machine, and behaviour that this Redis does not have.

use std::time::{Duration, Instant};

use bytes::Bytes;
use pmnet_server::{Request, Store, StoreError};
use pmnet_store::StoreSync;
use pmnet_wire::command::{Form, Protocol, preamble};

use crate::support::proxy::Proxy;
use crate::support::{Redis, arguments, batch, load, single, watermark};

/// Servers that `make test` has.
const NAMED: [&str; 2] = ["redis-8.2", "valkey-9.1"];
/// Redis's default setting for the AOF.
const EVERYSEC: [&str; 2] = ["--appendfsync", "everysec"];

fn open(redis: &Redis, sync: StoreSync) -> Box<dyn Store> {
    pmnet_store::open_with(
        &redis.url(),
        &pmnet_store::Passwords::default(),
        Some(sync),
        0,
    )
    .unwrap()
}

/// Executes a state-changing request. Returns the reply that the server would send to the client.
fn ask(store: &mut dyn Store, command: &str) -> String {
    ask_for(store, single(command))
}

fn ask_for(store: &mut dyn Store, payload: Bytes) -> String {
    let request = Request {
        source: pmnet_server::Source::default(),
        payload,
        record: Some((b"reply/1".to_vec(), Bytes::new())),
    };
    let mut replies = Vec::new();
    store.execute(&[request], &mut replies).unwrap();
    String::from_utf8_lossy(&replies[0]).into_owned()
}

/// Returns the number of times that Redis was asked to wait for a sync.
fn waits(redis: &Redis) -> u32 {
    let stats = redis.call(&["INFO", "commandstats"]);
    let calls = stats
        .lines()
        .find_map(|line| line.strip_prefix("cmdstat_waitaof:calls="));
    calls.map_or(0, |rest| rest.split(',').next().unwrap().parse().unwrap())
}

#[test]
fn a_server_of_another_make_is_refused_with_what_is_known_of_it() {
    let Some(redis) = Redis::start(&["--appendonly", "no"]) else {
        return;
    };
    // The reply to INFO begins with its length, so the new text must have the length of the old text.
    for (instead_of, says, told) in [
        ("\nrun_id:", "\nxun_id:", "has no run_id"),
        (
            "process_supervised:no",
            "dragonfly_version:1.4",
            "Dragonfly (dragonfly_version 1.4)",
        ),
        (
            "process_supervised:no",
            "garnet_version:1.0.99",
            "Garnet (garnet_version 1.0.99)",
        ),
        (
            "process_supervised:no",
            "kvrocks_version:2.9.0",
            "Kvrocks (kvrocks_version 2.9.0)",
        ),
        (
            "role:master\r\nconnected_slaves:0",
            "role:active-replica\r\nx:12345678",
            "KeyDB with active-replica",
        ),
    ] {
        let proxy = Proxy::start(redis.port);
        proxy.answer(instead_of, says);
        let mut store = pmnet_store::open(&proxy.url(), 0).unwrap();
        match store.load() {
            Err(StoreError::Fatal(text)) => {
                assert!(text.contains(told), "{told:?} is not in {text}");
                assert!(
                    text.contains("Use Redis 6.2 or newer, or Valkey")
                        || text.contains("use Redis")
                );
            }
            other => panic!("{says:?}: {other:?}"),
        }
        assert_eq!(
            redis.call(&["DBSIZE"]),
            ":0\r\n",
            "{says}: nothing was written"
        );
    }
}

/// While `BACKUP` of Redis 8.10 runs, there is an AOF. INFO then calls the AOF enabled, but Redis refuses WAITAOF.
#[test]
fn an_aof_that_only_a_backup_has_is_not_waited_for() {
    let Some(redis) = Redis::start(&["--appendonly", "no"]) else {
        return;
    };
    let backs_up = redis.call(&["BACKUP", "START"]) == "+OK\r\n";
    let proxy = Proxy::start(redis.port);
    if backs_up {
        let until = Instant::now() + Duration::from_secs(10);
        while !redis
            .call(&["INFO", "persistence"])
            .contains("aof_enabled:1")
        {
            assert!(Instant::now() < until, "there is no backup");
        }
    } else {
        proxy.answer("aof_enabled:0", "aof_enabled:1");
    }
    let mut store = pmnet_store::open(&proxy.url(), 0).unwrap();
    store.load().unwrap();
    let says = store.durability();
    assert!(says.contains("AOF is off"), "{says}");
    assert_eq!(store.apply(&batch(&[single("INCR n")], 1)), Ok(0));
    assert_eq!(ask(&mut *store, "INCR n"), ":2\r\n");
}

#[test]
fn with_everysec_the_user_says_what_waits_for_the_sync() {
    for name in NAMED {
        for (sync, says, waits_of_updates, waits_of_replies) in [
            (StoreSync::Replies, "up to 2 s", 1, 3),
            (StoreSync::Updates, "up to a second of these", 1, 0),
            (StoreSync::None, "loses up to a second", 0, 0),
        ] {
            let Some(redis) = Redis::start_named(name, &EVERYSEC) else {
                return;
            };
            let mut store = open(&redis, sync);
            load(&mut *store);
            let told = store.durability();
            assert!(told.contains(says), "{name}: {told}");
            let before = waits(&redis);
            assert_eq!(store.apply(&batch(&[single("SET k 1")], 1)), Ok(0));
            assert_eq!(waits(&redis) - before, waits_of_updates, "{name} {sync:?}");
            let before = waits(&redis);
            let start = Instant::now();
            assert_eq!(ask(&mut *store, "INCR n"), ":1\r\n");
            assert_eq!(ask(&mut *store, "INCR n"), ":2\r\n");
            // A script runs in a MULTI, and a second write records its reply. The store waits only for the second
            // write.
            let script = arguments(&[b"EVAL", b"return redis.call('INCR', KEYS[1])", b"1", b"n"]);
            assert_eq!(ask_for(&mut *store, script), ":3\r\n");
            assert_eq!(waits(&redis) - before, waits_of_replies, "{name} {sync:?}");
            println!("{name} {sync:?}: three replies after {:?}", start.elapsed());
        }
    }
}

/// With `everysec` Redis promises nothing: replies are lost together with their effects, and an update that is applied
/// again takes effect once.
#[test]
fn replies_that_did_not_wait_are_lost_as_those_of_redis_and_nothing_else_is() {
    for name in NAMED {
        let Some(mut redis) = Redis::start_named(name, &EVERYSEC) else {
            return;
        };
        let mut store = open(&redis, StoreSync::Updates);
        load(&mut *store);
        assert_eq!(store.apply(&batch(&[single("INCR n")], 1)), Ok(0));
        let synced = redis.aof_bytes();
        assert_eq!(ask(&mut *store, "INCR n"), ":2\r\n");
        assert_eq!(ask(&mut *store, "INCR n"), ":3\r\n");
        redis.lose_aof_after(synced);
        assert_eq!(watermark(&load(&mut *store)), 1, "{name}");
        assert_eq!(redis.get("n").as_deref(), Some("1"), "{name}");
        assert_eq!(store.apply(&batch(&[single("INCR n")], 2)), Ok(0));
        assert_eq!(ask(&mut *store, "INCR n"), ":3\r\n", "{name}");
    }
}

/// Each server has its own constants for scripts, and its own texts of script errors.
#[test]
fn a_script_is_answered_as_the_server_itself_answers_it() {
    let here = Redis::start(&[]);
    let named = NAMED.map(|name| Redis::start_named(name, &[]));
    for redis in [here].into_iter().chain(named).flatten() {
        let mut store = redis.store();
        store.load().unwrap();
        redis.call(&["SET", "s", "x"]);
        for body in [
            "return redis.call('NOSUCH')",
            "return redis.call('INCR', 's')",
            "\n\nerror('x')",
            "error({err = 'MY x'})",
            "return nosuchglobal",
            "#!lua flags=no-writes\nreturn redis.call('DEL', 's')",
            "#!lua flags=nope\nreturn 1",
            "#!lua nope\nreturn 1",
            "#!engine\nreturn 1",
            "#!engine nope\nreturn 1",
            "#!\nreturn 1",
            "#! lua\nreturn 1",
            "redis.setresp(3) return {double = 0/0}",
            "redis.setresp(3) return {double = -1/0}",
            "redis.setresp(3) return {double = 0.1}",
            "return redis.setresp()",
            "return redis.setresp(4)",
            "return redis.SERVER_NAME",
            "return redis.REDIS_VERSION",
            "return redis.VALKEY_VERSION_NUM",
            "return server.VALKEY_VERSION",
            "return server.call('GET', 's')",
        ] {
            for words in [&["EVAL", body, "0"][..], &["SCRIPT", "LOAD", body]] {
                let wanted = redis.call(words);
                let mut payload = preamble(Form::Single, Protocol::Resp2, 0).to_vec();
                pmnet_resp::write_command(&mut payload, words);
                let said = ask_for(&mut *store, payload.into());
                assert_eq!(
                    said,
                    wanted,
                    "{words:?} of {}",
                    redis.call(&["INFO", "server"])
                );
            }
        }
        let unknown = ["EVALSHA", &"f".repeat(40), "0"];
        let wanted = redis.call(&unknown);
        assert_eq!(ask(&mut *store, &unknown.join(" ")), wanted);
    }
}
