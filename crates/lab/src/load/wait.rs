//! Waiting: one poll, and in open loop a timer, because the poll has a resolution of milliseconds
//! only.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use anyhow::Context;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Registry, Token};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::clock::{nanos, now_ns};

/// Maximum number of events that one poll returns.
const EVENTS_MAX: usize = 1024;
/// Token of the timer.
const TIMER: Token = Token(usize::MAX - 1);

/// A poll with a timer. After activity the poll can spin instead of sleep.
pub struct Waiter {
    poll: Poll,
    events: Events,
    timer: OwnedFd,
    spin_ns: u64,
    active_ns: u64,
}

impl Waiter {
    /// Returns a waiter that spins for this time after activity; 0: it never spins.
    pub fn new(spin: Duration) -> anyhow::Result<Waiter> {
        let poll = Poll::new().context("cannot poll sockets")?;
        let timer = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC,
        )
        .context("cannot make a timer")?;
        poll.registry()
            .register(&mut SourceFd(&timer.as_raw_fd()), TIMER, Interest::READABLE)
            .context("cannot poll a timer")?;
        Ok(Waiter {
            poll,
            events: Events::with_capacity(EVENTS_MAX),
            timer,
            spin_ns: nanos(spin),
            active_ns: 0,
        })
    }

    /// Returns the registry, with which sockets are registered.
    pub fn registry(&self) -> &Registry {
        self.poll.registry()
    }

    /// Makes the next wait end at this time. The resolution is a microsecond.
    pub fn alarm(&self, at_ns: u64) -> anyhow::Result<()> {
        let time = Itimerspec {
            it_interval: Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            },
            it_value: Timespec {
                tv_sec: i64::try_from(at_ns / 1_000_000_000).unwrap_or(i64::MAX),
                tv_nsec: i64::try_from(at_ns % 1_000_000_000).unwrap_or(0),
            },
        };
        // Setting the timer again also resets it, so its expirations need not be read.
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &time)
            .context("cannot set a timer")?;
        Ok(())
    }

    /// Waits until a socket is ready, but not beyond `until_ns`. Returns the tokens of the ready
    /// sockets in `ready`.
    pub fn wait(&mut self, until_ns: u64, ready: &mut Vec<Token>) -> anyhow::Result<()> {
        ready.clear();
        let now = now_ns();
        let spinning = now < self.active_ns.saturating_add(self.spin_ns);
        let wait = if spinning {
            Duration::ZERO
        } else {
            Duration::from_nanos(until_ns.saturating_sub(now))
        };
        match self.poll.poll(&mut self.events, Some(wait)) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => return Ok(()),
            Err(error) => return Err(error).context("cannot poll sockets"),
        }
        ready.extend(self.events.iter().map(mio::event::Event::token));
        ready.retain(|token| *token != TIMER);
        if self.spin_ns > 0 && !self.events.is_empty() {
            self.active_ns = now_ns();
        }
        Ok(())
    }
}
