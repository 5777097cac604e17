//! Where the head is: at one of the addresses that the client was given (`docs/spec/protocol.md` §3).
//!
//! The client sends to one of them, and takes answers from each. If it waits too long, it asks at all of them who the head
//! is; whoever answers is the one. A device that is not the head drops what a client sends, so a question costs time only.

use crate::time::{MILLISECOND, Nanos, SECOND, earliest};
use crate::{Peer, Time};
use pmnet_wire::Kind;

/// So long after a packet that nobody answered, or after a request that was not served, all addresses are asked.
pub const HEAD_SILENCE: Nanos = 250 * MILLISECOND;
/// They are asked again after at least so long,
const ASK_EVERY_MIN: Nanos = 100 * MILLISECOND;
/// and after so long at most; in between, after this part of the time that the client has waited.
const ASK_EVERY_MAX: Nanos = SECOND;
const ASK_PER_WAIT: u64 = 32;

#[derive(Debug)]
pub(super) struct Heads {
    peers: Vec<Peer>,
    current: usize,
    /// When the first packet was sent that nobody has answered yet.
    unanswered: Option<Time>,
    /// When the first request was sent since the chain served one.
    unserved: Option<Time>,
    /// When all addresses were asked last, while the client waits.
    asked: Option<Time>,
}

impl Heads {
    /// There is one at least.
    pub(super) fn new(given: impl Iterator<Item = Peer>) -> Heads {
        let mut peers = Vec::new();
        for peer in given {
            if !peers.contains(&peer) {
                peers.push(peer);
            }
        }
        Heads {
            peers,
            current: 0,
            unanswered: None,
            unserved: None,
            asked: None,
        }
    }

    /// From now on the head is one of these; there is one at least. Who is taken for it still is, if it is among them.
    pub(super) fn look_among(&mut self, given: impl Iterator<Item = Peer>) {
        let head = self.current();
        self.peers = Heads::new(given).peers;
        let at = self.peers.iter().position(|peer| *peer == head);
        self.current = at.unwrap_or(0);
    }

    /// All addresses.
    pub(super) fn all(&self) -> impl Iterator<Item = Peer> + '_ {
        self.peers.iter().copied()
    }

    /// Where to send to.
    pub(super) fn current(&self) -> Peer {
        self.peers[self.current]
    }

    /// Whether this is not the one that was given first. That one is the head when the shard is new; at another one a session could
    /// begin before all devices are there, and then no further one could join by itself.
    pub(super) fn searches(&self) -> bool {
        self.current != 0
    }

    pub(super) fn knows(&self, from: Peer) -> bool {
        self.peers.contains(&from)
    }

    /// A packet that counts came from there. True if somebody else was taken for the head before.
    ///
    /// Only what nobody sends without the rest of the chain counts as service: a head that was left out of its chain and lives
    /// on says PONG, NACK, NOT_LOGGED and MISS for ever.
    pub(super) fn answered(&mut self, from: Peer, kind: Kind) -> bool {
        self.unanswered = None;
        if matches!(kind, Kind::Ack | Kind::OpenReply | Kind::Response) {
            self.unserved = None;
        }
        if self.waits_since().is_none() {
            self.asked = None;
        }
        let at = self.peers.iter().position(|peer| *peer == from);
        let moved = at.is_some_and(|at| at != self.current);
        self.current = at.unwrap_or(self.current);
        moved
    }

    /// Something was sent. `requests`: something that the chain serves, so neither a PING nor a READ.
    pub(super) fn sent(&mut self, now: Time, requests: bool) {
        self.unanswered.get_or_insert(now);
        if requests {
            self.unserved.get_or_insert(now);
        }
    }

    fn waits_since(&self) -> Option<Time> {
        earliest(self.unanswered, self.unserved)
    }

    /// When all addresses are to be asked.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        let since = self.waits_since().filter(|_| self.peers.len() > 1)?;
        let Some(asked) = self.asked else {
            return Some(since + HEAD_SILENCE);
        };
        let waited = asked.since(since) / ASK_PER_WAIT;
        Some(asked + waited.clamp(ASK_EVERY_MIN, ASK_EVERY_MAX))
    }

    /// Whether all addresses are to be asked now.
    pub(super) fn is_due(&self, now: Time) -> bool {
        self.next_timeout().is_some_and(|at| now >= at)
    }

    /// Everything that was sent has been answered, as far as anybody waits for it.
    pub(super) fn is_answered(&self) -> bool {
        self.unanswered.is_none()
    }

    /// Nobody waits any more.
    pub(super) fn rest(&mut self) {
        (self.unanswered, self.unserved, self.asked) = (None, None, None);
    }

    /// All addresses, to be asked, and for each whether it is another one than the first.
    pub(super) fn ask(&mut self, now: Time) -> impl Iterator<Item = (Peer, bool)> + '_ {
        self.asked = Some(now);
        let all = self.peers.iter().enumerate();
        all.map(|(at, peer)| (*peer, at != 0))
    }
}
