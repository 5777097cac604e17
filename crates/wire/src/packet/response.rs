//! RESPONSE: the server's answer to a bypass; PROGRESS: how much of the bypass has come.
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
        /// As in the bypass; of a fallback the last seq of its update.
        seq: seq,
        /// A when the server answered: at least as far as the store was when it executed the bypass.
        applied: order,
        /// As in the bypass; of a fallback the first seq of its update.
        request: request,
        /// CRC32C of the whole reply, if it has several fragments; else 0.
        reply_crc: key_hash,
        /// Which part of the reply this is.
        fragment: fragment,
    }
    flags {
        /// It confirms that an update was applied by fallback.
        fallback: FALLBACK,
    }
}

view! {
    /// No answer yet: how much of the bypass has arrived.
    Progress = Response, PROGRESS {
        /// The session.
        session: session,
        /// As in the bypass.
        seq: seq,
        /// Fragments that have arrived without a gap.
        received: order,
        /// As in the bypass.
        request: request,
    }
    flags {
        /// It is about a fallback.
        fallback: FALLBACK,
    }
}
