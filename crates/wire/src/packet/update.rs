//! UPDATE and END: packets of a client that are logged.
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
        /// Its place within the session, from 1; each fragment has its own.
        seq: seq,
        /// Hash of the key that it touches; 0: unknown, or several.
        key_hash: key_hash,
        /// Which part of the update this is.
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
