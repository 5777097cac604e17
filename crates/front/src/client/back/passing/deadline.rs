//! The deadlines of a connection, except those of its calls.
//!
//! The time of a command begins when the front has read it. If the command waits for earlier commands of its client,
//! its time begins when the previous command is answered, so a pipeline may be long. If a command gets no answer in
//! time, it fails. Later commands that have waited just as long fail at the same moment and are not sent. So several
//! commands that wait together take no longer than one command. Two kinds of waits do not count: waits for a command
//! that blocks, and waits for a client that does not read its replies ([`crate::client::arrivals`]).
//!
//! A passed command has a deadline for being sent. A passed command that does not block has another deadline, for its
//! answer. A blocking command, a subscriber and a monitor may wait while the store is alive. The store counts as dead
//! when its process has answered no client during one command's time. If a client disconnects, its wait ends at once.

use pmnet_wire::StoreName;

use super::Passing;
use super::passage::{Passage, Stage};
use crate::client::Shared;
use crate::client::face::Face;
use crate::client::mode::Mode;
use crate::upstream::Time;

/// The longest time for which a client that has closed its sending side, and may be gone, still waits for an answer, in
/// nanoseconds.
pub const HALF_CLOSED_TIMEOUT: Time = 1_000_000_000;

impl Passing {
    /// Whether the client waits for something that the store may send much later.
    pub(in crate::client) fn waits_on_store(&self, mode: &Mode) -> bool {
        let blocked = |passage: &Passage| passage.blocks && matches!(passage.stage, Stage::Sent);
        mode.monitors() || self.subscriptions() > 0 || self.passage.as_ref().is_some_and(blocked)
    }

    /// Whether the time of the passed command is over, or the store has been silent for too long.
    /// `shared.alive` is the time at which the store last gave a sign of life. `pardon`: this process was
    /// suspended, so silence proves nothing.
    pub(in crate::client) fn is_overdue(
        &mut self,
        mode: &Mode,
        shared: &Shared,
        pardon: bool,
    ) -> bool {
        let waits = self.waits_on_store(mode);
        let overdue = self.passage.as_ref().is_some_and(|passage| {
            let open_end = match &passage.stage {
                Stage::Sent => passage.blocks,
                // A call has its own deadline. A client that waits at an embedded store has no other
                // deadline.
                Stage::Embedded { call, waits } => call.is_some() || waits.is_some(),
                Stage::Rest(_) => true,
                _ => passage.is_just_answered(),
            };
            !open_end && shared.now >= shared.deadline(passage.begun)
        });
        overdue | (self.is_silent(shared, pardon) && waits)
    }

    /// Whether the store has given no known answer during one command's time. `pardon`: this process could
    /// not have noticed a sign of life.
    fn is_silent(&mut self, shared: &Shared, pardon: bool) -> bool {
        let Some(direct) = &mut self.direct else {
            return false;
        };
        if std::mem::take(&mut direct.heard) || pardon {
            direct.proof = shared.now;
        }
        if let (Some((run_id, at)), Some(found)) = (&shared.alive, &direct.found)
            && *run_id == found.run_id
        {
            direct.proof = direct.proof.max(*at);
        }
        shared.now >= direct.proof.saturating_add(shared.call_timeout)
    }

    /// Notes that the server now uses the store with this name. A command that waits for another store ends as if its
    /// connection were lost. An idle connection with state (a watch) fails at its next use. Returns whether anything
    /// has changed.
    pub(in crate::client) fn store_named(&mut self, face: &mut Face, name: &StoreName) -> bool {
        let other = self
            .direct
            .as_ref()
            .and_then(|direct| direct.found.as_ref())
            .is_some_and(|found| found.run_id != name.run_id);
        if other && self.waits_on_store(&face.mode) {
            self.lost(face, "the pmnet server uses another Redis now");
            return true;
        }
        let idle = !self.is_under_way() && !self.stateful(&face.mode);
        if other && idle {
            self.drop_direct();
        }
        other && idle
    }
}
