//! A socket that is read and written as far as possible without blocking.
//!
//! The socket is edge-triggered: it counts as ready until it returns "would block". A connection that is still being
//! made returns "would block", too.

use std::io::{self, ErrorKind, Read, Write};

use bytes::{Buf, BytesMut};

use super::wire::{Seen, Wire};

/// Bytes that must be written to a socket.
pub(crate) trait Unwritten {
    /// Returns the bytes to be written first; empty if there are none.
    fn unwritten(&self) -> &[u8];

    /// Notes that `count` of these bytes were written.
    fn wrote(&mut self, count: usize);
}

impl Unwritten for BytesMut {
    fn unwritten(&self) -> &[u8] {
        self
    }

    fn wrote(&mut self, count: usize) {
        self.advance(count);
    }
}

/// Why a socket is no longer usable.
#[derive(Debug)]
pub(crate) enum Ended {
    /// The peer has closed its sending side.
    Closed,
    /// The socket accepts no bytes.
    Unwritten,
    Failed(io::Error),
}

impl Ended {
    /// Returns the reason as text. `closed`: the text if the peer has closed its sending side.
    pub(crate) fn why(&self, closed: &str) -> String {
        match self {
            Ended::Closed => closed.to_owned(),
            Ended::Unwritten => "nothing written".to_owned(),
            Ended::Failed(error) => error.to_string(),
        }
    }
}

pub(crate) struct Socket {
    pub(crate) wire: Wire,
    pub(crate) readable: bool,
    /// Whether the peer is known to have closed its sending side. The last bytes may still be unread.
    pub(crate) read_closed: bool,
    pub(crate) writable: bool,
}

impl Socket {
    /// Makes a socket that counts as ready to be read and written.
    pub(crate) fn new(wire: Wire) -> Socket {
        Socket {
            wire,
            readable: true,
            read_closed: false,
            writable: true,
        }
    }

    /// Makes a socket whose connection is still being made. An event will say whether the socket can be read or
    /// written.
    pub(crate) fn unready(wire: Wire) -> Socket {
        Socket {
            readable: false,
            writable: false,
            ..Socket::new(wire)
        }
    }

    /// Notes an event.
    pub(crate) fn note(&mut self, seen: &Seen) {
        self.readable |= seen.readable;
        self.read_closed |= seen.read_closed;
        self.writable |= seen.writable;
    }

    /// Reads once. `None`: no bytes are available now.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, Ended> {
        while self.readable {
            match self.wire.read(buffer) {
                Ok(0) => {
                    self.readable = false;
                    return Err(Ended::Closed);
                }
                Ok(count) => {
                    // A short read has emptied the socket, and the next byte causes a new event. But the end of the
                    // stream may have come together with the event for these bytes.
                    self.readable =
                        self.wire.may_have_more(count, buffer.len()) || self.read_closed;
                    return Ok(Some(count));
                }
                Err(error) if is_not_yet(error.kind()) => self.readable = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Ended::Failed(error)),
            }
        }
        Ok(None)
    }

    /// Writes as many of the bytes as the socket takes.
    pub(crate) fn write(&mut self, from: &mut impl Unwritten) -> Result<(), Ended> {
        while self.writable && !from.unwritten().is_empty() {
            match self.wire.write(from.unwritten()) {
                Ok(0) => return Err(Ended::Unwritten),
                Ok(count) => from.wrote(count),
                Err(error) if is_not_yet(error.kind()) => self.writable = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Ended::Failed(error)),
            }
        }
        if self.writable {
            match self.wire.flush() {
                Err(error) if is_not_yet(error.kind()) => self.writable = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Ended::Failed(error)),
                Ok(()) => {}
            }
        }
        Ok(())
    }
}

fn is_not_yet(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::NotConnected)
}
