//! Opens and closes the clients' own sockets to the store, as their connections request.

use std::net::SocketAddr;
use std::time::Duration;

use mio::Token;
use socket2::{SockRef, TcpKeepalive};

use super::client::DirectSocket;
use super::socket::Socket;
use super::wire::Wire;
use super::{FIRST_CLIENT, Front};
use crate::upstream::{Time, Upstream};

/// Maximum time for connecting to the store, in nanoseconds.
const CONNECT_TIMEOUT: Time = 5_000_000_000;
/// Time of silence after which the operating system checks that the store's machine still has the connection. If the
/// store answers no client at all, the front notices this earlier.
const DIRECT_KEEPALIVE: Duration = Duration::from_secs(60);

impl<U: Upstream> Front<U> {
    /// Opens the socket to the store, or closes it.
    pub(super) fn match_direct(&mut self, index: usize, target: Option<(u64, SocketAddr)>) {
        let Some(client) = self.clients.get_mut(index) else {
            return;
        };
        // The bytes of an earlier socket belong to an earlier state of the connection.
        client.direct = None;
        let Some((_, address)) = target else {
            return;
        };
        let tls = client.connection.direct_tls();
        let connect = || -> std::io::Result<Wire> {
            let token = Token(FIRST_CLIENT + 2 * index + 1);
            let stream = Wire::connect(address, tls, self.poll.registry(), token)?;
            SockRef::from(&stream)
                .set_tcp_keepalive(&TcpKeepalive::new().with_time(DIRECT_KEEPALIVE))?;
            Ok(stream)
        };
        match connect() {
            Ok(stream) => {
                self.serial += 1;
                self.connecting
                    .push_back((self.shared.now + CONNECT_TIMEOUT, index, self.serial));
                client.direct = Some(DirectSocket {
                    socket: Socket::unready(stream),
                    connected: false,
                    serial: self.serial,
                });
            }
            Err(error) => {
                client.connection.direct_lost(&error.to_string());
                self.enqueue(index);
            }
        }
    }

    pub(super) fn expire_connecting(&mut self) {
        while let Some(&(time, index, serial)) = self.connecting.front() {
            let direct = self.clients.get_mut(index);
            let waiting = direct.filter(|client| {
                client
                    .direct
                    .as_ref()
                    .is_some_and(|direct| direct.serial == serial && !direct.connected)
            });
            if let Some(client) = waiting {
                if time > self.shared.now {
                    return;
                }
                client.connection.direct_lost("connecting took too long");
                self.enqueue(index);
            }
            self.connecting.pop_front();
        }
    }
}
