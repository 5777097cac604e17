//! The clients of a loop, each at an index of its own, and the queue of clients that have something to do in the next
//! turn.
//!
//! The front and the router have one `Seats` each.

use std::collections::VecDeque;
use std::ops::Range;

/// A client, and whether it is in the run queue.
struct Seat<C> {
    client: C,
    queued: bool,
}

/// The clients of a loop. After a client's index is released, another client may get it.
pub(crate) struct Seats<C> {
    seats: Vec<Option<Box<Seat<C>>>>,
    free: Vec<usize>,
    /// Indices of clients that have something to do. Each client is in the queue at most once. Some of these clients
    /// may have disconnected.
    queue: VecDeque<usize>,
}

impl<C> Seats<C> {
    pub(crate) fn new() -> Seats<C> {
        Seats {
            seats: Vec::new(),
            free: Vec::new(),
            queue: VecDeque::new(),
        }
    }

    /// Returns the number of reserved indices.
    pub(crate) fn count(&self) -> usize {
        self.seats.len() - self.free.len()
    }

    /// Returns the range of all indices that have ever been reserved.
    pub(crate) fn indices(&self) -> Range<usize> {
        0..self.seats.len()
    }

    /// Reserves an index.
    pub(crate) fn reserve(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.seats.push(None);
            self.seats.len() - 1
        })
    }

    /// Puts a client at an index that was reserved for it.
    pub(crate) fn put(&mut self, index: usize, client: C) {
        let queued = false;
        self.seats[index] = Some(Box::new(Seat { client, queued }));
    }

    /// Takes a client out. The client's index stays reserved.
    pub(crate) fn take(&mut self, index: usize) -> Option<C> {
        let seat = self.seats.get_mut(index)?.take()?;
        Some(seat.client)
    }

    /// Gives up an index at which there is no client.
    pub(crate) fn release(&mut self, index: usize) {
        self.free.push(index);
    }

    pub(crate) fn get(&self, index: usize) -> Option<&C> {
        let seat = self.seats.get(index)?.as_ref()?;
        Some(&seat.client)
    }

    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut C> {
        let seat = self.seats.get_mut(index)?.as_mut()?;
        Some(&mut seat.client)
    }

    /// Returns all clients with their indices.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &C)> {
        let seats = self.seats.iter().enumerate();
        seats.filter_map(|(index, seat)| Some((index, &seat.as_ref()?.client)))
    }

    /// Returns all clients with their indices, mutably.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut C)> {
        let seats = self.seats.iter_mut().enumerate();
        seats.filter_map(|(index, seat)| Some((index, &mut seat.as_mut()?.client)))
    }

    /// Puts a client into the queue for a turn.
    pub(crate) fn enqueue(&mut self, index: usize) {
        if let Some(Some(seat)) = self.seats.get_mut(index)
            && !seat.queued
        {
            seat.queued = true;
            self.queue.push_back(index);
        }
    }

    /// Puts all clients for which `wants` returns true into the queue for a turn.
    pub(crate) fn enqueue_if(&mut self, wants: impl Fn(&C) -> bool) {
        for index in self.indices() {
            if self.get(index).is_some_and(&wants) {
                self.enqueue(index);
            }
        }
    }

    /// Returns the number of clients in the queue.
    pub(crate) fn turns(&self) -> usize {
        self.queue.len()
    }

    /// Returns the index of the next client in the queue. The client may have disconnected.
    pub(crate) fn next_turn(&mut self) -> Option<usize> {
        let index = self.queue.pop_front()?;
        if let Some(Some(seat)) = self.seats.get_mut(index) {
            seat.queued = false;
        }
        Some(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_in_the_queue_once_and_its_index_is_free_when_it_is_released() {
        let mut seats = Seats::new();
        for client in ["a", "b"] {
            let index = seats.reserve();
            seats.put(index, client);
        }
        for index in [1, 0, 1, 7] {
            seats.enqueue(index);
        }
        assert_eq!((seats.turns(), seats.next_turn()), (2, Some(1)));
        seats.enqueue(1);
        assert_eq!([seats.next_turn(), seats.next_turn()], [Some(0), Some(1)]);
        assert_eq!(seats.next_turn(), None);
        assert_eq!(seats.take(0), Some("a"));
        assert_eq!(
            (seats.take(0), seats.get(0), seats.count()),
            (None, None, 2)
        );
        seats.release(0);
        assert_eq!((seats.count(), seats.reserve()), (1, 0));
        seats.enqueue_if(|client| *client == "b");
        assert_eq!((seats.turns(), seats.next_turn()), (1, Some(1)));
        assert_eq!(seats.iter().collect::<Vec<_>>(), [(1, &"b")]);
    }
}
