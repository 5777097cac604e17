//! Incremental parser of what Redis clients send: RESP arrays of bulk strings and inline commands.
//!
//! Finds whole commands at the head of a connection's input buffer without copying them. A half command
//! is remembered, so that every byte is looked at once however it arrives.

use std::ops::Range;

pub use crate::arguments::Arguments;
use crate::inline;
use crate::limits::{
    ARGUMENTS_MAX, INLINE_BYTES_MAX, LENGTH_BYTES_MAX, REDIS_BULK_BYTES_MAX, RequestLimits,
    STRANGER_ARGUMENTS_MAX, STRANGER_BULK_BYTES_MAX,
};
use crate::number::parse_integer;
use crate::write::{write_bulk, write_header};

/// One mebibyte, in bytes.
const MIB: usize = 1024 * 1024;
/// Most places of arguments that are kept for the next command.
const KEPT_ARGUMENTS_MAX: usize = 1024;
/// Largest buffer of an inline command that is kept for the next one, in bytes.
const KEPT_INLINE_BYTES_MAX: usize = 4096;

/// Why the input is not a sequence of commands. The connection cannot go on after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// `*…` is not a number, or more than [`ARGUMENTS_MAX`].
    #[error("Protocol error: invalid multibulk length")]
    MultibulkLength,
    /// More than [`STRANGER_ARGUMENTS_MAX`], of a client that has still to log in.
    #[error("Protocol error: unauthenticated multibulk length")]
    StrangerMultibulk,
    /// An argument of more than [`STRANGER_BULK_BYTES_MAX`], of a client that has still to log in.
    #[error("Protocol error: unauthenticated bulk length")]
    StrangerBulk,
    /// Something else than `$` where an argument begins.
    #[error("Protocol error: expected '$', got '{}'", char::from(*.0).escape_default())]
    ExpectedBulk(u8),
    /// `$…` is not a number.
    #[error("Protocol error: invalid bulk length")]
    BulkLength,
    /// An argument, or the whole command, is larger than [`RequestLimits`] allow.
    #[error(
        "Protocol error: invalid bulk length: pmnet takes commands up to {} MiB, this one has at least {bytes} bytes",
        .limit / MIB
    )]
    TooLarge {
        /// Length of the command as far as it is announced, in bytes.
        bytes: usize,
        /// [`RequestLimits::bulk_bytes`].
        limit: usize,
    },
    /// An argument is not followed by CR LF.
    #[error("Protocol error: bulk string not terminated by CR LF")]
    BulkEnd,
    /// An inline command of [`INLINE_BYTES_MAX`] or more.
    #[error("Protocol error: too big inline request")]
    InlineTooBig,
    /// An inline command with a NUL: something else than text was sent.
    #[error("Protocol error: NUL in inline request")]
    InlineNul,
    /// A quote of an inline command is not closed, or closed in the middle of a word.
    #[error("Protocol error: unbalanced quotes in request")]
    Quotes,
}

/// What [`Parser::poll`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// More bytes are needed.
    Incomplete,
    /// A command is complete; look at it, then [`Parser::consume`]. It may have no arguments (an
    /// empty line, `*0`), which clients may send and which means nothing.
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

/// State of the command at the head of one input buffer.
#[derive(Debug)]
pub struct Parser {
    limits: RequestLimits,
    stage: Stage,
    /// Where the part of the command begins that is to be read next: a line, or an argument.
    position: usize,
    /// How long the buffer was when it was last looked at.
    seen: usize,
    /// Arguments still to come.
    missing: usize,
    /// Where the arguments are: in the buffer, or in `inline` if that is not empty.
    arguments: Vec<Range<usize>>,
    /// Canonical form of an inline command.
    inline: Vec<u8>,
}

impl Parser {
    /// A parser at the first byte of a command.
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

    /// Looks at `buffer`, which starts at the head of the current command and has only grown since
    /// the last call.
    ///
    /// # Errors
    /// [`ProtocolError`]: answer it and close, the parser cannot be used any more.
    pub fn poll(&mut self, buffer: &[u8]) -> Result<Status, ProtocolError> {
        self.poll_of(buffer, false)
    }

    /// The same for what a `stranger` has sent, a client that has still to log in.
    ///
    /// # Errors
    /// As [`Parser::poll`]. After [`ProtocolError::StrangerMultibulk`] and [`ProtocolError::StrangerBulk`] the parser can be used: whoever
    /// turns out to be no stranger may have sent that.
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
        // Written anew: the buffer has the words with their quotes.
        write_header(&mut self.inline, words.len());
        for word in &words {
            write_bulk(&mut self.inline, word);
            let end = self.inline.len() - 2;
            self.arguments.push(end - word.len()..end);
        }
        self.stage = Stage::Complete;
        Ok(Status::Complete)
    }

    /// Arguments of the complete command at the head of `buffer`.
    #[must_use]
    pub fn arguments<'a>(&'a self, buffer: &'a [u8]) -> Arguments<'a> {
        let bytes = if self.inline.is_empty() {
            buffer
        } else {
            &self.inline
        };
        Arguments::new(bytes, &self.arguments)
    }

    /// The complete command at the head of `buffer` as a RESP array of bulk strings; not for a
    /// command without arguments.
    #[must_use]
    pub fn frame<'a>(&'a self, buffer: &'a [u8]) -> &'a [u8] {
        if self.inline.is_empty() {
            &buffer[..self.position]
        } else {
            &self.inline
        }
    }

    /// Forgets the complete command; returns how many bytes of the buffer it took, which the caller
    /// removes.
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

    /// Length that the buffer must reach before [`Parser::poll`] can get on, as far as is known.
    /// After [`Status::Incomplete`] always more than the buffer has: a reader that stops at a limit of
    /// its own must let at least this much in, else the command never gets complete. At most one
    /// unfinished `$…` line more than [`RequestLimits::command_bytes`].
    #[must_use]
    pub fn wanted(&self) -> usize {
        match self.stage {
            Stage::BulkBody { len } => self.position + len + 2,
            // Where the line ends that is being read is not known before it is there.
            _ => self.seen + 1,
        }
    }
}

/// Reads `<marker><number>\r\n` at `at`; `None` if it is not all there. Numbers as strict as
/// Redis takes them: no sign but minus, no leading zeros.
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

    /// A connection that once had a large command does not keep its memory for ever.
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
