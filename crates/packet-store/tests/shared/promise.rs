//! The promise that the outside world relies on at one moment.

use std::sync::Arc;

use crate::support::{Content, Random};

/// A region that is opened at this moment must keep everything that this value lists.
#[derive(Clone, Debug)]
pub struct Promise {
    /// The store's contents after each number of applied orders, beginning with 0.
    pub contents: Arc<Vec<Content>>,
    /// All orders up to this order were acknowledged.
    pub durable: u64,
    /// The store has applied up to one of these two orders, and has the contents that belong to that order.
    pub applied: [u64; 2],
    /// Number of this moment in the script, to tell images apart.
    pub number: u64,
}

impl Promise {
    pub fn empty() -> Promise {
        Promise {
            contents: Arc::new(vec![Content::new()]),
            durable: 0,
            applied: [0, 0],
            number: 0,
        }
    }

    pub fn key(&self) -> u64 {
        Random(self.number).next()
    }
}
