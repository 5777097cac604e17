//! Runs every input that fuzzing kept, and every crash that it found, through its target.

use std::path::{Path, PathBuf};

use pmnet_fuzz::{TARGETS, target};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the files of a directory in the order of their names; none if the directory does not
/// exist.
fn files(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(directory) else {
        return Vec::new();
    };
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.expect("a readable directory").path())
        .filter(|path| path.is_file())
        .collect();
    files.sort();
    files
}

/// Runs one file. If it crashes, the test's output has its name.
fn replay(run: fn(&[u8]), file: &Path) {
    let data = std::fs::read(file).expect("a readable file");
    let shown = file.strip_prefix(root()).unwrap_or(file);
    let result = std::panic::catch_unwind(|| run(&data));
    assert!(
        result.is_ok(),
        "{} crashes its target; the panic is above",
        shown.display()
    );
}

#[test]
fn every_corpus_is_there_and_runs() {
    for (name, run) in TARGETS {
        let corpus = files(&root().join("corpus").join(name));
        assert!(!corpus.is_empty(), "the corpus of {name} is empty");
        assert!(corpus.len() <= 300, "minimise the corpus of {name}");
        for file in corpus {
            replay(*run, &file);
        }
    }
}

#[test]
fn every_crash_ever_found_stays_repaired() {
    let mut seen = 0;
    let directories = std::fs::read_dir(root().join("regressions")).expect("regressions");
    for directory in directories {
        let directory = directory.expect("a readable directory").path();
        let name = directory.file_name().and_then(|name| name.to_str());
        let run = name.and_then(target).expect("named like a target");
        for file in files(&directory) {
            replay(run, &file);
            seen += 1;
        }
    }
    assert!(seen > 0, "there are regressions");
}

#[test]
fn targets_take_any_bytes() {
    let long = vec![0xff; 70_000];
    let count: Vec<u8> = (0..=255).collect();
    for (_, run) in TARGETS {
        for data in [&[][..], &[0], &count, &long] {
            run(data);
        }
    }
}
