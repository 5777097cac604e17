//! The promise that a region has made to its users at one moment.

use std::sync::Arc;

use crate::support::{Content, Random};

/// A region that is opened at this moment must have everything that this value lists.
#[derive(Clone, Debug)]
pub struct Promise {
    /// The store's contents after each number of applied orders. The first element is for 0 orders.
    pub contents: Arc<Vec<Content>>,
    /// All orders up to this order were acknowledged.
    pub durable: u64,
    /// The store has applied all orders up to one of these two, and has the contents that belong to this order.
    pub applied: [u64; 2],
    /// Number of this moment in the script, by which images are told apart.
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
