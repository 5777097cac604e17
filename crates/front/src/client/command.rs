//! A command that is being taken from a client.

use pmnet_resp::Arguments;

use crate::table::Verdict;

/// A command that is being taken.
#[derive(Clone, Copy)]
pub(super) struct Command<'a> {
    pub(super) arguments: &'a Arguments<'a>,
    pub(super) frame: &'a [u8],
    pub(super) verdict: Verdict,
}
