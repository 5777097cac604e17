//! `libpmnet`: implements the functions of `include/pmnet.h` with the crates `client` and `server`
//! (`docs/use/programs.md`).
//!
//! Purpose: passes values between C and Rust. Invariants: no panic unwinds into C. The library keeps no pointer of a
//! program after the call. A handle is a number in a table. So the library can refuse a handle without touching an
//! object. It refuses a handle in these cases: the handle is zero; the handle was opened before a fork; the object is
//! closed; the object is of another kind; another thread is using the object. Not allowed here: decisions about the protocol.

#![allow(unsafe_code)]
// The names of types follow the style of C.
#![allow(non_camel_case_types)]

mod client;
mod fault;
mod log;
mod memory;
mod server;
mod table;
