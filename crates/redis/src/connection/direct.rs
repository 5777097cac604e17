//! The client's own connection to the store: what is to be sent, and what becomes of what comes back.
//!
//! Invariants: messages (subscriptions, MONITOR) leave between replies, never inside one; replies to
//! the front's own AUTH, HELLO and SELECT never reach the client.

use std::net::SocketAddr;

use bytes::{Buf, Bytes, BytesMut};
use pmnet_wire::command::{Protocol, write_command};

use super::calls::Slot;
use super::pass::{Effect, Passage, Stage};
use super::transaction::EXECABORT;
use super::{Connection, StoreAddress};
use crate::reply::{self, ReplyError, Scanner};

/// The client's own connection to the store, without its socket.
pub(super) struct Direct {
    pub(super) address: SocketAddr,
    pub(super) outbox: Vec<u8>,
    /// Something was written, so the store may have acted on it.
    pub(super) used: bool,
    pub(super) inbox: BytesMut,
    pub(super) scanner: Scanner,
    pub(super) database: u32,
    pub(super) protocol: Protocol,
    /// Replies to come that are to our own AUTH, HELLO and SELECT.
    pub(super) swallow: usize,
    pub(super) subscribed: u64,
    pub(super) subscribed_sharded: u64,
}

impl Direct {
    pub(super) fn new(store: &StoreAddress) -> Direct {
        let mut outbox = Vec::new();
        let auth = store.auth();
        if let Some(auth) = &auth {
            write_command(auth, &mut outbox);
        }
        Direct {
            address: store.address,
            outbox,
            used: false,
            inbox: BytesMut::new(),
            scanner: Scanner::default(),
            database: 0,
            protocol: Protocol::Resp2,
            swallow: usize::from(auth.is_some()),
            subscribed: 0,
            subscribed_sharded: 0,
        }
    }
}

impl Connection {
    /// Where this client's connection to the store should go; `None`: there is to be none.
    #[must_use]
    pub fn direct_address(&self) -> Option<SocketAddr> {
        self.direct.as_ref().map(|direct| direct.address)
    }

    /// Bytes to be written to the store.
    #[must_use]
    pub fn direct_unwritten(&self) -> &[u8] {
        self.direct
            .as_ref()
            .map(|direct| &direct.outbox[..])
            .unwrap_or_default()
    }

    /// `count` bytes were written to the store.
    pub fn direct_wrote(&mut self, count: usize) {
        if let Some(direct) = &mut self.direct {
            direct.used = true;
            direct.outbox.drain(..count.min(direct.outbox.len()));
        }
    }

    /// The connection to the store could not be made, or is lost.
    pub fn direct_lost(&mut self, why: &str) {
        if self.monitoring || self.watching || self.subscriptions() > 0 {
            self.ending = true;
        }
        let used = self.direct.take().is_some_and(|direct| direct.used);
        match &self.passage {
            Some(Passage { stage: Stage::Sent, .. }) if used => self.fail_passage(reply::error(&format!(
                "ERR pmnet: the connection to the store was lost ({why}); the command may or may not have taken effect"
            ))),
            Some(_) => self.fail_passage(reply::error(&format!(
                "ERR pmnet: the store cannot be reached directly ({why}); the command was not executed"
            ))),
            None => {}
        }
    }

    /// Takes in bytes from the store.
    pub fn direct_receive(&mut self, bytes: &[u8]) {
        let Some(mut direct) = self.direct.take() else {
            return;
        };
        direct.inbox.extend_from_slice(bytes);
        let mut result = Ok(());
        while result.is_ok() {
            match direct.scanner.poll(&direct.inbox) {
                Ok(None) => break,
                Ok(Some(len)) => {
                    result = self.direct_value(&mut direct, len);
                    direct.inbox.advance(len.min(direct.inbox.len()));
                }
                Err(error @ ReplyError) => result = Err(error.to_string()),
            }
        }
        self.direct = Some(direct);
        if let Err(why) = result {
            self.direct_lost(&why);
        }
    }

    /// One reply, or one message, of `len` bytes at the head of the inbox.
    fn direct_value(&mut self, direct: &mut Direct, len: usize) -> Result<(), String> {
        let value = &direct.inbox[..len];
        if direct.swallow > 0 && !value.starts_with(b">") {
            direct.swallow -= 1;
            if value.starts_with(b"-") {
                return Err(format!(
                    "it said {}",
                    String::from_utf8_lossy(value.trim_ascii())
                ));
            }
            return Ok(());
        }
        let sent = matches!(
            &self.passage,
            Some(Passage {
                stage: Stage::Sent,
                ..
            })
        );
        // Data may look like a word about subscriptions: it is one only where such words come.
        let subscribes = match &self.passage {
            Some(passage) if sent => passage.effect == Effect::Subscribe,
            _ => direct.subscribed + direct.subscribed_sharded > 0,
        };
        if (subscribes || value.starts_with(b">"))
            && let Some(subscription) = reply::subscription(value)
        {
            if subscription.sharded {
                direct.subscribed_sharded = subscription.remaining;
            } else {
                direct.subscribed = subscription.remaining;
            }
        }
        let Some(passage) = self.passage.as_mut().filter(|_| sent) else {
            // A message: between replies, never inside one.
            let message = Bytes::copy_from_slice(value);
            self.reply(message);
            return Ok(());
        };
        if passage.effect == Effect::Subscribe {
            if !is_sentinel(value, &passage.sentinel) {
                passage.replies.extend_from_slice(value);
                return Ok(());
            }
        } else if value.starts_with(b">") {
            // A message to a RESP3 client while another command waits for its reply.
            self.push_message(value);
            return Ok(());
        } else {
            passage.replies.extend_from_slice(value);
        }
        let Some(passage) = self.passage.take() else {
            return Ok(());
        };
        self.apply_effect(&passage, direct);
        let replies = if passage.aborted {
            EXECABORT
        } else {
            Bytes::from(passage.replies)
        };
        self.settle(replies);
        Ok(())
    }

    /// A push goes out before the reply that is awaited, but behind what is complete.
    fn push_message(&mut self, value: &[u8]) {
        match self
            .slots
            .iter()
            .position(|slot| matches!(slot, Slot::Passage))
        {
            Some(0) => self.output.extend_from_slice(value),
            Some(index) => {
                self.slots.insert(index, Slot::Ready(Bytes::new()));
                self.fill(index, Bytes::copy_from_slice(value));
            }
            None => self.reply(Bytes::copy_from_slice(value)),
        }
    }
}

fn is_sentinel(value: &[u8], sentinel: &[u8]) -> bool {
    // Subscribed in RESP2: an array of "pong" and the argument; else the argument.
    let value = value.strip_prefix(b"*2\r\n$4\r\npong\r\n").unwrap_or(value);
    reply::bulk_text(value) == Some(sentinel)
}
