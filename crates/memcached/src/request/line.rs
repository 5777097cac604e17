//! Lines of commands, split into words.

use bytes::Bytes;

use super::{Line, Request, meta, text};

/// Maximum number of words of a line that is not a retrieval. All further words of such a line count as one word.
const WORDS_MAX: usize = 23;

pub(super) const ERROR: &str = "ERROR";

/// The words of a command.
pub(super) struct Words<'a>(Vec<&'a [u8]>);

impl<'a> Words<'a> {
    /// Returns the word at index `at`; an empty word if there is none.
    pub(super) fn get(&self, at: usize) -> &'a [u8] {
        self.0.get(at).copied().unwrap_or_default()
    }

    /// Returns the number of words, including the name of the command.
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns the words from index `at` on.
    pub(super) fn from(&self, at: usize) -> &[&'a [u8]] {
        self.0.get(at..).unwrap_or_default()
    }

    /// Whether the last word is `noreply`.
    pub(super) fn is_quiet(&self) -> bool {
        self.0.last().is_some_and(|last| *last == b"noreply")
    }
}

/// Whether a line begins like a retrieval, which may be long.
pub(super) fn is_retrieval(line: &[u8]) -> bool {
    let blanks = line.iter().take_while(|byte| **byte == b' ').count();
    let rest = &line[blanks..];
    let names: [&[u8]; 4] = [b"get ", b"gets ", b"gat ", b"gats "];
    names.into_iter().any(|name| rest.starts_with(name))
}

/// Parses a line without its `\n`.
pub(super) fn parse(line: &[u8], item_max: u64) -> Line {
    let line = match line {
        [rest @ .., b'\r'] if !rest.is_empty() => rest,
        line => line,
    };
    // As in C, a line ends at a NUL.
    let line = line.split(|byte| *byte == 0).next().unwrap_or_default();
    let mut words = line
        .split(|byte| *byte == b' ')
        .filter(|word| !word.is_empty());
    let name = words.next().unwrap_or_default();
    if name.len() < 2 {
        return Line::Whole(Request::Unknown);
    }
    if let Some(retrieval) = text::retrieval(name, &mut words) {
        return Line::Whole(retrieval);
    }
    let mut all: Vec<&[u8]> = vec![name];
    all.extend(words);
    let is_http = all.last().is_some_and(|last| last.starts_with(b"HTTP/"));
    all.truncate(WORDS_MAX);
    let words = Words(all);
    match name {
        b"mn" | b"mg" | b"ms" | b"md" | b"ma" | b"me" => meta::parse(&words, item_max),
        _ => match text::parse(&words, item_max) {
            Some(line) => line,
            // The line comes from a web browser, and perhaps a hostile page has sent it.
            None if is_http && !is_guarded(name) => Line::Whole(Request::End(None)),
            None => Line::Whole(Request::Unknown),
        },
    }
}

/// Whether memcached recognizes a command of this name by its letters before it checks for HTTP.
fn is_guarded(name: &[u8]) -> bool {
    matches!(name[0], b'g' | b's' | b'a' | b'c' | b'i' | b'd' | b't')
}

pub(super) fn say(text: &'static str) -> Line {
    Line::Whole(Request::Say(Some(text)))
}

/// Does the same as [`say`], unless the client wants no answer.
pub(super) fn say_unless(quiet: bool, text: &'static str) -> Line {
    Line::Whole(Request::Say((!quiet).then_some(text)))
}

pub(super) fn bytes(word: &[u8]) -> Bytes {
    Bytes::copy_from_slice(word)
}
