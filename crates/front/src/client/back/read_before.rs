//! Early questions: the store is asked at the same time as the head (`docs/spec/reads.md` §3).
//!
//! Purpose: if the head will probably say MISS, a batch need not wait for the MISS before it asks the store.
//! The store's replies are kept here, with the store's record, until the head has answered. Replies of the
//! master count only if the MISS names the version that the front knew before it sent the batch. Replies of a
//! replica count if the replica has the order that the MISS requires of replicas. Otherwise the store is
//! asked again.
//! Invariants: a connection has one early question at a time, even if its batch was answered without the
//! question. The bytes of kept replies are bounded by [`BATCH_REPLY_BYTES_MAX`].

use bytes::Bytes;

use super::batch::BATCH_REPLY_BYTES_MAX;

/// After this many MISSes in a row the next MISS is probable. An early question is wasted work if the head
/// says HIT.
pub(in crate::client) const MISSES: u32 = 8;

/// The version of a head's index. While the version is unchanged, no request that changed state without an order has
/// left the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::client) struct Version {
    pub(in crate::client) epoch: u32,
    pub(in crate::client) version: u64,
}

/// The front's knowledge of the head's index, from the head's answers.
#[derive(Debug, Default)]
pub(in crate::client) struct Heard {
    newest: Option<Version>,
    /// Number of MISSes in a row with the same version.
    misses: u32,
}

impl Heard {
    /// Notes a MISS with this version.
    pub(in crate::client) fn missed(&mut self, version: Version) {
        if self.newest == Some(version) {
            self.misses = self.misses.saturating_add(1);
        } else {
            self.newest = Some(version);
            self.misses = 0;
        }
    }

    /// Notes an answer that was no MISS.
    pub(in crate::client) fn not_missed(&mut self) {
        self.misses = 0;
    }

    /// Returns the version that the next MISS will probably name.
    pub(in crate::client) fn expected(&self) -> Option<Version> {
        self.newest.filter(|_| self.misses >= MISSES)
    }
}

/// The store that is asked before the head has answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::client) enum Asked {
    /// The master. The master's replies count only if the head's answer has this version, too.
    Master(Version),
    /// A replica.
    Replica,
}

/// The head's answer that a batch must be read from a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::client) struct Missed {
    pub(in crate::client) epoch: u32,
    /// Order that the store must have applied.
    pub(in crate::client) need: u64,
    /// Version of the head's index. `None`: the head said HIT with a value that could not be used.
    pub(in crate::client) version: Option<Version>,
    /// Order that a replica must have applied; 0: no replica may be read from.
    pub(in crate::client) replicas: u64,
}

/// An early question: it did not wait for the head's answer.
pub(in crate::client) struct Before {
    /// Number of the question: [`crate::client::StoreRead::batch`].
    pub(in crate::client) number: u64,
    /// The store that is asked.
    pub(in crate::client) asked: Asked,
    /// Whether the question has been handed to the shell.
    pub(in crate::client) is_sent: bool,
    /// Whether the batch still waits for the answer.
    pub(in crate::client) is_wanted: bool,
    /// Number of replies still to come.
    left: usize,
    /// Epoch and watermark of the store at the time of the reads.
    record: Option<(u32, u64)>,
    replies: Vec<Bytes>,
    bytes: usize,
}

/// The state of an early question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::client) enum Progress {
    /// Replies are still to come.
    Waits,
    /// All replies have come.
    Whole,
    /// The replies are too long.
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

    /// Whether this question has the number `number`, and its batch still waits for the answer.
    pub(in crate::client) fn is_for(&self, number: u64) -> bool {
        self.is_wanted && self.number == number
    }

    /// Takes the store's record, as it was at the time of the reads.
    pub(in crate::client) fn recorded(&mut self, record: (u32, u64)) {
        self.record = Some(record);
    }

    /// Takes the next reply.
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

    /// Returns the watermark that the asked store must have reached; `None`: the store's answer cannot be used after
    /// this MISS.
    pub(in crate::client) fn must_have(&self, missed: &Missed) -> Option<u64> {
        let need = match self.asked {
            Asked::Master(known) => (missed.version == Some(known)).then_some(missed.need),
            Asked::Replica => (missed.replicas > 0).then_some(missed.replicas),
        };
        need.filter(|need| self.may_be_fresh(missed.epoch, *need))
    }

    /// Whether the store may have been this fresh at the time of the reads. Returns false once the store's record shows
    /// that the store was less fresh.
    pub(super) fn may_be_fresh(&self, epoch: u32, need: u64) -> bool {
        self.record
            .is_none_or(|(of, watermark)| of == epoch && watermark >= need)
    }

    /// Ends the question, because the batch is answered or asks again. Later replies are discarded.
    pub(in crate::client) fn is_over(&mut self) {
        self.is_wanted = false;
        self.replies = Vec::new();
    }

    /// Takes the replies. The store must have given all of them.
    pub(in crate::client) fn take(&mut self) -> Vec<Bytes> {
        std::mem::take(&mut self.replies)
    }
}
