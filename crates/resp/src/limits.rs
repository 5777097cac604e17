//! Limits: those of Redis, which are constants, and those that differ by use, which are parameters.

/// Most arguments of one command, its name included, as in Redis.
pub const ARGUMENTS_MAX: usize = 1024 * 1024;
/// Longest inline command with the end of its line, in bytes, as in Redis.
pub const INLINE_BYTES_MAX: usize = 64 * 1024;
/// Longest `*…` or `$…` line of a request after its marker, in bytes. No number that is acceptable needs more.
pub const LENGTH_BYTES_MAX: usize = 32;
/// Most arguments of one command of a client that has still to log in, as in Redis.
pub const STRANGER_ARGUMENTS_MAX: usize = 10;
/// Largest argument of such a client, in bytes, as in Redis.
pub const STRANGER_BULK_BYTES_MAX: usize = 16 * 1024;
/// Largest argument that Redis takes of any client, in bytes.
pub(crate) const REDIS_BULK_BYTES_MAX: usize = 512 * 1024 * 1024;
/// Shortest element of a reply (`_` and the end of its line), in bytes.
pub const ELEMENT_BYTES_MIN: usize = 3;

/// What one reader of requests takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLimits {
    /// Largest argument, in bytes.
    pub bulk_bytes: usize,
    /// Largest command as an array of bulk strings, in bytes.
    pub command_bytes: usize,
}

/// What one reader of replies takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyLimits {
    /// Longest line (status, error, number, length) with its marker and its end, in bytes.
    pub line_bytes: usize,
    /// Largest bulk string, in bytes.
    pub bulk_bytes: usize,
    /// Largest reply as a whole, in bytes.
    pub reply_bytes: usize,
}

impl ReplyLimits {
    /// For bytes that are in memory already: their own length bounds everything.
    pub(crate) const HELD: ReplyLimits = ReplyLimits {
        line_bytes: usize::MAX,
        bulk_bytes: usize::MAX,
        reply_bytes: usize::MAX,
    };
}
