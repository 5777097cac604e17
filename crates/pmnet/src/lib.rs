//! The tools around pmnet: the subcommands of the one binary, and what tests and demo share.
//!
//! Purpose: start, load, kill, check and measure the real processes. Invariants: every wait has a
//! deadline; a judgement about data comes from a reader that goes straight to the database.
//! May not: contain protocol. What a packet means is decided in `wire`, `proto` and `device` only.

pub mod bench;
pub mod check;
pub mod cli;
pub mod clock;
pub mod demo;
pub mod doctor;
pub mod harness;
pub mod load;
pub mod resp;
pub mod testbed;
