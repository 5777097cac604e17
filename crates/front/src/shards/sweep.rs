//! Replies and messages that come from the links of a client.

use bytes::Bytes;

use super::client::{Client, Trust};
use super::link::Owed;

impl Client {
    /// Takes from a link what need not wait for its turn.
    pub(super) fn sweep(&mut self, shard: usize) -> bool {
        let mut moved = false;
        while !self.is_congested() {
            let Some(link) = self.links[shard].as_deref_mut() else {
                break;
            };
            if link.has_head().is_none() {
                break;
            }
            let to_client = link.is_pushed(self.state.resp3)
                || (link.owed().is_none() && self.slots.is_empty());
            if to_client {
                // A message; or the last word of a front that closes.
                if let Some(frame) = link.take() {
                    self.out.extend_from_slice(&frame);
                }
                moved = true;
                continue;
            }
            if matches!(link.owed(), None | Some(Owed::Client)) {
                break;
            }
            let (Some(frame), Some(owed)) = (link.take(), link.settle()) else {
                break;
            };
            moved = true;
            match owed {
                Owed::Setup if frame.starts_with(b"-") => self.give_up(shard, Some(&frame)),
                Owed::State(number) => {
                    if &frame[..] == b"+RESET\r\n" {
                        link.subscribed = [0; 2];
                    }
                    self.state_answered(number, shard, frame);
                }
                Owed::Probe => {
                    self.probing = false;
                    if frame.starts_with(b"-") {
                        self.refused = Some(frame);
                    } else {
                        self.trust = Trust::Yes;
                    }
                }
                Owed::Setup | Owed::Nobody | Owed::Client => {}
            }
        }
        moved
    }

    /// The next reply of a link that is for the client.
    pub(super) fn reply_of(&mut self, shard: usize) -> Option<Bytes> {
        self.sweep(shard);
        let link = self.links[shard].as_deref_mut()?;
        if link.owed() != Some(Owed::Client) || link.is_pushed(self.state.resp3) {
            return None;
        }
        link.take()
    }

    /// The next reply of a link that is for the client, and the last one to its command.
    pub(super) fn last_reply_of(&mut self, shard: usize) -> Option<Bytes> {
        let reply = self.reply_of(shard)?;
        if let Some(link) = &mut self.links[shard] {
            link.settle();
        }
        Some(reply)
    }
}
