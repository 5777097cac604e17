//! The state of all roles, and when nothing may change any more.
//!
//! A front writes by itself, even if no client writes: it ends each session that it no longer needs, and this END is an entry. The session
//! of its READs ends 45 s after the last READ (`IDLE` in `crates/proto/src/client/reads.rs`). The front keeps the
//! session in which it asks for the store's name, unless a client has waited for long: then the session ends 3 s later.
//! So a comparison begins when the session of READs has ended, and when the other session has no reason to end.

use std::time::{Duration, Instant};

use anyhow::ensure;

use super::stand::Stand;

/// Time for which no state may change before a comparison begins. It is longer than the time after which the front ends the session of
/// its questions for the store.
const QUIET: Duration = Duration::from_secs(5);
/// Longest time until nothing moves: the session of the READs ends after 45 s.
const REST_MAX: Duration = Duration::from_secs(120);
/// Maximum number of the front's own sessions, besides the sessions of clients: the session in which it asks for the
/// store's name.
const OWN: usize = 1;
/// Orders and epochs of logs and store, which change only by a write or a change of the chain.
const STATES: [&str; 11] = [
    "pmnet_device_order",
    "pmnet_device_epoch",
    "pmnet_device_serving",
    "pmnet_device_copies",
    "pmnet_device_entries_total",
    "pmnet_server_order",
    "pmnet_server_epoch",
    "pmnet_server_copies",
    "pmnet_server_applied_total",
    "pmnet_server_rejected_total",
    "pmnet_server_loaded",
];
/// Counts of open sessions. Each role has one of these.
const SESSIONS: [&str; 3] = [
    "pmnet_front_sessions",
    "pmnet_device_sessions",
    "pmnet_server_sessions",
];

/// Values of all roles, each with its name.
#[derive(Debug)]
pub struct States(Vec<(String, f64)>);

impl States {
    /// Reads the orders and epochs.
    ///
    /// # Errors
    /// A status port does not answer, or lacks one of these values.
    pub fn read(stand: &Stand) -> anyhow::Result<States> {
        let states = States::named(stand, &STATES)?;
        ensure!(states.0.len() > 6, "the status ports say too little");
        Ok(states)
    }

    fn named(stand: &Stand, names: &[&str]) -> anyhow::Result<States> {
        let mut states = Vec::new();
        for role in stand.roles() {
            let is_meant = |name: &str| {
                name.split('{')
                    .next()
                    .is_some_and(|name| names.contains(&name))
            };
            let metrics = stand.metrics(role)?.into_iter();
            let own = metrics.filter(|(name, _)| is_meant(name));
            states.extend(own.map(|(name, value)| (format!("{role}: {name}"), value)));
        }
        Ok(States(states))
    }

    /// Describes the differences to later values.
    pub fn moved(&self, after: &States) -> Vec<String> {
        let [ours, theirs] = [self, after].map(|states| states.0.iter().map(|(name, _)| name));
        if !ours.eq(theirs) {
            return vec!["the roles have other metrics than before".to_owned()];
        }
        let pairs = self.0.iter().zip(&after.0);
        let differ = pairs.filter(|((_, before), (_, after))| before != after);
        differ
            .map(|((name, before), (_, after))| format!("{name} was {before} and is {after}"))
            .collect()
    }

    /// Returns the highest order of a log.
    ///
    /// # Errors
    /// No device has an entry.
    pub fn last_order(&self) -> anyhow::Result<u64> {
        let orders = self.0.iter().filter(|(name, _)| name.contains(STATES[0]));
        let last = orders.map(|(_, order)| *order).fold(0.0, f64::max);
        ensure!(last > 0.0, "no device says the order of an entry");
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "an order"
        )]
        let last = last as u64;
        Ok(last)
    }
}

/// Waits until all roles count the sessions of this number of clients and at most one session of the front's own, and
/// until no state changes.
///
/// # Errors
/// This takes longer than [`REST_MAX`].
pub fn rested(stand: &Stand, clients: usize) -> anyhow::Result<States> {
    let begin = Instant::now();
    let is_right = |count: f64| {
        #[expect(clippy::cast_precision_loss, reason = "a few")]
        let expected = (clients as f64)..=((clients + OWN) as f64);
        expected.contains(&count)
    };
    loop {
        let (before, sessions) = (States::read(stand)?, States::named(stand, &SESSIONS)?);
        let roles = stand.roles().count();
        ensure!(
            sessions.0.len() == roles,
            "not each role counts its sessions: {sessions:?}"
        );
        std::thread::sleep(QUIET);
        let mut changed = before.moved(&States::read(stand)?);
        changed.extend(sessions.moved(&States::named(stand, &SESSIONS)?));
        if changed.is_empty() && sessions.0.iter().all(|(_, count)| is_right(*count)) {
            return Ok(before);
        }
        ensure!(
            begin.elapsed() < REST_MAX,
            "logs move although no client writes ({changed:?}), or sessions are left over ({sessions:?})"
        );
    }
}
