//! Limits of the input from clients and from stores.

use pmnet_resp::{ReplyLimits, RequestLimits};
use pmnet_wire::MESSAGE_BYTES_MAX;

/// Largest value of one argument, in bytes.
pub const BULK_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Largest command in its RESP form, in bytes: the most that the fragments of one message can carry. This limit is a
/// little more than [`BULK_BYTES_MAX`], so that a value of `BULK_BYTES_MAX` bytes fits with its key.
pub const COMMAND_BYTES_MAX: usize = MESSAGE_BYTES_MAX + 16 * 1024;
/// Largest single reply taken from a pass-through connection, in bytes. Bounds the memory that a store can
/// make the front use for one client.
pub const REPLY_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Longest line of a reply (simple string, error, number), in bytes. This bound exceeds the longest reply that the
/// server sends.
const LINE_BYTES_MAX: usize = 17 * 1024 * 1024;

/// Maximum number of bytes read from one socket before the other sockets get their turn.
pub(crate) const READ_BYTES_PER_TURN: usize = 256 * 1024;

/// Limits of a client's requests.
pub const REQUESTS: RequestLimits = RequestLimits {
    bulk_bytes: BULK_BYTES_MAX,
    command_bytes: COMMAND_BYTES_MAX,
};

/// Limits of a store's replies on a pass-through connection.
pub const REPLIES: ReplyLimits = ReplyLimits {
    line_bytes: LINE_BYTES_MAX,
    bulk_bytes: REPLY_BYTES_MAX,
    reply_bytes: REPLY_BYTES_MAX,
};
