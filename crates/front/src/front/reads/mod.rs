//! Reads from the store itself, on connections of the front's own: one for each version of RESP.
//!
//! Purpose: brings together what the clients of one turn have to read, and hands on what comes back. A
//! connection is made when it is first needed, and used only while it leads to the store that the server works on.
//! Nobody waits long here: who is not answered in time reads by bypass.
//! Invariants: each client has at most two questions here, one of them asked before the head has answered, so their number
//! bounds what waits.

mod link;

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};

use mio::event::Event;
use mio::{Registry, Token};
use pmnet_wire::command::Protocol;

use super::Front;
use super::wire::Wire;
use crate::connection::{Shared, StoreRead, Unread, lane};
use crate::upstream::{Time, Upstream};
use link::{Link, Told, Waiting};

/// Part of a command's time for which the store may say nothing while somebody waits here.
const SILENCES_PER_TIMEOUT: Time = 8;
/// Longest such time, in nanoseconds.
const SILENCE_MAX: Time = 1_000_000_000;
/// Part of it while the connection is being made: where nothing answers at all, many would wait for it.
const MAKING_PER_SILENCE: Time = 4;
/// Part of a command's time after which a read is given up here, whatever the store says.
const WAITS_PER_TIMEOUT: Time = 2;
/// Shortest and longest time until a connection that was lost is made again, in nanoseconds.
const PAUSE_MIN: Time = 100_000_000;
const PAUSE_MAX: Time = 2_000_000_000;
/// Most bytes read from one of the connections before the clients get their turn.
const READ_BYTES_PER_TURN: usize = 1024 * 1024;
/// How often the server is asked which store it works on while there are reads, in nanoseconds.
const NAME_EVERY: Time = 1_000_000_000;

/// The connections, and who waits for them.
pub(super) struct StoreReads {
    lanes: [Lane; 2],
    told: Vec<Told>,
    /// When the server may be asked for the store's name again.
    ask_name_after: Time,
}

/// The connection for one version of RESP.
struct Lane {
    protocol: Protocol,
    token: Token,
    open: Option<Open>,
    /// Who waits for a transaction, oldest first.
    waiting: VecDeque<Waiting>,
    /// How long the store may say nothing, and how long it may take.
    silence: Time,
    wait: Time,
    /// When the store last said something.
    heard: Time,
    pause: Time,
    connect_after: Time,
}

struct Open {
    link: Link,
    stream: Wire,
    readable: bool,
    /// The store will send nothing more: what is there is read to its end.
    closing: bool,
}

impl StoreReads {
    pub(super) fn new(tokens: [Token; 2], call_timeout: Time) -> StoreReads {
        let lane = |protocol, token| Lane {
            protocol,
            token,
            open: None,
            waiting: VecDeque::new(),
            silence: (call_timeout / SILENCES_PER_TIMEOUT).clamp(1, SILENCE_MAX),
            wait: (call_timeout / WAITS_PER_TIMEOUT).max(1),
            heard: 0,
            pause: PAUSE_MIN,
            connect_after: 0,
        };
        StoreReads {
            lanes: [
                lane(Protocol::Resp2, tokens[0]),
                lane(Protocol::Resp3, tokens[1]),
            ],
            told: Vec::new(),
            ask_name_after: 0,
        }
    }

    /// When somebody has waited long enough.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        self.lanes.iter().filter_map(Lane::due).min()
    }

    /// Whether there is something to read that no event will announce.
    pub(super) fn has_more(&self) -> bool {
        let more = |open: &Open| open.readable;
        self.lanes
            .iter()
            .any(|lane| lane.open.as_ref().is_some_and(more))
    }

    /// Remembers what an event says about a connection.
    pub(super) fn note(&mut self, event: &Event) {
        let mine = |lane: &&mut Lane| lane.token == event.token();
        if let Some(open) = self
            .lanes
            .iter_mut()
            .find(mine)
            .and_then(|lane| lane.open.as_mut())
        {
            open.readable = true;
            open.closing |= event.is_read_closed() || event.is_error();
        }
    }

    /// Takes what a client wants to read; it is sent at the end of the turn.
    fn submit(&mut self, client: usize, read: StoreRead, now: Time) {
        self.lanes[lane(read.protocol)].waiting.push_back(Waiting {
            client,
            read,
            since: now,
            again: false,
        });
    }
}

impl Lane {
    /// By when the store must have said something, or be done with the oldest read.
    fn due(&self) -> Option<Time> {
        let sent = self.open.as_ref().and_then(|open| open.link.oldest());
        let oldest = sent.or_else(|| Some(self.waiting.front()?.since))?;
        let made = self.open.as_ref().is_some_and(|open| open.link.is_known());
        let silence = if made {
            self.silence
        } else {
            self.silence / MAKING_PER_SILENCE
        };
        let silent = self.heard.max(oldest).saturating_add(silence);
        Some(silent.min(oldest.saturating_add(self.wait)))
    }

    /// Whether reads may be handed in: there is a store to read from, and the connection is there or may be made.
    fn is_fit(&self, shared: &Shared) -> bool {
        let allowed = shared.name.as_ref().is_some_and(|name| name.reads);
        allowed
            && shared.store.is_some()
            && (self.open.is_some() || shared.now >= self.connect_after)
    }

    /// Gives the connection up; it is made again after a while.
    fn give_up(&mut self, why: &str, now: Time, told: &mut Vec<Told>) {
        tracing::debug!(why, "the connection for reads to the store ends");
        self.connect_after = now.saturating_add(self.pause);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        if let Some(open) = self.open.take() {
            open.link.end(told);
        }
        self.turn_away(told);
    }

    /// Nobody who waits is read for.
    fn turn_away(&mut self, told: &mut Vec<Told>) {
        for waiting in self.waiting.drain(..) {
            told.push(Told::Unread(waiting.reader(), Unread::Unfit));
        }
    }

    /// Whether the connection leads elsewhere than the server's name for its store.
    fn leads_astray(&self, shared: &Shared) -> bool {
        let (Some(open), Some(name), Some(store)) = (&self.open, &shared.name, &shared.store)
        else {
            return self.open.is_some();
        };
        let known = open.link.is_known();
        !name.reads
            || open.link.address != store.address
            || (known && open.link.found.run_id != name.run_id)
    }

    fn connect(&mut self, registry: &Registry, shared: &Shared) -> Result<(), String> {
        let (Some(store), Some(name)) = (&shared.store, &shared.name) else {
            return Err("it is not known where the store is".into());
        };
        let stream = Wire::connect(store.address, store.tls.as_ref(), registry, self.token)
            .map_err(|error| error.to_string())?;
        self.open = Some(Open {
            link: Link::new(store, &name.records, self.protocol),
            stream,
            readable: false,
            closing: false,
        });
        Ok(())
    }

    /// Takes in what has come.
    fn receive(
        &mut self,
        scratch: &mut [u8],
        shared: &Shared,
        told: &mut Vec<Told>,
    ) -> Result<(), String> {
        let Some(open) = &mut self.open else {
            return Ok(());
        };
        let mut budget = READ_BYTES_PER_TURN;
        while open.readable && budget > 0 {
            match open.stream.read(scratch) {
                Ok(0) => return Err("closed by the store".into()),
                Ok(count) => {
                    let name = shared.name.as_ref();
                    let waiting = &mut self.waiting;
                    self.heard = shared.now;
                    open.link.receive(&scratch[..count], name, told, waiting)?;
                    budget = budget.saturating_sub(count);
                    open.readable = open.stream.may_have_more(count, scratch.len()) || open.closing;
                    if open.link.proven {
                        self.pause = PAUSE_MIN;
                    }
                }
                Err(error) if is_not_yet(error.kind()) => open.readable = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(())
    }

    /// Sends what waits.
    fn send(&mut self, registry: &Registry, shared: &Shared) -> Result<(), String> {
        if self.open.is_none() && !self.waiting.is_empty() {
            self.connect(registry, shared)?;
        }
        let (Some(open), Some(name)) = (&mut self.open, &shared.name) else {
            return Ok(());
        };
        while !self.waiting.is_empty() && open.link.has_room() {
            open.link.begin(&name.records, &mut self.waiting);
        }
        while !open.link.unwritten().is_empty() {
            match open.stream.write(open.link.unwritten()) {
                Ok(0) => return Err("nothing written".into()),
                Ok(count) => open.link.wrote(count),
                Err(error) if is_not_yet(error.kind()) => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        match open.stream.flush() {
            Err(error) if !is_not_yet(error.kind()) => Err(error.to_string()),
            _ => Ok(()),
        }
    }
}

fn is_not_yet(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::NotConnected)
}

impl<U: Upstream> Front<U> {
    /// Takes in what the store answered.
    pub(super) fn take_store_reads(&mut self) {
        let mut told = std::mem::take(&mut self.reads.told);
        for (at, lane) in self.reads.lanes.iter_mut().enumerate() {
            self.shared.store_reads[at] = lane.is_fit(&self.shared);
            let received = lane.receive(&mut self.scratch, &self.shared, &mut told);
            if let Some(error) = lane.open.as_mut().and_then(|open| open.link.busy.take()) {
                self.shared.busy.heard(&error, self.shared.now);
            }
            if let Err(why) = received {
                lane.give_up(&why, self.shared.now, &mut told);
            }
        }
        self.tell(told);
    }

    /// Hands what a client wants to read to the connection for it.
    pub(super) fn collect_store_read(&mut self, index: usize) {
        if let Some(Some(client)) = self.clients.get_mut(index)
            && let Some(read) = client.connection.take_store_read()
        {
            self.reads.submit(index, read, self.shared.now);
        }
    }

    /// The end of a turn: sends what was collected, and ends what takes too long.
    pub(super) fn send_store_reads(&mut self) {
        let now = self.shared.now;
        let mut told = std::mem::take(&mut self.reads.told);
        for lane in &mut self.reads.lanes {
            if lane.leads_astray(&self.shared) {
                lane.give_up("the server works on another store", now, &mut told);
            } else if lane.due().is_some_and(|due| now >= due) {
                lane.give_up("the store does not answer in time", now, &mut told);
            } else if lane.open.is_none() && now < lane.connect_after {
                lane.turn_away(&mut told);
            } else if let Err(why) = lane.send(self.poll.registry(), &self.shared) {
                lane.give_up(&why, now, &mut told);
            }
        }
        self.tell(told);
    }

    /// Asks the server now and then which store it works on, while there are reads.
    pub(super) fn refresh_store_name(&mut self) {
        let now = self.shared.now;
        if std::mem::take(&mut self.shared.wants_store_name) && now >= self.reads.ask_name_after {
            self.reads.ask_name_after = now.saturating_add(NAME_EVERY);
            self.vigil.keeps_session = true;
            self.ask_store_name();
        }
    }

    fn tell(&mut self, mut told: Vec<Told>) {
        for word in told.drain(..) {
            let (Told::Record(reader, ..) | Told::Reply(reader, _) | Told::Unread(reader, _)) =
                &word;
            let index = reader.client;
            let Some(Some(client)) = self.clients.get_mut(index) else {
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
                    client
                        .connection
                        .store_replied(reader.batch, reply, &mut self.shared);
                }
                Told::Unread(reader, why) => {
                    client
                        .connection
                        .store_unread(reader.batch, why, self.shared.now);
                }
            }
            self.enqueue(index);
            self.mark_dirty(index);
        }
        self.reads.told = told;
    }
}
