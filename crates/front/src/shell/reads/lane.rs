//! The reads for one Redis, in one version of RESP: its connection, and the clients that wait for it.
//!
//! The connection to the store is made when a client waits for it; that to a replica before, since a read is handed to a replica only
//! when it can answer at once.

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

/// Part of a command's time for which the store may say nothing while a client waits here.
const SILENCES_PER_TIMEOUT: Time = 8;
/// Longest such time, in nanoseconds.
const SILENCE_MAX: Time = 1_000_000_000;
/// Longest time that a read waits for a replica, whether that says something or not: the master can be asked.
const REPLICA_WAIT_MAX: Time = 50_000_000;
/// Divisor of the silence time while connecting: if nothing answers, many reads wait.
const MAKING_PER_SILENCE: Time = 4;
/// Part of a command's time after which a read is given up here, whatever the store says.
const WAITS_PER_TIMEOUT: Time = 2;
/// Longest time until a connection that was lost is made again, in nanoseconds.
const PAUSE_MAX: Time = 2_000_000_000;
/// Most bytes read from one of the connections before the clients get their turn.
const READ_BYTES_PER_TURN: usize = 1024 * 1024;

/// The connection for one version of RESP.
pub(super) struct Lane {
    protocol: Protocol,
    token: Token,
    /// The replica that it is for; `None`: it is for the store itself.
    replica: Option<SocketAddr>,
    open: Option<Dialed<ReadsLine>>,
    /// Reads that wait for a transaction, oldest first.
    waiting: VecDeque<Queued>,
    /// How long the store may take.
    wait: Time,
    patience: Patience,
}

/// Returns how long the store may be silent, and how long a read may wait.
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
    /// Without a connection. `replica`: for that one, and not for the store itself.
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

    /// Calls take this long at most from now on.
    pub(super) fn set_call_timeout(&mut self, call_timeout: Time) {
        let (silence, wait) = times(self.replica, call_timeout);
        self.wait = wait;
        self.patience.set_silence(silence);
    }

    /// The replica that it is for.
    pub(super) fn replica(&self) -> Option<SocketAddr> {
        self.replica
    }

    /// Whether there is something to read that no event will announce.
    pub(super) fn has_more(&self) -> bool {
        self.open.as_ref().is_some_and(Dialed::has_more)
    }

    /// Remembers what an event says about the connection, if it is about this one.
    pub(super) fn note(&mut self, event: &Event) {
        if self.token == event.token()
            && let Some(open) = &mut self.open
        {
            open.note(event);
        }
    }

    /// Takes what a client wants to read; it is sent at the end of the turn.
    pub(super) fn submit(&mut self, client: usize, read: StoreRead, now: Time) {
        self.waiting.push_back(Queued {
            client,
            read,
            since: now,
            again: false,
        });
    }

    /// By when the store must have said something, or be done with the oldest read.
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

    /// Whether reads may be handed in: there is a store to read from, and the connection is there or may be made; of a replica, it has
    /// answered.
    pub(super) fn is_fit(&self, shared: &Shared) -> bool {
        let ready = match (&self.open, self.replica) {
            (Some(open), Some(_)) => open.line.is_known(),
            (None, Some(_)) => false,
            (open, None) => open.is_some() || shared.now >= self.patience.connect_after(),
        };
        may_read(shared) && shared.store.is_some() && ready
    }

    /// Gives the connection up; it is made again after a while.
    pub(super) fn give_up(&mut self, why: &str, now: Time, told: &mut Vec<Told>) {
        tracing::debug!(why, replica = ?self.replica, "the connection for reads to the store ends");
        self.patience.lose(now);
        if let Some(open) = self.open.take() {
            open.line.end(told);
        }
        self.turn_away(told);
    }

    /// Gives up the reads that wait.
    pub(super) fn turn_away(&mut self, told: &mut Vec<Told>) {
        for waiting in self.waiting.drain(..) {
            told.push(Told::Unread(waiting.reader(), Unread::Unfit));
        }
    }

    /// Whether the connection leads elsewhere than the server's name for its store.
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

    /// The store has said that it is busy since this was asked last.
    pub(super) fn take_busy(&mut self) -> Option<Bytes> {
        let open = self.open.as_mut().filter(|_| self.replica.is_none())?;
        open.line.busy.take()
    }

    /// Takes in what has come.
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

    /// The end of a turn: makes the connection, sends what waits, and ends what takes too long. `asks_role`: the store is to name its
    /// replicas. Whether it was asked for that.
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

/// Why a connection is of no more use.
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

/// Whether the server lets fronts read by themselves.
fn may_read(shared: &Shared) -> bool {
    shared.name.as_ref().is_some_and(|name| name.reads)
}
