//! Decisions for which the server must first read or write its records, because its memory may be old
//! (`docs/spec/protocol.md` §12, "Who owns them").
//!
//! While a server is suspended or cut off, another server may work on the same store. Then the first server's memory of
//! the records is old, and the server does not know this. So a server refuses a device, or stops the shard, only after
//! it has read or written the records since the device's packet came. A *doubt* is a packet that waits for this access.

use std::collections::VecDeque;

/// Maximum number of waiting doubts, and of settled doubts. Further packets are dropped, and the devices send them
/// again.
const DOUBTS_MAX: usize = 64;

/// A packet that must not be answered before the records were accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doubt {
    /// A RECOVER with this nonce, which would be refused.
    Recover(u64),
    /// A packet of this epoch, which is later than the recorded epoch.
    Epoch(u32),
}

/// Doubts that wait for the next access to the records (`waiting`), doubts that wait for the end of the present access
/// (`under_way`), and doubts for which an access has ended (`settled`).
#[derive(Debug, Default)]
pub(super) struct Doubts {
    waiting: Vec<Doubt>,
    under_way: Vec<Doubt>,
    settled: VecDeque<Doubt>,
}

impl Doubts {
    /// Whether the records were accessed since this packet first came. If not, the doubt waits for the next access, and
    /// the sender sends the packet again. A settled doubt is removed, so it counts for one answer.
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

    /// An access to the records begins: the store reads them, or writes under the condition that they agree with the
    /// server's memory.
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
