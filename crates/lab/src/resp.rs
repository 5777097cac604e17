//! A small blocking RESP2 client with deadlines, for the load generator, the checkers, the harness and the demo.
//!
//! Invariant: every call of [`Client`] ends within its timeout.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use pmnet_resp::ReplyLimits;
use pmnet_resp::value::ValueError;
pub use pmnet_resp::{Reply, write_command};

/// Limits of a reply. Strings may be as long as Redis allows.
const REPLIES: ReplyLimits = ReplyLimits {
    line_bytes: 64 * 1024,
    bulk_bytes: 512 * 1024 * 1024,
    reply_bytes: usize::MAX,
};
/// Maximum number of bytes that one call reads from the socket.
const READ_BYTES: usize = 64 * 1024;

/// The reason why a call returned no reply.
#[derive(Debug, thiserror::Error)]
pub enum RespError {
    /// The bytes are not RESP2.
    #[error("not a RESP reply: {0}")]
    Protocol(#[from] ValueError),
    /// The socket failed. After a timeout the connection must not be used again.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The peer closed the connection.
    #[error("connection closed by the server")]
    Closed,
    /// The server answered with an error, but the caller needs data.
    #[error("the server answered: {0}")]
    Server(String),
}

/// Parses one reply at the start of `bytes`. Returns the reply and its length; `None` if the reply is incomplete.
///
/// # Errors
/// Fails if the bytes are not a reply: [`RespError::Protocol`].
pub fn parse(bytes: &[u8]) -> Result<Option<(Reply, usize)>, RespError> {
    Ok(Reply::parse(bytes, &REPLIES)?)
}

/// A blocking connection. Every call ends within the timeout that [`Client::connect`] got.
#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
    input: Vec<u8>,
    timeout: Duration,
}

impl Client {
    /// Connects. `timeout` limits the connect, and the whole of each later call.
    ///
    /// # Errors
    /// Fails if the socket cannot be connected.
    pub fn connect(address: SocketAddr, timeout: Duration) -> Result<Client, RespError> {
        let stream = TcpStream::connect_timeout(&address, timeout)?;
        stream.set_nodelay(true)?;
        Ok(Client {
            stream,
            input: Vec::new(),
            timeout,
        })
    }

    /// Sends one command and returns its reply, which may be an error reply.
    ///
    /// # Errors
    /// Fails if the call failed: [`RespError`]. The connection must not be used again.
    pub fn call<A: AsRef<[u8]>>(&mut self, arguments: &[A]) -> Result<Reply, RespError> {
        let mut out = Vec::new();
        write_command(&mut out, arguments);
        let mut replies = self.exchange(&out, 1)?;
        replies.pop().ok_or(RespError::Closed)
    }

    /// Sends one command as [`Client::call`] does, and turns an error reply into an error.
    ///
    /// # Errors
    /// Fails if the call failed, or the reply is an error: [`RespError`].
    pub fn ask<A: AsRef<[u8]>>(&mut self, arguments: &[A]) -> Result<Reply, RespError> {
        match self.call(arguments)? {
            Reply::Error(text) => Err(RespError::Server(text)),
            reply => Ok(reply),
        }
    }

    /// Sends several commands, which are already in RESP, with one write. Returns their replies in order.
    ///
    /// # Errors
    /// Fails if the call failed: [`RespError`]. The connection must not be used again.
    pub fn exchange(&mut self, commands: &[u8], count: usize) -> Result<Vec<Reply>, RespError> {
        let deadline = Instant::now() + self.timeout;
        self.stream.set_write_timeout(Some(self.timeout))?;
        self.stream.write_all(commands)?;
        let mut replies = Vec::new();
        let mut start = 0;
        while replies.len() < count {
            if let Some((reply, length)) = parse(&self.input[start..])? {
                replies.push(reply);
                start += length;
                continue;
            }
            self.input.drain(..start);
            start = 0;
            self.fill(deadline)?;
        }
        self.input.drain(..start);
        Ok(replies)
    }

    fn fill(&mut self, deadline: Instant) -> Result<(), RespError> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(std::io::Error::from(ErrorKind::TimedOut).into());
        }
        self.stream.set_read_timeout(Some(left))?;
        let old = self.input.len();
        self.input.resize(old + READ_BYTES, 0);
        let got = match self.stream.read(&mut self.input[old..]) {
            Ok(got) => got,
            Err(error) => {
                self.input.truncate(old);
                return match error.kind() {
                    ErrorKind::Interrupted => Ok(()),
                    ErrorKind::WouldBlock => Err(std::io::Error::from(ErrorKind::TimedOut).into()),
                    _ => Err(error.into()),
                };
            }
        };
        self.input.truncate(old + got);
        if got == 0 {
            return Err(RespError::Closed);
        }
        Ok(())
    }
}
