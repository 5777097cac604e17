//! Clients that a router hands over instead of a listener (`router`): what they are, and how they come in.
//!
//! Invariant: a client is in the queue before the front is woken, and a wake-up that finds nobody asleep is kept for the next
//! sleep. The queue is bounded by the clients of the router: each is in it once for each front.

use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use mio::Waker;

use super::Front;
use super::wire::Wire;
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

/// The way into a front that has no listener.
#[derive(Clone)]
pub struct Entrance {
    sender: Sender<Handed>,
    waker: Arc<Waker>,
}

impl Entrance {
    pub(super) fn new(waker: Arc<Waker>) -> (Entrance, Receiver<Handed>) {
        let (sender, receiver) = channel();
        (Entrance { sender, waker }, receiver)
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
                tracing::warn!(client = %peer, %error, "lost before it was served");
            }
        }
    }
}
