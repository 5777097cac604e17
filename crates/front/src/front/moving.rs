//! The Redis of `--direct` by its name, which may have another address later.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use mio::Waker;

use super::Front;
use crate::connection::StoreAddress;
use crate::upstream::Upstream;

/// Tells a running front where the Redis of `--direct` is now; of no effect if it was not given.
#[derive(Clone)]
pub struct DirectMover {
    places: Arc<Mutex<Vec<SocketAddr>>>,
    waker: Arc<Waker>,
}

impl DirectMover {
    pub(super) fn new(waker: Arc<Waker>) -> DirectMover {
        DirectMover {
            places: Arc::default(),
            waker,
        }
    }

    /// Its name has these addresses now. If the front uses another one, it takes the first of them; connections to that other one are closed when they are
    /// to be used next.
    pub fn moved(&self, addresses: Vec<SocketAddr>) {
        *self.places.lock().unwrap_or_else(PoisonError::into_inner) = addresses;
        // Fails only if the front is gone already.
        let _ = self.waker.wake();
    }
}

impl<U: Upstream> Front<U> {
    /// A handle for who looks names up.
    #[must_use]
    pub fn direct_mover(&self) -> DirectMover {
        self.mover.clone()
    }

    /// The front was woken.
    pub(super) fn take_moved(&mut self) {
        let places = &self.mover.places;
        let now = std::mem::take(&mut *places.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some(address) = now.first().copied()
            && self.fixed
            && let Some(store) = &mut self.shared.store
            && !now.contains(&store.address)
        {
            tracing::warn!(from = %store.address, to = %address, "the Redis of --direct has another address now");
            let now = StoreAddress::at(store, address);
            *store = now;
        }
    }
}
