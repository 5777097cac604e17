//! The size of fragments (`docs/spec/protocol.md` §7): the shard's size, which the head states, and the size that the
//! client's own paths carry.

use crate::Time;
use crate::rules::{Rule, Rules};
use crate::time::{MILLISECOND, Nanos};
use pmnet_wire::FragmentSize;

/// Interval of the questions to the head in a new epoch.
const ASK_EVERY: Nanos = 250 * MILLISECOND;

#[derive(Debug)]
pub(super) struct Size {
    /// Size that the client's own paths carry.
    path: FragmentSize,
    /// The client's own paths lose large packets, and no system reports an error.
    lossy: bool,
    /// Size of the shard, as the head stated it, and the epoch of that statement (`told_in`).
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

    /// Notes that large packets do not arrive, although no system has reported an error. Returns true if this was not
    /// known before.
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

    /// The head has stated the size for this epoch.
    pub(super) const fn told(&mut self, epoch: u32, size: u64) {
        self.shard = FragmentSize::from_wire(size);
        self.told_in = epoch;
        self.asked = None;
    }

    /// The head's statement may belong to an earlier epoch, so the client asks the head soon.
    pub(super) const fn doubt(&mut self) {
        self.told_in = 0;
    }

    /// Returns the largest fragments that every hop carries. Without [`Rule::FragmentSize`]: the largest that a packet
    /// may have.
    pub(super) fn of_fragments(&self, rules: Rules) -> FragmentSize {
        if rules.hold(Rule::FragmentSize) {
            self.own().min(self.shard)
        } else {
            FragmentSize::MAX
        }
    }

    /// Returns the size that a READ must state. A READ must state the size only if the client's paths carry less than
    /// the size that the head has stated.
    pub(super) fn of_hits(&self) -> FragmentSize {
        if self.own() < self.shard {
            self.own()
        } else {
            FragmentSize::MAX
        }
    }

    /// Returns the time when the head must be asked, if a session is open.
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
