//! The clients that have something to do in this turn of the loop.

use super::Front;
use crate::upstream::Upstream;

impl<U: Upstream> Front<U> {
    pub(super) fn enqueue(&mut self, index: usize) {
        self.clients.enqueue(index);
    }

    pub(super) fn mark_dirty(&mut self, index: usize) {
        if let Some(client) = self.clients.get_mut(index)
            && !client.dirty
        {
            client.dirty = true;
            self.dirty.push(index);
        }
    }

    /// Gives the first client that waits for the endpoint another turn.
    pub(super) fn wake_waiting(&mut self) {
        while let Some(index) = self.busy.pop_front() {
            if let Some(client) = self.clients.get_mut(index)
                && std::mem::take(&mut client.waiting)
            {
                client.woken = true;
                return self.enqueue(index);
            }
        }
    }
}
