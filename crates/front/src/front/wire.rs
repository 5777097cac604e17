//! A socket, with TLS or without: the rest of the front does not see the difference.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};

use mio::net::TcpStream;
use mio::{Interest, Registry, Token};
use pmnet_tls::{ClientTls, ServerTls, Stream};

/// A TCP connection.
pub(super) enum Wire {
    Plain(TcpStream),
    Tls(Box<Stream<TcpStream>>),
}

impl Wire {
    /// Begins a connection to the store, and its registration for everything.
    pub(super) fn connect(
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

    /// A connection that was accepted and is registered.
    pub(super) fn accepted(stream: TcpStream, tls: Option<&ServerTls>) -> io::Result<Wire> {
        Ok(match tls {
            Some(tls) => Wire::Tls(Box::new(tls.accept(stream)?)),
            None => Wire::Plain(stream),
        })
    }

    pub(super) fn socket(&self) -> &TcpStream {
        match self {
            Wire::Plain(stream) => stream,
            Wire::Tls(stream) => stream.socket(),
        }
    }

    /// Whether the two ends have still to agree on TLS.
    pub(super) fn is_handshaking(&self) -> bool {
        matches!(self, Wire::Tls(stream) if stream.is_handshaking())
    }

    /// Whether something that was written has still to be flushed.
    pub(super) fn has_unsent(&self) -> bool {
        matches!(self, Wire::Tls(stream) if stream.has_unsent())
    }

    /// Whether there may be more to read after a read of `count` bytes into a buffer of `room`. A short read of a socket has
    /// emptied it; of TLS it may be one record of several.
    pub(super) fn may_have_more(&self, count: usize, room: usize) -> bool {
        count == room || matches!(self, Wire::Tls(_))
    }

    /// Nothing more will be written.
    pub(super) fn end(&mut self) -> io::Result<()> {
        if let Wire::Tls(stream) = self {
            stream.close();
            // What the socket does not take now is lost, as an end without a word is.
            let _ = stream.flush();
        }
        self.socket().shutdown(Shutdown::Write)
    }
}

impl Read for Wire {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Wire::Plain(stream) => stream.read(buffer),
            Wire::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Wire {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        match self {
            Wire::Plain(stream) => stream.write(buffer),
            Wire::Tls(stream) => stream.write(buffer),
        }
    }

    /// Sends what was taken before and not sent yet; `WouldBlock` if some of that remains.
    fn flush(&mut self) -> io::Result<()> {
        match self {
            Wire::Plain(_) => Ok(()),
            Wire::Tls(stream) => stream.flush(),
        }
    }
}
