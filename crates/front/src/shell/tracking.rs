//! The connection on which Redis tells of changed keys, and telling clients (CLIENT TRACKING).
//!
//! It is there while a client has CLIENT TRACKING ON. Redis is asked every second for a sign of life, and the server which Redis it
//! uses: when either is silent for too long, or names another, clients are told that all keys may have changed.

use std::io::{ErrorKind, Read, Write};

use mio::event::Event;

use super::wire::Wire;
use super::{Front, TRACKING};
use crate::client::Shared;
use crate::store::changes::{Heard, TrackingLink};
use crate::tracking::{LinkState, Told};
use crate::upstream::{Time, Upstream};

/// Between two questions for a sign of life, in nanoseconds.
const POKE_EVERY: Time = 1_000_000_000;
/// Part of a command's time for which Redis may say nothing.
const SILENCES_PER_TIMEOUT: Time = 3;
/// Longest such time, in nanoseconds.
const SILENCE_MAX: Time = 3_000_000_000;
/// Until a connection that was lost is made again, in nanoseconds.
const PAUSE: Time = 100_000_000;
/// Most bytes read from it before the clients get their turn.
const READ_BYTES_PER_TURN: usize = 1024 * 1024;
/// A client may leave so many times `--unread-max` unread before it is closed because it is told more.
const UNREAD_TIMES_MAX: usize = 2;
const NO_REDIS: &str = "the store is no Redis, and does not tell of changed keys";

/// The connection, and when what is due.
pub(super) struct TrackingWire {
    open: Option<Open>,
    silence: Time,
    /// When Redis last said something.
    heard: Time,
    next_poke: Time,
    connect_after: Time,
}

struct Open {
    link: TrackingLink,
    stream: Wire,
    readable: bool,
    closing: bool,
}

impl TrackingWire {
    pub(super) fn new(call_timeout: Time) -> TrackingWire {
        TrackingWire {
            open: None,
            silence: (call_timeout / SILENCES_PER_TIMEOUT).clamp(1, SILENCE_MAX),
            heard: 0,
            next_poke: 0,
            connect_after: 0,
        }
    }

    /// Remembers what an event says about it.
    pub(super) fn note(&mut self, event: &Event) {
        if let Some(open) = &mut self.open {
            open.readable = true;
            open.closing |= event.is_read_closed() || event.is_error();
        }
    }

    /// Whether there is something to read that no event will announce.
    pub(super) fn has_more(&self) -> bool {
        self.open.as_ref().is_some_and(|open| open.readable)
    }

    /// When something is due although nothing arrives, if somebody needs it.
    pub(super) fn next_timeout(&self, shared: &Shared) -> Option<Time> {
        if !shared.tracking.is_wanted(shared.now) {
            // A client that waits is looked at in time anyway.
            return None;
        }
        let silent = self.heard.saturating_add(self.silence);
        match &self.open {
            Some(_) => Some(self.next_poke.min(silent)),
            None => Some(self.next_poke.max(self.connect_after)),
        }
    }

    /// Whether it leads elsewhere than to the store that the server uses now.
    fn leads_astray(&self, shared: &Shared) -> bool {
        let (Some(open), Some(name), Some(store)) = (&self.open, &shared.name, &shared.store)
        else {
            return self.open.is_some();
        };
        let found = open.link.run_id.as_ref();
        open.link.address != store.address || found.is_some_and(|found| *found != name.run_id)
    }

    fn receive(&mut self, scratch: &mut [u8], shared: &mut Shared) -> Result<(), Heard> {
        let Some(open) = &mut self.open else {
            return Ok(());
        };
        let mut budget = READ_BYTES_PER_TURN;
        while open.readable && budget > 0 {
            match open.stream.read(scratch) {
                Ok(0) => return Err(Heard::Lost("closed by Redis".into())),
                Ok(count) => {
                    self.heard = shared.now;
                    let (name, tracking) = (shared.name.as_ref(), &mut shared.tracking);
                    open.link.receive(&scratch[..count], name, tracking)?;
                    budget = budget.saturating_sub(count);
                    open.readable = open.stream.may_have_more(count, scratch.len()) || open.closing;
                    if open.link.is_up {
                        tracking.set_link(LinkState::Up);
                    }
                }
                Err(error) if is_not_yet(error.kind()) => open.readable = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Heard::Lost(error.to_string())),
            }
        }
        Ok(())
    }

    fn send(&mut self) -> Result<(), Heard> {
        let Some(Open { link, stream, .. }) = &mut self.open else {
            return Ok(());
        };
        let lost = |error: std::io::Error| Heard::Lost(error.to_string());
        while !link.unwritten().is_empty() {
            match stream.write(link.unwritten()) {
                Ok(0) => return Err(Heard::Lost("nothing written".into())),
                Ok(count) => link.wrote(count),
                Err(error) if is_not_yet(error.kind()) => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(lost(error)),
            }
        }
        match stream.flush() {
            Err(error) if !is_not_yet(error.kind()) => Err(lost(error)),
            _ => Ok(()),
        }
    }

    fn give_up(&mut self, heard: Heard, shared: &mut Shared) {
        self.open = None;
        self.connect_after = shared.now.saturating_add(PAUSE);
        match heard {
            Heard::Lost(why) => {
                tracing::debug!(
                    why,
                    "the connection on which Redis tells of changed keys ends"
                );
                // Before Redis has agreed once, nothing is known.
                if *shared.tracking.link() == LinkState::Up {
                    shared.tracking.set_link(LinkState::Down);
                }
            }
            Heard::Refused(why) => {
                tracing::warn!(
                    why,
                    "Redis does not tell of changed keys, so CLIENT TRACKING is refused"
                );
                self.connect_after = shared.now.saturating_add(POKE_EVERY);
                let why = format!("Redis does not tell the front of changed keys ({why})");
                shared.tracking.set_link(LinkState::Refused(why));
            }
        }
    }
}

impl<U: Upstream> Front<U> {
    /// Takes in what Redis says of keys.
    pub(super) fn take_tracking(&mut self) {
        let received = self.tracking.receive(&mut self.scratch, &mut self.shared);
        if let Err(heard) = received {
            self.tracking.give_up(heard, &mut self.shared);
        }
    }

    /// The end of a turn: makes the connection or ends it, asks what is to be asked, and tells clients.
    pub(super) fn keep_tracking(&mut self) {
        let now = self.shared.now;
        if self.shared.tracking.is_wanted(now) {
            self.keep_tracking_wire();
        } else if self.tracking.open.take().is_some()
            || *self.shared.tracking.link() != LinkState::New
        {
            self.shared.tracking.set_link(LinkState::New);
        }
        if self.shared.tracking.take_news() {
            for index in 0..self.clients.len() {
                let client = self.clients[index].as_ref();
                if client.is_some_and(|client| client.connection.waits_for_tracking()) {
                    self.enqueue(index);
                }
            }
        }
        for (id, told) in self.shared.tracking.take_outbox() {
            self.tell_of_keys(id, &told);
        }
    }

    fn keep_tracking_wire(&mut self) {
        let now = self.shared.now;
        if self.shared.users.has_none() {
            let why = LinkState::Refused(NO_REDIS.to_owned());
            return self.shared.tracking.set_link(why);
        }
        let wire = &mut self.tracking;
        if wire.leads_astray(&self.shared) {
            let why = "the pmnet server uses another Redis now".to_owned();
            wire.give_up(Heard::Lost(why), &mut self.shared);
        } else if wire.open.is_some() && now >= wire.heard.saturating_add(wire.silence) {
            let why = "it does not answer in time".to_owned();
            wire.give_up(Heard::Lost(why), &mut self.shared);
        }
        if now >= wire.next_poke {
            wire.next_poke = now.saturating_add(POKE_EVERY);
            self.shared.wants_store_name = true;
            if let Some(open) = &mut wire.open {
                open.link.poke();
            }
        }
        if wire.open.is_none()
            && now >= wire.connect_after
            && self.shared.name.is_some()
            && let Some(store) = &self.shared.store
        {
            wire.heard = now;
            match Wire::connect(
                store.address,
                store.tls.as_ref(),
                self.poll.registry(),
                TRACKING,
            ) {
                Ok(stream) => {
                    wire.open = Some(Open {
                        link: TrackingLink::new(store),
                        stream,
                        readable: false,
                        closing: false,
                    });
                }
                Err(error) => wire.give_up(Heard::Lost(error.to_string()), &mut self.shared),
            }
        }
        if let Some(open) = &mut wire.open {
            open.link.fence(self.shared.tracking.fences_asked());
        }
        if let Err(heard) = wire.send() {
            wire.give_up(heard, &mut self.shared);
        }
    }

    /// Tells a client, or the one that it has named in its place.
    fn tell_of_keys(&mut self, id: u64, told: &Told) {
        let Some(tracker) = self.shared.tracking.client_mut(id) else {
            return;
        };
        let redirect = tracker.redirect;
        let to = if redirect == 0 { id } else { redirect };
        let Some(index) = self.shared.tracking.place(to) else {
            let own = self.shared.tracking.place(id);
            if let Some(tracker) = self.shared.tracking.client_mut(id) {
                tracker.broken = true;
            }
            if let Some(own) = own
                && let Some(Some(client)) = self.clients.get_mut(own)
                && client.connection.told_of_no_redirect(redirect)
            {
                self.note_told(own);
            }
            return;
        };
        if let Some(Some(client)) = self.clients.get_mut(index)
            && client.connection.told_of_keys(told, redirect != 0)
        {
            self.note_told(index);
        }
    }

    /// A client has been told something. Who reads nothing is not told for ever.
    fn note_told(&mut self, index: usize) {
        self.mark_dirty(index);
        let limit = self
            .shared
            .unread_client_max
            .saturating_mul(UNREAD_TIMES_MAX);
        let over = |client: &super::socket::Client| client.connection.held() > limit;
        if self.clients[index].as_deref().is_some_and(over) {
            self.end_unread(index);
        }
    }
}

fn is_not_yet(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::NotConnected)
}
