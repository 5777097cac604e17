//! Incremental parser of the input from Redis clients: RESP arrays of bulk strings and inline commands.
//!
//! Finds complete commands at the head of a connection's input buffer without copying them. The state of an incomplete
//! command is kept, so that every byte is read once, whatever the pieces are in which it arrives.

use std::ops::Range;

pub use crate::arguments::Arguments;
use crate::inline;
use crate::limits::{
    ARGUMENTS_MAX, INLINE_BYTES_MAX, LENGTH_BYTES_MAX, REDIS_BULK_BYTES_MAX, RequestLimits,
    STRANGER_ARGUMENTS_MAX, STRANGER_BULK_BYTES_MAX,
};
use crate::number::parse_integer;
use crate::write::{write_bulk, write_header};

/// Number of bytes of a mebibyte.
const MIB: usize = 1024 * 1024;
/// Maximum number of argument ranges for which memory is kept after a command.
const KEPT_ARGUMENTS_MAX: usize = 1024;
/// Largest buffer of an inline command that is kept after the command, in bytes.
const KEPT_INLINE_BYTES_MAX: usize = 4096;

/// Why the input is not a sequence of commands. The connection cannot continue after this error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// The number after `*` is not a number, or is more than [`ARGUMENTS_MAX`].
    #[error("Protocol error: invalid multibulk length")]
    MultibulkLength,
    /// The command has more than [`STRANGER_ARGUMENTS_MAX`] arguments, and its client still has to log in.
    #[error("Protocol error: unauthenticated multibulk length")]
    StrangerMultibulk,
    /// An argument has more than [`STRANGER_BULK_BYTES_MAX`] bytes, and its client still has to log in.
    #[error("Protocol error: unauthenticated bulk length")]
    StrangerBulk,
    /// An argument begins with this byte instead of `$`.
    #[error("Protocol error: expected '$', got '{}'", char::from(*.0).escape_default())]
    ExpectedBulk(u8),
    /// The text after `$` is not a number.
    #[error("Protocol error: invalid bulk length")]
    BulkLength,
    /// An argument, or the whole command, is larger than [`RequestLimits`] allow.
    #[error(
        "Protocol error: invalid bulk length: pmnet takes commands up to {} MiB, this one has at least {bytes} bytes",
        .limit / MIB
    )]
    TooLarge {
        /// Length of the command in bytes, as far as it has been announced.
        bytes: usize,
        /// The limit: [`RequestLimits::bulk_bytes`].
        limit: usize,
    },
    /// An argument is not followed by CR LF.
    #[error("Protocol error: bulk string not terminated by CR LF")]
    BulkEnd,
    /// An inline command has [`INLINE_BYTES_MAX`] bytes or more.
    #[error("Protocol error: too big inline request")]
    InlineTooBig,
    /// An inline command contains a NUL, so it is not text.
    #[error("Protocol error: NUL in inline request")]
    InlineNul,
    /// A quote in an inline command is not closed, or is closed in the middle of a word.
    #[error("Protocol error: unbalanced quotes in request")]
    Quotes,
}

/// The result of [`Parser::poll`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// More bytes are needed.
    Incomplete,
    /// A command is complete. The caller must read it and then call [`Parser::consume`]. A command may have no
    /// arguments (an empty line, `*0`). Clients may send such a command, which has no effect.
    Complete,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Start,
    Inline,
    BulkHeader,
    BulkBody { len: usize },
    Complete,
}

/// The parser of the command at the head of one input buffer.
#[derive(Debug)]
pub struct Parser {
    limits: RequestLimits,
    stage: Stage,
    /// Position of the next part of the command, which is a line or an argument.
    position: usize,
    /// Length of the buffer at the last call of [`Parser::poll`].
    seen: usize,
    /// Number of arguments that have not come yet.
    missing: usize,
    /// Ranges of the arguments. The ranges are those in `inline` if `inline` is not empty, and those in the buffer
    /// otherwise.
    arguments: Vec<Range<usize>>,
    /// The inline command, converted to an array of bulk strings.
    inline: Vec<u8>,
}

impl Parser {
    /// Makes a parser that is at the first byte of a command.
    #[must_use]
    pub fn new(limits: RequestLimits) -> Parser {
        Parser {
            limits,
            stage: Stage::Start,
            position: 0,
            seen: 0,
            missing: 0,
            arguments: Vec::new(),
            inline: Vec::new(),
        }
    }

    /// Parses `buffer`, which starts at the head of the current command. Since the last call, bytes may only have been
    /// added to the buffer.
    ///
    /// # Errors
    /// [`ProtocolError`]: the caller must send this error and close the connection. The parser is no longer usable.
    pub fn poll(&mut self, buffer: &[u8]) -> Result<Status, ProtocolError> {
        self.poll_of(buffer, false)
    }

    /// Does the same as [`Parser::poll`]. `stranger`: whether the client still has to log in, so that its limits are
    /// lower.
    ///
    /// # Errors
    /// The errors of [`Parser::poll`]. After [`ProtocolError::StrangerMultibulk`] and [`ProtocolError::StrangerBulk`]
    /// the parser remains usable, because the client may turn out to be no stranger.
    pub fn poll_of(&mut self, buffer: &[u8], stranger: bool) -> Result<Status, ProtocolError> {
        self.seen = buffer.len();
        loop {
            match self.stage {
                Stage::Complete => return Ok(Status::Complete),
                Stage::Start => match buffer.first() {
                    None => return Ok(Status::Incomplete),
                    Some(b'*') => {
                        match header(buffer, 0).map_err(|()| ProtocolError::MultibulkLength)? {
                            None => return Ok(Status::Incomplete),
                            Some((count, end)) => {
                                if count > i64::from(i32::MAX) {
                                    return Err(ProtocolError::MultibulkLength);
                                }
                                let count = usize::try_from(count).unwrap_or(0);
                                if stranger && count > STRANGER_ARGUMENTS_MAX {
                                    return Err(ProtocolError::StrangerMultibulk);
                                }
                                if count > ARGUMENTS_MAX {
                                    return Err(ProtocolError::MultibulkLength);
                                }
                                self.position = end;
                                self.missing = count;
                                self.stage = if count == 0 {
                                    Stage::Complete
                                } else {
                                    Stage::BulkHeader
                                };
                            }
                        }
                    }
                    Some(_) => self.stage = Stage::Inline,
                },
                Stage::Inline => return self.poll_inline(buffer),
                Stage::BulkHeader => {
                    match buffer.get(self.position) {
                        None => return Ok(Status::Incomplete),
                        Some(b'$') => {}
                        Some(&other) => return Err(ProtocolError::ExpectedBulk(other)),
                    }
                    let Some((len, end)) =
                        header(buffer, self.position).map_err(|()| ProtocolError::BulkLength)?
                    else {
                        return Ok(Status::Incomplete);
                    };
                    let len = usize::try_from(len).map_err(|_| ProtocolError::BulkLength)?;
                    if stranger && len > STRANGER_BULK_BYTES_MAX {
                        return Err(if len > REDIS_BULK_BYTES_MAX {
                            ProtocolError::BulkLength
                        } else {
                            ProtocolError::StrangerBulk
                        });
                    }
                    let whole = end.saturating_add(len).saturating_add(2);
                    let RequestLimits {
                        bulk_bytes,
                        command_bytes,
                    } = self.limits;
                    if len > bulk_bytes || whole > command_bytes {
                        return Err(ProtocolError::TooLarge {
                            bytes: whole,
                            limit: bulk_bytes,
                        });
                    }
                    self.position = end;
                    self.stage = Stage::BulkBody { len };
                }
                Stage::BulkBody { len } => {
                    let end = self.position + len;
                    let Some(terminator) = buffer.get(end..end + 2) else {
                        return Ok(Status::Incomplete);
                    };
                    if terminator != b"\r\n" {
                        return Err(ProtocolError::BulkEnd);
                    }
                    self.arguments.push(self.position..end);
                    self.position = end + 2;
                    self.missing -= 1;
                    self.stage = if self.missing == 0 {
                        Stage::Complete
                    } else {
                        Stage::BulkHeader
                    };
                }
            }
        }
    }

    fn poll_inline(&mut self, buffer: &[u8]) -> Result<Status, ProtocolError> {
        let limit = buffer.len().min(INLINE_BYTES_MAX);
        let mut rest = buffer[self.position..limit].iter();
        let end = rest.position(|&byte| matches!(byte, b'\n' | 0));
        if end.is_some_and(|end| buffer[self.position + end] == 0) {
            return Err(ProtocolError::InlineNul);
        }
        let Some(newline) = end else {
            self.position = limit;
            if limit == INLINE_BYTES_MAX {
                return Err(ProtocolError::InlineTooBig);
            }
            return Ok(Status::Incomplete);
        };
        let end = self.position + newline;
        let line = &buffer[..end];
        let words = inline::split(line.strip_suffix(b"\r").unwrap_or(line))?;
        self.position = end + 1;
        // The words are copied, because in the buffer they have quotes and escapes.
        write_header(&mut self.inline, words.len());
        for word in &words {
            write_bulk(&mut self.inline, word);
            let end = self.inline.len() - 2;
            self.arguments.push(end - word.len()..end);
        }
        self.stage = Stage::Complete;
        Ok(Status::Complete)
    }

    /// Returns the arguments of the complete command at the head of `buffer`.
    #[must_use]
    pub fn arguments<'a>(&'a self, buffer: &'a [u8]) -> Arguments<'a> {
        let bytes = if self.inline.is_empty() {
            buffer
        } else {
            &self.inline
        };
        Arguments::new(bytes, &self.arguments)
    }

    /// Returns the complete command at the head of `buffer` as a RESP array of bulk strings. Must not be called for a
    /// command without arguments.
    #[must_use]
    pub fn frame<'a>(&'a self, buffer: &'a [u8]) -> &'a [u8] {
        if self.inline.is_empty() {
            &buffer[..self.position]
        } else {
            &self.inline
        }
    }

    /// Forgets the complete command. Returns the length of the command in the buffer. The caller must remove this many
    /// bytes.
    pub fn consume(&mut self) -> usize {
        let taken = self.position;
        self.stage = Stage::Start;
        self.position = 0;
        self.seen = 0;
        self.arguments.clear();
        self.inline.clear();
        if self.arguments.capacity() > KEPT_ARGUMENTS_MAX {
            self.arguments = Vec::new();
        }
        if self.inline.capacity() > KEPT_INLINE_BYTES_MAX {
            self.inline = Vec::new();
        }
        taken
    }

    /// Returns the length that the buffer must reach before [`Parser::poll`] can make progress, as far as this length
    /// is known. After [`Status::Incomplete`] it always exceeds the present length of the buffer. A reader with a limit
    /// of its own must accept at least this length. If it accepts less, the command never becomes complete. The
    /// returned length exceeds [`RequestLimits::command_bytes`] by at most one incomplete `$…` line.
    #[must_use]
    pub fn wanted(&self) -> usize {
        match self.stage {
            Stage::BulkBody { len } => self.position + len + 2,
            // The length of an incomplete line is unknown.
            _ => self.seen + 1,
        }
    }
}

/// Parses `<marker><number>\r\n` at `at`; `None` if it is incomplete. The number must have the form that Redis
/// requires: no sign except minus, and no leading zeros.
fn header(buffer: &[u8], at: usize) -> Result<Option<(i64, usize)>, ()> {
    let line = buffer.get(at + 1..).unwrap_or_default();
    let Some(cr) = line.iter().take(LENGTH_BYTES_MAX).position(|&b| b == b'\r') else {
        return if line.len() >= LENGTH_BYTES_MAX {
            Err(())
        } else {
            Ok(None)
        };
    };
    let number = parse_integer(&line[..cr]).ok_or(())?;
    match line.get(cr + 1) {
        None => Ok(None),
        Some(b'\n') => Ok(Some((number, at + 1 + cr + 2))),
        Some(_) => Err(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection must not keep the memory of a large command.
    #[test]
    fn room_is_kept_for_the_next_command_up_to_a_bound() {
        for (more, kept) in [(0, true), (1, false)] {
            let mut parser = Parser::new(RequestLimits {
                bulk_bytes: 1,
                command_bytes: 1,
            });
            parser.arguments = Vec::with_capacity(KEPT_ARGUMENTS_MAX + more);
            parser.inline = Vec::with_capacity(KEPT_INLINE_BYTES_MAX + more);
            parser.consume();
            assert_eq!(parser.arguments.capacity() > 0, kept);
            assert_eq!(parser.inline.capacity() > 0, kept);
        }
    }
}
