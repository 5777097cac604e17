//! The command that passes through to the store, and the client's own connection there.

use super::StoreAddress;
use super::direct::Direct;
use super::passage::{Passage, Stage};
use crate::upstream::Time;
use crate::users::Credentials;
use std::sync::Arc;

/// Prefix of the command that marks the end of the replies to a subscription command. Redis does not know it, and says so to
/// everybody: any command that it knows needs a right, or is refused to a subscriber.
const SENTINEL: &str = "pmnet-end";

#[derive(Default)]
pub(super) struct Passing {
    pub(super) passage: Option<Passage>,
    pub(super) direct: Option<Direct>,
    /// As whom the next connection to the store logs in for its client's commands.
    acts_as: Vec<Arc<Credentials>>,
    /// How many connections to the store there were.
    directs: u64,
    /// Number of the next sentinel.
    sentinels: u64,
    /// Something was passed that may have changed the store, and given up without an answer.
    unanswered: bool,
    /// A script was killed.
    killed: bool,
}

impl Passing {
    /// Begins a connection to the store; the front sees it and connects.
    pub(super) fn new_direct(&mut self, store: &StoreAddress, now: Time) -> &mut Direct {
        self.directs += 1;
        let direct = Direct::new(store, self.directs, now, self.acts_as.clone());
        self.direct.insert(direct)
    }

    /// As whom connections to the store log in for its client's commands, tried in this order; none: as the front.
    pub(super) fn set_acts_as(&mut self, acts_as: Vec<Arc<Credentials>>) {
        if let Some(direct) = &mut self.direct {
            direct.set_client(&acts_as);
        }
        self.acts_as = acts_as;
    }

    /// Subscriptions that this client has.
    pub(super) fn subscriptions(&self) -> u64 {
        self.direct.as_ref().map_or(0, |direct| {
            direct.subscribed.saturating_add(direct.subscribed_sharded)
        })
    }

    /// Whether the store keeps something for its connection that pmnet does not know.
    pub(super) fn has_state(&self) -> bool {
        self.direct.as_ref().is_some_and(|direct| direct.has_state)
    }

    /// A sentinel that no other command of any client has.
    pub(super) fn new_sentinel(&mut self, client: u64) -> Vec<u8> {
        self.sentinels += 1;
        format!("{SENTINEL}-{client}-{}", self.sentinels).into_bytes()
    }

    /// How many sentinels there were.
    pub(super) fn sentinels(&self) -> u64 {
        self.sentinels
    }

    /// Gives the passed command up: the store may still execute it.
    pub(super) fn drop_passage(&mut self) -> Option<Passage> {
        let passage = self.passage.take()?;
        self.unanswered |= passage.marks && passage.stage == Stage::Sent;
        Some(passage)
    }

    /// The store has killed a script.
    pub(super) fn note_killed(&mut self) {
        self.killed = true;
    }

    /// Whether a script was killed since this was last asked.
    pub(super) fn take_killed(&mut self) -> bool {
        std::mem::take(&mut self.killed)
    }

    /// Whether something was given up without an answer since this was last asked.
    pub(super) fn take_unanswered(&mut self) -> bool {
        std::mem::take(&mut self.unanswered)
    }
}
