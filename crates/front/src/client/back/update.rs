//! An early write: an update that is acknowledged as soon as it is durable in the devices.

use super::Back;
use super::beside::may_open_pack;
use super::calls::{Purpose, single};
use super::pack::{Company, Kind, Part};
use crate::client::command::Command;
use crate::client::context::{Context, Later};
use crate::table::{early_ack, key_hash};
use crate::upstream::{Call, Submit};

impl Back {
    /// Submits an update, which is acknowledged as soon as it is durable.
    ///
    /// # Errors
    /// [`Later`]: the update cannot be sent now.
    pub(in crate::client) fn update(
        &mut self,
        command: &Command<'_>,
        cx: &mut Context<'_>,
    ) -> Result<(), Later> {
        let Command {
            arguments,
            frame,
            verdict,
        } = *command;
        // Writes of this client are being packed. This write has to wait for the pack anyway, so it joins the pack as a
        // bypass. A command of `--assume-ok` does not join the pack: as a bypass the command would get the store's own
        // reply.
        let packs = match self.packs.current() {
            Some(pack) => pack.has_room(Kind::Writes, frame.len()),
            None => may_open_pack(&self.packs, &self.reads, frame.len()),
        };
        if packs && early_ack(arguments) {
            cx.shared.own_writes.forget();
            self.pack(Part::of(command, Kind::Writes, Company::Any), cx)?;
            self.packs.count_detour();
            return Ok(());
        }
        let key_hash = verdict.facts.map_or(0, |facts| key_hash(facts, arguments));
        self.submit_all(cx)?;
        let payload = single(frame, cx.selected);
        let call = Call {
            payload: &payload,
            key_hash,
            how: Submit::Update,
            deadline: cx.deadline(),
        };
        let submitted = self.session.submit(call, cx.up, cx.shared.now)?;
        let call = submitted.as_ref().ok().copied();
        cx.shared.own_writes.note(call, arguments, &payload);
        cx.pending
            .expect(submitted, Purpose::Update { readers: 0 }, payload.len());
        Ok(())
    }
}
