//! Counters and times of a router, shown to an observer once a turn. Without an observer no command is timed.

use std::cell::{Cell, RefCell};

use bytes::Bytes;

use super::backs::Stop;
use super::replies::Wait;
use super::route::{CLUSTERDOWN, CROSSSLOT, TRYAGAIN};
use crate::upstream::Time;

/// Numbers of events since the router started.
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
    /// Commands that were refused because their keys belong to several slots.
    pub cross_slot: u64,
    /// Commands that were refused because no shard serves their slot.
    pub cluster_down: u64,
    /// Commands that were refused because their slot is moving.
    pub try_again: u64,
    /// Number of times that a command had to wait before it could be taken, for its shard or for an earlier reply.
    pub held: u64,
    /// Clients that were refused because the limit of clients was reached.
    pub refused: u64,
    /// Clients that were closed because they missed a deadline: for the TLS handshake, or after they had closed their
    /// sending side. The number includes clients that were closed so that another client could have a TLS handshake.
    pub late: u64,
    /// Number of changes of the map.
    pub maps: u64,
}

/// Class of a command that is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouterClass {
    /// A command that went to one shard.
    One,
    /// A command that went to all shards.
    All,
}

/// A turn of [`Router::run_observed`](super::Router::run_observed).
pub struct RouterTurn<'a> {
    /// Numbers of events since the router started.
    pub counters: RouterCounters,
    /// Clients that are connected.
    pub clients: usize,
    /// Clients that were ever connected.
    pub clients_ever: u64,
    /// Slots that no shard serves.
    pub unserved: usize,
    /// Slots that are moving.
    pub moving: usize,
    /// Commands that were taken before the last change of the map and still have no reply.
    pub before_map: usize,
    /// Class and duration, in nanoseconds, of each command whose reply was sent to its client in this turn.
    pub took: &'a mut dyn Iterator<Item = (RouterClass, Time)>,
}

/// Counters of one event loop, which all its clients share.
#[derive(Default)]
pub(super) struct Tally {
    counters: Cell<RouterCounters>,
    /// Time of this turn.
    now: Cell<Time>,
    /// Whether commands are timed.
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

    /// Takes out the list of durations of the commands that were answered since the last call. The caller returns the
    /// list with [`Self::put_back`], so that the memory of the list is used again.
    pub(super) fn take_took(&self) -> Vec<(RouterClass, Time)> {
        self.took.take()
    }

    /// Takes back the list from [`Self::take_took`], and empties it.
    pub(super) fn put_back(&self, mut empty: Vec<(RouterClass, Time)>) {
        empty.clear();
        self.took.replace(empty);
    }

    pub(super) fn count(&self, count: impl FnOnce(&mut RouterCounters)) {
        let mut counters = self.counters.get();
        count(&mut counters);
        self.counters.set(counters);
    }

    /// Counts a command in the counter of the way in which it was handled.
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

    /// Notes that a command that was taken at `taken` is answered.
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
