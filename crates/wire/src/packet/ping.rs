//! PING, PONG and STALE-EPOCH: packets with almost no content.
//!
//! ```text
//!             24        32    40    48       56      64
//! Ping        | session |     |     | client | start |   between hops: 0; with keys `client` is the shard token
//! Pong        | session | size | expected | |       |
//! StaleEpoch  |         |     |     |        |       |
//! ```

use super::view;

view! {
    /// Asks for an answer. From a client: the session is still wanted. From a hop: the next hop shall state its
    /// progress.
    Ping = Ping {
        /// The session; 0 between hops.
        session: session,
        /// Client, as in OPEN: a head that did not see the OPEN learns it from the PING. Between hops with keys: the
        /// shard token (`docs/spec/keys.md` §3).
        client: request,
        /// Start, as in OPEN.
        start: key_hash,
    }
}

view! {
    /// The head knows the session.
    Pong = Pong {
        /// The session.
        session: session,
        /// Size of fragments, as in OPEN-REPLY.
        size: seq,
        /// The seq with which the session continues at the head; 0: not stated.
        expected: order,
    }
}

view! {
    /// The receiver's epoch is lower than the sender's.
    StaleEpoch = StaleEpoch {}
}
