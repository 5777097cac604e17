//! Commands that pass through under the front's mark (`docs/spec/reads.md` §5).
//!
//! A command that may change the store and passes no device is sent only while the front's mark is open. If
//! the mark is lost, the commands under it end first, because the front closes their connections to the
//! store.

use super::Passing;
use super::passage::{Marks, Stage};
use crate::client::Shared;
use crate::client::face::Face;
use crate::client::mode::Mode;

impl Passing {
    /// Whether this client passes, or may pass, a command that changes the store.
    pub(in crate::client) fn needs_mark(&self, mode: &Mode) -> bool {
        let marks = matches!(&self.passage, Some(passage) if passage.marks == Marks::Yes);
        mode.watches() || marks
    }

    /// Moves the command to its barrier if it needs no mark, or if the mark is open.
    pub(super) fn await_mark(&mut self, face: &mut Face, shared: &Shared) {
        let Some(passage) = &mut self.passage else {
            return;
        };
        if shared.mark_open || passage.marks == Marks::No {
            passage.stage = Stage::Barrier(None);
        } else {
            face.wishes.open_mark();
        }
    }

    /// Gives up the passed command, because the client disconnects. Returns whether a command was given up without a
    /// reply.
    pub(in crate::client) fn close_unanswered(&mut self) -> bool {
        self.drop_passage();
        self.take_unanswered()
    }

    /// Handles that the mark is no longer open. Returns whether the client's state has changed.
    pub(in crate::client) fn mark_lost(&mut self, face: &mut Face) -> bool {
        if !self.needs_mark(&face.mode) {
            return false;
        }
        match &mut self.passage {
            Some(passage)
                if !face.mode.watches()
                    && !matches!(passage.stage, Stage::Sent | Stage::Confirm { .. }) =>
            {
                // The command needs a new mark, and after the mark a new barrier.
                if !matches!(passage.stage, Stage::Address(_)) {
                    passage.stage = Stage::Mark;
                }
            }
            _ => self.lost(
                face,
                "the devices do not know any more that it passes them by",
            ),
        }
        true
    }
}
