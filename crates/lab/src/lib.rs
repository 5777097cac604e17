//! The tools around pmnet: what tests, measures and shows it.
//!
//! Purpose: start, load, kill, check and measure the real processes. Invariants: every wait has a
//! deadline; a judgement about data comes from a reader that goes straight to the database.
//! May not: contain protocol, or be needed by the product. What a packet means is decided in `wire`, `proto`
//! and `device` only.

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
