//! The connection on which Redis reports changed keys, and the messages to clients about these keys (CLIENT TRACKING).
//!
//! The connection exists while a client has CLIENT TRACKING ON. Every second the front asks Redis for a sign of life,
//! and asks the server which Redis it uses. If Redis or the server is silent for too long, or the server names another
//! Redis, clients are told that all keys may have changed.

use mio::event::Event;

use super::dial::{Dialed, Patience, leads_astray};
use super::{Front, TRACKING};
use crate::client::Shared;
use crate::store::changes::{ChangesLine, Heard};
use crate::tracking::{LinkState, Told};
use crate::upstream::{Time, Upstream};

/// Interval of the questions for a sign of life, in nanoseconds.
const POKE_EVERY: Time = 1_000_000_000;
/// Divisor of a command's time that gives the longest silence of Redis.
const SILENCES_PER_TIMEOUT: Time = 3;
/// Upper bound of the silence of Redis, in nanoseconds.
const SILENCE_MAX: Time = 3_000_000_000;
/// Maximum number of bytes read from the connection before the clients get their turn.
const READ_BYTES_PER_TURN: usize = 1024 * 1024;
/// A client that gets a message about changed keys is closed if its unread bytes exceed this many times `--unread-max`.
const UNREAD_TIMES_MAX: usize = 2;
const NO_REDIS: &str = "the store is no Redis, and does not tell of changed keys";

/// The connection, and its deadlines.
pub(super) struct TrackingWire {
    open: Option<Dialed<ChangesLine>>,
    patience: Patience,
    next_poke: Time,
}

fn silence(call_timeout: Time) -> Time {
    (call_timeout / SILENCES_PER_TIMEOUT).clamp(1, SILENCE_MAX)
}

impl TrackingWire {
    pub(super) fn new(call_timeout: Time) -> TrackingWire {
        TrackingWire {
            open: None,
            patience: Patience::new(silence(call_timeout)),
            next_poke: 0,
        }
    }

    /// Sets the longest time of a call, from which the longest silence of Redis follows.
    pub(super) fn set_call_timeout(&mut self, call_timeout: Time) {
        self.patience.set_silence(silence(call_timeout));
    }

    /// Notes an event of the connection.
    pub(super) fn note(&mut self, event: &Event) {
        if let Some(open) = &mut self.open {
            open.note(event);
        }
    }

    /// Whether there are unread bytes that no event will announce.
    pub(super) fn has_more(&self) -> bool {
        self.open.as_ref().is_some_and(Dialed::has_more)
    }

    /// Returns the time when the front must act on this connection even if nothing arrives; `None`: no client needs the
    /// connection.
    pub(super) fn next_timeout(&self, shared: &Shared) -> Option<Time> {
        if !shared.tracking.is_wanted(shared.now) {
            // The loop checks a waiting client in time anyway.
            return None;
        }
        match &self.open {
            Some(_) => Some(self.next_poke.min(self.patience.due())),
            None => Some(self.next_poke.max(self.patience.connect_after())),
        }
    }

    /// Whether the connection leads to a store that the server does not use now.
    fn leads_astray(&self, shared: &Shared) -> bool {
        let line = self.open.as_ref().map(|open| &open.line);
        line.is_some_and(|line| leads_astray(line.address(), line.run_id(), None, shared))
    }

    fn receive(&mut self, scratch: &mut [u8], shared: &mut Shared) -> Result<(), Heard> {
        let Some(open) = &mut self.open else {
            return Ok(());
        };
        open.receive(scratch, READ_BYTES_PER_TURN, |line, bytes| {
            self.patience.hear(shared.now);
            let (name, tracking) = (shared.name.as_ref(), &mut shared.tracking);
            line.receive(bytes, name, tracking)?;
            if line.is_up {
                tracking.set_link(LinkState::Up);
            }
            Ok(())
        })
    }

    fn send(&mut self) -> Result<(), Heard> {
        match &mut self.open {
            Some(open) => Ok(open.send()?),
            None => Ok(()),
        }
    }

    fn give_up(&mut self, heard: Heard, shared: &mut Shared) {
        self.open = None;
        self.patience.lose(shared.now);
        match heard {
            Heard::Lost(why) => {
                tracing::debug!(
                    why,
                    "the connection on which Redis tells of changed keys ends"
                );
                // A link that was never up stays `New`.
                if *shared.tracking.link() == LinkState::Up {
                    shared.tracking.set_link(LinkState::Down);
                }
            }
            Heard::Refused(why) => {
                tracing::warn!(
                    why,
                    "PM3211 Redis does not tell of changed keys, so CLIENT TRACKING is refused"
                );
                self.patience
                    .wait_until(shared.now.saturating_add(POKE_EVERY));
                let why = format!("Redis does not tell the front of changed keys ({why})");
                shared.tracking.set_link(LinkState::Refused(why));
            }
        }
    }
}

impl<U: Upstream> Front<U> {
    /// Takes Redis's reports about keys.
    pub(super) fn take_tracking(&mut self) {
        let received = self.tracking.receive(&mut self.scratch, &mut self.shared);
        if let Err(heard) = received {
            self.tracking.give_up(heard, &mut self.shared);
        }
    }

    /// Called at the end of a turn. Makes or ends the connection, asks the questions that are due, and tells clients
    /// about changed keys.
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
            self.clients
                .enqueue_if(|client| client.connection.tracks.waits());
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
        } else if wire.open.is_some() && now >= wire.patience.due() {
            let why = "it does not answer in time".to_owned();
            wire.give_up(Heard::Lost(why), &mut self.shared);
        }
        if now >= wire.next_poke {
            wire.next_poke = now.saturating_add(POKE_EVERY);
            self.vigil.wants_name = true;
            if let Some(open) = &mut wire.open {
                open.line.poke();
            }
        }
        if wire.open.is_none()
            && now >= wire.patience.connect_after()
            && self.shared.name.is_some()
            && let Some(store) = &self.shared.store
        {
            wire.patience.hear(now);
            let line = ChangesLine::new(store);
            match Dialed::connect(line, store, self.poll.registry(), TRACKING) {
                Ok(open) => wire.open = Some(open),
                Err(error) => wire.give_up(Heard::Lost(error.to_string()), &mut self.shared),
            }
        }
        if let Some(open) = &mut wire.open {
            open.line.fence(self.shared.tracking.fences_asked());
        }
        if let Err(heard) = wire.send() {
            wire.give_up(heard, &mut self.shared);
        }
    }

    /// Tells a client about changed keys. If the client has named another client in REDIRECT, the other client gets the
    /// message.
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
                && let Some(client) = self.clients.get_mut(own)
                && client.connection.told_of_no_redirect(redirect)
            {
                self.note_told(own);
            }
            return;
        };
        if let Some(client) = self.clients.get_mut(index)
            && client.connection.told_of_keys(told, redirect != 0)
        {
            self.note_told(index);
        }
    }

    /// Notes that a client got a message about changed keys. A client that reads nothing is closed after some time.
    fn note_told(&mut self, index: usize) {
        self.mark_dirty(index);
        let limit = self
            .shared
            .unread_client_max
            .saturating_mul(UNREAD_TIMES_MAX);
        let over = |client: &super::client::Client| client.connection.held() > limit;
        if self.clients.get(index).is_some_and(over) {
            self.end_unread(index);
        }
    }
}
