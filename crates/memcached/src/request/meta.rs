//! The meta protocol.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use pmnet_wire::item::c_unsigned;

use super::line::{ERROR, Words, bytes, say};
use super::text::{int32, length, uint32};
use super::{BAD_FORMAT, Count, Form, KEY_BYTES_MAX, Line, Request, Store, Verb, item_bytes};

/// Maximum number of words of a meta command.
const WORDS_MAX: usize = 19;
/// Longest opaque in bytes, including its letter.
const OPAQUE_BYTES_MAX: usize = 32;

const BAD_TOKEN: &str = "CLIENT_ERROR bad token in command line format";
const BAD_FLAG: &str = "CLIENT_ERROR invalid or duplicate flag";
const OPAQUE_TOO_LONG: &str = "CLIENT_ERROR opaque token too long";
const NOT_KEPT: &str = "CLIENT_ERROR pmnet does not keep when an item was read: flags h and l";

/// The flags of a meta command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// Parts of the answer that the client has requested, in its order: the letter, and an opaque.
    pub wanted: Vec<(u8, Bytes)>,
    /// The key as the client wrote it.
    pub shown: Bytes,
    /// Whether the key was sent in base64 (`b`).
    pub binary: bool,
    /// Whether an answer without information is left out (`q`).
    pub quiet: bool,
    /// Whether the answer has the value (`v`).
    pub value: bool,
    /// The unique that the item must have (`C`).
    pub compare: Option<u64>,
    /// Whether the item is marked as stale (`I`).
    pub stale: bool,
    /// Time of expiry of a new item (`N`).
    pub vivify: Option<i32>,
    /// New time of expiry of the item (`T`).
    pub touch: Option<i32>,
    /// Number of seconds. If less time than this remains to the item, it must be renewed (`R`).
    pub recache: Option<i32>,
    /// Whether `N` came after `T` in the command.
    pub vivify_last: bool,
    /// The client's 32 flag bits (`F`).
    pub flags: u32,
    /// Mode of the command (`M`).
    pub mode: Option<u8>,
    /// Value that a new counter gets (`J`).
    pub initial: u64,
    /// Amount by which a counter changes (`D`).
    pub delta: Option<u64>,
    /// Whether the command has the flag `h` or `l`.
    unkept: bool,
}

impl Meta {
    /// Parses the flags of a command. Returns the flags and the key.
    fn read(key: &[u8], words: &[&[u8]]) -> Result<(Meta, Bytes), &'static str> {
        let mut meta = Meta {
            shown: bytes(key),
            ..Meta::default()
        };
        let mut name = meta.shown.clone();
        let mut seen = [false; 127];
        // memcached continues after most errors, and reports only the last error.
        let mut error = None;
        for word in words {
            let (letter, rest) = (word[0], &word[1..]);
            match seen.get_mut(usize::from(letter)) {
                Some(seen) if !*seen => *seen = true,
                _ => return Err("CLIENT_ERROR duplicate flag"),
            }
            if letter == b'b' {
                meta.binary = true;
                match STANDARD.decode(key) {
                    Ok(decoded) if !decoded.is_empty() => name = decoded.into(),
                    _ => error = Some("CLIENT_ERROR error decoding key"),
                }
            } else if let Err(why) = meta.take(letter, rest) {
                if why == UNKNOWN {
                    return Err(UNKNOWN);
                }
                error = Some(if why.is_empty() {
                    error.unwrap_or(BAD_FORMAT)
                } else {
                    why
                });
            }
        }
        match error {
            Some(error) => Err(error),
            None => Ok((meta, name)),
        }
    }

    /// Adds one flag. If the error text is empty, an earlier error stays.
    fn take(&mut self, letter: u8, rest: &[u8]) -> Result<(), &'static str> {
        let seconds = || int32(rest).ok_or(BAD_TOKEN);
        match letter {
            b'N' => {
                self.vivify = Some(seconds()?);
                self.vivify_last = true;
                self.wanted.push((b'N', Bytes::new()));
            }
            b'T' => {
                self.touch = Some(seconds()?);
                self.vivify_last = false;
                self.wanted.push((b'T', Bytes::new()));
            }
            b'R' => self.recache = Some(seconds()?),
            b'O' => self.wanted.push((letter, bytes(rest))),
            b'k' | b's' | b't' | b'c' | b'f' => self.wanted.push((letter, Bytes::new())),
            b'h' | b'l' => self.unkept = true,
            b'P' | b'L' | b'u' => {}
            b'v' => self.value = true,
            b'q' => self.quiet = true,
            b'F' => self.flags = uint32(rest).ok_or("")?,
            b'C' => self.compare = Some(c_unsigned(rest).ok_or(BAD_TOKEN)?),
            b'M' => match rest {
                [mode] => self.mode = Some(*mode),
                _ => return Err("CLIENT_ERROR incorrect length for M token"),
            },
            b'J' => {
                self.initial =
                    c_unsigned(rest).ok_or("CLIENT_ERROR invalid numeric initial value")?;
            }
            b'D' => {
                let delta = c_unsigned(rest).ok_or("CLIENT_ERROR invalid numeric delta value")?;
                self.delta = Some(delta);
            }
            b'I' => self.stale = true,
            _ => return Err(UNKNOWN),
        }
        Ok(())
    }

    fn is_opaque_too_long(&self) -> bool {
        let long = |(letter, text): &(u8, Bytes)| *letter == b'O' && text.len() >= OPAQUE_BYTES_MAX;
        self.wanted.iter().any(long)
    }
}

const UNKNOWN: &str = "CLIENT_ERROR invalid flag";

/// Parses a meta command.
pub(super) fn parse(words: &Words<'_>, item_max: u64) -> Line {
    let name = words.get(0)[1];
    if name == b'n' {
        return say("MN");
    }
    let key = words.get(1);
    if words.count() < 2 {
        return say(if name == b'e' { BAD_FORMAT } else { ERROR });
    }
    if key.len() > KEY_BYTES_MAX {
        return say(BAD_FORMAT);
    }
    match name {
        b'e' => return debug(words),
        b's' => return set(words, item_max),
        _ => {}
    }
    if words.count() > WORDS_MAX {
        return say(if name == b'g' {
            "CLIENT_ERROR options flags are too long"
        } else {
            "CLIENT_ERROR options flags too long"
        });
    }
    let (meta, key) = match Meta::read(key, words.from(2)) {
        Ok(read) => read,
        Err(error) => return say(if name == b'g' { error } else { BAD_FLAG }),
    };
    if meta.is_opaque_too_long() {
        return say(OPAQUE_TOO_LONG);
    }
    match name {
        b'g' if meta.unkept => say(NOT_KEPT),
        b'g' => Line::Whole(Request::MetaGet { key, meta }),
        b'd' => Line::Whole(Request::Delete {
            key,
            form: Form::Meta(meta),
        }),
        _ => count(key, meta),
    }
}

fn count(key: Bytes, meta: Meta) -> Line {
    let up = match meta.mode {
        None | Some(b'I' | b'+') => true,
        Some(b'D' | b'-') => false,
        Some(_) => return say("CLIENT_ERROR invalid mode for ma M token"),
    };
    Line::Whole(Request::Count(Count {
        up,
        key,
        delta: meta.delta.unwrap_or(1),
        form: Form::Meta(meta),
    }))
}

fn debug(words: &Words<'_>) -> Line {
    let shown = bytes(words.get(1));
    let key = if words.get(2) == b"b" {
        match STANDARD.decode(&shown) {
            Ok(decoded) if !decoded.is_empty() => decoded.into(),
            _ => return say(BAD_FORMAT),
        }
    } else {
        shown.clone()
    };
    Line::Whole(Request::MetaDebug { key, shown })
}

fn set(words: &Words<'_>, item_max: u64) -> Line {
    if words.count() == 2 {
        return say(BAD_FORMAT);
    }
    if words.count() > WORDS_MAX {
        return say("CLIENT_ERROR options flags too long");
    }
    let Some(length) = length(words.get(2)) else {
        return say(BAD_FORMAT);
    };
    // The command's data follows the line even if the line is wrong.
    let refuse = |error| Line::Refused(Request::Say(Some(error)), length);
    let (meta, key) = match Meta::read(words.get(1), words.from(3)) {
        Ok(read) => read,
        Err(error) => return refuse(error),
    };
    let verb = match meta.mode {
        None | Some(b'S') => Verb::Set,
        Some(b'E') => Verb::Add,
        Some(b'A') => Verb::Append,
        Some(b'P') => Verb::Prepend,
        Some(b'R') => Verb::Replace,
        Some(_) => return refuse("CLIENT_ERROR invalid mode for ms M token"),
    };
    if meta.is_opaque_too_long() {
        return refuse(OPAQUE_TOO_LONG);
    }
    let verb = match verb {
        Verb::Set | Verb::Replace if meta.compare.is_some() => Verb::Cas,
        verb => verb,
    };
    if item_bytes(key.len(), meta.flags, length) > item_max {
        let (key, quiet) = (Some(key), false);
        return Line::Refused(Request::TooLarge { key, quiet }, length);
    }
    let store = Store {
        verb,
        key,
        flags: meta.flags,
        exptime: meta.touch.unwrap_or(0),
        compare: meta.compare,
        stale: meta.stale && verb == Verb::Cas,
        data: Bytes::new(),
        form: Form::Meta(meta),
    };
    Line::Data(Box::new(store), length)
}
