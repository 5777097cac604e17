//! Histories of operations on keys, and whether they are linearizable.
//!
//! Purpose: read what `pmnet-lab load` and the tests wrote down ([`Record`]), or take operations as
//! they are ([`Operation`]), and decide key by key whether one order of them explains every reply
//! and agrees with real time (`docs/spec/protocol.md` §10, invariant 4). The search is the one of
//! Wing & Gong with Lowe's memoisation, from the library `todc-utils`; a key at a time is enough,
//! because linearizability is a local property.
//!
//! Models: a *register* (SET, GET), a *counter* (INCR, GET), a *lock* (SET NX, release by its
//! owner, GET). An operation of unknown outcome may take effect at any time after its call, or
//! never. A history that could not be decided within its bound is *undecided*, which is no pass.
//!
//! May not: touch files, sockets or clocks; the bound is counted in bytes of search, so that the
//! same history gets the same verdict everywhere. Only [`read_records`] reads, from what it is
//! given.

mod check;
mod counter;
mod lock;
mod operation;
mod prefix;
mod record;
mod register;
mod search;
mod words;

pub use check::{KeyReport, Limits, Model, Report, Verdict, check};
pub use operation::{Action, Operation, OperationError, operations};
pub use record::{LINE_BYTES_MAX, Op, Outcome, ReadError, Record, read_records};
pub use words::describe;
