//! One question, one answer, over TCP: a line of JSON each, bounded in length and in time.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Answered, Asked};

/// Longest line, in bytes.
const LINE_MAX: usize = 16 * 1024;
/// To connect, and for each line, except for an answer that waits until a device has ended.
const LINE_SECONDS: Duration = Duration::from_secs(2);
/// For a question: who sends nothing keeps others waiting for so long.
const QUESTION_SECONDS: Duration = Duration::from_millis(500);
/// A device has ended within this time, or says that it has not.
pub(super) const END_MAX: Duration = Duration::from_secs(10);
/// Pause after a connection that could not be taken: too many files are open, say.
const PAUSE: Duration = Duration::from_millis(100);
/// The thread is woken within this time, or is left to the end of the process.
const WAKE_MAX: Duration = Duration::from_millis(250);

/// A thread that answers, and sleeps until somebody comes. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Door {
    at: SocketAddr,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Door {
    /// Listens.
    pub(super) fn open(
        listen: SocketAddr,
        mut answer: impl FnMut(Asked) -> Answered + Send + 'static,
    ) -> io::Result<Door> {
        let listener = TcpListener::bind(listen)?;
        let at = listener.local_addr()?;
        let over = Arc::new(AtomicBool::new(false));
        let ends = over.clone();
        let thread = std::thread::Builder::new()
            .name("ctl".into())
            .spawn(move || {
                while !ends.load(Ordering::Acquire) {
                    match listener.accept() {
                        // It only wakes this thread.
                        Ok(_) if ends.load(Ordering::Acquire) => {}
                        // Whoever goes away, or sends something else, harms nobody.
                        Ok((stream, _)) => drop(serve(stream, &mut answer)),
                        Err(_) => std::thread::sleep(PAUSE),
                    }
                }
            })?;
        Ok(Door {
            at,
            over,
            thread: Some(thread),
        })
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        let mut at = self.at;
        if at.ip().is_unspecified() {
            at.set_ip(match at {
                SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
                SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
            });
        }
        let woken = TcpStream::connect_timeout(&at, WAKE_MAX).is_ok();
        if let Some(thread) = self.thread.take().filter(|_| woken) {
            // A panic there was printed.
            let _ = thread.join();
        }
    }
}

fn serve(mut stream: TcpStream, answer: &mut impl FnMut(Asked) -> Answered) -> io::Result<()> {
    let answer = match read_line(&mut stream, QUESTION_SECONDS)? {
        Some(asked) => answer(asked),
        None => Answered::Refused("what was asked is not understood: another version?".into()),
    };
    write_line(&mut stream, &answer)
}

fn write_line(stream: &mut TcpStream, value: &impl Serialize) -> io::Result<()> {
    let mut line = crate::record::bytes(value);
    line.push(b'\n');
    stream.set_write_timeout(Some(LINE_SECONDS))?;
    stream.write_all(&line)
}

/// A line, read as this; `None`: it is none, or something else.
fn read_line<T: DeserializeOwned>(
    stream: &mut TcpStream,
    within: Duration,
) -> io::Result<Option<T>> {
    let until = Instant::now() + within;
    let mut line = Vec::new();
    let mut part = [0; 1024];
    while !line.ends_with(b"\n") && line.len() < LINE_MAX {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut part)? {
            0 => break,
            count => line.extend_from_slice(&part[..count]),
        }
    }
    Ok(serde_json::from_slice(&line).ok())
}

/// What others say is shown to a person: without what a terminal would obey.
fn printable(answer: Answered) -> Answered {
    let clean = |text: String| text.replace(|c: char| c.is_control(), " ");
    match answer {
        Answered::Refused(text) => Answered::Refused(clean(text)),
        Answered::Device(mut said) => {
            said.waits = said.waits.map(clean);
            Answered::Device(said)
        }
        other => other,
    }
}

/// Asks whoever is there, by TCP.
///
/// # Errors
/// A sentence: nobody answers, or not in time, or not in these words.
pub fn ask(at: SocketAddr, asked: &Asked) -> Result<Answered, String> {
    ask_patiently(at, asked, LINE_SECONDS)
}

/// The same, for somebody who waits so long for a connection.
pub(super) fn ask_patiently(
    at: SocketAddr,
    asked: &Asked,
    patience: Duration,
) -> Result<Answered, String> {
    let within = match asked {
        Asked::Leave { .. } => END_MAX + LINE_SECONDS,
        Asked::Who | Asked::Wire { .. } => LINE_SECONDS,
    };
    let talk = || -> io::Result<Option<Answered>> {
        let mut stream = TcpStream::connect_timeout(&at, patience)?;
        write_line(&mut stream, asked)?;
        read_line(&mut stream, within)
    };
    match talk() {
        Ok(Some(answer)) => Ok(printable(answer)),
        Ok(None) => Err(format!(
            "whoever listens at {at} (TCP) is no pmnet of this version"
        )),
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
            ) =>
        {
            Err(format!(
                "whoever listens at {at} (TCP) does not answer in time"
            ))
        }
        Err(error) => Err(format!("nobody answers at {at} (TCP): {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_asked_answers_and_rubbish_ends_nobody() {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = free.local_addr().unwrap();
        drop(free);
        let door = Door::open(at, |asked| Answered::Refused(format!("{asked:?}"))).unwrap();
        for rubbish in [
            &b"GET / HTTP/1.1\r\n"[..],
            b"\n",
            b"",
            &[b'x'; LINE_MAX + 1],
        ] {
            let mut stream = TcpStream::connect(at).unwrap();
            // It may be closed before everything was read.
            let _ = stream.write_all(rubbish);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let mut said = Vec::new();
            let _ = stream.read_to_end(&mut said);
            let said = String::from_utf8_lossy(&said).into_owned();
            assert!(said.is_empty() || said.contains("not understood"), "{said}");
        }
        assert_eq!(ask(at, &Asked::Who), Ok(Answered::Refused("Who".into())));
        drop(door);
        let everywhere = SocketAddr::from(([0, 0, 0, 0], at.port()));
        let door = Door::open(everywhere, |_| Answered::Done).unwrap();
        assert_eq!(ask(at, &Asked::Who), Ok(Answered::Done));
        drop(door);
        assert!(ask(at, &Asked::Who).unwrap_err().contains("nobody answers"));
    }
}
