//! Accepts and closes clients.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::net::SocketAddr;
use std::time::Duration;

use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Registry, Token};
use pmnet_tls::ServerTls;
use socket2::{Domain, SockRef, Socket, TcpKeepalive, Type};

use super::client::Client;
use super::shaking::Admits;
use super::socket::Socket as Edge;
use super::unread::Unread;
use super::wire::Wire;
use super::witness::WITNESSES_MAX;
use super::{FIRST_CLIENT, Front, FrontError};
use crate::client::Connection;
use crate::upstream::{Time, Upstream};

/// Maximum number of connections accepted in one turn.
const ACCEPTS_PER_TURN: usize = 64;
/// Maximum number of connections that wait to be accepted.
const BACKLOG: i32 = 1024;
/// Pause after a failed accept, in nanoseconds.
const ACCEPT_PAUSE: Time = 100_000_000;
/// Time after which a lasting condition is logged again, in nanoseconds.
const PATIENCE: Time = 10_000_000_000;
/// Reason in the log why a client's TLS handshake is given up in favour of another host, or does not begin.
const TOO_MANY_SHAKE: &str = "too many at a time";
/// Reply to a client above the limit.
const TOO_MANY: &[u8] = b"-ERR max number of clients reached\r\n";
/// Number of times that the operating system probes a silent client before it closes the connection; as in Redis.
const KEEPALIVE_RETRIES: u32 = 3;

/// A listening socket, and the time of the next accept.
pub(crate) struct Door {
    listener: TcpListener,
    /// Whether clients may be waiting to be accepted.
    pub(crate) ready: bool,
    /// No client is accepted before this time.
    after: Time,
    /// An open file, held in reserve. If the limit of open files is reached, the front closes this file, so that it can
    /// accept the next client and send it an error.
    spare: Option<File>,
    tls: bool,
    too_many: Seldom,
    failed: Seldom,
    shaking: Seldom,
}

/// A repeated event. The event is logged from time to time, with the number of repetitions.
#[derive(Default)]
struct Seldom {
    count: u64,
    /// The event is not logged before this time.
    after: Time,
}

impl Seldom {
    /// Counts the event. If the event must be logged now, returns the number of such events since the last log message.
    fn again(&mut self, now: Time) -> Option<u64> {
        self.count += 1;
        if now < self.after {
            return None;
        }
        self.after = now.saturating_add(PATIENCE);
        Some(std::mem::take(&mut self.count))
    }
}

impl Door {
    /// Opens the listening socket. `tls`: clients speak TLS, so they cannot read an error in plain text.
    pub(crate) fn open(address: SocketAddr, tls: bool) -> Result<Door, FrontError> {
        let listen = |source| FrontError::listen(address, source);
        Ok(Door {
            listener: open_listener(address).map_err(listen)?,
            ready: false,
            after: 0,
            spare: File::open(SPARE).ok(),
            tls,
            too_many: Seldom::default(),
            failed: Seldom::default(),
            shaking: Seldom::default(),
        })
    }

    pub(crate) fn register(&mut self, registry: &Registry, token: Token) -> std::io::Result<()> {
        registry.register(&mut self.listener, token, Interest::READABLE)
    }

    pub(crate) fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Returns the time of the next accept; `None`: no client is waiting.
    pub(crate) fn due(&self) -> Option<Time> {
        self.ready.then_some(self.after)
    }

    pub(crate) fn is_due(&self, now: Time) -> bool {
        self.due().is_some_and(|due| now >= due)
    }

    /// Accepts a bounded number of waiting clients, unless the pause after a failure is not over.
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
                Err(error) if is_out_of_files(&error) && self.refuse_one() => {
                    if let Some(times) = self.failed.again(now) {
                        tracing::warn!(%error, times, "PM3301 clients are refused: raise the limit of open files");
                    }
                }
                Err(error) => {
                    if let Some(times) = self.failed.again(now) {
                        tracing::warn!(%error, times, "PM3302 cannot accept connections, will try again");
                    }
                    self.after = now + ACCEPT_PAUSE;
                    break;
                }
            }
        }
        came
    }

    /// Turns a waiting client away, because the process has no file left for it. Closes the file that is held in
    /// reserve, accepts the client and sends it an error. Returns whether the client was turned away.
    fn refuse_one(&mut self) -> bool {
        if self.spare.take().is_none() {
            self.spare = File::open(SPARE).ok();
            return false;
        }
        let refused = self.listener.accept().map(|(stream, _)| {
            // A client that has already disconnected needs no answer.
            let _ = turn_away(stream, self.tls);
        });
        self.spare = File::open(SPARE).ok();
        refused.is_ok()
    }

    /// Logs that this client is closed before its TLS handshake is over, because too many handshakes are under way.
    pub(crate) fn note_shaking(&mut self, peer: SocketAddr, now: Time) {
        if let Some(times) = self.shaking.again(now) {
            tracing::warn!(client = %peer, times, "PM3303 too many clients agree on TLS at a time");
        }
    }

    /// Refuses a client above the limit of clients.
    pub(crate) fn refuse(
        &mut self,
        stream: TcpStream,
        peer: SocketAddr,
        limit: usize,
        now: Time,
    ) -> std::io::Result<()> {
        if let Some(times) = self.too_many.again(now) {
            tracing::warn!(client = %peer, limit, times, "PM3304 too many clients");
        }
        turn_away(stream, self.tls)
    }
}

/// A file that always exists.
const SPARE: &str = "/dev/null";

fn turn_away(mut stream: TcpStream, tls: bool) -> std::io::Result<()> {
    if tls {
        return Ok(());
    }
    stream.write_all(TOO_MANY)
}

/// Whether this process or the system has reached its limit of open files.
fn is_out_of_files(error: &std::io::Error) -> bool {
    let is = |errno: rustix::io::Errno| error.raw_os_error() == Some(errno.raw_os_error());
    is(rustix::io::Errno::MFILE) || is(rustix::io::Errno::NFILE)
}

/// Files that a front needs besides those of its clients: its connections to the store and its replicas, and
/// its sockets.
const FILES_OF_A_FRONT: u64 = 64;
/// One in this many open files may be a front's connection that is logged in as a user. A front has at most
/// [`WITNESSES_MAX`] such connections.
const FILES_PER_WITNESS: u64 = 8;
/// Files of a client: its own connection, and one to the store.
const FILES_OF_A_CLIENT: u64 = 2;
/// Files of a router's client for each shard: both sockets of a pair, and the connection to the store.
const FILES_IN_A_SHARD: u64 = 3;

/// Returns the number of clients that a process with at most `files` open files can serve. This number allows for all
/// connections that each client's commands may need (`WATCH`, `BLPOP`). `shards`: the number of shards of a router; 0:
/// there is no router.
#[must_use]
pub fn clients_within(files: u64, shards: usize) -> usize {
    let shards = u64::try_from(shards).unwrap_or(u64::MAX);
    let witnesses = u64::try_from(WITNESSES_MAX).unwrap_or(u64::MAX);
    let fronts = shards.max(1);
    let of_front = FILES_OF_A_FRONT + witnesses.min(files / fronts / FILES_PER_WITNESS);
    let left = files.saturating_sub(of_front.saturating_mul(fronts));
    let of_client = match shards {
        0 => FILES_OF_A_CLIENT,
        shards => shards.saturating_mul(FILES_IN_A_SHARD).saturating_add(1),
    };
    usize::try_from(left / of_client).unwrap_or(usize::MAX)
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

    fn note_shaking(&mut self, peer: SocketAddr) {
        if let Some(door) = &mut self.door {
            door.note_shaking(peer, self.shared.now);
        }
    }

    fn admit(&mut self, stream: TcpStream, peer: SocketAddr) -> std::io::Result<()> {
        match (self.shaking).admits(peer.ip(), self.clients.count(), self.connections_max) {
            Admits::Yes => {}
            Admits::InPlaceOf(index, from) => {
                self.note_shaking(from);
                self.close(index, TOO_MANY_SHAKE);
            }
            Admits::No => {
                self.note_shaking(peer);
                self.tls_failed(TOO_MANY_SHAKE);
                return Ok(());
            }
        }
        if self.clients.count() >= self.connections_max
            && let Some(door) = &mut self.door
        {
            return door.refuse(stream, peer, self.connections_max, self.shared.now);
        }
        let stream = welcome(stream, self.tls.as_ref(), self.keepalive)?;
        let id = self.clients_ever + 1;
        self.seat(stream, id, peer)?;
        self.clients_ever = id;
        Ok(())
    }

    /// Serves a new client from now on.
    pub(super) fn seat(
        &mut self,
        mut stream: Wire,
        id: u64,
        peer: SocketAddr,
    ) -> std::io::Result<()> {
        let index = self.clients.reserve();
        let token = Token(FIRST_CLIENT + 2 * index);
        if let Err(error) = stream.register(self.poll.registry(), token) {
            self.clients.release(index);
            return Err(error);
        }
        let handshake = stream.handshake_until(self.shared.now);
        let shakes = handshake.is_some();
        if shakes {
            self.shaking.begins(id, index, peer);
        }
        self.shared.tracking.came(id, index);
        let mut connection = Connection::new(id, peer);
        connection.rights.reset(&self.shared.users);
        let client = Client {
            connection,
            socket: Edge::new(stream),
            handshake,
            lingering: None,
            shut: false,
            unread: Unread::default(),
            direct: None,
            session: None,
            waiting: false,
            woken: false,
            subscribing: None,
            ticket: None,
            stranger_bytes: 0,
            dirty: false,
        };
        self.clients.put(index, client);
        if shakes {
            self.vigil.attend(self.shared.now);
        }
        self.enqueue(index);
        Ok(())
    }

    /// Notes that the TLS handshake of a client failed.
    pub(super) fn tls_failed(&mut self, why: &str) {
        self.shared.counters.tls_failed += 1;
        let total = self.shared.counters.tls_failed;
        // The failure is logged at counts that are powers of two, so that many failures do not flood the log.
        if total.is_power_of_two() {
            tracing::warn!(total, why, "PM3305 no TLS with a client");
        }
    }

    pub(super) fn close(&mut self, index: usize, why: &str) {
        let Some(mut client) = self.clients.take(index) else {
            return;
        };
        tracing::debug!(why, "client closed");
        self.forget_unread(&client.unread);
        self.strangers_bytes -= client.stranger_bytes;
        if let Some(change) = client.subscribing {
            self.subscription_over(change.number);
        }
        if let Some(ticket) = client.ticket {
            self.end_ticket(ticket);
        }
        if client.handshake.is_some() {
            self.shaking.ends(client.connection.id());
            self.tls_failed(why);
        }
        if let Some(session) = client.session {
            self.sessions.remove(&session);
        }
        if let Some(session) = client.connection.session() {
            self.up.end(self.shared.now, session);
        }
        self.clients.release(index);
        self.shared.tracking.left(client.connection.id());
        if client.connection.close_unanswered() {
            self.marks.note_unanswered(self.shared.now);
        }
        if client.woken {
            self.wake_waiting();
        }
    }
}

/// Prepares the connection of an accepted client: keepalive, and TLS if configured.
pub(crate) fn welcome(
    stream: TcpStream,
    tls: Option<&ServerTls>,
    keepalive: Option<Duration>,
) -> std::io::Result<Wire> {
    keep_alive(&SockRef::from(&stream), keepalive)?;
    Wire::accepted(stream, tls)
}

/// Makes the operating system probe a client that has been silent for `after`. As with Redis, the operating system
/// sends three probes, at intervals of a third of `after`.
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

/// Opens a listening socket.
fn open_listener(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    // A front that is restarted must not wait for old connections to time out.
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

    #[test]
    fn each_client_has_room_for_all_its_connections() {
        for (files, shards, clients) in [
            (1024, 0, 416),
            (65_536, 0, 32_608),
            (65_536, 3, 6_457),
            (64, 0, 0),
            (0, 9, 0),
            (u64::MAX, 0, usize::MAX / 2 - 160),
        ] {
            assert_eq!(clients_within(files, shards), clients, "{files} {shards}");
        }
    }

    #[test]
    fn what_goes_on_is_said_seldom_and_counted() {
        let mut seldom = Seldom::default();
        assert_eq!(seldom.again(1), Some(1));
        assert_eq!((seldom.again(2), seldom.again(3)), (None, None));
        assert_eq!(seldom.again(1 + PATIENCE), Some(3));
    }
}
