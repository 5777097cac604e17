//! The memcached front: it serves unmodified memcached clients through pmnet sessions.
//!
//! Purpose: speaks memcached's text and meta protocol over TCP and UDP, and translates it into the payload language
//! that every store executes ([`pmnet_wire::command`], [`pmnet_wire::item`]). A plain `set` is acknowledged as soon as
//! it is durable in the devices. The store answers all other commands.
//!
//! | module | what it does |
//! |---|---|
//! | [`request`] | parses the commands in clients' bytes, as memcached 1.6.18 does |
//! | [`connection`] | one client without its socket: takes commands, makes calls, returns replies in the order of the commands |
//! | [`datagram`] | memcached's frame of UDP requests and replies |
//! | [`stats`] | the answers to `stats` |
//! | [`shell`] | the loop with all sockets |
//!
//! Invariants: only a `set` without a condition is acknowledged early. Every queue is bounded by a named constant, and
//! a full queue stops the reading from its client. Bad input gets an error and ends at most its connection. Not known
//! here: how calls travel. The crate `pmnet-client` knows this.

pub mod connection;
pub mod datagram;
pub mod request;
pub mod shell;
pub mod stats;

pub use shell::{Front, FrontConfig, FrontError, FrontTurn, Limits, Stopper};
