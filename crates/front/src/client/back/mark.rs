//! What passes through under the front's mark (`docs/spec/reads.md` §5).
//!
//! A command that may change the store and passes no device is sent only while the front's mark is open. If
//! the mark is lost, whatever went under it ends first: the connection to the store is closed.

use super::passage::Stage;
use crate::client::Connection;

impl Connection {
    /// Whether something passes, or may pass, that changes the store.
    #[must_use]
    pub fn needs_mark(&self) -> bool {
        self.mode.watches()
            || self
                .passing
                .passage
                .as_ref()
                .is_some_and(|passage| passage.marks)
    }

    /// Whether something was passed, and given up without an answer, since this was last asked.
    pub fn take_unanswered(&mut self) -> bool {
        self.passing.take_unanswered()
    }

    /// The client goes. Whether something that was passed has no answer.
    pub fn close_unanswered(&mut self) -> bool {
        self.passing.drop_passage();
        self.take_unanswered()
    }

    /// The mark is open no longer. Whether something has changed here.
    pub fn mark_lost(&mut self) -> bool {
        if !self.needs_mark() {
            return false;
        }
        match &mut self.passing.passage {
            Some(passage)
                if !self.mode.watches()
                    && passage.stage != Stage::Sent
                    && !passage.is_answered() =>
            {
                // Another mark, and then a barrier behind it.
                if !matches!(passage.stage, Stage::Address(_)) {
                    passage.stage = Stage::Mark;
                }
            }
            _ => self.direct_lost("the devices do not know any more that it passes them by"),
        }
        true
    }
}
