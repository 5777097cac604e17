//! The listening socket.

use std::io::{self, ErrorKind, Write};
use std::net::SocketAddr;
use std::time::Duration;

use mio::net::{TcpListener, TcpStream};
use pmnet_client::Time;
use socket2::{Domain, SockRef, Socket, TcpKeepalive, Type};

/// Maximum number of connections accepted in one turn.
const ACCEPTS_PER_TURN: usize = 64;
/// Maximum number of connections that wait to be accepted.
const BACKLOG: i32 = 1024;
/// Pause after a failed accept, in nanoseconds.
const ACCEPT_PAUSE: u64 = 100_000_000;
/// Number of times that the operating system probes a silent client before it closes the connection.
const KEEPALIVE_RETRIES: u32 = 3;
/// Answer to a client above the limit, which is the answer of memcached.
const TOO_MANY: &[u8] = b"ERROR Too many open connections\r\n";

/// The listening socket, and the time of the next accept.
pub(super) struct Door {
    listener: TcpListener,
    keepalive: Option<Duration>,
    /// Whether clients may be waiting to be accepted.
    pub(super) ready: bool,
    /// No client is accepted before this time.
    after: Time,
    /// Number of failed accepts and refused clients.
    troubles: u64,
}

impl Door {
    pub(super) fn open(address: SocketAddr, keepalive: Option<Duration>) -> io::Result<Door> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        // A front that is restarted must not wait for old connections to time out.
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        Ok(Door {
            listener: TcpListener::from_std(socket.into()),
            keepalive,
            ready: false,
            after: Time(0),
            troubles: 0,
        })
    }

    pub(super) fn listener(&mut self) -> &mut TcpListener {
        &mut self.listener
    }

    pub(super) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Returns the time of the next accept; `None`: no client is waiting.
    pub(super) fn due(&self) -> Option<Time> {
        self.ready.then_some(self.after)
    }

    /// Accepts a bounded number of waiting clients, unless the pause after a failure is not over.
    pub(super) fn accept(&mut self, now: Time) -> Vec<TcpStream> {
        let mut came = Vec::new();
        if self.due().is_none_or(|due| now < due) {
            return came;
        }
        for _ in 0..ACCEPTS_PER_TURN {
            match self.listener.accept() {
                Ok((stream, _)) => came.push(stream),
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
                    self.trouble(&error.to_string());
                    self.after = now + ACCEPT_PAUSE;
                    break;
                }
            }
        }
        came
    }

    /// Logs the reason at counts that are powers of two, so that many clients do not flood the log.
    fn trouble(&mut self, why: &str) {
        self.troubles += 1;
        if self.troubles.is_power_of_two() {
            tracing::warn!(
                times = self.troubles,
                why,
                "PM3101 memcached clients are turned away"
            );
        }
    }

    /// Sends the error to a client above the limit, and closes its connection.
    pub(super) fn turn_away(&mut self, mut stream: TcpStream) {
        self.trouble("more than --connections-max");
        // A client that has already disconnected needs no answer.
        let _ = stream.write(TOO_MANY);
    }

    /// Sets the time of silence after which clients that connect later are checked.
    pub(super) const fn set_keepalive(&mut self, keepalive: Option<Duration>) {
        self.keepalive = keepalive;
    }

    /// Prepares a client's socket.
    pub(super) fn welcome(&self, stream: &TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let Some(after) = self.keepalive else {
            return Ok(());
        };
        let interval = Duration::from_secs((after.as_secs() / 3).max(1));
        let keepalive = TcpKeepalive::new().with_time(after).with_interval(interval);
        SockRef::from(stream).set_tcp_keepalive(&keepalive.with_retries(KEEPALIVE_RETRIES))
    }
}
