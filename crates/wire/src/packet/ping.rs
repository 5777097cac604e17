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
    /// Is somebody there? A session is still wanted; or a hop asks how far the next one is.
    Ping = Ping {
        /// The session; 0: between hops.
        session: session,
        /// As in OPEN: a head that did not see the OPEN learns it so. Between hops with keys: the shard token (`docs/spec/keys.md` §3).
        client: request,
        /// As in OPEN.
        start: key_hash,
    }
}

view! {
    /// The head knows the session.
    Pong = Pong {
        /// The session.
        session: session,
        /// As in OPEN-REPLY.
        size: seq,
        /// The seq with which the session goes on at the head. 0: it is not said.
        expected: order,
    }
}

view! {
    /// The receiver's epoch is lower than the sender's.
    StaleEpoch = StaleEpoch {}
}
