//! A connection to Redis for each logged-in user (a witness). The witness shows when Redis deletes the user.
//!
//! Purpose: the list of users does not show that a user was deleted and created again under the same name. But Redis
//! closes the connections of a user that it deletes. (A user with the right to do so can close these connections, too:
//! CLIENT KILL, ACL LOAD.) So the front logs in once as each user that it serves. If Redis closes the connection of a
//! witness, the front closes the connections of the user's clients, as Redis would have done. Invariants: if a
//! connection ends together with the Redis process, or because of the front, its end proves nothing about its user.
//! Only clients that logged in before their user's witness was closed are closed. Only the first [`WITNESSES_MAX`]
//! users have a witness. For other users, the front notices a deletion only if a list of users does not name them.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use mio::Token;
use mio::event::Event;
use pmnet_resp::reply;

use super::Front;
use super::lane::{How, Lane};
use crate::client::Shared;
use crate::store::rights::Ask;
use crate::upstream::{Time, Upstream};
use crate::users::{Credentials, DEFAULT};

/// Maximum number of users with a witness. Each of these users has one witness.
pub(super) const WITNESSES_MAX: usize = 256;
/// Interval of the signs of life on a witness's connection, in nanoseconds. The interval is less than the shortest time
/// after which Redis closes an idle connection (`timeout`).
const POKE_EVERY: Time = 1_000_000_000;

/// The witnesses' connections.
pub(super) struct Witnesses {
    first_token: usize,
    call_timeout: Time,
    /// The witnesses. A place is used again after its witness is removed.
    places: Vec<Option<Witness>>,
    /// Whether something has happened since the witnesses were last checked.
    touched: bool,
    /// The time when the front must next act on a witness.
    next_look: Option<Time>,
}

struct Witness {
    lane: Lane,
    credentials: Arc<Credentials>,
    stage: Watched,
    next_poke: Time,
    answers: Vec<(Ask, Bytes)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Watched {
    /// The login is under way.
    Begins,
    /// The connection is logged in at the Redis process with this run id.
    Stands { run_id: String },
    /// The Redis process with this run id has closed the connection, or has ended. The front asks which
    /// process answers now. If the same process answers, the clients of the first `logins` logins are closed.
    Closed { run_id: String, logins: u64 },
}

impl Witnesses {
    /// `first_token`: the first of [`WITNESSES_MAX`] consecutive tokens.
    pub(super) fn new(first_token: usize, call_timeout: Time) -> Witnesses {
        Witnesses {
            first_token,
            call_timeout,
            places: Vec::new(),
            touched: false,
            next_look: None,
        }
    }

    /// Sets the longest time of a call, from which the bounds of each witness follow.
    pub(super) fn set_call_timeout(&mut self, call_timeout: Time) {
        self.call_timeout = call_timeout;
        for witness in self.places.iter_mut().flatten() {
            witness.lane.set_call_timeout(call_timeout);
        }
    }

    /// Whether this token belongs to a witness.
    pub(super) fn own(&self, token: Token) -> bool {
        (self.first_token..self.first_token + WITNESSES_MAX).contains(&token.0)
    }

    /// Reads and writes on a connection after an event of this connection.
    pub(super) fn note(&mut self, event: &Event, scratch: &mut [u8], shared: &Shared) {
        let place = event.token().0.checked_sub(self.first_token);
        if let Some(Some(witness)) = place.and_then(|place| self.places.get_mut(place)) {
            let Witness { lane, answers, .. } = witness;
            lane.receive(event, scratch, shared, answers);
            self.touched = true;
        }
    }

    /// Returns the time when the front must act on a witness even if nothing arrives.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        self.next_look
    }

    /// Adds witnesses for users that have logged in.
    fn add(&mut self, users: Vec<Arc<Credentials>>, now: Time) {
        for credentials in users {
            self.touched = true;
            let same = |witness: &&mut Witness| witness.credentials.user == credentials.user;
            if let Some(witness) = self.places.iter_mut().flatten().find(same) {
                witness.credentials = credentials;
                continue;
            }
            let free = self.places.iter().position(Option::is_none);
            let place = free.unwrap_or(self.places.len());
            if *credentials.user == *DEFAULT || place >= WITNESSES_MAX {
                // The user `default` cannot be deleted.
                continue;
            }
            let token = Token(self.first_token + place);
            let mut witness = Witness {
                lane: Lane::new(token, self.call_timeout),
                credentials,
                stage: Watched::Begins,
                next_poke: now.saturating_add(POKE_EVERY),
                answers: Vec::new(),
            };
            witness.begin(now);
            if place == self.places.len() {
                self.places.push(None);
            }
            self.places[place] = Some(witness);
        }
    }

    /// Removes the witnesses of users without a client.
    fn keep_only(&mut self, users: &BTreeSet<&[u8]>) {
        for place in &mut self.places {
            if place
                .as_ref()
                .is_some_and(|witness| !users.contains(&*witness.credentials.user))
            {
                *place = None;
                self.touched = true;
            }
        }
    }
}

impl Witness {
    fn begin(&mut self, now: Time) {
        self.stage = Watched::Begins;
        self.lane
            .push(Ask::Witness(Arc::clone(&self.credentials)), now);
    }

    fn next_look(&self) -> Option<Time> {
        if !self.answers.is_empty() {
            return Some(0);
        }
        match self.lane.open {
            Some(_) if self.lane.waits() => self.lane.due(),
            Some(_) => Some(self.next_poke),
            None => Some(self.lane.connect_after()),
        }
    }

    /// Notes that the connection has ended.
    fn lost(&mut self, how: How, logins: u64, now: Time) {
        match &self.stage {
            Watched::Stands { run_id } if how == How::Closed => {
                let run_id = run_id.clone();
                self.stage = Watched::Closed { run_id, logins };
                self.lane.push(Ask::Poke, now);
            }
            Watched::Closed { .. } => self.lane.push(Ask::Poke, now),
            Watched::Begins | Watched::Stands { .. } => self.begin(now),
        }
    }

    /// Takes an answer of the Redis process with this run id. If the user was deleted, returns the number of
    /// logins whose clients must be closed.
    ///
    /// # Errors
    /// The witness can no longer log in.
    fn answered(
        &mut self,
        ask: &Ask,
        answer: &Bytes,
        run_id: Option<&String>,
        now: Time,
    ) -> Result<Option<u64>, ()> {
        match (ask, &self.stage) {
            (Ask::Witness(_), Watched::Begins) => {
                if *answer != reply::OK {
                    return Err(());
                }
                if let Some(run_id) = run_id {
                    let run_id = run_id.clone();
                    self.stage = Watched::Stands { run_id };
                }
            }
            (
                Ask::Poke,
                Watched::Closed {
                    run_id: before,
                    logins,
                },
            ) => {
                let closed = (run_id == Some(before)).then_some(*logins);
                self.begin(now);
                return Ok(closed);
            }
            _ => {}
        }
        Ok(None)
    }
}

impl<U: Upstream> Front<U> {
    /// Called at the end of a turn. Logs in as new users, and closes the clients of deleted users.
    pub(super) fn keep_witnesses(&mut self) {
        let now = self.shared.now;
        let new = std::mem::take(&mut self.shared.users.logged_in);
        self.witnesses.add(new, now);
        let due = self.witnesses.next_look.is_some_and(|time| now >= time);
        if !std::mem::take(&mut self.witnesses.touched) && !due {
            return;
        }
        let mut places = std::mem::take(&mut self.witnesses.places);
        self.witnesses.next_look = None;
        for place in &mut places {
            let Some(witness) = place else { continue };
            let keeps = self.keep_witness(witness);
            if let Some(next) = witness.next_look() {
                let look = &mut self.witnesses.next_look;
                *look = Some(look.map_or(next, |time| time.min(next)));
            }
            if !keeps {
                *place = None;
            }
        }
        self.witnesses.places = places;
    }

    /// Takes one turn of a witness. Returns whether the witness can still be used.
    fn keep_witness(&mut self, witness: &mut Witness) -> bool {
        let now = self.shared.now;
        for (ask, answer) in std::mem::take(&mut witness.answers) {
            // The witness's lane asks only the Redis process that the server names.
            let run_id = self.shared.name.as_ref().map(|name| &name.run_id);
            match witness.answered(&ask, &answer, run_id, now) {
                Ok(None) => {}
                Ok(Some(logins)) => self.close_logged_in(&witness.credentials.user, logins),
                Err(()) => return false,
            }
        }
        let lane = &mut witness.lane;
        if now >= witness.next_poke && !lane.waits() {
            lane.push(Ask::Poke, now);
            witness.next_poke = now.saturating_add(POKE_EVERY);
        }
        lane.turn(
            now,
            self.poll.registry(),
            &self.shared,
            &mut witness.answers,
        );
        if let Some(broken) = witness.lane.broken.take() {
            witness.lost(broken.how, self.shared.users.logins, now);
        }
        true
    }

    /// Closes the clients of this user that belong to one of the first `logins` logins.
    fn close_logged_in(&mut self, user: &[u8], logins: u64) {
        for index in self.clients.indices() {
            let client = self.clients.get(index);
            let login = client.and_then(|client| client.connection.rights.login());
            if login.is_some_and(|(name, number)| *name.user == *user && number <= logins) {
                self.close(index, "Redis has closed the connections of its user");
            }
        }
    }

    /// Must be called after the list of users was fetched. Removes the witnesses of users without clients.
    pub(super) fn forget_idle_users(&mut self) {
        let clients = self.clients.iter();
        let users = clients
            .filter_map(|(_, client)| client.connection.rights.login())
            .map(|(credentials, _)| &*credentials.user)
            .collect();
        self.witnesses.keep_only(&users);
        self.shared.users.keep_logins(&users);
    }
}
