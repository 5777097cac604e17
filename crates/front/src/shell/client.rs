//! The sockets of one client: its own socket, and its connection to the store if it has one.

use super::lingering::Lingering;
use super::socket::{Ended, Socket, Unwritten};
use super::subscribing::Change;
use super::unread::Unread;
use crate::client::{Connection, Shared};
use crate::limits::READ_BYTES_PER_TURN;
use crate::upstream::{SessionHandle, Time};

/// A client with its sockets.
pub(super) struct Client {
    pub(super) connection: Connection,
    pub(super) socket: Socket,
    /// The time by which the TLS handshake must end, if the handshake is still under way.
    pub(super) handshake: Option<Time>,
    /// `Some`: the connection has ended with an error, and further input is discarded.
    pub(super) lingering: Option<Lingering>,
    /// Whether the sending side of the client's socket is closed.
    pub(super) shut: bool,
    /// The output that the client has left unread.
    pub(super) unread: Unread,
    pub(super) direct: Option<DirectSocket>,
    /// Session by which the front finds this client.
    pub(super) session: Option<SessionHandle>,
    /// Whether the client is in the list of clients whose calls the endpoint refused.
    pub(super) waiting: bool,
    /// Whether the client was taken from the list of clients whose calls the endpoint refused. If such a client does
    /// not need the endpoint, it passes its turn to the next client of the list.
    pub(super) woken: bool,
    /// The change of the client's subscriptions that is under way.
    pub(super) subscribing: Option<Change>,
    /// The client's ticket if it waits for lists or sorted sets of an embedded store.
    pub(super) ticket: Option<u64>,
    /// Bytes of this client that count towards the bound for clients that still have to log in.
    pub(super) stranger_bytes: usize,
    /// Whether the client is in the list of clients that must be written to.
    pub(super) dirty: bool,
}

/// A client's own connection to the store.
pub(super) struct DirectSocket {
    pub(super) socket: Socket,
    pub(super) connected: bool,
    /// Serial number, which tells this connection from earlier connections in the list of connect deadlines.
    pub(super) serial: u64,
}

/// The result of a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Transfer {
    /// Nothing more can be transferred for now.
    Done,
    /// The peer has closed its sending side.
    Eof,
    /// The socket is no longer usable.
    Broken(String),
}

impl From<Ended> for Transfer {
    fn from(ended: Ended) -> Transfer {
        Transfer::Broken(ended.why("closed by the store"))
    }
}

impl Unwritten for Connection {
    fn unwritten(&self) -> &[u8] {
        Connection::unwritten(self)
    }

    fn wrote(&mut self, count: usize) {
        Connection::wrote(self, count);
    }
}

/// The bytes that one client's own connection sends to the store.
struct ToStore<'a>(&'a mut Connection);

impl Unwritten for ToStore<'_> {
    fn unwritten(&self) -> &[u8] {
        self.0.direct_unwritten()
    }

    fn wrote(&mut self, count: usize) {
        self.0.direct_wrote(count);
    }
}

impl Client {
    /// Reads from the client as much as its connection wants.
    pub(super) fn read(&mut self, scratch: &mut [u8]) -> Transfer {
        let mut budget = READ_BYTES_PER_TURN;
        while self.socket.readable
            && budget > 0
            && (self.lingering.is_some() || self.connection.wants_input())
        {
            let count = match self.socket.read(scratch) {
                Ok(None) => break,
                Ok(Some(count)) => count,
                Err(Ended::Closed) => {
                    // The client can still read the error, although it has closed its sending side.
                    let finished = self.connection.unwritten().is_empty();
                    return match self.lingering {
                        Some(_) if finished => Transfer::Broken("finished".into()),
                        _ => Transfer::Eof,
                    };
                }
                Err(ended) => return ended.into(),
            };
            if let Some(lingering) = &mut self.lingering {
                if lingering.throw_away(count).is_none() {
                    return Transfer::Broken("goes on after an error".into());
                }
            } else {
                self.connection.receive(&scratch[..count]);
            }
            budget = budget.saturating_sub(count);
        }
        Transfer::Done
    }

    /// Whether the front must wait for the client to close. Must be called when everything is answered and written.
    pub(super) fn lingers(&mut self, now: Time) -> bool {
        if !self.connection.is_cut_off() {
            return false;
        }
        if self.lingering.is_none() {
            self.linger(now);
        }
        self.shut || {
            self.shut = true;
            self.socket.wire.end().is_ok()
        }
    }

    /// Discards further input of the client.
    pub(super) fn linger(&mut self, now: Time) {
        self.lingering = Some(Lingering::begin(now));
    }

    /// Notes that the client has read some of its output.
    pub(super) fn took(&mut self, now: Time) {
        if let Some(lingering) = &mut self.lingering {
            lingering.prolong(now);
        }
    }

    /// Whether the time in which the client may read the error is over.
    pub(super) fn overstays(&self, now: Time) -> bool {
        let lingering = self.lingering.as_ref();
        lingering.is_some_and(|lingering| lingering.is_over(now))
    }

    /// Whether the time for the TLS handshake is over.
    pub(super) fn is_late_to_agree(&self, now: Time) -> bool {
        self.handshake.is_some_and(|until| now >= until)
    }

    /// Returns whether the TLS handshake has ended since the last call of this function.
    pub(super) fn has_agreed(&mut self) -> bool {
        self.handshake
            .take_if(|_| !self.socket.wire.is_handshaking())
            .is_some()
    }

    /// Whether all written bytes have been sent.
    pub(super) fn is_flushed(&self) -> bool {
        !self.socket.wire.has_unsent()
    }

    /// Writes the client's output.
    pub(super) fn write(&mut self) -> Transfer {
        match self.socket.write(&mut self.connection) {
            Ok(()) => Transfer::Done,
            Err(ended) => ended.into(),
        }
    }

    /// Reads from and writes to the store. If the client does not read, its connection to the store is not
    /// read either, so that the store's own limits apply.
    pub(super) fn serve_direct(&mut self, scratch: &mut [u8], shared: &Shared) -> Transfer {
        let Some(direct) = &mut self.direct else {
            return Transfer::Done;
        };
        if !direct.connected {
            if !direct.socket.writable {
                return Transfer::Done;
            }
            match direct.socket.wire.take_error() {
                Ok(None) => {}
                Ok(Some(error)) | Err(error) => return Transfer::Broken(error.to_string()),
            }
            match direct.socket.wire.is_connected() {
                Ok(true) => direct.connected = true,
                Ok(false) => {
                    direct.socket.writable = false;
                    return Transfer::Done;
                }
                Err(error) => return Transfer::Broken(error.to_string()),
            }
        }
        let mut budget = READ_BYTES_PER_TURN;
        while direct.socket.readable && budget > 0 && self.connection.wants_direct() {
            match direct.socket.read(scratch) {
                Ok(None) => break,
                Ok(Some(count)) => {
                    self.connection.direct_receive(&scratch[..count], shared);
                    budget = budget.saturating_sub(count);
                }
                Err(ended) => return ended.into(),
            }
        }
        match direct.socket.write(&mut ToStore(&mut self.connection)) {
            Ok(()) => Transfer::Done,
            Err(ended) => ended.into(),
        }
    }

    /// Whether there is work that no event will announce.
    pub(super) fn has_more(&self) -> bool {
        let direct = self
            .direct
            .as_ref()
            .is_some_and(|direct| direct.connected && direct.socket.readable);
        (self.socket.readable && (self.lingering.is_some() || self.connection.wants_input()))
            || (direct && self.connection.wants_direct())
    }
}
