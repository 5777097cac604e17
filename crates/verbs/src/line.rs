//! One TCP connection with messages of one length. It never blocks, and its buffers are bounded.

use std::io::{self, Read, Write};
use std::time::Duration;

use mio::net::TcpStream;
use socket2::{SockRef, TcpKeepalive};

use crate::message::MESSAGE_BYTES;

/// Maximum number of sent bytes that a partner may leave unread.
const UNSENT_MAX: usize = 1024 * MESSAGE_BYTES;

/// The reason why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The partner closed the connection, or the connection broke.
    Closed,
    /// The partner sent bytes that are no message.
    Garbage,
    /// The partner does not read.
    Unread,
    /// The partner has not proven that it has the key.
    Unproven,
}

/// One TCP connection with messages of one length.
#[derive(Debug)]
pub struct Line {
    stream: TcpStream,
    got: [u8; MESSAGE_BYTES],
    filled: usize,
    unsent: Vec<u8>,
}

impl Line {
    /// Returns a line over this connection. If the partner's computer fails, the connection ends within a few seconds.
    #[must_use]
    pub fn new(stream: TcpStream) -> Line {
        let probe = TcpKeepalive::new()
            .with_time(Duration::from_secs(2))
            .with_interval(Duration::from_secs(1))
            .with_retries(3);
        let socket = SockRef::from(&stream);
        let set = [
            socket.set_tcp_keepalive(&probe),
            socket.set_tcp_nodelay(true),
        ];
        for error in set.into_iter().filter_map(Result::err) {
            tracing::debug!(%error, "an option of a TCP socket");
        }
        Line {
            stream,
            got: [0; MESSAGE_BYTES],
            filled: 0,
            unsent: Vec::new(),
        }
    }

    /// Returns the TCP stream.
    pub const fn stream(&mut self) -> &mut TcpStream {
        &mut self.stream
    }

    /// Returns the bytes of the next message, if all have arrived.
    ///
    /// # Errors
    /// [`Ended`].
    pub fn next(&mut self) -> Result<Option<[u8; MESSAGE_BYTES]>, Ended> {
        loop {
            match self.stream.read(&mut self.got[self.filled..]) {
                Ok(0) => return Err(Ended::Closed),
                Ok(count) => self.filled += count,
                Err(error) if is_patience(&error) => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Err(Ended::Closed),
            }
            if self.filled == MESSAGE_BYTES {
                self.filled = 0;
                return Ok(Some(self.got));
            }
        }
    }

    /// Sends a message now, or leaves it for a later [`Line::flush`].
    ///
    /// # Errors
    /// [`Ended`].
    pub fn send(&mut self, message: &[u8; MESSAGE_BYTES]) -> Result<(), Ended> {
        if self.unsent.len() >= UNSENT_MAX {
            return Err(Ended::Unread);
        }
        self.unsent.extend_from_slice(message);
        self.flush()
    }

    /// Sends the bytes that wait.
    ///
    /// # Errors
    /// [`Ended`].
    pub fn flush(&mut self) -> Result<(), Ended> {
        while !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(count) => drop(self.unsent.drain(..count)),
                Err(error) if is_patience(&error) => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Err(Ended::Closed),
            }
        }
        Ok(())
    }
}

/// Returns whether the error is only temporary: the call would block, or the connection is still being made.
fn is_patience(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::NotConnected
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::time::Instant;

    const SOME: [u8; MESSAGE_BYTES] = [5; MESSAGE_BYTES];

    /// Returns a line, and the TCP stream at its other end.
    fn line() -> (Line, std::net::TcpStream) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let other = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (own, _) = listener.accept().unwrap();
        own.set_nonblocking(true).unwrap();
        (Line::new(TcpStream::from_std(own)), other)
    }

    /// Waits up to five seconds for a message, and returns it.
    fn heard(line: &mut Line) -> Result<[u8; MESSAGE_BYTES], Ended> {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(5) {
            if let Some(message) = line.next()? {
                return Ok(message);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("nothing came");
    }

    #[test]
    fn a_message_may_come_byte_by_byte_and_a_part_of_one_is_none() {
        let (mut line, mut other) = line();
        assert_eq!(line.next(), Ok(None));
        for byte in SOME {
            other.write_all(&[byte]).unwrap();
        }
        assert_eq!(heard(&mut line), Ok(SOME));
        other.write_all(&SOME[..MESSAGE_BYTES - 1]).unwrap();
        drop(other);
        assert_eq!(heard(&mut line), Err(Ended::Closed));
    }

    #[test]
    fn a_partner_that_reads_nothing_or_goes_ends_the_line() {
        let (mut line, other) = line();
        let ended = (0..1_000_000).find_map(|_| line.send(&SOME).err());
        assert_eq!(ended, Some(Ended::Unread));
        drop(other);
        assert_eq!(heard(&mut line), Err(Ended::Closed));
    }
}
