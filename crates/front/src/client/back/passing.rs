//! The command that passes through to the store, and the client's own connection there.

use std::net::SocketAddr;
use std::sync::Arc;

use pmnet_resp::read;

use super::direct::Direct;
use super::embedded::Watching;
use super::passage::{Passage, Stage};
use crate::client::Shared;
use crate::store::StoreAddress;
use crate::upstream::Time;
use crate::users::Credentials;

/// Prefix of the command that marks the end of the replies to a subscription command. Redis does not know it, and says so to
/// everybody: any command that it knows needs a right, or is refused to a subscriber.
const SENTINEL: &str = "pmnet-end";

/// The first Redis that sends the reply to a PUBLISH before the message, if a RESP3 client is subscribed to what it publishes.
const REPLY_FIRST: (u32, u32) = (7, 2);

#[derive(Default)]
pub(in crate::client) struct Passing {
    pub(in crate::client) passage: Option<Passage>,
    pub(in crate::client) direct: Option<Direct>,
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
    /// Keys that it watches at a store that is no Redis.
    pub(in crate::client) watching: Option<Watching>,
    /// The PUBLISH of a client that is subscribed, where the reply comes before the message.
    published: Option<Published>,
}

/// A PUBLISH that is under way.
struct Published {
    channel: Vec<u8>,
    message: Vec<u8>,
    /// The message has come to the client itself: later messages follow the reply, too.
    came: bool,
}

impl Passing {
    /// Begins a connection to the store; the front sees it and connects.
    pub(in crate::client) fn new_direct(&mut self, store: &StoreAddress, now: Time) -> &mut Direct {
        self.directs += 1;
        let direct = Direct::new(store, self.directs, now, self.acts_as.clone());
        self.direct.insert(direct)
    }

    /// As whom connections to the store log in for its client's commands, tried in this order; none: as the front.
    pub(in crate::client) fn set_acts_as(&mut self, acts_as: Vec<Arc<Credentials>>) {
        if let Some(direct) = &mut self.direct {
            direct.set_client(&acts_as);
        }
        self.acts_as = acts_as;
    }

    /// The address of the store for its client's own connection, and the connection's number.
    pub(in crate::client) fn target(&self) -> Option<(u64, SocketAddr)> {
        let direct = self.direct.as_ref()?;
        Some((direct.serial, direct.line.address))
    }

    /// Whether a command is being passed.
    pub(in crate::client) fn is_under_way(&self) -> bool {
        self.passage.is_some()
    }

    /// Whether the command that is being passed is at this stage.
    pub(in crate::client) fn is_at(&self, stage: &Stage) -> bool {
        self.passage.as_ref().is_some_and(|it| it.stage == *stage)
    }

    /// Ends the connection to the store, with all the state on it.
    pub(in crate::client) fn drop_direct(&mut self) {
        self.direct = None;
    }

    /// Whether the store has not been known to answer for a command's time. `pardon`: this process could not have noticed a sign of
    /// life.
    pub(in crate::client) fn is_silent(&mut self, shared: &Shared, pardon: bool) -> bool {
        let Some(direct) = &mut self.direct else {
            return false;
        };
        if std::mem::take(&mut direct.heard) || pardon {
            direct.proof = shared.now;
        }
        if let (Some((run_id, at)), Some(found)) = (&shared.alive, &direct.found)
            && *run_id == found.run_id
        {
            direct.proof = direct.proof.max(*at);
        }
        shared.now >= direct.proof.saturating_add(shared.call_timeout)
    }

    /// Which client of Redis it is while it waits there for others.
    pub(in crate::client) fn blocked_as(&self) -> Option<i64> {
        let passage = self.passage.as_ref()?;
        let blocked = passage.blocks && passage.stage == Stage::Sent;
        let direct = self.direct.as_ref().filter(|_| blocked)?;
        direct.found.as_ref()?.client
    }

    /// How many channels, patterns and shard channels it is subscribed to.
    pub(in crate::client) fn subscribed(&self) -> [u64; 3] {
        self.direct.as_ref().map_or([0; 3], |direct| {
            let channels = direct.subscribed.saturating_sub(direct.patterns);
            [channels, direct.patterns, direct.subscribed_sharded]
        })
    }

    /// Subscriptions that this client has.
    pub(in crate::client) fn subscriptions(&self) -> u64 {
        self.direct.as_ref().map_or(0, |direct| {
            direct.subscribed.saturating_add(direct.subscribed_sharded)
        })
    }

    /// The client publishes this.
    pub(in crate::client) fn publishes(&mut self, channel: &[u8], message: &[u8]) {
        let found = self
            .direct
            .as_ref()
            .and_then(|direct| direct.found.as_ref());
        self.published = found
            .filter(|found| found.version >= REPLY_FIRST)
            .map(|_| Published {
                channel: channel.to_vec(),
                message: message.to_vec(),
                came: false,
            });
    }

    /// The client has the reply to what it published.
    pub(in crate::client) fn has_published(&mut self) {
        self.published = None;
    }

    /// Whether this message belongs after the reply to the client's PUBLISH.
    pub(in crate::client) fn is_behind_reply(&mut self, value: &[u8]) -> bool {
        let Some(published) = &mut self.published else {
            return false;
        };
        published.came = published.came
            || message_of(value).is_some_and(|(channel, message)| {
                published.channel == channel && published.message == message
            });
        published.came
    }

    /// Whether the store keeps something for its connection that pmnet does not know.
    pub(in crate::client) fn has_state(&self) -> bool {
        self.direct.as_ref().is_some_and(|direct| direct.has_state)
    }

    /// A sentinel that no other command of any client has.
    pub(in crate::client) fn new_sentinel(&mut self, client: u64) -> Vec<u8> {
        self.sentinels += 1;
        format!("{SENTINEL}-{client}-{}", self.sentinels).into_bytes()
    }

    /// How many sentinels there were.
    pub(in crate::client) fn sentinels(&self) -> u64 {
        self.sentinels
    }

    /// Gives the passed command up: the store may still execute it.
    pub(in crate::client) fn drop_passage(&mut self) -> Option<Passage> {
        let passage = self.passage.take()?;
        self.unanswered |= passage.marks && passage.stage == Stage::Sent;
        Some(passage)
    }

    /// The store has killed a script.
    pub(in crate::client) fn note_killed(&mut self) {
        self.killed = true;
    }

    /// Whether a script was killed since this was last asked.
    pub(in crate::client) fn take_killed(&mut self) -> bool {
        std::mem::take(&mut self.killed)
    }

    /// Whether something was given up without an answer since this was last asked.
    pub(in crate::client) fn take_unanswered(&mut self) -> bool {
        std::mem::take(&mut self.unanswered)
    }
}

/// Channel and text, if this is a message to a subscriber.
fn message_of(value: &[u8]) -> Option<(&[u8], &[u8])> {
    let parts = read::elements(value)?;
    let bulk = |at: usize| read::bulk(parts.get(at)?);
    match (bulk(0)?, parts.len()) {
        (b"message" | b"smessage", 3) => Some((bulk(1)?, bulk(2)?)),
        (b"pmessage", 4) => Some((bulk(2)?, bulk(3)?)),
        _ => None,
    }
}
