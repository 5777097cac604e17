//! Finds the head among the addresses that the client was given (`docs/spec/protocol.md` §3).
//!
//! The client sends to one address, and accepts answers from all. If the client waits too long, it sends a question to
//! all addresses, and from then on treats the device that answers as the head. A device that is not the head drops a
//! client's packets, so a question only costs time.

use crate::time::{MILLISECOND, Nanos, SECOND, earliest};
use crate::{Peer, Time};
use pmnet_wire::Kind;

/// The client asks all addresses if a packet has had no answer for this long, or if the chain has not served a request
/// for this long.
pub const HEAD_SILENCE: Nanos = 250 * MILLISECOND;
/// Shortest time between two questions to all addresses.
const ASK_EVERY_MIN: Nanos = 100 * MILLISECOND;
/// Longest time between two questions to all addresses. Between [`ASK_EVERY_MIN`] and this bound, the time is
/// 1/[`ASK_PER_WAIT`] of the time for which the client has waited.
const ASK_EVERY_MAX: Nanos = SECOND;
const ASK_PER_WAIT: u64 = 32;

#[derive(Debug)]
pub(super) struct Heads {
    peers: Vec<Peer>,
    current: usize,
    /// Time of the first packet that was sent since the last answer. `None`: every packet was answered.
    unanswered: Option<Time>,
    /// Time of the first request that was sent since the chain last served a request.
    unserved: Option<Time>,
    /// Time of the last question to all addresses during the present wait.
    asked: Option<Time>,
}

impl Heads {
    /// Returns the state of a client whose caller gave it these addresses. There must be at least one address.
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

    /// Replaces the addresses. There must be at least one address. The present head stays if its address is among the
    /// new addresses.
    pub(super) fn look_among(&mut self, given: impl Iterator<Item = Peer>) {
        let head = self.current();
        self.peers = Heads::new(given).peers;
        let at = self.peers.iter().position(|peer| *peer == head);
        self.current = at.unwrap_or(0);
    }

    /// Returns all addresses.
    pub(super) fn all(&self) -> impl Iterator<Item = Peer> + '_ {
        self.peers.iter().copied()
    }

    /// Returns the address to which the client sends.
    pub(super) fn current(&self) -> Peer {
        self.peers[self.current]
    }

    /// Whether the client sends to another address than the first given address. In a new shard the first given address
    /// is the head. If a session began at another device, it could begin before the chain is complete, and then no
    /// further device could join without an operator.
    pub(super) fn searches(&self) -> bool {
        self.current != 0
    }

    pub(super) fn knows(&self, from: Peer) -> bool {
        self.peers.contains(&from)
    }

    /// Notes that a valid packet came from this address, which is now the head's. Returns true if the client sent to
    /// another address before.
    ///
    /// Only kinds of packets that need the rest of the chain count as service. A head that was left out of its chain
    /// and still runs can send PONG, NACK, NOT_LOGGED and MISS for ever.
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

    /// Notes that packets were sent. `requests`: one of the packets is a request that the chain must serve, and not a
    /// PING or a READ.
    pub(super) fn sent(&mut self, now: Time, requests: bool) {
        self.unanswered.get_or_insert(now);
        if requests {
            self.unserved.get_or_insert(now);
        }
    }

    fn waits_since(&self) -> Option<Time> {
        earliest(self.unanswered, self.unserved)
    }

    /// Returns the time when all addresses must be asked.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        let since = self.waits_since().filter(|_| self.peers.len() > 1)?;
        let Some(asked) = self.asked else {
            return Some(since + HEAD_SILENCE);
        };
        let waited = asked.since(since) / ASK_PER_WAIT;
        Some(asked + waited.clamp(ASK_EVERY_MIN, ASK_EVERY_MAX))
    }

    /// Whether all addresses must be asked now.
    pub(super) fn is_due(&self, now: Time) -> bool {
        self.next_timeout().is_some_and(|at| now >= at)
    }

    /// Whether no packet waits for an answer that a session still needs.
    pub(super) fn is_answered(&self) -> bool {
        self.unanswered.is_none()
    }

    /// Notes that no session waits any more.
    pub(super) fn rest(&mut self) {
        (self.unanswered, self.unserved, self.asked) = (None, None, None);
    }

    /// Returns all addresses, each with the statement whether it differs from the first given address. The caller asks
    /// all of them.
    pub(super) fn ask(&mut self, now: Time) -> impl Iterator<Item = (Peer, bool)> + '_ {
        self.asked = Some(now);
        let all = self.peers.iter().enumerate();
        all.map(|(at, peer)| (*peer, at != 0))
    }
}
