//! The arguments of a command that a parser found.

use std::ops::Range;

/// The arguments of one command, the name first. The arguments are borrowed from the input buffer.
#[derive(Clone, Copy, Debug)]
pub struct Arguments<'a> {
    bytes: &'a [u8],
    ranges: &'a [Range<usize>],
}

impl<'a> Arguments<'a> {
    /// Makes arguments that lie at `ranges` of `bytes`. A range outside `bytes` counts as an empty argument.
    #[must_use]
    pub fn new(bytes: &'a [u8], ranges: &'a [Range<usize>]) -> Arguments<'a> {
        Arguments { bytes, ranges }
    }

    /// Returns the number of arguments, including the name.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Whether there are no arguments, not even a name.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Returns argument `index`. A missing argument is empty, so callers must check [`Arguments::len`] first.
    #[must_use]
    pub fn get(&self, index: usize) -> &'a [u8] {
        self.ranges
            .get(index)
            .and_then(|range| self.bytes.get(range.clone()))
            .unwrap_or_default()
    }

    /// Whether argument `index` equals `word`, in upper or lower case.
    #[must_use]
    pub fn is(&self, index: usize, word: &str) -> bool {
        self.get(index).eq_ignore_ascii_case(word.as_bytes())
    }

    /// Returns all arguments, the name first.
    pub fn iter(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let bytes = self.bytes;
        self.ranges
            .iter()
            .map(move |range| bytes.get(range.clone()).unwrap_or_default())
    }
}
