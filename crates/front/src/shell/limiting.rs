//! Limits that can be others while the front runs.

use std::time::Duration;

use pmnet_client::{Latest, Latter};

use super::{Front, FrontConfig, nanos};
use crate::upstream::Upstream;

/// Those limits; [`FrontConfig`] says what each is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// For clients that connect later: who is there stays.
    pub connections_max: usize,
    /// For commands that are waited for from now on. A command that was sent before keeps its deadline.
    pub call_timeout: Duration,
    /// From the client's next turn on.
    pub unread_max: usize,
    /// From the next turn on.
    pub unread_total_max: usize,
    /// Of connections that are accepted later.
    pub keepalive: Option<Duration>,
}

impl FrontConfig {
    /// Returns the limits that can be changed later.
    #[must_use]
    pub fn limits(&self) -> Limits {
        Limits {
            connections_max: self.connections_max,
            call_timeout: self.call_timeout,
            unread_max: self.unread_max,
            unread_total_max: self.unread_total_max,
            keepalive: self.keepalive,
        }
    }
}

/// The limits of a loop, and the side of it that changes them.
pub(crate) struct Limiting {
    newest: Latest<Limits>,
    seen: Latter<Limits>,
}

impl Limiting {
    pub(crate) fn new(limits: Limits) -> Limiting {
        let newest = Latest::new(limits);
        let (_, seen) = newest.follow();
        Limiting { newest, seen }
    }

    pub(crate) fn newest(&self) -> Latest<Limits> {
        self.newest.clone()
    }

    /// Returns them if they are others now.
    pub(crate) fn take(&mut self) -> Option<Limits> {
        self.seen.take()
    }
}

impl<U: Upstream> Front<U> {
    /// A handle that gives a running front other limits.
    #[must_use]
    pub fn limits(&self) -> Latest<Limits> {
        self.limiting.newest()
    }

    /// Takes other limits, if there are some.
    pub(super) fn take_limits(&mut self) {
        let Some(limits) = self.limiting.take() else {
            return;
        };
        let Limits {
            connections_max,
            call_timeout,
            unread_max,
            unread_total_max,
            keepalive,
        } = limits;
        self.connections_max = connections_max;
        self.keepalive = keepalive;
        self.shared.unread_client_max = unread_max;
        self.unread.set_bytes_max(unread_total_max);
        let timeout = nanos(call_timeout);
        self.shared.call_timeout = timeout;
        self.vigil.set_call_timeout(timeout);
        self.reads.set_call_timeout(timeout);
        self.users.set_call_timeout(timeout);
        self.tracking.set_call_timeout(timeout);
        self.witnesses.set_call_timeout(timeout);
    }
}
