//! The reads for one Redis, in one version of RESP: the connection, and the reads that wait to be sent or answered.
//!
//! A connection to the store itself is made when a read waits for it. A connection to a replica is made in advance: a
//! read goes to a replica only if the replica can answer at once.

use std::collections::VecDeque;
use std::net::SocketAddr;

use bytes::Bytes;
use mio::event::Event;
use mio::{Registry, Token};
use pmnet_wire::command::Protocol;

use crate::client::{Shared, StoreRead, Unread, lane};
use crate::shell::dial::{Dialed, Patience, leads_astray};
use crate::shell::socket::Ended;
use crate::store::reads::{Queued, ReadsLine, Told};
use crate::upstream::Time;

/// Divisor of a command's time that gives the longest silence of the store while a read waits.
const SILENCES_PER_TIMEOUT: Time = 8;
/// Upper bound of the store's silence while a read waits, in nanoseconds.
const SILENCE_MAX: Time = 1_000_000_000;
/// Longest time that a read waits for a replica, in nanoseconds. The bound holds even if the replica sends something
/// meanwhile. After this time the front can ask the master.
const REPLICA_WAIT_MAX: Time = 50_000_000;
/// While connecting, the longest silence of the store is the usual longest silence divided by this number. The silence
/// while connecting is shorter, because a store that cannot be reached delays many reads.
const MAKING_PER_SILENCE: Time = 4;
/// Divisor of a command's time that gives the longest time for a read, whatever the store sends meanwhile.
const WAITS_PER_TIMEOUT: Time = 2;
/// Longest pause before a lost connection is made again, in nanoseconds.
const PAUSE_MAX: Time = 2_000_000_000;
/// Maximum number of bytes read from one of the connections before the clients get their turn.
const READ_BYTES_PER_TURN: usize = 1024 * 1024;

/// The connection for one version of RESP.
pub(super) struct Lane {
    protocol: Protocol,
    token: Token,
    /// The replica to which the connection leads; `None`: it leads to the store itself.
    replica: Option<SocketAddr>,
    open: Option<Dialed<ReadsLine>>,
    /// Reads that wait to be sent in a transaction, oldest first.
    waiting: VecDeque<Queued>,
    /// Longest time for one read, in nanoseconds.
    wait: Time,
    patience: Patience,
}

/// Returns the longest silence of the store, and the longest wait of a read.
fn times(replica: Option<SocketAddr>, call_timeout: Time) -> (Time, Time) {
    let (silence_max, wait_max) = match replica {
        None => (SILENCE_MAX, Time::MAX),
        Some(_) => (REPLICA_WAIT_MAX, REPLICA_WAIT_MAX),
    };
    (
        (call_timeout / SILENCES_PER_TIMEOUT).clamp(1, silence_max),
        (call_timeout / WAITS_PER_TIMEOUT).clamp(1, wait_max),
    )
}

impl Lane {
    /// Makes a lane without a connection. `replica`: the lane is for this replica, not for the store itself.
    pub(super) fn new(
        protocol: Protocol,
        token: Token,
        replica: Option<SocketAddr>,
        call_timeout: Time,
    ) -> Lane {
        let (silence, wait) = times(replica, call_timeout);
        Lane {
            protocol,
            token,
            replica,
            open: None,
            waiting: VecDeque::new(),
            wait,
            patience: Patience::new(silence).with_pause_max(PAUSE_MAX),
        }
    }

    /// Sets the longest time of a call, from which this lane's bounds follow.
    pub(super) fn set_call_timeout(&mut self, call_timeout: Time) {
        let (silence, wait) = times(self.replica, call_timeout);
        self.wait = wait;
        self.patience.set_silence(silence);
    }

    /// Returns the replica that this lane is for.
    pub(super) fn replica(&self) -> Option<SocketAddr> {
        self.replica
    }

    /// Whether there are unread bytes that no event will announce.
    pub(super) fn has_more(&self) -> bool {
        self.open.as_ref().is_some_and(Dialed::has_more)
    }

    /// Notes an event, if the event is about this connection.
    pub(super) fn note(&mut self, event: &Event) {
        if self.token == event.token()
            && let Some(open) = &mut self.open
        {
            open.note(event);
        }
    }

    /// Takes a client's reads. The reads are sent at the end of the turn.
    pub(super) fn submit(&mut self, client: usize, read: StoreRead, now: Time) {
        self.waiting.push_back(Queued {
            client,
            read,
            since: now,
            again: false,
        });
    }

    /// Returns the time by which the store must send something, or complete the oldest read.
    pub(super) fn due(&self) -> Option<Time> {
        let sent = self.open.as_ref().and_then(|open| open.line.oldest());
        let oldest = sent.or_else(|| Some(self.waiting.front()?.since))?;
        let made = self.open.as_ref().is_some_and(|open| open.line.is_known());
        let silence = if made {
            self.patience.silence()
        } else {
            self.patience.silence() / MAKING_PER_SILENCE
        };
        let silent = self.patience.heard().max(oldest).saturating_add(silence);
        Some(silent.min(oldest.saturating_add(self.wait)))
    }

    /// Whether reads may be submitted. There must be a store that may be read from. The connection must be open, or may
    /// be made now. A replica must have answered on its connection.
    pub(super) fn is_fit(&self, shared: &Shared) -> bool {
        let ready = match (&self.open, self.replica) {
            (Some(open), Some(_)) => open.line.is_known(),
            (None, Some(_)) => false,
            (open, None) => open.is_some() || shared.now >= self.patience.connect_after(),
        };
        may_read(shared) && shared.store.is_some() && ready
    }

    /// Gives the connection up. The connection is made again after a pause.
    pub(super) fn give_up(&mut self, why: &str, now: Time, told: &mut Vec<Told>) {
        tracing::debug!(why, replica = ?self.replica, "the connection for reads to the store ends");
        self.patience.lose(now);
        if let Some(open) = self.open.take() {
            open.line.end(told);
        }
        self.turn_away(told);
    }

    /// Gives up the waiting reads.
    pub(super) fn turn_away(&mut self, told: &mut Vec<Told>) {
        for waiting in self.waiting.drain(..) {
            told.push(Told::Unread(waiting.reader(), Unread::Unfit));
        }
    }

    /// Whether the connection leads to a store that the server does not name.
    fn leads_astray(&self, shared: &Shared) -> bool {
        let line = self.open.as_ref().map(|open| &open.line);
        line.is_some_and(|line| {
            !may_read(shared) || leads_astray(line.address(), line.leads_to(), self.replica, shared)
        })
    }

    fn connect(&mut self, registry: &Registry, shared: &Shared) -> Result<(), String> {
        let (Some(store), Some(name)) = (&shared.store, &shared.name) else {
            return Err("it is not known where the store is".into());
        };
        let store = match self.replica {
            Some(address) => &store.at(address),
            None => store,
        };
        let replica_of = self.replica.map(|_| name.run_id.clone());
        let line = ReadsLine::new(store, &name.records, self.protocol, replica_of);
        let open = Dialed::connect(line, store, registry, self.token);
        self.open = Some(open.map_err(|error| error.to_string())?);
        Ok(())
    }

    /// Takes the store's BUSY error, if it has sent one since the last call of this function.
    pub(super) fn take_busy(&mut self) -> Option<Bytes> {
        let open = self.open.as_mut().filter(|_| self.replica.is_none())?;
        open.line.busy.take()
    }

    /// Takes the bytes that have come.
    pub(super) fn receive(
        &mut self,
        scratch: &mut [u8],
        shared: &Shared,
        told: &mut Vec<Told>,
    ) -> Result<(), String> {
        let Lane {
            open: Some(open),
            patience,
            waiting,
            ..
        } = self
        else {
            return Ok(());
        };
        let received = open.receive(scratch, READ_BYTES_PER_TURN, |line, bytes| {
            patience.hear(shared.now);
            line.receive(bytes, shared.name.as_ref(), told, waiting)
                .map_err(Failed::Line)?;
            if line.proven {
                patience.prove();
            }
            Ok(())
        });
        received.map_err(|failed| match failed {
            Failed::Line(why) => why,
            Failed::Socket(ended) => why(&ended),
        })
    }

    /// Called at the end of a turn. Makes the connection, sends the waiting reads, and gives up reads and connections
    /// that take too long. `asks_role`: whether the store must also be asked for its replicas. Returns whether the
    /// store was asked for its replicas.
    pub(super) fn flush(
        &mut self,
        registry: &Registry,
        shared: &Shared,
        asks_role: bool,
        told: &mut Vec<Told>,
    ) -> bool {
        let now = shared.now;
        let was_asked = asks_role && !self.waiting.is_empty();
        if self.leads_astray(shared) {
            self.give_up("the server works on another store", now, told);
        } else if self.due().is_some_and(|due| now >= due) {
            self.give_up("the store does not answer in time", now, told);
        } else if self.open.is_none() && now < self.patience.connect_after() {
            self.turn_away(told);
        } else if let Err(why) = self.send(registry, shared, asks_role) {
            self.give_up(&why, now, told);
        }
        was_asked
    }

    fn send(
        &mut self,
        registry: &Registry,
        shared: &Shared,
        mut asks_role: bool,
    ) -> Result<(), String> {
        let used = shared.replicas.used[lane(self.protocol)];
        let wanted = match self.replica {
            Some(_) => used && may_read(shared),
            None => !self.waiting.is_empty(),
        };
        if self.open.is_none() && wanted {
            self.connect(registry, shared)?;
        }
        let (Some(open), Some(name)) = (&mut self.open, &shared.name) else {
            return Ok(());
        };
        while !self.waiting.is_empty() && open.line.has_room() {
            let asks = std::mem::take(&mut asks_role);
            open.line.begin(&name.records, asks, &mut self.waiting);
        }
        open.send().map_err(|ended| why(&ended))
    }
}

/// Why a connection is no longer usable.
enum Failed {
    Line(String),
    Socket(Ended),
}

impl From<Ended> for Failed {
    fn from(ended: Ended) -> Failed {
        Failed::Socket(ended)
    }
}

fn why(ended: &Ended) -> String {
    ended.why("closed by the store")
}

/// Whether the server permits fronts to read from its store.
fn may_read(shared: &Shared) -> bool {
    shared.name.as_ref().is_some_and(|name| name.reads)
}
