//! `libpmnet`: implements the functions of `include/pmnet.h` with the crates `client` and `server`
//! (`docs/use/programs.md`).
//!
//! Purpose: passes values between C and Rust. Invariants: no panic unwinds into C. The library keeps no pointer of a
//! program after the call. A handle is a number in a table. So the library can refuse a handle without touching an
//! object. A refused handle is zero, was opened before a fork, or belongs to an object that is closed, of another kind,
//! or in use by another thread. Not allowed here: decisions about the protocol.

#![allow(unsafe_code)]
// The names of types follow the style of C.
#![allow(non_camel_case_types)]

mod client;
mod fault;
mod log;
mod memory;
mod server;
mod table;
