//! A socket, with TLS or without. The rest of the front treats both kinds alike.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use mio::event::{Event, Source};
use mio::net::{TcpStream, UnixStream};
use mio::{Interest, Registry, Token};
use pmnet_tls::{ClientTls, ServerTls, Stream};

use crate::upstream::Time;

/// Maximum time for a client's TLS handshake, in nanoseconds.
const HANDSHAKE_TIMEOUT: Time = 5_000_000_000;

/// The state of a socket as an event reports it. Errors and closings show only when the socket is used.
pub(crate) struct Seen {
    pub(crate) readable: bool,
    pub(crate) read_closed: bool,
    pub(crate) writable: bool,
    /// Whether the other end has closed its receiving side.
    pub(crate) hung_up: bool,
}

impl Seen {
    pub(crate) fn of(event: &Event) -> Seen {
        let read_closed = event.is_read_closed() || event.is_error();
        let hung_up = event.is_write_closed() || event.is_error();
        Seen {
            readable: event.is_readable() || read_closed,
            read_closed,
            writable: event.is_writable() || hung_up,
            hung_up,
        }
    }
}

/// A TCP connection, or a socket of a client that a router has given to this front.
pub(crate) enum Wire {
    Plain(TcpStream),
    Tls(Box<Stream<TcpStream>>),
    /// One socket of a pair within this process, with the address to which the client connected.
    Pair(UnixStream, Option<SocketAddr>),
}

impl Wire {
    /// Begins a connection to the store, and registers it for all events.
    pub(crate) fn connect(
        address: SocketAddr,
        tls: Option<&ClientTls>,
        registry: &Registry,
        token: Token,
    ) -> io::Result<Wire> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        let interest = Interest::READABLE | Interest::WRITABLE;
        registry.register(&mut stream, token, interest)?;
        Ok(match tls {
            Some(tls) => Wire::Tls(Box::new(tls.connect(stream)?)),
            None => Wire::Plain(stream),
        })
    }

    /// Makes the wire of an accepted connection.
    pub(crate) fn accepted(stream: TcpStream, tls: Option<&ServerTls>) -> io::Result<Wire> {
        stream.set_nodelay(true)?;
        Ok(match tls {
            Some(tls) => Wire::Tls(Box::new(tls.accept(stream)?)),
            None => Wire::Plain(stream),
        })
    }

    /// Makes the wire of one socket of a pair within this process. `local`: the address to which the client connected.
    pub(crate) fn pair(
        stream: std::os::unix::net::UnixStream,
        local: Option<SocketAddr>,
    ) -> io::Result<Wire> {
        stream.set_nonblocking(true)?;
        Ok(Wire::Pair(UnixStream::from_std(stream), local))
    }

    /// Registers the socket for all events.
    pub(crate) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        let interest = Interest::READABLE | Interest::WRITABLE;
        match self {
            Wire::Plain(stream) => stream.register(registry, token, interest),
            // The socket inside the TLS stream cannot be borrowed mutably, but registration needs only its file
            // descriptor.
            Wire::Tls(stream) => {
                let fd = stream.socket().as_raw_fd();
                mio::unix::SourceFd(&fd).register(registry, token, interest)
            }
            Wire::Pair(stream, _) => stream.register(registry, token, interest),
        }
    }

    fn tcp(&self) -> Option<&TcpStream> {
        match self {
            Wire::Plain(stream) => Some(stream),
            Wire::Tls(stream) => Some(stream.socket()),
            Wire::Pair(..) => None,
        }
    }

    /// Returns the address to which the client connected.
    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        match self {
            Wire::Pair(_, local) => *local,
            _ => self.tcp()?.local_addr().ok(),
        }
    }

    /// Returns the error with which a connection attempt failed.
    pub(super) fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.tcp().map_or(Ok(None), TcpStream::take_error)
    }

    /// Whether the connection has been established.
    pub(super) fn is_connected(&self) -> io::Result<bool> {
        match self.tcp().map(TcpStream::peer_addr) {
            None | Some(Ok(_)) => Ok(true),
            Some(Err(error)) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
            Some(Err(error)) => Err(error),
        }
    }

    /// Returns the time by which the TLS handshake of a connection that was just accepted must be complete; `None`
    /// without TLS.
    pub(crate) fn handshake_until(&self, now: Time) -> Option<Time> {
        let until = now.saturating_add(HANDSHAKE_TIMEOUT);
        self.is_handshaking().then_some(until)
    }

    /// Whether the TLS handshake is under way.
    pub(crate) fn is_handshaking(&self) -> bool {
        matches!(self, Wire::Tls(stream) if stream.is_handshaking())
    }

    /// Whether written bytes have still to be sent.
    pub(crate) fn has_unsent(&self) -> bool {
        matches!(self, Wire::Tls(stream) if stream.has_unsent())
    }

    /// Whether there may be more to read after a read of `count` bytes into a buffer of `room` bytes. After a short
    /// read, a plain socket is empty. With TLS, a read may return one record of several.
    pub(crate) fn may_have_more(&self, count: usize, room: usize) -> bool {
        count == room || matches!(self, Wire::Tls(_))
    }

    /// Closes the sending side.
    pub(crate) fn end(&mut self) -> io::Result<()> {
        if let Wire::Tls(stream) = self {
            stream.close();
            // If the socket does not take the closing message now, the peer sees the end of the connection without this
            // message.
            let _ = stream.flush();
        }
        match self {
            Wire::Plain(stream) => stream.shutdown(Shutdown::Write),
            Wire::Tls(stream) => stream.socket().shutdown(Shutdown::Write),
            Wire::Pair(stream, _) => stream.shutdown(Shutdown::Write),
        }
    }
}

impl AsRawFd for Wire {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Wire::Plain(stream) => stream.as_raw_fd(),
            Wire::Tls(stream) => stream.socket().as_raw_fd(),
            Wire::Pair(stream, _) => stream.as_raw_fd(),
        }
    }
}

impl AsFd for Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Wire::Plain(stream) => stream.as_fd(),
            Wire::Tls(stream) => stream.socket().as_fd(),
            Wire::Pair(stream, _) => stream.as_fd(),
        }
    }
}

impl Read for Wire {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Wire::Plain(stream) => stream.read(buffer),
            Wire::Tls(stream) => stream.read(buffer),
            Wire::Pair(stream, _) => stream.read(buffer),
        }
    }
}

impl Write for Wire {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        match self {
            Wire::Plain(stream) => stream.write(buffer),
            Wire::Tls(stream) => stream.write(buffer),
            Wire::Pair(stream, _) => stream.write(buffer),
        }
    }

    /// Sends bytes that were accepted before and not sent yet. Fails with `WouldBlock` if some of them
    /// remain.
    fn flush(&mut self) -> io::Result<()> {
        match self {
            Wire::Plain(_) | Wire::Pair(..) => Ok(()),
            Wire::Tls(stream) => stream.flush(),
        }
    }
}
