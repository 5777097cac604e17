//! DURABLE: how far the sender and the devices behind it hold the log.
//!
//! ```text
//!          24    32    40          48     56    64
//! Durable  |     |     | persisted | room |     |    |   byte 5: rows of the payload; flags: SHORT, FULL
//! ```
//! Payload: [`crate::record::DurableRow`]s (`docs/spec/wire.md` §5.1).

use super::view;

view! {
    /// The sender's whole log is durable up to `persisted`.
    Durable = Durable {
        /// Durable prefix of the sender.
        persisted: order,
        /// Entries that it can take now.
        room: request,
        /// Number of rows in the payload.
        rows: copies,
    }
    flags {
        /// The store is short of room: the head admits no updates.
        short: SHORT,
        /// Its room is needed by the existing sessions: the head lets none begin.
        full: FULL,
    }
}
