//! What the world relies on at one moment.

use crate::support::{Content, Random};

/// A store that is opened now must have one of these contents.
#[derive(Clone, Debug, Default)]
pub struct Promise {
    pub allowed: Vec<Content>,
    /// Which moment of the script this is; for telling images apart.
    pub number: u64,
}

impl Promise {
    pub fn key(&self) -> u64 {
        Random(self.number).next()
    }
}
