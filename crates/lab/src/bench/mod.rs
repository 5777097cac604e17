//! Benchmarks, one command for each, after those of the PMNet paper (protocol.md §8) where it has one.
//!
//! Purpose: figures that can be repeated on one machine. Invariants: systems that are compared are
//! measured in turn in one run; every figure names medium and R; every counted answer was checked. May
//! not: contain protocol, or hide the limits of the machine.

pub mod micro;
pub mod packets;
mod page;
pub mod pipeline;
pub mod redis;
pub mod traffic;

/// Of the last minute.
fn load_average() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let first = text.split_whitespace().next();
    first.unwrap_or("unknown").to_owned()
}
