//! A client's own connection to the store, as a front has one for commands that cannot go through the server. A barrier
//! (a bypass) first names the store. Then the client sends the operation directly to this store.
//!
//! Fault model: the store may fail over at any moment, and the old master still answers. Replies are lost. If a master
//! was replaced after a barrier had named it, the client cannot know whether the operation came before the failover.
//! Then the outcome counts as unknown.

use crate::check::Result as Seen;
use crate::client::ClientHost;
use crate::config::WorldConfig;
use crate::store::{Act, Operation, Reply};
use crate::without::{Place, Without};
use pmnet_proto::Time;
use pmnet_proto::client::Outcome;
use pmnet_proto::time::MILLISECOND;

/// Longest time until an answer on a client's own connection.
const DIRECT_MAX: u64 = 8 * MILLISECOND;
/// One in this number of replies on a client's own connection is lost.
const DIRECT_LOST_EVERY: u64 = 12;

/// An operation that a client sends to the store on its own connection.
#[derive(Debug)]
pub(crate) struct Direct {
    pub(crate) operation: Operation,
    /// Index of its entry in the history.
    pub(crate) observed: usize,
    /// The store that the barrier named, and the time at which the operation arrives there.
    pub(crate) named: Option<(u64, Time)>,
}

impl ClientHost {
    /// Sends the operation to the store that the barrier has named.
    pub(crate) fn go_direct(&mut self, now: Time, world: Time, config: &WorldConfig) {
        let named = self.direct.as_ref().and_then(|direct| direct.named);
        let Some((named, _)) = named.filter(|(_, at)| now >= *at) else {
            return;
        };
        let Some(direct) = self.direct.take() else {
            return;
        };
        // If the connection leads to another store than the barrier named, the client closes it.
        let keeps = Without::breaks(config.without, Place::StoreNamed);
        let connection = self.connection.filter(|_| keeps).unwrap_or(named);
        self.connection = Some(connection);
        let marked = self.mark.is_some_and(|mark| mark.is_open);
        let (observed, deadline) = &mut self.observed[direct.observed];
        let unmarked = config.reads && !marked;
        if now > *deadline || unmarked {
            observed.result = Seen::Failed;
            return;
        }
        let (reply, is_old) = self.store.direct(connection, direct.operation, world);
        let lost = self.random.next_u64().is_multiple_of(DIRECT_LOST_EVERY);
        match reply {
            // The failover came after the barrier had named the old master. The client cannot know this.
            Some(_) if is_old && connection == named => self.windows += 1,
            Some(Reply::List(list)) if !lost => {
                observed.result = Seen::Read(list);
                observed.returned = Some(world);
            }
            _ => {}
        }
    }

    /// Returns the direct operation that follows the barrier that was just called.
    pub(crate) fn begin_direct(&mut self, key: u8) -> Operation {
        let act = match self.random.next_u64() % 2 {
            0 => Act::Read,
            _ => Act::AppendRead,
        };
        let id = self.next_id;
        self.next_id += 1;
        let operation = Operation { act, key, id };
        self.direct = Some(Direct {
            operation,
            observed: self.observed.len(),
            named: None,
        });
        operation
    }

    /// Takes the outcome of call `at`. If this call is the barrier under way, returns whether the outcome names a
    /// store.
    pub(crate) fn barrier_ends(&mut self, at: usize, outcome: &Outcome, now: Time) -> Option<bool> {
        let direct = self.direct.as_mut().filter(|d| d.observed == at)?;
        if let Outcome::Reply(reply) = outcome
            && let Some(Reply::Store(name)) = Reply::read(reply)
        {
            self.named = name;
            direct.named = Some((name, now + self.random.next_u64() % DIRECT_MAX));
            return Some(true);
        }
        // Without an answered barrier the operation is not sent to the store.
        self.direct = None;
        Some(false)
    }
}
