//! What a client has sent and the front has not taken yet.

use bytes::{Buf, BytesMut};
use pmnet_resp::{Arguments, Parser, ProtocolError, Status};

use super::arrivals::Arrivals;
use crate::limits::REQUESTS;
use crate::upstream::Time;

/// The kind of client that sends, which decides about its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sender {
    /// A client that has logged in, or need not.
    Known,
    /// One that has still to log in, as far as is known.
    Stranger,
}

pub(crate) struct Input {
    bytes: BytesMut,
    parser: Parser,
    arrivals: Arrivals,
    /// All whole commands are taken.
    starved: bool,
    /// It is not known yet whether the command at its head may be so large.
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
        // Grows with what has arrived, not with what was announced.
        self.bytes.extend_from_slice(bytes);
    }

    /// Whether more may be received: up to `most` bytes, or the one command at its head.
    pub(crate) fn has_room(&self, most: usize) -> bool {
        let needed = if self.held { 0 } else { self.parser.wanted() };
        self.bytes.len() < most.max(needed)
    }

    /// Bytes that are here.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn starved(&self) -> bool {
        self.starved
    }

    /// What was received until `now` has arrived. `timeout`: a command's time.
    pub(super) fn note_arrivals(&mut self, now: Time, timeout: Time) {
        self.arrivals.note(self.bytes.len(), now, timeout);
    }

    /// Whether there is a whole command. Of a stranger only small ones are taken.
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

    /// When the whole command arrived.
    pub(super) fn arrived(&self) -> Option<Time> {
        self.arrivals.oldest()
    }

    pub(crate) fn arguments(&self) -> Arguments<'_> {
        self.parser.arguments(&self.bytes)
    }

    /// The whole command's bytes, if it has arguments.
    pub(crate) fn frame(&self) -> &[u8] {
        self.parser.frame(&self.bytes)
    }

    /// The whole command is taken.
    pub(crate) fn consume(&mut self) {
        let taken = self.parser.consume();
        self.arrivals.take(taken);
        self.bytes.advance(taken);
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
    }

    /// Gives room back that it does not need: an empty input keeps `most` bytes.
    pub(crate) fn shrink(&mut self, most: usize) {
        if self.bytes.is_empty() && self.bytes.capacity() > most {
            self.bytes = BytesMut::new();
        }
    }
}
