//! A client's command that the front is taking from the input.

use pmnet_resp::Arguments;

use crate::table::Verdict;

/// The command that is being taken from the input, with its parsed arguments.
#[derive(Clone, Copy)]
pub(super) struct Command<'a> {
    pub(super) arguments: &'a Arguments<'a>,
    pub(super) frame: &'a [u8],
    pub(super) verdict: Verdict,
}
