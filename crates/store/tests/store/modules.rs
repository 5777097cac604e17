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
