//! What the world relies on at one moment.

use std::sync::Arc;

use crate::support::{Content, Random};

/// A region that is opened now must keep all of this.
#[derive(Clone, Debug)]
pub struct Promise {
    /// What the store holds when it has applied so many orders: one for each that was appended, and for 0.
    pub contents: Arc<Vec<Content>>,
    /// Orders up to here were acknowledged.
    pub durable: u64,
    /// The store has one of these orders, and what belongs to it.
    pub applied: [u64; 2],
    /// Which moment of the script this is; for telling images apart.
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
