//! The entrance for clients that a router hands to a front without a listener.
//!
//! Invariant: a client is put into the queue before the front is woken. If the loop does not sleep, the wake-up ends
//! its next sleep. Each client is in the queue at most once for each front, so the number of the router's clients
//! bounds the queue.

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
    /// Answer to CLIENT ID, in all fronts of the router.
    pub(crate) id: u64,
    /// The client's address.
    pub(crate) peer: SocketAddr,
    /// The address to which the client connected.
    pub(crate) local: Option<SocketAddr>,
    /// The socket for the client's commands and replies.
    pub(crate) stream: UnixStream,
}

/// The commands that a front has learned of its store, until its router takes them.
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
        // The lock is taken only if there is something new.
        if !self.is_new.load(Ordering::Acquire) {
            return None;
        }
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_new.store(false, Ordering::Release);
        newest.take()
    }
}

/// A handle that hands clients to a front without a listener.
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

    /// Takes the commands of the front's store, if the front has learned them since the last call of this
    /// function.
    pub(crate) fn take_learned(&self) -> Option<Learned> {
        self.shelf.take()
    }

    /// Hands a client to the front. If the front has ended, the front's socket of the pair is closed.
    pub(crate) fn hand_over(&self, client: Handed) {
        if self.sender.send(client).is_ok() {
            // Waking fails only if the loop has already ended.
            let _ = self.waker.wake();
        }
    }
}

impl<U: Upstream> Front<U> {
    /// Accepts the clients that a router has given to this front.
    pub(super) fn take_handed(&mut self) {
        let Some(handed) = &self.handed else {
            return;
        };
        // The number of these clients is at most the number of the router's clients.
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
