//! The sockets of one client: its own, and the one to the store if it has one.

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
    /// It has still to agree on TLS, and must have by then.
    pub(super) handshake: Option<Time>,
    /// Its connection has ended; what it still sends is thrown away.
    pub(super) lingering: Option<Lingering>,
    /// The sending side of its socket is closed.
    pub(super) shut: bool,
    /// What it has left unread.
    pub(super) unread: Unread,
    pub(super) direct: Option<DirectSocket>,
    /// Session under which the front finds this client.
    pub(super) session: Option<SessionHandle>,
    /// In the list of those whom the endpoint refused.
    pub(super) waiting: bool,
    /// Taken from that list: passes the turn on if it has no use for it.
    pub(super) woken: bool,
    /// The change of its subscriptions that is under way.
    pub(super) subscribing: Option<Change>,
    /// Its place among those who wait for lists and sorted sets.
    pub(super) ticket: Option<u64>,
    /// What counts of it among what clients have sent that have still to log in, in bytes.
    pub(super) stranger_bytes: usize,
    /// In the list of those to be written to.
    pub(super) dirty: bool,
}

/// The connection to the store.
pub(super) struct DirectSocket {
    pub(super) socket: Socket,
    pub(super) connected: bool,
    /// Tells this connection from earlier ones in the list of connect deadlines.
    pub(super) serial: u64,
}

/// What became of a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Transfer {
    /// Nothing more to do for now.
    Done,
    /// The peer sends no more.
    Eof,
    /// The socket is of no more use.
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

/// The bytes that a client's own connection to the store is to send.
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
    /// Reads from the client what its connection wants.
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
                    // Who has sent all may still read the error.
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

    /// Called when everything is answered and written: whether to wait for the client's end.
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

    /// From now on what it sends is thrown away.
    pub(super) fn linger(&mut self, now: Time) {
        self.lingering = Some(Lingering::begin(now));
    }

    /// It has taken some of what there is for it.
    pub(super) fn took(&mut self, now: Time) {
        if let Some(lingering) = &mut self.lingering {
            lingering.prolong(now);
        }
    }

    /// Whether it had its time after an error.
    pub(super) fn overstays(&self, now: Time) -> bool {
        let lingering = self.lingering.as_ref();
        lingering.is_some_and(|lingering| lingering.is_over(now))
    }

    /// Whether that time is over.
    pub(super) fn is_late_to_agree(&self, now: Time) -> bool {
        self.handshake.is_some_and(|until| now >= until)
    }

    /// Whether it has agreed on TLS now, which it had not before.
    pub(super) fn has_agreed(&mut self) -> bool {
        self.handshake
            .take_if(|_| !self.socket.wire.is_handshaking())
            .is_some()
    }

    /// Whether everything that was written has left.
    pub(super) fn is_flushed(&self) -> bool {
        !self.socket.wire.has_unsent()
    }

    /// Writes to the client what is there.
    pub(super) fn write(&mut self) -> Transfer {
        match self.socket.write(&mut self.connection) {
            Ok(()) => Transfer::Done,
            Err(ended) => ended.into(),
        }
    }

    /// Reads from and writes to the store. If the client does not read, its store connection is not read either; the store then
    /// applies its own limits.
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

    /// Whether there is something to do that no event will announce.
    pub(super) fn has_more(&self) -> bool {
        let direct = self
            .direct
            .as_ref()
            .is_some_and(|direct| direct.connected && direct.socket.readable);
        (self.socket.readable && (self.lingering.is_some() || self.connection.wants_input()))
            || (direct && self.connection.wants_direct())
    }
}
