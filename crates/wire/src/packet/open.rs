//! OPEN: a client asks for a session; OPEN-REPLY: it is committed.
//!
//! ```text
//!            24        32    40    48       56      64
//! Open       |         |     |     | client | start |   tag: the session's token; payload: the same again;
//!            |         |     |     |        |       |   byte 5: copies; flag: SEARCHES
//! OpenReply  | session | size |    | room   |       |   byte 5: copies; flag: SHORT
//! ```

use super::view;

/// Whether a session with this token is a *mark*: while it is open, something may change the store that passes no device
/// (`docs/spec/reads.md` §5). Other sessions have even tokens.
#[must_use]
pub const fn is_mark(token: u64) -> bool {
    token & 1 == 1
}

view! {
    /// A client asks for a session. Its token is the packet's tag, and once more the payload.
    Open = Open {
        /// The client accepts no acknowledgement of fewer devices. A chain that never had an entry, and is shorter, may still be in
        /// formation: it answers with session 0, and gives no session.
        copies: copies,
        /// Name of the client, if only one process at a time can have it; 0: it has none (`docs/spec/protocol.md` §4).
        client: request,
        /// Which start of that client this is: a later one has a higher number.
        start: key_hash,
    }
    flags {
        /// The client looks for the head: only a chain that has had entries takes it (`docs/spec/protocol.md` §3).
        searches: SEARCHES,
    }
}

view! {
    /// The OPEN is committed: the session may be used.
    OpenReply = OpenReply {
        /// The session: the order of its OPEN. 0: there is none, since the chain is shorter than the client wants.
        session: session,
        /// Size of fragments that every hop can carry, from the client on ([`FragmentSize::from_wire`](crate::FragmentSize::from_wire)).
        size: seq,
        /// Free entries of the head's log.
        room: request,
        /// Devices that hold the OPEN: the length of the chain.
        copies: copies,
    }
    flags {
        /// The store is short of room: the head admits no updates.
        short: SHORT,
    }
}
