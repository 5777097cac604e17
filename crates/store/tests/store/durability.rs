//! The store's statement about a power failure is true for its Redis.

use std::time::{Duration, Instant};

use crate::support::{Redis, change, load, single};
use pmnet_server::{Store, StoreError};

/// Microseconds for which Redis pauses after each key that it saves. With [`KEYS`] keys a rewrite takes a minute,
/// unless [`end_rewrite`] ends the rewrite.
const KEY_DELAY: [&str; 2] = ["--rdb-key-save-delay", "40000"];
const KEYS: usize = 1500;

fn fill(redis: &Redis) {
    let names: Vec<String> = (0..KEYS).map(|i| format!("key{i}")).collect();
    let mut command = vec!["MSET"];
    for name in &names {
        command.extend([name.as_str(), "v"]);
    }
    assert_eq!(redis.call(&command), "+OK\r\n");
}

/// Ends the current rewrite quickly. Further rewrites are quick, too.
fn end_rewrite(redis: &Redis) {
    redis.call(&["CONFIG", "SET", "rdb-key-save-delay", "0"]);
    redis.call(&["CONFIG", "SET", "appendonly", "no"]);
}

fn rewriting(redis: &Redis) -> bool {
    redis
        .call(&["INFO", "persistence"])
        .contains("aof_rewrite_in_progress:1")
}

#[test]
fn a_sync_that_pauses_during_rewrites_is_not_called_safe() {
    let Some(redis) = Redis::start(&["--no-appendfsync-on-rewrite", "yes"]) else {
        return;
    };
    let mut store = redis.store();
    load(&mut *store);
    let says = store.durability();
    assert!(
        says.contains("WAITAOF") || says.contains("CONFIG SET no-appendfsync-on-rewrite no"),
        "{says}"
    );
    assert_eq!(
        says.contains("WAITAOF"),
        says.contains("power loss"),
        "{says}"
    );
    redis.call(&["CONFIG", "SET", "no-appendfsync-on-rewrite", "no"]);
    load(&mut *store);
    let says = store.durability();
    assert!(says.contains("survives power loss"), "{says}");
    // Clients cannot change these settings back.
    for setting in [
        "no-appendfsync-on-rewrite yes",
        "appendfsync no",
        "appendonly no",
        "maxmemory 1",
    ] {
        let reply = change(&mut *store, single(&format!("CONFIG SET {setting}")));
        assert!(reply.contains("rest on this setting"), "{setting}: {reply}");
    }
}

#[test]
fn an_aof_that_was_just_switched_on_is_waited_for() {
    let options = [&KEY_DELAY[..], &["--appendonly", "no"]].concat();
    let Some(redis) = Redis::start(&options) else {
        return;
    };
    fill(&redis);
    // In the second round, files of the first round exist, and INFO looks the same as in any other rewrite.
    for _ in 0..2 {
        redis.call(&["CONFIG", "SET", "appendonly", "yes"]);
        assert!(rewriting(&redis));
        let mut store = redis.store();
        match store.load() {
            Err(StoreError::Retry(text)) => {
                assert!(text.contains("aof_rewrite_in_progress"), "{text}");
            }
            Ok(_) => assert!(store.durability().contains("WAITAOF")),
            Err(other) => panic!("{other}"),
        }
        assert!(rewriting(&redis), "the rewrite was too short for this test");
        end_rewrite(&redis);
        redis.call(&["CONFIG", "SET", "appendonly", "yes"]);
        load(&mut *store);
        assert!(!rewriting(&redis));
        let says = store.durability();
        assert!(says.contains("survives power loss"), "{says}");
        redis.call(&["CONFIG", "SET", "rdb-key-save-delay", KEY_DELAY[1]]);
        redis.call(&["CONFIG", "SET", "appendonly", "no"]);
        load(&mut *store);
        let says = store.durability();
        assert!(says.contains("AOF is off"), "{says}");
    }
}

#[test]
fn a_rewrite_of_a_whole_aof_keeps_nobody_waiting() {
    let Some(redis) = Redis::start(&KEY_DELAY) else {
        return;
    };
    fill(&redis);
    let mut store = redis.store();
    load(&mut *store);
    // The first store requested this rewrite. Another server need not wait for this rewrite, either.
    for mut store in [store, redis.store()] {
        assert!(rewriting(&redis));
        store.load().unwrap();
        assert!(rewriting(&redis), "the rewrite was too short for this test");
        let says = store.durability();
        assert!(says.contains("survives power loss"), "{says}");
    }
    end_rewrite(&redis);
}

/// When Redis starts, it cuts a torn AOF after the last whole command. If a transaction is torn, its beginning stays
/// open in the file, and takes effect when Redis starts a second time. Found by
/// `kills::every_process_fifty_times_with_a_log_in_memory`.
#[test]
fn a_transaction_that_is_torn_in_the_aof_never_takes_effect() {
    // A rewrite drops the open transaction. Redis dies after the rewrite has ended (false), or while it runs (true).
    for slow in [false, true] {
        let Some(mut redis) = Redis::start(&[]) else {
            return;
        };
        let mut store = redis.store();
        load(&mut *store);
        assert_eq!(change(&mut *store, single("INCR n")), ":1\r\n");
        fill(&redis);
        redis.tear_aof(&[&["MULTI"], &["INCR", "n"], &["SET", "torn", "1"], &["EXEC"]]);
        if slow {
            redis.call(&["CONFIG", "SET", "rdb-key-save-delay", KEY_DELAY[1]]);
        }
        load(&mut *store);
        assert_eq!(redis.get("n").as_deref(), Some("1"));
        assert_eq!(change(&mut *store, single("INCR n")), ":2\r\n");
        let until = Instant::now() + Duration::from_secs(20);
        while !slow && rewriting(&redis) {
            assert!(Instant::now() < until, "the rewrite does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(rewriting(&redis), slow);
        redis.restart_patiently();
        load(&mut *store);
        assert_eq!(redis.get("n").as_deref(), Some("2"), "slow: {slow}");
        assert_eq!(redis.get("torn"), None);
        assert_eq!(change(&mut *store, single("INCR n")), ":3\r\n");
        redis.restart();
        load(&mut *store);
        assert_eq!(redis.get("n").as_deref(), Some("3"), "slow: {slow}");
    }
}
