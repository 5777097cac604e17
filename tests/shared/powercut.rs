//! The part that both ends of `make powercut` (`tests/powercut`) share: the child process, which the test runs on this
//! machine and in the guest, and the check of its output. Tests include this source file by its path.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Environment variable with the child's task: `record:ROUNDS:PATH` or `check:LIST`.
const CHILD: &str = "PMNET_POWERCUT";

/// Runs the child's task. The task `record` calls `record` with a number of rounds and a path. The task `check` calls
/// `wrong` for each path of a list, with the number of promised rounds and the maximum number of recorded rounds.
#[allow(clippy::disallowed_methods)] // A test program has no arguments of its own.
pub fn child(record: impl Fn(u64, &Path), wrong: impl Fn(&Path, u64, u64) -> Result<(), String>) {
    let what = std::env::var(CHILD);
    match what.as_deref().ok().and_then(|what| what.split_once(':')) {
        Some(("record", rest)) => {
            let (rounds, path) = rest.split_once(':').unwrap();
            record(rounds.parse().unwrap(), Path::new(path));
        }
        Some(("check", list)) => check(Path::new(list), wrong),
        _ => {}
    }
}

/// Checks the files in a list. Each line of the list has the form `PROMISED MOST PATH`.
fn check(list: &Path, wrong: impl Fn(&Path, u64, u64) -> Result<(), String>) {
    let text = std::fs::read_to_string(list).unwrap();
    for line in text.lines() {
        let mut parts = line.splitn(3, ' ');
        let mut number = || parts.next().unwrap().parse().unwrap();
        let (promised, most) = (number(), number());
        let path = Path::new(parts.next().unwrap());
        match wrong(path, promised, most) {
            Ok(()) => println!("whole {}", path.display()),
            Err(why) => println!("WRONG {}: {why}", path.display()),
        }
    }
}

fn start(what: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture"])
        .env(CHILD, what)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Starts a child that records, and answers all its marks. Returns the marks.
pub fn marks(rounds: u64, path: &Path) -> Vec<(u64, u64)> {
    let mut child = start(&format!("record:{rounds}:{}", path.display()));
    let mut stdin = child.stdin.take().unwrap();
    let mut marks = Vec::new();
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        if let Some((_, numbers)) = line.split_once("mark ") {
            let (one, other) = numbers.split_once(' ').unwrap();
            marks.push((one.parse().unwrap(), other.parse().unwrap()));
            writeln!(stdin).unwrap();
        }
    }
    assert!(child.wait().unwrap().success());
    marks
}

/// Returns the child's verdict on each line of a list. The list is stored in `folder` meanwhile.
pub fn verdicts(folder: &Path, lines: &[String]) -> Vec<String> {
    let list = folder.join("list");
    std::fs::write(&list, lines.join("\n")).unwrap();
    let output = start(&format!("check:{}", list.display()))
        .wait_with_output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let verdicts = said
        .lines()
        .filter(|line| line.contains("WRONG") || line.contains("whole"));
    let verdicts: Vec<String> = verdicts.map(str::to_owned).collect();
    assert_eq!(verdicts.len(), lines.len(), "{said}");
    verdicts
}
