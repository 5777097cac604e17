//! A connection to Redis for each user that is logged in, to see that the user is deleted.
//!
//! Purpose: the list of users does not tell a user from one that was deleted and made again under its name; but Redis closes the
//! connections of a user that it deletes (or an operator closes them: CLIENT KILL, ACL LOAD). So the front logs in once as each user that it
//! serves, and if Redis closes that connection, it closes the connections of that user's clients, as Redis would have.
//! Invariants: a connection that ends together with the Redis process, or for a reason of the front, says nothing about its user;
//! only clients that logged in before it was closed are closed.
//! Bounded: the first [`WITNESSES_MAX`] users; of others a deletion is seen if they are missing in a list.

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

/// Users with a connection of their own, at most. They are one each.
pub(super) const WITNESSES_MAX: usize = 256;
/// Between two signs of life on such a connection, in nanoseconds: less than the shortest time after which Redis closes one that is idle
/// (`timeout`).
const POKE_EVERY: Time = 1_000_000_000;

/// The connections.
pub(super) struct Witnesses {
    first_token: usize,
    call_timeout: Time,
    /// Places are reused.
    places: Vec<Option<Witness>>,
    /// Something has happened since they were last looked at.
    touched: bool,
    /// When the next of them is due.
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
    /// Its login is under way.
    Begins,
    /// It is logged in at the Redis process with this run id.
    Stands { run_id: String },
    /// That process has closed it, or is gone; it is asked who it is. This concerns clients of the first `logins` logins.
    Closed { run_id: String, logins: u64 },
}

impl Witnesses {
    /// `first_token`: of [`WITNESSES_MAX`] tokens.
    pub(super) fn new(first_token: usize, call_timeout: Time) -> Witnesses {
        Witnesses {
            first_token,
            call_timeout,
            places: Vec::new(),
            touched: false,
            next_look: None,
        }
    }

    /// Calls take this long at most from now on.
    pub(super) fn set_call_timeout(&mut self, call_timeout: Time) {
        self.call_timeout = call_timeout;
        for witness in self.places.iter_mut().flatten() {
            witness.lane.set_call_timeout(call_timeout);
        }
    }

    /// Whether this is a token of theirs.
    pub(super) fn own(&self, token: Token) -> bool {
        (self.first_token..self.first_token + WITNESSES_MAX).contains(&token.0)
    }

    /// A connection is ready.
    pub(super) fn note(&mut self, event: &Event, scratch: &mut [u8], shared: &Shared) {
        let place = event.token().0.checked_sub(self.first_token);
        if let Some(Some(witness)) = place.and_then(|place| self.places.get_mut(place)) {
            let Witness { lane, answers, .. } = witness;
            lane.receive(event, scratch, shared, answers);
            self.touched = true;
        }
    }

    /// When one of them is due although nothing arrives.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        self.next_look
    }

    /// These users have logged in.
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

    /// Those of users without a client are not needed.
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

    /// Its connection has ended.
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

    /// The Redis process with this run id has answered. The number of logins whose clients are to be closed, if its user was deleted.
    ///
    /// # Errors
    /// It can no longer log in.
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
    /// The end of a turn: logs in for new users, and closes the clients of those that are deleted.
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

    /// Whether it is of use.
    fn keep_witness(&mut self, witness: &mut Witness) -> bool {
        let now = self.shared.now;
        for (ask, answer) in std::mem::take(&mut witness.answers) {
            // It asks no other process.
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

    /// Closes the clients of this user that came with one of the first `logins` logins.
    fn close_logged_in(&mut self, user: &[u8], logins: u64) {
        for index in self.clients.indices() {
            let client = self.clients.get(index);
            let login = client.and_then(|client| client.connection.rights.login());
            if login.is_some_and(|(name, number)| *name.user == *user && number <= logins) {
                self.close(index, "Redis has closed the connections of its user");
            }
        }
    }

    /// The list of users was fetched: forgets the users without clients.
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
