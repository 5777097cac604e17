//! Checks that each known gap has an id of its own, and that each gap that the source names is on
//! the page.

use std::collections::BTreeSet;
use std::path::Path;

use crate::{pages, root};

/// The text with which the source begins the name of a gap.
const MARK: &str = "known gap G";

/// Returns the number at the beginning of a text; `None` if there is none.
fn number(text: &str) -> Option<u32> {
    let end = text.find(|char: char| !char.is_ascii_digit());
    text[..end.unwrap_or(text.len())].parse().ok()
}

fn named(folder: &Path, found: &mut Vec<(String, u32)>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let is_source = ["rs", "c", "h", "lua", "py"]
            .iter()
            .any(|ending| path.extension().is_some_and(|found| found == *ending));
        if path.is_dir() {
            if path.file_name().is_some_and(|name| name != "target") {
                named(&path, found);
            }
        } else if is_source {
            let text = std::fs::read_to_string(&path).unwrap();
            let numbers = text.split(MARK).skip(1).filter_map(number);
            found.extend(numbers.map(|number| (path.display().to_string(), number)));
        }
    }
}

#[test]
fn gaps_are_numbered_and_the_source_names_those_that_exist() {
    let page = &pages()[Path::new("docs/known-gaps.md")];
    let listed: Vec<u32> = page
        .lines()
        .filter_map(|line| number(line.strip_prefix("| G")?))
        .collect();
    let once: BTreeSet<u32> = listed.iter().copied().collect();
    assert_eq!(once.len(), listed.len(), "an id is there twice: {listed:?}");
    assert!(listed.len() > 50, "{listed:?}");
    let mut in_source = Vec::new();
    for folder in ["crates", "bpf", "tests"] {
        named(&root().join(folder), &mut in_source);
    }
    assert!(in_source.len() > 5, "{in_source:?}");
    in_source.retain(|(_, number)| !once.contains(number));
    assert!(in_source.is_empty(), "no such gap: {in_source:?}");
}
