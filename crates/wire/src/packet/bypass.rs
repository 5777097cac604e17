//! BYPASS: a request for the server. FALLBACK: an update that a client sends to the server because the log had no room
//! for it.
//!
//! ```text
//!           24        32         40        48          56         64
//! Bypass    | session | last_seq | barrier | request   | key_hash | fragment |   byte 5: time left; flags: READ_ONLY, CONTINUE,
//!                                                                         and what its client can receive
//! Fallback  | session | last_seq | barrier | first_seq | key_hash | fragment |   flag: FALLBACK
//! ```
//! A client sends barrier 0. The head writes the barrier, and stamps the packet (`docs/spec/protocol.md` §2 rule 8).

use super::{Stamp, view};
use crate::Header;
use core::fmt;

/// Time until the deadline of a bypass's caller, in one byte.
///
/// A floating-point number of milliseconds with three bits of mantissa: byte b > 0 stands for `(8 + m) << e` eighths of
/// a millisecond, where `e = (b - 1) / 8` and `m = (b - 1) % 8`. So 1 is one millisecond, and 255 is about 46 days. 0:
/// no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimeLeft(u8);

/// Nanoseconds in the unit, an eighth of a millisecond.
const UNIT_NANOS: u64 = 125_000;

impl TimeLeft {
    /// No limit.
    pub const NO_LIMIT: TimeLeft = TimeLeft(0);

    /// Encodes a number of nanoseconds, rounded up by less than an eighth. A time below a millisecond is encoded as one
    /// millisecond, and a time beyond the longest time as the longest time, never as [`TimeLeft::NO_LIMIT`].
    #[must_use]
    pub fn of_nanos(nanos: u64) -> TimeLeft {
        let units = nanos.div_ceil(UNIT_NANOS).max(8);
        // After a shift by the exponent, the number has four bits, of which the highest is set.
        let exponent = 60 - units.leading_zeros();
        let rounded = units.div_ceil(1 << exponent);
        let number = u64::from(exponent) * 8 + (rounded - 8) + 1;
        TimeLeft(u8::try_from(number).unwrap_or(u8::MAX))
    }

    /// Returns the time in nanoseconds; `None`: no limit.
    #[must_use]
    pub fn nanos(self) -> Option<u64> {
        let number = u64::from(self.0.checked_sub(1)?);
        Some((8 + number % 8) << (number / 8)).map(|units| units * UNIT_NANOS)
    }

    /// Returns the byte on the wire.
    #[must_use]
    pub const fn byte(self) -> u8 {
        self.0
    }

    /// Returns the time that this byte on the wire states.
    #[must_use]
    pub const fn from_byte(byte: u8) -> TimeLeft {
        TimeLeft(byte)
    }
}

impl fmt::Display for TimeLeft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.nanos() {
            None => f.write_str("without limit"),
            Some(nanos) => write!(f, "{} ms", nanos / 1_000_000),
        }
    }
}

view! {
    /// A request for the server, which is executed after all updates that were acknowledged before it was sent.
    Bypass = Bypass {
        /// The session.
        session: session,
        /// Last seq that the session had used when it sent the bypass.
        last_seq: seq,
        /// Last order of the head when the head stamped the packet; 0: not stamped yet.
        barrier: order,
        /// Id of the bypass, from 1, rising within the session.
        request: request,
        /// Hash of the key that the bypass concerns; 0: unknown, or several keys.
        key_hash: key_hash,
        /// Time until the deadline of the bypass's caller.
        left: left,
        /// Part of the request that the packet carries; with CONTINUE, first part of the reply that the client wants.
        fragment: fragment,
    }
    flags {
        /// The request changes nothing, and may be executed again.
        read_only: READ_ONLY,
        /// The packet asks for further fragments of a reply.
        more: CONTINUE,
    }
}

view! {
    /// An update that was not logged, and is sent to the server. If the payload is empty, the packet only asks for the
    /// confirmation.
    Fallback = Bypass, FALLBACK {
        /// The session.
        session: session,
        /// Last seq of the update.
        last_seq: seq,
        /// Last order of the head when the head stamped the packet; 0: not stamped yet.
        barrier: order,
        /// First seq of the update.
        first_seq: request,
        /// Hash of the key, as the update states it.
        key_hash: key_hash,
        /// Part of the update that the packet carries.
        fragment: fragment,
    }
}

impl Bypass {
    /// Returns a client's bypass or fallback with the head's stamp and last order, and otherwise unchanged.
    #[must_use]
    pub fn stamped(asked: &Header, barrier: u64, stamp: &Stamp) -> Header {
        Header {
            order: barrier,
            epoch: stamp.epoch,
            device: stamp.device,
            incarnation: stamp.incarnation,
            tag: stamp.tag,
            ..*asked
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_the_byte_of_its_own_time() {
        assert_eq!(TimeLeft::NO_LIMIT.nanos(), None);
        for byte in 1..=u8::MAX {
            let nanos = TimeLeft::from_byte(byte).nanos().expect("a limit");
            assert_eq!(TimeLeft::of_nanos(nanos).byte(), byte);
            if byte < u8::MAX {
                assert_eq!(
                    TimeLeft::of_nanos(nanos + 1).byte(),
                    byte + 1,
                    "never rounded down"
                );
            }
        }
    }

    #[test]
    fn rounding_is_up_and_by_less_than_an_eighth() {
        let mut nanos: u64 = 1_000_000;
        while nanos < 40 * 86_400 * 1_000_000_000 {
            for near in [nanos - 1, nanos, nanos + 1] {
                let shown = TimeLeft::of_nanos(near).nanos().expect("a limit");
                assert!(
                    near <= shown && shown - near <= near / 8 + UNIT_NANOS,
                    "{near}"
                );
            }
            nanos += nanos / 5;
        }
        let bytes = [0, 1, u64::MAX].map(|nanos| TimeLeft::of_nanos(nanos).byte());
        assert_eq!(bytes, [1, 1, 255]);
    }

    #[test]
    fn it_says_how_long() {
        let shown =
            [TimeLeft::NO_LIMIT, TimeLeft::of_nanos(5_000_000)].map(|left| left.to_string());
        assert_eq!(shown, ["without limit", "5 ms"]);
    }
}
