//! Commands in what clients send.
//!
//! Purpose: the one place that knows memcached's text and meta protocol, as strict and as lenient as memcached 1.6.18 (`proto_text.c`): the same is
//! taken, with the same errors. Invariants: no input causes a panic; nothing is allocated by a length that was announced and not received; input that arrives
//! in pieces has the same meaning as in one piece; each byte is searched once for the end of its line. No IO, no clock.

mod line;
mod meta;
mod text;

use bytes::Bytes;

pub use meta::Meta;

/// Longest line without keys of a retrieval, in bytes.
pub const LINE_BYTES_MAX: usize = 2048;
/// Longest line of `get`, `gets`, `gat` and `gats`, in bytes.
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

/// Effect of a store command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Stores in any case.
    Set,
    /// Stores if there is no item.
    Add,
    /// Stores if there is an item.
    Replace,
    /// Adds data after an item's.
    Append,
    /// Adds data in front of an item's.
    Prepend,
    /// Stores if the item has this unique.
    Cas,
}

/// How a client wants to be answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Form {
    /// In words.
    Text,
    /// Not at all (`noreply`).
    Quiet,
    /// As the meta protocol does.
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
    /// Its effect.
    pub verb: Verb,
    /// Key.
    pub key: Bytes,
    /// The client's 32 bits.
    pub flags: u32,
    /// When it ends, as memcached's clients say it.
    pub exptime: i32,
    /// The unique that the item must have.
    pub compare: Option<u64>,
    /// A newer item is replaced by a stale one (`I`).
    pub stale: bool,
    /// The value.
    pub data: Bytes,
    /// How it is answered.
    pub form: Form,
}

/// A command that counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Count {
    /// Upwards.
    pub up: bool,
    /// Key.
    pub key: Bytes,
    /// By so much.
    pub delta: u64,
    /// How it is answered.
    pub form: Form,
}

/// A command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// `get`, `gets`.
    Get {
        /// Keys, at least one.
        keys: Vec<Bytes>,
        /// With uniques.
        unique: bool,
    },
    /// `gat`, `gats`.
    GetAndTouch {
        /// Keys; perhaps none.
        keys: Vec<Bytes>,
        /// With uniques.
        unique: bool,
        /// Their new end.
        exptime: i32,
    },
    /// `set` and its relatives; `ms`.
    Store(Store),
    /// `incr`, `decr`; `ma`.
    Count(Count),
    /// `touch`.
    Touch {
        /// Key.
        key: Bytes,
        /// Its new end.
        exptime: i32,
        /// Without an answer.
        quiet: bool,
    },
    /// `delete`; `md`.
    Delete {
        /// Key.
        key: Bytes,
        /// How it is answered.
        form: Form,
    },
    /// `mg`.
    MetaGet {
        /// Key.
        key: Bytes,
        /// Its flags.
        meta: Meta,
    },
    /// `me`.
    MetaDebug {
        /// Key.
        key: Bytes,
        /// The key as the client wrote it.
        shown: Bytes,
    },
    /// `flush_all`.
    Flush {
        /// When, as memcached's clients say it; 0 or less: now.
        delay: i32,
        /// Without an answer.
        quiet: bool,
    },
    /// An item was larger than it may be. With a key: what is there goes, as with memcached.
    TooLarge {
        /// Key of the item that goes.
        key: Option<Bytes>,
        /// Without an answer.
        quiet: bool,
    },
    /// `stats`.
    Stats(Stats),
    /// `version`.
    Version,
    /// A name that is no command.
    Unknown,
    /// Has this answer; `None`: it wants none.
    Say(Option<&'static str>),
    /// The connection ends, after this answer if there is one.
    End(Option<&'static str>),
}

/// Which statistics are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stats {
    /// The general ones.
    General,
    /// `settings`.
    Settings,
    /// `reset`: begin to count anew.
    Reset,
    /// Some that a front does not have: none.
    None,
}

/// The next step with the received bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "it is looked at once; a box would be an allocation for each command"
)]
pub enum Step {
    /// Wait for more.
    More,
    /// This many bytes are done with.
    Taken(usize, Option<Request>),
}

#[derive(Debug)]
enum State {
    Line,
    /// The data of an item, with the end of its line.
    Data(Box<Store>, usize),
    /// This many bytes of data are thrown away.
    Swallow(u64),
}

/// A command's line, once it is read.
enum Line {
    Whole(Request),
    /// This many bytes of data follow, without the end of their line.
    Data(Box<Store>, usize),
    /// The same, and they are thrown away.
    Refused(Request, usize),
}

/// Finds the commands of one client.
#[derive(Debug)]
pub struct Parser {
    item_max: u64,
    state: State,
    /// Bytes of the next line in which there is no end of it.
    searched: usize,
    begun: bool,
}

impl Parser {
    /// `item_max`: largest item, as memcached counts it ([`item_bytes`]).
    #[must_use]
    pub fn new(item_max: u64) -> Parser {
        Parser {
            item_max,
            state: State::Line,
            searched: 0,
            begun: false,
        }
    }

    /// Looks at what was received and not yet taken. Call it again after each [`Step::Taken`].
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

    /// Whether a command has begun that is not whole yet.
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

/// Bytes of an item as memcached counts them: a header, a unique, the key, the flags if there are any, and the data with its end of line.
#[must_use]
pub fn item_bytes(key: usize, flags: u32, data: usize) -> u64 {
    const HEADER: usize = 48 + 8;
    let flags = if flags == 0 { 0 } else { 4 };
    u64::try_from(HEADER + key + 1 + flags + data + 2).unwrap_or(u64::MAX)
}
