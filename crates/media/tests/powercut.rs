//! The two ends of `make powercut`: a process that writes a log and tells what is durable, and a check of what a power
//! cut left of the log. Between them is a guest that records every write of its disk (`tests/powercut`).

#[path = "numbered/mod.rs"]
mod numbered;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use numbered::{append, frame, make, recover, try_recover};
use pmnet_media::Kind;

/// `record:ROUNDS:PATH` or `check:LIST`.
const CHILD: &str = "PMNET_POWERCUT";
/// Durable orders are reclaimed this far behind.
const KEPT: u64 = 20;

/// Makes a log and appends to it in bursts, persists overlapping appends. After each persist it says
/// `mark DURABLE APPLIED`, and goes on when it gets a line: between two marks only one persist can be under way.
fn record(rounds: u64, path: &Path) {
    make(path, Kind::File);
    let mut log = recover(path, Kind::File);
    let mut out = std::io::stdout().lock();
    let mut answers = std::io::stdin().lines();
    for round in 0..rounds {
        for _ in 0..round % 13 + 1 {
            append(&mut log);
        }
        // A persist of a superblock alone, for room.
        let alone = log.last() == log.durable();
        let wait = log.persist_start().unwrap() && alone || round % 3 == 0;
        let moved = log.persist_poll(wait || log.room().entries < 32).unwrap();
        if moved || alone {
            let durable = log.durable();
            writeln!(out, "mark {durable} {}", log.applied()).unwrap();
            out.flush().unwrap();
            answers.next().expect("whoever records answers").unwrap();
            log.reclaim(durable.saturating_sub(KEPT));
        }
    }
    writeln!(out, "end").unwrap();
}

/// What is wrong with the log at `path`, of which `durable` was promised and at most `applied` reclaimed. The log is
/// repaired, as a device would.
fn wrong(path: &Path, durable: u64, applied: u64) -> Option<String> {
    let log = match try_recover(path, Kind::File) {
        Ok(log) => log,
        Err(error) => return Some(error),
    };
    if log.last() < durable {
        return Some(format!("{durable} were durable, {} are there", log.last()));
    }
    if log.applied() > applied {
        return Some(format!(
            "{} reclaimed, at most {applied} were",
            log.applied()
        ));
    }
    for order in log.applied() + 1..=log.last() {
        let (header, payload) = frame(order);
        if log.frame(order) != Some(&[header, payload].concat()[..]) {
            return Some(format!("order {order} holds something else"));
        }
    }
    None
}

/// Checks the logs of a list, a line each: `DURABLE APPLIED_MAX PATH`.
fn check(list: &Path) {
    let text = std::fs::read_to_string(list).unwrap();
    for line in text.lines() {
        let mut parts = line.splitn(3, ' ');
        let mut number = || parts.next().unwrap().parse().unwrap();
        let (durable, applied) = (number(), number());
        let path = Path::new(parts.next().unwrap());
        match wrong(path, durable, applied) {
            None => println!("whole {}", path.display()),
            Some(why) => println!("WRONG {}: {why}", path.display()),
        }
    }
}

/// Not a test: what the lane runs, here and in the guest.
#[test]
fn child() {
    match std::env::var(CHILD)
        .ok()
        .as_deref()
        .and_then(|what| what.split_once(':'))
    {
        Some(("record", rest)) => {
            let (rounds, path) = rest.split_once(':').unwrap();
            record(rounds.parse().unwrap(), Path::new(path));
        }
        Some(("check", list)) => check(Path::new(list)),
        _ => {}
    }
}

fn start(what: String) -> std::process::Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture"])
        .env(CHILD, what)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Without a power cut everything is there; and a promise that was not kept is noticed.
#[test]
fn what_was_recorded_is_there_and_what_was_not_is_missed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    let mut child = start(format!("record:60:{}", path.display()));
    let mut stdin = child.stdin.take().unwrap();
    let (mut durable, mut applied, mut marks) = (0, 0, 0);
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        if let Some((_, numbers)) = line.split_once("mark ") {
            let (one, other) = numbers.split_once(' ').unwrap();
            (durable, applied) = (one.parse::<u64>().unwrap(), other.parse::<u64>().unwrap());
            marks += 1;
            writeln!(stdin).unwrap();
        }
    }
    assert!(child.wait().unwrap().success());
    assert!(
        marks >= 20 && durable > applied && applied > 0,
        "{marks} marks, {durable}, {applied}"
    );
    let reclaimed = durable - KEPT;
    let copy = |name: &str| {
        let copy = directory.path().join(name);
        std::fs::copy(&path, &copy).unwrap();
        copy
    };
    let list = directory.path().join("list");
    let lines = [
        format!("{durable} {reclaimed} {}", copy("good").display()),
        format!("{} {reclaimed} {}", durable + 1000, copy("lost").display()),
        format!("{durable} 0 {}", copy("reclaimed").display()),
    ];
    std::fs::write(&list, lines.join("\n")).unwrap();
    let output = start(format!("check:{}", list.display()))
        .wait_with_output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let verdicts: Vec<&str> = said
        .lines()
        .filter(|line| line.contains("WRONG") || line.contains("whole"))
        .collect();
    assert_eq!(verdicts.len(), 3, "{said}");
    assert!(
        verdicts[0].contains("whole") && verdicts[0].ends_with("good"),
        "{said}"
    );
    assert!(verdicts[1].contains("were durable"), "{said}");
    assert!(verdicts[2].contains("at most 0 were"), "{said}");
}
