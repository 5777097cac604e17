//! Each message that a page quotes is in the source.

use std::path::Path;

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use crate::root;

/// Pages whose tables have messages in their first column.
const PAGES: &[&str] = &["docs/operate/messages.md", "docs/operate/redis-failover.md"];

/// Texts of others: of the system, and of the TLS library.
const FOREIGN: &[&str] = &["Connection refused", "invalid peer certificate:"];

/// A part that is shorter says nothing.
const PART_BYTES_MIN: usize = 6;

/// All of the product's source, with texts that go on in the next line as they are printed.
fn source() -> String {
    let mut all = String::new();
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
                all.push_str(&as_printed(&std::fs::read_to_string(&path).unwrap()));
            }
        }
    }
    all
}

/// A text in Rust: `\` at the end of a line joins it with the next one, `\"` is a quote.
fn as_printed(text: &str) -> String {
    let mut parts = text.split("\\\n");
    let mut printed = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        printed.push_str(part.trim_start());
    }
    printed.replace("\\\"", "\"")
}

/// The code in the first column of a page's tables.
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

/// The parts of a message between what it is filled with.
fn parts(message: &str) -> impl Iterator<Item = &str> {
    let parts = message.split('…').map(str::trim);
    parts.filter(|part| part.len() >= PART_BYTES_MIN)
}

#[test]
fn every_message_is_in_the_source() {
    let source = source();
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
    assert!(count > 120, "{count}");
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
}
