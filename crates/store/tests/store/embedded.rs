//! The packet store as a database, and the null store.

use crate::support::{Redis, arguments, batch, change, payload, read, single, watermark};
use bytes::Bytes;
use pmnet_server::{Request, Store};
use pmnet_wire::command::{Form, Protocol};

/// Commands of the packet store whose replies must equal those of Redis.
const COMPARED: &[&str] = &[
    "GET none",
    "SET k v",
    "GET k",
    "SET k w NX",
    "SET k w XX",
    "SET none w XX",
    "SET k x GET",
    "SET none2 x GET",
    "SET k v NX XX",
    "SET k v EX",
    "SET k v EX 0",
    "SET k v EX x",
    "SET k v PX 100000",
    "TTL k",
    "SET k v KEEPTTL",
    "TTL k",
    "SET k v",
    "TTL k",
    "TTL none",
    "PTTL none",
    "SET k v EX 10 PX 10",
    "SET k v EXAT 99999999999",
    "SET k v PXAT 1",
    "GET k",
    "EXISTS k",
    "SETNX k 1",
    "SETNX k 2",
    "GETSET k 3",
    "GETSET new 4",
    "DEL k new nothing",
    "UNLINK none2 none2",
    "EXISTS k k",
    "MSET a 1 b 2",
    "MSET a",
    "MSET a 1 b",
    "MGET a b c",
    "APPEND a 23",
    "APPEND d x",
    "STRLEN a",
    "STRLEN none",
    "INCR a",
    "INCR b",
    "INCR d",
    "DECR b",
    "INCRBY b 10",
    "INCRBY b x",
    "INCRBY b +1",
    "INCRBY b 01",
    "DECRBY b 3",
    "DECRBY b -9223372036854775808",
    "SET m 9223372036854775807",
    "INCR m",
    "SET m -9223372036854775808",
    "DECR m",
    "SETEX e 100 v",
    "SETEX e 0 v",
    "SETEX e -1 v",
    "SETEX e x v",
    "PSETEX e 100000 v",
    "PSETEX e 9223372036854775807 v",
    "TTL e",
    "INCR e2",
    "ECHO hi",
    "PING",
    "PING hi",
    "PING a b",
    "ECHO",
    "GET",
    "get a",
    "NOSUCH a b c",
    "FLUSHALL x",
    "FLUSHDB",
    "GET a",
    "SET a 1",
    "FLUSHALL ASYNC",
    "GET a",
];

/// Returns the address of a packet store in a directory, with this size in MiB.
fn url(directory: &tempfile::TempDir, size: u32) -> String {
    format!("packet:{}/s?size={size}M", directory.path().display())
}

#[test]
fn the_packet_store_answers_like_redis() {
    let Some(redis) = Redis::start(&["--appendonly", "no"]) else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let mut store = pmnet_store::open(&url(&directory, 16), 0).unwrap();
    for command in COMPARED {
        let wanted = redis.call(&command.split(' ').collect::<Vec<_>>());
        let request = Request {
            source: pmnet_server::Source::default(),
            payload: single(command),
            record: Some((b"r".to_vec(), Bytes::from_static(b"p"))),
        };
        let mut replies = Vec::new();
        store.execute(&[request], &mut replies).unwrap();
        assert_eq!(String::from_utf8_lossy(&replies[0]), wanted, "{command}");
        assert_eq!(
            store.load().unwrap(),
            vec![(b"r".to_vec(), Bytes::from(format!("p{wanted}")))]
        );
    }
}

#[test]
fn the_packet_store_keeps_effects_and_records_together() {
    let directory = tempfile::tempdir().unwrap();
    let url = &url(&directory, 16);
    let mut store = pmnet_store::open(url, 3).unwrap();
    assert_eq!(store.load(), Ok(vec![]));
    let effects = [
        single("INCR n"),
        Bytes::from_static(b"garbage"),
        single("NOSUCH"),
        payload(Form::Single, Protocol::Resp2, 16, &["SET n lost"]),
        payload(Form::Transaction, Protocol::Resp2, 0, &["INCR n", "NOSUCH"]),
        payload(Form::Single, Protocol::Resp2, 2, &["SET n two"]),
        single("INCR n"),
    ];
    let mut first = batch(&effects, 7);
    first
        .records
        .push((b"session".to_vec(), Some(Bytes::from_static(b"x"))));
    assert_eq!(store.apply(&first), Ok(4));
    let mut second = batch(&[single("FLUSHDB"), single("SET m 1")], 8);
    second.records.push((b"session".to_vec(), None));
    assert_eq!(store.apply(&second), Ok(0));
    let in_use = pmnet_store::open(url, 3)
        .map(|_| ())
        .unwrap_err()
        .to_string();
    assert!(in_use.contains("in use"), "{in_use}");
    drop(store);
    let foreign = pmnet_store::open(url, 4)
        .map(|_| ())
        .unwrap_err()
        .to_string();
    assert!(foreign.contains("shard 3"), "{foreign}");
    let mut store = pmnet_store::open(url, 3).unwrap();
    let records = store.load().unwrap();
    assert_eq!((records.len(), watermark(&records)), (1, 8));
    let three = Protocol::Resp3;
    assert_eq!(
        read(
            &mut *store,
            payload(Form::Pipeline, three, 0, &["GET n", "GET m", "DBSIZE"])
        ),
        "_\r\n$1\r\n1\r\n:1\r\n"
    );
    assert_eq!(
        read(
            &mut *store,
            payload(Form::Transaction, three, 2, &["GET n"])
        ),
        "*1\r\n$3\r\ntwo\r\n"
    );
    assert!(read(&mut *store, single("SET m 2")).starts_with("-ERR pmnet: set changes data"));
    assert_eq!(
        read(&mut *store, Bytes::from(pmnet_wire::command::barrier())),
        "+OK\r\n"
    );
}

#[test]
fn a_killed_writer_leaves_whole_batches() {
    // The writer is a child process. The child process runs this test with the store's address in its environment.
    const NAME: &str = "PMNET_TEST_STORE";
    if let Ok(url) = std::env::var(NAME) {
        let mut store = pmnet_store::open(&url, 0).unwrap();
        let mut applied = watermark(&store.load().unwrap());
        loop {
            applied += 3;
            store
                .apply(&batch(
                    &[single("INCR n"), single("INCR n"), single("INCR n")],
                    applied,
                ))
                .unwrap();
        }
    }
    let directory = tempfile::tempdir().unwrap();
    leaves_whole_batches(NAME, &url(&directory, 16));
}

fn leaves_whole_batches(variable: &str, url: &str) {
    // The store is created before the first kill, because creating a large file takes time.
    drop(pmnet_store::open(url, 0).unwrap());
    let mut last = 0;
    for _ in 0..5 {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["embedded::a_killed_writer_leaves_whole_batches", "--exact"])
            .env(variable, url)
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(std::time::Duration::from_millis(300));
        child.kill().unwrap();
        child.wait().unwrap();
        let mut store = pmnet_store::open(url, 0).unwrap();
        let applied = watermark(&store.load().unwrap());
        let text = applied.to_string();
        // On a busy machine the process may not have reached its first batch.
        let expected = match applied {
            0 => "$-1\r\n".to_owned(),
            _ => format!("${}\r\n{text}\r\n", text.len()),
        };
        assert_eq!(read(&mut *store, single("GET n")), expected);
        assert!(applied >= last, "{applied} after {last}");
        last = applied;
    }
    assert!(last > 0, "nothing was written in any round");
}

#[test]
fn an_address_that_is_wrong_is_refused_with_the_reason() {
    let wrong = |url: &str| {
        pmnet_store::open(url, 0)
            .map(|_| ())
            .unwrap_err()
            .to_string()
    };
    assert!(
        wrong("mysql://u:s3cret@h").contains(
            "redis://HOST:PORT, rediss://HOST:PORT, redis+sentinel://HOST:PORT,…/NAME, redis+cluster://HOST:PORT,…/SLOTS, packet:PATH or null:"
        )
    );
    assert!(!wrong("mysql://u:s3cret@h").contains("s3cret"));
    assert!(wrong("rediss://h?ca=/none/such").contains("/none/such"));
    assert!(wrong("redis://h?ca=/none/such").contains("unknown option"));
    assert!(wrong("rediss://h?cert=/none/such").contains("needs its key"));
    assert!(wrong("redis://h/3").contains("SELECT"));
    assert!(wrong("null:x").contains("null:x"));
}

/// pmnet once kept data in files of redb, as `kv:PATH`.
#[test]
fn a_file_of_the_store_that_was_removed_is_refused_and_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.kv");
    let mut content = b"redb\x1a\x0a\xa9\x0d\x0a".to_vec();
    content.resize(1 << 20, 7);
    std::fs::write(&path, &content).unwrap();
    for (url, why) in [
        (
            format!("kv:{}", path.display()),
            "packet:PATH takes its place",
        ),
        (
            format!("packet:{}", path.display()),
            "not a packet store of pmnet",
        ),
    ] {
        let error = pmnet_store::open(&url, 0)
            .map(|_| ())
            .unwrap_err()
            .to_string();
        assert!(error.contains(why), "{error}");
        assert!(
            std::fs::read(&path).unwrap() == content,
            "{url} was written to"
        );
    }
}

/// A `SET` of the longest key that fits into a message is acknowledged early.
#[test]
fn the_longest_key_can_be_set() {
    let directory = tempfile::tempdir().unwrap();
    let url = url(&directory, 256);
    let mut store = pmnet_store::open(&url, 0).unwrap();
    let key = vec![b'k'; (16 << 20) - 64];
    let set = crate::support::arguments(&[b"SET", &key, b"v"]);
    assert_eq!(store.apply(&batch(&[set], 1)), Ok(0));
    let get = crate::support::arguments(&[b"GET", &key]);
    assert_eq!(read(&mut *store, get), "$1\r\nv\r\n");
}

#[test]
fn the_null_store_keeps_records_only() {
    let mut store = pmnet_store::open("null:", 0).unwrap();
    assert_eq!(
        store.apply(&batch(&[single("SET k v"), Bytes::from_static(b"x")], 4)),
        Ok(1)
    );
    assert_eq!(watermark(&store.load().unwrap()), 4);
    assert_eq!(read(&mut *store, single("GET k")), "$-1\r\n");
    // The null store serves to measure programs, too, so it accepts their payloads.
    let program: Bytes = pmnet_wire::program::payload(b"any bytes").into();
    assert_eq!(store.payloads(), pmnet_wire::Payloads::ALL);
    assert_eq!(
        store.apply(&batch(std::slice::from_ref(&program), 5)),
        Ok(0)
    );
    let reply = read(&mut *store, program);
    assert_eq!(
        pmnet_wire::program::reply_body(reply.as_bytes()),
        Some(&b""[..])
    );
    assert_eq!(
        crate::support::change(
            &mut *store,
            payload(Form::Transaction, Protocol::Resp3, 0, &["SET a b", "PING"])
        ),
        "*2\r\n+OK\r\n+PONG\r\n"
    );
}

/// Each load reads all records, so a reply that is kept in a record must not be too long.
#[test]
fn a_reply_that_is_too_long_to_be_handed_on_is_not_kept() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = pmnet_store::open(&url(&directory, 64), 0).unwrap();
    let store = &mut *store;
    let large = crate::support::arguments(&[b"SET", b"k", &vec![b'v'; 9 << 20]]);
    assert_eq!(store.apply(&batch(&[large], 1)), Ok(0));
    let twice = ["GET k", "INCR n", "GET k"];
    let reply = crate::support::change(
        store,
        payload(Form::Transaction, Protocol::Resp2, 0, &twice),
    );
    assert!(reply.starts_with("-ERR pmnet: the reply would be larger than 16 MiB"));
    assert_eq!(crate::support::change(store, single("INCR n")), ":1\r\n");
}

/// A command whose reply is too long is refused, and its data stays.
#[test]
fn a_command_whose_reply_is_too_long_has_no_effect() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = pmnet_store::open(&url(&directory, 256), 0).unwrap();
    let [a, b] = [b'a', b'b'].map(|letter| vec![letter; 9 << 20]);
    for command in [
        [&b"RPUSH"[..], b"list", &a, &b].as_slice(),
        &[b"SADD", b"set", &a, &b],
        &[b"ZADD", b"sorted", b"1", &a],
        &[b"ZADD", b"sorted", b"2", &b],
        &[b"SET", b"one", &a],
        &[b"SET", b"two", &b],
    ] {
        let reply = change(&mut *store, arguments(command));
        assert!(!reply.starts_with('-'), "{reply}");
    }
    let transaction = ["GETDEL one", "GETDEL two"];
    let transaction = payload(Form::Transaction, Protocol::Resp2, 0, &transaction);
    let pack = ["INCR n", "LPOP list 2", "INCR n"];
    let pack = payload(Form::Pack, Protocol::Resp2, 0, &pack);
    for (payload, parts) in [
        (single("LPOP list 2"), 0),
        (single("RPOP list 2"), 0),
        (single("LMPOP 1 list LEFT COUNT 2"), 0),
        (single("SPOP set 2"), 0),
        (single("ZPOPMIN sorted 2"), 0),
        (single("ZMPOP 1 sorted MAX COUNT 2"), 0),
        (transaction, 0),
        (pack, 1),
    ] {
        let shown = String::from_utf8_lossy(&payload[8..]).replace("\r\n", " ");
        let reply = change(&mut *store, payload);
        if parts == 0 {
            assert!(
                reply.starts_with("-ERR") && reply.contains("nothing was done"),
                "{shown}: {reply}"
            );
        } else {
            // The store executes only the first read, and the front sends the other reads again.
            assert_eq!(reply, "*1\r\n:1\r\n", "{shown}");
        }
    }
    for (command, count) in [("LLEN list", 2), ("SCARD set", 2), ("ZCARD sorted", 2)] {
        assert_eq!(read(&mut *store, single(command)), format!(":{count}\r\n"));
    }
    assert_eq!(read(&mut *store, single("EXISTS one two")), ":2\r\n");
    // Each of these reads succeeds alone.
    assert_eq!(change(&mut *store, single("LPOP list")).len(), a.len() + 12);
    assert_eq!(
        change(&mut *store, single("GETDEL one")).len(),
        a.len() + 12
    );
}

/// A command never makes a string that `GET` cannot return.
#[test]
fn every_string_can_be_read() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = pmnet_store::open(&url(&directory, 256), 0).unwrap();
    let tail = vec![b'v'; 6 << 20];
    for sum in [6, 12] {
        let reply = change(&mut *store, arguments(&[b"APPEND", b"long", &tail]));
        assert_eq!(reply, format!(":{}\r\n", sum << 20));
    }
    for command in [
        [&b"APPEND"[..], b"long", &tail].as_slice(),
        &[b"SETRANGE", b"long", b"17200000", b"x"],
        &[b"SETBIT", b"long", b"137600000", b"1"],
    ] {
        let reply = change(&mut *store, arguments(command));
        assert!(
            reply.starts_with("-ERR string exceeds maximum allowed size")
                || reply.starts_with("-ERR bit offset is not an integer"),
            "{reply}"
        );
    }
    let reply = read(&mut *store, single("GET long"));
    assert_eq!(reply.len(), (12 << 20) + 13);
    let reply = change(&mut *store, single("SETRANGE long 16777100 end"));
    assert_eq!(reply, ":16777103\r\n");
    assert_eq!(read(&mut *store, single("GET long")).len(), 16_777_103 + 13);
}
