//! Tools that test, measure and show pmnet.
//!
//! Purpose: start, load, kill, check and measure the real processes. Invariants: every wait has a
//! deadline; a verdict about data comes from a reader that asks the database directly. May not:
//! contain protocol, or be needed by the product. Only `wire`, `proto` and `device` interpret
//! packets.

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
