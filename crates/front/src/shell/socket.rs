//! A socket that is read from and written to as far as that goes now.
//!
//! Edge-triggered: it counts as ready until it says "would block". A connection that is still being made says so too.

use std::io::{self, ErrorKind, Read, Write};

use bytes::{Buf, BytesMut};

use super::wire::{Seen, Wire};

/// Bytes that are to be written to a socket.
pub(crate) trait Unwritten {
    /// Returns the bytes that are to be written first; none if nothing is to be written.
    fn unwritten(&self) -> &[u8];

    /// `count` of these bytes were written.
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

/// Why a socket is of no more use.
#[derive(Debug)]
pub(crate) enum Ended {
    /// The peer sends no more.
    Closed,
    /// It takes no bytes.
    Unwritten,
    Failed(io::Error),
}

impl Ended {
    /// The reason in words. `closed`: if the peer sends no more.
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
    /// The peer is known to have closed its sending side; the last bytes may still be unread.
    pub(crate) read_closed: bool,
    pub(crate) writable: bool,
}

impl Socket {
    /// A socket that may be ready for anything.
    pub(crate) fn new(wire: Wire) -> Socket {
        Socket {
            wire,
            readable: true,
            read_closed: false,
            writable: true,
        }
    }

    /// A connection that is still being made: an event will say what it is ready for.
    pub(crate) fn unready(wire: Wire) -> Socket {
        Socket {
            readable: false,
            writable: false,
            ..Socket::new(wire)
        }
    }

    /// Remembers what an event says.
    pub(crate) fn note(&mut self, seen: &Seen) {
        self.readable |= seen.readable;
        self.read_closed |= seen.read_closed;
        self.writable |= seen.writable;
    }

    /// Reads once. `None`: nothing is there now.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, Ended> {
        while self.readable {
            match self.wire.read(buffer) {
                Ok(0) => {
                    self.readable = false;
                    return Err(Ended::Closed);
                }
                Ok(count) => {
                    // A short read has emptied the socket; the next byte is a new edge. But the end may have come with the
                    // same edge.
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

    /// Writes what there is, as far as it goes.
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
