//! Follows the address of the Redis of `--direct`, if `--direct` gives a name. The name may resolve to another address
//! later.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use mio::Waker;

use super::Front;
use crate::store::StoreAddress;
use crate::upstream::Upstream;

/// A handle that gives a running front new addresses of the Redis of `--direct`. Without `--direct` the handle has no
/// effect.
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

    /// Notes the addresses to which the name resolves now. If the front uses another address, it changes to the first
    /// address of the list. Connections to the old address are closed at their next use.
    pub fn moved(&self, addresses: Vec<SocketAddr>) {
        *self.places.lock().unwrap_or_else(PoisonError::into_inner) = addresses;
        // Waking fails only if the front has already ended.
        let _ = self.waker.wake();
    }
}

impl<U: Upstream> Front<U> {
    /// Returns a handle for the thread that resolves names.
    #[must_use]
    pub fn direct_mover(&self) -> DirectMover {
        self.mover.clone()
    }

    /// Takes the new addresses after a wake-up.
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
