//! The command that is being passed: what it will change, and its stage with all that the stage needs.

use pmnet_resp::write_command;
use pmnet_wire::StoreName;
use pmnet_wire::command::Protocol;

use super::confirm::Answer;
use super::direct::Direct;
use super::embedded::Waits;
use crate::client::face::Face;
use crate::client::mode::Mode;
use crate::upstream::{CallId, Time};

/// The change that a passed command makes to the state of the connection when it succeeds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    None,
    Watch,
    Unwatch,
    Multi,
    Exec {
        /// A command of the transaction was refused here.
        aborts: bool,
    },
    Discard,
    Select(u32),
    Monitor,
    Subscribe(Confirmations),
    /// HELLO 2 of a client that is subscribed.
    Protocol,
    /// The store may keep state for the connection.
    State,
    /// A script ends.
    Kill,
}

/// The replies to a command about subscriptions, which are confirmations and messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Confirmations {
    /// A command that Redis does not know: its error comes after all of them.
    pub(super) sentinel: Vec<u8>,
    /// A part of them has been handed on, so nothing else can be the command's reply.
    pub(super) handed_on: bool,
}

/// Whether a command may change the store, and so passes under the front's mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Marks {
    No,
    Yes,
}

impl Marks {
    pub(super) fn of(changes: bool) -> Marks {
        if changes { Marks::Yes } else { Marks::No }
    }
}

/// How far a passed command has come, in the usual order.
pub(super) enum Stage {
    /// Needs the store's name; asked for with this call.
    Address(Option<CallId>),
    /// Needs a connection to where the store is, and no more: a busy store would not say which it is.
    Kill,
    /// Needs the front's mark to be open.
    Mark,
    /// Needs everything acknowledged to be applied; asked for with this call.
    Barrier(Option<CallId>),
    /// Needs a connection that leads to the store with this name.
    Connection(StoreName),
    /// Needs the connection to have logged in as the client.
    Login,
    /// Sent to the store.
    Sent,
    /// Answered by the store. Needs the server to confirm that; asked for with this call.
    Confirm {
        call: Option<CallId>,
        answer: Answer,
    },
    /// The store is no Redis: served with this call ([`super::embedded`]). It waits if there was nothing before.
    Embedded {
        call: Option<CallId>,
        waits: Option<Waits>,
    },
    /// The same, and there is nothing: waits to be woken.
    Rest(Waits),
}

/// The command that is being passed.
pub(in crate::client) struct Passage {
    pub(super) effect: Effect,
    pub(super) stage: Stage,
    /// When its time began. When that is up it must have been sent, and answered unless it blocks.
    pub(super) begun: Time,
    pub(super) marks: Marks,
    /// It may wait for others before it answers.
    pub(super) blocks: bool,
    /// The connection was replaced, lost or asked again since the barrier: no further try.
    pub(super) last_try: bool,
    /// The command's name, for error texts.
    pub(super) name: String,
    pub(super) frame: Vec<u8>,
    /// WAIT: send SELECT first in any case, and a write where Redis counts from the connection's last write (7.2).
    pub(super) fresh: bool,
    /// Run id of the store whose server must confirm the reply ([`super::confirm`]); empty until the barrier names it; `None`: no
    /// confirmation.
    pub(super) confirm_run_id: Option<String>,
}

impl Passage {
    /// Whether it is sent as soon as there is a connection to where the store is.
    pub(super) fn kills(&self) -> bool {
        self.effect == Effect::Kill
    }

    /// Whether its replies end with a sentinel's.
    pub(super) fn is_about_subscriptions(&self) -> bool {
        matches!(self.effect, Effect::Subscribe(_))
    }

    /// Whether a part of its reply is with the client.
    pub(super) fn is_handed_on(&self) -> bool {
        matches!(&self.effect, Effect::Subscribe(so_far) if so_far.handed_on)
    }

    /// Its wait, at a store that is no Redis.
    pub(super) fn waits(&self) -> Option<&Waits> {
        match &self.stage {
            Stage::Rest(waits) => Some(waits),
            Stage::Embedded { waits, .. } => waits.as_ref(),
            _ => None,
        }
    }

    /// Whether the store has answered, and the server's word is waited for.
    pub(super) fn is_answered(&self) -> bool {
        matches!(self.stage, Stage::Confirm { .. })
    }

    /// Puts it into the outbox of the connection to the store. From now on the store has time to answer.
    pub(super) fn put_into(&mut self, direct: &mut Direct) {
        direct.line.outbox().append(&mut self.frame);
        if let Effect::Subscribe(Confirmations { sentinel, .. }) = &self.effect {
            write_command(direct.line.outbox(), &[sentinel]);
        }
        direct.used = false;
        direct.heard = true;
        self.stage = Stage::Sent;
    }

    /// The store has answered the command with `reply`.
    pub(super) fn apply(&self, reply: &[u8], direct: &mut Direct, face: &mut Face) {
        let ok = reply.starts_with(b"+");
        match self.effect {
            Effect::Watch if ok => face.mode = Mode::Watching,
            Effect::Unwatch if ok => face.mode = Mode::Ordinary,
            Effect::Multi if ok => face.mode = Mode::WatchingMulti { failed: false },
            // EXEC always ends the transaction and the watch. A DISCARD that Redis refuses, because of its user's rights, does not.
            Effect::Exec { .. } => face.mode = Mode::Ordinary,
            Effect::Discard if ok => face.mode = Mode::Ordinary,
            Effect::Select(database) if ok => {
                face.settings.selected.database = database;
                direct.database = database;
            }
            Effect::Monitor if ok => face.mode = Mode::Monitoring,
            Effect::State => direct.has_state |= !reply.starts_with(b"-"),
            Effect::Protocol if !reply.starts_with(b"-") => {
                face.settings.selected.protocol = Protocol::Resp2;
                direct.protocol = Protocol::Resp2;
            }
            _ => {}
        }
    }
}
