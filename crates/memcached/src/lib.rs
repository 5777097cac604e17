//! The memcached front: unmodified memcached clients in, pmnet sessions out.
//!
//! Purpose: speaks memcached's text and meta protocol, over TCP and UDP, and translates it into the payload language that every store executes
//! ([`pmnet_wire::command`], [`pmnet_wire::item`]). A plain `set` is acknowledged as soon as the devices hold it; everything else is answered by the store.
//!
//! | module | what it does |
//! |---|---|
//! | [`request`] | finds commands in what clients send, as memcached 1.6.18 does |
//! | [`connection`] | one client without its socket: commands in, calls out, replies in the order of the commands |
//! | [`datagram`] | memcached's frame of UDP requests and replies |
//! | [`stats`] | what `stats` says |
//! | [`shell`] | the loop with all sockets |
//!
//! Invariants: only a `set` that no condition is tied to is acknowledged early; every queue is bounded by a named constant, and a full one stops reading
//! from its client; bad input gets an error and ends at most its connection. It may not know how calls travel: that is `pmnet-client`.

pub mod connection;
pub mod datagram;
pub mod request;
pub mod shell;
pub mod stats;

pub use shell::{Front, FrontConfig, FrontError, FrontTurn, Limits, Stopper};
