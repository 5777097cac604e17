//! The device's lease, which limits the time for which it may answer (`docs/spec/protocol.md` §14).

use super::{Device, Phase};
use crate::Time;
use crate::lease;
use crate::rules::Rule;
use crate::time::Nanos;
use pmnet_wire::Kind;
use pmnet_wire::record::Member;

/// Kinds of packets that a device sends only while it may answer: acknowledgements, and answers to READs.
const ANSWERS: &[Kind] = &[Kind::Ack, Kind::OpenReply, Kind::Hit, Kind::Miss];
/// The kinds of acknowledgements among [`ANSWERS`].
const ACKNOWLEDGEMENTS: &[Kind] = &[Kind::Ack, Kind::OpenReply];

impl Device {
    /// Whether this device answers only while it has a lease.
    #[must_use]
    pub const fn is_leased(&self) -> bool {
        self.config.leased
    }

    /// Returns the epoch that the agent must name when it asks for a lease or renews one. `None`: no lease is needed.
    #[must_use]
    pub const fn needs_lease(&self) -> Option<u32> {
        if self.config.leased && self.is_serving() {
            Some(self.epoch)
        } else {
            None
        }
    }

    /// The lease store has given or renewed the lease for this epoch, for `length` nanoseconds from then on. `sent_at`:
    /// time by this device's clock *before* the agent asked. Answers for another epoch are ignored. If an answer gives
    /// an earlier deadline than a previous answer, the later deadline stays.
    pub fn renewed(&mut self, epoch: u32, sent_at: Time, length: Nanos) {
        if self.needs_lease() == Some(epoch) {
            self.deadline = self.deadline.max(Some(lease::deadline(sent_at, length)));
        }
    }

    /// Returns the end of this device's lease, by its own clock. `None`: the device has had no lease since its start.
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

    /// Returns the kinds of packets that this device sends only with a lease.
    pub(super) const fn gated(&self) -> &'static [Kind] {
        if self.config.rules.hold(Rule::LeaseCoversReads) {
            ANSWERS
        } else {
            ACKNOWLEDGEMENTS
        }
    }

    /// Whether this device serves, and holds all entries that were acknowledged before its epoch and are not applied. A
    /// device that has joined holds these entries once it has caught up (`docs/spec/protocol.md` §5, "Joining"); every
    /// other member holds them from the start.
    #[must_use]
    pub fn holds_everything(&self) -> bool {
        let own = self.chain.members.get(self.chain.position);
        let have = self.cursors.applied.max(self.cursors.persisted);
        let whole = |own: &Member| own.flags & Member::JOINED == 0 || have >= own.tail;
        self.is_serving() && own.is_some_and(whole)
    }

    /// Returns the epoch in which this joining device has an empty log and only waits to be wired. `None`: the device
    /// does not join, or has not erased its log yet. Only the server decides whether the device may join.
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
