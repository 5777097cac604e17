//! Limits that can be changed while the front runs.

use std::time::Duration;

use pmnet_client::{Latest, Latter};

use super::{Front, FrontConfig, nanos};
use crate::upstream::Upstream;

/// The limits that can be changed while the front runs. [`FrontConfig`] explains each limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// A new value applies to clients that connect later. Clients that are already connected stay connected.
    pub connections_max: usize,
    /// A new value applies to commands that are sent later. A command that was already sent keeps its deadline.
    pub call_timeout: Duration,
    /// A new value applies from the client's next turn on.
    pub unread_max: usize,
    /// A new value applies from the loop's next turn on.
    pub unread_total_max: usize,
    /// A new value applies to connections that are accepted later.
    pub keepalive: Option<Duration>,
}

impl FrontConfig {
    /// Returns the limits that can be changed while the front runs.
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

/// The handle that changes a loop's limits, and the side from which the loop reads them.
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

    /// Returns the limits if they have changed since the last call of this function.
    pub(crate) fn take(&mut self) -> Option<Limits> {
        self.seen.take()
    }
}

impl<U: Upstream> Front<U> {
    /// Returns a handle that changes the limits of a running front.
    #[must_use]
    pub fn limits(&self) -> Latest<Limits> {
        self.limiting.newest()
    }

    /// Applies the new limits, if the limits have changed.
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
