//! Decides which commands may be acknowledged before Redis has received them (protocol.md §1 "nilext"). The rule is
//! [`pmnet_wire::promise`], which the store's adaptor applies, too.

use pmnet_wire::promise::{RECORDS_PREFIX, is_promised};

use pmnet_resp::Arguments;

/// Whether this command is a plain SET, MSET, SETEX or PSETEX that Redis 6.2 and later certainly accept.
#[must_use]
pub fn early_ack(arguments: &Arguments<'_>) -> bool {
    is_promised(arguments.len(), |index| arguments.get(index))
}

/// Whether an argument looks like a key of pmnet's own records.
#[must_use]
pub fn touches_reserved(arguments: &Arguments<'_>) -> bool {
    arguments
        .iter()
        .any(|argument| argument.starts_with(RECORDS_PREFIX))
}
