//! ARCHITECTURE.md follows commands through the front: each file that it names is there, and has the functions beside it.

use std::path::Path;

/// Where a row's functions begin: after the file and its spaces.
const FILE_COLUMNS: usize = 34;

/// Rows of the section: file, and what it has.
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
            let (file, rest) = line.split_at(FILE_COLUMNS.min(line.len()));
            let mut names = Vec::new();
            for word in rest.split(' ') {
                let name = word.trim_end_matches(',');
                names.push(name);
                if name == word {
                    break;
                }
            }
            (file.trim_end(), names)
        })
        .collect()
}

#[test]
fn the_files_and_functions_on_a_commands_path_are_there() {
    let crate_root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(crate_root.join("../../ARCHITECTURE.md")).unwrap();
    let rows = rows(&page);
    assert!(rows.len() > 30, "{}", rows.len());
    let mut wrong = Vec::new();
    for (file, names) in rows {
        let Ok(source) = std::fs::read_to_string(crate_root.join("src").join(file)) else {
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
