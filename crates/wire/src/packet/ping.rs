//! PING, PONG and STALE-EPOCH: packets with few fields.
//!
//! ```text
//!             24        32    40    48       56      64
//! Ping        | session |     |     | client | start |   between hops: 0; with keys `client` is the shard token
//! Pong        | session | size | expected | |       |
//! StaleEpoch  |         |     |     |        |       |
//! ```

use super::view;

view! {
    /// Asks for an answer. A client also shows by a PING that it still needs its session. A hop asks the next hop by a
    /// PING to state its progress.
    Ping = Ping {
        /// The session; 0 between hops.
        session: session,
        /// Name of the client, as in the OPEN, for a head that has not received the OPEN. Between hops with keys: the
        /// shard token (`docs/spec/keys.md` §3).
        client: request,
        /// The client's start number, as in the OPEN.
        start: key_hash,
    }
}

view! {
    /// The answer to a PING: the head knows the session.
    Pong = Pong {
        /// The session.
        session: session,
        /// Size of the shard's fragments, as in OPEN-REPLY.
        size: seq,
        /// Seq with which the session must continue; 0: not stated.
        expected: order,
    }
}

view! {
    /// The receiver's epoch is lower than the sender's.
    StaleEpoch = StaleEpoch {}
}
