//! The guests of the loop: TCP clients, UDP requests, and the front itself.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;

use mio::net::TcpStream;
use pmnet_client::SessionHandle;

use crate::connection::{Connection, Shared};

/// Maximum number of bytes read from one client before the other clients get their turn.
const READ_BYTES_PER_TURN: usize = 256 * 1024;

/// The source of a guest's commands, and the receiver of its answers.
pub(super) enum Edge {
    Tcp(Tcp),
    /// A request over UDP. The values are its number, its sender, its length, and the answer so far.
    Udp(u16, SocketAddr, usize, Vec<u8>),
    /// A delayed `flush_all` that is due. The value is the answer so far.
    Timer(Vec<u8>),
}

/// A TCP client.
pub(super) struct Tcp {
    pub(super) stream: TcpStream,
    readable: bool,
    writable: bool,
    /// The client's own session; `None` until the client needs a session.
    pub(super) session: Option<SessionHandle>,
}

/// The result of a transfer.
pub(super) enum Transfer {
    Done,
    /// The socket is no longer usable.
    Broken,
}

/// A TCP client, a UDP request, or a delayed `flush_all`.
pub(super) struct Guest {
    pub(super) connection: Connection,
    pub(super) edge: Edge,
    /// Serial number, by which the guest is told from earlier guests at the same index.
    pub(super) serial: u64,
    /// Whether the guest is in the queue for a turn.
    pub(super) queued: bool,
}

impl Tcp {
    pub(super) fn new(stream: TcpStream) -> Tcp {
        Tcp {
            stream,
            readable: true,
            writable: true,
            session: None,
        }
    }

    pub(super) fn note(&mut self, event: &mio::event::Event) {
        let ended = event.is_read_closed() || event.is_write_closed() || event.is_error();
        self.readable |= event.is_readable() || ended;
        self.writable |= event.is_writable() || ended;
    }

    fn read(
        &mut self,
        connection: &mut Connection,
        scratch: &mut [u8],
        shared: &mut Shared,
    ) -> Transfer {
        let mut budget = READ_BYTES_PER_TURN;
        while self.readable && budget > 0 && connection.wants_input() {
            match self.stream.read(scratch) {
                Ok(0) => {
                    self.readable = false;
                    connection.receive_eof();
                }
                Ok(count) => {
                    connection.receive(&scratch[..count]);
                    shared.counters.bytes_read += u64::try_from(count).unwrap_or(0);
                    budget = budget.saturating_sub(count);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.readable = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Transfer::Broken,
            }
        }
        Transfer::Done
    }

    fn write(&mut self, connection: &mut Connection, shared: &mut Shared) -> Transfer {
        while self.writable && !connection.unwritten().is_empty() {
            match self.stream.write(connection.unwritten()) {
                Ok(0) => return Transfer::Broken,
                Ok(count) => {
                    connection.wrote(count);
                    shared.counters.bytes_written += u64::try_from(count).unwrap_or(0);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.writable = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Transfer::Broken,
            }
        }
        Transfer::Done
    }
}

impl Guest {
    /// Reads the guest's commands.
    pub(super) fn read(&mut self, scratch: &mut [u8], shared: &mut Shared) -> Transfer {
        match &mut self.edge {
            Edge::Tcp(tcp) => tcp.read(&mut self.connection, scratch, shared),
            Edge::Udp(..) | Edge::Timer(_) => Transfer::Done,
        }
    }

    /// Writes as many of the answers as possible.
    pub(super) fn write(&mut self, shared: &mut Shared) -> Transfer {
        match &mut self.edge {
            Edge::Tcp(tcp) => tcp.write(&mut self.connection, shared),
            Edge::Udp(_, _, _, answer) | Edge::Timer(answer) => {
                let text = self.connection.unwritten();
                answer.extend_from_slice(text);
                let count = text.len();
                self.connection.wrote(count);
                Transfer::Done
            }
        }
    }

    /// Whether there are unread bytes that no event will announce.
    pub(super) fn has_more(&self) -> bool {
        matches!(&self.edge, Edge::Tcp(tcp) if tcp.readable && self.connection.wants_input())
    }
}
