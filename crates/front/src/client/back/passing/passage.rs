//! The command that is being passed: its effect, and its stage with the data that the stage needs.

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
        /// Whether the front refused a command of the transaction.
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
    /// The command ends a script (SCRIPT KILL).
    Kill,
}

/// The replies to a command about subscriptions, which are confirmations and messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Confirmations {
    /// The marker of the end of the confirmations: a command that Redis does not know. The error for this command
    /// follows all confirmations.
    pub(super) sentinel: Vec<u8>,
    /// Whether the client already has some of the confirmations. After the first confirmation, no other reply can
    /// answer the command.
    pub(super) handed_on: bool,
}

/// Whether a command may change the store, and so needs the front's mark.
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

/// The stages of a passed command, in the usual order.
pub(super) enum Stage {
    /// Needs the store's name. `Some`: the call that asks for the name.
    Address(Option<CallId>),
    /// Needs only a connection to the store's address: a busy store would not give its name.
    Kill,
    /// Needs the front's mark to be open.
    Mark,
    /// Needs a barrier: all acknowledged writes must be applied. `Some`: the call with the barrier.
    Barrier(Option<CallId>),
    /// Needs a connection that leads to the store with this name.
    Connection(StoreName),
    /// Needs a connection that is logged in as the client.
    Login,
    /// The command was sent to the store.
    Sent,
    /// The store has answered, and the server must confirm the reply. `call`: the call that asks for the confirmation,
    /// once there is one.
    Confirm {
        call: Option<CallId>,
        answer: Answer,
    },
    /// The store is no Redis and serves the command with this call ([`super::embedded`]). `waits`: the client's wait,
    /// if an earlier try found no element.
    Embedded {
        call: Option<CallId>,
        waits: Option<Waits>,
    },
    /// The store is no Redis and had no element: the command waits to be woken.
    Rest(Waits),
}

/// The command that is being passed.
pub(in crate::client) struct Passage {
    pub(super) effect: Effect,
    pub(super) stage: Stage,
    /// The time when the command's deadline began to run. Within the call timeout after this time, the command must be
    /// sent and, unless it blocks, answered.
    pub(super) begun: Time,
    pub(super) marks: Marks,
    /// Whether the command may block, which means that it may wait for other clients before it answers.
    pub(super) blocks: bool,
    /// Whether the connection was replaced, lost or asked again since the barrier. After one of these events, there is
    /// no further try.
    pub(super) last_try: bool,
    /// The command's name, for error texts.
    pub(super) name: String,
    pub(super) frame: Vec<u8>,
    /// Whether the command is a WAIT: SELECT is sent before a WAIT in any case. Since version 7.2, Redis waits for the
    /// connection's last write, so a write is sent before the WAIT, too.
    pub(super) fresh: bool,
    /// Run id of the store whose server must confirm the reply ([`super::confirm`]). The id is empty until the barrier
    /// names the store. `None`: no confirmation is needed.
    pub(super) confirm_run_id: Option<String>,
}

impl Passage {
    /// Whether the command is sent as soon as a connection to the store's address exists.
    pub(super) fn kills(&self) -> bool {
        self.effect == Effect::Kill
    }

    /// Whether the command's replies end with a sentinel.
    pub(super) fn is_about_subscriptions(&self) -> bool {
        matches!(self.effect, Effect::Subscribe(_))
    }

    /// Whether the client already has a part of the reply.
    pub(super) fn is_handed_on(&self) -> bool {
        matches!(&self.effect, Effect::Subscribe(so_far) if so_far.handed_on)
    }

    /// Returns the command's wait at a store that is no Redis.
    pub(super) fn waits(&self) -> Option<&Waits> {
        match &self.stage {
            Stage::Rest(waits) => Some(waits),
            Stage::Embedded { waits, .. } => waits.as_ref(),
            _ => None,
        }
    }

    /// Whether the store has answered, and the server's confirmation is awaited.
    pub(super) fn is_answered(&self) -> bool {
        matches!(self.stage, Stage::Confirm { .. })
    }

    /// Puts the command into the outbox of the connection to the store. The store's time to answer begins
    /// now.
    pub(super) fn put_into(&mut self, direct: &mut Direct) {
        direct.line.outbox().append(&mut self.frame);
        if let Effect::Subscribe(Confirmations { sentinel, .. }) = &self.effect {
            write_command(direct.line.outbox(), &[sentinel]);
        }
        direct.used = false;
        direct.heard = true;
        self.stage = Stage::Sent;
    }

    /// Applies the effect of the command, which the store answered with `reply`.
    pub(super) fn apply(&self, reply: &[u8], direct: &mut Direct, face: &mut Face) {
        let ok = reply.starts_with(b"+");
        match self.effect {
            Effect::Watch if ok => face.mode = Mode::Watching,
            Effect::Unwatch if ok => face.mode = Mode::Ordinary,
            Effect::Multi if ok => face.mode = Mode::WatchingMulti { failed: false },
            // EXEC always ends the transaction and the watch. If Redis refuses a DISCARD for lack of rights,
            // both continue.
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
