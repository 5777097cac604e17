//! Tests of log output and ready lines that no process reads.

use std::fs::OpenOptions;
use std::io::{PipeReader, Read, Write, pipe};
use std::process::Stdio;

use rustix::process::Signal;

use crate::chain::{Places, Running, product, serves};

/// An output to which a process cannot write.
#[derive(Clone, Copy, Debug)]
enum Hole {
    /// A full disk.
    Full,
    /// A pipe whose reader has ended.
    Closed,
    /// A full pipe whose reader no longer reads.
    Stuck,
}

impl Hole {
    /// Opens the output for stdout or stderr. The caller must keep the other end of the pipe.
    fn open(self) -> (Stdio, Option<PipeReader>) {
        if let Hole::Full = self {
            let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
            return (full.into(), None);
        }
        let (reader, mut writer) = pipe().unwrap();
        if let Hole::Closed = self {
            return (writer.into(), None);
        }
        rustix::io::ioctl_fionbio(&writer, true).unwrap();
        while writer.write(&[b'x'; 4096]).is_ok() {}
        while writer.write(b"x").is_ok() {}
        rustix::io::ioctl_fionbio(&writer, false).unwrap();
        (writer.into(), Some(reader))
    }
}

#[test]
fn logs_that_cannot_be_written_end_and_hold_up_nobody() {
    for hole in [Hole::Full, Hole::Closed, Hole::Stuck] {
        for json in [false, true] {
            let places = Places::new();
            let store = places.store();
            let mut kept = Vec::new();
            let mut all = places.all(&store).map(|mut command| {
                let ((out, reader), (err, other)) = (hole.open(), hole.open());
                kept.extend([reader, other]);
                command.env("PMNET_LOG", "debug").stdout(out).stderr(err);
                if json {
                    command.arg("--log-json");
                }
                Running::start(command)
            });
            serves(places.front_at());
            for (role, running) in ["server", "device", "front"].into_iter().zip(&mut all) {
                assert!(running.exited().is_none(), "{role}: {hole:?}");
                running.signal(Signal::TERM);
                let status = running.wait();
                assert!(status.success(), "{role}: {hole:?}: {status}");
            }
        }
    }
}

#[test]
fn lines_that_were_lost_are_counted_once_there_is_room() {
    let places = Places::new();
    let (err, reader) = Hole::Stuck.open();
    let mut command = places.device(&places.server_at());
    command.stdout(Stdio::null()).stderr(err);
    let device = Running::start(command);
    // Every 5 seconds the device logs a warning that no server answers.
    std::thread::sleep(std::time::Duration::from_secs(6));
    let mut reader = reader.unwrap();
    let mut text = vec![0; 1 << 20];
    let mut seen = String::new();
    while !seen.contains("no answer from the server") {
        let count = reader.read(&mut text).unwrap();
        assert!(count > 0, "{seen}");
        seen.push_str(&String::from_utf8_lossy(&text[..count]));
    }
    let told = "lines of this log were lost: stderr could not be written (nobody read it)";
    assert!(seen.contains(told), "{}", seen.trim_start_matches('x'));
    device.stop();
}

/// The reader has ended, as with `pmnet … | head -1`, or the disk is full.
#[test]
fn a_result_that_cannot_be_written_is_said_and_one_that_nobody_wants_is_not() {
    let run = |hole: Hole, args: &[&str]| {
        let (out, _kept) = hole.open();
        let output = product().args(args).stdout(out).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!text.contains("panicked"), "{args:?}: {text}");
        (output.status.code(), text)
    };
    for args in [&["doctor"][..], &["doctor", "--json"], &["status"]] {
        let (code, text) = run(Hole::Full, args);
        assert_eq!(code, Some(1), "{text}");
        assert!(
            text.contains("stdout cannot be written: no storage space"),
            "{text}"
        );
        let (code, text) = run(Hole::Closed, args);
        assert!(
            matches!(code, Some(0 | 1)) && !text.contains("stdout"),
            "{args:?} {code:?} {text}"
        );
    }
    for args in [&["--help"][..], &["--version"], &["device", "--help"]] {
        for hole in [Hole::Full, Hole::Closed] {
            assert_eq!(run(hole, args).0, Some(0), "{args:?}");
        }
    }
}
