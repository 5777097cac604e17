//! Checks messages. Each message that a page quotes is in the source. Each message with an id has one entry in the
//! guide, and each entry has a message.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use crate::root;

/// The page that has an entry for each id.
const GUIDE: &str = "docs/operate/messages.md";

/// Pages with tables whose first column quotes messages.
const PAGES: &[&str] = &[GUIDE, "docs/operate/redis-failover.md"];

/// Parts of messages of the operating system and of the TLS library.
const FOREIGN: &[&str] = &["Connection refused", "invalid peer certificate:"];

/// Warnings that only pass on another message, which has an id itself.
const PASSED_ON: &[&str] = &[
    "{text}",
    "{notice}",
    "{warning}",
    "{error:#}",
    "waiting: {text}",
    "still waiting, as the server said last: {text}",
    "{error}. It is waited for {} s",
];

/// Crates that are not part of the product, so their messages need no ids.
const WITHOUT_IDS: &[&str] = &["lab", "sim", "history", "model", "packets"];

/// The text with which an id begins.
const MARK: &str = "PM";

/// Minimum length of a part of a message that is compared. Shorter parts occur in many texts.
const PART_BYTES_MIN: usize = 6;

/// Maximum length of a message in the source, in bytes.
const MESSAGE_BYTES_MAX: usize = 900;

/// Returns the product's source files. A text that continues in the next line is joined, as in the printed message.
fn files() -> BTreeMap<PathBuf, String> {
    let mut all = BTreeMap::new();
    let mut folders = vec![root().join("crates")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let is_source = ["rs", "lua"]
                .iter()
                .any(|ending| path.extension().is_some_and(|found| found == *ending));
            if path.is_dir() {
                let name = path.file_name().unwrap();
                if name != "tests" && name != "target" {
                    folders.push(path);
                }
            } else if is_source {
                let text = as_printed(&std::fs::read_to_string(&path).unwrap());
                all.insert(path, text);
            }
        }
    }
    all
}

/// Returns the text of a Rust string: `\` at the end of a line joins the line with the next line, and `\"` is a quote.
fn as_printed(text: &str) -> String {
    let mut parts = text.split("\\\n");
    let mut printed = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        printed.push_str(part.trim_start());
    }
    printed.replace("\\\"", "\"")
}

/// Returns the source of the product itself, without its unit tests.
fn product() -> BTreeMap<PathBuf, String> {
    let crates = root().join("crates");
    let mut found = files();
    found.retain(|path, text| {
        if let Some(tests) = text.find("#[cfg(test)]\nmod tests {") {
            text.truncate(tests);
        }
        !WITHOUT_IDS
            .iter()
            .any(|name| path.starts_with(crates.join(name)))
    });
    found
}

/// Returns the ids in a text, each with the text after it.
fn ids(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.match_indices(MARK).filter_map(|(at, _)| {
        let digits = text.get(at + MARK.len()..at + MARK.len() + 4)?;
        let rest = text[at + MARK.len() + 4..].strip_prefix(' ')?;
        let is_id = digits.bytes().all(|byte| byte.is_ascii_digit());
        is_id.then_some((&text[at..at + MARK.len() + 4], rest))
    })
}

/// Returns the code in the first column of all tables of a page.
fn quoted(page: &str) -> Vec<String> {
    let (mut column, mut is_body, mut found) = (0, false, Vec::new());
    for event in Parser::new_ext(page, Options::ENABLE_TABLES) {
        match event {
            Event::Start(Tag::TableRow) => (column, is_body) = (0, true),
            Event::End(TagEnd::TableRow) => is_body = false,
            Event::End(TagEnd::TableCell) => column += 1,
            Event::Code(text) if is_body && column == 0 => found.push(text.into_string()),
            _ => {}
        }
    }
    found
}

/// Returns the fixed parts of a message, which stand between its placeholders.
fn parts(message: &str) -> impl Iterator<Item = &str> {
    let parts = message.split('…').map(str::trim);
    parts.filter(|part| part.len() >= PART_BYTES_MIN)
}

/// Returns the differences between the messages in a source and the entries of a page.
fn differences(source: &BTreeMap<PathBuf, String>, page: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut texts: BTreeMap<&str, &str> = BTreeMap::new();
    for (path, text) in source {
        for (id, rest) in ids(text) {
            if texts.insert(id, rest).is_some() {
                wrong.push(format!(
                    "{id} stands twice in the source: {}",
                    path.display()
                ));
            }
        }
    }
    let quoted = quoted(page);
    let mut entries: BTreeSet<&str> = BTreeSet::new();
    for (id, entry) in quoted.iter().flat_map(|message| ids(message)) {
        if !entries.insert(id) {
            wrong.push(format!("{id} has two entries"));
        }
        let Some(text) = texts.get(id) else {
            wrong.push(format!("{id} is in no program"));
            continue;
        };
        let end = (0..=text.len().min(MESSAGE_BYTES_MAX))
            .rev()
            .find(|at| text.is_char_boundary(*at));
        let mut left = &text[..end.unwrap_or_default()];
        for part in parts(entry) {
            let Some((_, after)) = left.split_once(part) else {
                wrong.push(format!("{id} does not say: {part}"));
                break;
            };
            left = after;
        }
    }
    let missing = texts.keys().filter(|id| !entries.contains(*id));
    wrong.extend(missing.map(|id| format!("{id} has no entry")));
    wrong
}

#[test]
fn every_id_has_one_message_and_one_entry() {
    let page = std::fs::read_to_string(root().join(GUIDE)).unwrap();
    let source = product();
    let count = source.values().flat_map(|text| ids(text)).count();
    assert!(count > 250, "{count}");
    let wrong = differences(&source, &page);
    assert!(wrong.is_empty(), "{GUIDE}:\n{}", wrong.join("\n"));
}

/// Returns the texts of all warnings and errors that a source file logs.
fn warnings(text: &str) -> impl Iterator<Item = &str> {
    let marks = ["tracing::warn!(", "tracing::error!("];
    let all = marks.into_iter().flat_map(|mark| text.split(mark).skip(1));
    all.filter_map(|rest| {
        // The message is the first string without a `=` before it. A string after `=` is the value of a field.
        let mut rest = rest.get(..rest.find(");").unwrap_or(rest.len()))?;
        loop {
            let (before, after) = rest.split_once('"')?;
            let (sentence, then) = after.split_once('"')?;
            if !before.trim_end().ends_with('=') {
                return Some(sentence);
            }
            rest = then;
        }
    })
}

#[test]
fn every_warning_has_an_id() {
    let (mut wrong, mut count) = (Vec::new(), 0);
    for (path, text) in product() {
        for sentence in warnings(&text) {
            count += 1;
            let has_id = ids(sentence).next().is_some();
            if !has_id && !PASSED_ON.contains(&sentence) {
                wrong.push(format!("{}: {sentence}", path.display()));
            }
        }
    }
    assert!(count > 70, "{count}");
    assert!(wrong.is_empty(), "no id:\n{}", wrong.join("\n"));
}

#[test]
fn every_entry_of_a_message_with_an_id_has_it() {
    let with_ids: String = product().into_values().collect();
    let page = std::fs::read_to_string(root().join(GUIDE)).unwrap();
    let is_of_client = page.split_once("## Errors that clients see").unwrap().1;
    let of_client: BTreeSet<String> = quoted(is_of_client.split("\n## ").next().unwrap())
        .into_iter()
        .collect();
    let without = quoted(&page).into_iter().filter(|message| {
        let has_id = message.starts_with(MARK) || of_client.contains(message);
        !has_id && parts(message).all(|part| with_ids.contains(part))
    });
    // Messages of Redis, messages that end with the id of another message, and the reasons in the line PM3210.
    let allowed = [
        "the front itself cannot log in: …",
        "the front may not list its users: …",
        "it is not the store that the pmnet server uses",
        "OOM command not allowed …",
        "NOPERM …",
        "NOPERM",
        "NOAUTH",
        "WRONGPASS",
        "cannot use the log …",
    ];
    let wrong: Vec<String> = without
        .filter(|message| !allowed.contains(&&**message))
        .collect();
    assert!(wrong.is_empty(), "an entry without the id: {wrong:?}");
}

#[test]
fn every_message_is_in_the_source() {
    let source: String = files().into_values().collect();
    let (mut wrong, mut count) = (Vec::new(), 0);
    for page in PAGES {
        let text = std::fs::read_to_string(root().join(Path::new(page))).unwrap();
        for message in quoted(&text) {
            for part in parts(&message).filter(|part| !FOREIGN.contains(part)) {
                count += 1;
                if !source.contains(part) {
                    wrong.push(format!("{page}: {part}"));
                }
            }
        }
    }
    assert!(count > 400, "{count}");
    assert!(
        wrong.is_empty(),
        "no program writes this:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn a_message_is_taken_apart_at_what_fills_it() {
    let page = "| message | why |\n|---|---|\n| `no answer by way of …: wait` and `b` | `c` |\n";
    assert_eq!(quoted(page), ["no answer by way of …: wait", "b"]);
    assert_eq!(
        parts("no answer by way of …: wait").collect::<Vec<_>>(),
        ["no answer by way of", ": wait"]
    );
    assert_eq!(as_printed("a \\\n    b \\\"c\\\""), "a b \"c\"");
    let text = "PM1203 a; xPM12 b \"PM1204 c\" PM1205, d";
    assert_eq!(
        ids(text).map(|(id, _)| id).collect::<Vec<_>>(),
        ["PM1203", "PM1204"]
    );
    let code = "tracing::warn!(a = \"b\", %c, \"PM1203 d {}\", e);\ntracing::error!(\"f\");\ntracing::info!(\"g\");";
    assert_eq!(warnings(code).collect::<Vec<_>>(), ["PM1203 d {}", "f"]);
}

#[test]
fn what_has_no_entry_or_no_message_is_noticed() {
    let source = |text: &str| BTreeMap::from([(PathBuf::from("a.rs"), text.to_owned())]);
    let page = |entries: &str| {
        let rows: Vec<String> = entries
            .split('/')
            .map(|entry| format!("| `{entry}` | b |\n"))
            .collect();
        format!("| a | b |\n|---|---|\n{}", rows.concat())
    };
    let two = "\"PM1001 the log {} is lost\" \"PM1002 the disk is full\"";
    let both = "PM1001 the log … is lost/PM1002 the disk …";
    assert_eq!(differences(&source(two), &page(both)), [""; 0]);
    for (text, entries, found) in [
        (two, "PM1001 the log … is lost", "PM1002 has no entry"),
        (
            "\"PM1001 the log {} is lost\"",
            both,
            "PM1002 is in no program",
        ),
        (
            two,
            "PM1001 the log … is kept/PM1002 the disk …",
            "PM1001 does not say: is kept",
        ),
        (
            two,
            "PM1001 the log …/PM1001 the log …/PM1002 the disk …",
            "PM1001 has two entries",
        ),
        (
            "\"PM1001 the log\" \"PM1001 the log\"",
            "PM1001 the log",
            "PM1001 stands twice in the source: a.rs",
        ),
    ] {
        assert_eq!(
            differences(&source(text), &page(entries)),
            [found],
            "{entries}"
        );
    }
}
