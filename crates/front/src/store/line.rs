//! A connection to Redis, without its socket: the bytes to send, the questions without an answer, and the
//! bytes received.
//!
//! Purpose: all connections to Redis use this type. The owner of a connection defines the questions and handles the
//! answers. Owners are the client's own connection ([`crate::client`]'s `direct`), and those of the front
//! ([`super::heart`], [`super::reads`], [`super::rights`], [`super::changes`]). Invariants: answers come in the order
//! of the questions. A value that answers no question is the error [`UNASKED`], unless the owner of the connection can
//! handle the value.

use std::collections::VecDeque;
use std::net::SocketAddr;

use bytes::{Bytes, BytesMut};
use pmnet_resp::{Malformed, ReplyLimits, Scanner, write_command};

use super::StoreAddress;
use crate::shell::socket::Unwritten;

/// Error text for a connection that leads to another Redis.
pub(crate) const ELSEWHERE: &str = "it is not the store that the pmnet server uses";
/// Error text for a connection on which a value came that answers no question.
pub(crate) const UNASKED: &str = "it sent what nobody asked for";

/// A connection to Redis. `Ask` is the type of its questions.
pub(crate) struct Line<Ask> {
    pub(crate) address: SocketAddr,
    outbox: Vec<u8>,
    inbox: BytesMut,
    scanner: Scanner,
    /// Questions without an answer, oldest first.
    asked: VecDeque<Ask>,
}

impl<Ask> Line<Ask> {
    /// Makes the state of a connection whose socket must still be connected.
    pub(crate) fn new(store: &StoreAddress, limits: ReplyLimits) -> Line<Ask> {
        Line {
            address: store.address,
            outbox: Vec::new(),
            inbox: BytesMut::new(),
            scanner: Scanner::new(limits),
            asked: VecDeque::new(),
        }
    }

    /// Logs in as the front, if the store requires a login.
    pub(crate) fn log_in(&mut self, store: &StoreAddress, ask: Ask) {
        if let Some(auth) = store.auth() {
            self.ask(ask, &auth);
        }
    }

    /// Asks a question with this command.
    pub(crate) fn ask<A: AsRef<[u8]>>(&mut self, ask: Ask, command: &[A]) {
        write_command(&mut self.outbox, command);
        self.asked.push_back(ask);
    }

    /// Notes that the command of a question was added to the outbox.
    pub(crate) fn sent(&mut self, ask: Ask) {
        self.asked.push_back(ask);
    }

    /// Returns the outbox, for commands without a question, and for commands whose question is added later.
    pub(crate) fn outbox(&mut self) -> &mut Vec<u8> {
        &mut self.outbox
    }

    /// Returns the questions without an answer, oldest first.
    pub(crate) fn asked(&self) -> &VecDeque<Ask> {
        &self.asked
    }

    /// Notes that the oldest question has its answer. Returns the question.
    pub(crate) fn answered(&mut self) -> Option<Ask> {
        self.asked.pop_front()
    }

    /// Takes bytes from Redis.
    pub(crate) fn receive(&mut self, bytes: &[u8]) {
        self.inbox.extend_from_slice(bytes);
    }

    /// Takes the next complete value.
    ///
    /// # Errors
    /// The bytes received are not RESP, or the value is too large.
    pub(crate) fn next(&mut self) -> Result<Option<Bytes>, Malformed> {
        let length = self.scanner.poll(&self.inbox)?;
        Ok(length.map(|length| self.take(length)))
    }

    /// Returns the bytes that have been received and not taken.
    pub(crate) fn inbox(&self) -> &[u8] {
        &self.inbox
    }

    /// Takes the first `length` bytes of the inbox.
    pub(crate) fn take(&mut self, length: usize) -> Bytes {
        self.inbox.split_to(length).freeze()
    }

    /// Gives the connection up. Returns the questions without an answer.
    pub(crate) fn into_asked(self) -> VecDeque<Ask> {
        self.asked
    }
}

impl<Ask> Unwritten for Line<Ask> {
    fn unwritten(&self) -> &[u8] {
        &self.outbox
    }

    fn wrote(&mut self, count: usize) {
        self.outbox.drain(..count.min(self.outbox.len()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::REPLIES;

    #[test]
    fn answers_meet_their_questions_whatever_the_pieces() {
        let store = StoreAddress::parse("redis://u:secret@127.0.0.1:1").unwrap();
        let said = b"+OK\r\n$3\r\nabc\r\n:1\r\n";
        for piece in 1..said.len() {
            let mut line = Line::new(&store, REPLIES);
            line.log_in(&store, 0);
            line.ask(1, &["INFO"]);
            line.outbox().extend_from_slice(b"PING\r\n");
            line.sent(2);
            assert!(line.unwritten().ends_with(b"INFO\r\nPING\r\n"));
            line.wrote(line.unwritten().len() + 9);
            assert_eq!(line.unwritten(), b"");
            let mut seen = Vec::new();
            for bytes in said.chunks(piece) {
                line.receive(bytes);
                while let Some(value) = line.next().unwrap() {
                    seen.push((line.answered(), value));
                }
            }
            let expected = [
                (Some(0), "+OK\r\n"),
                (Some(1), "$3\r\nabc\r\n"),
                (Some(2), ":1\r\n"),
            ];
            assert_eq!(seen, expected.map(|(ask, value)| (ask, Bytes::from(value))));
            assert_eq!(line.answered(), None);
        }
        let mut line = Line::<()>::new(&store, REPLIES);
        line.receive(b"what?\r\n");
        assert!(line.next().is_err());
    }
}
