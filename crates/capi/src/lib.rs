//! `libpmnet`: implements the functions of `include/pmnet.h` with the crates `client` and `server`
//! (`docs/use/programs.md`).
//!
//! Purpose: passes values from C to Rust and back.
//! Invariants: no panic unwinds into C. No pointer of a program is kept after the call. An object is a number
//! in a table. So an object that is closed, null, of another kind, in use by another thread, or opened before
//! a fork is refused and never touched.
//! Not allowed here: deciding anything about the protocol.

#![allow(unsafe_code)]
// Names are written as in C.
#![allow(non_camel_case_types)]

mod client;
mod fault;
mod log;
mod memory;
mod server;
mod table;
