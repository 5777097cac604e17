//! Checks the store on behalf of clients that wait for it.
//!
//! While a client waits for something that the store may send much later, the front asks two questions at regular
//! intervals. On a connection of its own, the front asks the store for a sign of life. With a barrier on a session of
//! its own, the front asks the server which store the server uses. The front asks each question once for all clients.

use bytes::Bytes;
use mio::Registry;
use mio::event::Event;
use pmnet_wire::command::barrier;

use super::dial::Dialed;
use super::socket::Ended;
use super::{Front, HEART};
use crate::client::Shared;
use crate::store::{Heart, named_by};
use crate::upstream::{Call, CallId, Calls, Outcome, SessionHandle, Submit, Time, Upstream};

/// Divisor of a command's time that gives the interval of the checks of clients.
const LOOKS_PER_TIMEOUT: Time = 16;
/// Longest interval of the checks of clients, in nanoseconds.
const LOOK_EVERY_MAX: Time = 100_000_000;
/// Divisor of a command's time that gives the interval of the questions to store and server.
const BEATS_PER_TIMEOUT: Time = 4;
/// Longest interval of the questions to store and server, in nanoseconds.
const BEAT_EVERY_MAX: Time = 1_000_000_000;
/// Number of intervals without a waiting client after which the front stops asking.
const QUIET_BEATS: Time = 3;

/// The state of the checks and of the questions.
pub(super) struct Vigil {
    look_every: Time,
    beat_every: Time,
    /// Time of the next check of the clients; `None`: no client has a deadline.
    pub(super) next_look: Option<Time>,
    next_beat: Time,
    /// The time when a client was last seen waiting; `None`: no questions are asked.
    waited: Option<Time>,
    /// The time when a client last doubted that the store takes commands. While only such doubts exist, the front asks
    /// the store alone, and not the server.
    doubted: Option<Time>,
    heart: Option<Dialed<Heart>>,
    session: Option<SessionHandle>,
    call: Option<CallId>,
    /// Whether the session is kept between questions. Each session costs two entries of the log, for its beginning and
    /// its end. A store that is out of memory cannot apply these entries.
    pub(super) keeps_session: bool,
    /// Whether a client depends on which store the server works on.
    pub(super) wants_name: bool,
    /// Whether a Redis was found that the server did not name. After such a finding, the server must check its store
    /// before it names a store again.
    pub(super) doubts_name: bool,
}

fn look_every(call_timeout: Time) -> Time {
    (call_timeout / LOOKS_PER_TIMEOUT).clamp(1, LOOK_EVERY_MAX)
}

fn beat_every(call_timeout: Time) -> Time {
    (call_timeout / BEATS_PER_TIMEOUT).clamp(1, BEAT_EVERY_MAX)
}

impl Vigil {
    pub(super) fn new(call_timeout: Time) -> Vigil {
        Vigil {
            look_every: look_every(call_timeout),
            beat_every: beat_every(call_timeout),
            next_look: None,
            next_beat: 0,
            waited: None,
            doubted: None,
            heart: None,
            session: None,
            call: None,
            keeps_session: false,
            wants_name: false,
            doubts_name: false,
        }
    }

    /// Sets the longest time of a call, from which the intervals follow.
    pub(super) fn set_call_timeout(&mut self, call_timeout: Time) {
        self.look_every = look_every(call_timeout);
        self.beat_every = beat_every(call_timeout);
    }

    /// Begins the checks of clients, because one of them has a deadline.
    pub(super) fn attend(&mut self, now: Time) {
        if self.next_look.is_none() {
            self.next_look = Some(now.saturating_add(self.look_every));
        }
    }

    /// Connects to the store if necessary, and asks it for a sign of life.
    fn beat(&mut self, registry: &Registry, shared: &Shared) {
        let Some(store) = &shared.store else {
            return;
        };
        let overdue = |open: &Dialed<Heart>| {
            shared.now >= open.line.proof().saturating_add(shared.call_timeout)
                || open.line.address() != store.address
        };
        if self.heart.as_ref().is_some_and(overdue) {
            self.heart = None;
        }
        if self.heart.is_none() {
            let heart = Heart::new(store, shared.now);
            match Dialed::connect(heart, store, registry, HEART) {
                Ok(open) => self.heart = Some(open),
                Err(error) => tracing::debug!(%error, "cannot ask the store whether it is alive"),
            }
        }
        if let Some(open) = &mut self.heart {
            open.line.beat();
        }
    }

    /// Notes an event of the store's connection, and exchanges bytes with the store.
    pub(super) fn note(&mut self, event: &Event, scratch: &mut [u8], shared: &mut Shared) {
        if let Some(open) = &mut self.heart {
            open.note(event);
        }
        self.transfer(scratch, shared);
    }

    /// Writes and reads the available bytes. The transfer is bounded, because the answers are short.
    fn transfer(&mut self, scratch: &mut [u8], shared: &mut Shared) {
        let Some(open) = &mut self.heart else {
            return;
        };
        let exchanged = open.send().map_err(Silent::from).and_then(|()| {
            open.receive(scratch, usize::MAX, |heart, bytes| {
                heart.receive(bytes, shared).map_err(Silent)
            })
        });
        if let Err(Silent(why)) = exchanged {
            // The front tries again at the next question. A failed connection alone proves nothing: only missing
            // answers of the store count.
            tracing::debug!(why, "asking the store whether it is alive");
            self.heart = None;
        }
    }

    /// Returns the session for the questions, which is opened if necessary.
    pub(super) fn session(&mut self, up: &mut impl Calls, now: Time) -> Option<SessionHandle> {
        self.session = self.session.or_else(|| up.open(now).ok());
        self.session
    }

    /// Called for a session that was closed. If the vigil asks its questions in this session, forgets the session and
    /// returns true.
    pub(super) fn lost(&mut self, session: SessionHandle) -> bool {
        let own = self.session == Some(session);
        if own {
            self.session = None;
            self.call = None;
        }
        own
    }
}

/// Why the store cannot be asked for a sign of life.
struct Silent(String);

impl From<Ended> for Silent {
    fn from(ended: Ended) -> Silent {
        Silent(ended.why("closed by the store"))
    }
}

impl<U: Upstream> Front<U> {
    /// Checks all clients with a deadline, if it is time.
    pub(super) fn keep_vigil(&mut self) {
        let now = self.shared.now;
        let Some(due) = self.vigil.next_look.filter(|due| *due <= now) else {
            return;
        };
        // This process was suspended, so the questions were not asked.
        let stood_still = now >= due.saturating_add(self.vigil.beat_every);
        let (mut timed, mut waits) = (false, false);
        let busy = self.shared.busy.error(now).is_some();
        let mut doubts = busy;
        for index in self.clients.indices() {
            let Some(client) = self.clients.get_mut(index) else {
                continue;
            };
            if client.is_late_to_agree(now) {
                self.close(index, "took too long to agree on TLS");
                continue;
            }
            if client.overstays(now) {
                self.close(index, "stays after an error");
                continue;
            }
            if client.is_stuck(now) && !self.shared.unread_over {
                self.end_unread(index);
                timed = true;
                continue;
            }
            timed |= client.connection.congested();
            let changed =
                client.connection.is_timed() && client.connection.look(&self.shared, stood_still);
            timed |= client.connection.is_timed()
                || client.lingering.is_some()
                || client.handshake.is_some();
            waits |= client.connection.waits_on_store();
            doubts |= client.connection.doubts_store(now);
            if changed {
                self.enqueue(index);
                self.mark_dirty(index);
            }
        }
        if let Some(index) = self.worst_reader() {
            self.close(index, "all clients together leave too much unread");
        }
        timed |= self.shared.unread_over;
        let vigil = &mut self.vigil;
        if waits {
            if vigil.waited.is_none() {
                vigil.next_beat = now.saturating_add(vigil.beat_every);
            }
            vigil.waited = Some(now);
        }
        if doubts {
            vigil.doubted = Some(now);
        }
        if let Some(waited) = vigil.waited.max(vigil.doubted) {
            let quiet = QUIET_BEATS.saturating_mul(vigil.beat_every);
            if now >= waited.saturating_add(quiet) {
                self.end_vigil();
            } else if now >= vigil.next_beat || busy {
                vigil.next_beat = now.saturating_add(vigil.beat_every);
                vigil.beat(self.poll.registry(), &self.shared);
                if vigil.waited.is_some() {
                    self.ask_store_name();
                }
            }
        }
        self.vigil.transfer(&mut self.scratch, &mut self.shared);
        let goes_on = timed || self.vigil.waited.max(self.vigil.doubted).is_some();
        self.vigil.next_look = goes_on.then(|| now.saturating_add(self.vigil.look_every));
    }

    /// Asks the server which store it works on, unless such a question is outstanding. If the name was in doubt, the
    /// question is a barrier that the server must record in its store. If a Redis was restarted, moved or made a
    /// replica while no client wrote, the server notices this by the barrier.
    pub(super) fn ask_store_name(&mut self) {
        if self.vigil.call.is_some() {
            return;
        }
        let now = self.shared.now;
        let Some(session) = self.vigil.session(&mut self.up, now) else {
            return;
        };
        let deadline = now.saturating_add(self.shared.call_timeout);
        let payload = Bytes::from(barrier());
        let call = Call {
            how: Submit::Bypass {
                read_only: !self.vigil.doubts_name,
            },
            ..Call::question(&payload, deadline)
        };
        match self.up.submit(now, session, call) {
            Ok(call) => {
                self.vigil.call = Some(call);
                self.vigil.doubts_name = false;
            }
            Err(crate::upstream::Refused::Closed) => {
                self.vigil.session = None;
                self.learning.give_up(self.shared.now);
            }
            // The front asks again at the next question.
            Err(error) => tracing::debug!(%error, "cannot ask which store there is"),
        }
    }

    /// Takes the outcome of a call of the vigil's session.
    pub(super) fn vigil_done(&mut self, session: SessionHandle, call: CallId, outcome: Outcome) {
        if self.vigil.session != Some(session) {
            return;
        }
        if self.learning.call == Some(call) {
            self.learned(outcome);
        } else if self.vigil.call == Some(call) {
            self.vigil.call = None;
            self.named(outcome);
            // A new store must first name its commands.
            self.learn_commands();
        } else {
            return;
        }
        let idle = self.vigil.waited.max(self.vigil.doubted).is_none();
        let asks = self.vigil.call.is_some() || self.learning.call.is_some();
        if idle && !asks && !self.vigil.keeps_session {
            self.end_vigil();
        }
    }

    /// Takes the server's answer to the question which store it works on, or notes that there is none.
    fn named(&mut self, outcome: Outcome) {
        if !matches!(outcome, Outcome::Reply(_)) {
            self.shared.store_not_named();
        }
        if outcome == Outcome::Reply(pmnet_resp::reply::OK) {
            // A store without a name is no Redis.
            self.shared.users.store_has_none();
        }
        let Some(name) = named_by(outcome) else {
            return;
        };
        self.shared.store_named(&name);
        for index in self.clients.indices() {
            if let Some(client) = self.clients.get_mut(index)
                && client.connection.store_named(&name)
            {
                self.enqueue(index);
                self.mark_dirty(index);
            }
        }
    }

    /// If the vigil asks its questions in this session, notes that the session was closed.
    pub(super) fn vigil_closed(&mut self, session: SessionHandle) {
        if self.vigil.lost(session) {
            self.learning.give_up(self.shared.now);
        }
    }

    pub(super) fn end_vigil(&mut self) {
        self.vigil.waited = None;
        self.vigil.doubted = None;
        self.vigil.keeps_session = false;
        self.vigil.heart = None;
        self.vigil.call = None;
        self.learning.give_up(self.shared.now);
        self.shared.alive = None;
        if let Some(session) = self.vigil.session.take() {
            self.up.end(self.shared.now, session);
        }
    }
}
