//! APPLIED: the order up to which the server's store has applied the log.
//!
//! ```text
//!          24    32    40        48     56    64
//! Applied  |     | received | applied | room | |    |   flags: SHORT, FULL
//! ```

use super::view;

view! {
    /// The store has durably applied all orders up to `applied`.
    Applied = Applied {
        /// A: all orders up to this order are applied.
        applied: order,
        /// The server has received all entries up to this order, applied or not; 0: not stated.
        received: seq,
        /// Number of entries that the server can take now; 0 between devices.
        room: request,
    }
    flags {
        /// The store is short of space: the head admits no updates.
        short: SHORT,
        /// The existing sessions need the store's space: the head admits no new session.
        full: FULL,
    }
}
