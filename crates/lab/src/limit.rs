//! `pmnet-lab resp-limit`: a server that answers every `SET` and `GET` at once and stores nothing.
//!
//! Purpose: an upper bound for any server of the Redis protocol, on the same machine and with the same client. A real
//! server also reads commands and writes replies, and does other work in addition. One thread works in turns: it reads
//! all waiting commands, and then writes to each client once. So with many clients, each client often receives several
//! replies at a time. The thread sleeps when no command waits, unless an option makes it poll for a while. This server
//! is not a database.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};
use pmnet_resp::request::{Parser, Status};
use pmnet_resp::{Arguments, RequestLimits, write_bulk, write_error, write_header};

/// Maximum size of a command, in bytes.
const COMMAND_BYTES_MAX: usize = 64 << 20;
/// Maximum size of the value that answers a `GET`, in bytes.
pub const VALUE_BYTES_MAX: usize = 16 << 20;
/// Maximum number of connections at a time. Further connections are closed.
const CONNECTIONS_MAX: usize = 10_000;
/// Maximum number of bytes that one call reads.
const READ_BYTES: usize = 64 * 1024;
/// Number of unread bytes of replies from which on the server reads no further commands of a client.
const UNREAD_BYTES_MAX: usize = 4 << 20;
/// Maximum number of events that one poll returns.
const EVENTS_MAX: usize = 1024;

const LISTENER: Token = Token(0);
const WAKER: Token = Token(1);
/// Token of the first connection.
const FIRST: usize = 2;

/// A server that listens. [`Limit::run`] makes the server serve.
pub struct Limit {
    poll: Poll,
    /// This field keeps the waker alive, because a wake-up is lost when the last handle to its waker is dropped.
    waker: Arc<Waker>,
    listener: TcpListener,
    connections: Vec<Option<Connection>>,
    free: Vec<usize>,
    /// Clients to which the server must write after it has read all waiting commands.
    dirty: Vec<usize>,
    spin: Duration,
    answers: Answers,
    scratch: Vec<u8>,
}

/// The connection of one client.
struct Connection {
    stream: TcpStream,
    parser: Parser,
    /// Received bytes, beginning with the first incomplete command.
    input: Vec<u8>,
    output: Vec<u8>,
}

/// The replies, which are prepared at the start.
struct Answers {
    /// The reply to every `GET`.
    value: Vec<u8>,
}

impl Limit {
    /// Binds a server to an address. The server will answer every `GET` with `value_bytes` bytes. After activity, the
    /// server's thread polls for `spin` without sleeping.
    ///
    /// # Errors
    /// Fails if the server cannot listen at this address, or if the system gives no poll handle.
    pub fn bind(listen: SocketAddr, value_bytes: usize, spin: Duration) -> anyhow::Result<Limit> {
        let mut listener =
            TcpListener::bind(listen).with_context(|| format!("cannot listen on {listen}"))?;
        let poll = Poll::new().context("cannot poll sockets")?;
        poll.registry()
            .register(&mut listener, LISTENER, Interest::READABLE)
            .context("cannot poll sockets")?;
        let waker = Waker::new(poll.registry(), WAKER).context("cannot poll sockets")?;
        let mut value = Vec::new();
        write_bulk(&mut value, &vec![b'x'; value_bytes.min(VALUE_BYTES_MAX)]);
        Ok(Limit {
            poll,
            waker: Arc::new(waker),
            listener,
            connections: Vec::new(),
            free: Vec::new(),
            dirty: Vec::new(),
            spin,
            answers: Answers { value },
            scratch: vec![0; READ_BYTES],
        })
    }

    /// Returns the address at which the server listens.
    ///
    /// # Errors
    /// Fails if the kernel gives no answer.
    pub fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Returns a handle with which any thread can end [`Limit::run`].
    #[must_use]
    pub fn stopper(&self) -> Arc<Waker> {
        Arc::clone(&self.waker)
    }

    /// Serves until the server is stopped.
    ///
    /// # Errors
    /// Fails if the sockets cannot be polled. An error of a single connection ends only this connection.
    pub fn run(&mut self) -> anyhow::Result<()> {
        let mut events = Events::with_capacity(EVENTS_MAX);
        let mut active = Instant::now();
        loop {
            let wait = (active.elapsed() < self.spin).then_some(Duration::ZERO);
            match self.poll.poll(&mut events, wait) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error).context("cannot poll sockets"),
            }
            for event in &events {
                match event.token() {
                    WAKER => return Ok(()),
                    LISTENER => self.accept(),
                    Token(number) => self.take_in(number - FIRST, event.is_read_closed()),
                }
            }
            self.write();
            if !events.is_empty() && !self.spin.is_zero() {
                active = Instant::now();
            }
        }
    }

    fn accept(&mut self) {
        // An error means that no connection is waiting, or that a client has already closed its connection.
        while let Ok((mut stream, _)) = self.listener.accept() {
            if self.free.is_empty() && self.connections.len() < CONNECTIONS_MAX {
                self.free.push(self.connections.len());
                self.connections.push(None);
            }
            let Some(&index) = self.free.last() else {
                continue;
            };
            let interest = Interest::READABLE | Interest::WRITABLE;
            let registry = self.poll.registry();
            if stream.set_nodelay(true).is_ok()
                && registry
                    .register(&mut stream, Token(FIRST + index), interest)
                    .is_ok()
            {
                self.free.pop();
                self.connections[index] = Some(Connection::new(stream));
            }
        }
    }

    /// Reads a client's commands. `closed`: the client will send no more bytes.
    fn take_in(&mut self, index: usize, closed: bool) {
        let Some(Some(connection)) = self.connections.get_mut(index) else {
            return;
        };
        let taken = connection.take_in(closed, &self.answers, &mut self.scratch);
        if taken.is_ok() {
            self.dirty.push(index);
        } else {
            self.connections[index] = None;
            self.free.push(index);
        }
    }

    fn write(&mut self) {
        for index in self.dirty.drain(..) {
            if let Some(connection) = &mut self.connections[index]
                && connection.flush().is_err()
            {
                self.connections[index] = None;
                self.free.push(index);
            }
        }
    }
}

/// The connection is no longer usable.
struct Ended;

impl Connection {
    fn new(stream: TcpStream) -> Connection {
        Connection {
            stream,
            parser: Parser::new(RequestLimits {
                bulk_bytes: COMMAND_BYTES_MAX,
                command_bytes: COMMAND_BYTES_MAX,
            }),
            input: Vec::new(),
            output: Vec::new(),
        }
    }

    /// Reads and answers until the socket is empty, or until the client has too many unread replies.
    fn take_in(
        &mut self,
        closed: bool,
        answers: &Answers,
        scratch: &mut [u8],
    ) -> Result<(), Ended> {
        loop {
            if self.output.len() > UNREAD_BYTES_MAX {
                self.flush()?;
                if self.output.len() > UNREAD_BYTES_MAX {
                    // When the client can receive more, an event calls this function again.
                    return Ok(());
                }
            }
            let count = match self.stream.read(scratch) {
                Ok(0) => return Err(Ended),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => return Err(Ended),
            };
            self.input.extend_from_slice(&scratch[..count]);
            if !self.answer(answers) {
                self.flush()?;
                return Err(Ended);
            }
            // A read that does not fill the buffer has emptied the socket, and the next byte causes a new event. But
            // the end of the stream may have arrived together with these bytes.
            if count < scratch.len() && !closed {
                return Ok(());
            }
        }
    }

    /// Answers all complete commands. Returns false if the input is not a command.
    fn answer(&mut self, answers: &Answers) -> bool {
        let mut at = 0;
        loop {
            let rest = &self.input[at..];
            match self.parser.poll(rest) {
                Ok(Status::Incomplete) => {
                    self.input.drain(..at);
                    return true;
                }
                Ok(Status::Complete) => {
                    let arguments = self.parser.arguments(rest);
                    // An empty line is not a command.
                    if !arguments.is_empty() {
                        answers.to(&arguments, &mut self.output);
                    }
                    at += self.parser.consume();
                }
                Err(error) => {
                    write_error(&mut self.output, &format!("ERR {error}"));
                    return false;
                }
            }
        }
    }

    fn flush(&mut self) -> Result<(), Ended> {
        let mut at = 0;
        while at < self.output.len() {
            match self.stream.write(&self.output[at..]) {
                Ok(0) => return Err(Ended),
                Ok(count) => at += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(Ended),
            }
        }
        self.output.drain(..at);
        Ok(())
    }
}

impl Answers {
    /// Appends the reply to a command.
    fn to(&self, command: &Arguments<'_>, out: &mut Vec<u8>) {
        if command.is(0, "SET") && command.len() >= 3 {
            out.extend_from_slice(b"+OK\r\n");
        } else if command.is(0, "GET") && command.len() == 2 {
            out.extend_from_slice(&self.value);
        } else if command.is(0, "PING") {
            out.extend_from_slice(b"+PONG\r\n");
        } else if command.is(0, "CONFIG") {
            // redis-benchmark reads some settings before it begins.
            write_header(out, 0);
        } else {
            write_error(
                out,
                "ERR resp-limit knows SET key value, GET key and PING only",
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::{Client, Reply, write_command};

    const CALL_MAX: Duration = Duration::from_secs(10);

    /// Runs `work` with a client of a server whose `GET` returns five bytes.
    fn with_client(work: impl FnOnce(&mut Client)) {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut limit = Limit::bind(any, 5, Duration::from_micros(50)).unwrap();
        let address = limit.local_addr().unwrap();
        let stopper = limit.stopper();
        let serving = std::thread::spawn(move || limit.run());
        work(&mut Client::connect(address, CALL_MAX).unwrap());
        stopper.wake().unwrap();
        drop(stopper);
        serving.join().unwrap().unwrap();
    }

    #[test]
    fn every_command_has_its_reply_in_order() {
        with_client(|client| {
            let ok = || Reply::Status(b"OK".to_vec());
            let value = || Reply::Bulk(b"xxxxx".to_vec());
            assert_eq!(client.call(&["set", "k", "v"]).unwrap(), ok());
            assert_eq!(client.call(&["GET", "k"]).unwrap(), value());
            assert_eq!(
                client.call(&["PING"]).unwrap(),
                Reply::Status(b"PONG".to_vec())
            );
            for other in [&["INCR", "k"][..], &["SET", "k"], &["GET"]] {
                assert!(matches!(client.call(other).unwrap(), Reply::Error(_)));
            }
            // In both directions the data exceeds what one read takes.
            let filler = vec![b'y'; 3_000];
            let mut commands = Vec::new();
            for _ in 0..100 {
                write_command(&mut commands, &[b"SET".as_slice(), b"k", &filler]);
                write_command(&mut commands, &["GET", "k"]);
            }
            let replies = client.exchange(&commands, 200).unwrap();
            for pair in replies.chunks(2) {
                assert_eq!(pair, [ok(), value()]);
            }
        });
    }

    #[test]
    fn what_is_no_command_ends_the_connection() {
        with_client(|client| {
            let replies = client.exchange(b"*1\r\n+PING\r\n", 1).unwrap();
            assert!(matches!(&replies[0], Reply::Error(text) if text.contains("Protocol error")));
            assert!(client.call(&["PING"]).is_err());
        });
    }
}
