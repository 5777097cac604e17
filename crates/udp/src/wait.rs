//! Clocks, and the signal that ends loops.

use pmnet_proto::Time;
use pmnet_proto::time::SECOND;
use rustix::time::{ClockId, clock_gettime};
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// The token with which a loop registers its [`Stop`].
pub const STOP_TOKEN: mio::Token = mio::Token(usize::MAX - 1);

/// A monotonic clock that counts from its creation, or from the start of the machine.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    source: ClockId,
    start: u64,
}

impl Clock {
    /// Returns a clock that starts now.
    #[must_use]
    pub fn start() -> Clock {
        let source = ClockId::Monotonic;
        let start = nanos(source);
        Clock { source, start }
    }
    /// Returns a clock that shows `CLOCK_BOOTTIME`. It continues while the machine sleeps, as leases require, and the
    /// pipeline in the kernel reads the same clock.
    #[must_use]
    pub const fn boottime() -> Clock {
        Clock {
            source: ClockId::Boottime,
            start: 0,
        }
    }
    /// Returns whether [`Clock::boottime`] shows the same time as the clock of programs in the kernel. In a time
    /// namespace, the clock of a process may be shifted.
    #[must_use]
    pub fn boottime_is_the_kernels() -> bool {
        // A kernel without time namespaces does not have this file.
        std::fs::read_to_string("/proc/self/timens_offsets")
            .map_or(true, |offsets| is_not_shifted(&offsets))
    }
    /// Returns the nanoseconds since the clock's start.
    #[must_use]
    pub fn now(&self) -> Time {
        Time(nanos(self.source).saturating_sub(self.start))
    }
}

/// Returns whether no clock is shifted that these offsets name. Each line has the name of a clock, seconds, and
/// nanoseconds.
fn is_not_shifted(offsets: &str) -> bool {
    let mut lines = offsets.lines().map(str::split_whitespace);
    lines.all(|mut words| words.next() != Some("boottime") || words.all(|word| word == "0"))
}

fn nanos(source: ClockId) -> u64 {
    let time = clock_gettime(source);
    let part = |part: i64| u64::try_from(part).unwrap_or(0);
    part(time.tv_sec) * SECOND + part(time.tv_nsec)
}

/// Returns 64 random bits from the operating system.
///
/// # Errors
/// If the system gives no random numbers.
pub fn os_random() -> io::Result<u64> {
    getrandom::u64().map_err(|error| {
        io::Error::other(format!(
            "the operating system gives no random numbers, which tokens are made of: {error}"
        ))
    })
}

/// Receives the signal to end. Every clone receives the same signal.
#[derive(Debug)]
pub struct Stop(UnixStream);

/// Sends the signal to the loops that hold a [`Stop`].
#[derive(Debug)]
pub struct StopTrigger(UnixStream);

impl Stop {
    /// Returns a [`Stop`] and its trigger.
    ///
    /// # Errors
    /// The error of the system.
    pub fn new() -> io::Result<(Stop, StopTrigger)> {
        let (reader, writer) = UnixStream::pair()?;
        reader.set_nonblocking(true)?;
        Ok((Stop(reader), StopTrigger(writer)))
    }

    /// Returns another handle to this stop.
    ///
    /// # Errors
    /// The error of the system.
    pub fn try_clone(&self) -> io::Result<Stop> {
        self.0.try_clone().map(Stop)
    }

    /// Waits for this time. Returns whether the signal arrived.
    ///
    /// # Errors
    /// The error of the system.
    pub fn within(&self, wait: Duration) -> io::Result<bool> {
        let mut poll = mio::Poll::new()?;
        self.register(poll.registry())?;
        let mut events = mio::Events::with_capacity(1);
        match poll.poll(&mut events, Some(wait)) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
            _ => Ok(!events.is_empty()),
        }
    }

    /// Registers with a poll, with the token [`STOP_TOKEN`]. An event with this token means that the loop must end.
    ///
    /// # Errors
    /// The error of the system.
    pub fn register(&self, registry: &mio::Registry) -> io::Result<()> {
        use std::os::fd::AsRawFd;
        registry.register(
            &mut mio::unix::SourceFd(&self.0.as_raw_fd()),
            STOP_TOKEN,
            mio::Interest::READABLE,
        )
    }
}

impl StopTrigger {
    /// Ends the loops. It may be called from several places, and more than once.
    pub fn stop(&self) {
        // If no loop is left, the error does not matter.
        let _ = (&self.0).write_all(b"x");
    }

    /// Returns the stream to which a signal handler may write its byte.
    #[must_use]
    pub fn into_stream(self) -> UnixStream {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::is_not_shifted;

    #[test]
    fn a_clock_that_a_namespace_shifts_is_not_the_kernels() {
        let offsets = |seconds, nanos| format!("monotonic  9  9\nboottime  {seconds}  {nanos}\n");
        assert!(is_not_shifted(&offsets("0", "0")) && is_not_shifted(""));
        for (seconds, nanos) in [("1", "0"), ("-1", "0"), ("0", "1")] {
            assert!(!is_not_shifted(&offsets(seconds, nanos)));
        }
    }
}
