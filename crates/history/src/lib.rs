//! Histories of operations on keys, and the check whether they are linearizable.
//!
//! Purpose: reads histories that `pmnet-lab load` and the tests have recorded ([`Record`]), or takes operations
//! directly ([`Operation`]). Decides for each key whether one order of its operations explains every reply and agrees
//! with real time (`docs/spec/protocol.md` §10, invariant 4). The search is that of Wing & Gong with Lowe's
//! memoization, from the library `todc-utils`. Each key can be checked separately, because a history is linearizable if
//! and only if its part for each key is.
//!
//! Models: a *register* (SET, GET), a *counter* (INCR, GET), a *lock* (SET NX, release by its owner, GET). An operation
//! of unknown outcome may take effect at any time after its call, or never. A history that could not be decided within
//! its bound is *undecided*, and does not pass the check.
//!
//! Not allowed here: files, sockets and clocks. The bound counts bytes that the search remembers, so that the same
//! history gets the same verdict on every machine. Only [`read_records`] reads, and only from the source that its
//! caller gives it.

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
