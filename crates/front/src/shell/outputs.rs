//! Requests of clients to the front, which the front meets at once or notes for the end of the turn.

use super::Front;
use crate::client::Output;
use crate::upstream::{SessionHandle, Upstream};

impl<U: Upstream> Front<U> {
    /// Carries out the requests of a client.
    pub(super) fn take_outputs(&mut self, index: usize) {
        while let Some(client) = self.clients.get_mut(index)
            && let Some(output) = client.connection.poll_output()
        {
            match output {
                Output::OpenMark => self.marks.wanted = true,
                Output::NameStore => self.vigil.wants_name = true,
                Output::DoubtStore => self.vigil.doubts_name = true,
                Output::LearnCommands => self.learning.wanted = true,
                Output::AskedHead(call) => {
                    self.asked.insert(call, index);
                }
                Output::Clients(ask) => self.tell_of_clients(index, ask),
                Output::Session(session) => self.note_session(index, session),
                Output::BehindSubscriptions => {
                    self.behind_subscriptions.insert(index);
                }
                Output::Subscribing(change) => self.note_subscribing(index, change),
                Output::Waiting(waiting) => self.note_waiting(index, waiting),
                Output::Direct(target) => self.match_direct(index, target),
                Output::Read(read) => self.reads.submit(index, read, &self.shared),
                Output::Ask(question) => self.submit_question(index, question),
            }
        }
    }

    /// Notes which session a client uses now.
    fn note_session(&mut self, index: usize, session: Option<SessionHandle>) {
        let Some(client) = self.clients.get_mut(index) else {
            return;
        };
        if let Some(old) = std::mem::replace(&mut client.session, session) {
            self.sessions.remove(&old);
        }
        if let Some(new) = session {
            self.sessions.insert(new, index);
        }
    }
}
