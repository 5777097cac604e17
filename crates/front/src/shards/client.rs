//! One client of the router: its socket and its parts.
//!
//! Invariants: replies leave in the order of the commands. A command is taken from the input only when it can be sent,
//! and each command is sent once. Commands for one shard reach the shard in the order in which the client sent them.

use std::sync::Arc;

use super::backs::{Backs, Fronts, HOME, Who};
use super::end::{End, How, When};
use super::replies::Replies;
use super::slot::SlotMap;
use super::subscribe::Subscriptions;
use super::tally::{RouterCounters, Tally};
use super::transaction::Transactions;
use super::trust::Trust;
use crate::client::input::{Input, Sender};
use crate::client::{COMMANDS_PER_TURN, HALF_CLOSED_TIMEOUT, INPUT_BYTES_SOFT_MAX, Replying};
use crate::limits::READ_BYTES_PER_TURN;
use crate::shell::lingering::Lingering;
use crate::shell::socket::{Ended, Socket};
use crate::shell::wire::{Seen, Wire};
use crate::table::Table;
use crate::upstream::Time;

/// Bound of the input of a client that still has to log in, in bytes. At the bound the router reads no more from the
/// client, unless a single command is longer than the bound.
const STRANGER_INPUT_BYTES_SOFT_MAX: usize = 64 * 1024;

/// State that all clients share.
pub(super) struct Common {
    pub(super) table: Table,
    pub(super) map: SlotMap,
    pub(super) fronts: Arc<Fronts>,
    /// Whether every client may do everything.
    pub(super) trusting: bool,
    /// Whether the Redis servers of all shards are masters of one Redis Cluster.
    pub(super) cluster: bool,
    pub(super) tally: Tally,
}

impl Common {
    /// Returns the router's lines of INFO.
    pub(super) fn lines(&self) -> String {
        let RouterCounters {
            one,
            all,
            cross_slot,
            cluster_down,
            try_again,
            ..
        } = self.tally.counters();
        let lines = [
            (
                "shards",
                u64::try_from(self.map.shards()).unwrap_or(u64::MAX),
            ),
            (
                "slots_unserved",
                u64::try_from(self.map.unserved()).unwrap_or(u64::MAX),
            ),
            ("commands_one", one),
            ("commands_all", all),
            ("commands_refused", cross_slot + cluster_down + try_again),
        ];
        let lines = lines.map(|(name, value)| format!("pmnet_router_{name}:{value}\r\n"));
        lines.concat()
    }
}

pub(super) struct Client {
    socket: Socket,
    phase: Phase,
    pub(super) input: Input,
    pub(super) backs: Backs,
    pub(super) replies: Replies,
    pub(super) replying: Replying,
    pub(super) trust: Trust,
    pub(super) subscriptions: Subscriptions,
    pub(super) transactions: Transactions,
    pub(super) end: End,
}

/// The state of a client's socket, with the deadline of this state.
enum Phase {
    /// The TLS handshake, which must end by this time.
    Agrees(Time),
    /// Commands are taken, and answered.
    Serves,
    /// The client has closed its sending side, and its next command waits for the reply to an earlier command. The
    /// client's connection is closed at the time in this value.
    Stuck(Time),
    /// The client was sent the reason why its connection is closed, and its further input is discarded.
    Lingers(Lingering),
}

/// The state of a client after its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// The client has nothing to do until something arrives.
    Idle,
    /// The client has more work, but the other clients get their turn first.
    More,
    /// The client's connection is closed.
    Closed,
}

impl Client {
    /// Makes a client that was accepted. `token`: the token of the client's socket. The tokens of the client's links
    /// follow.
    pub(super) fn new(who: Who, wire: Wire, token: usize, now: Time, common: &Common) -> Client {
        let handshake = wire.handshake_until(now);
        Client {
            phase: handshake.map_or(Phase::Serves, Phase::Agrees),
            socket: Socket::new(wire),
            input: Input::default(),
            backs: Backs::new(who, token + 1, common.fronts.clone()),
            replies: Replies::default(),
            replying: Replying::default(),
            trust: if common.trusting {
                Trust::Anyone
            } else {
                Trust::Unknown
            },
            subscriptions: Subscriptions::default(),
            transactions: Transactions::default(),
            end: End::default(),
        }
    }

    pub(super) fn who(&self) -> &Who {
        &self.backs.who
    }

    /// Whether the TLS handshake is still under way.
    pub(super) fn is_handshaking(&self) -> bool {
        matches!(self.phase, Phase::Agrees(_))
    }

    /// Whether the client has missed its deadline.
    pub(super) fn is_late(&self, now: Time) -> bool {
        match &self.phase {
            Phase::Agrees(until) | Phase::Stuck(until) => now >= *until,
            Phase::Lingers(lingering) => lingering.is_over(now),
            Phase::Serves => false,
        }
    }

    /// Whether the client has a deadline.
    pub(super) fn is_timed(&self) -> bool {
        !matches!(self.phase, Phase::Serves)
    }

    /// Notes an event of one of the client's sockets. `socket`: 0 is the client's own socket; the numbers from 1 on are
    /// the links to the shards.
    pub(super) fn note(&mut self, socket: usize, seen: &Seen) {
        match socket.checked_sub(1).map(|shard| self.backs.link(shard)) {
            None => self.socket.note(seen),
            Some(link) => link.into_iter().for_each(|link| link.socket.note(seen)),
        }
    }

    /// Notes that another map is used from now on. Returns the number of the client's commands that were taken before
    /// the change and have no reply.
    pub(super) fn note_map(&mut self) -> usize {
        self.replies.note_map()
    }

    /// Returns the number of commands that were taken before the last change of the map and have no reply yet.
    pub(super) fn taken_before(&self) -> usize {
        self.replies.taken_before()
    }

    /// Whether a channel of the client's subscriptions may belong to another shard in `new` than in `old`. The shard of
    /// `old` would send no further messages of that channel.
    pub(super) fn listens_elsewhere(&self, old: &SlotMap, new: &SlotMap) -> bool {
        (self.replies.change_subscriptions() && old.differing(new).is_some())
            || self.subscriptions.move_with(old, new)
    }

    /// Takes one turn: reads, takes commands, sends replies, writes.
    pub(super) fn serve(&mut self, common: &Common, scratch: &mut [u8], now: Time) -> Turn {
        if let Phase::Lingers(lingering) = &mut self.phase {
            return linger(&mut self.socket, lingering, scratch);
        }
        if self.read(scratch).is_err() {
            return Turn::Closed;
        }
        if let Phase::Agrees(_) = self.phase {
            if self.socket.wire.is_handshaking() {
                return Turn::Idle;
            }
            self.phase = Phase::Serves;
        }
        if self.backs.link(HOME).is_none() && !self.end.has_come() {
            // The front of the first shard counts the clients, so the client's link to this front is made at once. If
            // the link cannot be made, the first command gets the error.
            let _ = self.backs.open(HOME);
        }
        for link in self.backs.links() {
            link.fill(scratch);
        }
        let (mut budget, mut went_on) = (COMMANDS_PER_TURN, false);
        loop {
            let moved = self.pump(common);
            let taken = self.take_commands(&mut budget, common);
            if !moved && !taken {
                break;
            }
            went_on = true;
        }
        if self.end.eof && self.input.starved() {
            self.end.comes(When::Answered, How::AtOnce);
        }
        self.note_stuck(went_on, now);
        let over = self.end.eof && self.end.has_come();
        for link in self.backs.links() {
            link.flush();
            if over {
                link.finish();
            }
        }
        let congested = self.replies.is_congested();
        if self.replies.write(&mut self.socket).is_err() {
            return Turn::Closed;
        }
        if self.replies.are_written() && self.end.is_due(self.replies.is_idle()) {
            return self.close(scratch, now);
        }
        let is_congested = self.replies.is_congested();
        let freed = congested && !is_congested;
        let drained = self.backs.have_drained();
        let has_input = budget == 0 || (self.socket.readable && self.wants_input());
        let has_replies = !is_congested && self.backs.have_more();
        if freed || drained || has_input || has_replies {
            Turn::More
        } else {
            Turn::Idle
        }
    }

    /// Closes the client's connection after all bytes for the client were written.
    fn close(&mut self, scratch: &mut [u8], now: Time) -> Turn {
        if self.socket.wire.has_unsent() {
            return Turn::Idle;
        }
        if !self.end.lingers() || self.socket.wire.end().is_err() {
            return Turn::Closed;
        }
        self.backs.drop_links();
        self.replies.drop_outstanding();
        let mut lingering = Lingering::begin(now);
        let turn = linger(&mut self.socket, &mut lingering, scratch);
        self.phase = Phase::Lingers(lingering);
        turn
    }

    /// Sets the deadline of a client that has closed its sending side and may have disconnected. A command of such a
    /// client may wait without end, and a front notices the closing only after it has executed all commands of the
    /// client. So the next reply has a deadline.
    fn note_stuck(&mut self, went_on: bool, now: Time) {
        let closed = self.end.eof || self.socket.read_closed;
        if !closed || self.input.starved() || self.end.has_come() || self.replies.is_congested() {
            self.phase = Phase::Serves;
        } else if went_on || !matches!(self.phase, Phase::Stuck(_)) {
            self.phase = Phase::Stuck(now.saturating_add(HALF_CLOSED_TIMEOUT));
        }
    }

    fn wants_input(&self) -> bool {
        let most = match self.trust.sender() {
            Sender::Known => INPUT_BYTES_SOFT_MAX,
            Sender::Stranger => STRANGER_INPUT_BYTES_SOFT_MAX,
        };
        !self.end.eof && !self.end.has_come() && self.input.has_room(most)
    }

    fn read(&mut self, scratch: &mut [u8]) -> Result<(), Ended> {
        let mut budget = READ_BYTES_PER_TURN;
        while self.socket.readable && budget > 0 && self.wants_input() {
            match self.socket.read(scratch) {
                Ok(None) => break,
                Ok(Some(count)) => {
                    self.input.receive(&scratch[..count]);
                    budget = budget.saturating_sub(count);
                }
                Err(Ended::Closed) => self.end.eof = true,
                Err(ended) => return Err(ended),
            }
        }
        Ok(())
    }
}

/// Discards input that a client still sends after an error.
fn linger(socket: &mut Socket, lingering: &mut Lingering, scratch: &mut [u8]) -> Turn {
    loop {
        match socket.read(scratch) {
            Ok(None) => return Turn::Idle,
            Ok(Some(count)) if lingering.throw_away(count).is_some() => {}
            Ok(Some(_)) | Err(_) => return Turn::Closed,
        }
    }
}
