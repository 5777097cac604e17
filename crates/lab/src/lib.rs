//! Tools that test, measure and show pmnet.
//!
//! Purpose: start, load, kill, check and measure the real processes. Invariants: every wait has a
//! deadline; a verdict about data comes from a reader that asks the database directly. This crate
//! must not contain code of the protocol: only `wire`, `proto` and `device` interpret packets. The
//! product must not depend on this crate.

pub mod attack;
pub mod bench;
pub mod check;
pub mod cli;
pub mod clock;
pub mod demo;
pub mod harness;
pub mod limit;
pub mod load;
pub mod resp;
pub mod setup;
pub mod testbed;
pub mod xdp;
