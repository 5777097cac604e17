//! Where the head is: at one of the addresses that the client was given (`docs/spec/protocol.md` §3).
//!
//! The client sends to one of them, and takes answers from each. While nobody answers it goes on to the next; whoever
//! answers is the one. A device that is not the head drops what a client sends, so a wrong guess costs time only.

use crate::time::{MILLISECOND, Nanos};
use crate::{Peer, Time};

/// So long after the first packet that nobody answered, the next address is tried.
pub const HEAD_SILENCE: Nanos = 250 * MILLISECOND;

#[derive(Debug)]
pub(super) struct Heads {
    peers: Vec<Peer>,
    current: usize,
    /// When the first packet was sent that nobody has answered yet.
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
            asked: None,
        }
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

    /// A packet that counts came from there.
    pub(super) fn answered(&mut self, from: Peer) {
        self.asked = None;
        if from != self.current() {
            self.current = self
                .peers
                .iter()
                .position(|peer| *peer == from)
                .unwrap_or(0);
        }
    }

    /// Something was sent.
    pub(super) fn sent(&mut self, now: Time) {
        self.asked.get_or_insert(now);
    }

    /// Goes on to the next address if this one is silent.
    pub(super) fn look(&mut self, now: Time) {
        if self.peers.len() > 1 && self.asked.is_some_and(|at| now.since(at) >= HEAD_SILENCE) {
            self.current = (self.current + 1) % self.peers.len();
            self.asked = None;
        }
    }
}
