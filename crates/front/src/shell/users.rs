//! Asks Redis about users, on two connections of the front: one connection for the users' rights, the other to check
//! passwords.
//!
//! Purpose: while there are clients and Redis's users count, the list of users is fetched every [`POLL_EVERY`], so that
//! a change of rights takes effect within a second. Clients' questions about users use the same connections
//! ([`crate::users`]). A client that asks while Redis does not answer gets an error. Invariants: each client has at
//! most one question, so the number of clients bounds the waiting questions. If Redis gives no answer for as long as a
//! command may take, the known rights no longer count. If no process listens at Redis's address, rights cannot change,
//! and the known rights continue to count.

use bytes::Bytes;
use mio::Token;
use mio::event::Event;
use pmnet_resp::reply;

use super::Front;
use super::lane::{How, Lane};
use crate::client::{Shared, says_busy};
use crate::store::rights::{About, Answer, Ask, Question, Ticket};
use crate::upstream::{Time, Upstream};

/// Interval of the questions for the list of users, in nanoseconds: half of the second within which a change
/// must take effect.
const POLL_EVERY: Time = 500_000_000;
/// Maximum number of passwords that wait to be checked.
const LOGINS_MAX: usize = 1024;

/// The connections, and the state of the questions.
pub(super) struct UserLinks {
    rights: Lane,
    logins: Lane,
    next_poll: Time,
    answers: Vec<(Ask, Bytes)>,
}

impl UserLinks {
    pub(super) fn new(tokens: [Token; 2], call_timeout: Time) -> UserLinks {
        let lane = |token| Lane::new(token, call_timeout);
        UserLinks {
            rights: lane(tokens[0]),
            logins: lane(tokens[1]),
            next_poll: 0,
            answers: Vec::new(),
        }
    }

    /// Sets the longest time of a call, from which the bounds of both connections follow.
    pub(super) fn set_call_timeout(&mut self, call_timeout: Time) {
        self.rights.set_call_timeout(call_timeout);
        self.logins.set_call_timeout(call_timeout);
    }

    /// Reads and writes after an event of a connection.
    pub(super) fn note(&mut self, event: &Event, scratch: &mut [u8], shared: &Shared) {
        for lane in [&mut self.rights, &mut self.logins] {
            if lane.token == event.token() {
                lane.receive(event, scratch, shared, &mut self.answers);
            }
        }
    }

    /// Returns the time when the front must act on these connections even if nothing arrives. `clients`: whether there
    /// are clients; `named`: whether the address of Redis is known.
    fn next_timeout(&self, clients: bool, named: bool) -> Option<Time> {
        let lanes = [&self.rights, &self.logins];
        let due = lanes.into_iter().filter_map(|lane| match lane.open {
            Some(_) => lane.due(),
            None => (named && lane.waits()).then(|| lane.connect_after()),
        });
        due.chain(clients.then_some(self.next_poll)).min()
    }

    fn submit(&mut self, ticket: Ticket, now: Time) -> Option<Ticket> {
        let lane = match ticket.question.about {
            About::Login { .. } => &mut self.logins,
            About::May { .. } => &mut self.rights,
        };
        if matches!(ticket.question.about, About::Login { .. }) && lane.queue.len() >= LOGINS_MAX {
            return Some(ticket);
        }
        lane.push(Ask::Client(ticket), now);
        None
    }
}

impl<U: Upstream> Front<U> {
    /// Returns the time when the list of users must be fetched again.
    pub(super) fn next_question(&self) -> Option<Time> {
        let users = &self.shared.users;
        if !users.are_asked_for() || users.has_none() {
            return None;
        }
        let named = self.shared.name.is_some() && self.shared.store.is_some();
        self.users.next_timeout(self.has_clients(), named)
    }

    fn has_clients(&self) -> bool {
        self.clients.count() > 0
    }

    /// Gives a client's question to the connection that asks such questions.
    pub(super) fn submit_question(&mut self, index: usize, question: Question) {
        let ticket = Ticket {
            client: index,
            question,
            again: false,
        };
        if let Some(refused) = self.users.submit(ticket, self.shared.now) {
            let error = reply::error("ERR pmnet: too many logins at a time; try again");
            self.users.answers.push((Ask::Client(refused), error));
        }
    }

    /// Called at the end of a turn. Asks the questions that are due, gives up questions that take too long, and gives
    /// the answers to the clients.
    pub(super) fn keep_users(&mut self) {
        if !self.shared.users.are_asked_for() || self.shared.users.has_none() {
            return self.spread_news();
        }
        let now = self.shared.now;
        if !self.has_clients() {
            if self.shared.users.is_known() {
                // The list of users is not fetched now, so the known list becomes outdated.
                self.shared.users.forget();
                // The first question for the next client must not wait for the regular interval.
                self.users.next_poll = now;
            }
        } else if now >= self.users.next_poll || self.shared.users.wanted {
            self.poll_users();
        }
        let mut answers = std::mem::take(&mut self.users.answers);
        for lane in [&mut self.users.rights, &mut self.users.logins] {
            lane.turn(now, self.poll.registry(), &self.shared, &mut answers);
            if let Some(broken) = lane.broken.take() {
                if broken.how == How::Refused {
                    self.shared.users.confirm(now);
                }
                if broken.how == How::Elsewhere {
                    self.vigil.doubts_name = true;
                }
                self.shared.users.cannot_be_asked(&broken.why);
            }
        }
        for (ask, answer) in answers.drain(..) {
            self.take_answer(ask, &answer);
        }
        self.users.answers = answers;
        self.spread_news();
    }

    fn poll_users(&mut self) {
        let now = self.shared.now;
        self.users.next_poll = now.saturating_add(POLL_EVERY);
        self.shared.users.wanted = false;
        // The users are those of the Redis on which the server works.
        self.vigil.wants_name = true;
        let polls = |ask: &Ask| matches!(ask, Ask::List(..));
        if !self.users.rights.queue.iter().any(polls) {
            self.shared.users.asked += 1;
            let ask = Ask::List(self.shared.users.asked, now);
            self.users.rights.push(ask, now);
        }
    }

    fn take_answer(&mut self, ask: Ask, answer: &Bytes) {
        let Ticket {
            client, question, ..
        } = match ask {
            Ask::List(..) if says_busy(answer) => {
                // BUSY says nothing about users. So the known rights expire as if Redis had sent nothing.
                return self.shared.busy.heard(answer, self.shared.now);
            }
            Ask::List(number, asked) => {
                let line = self.users.rights.open.as_ref().map(|open| &open.line);
                if let Some((_, version)) = line.and_then(|line| line.found.as_ref()) {
                    self.shared.users.found_version(*version);
                }
                self.forget_idle_users();
                if let Err(why) = self.shared.users.take_list(number, asked, answer) {
                    self.shared.users.forget();
                    self.shared.users.cannot_be_asked(&why);
                }
                return;
            }
            Ask::Client(ticket) => ticket,
            Ask::Witness(_) | Ask::Poke | Ask::Select(_) => return,
        };
        let answer = match question.about {
            About::Login { .. } => Answer::Login(answer.clone()),
            About::May { user, place, .. } => {
                Answer::May(self.shared.users.take_ruling(&user, place, answer))
            }
        };
        if let Some(found) = self.clients.get_mut(client)
            && found.connection.id() == question.connection
        {
            found.connection.rights.answered(question.number, answer);
            self.enqueue(client);
        }
    }

    /// Continues clients that waited for the list of users, and closes clients whose user is deleted.
    fn spread_news(&mut self) {
        if !std::mem::take(&mut self.shared.users.news) {
            return;
        }
        for index in self.clients.indices() {
            let Some(client) = self.clients.get_mut(index) else {
                continue;
            };
            let waits = client.connection.rights.waits();
            if client.connection.rights.users_changed(&mut self.shared) {
                self.close(index, "its user is deleted");
            } else if waits {
                self.enqueue(index);
            }
        }
    }
}
