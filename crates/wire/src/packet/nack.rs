//! NACK: a session goes on elsewhere than the client thinks; NOT-LOGGED: there was no room.
//!
//! ```text
//!            24        32         40    48        56    64
//! Nack       | session | expected |     | refused |     |    |   flag: UNKNOWN_SESSION
//! NotLogged  | session | seq      |     | room    |     |    |   flags: SHORT, CROWDED
//! ```

use super::view;

view! {
    /// What the session is expected to continue with; or there is no such session.
    Nack = Nack {
        /// The session.
        session: session,
        /// The seq that is expected; 0 if the session is unknown.
        expected: seq,
        /// Id of the bypass that is refused; 0: it was no bypass.
        refused: request,
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
        /// Free entries of the head's log; of an OPEN 0.
        room: request,
    }
    flags {
        /// The store is short of room: the head admits no updates.
        short: SHORT,
        /// Its room is needed by the existing sessions: the head lets none begin.
        crowded: CROWDED,
    }
}
