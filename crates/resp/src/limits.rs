//! Limits of requests and replies. The limits that Redis has are constants. Limits that depend on the user of this
//! crate are parameters.

/// Maximum number of arguments of one command, including its name, as in Redis.
pub const ARGUMENTS_MAX: usize = 1024 * 1024;
/// Longest inline command, including the end of its line, in bytes, as in Redis.
pub const INLINE_BYTES_MAX: usize = 64 * 1024;
/// Longest `*…` or `$…` line of a request after its marker, in bytes. No acceptable number has more bytes.
pub const LENGTH_BYTES_MAX: usize = 32;
/// Maximum number of arguments of one command of a client that still has to log in, as in Redis.
pub const STRANGER_ARGUMENTS_MAX: usize = 10;
/// Largest argument of a client that still has to log in, in bytes, as in Redis.
pub const STRANGER_BULK_BYTES_MAX: usize = 16 * 1024;
/// Largest argument that Redis accepts from any client, in bytes.
pub(crate) const REDIS_BULK_BYTES_MAX: usize = 512 * 1024 * 1024;
/// Shortest element of a reply (`_` and the end of its line), in bytes.
pub const ELEMENT_BYTES_MIN: usize = 3;

/// Limits that a reader of requests applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLimits {
    /// Largest argument, in bytes.
    pub bulk_bytes: usize,
    /// Largest command in the form of an array of bulk strings, in bytes.
    pub command_bytes: usize,
}

/// Limits that a reader of replies applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyLimits {
    /// Longest line (status, error, number, length), including its marker and its end, in bytes.
    pub line_bytes: usize,
    /// Largest bulk string, in bytes.
    pub bulk_bytes: usize,
    /// Largest reply, in bytes.
    pub reply_bytes: usize,
}

impl ReplyLimits {
    /// Limits for bytes that are already in memory. Their own length is bound enough.
    pub(crate) const HELD: ReplyLimits = ReplyLimits {
        line_bytes: usize::MAX,
        bulk_bytes: usize::MAX,
        reply_bytes: usize::MAX,
    };
}
