//! Counters and times of a router, shown to an observer once a turn. Without an observer no command is timed.

use std::cell::{Cell, RefCell};

use bytes::Bytes;

use super::backs::Stop;
use super::replies::Wait;
use super::route::{CLUSTERDOWN, CROSSSLOT, TRYAGAIN};
use crate::upstream::Time;

/// Events of a router so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouterCounters {
    /// Commands that went to one shard.
    pub one: u64,
    /// Commands that went to all shards.
    pub all: u64,
    /// Changes of a connection's state (AUTH, HELLO, RESET, CLIENT), which concern all its links.
    pub state: u64,
    /// Changes of subscriptions.
    pub subscriptions: u64,
    /// Commands that the router answered by itself.
    pub own: u64,
    /// Commands that were refused: their keys belong to several slots.
    pub cross_slot: u64,
    /// Commands that were refused: no shard serves their slot.
    pub cluster_down: u64,
    /// Commands that were refused: their slot is moving.
    pub try_again: u64,
    /// How often a command had to wait before it could be taken: its shard, or an earlier reply, was behind.
    pub held: u64,
    /// Clients that were turned away: there were as many as there may be.
    pub refused: u64,
    /// Clients that were closed because they were late: with TLS, or after they had closed their sending side.
    pub late: u64,
    /// Maps that took the place of another one.
    pub maps: u64,
}

/// Class of a command that is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouterClass {
    /// It went to one shard.
    One,
    /// It went to all shards.
    All,
}

/// A turn of [`Router::run_observed`](super::Router::run_observed).
pub struct RouterTurn<'a> {
    /// Events so far.
    pub counters: RouterCounters,
    /// Clients that are connected.
    pub clients: usize,
    /// Clients that were ever connected.
    pub clients_ever: u64,
    /// Slots that no shard serves.
    pub unserved: usize,
    /// Slots that are moving.
    pub moving: usize,
    /// Commands without a reply that were taken before the map was changed last.
    pub before_map: usize,
    /// Nanoseconds that each command took whose reply was handed on in this turn.
    pub took: &'a mut dyn Iterator<Item = (RouterClass, Time)>,
}

/// Counters of one loop, which all its clients share.
#[derive(Default)]
pub(super) struct Tally {
    counters: Cell<RouterCounters>,
    /// Time of this turn.
    now: Cell<Time>,
    /// Commands are timed.
    is_timed: Cell<bool>,
    took: RefCell<Vec<(RouterClass, Time)>>,
}

impl Tally {
    pub(super) fn counters(&self) -> RouterCounters {
        self.counters.get()
    }

    /// Times commands from now on.
    pub(super) fn time(&self) {
        self.is_timed.set(true);
    }

    /// Begins a turn.
    pub(super) fn begin(&self, now: Time) {
        self.now.set(now);
    }

    pub(super) fn now(&self) -> Time {
        self.now.get()
    }

    /// Returns how long the commands took that were answered since the last call. Their place is kept.
    pub(super) fn take_took(&self) -> Vec<(RouterClass, Time)> {
        self.took.take()
    }

    /// Takes the place for such times back.
    pub(super) fn put_back(&self, mut empty: Vec<(RouterClass, Time)>) {
        empty.clear();
        self.took.replace(empty);
    }

    pub(super) fn count(&self, count: impl FnOnce(&mut RouterCounters)) {
        let mut counters = self.counters.get();
        count(&mut counters);
        self.counters.set(counters);
    }

    /// Counts what became of a command.
    pub(super) fn note(&self, done: &Result<Option<Wait>, Stop>) {
        let answered = |counters: &mut RouterCounters, answer: &Bytes| {
            *match answer {
                answer if *answer == CROSSSLOT => &mut counters.cross_slot,
                answer if *answer == CLUSTERDOWN => &mut counters.cluster_down,
                answer if *answer == TRYAGAIN => &mut counters.try_again,
                _ => &mut counters.own,
            } += 1;
        };
        self.count(|counters| match done {
            Ok(Some(Wait::One(_) | Wait::Multi(..) | Wait::Scan(_) | Wait::Info(_))) => {
                counters.one += 1;
            }
            Ok(Some(Wait::All(..))) => counters.all += 1,
            Ok(Some(Wait::State(_))) => counters.state += 1,
            Ok(Some(Wait::Subscribe(_))) => counters.subscriptions += 1,
            Ok(Some(Wait::Ready(answer))) | Err(Stop::Answered(answer) | Stop::Own(answer)) => {
                answered(counters, answer);
            }
            Ok(None) => counters.own += 1,
            Err(Stop::Later) => counters.held += 1,
        });
    }

    /// A command that was taken at `taken` is answered.
    pub(super) fn answered(&self, wait: &Wait, taken: Time) {
        if !self.is_timed.get() {
            return;
        }
        let class = match wait {
            Wait::One(_) | Wait::Multi(..) | Wait::Scan(_) | Wait::Info(_) => RouterClass::One,
            Wait::All(..) => RouterClass::All,
            Wait::Ready(_) | Wait::Subscribe(_) | Wait::State(_) => return,
        };
        let took = self.now().saturating_sub(taken);
        self.took.borrow_mut().push((class, took));
    }
}
