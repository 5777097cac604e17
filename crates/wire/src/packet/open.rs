//! OPEN: a client asks for a session; OPEN-REPLY: it is committed.
//!
//! ```text
//!            24        32    40    48       56   64
//! Open       |         |     |     |        |    |   tag: the session's token; payload: the same again
//! OpenReply  | session |     |     | room   |    |   byte 5: copies
//! ```

use super::view;

view! {
    /// A client asks for a session. Its token is the packet's tag, and once more the payload.
    Open = Open {}
}

view! {
    /// The OPEN is committed: the session may be used.
    OpenReply = OpenReply {
        /// The session: the order of its OPEN.
        session: session,
        /// Free entries of the head's log.
        room: request,
        /// Devices that hold the OPEN: the length of the chain.
        copies: copies,
    }
}
