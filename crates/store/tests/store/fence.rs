//! If Redis executes commands late, after their connection was given up or their server was killed, these commands have
//! no effect. If another server has taken a shard over, the commands of the former server have no effect, either.

use crate::support::proxy::{Late, Proxy};
use crate::support::{Redis, batch, load, payload, single, watermark};
use bytes::Bytes;
use pmnet_server::{Request, Store, StoreError};
use pmnet_wire::command::{Form, Protocol};

/// The end of every call that writes: the check of owner and watermark.
const END: &str = "owner\r\n$9\r\nwatermark\r\n";

/// A call of the store whose reply is dropped.
type Call = fn(&mut dyn Store) -> Result<(), StoreError>;

fn through(proxy: &Proxy) -> Box<dyn Store> {
    pmnet_store::open(&proxy.url(), 0).unwrap()
}

fn request(payload: Bytes) -> Request {
    Request {
        source: pmnet_server::Source::default(),
        payload,
        record: Some((b"reply/1".to_vec(), Bytes::from_static(b"p"))),
    }
}

/// Makes the call that contains `needle` arrive late. To the store, its connection seems to be dead.
fn late<T: std::fmt::Debug>(
    proxy: &Proxy,
    needle: &str,
    call: impl FnOnce() -> Result<T, StoreError>,
) -> Late {
    proxy.hold(needle);
    let cut = proxy.cut_after(END);
    let result = call();
    assert!(matches!(result, Err(StoreError::Retry(_))), "{result:?}");
    cut.join().unwrap()
}

fn reply_of(records: &[(Vec<u8>, Bytes)]) -> Option<String> {
    let (_, value) = records.iter().find(|(key, _)| key == b"reply/1")?;
    Some(String::from_utf8_lossy(value).into_owned())
}

fn fatal(result: Result<impl std::fmt::Debug, StoreError>, says: &str) {
    match result {
        Err(StoreError::Fatal(text)) => assert!(text.contains(says), "{text}"),
        other => panic!("wanted a fatal error that says {says:?}, got {other:?}"),
    }
}

/// Makes `commands` arrive late, and has them sent again by the same server, or by the next server (`new_server`). The
/// late bytes run before the commands are sent again (`overtakes`), or afterwards. There must be one reply and one
/// effect.
fn once(form: Form, commands: &[&str], wanted: &str, new_server: bool, overtakes: bool) {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let proxy = Proxy::start(redis.port);
    let mut store = through(&proxy);
    store.load().unwrap();
    redis.call(&["RPUSH", "list", "a", "b", "c"]);
    let payload = payload(form, Protocol::Resp2, 0, commands);
    let sent = request(payload.clone());
    let bytes = late(&proxy, "p-once", || {
        store.execute(std::slice::from_ref(&sent), &mut Vec::new())
    });
    if new_server {
        store = through(&proxy);
    }
    assert_eq!(reply_of(&load(&mut *store)), None, "not executed yet");
    let mut replies = Vec::new();
    if overtakes {
        store.execute(&[sent], &mut replies).unwrap();
        bytes.deliver();
    } else {
        bytes.deliver();
        assert_eq!(redis.get("n-p-once"), None, "a late command has an effect");
        store.execute(&[sent], &mut replies).unwrap();
    }
    assert_eq!(String::from_utf8_lossy(&replies[0]), wanted);
    assert_eq!(redis.get("n-p-once").as_deref(), Some("1"), "{commands:?}");
    assert_eq!(redis.call(&["LLEN", "list"]), ":4\r\n");
    let found = reply_of(&load(&mut *store)).unwrap();
    assert_eq!(found, format!("p{wanted}"));
    assert_eq!(store.apply(&batch(&[], 1)), Ok(0), "and it goes on");
}

#[test]
fn a_request_that_arrives_late_is_not_executed_twice() {
    for (new_server, overtakes) in [(false, false), (false, true), (true, false), (true, true)] {
        once(
            Form::Transaction,
            &["INCR n-p-once", "RPUSH list x"],
            "*2\r\n:1\r\n:4\r\n",
            new_server,
            overtakes,
        );
    }
}

#[test]
fn a_request_by_multi_that_arrives_late_is_not_executed_twice() {
    for new_server in [false, true] {
        for overtakes in [false, true] {
            once(
                Form::Transaction,
                &["BLPOP list 0", "INCR n-p-once", "RPUSH list x y"],
                "*3\r\n*2\r\n$4\r\nlist\r\n$1\r\na\r\n:1\r\n:4\r\n",
                new_server,
                overtakes,
            );
        }
    }
}

#[test]
fn a_reply_that_is_recorded_late_replaces_no_newer_one() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let proxy = Proxy::start(redis.port);
    let mut store = through(&proxy);
    store.load().unwrap();
    redis.call(&["RPUSH", "list", "a", "b", "c"]);
    // The transaction ran, and its true reply is still on the connection.
    let bytes = late(&proxy, "p*2\r\n$4\r\nlist", || {
        store.execute(&[request(single("BLPOP list 0"))], &mut Vec::new())
    });
    // The process that got the reply still runs, so the reply is not lost.
    let owed = reply_of(&load(&mut *store)).unwrap();
    assert_eq!(owed, "p*2\r\n$4\r\nlist\r\n$1\r\na\r\n");
    let mut replies = Vec::new();
    store
        .execute(&[request(single("LLEN list"))], &mut replies)
        .unwrap();
    let answer = bytes.deliver();
    assert!(answer.starts_with("-FENCED"), "{answer}");
    assert_eq!(reply_of(&load(&mut *store)).as_deref(), Some("p:2\r\n"));
}

#[test]
fn a_reply_is_lost_only_with_the_process_that_knew_it() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let proxy = Proxy::start(redis.port);
    let mut store = through(&proxy);
    store.load().unwrap();
    redis.call(&["RPUSH", "list", "a", "b"]);
    let _bytes = late(&proxy, "p*2\r\n$4\r\nlist", || {
        store.execute(&[request(single("BLPOP list 0"))], &mut Vec::new())
    });
    drop(store);
    let lost = reply_of(&load(&mut *through(&proxy))).unwrap();
    assert!(lost.contains("reply lost in a crash"), "{lost}");
    assert_eq!(redis.call(&["LLEN", "list"]), ":1\r\n");
}

#[test]
fn a_batch_that_arrives_late_has_no_effect() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let proxy = Proxy::start(redis.port);
    let mut store = through(&proxy);
    store.load().unwrap();
    let bytes = late(&proxy, "INCR", || {
        store.apply(&batch(&[single("INCR n")], 1))
    });
    assert_eq!(watermark(&load(&mut *store)), 0);
    bytes.deliver();
    assert_eq!(redis.get("n"), None);
    assert_eq!(store.apply(&batch(&[single("INCR n")], 1)), Ok(0));
    assert_eq!(redis.get("n").as_deref(), Some("1"));
}

#[test]
fn a_load_that_arrives_late_takes_nothing_over() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let proxy = Proxy::start(redis.port);
    for new_server in [false, true] {
        let mut store = through(&proxy);
        let bytes = late(&proxy, "another process loads", || store.load());
        if new_server {
            store = through(&proxy);
        }
        store.load().unwrap();
        let answer = bytes.deliver();
        assert!(answer.starts_with("-TRYAGAIN"), "{answer}");
        let mut replies = Vec::new();
        store
            .execute(&[request(single("INCR n"))], &mut replies)
            .unwrap();
        let before = watermark(&load(&mut *store));
        assert_eq!(store.apply(&batch(&[], before + 1)), Ok(0));
    }
    assert_eq!(redis.get("n").as_deref(), Some("2"));
}

#[test]
fn a_server_whose_shard_another_one_took_over_stops_and_says_so() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let proxy = Proxy::start(redis.port);
    let taken: [Call; 4] = [
        |store| store.apply(&batch(&[single("INCR n")], 9)).map(drop),
        |store| store.execute(&[request(single("INCR n"))], &mut Vec::new()),
        |store| store.execute(&[request(single("BLPOP none 0"))], &mut Vec::new()),
        // A server that has lost its connection must not take the shard back, either.
        |store| store.load().map(drop),
    ];
    for call in taken {
        let mut old = through(&proxy);
        load(&mut *old);
        let mut new = redis.store();
        load(&mut *new);
        fatal(call(&mut *old), "another pmnet server");
        let records = load(&mut *new);
        assert_eq!(new.apply(&batch(&[], watermark(&records) + 1)), Ok(0));
    }
    assert_eq!(redis.get("n"), None);
}

#[test]
fn the_owner_is_no_record_and_survives_a_flush() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let mut store = redis.store();
    assert_eq!(store.load(), Ok(vec![]));
    let owner = redis.call(&["HGET", "pmnet:{0}", "owner"]);
    assert!(owner.len() > 32, "{owner}");
    assert_eq!(store.apply(&batch(&[single("FLUSHALL")], 1)), Ok(0));
    assert_eq!(redis.call(&["HGET", "pmnet:{0}", "owner"]), owner);
    assert_eq!(store.apply(&batch(&[single("INCR n")], 2)), Ok(0));
    assert_eq!(load(&mut *store).len(), 1);
    assert_ne!(redis.call(&["HGET", "pmnet:{0}", "owner"]), owner);
}

#[test]
fn a_redis_that_takes_no_writes_is_read_and_nothing_is_written_before_it_is_owned() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    // While Redis accepts no writes, only the former owner may read.
    let mut store = redis.store();
    assert_eq!(store.load(), Ok(vec![]));
    redis.call(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    assert_eq!(store.load(), Ok(vec![]));
    assert_eq!(
        crate::support::read(&mut *store, single("GET n")),
        "$-1\r\n"
    );
    redis.call(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    for _ in 0..2 {
        // The process still is not the owner of the records.
        let result = store.apply(&batch(&[single("INCR n")], 1));
        let Err(StoreError::Retry(text)) = result else {
            panic!("{result:?}")
        };
        assert!(
            text.contains("NOREPLICAS") || text.contains("load first"),
            "{text}"
        );
        assert_eq!(redis.get("n"), None);
    }
    assert_eq!(store.load(), Ok(vec![]));
    assert_eq!(store.apply(&batch(&[single("INCR n")], 1)), Ok(0));
}

#[test]
fn a_watermark_raised_behind_our_back_stops_the_shard() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let mut store = redis.store();
    store.load().unwrap();
    assert_eq!(store.apply(&batch(&[single("INCR n")], 1)), Ok(0));
    redis.call(&["HSET", "pmnet:{0}", "watermark", "\0\0\0\0\0\0\0\u{7}"]);
    let result = store.apply(&batch(&[single("INCR n")], 2));
    assert!(matches!(result, Err(StoreError::Retry(_))), "{result:?}");
    fatal(store.load(), "another program changed them");
    assert_eq!(redis.get("n").as_deref(), Some("1"));
}

/// Found: a process read the records without being their owner, and returned them. The former owner continued to write.
/// A device that asked the new process was told that the store had lost data. (Simulator, seed 8378 of that version.)
#[test]
fn who_never_owned_the_records_reads_none_while_redis_takes_no_writes() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let mut before = redis.store();
    before.load().unwrap();
    redis.call(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    let mut later = redis.store();
    for _ in 0..2 {
        let Err(StoreError::Retry(text)) = later.load() else {
            panic!("it does not own them")
        };
        assert!(text.contains("NOREPLICAS"), "{text}");
        assert!(text.contains("answers nobody"), "{text}");
        assert_eq!(later.identity(), None);
    }
    // No other process has taken the shard over from this process.
    load(&mut *before);
    redis.call(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    load(&mut *before);
    assert_eq!(before.apply(&batch(&[single("SET k v")], 1)), Ok(0));
    assert_eq!(watermark(&load(&mut *later)), 1, "it owns them now");
    fatal(before.load(), "taken over");
    assert_eq!(later.apply(&batch(&[single("SET k w")], 2)), Ok(0));
}

/// Found: all records came in one reply of a script. With 750 MB of records Redis closed the connection, and the server
/// could never load again.
#[test]
fn many_and_long_records_are_read_in_pieces() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let mut store = redis.store();
    load(&mut *store);
    let mut all = Vec::new();
    for (number, key) in (1..=4u64).zip(["session", "reply", "stage", "more"]) {
        let mut batch = batch(&[], number);
        for at in 0..1000usize {
            let long = if at % 100 == 0 { 200_000 } else { 20 };
            let record = (
                format!("{key}/{at}").into_bytes(),
                Some(Bytes::from(vec![b'x'; long])),
            );
            batch.records.push(record);
        }
        assert_eq!(store.apply(&batch), Ok(0));
        all.extend(batch.records);
    }
    let mut store = redis.store();
    let mut found = load(&mut *store);
    found.sort();
    let mut wanted: Vec<_> = all
        .into_iter()
        .filter(|(key, _)| key != b"watermark")
        .map(|(key, value)| (key, value.unwrap()))
        .collect();
    wanted.push((
        b"watermark".to_vec(),
        Bytes::copy_from_slice(&4u64.to_be_bytes()),
    ));
    wanted.sort();
    assert!(
        found == wanted,
        "{} records of {}",
        found.len(),
        wanted.len()
    );
    let statistics = redis.call(&["INFO", "commandstats"]);
    assert!(!statistics.contains("cmdstat_hgetall"), "{statistics}");
}
