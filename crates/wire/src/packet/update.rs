//! UPDATE and END: packets of a client that become entries of the log.
//!
//! ```text
//!         24        32    40    48    56         64
//! Update  | session | seq |     |     | key_hash | fragment |
//! End     | session | seq |     |     |          |          |
//! ```

use super::view;

view! {
    /// A nilext update of a session, or a fragment of one.
    Update = Update {
        /// The session.
        session: session,
        /// Sequence number within the session, from 1. Each fragment of an update has its own seq.
        seq: seq,
        /// Hash of the key that the update changes; 0: unknown, or several keys.
        key_hash: key_hash,
        /// Part of the update that this packet carries.
        fragment: fragment,
    }
}

view! {
    /// The session ends after its last update.
    End = End {
        /// The session.
        session: session,
        /// Last seq of the session plus 1.
        seq: seq,
    }
}
