//! The front's connections to Redis, without their sockets: the questions on each, and the meaning of the
//! answers.
//!
//! Invariants: the front sends a client's commands only to the Redis that the pmnet server uses
//! ([`identity`]). A value that answers no question ends its connection.
//! Not allowed here: sockets and clocks.

mod address;
pub(crate) mod changes;
mod heart;
pub(crate) mod identity;
pub(crate) mod line;
pub(crate) mod reads;
pub(crate) mod rights;

pub use address::{StoreAddress, StoreAddressError};
pub(crate) use heart::{Heart, named_by};
