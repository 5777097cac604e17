//! Asks a store, on the front's own connection, whether it is alive and which store it is.
//!
//! While a client waits for something that may take long, its own connection cannot distinguish a
//! store that has nothing to send from one that has stopped.

use std::net::SocketAddr;

use pmnet_wire::StoreName;

use super::direct::Direct;
use super::passage::store_name;
use crate::client::Shared;
use crate::client::busy::says_busy;
use crate::store::StoreAddress;
use crate::upstream::{Outcome, Time};

/// Redis's answer to a connection above its limit.
const FULL: &[u8] = b"-ERR max number of clients";

/// A connection to the store that is asked now and then, without its socket.
pub struct Heart(Direct);

impl Heart {
    /// A connection that is to be made.
    #[must_use]
    pub fn new(store: &StoreAddress, now: Time) -> Heart {
        Heart(Direct::new(store, 0, now, Vec::new()))
    }

    /// Where it leads.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.0.address
    }

    /// Asks, unless an answer is still missing.
    pub fn beat(&mut self) {
        if !self.0.identifies() {
            self.0.ask_run_id();
        }
    }

    /// Bytes to be written to the store.
    #[must_use]
    pub fn unwritten(&self) -> &[u8] {
        &self.0.outbox
    }

    /// `count` bytes were written.
    pub fn wrote(&mut self, count: usize) {
        self.0.outbox.drain(..count.min(self.0.outbox.len()));
    }

    /// Takes in bytes from the store; an answer is a sign of life.
    ///
    /// # Errors
    /// Why the connection is of no use.
    pub fn receive(&mut self, bytes: &[u8], shared: &mut Shared) -> Result<(), String> {
        let direct = &mut self.0;
        direct.proof = shared.now;
        direct.inbox.extend_from_slice(bytes);
        while let Some(len) = direct
            .scanner
            .poll(&direct.inbox)
            .map_err(|error| error.to_string())?
        {
            let value = direct.inbox.split_to(len).freeze();
            if value.starts_with(FULL)
                && let Some(name) = &shared.name
            {
                // Only a live store answers this. Earlier connections have seen which store it is.
                shared.alive = Some((name.run_id.clone(), shared.now));
                return Err("it takes no more connections".into());
            }
            if says_busy(&value) && direct.skip_own() {
                if let Some(name) = &shared.name {
                    shared.alive = Some((name.run_id.clone(), shared.now));
                }
                shared.busy.heard(&value, shared.now);
                continue;
            }
            if !direct.take_own(&value)? {
                return Err("it sent what nobody asked for".into());
            }
            if let Some(found) = &direct.found {
                shared.alive = Some((found.run_id.clone(), shared.now));
                shared.busy.over(shared.now);
            }
        }
        Ok(())
    }

    /// When the store last gave a sign of life here, or the connection was begun.
    #[must_use]
    pub fn proof(&self) -> Time {
        self.0.proof
    }
}

/// The store that the outcome of a barrier names, if it names one.
#[must_use]
pub fn named_by(outcome: Outcome) -> Option<StoreName> {
    match outcome {
        Outcome::Reply(reply) => store_name(&reply).ok(),
        _ => None,
    }
}
