//! ACK: how far a session's updates are held by the whole chain.
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
        /// Free entries of the head's log.
        room: request,
        /// Highest seq of the session that is known to be applied; not above `seq`.
        applied: key_hash,
        /// Number of devices that hold these updates, which is the length of the chain.
        copies: copies,
    }
    flags {
        /// The store is short of space: the head admits no updates.
        short: SHORT,
    }
}
