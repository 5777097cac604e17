//! The status port: one thread that shows the state of a process's loops.
//!
//! Purpose: metrics in the text formats of OpenMetrics and Prometheus (`/metrics`), whether the process is alive and
//! ready (`/livez`, `/readyz`), its state as JSON (`/api/v1/status`), and a page that draws the state (`/`). Once in
//! each turn, a loop publishes its numbers in a [`Board`], with plain stores of words that only this loop writes. For
//! this the loop takes no lock, reads no clock, makes no system call, and never waits for a reader. Bounds:
//! [`CONNECTIONS_MAX`] connections, [`HEAD_BYTES_MAX`] bytes of a request, [`HANDSHAKE_MAX`] for a handshake,
//! [`REQUEST_MAX`] for a request and [`LIFE_MAX`] for a connection. A request above these bounds gets an error. If
//! there are too many connections, a new connection displaces a connection whose client has not shown a certificate. If
//! all clients have shown certificates, the new connection waits. Not allowed here: knowing what a number means, and
//! changing anything in the process.

mod board;
mod connection;
mod guard;
mod host;
mod json;
mod metric;
mod page;
mod pulse;
mod server;
mod source;
mod text;

pub use board::{Board, Histogram, Shot};
pub use connection::{HANDSHAKE_MAX, HEAD_BYTES_MAX, LIFE_MAX, REQUEST_MAX};
pub use guard::Guard;
pub use metric::{Kind, Metric, Sample, Value};
pub use pulse::{Alive, SILENCE_MAX};
pub use server::{CONNECTIONS_MAX, Place, StatusPort};
pub use source::{About, Advice, Look, Shown, Source};
