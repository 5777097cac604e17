//! Which commands may be acknowledged before Redis has seen them (protocol.md §1 "nilext").
//!
//! The reply says nothing about the state, and the command cannot fail for a reason that lies in
//! the command: only then may `+OK` be said early. So the form of the command is checked as strictly as
//! Redis checks it, and more. `EXAT` and `PXAT` need Redis 6.2, which the store requires when it connects. The
//! store keeps what is taken here until Redis accepts it, never drops it (`pmnet-store`, `redis/promise.rs`): a form
//! that is added here has to be added there.

use crate::parser::{Arguments, parse_integer};

/// Arguments that begin like this belong to pmnet's own records in the store, which refuses commands
/// with them; such a command is never acknowledged early.
pub const RESERVED_PREFIX: &[u8] = b"pmnet:{";

/// Largest time to live that is acknowledged early, in milliseconds (about 3,000 years). Redis
/// refuses values near the end of the 64-bit range, depending on its clock.
const TTL_MS_MAX: i64 = 100_000_000_000_000;

/// Whether this command is a plain SET, MSET, SETEX or PSETEX that Redis 6.2 and later certainly accept.
#[must_use]
pub fn early_ack(name: &str, arguments: &Arguments<'_>) -> bool {
    let usual = match name {
        "SET" => match arguments.len() {
            3 => true,
            4 => arguments.is(3, "KEEPTTL"),
            5 => {
                let seconds = arguments.is(3, "EX") || arguments.is(3, "EXAT");
                let milliseconds = arguments.is(3, "PX") || arguments.is(3, "PXAT");
                (seconds && positive_ttl(arguments.get(4), 1000))
                    || (milliseconds && positive_ttl(arguments.get(4), 1))
            }
            _ => false,
        },
        "MSET" => arguments.len() >= 3 && arguments.len() % 2 == 1,
        "SETEX" => arguments.len() == 4 && positive_ttl(arguments.get(2), 1000),
        "PSETEX" => arguments.len() == 4 && positive_ttl(arguments.get(2), 1),
        _ => false,
    };
    usual && !touches_reserved(arguments)
}

fn positive_ttl(text: &[u8], unit_ms: i64) -> bool {
    parse_integer(text).is_some_and(|ttl| ttl > 0 && ttl <= TTL_MS_MAX / unit_ms)
}

/// Whether an argument looks like a key of pmnet's own records.
pub(super) fn touches_reserved(arguments: &Arguments<'_>) -> bool {
    arguments
        .iter()
        .any(|argument| argument.starts_with(RESERVED_PREFIX))
}
