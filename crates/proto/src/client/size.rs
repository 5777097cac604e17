//! The size of fragments (`docs/spec/protocol.md` §7): what the shard carries, as the head tells it, and what the client's own
//! paths carry.

use crate::Time;
use crate::rules::{Rule, Rules};
use crate::time::{MILLISECOND, Nanos};
use pmnet_wire::FragmentSize;

/// In a new epoch the head is asked this often.
const ASK_EVERY: Nanos = 250 * MILLISECOND;

#[derive(Debug)]
pub(super) struct Size {
    /// Of the client's own paths.
    path: FragmentSize,
    /// Large packets were lost on them without a word.
    lossy: bool,
    /// The shard's, as the head told it, and in which epoch.
    shard: FragmentSize,
    told_in: u32,
    asked: Option<Time>,
}

impl Size {
    pub(super) const fn new(path: FragmentSize) -> Size {
        Size {
            path,
            lossy: false,
            shard: FragmentSize::MAX,
            told_in: 0,
            asked: None,
        }
    }

    pub(super) const fn set_path(&mut self, size: FragmentSize) {
        self.path = size;
    }

    /// Large packets do not arrive, without a word of any system. True if that is news.
    pub(super) const fn lose(&mut self) -> bool {
        let news = !self.lossy;
        self.lossy = true;
        news
    }

    const fn own(&self) -> FragmentSize {
        if self.lossy {
            FragmentSize::MIN
        } else {
            self.path
        }
    }

    /// The head of this epoch has told it.
    pub(super) const fn told(&mut self, epoch: u32, size: u64) {
        self.shard = FragmentSize::from_wire(size);
        self.told_in = epoch;
        self.asked = None;
    }

    /// The epoch in which it was told may be over: the head is asked soon.
    pub(super) const fn doubt(&mut self) {
        self.told_in = 0;
    }

    /// Largest fragments that every hop carries. Without [`Rule::FragmentSize`] as much as a packet may have.
    pub(super) fn of_fragments(&self, rules: Rules) -> FragmentSize {
        if rules.hold(Rule::FragmentSize) {
            self.own().min(self.shard)
        } else {
            FragmentSize::MAX
        }
    }

    /// The size for a READ: only one that the head does not know.
    pub(super) fn of_hits(&self) -> FragmentSize {
        if self.own() < self.shard {
            self.own()
        } else {
            FragmentSize::MAX
        }
    }

    /// When the head is to be asked, if a session is open.
    pub(super) fn next_timeout(&self, epoch: u32) -> Option<Time> {
        let due = self.asked.map_or(Time(0), |at| at + ASK_EVERY);
        (self.told_in != epoch).then_some(due)
    }

    pub(super) fn is_due(&self, now: Time, epoch: u32) -> bool {
        self.next_timeout(epoch).is_some_and(|at| now >= at)
    }

    pub(super) const fn asked(&mut self, now: Time) {
        self.asked = Some(now);
    }
}
