//! The half of a client that concerns the store after the chain: calls, packs, reads, own writes, and commands that pass through on
//! a connection of the client's own.

pub(in crate::client) mod again;
pub(in crate::client) mod beside;
pub(in crate::client) mod calls;
pub(in crate::client) mod confirm;
pub(in crate::client) mod direct;
pub(in crate::client) mod embedded;
mod fence;
pub(in crate::client) mod mark;
pub(in crate::client) mod own_keys;
pub(in crate::client) mod own_write;
pub(in crate::client) mod pack;
pub(in crate::client) mod pass;
pub(in crate::client) mod passage;
pub(in crate::client) mod passing;
pub(in crate::client) mod read_before;
pub(in crate::client) mod reads;
pub(in crate::client) mod replicas;
mod subscription;
