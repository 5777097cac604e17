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
        /// Last seq of the session, as the bypass states it; for a fallback, the last seq of its update.
        seq: seq,
        /// A at the time of the answer. The store had applied at most these orders when it executed the bypass.
        applied: order,
        /// Id of the bypass; for a fallback, the first seq of its update.
        request: request,
        /// CRC32C of the whole reply, if the reply has several fragments; otherwise 0.
        reply_crc: key_hash,
        /// Part of the reply that the packet carries.
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
        /// Last seq of the session, as the bypass states it.
        seq: seq,
        /// Number of fragments of the bypass that have arrived without a gap.
        received: order,
        /// Id of the bypass; for a fallback, the first seq of its update.
        request: request,
    }
    flags {
        /// The packet is about a fallback.
        fallback: FALLBACK,
    }
}
