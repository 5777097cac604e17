//! The promise that a store has made to its users at one moment.

use crate::support::{Content, Random};

/// A store that is opened at this moment must have one of these contents.
#[derive(Clone, Debug, Default)]
pub struct Promise {
    pub allowed: Vec<Content>,
    /// Number of this moment in the script, by which images are told apart.
    pub number: u64,
}

impl Promise {
    pub fn key(&self) -> u64 {
        Random(self.number).next()
    }
}
