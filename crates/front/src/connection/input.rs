//! What a client has sent and the front has not taken yet.

use bytes::{Buf, BytesMut};
use pmnet_resp::{Arguments, Parser, ProtocolError, Status};

use super::INPUT_BYTES_SOFT_MAX;
use super::arrivals::Arrivals;
use crate::limits::REQUESTS;
use crate::upstream::Time;

pub(super) struct Input {
    bytes: BytesMut,
    parser: Parser,
    arrivals: Arrivals,
    /// All whole commands are taken.
    starved: bool,
}

impl Default for Input {
    fn default() -> Input {
        Input {
            bytes: BytesMut::new(),
            parser: Parser::new(REQUESTS),
            arrivals: Arrivals::default(),
            starved: true,
        }
    }
}

impl Input {
    pub(super) fn receive(&mut self, bytes: &[u8]) {
        self.starved = false;
        // Grows with what has arrived, not with what was announced.
        self.bytes.extend_from_slice(bytes);
    }

    pub(super) fn has_room(&self) -> bool {
        self.bytes.len() < INPUT_BYTES_SOFT_MAX.max(self.parser.wanted())
    }

    pub(super) fn starved(&self) -> bool {
        self.starved
    }

    /// What was received until `now` has arrived. `timeout`: a command's time.
    pub(super) fn note_arrivals(&mut self, now: Time, timeout: Time) {
        self.arrivals.note(self.bytes.len(), now, timeout);
    }

    /// Whether there is a whole command.
    pub(super) fn poll(&mut self) -> Result<Status, ProtocolError> {
        let status = self.parser.poll(&self.bytes)?;
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

    pub(super) fn arguments(&self) -> Arguments<'_> {
        self.parser.arguments(&self.bytes)
    }

    /// The whole command's bytes, if it has arguments.
    pub(super) fn frame(&self) -> &[u8] {
        self.parser.frame(&self.bytes)
    }

    /// The whole command is taken.
    pub(super) fn consume(&mut self) {
        let taken = self.parser.consume();
        self.arrivals.take(taken);
        self.bytes.advance(taken);
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
    }
}
