//! OPEN: a client asks for a session. OPEN-REPLY: the session is committed.
//!
//! ```text
//!            24        32     40         48       56      64
//! Open       |         |      | payloads | client | start |   tag: the session's token; payload: the same again;
//!            |         |      |          |        |       |   byte 5: copies; flag: SEARCHES
//! OpenReply  | session | size | token    | room   |       |   byte 5: copies; flag: SHORT
//! ```

use super::view;
use crate::FrontId;

/// Token and front of a session: the payload of an OPEN and of its entry; with keys also of a client's PING
/// (`docs/spec/keys.md` §2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The session's token.
    pub token: u64,
    /// Front of the session, if the shard has keys.
    pub front: Option<FrontId>,
}

/// The bytes of an [`Identity`]: 8 without a front, 16 with one.
#[derive(Clone, Copy, Debug)]
pub struct IdentityBytes {
    bytes: [u8; 16],
    used: usize,
}

impl core::ops::Deref for IdentityBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[..self.used]
    }
}

impl Identity {
    /// Identity of packets and entries that do not begin a session.
    pub const NOBODY: Identity = Identity {
        token: 0,
        front: None,
    };

    /// Returns the identity in a payload; `None` if the payload is no identity.
    #[must_use]
    pub fn read(payload: &[u8]) -> Option<Identity> {
        let (token, front) = payload.split_first_chunk::<8>()?;
        let front = match front {
            [] => None,
            front => Some(FrontId::new(u64::from_be_bytes(front.try_into().ok()?))?),
        };
        Some(Identity {
            token: u64::from_be_bytes(*token),
            front,
        })
    }

    /// Returns the identity as bytes.
    #[must_use]
    pub fn write(&self) -> IdentityBytes {
        let front = self.front.map_or(0, FrontId::get);
        let number = u128::from(self.token) << 64 | u128::from(front);
        IdentityBytes {
            bytes: number.to_be_bytes(),
            used: if self.front.is_some() { 16 } else { 8 },
        }
    }
}

/// Returns whether a session with this token is a *mark*: while the session is open, changes that pass no device may
/// reach the store (`docs/spec/reads.md` §5). Other sessions have even tokens.
#[must_use]
pub const fn is_mark(token: u64) -> bool {
    token & 1 == 1
}

view! {
    /// A client asks for a session. Its token is in the packet's tag, and in the payload as well.
    Open = Open {
        /// Smallest number of devices whose acknowledgement the client accepts. A shorter chain that never had an entry
        /// may still be in formation, so it answers with session 0 and opens no session.
        copies: copies,
        /// Kind of the session's payloads ([`Payloads::from_wire`](crate::Payloads::from_wire)); 0: not stated.
        payloads: order,
        /// Name of the client, if only one process at a time may use it; 0: no name (`docs/spec/protocol.md` §4).
        client: request,
        /// Number of the client's start: a later start has a higher number.
        start: key_hash,
    }
    flags {
        /// The client searches for the head. A chain that never had an entry drops such an OPEN
        /// (`docs/spec/protocol.md` §3).
        searches: SEARCHES,
    }
}

view! {
    /// The OPEN is committed: the session may be used.
    OpenReply = OpenReply {
        /// Id of the session: the order of its OPEN. 0: no session, because the chain is shorter than the client
        /// demands.
        session: session,
        /// Size of fragments that every hop from the client on can carry
        /// ([`FragmentSize::from_wire`](crate::FragmentSize::from_wire)).
        size: seq,
        /// Number of entries that the head's log can still take.
        room: request,
        /// With keys: the token of the OPEN, because this packet's tag is a MAC. Otherwise 0.
        token: order,
        /// Number of devices that hold the OPEN, which is the length of the chain.
        copies: copies,
    }
    flags {
        /// The store is short of space: the head admits no updates.
        short: SHORT,
    }
}
