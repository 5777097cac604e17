//! Clients that have a UDP socket each.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::{SocketAddrV4, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use mio::unix::SourceFd;

use super::carrier::{Arrived, Buffer, Carrier};

/// Clients that have a UDP socket each. A single socket is read directly. With several sockets, events of the kernel
/// tell which socket has datagrams.
pub struct Sockets {
    sockets: Vec<UdpSocket>,
    poll: mio::Poll,
    events: mio::Events,
    /// Clients whose socket is known to have datagrams.
    ready: VecDeque<usize>,
}

impl Sockets {
    /// Opens the sockets in the calling thread's network namespace.
    pub fn open(target: SocketAddrV4, clients: usize) -> anyhow::Result<Sockets> {
        let poll = mio::Poll::new()?;
        let mut sockets = Vec::with_capacity(clients);
        for index in 0..clients {
            let socket = UdpSocket::bind("0.0.0.0:0").context("no socket")?;
            socket.connect(target).context("no way to the system")?;
            socket.set_nonblocking(true)?;
            if clients > 1 {
                poll.registry().register(
                    &mut SourceFd(&socket.as_raw_fd()),
                    mio::Token(index),
                    mio::Interest::READABLE,
                )?;
            }
            sockets.push(socket);
        }
        Ok(Sockets {
            sockets,
            poll,
            events: mio::Events::with_capacity(clients),
            ready: VecDeque::with_capacity(clients),
        })
    }

    fn one(&self, client: usize, buffer: &mut Buffer) -> anyhow::Result<Option<Arrived>> {
        match self.sockets[client].recv(buffer) {
            Ok(length) => Ok(Some(Arrived {
                client,
                length,
                at: Instant::now(),
            })),
            Err(error) if is_passing(&error) => Ok(None),
            Err(error) => Err(error).context("cannot receive"),
        }
    }
}

impl Carrier for Sockets {
    fn prepare(&mut self, _client: usize, _datagrams: &[Vec<u8>]) -> anyhow::Result<()> {
        Ok(())
    }

    fn send(&mut self, client: usize, datagrams: &[Vec<u8>]) -> anyhow::Result<u64> {
        let mut failed = 0;
        for datagram in datagrams {
            if let Err(error) = self.sockets[client].send(datagram) {
                ensure!(is_passing(&error), "cannot send: {error}");
                failed += 1;
            }
        }
        Ok(failed)
    }

    fn receive(&mut self, buffer: &mut Buffer) -> anyhow::Result<Option<Arrived>> {
        if self.sockets.len() == 1 {
            return self.one(0, buffer);
        }
        if self.ready.is_empty() {
            match self.poll.poll(&mut self.events, Some(Duration::ZERO)) {
                Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(None),
                other => other?,
            }
            self.ready
                .extend(self.events.iter().map(|event| event.token().0));
        }
        while let Some(client) = self.ready.pop_front() {
            if let Some(arrived) = self.one(client, buffer)? {
                return Ok(Some(arrived));
            }
        }
        Ok(None)
    }

    fn unfinished(&mut self, client: usize) {
        // An event reports a socket only once, so the socket is read until its answer is complete. Datagrams after a
        // complete answer are late, and the next event covers them.
        if self.sockets.len() > 1 {
            self.ready.push_front(client);
        }
    }
}

/// Returns whether the error is temporary: no datagram is waiting, or an earlier datagram was lost.
fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock
            | ErrorKind::Interrupted
            | ErrorKind::ConnectionRefused
            | ErrorKind::OutOfMemory
    ) || error.raw_os_error() == Some(rustix::io::Errno::NOBUFS.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_received_once_by_whom_it_is_for() {
        for clients in [1, 3] {
            let far = UdpSocket::bind("127.0.0.1:0").unwrap();
            far.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            let std::net::SocketAddr::V4(target) = far.local_addr().unwrap() else {
                panic!("an IPv4 socket");
            };
            let mut sockets = Sockets::open(target, clients).unwrap();
            let mut buffer = [0; 2000];
            let mut from = Vec::new();
            for client in 0..clients {
                sockets.send(client, &[vec![7]]).unwrap();
                from.push(far.recv_from(&mut buffer).unwrap().1);
            }
            // Each client gets up to two datagrams. The second datagram follows if the first datagram does not complete
            // the answer.
            for part in 0..2 {
                for (client, from) in from.iter().enumerate() {
                    let datagram = [u8::try_from(client).unwrap(), part];
                    far.send_to(&datagram, from).unwrap();
                }
            }
            let mut seen = vec![0; clients];
            let mut buffer = [0; _];
            let until = Instant::now() + Duration::from_secs(20);
            while seen.iter().any(|seen| *seen < 2) && Instant::now() < until {
                if let Some(arrived) = sockets.receive(&mut buffer).unwrap() {
                    let Arrived { client, length, .. } = arrived;
                    assert_eq!(length, 2);
                    assert_eq!(buffer[..2], [u8::try_from(client).unwrap(), seen[client]]);
                    seen[client] += 1;
                    sockets.unfinished(client);
                }
            }
            assert_eq!(seen, vec![2; clients]);
            assert_eq!(sockets.receive(&mut buffer).unwrap(), None);
        }
    }
}
