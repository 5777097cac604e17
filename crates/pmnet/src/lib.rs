//! The product: one binary with all its subcommands.
//!
//! Purpose: read the operator's settings, start the roles, and inspect their logs and state. Not allowed here: parts of
//! the protocol (only `wire`, `proto` and `device` decide what a packet means), measurement and simulation.

#![deny(clippy::print_stdout, clippy::print_stderr)]

mod ask;
pub mod cli;
pub mod doctor;
mod memory_limit;
pub mod status;
mod top;
