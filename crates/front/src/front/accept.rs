//! Clients come and go.

use std::io::{ErrorKind, Write};
use std::net::SocketAddr;
use std::time::Duration;

use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Registry, Token};
use pmnet_tls::ServerTls;
use socket2::{Domain, SockRef, Socket, TcpKeepalive, Type};

use super::socket::Client;
use super::unread::Unread;
use super::wire::Wire;
use super::{FIRST_CLIENT, Front, FrontError};
use crate::connection::Connection;
use crate::upstream::{Time, Upstream};

/// Connections accepted in one turn.
const ACCEPTS_PER_TURN: usize = 64;
/// Connections waiting to be accepted.
const BACKLOG: i32 = 1024;
/// How long to wait after accepting failed (no file descriptors left), in nanoseconds.
const ACCEPT_PAUSE: Time = 100_000_000;
/// Clients that have not agreed on TLS yet, at most.
pub(crate) const HANDSHAKES_MAX: usize = 256;
/// What one client too many is told.
pub(crate) const TOO_MANY: &[u8] = b"-ERR max number of clients reached\r\n";
/// How often the operating system asks a silent client whether it is there, before it takes it for gone; as Redis has it.
const KEEPALIVE_RETRIES: u32 = 3;

/// A socket that listens, and when it is looked at.
pub(crate) struct Door {
    listener: TcpListener,
    /// Somebody may be there.
    pub(crate) ready: bool,
    /// Not before this time.
    after: Time,
}

impl Door {
    /// Listens.
    pub(crate) fn open(address: SocketAddr) -> Result<Door, FrontError> {
        let listen = |source| FrontError::Listen { address, source };
        Ok(Door {
            listener: open_listener(address).map_err(listen)?,
            ready: false,
            after: 0,
        })
    }

    pub(crate) fn register(&mut self, registry: &Registry, token: Token) -> std::io::Result<()> {
        registry.register(&mut self.listener, token, Interest::READABLE)
    }

    pub(crate) fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// When it is to be looked at; `None`: when somebody comes.
    pub(crate) fn due(&self) -> Option<Time> {
        self.ready.then_some(self.after)
    }

    pub(crate) fn is_due(&self, now: Time) -> bool {
        self.due().is_some_and(|due| now >= due)
    }

    /// Who has come, if it is time to look: a bounded number.
    pub(crate) fn accept(&mut self, now: Time) -> Vec<(TcpStream, SocketAddr)> {
        let mut came = Vec::new();
        if !self.is_due(now) {
            return came;
        }
        for _ in 0..ACCEPTS_PER_TURN {
            match self.listener.accept() {
                Ok(client) => came.push(client),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.ready = false;
                    break;
                }
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::Interrupted | ErrorKind::ConnectionAborted
                    ) => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot accept connections, will try again");
                    self.after = now + ACCEPT_PAUSE;
                    break;
                }
            }
        }
        came
    }
}

impl<U: Upstream> Front<U> {
    pub(super) fn accept(&mut self) {
        let now = self.shared.now;
        let door = self.door.as_mut();
        for (stream, peer) in door.map_or_else(Vec::new, |door| door.accept(now)) {
            if let Err(error) = self.admit(stream, peer) {
                tracing::debug!(client = %peer, %error, "lost before it was served");
            }
        }
    }

    fn admit(&mut self, mut stream: TcpStream, peer: SocketAddr) -> std::io::Result<()> {
        if self.clients.len() - self.free.len() >= self.connections_max {
            tracing::warn!(client = %peer, limit = self.connections_max, "too many clients");
            if self.tls.is_some() {
                return Ok(());
            }
            return stream.write_all(TOO_MANY);
        }
        if self.tls.is_some() && self.handshakes >= HANDSHAKES_MAX {
            self.tls_failed("too many at a time");
            return Ok(());
        }
        let stream = welcome(stream, self.tls.as_ref(), self.keepalive)?;
        let id = self.clients_ever + 1;
        self.seat(stream, id, peer)?;
        self.clients_ever = id;
        Ok(())
    }

    /// A client is here: serves it from now on.
    pub(super) fn seat(
        &mut self,
        mut stream: Wire,
        id: u64,
        peer: SocketAddr,
    ) -> std::io::Result<()> {
        let index = self.free.pop().unwrap_or_else(|| {
            self.clients.push(None);
            self.clients.len() - 1
        });
        let token = Token(FIRST_CLIENT + 2 * index);
        if let Err(error) = stream.register(self.poll.registry(), token) {
            self.free.push(index);
            return Err(error);
        }
        let handshake = stream.is_handshaking();
        let until = Client::handshake_until(self.shared.now);
        self.handshakes += usize::from(handshake);
        self.shared.tracking.came(id, index);
        let mut connection = Connection::new(id, peer);
        connection.comes(&self.shared.users);
        self.clients[index] = Some(Box::new(Client {
            connection,
            stream,
            handshake: handshake.then_some(until),
            readable: true,
            read_closed: false,
            writable: true,
            lingering: None,
            lingers_until: 0,
            shut: false,
            unread: Unread::default(),
            direct: None,
            session: None,
            waiting: false,
            woken: false,
            subscribing: None,
            stranger_bytes: 0,
            queued: false,
            dirty: false,
        }));
        if handshake {
            self.vigil.attend(self.shared.now);
        }
        self.enqueue(index);
        Ok(())
    }

    /// A client could not agree on TLS.
    pub(super) fn tls_failed(&mut self, why: &str) {
        self.shared.counters.tls_failed += 1;
        let total = self.shared.counters.tls_failed;
        // Logged less and less often, so that a flood of them does not flood the log.
        if total.is_power_of_two() {
            tracing::warn!(total, why, "no TLS with a client");
        }
    }

    pub(super) fn close(&mut self, index: usize, why: &str) {
        let Some(mut client) = self.clients.get_mut(index).and_then(Option::take) else {
            return;
        };
        tracing::debug!(why, "client closed");
        self.forget_unread(&client.unread);
        self.strangers_bytes -= client.stranger_bytes;
        if let Some(change) = client.subscribing {
            self.subscription_over(change.number);
        }
        if client.handshake.is_some() {
            self.handshakes = self.handshakes.saturating_sub(1);
            self.tls_failed(why);
        }
        if let Some(session) = client.session {
            self.sessions.remove(&session);
        }
        if let Some(session) = client.connection.session() {
            self.up.end(self.shared.now, session);
        }
        self.free.push(index);
        self.shared.tracking.left(client.connection.id());
        if client.connection.close_unanswered() {
            self.note_unanswered();
        }
        if client.woken {
            self.wake_waiting();
        }
    }
}

/// A client that may come in: with TLS or without, and looked after by the operating system.
pub(crate) fn welcome(
    stream: TcpStream,
    tls: Option<&ServerTls>,
    keepalive: Option<Duration>,
) -> std::io::Result<Wire> {
    keep_alive(&SockRef::from(&stream), keepalive)?;
    Wire::accepted(stream, tls)
}

/// Has the operating system find out whether a client that is silent for so long is still there: it asks three times, each a third
/// of that time later, as with Redis.
fn keep_alive(socket: &SockRef<'_>, after: Option<Duration>) -> std::io::Result<()> {
    let Some(after) = after else {
        return socket.set_keepalive(false);
    };
    let interval = Duration::from_secs((after.as_secs() / 3).max(1));
    socket.set_tcp_keepalive(
        &TcpKeepalive::new()
            .with_time(after)
            .with_interval(interval)
            .with_retries(KEEPALIVE_RETRIES),
    )
}

/// A socket that listens.
fn open_listener(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    // A front that starts again must not wait for old connections to time out.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(TcpListener::from_std(socket.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_client_is_asked_as_redis_asks_it() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let socket = SockRef::from(&client);
        for (after, interval) in [(300, 100), (60, 20), (1, 1)] {
            keep_alive(&socket, Some(Duration::from_secs(after))).unwrap();
            assert!(socket.keepalive().unwrap());
            assert_eq!(
                socket.tcp_keepalive_time().unwrap(),
                Duration::from_secs(after)
            );
            let every = socket.tcp_keepalive_interval().unwrap();
            assert_eq!(every, Duration::from_secs(interval));
            assert_eq!(socket.tcp_keepalive_retries().unwrap(), 3);
        }
        keep_alive(&socket, None).unwrap();
        assert!(!socket.keepalive().unwrap());
    }
}
