//! How a command that passes through is put into the outbox of its client's own connection to the store.

use pmnet_resp::reply;
use pmnet_wire::command::Protocol;

use super::Passing;
use super::direct::Direct;
use super::passage::{Effect, Stage};
use crate::client::Shared;
use crate::client::face::Face;
use crate::client::mode::Mode;

impl Passing {
    /// Puts the command into the store connection's outbox.
    pub(super) fn send_passed(&mut self, face: &mut Face) {
        let (Some(passage), Some(direct)) = (&mut self.passage, &mut self.direct) else {
            return self.fail(
                face,
                reply::error("ERR pmnet: the connection to the store was lost"),
            );
        };
        if direct.protocol != face.settings.selected.protocol {
            let version = match face.settings.selected.protocol {
                Protocol::Resp2 => "2",
                Protocol::Resp3 => "3",
            };
            direct.set(&["HELLO", version]);
            direct.protocol = face.settings.selected.protocol;
        }
        if !face.mode.passed_multi()
            && (direct.database != face.settings.selected.database || passage.fresh)
        {
            direct.act_as_front();
            direct.set(&["SELECT", &face.settings.selected.database.to_string()]);
            direct.database = face.settings.selected.database;
            if passage.fresh {
                direct.come_behind_writes();
            }
            passage.fresh = false;
        }
        if !direct.acts_as_client() {
            passage.stage = Stage::Login;
            return;
        }
        if passage.effect == (Effect::Exec { aborts: true }) {
            // The fence is a command that Redis does not know, so it makes Redis abort the transaction.
            // DISCARD would need a right.
            direct.fence();
        }
        passage.put_into(direct);
    }

    /// Puts SCRIPT KILL into the store connection's outbox. A busy store would refuse any other command, so
    /// the connection is not asked for the store's identity first. A script that has written cannot be
    /// killed.
    pub(super) fn send_kill(&mut self, mode: &Mode, shared: &Shared) {
        let stateful = self.stateful(mode);
        let Some(store) = &shared.store else { return };
        let leads_there = |direct: &Direct| stateful || direct.line.address == store.address;
        if !self.direct.as_ref().is_some_and(leads_there) {
            self.new_direct(store, shared.now);
        }
        let (Some(passage), Some(direct)) = (&mut self.passage, &mut self.direct) else {
            return;
        };
        if !direct.acts_as_client() {
            passage.stage = Stage::Login;
            return;
        }
        passage.put_into(direct);
    }
}
