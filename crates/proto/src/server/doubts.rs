//! Conclusions that need fresh records, and not only the server's memory (`docs/spec/protocol.md` §12, "Who owns
//! them").
//!
//! A server that stood still or was cut off does not know whether another server has worked meanwhile. The server's
//! memory of the store is then old. So the server refuses a device, or stops the shard, only because of records that
//! were read or written after the question came.

use std::collections::VecDeque;

/// Maximum number of waiting doubts, and maximum number of settled doubts. Further questions are dropped, and come
/// again.
const DOUBTS_MAX: usize = 64;

/// A question that needs fresh records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doubt {
    /// The RECOVER with this nonce.
    Recover(u64),
    /// A packet of this epoch, which is later than the recorded epoch.
    Epoch(u32),
}

/// Doubts that wait for the next access to the records, that wait for the end of the present access, and that are
/// settled by a finished one.
#[derive(Debug, Default)]
pub(super) struct Doubts {
    waiting: Vec<Doubt>,
    under_way: Vec<Doubt>,
    settled: VecDeque<Doubt>,
}

impl Doubts {
    /// Whether the records were accessed since this question was first asked. If the records were not accessed, they
    /// will be accessed, and the sender asks again. Each access settles a doubt for one answer.
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

    /// Whether a doubt waits for an access to the records.
    pub(super) fn wait(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The store now reads the records, or writes records under the condition that they agree with the server's memory.
    pub(super) fn look(&mut self) {
        self.under_way.append(&mut self.waiting);
        self.under_way.truncate(DOUBTS_MAX);
    }

    /// Notes that the access to the records was successful.
    pub(super) fn looked(&mut self) {
        self.settled.extend(self.under_way.drain(..));
        let many = self.settled.len().saturating_sub(DOUBTS_MAX);
        self.settled.drain(..many);
    }

    /// The access failed, or its outcome is unknown.
    pub(super) fn failed(&mut self) {
        self.waiting.append(&mut self.under_way);
        self.waiting.truncate(DOUBTS_MAX);
    }
}
