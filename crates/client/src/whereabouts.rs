//! Where the devices are, as somebody outside of a client's loop learns it.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// The addresses among which the head is, for a [`ClientNode`](crate::ClientNode) that looks here at each flush.
#[derive(Debug, Default)]
pub struct Whereabouts {
    is_new: AtomicBool,
    peers: Mutex<Vec<SocketAddr>>,
}

impl Whereabouts {
    /// They are here from now on; the one that should be the head first. All of one address family.
    pub fn tell(&self, peers: Vec<SocketAddr>) {
        *self.peers.lock().unwrap_or_else(PoisonError::into_inner) = peers;
        self.is_new.store(true, Ordering::Release);
    }

    /// What was told since the last call.
    pub(crate) fn take(&self) -> Option<Vec<SocketAddr>> {
        // Almost always nothing: no write to the word then.
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
