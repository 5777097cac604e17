//! NACK: a session goes on elsewhere than the client thinks; NOT-LOGGED: there was no room.
//!
//! ```text
//!            24        32         40    48        56    64
//! Nack       | session | expected |     | refused |     |    |   byte 5: why; flag: UNKNOWN_SESSION
//! NotLogged  | session | seq      | token | room    |     |    |   byte 5: why; flags: SHORT, FULL
//! ```

use super::view;

/// Why the head ended a session by itself: byte 5 of a NACK with UNKNOWN_SESSION. A head that says so knows how far the session was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum LetGo {
    /// Its client said nothing for too long.
    Silent = 1,
    /// The head had no room for another session, and this one was silent.
    Crowded = 2,
    /// Its client was started again.
    Succeeded = 3,
    /// Its front had more sessions than its share, and another front needed a place.
    OverShare = 4,
}

impl LetGo {
    /// The reason that this byte gives; `None`: it gives none.
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

    /// The byte on the wire.
    #[must_use]
    pub const fn byte(self) -> u8 {
        self as u8
    }
}

view! {
    /// What the session is expected to continue with; or there is no such session.
    Nack = Nack {
        /// The session.
        session: session,
        /// The seq that is expected; 0 if the session is unknown. Of a session that the head has ended by itself: the seq of that END.
        expected: seq,
        /// Id of the bypass that is refused; 0: it was no bypass.
        refused: request,
        /// Why the head ended the session by itself ([`LetGo`]); 0: it did not, or it does not know.
        why: copies,
    }
    flags {
        /// There is no such session (any more).
        unknown_session: UNKNOWN_SESSION,
    }
}

view! {
    /// The update, or the OPEN, found no room.
    NotLogged = NotLogged {
        /// The session; 0: it was an OPEN.
        session: session,
        /// The update's seq.
        seq: seq,
        /// Of an OPEN, with keys: its token, whose tag this packet does not repeat; otherwise 0.
        token: order,
        /// Free entries of the head's log; of an OPEN 0, or with [`NotLogged::OTHER_PAYLOADS`] the kinds that the server takes.
        room: request,
        /// Of an OPEN: [`NotLogged::CROWDED`], [`NotLogged::OTHER_PAYLOADS`], or 0: another reason.
        why: copies,
    }
    flags {
        /// The store is short of room: the head admits no updates.
        short: SHORT,
        /// Its room is needed by the existing sessions: the head lets none begin.
        full: FULL,
    }
}

impl NotLogged {
    /// There are as many sessions as the head takes.
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
