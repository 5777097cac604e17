//! A store's reply to `COMMAND`, and the table that the front makes from it.
//!
//! Invariants: nothing panics; the keys of a command are some of its arguments; commands that are
//! read directly only read; and no store changes which commands are acknowledged early.

use pmnet_front::limits::REQUESTS;
use pmnet_front::table::{Action, Learned, READONLY, Table, early_ack, key_hash, keys, read_keys};
use pmnet_resp::{Arguments, Parser, Status, read, write_command};

/// Maximum number of commands of a list that are tried.
const TRIED: usize = 64;
/// Arguments after a command's name.
const WORDS: [&[u8]; 9] = [
    b"2", b"a", b"b", b"INTO", b"1", b"STREAMS", b"c", b"0", b"-1",
];

/// Runs one input.
pub fn run(data: &[u8]) {
    let Ok(learned) = Learned::parse(data) else {
        return;
    };
    let table = Table::new::<&str>(&[])
        .expect("nothing assumed")
        .with(&learned);
    let rows = read::elements(data).unwrap_or_default();
    for row in rows.into_iter().take(TRIED) {
        let columns = read::elements(row).unwrap_or_default();
        try_command(&table, &[], columns.first());
        for sub in columns
            .get(9)
            .and_then(|subs| read::elements(subs))
            .unwrap_or_default()
        {
            let name = read::elements(sub).unwrap_or_default();
            try_command(&table, b"|", name.first());
        }
    }
    for name in ["SET", "MSET", "PING", "CLIENT", "CLUSTER"] {
        try_words(&table, &[name.as_bytes()]);
    }
}

/// Tries a command or subcommand, whose words stand before `split`.
fn try_command(table: &Table, split: &[u8], name: Option<&&[u8]>) {
    let Some(name) = name.and_then(|name| read::text(name)) else {
        return;
    };
    let parts: Vec<&[u8]> = match split {
        [at] => name.splitn(2, |byte| byte == at).collect(),
        _ => vec![name],
    };
    try_words(table, &parts);
}

fn try_words(table: &Table, head: &[&[u8]]) {
    for count in 0..=WORDS.len() {
        let words = [head, &WORDS[..count]].concat();
        let mut frame = Vec::new();
        write_command(&mut frame, &words);
        let mut parser = Parser::new(REQUESTS);
        if parser.poll(&frame) == Ok(Status::Complete) {
            look(table, &parser.arguments(&frame));
        }
    }
}

fn look(table: &Table, arguments: &Arguments<'_>) {
    let verdict = table.verdict(arguments);
    let found = keys(&verdict, arguments);
    assert!(
        found.len() <= 2 * arguments.len() * arguments.len(),
        "bounded"
    );
    for key in &found {
        assert!(arguments.iter().any(|argument| argument == *key));
    }
    if let Some(facts) = verdict.facts {
        let _ = key_hash(facts, arguments);
        if let Some(read) = read_keys(facts, arguments) {
            assert!(facts.has(READONLY));
            for key in read {
                assert!(arguments.iter().any(|argument| argument == key));
            }
        }
    }
    if early_ack(arguments) {
        assert_eq!(verdict.action, Action::Update);
    }
}
