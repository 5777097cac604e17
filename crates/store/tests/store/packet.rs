//! The packet store as a server uses it: full, damaged, or belonging to another shard.

use crate::support::{arguments, batch, change, payload, read, single, watermark};
use bytes::Bytes;
use pmnet_server::{Batch, Request, Store, StoreError};
use pmnet_wire::command::{Form, Protocol};

struct Made {
    _directory: tempfile::TempDir,
    path: std::path::PathBuf,
    url: String,
}

fn made(settings: &str) -> Made {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let url = format!("packet:{}{settings}", path.display());
    Made {
        _directory: directory,
        path,
        url,
    }
}

fn open(url: &str) -> Box<dyn Store> {
    pmnet_store::open(url, 0).unwrap()
}

fn refused(url: &str) -> String {
    match pmnet_store::open(url, 0) {
        Ok(_) => panic!("{url} was opened"),
        Err(error) => error.to_string(),
    }
}

fn set(key: &str, value: &[u8]) -> Bytes {
    arguments(&[b"SET", key.as_bytes(), value])
}

#[test]
fn a_full_store_loses_nothing_and_has_room_again_after_deletes() {
    let made = made("?size=1M&media=file");
    let mut store = open(&made.url);
    let value = vec![b'v'; 5000];
    let mut kept = 0;
    let refusal = loop {
        let reply = change(&mut *store, set(&format!("k{kept}"), &value));
        if reply != "+OK\r\n" {
            break reply;
        }
        kept += 1;
    };
    assert!(refusal.starts_with("-OOM command not allowed"), "{refusal}");
    assert!(kept > 100, "{kept}");
    // The reply to a refused request is kept like any other reply, and the other request of the call is executed.
    let requests: Vec<Request> = [set("new", &value), set("k0", b"short"), single("GET k0")]
        .into_iter()
        .enumerate()
        .map(|(at, payload)| Request {
            source: pmnet_server::Source::default(),
            payload,
            record: (at < 2).then(|| (vec![b'r', u8::try_from(at).unwrap()], Bytes::new())),
        })
        .collect();
    let mut replies = Vec::new();
    store.execute(&requests, &mut replies).unwrap();
    assert!(replies[0].starts_with(b"-OOM"));
    assert_eq!(
        replies[1..],
        [Bytes::from("+OK\r\n"), Bytes::from("$5\r\nshort\r\n")]
    );
    let records = store.load().unwrap();
    assert!(records.contains(&(vec![b'r', 0], replies[0].clone())));
    // An update that finds no space is tried again: it is neither applied nor dropped.
    let effects: Vec<Bytes> = (0..20).map(|n| set(&format!("n{n}"), &value)).collect();
    let update = batch(&effects, 9);
    assert!(matches!(store.apply(&update), Err(StoreError::Retry(text)) if text.contains("full")));
    assert_eq!(read(&mut *store, single("EXISTS n0")), ":0\r\n");
    assert_eq!(watermark_or_none(&mut *store), None);
    for key in 0..40 {
        assert_eq!(
            change(&mut *store, single(&format!("DEL k{key}"))),
            ":1\r\n"
        );
    }
    assert_eq!(store.apply(&update), Ok(0));
    assert_eq!(watermark_or_none(&mut *store), Some(9));
    drop(store);
    let mut store = open(&made.url);
    assert_eq!(
        read(&mut *store, single("DBSIZE")),
        format!(":{}\r\n", kept - 40 + 20)
    );
}

/// Sets new values of this length by requests, until a request is refused. Returns the number of values.
fn filled(store: &mut dyn Store, value: &[u8]) -> usize {
    for kept in 0.. {
        let reply = change(store, set(&format!("k{kept}"), value));
        if reply != "+OK\r\n" {
            assert!(reply.starts_with("-OOM command not allowed"), "{reply}");
            return kept;
        }
    }
    unreachable!("no store has room for ever")
}

/// A full store accepts any number of updates that replace a value of the same length. The space of the replaced values
/// is freed in time, whichever records share frames.
#[test]
fn in_a_full_store_there_is_room_in_place_of_what_is_there() {
    for (length, step) in [(2000, 1), (1300, 7), (300, 5), (100, 13), (20_000, 3)] {
        let made = made("?size=1M&media=file");
        let mut store = open(&made.url);
        let kept = filled(&mut *store, &vec![b'v'; length]);
        for number in 0..600 {
            let value = vec![b'0' + u8::try_from(number % 10).unwrap(); length];
            let update = batch(&[set(&format!("k{}", number * step % kept), &value)], 1);
            let applied = store.apply(&update);
            assert_eq!(applied, Ok(0), "{length} bytes, update {number} of {kept}");
        }
        assert_eq!(change(&mut *store, single("DEL k0")), ":1\r\n");
        drop(store);
        let mut store = open(&made.url);
        let left = format!(":{}\r\n", kept - 1);
        assert_eq!(read(&mut *store, single("DBSIZE")), left);
    }
}

/// If a part of a pack finds no space in a full store, only this part gets an error. The later parts of the pack take
/// effect when they are sent again.
#[test]
fn in_a_full_store_a_pack_goes_on_behind_what_has_no_room() {
    let made = made("?size=1M&media=file");
    let mut store = open(&made.url);
    let kept = filled(&mut *store, &[b'v'; 5000]);
    let new = format!("SET new {}", "v".repeat(5000));
    let new = [&new[..]];
    let mut parts = &[
        &["EXISTS new"][..],
        &new,
        &["EXISTS new"],
        &["MULTI", "SET k0 w", "GET k0", "EXEC"],
        &["DEL k1"],
    ][..];
    let mut said = String::new();
    while !parts.is_empty() {
        let lines = parts.concat();
        let reply = change(&mut *store, payload(Form::Pack, Protocol::Resp2, 0, &lines));
        let (count, replies) = reply.split_once("\r\n").unwrap();
        let done: usize = count[1..].parse().unwrap();
        assert!(done > 0, "{reply}");
        said.push_str(replies);
        parts = &parts[done..];
    }
    let full = "-OOM command not allowed: the packet store is full; delete keys, or make it larger (pmnet store grow)";
    let wanted = format!(":0\r\n{full}\r\n:0\r\n*2\r\n+OK\r\n$1\r\nw\r\n:1\r\n");
    assert_eq!(said, wanted);
    drop(store);
    let mut store = open(&made.url);
    let left = format!(":{}\r\n", kept - 1);
    assert_eq!(read(&mut *store, single("DBSIZE")), left);
}

/// Kept replies need space, as data does. The reply to a delete always finds space, and so does a new session.
#[test]
fn in_a_full_store_replies_and_sessions_leave_room_for_deletes() {
    let made = made("?size=1M&media=file");
    let mut store = open(&made.url);
    filled(&mut *store, &[b'v'; 30_000]);
    filled(&mut *store, &[b'v'; 400]);
    let mut refused = 0;
    for client in 0..400_u32 {
        let record = |kind: u8| [&[kind][..], &client.to_be_bytes()].concat();
        let request = Request {
            source: pmnet_server::Source::default(),
            payload: arguments(&[b"SET", b"k0", &[b'w'; 30_000], b"GET"]),
            record: Some((record(b'r'), Bytes::new())),
        };
        let mut replies = Vec::new();
        store.execute(&[request], &mut replies).unwrap();
        refused += usize::from(replies[0].starts_with(b"-OOM"));
        let session = Batch {
            records: vec![(record(b's'), Some(Bytes::from_static(&[0; 32])))],
            ..Batch::default()
        };
        assert_eq!(store.apply(&session), Ok(0), "session {client}");
    }
    assert!(refused > 300, "{refused}");
    assert_eq!(change(&mut *store, single("DEL k1")), ":1\r\n");
}

fn watermark_or_none(store: &mut dyn Store) -> Option<u64> {
    let records = store.load().unwrap();
    let known = records.iter().any(|(key, _)| !key.starts_with(b"r"));
    known.then(|| {
        let rest: Vec<_> = records
            .into_iter()
            .filter(|(key, _)| !key.starts_with(b"r"))
            .collect();
        watermark(&rest)
    })
}

#[test]
fn a_value_that_is_not_what_was_written_is_named_and_not_shown() {
    let made = made("?size=1M");
    let mut store = open(&made.url);
    assert_eq!(
        store.apply(&batch(
            &[set("good", b"1"), set("bad", b"once upon a time")],
            5
        )),
        Ok(0)
    );
    drop(store);
    let mut image = std::fs::read(&made.path).unwrap();
    let at = image
        .windows(16)
        .position(|bytes| bytes == b"once upon a time")
        .unwrap();
    image[at + 3] ^= 1;
    std::fs::write(&made.path, image).unwrap();
    let mut store = open(&made.url);
    let reply = read(&mut *store, single("GET bad"));
    assert!(
        reply.starts_with("-ERR")
            && reply.contains("bad")
            && reply.contains("not what was written"),
        "{reply}"
    );
    assert_eq!(read(&mut *store, single("GET good")), "$1\r\n1\r\n");
    let reply = change(&mut *store, single("APPEND bad x"));
    assert!(reply.starts_with("-ERR"), "{reply}");
    assert_eq!(change(&mut *store, single("INCR good")), ":2\r\n");
    assert!(matches!(
        store.apply(&batch(&[single("APPEND bad y")], 6)),
        Err(StoreError::Fatal(text)) if text.contains("bad")
    ));
}

#[test]
fn what_cannot_be_opened_says_why_and_is_left_alone() {
    let made = made("?size=1M");
    assert!(refused("packet:").contains("the path is missing"));
    assert!(refused("packet:/tmp").contains("directory"));
    assert!(refused("packet:/none/such/file").contains("/none/such/file"));
    for settings in [
        "?size=x",
        "?size=1M&size=2M",
        "?size=1",
        "?size=20000000T",
        "?lines=1",
        "?media=paper",
        "?colour=red",
    ] {
        let url = format!("packet:{}{settings}", made.path.display());
        let why = refused(&url);
        assert!(why.contains("packet:"), "{why}");
        assert!(!made.path.exists(), "{settings}");
    }
    std::fs::write(&made.path, vec![7; 1 << 20]).unwrap();
    assert!(refused(&made.url).contains("not a packet store"));
    assert_eq!(std::fs::read(&made.path).unwrap(), vec![7; 1 << 20]);
    std::fs::remove_file(&made.path).unwrap();
    let store = open(&made.url);
    assert!(refused(&made.url).contains("in use by another process"));
    drop(store);
    let other = pmnet_store::open(&made.url, 4)
        .map(drop)
        .unwrap_err()
        .to_string();
    assert!(other.contains("shard 0, not 4"), "{other}");
    let image = std::fs::read(&made.path).unwrap();
    std::fs::write(&made.path, &image[..image.len() - 8192]).unwrap();
    assert!(refused(&made.url).contains("truncated"));
}

/// The size of a devdax device is fixed.
#[test]
fn what_has_a_size_already_is_filled() {
    let made = made("?media=file");
    std::fs::write(&made.path, vec![0; 2 << 20]).unwrap();
    let larger = format!("packet:{}?size=4M&media=file", made.path.display());
    assert!(refused(&larger).contains("there are 2097152 bytes"));
    assert_eq!(std::fs::read(&made.path).unwrap(), vec![0; 2 << 20]);
    let mut store = open(&made.url);
    assert_eq!(change(&mut *store, set("key", b"value")), "+OK\r\n");
    drop(store);
    let mut store = open(&made.url);
    assert_eq!(read(&mut *store, single("GET key")), "$5\r\nvalue\r\n");
    drop(store);
    assert_eq!(std::fs::metadata(&made.path).unwrap().len(), 2 << 20);
}

#[test]
fn every_type_is_there_again_after_a_restart() {
    let made = made("?size=8M&media=dram");
    let mut store = open(&made.url);
    assert!(store.durability().contains("survives death of the process"));
    for command in [
        "RPUSH list a b c",
        "HSET hash f 1 g 2",
        "SADD set x y",
        "ZADD zset 2 b 1 a",
        "SET ends v PX 1",
        "SET text hello",
    ] {
        assert!(
            !change(&mut *store, single(command)).starts_with('-'),
            "{command}"
        );
    }
    drop(store);
    let mut store = open(&made.url);
    let asked = crate::support::payload(
        Form::Pipeline,
        Protocol::Resp2,
        0,
        &[
            "LRANGE list 0 -1",
            "HGET hash g",
            "SCARD set",
            "ZRANGE zset 0 0",
            "GET text",
        ],
    );
    assert_eq!(
        read(&mut *store, asked),
        "*3\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n$1\r\n2\r\n:2\r\n*1\r\n$1\r\na\r\n$5\r\nhello\r\n"
    );
}

/// Returns a command with this many arguments: its words, and numbers.
fn with_numbers(words: &[&str], numbers: usize, pairs: bool) -> Bytes {
    let mut all: Vec<String> = words.iter().map(ToString::to_string).collect();
    for number in 0..numbers {
        all.push(number.to_string());
        if pairs {
            all.push(number.to_string());
        }
    }
    let all: Vec<&[u8]> = all.iter().map(String::as_bytes).collect();
    arguments(&all)
}

/// Commands that remove data work in a store that accepts no other command, whatever its size is: the store has space
/// for the marks of a later removal.
#[test]
fn in_a_full_store_whatever_removes_data_goes() {
    let made = made("?size=4M&media=file");
    let mut store = open(&made.url);
    for (words, pairs) in [
        (&["RPUSH", "list"][..], false),
        (&["RPUSH", "trimmed"], false),
        (&["SADD", "set"], false),
        (&["HSET", "hash"], true),
        (&["ZADD", "sorted"], true),
    ] {
        let reply = change(&mut *store, with_numbers(words, 1_000, pairs));
        assert_eq!(reply, ":1000\r\n", "{words:?}");
    }
    assert_eq!(
        change(&mut *store, set("large", &[b'v'; 100_000])),
        "+OK\r\n"
    );
    filled(&mut *store, &[b'v'; 1000]);
    filled(&mut *store, b"");
    // Before that, clients change existing keys until no change is possible.
    for number in 0..3_000 {
        change(&mut *store, set(&format!("k{number}"), &[b'w'; 1000]));
    }
    for command in [
        "GETDEL large",
        "LREM trimmed 1 999",
        "LPOP list 70",
        "SPOP set 70",
        "ZPOPMIN sorted 70",
        "HDEL hash 1 2 3",
        "ZREMRANGEBYRANK sorted 0 99",
        "LTRIM trimmed 1 0",
        "UNLINK hash",
        "DEL list set",
        "EXPIRE sorted -1",
        "FLUSHDB",
        "FLUSHALL",
    ] {
        let reply = change(&mut *store, single(command));
        assert!(!reply.starts_with('-'), "{command}: {reply}");
    }
    assert_eq!(read(&mut *store, single("DBSIZE")), ":0\r\n");
    // The freed space is available to the next request at once.
    assert_eq!(change(&mut *store, set("new", &[b'v'; 100_000])), "+OK\r\n");
}

/// Expired keys are removed before any command is refused, and also while no client writes.
#[test]
fn keys_whose_time_is_over_take_no_room() {
    let made = made("?size=4M&media=file");
    let mut store = open(&made.url);
    let mut kept = 0;
    while change(
        &mut *store,
        arguments(&[
            b"SET",
            format!("k{kept}").as_bytes(),
            &[b'v'; 1000],
            b"PX",
            b"60000",
        ]),
    ) == "+OK\r\n"
    {
        kept += 1;
    }
    for key in 0..kept {
        let reply = change(&mut *store, single(&format!("PEXPIRE k{key} 300")));
        assert_eq!(reply, ":1\r\n", "{key}");
    }
    std::thread::sleep(std::time::Duration::from_millis(900));
    assert_eq!(change(&mut *store, set("new", &[b'v'; 500_000])), "+OK\r\n");
    assert_eq!(change(&mut *store, single("FLUSHALL")), "+OK\r\n");
    for key in 0..2_000 {
        let reply = change(&mut *store, single(&format!("SET short{key} v PX 50")));
        assert_eq!(reply, "+OK\r\n");
    }
    std::thread::sleep(std::time::Duration::from_millis(100));
    // No client writes from now on.
    assert!(store.tidies());
    let mut times = 0;
    while store.tidy().unwrap() || times < 10 {
        times += 1;
        assert!(times < 1_000);
    }
    drop(store);
    let media = pmnet_media::open_image_read_only(&made.path).unwrap();
    let left = pmnet_packet_store::Scan::open(media, None).unwrap().stat();
    assert!(left.records < 20, "{left:?}");
}

/// New sessions are refused before they take the space that existing sessions and deletes need.
#[test]
fn sessions_do_not_crowd_a_full_store_out() {
    let made = made("?size=4M&media=file");
    let mut store = open(&made.url);
    filled(&mut *store, &[b'v'; 1000]);
    filled(&mut *store, b"");
    let record = |kind: &str, client: u32| [kind.as_bytes(), &client.to_be_bytes()].concat();
    let mut clients = 0;
    while !store.is_crowded() {
        let session = Batch {
            records: vec![(
                record("session/", clients),
                Some(Bytes::from_static(&[0; 32])),
            )],
            ..Batch::default()
        };
        assert_eq!(store.apply(&session), Ok(0), "session {clients}");
        clients += 1;
        assert!(clients < 5_000, "more than it has room for");
    }
    assert!(clients > 100, "{clients}");
    // Each existing session has its first reply, of the longest kind that may use the reserve.
    for client in 0..clients {
        let request = Request {
            source: pmnet_server::Source::default(),
            payload: arguments(&[b"ECHO", &[b'e'; 480]]),
            record: Some((record("reply/", client), Bytes::from_static(&[0; 8]))),
        };
        let mut replies = Vec::new();
        store.execute(&[request], &mut replies).unwrap();
        assert!(replies[0].starts_with(b"$480"), "client {client}");
    }
    assert_eq!(change(&mut *store, single("DEL k1")), ":1\r\n");
    assert_eq!(change(&mut *store, single("FLUSHALL")), "+OK\r\n");
    change(&mut *store, set("new", &[b'v'; 100_000]));
    assert!(!store.is_crowded() && !store.is_short());
}

/// The copy of a store in use has the state of one commit, and never a part of a change.
#[test]
fn a_copy_of_a_store_in_use_is_as_of_one_moment() {
    let made = made("?size=16M&media=file");
    let mut store = open(&made.url);
    let copy = made.path.with_extension("copy");
    let stop = std::sync::atomic::AtomicBool::new(false);
    let (path, mut kept) = (made.path.clone(), 0);
    std::thread::scope(|scope| {
        let copier = scope.spawn(|| {
            let mut outcomes = Vec::new();
            for _ in 0..4 {
                let done = pmnet_store::back_up_packet_store(&path, &copy);
                let whole = done.is_ok();
                if whole {
                    let url = format!("packet:{}", copy.display());
                    let mut copied = pmnet_store::open(&url, 0).unwrap();
                    let numbers = ["GET one", "GET two"].map(|ask| read(&mut *copied, single(ask)));
                    assert_eq!(numbers[0], numbers[1]);
                    drop(copied);
                    std::fs::remove_file(&copy).unwrap();
                } else {
                    let why = done.unwrap_err().to_string();
                    assert!(why.contains("it changed during each"), "{why}");
                    assert!(!copy.exists());
                }
                outcomes.push(whole);
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            outcomes
        });
        while !stop.load(std::sync::atomic::Ordering::Relaxed) {
            // One commit writes both keys, so a reader sees both keys or none.
            let both = crate::support::payload(
                Form::Transaction,
                Protocol::Resp2,
                0,
                &["INCR one", "INCR two"],
            );
            change(&mut *store, both);
            kept += 1;
        }
        copier.join().unwrap();
    });
    // While no client writes, the copy holds all data.
    let done = pmnet_store::back_up_packet_store(&made.path, &copy).unwrap();
    assert_eq!(done.tries, 1);
    let again = pmnet_store::back_up_packet_store(&made.path, &copy);
    assert!(again.unwrap_err().to_string().contains("already"));
    let mut copied = open(&format!("packet:{}", copy.display()));
    let number = kept.to_string();
    let wanted = format!("${}\r\n{number}\r\n", number.len());
    assert_eq!(read(&mut *copied, single("GET two")), wanted);
}

/// A message about a damaged record has the name that clients use.
#[test]
fn damage_is_named_by_the_keys_of_clients() {
    let made = made("?size=1M");
    let mut store = open(&made.url);
    change(&mut *store, single("SET text once-upon-a-time"));
    change(&mut *store, single("HSET people alice ten-years-of-age"));
    change(&mut *store, single("HSET people bob 9"));
    drop(store);
    let mut image = std::fs::read(&made.path).unwrap();
    for value in ["once-upon-a-time", "ten-years-of-age"] {
        let at = image
            .windows(value.len())
            .position(|bytes| bytes == value.as_bytes())
            .unwrap();
        image[at + 3] ^= 1;
    }
    std::fs::write(&made.path, image).unwrap();
    let image = pmnet_media::open_image_read_only(&made.path).unwrap();
    let scan = pmnet_packet_store::Scan::open(image, None).unwrap();
    let names = pmnet_store::names_in_packet_store(&scan);
    let mut found: Vec<String> = scan.verify().iter().map(|one| names.of(&one.key)).collect();
    found.sort();
    assert_eq!(
        found,
        [
            "\"alice\" in key \"people\" of database 0",
            "key \"text\" of database 0"
        ]
    );
}
