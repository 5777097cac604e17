//! The socket that listens.

use std::io::{self, ErrorKind, Write};
use std::net::SocketAddr;
use std::time::Duration;

use mio::net::{TcpListener, TcpStream};
use pmnet_client::Time;
use socket2::{Domain, SockRef, Socket, TcpKeepalive, Type};

/// Connections accepted in one turn.
const ACCEPTS_PER_TURN: usize = 64;
/// Connections waiting to be accepted.
const BACKLOG: i32 = 1024;
/// How long to wait after accepting failed, in nanoseconds.
const ACCEPT_PAUSE: u64 = 100_000_000;
/// How often the operating system asks a silent client whether it is there.
const KEEPALIVE_RETRIES: u32 = 3;
/// Answer to one client too many, as from memcached.
const TOO_MANY: &[u8] = b"ERROR Too many open connections\r\n";

/// Where clients come in.
pub(super) struct Door {
    listener: TcpListener,
    keepalive: Option<Duration>,
    /// A client may be there.
    pub(super) ready: bool,
    /// Not before this time.
    after: Time,
    /// Accepting failed, or clients were turned away: how often.
    troubles: u64,
}

impl Door {
    pub(super) fn open(address: SocketAddr, keepalive: Option<Duration>) -> io::Result<Door> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        // A front that starts again must not wait for old connections to time out.
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

    /// When it is to be looked at; `None`: when a client comes.
    pub(super) fn due(&self) -> Option<Time> {
        self.ready.then_some(self.after)
    }

    /// Clients that have come, if it is time to look: a bounded number.
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

    /// Logs less and less often, so that a flood of clients does not flood the log.
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

    /// Tells a client that there is no room for it.
    pub(super) fn turn_away(&mut self, mut stream: TcpStream) {
        self.trouble("more than --connections-max");
        // A client that is gone needs no answer.
        let _ = stream.write(TOO_MANY);
    }

    /// Checks clients that come later after this much silence.
    pub(super) const fn set_keepalive(&mut self, keepalive: Option<Duration>) {
        self.keepalive = keepalive;
    }

    /// Makes a client's socket ready to be served.
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
