//! Counts a client's subscriptions by the store's confirmations on its pass-through connection.

use pmnet_resp::read;

use super::direct::Direct;

/// A confirmation of a subscription, or of its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Subscription {
    /// Whether the confirmation is about shard channels, which are counted separately.
    sharded: bool,
    /// Whether the confirmation is about patterns.
    pattern: bool,
    /// Number of subscriptions after the change.
    remaining: u64,
}

impl Direct {
    /// Updates the count of the client's subscriptions if `value` is a confirmation.
    pub(super) fn note_subscription(&mut self, value: &[u8]) {
        let Some(subscription) = subscription(value) else {
            return;
        };
        if subscription.sharded {
            self.subscribed_sharded = subscription.remaining;
            return;
        }
        let before = self.subscribed;
        self.subscribed = subscription.remaining;
        if subscription.pattern {
            let patterns = self.patterns + subscription.remaining;
            self.patterns = patterns.saturating_sub(before);
        }
        // If no subscription remains, no pattern remains, even if a confirmation was missed.
        self.patterns = self.patterns.min(subscription.remaining);
    }
}

/// Reads a confirmation: `subscribe`, `psubscribe`, `ssubscribe` or their opposites, as an array (RESP2) or a
/// push (RESP3).
fn subscription(value: &[u8]) -> Option<Subscription> {
    if !value.starts_with(b"*3\r\n") && !value.starts_with(b">3\r\n") {
        return None;
    }
    let [kind, _channel, remaining] = read::elements(value)?[..] else {
        return None;
    };
    let (sharded, pattern) = match read::bulk(kind)? {
        b"subscribe" | b"unsubscribe" => (false, false),
        b"psubscribe" | b"punsubscribe" => (false, true),
        b"ssubscribe" | b"sunsubscribe" => (true, false),
        _ => return None,
    };
    Some(Subscription {
        sharded,
        pattern,
        remaining: u64::try_from(read::integer(remaining)?).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn confirmations_are_told_from_messages() {
        let found = |value: &str| subscription(value.as_bytes());
        let says = |sharded, pattern, remaining| {
            Some(Subscription {
                sharded,
                pattern,
                remaining,
            })
        };
        assert_eq!(
            found("*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:2\r\n"),
            says(false, false, 2)
        );
        assert_eq!(
            found(">3\r\n$12\r\nsunsubscribe\r\n$1\r\nc\r\n:0\r\n"),
            says(true, false, 0)
        );
        assert_eq!(
            found("*3\r\n$11\r\nunsubscribe\r\n$-1\r\n:0\r\n"),
            says(false, false, 0)
        );
        assert_eq!(
            found(">3\r\n$12\r\npunsubscribe\r\n_\r\n:0\r\n"),
            says(false, true, 0)
        );
        for other in [
            "*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n:2\r\n",
            "*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:-2\r\n",
            "*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n$1\r\n2\r\n",
            "*2\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n",
            "+OK\r\n",
        ] {
            assert_eq!(found(other), None, "{other}");
        }
    }
}
