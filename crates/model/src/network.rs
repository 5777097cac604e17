//! The network: the set of all packets that were ever sent and can still have an effect.
//!
//! Every packet in it may arrive at any moment, any number of times, or never: so there is any number of losses,
//! duplicates and delays, in any order, without counting them. Senders repeat themselves for ever, so a packet is
//! put here as soon as its sender could send it. A packet is taken out only when it cannot have an effect any more
//! at anybody ([`crate::protocol::Protocol::useful`]).

use crate::history::Answer;
use crate::state::Op;

/// Who a packet arrives at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Node {
    /// A client.
    Client(u8),
    /// A device.
    Device(u8),
    /// A server.
    Server(u8),
}

/// A packet (wire.md; names as there, where there are some).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Packet {
    /// A step of a client that goes through the log, to whoever is head.
    Update {
        /// Whose.
        client: u8,
        /// Which step.
        index: u8,
    },
    /// A step that the server answers, to whoever is head.
    Bypass {
        /// Whose.
        client: u8,
        /// Which step.
        index: u8,
    },
    /// An update that was not logged, as a bypass with flag FALLBACK.
    Fallback {
        /// Whose.
        client: u8,
        /// Which step.
        index: u8,
    },
    /// An entry with its order, to the next hop.
    Append {
        /// The sender's epoch.
        epoch: u8,
        /// Its order.
        order: u8,
        /// The entry.
        op: Op,
        /// The next hop.
        to: Node,
    },
    /// The tail to the head: durable up to here.
    Durable {
        /// The sender's epoch.
        epoch: u8,
        /// Durable order.
        order: u8,
    },
    /// To a client: committed up to this seq.
    Ack {
        /// Whose.
        client: u8,
        /// Highest committed seq.
        seq: u8,
        /// Devices that hold it.
        copies: u8,
    },
    /// A bypass, stamped by the head, to the server.
    Stamped {
        /// The head's epoch.
        epoch: u8,
        /// Whose.
        client: u8,
        /// Which step.
        index: u8,
        /// The head's last order.
        barrier: u8,
        /// 1 + the head, while its cache's ticket has not risen since; otherwise 0.
        ticket: u8,
        /// Whether it is a fallback.
        fallback: bool,
    },
    /// The answer to a bypass.
    Response {
        /// Whose.
        client: u8,
        /// Which step.
        index: u8,
        /// What the server says.
        answer: Answer,
        /// As in the bypass.
        ticket: u8,
    },
    /// The answer to a bypass that changes state, which must pass the head because that has a cache.
    Passing {
        /// The server's epoch.
        epoch: u8,
        /// Whose.
        client: u8,
        /// Which step.
        index: u8,
        /// What the server says.
        answer: Answer,
    },
    /// The server to the devices: applied up to here.
    Applied {
        /// The server's epoch.
        epoch: u8,
        /// A.
        order: u8,
    },
    /// The recover-reply.
    Reply {
        /// To whom.
        device: u8,
        /// Which of its incarnations asked.
        incarnation: u8,
        /// The epoch of the chain.
        epoch: u8,
        /// A.
        applied: u8,
        /// The session table.
        table: [u8; 2],
    },
    /// To a client: no room in the log.
    NotLogged {
        /// Whose.
        client: u8,
        /// Which step.
        index: u8,
    },
    /// The server's confirmation of a fallback, to the head.
    Confirm {
        /// The server's epoch.
        epoch: u8,
        /// Whose.
        client: u8,
        /// Which step.
        index: u8,
    },
    /// The same, passed on by the head.
    Confirmed {
        /// Whose.
        client: u8,
        /// Which step.
        index: u8,
    },
}

impl Packet {
    /// As one number: its kind, then its fields, a byte each.
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
                seq,
                copies,
            } => [5, client, seq, copies, 0, 0, 0, 0],
            Self::Stamped {
                epoch,
                client,
                index,
                barrier,
                ticket,
                fallback,
            } => [
                6,
                epoch,
                client,
                index,
                barrier,
                ticket,
                u8::from(fallback),
                0,
            ],
            Self::Response {
                client,
                index,
                answer,
                ticket,
            } => [7, client, index, answer, ticket, 0, 0, 0],
            Self::Applied { epoch, order } => [8, epoch, order, 0, 0, 0, 0, 0],
            Self::Reply {
                device,
                incarnation,
                epoch,
                applied,
                table: [first, second],
            } => [9, device, incarnation, epoch, applied, first, second, 0],
            Self::NotLogged { client, index } => [10, client, index, 0, 0, 0, 0, 0],
            Self::Confirm {
                epoch,
                client,
                index,
            } => [11, epoch, client, index, 0, 0, 0, 0],
            Self::Passing {
                epoch,
                client,
                index,
                answer,
            } => [13, epoch, client, index, answer, 0, 0, 0],
            Self::Confirmed { client, index } => [12, client, index, 0, 0, 0, 0, 0],
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
            [5, client, seq, copies, ..] => Self::Ack {
                client,
                seq,
                copies,
            },
            [6, epoch, client, index, barrier, ticket, fallback, _] => {
                let fallback = fallback != 0;
                Self::Stamped {
                    epoch,
                    client,
                    index,
                    barrier,
                    ticket,
                    fallback,
                }
            }
            [7, client, index, answer, ticket, ..] => Self::Response {
                client,
                index,
                answer,
                ticket,
            },
            [8, epoch, order, ..] => Self::Applied { epoch, order },
            [9, device, incarnation, epoch, applied, first, second, _] => {
                let table = [first, second];
                Self::Reply {
                    device,
                    incarnation,
                    epoch,
                    applied,
                    table,
                }
            }
            [10, client, index, ..] => Self::NotLogged { client, index },
            [11, epoch, client, index, ..] => Self::Confirm {
                epoch,
                client,
                index,
            },
            [12, client, index, ..] => Self::Confirmed { client, index },
            [13, epoch, client, index, answer, ..] => Self::Passing {
                epoch,
                client,
                index,
                answer,
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
    /// Sends a packet; one that is there already stays one.
    pub fn send(&mut self, packet: Packet) {
        let packed = packet.pack();
        if let Err(at) = self.packets.binary_search(&packed) {
            self.packets.insert(at, packed);
        }
    }

    /// What may arrive.
    pub fn iter(&self) -> impl Iterator<Item = Packet> + '_ {
        self.packets.iter().map(|packed| Packet::unpack(*packed))
    }

    /// Changes packets on their way: what a comparison at their arrival would say is decided now.
    pub fn change(&mut self, change: impl Fn(Packet) -> Packet) {
        for packed in &mut self.packets {
            *packed = change(Packet::unpack(*packed)).pack();
        }
        self.packets.sort_unstable();
        self.packets.dedup();
    }

    /// Forgets all others.
    pub fn retain(&mut self, keep: impl Fn(&Packet) -> bool) {
        self.packets.retain(|packed| keep(&Packet::unpack(*packed)));
    }
}
