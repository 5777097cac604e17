//! The Redis of `--direct`, if it is given by name: the name may have another address later.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use mio::Waker;

use super::Front;
use crate::store::StoreAddress;
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

    /// The name has these addresses now. If the front uses an address that is not among them, it takes the first of them. Connections to the old
    /// address are closed at their next use.
    pub fn moved(&self, addresses: Vec<SocketAddr>) {
        *self.places.lock().unwrap_or_else(PoisonError::into_inner) = addresses;
        // Fails only if the front is gone already.
        let _ = self.waker.wake();
    }
}

impl<U: Upstream> Front<U> {
    /// A handle for the thread that looks names up.
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
            tracing::warn!(from = %store.address, to = %address, "PM3205 the Redis of --direct has another address now");
            let now = StoreAddress::at(store, address);
            *store = now;
        }
    }
}
