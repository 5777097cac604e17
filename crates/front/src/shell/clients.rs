//! Carries out CLIENT commands about the front's clients, and ends pauses.

use std::os::fd::AsRawFd;

use pmnet_resp::reply;

use super::Front;
use super::client::Client;
use crate::client::{ClientSocket, ClientsAsk, ClientsTold, Shared};
use crate::upstream::Upstream;

impl<U: Upstream> Front<U> {
    /// Answers a client's request about the front's clients.
    pub(super) fn tell_of_clients(&mut self, index: usize, ask: ClientsAsk) {
        let error = matches!(ask, ClientsAsk::Unblock { error: true, .. });
        let told = match ask {
            ClientsAsk::Info => ClientsTold::Lines(self.lines(|at, _| at == index)),
            ClientsAsk::List(which) => ClientsTold::Lines(self.lines(|at, client| {
                let own = at == index && which.skips_me;
                !own && which.has(&client.connection.portrait(), client.socket(), &self.shared)
            })),
            ClientsAsk::KillAddress(address) => {
                let killed = self.kill(index, |_, client, _| {
                    client.connection.peer().as_bytes() == address
                });
                ClientsTold::Reply(if killed == 0 {
                    reply::error("ERR No such client")
                } else {
                    reply::OK
                })
            }
            ClientsAsk::Kill(which) => {
                let killed = self.kill(index, |at, client, shared| {
                    let own = at == index && which.skips_me;
                    !own && which.has(&client.connection.portrait(), client.socket(), shared)
                });
                ClientsTold::Reply(reply::integer(i64::try_from(killed).unwrap_or(i64::MAX)))
            }
            ClientsAsk::Unblock { id, error } => {
                let is = |client: &Client| {
                    i64::try_from(client.connection.id()).is_ok_and(|own| own == id)
                };
                let found = self.clients.iter().find(|(_, client)| is(client));
                let blocked = found.and_then(|(_, client)| client.connection.blocked_as());
                let found = found.map(|(at, _)| at);
                match blocked {
                    None if found.is_some_and(|at| self.unblock_waiting(at, error)) => {
                        ClientsTold::Reply(reply::integer(1))
                    }
                    Some(blocked) => ClientsTold::Unblock(blocked),
                    None => ClientsTold::Reply(reply::integer(0)),
                }
            }
        };
        if let Some(client) = self.clients.get_mut(index) {
            let connection = &mut client.connection;
            connection.clients_told(told, error, &mut self.up, &mut self.shared);
            self.enqueue(index);
        }
    }

    /// Returns the lines of these clients, in the order in which they connected.
    fn lines(&self, wanted: impl Fn(usize, &Client) -> bool) -> String {
        let fields = self.shared.client_fields();
        let mut clients: Vec<&Client> = self
            .clients
            .iter()
            .filter_map(|(at, client)| wanted(at, client).then_some(client))
            .collect();
        clients.sort_by_key(|client| client.connection.id());
        clients
            .into_iter()
            .map(|client| {
                let portrait = client.connection.portrait();
                portrait.describe(&fields, client.socket(), &self.shared)
            })
            .collect()
    }

    /// Closes the clients for which `wanted` returns true. The client at `own` is closed after it has its reply.
    /// Returns the number of closed clients.
    fn kill(&mut self, own: usize, wanted: impl Fn(usize, &Client, &Shared) -> bool) -> usize {
        let mut count = 0;
        for index in self.clients.indices() {
            let Some(client) = self.clients.get_mut(index) else {
                continue;
            };
            if !wanted(index, client, &self.shared) {
                continue;
            }
            count += 1;
            if index == own {
                client.connection.end_after_reply();
            } else {
                self.close(index, "CLIENT KILL");
            }
        }
        count
    }

    /// Called at the end of a turn. If a pause has ended, the clients that waited for its end continue.
    pub(super) fn end_pause(&mut self) {
        if !self.shared.pause.take_over(self.shared.now) {
            return;
        }
        self.clients
            .enqueue_if(|client| client.connection.is_paused());
    }
}

impl Client {
    fn socket(&self) -> ClientSocket {
        ClientSocket {
            local: self.socket.wire.local_addr(),
            fd: self.socket.wire.as_raw_fd(),
            writes: !self.connection.unwritten().is_empty(),
        }
    }
}
