//! The thread of the status port.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mio::event::Source as Evented;
use mio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use mio::{Events, Interest, Poll, Token, Waker};
use pmnet_udp::place_to_give_up;

use crate::Guard;
use crate::connection::{Answer, Connection, Request, Stream, Then};
use crate::source::{About, Shown};
use crate::text::Form;
use crate::{host, json, page, text};

/// Maximum number of connections at a time. A further connection displaces the oldest connection of the host that has
/// the most connections, so that one host cannot lock out the others. A connection whose client has shown a certificate
/// is never displaced. If no connection can be displaced, the further connection waits until another is closed.
pub const CONNECTIONS_MAX: usize = 128;
/// Interval at which the thread checks the pulses of the loops.
const TICK: Duration = Duration::from_millis(250);
/// If the address is in use, the thread tries again at this interval to listen.
const AGAIN: Duration = Duration::from_secs(5);
/// Niceness of the thread, so that the loops get processor time first.
const NICE: i32 = 10;
const LISTENER: Token = Token(0);
const WAKER: Token = Token(1);
const FIRST: usize = 2;

/// The address of the port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A TCP address.
    Tcp(SocketAddr),
    /// A unix socket at this path.
    Unix(PathBuf),
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Tcp(address) => write!(f, "{address}"),
            Place::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[derive(Debug)]
enum Listener {
    Tcp(TcpListener),
    /// A unix socket, with its path. The socket's file is removed at the end.
    Unix(UnixListener, PathBuf),
}

impl Listener {
    fn open(place: &Place) -> io::Result<Listener> {
        match place {
            Place::Tcp(address) => TcpListener::bind(*address).map(Listener::Tcp),
            Place::Unix(path) => {
                open_unix(path).map(|listener| Listener::Unix(listener, path.clone()))
            }
        }
    }

    fn source(&mut self) -> &mut dyn Evented {
        match self {
            Listener::Tcp(listener) => listener,
            Listener::Unix(listener, _) => listener,
        }
    }

    fn accept(&self) -> io::Result<Raw> {
        match self {
            Listener::Tcp(listener) => listener.accept().map(|(stream, _)| Raw::Tcp(stream)),
            Listener::Unix(listener, _) => listener.accept().map(|(stream, _)| Raw::Unix(stream)),
        }
    }

    fn place(&self) -> io::Result<Place> {
        match self {
            Listener::Tcp(listener) => listener.local_addr().map(Place::Tcp),
            Listener::Unix(_, path) => Ok(Place::Unix(path.clone())),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Listener::Unix(_, path) = self {
            // If the file was already removed, there is nothing to do.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// A connection that was accepted, without TLS.
enum Raw {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Raw {
    fn source(&mut self) -> &mut dyn Evented {
        match self {
            Raw::Tcp(stream) => stream,
            Raw::Unix(stream) => stream,
        }
    }

    /// Returns the connection, with TLS if there is a guard.
    fn guarded(self, guard: Option<&mut Guard>) -> io::Result<Stream> {
        Ok(match (self, guard) {
            (Raw::Tcp(stream), Some(guard)) => Stream::Tls(Box::new(guard.accept(stream)?)),
            (Raw::Tcp(stream), None) => Stream::Tcp(stream),
            (Raw::Unix(stream), _) => Stream::Unix(stream),
        })
    }
}

/// Listens at this path. If a killed process has left a socket at the path, the socket is replaced. A socket at which a
/// process listens, and a file of another kind, are not replaced.
fn open_unix(path: &PathBuf) -> io::Result<UnixListener> {
    use std::os::unix::fs::FileTypeExt;
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|it| it.file_type().is_socket());
    if is_socket {
        // The attempt to connect must not wait: if a process does not accept connections, its queue may be full.
        match UnixStream::connect(path) {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                std::fs::remove_file(path)?
            }
            _ => return Err(ErrorKind::AddrInUse.into()),
        }
    }
    UnixListener::bind(path)
}

/// An open status port. The port closes when this value is dropped.
#[derive(Debug)]
pub struct StatusPort {
    waker: Waker,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    place: Option<Place>,
}

impl StatusPort {
    /// Opens the port. With a guard, a TCP port uses TLS. If the address is in use, the function logs this, and the
    /// process continues without the port. The thread tries again later to listen.
    ///
    /// # Errors
    /// The system cannot start a thread, or has no free file descriptor.
    pub fn open(
        place: Place,
        guard: Option<Guard>,
        about: About,
        shown: Shown,
    ) -> io::Result<StatusPort> {
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKER)?;
        let mut port = Port {
            poll,
            place,
            guard,
            about,
            shown,
            began: Instant::now(),
            listener: None,
            may_accept: false,
            tried: None,
            connections: BTreeMap::new(),
            next: FIRST,
        };
        port.listen(Instant::now());
        let place = port
            .listener
            .as_ref()
            .and_then(|listener| listener.place().ok());
        let ends = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&ends);
        let thread = std::thread::Builder::new()
            .name("status".into())
            .spawn(move || {
                // If this is not permitted, the thread keeps the priority of the loops.
                let _ = rustix::process::setpriority_process(None, NICE);
                port.run(&is_over);
            })?;
        Ok(StatusPort {
            waker,
            ends,
            thread: Some(thread),
            place,
        })
    }

    /// Returns the address at which the port listens. If TCP port 0 was configured, the result has the chosen port.
    /// `None`: the port does not listen, because the address is in use.
    #[must_use]
    pub const fn place(&self) -> Option<&Place> {
        self.place.as_ref()
    }
}

impl Drop for StatusPort {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Release);
        // If the wake-up fails, the thread wakes up by itself within a tick.
        let _ = self.waker.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The state of the port's thread.
#[derive(Debug)]
struct Port {
    poll: Poll,
    place: Place,
    guard: Option<Guard>,
    about: About,
    shown: Shown,
    began: Instant,
    listener: Option<Listener>,
    /// Connections may be waiting.
    may_accept: bool,
    /// Time of the last attempt to listen.
    tried: Option<Instant>,
    connections: BTreeMap<usize, Connection>,
    next: usize,
}

impl Port {
    fn run(mut self, is_over: &AtomicBool) {
        let mut events = Events::with_capacity(CONNECTIONS_MAX);
        let mut ticked = Instant::now();
        let mut more = false;
        while !is_over.load(Ordering::Acquire) {
            let wait = if more {
                Duration::ZERO
            } else {
                TICK.saturating_sub(ticked.elapsed())
            };
            match self.poll.poll(&mut events, Some(wait)) {
                Err(error) if error.kind() != ErrorKind::Interrupted => {
                    tracing::error!(%error, "PM6021 the status port has failed and is closed; everything else goes on");
                    return;
                }
                _ => {}
            }
            let now = Instant::now();
            for event in &events {
                match event.token() {
                    LISTENER => self.may_accept = true,
                    WAKER => {}
                    Token(number) => self.turn(number, now),
                }
            }
            if now.duration_since(ticked) >= TICK {
                ticked = now;
                self.shown.tick(now);
                self.expire(now);
                self.listen(now);
                // A file descriptor may have become free since the last attempt.
                self.may_accept = true;
            }
            more = self.accept(now);
        }
    }

    /// If the port does not listen yet, and the interval has passed, tries to listen.
    fn listen(&mut self, now: Instant) {
        let waits = self
            .tried
            .is_some_and(|tried| now.duration_since(tried) < AGAIN);
        if self.listener.is_some() || waits {
            return;
        }
        let is_first = self.tried.replace(now).is_none();
        let opened = Listener::open(&self.place).and_then(|mut listener| {
            self.poll
                .registry()
                .register(listener.source(), LISTENER, Interest::READABLE)?;
            Ok(listener)
        });
        match opened {
            Ok(listener) => {
                if !is_first {
                    tracing::info!("the status port is open at {} now", self.place);
                }
                self.listener = Some(listener);
                self.may_accept = true;
            }
            Err(error) if is_first => {
                tracing::warn!(
                    "PM6020 --status {}: cannot listen: {error}. This process serves without its status port, and tries again every {} s",
                    self.place,
                    AGAIN.as_secs()
                );
            }
            Err(_) => {}
        }
    }

    /// Accepts some of the waiting connections. Returns whether more may be waiting.
    fn accept(&mut self, now: Instant) -> bool {
        for _ in 0..CONNECTIONS_MAX {
            let given_up = self.connections.len() == CONNECTIONS_MAX;
            let given_up = given_up.then(|| self.stranger(now));
            let (Some(listener), true) = (&self.listener, self.may_accept) else {
                return false;
            };
            if given_up == Some(None) {
                return false;
            }
            let stream = match listener.accept() {
                Ok(stream) => stream,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => continue,
                Err(_) => {
                    self.may_accept = false;
                    return false;
                }
            };
            if let Some(number) = given_up.flatten() {
                self.connections.remove(&number);
            }
            self.welcome(stream, now);
        }
        true
    }

    /// Returns the connection that a new connection must displace. `None`: all connections may stay.
    fn stranger(&self, now: Instant) -> Option<usize> {
        let strangers = self.connections.iter();
        let strangers = strangers.filter_map(|(number, it)| Some((*number, it.stranger(now)?)));
        let (numbers, hosts): (Vec<usize>, Vec<IpAddr>) = strangers.unzip();
        place_to_give_up(hosts.into_iter()).map(|at| numbers[at])
    }

    fn welcome(&mut self, mut stream: Raw, now: Instant) {
        let number = self.next;
        self.next = self.next.checked_add(1).unwrap_or(FIRST);
        let interest = Interest::READABLE | Interest::WRITABLE;
        if self
            .poll
            .registry()
            .register(stream.source(), Token(number), interest)
            .is_ok()
            && let Ok(stream) = stream.guarded(self.guard.as_mut())
        {
            self.connections
                .insert(number, Connection::new(stream, now));
            self.turn(number, now);
        }
    }

    fn turn(&mut self, number: usize, now: Instant) {
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        let (about, shown, began) = (&self.about, &self.shown, self.began);
        let is_open = !is_for_this_machine(&self.place, self.guard.as_ref());
        let then = connection.turn(&mut |request| {
            if is_open || request.is_local {
                answer(about, shown, began, now, request)
            } else {
                host::refusal()
            }
        });
        if then == Then::Over {
            self.connections.remove(&number);
        }
    }

    fn expire(&mut self, now: Instant) {
        self.connections
            .retain(|_, connection| now < connection.due());
    }
}

/// Returns whether the port is only for programs on this machine that ask for it by a name of this machine. With TLS, a
/// client checks the name, and needs a certificate.
fn is_for_this_machine(place: &Place, guard: Option<&Guard>) -> bool {
    matches!(place, Place::Tcp(address) if guard.is_none() && host::is_loopback(address.ip()))
}

fn answer(about: &About, shown: &Shown, began: Instant, now: Instant, request: &Request) -> Answer {
    match request.path.as_str() {
        "/metrics" => {
            let form = Form::accepted(&request.accept);
            Answer {
                status: "200 OK",
                content_type: form.content_type(),
                body: text::write(about, shown.look(now), form).into(),
            }
        }
        "/livez" => judged(shown.dead(now), "alive\n"),
        "/readyz" => {
            let loops = shown.look(now);
            let mut reasons: Vec<String> = loops.iter().flat_map(|one| one.reasons()).collect();
            if loops.is_empty() {
                reasons.push("it has not begun to serve yet".into());
            }
            judged(reasons, "ready\n")
        }
        "/api/v1/status" => Answer {
            status: "200 OK",
            content_type: "application/json",
            body: json::write(about, now.duration_since(began).as_secs(), &shown.look(now)).into(),
        },
        path => match page::file(path) {
            Some((content_type, body)) => Answer {
                status: "200 OK",
                content_type,
                body: body.into(),
            },
            None => Answer::text(
                "404 Not Found",
                "there are /, /metrics, /livez, /readyz and /api/v1/status\n",
            ),
        },
    }
}

fn judged(reasons: Vec<String>, well: &'static str) -> Answer {
    if reasons.is_empty() {
        Answer::text("200 OK", well)
    } else {
        Answer::text("503 Service Unavailable", reasons.join("\n") + "\n")
    }
}
