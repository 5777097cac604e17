//! How a command that passes through ends: with its reply, with an error, or with the end of its client's
//! connection.

use bytes::Bytes;
use pmnet_resp::reply;
use pmnet_wire::StoreName;

use super::Passing;
use super::embedded::nothing;
use super::passage::{Effect, Passage, Stage};
use crate::client::errors::EXECABORT;
use crate::client::face::Face;
use crate::client::mode::Mode;
use crate::upstream::Time;

impl Passing {
    /// Ends the passage with an error before any part of the command was sent. The store's connection has not
    /// changed, so a client that is only subscribed stays subscribed.
    pub(super) fn give_up(&mut self, face: &mut Face, error: Bytes) {
        let subscriber = self.subscriptions() > 0 && !face.mode.watches();
        let watch = |passage: &Passage| passage.effect == Effect::Watch;
        if !subscriber || self.passage.as_ref().is_some_and(watch) {
            return self.fail(face, error);
        }
        self.end_unanswered(face);
        face.pending.settle(error);
    }

    /// Ends the passage with an error, and closes the client's connection. On an open connection, commands after a
    /// failed WATCH would run as if the keys were watched. A half reply would be taken for a whole reply.
    pub(super) fn fail(&mut self, face: &mut Face, error: Bytes) {
        let broken = |passage: &Passage| passage.is_handed_on() || passage.effect == Effect::Watch;
        if self.passage.as_ref().is_some_and(broken) {
            face.end.cut_off();
        }
        self.refuse(face, error);
    }

    /// Ends the passage with an error. After the error, the front does not rely on any state of the store's connection.
    pub(super) fn refuse(&mut self, face: &mut Face, error: Bytes) {
        if let Some(passage) = self.end_unanswered(face) {
            tracing::debug!(
                client = face.peer,
                command = passage.name,
                "pass-through failed"
            );
        }
        face.pending.settle(error);
        if self.stateful(&face.mode) {
            face.end.cut_off();
        }
        self.drop_direct();
    }

    /// Ends the passage without an answer. Later commands that have waited for the same time must not wait for a
    /// further whole deadline. A blocking command is an exception: the later commands waited for it, not for the store.
    fn end_unanswered(&mut self, face: &mut Face) -> Option<Passage> {
        let passage = self.drop_passage()?;
        let waited = matches!(passage.stage, Stage::Sent | Stage::Confirm { .. });
        face.pending.times.give_up(passage.blocks && waited);
        Some(passage)
    }

    /// Ends a passed command that the store has answered, but whose effect may be lost with the store.
    pub(super) fn unconfirmed(&mut self, face: &mut Face, why: &str) {
        self.fail(face, reply::error(&format!(
            "ERR pmnet: outcome unknown (Redis answered, and then {why}); the command may or may not have taken effect"
        )));
    }

    /// Ends a passage because the store refuses the client's login on its connection.
    pub(super) fn login_refused(&mut self, face: &mut Face, why: &str) {
        let name = self.passage.as_ref().map_or("", |passage| &passage.name);
        let why = why.trim_start_matches('-');
        let error = reply::error(&format!(
            "ERR pmnet: {name} runs in Redis itself, which does not take the password any more that this client logged in with ({why}): \
             log in again (AUTH), or switch the user on; the command was not executed"
        ));
        self.refuse(face, error);
    }

    /// Ends a passed command whose time is over, or whose store has been silent for too long.
    pub(in crate::client) fn expire(&mut self, face: &mut Face) {
        let sent = self.direct.as_ref().is_some_and(|direct| direct.used);
        let text = match &self.passage {
            Some(passage) if passage.is_answered() => {
                return self.unconfirmed(face, "the pmnet server did not confirm it in time");
            }
            Some(passage) if !matches!(passage.stage, Stage::Sent) => {
                return self.give_up(face, reply::error(
                    "ERR pmnet: deadline passed before the store could be asked; the command was not executed",
                ));
            }
            Some(_) if !sent => {
                "ERR pmnet: deadline passed, the store takes no commands; the command was not executed"
            }
            Some(_) => {
                "ERR pmnet: outcome unknown (deadline passed, the store does not answer); the command may or may not \
                 have taken effect"
            }
            None => return self.lost(face, "the store does not answer"),
        };
        self.fail(face, reply::error(text));
    }

    /// Handles that the connection to the store could not be made, or is lost.
    pub(in crate::client) fn lost(&mut self, face: &mut Face, why: &str) {
        let stateful = self.stateful(&face.mode);
        if stateful && self.is_under_way() {
            face.end.cut_off();
        } else if stateful {
            face.end.end();
        }
        let used = self.direct.take().is_some_and(|direct| direct.used);
        match &mut self.passage {
            // The connection was made in advance, to the store's earlier address. The barrier's reply will
            // name the present address.
            Some(Passage { stage: Stage::Address(_) | Stage::Mark | Stage::Barrier(_), .. }) if !stateful => {}
            Some(passage @ Passage { stage: Stage::Connection(_), last_try: false, .. }) if !stateful => {
                passage.last_try = true;
            }
            // The command already has the store's answer.
            Some(Passage { stage: Stage::Confirm { .. }, .. }) if !stateful => {}
            Some(Passage { stage: Stage::Confirm { .. }, .. }) => self.unconfirmed(face, why),
            Some(Passage { stage: Stage::Sent, .. }) if used => self.fail(face, reply::error(&format!(
                "ERR pmnet: the connection to the store was lost ({why}); the command may or may not have taken effect"
            ))),
            Some(_) => self.fail(face, reply::error(&format!(
                "ERR pmnet: the store cannot be reached directly ({why}); the command was not executed"
            ))),
            None => {}
        }
    }

    /// Handles that the connection leads to another store and cannot be replaced.
    pub(super) fn lose_store(&mut self, face: &mut Face, name: &StoreName) {
        let Some(passage) = &self.passage else {
            return;
        };
        // A watch on another store is useless: EXEC fails, as if a key had been changed.
        let answer = match passage.effect {
            Effect::Exec { aborts: true } => Some(EXECABORT),
            Effect::Exec { aborts: false } => Some(nothing(face.protocol())),
            Effect::Discard | Effect::Unwatch => Some(reply::OK),
            _ => None,
        };
        if let Some(answer) = answer {
            tracing::debug!(client = face.peer, store = %name, "the store is another one: the watch is lost");
            self.passage = None;
            face.pending.times.make_way();
            if self.has_state() {
                // The subscription is lost as well. The client learns this only from the end of its
                // connection.
                face.end.cut_off();
            }
            self.drop_direct();
            face.mode = Mode::Ordinary;
            return face.pending.settle(answer);
        }
        let address = self
            .direct
            .as_ref()
            .map_or(name.address, |direct| direct.line.address);
        self.refuse(face, reply::error(&format!(
            "ERR pmnet: the Redis at {address} is not the store that the pmnet server uses (run_id {}); the command was \
             not executed",
            name.run_id
        )));
    }

    /// Gives the passed command its reply.
    pub(super) fn end_wait(&mut self, face: &mut Face, reply: Bytes, now: Time) {
        let waited = self
            .drop_passage()
            .is_some_and(|passage| passage.waits().is_some());
        // Later commands have waited for this blocking command, not for the store.
        if waited {
            face.pending.times.make_way();
        }
        face.pending.times.answer(now);
        face.pending.settle(reply);
    }
}
