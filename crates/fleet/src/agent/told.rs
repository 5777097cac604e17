//! The agent's log messages about its device's lease.

use pmnet_proto::Time;
use pmnet_proto::time::{Nanos, SECOND};

use super::RENEWALS;

/// Time between two messages about a missing lease.
const PATIENCE: Nanos = 5 * SECOND;

/// State of the messages about the lease.
#[derive(Default)]
pub struct Told {
    /// The time since which there is no lease, and the time of the last message about it.
    lacking: Option<(Time, Option<Time>)>,
    lived: bool,
}

impl Told {
    pub fn tell(
        &mut self,
        now: Time,
        epoch: Option<u32>,
        lives: bool,
        why: Option<String>,
        length: Nanos,
    ) {
        if lives {
            let lacked = self.lacking.take().is_some_and(|(_, said)| said.is_some());
            if epoch.is_some() && (lacked || !self.lived) {
                let seconds = length / SECOND;
                tracing::info!(epoch, seconds, "this device has a lease, and answers");
                self.lived = true;
            }
            return;
        }
        let (since, said) = *self.lacking.get_or_insert((now, None));
        let patience = match said {
            Some(_) => PATIENCE,
            None if self.lived => 0,
            None => length / RENEWALS,
        };
        if now.since(said.unwrap_or(since)) < patience {
            return;
        }
        self.lacking = Some((since, Some(now)));
        let why = why.unwrap_or_else(|| "etcd has not been asked yet".into());
        tracing::warn!("PM1601 no lease: this device answers nobody until it has one: {why}");
    }
}
