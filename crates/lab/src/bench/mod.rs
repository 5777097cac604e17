//! Measurements, after those of the papers where they have them, one command for each.
//!
//! Purpose: figures that can be repeated by anybody with one machine. Invariants: what is compared is
//! measured in turn in one run; every figure names medium and R; every answer that is counted was
//! checked. May not: contain protocol, or hide what the machine limits.

pub mod micro;
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
