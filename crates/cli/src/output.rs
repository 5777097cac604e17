//! Output to stdout and stderr. Invariant: if a reader is slow or has gone, the process that writes neither ends nor
//! blocks.
//!
//! The macros of the standard library panic if a write fails, for example on a full disk or after the death of the log
//! reader. If the reader of a pipe does not read, a write into the full pipe blocks for ever.

use std::fmt::Write as _;
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::message;

/// Number of bytes that a pipe accepts without blocking after poll(2) has reported it writable (`PIPE_BUF` on Linux).
const PIECE_BYTES: usize = 4096;
/// Longest time for which a log line waits until stderr is writable. After a line was lost, further lines do not wait.
const LOG_PATIENCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};
/// Longest time for which the ready line, or the last sentence of a process, waits until its stream is writable.
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
    /// Number of lines that were lost since the last written line.
    lost: u64,
    /// The error of the first lost line.
    why: Option<Errno>,
    /// The last line was only partly written.
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

/// Selects the format of log lines: JSON or text.
pub(crate) fn logs_are_json(json: bool) {
    JSON.store(json, Ordering::Relaxed);
}

/// Returns the first error of a write to stdout. An error because the reader has closed the pipe (`BrokenPipe`) is not
/// kept.
pub(crate) fn failure() -> Option<ErrorKind> {
    *FAILURE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes all bytes. Fails if the stream is not writable for the time `patience`. The error includes the number of
/// bytes that were written before it.
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

/// Writes one log line. If lines were lost before, first writes a line about them.
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

/// Returns the line that reports lost lines. The report is written as soon as stderr is writable again.
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

/// The writer of log lines. Each call of `write` passes one whole line.
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

/// Writes a sentence and a newline to stderr. A failed write is ignored.
pub fn notice(text: &str) {
    progress(&format!("{text}\n"));
}

/// Writes a text to stderr unchanged. A failed write is ignored.
pub fn progress(text: &str) {
    // An error cannot be reported anywhere else.
    let _ = put(io::stderr().as_fd(), text.as_bytes(), &PATIENCE);
}

/// Writes a line of a process that serves to stdout. A failed write is ignored.
pub fn said(line: &str) {
    // The process serves even if no process reads its stdout.
    let _ = put(
        io::stdout().as_fd(),
        format!("{line}\n").as_bytes(),
        &PATIENCE,
    );
}

/// Writes a result to stdout unchanged. A failed write does not end the command. [`finish`](crate::finish) reports the
/// failure later, unless the reader has closed the pipe.
pub fn tell_all(text: std::fmt::Arguments<'_>) {
    let mut whole = String::new();
    // Formatting into a string cannot fail.
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

/// Writes a result to stdout as one line. Failures are handled as in [`tell_all`].
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
        // No pipe can hold this many bytes.
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
