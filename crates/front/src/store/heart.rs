//! On a connection of the front, asks a store for a sign of life and for its identity.
//!
//! A client may wait long for the store. The client's own connection does not show whether the store has nothing to
//! send, or has stopped working.

use std::net::SocketAddr;

use bytes::Bytes;
use pmnet_wire::StoreName;

use super::StoreAddress;
use super::identity::{ASK_RUN_ID, NO_RUN_ID, run_id_of, store_name};
use super::line::{Line, UNASKED};
use crate::client::{Shared, says_busy};
use crate::limits::REPLIES;
use crate::shell::socket::Unwritten;
use crate::upstream::{Outcome, Time};

/// Redis's answer to a connection above its limit of clients.
const FULL: &[u8] = b"-ERR max number of clients";

/// Questions on this connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beat {
    Login,
    Info,
}

/// A connection on which the store is asked for signs of life, without its socket.
pub(crate) struct Heart {
    line: Line<Beat>,
    proof: Time,
}

impl Heart {
    /// Makes the state of a connection whose socket must still be connected.
    pub(crate) fn new(store: &StoreAddress, now: Time) -> Heart {
        let mut line = Line::new(store, REPLIES);
        line.log_in(store, Beat::Login);
        Heart { line, proof: now }
    }

    /// Returns the address to which the connection leads.
    pub(crate) fn address(&self) -> SocketAddr {
        self.line.address
    }

    /// Asks for a sign of life, unless the answer to an earlier question is outstanding.
    pub(crate) fn beat(&mut self) {
        if !self.line.asked().contains(&Beat::Info) {
            self.line.ask(Beat::Info, &ASK_RUN_ID);
        }
    }

    /// Takes bytes from the store. An answer is a sign of life.
    ///
    /// # Errors
    /// The reason why the connection is unusable.
    pub(crate) fn receive(&mut self, bytes: &[u8], shared: &mut Shared) -> Result<(), String> {
        self.proof = shared.now;
        self.line.receive(bytes);
        while let Some(value) = self.line.next().map_err(|error| error.to_string())? {
            self.take(&value, shared)?;
        }
        Ok(())
    }

    fn take(&mut self, value: &Bytes, shared: &mut Shared) -> Result<(), String> {
        // Earlier connections have checked the store's identity.
        let known = shared.name.as_ref().map(|name| name.run_id.clone());
        if value.starts_with(FULL)
            && let Some(run_id) = known.clone()
        {
            // Only a store that is alive answers this question.
            shared.alive = Some((run_id, shared.now));
            return Err("it takes no more connections".into());
        }
        // A push is not an answer.
        let answers = |_: &Beat| !value.starts_with(b">");
        let Some(beat) = self.line.answered().filter(answers) else {
            return Err(UNASKED.into());
        };
        if says_busy(value) {
            if let Some(run_id) = known {
                shared.alive = Some((run_id, shared.now));
            }
            shared.busy.heard(value, shared.now);
            return Ok(());
        }
        if value.starts_with(b"-") {
            let text = String::from_utf8_lossy(value.trim_ascii());
            return Err(format!("it said {text}"));
        }
        if beat == Beat::Info {
            let run_id = run_id_of(value).ok_or(NO_RUN_ID)?;
            shared.alive = Some((run_id, shared.now));
            shared.busy.over(shared.now);
        }
        Ok(())
    }

    /// Returns the time when the store last gave a sign of life on this connection. If the store has given no sign of
    /// life, returns the time when the connection was begun.
    pub(crate) fn proof(&self) -> Time {
        self.proof
    }
}

impl Unwritten for Heart {
    fn unwritten(&self) -> &[u8] {
        self.line.unwritten()
    }

    fn wrote(&mut self, count: usize) {
        self.line.wrote(count);
    }
}

/// Returns the store that the outcome of a barrier names, if it names one.
pub(crate) fn named_by(outcome: Outcome) -> Option<StoreName> {
    match outcome {
        Outcome::Reply(reply) => store_name(&reply).ok(),
        _ => None,
    }
}
