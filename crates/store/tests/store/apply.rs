//! Batches on a real Redis. The tests check which batches are refused, which batches wait, and that records and effects
//! are always written together.

use crate::support::claims::Port;
use crate::support::{Redis, arguments, batch, change, load, payload, read, single, watermark};
use bytes::Bytes;
use pmnet_server::{Batch, Store, StoreError};
use pmnet_wire::command::{Form, Protocol, preamble};

fn ready(options: &[&str]) -> Option<(Redis, Box<dyn Store>)> {
    let redis = Redis::start(options)?;
    let mut store = redis.store();
    assert_eq!(store.load().unwrap(), vec![]);
    Some((redis, store))
}

fn retry(result: Result<impl std::fmt::Debug, StoreError>, says: &str) {
    match result {
        Err(StoreError::Retry(text)) => assert!(text.contains(says), "{text}"),
        other => panic!("wanted a retry that says {says:?}, got {other:?}"),
    }
}

fn fatal(result: Result<impl std::fmt::Debug, StoreError>, says: &str) {
    match result {
        Err(StoreError::Fatal(text)) => assert!(text.contains(says), "{text}"),
        other => panic!("wanted a fatal error that says {says:?}, got {other:?}"),
    }
}

#[test]
fn effects_and_records_go_together_and_come_back() {
    let Some((mut redis, mut store)) = ready(&[]) else {
        return;
    };
    let binary: &[u8] = b"\x00\xff\r\n$-1\r\n";
    let mut first = batch(
        &[
            arguments(&[b"SET", b"k", binary]),
            payload(Form::Single, Protocol::Resp2, 5, &["SET k five"]),
            payload(Form::Transaction, Protocol::Resp2, 5, &["INCR n", "INCR n"]),
            single("MSET a 1 b 2"),
        ],
        7,
    );
    first
        .records
        .push((vec![0, 255], Some(Bytes::from_static(binary))));
    first.records.push((b"gone".to_vec(), Some(Bytes::new())));
    assert_eq!(store.apply(&first), Ok(0));
    let removal = Batch {
        records: vec![(b"gone".to_vec(), None)],
        ..Batch::default()
    };
    assert_eq!(store.apply(&removal), Ok(0));
    assert_eq!(store.apply(&Batch::default()), Ok(0));
    redis.restart();
    let mut records = load(&mut *store);
    records.sort();
    assert_eq!(records.len(), 2);
    assert_eq!(&records[0].1[..], binary);
    assert_eq!(watermark(&records), 7);
    assert_eq!(
        read(
            &mut *store,
            payload(Form::Single, Protocol::Resp2, 5, &["MGET k n"])
        ),
        "*2\r\n$4\r\nfive\r\n$1\r\n2\r\n"
    );
    assert_eq!(redis.get("b").as_deref(), Some("2"));
    assert!(
        store.durability().contains("power loss"),
        "{}",
        store.durability()
    );
    // Another server process loads this watermark, too. Shard 1 has no records yet.
    assert_eq!(watermark(&redis.store().load().unwrap()), 7);
    assert_eq!(
        pmnet_store::open(&redis.url(), 1).unwrap().load(),
        Ok(vec![])
    );
}

#[test]
fn poison_is_left_out_and_the_rest_stands() {
    let Some((redis, mut store)) = ready(&[]) else {
        return;
    };
    redis.call(&["RPUSH", "list", "x"]);
    let effects = [
        single("INCR n"),
        Bytes::from_static(b"garbage"),
        Bytes::from(pmnet_wire::command::barrier()),
        single("NOSUCH a"),
        single("GET"),
        single("INCR list"),
        single("MULTI"),
        single("EXEC"),
        single("SELECT 3"),
        single("shutdown"),
        single("EVAL return(1) 0"),
        single("SET pmnet:{0} x"),
        payload(
            Form::Single,
            Protocol::Resp2,
            4_000_000_000,
            &["SET n lost"],
        ),
        payload(
            Form::Transaction,
            Protocol::Resp2,
            0,
            &["INCR n", "INCR list", "INCR list"],
        ),
        payload(Form::Transaction, Protocol::Resp2, 0, &["INCR n", "NOSUCH"]),
        single("SET v pmnet:{0}"),
        single("INCR n"),
    ];
    assert_eq!(store.apply(&batch(&effects, 1)), Ok(14));
    assert_eq!(redis.get("n").as_deref(), Some("3"));
    assert_eq!(redis.get("v").as_deref(), Some("pmnet:{0}"));
    assert_eq!(watermark(&store.load().unwrap()), 1);
    assert_eq!(store.apply(&batch(&[single("INCR n")], 2)), Ok(0));
}

#[test]
fn passing_errors_change_nothing() {
    let Some((redis, mut store)) = ready(&[]) else {
        return;
    };
    let store = &mut *store;
    assert_eq!(store.apply(&batch(&[single("INCR n")], 1)), Ok(0));
    let try_all = |store: &mut dyn Store, says: &str| {
        retry(
            store.apply(&batch(&[single("SET other x"), single("INCR n")], 2)),
            says,
        );
        retry(store.apply(&batch(&[], 2)), "load first");
        assert_eq!(watermark(&store.load().unwrap()), 1);
        let request = |command| pmnet_server::Request {
            source: pmnet_server::Source::default(),
            payload: single(command),
            record: Some((b"r".to_vec(), Bytes::new())),
        };
        let mut replies = Vec::new();
        if says == "OOM" {
            // A batch with a promised command waits. For any other command, Redis's error is the answer.
            return;
        }
        // The command runs in pmnet's script, in a client's script, and in a MULTI.
        for command in [
            "INCR n",
            "EVAL return(redis.pcall('INCR','n')) 0",
            "BLPOP none 0",
        ] {
            retry(store.execute(&[request(command)], &mut replies), says);
            assert_eq!(store.load().unwrap().len(), 1, "{command}");
        }
        assert_eq!(replies.len(), 0);
    };
    redis.call(&["CONFIG", "SET", "maxmemory", "1"]);
    try_all(store, "OOM");
    redis.call(&["CONFIG", "SET", "maxmemory", "0"]);
    redis.call(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    try_all(store, "NOREPLICAS");
    redis.call(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    assert_eq!(redis.get("n").as_deref(), Some("1"));
    assert_eq!(redis.get("other"), None);
    // If Redis accepts no writes, the records must be loaded again.
    retry(store.apply(&batch(&[], 2)), "takes no writes");
    store.load().unwrap();
    redis.call(&["REPLICAOF", "127.0.0.1", "1"]);
    retry(store.apply(&batch(&[single("INCR n")], 2)), "READONLY");
    retry(store.load(), "replica");
    redis.call(&["REPLICAOF", "NO", "ONE"]);
    store.load().unwrap();
    // When the request script was flushed, the store notices it and loads the script again.
    redis.call(&["SCRIPT", "FLUSH"]);
    let lost = pmnet_server::Request {
        source: pmnet_server::Source::default(),
        payload: single("INCR n"),
        record: Some((b"r".to_vec(), Bytes::new())),
    };
    retry(store.execute(&[lost], &mut Vec::new()), "NOSCRIPT");
    store.load().unwrap();
    assert_eq!(change(store, single("INCR n")), ":2\r\n");
    // When memory is short, a client must be able to free memory.
    redis.call(&["CONFIG", "SET", "maxmemory", "1"]);
    assert_eq!(change(store, single("DEL n")), ":1\r\n");
}

#[test]
fn flushes_keep_the_records() {
    let Some((mut redis, mut store)) = ready(&[]) else {
        return;
    };
    let store = &mut *store;
    let mut big = batch(&[single("SET k v")], 1);
    // These fields are more than a single HSET can write.
    big.records
        .extend((0..5000u32).map(|i| (i.to_be_bytes().to_vec(), Some(Bytes::from(vec![0u8; 3])))));
    assert_eq!(store.apply(&big), Ok(0));
    change(store, single("EVAL return(1) 0"));
    let scripts = redis.call(&["HLEN", "pmnet:{0}:scripts"]);
    assert_eq!(scripts, ":1\r\n");
    let effects = [
        single("SET before 1"),
        single("FLUSHALL"),
        single("SET after 1"),
        single("flushall nonsense"),
    ];
    assert_eq!(store.apply(&batch(&effects, 2)), Ok(1));
    assert_eq!(redis.call(&["DBSIZE"]), ":3\r\n");
    assert_eq!(change(store, single("FLUSHDB ASYNC")), "+OK\r\n");
    assert_eq!(
        change(
            store,
            payload(
                Form::Transaction,
                Protocol::Resp2,
                2,
                &["SET x 1", "FLUSHALL", "BLPOP l 0", "SET y 1"]
            )
        ),
        "*4\r\n+OK\r\n+OK\r\n*-1\r\n+OK\r\n"
    );
    assert_eq!(redis.call(&["DBSIZE"]), ":2\r\n");
    redis.restart();
    let records = load(store);
    assert_eq!(records.len(), 5002);
    assert_eq!(watermark(&records), 2);
    assert_eq!(redis.call(&["HLEN", "pmnet:{0}:scripts"]), ":1\r\n");
    assert_eq!(
        read(
            store,
            payload(Form::Single, Protocol::Resp2, 2, &["DBSIZE"])
        ),
        ":1\r\n"
    );
}

#[test]
fn a_flush_through_one_shard_keeps_the_records_of_all() {
    let Some((redis, mut zero)) = ready(&[]) else {
        return;
    };
    let mut one = pmnet_store::open(&redis.url(), 1).unwrap();
    let mut last = pmnet_store::open(&redis.url(), u32::MAX).unwrap();
    for (shard, watermark) in [(&mut one, 11), (&mut last, 12)] {
        shard.load().unwrap();
        assert_eq!(shard.apply(&batch(&[single("SET k v")], watermark)), Ok(0));
        assert_eq!(change(&mut **shard, single("EVAL return(1) 0")), ":1\r\n");
    }
    // There are many keys, so that SCAN needs several rounds, and some keys that only look like pmnet's keys.
    let many: Vec<String> = (0..30_000).map(|i| format!("key{i}")).collect();
    let look = [
        "pmnet:{01}",
        "pmnet:{4294967296}",
        "pmnet:{x}",
        "pmnet:{1}:other",
        "pmnet:{}",
    ];
    let foreign = |redis: &Redis| {
        let mut command = vec!["MSET", "pmnet:{7}", "no hash"];
        for key in &many {
            command.extend([key.as_str(), "v"]);
        }
        assert_eq!(redis.call(&command), "+OK\r\n");
        for key in look {
            redis.call(&["HSET", key, "f", "v"]);
        }
    };
    let ours = |redis: &Redis| {
        assert_eq!(redis.call(&["EXISTS", "pmnet:{1}:scripts"]), ":1\r\n");
        // The keys are the records of three shards, and the scripts of two.
        assert_eq!(redis.call(&["DBSIZE"]), ":5\r\n");
    };
    // FLUSHALL comes as an update, as a request in a script, and as a request in a MULTI.
    foreign(&redis);
    assert_eq!(zero.apply(&batch(&[single("FLUSHALL")], 1)), Ok(0));
    ours(&redis);
    foreign(&redis);
    assert_eq!(change(&mut *zero, single("flushdb")), "+OK\r\n");
    ours(&redis);
    foreign(&redis);
    let by_multi = ["FLUSHALL", "BLPOP none 0"];
    let by_multi = payload(Form::Transaction, Protocol::Resp2, 3, &by_multi);
    assert_eq!(change(&mut *zero, by_multi), "*2\r\n+OK\r\n*-1\r\n");
    ours(&redis);
    // The servers of the other shards find their records, and continue.
    for (shard, found) in [(&mut one, 11), (&mut last, 12)] {
        assert_eq!(shard.apply(&batch(&[], found + 10)), Ok(0));
        assert_eq!(watermark(&load(&mut **shard)), found + 10);
    }
}

#[test]
fn records_changed_behind_our_back_stop_the_shard_before_anything_is_applied() {
    let Some((redis, mut store)) = ready(&[]) else {
        return;
    };
    assert_eq!(store.apply(&batch(&[single("SET k 1")], 5)), Ok(0));
    redis.call(&["FLUSHALL"]);
    retry(
        store.apply(&batch(&[single("SET k 2")], 6)),
        "another process",
    );
    assert_eq!(redis.get("k"), None);
    fatal(store.load(), "FLUSHALL or DEL");

    // The records are older than those that this process wrote.
    let mut store = redis.store();
    store.load().unwrap();
    assert_eq!(store.apply(&batch(&[], 9)), Ok(0));
    redis.call(&["HSET", "pmnet:{0}", "watermark", "\0\0\0\0\0\0\0\u{3}"]);
    let mut replies = Vec::new();
    let request = pmnet_server::Request {
        source: pmnet_server::Source::default(),
        payload: single("SET k 3"),
        record: Some((b"r".to_vec(), Bytes::new())),
    };
    retry(store.execute(&[request], &mut replies), "another process");
    assert_eq!((redis.get("k"), replies.len()), (None, 0));
    fatal(store.load(), "older");

    // A key of another program has the name of the records' hash.
    redis.call(&["SET", "pmnet:{0}", "x"]);
    fatal(redis.store().load(), "not pmnet's");
}

#[test]
fn of_two_servers_for_one_shard_the_late_one_applies_nothing() {
    let Some((redis, mut first)) = ready(&[]) else {
        return;
    };
    assert_eq!(first.apply(&batch(&[single("INCR n")], 1)), Ok(0));
    let mut second = redis.store();
    assert_eq!(watermark(&second.load().unwrap()), 1);
    assert_eq!(second.apply(&batch(&[single("INCR n")], 2)), Ok(0));
    fatal(
        first.apply(&batch(&[single("INCR n")], 2)),
        "another pmnet server",
    );
    assert_eq!(second.apply(&batch(&[], 3)), Ok(0), "the new one goes on");
    assert_eq!(redis.get("n").as_deref(), Some("2"));
}

#[test]
fn a_redis_that_cannot_keep_promises_is_refused() {
    let Some(redis) = Redis::start(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"])
    else {
        return;
    };
    fatal(
        redis.store().load(),
        "CONFIG SET maxmemory-policy noeviction",
    );
    redis.call(&["CONFIG", "SET", "maxmemory-policy", "volatile-lru"]);
    assert_eq!(redis.store().load(), Ok(vec![]));
    // By default the cluster bus uses the port 10,000 higher, which may not exist or may be in use.
    let bus = Port::claim().unwrap();
    let bus = bus.number().to_string();
    let options = ["--cluster-enabled", "yes", "--cluster-port", &bus];
    let Some(cluster) = Redis::start(&options) else {
        return;
    };
    fatal(cluster.store().load(), "--store redis+cluster://");
    let Some(weak) = Redis::start(&["--appendonly", "no"]) else {
        return;
    };
    let mut store = weak.store();
    store.load().unwrap();
    assert!(
        store.durability().contains("loses everything since"),
        "{}",
        store.durability()
    );
}

#[test]
fn passwords() {
    let Some(redis) = Redis::start(&["--requirepass", "s3cret"]) else {
        return;
    };
    fatal(redis.store().load(), "redis://:PASSWORD@");
    let place = format!("127.0.0.1:{}", redis.port);
    let mut wrong = pmnet_store::open(&format!("redis://:wr0ng@{place}"), 0).unwrap();
    fatal(wrong.load(), "password");
    let mut right =
        pmnet_store::open(&format!("redis://:s3cret@localhost:{}", redis.port), 0).unwrap();
    assert_eq!(right.load(), Ok(vec![]));
    let asked = preamble(Form::StoreAddress, Protocol::Resp2, 0).to_vec();
    let told = read(&mut *right, asked.into());
    let url = format!("redis://{place}/?run_id=");
    let told = crate::support::bulk(&told).expect("a name");
    assert!(told.starts_with(&url), "no password: {told}");
    assert_eq!(right.apply(&batch(&[single("SET k v")], 1)), Ok(0));
}
