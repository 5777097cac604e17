//! What clients have sent that have still to log in: bounded for all of them together.
//!
//! One of them alone can send little (`client::input`), but there may be many.

use super::Front;
use crate::upstream::Upstream;

/// Bytes that clients may have sent and the front not taken who have still to log in, all together, beside [`FREE_BYTES`] each. Beyond
/// them, a client that sends more is closed.
const BYTES_MAX: usize = 32 * 1024 * 1024;
/// Bytes for which none of them is closed.
const FREE_BYTES: usize = 16 * 1024;

impl<U: Upstream> Front<U> {
    /// A client had its turn: ends its connection if there is too much of all.
    pub(super) fn note_stranger(&mut self, index: usize) {
        let Some(client) = self.clients.get_mut(index) else {
            return;
        };
        let bytes = client.connection.stranger_bytes(&self.shared.users);
        let mut bytes = bytes.saturating_sub(FREE_BYTES);
        let others = self.strangers_bytes - client.stranger_bytes;
        if bytes > 0 && others + bytes > BYTES_MAX {
            tracing::debug!(
                client = client.connection.peer(),
                "closing: clients that have not logged in have sent too much"
            );
            client.connection.end_stranger();
            bytes = 0;
        }
        client.stranger_bytes = bytes;
        self.strangers_bytes = others + bytes;
    }
}
