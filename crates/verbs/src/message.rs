//! The TCP messages between a client and a device, before and while they have a QP (`docs/spec/verbs.md` §4).
//!
//! All messages have the same length, a checksum, and a place for a MAC ([`crate::sealed`]). The input is not trusted:
//! bytes without a valid checksum are not a message.

use pmnet_wire::FrontId;

use crate::nic::{Readable, Whereto};

/// Length of each message, in bytes.
pub const MESSAGE_BYTES: usize = 96;
const MAGIC: [u8; 8] = *b"PMNETRQP";
const VERSION: u8 = 1;
const CRC_AT: usize = 12;
/// Offset of the MAC. Without keys these bytes are zero.
const MAC_AT: usize = MESSAGE_BYTES - 8;

/// A random number that is used once.
pub type Nonce = [u64; 2];

/// The reason why a device refuses to make a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Refusal {
    /// The device is not the head, or does not serve at the moment.
    NotServing = 1,
    /// The client has another epoch.
    Epoch = 2,
    /// The device serves another shard.
    Shard = 3,
    /// The device's NIC cannot make a QP.
    Nic = 5,
    /// The device has keys, and the client has none.
    NeedsKey = 6,
    /// The client has a key, and the device has none.
    HasNoKey = 7,
    /// The client's front is on the list of refused fronts.
    FrontRefused = 8,
    /// The client's key is not derived from a key of this cluster.
    OtherCluster = 9,
    /// The client's message was not made with the key that it names, or is a repetition.
    WrongKey = 10,
}

impl Refusal {
    const ALL: [Refusal; 9] = [
        Refusal::NotServing,
        Refusal::Epoch,
        Refusal::Shard,
        Refusal::Nic,
        Refusal::NeedsKey,
        Refusal::HasNoKey,
        Refusal::FrontRefused,
        Refusal::OtherCluster,
        Refusal::WrongKey,
    ];

    /// Returns the reason as a part of a sentence, if the reason has to do with keys. A refusal for such a reason has
    /// no MAC.
    pub(crate) const fn about_keys(self) -> Option<&'static str> {
        match self {
            Refusal::NotServing | Refusal::Epoch | Refusal::Shard | Refusal::Nic => None,
            Refusal::NeedsKey => Some("the device has keys, and the client has none (--key)"),
            Refusal::HasNoKey => Some("the client has a key, and the device has none (--key)"),
            Refusal::FrontRefused => {
                Some("the client's key is on the device's list of refused fronts")
            }
            Refusal::OtherCluster => {
                Some("the client's key does not follow from a key of the device's cluster")
            }
            Refusal::WrongKey => Some(
                "the client's message was not made with the key that it names, was changed on its way, or is a repetition",
            ),
        }
    }
}

/// One message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// A client asks for a QP.
    Hello {
        /// Number of the shard.
        shard: u32,
        /// The client's epoch.
        epoch: u32,
        /// UDP port of the client, to which the device sends its answers.
        port: u16,
        /// Largest payload of the client's RDMA packets, in bytes.
        mtu: u32,
        /// Address of the client's QP.
        client: Whereto,
    },
    /// The device has made a QP, which is valid only in this epoch.
    Welcome {
        /// Epoch of the QP.
        epoch: u32,
        /// Number of devices of the chain. If it is 1, the NIC's acknowledgement is sufficient.
        copies: u8,
        /// Bytes of a slot: the longest message.
        slot_bytes: u32,
        /// Payload of an RDMA packet on this QP, in bytes.
        mtu: u32,
        /// Address of the device's QP.
        device: Whereto,
        /// The byte that the client reads to get an acknowledgement.
        byte: Readable,
    },
    /// The device refuses to make a QP.
    Refused {
        /// Reason of the refusal.
        why: Refusal,
        /// The device's epoch.
        epoch: u32,
    },
    /// The client asks to send messages of this session.
    Bind {
        /// Id of the session.
        session: u64,
        /// Token of the session.
        token: u64,
        /// Front of the session, if there are keys. The message has a MAC that is made with the key of this front.
        front: Option<FrontId>,
    },
    /// The device knows the session, and keeps it as long as the QP exists.
    Bound {
        /// Id of the session.
        session: u64,
    },
    /// The device does not know the session.
    Unknown {
        /// Id of the session.
        session: u64,
    },
    /// With keys, the first message of a client.
    Knock {
        /// The client's front.
        front: FrontId,
        /// The client's nonce.
        nonce: Nonce,
    },
    /// With keys, the first message of a device.
    Challenge {
        /// The device's nonce.
        nonce: Nonce,
    },
}

struct Writer([u8; MESSAGE_BYTES], usize);

impl Writer {
    fn put(&mut self, bytes: &[u8]) -> &mut Writer {
        self.0[self.1..self.1 + bytes.len()].copy_from_slice(bytes);
        self.1 += bytes.len();
        self
    }
    fn number(&mut self, number: u64) -> &mut Writer {
        self.put(&number.to_be_bytes())
    }
    fn nonce(&mut self, [first, second]: Nonce) -> &mut Writer {
        self.number(first).number(second)
    }
    fn whereto(&mut self, to: &Whereto) -> &mut Writer {
        self.put(&to.qpn.to_be_bytes())
            .put(&to.psn.to_be_bytes())
            .put(&to.gid)
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (taken, rest) = self.0.split_first_chunk().expect("the body is long enough");
        self.0 = rest;
        *taken
    }
    fn number(&mut self) -> u64 {
        u64::from_be_bytes(self.take())
    }
    fn small(&mut self) -> u32 {
        u32::from_be_bytes(self.take())
    }
    fn nonce(&mut self) -> Nonce {
        [self.number(), self.number()]
    }
    fn whereto(&mut self) -> Whereto {
        Whereto {
            qpn: self.small(),
            psn: self.small(),
            gid: self.take(),
        }
    }
}

impl Message {
    /// Returns the message as bytes.
    #[must_use]
    pub fn write(&self) -> [u8; MESSAGE_BYTES] {
        let mut out = Writer([0; MESSAGE_BYTES], 0);
        let (kind, why) = match self {
            Message::Hello { .. } => (1, 0),
            Message::Welcome { .. } => (2, 0),
            Message::Refused { why, .. } => (3, *why as u8),
            Message::Bind { .. } => (4, 0),
            Message::Bound { .. } => (5, 0),
            Message::Unknown { .. } => (6, 0),
            Message::Knock { .. } => (7, 0),
            Message::Challenge { .. } => (8, 0),
        };
        out.put(&MAGIC).put(&[VERSION, kind, why, 0]).put(&[0; 4]);
        match self {
            Message::Hello {
                shard,
                epoch,
                port,
                mtu,
                client,
            } => out
                .put(&shard.to_be_bytes())
                .put(&epoch.to_be_bytes())
                .put(&mtu.to_be_bytes())
                .whereto(client)
                .put(&port.to_be_bytes()),
            Message::Welcome {
                epoch,
                copies,
                slot_bytes,
                mtu,
                device,
                byte,
            } => out
                .put(&epoch.to_be_bytes())
                .put(&slot_bytes.to_be_bytes())
                .put(&mtu.to_be_bytes())
                .whereto(device)
                .number(byte.at)
                .put(&byte.key.to_be_bytes())
                .put(&[*copies]),
            Message::Refused { epoch, .. } => out.put(&epoch.to_be_bytes()),
            Message::Bind {
                session,
                token,
                front,
            } => out
                .number(*session)
                .number(*token)
                .number(front.map_or(0, FrontId::get)),
            Message::Knock { front, nonce } => out.number(front.get()).nonce(*nonce),
            Message::Challenge { nonce } => out.nonce(*nonce),
            Message::Bound { session } | Message::Unknown { session } => out.number(*session),
        };
        with_mac(&out.0, 0)
    }

    /// Returns the message in these bytes. `None`: they are not a message.
    #[must_use]
    pub fn read(bytes: &[u8; MESSAGE_BYTES]) -> Option<Message> {
        let mut blank = *bytes;
        blank[CRC_AT..CRC_AT + 4].fill(0);
        let mut from = Reader(&bytes[..]);
        let (magic, [version, kind, why, _], crc) = (from.take(), from.take(), from.small());
        if magic != MAGIC || version != VERSION || crc != crc32c::crc32c(&blank) {
            return None;
        }
        Some(match kind {
            1 => Message::Hello {
                shard: from.small(),
                epoch: from.small(),
                mtu: from.small(),
                client: from.whereto(),
                port: u16::from_be_bytes(from.take()),
            },
            2 => Message::Welcome {
                epoch: from.small(),
                slot_bytes: from.small(),
                mtu: from.small(),
                device: from.whereto(),
                byte: Readable {
                    at: from.number(),
                    key: from.small(),
                },
                copies: u8::from_be_bytes(from.take()),
            },
            3 => Message::Refused {
                why: Refusal::ALL.into_iter().find(|known| *known as u8 == why)?,
                epoch: from.small(),
            },
            4 => Message::Bind {
                session: from.number(),
                token: from.number(),
                front: FrontId::new(from.number()),
            },
            5 => Message::Bound {
                session: from.number(),
            },
            6 => Message::Unknown {
                session: from.number(),
            },
            7 => Message::Knock {
                front: FrontId::new(from.number())?,
                nonce: from.nonce(),
            },
            8 => Message::Challenge {
                nonce: from.nonce(),
            },
            _ => return None,
        })
    }
}

/// Returns the message with this MAC, and the checksum over it.
pub(crate) fn with_mac(bytes: &[u8; MESSAGE_BYTES], mac: u64) -> [u8; MESSAGE_BYTES] {
    let mut out = covered(bytes);
    out[MAC_AT..].copy_from_slice(&mac.to_be_bytes());
    let crc = crc32c::crc32c(&out);
    out[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_be_bytes());
    out
}

/// Returns the MAC in these bytes; 0: there is none.
pub(crate) fn mac_of(bytes: &[u8; MESSAGE_BYTES]) -> u64 {
    let (_, mac) = bytes.split_last_chunk().expect("a message is longer");
    u64::from_be_bytes(*mac)
}

/// Returns what a MAC covers: the message without checksum and MAC.
pub(crate) fn covered(bytes: &[u8; MESSAGE_BYTES]) -> [u8; MESSAGE_BYTES] {
    let mut out = *bytes;
    out[CRC_AT..CRC_AT + 4].fill(0);
    out[MAC_AT..].fill(0);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Message> {
        let whereto = Whereto {
            qpn: 17,
            psn: 0xab_cdef,
            gid: std::array::from_fn(|at| u8::try_from(at).unwrap()),
        };
        let byte = Readable {
            at: 1 << 40,
            key: 9,
        };
        let mut all = vec![
            Message::Hello {
                shard: 3,
                epoch: 4,
                port: 51_001,
                mtu: 1024,
                client: whereto,
            },
            Message::Welcome {
                epoch: 4,
                copies: 1,
                slot_bytes: 2048,
                mtu: 4096,
                device: whereto,
                byte,
            },
            Message::Bind {
                session: 5,
                token: u64::MAX,
                front: None,
            },
            Message::Bind {
                session: 5,
                token: 6,
                front: FrontId::new(7),
            },
            Message::Knock {
                front: FrontId::new(u64::MAX).unwrap(),
                nonce: [1, 2],
            },
            Message::Challenge { nonce: [3, 4] },
            Message::Bound { session: 5 },
            Message::Unknown { session: 6 },
        ];
        all.extend(Refusal::ALL.map(|why| Message::Refused { why, epoch: 8 }));
        all
    }

    #[test]
    fn each_message_is_read_as_it_was_written() {
        for message in all() {
            assert_eq!(Message::read(&message.write()), Some(message));
        }
    }

    #[test]
    fn what_was_damaged_in_any_bit_is_no_message() {
        for message in all() {
            for bit in 0..MESSAGE_BYTES * 8 {
                let mut bytes = message.write();
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(Message::read(&bytes), None, "bit {bit} of {message:?}");
            }
        }
    }
}
