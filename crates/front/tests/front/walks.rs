//! ARCHITECTURE.md follows commands through the front. The test checks that each file which the page names exists and
//! has the functions that the page gives for it. The modules that the page names must exist, too.

use std::path::{Path, PathBuf};

fn architecture() -> (PathBuf, String) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = std::fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    (root, page)
}

/// Returns the rows of the section, each with a file and the functions in that file.
fn rows(page: &str) -> Vec<(&str, Vec<&str>)> {
    let section = page.split_once("## A command's path through the front\n");
    let (section, _) = section
        .and_then(|(_, rest)| rest.split_once("\n## "))
        .expect("the section");
    let is_row = |line: &&str| {
        line.split(' ')
            .next()
            .is_some_and(|file| file.ends_with(".rs"))
    };
    section
        .lines()
        .filter(is_row)
        .map(|line| {
            let (file, rest) = line.split_once(' ').expect("functions of the file");
            let mut names = Vec::new();
            for word in rest.trim_start().split(' ') {
                let name = word.trim_end_matches(',');
                names.push(name);
                if name == word {
                    break;
                }
            }
            (file, names)
        })
        .collect()
}

#[test]
fn the_files_and_functions_on_a_commands_path_are_there() {
    let (root, page) = architecture();
    let rows = rows(&page);
    assert!(rows.len() > 30, "{}", rows.len());
    let mut wrong = Vec::new();
    for (file, names) in rows {
        let Ok(source) = std::fs::read_to_string(root.join("crates/front/src").join(file)) else {
            wrong.push(format!("{file} is not there"));
            continue;
        };
        for name in names {
            let is_there = ["fn ", "struct ", "enum "].iter().any(|kind| {
                source
                    .match_indices(&format!("{kind}{name}"))
                    .any(|(at, found)| {
                        let next = source[at + found.len()..].chars().next();
                        !next.is_some_and(|next| next.is_alphanumeric() || next == '_')
                    })
            });
            if !is_there {
                wrong.push(format!("{file} has no {name}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Returns the file of a name such as `front::table::decide`, and the parts of the name that are not files.
fn module(root: &Path, name: &str) -> Option<(String, Vec<String>)> {
    let mut parts = name.split("::");
    let crate_name = parts.next()?.replace('_', "-");
    let source = root.join("crates").join(crate_name).join("src");
    let mut folder = source.clone();
    let mut file = source.join("lib.rs");
    let mut rest = Vec::new();
    for part in parts {
        let places = [
            folder.join(part).with_extension("rs"),
            folder.join(part).join("mod.rs"),
        ];
        match places.into_iter().find(|place| place.is_file()) {
            Some(place) if rest.is_empty() => file = place,
            _ => rest.push(part.to_owned()),
        }
        folder.push(part);
    }
    Some((std::fs::read_to_string(file).ok()?, rest))
}

#[test]
fn the_modules_that_the_page_names_are_there() {
    let (root, page) = architecture();
    let is_name = |name: &&str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
        let first = name
            .split_once("::")
            .map(|(first, _)| first.replace('_', "-"));
        first.is_some_and(|first| root.join("crates").join(first).join("src").is_dir())
            && name.chars().all(plain)
    };
    // Every second piece of the text is between backticks.
    let names = page.split('`').skip(1).step_by(2).filter(is_name);
    let mut count = 0;
    let mut wrong = Vec::new();
    for name in names {
        count += 1;
        let is_there = match module(&root, name) {
            Some((source, rest)) => rest.iter().all(|part| source.contains(part.as_str())),
            None => false,
        };
        if !is_there {
            wrong.push(name);
        }
    }
    assert!(count > 50, "{count}");
    assert!(wrong.is_empty(), "{wrong:#?}");
}
