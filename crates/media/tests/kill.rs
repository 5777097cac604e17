//! A log on real media, whose process is killed again and again. No order that was reported durable is lost, no order
//! appears that was never appended, and no second process can open the log while the first lives.

#[path = "numbered/mod.rs"]
mod numbered;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use numbered::{EXPECTED, PARAMETERS, append, frame, make, recover};
use pmnet_log::{Media, Scan};
use pmnet_media::{Kind, OpenError, open};

const CHILD: &str = "PMNET_TEST_CHILD";

/// Not a test, but the process that is killed. It reports every durable order, and reclaims older ones.
#[test]
fn child() {
    let Ok(what) = std::env::var(CHILD) else {
        return;
    };
    let (kind, path) = what.split_once(':').unwrap();
    let kind = if kind == "file" {
        Kind::File
    } else {
        Kind::Dram
    };
    let mut log = recover(Path::new(path), kind);
    let mut out = std::io::stdout().lock();
    loop {
        for _ in 0..log.last() % 13 + 1 {
            append(&mut log);
        }
        log.persist_start().unwrap();
        if log.persist_poll(log.room().entries < 32).unwrap() {
            writeln!(out, "durable {} {}", log.durable(), log.applied()).unwrap();
            log.reclaim(log.durable().saturating_sub(20));
        }
    }
}

fn spawn(path: &Path, kind: Kind) -> Child {
    let kind = if kind == Kind::File { "file" } else { "dram" };
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture"])
        .env(CHILD, format!("{kind}:{}", path.display()))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

fn killed_again_and_again(kind: Kind, path: &Path) {
    make(path, kind);
    let mut incarnation = 0;
    for round in 0..12 {
        let mut child = spawn(path, kind);
        let mut lines = BufReader::new(child.stdout.take().unwrap())
            .lines()
            .map(Result::unwrap);
        let mut promised = 0;
        let mut seen = 0;
        let mut reclaimed = 0;
        while seen < 20 + round * 7 {
            let line = lines.next().expect("the child lives until it is killed");
            // The first report is on a line with output of the test harness.
            let Some((_, numbers)) = line.split_once("durable ") else {
                continue;
            };
            let (durable, applied) = numbers.split_once(' ').unwrap();
            (promised, reclaimed) = (durable.parse().unwrap(), applied.parse().unwrap());
            seen += 1;
        }
        if round == 0 {
            assert!(matches!(open(path, kind), Err(OpenError::Locked { .. })));
        }
        child.kill().unwrap();
        // Reports that the process made before it died count as well.
        for line in lines {
            if let Some((_, numbers)) = line.split_once("durable ")
                && let Some((durable, applied)) = numbers.split_once(' ')
                && let (Ok(durable), Ok(applied)) = (durable.parse(), applied.parse())
            {
                (promised, reclaimed) = (durable, applied);
            }
        }
        child.wait().unwrap();
        let log = recover(path, kind);
        assert!(
            log.last() >= promised,
            "round {round}: {promised} promised, {} there",
            log.last()
        );
        assert!(
            log.applied() <= reclaimed.max(promised.saturating_sub(20)),
            "round {round}"
        );
        assert!(
            log.incarnation() >= incarnation + 2,
            "the child's life and this one"
        );
        incarnation = log.incarnation();
        for order in log.applied() + 1..=log.last() {
            let (header, payload) = frame(order);
            assert_eq!(
                log.frame(order),
                Some(&[header, payload].concat()[..]),
                "round {round}, order {order}"
            );
            assert_eq!(log.entry(order).unwrap().seq, order);
        }
        if round % 3 == 0 {
            log.close().unwrap();
        }
    }
}

#[test]
fn killed_on_a_file() {
    let directory = tempfile::tempdir().unwrap();
    killed_again_and_again(Kind::File, &directory.path().join("log"));
}

#[test]
fn killed_in_shared_memory() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    killed_again_and_again(Kind::Dram, &directory.path().join("log"));
}

/// The file system has lost the end of a log. A file that is too short is refused, and not changed.
#[test]
fn a_log_cut_short_is_refused_and_not_changed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    make(&path, Kind::File);
    let shorter = u64::try_from(PARAMETERS.image_bytes()).unwrap() - 4096;
    std::fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(shorter)
        .unwrap();
    let before = std::fs::read(&path).unwrap();
    let error = Scan::open(open(&path, Kind::File).unwrap(), Some(EXPECTED))
        .map(|_| ())
        .unwrap_err();
    assert!(
        matches!(error, pmnet_log::LogError::Truncated { .. }),
        "{error}"
    );
    assert!(std::fs::read(&path).unwrap() == before);
    let media = open(&path, Kind::File).unwrap();
    assert_eq!(media.bytes().len(), before.len());
}
