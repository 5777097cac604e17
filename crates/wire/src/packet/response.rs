//! RESPONSE: the server's answer to a bypass. PROGRESS: how much of the bypass has arrived.
//!
//! ```text
//!           24        32    40         48        56          64
//! Response  | session | seq | applied  | request | reply_crc | fragment |   flag: FALLBACK
//! Progress  | session | seq | received | request |           |          |   flags: PROGRESS, FALLBACK
//! ```

use super::view;

view! {
    /// The reply to a bypass, or a fragment of it; the confirmation of a fallback.
    Response = Response {
        /// The session.
        session: session,
        /// Last seq, as in the bypass; for a fallback, the last seq of its update.
        seq: seq,
        /// A when the server answered, which is not below the store's order when it executed the bypass.
        applied: order,
        /// Id, as in the bypass; for a fallback, the first seq of its update.
        request: request,
        /// CRC32C of the whole reply if it has several fragments, else 0.
        reply_crc: key_hash,
        /// Which part of the reply this is.
        fragment: fragment,
    }
    flags {
        /// The packet confirms that an update was applied by fallback.
        fallback: FALLBACK,
    }
}

view! {
    /// Not an answer yet: states how much of the bypass has arrived.
    Progress = Response, PROGRESS {
        /// The session.
        session: session,
        /// Last seq, as in the bypass.
        seq: seq,
        /// Number of fragments that have arrived without a gap.
        received: order,
        /// Id, as in the bypass.
        request: request,
    }
    flags {
        /// The packet is about a fallback.
        fallback: FALLBACK,
    }
}
