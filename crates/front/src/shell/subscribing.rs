//! Changes of subscriptions that are under way, for clients whose next command must follow these changes.
//! `client/shared.rs` has the numbers of the changes (`Subscribing`), and `client/hold.rs` makes a command wait for
//! changes.

use super::Front;
use crate::upstream::Upstream;

/// If a client's next change is already under way when its previous change ends, both count as one change. The constant
/// is the maximum number of further changes that count as one with the first change. A command that waits for the first
/// change also waits for all changes that count as one with it.
const CHAIN_MAX: u32 = 16;

/// A change of a client's subscriptions that is under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change {
    /// Number of the change among the changes of all clients.
    pub(super) number: u64,
    /// Number of further changes by the same client that directly followed the first change, and count as one with it.
    chain: u32,
}

impl<U: Upstream> Front<U> {
    /// Notes the client's change of subscriptions that is under way. `None`: no change is under way.
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

    /// Ends the change with this number. The clients that waited for this change get a turn.
    pub(super) fn subscription_over(&mut self, number: u64) {
        self.shared.subscribing.end(number);
        for index in std::mem::take(&mut self.behind_subscriptions) {
            self.enqueue(index);
        }
    }
}
