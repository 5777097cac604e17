//! One connection of the load generator: its buffers, its commands in flight, and its reconnects.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;

use mio::net::TcpStream;

use super::generator::Lane;
use super::run::Pending;
use crate::resp::{self, Reply};

/// Maximum number of bytes that one call reads.
pub const READ_BYTES: usize = 32 * 1024;
/// Maximum number of reads on one connection in one turn of the loop, so that the other connections do not wait long.
const READS_MAX: usize = 16;
/// Pause before the first attempt to reconnect, in nanoseconds. The pause doubles with each attempt, up to the maximum.
const BACKOFF_NS_MIN: u64 = 10_000_000;
/// Longest pause before an attempt to reconnect, in nanoseconds.
const BACKOFF_NS_MAX: u64 = 200_000_000;

/// State of the socket.
#[derive(Debug)]
pub enum Link {
    /// Not connected. The next attempt is at this time.
    Down { retry_ns: u64 },
    /// Being connected. The attempt is given up at this time.
    Connecting { stream: TcpStream, deadline_ns: u64 },
    /// Connected.
    Up { stream: TcpStream },
}

/// One connection, with the logical client that uses it.
#[derive(Debug)]
pub struct Connection {
    pub link: Link,
    /// Number of the logical client. After an operation of unknown outcome the connection gets a new number.
    pub client: u64,
    pub lane: Lane,
    pub out: Vec<u8>,
    out_at: usize,
    input: Vec<u8>,
    input_at: usize,
    pub pending: VecDeque<Pending>,
    backoff_ns: u64,
}

/// The reason why a connection was given up.
pub type Broken = String;

impl Connection {
    pub fn new(client: u64) -> Connection {
        Connection {
            link: Link::Down { retry_ns: 0 },
            client,
            lane: Lane::default(),
            out: Vec::new(),
            out_at: 0,
            input: Vec::new(),
            input_at: 0,
            pending: VecDeque::new(),
            backoff_ns: BACKOFF_NS_MIN,
        }
    }

    pub fn is_up(&self) -> bool {
        matches!(self.link, Link::Up { .. })
    }

    /// Starts to connect. The caller must register the stream.
    pub fn connect(&mut self, address: SocketAddr, deadline_ns: u64) -> Result<(), Broken> {
        let stream = TcpStream::connect(address).map_err(|error| format!("connect: {error}"))?;
        self.link = Link::Connecting {
            stream,
            deadline_ns,
        };
        Ok(())
    }

    /// Checks whether the connect has ended.
    pub fn finish_connect(&mut self) -> Result<(), Broken> {
        let Link::Connecting { stream, .. } = &self.link else {
            return Ok(());
        };
        if let Ok(Some(error)) | Err(error) = stream.take_error() {
            return Err(format!("connect: {error}"));
        }
        match stream.peer_addr() {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotConnected => return Ok(()),
            Err(error) => return Err(format!("connect: {error}")),
        }
        stream
            .set_nodelay(true)
            .map_err(|error| format!("connect: {error}"))?;
        let link = std::mem::replace(&mut self.link, Link::Down { retry_ns: 0 });
        if let Link::Connecting { stream, .. } = link {
            self.link = Link::Up { stream };
        }
        Ok(())
    }

    /// Gives up the connection: closes the socket, and returns all operations that were in flight.
    pub fn give_up(&mut self, now_ns: u64) -> VecDeque<Pending> {
        self.link = Link::Down {
            retry_ns: now_ns + self.backoff_ns,
        };
        self.backoff_ns = (self.backoff_ns * 2).min(BACKOFF_NS_MAX);
        self.out.clear();
        self.out_at = 0;
        self.input.clear();
        self.input_at = 0;
        std::mem::take(&mut self.pending)
    }

    /// Writes as many bytes as the socket accepts.
    pub fn flush(&mut self) -> Result<(), Broken> {
        let Link::Up { stream } = &mut self.link else {
            return Ok(());
        };
        while self.out_at < self.out.len() {
            match stream.write(&self.out[self.out_at..]) {
                Ok(0) => return Err("connection closed while writing".into()),
                Ok(sent) => self.out_at += sent,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(format!("write: {error}")),
            }
        }
        self.out.clear();
        self.out_at = 0;
        Ok(())
    }

    /// Reads the waiting bytes, with `scratch` as buffer. Returns whether more bytes may be waiting.
    pub fn fill(&mut self, scratch: &mut [u8]) -> Result<bool, Broken> {
        let Link::Up { stream } = &mut self.link else {
            return Ok(false);
        };
        if self.input_at == self.input.len() {
            self.input.clear();
        } else {
            self.input.drain(..self.input_at);
        }
        self.input_at = 0;
        for _ in 0..READS_MAX {
            match stream.read(scratch) {
                Ok(0) => return Err("connection closed by the server".into()),
                Ok(got) => {
                    self.input.extend_from_slice(&scratch[..got]);
                    if got < scratch.len() {
                        return Ok(false);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(format!("read: {error}")),
            }
        }
        Ok(true)
    }

    /// Returns the next reply, with the operation to which it belongs.
    pub fn next_reply(&mut self) -> Result<Option<(Pending, Reply)>, Broken> {
        loop {
            let Some((reply, used)) =
                resp::parse(&self.input[self.input_at..]).map_err(|error| error.to_string())?
            else {
                return Ok(None);
            };
            self.input_at += used;
            let mut pending = self
                .pending
                .pop_front()
                .ok_or("the server sent a reply that nobody asked for")?;
            self.backoff_ns = BACKOFF_NS_MIN;
            let reply = match pending.first.take() {
                Some(first) => replicated(first, reply, pending.replicas),
                None if pending.replicas > 0 => {
                    pending.first = Some(reply);
                    self.pending.push_front(pending);
                    continue;
                }
                None => reply,
            };
            return Ok(Some((pending, reply)));
        }
    }
}

/// Returns the outcome of a command that a `WAIT` follows, from the replies to both.
fn replicated(first: Reply, wait: Reply, wanted: u8) -> Reply {
    match (first, wait) {
        (Reply::Error(text), _) | (_, Reply::Error(text)) => Reply::Error(text),
        (first, Reply::Integer(count)) if count >= i64::from(wanted) => first,
        (_, other) => Reply::Error(format!(
            "WAIT for {wanted} replicas was answered with {other:?}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_counts_only_with_all_its_replicas() {
        let ok = || Reply::Status(b"OK".to_vec());
        let refused = || Reply::Error("ERR no".into());
        assert_eq!(replicated(ok(), Reply::Integer(2), 2), ok());
        assert_eq!(replicated(refused(), Reply::Integer(2), 2), refused());
        assert_eq!(replicated(ok(), refused(), 2), refused());
        for short in [Reply::Integer(1), Reply::Nil] {
            assert!(matches!(replicated(ok(), short, 2), Reply::Error(_)));
        }
    }
}
