//! Packs: the store executes their commands and transactions in as few steps as it can.

use crate::support::{Redis, change, payload, read};
use bytes::Bytes;
use pmnet_server::Store;
use pmnet_wire::command::{Form, Protocol};

fn pack(lines: &[&str]) -> Bytes {
    payload(Form::Pack, Protocol::Resp2, 0, lines)
}

fn each_store(test: impl Fn(&mut dyn Store)) {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("packet:{}?size=64M", folder.path().join("store").display());
    let mut store = pmnet_store::open(&url, 0).unwrap();
    assert_eq!(store.load(), Ok(vec![]));
    test(&mut *store);
    if let Some(redis) = Redis::start(&[]) {
        let mut store = redis.store();
        assert_eq!(store.load(), Ok(vec![]));
        test(&mut *store);
    }
}

#[test]
fn an_error_of_one_part_does_not_stop_the_others() {
    each_store(|store| {
        let lines = [
            "SET t abc",
            "INCR n",
            "INCR t",
            "MULTI",
            "INCR n",
            "LPUSH t x",
            "GET n",
            "EXEC",
            "GET t",
            "SET n",
        ];
        let said = change(store, pack(&lines[..9]));
        let wanted = "*5\r\n+OK\r\n:1\r\n-ERR value is not an integer or out of range\r\n*3\r\n:2\r\n\
             -WRONGTYPE Operation against a key holding the wrong kind of value\r\n$1\r\n2\r\n$3\r\nabc\r\n";
        assert_eq!(said, wanted);
        // The commands after the transaction have not run.
        let said = change(store, pack(&["MULTI", "INCR n", "SET n", "EXEC", "INCR n"]));
        let abort = "-EXECABORT Transaction discarded because of previous errors.\r\n";
        let whole = format!("*2\r\n{abort}:3\r\n");
        if said == format!("*1\r\n{abort}") {
            assert_eq!(change(store, pack(&["INCR n"])), "*1\r\n:3\r\n");
        } else {
            assert_eq!(said, whole);
        }
        assert_eq!(
            change(store, pack(&["GET n", "GET n"])),
            "*2\r\n$1\r\n3\r\n$1\r\n3\r\n"
        );
    });
}

#[test]
fn a_pack_ends_when_its_replies_are_long() {
    each_store(|store| {
        let set = format!("SET k {}", "x".repeat(20_000));
        assert_eq!(
            change(store, pack(&["INCR n", &set])),
            "*2\r\n:1\r\n+OK\r\n"
        );
        assert_eq!(
            change(store, pack(&["INCR n", "GET k", "INCR n"])),
            "*1\r\n:2\r\n"
        );
        assert_eq!(change(store, pack(&["GET k", "INCR n"])), "*0\r\n");
        let getset = format!("GETSET k {}", "y".repeat(20_000));
        let said = change(store, pack(&[&getset[..]; 40]));
        let count: usize = said[1..].split_once('\r').unwrap().0.parse().unwrap();
        assert_eq!(count, 262_144 / 20_000 + 1);
        assert_eq!(said.matches('x').count(), 20_000);
        assert_eq!(said.matches('y').count(), 20_000 * (count - 1));
        assert_eq!(change(store, pack(&["INCR n"])), "*1\r\n:3\r\n");
    });
}

/// A command that needs a MULTI ends the part of the pack that a script executes. A client's transaction with such a
/// command runs alone.
#[test]
fn a_pack_ends_where_a_script_cannot_go_on() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let mut store = redis.store();
    assert_eq!(store.load(), Ok(vec![]));
    let store = &mut *store;
    let mut lines = &[
        "INCR n",
        "BLPOP l 0",
        "INCR n",
        "NOSUCH",
        "MULTI",
        "INCR n",
        "EXEC",
        "MULTI",
        "INCR n",
        "BLPOP l 0",
        "EXEC",
        "MULTI",
        "INCR n",
        "NOSUCH",
        "EXEC",
        "GET n",
    ][..];
    for (taken, said) in [
        (1, "*1\r\n:1\r\n"),
        (
            3,
            "*3\r\n*-1\r\n:2\r\n-ERR unknown command 'NOSUCH', with args beginning with: \r\n",
        ),
        (3, "*1\r\n*1\r\n:3\r\n"),
        (4, "*1\r\n*2\r\n:4\r\n*-1\r\n"),
        (
            4,
            "*1\r\n-EXECABORT Transaction discarded because of previous errors.\r\n",
        ),
        (1, "*1\r\n$1\r\n4\r\n"),
    ] {
        assert_eq!(change(store, pack(lines)), said, "{lines:?}");
        lines = &lines[taken..];
    }
    assert!(lines.is_empty());
    let said = read(store, pack(&["GET n", "GET n"]));
    assert!(said.starts_with("-ERR pmnet: this command cannot be sent as a read"));
}

#[test]
fn what_needs_no_memory_runs_when_memory_is_short() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let mut store = redis.store();
    assert_eq!(store.load(), Ok(vec![]));
    let store = &mut *store;
    change(store, pack(&["SET k v", "SET m v"]));
    redis.call(&["CONFIG", "SET", "maxmemory", "1"]);
    let oom = "OOM command not allowed when used memory > 'maxmemory'.";
    let lines = [
        "GET k", "SET k w", "MULTI", "SET k w", "EXEC", "DEL m", "GET k",
    ];
    let wanted = format!(
        "*5\r\n$1\r\nv\r\n-{oom}\r\n-EXECABORT Transaction discarded because of: {oom}\r\n:1\r\n$1\r\nv\r\n"
    );
    assert_eq!(change(store, pack(&lines)), wanted);
    // In a MULTI each command has an answer of its own.
    let mut lines = &["BLPOP l 0", "SET k w", "GET k"][..];
    while let Some((first, rest)) = lines.split_first() {
        let said = change(store, pack(lines));
        assert!(
            said.starts_with("*1\r\n") || *first == "SET k w",
            "{first}: {said}"
        );
        lines = rest;
    }
    redis.call(&["CONFIG", "SET", "maxmemory", "0"]);
}
