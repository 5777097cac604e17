//! Bounds the total input of all clients that still have to log in.
//!
//! A single client that still has to log in can send little (`client::input`), but there may be many such clients.

use super::Front;
use crate::upstream::Upstream;

/// Maximum number of bytes that all clients which still have to log in may have in their inputs together. The first
/// [`FREE_BYTES`] of each client are not counted. If the sum exceeds this bound, a client that sends more is closed.
const BYTES_MAX: usize = 32 * 1024 * 1024;
/// Bytes that each client which still has to log in may send in any case.
const FREE_BYTES: usize = 16 * 1024;

impl<U: Upstream> Front<U> {
    /// Updates the count after a client's turn. If all clients that still have to log in have together sent too much,
    /// ends this client's connection.
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
