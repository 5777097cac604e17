//! Counts failed logins, and limits their number in a second for each address, so that passwords cannot be guessed.

use std::net::IpAddr;

use rustc_hash::FxHashMap;

use crate::upstream::Time;

/// Number of failed logins within [`WINDOW`] after which an address has to wait.
const FAILURES_MAX: u32 = 20;
/// Length of the window in which failed logins are counted, in nanoseconds.
const WINDOW: Time = 1_000_000_000;
/// Maximum number of addresses that are remembered. When more addresses than this have failed, the front forgets all
/// remembered addresses.
const ADDRESSES_MAX: usize = 4096;

/// Failed logins by address.
#[derive(Debug, Default)]
pub(super) struct Failures {
    total: u64,
    /// For each address, the beginning of its window, and the number of failures since the beginning.
    recent: FxHashMap<IpAddr, (Time, u32)>,
}

impl Failures {
    /// Whether logins from this address must wait now.
    pub(super) fn holds(&self, address: IpAddr, now: Time) -> bool {
        let recent = self.recent.get(&address);
        recent.is_some_and(|(since, count)| {
            now < since.saturating_add(WINDOW) && *count >= FAILURES_MAX
        })
    }

    /// Notes a failed login from this address.
    pub(super) fn note(&mut self, address: IpAddr, now: Time) {
        self.total += 1;
        // The failure is logged at counts that are powers of two, so that many failures do not flood the log.
        if self.total.is_power_of_two() {
            tracing::warn!(total = self.total, client = %address, "PM3306 a client could not log in");
        }
        if self.recent.len() >= ADDRESSES_MAX && !self.recent.contains_key(&address) {
            self.recent.clear();
        }
        let (since, count) = self.recent.entry(address).or_insert((now, 0));
        if now >= since.saturating_add(WINDOW) {
            (*since, *count) = (now, 0);
        }
        *count += 1;
    }

    pub(super) fn total(&self) -> u64 {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_guesses_has_to_wait_and_others_do_not() {
        let mut failures = Failures::default();
        let address = |last| IpAddr::from([10, 0, 0, last]);
        for _ in 0..FAILURES_MAX {
            assert!(!failures.holds(address(1), 5));
            failures.note(address(1), 5);
        }
        assert!(failures.holds(address(1), 5));
        assert!(!failures.holds(address(2), 5));
        assert!(!failures.holds(address(1), 5 + WINDOW));
        failures.note(address(1), 5 + WINDOW);
        assert!(!failures.holds(address(1), 6 + WINDOW));
        for number in 0..2 * u32::try_from(ADDRESSES_MAX).unwrap() {
            failures.note(IpAddr::from(number.to_be_bytes()), 9);
            assert!(failures.recent.len() <= ADDRESSES_MAX);
        }
        assert_eq!(failures.total(), u64::from(FAILURES_MAX) + 1 + 8192);
    }
}
