//! The front's connections to Redis, without their sockets: what is asked on each, and what the answers mean.
//!
//! Invariants: nothing of a client is asked of another Redis than the pmnet server uses ([`identity`]); what nobody asked for ends
//! a connection.
//! It may not touch sockets or clocks.

mod address;
pub(crate) mod changes;
mod heart;
pub(crate) mod identity;
pub(crate) mod line;
pub(crate) mod reads;
pub(crate) mod rights;

pub use address::{StoreAddress, StoreAddressError};
pub(crate) use heart::{Heart, named_by};
