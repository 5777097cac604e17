//! Rights are taken away while a server runs, at any moment of a batch or a transaction. If Redis refuses a command,
//! the command has no effect, and the store waits. If Redis executes a command, the command is not executed again.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::support::proxy::Proxy;
use crate::support::{Redis, batch, bulk, load, payload, watermark};
use bytes::Bytes;
use pmnet_resp::write_command;
use pmnet_server::{Request, Store, StoreError};
use pmnet_wire::command::{Form, Protocol};

/// Number of arguments that is too high for a script.
const MANY: usize = 4500;
const EXEC: &str = "*1\r\n$4\r\nEXEC\r\n";
const WAIT_MAX: Duration = Duration::from_secs(20);

/// A Redis with a user for the store, and a proxy in between.
struct Rig {
    redis: Redis,
    proxy: Proxy,
}

impl Rig {
    fn start() -> Option<Rig> {
        let redis = Redis::start(&[])?;
        for name in ["shard", "other"] {
            let all = "on >secret +@all allkeys allchannels";
            let line = format!("ACL SETUSER {name} {all}");
            redis.call(&line.split(' ').collect::<Vec<_>>());
        }
        redis.call(&[
            "FUNCTION",
            "LOAD",
            "#!lua name=add\nredis.register_function('add', function() return redis.call('INCR', 'n') end)",
        ]);
        let proxy = Proxy::start(redis.port);
        Some(Rig { redis, proxy })
    }

    fn store(&self) -> Box<dyn Store> {
        let url = format!("redis://shard:secret@127.0.0.1:{}", self.proxy.port);
        pmnet_store::open(&url, 0).unwrap()
    }

    /// Changes the user's rights when Redis has queued `queued` commands and has not got the EXEC yet.
    fn at_exec(&self, queued: usize, rules: &str) {
        let port = self.redis.port;
        let mut change = vec!["ACL", "SETUSER", "shard"];
        change.extend(rules.split(' '));
        let change: Vec<String> = change.into_iter().map(str::to_owned).collect();
        self.proxy.before(EXEC, move || {
            let until = Instant::now() + WAIT_MAX;
            let queued = format!(" multi={queued} ");
            while !direct(port, &["CLIENT", "LIST"]).contains(&queued) {
                assert!(Instant::now() < until, "it is not queued");
                std::thread::sleep(Duration::from_millis(1));
            }
            let words: Vec<&str> = change.iter().map(String::as_str).collect();
            assert!(direct(port, &words).contains("+OK"));
        });
    }

    fn allow_all(&self) {
        let all = ["ACL", "SETUSER", "shard", "+@all", "allkeys"];
        assert_eq!(self.redis.call(&all), "+OK\r\n");
    }

    /// Runs a command in this database; returns its reply.
    fn ask(&self, database: u32, command: &[&str]) -> String {
        let mut call = vec![
            "EVAL",
            "redis.call('SELECT', table.remove(ARGV, 1)) return redis.call(unpack(ARGV))",
            "0",
        ];
        let database = database.to_string();
        call.push(&database);
        call.extend(command);
        self.redis.call(&call)
    }
}

/// Applies the effects while rights are missing, and checks that the effects do not happen. Then applies the effects
/// again with all rights.
fn wait_for_rights(missing: &str, says: &str, effects: &[Bytes]) -> Option<Rig> {
    let rig = Rig::start()?;
    let mut store = rig.store();
    store.load().unwrap();
    // A database is checked when it is used for the first time.
    let warm = [1, 2].map(|n| payload(Form::Single, Protocol::Resp2, n, &["SET warm v"]));
    assert_eq!(store.apply(&batch(&warm, 1)), Ok(0));
    rig.redis.call(&["SET", "before", "v"]);
    let mut change = vec!["ACL", "SETUSER", "shard"];
    change.extend(missing.split(' '));
    assert_eq!(rig.redis.call(&change), "+OK\r\n");
    let result = store.apply(&batch(effects, 2));
    assert!(
        matches!(&result, Err(StoreError::Retry(text)) if text.contains(says)),
        "{missing}: {result:?}"
    );
    assert_eq!(
        rig.redis.call(&["DBSIZE"]),
        ":2\r\n",
        "{missing}: nothing ran"
    );
    assert_eq!(rig.redis.get("before").as_deref(), Some("v"), "{missing}");
    rig.allow_all();
    assert_eq!(
        watermark(&load(&mut *store)),
        1,
        "{missing}: nor is it applied"
    );
    assert_eq!(store.apply(&batch(effects, 2)), Ok(0), "{missing}");
    Some(rig)
}

/// Found: a whole batch was lost, with its commands for database 0, because only the right to SELECT 0 had been
/// checked.
#[test]
fn acknowledged_writes_wait_for_the_right_to_their_database() {
    for missing in ["-select +select|0", "-select +select|0 +select|2"] {
        let in_database = |n, line| payload(Form::Single, Protocol::Resp2, n, &[line]);
        let effects = [
            in_database(0, "SET a v"),
            in_database(2, "SET a v"),
            in_database(1, "SET a v"),
            in_database(1, "SETEX b 1000 v"),
        ];
        let Some(rig) = wait_for_rights(missing, "SELECT ", &effects) else {
            return;
        };
        for (database, key) in [(0, "a"), (1, "a"), (1, "b"), (2, "a")] {
            let value = rig.ask(database, &["GET", key]);
            assert_eq!(bulk(&value).as_deref(), Some("v"), "{missing}: {key}");
        }
    }
}

/// Found: the rest of a batch was lost when a FLUSHALL in it could not keep the records.
#[test]
fn a_flush_waits_for_the_rights_that_it_needs() {
    for missing in ["-scan", "-type", "-hgetall", "-hdel"] {
        let effects = ["SET a v", "FLUSHALL", "SET c v", "SET d v"].map(crate::support::single);
        let Some(rig) = wait_for_rights(missing, "", &effects) else {
            return;
        };
        for (key, value) in [
            ("before", None),
            ("a", None),
            ("c", Some("v")),
            ("d", Some("v")),
        ] {
            assert_eq!(rig.redis.get(key).as_deref(), value, "{missing}: {key}");
        }
    }
}

/// Found: a forbidden key was taken for an allowed key, because the check had only tried two invented names, which were
/// allowed.
#[test]
fn a_key_that_a_pattern_leaves_out_is_waited_for() {
    for line in [
        "SET _x v",
        "SET _x v EX 1000",
        "MSET b v _x v",
        "SETEX _x 1000 v",
    ] {
        let effects = ["SET a v", line, "SET c v"].map(crate::support::single);
        let Some(rig) = wait_for_rights("resetkeys ~[^_]*", "is not allowed", &effects) else {
            return;
        };
        for key in ["a", "_x", "c"] {
            assert_eq!(rig.redis.get(key).as_deref(), Some("v"), "{line}: {key}");
        }
    }
}

/// Every step that could fail in the middle of a batch is tried before the batch begins. If a command fails
/// nevertheless, the error must say that the batch ended in its middle.
#[test]
fn a_batch_that_ends_in_its_midst_stops_the_shard() {
    for (answer, says) in [
        (
            "-BROKEN 2 ERR why\r\n",
            &[
                "(ERR why)",
                "SET c in database 0; INCR n in database 0.",
                "write these",
            ][..],
        ),
        (
            "-BROKEN records ERR why\r\n",
            &["(ERR why)", "none of the batch's updates", "Restore"],
        ),
    ] {
        let Some(rig) = Rig::start() else { return };
        let mut store = rig.store();
        store.load().unwrap();
        rig.proxy.answer("*0\r\n", answer);
        let effects = ["SET a v", "SET b v", "SET c v", "INCR n"].map(crate::support::single);
        let Err(StoreError::Fatal(text)) = store.apply(&batch(&effects, 1)) else {
            panic!("it must stop");
        };
        for part in says {
            assert!(text.contains(part), "{part:?} is not in {text}");
        }
    }
}

/// Sends one command on a connection of its own, and returns Redis's answer.
fn direct(port: u16, command: &[&str]) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let mut out = Vec::new();
    write_command(&mut out, command);
    write_command(&mut out, &["QUIT"]);
    stream.write_all(&out).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn many(database: u32, head: &str, argument: &str) -> Bytes {
    let line = format!("{head}{}", format!(" {argument}").repeat(MANY));
    payload(Form::Single, Protocol::Resp2, database, &[&line])
}

fn request(payload: Bytes) -> Request {
    Request {
        source: pmnet_server::Source::default(),
        payload,
        record: Some((b"reply/1".to_vec(), Bytes::from_static(b"p"))),
    }
}

fn record(records: &[(Vec<u8>, Bytes)]) -> Option<String> {
    let (_, value) = records.iter().find(|(key, _)| key == b"reply/1")?;
    Some(String::from_utf8_lossy(value).into_owned())
}

/// Sets of rights that are missing at EXEC.
const MISSING: [&str; 5] = [
    "-select",
    "-select +select|0",
    "-hset",
    "-eval",
    "-hget -hdel",
];

/// Found: an acknowledged MSET of another database was written to database 0, and counted as applied.
#[test]
fn a_large_update_goes_to_its_own_database_whatever_right_is_taken_away() {
    for missing in MISSING {
        let Some(rig) = Rig::start() else { return };
        let mut store = rig.store();
        store.load().unwrap();
        let effects = [many(1, "MSET", "k v")];
        rig.at_exec(3, missing);
        let result = store.apply(&batch(&effects, 1));
        assert!(
            matches!(result, Ok(0) | Err(StoreError::Retry(_))),
            "{missing}: {result:?}"
        );
        assert!(rig.proxy.is_done());
        rig.allow_all();
        let records = load(&mut *store);
        assert_eq!(watermark(&records), 1, "{missing}: it ran, and is applied");
        assert_eq!(bulk(&rig.ask(1, &["GET", "k"])).as_deref(), Some("v"));
        assert_eq!(rig.ask(0, &["EXISTS", "k"]), ":0\r\n", "{missing}");
        assert_eq!(rig.ask(1, &["DBSIZE"]), ":1\r\n", "{missing}: no records");
        assert_eq!(store.apply(&batch(&[], 2)), Ok(0));
    }
}

/// Found: the command was executed twice, and its record was written to the other database.
#[test]
fn a_large_request_is_executed_once_whatever_right_is_taken_away() {
    for missing in MISSING {
        for (payload, look, once) in [
            (many(1, "RPUSH list", "x"), ["LLEN", "list"], ":4500\r\n"),
            (
                payload(Form::Single, Protocol::Resp2, 1, &["FCALL add 0"]),
                ["STRLEN", "n"],
                ":1\r\n",
            ),
        ] {
            let Some(rig) = Rig::start() else { return };
            let mut store = rig.store();
            store.load().unwrap();
            let seals = if look[0] == "LLEN" { 0 } else { 2 };
            rig.at_exec(3 + seals, missing);
            let mut replies = Vec::new();
            let result = store.execute(&[request(payload)], &mut replies);
            assert!(
                matches!(result, Ok(()) | Err(StoreError::Retry(_))),
                "{missing}: {result:?}"
            );
            assert!(rig.proxy.is_done());
            rig.allow_all();
            let kept = record(&load(&mut *store)).expect("it ran: nobody may run it again");
            assert!(kept.starts_with("p:"), "{missing}: its true reply: {kept}");
            assert_eq!(rig.ask(1, &look), once, "{missing}");
            assert_eq!(rig.ask(0, &["EXISTS", look[1]]), ":0\r\n", "{missing}");
            assert_eq!(rig.ask(1, &["DBSIZE"]), ":1\r\n", "{missing}: no records");
        }
    }
}

/// A batch for several databases needs a SELECT inside the transaction, where a refusal cannot be repaired.
#[test]
fn updates_that_went_to_another_database_stop_the_shard() {
    for (missing, applied) in [("-select", false), ("-select +select|0", true)] {
        let Some(rig) = Rig::start() else { return };
        let mut store = rig.store();
        store.load().unwrap();
        let small = payload(Form::Single, Protocol::Resp2, 2, &["SET small v"]);
        let effects = [many(0, "MSET", "k v"), small];
        rig.at_exec(5, missing);
        let Err(StoreError::Fatal(text)) = store.apply(&batch(&effects, 1)) else {
            panic!("{missing}: it must stop");
        };
        for part in ["SELECT 2", "SET small in database 2", "rights"] {
            assert!(text.contains(part), "{missing}: {part:?} is not in {text}");
        }
        assert_eq!(
            text.contains("does not count as applied"),
            !applied,
            "{missing}: {text}"
        );
        rig.allow_all();
        let records = load(&mut *rig.store());
        assert_eq!(watermark(&records), u64::from(applied), "{missing}");
    }
}

/// Redis itself does not make this mistake, but a process between pmnet and Redis could make it. Found: effects were
/// lost or doubled.
#[test]
fn a_command_that_was_not_queued_while_the_others_ran_stops_the_shard() {
    let Some(rig) = Rig::start() else { return };
    let mut store = rig.store();
    store.load().unwrap();
    for call in [
        |store: &mut dyn Store| {
            let effects = [many(0, "MSET", "k v")];
            store.apply(&batch(&effects, 1)).map(drop)
        },
        |store: &mut dyn Store| {
            let pushes = many(0, "RPUSH list", "x");
            store.execute(&[request(pushes)], &mut Vec::new())
        },
    ] {
        rig.proxy.answer("+QUEUED\r\n", "-ERR NO\r\n");
        let Err(StoreError::Fatal(text)) = call(&mut *store) else {
            panic!("it must stop");
        };
        assert!(text.contains("when it was to be queued"), "{text}");
        assert!(text.contains("all the same"), "{text}");
        rig.proxy.answer("none", "none");
        store = rig.store();
        load(&mut *store);
    }
}

/// Found: the record had never been written, so its absence proved nothing. So the request was executed again.
#[test]
fn what_was_executed_without_its_record_is_not_executed_again_by_a_redis_that_was_restarted() {
    let Some(mut rig) = Rig::start() else { return };
    let mut first = rig.store();
    first.load().unwrap();
    assert_eq!(first.apply(&batch(&[], 1)), Ok(0));
    for (number, command) in (1..).zip(["FCALL add 0", "RPUSH"]) {
        let payload = match command {
            "RPUSH" => many(0, "RPUSH n.list", "x"),
            command => crate::support::single(command),
        };
        let mut store = rig.store();
        load(&mut *store);
        rig.redis.call(&["HDEL", "pmnet:{0}", "reply/1"]);
        load(&mut *store);
        rig.at_exec(if command == "RPUSH" { 3 } else { 5 }, "-hset");
        let result = store.execute(&[request(payload)], &mut Vec::new());
        assert!(
            matches!(&result, Err(StoreError::Retry(text)) if text.contains("refused to keep")),
            "{result:?}"
        );
        rig.redis.restart();
        rig = rig.again();
        let kept = record(&load(&mut *store)).expect("nobody may run it again");
        assert!(kept.contains("reply lost"), "{number}: {kept}");
        let stored = rig.redis.call(&["HGET", "pmnet:{0}", "reply/1"]);
        assert_eq!(bulk(&stored), Some(kept));
    }
    assert_eq!(rig.redis.get("n").as_deref(), Some("1"));
    assert_eq!(rig.redis.call(&["LLEN", "n.list"]), ":4500\r\n");
}

impl Rig {
    /// Gives the store's user all rights again, also after a restart, by which Redis has lost its users.
    fn again(self) -> Rig {
        let all = "ACL SETUSER shard on >secret +@all allkeys allchannels";
        self.redis.call(&all.split(' ').collect::<Vec<_>>());
        self
    }
}
