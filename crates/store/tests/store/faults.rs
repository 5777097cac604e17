//! Redis is killed, suspended, still loading, or without its replica. No update is lost or doubled, and every call
//! ends.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::support::proxy::Proxy;
use crate::support::{Redis, batch, load, payload, single, watermark};
use bytes::Bytes;
use pmnet_server::{Batch, Request, Store, StoreError};
use pmnet_wire::command::{Form, Protocol};

/// Number of times that Redis is killed in the middle of a stream.
const KILLS: usize = 12;

fn signal(pid: u32, name: &str) {
    assert!(
        Command::new("kill")
            .args([name, &pid.to_string()])
            .status()
            .unwrap()
            .success()
    );
}

/// Kills and restarts Redis until `stop` is set. The times between the kills vary.
fn killer(redis: &Arc<Mutex<Redis>>, stop: &Arc<AtomicBool>) -> std::thread::JoinHandle<()> {
    let (redis, stop) = (Arc::clone(redis), Arc::clone(stop));
    std::thread::spawn(move || {
        for round in 0..KILLS {
            std::thread::sleep(Duration::from_micros(
                40_000 + 7_919 * u64::try_from(round).unwrap() % 30_000,
            ));
            redis.lock().unwrap().restart();
        }
        stop.store(true, Ordering::SeqCst);
    })
}

#[test]
fn kills_in_the_middle_of_batches() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let mut store = redis.store();
    let redis = Arc::new(Mutex::new(redis));
    let stop = Arc::new(AtomicBool::new(false));
    let killer = killer(&redis, &stop);
    let (mut applied, mut size, mut interrupted, mut batches) =
        (watermark(&load(&mut *store)), 1u64, 0, 0);
    while !stop.load(Ordering::SeqCst) {
        size = size * 7 % 61 + 1;
        let effects: Vec<Bytes> = (0..size).map(|_| single("INCR n")).collect();
        match store.apply(&batch(&effects, applied + size)) {
            Ok(rejected) => {
                assert_eq!(rejected, 0);
                applied += size;
                batches += 1;
            }
            Err(StoreError::Retry(_)) => {
                interrupted += 1;
                let found = watermark(&load(&mut *store));
                assert!(
                    found == applied || found == applied + size,
                    "{found} after {applied} + {size}"
                );
                applied = found;
            }
            Err(error) => panic!("{error}"),
        }
    }
    killer.join().unwrap();
    assert_eq!(watermark(&load(&mut *store)), applied);
    let counted = redis.lock().unwrap().get("n").unwrap_or_default();
    assert_eq!(counted, applied.to_string());
    println!("{batches} batches, {applied} effects, {interrupted} interruptions");
    assert!(interrupted > 0 && batches > interrupted);
}

#[test]
fn kills_in_the_middle_of_requests() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let mut store = redis.store();
    let redis = Arc::new(Mutex::new(redis));
    let stop = Arc::new(AtomicBool::new(false));
    let killer = killer(&redis, &stop);
    load(&mut *store);
    let (mut next, mut interrupted, mut answered) = (0u32, 0, 0);
    while !stop.load(Ordering::SeqCst) {
        let request = |i: u32| Request {
            source: pmnet_server::Source::default(),
            // One request in four needs a MULTI, and one in four is a pack.
            payload: match i % 4 {
                0 => single("BLMPOP 1 1 none LEFT"),
                1 => payload(
                    Form::Pack,
                    Protocol::Resp2,
                    0,
                    &["INCR n", "INCR p", "MULTI", "INCR p", "EXEC", "GET p"],
                ),
                _ => single("INCR n"),
            },
            record: Some((b"last".to_vec(), Bytes::from(format!("{i}:")))),
        };
        let mut replies = Vec::new();
        match store.execute(&[request(next), request(next + 1)], &mut replies) {
            Ok(()) => {
                answered += 2;
                next += 2;
            }
            Err(StoreError::Retry(_)) => {
                interrupted += 1;
                let records = load(&mut *store);
                let last = records.iter().find(|(key, _)| key == b"last");
                if let Some((_, value)) = last {
                    let text = std::str::from_utf8(value).unwrap();
                    let (done, reply) = text.split_once(':').unwrap();
                    let done: u32 = done.parse().unwrap();
                    assert!(!reply.is_empty());
                    assert!(done + 1 >= next && done <= next + 1, "{done} after {next}");
                    next = done + 1;
                }
            }
            Err(error) => panic!("{error}"),
        }
    }
    killer.join().unwrap();
    load(&mut *store);
    let wanted = (0..next).filter(|i| !i.is_multiple_of(4)).count();
    assert_eq!(
        // The key is absent if no request was executed before the first kill.
        redis.lock().unwrap().get("n").unwrap_or_else(|| "0".into()),
        wanted.to_string()
    );
    let packs = (0..next).filter(|i| i % 4 == 1).count();
    assert_eq!(
        redis.lock().unwrap().get("p").unwrap_or_default(),
        (2 * packs).to_string()
    );
    println!("{answered} answered, {interrupted} interruptions");
    assert!(interrupted > 0 && answered > 0);
}

#[test]
fn a_stopped_redis_costs_one_deadline() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let mut store = redis.store();
    store.load().unwrap();
    signal(redis.pid(), "-STOP");
    let start = Instant::now();
    let result = store.apply(&batch(&[single("INCR n")], 1));
    assert!(matches!(result, Err(StoreError::Retry(_))), "{result:?}");
    assert!(
        start.elapsed() < Duration::from_secs(11),
        "{:?}",
        start.elapsed()
    );
    signal(redis.pid(), "-CONT");
    // Redis may have executed the request when it was resumed, but only together with the request's record.
    std::thread::sleep(Duration::from_millis(200));
    let found = watermark(&load(&mut *store));
    assert_eq!(redis.get("n").unwrap_or("0".into()), found.to_string());
}

#[test]
fn loading_and_absent_servers_are_waited_for() {
    let slow = [
        "--appendonly",
        "no",
        "--key-load-delay",
        "20000",
        "--loading-process-events-interval-bytes",
        "1024",
    ];
    let Some(mut redis) = Redis::start(&slow) else {
        return;
    };
    let mut store = redis.store();
    store.load().unwrap();
    let effects: Vec<Bytes> = (0..100)
        .map(|i| single(&format!("SET k{i} {}", "x".repeat(100))))
        .collect();
    assert_eq!(store.apply(&batch(&effects, 1)), Ok(0));
    redis.call(&["SAVE"]);
    redis.kill();
    let Err(StoreError::Retry(refused)) = store.load() else {
        panic!("nobody listens")
    };
    assert!(refused.contains("127.0.0.1"), "{refused}");
    redis.run();
    let until = Instant::now() + Duration::from_secs(20);
    let mut seen_loading = false;
    let records = loop {
        assert!(Instant::now() < until);
        match store.load() {
            Ok(records) => break records,
            Err(StoreError::Retry(text)) => seen_loading |= text.contains("loading"),
            Err(error) => panic!("{error}"),
        }
    };
    assert!(seen_loading);
    assert_eq!(watermark(&records), 1);
}

#[test]
fn replies_wait_for_the_replicas_asked_for() {
    let Some(primary) = Redis::start(&[]) else {
        return;
    };
    let port = primary.port.to_string();
    let Some(replica) = Redis::start(&["--replicaof", "127.0.0.1", &port]) else {
        return;
    };
    let url = format!("{}/0?wait_replicas=1", primary.url());
    let mut store: Box<dyn Store> = pmnet_store::open(&url, 0).unwrap();
    load(&mut *store);
    assert_eq!(store.apply(&batch(&[single("SET k 1")], 1)), Ok(0));
    assert_eq!(replica.get("k").as_deref(), Some("1"));
    signal(replica.pid(), "-STOP");
    let start = Instant::now();
    let result = store.apply(&Batch {
        effects: vec![single("SET k 2")],
        ..batch(&[], 2)
    });
    let Err(StoreError::Retry(text)) = result else {
        panic!("{result:?}")
    };
    assert!(text.contains("not durably"), "{text}");
    // Clients do not see a write that is not replicated yet.
    assert!(matches!(store.load(), Err(StoreError::Retry(_))));
    assert!(start.elapsed() < Duration::from_secs(15));
    signal(replica.pid(), "-CONT");
    assert_eq!(watermark(&load(&mut *store)), 2);
    assert_eq!(replica.get("k").as_deref(), Some("2"));
}

#[test]
fn with_a_lazy_aof_the_sync_is_waited_for_where_the_server_can() {
    let Some(mut redis) = Redis::start(&["--appendfsync", "everysec"]) else {
        return;
    };
    let mut store = redis.store();
    store.load().unwrap();
    let can = !redis
        .call(&["WAITAOF", "0", "0", "0"])
        .starts_with("-ERR unknown command");
    let says = store.durability();
    assert_eq!(says.contains("WAITAOF"), can, "{says}");
    assert_eq!(says.contains("loses up to a second"), !can, "{says}");
    assert_eq!(store.apply(&batch(&[single("INCR n")], 1)), Ok(0));
    assert_eq!(
        crate::support::change(&mut *store, single("INCR n")),
        ":2\r\n"
    );
    redis.restart();
    assert_eq!(watermark(&load(&mut *store)), 1);
}

/// Found: a process between pmnet and Redis answered in Redis's place. A client got the raw text, and waited for the
/// rest of a reply.
#[test]
fn an_answer_of_another_shape_is_not_handed_on() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let proxy = Proxy::start(redis.port);
    let mut store = pmnet_store::open(&proxy.url(), 0).unwrap();
    load(&mut *store);
    proxy.answer("$4\r\n:1\r\n\r\n", "+OK OK O\r\n");
    let request = Request {
        source: pmnet_server::Source::default(),
        payload: single("INCR n"),
        record: Some((b"reply/1".to_vec(), Bytes::new())),
    };
    let mut replies = Vec::new();
    let result = store.execute(&[request], &mut replies);
    assert!(
        matches!(&result, Err(StoreError::Retry(text)) if text.contains("not understood: +OK OK O")),
        "{result:?}"
    );
    assert!(replies.is_empty());
    // The request's record was written.
    proxy.answer("none", "none");
    let records = load(&mut *store);
    assert!(records.contains(&(b"reply/1".to_vec(), Bytes::from_static(b":1\r\n"))));
    proxy.answer("*0\r\n", "+O\r\n");
    let result = store.apply(&batch(&[single("INCR n")], 1));
    assert!(
        matches!(&result, Err(StoreError::Retry(text)) if text.contains("not understood: +O")),
        "{result:?}"
    );
    assert_eq!(watermark(&load(&mut *store)), 1);
    assert_eq!(redis.get("n").as_deref(), Some("2"));
}
