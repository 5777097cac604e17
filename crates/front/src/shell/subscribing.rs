//! Changes of subscriptions that are under way, for clients whose command comes behind them.

use super::Front;
use crate::upstream::Upstream;

/// Most changes of one client that count as one because each was there when the one before it was over: who waits for the
/// first waits for all.
const CHAIN_MAX: u32 = 16;

/// A change of a client's subscriptions that is under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change {
    /// Which of its client's.
    own: u64,
    /// Which of all clients'.
    pub(super) number: u64,
    /// How many of its client's came right before it, and count as this one.
    chain: u32,
}

impl<U: Upstream> Front<U> {
    /// A client had its turn.
    pub(super) fn note_subscribing(&mut self, index: usize) {
        let Some(Some(client)) = self.clients.get_mut(index) else {
            return;
        };
        if client.connection.waits_for_subscriptions() {
            self.behind_subscriptions.insert(index);
        }
        let under_way = client.connection.changes_subscriptions();
        if under_way == client.subscribing.map(|change| change.own) {
            return;
        }
        let before = client.subscribing.take();
        if let (Some(before), Some(own)) = (before, under_way)
            && before.chain < CHAIN_MAX
        {
            client.subscribing = Some(Change {
                own,
                chain: before.chain + 1,
                ..before
            });
            return;
        }
        client.subscribing = under_way.map(|own| Change {
            own,
            number: self.shared.subscribing.begin(),
            chain: 0,
        });
        if let Some(before) = before {
            self.subscription_over(before.number);
        }
    }

    /// The change with this number is over: who waited for it may go on.
    pub(super) fn subscription_over(&mut self, number: u64) {
        self.shared.subscribing.end(number);
        for index in std::mem::take(&mut self.behind_subscriptions) {
            self.enqueue(index);
        }
    }
}
