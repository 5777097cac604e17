//! Commands of modules (`tests/shared/invented.c`). From Redis's facts about a command, the store decides whether the
//! command could harm pmnet's records, or a connection that clients share.

#[path = "../../../../tests/shared/module.rs"]
mod module;

use crate::support::{Redis, change, payload, read, script, single};
use bytes::Bytes;
use module::invented;
use pmnet_server::{Request, StoreError};
use pmnet_wire::command::{Form, Protocol};

#[test]
fn what_a_module_could_do_without_naming_it_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let module = invented(directory.path());
    // The module is loaded before the store connects, or afterwards.
    for options in [
        ["--loadmodule", &module],
        ["--enable-module-command", "yes"],
    ] {
        let Some(redis) = Redis::start(&options) else {
            return;
        };
        let mut store = redis.store();
        crate::support::load(&mut *store);
        let store = &mut *store;
        let early = options[0] == "--loadmodule";
        // Redis 6 reports less about its commands, and lacks the option `--enable-module-command`.
        let is_old = redis.call(&["INFO", "server"]).contains("redis_version:6");
        if !early {
            assert_eq!(redis.call(&["MODULE", "LOAD", &module]), "+OK\r\n");
        }
        let refused = |text: String, why: &str| {
            assert!(
                text.starts_with("-ERR pmnet: ") && text.contains(why),
                "{text}"
            );
        };
        let unnamed = "changes keys that it does not name";
        refused(change(store, single("inv.wipe pmnet")), unnamed);
        let all = ["SET a 1", "inv.wipe pmnet"];
        let all = payload(Form::Transaction, Protocol::Resp2, 0, &all);
        refused(change(store, all), unnamed);
        assert_eq!(redis.get("a"), None);
        let all = ["inv.add p 1", "inv.wipe pmnet", "inv.add p 1"];
        let text = change(store, payload(Form::Pack, Protocol::Resp2, 0, &all));
        assert!(
            text.starts_with("*3\r\n:1\r\n-ERR pmnet: INV.WIPE ") && text.ends_with(":2\r\n"),
            "{text}"
        );
        let connection = "keeps state in its connection";
        refused(change(store, single("inv.prepare x")), connection);
        refused(read(store, single("inv.prepare x")), connection);
        if !is_old {
            refused(change(store, single("inv.family prepare x")), connection);
            refused(change(store, single("inv.family put k")), connection);
        }
        for code in [
            "return redis.call('inv.wipe', 'pmnet')",
            "redis.setresp(3) return redis.call('Inv.Wipe', 'pmnet')",
        ] {
            let text = change(store, script(Protocol::Resp2, &["EVAL", code, "0"]));
            assert!(text.contains("not available inside scripts"), "{text}");
        }
        let code = "return redis.call('inv.add', 'm', '2')";
        let text = change(store, script(Protocol::Resp2, &["EVAL", code, "0"]));
        assert_eq!(text, ":2\r\n");
        assert_eq!(change(store, single("inv.add n 2")), ":2\r\n");
        assert_eq!(read(store, single("inv.len n")), ":1\r\n");
        assert!(change(store, single("inv.add pmnet:{0} 2")).contains("reserved"));
        assert!(change(store, single("NOSUCH a")).starts_with("-ERR unknown command"));
        if is_old {
            break;
        }
    }
}

/// Found: Redis reports a renamed command under its old name, so the new name was taken for the name of a harmless
/// command.
#[test]
fn a_renamed_command_is_refused_under_its_new_name() {
    let long = "w".repeat(1025);
    let renamed = [
        "--rename-command",
        "FLUSHALL",
        "wipeall",
        "--rename-command",
        "CONFIG",
        "Operate",
        "--rename-command",
        "FLUSHDB",
        &long,
    ];
    let Some(redis) = Redis::start(&renamed) else {
        return;
    };
    let mut store = redis.store();
    crate::support::load(&mut *store);
    let store = &mut *store;
    assert_eq!(change(store, single("SET k v")), "+OK\r\n");
    let why = "the store's configuration gave it this name (rename-command)";
    for line in ["wipeall", "WIPEALL SYNC", "operate SET appendonly no"] {
        let form = |form| payload(form, Protocol::Resp2, 0, &[line, "SET a 2"]);
        let forms = [Form::Transaction, Form::Pipeline, Form::Pack].map(form);
        for payload in [single(line)].into_iter().chain(forms) {
            let text = change(store, payload);
            assert!(text.contains(why), "{line}: {text}");
        }
        let text = read(store, single(line));
        assert!(text.contains(why), "{line}: {text}");
        let call = line.replace(' ', "','");
        let code = format!("return redis.call('{call}')");
        let text = change(store, script(Protocol::Resp2, &["EVAL", &code, "0"]));
        assert!(text.contains("not available inside scripts"), "{text}");
    }
    let text = change(store, single(&long));
    assert!(text.contains("at most 1,024 bytes"), "{text}");
    let code = format!("redis.setresp(3) return redis.call('{long}')");
    let text = change(store, script(Protocol::Resp2, &["EVAL", &code, "0"]));
    assert!(text.contains("not available inside scripts"), "{text}");
    let text = change(store, single("FLUSHALL"));
    assert!(text.starts_with('-'), "{text}");
    assert_eq!(redis.get("k").as_deref(), Some("v"));
    assert_eq!(redis.get("a").as_deref(), Some("2"));
    assert!(!store.load().unwrap().is_empty());
}

/// Found: the time of the command counted for all requests in its transaction. If the command took longer than a call
/// may, no client got a reply.
#[test]
fn a_slow_command_of_a_module_loses_no_reply_but_its_own() {
    let directory = tempfile::tempdir().expect("a directory");
    let module = invented(directory.path());
    let Some(redis) = Redis::start(&["--loadmodule", &module]) else {
        return;
    };
    let mut store = redis.store();
    crate::support::load(&mut *store);
    let lines = ["BLPOP l 0", "BLPOP l 0", "inv.slow n 6", "BLPOP l 0"];
    redis.call(&["RPUSH", "l", "a", "b", "c"]);
    let requests = lines.iter().enumerate().map(|(i, line)| Request {
        source: pmnet_server::Source::default(),
        payload: single(line),
        record: Some((vec![b'r', i as u8], Bytes::from_static(b"p"))),
    });
    let requests: Vec<Request> = requests.collect();
    let mut replies = Vec::new();
    let failed = store.execute(&requests, &mut replies);
    assert!(matches!(failed, Err(StoreError::Retry(_))), "{failed:?}");
    let records = crate::support::load(&mut *store);
    let said = |i: u8| {
        let found = records.iter().find(|(key, _)| key[..] == [b'r', i]);
        found.map(|(_, value)| String::from_utf8_lossy(&value[1..]).into_owned())
    };
    for (i, word) in [(0, "a"), (1, "b")] {
        let reply = format!("*2\r\n$1\r\nl\r\n$1\r\n{word}\r\n");
        assert_eq!(said(i), Some(reply), "{i}");
    }
    let lost = said(2).expect("it has run");
    assert!(
        lost.starts_with("-ERR pmnet: applied, reply lost"),
        "{lost}"
    );
    assert_eq!(redis.get("n").as_deref(), Some("1"));
    assert_eq!(said(3), None, "it was not sent");
}
