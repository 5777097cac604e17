//! How client and device prove to each other that they have the key of the client's front; and the MACs of their TCP
//! messages (`docs/spec/verbs.md` §4).
//!
//! ```text
//! client ──KNOCK (front, nonce)──▶ device
//!        ◀──CHALLENGE (nonce)────
//!        ──HELLO, sealed─────────▶
//!        ◀──WELCOME, sealed──────
//! ```
//! Invariants: a MAC covers the whole message, both nonces, the direction, and the number of the message in its
//! direction. So a message is valid only once, in one connection, at one place. Without keys there are no KNOCK and no
//! MACs. This module must not do IO, use random numbers of its own, or decide what a message does.

use pmnet_proto::client::Binding;
use pmnet_proto::keys::{ClusterKeys, FrontKey, MacKey, Unserved};
use pmnet_wire::FrontId;

use crate::message::{MESSAGE_BYTES, Message, Nonce, Refusal, covered, mac_of, with_mac};

type Bytes = [u8; MESSAGE_BYTES];

/// Returns the MAC of the message with this number in its direction.
fn mac(key: &MacKey, number: u64, bytes: &Bytes) -> u64 {
    let mut text = [0; 8 + MESSAGE_BYTES];
    text[..8].copy_from_slice(&number.to_be_bytes());
    text[8..].copy_from_slice(&covered(bytes));
    key.text(&text)
}

/// Returns the message with its MAC, and increments the number of messages.
fn seal(key: &MacKey, number: &mut u64, message: &Message) -> Bytes {
    let bytes = message.write();
    let mac = mac(key, *number, &bytes);
    *number += 1;
    with_mac(&bytes, mac)
}

/// Returns whether the message has the right MAC. The comparison takes constant time, as it does for packets.
fn is_sealed(key: &MacKey, number: u64, bytes: &Bytes) -> bool {
    mac(key, number, bytes) ^ mac_of(bytes) == 0
}

/// A device's reaction to a client's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// The message is from the client, and must be processed.
    Message(Message),
    /// The device must send these bytes.
    Answer(Bytes),
    /// The client has not proven that it has a valid key. The device must state this reason, and end the connection.
    Refuse(Refusal),
    /// The bytes are not a message, it is not the message's turn, or there is no nonce. The device must end the
    /// connection.
    Garbage,
}

/// A device's end of one connection.
#[derive(Clone, Debug, Default)]
pub struct Host(Option<Talk>);

#[derive(Clone, Debug)]
struct Talk {
    front: FrontId,
    client: Nonce,
    device: Nonce,
    to_client: MacKey,
    heard: u64,
    said: u64,
}

impl Host {
    /// Processes the next message. `keys`: the cluster's present keys. `draw` returns a nonce that was never used and
    /// that nobody can predict.
    pub fn hear(
        &mut self,
        bytes: &Bytes,
        keys: Option<&ClusterKeys>,
        draw: impl FnOnce() -> Option<Nonce>,
    ) -> Heard {
        let Some(message) = Message::read(bytes) else {
            return Heard::Garbage;
        };
        match (keys, &mut self.0, message) {
            (None, _, Message::Knock { .. }) => Heard::Refuse(Refusal::HasNoKey),
            (None, _, message) => Heard::Message(message),
            (
                Some(keys),
                None,
                Message::Knock {
                    front,
                    nonce: client,
                },
            ) => {
                let Some(key) = keys.front(front) else {
                    return Heard::Refuse(unserved(keys, front));
                };
                let Some(nonce) = draw() else {
                    return Heard::Garbage;
                };
                self.0 = Some(Talk {
                    front,
                    client,
                    device: nonce,
                    to_client: key.rdma(client, nonce).to_client,
                    heard: 0,
                    said: 0,
                });
                Heard::Answer(Message::Challenge { nonce }.write())
            }
            (Some(_), None, Message::Hello { .. }) => Heard::Refuse(Refusal::NeedsKey),
            (Some(_), None, _) => Heard::Garbage,
            (Some(keys), Some(talk), message) => talk.hear(bytes, message, keys),
        }
    }

    /// Returns the message as bytes; with keys, sealed.
    pub fn write(&mut self, message: &Message) -> Bytes {
        match &mut self.0 {
            Some(talk) => seal(&talk.to_client, &mut talk.said, message),
            None => message.write(),
        }
    }

    /// Returns the client's front, if there are keys and the client has sent KNOCK. This is proven only if a message of
    /// the client has been accepted since then.
    pub fn front(&self) -> Option<FrontId> {
        self.0.as_ref().map(|talk| talk.front)
    }
}

impl Talk {
    fn hear(&mut self, bytes: &Bytes, message: Message, keys: &ClusterKeys) -> Heard {
        // A session keeps the key of its front even if the client gets another key.
        let front = match message {
            Message::Bind { front, .. } => front,
            _ => Some(self.front),
        };
        let key = front.and_then(|front| keys.front(front));
        let Some(key) = key else {
            return match message {
                // This message cannot be verified, so it has no effect.
                Message::Bind { session, .. } if self.heard > 0 => {
                    self.heard += 1;
                    let unknown = Message::Unknown { session };
                    Heard::Answer(seal(&self.to_client, &mut self.said, &unknown))
                }
                _ => Heard::Refuse(unserved(keys, self.front)),
            };
        };
        let to_device = key.rdma(self.client, self.device).to_device;
        if !is_sealed(&to_device, self.heard, bytes) {
            return Heard::Refuse(Refusal::WrongKey);
        }
        self.heard += 1;
        Heard::Message(message)
    }
}

fn unserved(keys: &ClusterKeys, front: FrontId) -> Refusal {
    match keys.why_not(front) {
        Unserved::Refused => Refusal::FrontRefused,
        Unserved::OfAnotherCluster => Refusal::OtherCluster,
    }
}

/// A client's reaction to a device's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// The message is from the device, and must be processed.
    Message(Message),
    /// The client must send these bytes.
    Answer(Bytes),
    /// The device refuses the client's key. The refusal has no MAC, so it is only a hint. The connection must end.
    Refused(Refusal),
    /// The message has a wrong MAC. The connection must end.
    Unproven,
    /// The bytes are not a message, or it is not the message's turn. The connection must end.
    Garbage,
}

/// A client's end of one connection.
#[derive(Clone, Debug)]
pub struct Caller {
    hello: Message,
    key: Option<FrontKey>,
    own: Nonce,
    /// The device's nonce, when it is known.
    device: Option<Nonce>,
    heard: u64,
    said: u64,
}

impl Caller {
    /// Begins a connection with this HELLO. `nonce` was never used, and nobody can predict it. Also returns the first
    /// bytes that must be sent.
    pub fn begin(key: Option<FrontKey>, nonce: Nonce, hello: Message) -> (Caller, Bytes) {
        let first = key.map_or(hello, |key| Message::Knock {
            front: key.id(),
            nonce,
        });
        let caller = Caller {
            hello,
            key,
            own: nonce,
            device: None,
            heard: 0,
            said: 0,
        };
        (caller, first.write())
    }

    /// Processes the next message.
    pub fn hear(&mut self, bytes: &Bytes) -> Told {
        let Some(message) = Message::read(bytes) else {
            return Told::Garbage;
        };
        let refused = match message {
            Message::Refused { why, .. } if why.about_keys().is_some() => Some(Told::Refused(why)),
            _ => None,
        };
        let Some(key) = self.key else {
            return refused.unwrap_or(Told::Message(message));
        };
        let Some(device) = self.device else {
            let Message::Challenge { nonce } = message else {
                return refused.unwrap_or(Told::Unproven);
            };
            self.device = Some(nonce);
            let to_device = key.rdma(self.own, nonce).to_device;
            return Told::Answer(seal(&to_device, &mut self.said, &self.hello));
        };
        if !is_sealed(&key.rdma(self.own, device).to_client, self.heard, bytes) {
            return refused.unwrap_or(Told::Unproven);
        }
        self.heard += 1;
        Told::Message(message)
    }

    /// Returns a BIND of this session; with keys, it is sealed with the key of the session's front. `None`: only one of
    /// session and connection has a key.
    pub fn bind(&mut self, session: u64, of: &Binding) -> Option<Bytes> {
        let message = Message::Bind {
            session,
            token: of.whose.token,
            front: of.whose.front,
        };
        match (of.key, self.device) {
            (None, None) => Some(message.write()),
            (Some(key), Some(device)) => {
                let to_device = key.rdma(self.own, device).to_device;
                Some(seal(&to_device, &mut self.said, &message))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
