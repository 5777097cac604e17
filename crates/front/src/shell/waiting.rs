//! Clients that wait for a list or a sorted set of an embedded store (`docs/spec/embedded-store.md` §8).
//!
//! The front asks the store which lists and sorted sets are new, with one question for all waiting clients. When a key
//! is new, the front wakes the client that has waited longest for the key. When that client has an element or
//! disconnects, the front wakes the next client, until a woken client finds no element. The number of clients bounds
//! this state.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use pmnet_resp::{reply, write_command};
use pmnet_wire::command::{ARRIVED, Form, Protocol, preamble};

use super::Front;
use crate::client::{Waiting as Waits, integers};
use crate::upstream::{Call, CallId, Calls, Outcome, SessionHandle, Time, Upstream};

/// Shortest time from an answer of the store to the next question, in nanoseconds.
const SOON: Time = 1_000_000;
/// Longest time from an answer of the store to the next question, in nanoseconds.
const LATER: Time = 20_000_000;

/// A waiting client.
#[derive(Debug)]
struct Waiter {
    client: usize,
    keys: Vec<i64>,
    until: Option<Time>,
    /// Whether the client was woken and may still take an element: it has not reported since that it found none.
    woken: bool,
}

/// The waiting clients, and the answers of the store.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// The waiting clients by ticket, that is, in the order in which they began to wait.
    waiters: BTreeMap<u64, Waiter>,
    /// Key and ticket of each wait, so that the tickets of a key are in order.
    by_key: BTreeSet<(i64, u64)>,
    /// End and ticket of each wait that has an end.
    ends: BTreeSet<(Time, u64)>,
    tickets: u64,
    session: Option<SessionHandle>,
    call: Option<CallId>,
    /// Start number of the store's process, and the number of new keys up to the process's last answer.
    seen: Option<(i64, i64)>,
    asked_last: Time,
    due: Time,
    every: Time,
}

impl Waiting {
    /// Adds a client that begins to wait. Returns its ticket.
    fn begin(&mut self, client: usize, keys: &[i64], until: Option<Time>, now: Time) -> u64 {
        self.tickets += 1;
        let ticket = self.tickets;
        self.by_key.extend(keys.iter().map(|key| (*key, ticket)));
        self.ends.extend(until.map(|until| (until, ticket)));
        let waiter = Waiter {
            client,
            keys: keys.to_vec(),
            until,
            woken: false,
        };
        self.waiters.insert(ticket, waiter);
        self.stir(now);
        ticket
    }

    /// Removes a client that no longer waits. Returns the tickets that must be woken in place of this client's ticket.
    fn end(&mut self, ticket: u64) -> Vec<u64> {
        let Some(waiter) = self.waiters.remove(&ticket) else {
            return Vec::new();
        };
        for key in &waiter.keys {
            self.by_key.remove(&(*key, ticket));
        }
        if let Some(until) = waiter.until {
            self.ends.remove(&(until, ticket));
        }
        // The elements for which the client was woken may still exist.
        let next = waiter.keys.iter().filter(|_| waiter.woken);
        next.filter_map(|key| self.first(*key)).collect()
    }

    /// Returns the ticket that has waited longest for a key.
    fn first(&self, key: i64) -> Option<u64> {
        let next = self.by_key.range((key, 0)..).next();
        next.filter(|(found, _)| *found == key)
            .map(|(_, ticket)| *ticket)
    }

    /// Notes that elements may have arrived, so that the store is asked soon.
    pub(super) fn stir(&mut self, now: Time) {
        if !self.waiters.is_empty() {
            self.every = SOON;
            self.due = self.due.min(self.asked_last.saturating_add(SOON).max(now));
        }
    }

    /// Returns the time when a wait ends or the store must be asked.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        let end = self.ends.first().map(|(until, _)| *until);
        let question = (!self.waiters.is_empty() && self.call.is_none()).then_some(self.due);
        end.into_iter().chain(question).min()
    }

    /// Takes an answer of the store. Returns the tickets that must be woken; `None`: the store cannot answer
    /// this question.
    fn answered(&mut self, reply: &[u8]) -> Option<Vec<u64>> {
        let numbers = integers(reply)?;
        let [start, count, new @ ..] = &numbers[..] else {
            return None;
        };
        let seen = self.seen.replace((*start, *count));
        let known = seen.is_some_and(|(of, _)| of == *start) && !new.contains(&0);
        let woken = if known {
            new.iter().filter_map(|key| self.first(*key)).collect()
        } else {
            // After such an answer, any of the awaited keys may exist.
            self.waiters.keys().copied().collect()
        };
        self.every = if new.is_empty() {
            self.every.saturating_mul(2).clamp(SOON, LATER)
        } else {
            SOON
        };
        Some(woken)
    }
}

fn question(seen: Option<(i64, i64)>) -> Bytes {
    let (start, count) = seen.unwrap_or_default();
    let mut payload = preamble(Form::Single, Protocol::Resp2, 0).to_vec();
    write_command(
        &mut payload,
        &[ARRIVED, &start.to_string(), &count.to_string()],
    );
    Bytes::from(payload)
}

impl<U: Upstream> Front<U> {
    /// Notes that a client begins to wait, has found nothing, or no longer waits.
    pub(super) fn note_waiting(&mut self, index: usize, waiting: Waits) {
        let Some(client) = self.clients.get_mut(index) else {
            return;
        };
        match (waiting, client.ticket) {
            (Waits::No, None) => {}
            (Waits::Tries | Waits::Rests, None) => {
                let Some((keys, until)) = client.connection.waits_for() else {
                    return;
                };
                let ticket = self.waiting.begin(index, keys, until, self.shared.now);
                client.ticket = Some(ticket);
                if self.waiting.seen.is_some() {
                    // The store's answers did not tell this client of keys that arrived before it began to wait.
                    self.wake_waiters(vec![ticket]);
                }
            }
            (Waits::Tries, Some(_)) => {}
            (Waits::Rests, Some(ticket)) => {
                if let Some(waiter) = self.waiting.waiters.get_mut(&ticket) {
                    waiter.woken = false;
                }
            }
            (Waits::No, Some(ticket)) => {
                client.ticket = None;
                self.end_ticket(ticket);
            }
        }
    }

    /// Ends the wait with this ticket.
    pub(super) fn end_ticket(&mut self, ticket: u64) {
        let next = self.waiting.end(ticket);
        self.wake_waiters(next);
    }

    fn wake_waiters(&mut self, tickets: Vec<u64>) {
        for ticket in tickets {
            let Some(waiter) = self.waiting.waiters.get_mut(&ticket) else {
                continue;
            };
            waiter.woken = true;
            let index = waiter.client;
            if let Some(client) = self.clients.get_mut(index) {
                client.connection.wake();
                self.enqueue(index);
            }
        }
    }

    /// Ends waits whose time is over, and asks the store for new keys.
    pub(super) fn keep_waiting(&mut self) {
        let now = self.shared.now;
        while let Some((until, ticket)) = self.waiting.ends.first().copied() {
            if until > now {
                break;
            }
            self.waiting.ends.pop_first();
            if let Some(waiter) = self.waiting.waiters.get(&ticket) {
                let index = waiter.client;
                self.enqueue(index);
            }
        }
        if self.waiting.waiters.is_empty() {
            if let Some(session) = self.waiting.session.take() {
                self.up.end(now, session);
                self.waiting = Waiting {
                    tickets: self.waiting.tickets,
                    ..Waiting::default()
                };
            }
            return;
        }
        if self.waiting.call.is_some() || now < self.waiting.due {
            return;
        }
        let Some(session) = self.waiting.session.or_else(|| self.up.open(now).ok()) else {
            self.waiting.due = now.saturating_add(LATER);
            return;
        };
        self.waiting.session = Some(session);
        let deadline = now.saturating_add(self.shared.call_timeout);
        let payload = question(self.waiting.seen);
        let call = Call::question(&payload, deadline);
        match self.up.submit(now, session, call) {
            Ok(call) => {
                self.waiting.call = Some(call);
                self.waiting.asked_last = now;
            }
            Err(error) => {
                tracing::debug!(%error, "cannot ask for what clients wait for");
                if error == crate::upstream::Refused::Closed {
                    self.waiting.session = None;
                }
                self.waiting.due = now.saturating_add(LATER);
            }
        }
    }

    /// If the call belongs to the session for the questions about new keys, takes the outcome of the call.
    pub(super) fn waiting_done(&mut self, session: SessionHandle, call: CallId, outcome: &Outcome) {
        if self.waiting.session != Some(session) || self.waiting.call != Some(call) {
            return;
        }
        self.waiting.call = None;
        let woken = match outcome {
            Outcome::Reply(reply) => self.waiting.answered(reply),
            _ => None,
        };
        self.waiting.due = self.shared.now.saturating_add(self.waiting.every);
        match woken {
            Some(woken) => self.wake_waiters(woken),
            None => self.fail_waiters(),
        }
    }

    /// Ends all waits with an error, because the store has not answered in time, or because the server has changed to
    /// another store.
    fn fail_waiters(&mut self) {
        let error = reply::error(
            "ERR pmnet: the store does not answer; the command was given up, and has taken nothing",
        );
        let indices: Vec<usize> = self
            .waiting
            .waiters
            .values()
            .map(|waiter| waiter.client)
            .collect();
        self.waiting.seen = None;
        for index in indices {
            if let Some(client) = self.clients.get_mut(index) {
                client.connection.stop_waiting(error.clone(), &self.shared);
                self.enqueue(index);
                self.mark_dirty(index);
            }
        }
    }

    /// If the front asks the store for new keys in this session, notes that the session was closed.
    pub(super) fn waiting_closed(&mut self, session: SessionHandle) {
        if self.waiting.session == Some(session) {
            self.waiting.session = None;
            self.waiting.call = None;
            self.waiting.due = self.shared.now.saturating_add(SOON);
        }
    }

    /// Carries out CLIENT UNBLOCK for a client. Returns whether the client waited for an embedded store.
    pub(super) fn unblock_waiting(&mut self, index: usize, error: bool) -> bool {
        let Some(client) = self.clients.get_mut(index) else {
            return false;
        };
        if client.connection.waits_for().is_none() {
            return false;
        }
        let answer = client.connection.unblocked(error);
        client.connection.stop_waiting(answer, &self.shared);
        self.enqueue(index);
        self.mark_dirty(index);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(numbers: &[i64]) -> Vec<u8> {
        let mut reply = format!("*{}\r\n", numbers.len()).into_bytes();
        numbers
            .iter()
            .for_each(|number| reply.extend(format!(":{number}\r\n").bytes()));
        reply
    }

    #[test]
    fn who_has_waited_longest_is_woken_and_the_next_one_when_it_is_served() {
        let mut waiting = Waiting::default();
        let first = waiting.begin(0, &[7, 8], None, 0);
        let second = waiting.begin(1, &[8], Some(5), 0);
        let third = waiting.begin(2, &[8, 9], None, 0);
        // The first answer of a process wakes all waiting clients, because their keys may already exist.
        assert_eq!(
            waiting.answered(&answer(&[1, 0])),
            Some(vec![first, second, third])
        );
        assert_eq!(waiting.answered(&answer(&[1, 0])), Some(vec![]));
        assert_eq!(
            waiting.answered(&answer(&[1, 2, 8, 9])),
            Some(vec![first, third])
        );
        waiting.waiters.get_mut(&first).unwrap().woken = true;
        assert_eq!(
            waiting.end(first),
            vec![second],
            "for 7 nobody waits any more"
        );
        assert_eq!(waiting.end(second), Vec::<u64>::new(), "it was not woken");
        // An answer without names, and the first answer of another process, wake all waiting clients.
        assert_eq!(waiting.answered(&answer(&[1, 9000, 0])), Some(vec![third]));
        assert_eq!(waiting.answered(&answer(&[2, 0])), Some(vec![third]));
        assert_eq!(waiting.answered(b"-ERR unknown command\r\n"), None);
        assert!(waiting.ends.is_empty());
    }

    #[test]
    fn the_store_is_asked_less_and_less_often_while_nothing_happens() {
        let mut waiting = Waiting::default();
        assert_eq!(waiting.next_timeout(), None);
        waiting.begin(0, &[7], Some(9_000_000_000), 5);
        assert_eq!(waiting.next_timeout(), Some(0));
        waiting.asked_last = 5;
        let mut gaps = Vec::new();
        for _ in 0..7 {
            waiting.answered(&answer(&[1, 0]));
            gaps.push(waiting.every / 1_000_000);
        }
        assert_eq!(gaps, [2, 4, 8, 16, 20, 20, 20]);
        waiting.due = 20_000_005;
        waiting.stir(6);
        assert_eq!(waiting.next_timeout(), Some(1_000_005));
    }
}
