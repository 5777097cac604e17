//! Output to stdout and stderr. Invariant: neither a slow nor a missing reader ends or blocks a process.
//!
//! The standard library's macros panic if a write fails, for example on a full disk or after the log reader's death. A
//! write into a full pipe whose reader does not read blocks for ever.

use std::fmt::Write as _;
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::message;

/// Bytes that a pipe takes in one write without blocking, once poll(2) reports it writable (`PIPE_BUF` on Linux).
const PIECE_BYTES: usize = 4096;
/// Longest time that a log line waits until stderr is writable. After a lost line, further lines do not wait.
const LOG_PATIENCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};
/// Longest time that the last sentence of a process, or its ready line, waits until its stream is writable.
const PATIENCE: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};
const NO_PATIENCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// The state of the logs.
struct Logs {
    /// Number of lines lost since the last one that was written.
    lost: u64,
    /// Error of the first of the lost lines.
    why: Option<Errno>,
    /// The last line was written only in part.
    torn: bool,
}

static LOGS: Mutex<Logs> = Mutex::new(Logs {
    lost: 0,
    why: None,
    torn: false,
});
static JSON: AtomicBool = AtomicBool::new(false);
/// The first error of a write to stdout.
static FAILURE: Mutex<Option<ErrorKind>> = Mutex::new(None);

/// Sets the format of log lines: JSON or text.
pub(crate) fn logs_are_json(json: bool) {
    JSON.store(json, Ordering::Relaxed);
}

/// Returns the first error of a write to stdout. A closed pipe (`BrokenPipe`) does not count.
pub(crate) fn failure() -> Option<ErrorKind> {
    *FAILURE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes all bytes, unless the stream is not writable for as long as `patience`. An error comes with the number of
/// bytes written before it.
fn put(to: BorrowedFd<'_>, bytes: &[u8], patience: &Timespec) -> Result<(), (usize, Errno)> {
    let mut done = 0;
    while done < bytes.len() {
        let mut room = [PollFd::new(&to, PollFlags::OUT)];
        match poll(&mut room, Some(patience)) {
            Ok(0) => return Err((done, Errno::AGAIN)),
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(error) => return Err((done, error)),
        }
        let end = bytes.len().min(done + PIECE_BYTES);
        match rustix::io::write(to, &bytes[done..end]) {
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(error) => return Err((done, error)),
        }
    }
    Ok(())
}

/// Writes one line of the log, after a line about lost lines if there are any.
fn log_line(bytes: &[u8]) {
    let mut logs = LOGS.lock().unwrap_or_else(PoisonError::into_inner);
    let stderr = io::stderr();
    let to = stderr.as_fd();
    let patience = if logs.lost > 0 {
        NO_PATIENCE
    } else {
        LOG_PATIENCE
    };
    let mut whole = Vec::new();
    if logs.torn {
        whole.push(b'\n');
    }
    if let Some(why) = logs.why {
        whole.extend_from_slice(lost(logs.lost, why).as_bytes());
    }
    whole.extend_from_slice(bytes);
    match put(to, &whole, &patience) {
        Ok(()) => {
            *logs = Logs {
                lost: 0,
                why: None,
                torn: false,
            }
        }
        Err((done, error)) => {
            logs.lost = logs.lost.saturating_add(1);
            logs.why.get_or_insert(error);
            logs.torn |= done > 0;
        }
    }
}

/// Returns the line that reports lost lines. It is written as soon as stderr takes lines again.
fn lost(count: u64, why: Errno) -> String {
    let why = if why == Errno::AGAIN {
        "nobody read it".to_owned()
    } else {
        io::Error::from(why).to_string()
    };
    let text =
        format!("PM6012 {count} lines of this log were lost: stderr could not be written ({why})");
    if JSON.load(Ordering::Relaxed) {
        let id = message::id(&text).unwrap_or_default();
        format!("{{\"id\":\"{id}\",\"level\":\"WARN\",\"fields\":{{\"message\":\"{text}\"}}}}\n")
    } else {
        format!(" WARN {text}\n")
    }
}

/// Writer for the log's lines; each call of `write` passes one whole line.
pub(crate) struct LogLines;

impl Write for LogLines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        log_line(line);
        Ok(line.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes a sentence to stderr. A failed write is ignored.
pub fn notice(text: &str) {
    progress(&format!("{text}\n"));
}

/// Writes a text to stderr as it is. A failed write is ignored.
pub fn progress(text: &str) {
    // An error has no other place to go.
    let _ = put(io::stderr().as_fd(), text.as_bytes(), &PATIENCE);
}

/// Writes a line of a serving process to stdout. A failed write is ignored.
pub fn said(line: &str) {
    // A process serves also without a reader of its stdout.
    let _ = put(
        io::stdout().as_fd(),
        format!("{line}\n").as_bytes(),
        &PATIENCE,
    );
}

/// Writes a result to stdout as it is. A failed write does not end the command; [`finish`](crate::finish) reports it,
/// unless the reader has closed the pipe.
pub fn tell_all(text: std::fmt::Arguments<'_>) {
    let mut whole = String::new();
    // Formatting into a string does not fail.
    let _ = whole.write_fmt(text);
    let mut out = io::stdout().lock();
    let written = out.write_all(whole.as_bytes()).and_then(|()| out.flush());
    if let Err(error) = written
        && error.kind() != ErrorKind::BrokenPipe
    {
        let mut failure = FAILURE.lock().unwrap_or_else(PoisonError::into_inner);
        failure.get_or_insert(error.kind());
    }
}

/// Writes a result to stdout as one line, like [`tell_all`].
pub fn tell(text: std::fmt::Arguments<'_>) {
    tell_all(format_args!("{text}\n"));
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;

    use super::*;

    #[test]
    fn nobody_is_waited_for_who_does_not_read_or_is_gone() {
        let (reader, writer) = io::pipe().unwrap();
        // More bytes than any pipe holds.
        let much = vec![b'x'; 4 << 20];
        let (done, error) = put(writer.as_fd(), &much, &NO_PATIENCE).unwrap_err();
        assert!(done > 0 && error == Errno::AGAIN);
        assert_eq!(
            put(writer.as_fd(), b"x", &NO_PATIENCE),
            Err((0, Errno::AGAIN))
        );
        drop(reader);
        assert_eq!(
            put(writer.as_fd(), b"x", &NO_PATIENCE),
            Err((0, Errno::PIPE))
        );
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        assert_eq!(
            put(full.as_fd(), b"x", &NO_PATIENCE),
            Err((0, Errno::NOSPC))
        );
        let all = OpenOptions::new().write(true).open("/dev/null").unwrap();
        assert_eq!(put(all.as_fd(), &much, &NO_PATIENCE), Ok(()));
    }

    #[test]
    fn what_was_lost_is_told_in_the_form_of_the_log() {
        assert_eq!(
            lost(3, Errno::NOSPC),
            " WARN PM6012 3 lines of this log were lost: stderr could not be written (No space left on device (os error 28))\n"
        );
        assert!(lost(1, Errno::AGAIN).contains("nobody read it"));
        logs_are_json(true);
        let line = lost(1, Errno::PIPE);
        assert!(
            line.starts_with("{\"id\":\"PM6012\",\"level\":\"WARN\"") && line.ends_with("}}\n"),
            "{line}"
        );
    }
}
