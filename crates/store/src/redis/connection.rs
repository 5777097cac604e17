//! One blocking connection to Redis. Commands are collected and sent with one write, and their raw replies are read in
//! order.
//!
//! Invariants:
//!
//! - Every call ends within [`CALL_SECONDS`] (plus one socket timeout). If Redis says on another connection that it
//!   runs a script, the limit is [`SCRIPT_SECONDS`], because the caller must learn the outcome of the script.
//!
//! - A connection that has failed once is never used again, because replies would no longer match commands. Its owner
//!   drops it.
//!
//! - Between calls of the store the connection is in database 0, outside MULTI.
//!
//! This module does not interpret replies.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use pmnet_resp::{ReplyLimits, Scanner, write_command};
use pmnet_server::StoreError;
use pmnet_tls::{Distrust, Flags, Secret, Stream};

use super::lookup::addresses;
use super::url::RedisUrl;

/// Longest time of one exchange, in seconds. An exchange lasts from the sending of the commands until the last reply.
pub const CALL_SECONDS: u64 = 5;
/// Longest time of one exchange while Redis runs a script, in seconds. By default, a client of a front waits for the
/// same time.
const SCRIPT_SECONDS: u64 = 10;
/// Longest time in which Redis must answer whether it runs a script, in seconds.
const BUSY_SECONDS: u64 = 1;
/// Answer of Redis to all clients while it runs a script for longer than `busy-reply-threshold`.
const BUSY: &[u8] = b"-BUSY ";
/// Longest time to establish a TCP connection, in seconds.
const CONNECT_SECONDS: u64 = 2;
/// Keep-alive of a connection: seconds of silence before the first probe, seconds between probes, and their number.
const ALIVE_AFTER: Duration = Duration::from_secs(5);
const ALIVE_EVERY: Duration = Duration::from_secs(2);
const ALIVE_TIMES: u32 = 3;
/// Bytes read from the socket at a time.
const READ_BYTES: usize = 64 * 1024;
/// Limits of replies. Redis's own longest string has 512 MiB. The bound of a line exceeds the longest reply that can be
/// passed on. A whole reply has no bound in bytes: only the time limit [`CALL_SECONDS`] bounds it.
const REPLIES: ReplyLimits = ReplyLimits {
    line_bytes: 17 << 20,
    bulk_bytes: 1 << 30,
    reply_bytes: usize::MAX,
};

/// Names of the options in the URL, for messages to an operator.
const FLAGS: Flags = Flags {
    ca: "ca=FILE",
    certificate: "cert=FILE&key=FILE",
};

/// A TCP socket, with or without TLS.
enum Wire {
    Plain(TcpStream),
    Tls(Box<Stream<TcpStream>>),
}

impl Wire {
    fn socket(&self) -> &TcpStream {
        match self {
            Wire::Plain(stream) => stream,
            Wire::Tls(stream) => stream.socket(),
        }
    }
}

impl Read for Wire {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Wire::Plain(stream) => stream.read(buffer),
            Wire::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Wire {
    fn write(&mut self, buffer: &[u8]) -> std::io::Result<usize> {
        match self {
            Wire::Plain(stream) => stream.write(buffer),
            Wire::Tls(stream) => stream.write(buffer),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        match self {
            Wire::Plain(stream) => stream.flush(),
            Wire::Tls(stream) => stream.flush(),
        }
    }
}

/// A connection to one Redis server.
pub struct Connection {
    stream: Wire,
    name: String,
    /// Address at which to ask whether Redis runs a script; `None` for a connection that asks this question.
    url: Option<RedisUrl>,
    /// Address to which the host name was resolved.
    pub peer: SocketAddr,
    out: Vec<u8>,
    input: BytesMut,
    scratch: Vec<u8>,
    scanner: Scanner,
    begun: Instant,
    deadline: Instant,
    /// RESP version of the server's replies: 2 or 3.
    pub protocol: u8,
    /// Database that is selected once all commands written so far have run.
    pub database: u32,
}

impl Connection {
    /// Connects to Redis, but sends no command yet.
    ///
    /// # Errors
    /// `Retry` if the name does not resolve, or if no Redis answers.
    pub fn open(url: &RedisUrl) -> Result<Connection, StoreError> {
        let mut connection = Connection::open_within(url, CALL_SECONDS)?;
        connection.url = Some(url.clone());
        Ok(connection)
    }

    /// Connects to Redis with a limit of `seconds` for each read and write.
    ///
    /// # Errors
    /// The errors of [`Connection::open`].
    pub fn open_within(url: &RedisUrl, seconds: u64) -> Result<Connection, StoreError> {
        let timeout = Some(Duration::from_secs(seconds));
        let name = url.endpoint();
        let unreachable = |error: std::io::Error| {
            StoreError::Retry(format!("PM2208 Redis at {name}: {}", text(&error)))
        };
        let mut last = std::io::Error::new(ErrorKind::NotFound, "the name has no address");
        for address in addresses(&url.host, url.port).map_err(unreachable)? {
            match TcpStream::connect_timeout(&address, Duration::from_secs(CONNECT_SECONDS)) {
                Ok(stream) => {
                    stream.set_nodelay(true).map_err(unreachable)?;
                    stream.set_read_timeout(timeout).map_err(unreachable)?;
                    stream.set_write_timeout(timeout).map_err(unreachable)?;
                    keep_alive(&stream).map_err(unreachable)?;
                    let stream = match &url.tls {
                        None => Wire::Plain(stream),
                        Some(tls) => {
                            let mut stream = tls.connect(stream).map_err(unreachable)?;
                            let deadline = Instant::now() + Duration::from_secs(seconds);
                            while stream.is_handshaking() {
                                if Instant::now() >= deadline {
                                    return Err(unreachable(ErrorKind::TimedOut.into()));
                                }
                                stream.shake_hands().map_err(unreachable)?;
                            }
                            Wire::Tls(Box::new(stream))
                        }
                    };
                    return Ok(Connection {
                        stream,
                        name,
                        url: None,
                        peer: address,
                        out: Vec::new(),
                        input: BytesMut::new(),
                        scratch: vec![0; READ_BYTES],
                        scanner: Scanner::new(REPLIES),
                        begun: Instant::now(),
                        deadline: Instant::now(),
                        protocol: 2,
                        database: 0,
                    });
                }
                Err(error) => last = error,
            }
        }
        Err(unreachable(last))
    }

    /// Returns whether Redis has closed the connection, or the connection has failed. Call this only between calls,
    /// when no reply is outstanding. The function does not wait.
    pub fn is_over(&mut self) -> bool {
        let waits = |wire: &Wire, waits: bool| wire.socket().set_nonblocking(!waits);
        if waits(&self.stream, false).is_err() {
            return true;
        }
        // Bytes that Redis sends without a question make the connection unusable, too.
        let read = self.stream.read(&mut [0]);
        let still = matches!(&read, Err(error) if is_timeout(error) || error.kind() == ErrorKind::Interrupted);
        waits(&self.stream, true).is_err() || !still
    }

    /// Adds one command to the bytes that [`Connection::send`] will write.
    pub fn add(&mut self, arguments: &[&[u8]]) {
        write_command(&mut self.out, arguments);
    }

    /// Returns the bytes that [`Connection::send`] will write. Commands that are already encoded are appended to this
    /// buffer.
    pub fn out(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    /// Adds a SELECT if the connection is in another database. Returns whether the SELECT will have a reply.
    pub fn add_select(&mut self, database: u32) -> bool {
        if self.database == database {
            return false;
        }
        self.database = database;
        self.add(&[b"SELECT", database.to_string().as_bytes()]);
        true
    }

    /// Writes the added commands, and starts the time limit of the exchange.
    ///
    /// # Errors
    /// `Retry` on any failure of the connection.
    pub fn send(&mut self) -> Result<(), StoreError> {
        self.begun = Instant::now();
        self.deadline = self.begun + Duration::from_secs(CALL_SECONDS);
        let mut at = 0;
        while at < self.out.len() {
            if Instant::now() >= self.deadline {
                return Err(self.failed("does not take our commands in time"));
            }
            match self.stream.write(&self.out[at..]) {
                Ok(0) => return Err(self.failed("closed the connection")),
                Ok(written) => at += written,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed_io(&error)),
            }
        }
        self.stream
            .flush()
            .map_err(|error| self.failed_io(&error))?;
        // The memory for a very large batch must not stay in use.
        self.out.clear();
        self.out.shrink_to(READ_BYTES);
        Ok(())
    }

    /// Returns the bytes of the next reply, unchanged.
    ///
    /// # Errors
    /// `Retry` on any failure, on a timeout, and on bytes that are not RESP.
    pub fn reply(&mut self) -> Result<Bytes, StoreError> {
        loop {
            match self.scanner.poll(&self.input) {
                Ok(Some(length)) => return Ok(self.input.split_to(length).freeze()),
                Ok(None) => {}
                Err(why) => return Err(self.failed(&format!("sent what is not RESP: {why}"))),
            }
            if Instant::now() >= self.deadline {
                self.wait_for_script()?;
            }
            match self.stream.read(&mut self.scratch) {
                Ok(0) => return Err(self.failed("closed the connection")),
                Ok(read) => self.input.extend_from_slice(&self.scratch[..read]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if is_timeout(&error) => self.wait_for_script()?,
                Err(error) => return Err(self.failed_io(&error)),
            }
        }
    }

    /// Sends one command and returns its reply.
    ///
    /// # Errors
    /// The errors of [`Connection::send`] and [`Connection::reply`].
    pub fn call(&mut self, arguments: &[&[u8]]) -> Result<Bytes, StoreError> {
        self.add(arguments);
        self.send()?;
        self.reply()
    }

    /// Logs in as `url` requires, and returns the reply; `None`: `url` has no password, so there is no login.
    ///
    /// # Errors
    /// The errors of [`Connection::call`].
    pub fn log_in(&mut self, url: &RedisUrl) -> Result<Option<Bytes>, StoreError> {
        if !self.add_login(url) {
            return Ok(None);
        }
        self.send()?;
        self.reply().map(Some)
    }

    /// Adds the command that logs in. Returns false if `url` has no password.
    fn add_login(&mut self, url: &RedisUrl) -> bool {
        let Some(password) = url.password.as_ref().map(Secret::bytes) else {
            return false;
        };
        match &url.user {
            Some(user) => self.add(&[b"AUTH", user.as_bytes(), &password]),
            None => self.add(&[b"AUTH", &password]),
        }
        true
    }

    /// Extends the time limit of the exchange if Redis runs a script. Called when the time limit has passed.
    fn wait_for_script(&mut self) -> Result<(), StoreError> {
        let until = self.begun + Duration::from_secs(SCRIPT_SECONDS);
        let more = self.deadline < until && self.url.as_ref().is_some_and(is_busy);
        if !more {
            return Err(self.failed("does not answer in time"));
        }
        self.deadline = until;
        Ok(())
    }

    fn failed(&self, what: &str) -> StoreError {
        StoreError::Retry(format!("PM2209 Redis at {} {what}", self.name))
    }

    fn failed_io(&self, error: &std::io::Error) -> StoreError {
        if is_timeout(error) {
            self.failed("does not answer in time")
        } else {
            self.failed(&format!("lost: {}", text(error)))
        }
    }
}

/// Returns an error as a text. For an error about certificates, the text contains advice.
fn text(error: &std::io::Error) -> String {
    match Distrust::of(error) {
        Some(why) => format!("{error}. That is: {}", why.sentence(FLAGS)),
        None => error.to_string(),
    }
}

/// Switches keep-alive on. If a machine disappears without closing the connection, it is noticed within about ten
/// seconds, even while no command is sent.
fn keep_alive(stream: &TcpStream) -> std::io::Result<()> {
    use rustix::net::sockopt;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, ALIVE_AFTER)?;
    sockopt::set_tcp_keepintvl(stream, ALIVE_EVERY)?;
    Ok(sockopt::set_tcp_keepcnt(stream, ALIVE_TIMES)?)
}

fn is_timeout(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// Returns whether Redis says that it runs a script.
fn is_busy(url: &RedisUrl) -> bool {
    let ask = || -> Result<bool, StoreError> {
        let mut connection = Connection::open_within(url, BUSY_SECONDS)?;
        let logs_in = connection.add_login(url);
        connection.add(&[b"PING"]);
        connection.send()?;
        if logs_in {
            connection.reply()?;
        }
        Ok(connection.reply()?.starts_with(BUSY))
    };
    ask().unwrap_or(false)
}
