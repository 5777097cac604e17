//! The state of all roles, and the point in time from which on no state may change.
//!
//! A front writes entries even if no client writes: it ends each session that it no longer needs, and an END is an
//! entry. The front ends the session of its READs 45 s after the last READ (`IDLE` in
//! `crates/proto/src/client/reads.rs`). The front usually keeps the session in which it asks for the store's name. But
//! if a client has waited for long, the front ends this session 3 s later. So a comparison begins after the session of
//! READs has ended, and while the other session has no reason to end.

use std::time::{Duration, Instant};

use anyhow::ensure;

use super::stand::Stand;

/// Time without a change of state before a comparison begins. This time is longer than the time after which the front
/// ends the session in which it asks for the store's name.
const QUIET: Duration = Duration::from_secs(5);
/// Longest wait until the states stay unchanged. The session of the READs ends after 45 s.
const REST_MAX: Duration = Duration::from_secs(120);
/// Maximum number of sessions of the front itself: the session in which it asks for the store's name.
const OWN: usize = 1;
/// Metrics of orders and epochs in logs and store. These metrics change only by a write or a change of the chain.
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
/// Metrics with the number of open sessions, one metric for each role.
const SESSIONS: [&str; 3] = [
    "pmnet_front_sessions",
    "pmnet_device_sessions",
    "pmnet_server_sessions",
];

/// Values of these metrics for all roles, each with its name.
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

    /// Describes each value that differs in `after`.
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

/// Waits until all roles count the sessions of `clients` clients and at most one session of the front itself, and until
/// no state changes.
///
/// # Errors
/// The state is not reached within [`REST_MAX`].
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
