//! Measurements, after those of the papers where they have them, one command for each.
//!
//! Purpose: figures that can be repeated by anybody with one machine. Invariants: what is compared is
//! measured in turn in one run; every figure names medium and R; every answer that is counted was
//! checked. May not: contain protocol, or hide what the machine limits.

pub mod micro;
pub mod pipeline;
pub mod traffic;
