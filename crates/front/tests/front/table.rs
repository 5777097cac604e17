//! Compares the matrix with a live server, and checks its rules and the guide that is generated from it.

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::common::{Redis, command, skip::skip};
use pmnet_front::limits::REQUESTS;
use pmnet_front::table::{
    ADMIN, ASSUMABLE, Action, AssumeError, BLOCKING, DENYOOM, FACTS, MOVABLEKEYS, NO_MULTI,
    NOSCRIPT, PUBSUB, Pass, READONLY, SERVER_VERSION, Table, WRITE, guide_markdown,
};
use pmnet_resp::{Arguments, Parser, Status};

const FLAGS: &[(&str, &str, u32)] = &[
    ("readonly", "READONLY", READONLY),
    ("write", "WRITE", WRITE),
    ("denyoom", "DENYOOM", DENYOOM),
    ("blocking", "BLOCKING", BLOCKING),
    ("pubsub", "PUBSUB", PUBSUB),
    ("noscript", "NOSCRIPT", NOSCRIPT),
    ("admin", "ADMIN", ADMIN),
    ("no_multi", "NO_MULTI", NO_MULTI),
    ("movablekeys", "MOVABLEKEYS", MOVABLEKEYS),
];

fn action(table: &Table, line: &str) -> Action {
    let input = format!("{line}\n").into_bytes();
    let mut parser = Parser::new(REQUESTS);
    assert_eq!(parser.poll(&input), Ok(Status::Complete));
    let arguments: Arguments<'_> = parser.arguments(&input);
    table.verdict(&arguments).action
}

fn plain() -> Table {
    Table::new::<&str>(&[]).expect("nothing assumed")
}

const WRITE_BYPASS: Action = Action::Bypass {
    read_only: false,
    alone: false,
};
const READ_BYPASS: Action = Action::Bypass {
    read_only: true,
    alone: false,
};

/// Compares `file` with `content`, which was generated from `source`. Writes the file instead if the environment
/// variable `update` is set.
fn generated(file: &str, content: &str, source: &str, update: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(file);
    if std::env::var_os(update).is_some() {
        std::fs::write(&path, content).expect("write the generated file");
    }
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        there == content,
        "{file} is not what {source} says; run this test with {update}=1"
    );
}

/// A parsed reply to COMMAND, which consists of nested arrays of texts.
#[derive(Debug)]
enum Value {
    Text(String),
    Array(Vec<Value>),
}

impl Value {
    fn read(bytes: &[u8]) -> (Value, &[u8]) {
        let end = bytes.iter().position(|b| *b == b'\n').expect("line") + 1;
        let text = std::str::from_utf8(&bytes[1..end - 2]).expect("text");
        let mut rest = &bytes[end..];
        match bytes[0] {
            b'*' => {
                let mut values = Vec::new();
                for _ in 0..text.parse::<usize>().expect("count") {
                    let (value, after) = Value::read(rest);
                    values.push(value);
                    rest = after;
                }
                (Value::Array(values), rest)
            }
            b'$' => {
                let len = text.parse::<usize>().expect("length");
                (
                    Value::Text(String::from_utf8_lossy(&rest[..len]).into_owned()),
                    &rest[len + 2..],
                )
            }
            _ => (Value::Text(text.to_owned()), rest),
        }
    }

    fn list(&self) -> &[Value] {
        if let Value::Array(values) = self {
            values
        } else {
            panic!("not an array: {self:?}")
        }
    }

    fn text(&self) -> &str {
        if let Value::Text(text) = self {
            text
        } else {
            panic!("not a text: {self:?}")
        }
    }
}

#[test]
fn facts_match_the_server() {
    let Some(redis) = Redis::start() else { return };
    let mut client = redis.client();
    let info = client.ask("INFO server");
    if !info.contains(&format!("redis_version:{SERVER_VERSION}")) {
        return skip(&format!(
            "the table is of Redis {SERVER_VERSION}, this is another version"
        ));
    }
    client.send(&command("COMMAND"));
    let reply = client.next().expect("reply");
    let (commands, _) = Value::read(&reply);
    let row = |command: &Value| {
        let command = command.list();
        let set: Vec<&str> = command[2].list().iter().map(Value::text).collect();
        let flags: Vec<&str> = FLAGS
            .iter()
            .filter(|(word, ..)| set.contains(word))
            .map(|(_, name, _)| *name)
            .collect();
        let flags = if flags.is_empty() {
            "0".to_owned()
        } else {
            flags.join(" | ")
        };
        format!(
            "    fact(\"{}\", {}, {flags}, {}, {}, {}),\n",
            command[0].text().to_ascii_uppercase(),
            command[1].text(),
            command[3].text(),
            command[4].text(),
            command[5].text(),
        )
    };
    let commands = commands.list();
    let subcommands = commands.iter().flat_map(|command| command.list()[9].list());
    for (file, rows) in [
        (
            "src/table/facts.rs",
            commands.iter().map(row).collect::<Vec<_>>(),
        ),
        ("src/table/subcommands.rs", subcommands.map(row).collect()),
    ] {
        let mut rows = rows;
        rows.sort();
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(file);
        let there = std::fs::read_to_string(path).expect("a file of facts");
        let (head, old) = there.split_at(there.find("= &[\n").expect("table") + 5);
        let name = |row: &str| row.split(',').next().map(str::to_owned);
        let names: BTreeSet<_> = rows.iter().map(|row| name(row)).collect();
        let lost: Vec<_> = old
            .lines()
            .filter(|line| line.contains("fact(") && !names.contains(&name(line)))
            .collect();
        assert!(
            lost.is_empty(),
            "{file} has rows of which Redis {SERVER_VERSION} has no command; delete them by hand: {lost:?}"
        );
        let content = format!("{head}{}];\n", rows.concat());
        generated(file, &content, "the server", "UPDATE_FACTS");
    }
}

#[test]
fn the_guide_is_the_table() {
    let page = guide_markdown();
    let lacks = |row: &str| !page.contains(&format!("\n| {row} | "));
    let missing: Vec<&str> = FACTS
        .iter()
        .map(|facts| facts.name)
        .filter(|name| lacks(name))
        .collect();
    assert!(missing.is_empty(), "no row in the matrix: {missing:?}");
    for (name, lost) in ASSUMABLE {
        assert!(page.contains(&format!("\n| {name} | {lost} |")), "{name}");
    }
    generated("../../docs/use/commands.md", &page, "the table", "UPDATE");
}

#[test]
fn only_plain_sets_are_acknowledged_early() {
    let table = plain();
    for early in [
        "SET k v",
        "set k v EX 10",
        "SET k v px 1",
        "SET k v EXAT 1999999999",
        "SET k v PXAT 1999999999000",
        "SET k v KeepTTL",
        "MSET a 1",
        "MSET a 1 b 2",
        "SETEX k 10 v",
        "PSETEX k 10 v",
    ] {
        assert_eq!(action(&table, early), Action::Update, "{early}");
    }
    for late in [
        "SET k",
        "SET k v NX",
        "SET k v XX",
        "SET k v GET",
        "SET k v EX 0",
        "SET k v EX -1",
        "SET k v EX 010",
        "SET k v EX 1.5",
        "SET k v EX 9223372036854775807",
        "SET k v EX 10 NX",
        "SET k v EX 10 KEEPTTL",
        "SET k v EX",
        "MSET a",
        "MSET a 1 b",
        "SETEX k 0 v",
        "PSETEX k x v",
        "SET pmnet:{0} v",
        "SET k pmnet:{0}",
        "MSETNX a 1",
        "SETNX a 1",
        "GETSET a 1",
        "APPEND a 1",
        "HSET h f v",
        "INCR n",
        "HMSET h f v",
    ] {
        assert_eq!(action(&table, late), WRITE_BYPASS, "{late}");
    }
}

#[test]
fn arguments_decide_where_they_must() {
    let table = plain();
    for read in [
        "GET k",
        "SORT l",
        "SORT l BY w_* DESC",
        "GEORADIUS g 1 1 1 m",
        "BITFIELD k GET u8 0",
        "XREAD STREAMS BLOCK 0",
    ] {
        assert_eq!(action(&table, read), READ_BYPASS, "{read}");
    }
    for write in [
        "SORT l STORE d",
        "GEORADIUS g 1 1 1 m storedist d",
        "BITFIELD k SET u8 0 1",
        "XREADGROUP GROUP BLOCK c STREAMS s >",
    ] {
        assert_eq!(action(&table, write), WRITE_BYPASS, "{write}");
    }
    for blocking in [
        "BLPOP l 0",
        "XREAD BLOCK 0 STREAMS s $",
        "XREADGROUP GROUP g c BLOCK 0 STREAMS s >",
        "BZMPOP 0 1 z MIN",
    ] {
        assert_eq!(
            action(&table, blocking),
            Action::Pass(Pass::Blocking),
            "{blocking}"
        );
    }
    for alone in [
        "CONFIG SET a b",
        "SCRIPT LOAD x",
        "EVAL x 0",
        "FUNCTION LOAD x",
        "MODULE.COMMAND x",
        "NOSUCHCOMMAND",
    ] {
        assert_eq!(
            action(&table, alone),
            Action::Bypass {
                read_only: false,
                alone: true
            },
            "{alone}"
        );
    }
    for refused in [
        "SHUTDOWN",
        "DEBUG SLEEP 1",
        "SWAPDB 0 1",
        "REPLICAOF a 1",
        "PSYNC a b",
        "SCRIPT DEBUG",
    ] {
        assert!(
            matches!(action(&table, refused), Action::Refuse(_)),
            "{refused}"
        );
    }
    for kill in ["SCRIPT KILL", "FUNCTION kill"] {
        assert_eq!(action(&table, kill), Action::Pass(Pass::Kill), "{kill}");
    }
}

#[test]
fn every_blocking_command_passes_and_no_writer_counts_as_a_read() {
    let table = plain();
    for facts in FACTS {
        let arguments = ["1"; 12];
        let name = facts.name;
        let action = action(&table, &format!("{name} {}", arguments.join(" ")));
        if facts.has(BLOCKING) && !name.starts_with("XREAD") {
            assert_eq!(action, Action::Pass(Pass::Blocking), "{name}");
        }
        let may_read = ["SORT", "GEORADIUS", "GEORADIUSBYMEMBER", "BITFIELD"].contains(&name);
        if facts.has(WRITE) && !may_read {
            assert!(
                !matches!(
                    action,
                    Action::Bypass {
                        read_only: true,
                        ..
                    }
                ),
                "{name}"
            );
        }
    }
}

#[test]
fn the_operator_may_assume_only_what_answers_ok() {
    let names: Vec<&str> = ASSUMABLE.iter().map(|(name, _)| *name).collect();
    let table = Table::new(&names).expect("all that can be listed");
    for early in [
        "HMSET h f v",
        "LSET l 0 v",
        "LTRIM l 0 -1",
        "RENAME a b",
        "FLUSHALL",
        "FLUSHDB ASYNC",
        "PFMERGE a b",
        "RESTORE k 0 x REPLACE",
    ] {
        assert_eq!(action(&table, early), Action::Update, "{early}");
    }
    for late in [
        "HMSET h f",
        "HMSET h f v g",
        "LSET l x v",
        "LTRIM l 0 b",
        "FLUSHALL X",
        "RESTORE k -1 x",
        "RENAME a pmnet:{0}",
    ] {
        assert_eq!(action(&table, late), WRITE_BYPASS, "{late}");
    }
    assert!(Table::new(&[" hmset", "", "SET"]).is_ok());
    assert_eq!(
        Table::new(&["INCR"]).err(),
        Some(AssumeError::NotStatus("INCR".into()))
    );
    assert_eq!(
        Table::new(&["NOPE"]).err(),
        Some(AssumeError::Unknown("NOPE".into()))
    );
    let text = Table::new(&["hset"])
        .err()
        .map(|error| error.to_string())
        .unwrap_or_default();
    assert!(text.contains("HSET") && text.contains("HMSET"), "{text}");
}
