//! One turn of a client of the router.

use super::client::{Client, Common, HOME, LINGER_BYTES_MAX, LINGER_TIMEOUT, Turn};
use crate::client::{COMMANDS_PER_TURN, HALF_CLOSED_TIMEOUT};
use crate::upstream::Time;

impl Client {
    /// One turn: reads, takes commands, hands on replies, writes.
    pub(super) fn serve(&mut self, common: &mut Common, scratch: &mut [u8], now: Time) -> Turn {
        if self.lingering.is_some() {
            return self.linger(scratch);
        }
        if self.read(scratch).is_err() {
            return Turn::Closed;
        }
        if self.handshake.is_some() {
            if self.socket.wire.is_handshaking() {
                return Turn::Idle;
            }
            self.handshake = None;
        }
        if self.links[HOME].is_none() && !self.ending {
            // There it is counted among the clients.
            let _ = self.open(HOME, common);
        }
        for link in self.links.iter_mut().flatten() {
            link.fill(scratch);
        }
        let (mut budget, mut went_on) = (COMMANDS_PER_TURN, false);
        loop {
            let moved = self.pump();
            let taken = self.take_commands(&mut budget, common);
            if !moved && !taken {
                break;
            }
            went_on = true;
        }
        if self.eof && self.starved {
            self.ending = true;
        }
        self.note_stuck(went_on, now);
        let over = self.eof && self.ending;
        for link in self.links.iter_mut().flatten() {
            link.flush(over);
        }
        let congested = self.is_congested();
        if self.write().is_err() {
            return Turn::Closed;
        }
        if self.out.is_empty() && (self.done || (self.ending && self.slots.is_empty())) {
            if self.socket.wire.has_unsent() {
                return Turn::Idle;
            }
            if !self.lingers || self.eof {
                return Turn::Closed;
            }
            for link in &mut self.links {
                *link = None;
            }
            self.slots.clear();
            self.lingering = Some((LINGER_BYTES_MAX, now.saturating_add(LINGER_TIMEOUT)));
            if self.socket.wire.end().is_err() {
                return Turn::Closed;
            }
            return self.linger(scratch);
        }
        let freed = congested && !self.is_congested();
        let drained = self.full.take().is_some_and(|shard| {
            let link = self.links[shard].as_ref();
            link.is_none_or(|link| !link.is_full())
        });
        let has_input = budget == 0 || (self.socket.readable && self.wants_input());
        let has_replies = !self.is_congested() && {
            let mut links = self.links.iter().flatten();
            links.any(|link| link.has_more())
        };
        if freed || drained || has_input || has_replies {
            Turn::More
        } else {
            Turn::Idle
        }
    }

    /// Sets a time for the next reply if the client has closed its sending side, and perhaps is gone. It may wait for something that never
    /// comes, with further commands that cannot be taken before; a front would see the end only after all of them.
    fn note_stuck(&mut self, went_on: bool, now: Time) {
        let closed = self.eof || self.socket.read_closed;
        if !closed || self.starved || self.ending || self.is_congested() {
            self.stuck = None;
        } else if went_on || self.stuck.is_none() {
            self.stuck = Some(now.saturating_add(HALF_CLOSED_TIMEOUT));
        }
    }
}
