//! Commands that the front does not know by name. The store's description of a command decides how the front
//! treats it.

use crate::common::module::invented;
use crate::common::{
    Client, Knobs, Redis, Running, command, eventually, record, sharded, skip::skip,
};
use pmnet_front::Cache;
use pmnet_front::limits::REQUESTS;
use pmnet_front::table::{
    Action, FACTS, LearnError, Learned, Pass, SERVER_VERSION, Table, keys, read_keys,
};
use pmnet_front::upstream::ReadAnswer;
use pmnet_resp::{Parser, Status, read};
use pmnet_wire::command::{Form, key_hash};

const EPOCH: u32 = 7;
const WATERMARK: u64 = 1_000_000_000_000;

fn reading() -> Knobs {
    Knobs {
        reads_allowed: true,
        answer: Some(|_, _| ReadAnswer::Miss {
            epoch: EPOCH,
            need: WATERMARK,
            version: 1,
            replicas: 0,
        }),
        ..Knobs::default()
    }
}

/// Whether the tests' Redis is older than version 7. A module of such a Redis can only name fixed places of keys.
fn is_old() -> bool {
    let info = Redis::start().map(|redis| redis.client().ask("INFO server"));
    info.is_some_and(|info| info.contains("redis_version:6"))
}

/// Starts a Redis with invented commands, for which it describes the places of the keys, and a front that has
/// learned them.
fn start() -> Option<(Redis, Running, tempfile::TempDir)> {
    if is_old() {
        return None;
    }
    start_any()
}

/// Starts a Redis with invented commands, and a front that has learned them.
fn start_any() -> Option<(Redis, Running, tempfile::TempDir)> {
    let directory = tempfile::tempdir().expect("a directory");
    let module = invented(directory.path());
    let redis = Redis::start_with(&["--loadmodule", &module])?;
    record(&redis, EPOCH, WATERMARK);
    let front = Running::start_as(&redis, reading(), |_| {});
    Some((redis, front, directory))
}

/// Returns the bypasses of clients since the last call of this function. Bypasses of the front itself are left out.
fn bypassed(front: &Running) -> Vec<(bool, Form, usize)> {
    let mut bypasses = std::mem::take(&mut front.knobs().bypasses);
    bypasses.retain(|bypass| bypass.1 != Form::Barrier);
    bypasses
}

fn at_once(client: &mut Client, lines: &[&str]) -> Vec<String> {
    let all: Vec<u8> = lines.iter().flat_map(|line| command(line)).collect();
    client.send(&all);
    lines.iter().map(|_| client.text()).collect()
}

fn with<T>(line: &str, look: impl FnOnce(&pmnet_resp::Arguments<'_>) -> T) -> T {
    let frame = command(line);
    let mut parser = Parser::new(REQUESTS);
    assert_eq!(parser.poll(&frame), Ok(Status::Complete));
    look(&parser.arguments(&frame))
}

/// If a client has only some rights, a module's command runs as the client's user, even if Redis itself does not check
/// its keys.
#[test]
fn a_module_sees_the_user_of_the_client() {
    let directory = tempfile::tempdir().expect("a directory");
    let module = invented(directory.path());
    let Some(redis) = Redis::start_with(&["--loadmodule", &module]) else {
        return;
    };
    let mut admin = redis.client();
    for line in [
        "ACL SETUSER front on >front ~* &* +@all",
        "ACL SETUSER bob on >pw ~a* &* +@all",
        "ACL SETUSER all on >pw ~* &* +@all",
        "ACL SETUSER eve on >pw ~a* &* +@all -inv.user",
    ] {
        assert_eq!(admin.ask(line), "+OK\r\n");
    }
    if admin.ask("INV.USER").starts_with('-') {
        return skip("this server does not tell modules who its clients are");
    }
    let front = crate::users::front(&redis);
    let mut bob = front.client();
    bob.ask("AUTH bob pw");
    eventually("the front has heard of it", || {
        bob.ask("INV.USER") == "$3\r\nbob\r\n"
    });
    assert_eq!(bob.ask("INV.USER"), "$3\r\nbob\r\n");
    assert_eq!(
        at_once(&mut bob, &["SET as 1", "inv.user", "GET as"])[1],
        "$3\r\nbob\r\n"
    );
    // Commands that name keys go through the server.
    assert_eq!(bob.ask("INV.LEN as"), ":1\r\n");
    assert!(bob.ask("INV.LEN b").starts_with("-NOPERM"));
    bob.ask("MULTI");
    assert!(bob.ask("INV.USER").contains("is possible in a MULTI only"));
    assert!(bob.ask("EXEC").starts_with("-EXECABORT"));
    let mut eve = front.client();
    eve.ask("AUTH eve pw");
    assert!(eve.ask("INV.USER").starts_with("-NOPERM"));
    // A user with all rights may do everything that the pmnet server may do.
    let mut all = front.client();
    all.ask("AUTH all pw");
    assert!(all.ask("INV.USER").starts_with("$5\r\nfront"));
}

#[test]
fn an_invented_read_goes_with_the_reads() {
    let Some((redis, front, _module)) = start() else {
        return skip("no redis-server 7 is installed");
    };
    redis.client().ask("MSET a hello b hi");
    let mut client = front.client();
    assert_eq!(client.ask("inv.len a"), ":5\r\n");
    assert_eq!(client.ask("INV.SUM 2 a b"), ":7\r\n");
    assert_eq!(
        at_once(&mut client, &["GET b", "inv.len b", "inv.len none"])[1..],
        [":2\r\n", ":0\r\n"]
    );
    assert_eq!(bypassed(&front), []);
    let reads = std::mem::take(&mut front.knobs().reads);
    let hashes =
        |keys: &[&str]| -> Vec<u64> { keys.iter().map(|key| key_hash(key.as_bytes())).collect() };
    assert_eq!(reads[..2], [hashes(&["a"]), hashes(&["a", "b"])]);
    // Redis itself gives the errors for invalid arguments.
    assert_eq!(client.ask("INV.SUM 3 a b"), "-ERR wrong number of keys\r\n");
    assert_eq!(
        client.ask("inv.len"),
        "-ERR wrong number of arguments for 'inv.len' command\r\n"
    );
    assert_eq!(front.stop().direct_reads, 5);
}

#[test]
fn invented_writes_of_a_pipeline_travel_together() {
    let Some((redis, front, _module)) = start() else {
        return skip("no redis-server 7 is installed");
    };
    let mut client = front.client();
    let lines = [
        "inv.add n 2",
        "INCR n",
        "inv.add n 3",
        "inv.add m 1",
        "inv.store 2 n m INTO sum",
    ];
    assert_eq!(
        at_once(&mut client, &lines),
        [":2\r\n", ":3\r\n", ":6\r\n", ":1\r\n", ":2\r\n"]
    );
    assert_eq!(bypassed(&front), [(false, Form::Pack, 5)]);
    assert_eq!(client.ask("inv.add n 1"), ":7\r\n");
    assert_eq!(bypassed(&front), [(false, Form::Single, 1)]);
    assert_eq!(redis.client().ask("GET sum"), "$1\r\n2\r\n");
    let all = ["MULTI", "inv.add n 1", "inv.len n", "EXEC"];
    assert_eq!(at_once(&mut client, &all)[3], "*2\r\n:8\r\n:1\r\n");
}

#[test]
fn an_invented_command_that_keeps_something_for_its_connection_has_one() {
    let Some((redis, front, _module)) = start_any() else {
        return skip("no redis-server 7 is installed");
    };
    let (mut a, mut b, mut other) = (front.client(), front.client(), front.client());
    let nothing = "-ERR nothing is prepared on this connection\r\n";
    assert_eq!(a.ask("inv.put k"), nothing);
    assert_eq!(a.ask("GET k"), "$-1\r\n");
    let mut plain = redis.client();
    let ids = |plain: &mut Client| -> Vec<String> {
        let list = plain.ask("CLIENT LIST TYPE normal");
        let id = |line: &str| Some(line.split(' ').next()?.strip_prefix("id=")?.to_owned());
        list.lines().filter_map(id).collect()
    };
    let before = ids(&mut plain);
    assert_eq!(a.ask("inv.prepare of-a"), "+OK\r\n");
    assert_eq!(b.ask("inv.prepare of-b"), "+OK\r\n");
    assert_eq!(a.ask("inv.put k:a"), "+OK\r\n");
    assert_eq!(b.ask("inv.put k:b"), "+OK\r\n");
    // Commands of other clients run on other connections.
    assert_eq!(other.ask("inv.put k:o"), nothing);
    assert_eq!(a.ask("GET k:a"), "$4\r\nof-a\r\n");
    assert_eq!(b.ask("GET k:b"), "$4\r\nof-b\r\n");
    assert!(a.ask("inv.put pmnet:{0}").contains("reserved"));
    // Only a connection of the client's own can keep the state, and a MULTI does not run on such a connection.
    a.ask("MULTI");
    assert!(
        a.ask("inv.prepare x")
            .contains("not supported inside MULTI")
    );
    assert!(a.ask("EXEC").starts_with("-EXECABORT"));
    // The state is lost together with the client's own connection, and the client gets an error, as it would get from
    // Redis.
    let theirs: Vec<String> = ids(&mut plain)
        .into_iter()
        .filter(|id| !before.contains(id))
        .collect();
    assert_eq!(theirs.len(), 2);
    for id in theirs {
        assert_eq!(plain.ask(&format!("CLIENT KILL ID {id}")), ":1\r\n");
    }
    assert_eq!(a.next(), None);
    assert_eq!(b.next(), None);
    assert_eq!(other.ask("PING"), "+PONG\r\n");
}

/// A transaction runs on a connection that all clients share, so the client's connection state would be
/// missing.
#[test]
fn a_transaction_of_a_client_whose_connection_keeps_something_misses_nothing() {
    let Some((_redis, front, _module)) = start_any() else {
        return skip("no redis-server 7 is installed");
    };
    let mut client = front.client();
    assert_eq!(client.ask("inv.prepare text"), "+OK\r\n");
    client.ask("MULTI");
    assert_eq!(client.ask("SET in-multi 1"), "+QUEUED\r\n");
    let refused = client.ask("inv.put k");
    assert!(
        refused.starts_with("-ERR pmnet") && refused.contains("WATCH"),
        "{refused}"
    );
    assert!(client.ask("EXEC").starts_with("-EXECABORT"));
    assert_eq!(client.ask("EXISTS in-multi"), ":0\r\n");
    assert_eq!(client.ask("inv.put k"), "+OK\r\n");
    // As the error says, a transaction with WATCH runs on the client's own connection.
    let lines = ["WATCH k", "MULTI", "inv.put k2", "EXEC"];
    let said = lines.map(|line| client.ask(line));
    assert_eq!(said[3], "*1\r\n+OK\r\n", "{said:?}");
    assert_eq!(client.ask("GET k2"), "$4\r\ntext\r\n");
    // Other clients have no such state, so their transactions may have commands of modules.
    let lines = ["MULTI", "inv.len k2", "EXEC"];
    let mut other = front.client();
    assert_eq!(lines.map(|line| other.ask(line))[2], "*1\r\n:4\r\n");
}

/// A login would need a new connection, which would not have the state of the old connection.
#[test]
fn a_client_whose_connection_keeps_something_does_not_log_in() {
    let directory = tempfile::tempdir().expect("a directory");
    let module = invented(directory.path());
    let Some(redis) = Redis::start_with(&["--loadmodule", &module]) else {
        return;
    };
    let mut admin = redis.client();
    for user in ["front on >front", "all on >pw", "other on >pw"] {
        let made = admin.ask(&format!("ACL SETUSER {user} ~* &* +@all"));
        assert_eq!(made, "+OK\r\n");
    }
    let front = crate::users::front(&redis);
    let mut client = front.client();
    assert_eq!(client.ask("AUTH all pw"), "+OK\r\n");
    eventually("the front has heard of it", || {
        client.ask("inv.prepare text") == "+OK\r\n" && client.ask("inv.put k") == "+OK\r\n"
    });
    for login in ["AUTH other pw", "AUTH all pw", "HELLO 3 AUTH other pw"] {
        let refused = client.ask(login);
        assert!(
            refused.starts_with("-ERR pmnet") && refused.contains("RESET"),
            "{login}: {refused}"
        );
        assert_eq!(client.ask("inv.put k"), "+OK\r\n", "{login}");
    }
    assert_eq!(client.ask("RESET"), "+RESET\r\n");
    assert_eq!(client.ask("AUTH other pw"), "+OK\r\n");
    assert!(client.ask("inv.put k").contains("nothing is prepared"));
}

/// Until the store has described a command, the front cannot know whether it may run as the client's user.
#[test]
fn a_command_that_came_later_does_not_run_unguarded_as_a_user_with_some_rights() {
    if is_old() {
        return skip("no redis-server 7 is installed");
    }
    let directory = tempfile::tempdir().expect("a directory");
    let module = invented(directory.path());
    let Some(redis) = Redis::start_with(&["--enable-module-command", "yes"]) else {
        return;
    };
    let mut admin = redis.client();
    for line in [
        "ACL SETUSER front on >front ~* &* +@all",
        "ACL SETUSER bob on >pw ~pm* &* +@all",
        "SET pmnet-like 1",
    ] {
        assert_eq!(admin.ask(line), "+OK\r\n");
    }
    let front = crate::users::front(&redis);
    let mut bob = front.client();
    bob.ask("AUTH bob pw");
    // The user's rights are known, and so are the commands of the store.
    assert_eq!(bob.ask("GET pmnet-like"), "$1\r\n1\r\n");
    eventually("the commands are known", || {
        bob.ask("inv.wipe pm").starts_with("-ERR unknown command")
    });
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(admin.ask(&format!("MODULE LOAD {module}")), "+OK\r\n");
    let refused = bob.ask("inv.wipe pm");
    assert_eq!(admin.ask("EXISTS pmnet-like"), ":1\r\n", "{refused}");
    assert!(refused.contains("try again"), "{refused}");
    bob.ask("MULTI");
    let refused = bob.ask("inv.len pm");
    assert!(refused.contains("try again"), "{refused}");
    assert!(bob.ask("EXEC").starts_with("-EXECABORT"));
    eventually("the front has heard of it", || {
        bob.ask("inv.len pmnet-like") == ":1\r\n"
    });
    let refused = bob.ask("inv.wipe pm");
    assert!(refused.contains("keys that it does not name"), "{refused}");
    assert_eq!(admin.ask("EXISTS pmnet-like"), ":1\r\n");
}

#[test]
fn an_invented_command_that_removes_what_it_does_not_name_is_refused() {
    let Some((redis, front, _module)) = start_any() else {
        return skip("no redis-server 7 is installed");
    };
    let mut client = front.client();
    client.ask("SET pm 1");
    let refused = client.ask("inv.wipe pm");
    assert!(refused.contains("keys that it does not name"), "{refused}");
    client.ask("MULTI");
    client.ask("SET in-multi 1");
    assert!(client.ask("inv.wipe pm").starts_with("-ERR pmnet"));
    assert!(client.ask("EXEC").starts_with("-EXECABORT"));
    client.ask("WATCH x");
    assert!(client.ask("inv.wipe pm").starts_with("-ERR pmnet"));
    assert_eq!(redis.client().ask("EXISTS pm pmnet:{0} in-multi"), ":2\r\n");
}

#[test]
fn caches_are_told_of_what_invented_commands_read() {
    let Some((_redis, front, _module)) = start() else {
        return skip("no redis-server 7 is installed");
    };
    let (mut client, mut other) = (front.client(), front.client());
    client.ask("HELLO 3");
    assert_eq!(client.ask("CLIENT TRACKING ON"), "+OK\r\n");
    let told = |key: &str| {
        format!(
            ">2\r\n$10\r\ninvalidate\r\n*1\r\n${}\r\n{key}\r\n",
            key.len()
        )
    };
    for (line, key) in [
        ("inv.len k", "k"),
        ("inv.sum 2 j k", "k"),
        ("inv.sum 2 j k", "j"),
    ] {
        client.ask(line);
        other.ask(&format!("inv.add {key} 1"));
        assert_eq!(client.text(), told(key), "{line}");
    }
    // A client gets the message about its own write after the reply.
    client.ask("GET k");
    assert_eq!(client.ask("inv.add k 1"), ":3\r\n");
    assert_eq!(client.text(), told("k"));
    // Words of the command are not taken for keys.
    client.ask("inv.sum 1 k");
    other.ask("SET 1 x");
    assert_eq!(client.ask("PING"), "+PONG\r\n");
}

/// The front learns of a module that is loaded later when a client uses it.
#[test]
fn commands_that_come_later_are_learned_when_they_are_used() {
    let directory = tempfile::tempdir().expect("a directory");
    let module = invented(directory.path());
    // Redis 6 always loads modules.
    let options: &[&str] = match is_old() {
        true => &[],
        false => &["--enable-module-command", "yes"],
    };
    let Some(redis) = Redis::start_with(options) else {
        return skip("no redis-server 7 is installed");
    };
    let front = Running::start_with(&redis, |config| config.cache = Cache::Off);
    let mut client = front.client();
    let loaded = redis.client().ask(&format!("MODULE LOAD {module}"));
    assert_eq!(loaded, "+OK\r\n");
    // Until the front has learned the command, the command is a write that is sent by itself.
    assert_eq!(client.ask("inv.len k"), ":0\r\n");
    assert_eq!(bypassed(&front)[0], (false, Form::Single, 1));
    eventually("it is a read", || {
        client.ask("inv.len k");
        bypassed(&front).contains(&(true, Form::Single, 1))
    });
}

#[test]
fn another_process_is_asked_anew() {
    let directory = tempfile::tempdir().expect("a directory");
    let module = invented(directory.path());
    let (Some(old), Some(new)) = (
        Redis::start(),
        Redis::start_with(&["--loadmodule", &module]),
    ) else {
        return skip("no redis-server 7 is installed");
    };
    let front = Running::start(&old);
    let mut client = front.client();
    assert!(client.ask("inv.len k").starts_with("-ERR unknown command"));
    front.knobs().moved = Some(new.address);
    // A command that passes through makes the front ask which store the server uses.
    client.ask("BLPOP none 0.01");
    eventually("it is a read", || {
        client.ask("inv.len k");
        bypassed(&front).contains(&(true, Form::Single, 1))
    });
}

/// The description by Redis 7.0.15 is the same as the compiled table.
#[test]
fn facts_of_the_compiled_version_are_the_compiled_ones() {
    let Some(redis) = Redis::start() else {
        return skip("no redis-server 7 is installed");
    };
    let mut plain = redis.client();
    if !plain
        .ask("INFO server")
        .contains(&format!("redis_version:{SERVER_VERSION}"))
    {
        return skip("another version of Redis");
    }
    plain.send(&command("COMMAND"));
    let learned = Learned::parse(&plain.next().expect("a reply")).expect("commands");
    let compiled = Table::new::<&str>(&[]).expect("a table");
    let table = compiled.with(&learned);
    for facts in FACTS {
        for arguments in ["", " a", " a b", " 1 a b c"] {
            let line = format!("{}{arguments}", facts.name);
            with(&line, |arguments| {
                let (old, new) = (compiled.verdict(arguments), table.verdict(arguments));
                assert_eq!(old.action, new.action, "{line}");
                assert_eq!(old.facts, new.facts, "{line}");
                assert_eq!(keys(&old, arguments), keys(&new, arguments), "{line}");
            });
        }
    }
}

/// Returns a row of COMMAND: name, arity, flags, places of keys, and in brackets ACL categories, tips,
/// specifications and subcommands.
fn row(
    name: &str,
    arity: i32,
    flags: &str,
    keys: [i32; 3],
    categories: &str,
    subs: &[String],
) -> String {
    let list = |words: &str| {
        let words: Vec<String> = words
            .split_whitespace()
            .map(|word| format!("+{word}\r\n"))
            .collect();
        format!("*{}\r\n{}", words.len(), words.concat())
    };
    let [first, last, step] = keys;
    let specs = if first == 0 {
        "*0\r\n".to_owned()
    } else {
        let last = if last < 0 { last } else { last - first };
        format!(
            "*1\r\n*6\r\n$5\r\nflags\r\n*1\r\n+RW\r\n$12\r\nbegin_search\r\n*4\r\n$4\r\ntype\r\n$5\r\nindex\r\n$4\r\nspec\r\n*2\r\n$5\r\nindex\r\n:{first}\r\n\
             $9\r\nfind_keys\r\n*4\r\n$4\r\ntype\r\n$5\r\nrange\r\n$4\r\nspec\r\n*6\r\n$7\r\nlastkey\r\n:{last}\r\n$7\r\nkeystep\r\n:{step}\r\n$5\r\nlimit\r\n:0\r\n"
        )
    };
    format!(
        "*10\r\n${}\r\n{name}\r\n:{arity}\r\n{}:{first}\r\n:{last}\r\n:{step}\r\n{}*0\r\n{specs}*{}\r\n{}",
        name.len(),
        list(flags),
        list(categories),
        subs.len(),
        subs.concat()
    )
}

fn table_of(rows: &[String]) -> Table {
    let reply = format!("*{}\r\n{}", rows.len(), rows.concat());
    let learned = Learned::parse(reply.as_bytes()).expect("commands");
    Table::new::<&str>(&[]).expect("a table").with(&learned)
}

const NONE: [i32; 3] = [0, 0, 0];

#[test]
fn what_a_store_says_decides() {
    let subs = |subs: &[(&str, &str, [i32; 3])]| -> Vec<String> {
        subs.iter()
            .map(|(name, flags, keys)| row(name, -2, flags, *keys, "", &[]))
            .collect()
    };
    let himport = subs(&[
        ("himport|prepare", "denyoom noscript", NONE),
        ("himport|set", "write denyoom", [2, 2, 1]),
    ]);
    let cluster = subs(&[
        ("cluster|slot-stats", "loading", NONE),
        ("cluster|newkind", "admin stale", NONE),
        ("cluster|info", "stale", NONE),
    ]);
    let keeps = subs(&[
        ("keeps|prepare", "noscript", NONE),
        ("keeps|put", "write", [2, 2, 1]),
        ("keeps|wipe", "write", NONE),
    ]);
    let log = subs(&[
        ("newlog|get", "admin loading", NONE),
        ("newlog|reset", "admin", NONE),
    ]);
    let table = table_of(&[
        row("httl", -5, "readonly fast", [1, 1, 1], "@hash", &[]),
        row("hgetdel", -5, "write fast", [1, 1, 1], "@hash", &[]),
        row(
            "graph.query",
            -2,
            "write denyoom noscript module",
            [1, 1, 1],
            "",
            &[],
        ),
        row("ft.search", -1, "readonly module", [1, 1, 1], "", &[]),
        row("ft.aliasadd", -1, "readonly module", [1, 2, 1], "", &[]),
        row("ft.create", -1, "write denyoom module", NONE, "", &[]),
        row("sflush", -3, "write", NONE, "", &[]),
        row("bpopnew", -3, "write blocking", [1, 1, 1], "", &[]),
        row("waitaof", 4, "blocking noscript", NONE, "@connection", &[]),
        row("newauth", -2, "fast", NONE, "@connection", &[]),
        row("wipe.wait", -2, "write blocking module", NONE, "", &[]),
        row("wipe.conn", -2, "write module", NONE, "@connection", &[]),
        row("keeps", -2, "module", NONE, "", &keeps),
        row("newsub", -2, "pubsub noscript", NONE, "", &[]),
        row("own", -2, "internal", NONE, "", &[]),
        row("counts", -2, "readonly may_replicate", [1, 1, 1], "", &[]),
        row("says.nothing", -1, "module", NONE, "", &[]),
        row("newadmin", -1, "admin noscript", NONE, "", &[]),
        row("himport", -2, "", NONE, "", &himport),
        row("cluster", -2, "", NONE, "", &cluster),
        row("newlog", -2, "", NONE, "", &log),
        row("post", -1, "readonly", NONE, "", &[]),
    ]);
    let action = |line: &str| with(line, |arguments| table.verdict(arguments).action);
    let bypass = |read_only, alone| Action::Bypass { read_only, alone };
    for (line, expected) in [
        ("HTTL h FIELDS 1 f", bypass(true, false)),
        ("hgetdel h FIELDS 1 f", bypass(false, false)),
        ("GRAPH.QUERY g q", bypass(false, true)),
        ("FT.SEARCH i q", bypass(true, false)),
        ("FT.ALIASADD a i", bypass(false, false)),
        ("FT.CREATE i ON JSON", bypass(false, false)),
        ("BPOPNEW k 0", Action::Pass(Pass::Blocking)),
        ("WAITAOF 1 0 0", Action::Pass(Pass::Wait)),
        ("NEWAUTH x", Action::Pass(Pass::State)),
        ("COUNTS k", bypass(false, true)),
        ("SAYS.NOTHING", bypass(false, true)),
        ("NEWADMIN", bypass(false, true)),
        ("HIMPORT PREPARE f", Action::Pass(Pass::State)),
        ("HIMPORT SET k", Action::Pass(Pass::State)),
        ("HIMPORT NOSUCH", bypass(false, true)),
        ("KEEPS PREPARE x", Action::Pass(Pass::State)),
        ("KEEPS PUT k", Action::Pass(Pass::State)),
        ("NEWLOG GET", bypass(false, true)),
        ("CLUSTER INFO", bypass(true, false)),
        ("CLUSTER SLOT-STATS", bypass(true, false)),
        ("CLUSTER NOSUCH", bypass(false, true)),
        // The compiled table has this command, but the store does not have it.
        ("INCR n", bypass(false, true)),
        ("SET k v", Action::Update),
        ("PING", Action::Local(pmnet_front::table::Local::Ping)),
    ] {
        assert_eq!(action(line), expected, "{line}");
    }
    for refused in [
        "SFLUSH 0 5",
        "WIPE.WAIT x",
        "WIPE.CONN x",
        "KEEPS WIPE x",
        "NEWSUB c",
        "OWN x",
        "CLUSTER NEWKIND",
        "CLUSTER RESET",
        "SHUTDOWN",
    ] {
        assert!(matches!(action(refused), Action::Refuse(_)), "{refused}");
    }
}

/// Servers before Redis 7 do not mark commands that block. A BLPOP that was taken for a plain write would never wait.
#[test]
fn servers_before_redis_7_say_less() {
    let old = |name: &str, flags: &str, keys: [i32; 3]| {
        let whole = row(name, -2, flags, keys, "", &[]);
        let fixed = keys.map(|key| format!(":{key}\r\n")).concat();
        let end = whole.find(&fixed).expect("places of keys") + fixed.len();
        format!("{}*0\r\n", whole[..end].replacen("*10", "*7", 1))
    };
    let table = table_of(&[
        old("blpop", "write noscript", [1, -2, 1]),
        old("object", "readonly random", [2, 2, 1]),
        old("inv.len", "readonly", [1, 1, 1]),
        old("inv.put", "write", [1, 1, 1]),
        old("inv.wipe", "write", NONE),
    ]);
    let action = |line: &str| with(line, |arguments| table.verdict(arguments).action);
    let bypass = |read_only, alone| Action::Bypass { read_only, alone };
    assert_eq!(action("BLPOP l 0"), Action::Pass(Pass::Blocking));
    assert_eq!(action("OBJECT ENCODING k"), bypass(true, false));
    assert_eq!(action("inv.len k"), bypass(true, false));
    assert_eq!(action("inv.put k"), bypass(false, false));
    assert!(matches!(action("inv.wipe k"), Action::Refuse(_)));
    with("OBJECT ENCODING k", |arguments| {
        assert_eq!(keys(&table.verdict(arguments), arguments), [b"k"]);
    });
}

/// Newer servers accept other numbers of arguments for some commands.
#[test]
fn the_store_says_how_many_arguments_there_may_be() {
    let getkeys = [row("command|getkeys", -3, "loading stale", NONE, "", &[])];
    let table = table_of(&[
        row("command", -1, "loading stale", NONE, "", &getkeys),
        row("zrank", -3, "readonly fast", [1, 1, 1], "", &[]),
    ]);
    let compiled = Table::new::<&str>(&[]).expect("a table");
    let fits = |table: &Table, line: &str| {
        with(line, |arguments| {
            table.verdict(arguments).arity_fits(arguments)
        })
    };
    for (line, before, now) in [
        ("COMMAND GETKEYS PING", false, true),
        ("COMMAND GETKEYS", false, false),
        ("ZRANK z m WITHSCORE", false, true),
        ("ZRANK z", false, false),
        ("COMMAND", true, true),
    ] {
        assert_eq!(
            (fits(&compiled, line), fits(&table, line)),
            (before, now),
            "{line}"
        );
    }
}

#[test]
fn keys_are_read_where_the_store_says_and_nowhere_else() {
    let table = table_of(&[
        row("one", -2, "readonly", [1, 1, 1], "", &[]),
        row("pairs", -2, "readonly", [1, -1, 2], "", &[]),
        row(
            "some",
            -2,
            "readonly movablekeys module",
            [1, 1, 1],
            "",
            &[],
        ),
        row("none", -1, "readonly", NONE, "", &[]),
        row("ft.search", -1, "readonly module", [1, 1, 1], "", &[]),
    ]);
    let found = |line: &str| {
        with(line, |arguments| {
            let facts = table.verdict(arguments).facts.expect("a known command");
            let text = |key: &[u8]| String::from_utf8_lossy(key).into_owned();
            read_keys(facts, arguments).map(|keys| keys.map(text).collect::<Vec<_>>().join(" "))
        })
    };
    assert_eq!(found("ONE a b c").as_deref(), Some("a"));
    assert_eq!(found("PAIRS a 1 b 2 c").as_deref(), Some("a b c"));
    assert_eq!(found("NONE a"), None);
    // The index is not a key, and the command does not name documents.
    assert_eq!(found("FT.SEARCH i q"), None);
    assert_eq!(found("ONE"), None);
}

/// The specifications of a module's commands give the same keys that Redis itself finds.
#[test]
fn specifications_mean_what_redis_means() {
    let Some((redis, _front, _module)) = start() else {
        return skip("no redis-server 7 is installed");
    };
    let mut plain = redis.client();
    plain.send(&command("COMMAND"));
    let learned = Learned::parse(&plain.next().expect("a reply")).expect("commands");
    let table = Table::new::<&str>(&[]).expect("a table").with(&learned);
    for line in [
        "inv.len a",
        "inv.sum 1 a",
        "inv.sum 3 a b c",
        "inv.store 2 a b INTO c",
        "inv.store 1 a into c",
        "inv.store 2 a b c d INTO e",
    ] {
        plain.send(&command(&format!("COMMAND GETKEYS {line}")));
        let reply = plain.next().expect("a reply");
        let theirs: Vec<Vec<u8>> = read::elements(&reply)
            .unwrap_or_else(|| panic!("{line}: {}", String::from_utf8_lossy(&reply)))
            .into_iter()
            .filter_map(|key| read::bulk(key).map(<[u8]>::to_vec))
            .collect();
        with(line, |arguments| {
            assert_eq!(keys(&table.verdict(arguments), arguments), theirs, "{line}");
        });
    }
    for line in [
        "inv.sum 9 a b",
        "inv.sum x a",
        "inv.sum -1 a",
        "inv.store 9 a INTO b",
    ] {
        with(line, |arguments| {
            assert!(
                keys(&table.verdict(arguments), arguments).is_empty(),
                "{line}"
            );
        });
    }
}

#[test]
fn what_is_no_list_of_commands_is_refused() {
    for bad in [
        "",
        "+OK\r\n",
        "*-1\r\n",
        "*1\r\n*-1\r\n",
        "*1\r\n*2\r\n$1\r\nx\r\n:1\r\n",
        "*1\r\n*6\r\n$1\r\nx\r\n:1\r\n*1\r\n:9\r\n:1\r\n:1\r\n",
        "*1\r\n*6\r\n$1\r\nx\r\n:99999999999\r\n*0\r\n:1\r\n:1\r\n:1\r\n",
        "*1\r\n*6\r\n$3\r\na\x07b\r\n:1\r\n*0\r\n:1\r\n:1\r\n:1\r\n",
        "*1\r\n*6\r\n$0\r\n\r\n:1\r\n*0\r\n:1\r\n:1\r\n:1\r\n",
    ] {
        assert_eq!(
            Learned::parse(bad.as_bytes()).err(),
            Some(LearnError::Form),
            "{bad:?}"
        );
    }
    let many = row("x", 1, "", NONE, "", &[]).repeat(8193);
    let many = format!("*8193\r\n{many}");
    assert_eq!(
        Learned::parse(many.as_bytes()).err(),
        Some(LearnError::Many)
    );
    // A name that is too long to be looked up is left out.
    let long = row(&"x".repeat(65), 1, "", NONE, "", &[]);
    assert!(Learned::parse(format!("*1\r\n{long}").as_bytes()).is_ok());
}

/// With many shards, a command goes to the shard of its keys. A command without keys is sent to no shard.
#[test]
fn invented_commands_go_to_the_shard_of_their_keys() {
    if is_old() {
        return skip("no redis-server 7 is installed");
    }
    let directory = tempfile::tempdir().expect("a directory");
    let module = invented(directory.path());
    let options = ["--loadmodule", &module];
    let Some(shards) = sharded::start_with(&["0-8191", "8192-16383"], &options, |_| {}, |_| {})
    else {
        return skip("no redis-server 7 is installed");
    };
    let mut client = shards.client();
    // The keys "a" and "b" belong to different shards.
    assert_eq!(client.ask("inv.add a 5"), ":5\r\n");
    assert_eq!(client.ask("inv.add b 77"), ":77\r\n");
    assert_eq!(client.ask("inv.len b"), ":2\r\n");
    let stored = |shard: usize, key: &str| shards.stores[shard].client().ask(&format!("GET {key}"));
    assert_eq!(
        [stored(1, "a"), stored(0, "b")],
        ["$1\r\n5\r\n", "$2\r\n77\r\n"]
    );
    assert_eq!(client.ask("inv.sum 2 a {a}2"), ":1\r\n");
    assert!(client.ask("inv.sum 2 a b").starts_with("-CROSSSLOT"));
    assert!(client.ask("inv.store 1 a INTO b").starts_with("-CROSSSLOT"));
    assert_eq!(client.ask("inv.sum 9 a"), "-ERR wrong number of keys\r\n");
    for line in ["inv.wipe x", "inv.prepare x"] {
        assert!(
            client
                .ask(line)
                .contains("not known for which of the shards"),
            "{line}"
        );
    }
    client.ask("MULTI");
    client.ask("inv.add a 1");
    assert_eq!(client.ask("EXEC"), "*1\r\n:6\r\n");
    assert!(client.ask("NOSUCH a").starts_with("-ERR unknown command"));
}
