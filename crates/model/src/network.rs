//! The network: the set of all packets that were ever sent and can still have an effect.
//!
//! Every packet in the network may arrive at any moment, any number of times, or never. So losses, duplicates and
//! delays are unlimited, and need not be counted. Senders repeat packets without end, so a packet is added to the set
//! as soon as its sender could send it. The packet is removed only when it can no longer have an effect at any process
//! ([`crate::protocol::Protocol::useful`]).

use crate::history::Answer;
use crate::state::{Op, Table};

/// The receiver of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Node {
    /// A client.
    Client(u8),
    /// A device.
    Device(u8),
    /// A server.
    Server(u8),
}

/// A packet. If wire.md has such a packet, the name here is the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Packet {
    /// A logged step of a client, sent to the head.
    Update {
        /// The client.
        client: u8,
        /// Index of the step.
        index: u8,
    },
    /// A step that the server answers, sent to the head.
    Bypass {
        /// The client.
        client: u8,
        /// Index of the step.
        index: u8,
    },
    /// An update that was not logged, as a bypass with flag FALLBACK.
    Fallback {
        /// The client.
        client: u8,
        /// Index of the step.
        index: u8,
    },
    /// An entry with its order, to the next hop.
    Append {
        /// The sender's epoch.
        epoch: u8,
        /// Order of the entry.
        order: u8,
        /// The entry.
        op: Op,
        /// The receiver, which is the next hop.
        to: Node,
    },
    /// From the tail to the head: the tail's log is durable up to this order.
    Durable {
        /// The sender's epoch.
        epoch: u8,
        /// Durable order.
        order: u8,
    },
    /// To a client: its updates are committed up to this seq.
    Ack {
        /// The client.
        client: u8,
        /// Whether the ack is about the client's mark session.
        mark: bool,
        /// Highest committed seq.
        seq: u8,
        /// Number of devices that hold the updates.
        copies: u8,
    },
    /// A bypass, stamped by the head, to the server.
    Stamped {
        /// The head's epoch.
        epoch: u8,
        /// The client.
        client: u8,
        /// Index of the step.
        index: u8,
        /// The head's last order.
        barrier: u8,
        /// The head's incarnation. 0: all reads are bypasses.
        incarnation: u8,
        /// Whether the request is a fallback.
        fallback: bool,
    },
    /// The answer to a bypass.
    Response {
        /// The client.
        client: u8,
        /// Index of the step.
        index: u8,
        /// The server's answer.
        answer: Answer,
    },
    /// HIT: the head's answer to a read, with an update of its log.
    Hit {
        /// The client.
        client: u8,
        /// Index of the step.
        index: u8,
        /// The answer, which is the value of the update.
        answer: Answer,
    },
    /// MISS: the client may read directly from the store under these conditions.
    Miss {
        /// The client.
        client: u8,
        /// Index of the step.
        index: u8,
        /// The head's epoch.
        epoch: u8,
        /// Whether the head's version has not changed since a store was asked for this read.
        same: bool,
        /// The order that the store must have applied.
        need: u8,
    },
    /// A MISS for a client that reads from a replica. It is sent only if the head has a lease and no request about
    /// these keys is outstanding.
    Apart {
        /// The client.
        client: u8,
        /// Index of the step.
        index: u8,
        /// The head's epoch.
        epoch: u8,
        /// The order that the replica must have applied.
        need: u8,
    },
    /// The answer to a bypass, sent by the server to a head that has an index.
    Passing {
        /// The server's epoch.
        epoch: u8,
        /// The client.
        client: u8,
        /// Index of the step.
        index: u8,
        /// The server's answer.
        answer: Answer,
        /// A at the execution of the bypass, or a later A.
        watermark: u8,
    },
    /// From the server to the devices: the store has applied the log up to this order.
    Applied {
        /// The server's epoch.
        epoch: u8,
        /// A.
        order: u8,
    },
    /// The recover-reply.
    Reply {
        /// The device that asked.
        device: u8,
        /// The incarnation in which the device asked.
        incarnation: u8,
        /// The epoch of the chain.
        epoch: u8,
        /// A.
        applied: u8,
        /// The session table.
        table: Table,
    },
    /// To a client: the log has no room for the update.
    NotLogged {
        /// The client.
        client: u8,
        /// Index of the step.
        index: u8,
    },
    /// The server's confirmation of a fallback, to the head.
    Confirm {
        /// The server's epoch.
        epoch: u8,
        /// The client.
        client: u8,
        /// Index of the step.
        index: u8,
        /// A at the time when the update was applied, or a later A. 0: all reads are bypasses.
        watermark: u8,
    },
    /// The confirmation of a fallback, passed on to the client by the head.
    Confirmed {
        /// The client.
        client: u8,
        /// Index of the step.
        index: u8,
    },
}

impl Packet {
    /// Returns the packet as one number: the kind, and then the fields, with one byte each.
    fn pack(self) -> u64 {
        u64::from_be_bytes(match self {
            Self::Update { client, index } => [0, client, index, 0, 0, 0, 0, 0],
            Self::Bypass { client, index } => [1, client, index, 0, 0, 0, 0, 0],
            Self::Fallback { client, index } => [2, client, index, 0, 0, 0, 0, 0],
            Self::Append {
                epoch,
                order,
                op,
                to,
            } => {
                let (kind, id) = match to {
                    Node::Client(id) => (0, id),
                    Node::Device(id) => (1, id),
                    Node::Server(id) => (2, id),
                };
                [3, epoch, order, op, kind, id, 0, 0]
            }
            Self::Durable { epoch, order } => [4, epoch, order, 0, 0, 0, 0, 0],
            Self::Ack {
                client,
                mark,
                seq,
                copies,
            } => [5, client, seq, copies, u8::from(mark), 0, 0, 0],
            Self::Stamped {
                epoch,
                client,
                index,
                barrier,
                incarnation,
                fallback,
            } => [
                6,
                epoch,
                client,
                index,
                barrier,
                incarnation,
                u8::from(fallback),
                0,
            ],
            Self::Response {
                client,
                index,
                answer,
            } => [7, client, index, answer, 0, 0, 0, 0],
            Self::Applied { epoch, order } => [8, epoch, order, 0, 0, 0, 0, 0],
            Self::Reply {
                device,
                incarnation,
                epoch,
                applied,
                table: [first, second, third, fourth],
            } => {
                let (own, marks) = (first | second << 4, third | fourth << 4);
                [9, device, incarnation, epoch, applied, own, marks, 0]
            }
            Self::NotLogged { client, index } => [10, client, index, 0, 0, 0, 0, 0],
            Self::Confirm {
                epoch,
                client,
                index,
                watermark,
            } => [11, epoch, client, index, watermark, 0, 0, 0],
            Self::Confirmed { client, index } => [12, client, index, 0, 0, 0, 0, 0],
            Self::Passing {
                epoch,
                client,
                index,
                answer,
                watermark,
            } => [13, epoch, client, index, answer, watermark, 0, 0],
            Self::Hit {
                client,
                index,
                answer,
            } => [14, client, index, answer, 0, 0, 0, 0],
            Self::Miss {
                client,
                index,
                epoch,
                same,
                need,
            } => [15, client, index, epoch, u8::from(same), need, 0, 0],
            Self::Apart {
                client,
                index,
                epoch,
                need,
            } => [16, client, index, epoch, need, 0, 0, 0],
        })
    }

    fn unpack(packed: u64) -> Self {
        match packed.to_be_bytes() {
            [0, client, index, ..] => Self::Update { client, index },
            [1, client, index, ..] => Self::Bypass { client, index },
            [2, client, index, ..] => Self::Fallback { client, index },
            [3, epoch, order, op, kind, id, ..] => {
                let to = match kind {
                    0 => Node::Client(id),
                    1 => Node::Device(id),
                    _ => Node::Server(id),
                };
                Self::Append {
                    epoch,
                    order,
                    op,
                    to,
                }
            }
            [4, epoch, order, ..] => Self::Durable { epoch, order },
            [5, client, seq, copies, mark, ..] => Self::Ack {
                client,
                mark: mark != 0,
                seq,
                copies,
            },
            [6, epoch, client, index, barrier, incarnation, fallback, _] => {
                let fallback = fallback != 0;
                Self::Stamped {
                    epoch,
                    client,
                    index,
                    barrier,
                    incarnation,
                    fallback,
                }
            }
            [7, client, index, answer, ..] => Self::Response {
                client,
                index,
                answer,
            },
            [8, epoch, order, ..] => Self::Applied { epoch, order },
            [9, device, incarnation, epoch, applied, own, marks, _] => {
                let table = [own & 15, own >> 4, marks & 15, marks >> 4];
                Self::Reply {
                    device,
                    incarnation,
                    epoch,
                    applied,
                    table,
                }
            }
            [10, client, index, ..] => Self::NotLogged { client, index },
            [11, epoch, client, index, watermark, ..] => Self::Confirm {
                epoch,
                client,
                index,
                watermark,
            },
            [12, client, index, ..] => Self::Confirmed { client, index },
            [13, epoch, client, index, answer, watermark, ..] => Self::Passing {
                epoch,
                client,
                index,
                answer,
                watermark,
            },
            [14, client, index, answer, ..] => Self::Hit {
                client,
                index,
                answer,
            },
            [15, client, index, epoch, same, need, ..] => Self::Miss {
                client,
                index,
                epoch,
                same: same != 0,
                need,
            },
            [16, client, index, epoch, need, ..] => Self::Apart {
                client,
                index,
                epoch,
                need,
            },
            other => unreachable!("nothing packs to {other:?}"),
        }
    }
}

/// The set of packets, packed and sorted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Network {
    packets: Vec<u64>,
}

impl Network {
    /// Adds a packet to the set.
    pub fn send(&mut self, packet: Packet) {
        let packed = packet.pack();
        if let Err(at) = self.packets.binary_search(&packed) {
            self.packets.insert(at, packed);
        }
    }

    /// Returns the packets that may arrive.
    pub fn iter(&self) -> impl Iterator<Item = Packet> + '_ {
        self.packets.iter().map(|packed| Packet::unpack(*packed))
    }

    /// Adds a packet whose last field is an order. A lower order allows its receiver more. So of packets that differ
    /// only in this order, only the packet with the lowest order stays.
    pub fn send_least(&mut self, packet: Packet) {
        let packed = packet.pack();
        // Position of the order (`need` or `watermark`) in a packed packet.
        let shift = match packet {
            Packet::Confirm { .. } | Packet::Apart { .. } => 24,
            Packet::Miss { .. } | Packet::Passing { .. } => 16,
            _ => unreachable!("{packet:?} has no such number"),
        };
        let kin = |other: &u64| *other >> (shift + 8) == packed >> (shift + 8);
        if self
            .packets
            .iter()
            .any(|other| kin(other) && *other <= packed)
        {
            return;
        }
        self.packets.retain(|other| !kin(other));
        self.send(packet);
    }

    /// Removes all packets for which `keep` returns false.
    pub fn retain(&mut self, keep: impl Fn(&Packet) -> bool) {
        self.packets.retain(|packed| keep(&Packet::unpack(*packed)));
    }
}
