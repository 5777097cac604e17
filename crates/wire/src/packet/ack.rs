//! ACK: up to which seq the whole chain holds a session's updates.
//!
//! ```text
//!      24        32    40          48     56        64
//! Ack  | session | seq | committed | room | applied |    |   byte 5: copies; flag: SHORT
//! ```

use super::view;

view! {
    /// `copies` devices hold all updates of this session up to `seq`.
    Ack = Ack {
        /// The session.
        session: session,
        /// Highest committed seq of the session.
        seq: seq,
        /// Highest committed order of the shard.
        committed: order,
        /// Number of entries that the head's log can still take.
        room: request,
        /// Highest seq of the session that is known to be applied; it is at most `seq`.
        applied: key_hash,
        /// Number of devices that hold these updates, which is the length of the chain.
        copies: copies,
    }
    flags {
        /// The store is short of space: the head admits no updates.
        short: SHORT,
    }
}
