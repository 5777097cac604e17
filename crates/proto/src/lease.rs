//! Leases of devices (`docs/spec/protocol.md` §14): until when a device answers, which device gets a lease, and when a
//! controller may declare a member stopped.
//!
//! A lease is kept in a *lease store* (for example etcd) and renewed by an *agent*; neither is part of this module. The
//! module only computes with clock values that are given as arguments. Clocks of different computers are unrelated,
//! except for their rates: while one clock shows one second, every other clock shows one second within one part in
//! [`DRIFT`].

use crate::Time;
use crate::rules::{Rule, Rules};
use crate::time::Nanos;

/// Bound of the clocks' rate errors: a clock runs faster or slower than true time by at most one part in this number.
pub const DRIFT: u64 = 100;

/// The time that a device subtracts from its lease, and that a controller waits after the end of a lease. With this
/// margin the device is already silent when the controller declares it stopped, as long as the clocks of device, lease
/// store and controller run within [`DRIFT`].
#[must_use]
pub const fn margin(length: Nanos) -> Nanos {
    length.div_ceil(DRIFT)
}

/// Returns the time until which a device answers, by the device's clock. `sent_at`: time by the device's clock before
/// the renewal was sent. `length`: time for which the lease store keeps the lease after the renewal, by the lease
/// store's clock.
#[must_use]
pub const fn deadline(sent_at: Time, length: Nanos) -> Time {
    Time(
        sent_at
            .0
            .saturating_add(length.saturating_sub(margin(length))),
    )
}

/// The lease store's lasting statement about a member. There is one statement for each device of a shard, independent
/// of its leases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Word {
    /// No statement.
    #[default]
    None,
    /// The member was declared stopped. The stopped member may still belong to the chain.
    Stopped,
    /// The member was left out in this epoch or in an earlier epoch. From then on the device is no member, unless it
    /// joins again.
    LeftOut(u32),
}

impl Word {
    /// Whether the lease store may give or renew a lease of a device that serves this epoch. The lease store must
    /// decide this in the same step in which it gives the lease; otherwise another process could change the statement
    /// in between.
    #[must_use]
    pub const fn allows(self, epoch: u32, rules: Rules) -> bool {
        match self {
            Word::None => true,
            _ if !rules.hold(Rule::StoppedForGood) => true,
            Word::Stopped => false,
            Word::LeftOut(since) => epoch > since,
        }
    }
}

/// The lease store's information about one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Device id.
    pub device: u32,
    /// Number of the device's last lease, by the lease store's own count; 0: the device never had a lease.
    pub lease: u64,
    /// Whether the lease store still has this lease.
    pub held: bool,
}

/// A lease that a controller has seen to be gone.
#[derive(Clone, Copy, Debug)]
struct Gone {
    device: u32,
    lease: u64,
    since: Time,
}

/// A controller's knowledge of the leases of a shard's members.
///
/// A restarted controller has no knowledge, so it waits again.
#[derive(Clone, Debug)]
pub struct Watch {
    longest: Nanos,
    gone: Vec<Gone>,
}

impl Watch {
    /// Returns an empty state of a controller. `longest`: greatest length of a lease.
    #[must_use]
    pub const fn new(longest: Nanos) -> Watch {
        Watch {
            longest,
            gone: Vec::new(),
        }
    }

    /// Takes the lease store's information about all members. `now`: time after the lease store's answer has arrived.
    pub fn look(&mut self, now: Time, members: &[Seen]) {
        let before = std::mem::take(&mut self.gone);
        for seen in members.iter().filter(|seen| !seen.held && seen.lease > 0) {
            // If the end of this very lease was noted before, the noted time stays. If an earlier lease of the device
            // was noted, the time begins again.
            let known = before
                .iter()
                .find(|gone| (gone.device, gone.lease) == (seen.device, seen.lease));
            self.gone.push(Gone {
                device: seen.device,
                lease: seen.lease,
                since: known.map_or(now, |gone| gone.since),
            });
        }
    }

    /// Returns the last lease of a device, if that lease ended so long ago that the device is silent now. The
    /// controller may now declare the device stopped. In the same step the lease store must check that this is still
    /// the device's last lease, and that the lease does not exist. `None`: the controller must wait. A member that
    /// never had a lease is never declared stopped, because it may answer without a lease.
    #[must_use]
    pub fn may_stop(&self, now: Time, device: u32) -> Option<u64> {
        let gone = self.gone.iter().find(|gone| gone.device == device)?;
        (now.since(gone.since) >= margin(self.longest)).then_some(gone.lease)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::{MILLISECOND, SECOND};

    const LENGTH: Nanos = 3 * SECOND;

    const fn seen(lease: u64, held: bool) -> Seen {
        Seen {
            device: 7,
            lease,
            held,
        }
    }

    /// Returns the true time in which a clock advances by `nanos`. `off`: deviation of the clock's rate, in parts of
    /// DRIFT. The unit of the result is chosen so that the division leaves no rest.
    fn real(nanos: Nanos, off: i64) -> u128 {
        let drift = u128::from(DRIFT);
        let rate = u128::try_from(i128::from(DRIFT) + i128::from(off)).expect("a clock that goes");
        u128::from(nanos) * drift * (drift - 1) * drift * (drift + 1) / rate
    }

    #[test]
    fn whatever_the_clocks_do_within_the_drift_the_device_is_silent_first() {
        for length in [1, 99, 100, 101, 10 * MILLISECOND, LENGTH, 3600 * SECOND] {
            for device in [-1, 0, 1] {
                for store in [-1, 0, 1] {
                    for controller in [-1, 0, 1] {
                        // In this test a renewal takes no time. With a delay, the lease would only end later in the
                        // lease store.
                        let silent = real(deadline(Time(0), length).0, device);
                        let gone = real(length, store);
                        let declared = gone + real(margin(length), controller);
                        assert!(
                            silent <= declared,
                            "{length} ns: device {device}, store {store}, controller {controller}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn a_lease_that_is_as_short_as_its_margin_is_none() {
        assert_eq!(deadline(Time(5), 1), Time(5));
        assert_eq!(deadline(Time(5), 0), Time(5));
        assert_eq!(deadline(Time(5), 1000), Time(5 + 990));
    }

    #[test]
    fn who_was_declared_stopped_gets_no_lease_until_it_has_joined_anew() {
        let allows = |word: Word, epoch| word.allows(epoch, Rules::ALL);
        assert!(allows(Word::None, 0) && allows(Word::None, 9));
        assert!(!allows(Word::Stopped, 1) && !allows(Word::Stopped, u32::MAX));
        assert!(!allows(Word::LeftOut(4), 3) && !allows(Word::LeftOut(4), 4));
        assert!(allows(Word::LeftOut(4), 5));
    }

    #[test]
    fn the_margin_is_waited_from_the_first_look_that_found_nothing() {
        let mut watch = Watch::new(LENGTH);
        let wait = margin(LENGTH);
        assert_eq!(watch.may_stop(Time(0), 7), None, "nobody has looked");
        watch.look(Time(1000), &[seen(3, true)]);
        assert_eq!(watch.may_stop(Time(1000) + wait, 7), None, "it is there");
        watch.look(Time(2000), &[seen(3, false)]);
        watch.look(Time(2000) + wait / 2, &[seen(3, false)]);
        assert_eq!(watch.may_stop(Time(2000) + (wait - 1), 7), None);
        assert_eq!(watch.may_stop(Time(2000) + wait, 7), Some(3));
        assert_eq!(watch.may_stop(Time(2000) + wait, 8), None, "another one");
    }

    #[test]
    fn a_lease_that_came_and_went_between_two_looks_is_waited_for() {
        let mut watch = Watch::new(LENGTH);
        let wait = margin(LENGTH);
        watch.look(Time(0), &[seen(3, false)]);
        watch.look(Time(0) + wait, &[seen(4, false)]);
        assert_eq!(watch.may_stop(Time(0) + wait, 7), None);
        assert_eq!(watch.may_stop(Time(0) + 2 * wait, 7), Some(4));
    }

    #[test]
    fn a_lease_that_is_there_again_begins_anew() {
        let mut watch = Watch::new(LENGTH);
        let wait = margin(LENGTH);
        watch.look(Time(0), &[seen(3, false)]);
        watch.look(Time(1), &[seen(3, true)]);
        watch.look(Time(0) + wait, &[seen(3, false)]);
        assert_eq!(watch.may_stop(Time(0) + wait, 7), None);
    }

    #[test]
    fn who_never_had_a_lease_is_not_declared_stopped() {
        let mut watch = Watch::new(LENGTH);
        watch.look(Time(0), &[seen(0, false)]);
        assert_eq!(watch.may_stop(Time(0) + LENGTH, 7), None);
    }

    #[test]
    fn who_is_not_in_a_look_is_forgotten() {
        let mut watch = Watch::new(LENGTH);
        watch.look(Time(0), &[seen(3, false)]);
        watch.look(Time(1), &[]);
        assert_eq!(watch.may_stop(Time(0) + LENGTH, 7), None);
    }
}
