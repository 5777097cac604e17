//! Reads from the store itself and from its replicas, on the front's own connections. To the store, and to each replica
//! that may be read from, there is one connection for each version of RESP.
//!
//! Purpose: collects the reads of all clients in a turn, and passes the replies to the clients. A connection is made
//! when it is first needed, and used only while it leads to the store on which the server works. No read waits long: a
//! read that is not answered in time becomes a bypass. Invariants: each client has at most two outstanding questions to
//! a store. One of these questions is sent to the store before the head has answered. So the number of clients bounds
//! the number of waiting questions. There are at most [`REPLICAS_MAX`] replicas.

mod lane;

use std::net::SocketAddr;

use mio::Token;
use mio::event::Event;
use pmnet_wire::command::Protocol;

use super::{Class, Front};
use crate::client::{Shared, StoreRead, Unread};
use crate::store::reads::{Reader, Told};
use crate::upstream::{Time, Upstream};
use lane::Lane;

/// While there are reads, the front asks the server at this interval, in nanoseconds, which store the server works on.
const NAME_EVERY: Time = 1_000_000_000;
/// Maximum number of replicas of the store that are read from (known gap G36).
pub(super) const REPLICAS_MAX: usize = 4;
/// Number of connections to replicas.
pub(super) const REPLICA_TOKENS: usize = 2 * REPLICAS_MAX;

/// The connections for reads, and the reads that wait for a connection.
pub(super) struct StoreReads {
    /// The connections to the store itself, for RESP2 and for RESP3.
    lanes: [Lane; 2],
    /// The connections to the store's replicas, for RESP2 and for RESP3. A replica keeps its index in this array.
    replicas: [Option<[Lane; 2]>; REPLICAS_MAX],
    first_replica_token: usize,
    /// Index of the replica to which the next read goes, if this replica can answer.
    turn: usize,
    told: Vec<Told>,
    call_timeout: Time,
    /// Until this time the server is not asked for the store's name again.
    ask_name_after: Time,
}

impl StoreReads {
    /// `first_replica_token`: the first of [`REPLICA_TOKENS`] consecutive tokens.
    pub(super) fn new(
        tokens: [Token; 2],
        first_replica_token: usize,
        call_timeout: Time,
    ) -> StoreReads {
        StoreReads {
            lanes: lanes(tokens, None, call_timeout),
            replicas: Default::default(),
            first_replica_token,
            turn: 0,
            told: Vec::new(),
            call_timeout,
            ask_name_after: 0,
        }
    }

    /// Sets the longest time of a call, from which the bounds of all lanes follow.
    pub(super) fn set_call_timeout(&mut self, call_timeout: Time) {
        self.call_timeout = call_timeout;
        for lane in self.all_mut() {
            lane.set_call_timeout(call_timeout);
        }
    }

    fn all(&self) -> impl Iterator<Item = &Lane> {
        self.lanes
            .iter()
            .chain(self.replicas.iter().flatten().flatten())
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut Lane> {
        let replicas = self.replicas.iter_mut().flatten().flatten();
        self.lanes.iter_mut().chain(replicas)
    }

    /// Whether the token belongs to a connection to a replica.
    pub(super) fn own(&self, token: Token) -> bool {
        let tokens = self.first_replica_token..self.first_replica_token + REPLICA_TOKENS;
        tokens.contains(&token.0)
    }

    /// Returns the time at which the next read will have waited too long.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        self.all().filter_map(Lane::due).min()
    }

    /// Whether there are unread bytes that no event will announce.
    pub(super) fn has_more(&self) -> bool {
        !self.told.is_empty() || self.all().any(Lane::has_more)
    }

    /// Notes an event of one of the connections.
    pub(super) fn note(&mut self, event: &Event) {
        self.all_mut().for_each(|lane| lane.note(event));
    }

    /// Takes a client's reads. The reads are sent at the end of the turn.
    pub(super) fn submit(&mut self, client: usize, read: StoreRead, shared: &Shared) {
        let at = crate::client::lane(read.protocol);
        if !read.replica {
            return self.lanes[at].submit(client, read, shared.now);
        }
        for _ in 0..REPLICAS_MAX {
            self.turn = (self.turn + 1) % REPLICAS_MAX;
            if let Some(lanes) = &mut self.replicas[self.turn]
                && lanes[at].is_fit(shared)
            {
                return lanes[at].submit(client, read, shared.now);
            }
        }
        let reader = Reader {
            client,
            connection: read.connection,
            batch: read.batch,
            since: shared.now,
        };
        self.told.push(Told::Unread(reader, Unread::Unfit));
    }

    /// Updates the replicas: the store has named them.
    fn replicas_are(&mut self, found: &[SocketAddr], now: Time) {
        for place in &mut self.replicas {
            if let Some(lanes) = place
                && lanes[0]
                    .replica()
                    .is_none_or(|replica| !found.contains(&replica))
            {
                tracing::info!(replica = ?lanes[0].replica(), "it is not read from any more: the store does not name it");
                for lane in lanes {
                    lane.give_up("it is no replica any more", now, &mut self.told);
                }
                *place = None;
            }
        }
        for replica in found {
            let known = |lanes: &[Lane; 2]| lanes[0].replica() == Some(*replica);
            if self.replicas.iter().flatten().any(known) {
                continue;
            }
            let Some(place) = self.replicas.iter().position(Option::is_none) else {
                tracing::debug!(%replica, "it is not read from: {REPLICAS_MAX} others are");
                continue;
            };
            tracing::info!(%replica, "reads may go to a replica of the store");
            let token = self.first_replica_token + 2 * place;
            let tokens = [Token(token), Token(token + 1)];
            self.replicas[place] = Some(lanes(tokens, Some(*replica), self.call_timeout));
        }
    }
}

fn lanes(tokens: [Token; 2], replica: Option<SocketAddr>, call_timeout: Time) -> [Lane; 2] {
    [
        Lane::new(Protocol::Resp2, tokens[0], replica, call_timeout),
        Lane::new(Protocol::Resp3, tokens[1], replica, call_timeout),
    ]
}

impl<U: Upstream> Front<U> {
    /// Takes the store's replies.
    pub(super) fn take_store_reads(&mut self) {
        let mut told = std::mem::take(&mut self.reads.told);
        for lane in self.reads.all_mut() {
            let received = lane.receive(&mut self.scratch, &self.shared, &mut told);
            if let Some(error) = lane.take_busy() {
                self.shared.busy.heard(&error, self.shared.now);
            }
            if let Err(why) = received {
                lane.give_up(&why, self.shared.now, &mut told);
            }
        }
        self.tell(told);
        let fit = |lanes: &[Lane; 2], at: usize| lanes[at].is_fit(&self.shared);
        let replicas = &self.reads.replicas;
        let any = [0, 1].map(|at| replicas.iter().flatten().any(|lanes| fit(lanes, at)));
        self.shared.store_reads = [0, 1].map(|at| fit(&self.reads.lanes, at));
        self.shared.replicas.fit = any;
    }

    /// Called at the end of a turn. Sends the collected reads, and gives up reads and connections that take too long.
    pub(super) fn send_store_reads(&mut self) {
        let mut told = std::mem::take(&mut self.reads.told);
        let mut sought = self.shared.replicas.are_sought(self.shared.now);
        for lane in self.reads.all_mut() {
            let asks = sought && lane.replica().is_none();
            if lane.flush(self.poll.registry(), &self.shared, asks, &mut told) {
                sought = false;
                self.shared.replicas.asked(self.shared.now);
            }
        }
        self.tell(told);
    }

    /// While there are reads, asks the server from time to time which store the server works on.
    pub(super) fn refresh_store_name(&mut self) {
        let now = self.shared.now;
        let wanted = self.vigil.wants_name || self.vigil.doubts_name;
        if wanted && now >= self.reads.ask_name_after {
            self.vigil.wants_name = false;
            self.reads.ask_name_after = now.saturating_add(NAME_EVERY);
            self.vigil.keeps_session = true;
            self.ask_store_name();
        }
    }

    fn tell(&mut self, mut told: Vec<Told>) {
        for word in told.drain(..) {
            let (Told::Record(reader, ..) | Told::Reply(reader, _) | Told::Unread(reader, _)) =
                &word
            else {
                if let Told::Replicas(found) = &word
                    && self.shared.replicas.are_allowed()
                {
                    self.reads.replicas_are(found, self.shared.now);
                    self.shared.replicas.found(self.shared.now);
                }
                continue;
            };
            let index = reader.client;
            let Some(client) = self.clients.get_mut(index) else {
                continue;
            };
            if client.connection.id() != reader.connection {
                continue;
            }
            match word {
                Told::Record(reader, epoch, watermark) => {
                    client.connection.store_recorded(
                        reader.batch,
                        epoch,
                        watermark,
                        &mut self.shared,
                    );
                }
                Told::Reply(reader, reply) => {
                    let took = self.shared.now.saturating_sub(reader.since);
                    self.up.took(Class::Store, took);
                    client
                        .connection
                        .store_replied(reader.batch, reply, &mut self.shared);
                }
                Told::Unread(reader, why) => {
                    client
                        .connection
                        .store_unread(reader.batch, why, &mut self.shared);
                }
                Told::Replicas(_) => {}
            }
            self.enqueue(index);
            self.mark_dirty(index);
        }
        // Reads of a replica that was removed get their result in the next turn.
        told.append(&mut self.reads.told);
        self.reads.told = told;
    }
}
