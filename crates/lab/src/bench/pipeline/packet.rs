//! The kinds of packets: what each is, and what the pipeline must do with it. A new kind is a name, a
//! sentence and an expected result here, and its bytes in [`super::stand`].

use clap::ValueEnum;
use pmnet_dataplane::xdp::{XDP_PASS, XDP_TX};
use serde::Serialize;

use crate::xdp::Counted;

/// A kind of packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Packet {
    /// An update in order: appended and acknowledged.
    Update,
    /// The same over IPv6.
    Update6,
    /// An update that is in the log: acknowledged again.
    Duplicate,
    /// An update of a session that is not known here.
    Unknown,
    /// An update whose payload is not what its checksum says.
    Damaged,
    /// A READ whose key has an update in the log: answered with it.
    ReadHit,
    /// A READ whose key has none: answered with what the store must have applied.
    ReadMiss,
    /// UDP to another port of this machine.
    OtherPort,
    /// TCP to this machine.
    Tcp,
    /// An ARP question.
    Arp,
}

impl Packet {
    /// As on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Packet::Update => "update",
            Packet::Update6 => "update6",
            Packet::Duplicate => "duplicate",
            Packet::Unknown => "unknown",
            Packet::Damaged => "damaged",
            Packet::ReadHit => "read-hit",
            Packet::ReadMiss => "read-miss",
            Packet::OtherPort => "other-port",
            Packet::Tcp => "tcp",
            Packet::Arp => "arp",
        }
    }

    /// What happens to it.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        match self {
            Packet::Update => "an update in order, appended to the log and acknowledged",
            Packet::Update6 => "the same over IPv6",
            Packet::Duplicate => "an update that is in the log already, acknowledged again",
            Packet::Unknown => "an update of a session that the pipeline does not serve, handed up",
            Packet::Damaged => "an update whose payload does not fit its checksum, handed up",
            Packet::ReadHit => "a READ, answered with the update that the log has of its key (HIT)",
            Packet::ReadMiss => {
                "a READ of a key without an update, answered with what the store must have (MISS)"
            }
            Packet::OtherPort => "UDP to another port, passed on",
            Packet::Tcp => "TCP, passed on",
            Packet::Arp => "ARP, passed on",
        }
    }

    /// Whether a session's seq moves on, so that each packet can be used only once.
    #[must_use]
    pub const fn appends(self) -> bool {
        matches!(self, Packet::Update | Packet::Update6)
    }

    /// Whether it is an update, of a session that is known or not.
    #[must_use]
    pub const fn is_update(self) -> bool {
        !self.is_read() && !matches!(self, Packet::OtherPort | Packet::Tcp | Packet::Arp)
    }

    /// Whether it is a READ.
    #[must_use]
    pub const fn is_read(self) -> bool {
        matches!(self, Packet::ReadHit | Packet::ReadMiss)
    }

    /// Returns the XDP verdict that the pipeline must give for such a packet.
    #[must_use]
    pub const fn verdict(self) -> u32 {
        match self {
            Packet::Update
            | Packet::Update6
            | Packet::Duplicate
            | Packet::ReadHit
            | Packet::ReadMiss => XDP_TX,
            _ => XDP_PASS,
        }
    }

    /// Counters of the pipeline after `count` of these packets and no others.
    #[must_use]
    pub fn counted(self, count: u64) -> Counted {
        let nothing = Counted::default();
        match self {
            Packet::Update | Packet::Update6 => Counted {
                appended: count,
                ..nothing
            },
            Packet::Duplicate => Counted {
                duplicates: count,
                ..nothing
            },
            Packet::Unknown => Counted {
                handed_up: count,
                sessions_unknown: count,
                ..nothing
            },
            Packet::Damaged => Counted {
                handed_up: count,
                odd: count,
                ..nothing
            },
            Packet::ReadHit => Counted {
                read_hits: count,
                ..nothing
            },
            Packet::ReadMiss => Counted {
                read_misses: count,
                ..nothing
            },
            Packet::OtherPort | Packet::Tcp | Packet::Arp => nothing,
        }
    }
}
