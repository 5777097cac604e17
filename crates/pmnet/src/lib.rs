//! The product: the subcommands of its one binary.
//!
//! Purpose: read what an operator says, start the roles, look at their logs and state. May not: contain
//! protocol (what a packet means is decided in `wire`, `proto` and `device` only), measure or simulate.

pub mod cli;
pub mod doctor;
