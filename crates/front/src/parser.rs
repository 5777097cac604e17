//! Incremental parser of what Redis clients send: RESP arrays of bulk strings and inline commands.
//!
//! Purpose: finds whole commands at the head of a connection's input buffer without copying them;
//! a half command is remembered, so that every byte is looked at once however it arrives.
//! Invariants: never panics on any bytes; allocates only in proportion to bytes that have arrived;
//! [`Parser::frame`] of a complete command is what `pmnet_wire::command::Commands` accepts.
//! It may not look at what commands mean.

use std::ops::Range;

use pmnet_wire::MESSAGE_BYTES_MAX;
use pmnet_wire::command::{ARGUMENTS_MAX, write_command};

/// Largest value of one argument, in bytes.
pub const BULK_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Largest command in its RESP form, in bytes: what the fragments of one message can carry. A
/// little more than [`BULK_BYTES_MAX`], so that a value of exactly that size fits with its key.
pub const COMMAND_BYTES_MAX: usize = MESSAGE_BYTES_MAX + 16 * 1024;
/// Longest inline command, in bytes, as in Redis.
pub const INLINE_BYTES_MAX: usize = 64 * 1024;
/// Longest `*…` or `$…` line, in bytes; no number that is acceptable needs more.
const HEADER_BYTES_MAX: usize = 32;

/// Why the input is not a sequence of commands. The connection cannot go on after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// `*…` is not a number, or more than 1,048,576 arguments.
    #[error("Protocol error: invalid multibulk length")]
    MultibulkLength,
    /// Something else than `$` where an argument begins.
    #[error("Protocol error: expected '$', got '{}'", char::from(*.0).escape_default())]
    ExpectedBulk(u8),
    /// `$…` is not a number.
    #[error("Protocol error: invalid bulk length")]
    BulkLength,
    /// An argument, or the whole command, is larger than one message may be.
    #[error(
        "Protocol error: invalid bulk length: pmnet takes commands up to 16 MiB, this one has at least {0} bytes"
    )]
    TooLarge(usize),
    /// An argument is not followed by CR LF.
    #[error("Protocol error: bulk string not terminated by CR LF")]
    BulkEnd,
    /// An inline command longer than 64 KiB.
    #[error("Protocol error: too big inline request")]
    InlineTooBig,
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

impl Default for Parser {
    fn default() -> Parser {
        Parser {
            stage: Stage::Start,
            position: 0,
            seen: 0,
            missing: 0,
            arguments: Vec::new(),
            inline: Vec::new(),
        }
    }
}

/// The arguments of one command, name first; borrowed from the input buffer.
#[derive(Clone, Copy, Debug)]
pub struct Arguments<'a> {
    bytes: &'a [u8],
    ranges: &'a [Range<usize>],
}

impl<'a> Arguments<'a> {
    /// Arguments that lie at `ranges` of `bytes`. A range outside counts as an empty argument.
    #[must_use]
    pub fn new(bytes: &'a [u8], ranges: &'a [Range<usize>]) -> Arguments<'a> {
        Arguments { bytes, ranges }
    }

    /// How many there are, the name included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Whether there is nothing, not even a name.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Argument `index`; empty if there is none, so callers check [`Arguments::len`] first.
    #[must_use]
    pub fn get(&self, index: usize) -> &'a [u8] {
        self.ranges
            .get(index)
            .and_then(|range| self.bytes.get(range.clone()))
            .unwrap_or_default()
    }

    /// Whether argument `index` is `word`, in any case.
    #[must_use]
    pub fn is(&self, index: usize, word: &str) -> bool {
        self.get(index).eq_ignore_ascii_case(word.as_bytes())
    }

    /// All arguments, name first.
    pub fn iter(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let bytes = self.bytes;
        self.ranges
            .iter()
            .map(move |range| bytes.get(range.clone()).unwrap_or_default())
    }
}

impl Parser {
    /// Looks at `buffer`, which starts at the head of the current command and has only grown since
    /// the last call.
    ///
    /// # Errors
    /// [`ProtocolError`]: answer it and close, the parser cannot be used any more.
    pub fn poll(&mut self, buffer: &[u8]) -> Result<Status, ProtocolError> {
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
                                let count = usize::try_from(count).unwrap_or(0);
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
                    let whole = end.saturating_add(len).saturating_add(2);
                    if len > BULK_BYTES_MAX || whole > COMMAND_BYTES_MAX {
                        return Err(ProtocolError::TooLarge(whole));
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
        let Some(newline) = buffer[self.position..limit]
            .iter()
            .position(|&b| b == b'\n')
        else {
            self.position = limit;
            if limit == INLINE_BYTES_MAX {
                return Err(ProtocolError::InlineTooBig);
            }
            return Ok(Status::Incomplete);
        };
        let end = self.position + newline;
        let line = &buffer[..end];
        let words = split_inline(line.strip_suffix(b"\r").unwrap_or(line))?;
        self.position = end + 1;
        if !words.is_empty() {
            write_command(&words, &mut self.inline);
            // Arguments are found again in the canonical form: the buffer has them with quotes.
            let mut at = header(&self.inline, 0)
                .ok()
                .flatten()
                .map_or(0, |(_, end)| end);
            for word in &words {
                at = header(&self.inline, at)
                    .ok()
                    .flatten()
                    .map_or(at, |(_, end)| end);
                self.arguments.push(at..at + word.len());
                at += word.len() + 2;
            }
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
        Arguments {
            bytes,
            ranges: &self.arguments,
        }
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
        if self.arguments.capacity() > 1024 {
            self.arguments = Vec::new();
        }
        if self.inline.capacity() > 4096 {
            self.inline = Vec::new();
        }
        taken
    }

    /// Length that the buffer must reach before [`Parser::poll`] can get on, as far as is known.
    /// After [`Status::Incomplete`] always more than the buffer has: a reader that stops at a limit of
    /// its own must let at least this much in, else the command never gets complete. At most one
    /// unfinished `$…` line more than [`COMMAND_BYTES_MAX`].
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
    let Some(cr) = line.iter().take(HEADER_BYTES_MAX).position(|&b| b == b'\r') else {
        return if line.len() >= HEADER_BYTES_MAX {
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

/// A decimal integer exactly as Redis accepts it (`string2ll`): optional minus, no leading zeros, no
/// plus, no spaces, in the range of `i64`.
#[must_use]
pub fn parse_integer(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text.strip_prefix(b"-") {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    if digits.is_empty() || digits.len() > 19 || (digits[0] == b'0' && text.len() > 1) {
        return None;
    }
    let mut value = 0i64;
    for &digit in digits {
        let digit = i64::from(digit.checked_sub(b'0').filter(|d| *d <= 9)?);
        let shifted = value.checked_mul(10)?;
        value = if negative {
            shifted.checked_sub(digit)?
        } else {
            shifted.checked_add(digit)?
        };
    }
    Some(value)
}

/// Splits an inline command into words, with the quoting rules of Redis: `"…"` with escapes
/// (`\n \r \t \b \a \xHH`), `'…'` with `\'` only; a closing quote ends its word.
fn split_inline(line: &[u8]) -> Result<Vec<Vec<u8>>, ProtocolError> {
    let space = |byte: u8| byte.is_ascii_whitespace() || byte == 0x0b;
    let mut words = Vec::new();
    let mut rest = line;
    loop {
        while let Some((&byte, after)) = rest.split_first()
            && (space(byte) || byte == 0)
        {
            rest = after;
        }
        if rest.is_empty() {
            return Ok(words);
        }
        let mut word = Vec::new();
        while let Some((&byte, after)) = rest.split_first() {
            rest = after;
            match byte {
                b'"' | b'\'' => {
                    rest = quoted(rest, byte, &mut word)?;
                    if rest.first().is_some_and(|&next| !space(next)) {
                        return Err(ProtocolError::Quotes);
                    }
                    break;
                }
                // A zero byte ends the word: Redis reads the line as a C string here.
                0 => break,
                byte if space(byte) => break,
                byte => word.push(byte),
            }
        }
        words.push(word);
    }
}

/// Reads up to and with the closing `quote`; returns what follows it.
fn quoted<'a>(
    mut rest: &'a [u8],
    quote: u8,
    word: &mut Vec<u8>,
) -> Result<&'a [u8], ProtocolError> {
    let hex = |byte: u8| {
        char::from(byte)
            .to_digit(16)
            .and_then(|digit| u8::try_from(digit).ok())
    };
    loop {
        let (&byte, after) = rest.split_first().ok_or(ProtocolError::Quotes)?;
        rest = after;
        if byte == quote {
            return Ok(rest);
        }
        if byte != b'\\' {
            word.push(byte);
            continue;
        }
        match (quote, rest) {
            (b'"', [b'x', high, low, after @ ..])
                if hex(*high).is_some() && hex(*low).is_some() =>
            {
                word.push(hex(*high).unwrap_or(0) * 16 + hex(*low).unwrap_or(0));
                rest = after;
            }
            (b'"', [escaped, after @ ..]) => {
                word.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 0x08,
                    b'a' => 0x07,
                    other => *other,
                });
                rest = after;
            }
            (b'\'', [b'\'', after @ ..]) => {
                word.push(b'\'');
                rest = after;
            }
            _ => word.push(b'\\'),
        }
    }
}
