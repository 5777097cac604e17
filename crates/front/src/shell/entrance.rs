//! Clients that a router hands over instead of a listener (`router`): what they are, and how they come in.
//!
//! Invariant: a client is in the queue before the front is woken, and a wake-up of a loop that is awake is kept for the next
//! sleep. The queue is bounded by the clients of the router: each is in it once for each front.

use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use mio::Waker;

use super::Front;
use super::wire::Wire;
use crate::table::Learned;
use crate::upstream::Upstream;

/// A client of a router.
pub(crate) struct Handed {
    /// What CLIENT ID says, in all fronts of the router.
    pub(crate) id: u64,
    /// Where the client is.
    pub(crate) peer: SocketAddr,
    /// Where it connected to.
    pub(crate) local: Option<SocketAddr>,
    /// What it sends, and is sent.
    pub(crate) stream: UnixStream,
}

/// Commands of its store that a front has learned, until its router looks.
#[derive(Default)]
pub(super) struct Shelf {
    is_new: AtomicBool,
    newest: Mutex<Option<Learned>>,
}

impl Shelf {
    pub(super) fn put(&self, learned: Learned) {
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        *newest = Some(learned);
        self.is_new.store(true, Ordering::Release);
    }

    fn take(&self) -> Option<Learned> {
        // Without news there is no need for the lock.
        if !self.is_new.load(Ordering::Acquire) {
            return None;
        }
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_new.store(false, Ordering::Release);
        newest.take()
    }
}

/// The way into a front that has no listener.
#[derive(Clone)]
pub struct Entrance {
    sender: Sender<Handed>,
    waker: Arc<Waker>,
    shelf: Arc<Shelf>,
}

impl Entrance {
    pub(super) fn new(waker: Arc<Waker>, shelf: Arc<Shelf>) -> (Entrance, Receiver<Handed>) {
        let (sender, receiver) = channel();
        let entrance = Entrance {
            sender,
            waker,
            shelf,
        };
        (entrance, receiver)
    }

    /// The commands of its store, if the front has learned them since this was last asked.
    pub(crate) fn take_learned(&self) -> Option<Learned> {
        self.shelf.take()
    }

    /// Hands a client over. If the front has ended, its end of the pair is closed.
    pub(crate) fn hand_over(&self, client: Handed) {
        if self.sender.send(client).is_ok() {
            // Fails only if the loop is gone already.
            let _ = self.waker.wake();
        }
    }
}

impl<U: Upstream> Front<U> {
    /// Takes in who was handed over.
    pub(super) fn take_handed(&mut self) {
        let Some(handed) = &self.handed else {
            return;
        };
        // Never more than the router has clients.
        let clients: Vec<Handed> = handed.try_iter().collect();
        for client in clients {
            let (id, peer) = (client.id, client.peer);
            let stream = Wire::pair(client.stream, client.local);
            if let Err(error) = stream.and_then(|stream| self.seat(stream, id, peer)) {
                tracing::warn!(client = %peer, %error, "PM3309 a client was lost before it was served");
            }
        }
    }
}
