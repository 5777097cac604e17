//! Commands of modules (`tests/shared/invented.c`): what they could do to pmnet's records, or to a connection that is shared, follows
//! from what Redis says of them.

#[path = "../../../../tests/shared/module.rs"]
mod module;

use crate::support::{Redis, change, payload, read, script, single};
use module::invented;
use pmnet_wire::command::{Form, Protocol};

#[test]
fn what_a_module_could_do_without_naming_it_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let module = invented(directory.path());
    // Loaded before the server comes, and behind its back.
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
        // It says less of its commands, and has no such option.
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
        if !is_old {
            refused(change(store, single("inv.prepare x")), connection);
            refused(read(store, single("inv.prepare x")), connection);
        }
        if early {
            let code = "return redis.call('inv.wipe', 'pmnet')";
            let text = change(store, script(Protocol::Resp2, &["EVAL", code, "0"]));
            assert!(text.contains("not available inside scripts"), "{text}");
        }
        assert_eq!(change(store, single("inv.add n 2")), ":2\r\n");
        assert_eq!(read(store, single("inv.len n")), ":1\r\n");
        assert!(change(store, single("inv.add pmnet:{0} 2")).contains("reserved"));
        assert!(change(store, single("NOSUCH a")).starts_with("-ERR unknown command"));
        if is_old {
            break;
        }
    }
}

/// Redis says of such a command that it is the one that it was: the new name counted as one of a harmless command.
#[test]
fn a_renamed_command_is_refused_under_its_new_name() {
    let long = "w".repeat(65);
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
    assert!(text.contains("at most 64 bytes"), "{text}");
    let code = format!("redis.setresp(3) return redis.call('{long}')");
    let text = change(store, script(Protocol::Resp2, &["EVAL", &code, "0"]));
    assert!(text.contains("not available inside scripts"), "{text}");
    let text = change(store, single("FLUSHALL"));
    assert!(text.starts_with("-ERR"), "{text}");
    assert_eq!(redis.get("k").as_deref(), Some("v"));
    assert_eq!(redis.get("a").as_deref(), Some("2"));
    assert!(!store.load().unwrap().is_empty());
}
