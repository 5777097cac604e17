//! `libpmnet`: what `include/pmnet.h` declares, over the crates `client` and `server` (`docs/use/programs.md`).
//!
//! Purpose: hand values across the border to C and back. Invariants: nothing unwinds into C; no pointer of a program is kept after the
//! call; an object is a number in a table, so one that is closed, null, of another kind, in use by another thread or opened before a
//! fork is refused and never touched. May not: decide anything about the protocol.

#![allow(unsafe_code)]
// As C writes them.
#![allow(non_camel_case_types)]

mod client;
mod fault;
mod log;
mod memory;
mod server;
mod table;
