//! The addresses of the devices, which another thread passes to the loop of a client.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Addresses of devices, among them the head's. A [`ClientNode`](crate::ClientNode) checks at each flush whether they
/// have changed.
#[derive(Debug, Default)]
pub struct Whereabouts {
    is_new: AtomicBool,
    peers: Mutex<Vec<SocketAddr>>,
}

impl Whereabouts {
    /// Replaces the addresses. The first address should be that of the head. All addresses must be of one family.
    pub fn tell(&self, peers: Vec<SocketAddr>) {
        *self.peers.lock().unwrap_or_else(PoisonError::into_inner) = peers;
        self.is_new.store(true, Ordering::Release);
    }

    /// Returns the addresses, if they were replaced since the last call.
    pub(crate) fn take(&self) -> Option<Vec<SocketAddr>> {
        // Usually the addresses have not changed. In this usual case the flag is only read, because a write would be
        // slower.
        let is_new =
            self.is_new.load(Ordering::Relaxed) && self.is_new.swap(false, Ordering::AcqRel);
        is_new.then(|| {
            let peers = self.peers.lock();
            peers.unwrap_or_else(PoisonError::into_inner).clone()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_told_last_is_taken_once() {
        let at = |port| vec![SocketAddr::from(([127, 0, 0, 1], port))];
        let whereabouts = Whereabouts::default();
        assert_eq!(whereabouts.take(), None);
        whereabouts.tell(at(1));
        whereabouts.tell(at(2));
        assert_eq!(whereabouts.take(), Some(at(2)));
        assert_eq!(whereabouts.take(), None);
    }
}
