//! The exact bytes that a connection sends to the client, to the network, and to the store.
//!
//! The inputs are every file of `fuzz/corpus/redis_front`, and the commands of the other tests of this program
//! (`scripts.txt`). Each input runs in several worlds. The file `transcripts.txt` has the length and a hash of the
//! bytes in each direction. A change of one byte fails the test.
//!
//! - `UPDATE=1 cargo test -p pmnet-front --test front pinned::` accepts the present bytes.
//! - `PINNED=DIR cargo test …` also writes all transcripts to `DIR`, so that two versions can be compared with `diff -r`.

#[path = "../../../../../fuzz/src/front.rs"]
#[allow(dead_code, reason = "the fuzz target uses all of it")]
mod corpus;
#[path = "../../../../../fuzz/src/input.rs"]
#[allow(dead_code, reason = "the fuzz targets use all of it")]
mod input;
mod scripts;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// One input, and the bytes that a connection sent for it.
struct Case {
    name: String,
    /// Bytes to the client, to the network, and to the store.
    sent: [Vec<u8>; 3],
}

const DIRECTIONS: [&str; 3] = ["client", "upstream", "store"];

/// Number of hexadecimal digits that are kept of the name of a corpus file. So many digits are enough to tell the files
/// apart.
const NAME_DIGITS: usize = 12;

/// Computes the FNV-1a hash.
fn hash(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    })
}

fn line(case: &Case) -> String {
    let mut line = case.name.clone();
    for bytes in &case.sent {
        let _ = write!(line, " {}:{:08x}", bytes.len(), hash(bytes));
    }
    line
}

fn corpus_cases() -> Vec<Case> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/redis_front");
    let entries = std::fs::read_dir(directory).expect("the corpus");
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.expect("an entry").path())
        .collect();
    files.sort();
    let case = |file: PathBuf| {
        let name = file.file_name().and_then(|name| name.to_str());
        let sent = corpus::transcript(&std::fs::read(&file).expect("a readable file"));
        Case {
            name: name.expect("a name")[..NAME_DIGITS].to_owned(),
            sent: [sent.client, sent.upstream, sent.store],
        }
    };
    files.into_iter().map(case).collect()
}

#[test]
fn every_byte_is_as_before() {
    let mut cases = corpus_cases();
    assert!(cases.len() >= 100, "the corpus is there");
    cases.extend(scripts::cases());
    if let Some(directory) = std::env::var_os("PINNED") {
        for case in &cases {
            for (direction, bytes) in DIRECTIONS.iter().zip(&case.sent) {
                let name = format!("{}.{direction}", case.name.replace(['/', ':'], "-"));
                std::fs::create_dir_all(&directory).expect("the directory");
                std::fs::write(Path::new(&directory).join(name), bytes).expect("written");
            }
        }
    }
    let lines: Vec<String> = cases.iter().map(line).collect();
    let pinned = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/front/pinned/transcripts.txt");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&pinned, lines.join("\n") + "\n").expect("written");
    }
    let before = std::fs::read_to_string(&pinned).expect("transcripts.txt");
    let before: Vec<&str> = before.lines().collect();
    let changed = |at: &usize| before.get(*at) != Some(&lines[*at].as_str());
    let changed: Vec<&str> = (0..lines.len())
        .filter(changed)
        .map(|at| cases[at].name.as_str())
        .collect();
    assert!(
        changed.is_empty() && before.len() == lines.len(),
        "{} of {} transcripts differ from {}: {changed:.200?}. With PINNED=DIR all are written to DIR; compare them with those of \
         the version before",
        changed.len(),
        lines.len(),
        pinned.display()
    );
}
