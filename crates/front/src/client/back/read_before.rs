//! Reads for which the store is asked at once, together with the head (`docs/spec/reads.md` §3).
//!
//! Purpose: where the head will probably say MISS, a batch need not wait for that. What the store says is kept here, with its
//! record, until the head has spoken, and counts only if the MISS names the version that the front had heard before
//! it sent the batch; of a replica, if it has what the MISS says of replicas. Otherwise the store is asked again.
//! Invariants: a connection has one such question at a time, also when its batch has been answered without it; what is kept
//! of its replies is bounded by [`BATCH_REPLY_BYTES_MAX`].

use bytes::Bytes;

use super::batch::BATCH_REPLY_BYTES_MAX;

/// This many MISSes one after the other make the next probable. What the store says beside a HIT is work for nothing.
pub(in crate::client) const MISSES: u32 = 8;

/// What a head says of its index: the same as long as nothing that changed state without an order has left it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::client) struct Version {
    pub(in crate::client) epoch: u32,
    pub(in crate::client) version: u64,
}

/// What the front has heard of the head's answers.
#[derive(Debug, Default)]
pub(in crate::client) struct Heard {
    newest: Option<Version>,
    /// MISSes of one version, one after the other.
    misses: u32,
}

impl Heard {
    /// A MISS.
    pub(in crate::client) fn missed(&mut self, version: Version) {
        if self.newest == Some(version) {
            self.misses = self.misses.saturating_add(1);
        } else {
            self.newest = Some(version);
            self.misses = 0;
        }
    }

    /// Anything else.
    pub(in crate::client) fn not_missed(&mut self) {
        self.misses = 0;
    }

    /// The version that the next MISS will probably name.
    pub(in crate::client) fn expected(&self) -> Option<Version> {
        self.newest.filter(|_| self.misses >= MISSES)
    }
}

/// Who is asked before the head has answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::client) enum Asked {
    /// The store; it counts if this is still the head's version.
    Master(Version),
    /// A replica.
    Replica,
}

/// A MISS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::client) struct Missed {
    pub(in crate::client) epoch: u32,
    /// What the store must have applied.
    pub(in crate::client) need: u64,
    /// Of the head; `None`: it said HIT, which was of no use.
    pub(in crate::client) version: Option<Version>,
    /// What a replica must have applied; 0: none may be read from.
    pub(in crate::client) replicas: u64,
}

/// A question to the store that did not wait for the head's answer.
pub(in crate::client) struct Before {
    /// Of the question: [`crate::client::StoreRead::batch`].
    pub(in crate::client) number: u64,
    /// Whom it asks.
    pub(in crate::client) asked: Asked,
    /// It has been handed out.
    pub(in crate::client) is_sent: bool,
    /// The batch still waits for it.
    pub(in crate::client) is_wanted: bool,
    /// Replies still to come.
    left: usize,
    /// Epoch and watermark of the store when it was read.
    record: Option<(u32, u64)>,
    replies: Vec<Bytes>,
    bytes: usize,
}

/// What has become of such a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::client) enum Progress {
    /// Replies are still to come.
    Waits,
    /// All are there.
    Whole,
    /// They are too long.
    Large,
}

impl Before {
    pub(in crate::client) fn new(number: u64, asked: Asked, count: usize) -> Before {
        Before {
            number,
            asked,
            is_sent: false,
            is_wanted: true,
            left: count,
            record: None,
            replies: Vec::new(),
            bytes: 0,
        }
    }

    /// Whether the batch with this question waits for it.
    pub(in crate::client) fn is_for(&self, number: u64) -> bool {
        self.is_wanted && self.number == number
    }

    /// The store's record, as it was when the store was read.
    pub(in crate::client) fn recorded(&mut self, record: (u32, u64)) {
        self.record = Some(record);
    }

    /// The next reply.
    pub(in crate::client) fn replied(&mut self, reply: Bytes) -> Progress {
        self.left = self.left.saturating_sub(1);
        self.bytes += reply.len();
        if self.bytes > BATCH_REPLY_BYTES_MAX {
            return Progress::Large;
        }
        if self.is_wanted {
            self.replies.push(reply);
        }
        self.progress()
    }

    pub(in crate::client) fn progress(&self) -> Progress {
        match self.left {
            0 => Progress::Whole,
            _ => Progress::Waits,
        }
    }

    /// Returns the watermark that the asked store must have reached; `None`: its answer is of no use after this MISS.
    pub(in crate::client) fn must_have(&self, missed: &Missed) -> Option<u64> {
        let need = match self.asked {
            Asked::Master(known) => (missed.version == Some(known)).then_some(missed.need),
            Asked::Replica => (missed.replicas > 0).then_some(missed.replicas),
        };
        need.filter(|need| self.may_be_fresh(missed.epoch, *need))
    }

    /// Whether the store may have been as fresh as this when it was read: false once its record says that it was not.
    pub(super) fn may_be_fresh(&self, epoch: u32, need: u64) -> bool {
        self.record
            .is_none_or(|(of, watermark)| of == epoch && watermark >= need)
    }

    /// Ends the question: the batch is answered, or asks anew. Replies that still come are thrown away.
    pub(in crate::client) fn is_over(&mut self) {
        self.is_wanted = false;
        self.replies = Vec::new();
    }

    /// The replies, if the store has given all.
    pub(in crate::client) fn take(&mut self) -> Vec<Bytes> {
        std::mem::take(&mut self.replies)
    }
}
