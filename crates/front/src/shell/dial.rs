//! The front's own connections to Redis, with their sockets: when a connection is made, when it is made again, and when
//! it has been silent for too long.

use std::net::SocketAddr;

use mio::event::Event;
use mio::{Registry, Token};

use super::socket::{Ended, Socket, Unwritten};
use super::wire::{Seen, Wire};
use crate::client::Shared;
use crate::store::StoreAddress;
use crate::upstream::Time;

/// An open connection and its socket.
pub(super) struct Dialed<L> {
    pub(super) line: L,
    socket: Socket,
}

impl<L: Unwritten> Dialed<L> {
    pub(super) fn connect(
        line: L,
        store: &StoreAddress,
        registry: &Registry,
        token: Token,
    ) -> Result<Dialed<L>, std::io::Error> {
        let wire = Wire::connect(store.address, store.tls.as_ref(), registry, token)?;
        let socket = Socket::unready(wire);
        Ok(Dialed { line, socket })
    }

    /// Notes an event of the socket.
    pub(super) fn note(&mut self, event: &Event) {
        self.socket.note(&Seen::of(event));
    }

    /// Whether there are unread bytes that no event will announce.
    pub(super) fn has_more(&self) -> bool {
        self.socket.readable
    }

    /// Sends as many of the waiting bytes as possible.
    pub(super) fn send(&mut self) -> Result<(), Ended> {
        self.socket.write(&mut self.line)
    }

    /// Gives received bytes to `take` in parts, until about `most` bytes were read.
    pub(super) fn receive<E: From<Ended>>(
        &mut self,
        scratch: &mut [u8],
        most: usize,
        mut take: impl FnMut(&mut L, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut budget = most;
        while budget > 0
            && let Some(count) = self.socket.read(scratch)?
        {
            take(&mut self.line, &scratch[..count])?;
            budget = budget.saturating_sub(count);
        }
        Ok(())
    }
}

/// The longest silence of Redis on a connection, and the pause before a lost connection is made again.
pub(super) struct Patience {
    /// Longest silence of Redis.
    silence: Time,
    /// The time when Redis last sent something, or when Redis could first have answered.
    heard: Time,
    /// Pause before a lost connection is made again. The pause grows with each loss, up to `pause_max`.
    pause: Time,
    pause_max: Time,
    connect_after: Time,
}

/// First pause before a lost connection is made again, in nanoseconds.
const PAUSE: Time = 100_000_000;

impl Patience {
    /// `silence`: longest silence of Redis.
    pub(super) fn new(silence: Time) -> Patience {
        Patience {
            silence,
            heard: 0,
            pause: PAUSE,
            pause_max: PAUSE,
            connect_after: 0,
        }
    }

    /// Returns these settings with another bound of the pause, which doubles with each loss.
    pub(super) fn with_pause_max(self, pause_max: Time) -> Patience {
        Patience { pause_max, ..self }
    }

    pub(super) const fn set_silence(&mut self, silence: Time) {
        self.silence = silence;
    }

    pub(super) fn silence(&self) -> Time {
        self.silence
    }

    /// Returns the time when Redis last sent something.
    pub(super) fn heard(&self) -> Time {
        self.heard
    }

    /// Notes that Redis has sent something, or is asked for the first time.
    pub(super) fn hear(&mut self, now: Time) {
        self.heard = now;
    }

    /// Returns the time by which Redis must send something.
    pub(super) fn due(&self) -> Time {
        self.heard.saturating_add(self.silence)
    }

    /// Notes that the connection is lost.
    pub(super) fn lose(&mut self, now: Time) {
        self.connect_after = now.saturating_add(self.pause);
        self.pause = (self.pause * 2).min(self.pause_max);
    }

    /// Returns the earliest time at which the connection may be made again.
    pub(super) fn connect_after(&self) -> Time {
        self.connect_after
    }

    pub(super) fn wait_until(&mut self, time: Time) {
        self.connect_after = time;
    }

    /// Notes that the connection was useful, so that the next pause has its first length again.
    pub(super) fn prove(&mut self) {
        self.pause = PAUSE;
    }
}

/// Whether a connection to `address` leads to another store than the server's. `run_id`: the process at the
/// connection's other end, if known. `replica`: the replica of the store to which the connection should lead, if it
/// should lead to a replica.
pub(super) fn leads_astray(
    address: SocketAddr,
    run_id: Option<&str>,
    replica: Option<SocketAddr>,
    shared: &Shared,
) -> bool {
    let (Some(name), Some(store)) = (&shared.name, &shared.store) else {
        return true;
    };
    address != replica.unwrap_or(store.address) || run_id.is_some_and(|found| found != name.run_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_their_limit_until_a_connection_was_of_use() {
        let mut patience = Patience::new(50).with_pause_max(3 * PAUSE);
        patience.hear(7);
        assert_eq!((patience.due(), patience.connect_after()), (57, 0));
        let mut pauses = Vec::new();
        for _ in 0..3 {
            patience.lose(1000);
            pauses.push(patience.connect_after() - 1000);
        }
        assert_eq!(pauses, [PAUSE, 2 * PAUSE, 3 * PAUSE]);
        patience.prove();
        patience.lose(0);
        assert_eq!(patience.connect_after(), PAUSE);
        let mut fixed = Patience::new(1);
        for _ in 0..2 {
            fixed.lose(0);
            assert_eq!(fixed.connect_after(), PAUSE);
        }
    }
}
