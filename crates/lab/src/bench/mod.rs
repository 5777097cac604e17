//! Benchmarks. Each benchmark has a command of its own. Some benchmarks repeat those of the PMNet
//! paper (protocol.md §8).
//!
//! Purpose: figures that can be repeated on one machine. Invariants: systems that are compared are
//! measured in turn in one run; every figure names medium and R; every counted answer was checked.
//! A benchmark must not contain code of the protocol, and must not hide the limits of the machine.

pub mod micro;
pub mod packets;
mod page;
pub mod pipeline;
pub mod redis;
pub mod traffic;

/// Returns the load average of the last minute as text.
fn load_average() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let first = text.split_whitespace().next();
    first.unwrap_or("unknown").to_owned()
}
