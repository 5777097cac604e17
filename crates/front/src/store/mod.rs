//! The front's connections to Redis, without their sockets: the questions on each connection, and the meaning of the
//! answers.
//!
//! Invariants: the front sends a client's commands only to the Redis that the pmnet server uses ([`identity`]). If a
//! value answers no question, the connection on which it came is ended. Not allowed here: sockets and clocks.

mod address;
pub(crate) mod changes;
mod heart;
pub(crate) mod identity;
pub(crate) mod line;
pub(crate) mod reads;
pub(crate) mod rights;

pub use address::{StoreAddress, StoreAddressError};
pub(crate) use heart::{Heart, named_by};
