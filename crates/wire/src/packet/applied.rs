//! APPLIED: how far the server's store is.
//!
//! ```text
//!          24    32    40        48     56    64
//! Applied  |     | received | applied | room | |    |   flags: SHORT, FULL
//! ```

use super::view;

view! {
    /// The store has everything up to `applied`, durably.
    Applied = Applied {
        /// A: everything up to here is applied.
        applied: order,
        /// The server has all entries up to here, applied or not; 0: it is not said.
        received: seq,
        /// Entries that the server can take now; between devices 0.
        room: request,
    }
    flags {
        /// The store is short of room: the head admits no updates.
        short: SHORT,
        /// Its room is needed by the existing sessions: the head lets none begin.
        full: FULL,
    }
}
