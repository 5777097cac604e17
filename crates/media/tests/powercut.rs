//! The two ends of `make powercut`: a process that writes a log and prints what is durable, and a check of the log that
//! a power cut left. A guest, which records every write of its disk, runs between the two (`tests/powercut`).

#[path = "numbered/mod.rs"]
mod numbered;
#[path = "../../../tests/shared/powercut.rs"]
mod powercut;

use std::io::Write;
use std::path::Path;

use numbered::{append, frame, make, recover, try_recover};
use pmnet_media::Kind;

/// Number of durable orders that stay when older ones are reclaimed.
const KEPT: u64 = 20;

/// Makes a log and appends to it in bursts; a persist may be in flight during appends. After each persist it prints
/// `mark DURABLE APPLIED`, and continues when it reads a line. So between two marks at most one persist is in flight.
fn record(rounds: u64, path: &Path) {
    make(path, Kind::File);
    let mut log = recover(path, Kind::File);
    let mut out = std::io::stdout().lock();
    let mut answers = std::io::stdin().lines();
    for round in 0..rounds {
        for _ in 0..round % 13 + 1 {
            append(&mut log);
        }
        // A persist that writes only a superblock frees space, so this code waits for it before the next append.
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

/// Checks the log at `path`. It must have all orders up to `durable`, except those up to `applied`, which may be
/// reclaimed. The log is repaired first, as on a device. Returns what is wrong, as a text.
fn wrong(path: &Path, durable: u64, applied: u64) -> Result<(), String> {
    let log = try_recover(path, Kind::File)?;
    if log.last() < durable {
        return Err(format!("{durable} were durable, {} are there", log.last()));
    }
    if log.applied() > applied {
        return Err(format!(
            "{} reclaimed, at most {applied} were",
            log.applied()
        ));
    }
    for order in log.applied() + 1..=log.last() {
        let (header, payload) = frame(order);
        if log.frame(order) != Some(&[header, payload].concat()[..]) {
            return Err(format!("order {order} holds something else"));
        }
    }
    Ok(())
}

/// Not a test, but a process that `make powercut` runs on this machine and in the guest.
#[test]
fn child() {
    powercut::child(record, wrong);
}

/// Without a power cut the check passes; a broken promise is noticed.
#[test]
fn what_was_recorded_is_there_and_what_was_not_is_missed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    let marks = powercut::marks(60, &path);
    let (durable, applied) = *marks.last().unwrap();
    assert!(
        marks.len() >= 20 && durable > applied && applied > 0,
        "{} marks, {durable}, {applied}",
        marks.len()
    );
    let reclaimed = durable - KEPT;
    let copy = |name: &str| {
        let copy = directory.path().join(name);
        std::fs::copy(&path, &copy).unwrap();
        copy
    };
    let lines = [
        format!("{durable} {reclaimed} {}", copy("good").display()),
        format!("{} {reclaimed} {}", durable + 1000, copy("lost").display()),
        format!("{durable} 0 {}", copy("reclaimed").display()),
    ];
    let verdicts = powercut::verdicts(directory.path(), &lines);
    assert!(
        verdicts[0].contains("whole") && verdicts[0].ends_with("good"),
        "{verdicts:?}"
    );
    assert!(verdicts[1].contains("were durable"), "{verdicts:?}");
    assert!(verdicts[2].contains("at most 0 were"), "{verdicts:?}");
}
