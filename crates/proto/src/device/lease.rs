//! The device's lease: until when it may answer (`docs/spec/protocol.md` §14).

use super::Device;
use crate::Time;
use crate::lease;
use crate::rules::Rule;
use crate::time::Nanos;
use pmnet_wire::Kind;

/// What only a device says that may answer: acknowledgements, and what READs are told.
pub(super) const ANSWERS: &[Kind] = &[Kind::Ack, Kind::OpenReply, Kind::Hit, Kind::Miss];

impl Device {
    /// Whether this device answers only while it has a lease.
    #[must_use]
    pub const fn is_leased(&self) -> bool {
        self.config.leased
    }

    /// The epoch that the agent must name when it asks for a lease, or renews it. `None`: there is nothing to ask for.
    #[must_use]
    pub const fn needs_lease(&self) -> Option<u32> {
        if self.config.leased && self.is_serving() {
            Some(self.epoch)
        } else {
            None
        }
    }

    /// The lease store has given or renewed the lease for this epoch, for `length` from then on, in nanoseconds. `sent_at`
    /// is what this device's clock showed *before* the agent asked. An answer for another epoch than the present one does
    /// not count, and neither does one that was sent before another that came sooner.
    pub fn renewed(&mut self, epoch: u32, sent_at: Time, length: Nanos) {
        if self.needs_lease() == Some(epoch) {
            self.deadline = self.deadline.max(Some(lease::deadline(sent_at, length)));
        }
    }

    /// When this device's lease is over, by its own clock. `None`: it has had none in this life.
    #[must_use]
    pub const fn deadline(&self) -> Option<Time> {
        self.deadline
    }

    /// Whether this device may acknowledge, and answer READs.
    #[must_use]
    pub fn may_answer(&self, now: Time) -> bool {
        let lives = self.deadline.is_some_and(|deadline| now < deadline);
        !self.config.leased || lives || !self.config.rules.hold(Rule::Lease)
    }
}
