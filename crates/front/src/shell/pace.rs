//! How a loop waits for its next turn: it sleeps, or it polls without sleeping for some time after activity.

use std::io::ErrorKind;
use std::time::Duration;

use mio::{Events, Poll};
use pmnet_client::{Clock, Spin};

use crate::upstream::Time;

/// How a loop may wait for events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waits {
    /// The loop must not wait, because there is work.
    Not,
    /// The loop polls without sleeping: it has no work, but something arrived a moment ago.
    Spinning,
    /// The loop sleeps at most this long; `None`: no limit.
    Asleep(Option<Duration>),
}

/// A loop's clock, and the time of its last activity.
pub(crate) struct Pace {
    clock: Clock,
    spin: Spin,
}

impl Pace {
    /// `spin_micros`: microseconds of polling without sleeping after activity.
    pub(crate) fn new(spin_micros: u64) -> Pace {
        Pace {
            clock: Clock::start(),
            spin: Spin::new(spin_micros),
        }
    }

    /// Returns the way in which the loop must wait at this time. `asleep` computes how long the loop may sleep.
    pub(crate) fn waits(
        &self,
        now: Time,
        has_work: bool,
        asleep: impl FnOnce() -> Option<Duration>,
    ) -> Waits {
        match has_work {
            true => Waits::Not,
            false if self.spin.is_on(pmnet_client::Time(now)) => Waits::Spinning,
            false => Waits::Asleep(asleep()),
        }
    }

    /// Waits for events. Returns the time after the wait; `None`: the wait was interrupted and must be
    /// repeated.
    ///
    /// # Errors
    /// An error of the operating system.
    pub(crate) fn wait(
        &mut self,
        poll: &mut Poll,
        events: &mut Events,
        waits: Waits,
    ) -> std::io::Result<Option<Time>> {
        let timeout = match waits {
            Waits::Not | Waits::Spinning => Some(Duration::ZERO),
            Waits::Asleep(timeout) => timeout,
        };
        match poll.poll(events, timeout) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(None),
            Err(error) => return Err(error),
        }
        let now = self.clock.now();
        match waits {
            _ if !events.is_empty() => self.spin.active(now),
            Waits::Not => self.spin.active(now),
            // The process that will answer may need this core of the processor.
            Waits::Spinning => self.spin.yield_core(&self.clock),
            Waits::Asleep(_) => {}
        }
        Ok(Some(now.0))
    }
}
