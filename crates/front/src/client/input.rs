//! Bytes that a client has sent and the front has not taken yet.

use bytes::{Buf, BytesMut};
use pmnet_resp::{Arguments, Parser, ProtocolError, Status};

use super::arrivals::Arrivals;
use crate::limits::REQUESTS;
use crate::upstream::Time;

/// The kind of client, which decides about the limits of its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sender {
    /// A client that has logged in, or that need not log in.
    Known,
    /// A client that still has to log in, as far as is known.
    Stranger,
}

pub(crate) struct Input {
    bytes: BytesMut,
    parser: Parser,
    arrivals: Arrivals,
    /// Whether all complete commands have been taken.
    starved: bool,
    /// Whether the command at the head of the input is large, and the front does not know yet whether the client may
    /// send it.
    held: bool,
}

impl Default for Input {
    fn default() -> Input {
        Input {
            bytes: BytesMut::new(),
            parser: Parser::new(REQUESTS),
            arrivals: Arrivals::default(),
            starved: true,
            held: false,
        }
    }
}

impl Input {
    pub(crate) fn receive(&mut self, bytes: &[u8]) {
        self.starved = false;
        // The buffer grows with the bytes that have arrived, not with the announced length.
        self.bytes.extend_from_slice(bytes);
    }

    /// Whether more bytes may be received. The bound is `most`, or the length of the command at the head if it is
    /// longer.
    pub(crate) fn has_room(&self, most: usize) -> bool {
        let needed = if self.held { 0 } else { self.parser.wanted() };
        self.bytes.len() < most.max(needed)
    }

    /// Returns the number of bytes in the buffer.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn starved(&self) -> bool {
        self.starved
    }

    /// Notes that all bytes of the buffer had arrived at `now`. `timeout`: the time within which a command must be
    /// answered.
    pub(super) fn note_arrivals(&mut self, now: Time, timeout: Time) {
        self.arrivals.note(self.bytes.len(), now, timeout);
    }

    /// Checks whether the input begins with a complete command. From a stranger only small commands are accepted.
    pub(crate) fn poll(&mut self, from: Sender) -> Result<Status, ProtocolError> {
        let polled = self.parser.poll_of(&self.bytes, from == Sender::Stranger);
        self.held = polled.is_err();
        let status = polled?;
        if status == Status::Incomplete {
            self.starved = true;
            self.arrivals.await_rest();
        }
        Ok(status)
    }

    /// Returns the time when the complete command arrived.
    pub(super) fn arrived(&self) -> Option<Time> {
        self.arrivals.oldest()
    }

    pub(crate) fn arguments(&self) -> Arguments<'_> {
        self.parser.arguments(&self.bytes)
    }

    /// Returns the complete command's bytes; empty for a command without arguments.
    pub(crate) fn frame(&self) -> &[u8] {
        self.parser.frame(&self.bytes)
    }

    /// Removes the complete command from the buffer.
    pub(crate) fn consume(&mut self) {
        let taken = self.parser.consume();
        self.arrivals.take(taken);
        self.bytes.advance(taken);
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
    }

    /// Frees unused memory. An empty buffer keeps `most` bytes.
    pub(crate) fn shrink(&mut self, most: usize) {
        if self.bytes.is_empty() && self.bytes.capacity() > most {
            self.bytes = BytesMut::new();
        }
    }
}
