//! Fuzz targets: functions that take bytes and panic when an invariant is violated.
//!
//! Purpose: every reader of untrusted bytes, and every machine under arbitrary sequences of
//! operations, in a form that a fuzz engine can drive (`fuzz/run.sh`) and a plain test can replay
//! (`tests/replay.rs`). Invariants: a target is a pure function of its bytes (no clock, no
//! randomness, no files, no network), bounded in work and memory. No target depends on an engine.

pub mod chain;
pub mod client;
pub mod commands;
pub mod config;
pub mod device;
pub mod front;
pub mod history;
pub mod input;
pub mod log;
pub mod medium;
pub mod memcached;
pub mod packet_store;
pub mod payload;
pub mod peers;
pub mod resp;
pub mod server;
pub mod store;
pub mod wire;

/// A target: its name and its function.
pub type Target = (&'static str, fn(&[u8]));

/// All targets; a target's name is that of its corpus.
pub const TARGETS: &[Target] = &[
    ("wire", wire::run),
    ("payload", payload::run),
    ("resp", resp::run),
    ("log_image", log::image::run),
    ("log_operations", log::operations::run),
    ("slot_image", log::slots::run),
    ("packet_store_image", packet_store::run),
    ("shared_region", packet_store::region::run),
    ("device_operations", device::run),
    ("device_in_place", device::run_in_place),
    ("client_operations", client::run),
    ("server_operations", server::run),
    ("chain_operations", chain::run),
    ("redis_front", front::run),
    ("memcached", memcached::run),
    ("commands", commands::run),
    ("config", config::run),
    ("history", history::run),
];

/// Returns the target with this name.
#[must_use]
pub fn target(name: &str) -> Option<fn(&[u8])> {
    TARGETS
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, run)| *run)
}
