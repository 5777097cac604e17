//! Parses the commands in the bytes of clients.
//!
//! Purpose: only this module knows memcached's text and meta protocol. The parser is exactly as strict as memcached
//! 1.6.18 (`proto_text.c`): it accepts the same input, and reports the same errors. Invariants: no input causes a
//! panic. No memory is allocated for a length that was announced when its bytes have not been received. Input that
//! arrives in pieces has the same meaning as in one piece. The end of a line is searched once in each byte. Not allowed
//! here: IO and clocks.

mod line;
mod meta;
mod text;

use bytes::Bytes;

pub use meta::Meta;

/// Longest line of a command that is not a retrieval, in bytes.
pub const LINE_BYTES_MAX: usize = 2048;
/// Longest line of a retrieval (`get`, `gets`, `gat` and `gats`), in bytes.
pub const GET_LINE_BYTES_MAX: usize = 64 * 1024;
/// Longest key, in bytes.
pub const KEY_BYTES_MAX: usize = 250;

pub(crate) const BAD_FORMAT: &str = "CLIENT_ERROR bad command line format";
pub(crate) const TOO_LARGE: &str = "SERVER_ERROR object too large for cache";
const BAD_CHUNK: &str = "CLIENT_ERROR bad data chunk";
const LINE_TOO_LONG: &str = "CLIENT_ERROR line too long";
const BINARY: &str =
    "CLIENT_ERROR pmnet does not speak the binary protocol: use memcached's text or meta protocol";
/// First byte of a request in memcached's binary protocol.
const BINARY_MAGIC: u8 = 0x80;

/// The effect of a command that stores an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Stores the item, whatever the key has.
    Set,
    /// Stores the item if the key has no item.
    Add,
    /// Stores the item if the key has an item.
    Replace,
    /// Adds data after the item's data.
    Append,
    /// Adds data before the item's data.
    Prepend,
    /// Stores the item if the present item has this unique.
    Cas,
}

/// The form of the answer to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Form {
    /// An answer of the text protocol.
    Text,
    /// No answer (`noreply`).
    Quiet,
    /// An answer of the meta protocol.
    Meta(Meta),
}

impl Form {
    pub(crate) fn of(quiet: bool) -> Form {
        if quiet { Form::Quiet } else { Form::Text }
    }
}

/// A command that stores data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    /// The command's effect.
    pub verb: Verb,
    /// The key.
    pub key: Bytes,
    /// The client's 32 flag bits.
    pub flags: u32,
    /// The time of expiry of the item, in memcached's form.
    pub exptime: i32,
    /// The unique that the item must have.
    pub compare: Option<u64>,
    /// If the present item is newer, the new item is stored and marked as stale (`I`).
    pub stale: bool,
    /// The value.
    pub data: Bytes,
    /// The form of the answer.
    pub form: Form,
}

/// A command that changes a counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Count {
    /// Whether the command increments the counter.
    pub up: bool,
    /// The key.
    pub key: Bytes,
    /// The amount by which the counter changes.
    pub delta: u64,
    /// The form of the answer.
    pub form: Form,
}

/// A client's command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// The command `get` or `gets`.
    Get {
        /// The keys, at least one.
        keys: Vec<Bytes>,
        /// Whether the answer has uniques.
        unique: bool,
    },
    /// The command `gat` or `gats`.
    GetAndTouch {
        /// The keys; there may be none.
        keys: Vec<Bytes>,
        /// Whether the answer has uniques.
        unique: bool,
        /// The new time of expiry of the items, in memcached's form.
        exptime: i32,
    },
    /// The command `set`, another command that stores an item, or `ms`.
    Store(Store),
    /// The command `incr`, `decr` or `ma`.
    Count(Count),
    /// The command `touch`.
    Touch {
        /// The key.
        key: Bytes,
        /// The new time of expiry of the item, in memcached's form.
        exptime: i32,
        /// Whether the client wants no answer.
        quiet: bool,
    },
    /// The command `delete` or `md`.
    Delete {
        /// The key.
        key: Bytes,
        /// The form of the answer.
        form: Form,
    },
    /// The command `mg`.
    MetaGet {
        /// The key.
        key: Bytes,
        /// The command's flags.
        meta: Meta,
    },
    /// The command `me`.
    MetaDebug {
        /// The key.
        key: Bytes,
        /// The key as the client wrote it.
        shown: Bytes,
    },
    /// The command `flush_all`.
    Flush {
        /// The time of the flush, in memcached's form; 0 or less: now.
        delay: i32,
        /// Whether the client wants no answer.
        quiet: bool,
    },
    /// A command whose item is too large. As in memcached, the present item at `key` is deleted.
    TooLarge {
        /// Key of the item that is deleted.
        key: Option<Bytes>,
        /// Whether the client wants no answer.
        quiet: bool,
    },
    /// The command `stats`.
    Stats(Stats),
    /// The command `version`.
    Version,
    /// An unknown command.
    Unknown,
    /// A command that gets this answer; `None`: the client wants no answer.
    Say(Option<&'static str>),
    /// A command after which the connection ends. `Some`: the command gets this answer first.
    End(Option<&'static str>),
}

/// The kind of statistics that a client requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stats {
    /// The general statistics.
    General,
    /// `settings`.
    Settings,
    /// `reset`: the counters begin again from zero.
    Reset,
    /// Statistics that a front does not have. The answer to such a request is empty.
    None,
}

/// The parser's next step with the received bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "it is looked at once; a box would be an allocation for each command"
)]
pub enum Step {
    /// The parser waits for more bytes.
    More,
    /// The parser has handled this many bytes. The handled bytes may have completed a command.
    Taken(usize, Option<Request>),
}

#[derive(Debug)]
enum State {
    Line,
    /// The parser reads the data of an item, and the end of its line.
    Data(Box<Store>, usize),
    /// The parser discards this many bytes of data.
    Swallow(u64),
}

/// A parsed line of a command.
enum Line {
    Whole(Request),
    /// The line is followed by this many bytes of data, not counting the end of the data's line.
    Data(Box<Store>, usize),
    /// The command is refused. The line is followed by this many bytes of data, which are discarded.
    Refused(Request, usize),
}

/// Parses the commands of one client.
#[derive(Debug)]
pub struct Parser {
    item_max: u64,
    state: State,
    /// Number of bytes of the next line that were searched without finding the end of the line.
    searched: usize,
    begun: bool,
}

impl Parser {
    /// `item_max`: size of the largest item, as memcached counts it ([`item_bytes`]).
    #[must_use]
    pub fn new(item_max: u64) -> Parser {
        Parser {
            item_max,
            state: State::Line,
            searched: 0,
            begun: false,
        }
    }

    /// Parses the received bytes that have not been taken. The caller must call this function again after each
    /// [`Step::Taken`].
    pub fn poll(&mut self, input: &[u8]) -> Step {
        match std::mem::replace(&mut self.state, State::Line) {
            State::Line => self.poll_line(input),
            State::Data(mut store, length) => {
                let whole = length + 2;
                if input.len() < whole {
                    self.state = State::Data(store, length);
                    return Step::More;
                }
                let request = if &input[length..whole] == b"\r\n" {
                    store.data = Bytes::copy_from_slice(&input[..length]);
                    Request::Store(*store)
                } else {
                    Request::Say((store.form != Form::Quiet).then_some(BAD_CHUNK))
                };
                Step::Taken(whole, Some(request))
            }
            State::Swallow(left) => {
                let here = u64::try_from(input.len()).unwrap_or(u64::MAX).min(left);
                if left > here {
                    self.state = State::Swallow(left - here);
                }
                match usize::try_from(here) {
                    Ok(here) if here > 0 => Step::Taken(here, None),
                    _ => Step::More,
                }
            }
        }
    }

    /// Whether a command is incomplete.
    #[must_use]
    pub fn is_within(&self) -> bool {
        !matches!(self.state, State::Line)
    }

    fn poll_line(&mut self, input: &[u8]) -> Step {
        let begins = !self.begun && !input.is_empty();
        self.begun |= begins;
        if begins && input[0] == BINARY_MAGIC {
            return Step::Taken(input.len(), Some(Request::End(Some(BINARY))));
        }
        let unsearched = input.get(self.searched..).unwrap_or_default();
        let end = unsearched.iter().position(|byte| *byte == b'\n');
        let length = end.map_or(input.len(), |end| self.searched + end);
        if length > LINE_BYTES_MAX && (length > GET_LINE_BYTES_MAX || !line::is_retrieval(input)) {
            self.searched = 0;
            return Step::Taken(input.len(), Some(Request::End(Some(LINE_TOO_LONG))));
        }
        if end.is_none() {
            self.searched = input.len();
            return Step::More;
        }
        self.searched = 0;
        let after = length + 1;
        let request = match line::parse(&input[..length], self.item_max) {
            Line::Whole(request) => request,
            Line::Data(store, length) => {
                self.state = State::Data(store, length);
                return Step::Taken(after, None);
            }
            Line::Refused(request, data) => {
                let data = u64::try_from(data).unwrap_or(u64::MAX);
                self.state = State::Swallow(data.saturating_add(2));
                request
            }
        };
        Step::Taken(after, Some(request))
    }
}

/// Returns the size of an item in bytes, as memcached counts it: a header, a unique, the key, the flags if there are
/// any, and the data with the end of its line.
#[must_use]
pub fn item_bytes(key: usize, flags: u32, data: usize) -> u64 {
    const HEADER: usize = 48 + 8;
    let flags = if flags == 0 { 0 } else { 4 };
    u64::try_from(HEADER + key + 1 + flags + data + 2).unwrap_or(u64::MAX)
}
