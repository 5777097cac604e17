//! The device's lease: until when it may answer (`docs/spec/protocol.md` §14).

use super::{Device, Phase};
use crate::Time;
use crate::lease;
use crate::rules::Rule;
use crate::time::Nanos;
use pmnet_wire::Kind;
use pmnet_wire::record::Member;

/// What only a device says that may answer: acknowledgements, and what READs are told.
const ANSWERS: &[Kind] = &[Kind::Ack, Kind::OpenReply, Kind::Hit, Kind::Miss];
/// The first of them.
const ACKNOWLEDGEMENTS: &[Kind] = &[Kind::Ack, Kind::OpenReply];

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

    /// What leaves this device only with a lease.
    pub(super) const fn gated(&self) -> &'static [Kind] {
        if self.config.rules.hold(Rule::LeaseCoversReads) {
            ANSWERS
        } else {
            ACKNOWLEDGEMENTS
        }
    }

    /// Whether this device serves and holds all that was acknowledged before its epoch and is not applied: it was there, or
    /// it has joined and has got everything (`docs/spec/protocol.md` §5, "Joining"). Stays so for as long as it is a member.
    #[must_use]
    pub fn holds_everything(&self) -> bool {
        let own = self.chain.members.get(self.chain.position);
        let have = self.cursors.applied.max(self.cursors.persisted);
        let whole = |own: &Member| own.flags & Member::JOINED == 0 || have >= own.tail;
        self.is_serving() && own.is_some_and(whole)
    }

    /// The epoch in which this device, which is to join, has an empty log and only waits to be wired. `None`: it does not
    /// join, or is not so far. Only the server decides whether it may.
    #[must_use]
    pub const fn ready_to_join(&self) -> Option<u32> {
        let recovers = matches!(self.phase, Phase::Recovering(_));
        let empty = self.cursors.last == 0 && self.cursors.applied == 0;
        let marked = self.log.served == self.log.incarnation && self.log.word_epoch > 0;
        if self.config.flags & Member::JOIN != 0 && recovers && empty && marked {
            Some(self.log.word_epoch)
        } else {
            None
        }
    }
}
