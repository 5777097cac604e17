//! A door: one question and one answer over TCP. The question and the answer are each one line of JSON, with bounded
//! length and time.
//!
//! A silent connection does not delay the others, because the thread reads all connections by turns, each for a short
//! time. If there are too many connections, the door closes the oldest connection of the host that has the most
//! connections. So a new connection always finds a place.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use pmnet_proto::keys::{ClusterKey, ClusterKeys};
use pmnet_udp::{Latest, place_to_give_up};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::lock::{self, Asking, Call, Reply, Seal, Then};
use super::{Answered, Asked};

/// Maximum length of a line, in bytes.
const LINE_MAX: usize = 16 * 1024;
/// Longest time for connecting, and for each line. The answer to an order that ends a device may take longer.
const LINE_SECONDS: Duration = Duration::from_secs(2);
/// Time within which a caller must send its question. After this time the caller is disconnected.
const QUESTION_SECONDS: Duration = Duration::from_millis(500);
/// Maximum number of connections that the door reads at a time.
const CALLERS_MAX: usize = 64;
/// Maximum number of connections that the door accepts in one turn. Then the door reads the accepted connections.
const TAKEN_MAX: usize = 16;
/// Maximum number of threads that wait for the end of a device.
const WAITING_MAX: usize = 4;
/// Time after which the door reports that a device has not ended.
pub(super) const END_MAX: Duration = Duration::from_secs(10);
/// Pause after a failed accept, for example because too many files are open.
const PAUSE: Duration = Duration::from_millis(100);

const WAKE: mio::Token = mio::Token(0);
const LISTENER: mio::Token = mio::Token(1);
const FIRST_CALLER: usize = 2;

/// A thread that answers questions, and sleeps until a connection comes. The thread ends when this value is dropped.
#[derive(Debug)]
pub(super) struct Door {
    over: Arc<AtomicBool>,
    waker: mio::Waker,
    thread: Option<JoinHandle<()>>,
}

impl Door {
    /// Opens the door. `keys`: if present, the door answers only callers with one of these keys.
    pub(super) fn open(
        listen: SocketAddr,
        keys: Option<Latest<ClusterKeys>>,
        answer: impl Fn(Asked) -> Answered + Send + Sync + 'static,
    ) -> io::Result<Door> {
        let listener = TcpListener::bind(listen)?;
        listener.set_nonblocking(true)?;
        let poll = mio::Poll::new()?;
        let waker = mio::Waker::new(poll.registry(), WAKE)?;
        poll.registry().register(
            &mut SourceFd(&listener.as_raw_fd()),
            LISTENER,
            mio::Interest::READABLE,
        )?;
        let over = Arc::new(AtomicBool::new(false));
        let mut porter = Porter {
            listener,
            poll,
            over: over.clone(),
            keys,
            answer: Arc::new(answer),
            callers: VecDeque::new(),
            next_token: FIRST_CALLER,
            more_after: None,
            waiting: Vec::new(),
        };
        let thread = std::thread::Builder::new()
            .name("ctl".into())
            .spawn(move || porter.attend())?;
        Ok(Door {
            over,
            waker,
            thread: Some(thread),
        })
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        let woken = self.waker.wake().is_ok();
        if let Some(thread) = self.thread.take().filter(|_| woken) {
            // The thread's panic message was already printed.
            let _ = thread.join();
        }
    }
}

/// A caller that is connected and has not sent its question yet.
struct Caller {
    token: mio::Token,
    stream: TcpStream,
    from: IpAddr,
    /// The nonce that was sent to this caller.
    greeted: Option<[u64; 2]>,
    line: Vec<u8>,
    until: Instant,
}

impl Caller {
    /// Reads the available bytes. Returns whether the line is still incomplete.
    ///
    /// # Errors
    /// The connection is no longer usable.
    fn listen(&mut self) -> io::Result<bool> {
        let mut part = [0; 1024];
        while !self.line.ends_with(b"\n") && self.line.len() < LINE_MAX {
            match self.stream.read(&mut part) {
                Ok(0) => return Ok(false),
                Ok(count) => self.line.extend_from_slice(&part[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }
}

/// The thread of a door.
struct Porter<A> {
    listener: TcpListener,
    poll: mio::Poll,
    over: Arc<AtomicBool>,
    keys: Option<Latest<ClusterKeys>>,
    answer: Arc<A>,
    /// The callers, oldest first.
    callers: VecDeque<Caller>,
    next_token: usize,
    /// Time at which the door accepts connections again; `None`: no connections are waiting.
    more_after: Option<Instant>,
    /// Threads that wait for the end of a device and then answer.
    waiting: Vec<JoinHandle<()>>,
}

impl<A: Fn(Asked) -> Answered + Send + Sync + 'static> Porter<A> {
    fn attend(&mut self) {
        let mut events = mio::Events::with_capacity(CALLERS_MAX);
        while !self.over.load(Ordering::Acquire) {
            let first = self.callers.iter().map(|caller| caller.until).min();
            let due = [first, self.more_after].into_iter().flatten().min();
            let timeout = due.map(|due| due.saturating_duration_since(Instant::now()));
            if let Err(error) = self.poll.poll(&mut events, timeout)
                && error.kind() != ErrorKind::Interrupted
            {
                tracing::warn!(%error, "PM1511 `pmnet ctl` cannot reach this process any more");
                break;
            }
            let mut comes = self.more_after.is_some_and(|at| at <= Instant::now());
            for event in &events {
                match event.token() {
                    WAKE => {}
                    LISTENER => comes = true,
                    token => self.hear(token),
                }
            }
            if comes {
                self.take();
            }
            let now = Instant::now();
            // All callers are checked, because the queue is not sorted by time limits: a caller that gets a nonce
            // returns to the front of the queue.
            self.callers.retain(|caller| now < caller.until);
        }
        for waiting in self.waiting.drain(..) {
            // The thread's panic message was already printed.
            let _ = waiting.join();
        }
    }

    /// Accepts some of the waiting connections.
    fn take(&mut self) {
        self.more_after = Some(Instant::now());
        for _ in 0..TAKEN_MAX {
            match self.listener.accept() {
                Ok((stream, from)) => {
                    if let Err(error) = self.welcome(stream, from.ip()) {
                        tracing::debug!(%error, "a connection for `pmnet ctl`");
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.more_after = None;
                    return;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // The process cannot open another file. So the door closes a connection, as if there were too many
                // callers.
                Err(_) if self.make_room() => {}
                Err(_) => {
                    self.more_after = Some(Instant::now() + PAUSE);
                    return;
                }
            }
        }
    }

    /// Closes one connection: the oldest connection of the host that has the most connections. So a host cannot
    /// displace a host that has fewer connections. Returns false if there is no connection.
    fn make_room(&mut self) -> bool {
        let first = place_to_give_up(self.callers.iter().map(|caller| caller.from));
        first.is_some_and(|at| self.callers.remove(at).is_some())
    }

    fn welcome(&mut self, stream: TcpStream, from: IpAddr) -> io::Result<()> {
        stream.set_nonblocking(true)?;
        let token = mio::Token(self.next_token);
        self.next_token = self.next_token.wrapping_add(1).max(FIRST_CALLER);
        self.poll.registry().register(
            &mut SourceFd(&stream.as_raw_fd()),
            token,
            mio::Interest::READABLE,
        )?;
        if self.callers.len() == CALLERS_MAX {
            self.make_room();
        }
        self.callers.push_back(Caller {
            token,
            stream,
            from,
            greeted: None,
            line: Vec::new(),
            until: Instant::now() + QUESTION_SECONDS,
        });
        // The question usually comes together with the connection.
        self.hear(token);
        Ok(())
    }

    /// Reads from this caller, and answers if its line is complete. If the caller's time is over, the connection is
    /// closed without reading, because a host on the path may have delayed the order.
    fn hear(&mut self, token: mio::Token) {
        let found = self.callers.iter().position(|caller| caller.token == token);
        let Some(at) = found else { return };
        if self.callers[at].until <= Instant::now() {
            self.callers.remove(at);
            return;
        }
        match self.callers[at].listen() {
            Ok(true) => {}
            Ok(false) => {
                if let Some(caller) = self.callers.remove(at) {
                    self.reply(caller);
                }
            }
            Err(_) => drop(self.callers.remove(at)),
        }
    }

    /// Continues with a caller that has sent a line.
    fn reply(&mut self, mut caller: Caller) {
        match lock::heard(self.keys.as_ref(), caller.greeted, &caller.line) {
            Ok(Then::Greet(nonce)) => {
                send(&mut caller.stream, &line_of(&Reply::Nonce(nonce)));
                caller.greeted = Some(nonce);
                caller.line.clear();
                // The caller goes to the front of the queue again, and keeps its time limit.
                self.callers.push_front(caller);
            }
            Ok(Then::Answer(asked, seal)) => self.answer(caller, asked, seal),
            Ok(Then::Refuse(line)) => send(&mut caller.stream, &line),
            Err(error) => tracing::debug!(%error, "a question of `pmnet ctl`"),
        }
    }

    fn answer(&mut self, mut caller: Caller, asked: Asked, seal: Seal) {
        if !matches!(asked, Asked::Leave { .. }) {
            let answered = (self.answer)(asked);
            return send(&mut caller.stream, &seal.line(&answered));
        }
        // A separate thread waits until the device has ended, and answers then. Meanwhile the door answers other
        // callers.
        self.waiting.retain(|waiting| !waiting.is_finished());
        if self.waiting.len() == WAITING_MAX {
            let text = "others have asked for that already: look whether it has ended";
            let refused = Answered::Refused(text.into());
            return send(&mut caller.stream, &seal.line(&refused));
        }
        let answer = self.answer.clone();
        let waits = std::thread::Builder::new()
            .name("ctl leave".into())
            .spawn(move || send(&mut caller.stream, &seal.line(&answer(asked))));
        match waits {
            Ok(waits) => self.waiting.push(waits),
            Err(error) => tracing::warn!(%error, "PM1512 `pmnet ctl` asked this device to end"),
        }
    }
}

/// Sends a line. The line fits into the buffer of the socket, because little was written to it before. So a peer that
/// does not read the line does not block the door.
fn send(stream: &mut TcpStream, line: &[u8]) {
    if let Err(error) = write_line(stream, line) {
        tracing::debug!(%error, "an answer to `pmnet ctl`");
    }
}

fn line_of(value: &impl Serialize) -> Vec<u8> {
    crate::record::bytes(value)
}

fn write_line(stream: &mut TcpStream, line: &[u8]) -> io::Result<()> {
    let line = [line, b"\n"].concat();
    stream.set_write_timeout(Some(LINE_SECONDS))?;
    stream.write_all(&line)
}

/// Reads a line and parses it as `T`. Returns `None` if the line is incomplete or is not a `T`.
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
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut part)? {
            0 => break,
            count => line.extend_from_slice(&part[..count]),
        }
    }
    Ok(serde_json::from_slice(&line).ok())
}

/// Returns the text of another process, without characters that control a terminal.
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

/// Asks the process at this TCP address a question, with the key of its cluster if it has one.
///
/// # Errors
/// A text: there is no answer, the answer is late, it does not follow this protocol, or it has another key.
pub fn ask(at: SocketAddr, asked: &Asked, key: Option<&ClusterKey>) -> Result<Answered, String> {
    ask_patiently(at, asked, key, LINE_SECONDS)
}

/// Asks the process a question. `patience`: the longest wait for a connection.
pub(super) fn ask_patiently(
    at: SocketAddr,
    asked: &Asked,
    key: Option<&ClusterKey>,
    patience: Duration,
) -> Result<Answered, String> {
    let within = match asked {
        Asked::Leave { .. } => END_MAX + LINE_SECONDS,
        Asked::Who | Asked::Wire { .. } => LINE_SECONDS,
    };
    let talk = || -> io::Result<Talked> {
        let mut stream = TcpStream::connect_timeout(&at, patience)?;
        if let Some(key) = key {
            return talk_sealed(&mut stream, asked, key, within);
        }
        write_line(&mut stream, &line_of(asked))?;
        Ok(read_line(&mut stream, within)?.map_or(Talked::Foreign, Talked::Answer))
    };
    match talk() {
        Ok(Talked::Answer(answer)) => Ok(printable(answer)),
        Ok(Talked::Unproven(text)) => {
            let Answered::Refused(text) = printable(Answered::Refused(text)) else {
                return Err(String::new());
            };
            Err(format!("at {at} (TCP), without a proof of its key: {text}"))
        }
        Ok(Talked::Foreign) => Err(format!(
            "PM5120 the process that listens at {at} (TCP) is no pmnet of this version"
        )),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Err(
            format!("PM5121 the process that listens at {at} (TCP) does not answer in time"),
        ),
        Err(error) => Err(format!("PM5122 nothing answers at {at} (TCP): {error}")),
    }
}

/// Result of a conversation.
enum Talked {
    Answer(Answered),
    /// The peer refused the question, without a proof that it has the key.
    Unproven(String),
    /// The answer does not follow this protocol.
    Foreign,
}

fn talk_sealed(
    stream: &mut TcpStream,
    asked: &Asked,
    key: &ClusterKey,
    within: Duration,
) -> io::Result<Talked> {
    write_line(stream, &line_of(&Call::Key))?;
    let nonce = match read_line(stream, LINE_SECONDS)? {
        Some(Reply::Nonce(nonce)) => nonce,
        Some(Reply::Refused(text)) => return Ok(Talked::Unproven(text)),
        _ => return Ok(Talked::Foreign),
    };
    let (asking, call) = Asking::begin(key, nonce, asked)?;
    write_line(stream, &line_of(&call))?;
    Ok(match read_line(stream, within)? {
        Some(Reply::Sealed { mac, text }) => asking
            .open(mac, &text)
            .map_or(Talked::Foreign, Talked::Answer),
        Some(Reply::Refused(text)) => Talked::Unproven(text),
        _ => Talked::Foreign,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn somewhere() -> SocketAddr {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        free.local_addr().unwrap()
    }

    #[test]
    fn who_is_asked_answers_and_rubbish_ends_nobody() {
        let at = somewhere();
        let door = Door::open(at, None, |asked| Answered::Refused(format!("{asked:?}"))).unwrap();
        for rubbish in [
            &b"GET / HTTP/1.1\r\n"[..],
            b"\n",
            b"",
            &[b'x'; LINE_MAX + 1],
        ] {
            let mut stream = TcpStream::connect(at).unwrap();
            // The door may close the connection before it has read everything.
            let _ = stream.write_all(rubbish);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let mut said = Vec::new();
            let _ = stream.read_to_end(&mut said);
            let said = String::from_utf8_lossy(&said).into_owned();
            assert!(said.is_empty() || said.contains("not understood"), "{said}");
        }
        assert_eq!(
            ask(at, &Asked::Who, None),
            Ok(Answered::Refused("Who".into()))
        );
        drop(door);
        let everywhere = SocketAddr::from(([0, 0, 0, 0], at.port()));
        let door = Door::open(everywhere, None, |_| Answered::Done).unwrap();
        assert_eq!(ask(at, &Asked::Who, None), Ok(Answered::Done));
        drop(door);
        assert!(
            ask(at, &Asked::Who, None)
                .unwrap_err()
                .contains("nothing answers")
        );
    }

    /// Connections without a request come, for example, from a port scan, from a monitor that only connects, or from an
    /// attacker.
    #[test]
    fn who_connects_and_says_nothing_locks_nobody_out() {
        const SILENT: usize = 400;
        let at = somewhere();
        let door = Door::open(at, None, |_| Answered::Done).unwrap();
        let mut silent: Vec<TcpStream> = Vec::new();
        for round in 0..4 {
            for _ in 0..SILENT / 4 {
                silent.push(TcpStream::connect(at).unwrap());
            }
            let begun = Instant::now();
            assert_eq!(
                ask(at, &Asked::Who, None),
                Ok(Answered::Done),
                "round {round}"
            );
            let took = begun.elapsed();
            assert!(took < QUESTION_SECONDS, "round {round}: {took:?}");
        }
        // The door closes each of these connections.
        for mut stream in silent {
            stream.set_read_timeout(Some(4 * QUESTION_SECONDS)).unwrap();
            let ended = stream.read(&mut [0]);
            assert!(
                !matches!(&ended, Err(e) if e.kind() == ErrorKind::WouldBlock),
                "{ended:?}"
            );
        }
        drop(door);
    }

    /// The end of a device may take long. Meanwhile the door answers other callers.
    #[test]
    fn who_waits_until_a_device_has_ended_keeps_nobody_waiting() {
        let at = somewhere();
        let door = Door::open(at, None, |asked| {
            if matches!(asked, Asked::Leave { .. }) {
                std::thread::sleep(LINE_SECONDS);
            }
            Answered::Done
        });
        let door = door.unwrap();
        let to = super::super::Meant {
            shard: 0,
            id: 1,
            process: "p".into(),
        };
        let leaver = std::thread::spawn(move || ask(at, &Asked::Leave { to }, None));
        std::thread::sleep(QUESTION_SECONDS / 4);
        let begun = Instant::now();
        assert_eq!(ask(at, &Asked::Who, None), Ok(Answered::Done));
        assert!(begun.elapsed() < QUESTION_SECONDS && !leaver.is_finished());
        drop(door);
        assert_eq!(leaver.join().unwrap(), Ok(Answered::Done));
    }

    #[test]
    fn a_door_with_keys_opens_to_those_who_have_one() {
        let at = somewhere();
        let keys = |byte| ClusterKeys::new(ClusterKey::new([byte; 16]));
        let asked = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let counts = asked.clone();
        let answer = move |_| {
            counts.fetch_add(1, Ordering::Relaxed);
            Answered::Done
        };
        let door = Door::open(at, Some(Latest::new(keys(1))), answer).unwrap();
        let to = || super::super::Meant {
            shard: 0,
            id: 1,
            process: "p".into(),
        };
        let (right, wrong) = (keys(1).present, keys(2).present);
        for asked in [Asked::Who, Asked::Leave { to: to() }] {
            assert_eq!(ask(at, &asked, Some(&right)), Ok(Answered::Done));
        }
        assert_eq!(asked.load(Ordering::Relaxed), 2);
        for (key, says) in [(Some(&wrong), "another key"), (None, "--key FILE")] {
            for asked in [Asked::Who, Asked::Leave { to: to() }] {
                let text = format!("{:?}", ask(at, &asked, key));
                assert!(text.contains(says), "{text}");
            }
        }
        assert_eq!(asked.load(Ordering::Relaxed), 2, "nobody else is heard");
        drop(door);
        let door = Door::open(at, None, |_| Answered::Done).unwrap();
        let text = ask(at, &Asked::Who, Some(&right)).unwrap_err();
        assert!(text.contains("has no keys"), "{text}");
        drop(door);
    }

    /// A host on the path delays an order. In the meantime the host itself connects and gets a nonce. The caller was
    /// told that there was no answer, so the door must not execute the order later.
    #[test]
    fn an_order_that_was_kept_back_is_not_executed() {
        let at = somewhere();
        let keys = ClusterKeys::new(ClusterKey::new([1; 16]));
        let asked = Arc::new(AtomicBool::new(false));
        let heard = asked.clone();
        let answer = move |_| {
            heard.store(true, Ordering::Relaxed);
            Answered::Done
        };
        let door = Door::open(at, Some(Latest::new(keys.clone())), answer).unwrap();
        let greeted = || {
            let mut stream = TcpStream::connect(at).unwrap();
            write_line(&mut stream, &line_of(&Call::Key)).unwrap();
            match read_line(&mut stream, LINE_SECONDS).unwrap() {
                Some(Reply::Nonce(nonce)) => (stream, nonce),
                _ => panic!("it is greeted"),
            }
        };
        let (mut stream, nonce) = greeted();
        let mut others = Vec::new();
        for _ in 0..4 {
            std::thread::sleep(QUESTION_SECONDS / 3);
            others.push(greeted());
        }
        let (_, call) = Asking::begin(&keys.present, nonce, &Asked::Who).unwrap();
        // The door may already have closed the connection.
        let _ = write_line(&mut stream, &line_of(&call));
        let said = read_line::<Reply>(&mut stream, LINE_SECONDS);
        assert!(!matches!(said, Ok(Some(_))), "it is answered");
        assert!(!asked.load(Ordering::Relaxed), "it is executed");
        drop((others, door));
    }

    /// A host opens hundreds of connections between two lines of a caller with a key.
    #[test]
    fn a_host_takes_no_place_from_another_one() {
        let at = somewhere();
        let keys = ClusterKeys::new(ClusterKey::new([1; 16]));
        let _door = Door::open(at, Some(Latest::new(keys.clone())), |_| Answered::Done).unwrap();
        let flood = |_| {
            let socket =
                socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
            let other = SocketAddr::from(([127, 0, 0, 2], 0));
            socket.bind(&other.into()).unwrap();
            socket.connect(&at.into()).unwrap();
            socket
        };
        // A caller has half a second for its question. On a busy machine the flood alone may take that long.
        for _ in 0..50 {
            let begin = Instant::now();
            let mut stream = TcpStream::connect(at).unwrap();
            write_line(&mut stream, &line_of(&Call::Key)).unwrap();
            let Some(Reply::Nonce(nonce)) = read_line(&mut stream, LINE_SECONDS).unwrap() else {
                panic!("it is greeted");
            };
            let _all: Vec<_> = (0..4 * CALLERS_MAX).map(flood).collect();
            let (asking, call) = Asking::begin(&keys.present, nonce, &Asked::Who).unwrap();
            let said = write_line(&mut stream, &line_of(&call))
                .and_then(|()| read_line(&mut stream, LINE_SECONDS));
            if begin.elapsed() > Duration::from_millis(400) {
                continue;
            }
            let Ok(Some(Reply::Sealed { mac, text })) = said else {
                panic!("it is answered");
            };
            assert_eq!(asking.open(mac, &text), Some(Answered::Done));
            return;
        }
        panic!("the flood takes too long each time");
    }
}
