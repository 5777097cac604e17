//! The TCP messages of a client and a device, before and beside the QP that they share (`docs/spec/verbs.md` §4).
//!
//! All messages have the same length and a checksum. The input is untrusted: bytes without a valid checksum are no
//! message.

use crate::nic::{Readable, Whereto};

/// Length of each message, in bytes.
pub const MESSAGE_BYTES: usize = 96;
const MAGIC: [u8; 8] = *b"PMNETRQP";
const VERSION: u8 = 1;
const CRC_AT: usize = 12;

/// Why a device refuses to make a QP.
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
}

impl Refusal {
    const ALL: [Refusal; 4] = [
        Refusal::NotServing,
        Refusal::Epoch,
        Refusal::Shard,
        Refusal::Nic,
    ];
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
            Message::Bind { session, token } => out.number(*session).number(*token),
            Message::Bound { session } | Message::Unknown { session } => out.number(*session),
        };
        let crc = crc32c::crc32c(&out.0);
        out.0[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_be_bytes());
        out.0
    }

    /// Returns the message in these bytes; `None` if they are no message.
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
            },
            5 => Message::Bound {
                session: from.number(),
            },
            6 => Message::Unknown {
                session: from.number(),
            },
            _ => return None,
        })
    }
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
            },
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
