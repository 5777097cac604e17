//! Changes of subscriptions that are under way, for clients whose command comes after them. `client/shared.rs` has their numbers
//! (`Subscribing`), and `client/hold.rs` lets a command wait for them.

use super::Front;
use crate::upstream::Upstream;

/// Most changes of one client that count as one because each was there when the one before it was over: who waits for the
/// first waits for all.
const CHAIN_MAX: u32 = 16;

/// A change of a client's subscriptions that is under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change {
    /// Which of all clients'.
    pub(super) number: u64,
    /// How many of its client's came right before it, and count as this one.
    chain: u32,
}

impl<U: Upstream> Front<U> {
    /// Notes that a change of a client's subscriptions is under way, or that none is.
    pub(super) fn note_subscribing(&mut self, index: usize, under_way: Option<u64>) {
        let Some(client) = self.clients.get_mut(index) else {
            return;
        };
        let before = client.subscribing.take();
        if let (Some(before), Some(_)) = (before, under_way)
            && before.chain < CHAIN_MAX
        {
            client.subscribing = Some(Change {
                chain: before.chain + 1,
                ..before
            });
            return;
        }
        client.subscribing = under_way.map(|_| Change {
            number: self.shared.subscribing.begin(),
            chain: 0,
        });
        if let Some(before) = before {
            self.subscription_over(before.number);
        }
    }

    /// Ends the change with this number: clients that waited for it may go on.
    pub(super) fn subscription_over(&mut self, number: u64) {
        self.shared.subscribing.end(number);
        for index in std::mem::take(&mut self.behind_subscriptions) {
            self.enqueue(index);
        }
    }
}
