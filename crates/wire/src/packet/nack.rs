//! NACK: a session must continue with another seq than the client has sent, or does not exist. NOT-LOGGED: the log has
//! no room.
//!
//! ```text
//!            24        32         40    48        56    64
//! Nack       | session | expected |     | refused |     |    |   byte 5: why; flag: UNKNOWN_SESSION
//! NotLogged  | session | seq      | token | room    |     |    |   byte 5: why; flags: SHORT, FULL
//! ```

use super::view;

/// Reason why the head has ended a session on its own: byte 5 of a NACK with UNKNOWN_SESSION. A head that states a
/// reason also knows the session's last seq.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum LetGo {
    /// The client was silent for too long.
    Silent = 1,
    /// The head had no room for another session, and this session was silent.
    Crowded = 2,
    /// The client was started again.
    Succeeded = 3,
    /// The client's front had more sessions than its share, and another front needed a place.
    OverShare = 4,
}

impl LetGo {
    /// Returns the reason in this byte; `None`: the byte states no reason.
    #[must_use]
    pub const fn from_byte(byte: u8) -> Option<LetGo> {
        match byte {
            1 => Some(LetGo::Silent),
            2 => Some(LetGo::Crowded),
            3 => Some(LetGo::Succeeded),
            4 => Some(LetGo::OverShare),
            _ => None,
        }
    }

    /// Returns the byte on the wire.
    #[must_use]
    pub const fn byte(self) -> u8 {
        self as u8
    }
}

view! {
    /// States with which seq the session must continue, or that the session does not exist.
    Nack = Nack {
        /// Id of the session.
        session: session,
        /// Seq with which the session must continue; 0: the session is unknown. If the head has ended the session on
        /// its own: seq of the session's END.
        expected: seq,
        /// Id of the refused bypass; 0: no bypass was refused.
        refused: request,
        /// Why the head has ended the session on its own ([`LetGo`]); 0: the head has not ended the session, or does
        /// not know the reason.
        why: copies,
    }
    flags {
        /// The session does not exist, or no longer exists.
        unknown_session: UNKNOWN_SESSION,
    }
}

view! {
    /// The log has no room for the update or the OPEN.
    NotLogged = NotLogged {
        /// Id of the session; 0: the answer is about an OPEN.
        session: session,
        /// Seq of the update.
        seq: seq,
        /// For an OPEN with keys: the token of the OPEN, because this packet's tag is a MAC. Otherwise 0.
        token: order,
        /// Answer to an update: number of entries that the head's log can still take. Answer to an OPEN: 0 or, with
        /// [`NotLogged::OTHER_PAYLOADS`], the kinds of payloads that the server takes.
        room: request,
        /// Answer to an OPEN: [`NotLogged::CROWDED`], [`NotLogged::OTHER_PAYLOADS`], or 0 for another reason.
        why: copies,
    }
    flags {
        /// The store is short of space: the head admits no updates.
        short: SHORT,
        /// The existing sessions need the store's space: the head admits no new session.
        full: FULL,
    }
}

impl NotLogged {
    /// The head has its maximum number of sessions.
    pub const CROWDED: u8 = 1;
    /// The server does not take payloads of the client's kind.
    pub const OTHER_PAYLOADS: u8 = 2;
}

#[cfg(test)]
mod tests {
    use super::LetGo;

    #[test]
    fn every_byte_is_the_byte_of_its_reason_or_says_nothing() {
        let known: Vec<u8> = (0..=u8::MAX)
            .filter(|&byte| LetGo::from_byte(byte).is_some())
            .collect();
        assert_eq!(known, [1, 2, 3, 4]);
        for byte in known {
            assert_eq!(LetGo::from_byte(byte).map(LetGo::byte), Some(byte));
        }
    }
}
