//! Conclusions that are not drawn from memory (`docs/spec/protocol.md` §12, "Who owns them").
//!
//! A server that stood still, or was cut off, does not know whether another one has had its turn meanwhile: what it remembers of its store is old
//! then. So a device is refused, and the shard stopped, only because of records that were read, or written, since the question came.

use std::collections::VecDeque;

/// Doubts that wait, and that were looked at, at most. Of others is asked again.
const DOUBTS_MAX: usize = 64;

/// A question that is to be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doubt {
    /// The RECOVER with this nonce.
    Recover(u64),
    /// A packet of this epoch, which is later than the one on record.
    Epoch(u32),
}

/// Those that came before the records are looked at, while, and after.
#[derive(Debug, Default)]
pub(super) struct Doubts {
    waiting: Vec<Doubt>,
    under_way: Vec<Doubt>,
    settled: VecDeque<Doubt>,
}

impl Doubts {
    /// Whether the records were looked at since this was asked first. If not, they are to be; whoever asks will ask again. Each look counts for
    /// one answer.
    pub(super) fn is_settled(&mut self, doubt: Doubt) -> bool {
        let found = self.settled.iter().position(|one| *one == doubt);
        if let Some(at) = found {
            self.settled.remove(at);
            return true;
        }
        let asked = self.waiting.contains(&doubt) || self.under_way.contains(&doubt);
        if !asked && self.waiting.len() < DOUBTS_MAX {
            self.waiting.push(doubt);
        }
        false
    }

    /// Whether a question waits for a look.
    pub(super) fn wait(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The store reads the records now, or writes them if they are what is remembered.
    pub(super) fn look(&mut self) {
        self.under_way.append(&mut self.waiting);
        self.under_way.truncate(DOUBTS_MAX);
    }

    /// It did.
    pub(super) fn looked(&mut self) {
        self.settled.extend(self.under_way.drain(..));
        let many = self.settled.len().saturating_sub(DOUBTS_MAX);
        self.settled.drain(..many);
    }

    /// It did not, or that is unknown.
    pub(super) fn failed(&mut self) {
        self.waiting.append(&mut self.under_way);
        self.waiting.truncate(DOUBTS_MAX);
    }
}
