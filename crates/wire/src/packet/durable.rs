//! DURABLE: for the sender and each device after it, the order up to which the device's log is durable.
//!
//! ```text
//!          24    32    40          48     56    64
//! Durable  |     |     | persisted | room |     |    |   byte 5: rows of the payload; flags: SHORT, FULL
//! ```
//! Payload: [`crate::record::DurableRow`]s (`docs/spec/wire.md` §5.1).

use super::view;

view! {
    /// The sender's log is durable up to `persisted`.
    Durable = Durable {
        /// Order up to which the sender's log is durable.
        persisted: order,
        /// Number of entries that the sender can take now.
        room: request,
        /// Number of rows in the payload.
        rows: copies,
    }
    flags {
        /// The store is short of space: the head admits no updates.
        short: SHORT,
        /// The existing sessions need the store's space: the head admits no new session.
        full: FULL,
    }
}
